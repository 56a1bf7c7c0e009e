// SPDX-License-Identifier: GPL-2.0-only
//! What the daemon reports to people and other programs.

mod application;
pub mod history;
pub mod hook;
pub mod journal;
pub mod metrics;
pub mod notify;
pub mod record;
pub mod service;
pub mod text;
pub mod warn;
pub mod warning;
mod workload;
