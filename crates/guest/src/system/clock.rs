// SPDX-License-Identifier: GPL-2.0-only
//! Clocks in nanoseconds, and sleeping by them.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::thread::ClockId;
use rustix::time::Timespec;

/// Nanoseconds on the monotonic clock.
pub fn now() -> u64 {
    nanoseconds(rustix::time::clock_gettime(ClockId::Monotonic))
}

/// CPU time of the calling thread in nanoseconds.
pub fn thread_cpu() -> u64 {
    nanoseconds(rustix::time::clock_gettime(ClockId::ThreadCPUTime))
}

fn nanoseconds(t: Timespec) -> u64 {
    // Neither clock is ever negative.
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

/// Sleeps until a moment on the monotonic clock, in nanoseconds.
///
/// # Errors
/// Those of clock_nanosleep(2).
pub fn sleep_until(at: u64) -> Result<()> {
    let until = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
    rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &until).context("clock_nanosleep")
}

/// Looks at this interval whether something is done, for so long at most. Returns whether it is.
///
/// # Errors
/// Those of `done`.
pub fn within(limit: Duration, interval: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<bool> {
    let began = Instant::now();
    while !done()? {
        if began.elapsed() >= limit {
            return Ok(false);
        }
        thread::sleep(interval);
    }
    Ok(true)
}

/// Converts nanoseconds to milliseconds.
pub fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
