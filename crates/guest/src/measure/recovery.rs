// SPDX-License-Identifier: GPL-2.0-only
//! What comes back after a kill, over time: free memory, free swap space, and the size of zram's pool.
//!
//! As in [`free_memory`], a real-time thread that mostly sleeps reads the kernel's own counters. Free memory
//! grows by what was resident and by what zram's pool returns, so the latter is subtracted: see
//! [`Sample::ram`]. The number of mapped anonymous pages would not do: a dying process unmaps thousands of
//! them before it frees the first.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use linux::swaps;

use super::free_memory::{self, Reading};
use super::recorder::Recorder;
use crate::system::clock;

/// How often a sample is taken. With its timer interrupt and its wake-up a sample costs some 50 us under
/// `icount`: 5 % of the CPU, with every kernel.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1);
const SWAPS: &str = "/proc/swaps";

/// Memory and swap space at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Nanoseconds on the monotonic clock.
    pub at: u64,
    /// Free memory; see [`free_memory::free`] for what per-CPU counters may hide.
    pub free: u64,
    /// Swap space that is not in use. Slots that wait to be released are, although the kernel may report them
    /// as free, and slots that a CPU keeps for its next use.
    pub swap: u64,
    /// Memory that zram's pool occupies; 0 where swap is on another device.
    pub zram: u64,
}

impl Sample {
    /// Free memory and the pool together. Only resident memory that is freed makes this grow: what the pool
    /// returns moves from one to the other.
    pub fn ram(&self) -> u64 {
        self.free + self.zram
    }

    /// A number that grows as the pool shrinks.
    pub fn outside_zram(&self) -> u64 {
        u64::MAX / 2 - self.zram
    }
}

/// Takes samples.
pub struct Sampler {
    /// The file mm_stat of the zram device.
    pool: Option<File>,
    /// [`SWAPS`].
    swaps: File,
}

impl Sampler {
    /// For swap on the zram device of that name, or on another kind of device.
    ///
    /// # Errors
    /// When there is no such zram device.
    pub fn new(zram: Option<&str>) -> Result<Self> {
        let open = |name: &str| {
            let path = format!("/sys/block/{name}/mm_stat");
            File::open(&path).context(path)
        };
        Ok(Self { pool: zram.map(open).transpose()?, swaps: File::open(SWAPS).context(SWAPS)? })
    }

    /// Takes a sample.
    ///
    /// # Errors
    /// When the device's statistics cannot be read.
    pub fn sample(&self) -> Result<Sample> {
        let mut text = [0; 256];
        let zram = match &self.pool {
            None => 0,
            Some(pool) => {
                let length = pool.read_at(&mut text, 0).context("mm_stat")?;
                pool_bytes(&text[..length]).context("mm_stat: no third number")?
            }
        };
        let info = rustix::system::sysinfo();
        let unit = u64::from(info.mem_unit);
        let length = self.swaps.read_at(&mut text, 0).context(SWAPS)?;
        let swap = swaps::free(Path::new(SWAPS), &text[..length])?;
        Ok(Sample { at: clock::now(), free: info.freeram * unit, swap, zram })
    }
}

/// Returns the third number of mm_stat: all memory that the pool occupies, in bytes.
fn pool_bytes(mm_stat: &[u8]) -> Option<u64> {
    std::str::from_utf8(mm_stat).ok()?.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// A recorder of samples; see [`Sampler::sample`].
pub fn recorder() -> Recorder<Sample> {
    Recorder::new(SAMPLE_INTERVAL, Sample { at: 1, free: 1, swap: 1, zram: 1 })
}

/// Returns the nanoseconds from `start` until `what` had grown from `before` by `amount` bytes. `None` if it
/// never did.
pub fn reached(samples: &[Sample], start: u64, what: impl Fn(&Sample) -> u64, before: u64, amount: u64) -> Option<f64> {
    let later = samples.iter().map(|m| Reading { at: m.at, free: what(m) });
    free_memory::reached_since(Reading { at: start, free: before }, later, before + amount)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(points: &[[u64; 4]]) -> Vec<Sample> {
        points.iter().map(|&[at, free, swap, zram]| Sample { at, free, swap, zram }).collect()
    }

    #[test]
    fn what_the_pool_returns_is_not_ram() {
        // Until 2000 only zram returns memory, until 3000 only others do.
        let all = samples(&[[900, 10, 0, 50], [2000, 40, 30, 20], [3000, 140, 60, 20]]);
        assert_eq!(reached(&all, 1000, Sample::ram, 60, 50), Some(1500.0));
        assert_eq!(reached(&all, 1000, Sample::ram, 60, 101), None);
        assert_eq!(reached(&all, 1000, |m| m.swap, 0, 30), Some(1000.0));
        let pool = all[0].outside_zram();
        assert_eq!(reached(&all, 1000, Sample::outside_zram, pool, 15), Some(500.0));
        assert_eq!(reached(&all, 1000, Sample::outside_zram, pool, 31), None);
    }

    #[test]
    fn a_kill_may_end_between_two_samples() {
        let all = samples(&[[900, 10, 0, 0], [1400, 110, 0, 0]]);
        assert_eq!(reached(&all, 1000, |m| m.free, 10, 50), Some(200.0));
    }

    #[test]
    fn the_pool_is_the_third_number_of_mm_stat() {
        assert_eq!(pool_bytes(b"  100   50   4096  0  8192  1 2 3 4\n"), Some(4096));
        assert_eq!(pool_bytes(b"1 2\n"), None);
        assert_eq!(pool_bytes(b""), None);
    }

    #[test]
    fn a_sample_without_zram_has_free_memory_only() {
        let sample = Sampler::new(None).unwrap().sample().unwrap();
        assert!(sample.free > 0 && sample.zram == 0);
    }
}
