//! Watching memory come back: free memory over time, and when a share of it was back.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result, bail, ensure};

use crate::system::{clock, sched};

/// How often free memory is read where nothing else is said. One reading costs some 20 µs under emulation and the reader
/// shares its CPU with a reaper, so this is a compromise: 5 % of that CPU, on both arms alike.
pub const STEP: Duration = Duration::from_micros(400);
/// Room for six seconds of readings, or more with a longer step; nothing may be allocated while they
/// are taken.
const READINGS: usize = 15_000;
/// Free memory has settled when two readings this far apart in time...
const SETTLE_STEP: Duration = Duration::from_millis(3);
/// ...differ by no more than what the per-CPU counters may hide.
const SETTLE_SLACK: u64 = 256 << 10;
const SETTLE_TRIES: usize = 300;

/// The sysctl that bounds how many free pages a CPU keeps to itself, as a fraction of its zone.
const HIGH_FRACTION: &str = "/proc/sys/vm/percpu_pagelist_high_fraction";

/// Free memory in bytes at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Nanoseconds on the monotonic clock.
    pub at: u64,
    /// The zones' free pages, without those on per-CPU lists.
    pub free: u64,
}

/// Free memory in bytes. sysinfo(2) reads the zones' counters and takes no lock; what the
/// per-CPU deltas of those counters can hide is below 200 KiB on two CPUs.
pub fn free() -> u64 {
    let info = rustix::system::sysinfo();
    info.freeram * u64::from(info.mem_unit)
}

/// Free memory in bytes once it no longer changes.
///
/// # Errors
/// When it still changes after a second.
pub fn settled() -> Result<u64> {
    let mut last = free();
    for _ in 0..SETTLE_TRIES {
        thread::sleep(SETTLE_STEP);
        let free = free();
        if free.abs_diff(last) <= SETTLE_SLACK {
            return Ok(free);
        }
        last = free;
    }
    bail!("free memory does not settle: the guest is not idle")
}

/// Keeps per-CPU free lists as short as the kernel allows, so that freed pages show up as free
/// at once. By default they take in up to an eighth of a zone. Restores the setting when dropped.
pub struct ShortFreeLists {
    before: String,
}

impl ShortFreeLists {
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
        // A failure leaves the lists short, which hurts nobody.
        let _ = fs::write(HIGH_FRACTION, self.before.trim_end());
    }
}

/// The readings of one round, in memory that is already there.
pub struct Recorder {
    readings: Vec<Reading>,
    step: Duration,
}

impl Recorder {
    /// Allocates and touches the memory. Free memory will be read every `step`.
    pub fn new(step: Duration) -> Self {
        // Not zero: an allocator hands out zeroed memory that is not there yet.
        Self { readings: vec![Reading { at: 1, free: 1 }; READINGS], step }
    }

    /// Reads free memory every step until `stop`, as a SCHED_FIFO thread on the caller's
    /// CPUs. Sets `running` after the first reading. Gives the readings, in order.
    ///
    /// # Errors
    /// When the thread cannot get its priority, or the room for readings ran out.
    pub fn record(&mut self, running: &AtomicBool, stop: &AtomicBool) -> Result<&[Reading]> {
        sched::set_policy(libc::SCHED_FIFO, 1).context("SCHED_FIFO for the reader of free memory")?;
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("timer slack")?;
        let mut taken = 0;
        let mut next = clock::now();
        while !stop.load(Ordering::Acquire) {
            ensure!(
                taken < self.readings.len(),
                "memory did not come back within {:?}",
                self.step * u32::try_from(READINGS)?
            );
            self.readings[taken] = Reading { free: free(), at: clock::now() };
            taken += 1;
            running.store(true, Ordering::Release);
            next = (next + self.step.as_nanos() as u64).max(clock::now());
            clock::sleep_until(next)?;
        }
        Ok(&self.readings[..taken])
    }
}

/// Nanoseconds from `start` until free memory first reached `level`, on a straight line between
/// the readings on both sides of the crossing. `None` when it never did.
pub fn reached(readings: &[Reading], start: u64, level: u64) -> Option<f64> {
    let after = readings.iter().position(|r| r.at >= start && r.free >= level)?;
    let hi = readings[after];
    // Without a reading between the start and this one there is nothing to interpolate from:
    // the level was there already.
    let lo = match after.checked_sub(1).map(|i| readings[i]) {
        Some(lo) if lo.free < level => lo,
        _ => return Some((hi.at - start) as f64),
    };
    let share = (level - lo.free) as f64 / (hi.free - lo.free) as f64;
    let at = lo.at as f64 + share * (hi.at - lo.at) as f64;
    Some((at - start as f64).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(points: &[(u64, u64)]) -> Vec<Reading> {
        points.iter().map(|&(at, free)| Reading { at, free }).collect()
    }

    #[test]
    fn the_crossing_lies_between_two_readings() {
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
    fn a_level_that_was_there_before_takes_no_time_of_its_own() {
        let r = readings(&[(1000, 100), (1400, 100)]);
        assert_eq!(reached(&r, 1000, 90), Some(0.0));
    }
}
