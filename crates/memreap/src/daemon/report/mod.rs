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

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time by a clock that is the same for all processes.
fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs().try_into().unwrap_or(0))
}
