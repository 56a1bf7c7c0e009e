//! What comes back after a kill, over time: free memory, free swap, and what zram's pool takes.
//!
//! As in [`free_memory`], a real-time thread that mostly sleeps reads the kernel's own counters.
//! Memory that was not in swap comes back as free memory too, so what the pool gives back at the
//! same moment is subtracted: see [`Moment::ram`]. Counting the anonymous pages that are mapped would
//! not do: a dying process unmaps thousands of them before it frees the first.

use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::measure::free_memory::{self, Reading};
use crate::system::{clock, sched};

/// How often all is read. With its timer interrupt and its wake-up a reading costs some 50 us under
/// `icount`: 5 % of that CPU, whatever the kernel.
const STEP: Duration = Duration::from_millis(1);
/// Room for so many readings; nothing may be allocated while they are taken.
const MOMENTS: usize = 15_000;

/// All at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Nanoseconds on the monotonic clock.
    pub at: u64,
    /// Free memory, see [`free_memory::free`] for what per-CPU counters may hide of it.
    pub free: u64,
    /// Free swap space. Slots that wait to be released, or that a CPU keeps for its next use, are
    /// not in it.
    pub swap: u64,
    /// Memory that zram's pool takes; 0 where swap is on another device.
    pub zram: u64,
}

impl Moment {
    /// What of it nothing else than the loss of memory that was not in swap changes: free memory, and
    /// what the pool has, which is free memory as soon as it gives it back.
    pub fn ram(&self) -> u64 {
        self.free + self.zram
    }

    /// Grows as the pool shrinks.
    pub fn outside_zram(&self) -> u64 {
        u64::MAX / 2 - self.zram
    }
}

/// Reads the counters.
pub struct Gauge {
    pool: Option<File>,
}

impl Gauge {
    /// For swap on that zram device, or on something else.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn new(zram: Option<&str>) -> Result<Self> {
        let open = |name: &str| {
            let path = format!("/sys/block/{name}/mm_stat");
            File::open(&path).context(path)
        };
        Ok(Self { pool: zram.map(open).transpose()? })
    }

    /// All of it now.
    ///
    /// # Errors
    /// When the device does not tell what its pool takes.
    pub fn read(&self) -> Result<Moment> {
        let mut text = [0; 256];
        let zram = match &self.pool {
            None => 0,
            Some(pool) => {
                let length = pool.read_at(&mut text, 0).context("mm_stat")?;
                used(&text[..length]).context("mm_stat: no third number")?
            }
        };
        let info = rustix::system::sysinfo();
        let unit = u64::from(info.mem_unit);
        Ok(Moment { at: clock::now(), free: info.freeram * unit, swap: info.freeswap * unit, zram })
    }
}

/// The third number of mm_stat: all memory that the pool takes.
fn used(mm_stat: &[u8]) -> Option<u64> {
    std::str::from_utf8(mm_stat).ok()?.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// The readings of one round, in memory that is already there.
pub struct Recorder {
    moments: Vec<Moment>,
    gauge: Gauge,
}

impl Recorder {
    /// Allocates and touches the memory.
    pub fn new(gauge: Gauge) -> Self {
        // Not zero: an allocator hands out zeroed memory that is not there yet.
        Self { moments: vec![Moment { at: 1, free: 1, swap: 1, zram: 1 }; MOMENTS], gauge }
    }

    /// Reads all every millisecond until `stop`, as a SCHED_FIFO thread. Sets `running` after the
    /// first reading. Gives the readings, in order.
    ///
    /// # Errors
    /// When the thread cannot get its priority, a reading fails, or the room for readings ran out.
    pub fn record(&mut self, running: &AtomicBool, stop: &AtomicBool) -> Result<&[Moment]> {
        sched::set_policy(libc::SCHED_FIFO, 1).context("SCHED_FIFO for the reader")?;
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("timer slack")?;
        let mut taken = 0;
        let mut next = clock::now();
        while !stop.load(Ordering::Acquire) {
            ensure!(taken < MOMENTS, "not all came back within {:?}", STEP * u32::try_from(MOMENTS)?);
            self.moments[taken] = self.gauge.read()?;
            taken += 1;
            running.store(true, Ordering::Release);
            next = (next + STEP.as_nanos() as u64).max(clock::now());
            clock::sleep_until(next)?;
        }
        Ok(&self.moments[..taken])
    }
}

/// Nanoseconds from `start` until `what`, which was `before` and grows, had grown by `amount`.
/// `None` when it never did.
pub fn reached(
    moments: &[Moment],
    start: u64,
    what: impl Fn(&Moment) -> u64,
    before: u64,
    amount: u64,
) -> Option<f64> {
    // Nothing comes back before the kill, which may take less than the time between two readings.
    let first = Reading { at: start, free: before };
    let later = moments.iter().filter(|m| m.at > start).map(|m| Reading { at: m.at, free: what(m) });
    let readings: Vec<Reading> = [first].into_iter().chain(later).collect();
    free_memory::reached(&readings, start, before + amount)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(points: &[[u64; 4]]) -> Vec<Moment> {
        points.iter().map(|&[at, free, swap, zram]| Moment { at, free, swap, zram }).collect()
    }

    #[test]
    fn what_the_pool_gives_back_is_not_ram() {
        // At 2000 only zram has given memory back, at 3000 only others.
        let all = moments(&[[900, 10, 0, 50], [2000, 40, 30, 20], [3000, 140, 60, 20]]);
        assert_eq!(reached(&all, 1000, Moment::ram, 60, 50), Some(1500.0));
        assert_eq!(reached(&all, 1000, Moment::ram, 60, 101), None);
        assert_eq!(reached(&all, 1000, |m| m.swap, 0, 30), Some(1000.0));
        let pool = all[0].outside_zram();
        assert_eq!(reached(&all, 1000, Moment::outside_zram, pool, 15), Some(500.0));
        assert_eq!(reached(&all, 1000, Moment::outside_zram, pool, 31), None);
    }

    #[test]
    fn a_kill_may_end_between_two_readings() {
        let all = moments(&[[900, 10, 0, 0], [1400, 110, 0, 0]]);
        assert_eq!(reached(&all, 1000, |m| m.free, 10, 50), Some(200.0));
    }

    #[test]
    fn the_pool_is_the_third_number() {
        assert_eq!(used(b"  100   50   4096  0  8192  1 2 3 4\n"), Some(4096));
        assert_eq!(used(b"1 2\n"), None);
        assert_eq!(used(b""), None);
    }

    #[test]
    fn readings_follow_each_other() {
        let (running, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let gauge = Gauge::new(None).unwrap();
        assert!(gauge.read().unwrap().free > 0 && gauge.read().unwrap().zram == 0);
        let mut recorder = Recorder::new(gauge);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| recorder.record(&running, &stop).map(<[_]>::to_vec));
            while !running.load(Ordering::Acquire) && !thread.is_finished() {
                std::thread::sleep(STEP);
            }
            std::thread::sleep(STEP * 10);
            stop.store(true, Ordering::Release);
            // Not everybody may have a real-time thread.
            if let Ok(all) = thread.join().unwrap() {
                assert!(all.len() > 2 && all.windows(2).all(|w| w[0].at < w[1].at), "{all:?}");
            }
        });
    }
}
