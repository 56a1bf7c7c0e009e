// SPDX-License-Identifier: GPL-2.0-only
//! Decides when to act, and what to do next.

pub mod control_loop;
pub mod governor;
pub mod reason;
pub mod replay;
pub mod sample;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
mod watch;
pub mod world;
