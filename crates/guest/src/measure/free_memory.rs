// SPDX-License-Identifier: GPL-2.0-only
//! Free memory over time, and when a certain amount of it was reached.

use std::time::Duration;
use std::{fs, iter, thread};

use anyhow::{Context as _, Result, bail};

use super::recorder::Recorder;
use crate::system::clock;

/// How often free memory is read by default. A reading costs some 20 us under emulation, on the CPU of a
/// reaper, so this is a compromise: 5 % of that CPU, equally in both arms of a comparison.
pub const READ_INTERVAL: Duration = Duration::from_micros(400);
/// Free memory has settled when two readings this far apart...
const SETTLE_INTERVAL: Duration = Duration::from_millis(3);
/// ...differ by no more than what the per-CPU counters may hide.
const SETTLE_SLACK_BYTES: u64 = 256 << 10;
/// How often two readings are compared: for about a second.
const SETTLE_TRIES: usize = 300;

/// The sysctl that limits how many free pages a CPU keeps to itself, as a fraction of its zone.
const HIGH_FRACTION: &str = "/proc/sys/vm/percpu_pagelist_high_fraction";

/// Free memory in bytes at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Nanoseconds on the monotonic clock.
    pub at: u64,
    /// The zones' free pages, without those on per-CPU lists.
    pub free: u64,
}

impl Reading {
    /// Reads free memory.
    pub fn now() -> Self {
        Self { free: free(), at: clock::now() }
    }
}

/// A recorder of free memory; see [`Reading::now`].
pub fn recorder(interval: Duration) -> Recorder<Reading> {
    Recorder::new(interval, Reading { at: 1, free: 1 })
}

/// Returns free memory in bytes. sysinfo(2) reads the zones' counters and takes no lock. The per-CPU deltas
/// of those counters hide less than 200 KiB on two CPUs.
pub fn free() -> u64 {
    let info = rustix::system::sysinfo();
    info.freeram * u64::from(info.mem_unit)
}

/// Waits until free memory no longer changes, and returns it in bytes.
///
/// # Errors
/// When it still changes after a second.
pub fn settled() -> Result<u64> {
    let mut last = free();
    for _ in 0..SETTLE_TRIES {
        thread::sleep(SETTLE_INTERVAL);
        let free = free();
        if free.abs_diff(last) <= SETTLE_SLACK_BYTES {
            return Ok(free);
        }
        last = free;
    }
    bail!("free memory does not settle: the guest is not idle")
}

/// Keeps per-CPU free lists as short as the kernel allows, so that freed pages count as free at once. By
/// default these lists hold up to an eighth of a zone. Restores the setting when dropped.
pub struct ShortFreeLists {
    before: String,
}

impl ShortFreeLists {
    /// Changes the setting.
    ///
    /// # Errors
    /// When the sysctl cannot be read or written.
    pub fn set() -> Result<Self> {
        let before = fs::read_to_string(HIGH_FRACTION).context(HIGH_FRACTION)?;
        fs::write(HIGH_FRACTION, i32::MAX.to_string()).context(HIGH_FRACTION)?;
        Ok(Self { before })
    }
}

impl Drop for ShortFreeLists {
    fn drop(&mut self) {
        // A failure leaves the lists short, which does no harm.
        let _ = fs::write(HIGH_FRACTION, self.before.trim_end());
    }
}

/// Returns the nanoseconds from `start` until free memory first reached `level` bytes, interpolated linearly
/// between the readings before and after that. `None` if it never did.
pub fn reached(readings: &[Reading], start: u64, level: u64) -> Option<f64> {
    let after = readings.iter().position(|r| r.at >= start && r.free >= level)?;
    let hi = readings[after];
    // Without a lower reading before this one there is nothing to interpolate from: the level had been
    // reached already.
    let lo = match after.checked_sub(1).map(|i| readings[i]) {
        Some(lo) if lo.free < level => lo,
        _ => return Some((hi.at - start) as f64),
    };
    let share = (level - lo.free) as f64 / (hi.free - lo.free) as f64;
    let at = lo.at as f64 + share * (hi.at - lo.at) as f64;
    Some((at - start as f64).max(0.0))
}

/// The same from `first` on, which was read before the kill: nothing comes back before that, and all may come
/// back between two readings.
pub fn reached_since(first: Reading, later: impl Iterator<Item = Reading>, level: u64) -> Option<f64> {
    let later = later.filter(|r| r.at > first.at);
    let readings: Vec<Reading> = iter::once(first).chain(later).collect();
    reached(&readings, first.at, level)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(points: &[(u64, u64)]) -> Vec<Reading> {
        points.iter().map(|&(at, free)| Reading { at, free }).collect()
    }

    #[test]
    fn the_time_is_interpolated_between_two_readings() {
        let r = readings(&[(900, 0), (1000, 0), (1400, 50), (1800, 100), (2200, 100)]);
        assert_eq!(reached(&r, 1000, 75), Some(600.0));
        assert_eq!(reached(&r, 1000, 50), Some(400.0));
        assert_eq!(reached(&r, 1000, 100), Some(800.0));
    }

    #[test]
    fn a_start_between_readings_counts_from_the_start() {
        let r = readings(&[(900, 0), (1300, 100)]);
        assert_eq!(reached(&r, 1000, 90), Some(260.0));
    }

    #[test]
    fn readings_before_the_start_do_not_count() {
        let r = readings(&[(800, 100), (900, 0), (1300, 100)]);
        assert_eq!(reached(&r, 1000, 50), Some(100.0));
    }

    #[test]
    fn a_level_never_reached_is_no_time() {
        let r = readings(&[(900, 0), (1300, 89)]);
        assert_eq!(reached(&r, 1000, 90), None);
        assert_eq!(reached(&[], 1000, 90), None);
    }

    #[test]
    fn a_level_that_was_reached_before_takes_no_time() {
        let r = readings(&[(1000, 100), (1400, 100)]);
        assert_eq!(reached(&r, 1000, 90), Some(0.0));
    }
}
