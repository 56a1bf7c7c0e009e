// SPDX-License-Identifier: GPL-2.0-only
//! Runs the daemon: its start, its event loop, its sandbox, and what it reads of the system.

mod event_loop;
mod limits;
pub mod sampler;
mod sandbox;
mod signals;
mod start;
pub mod system;

pub use start::run;
