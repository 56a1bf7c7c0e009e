// SPDX-License-Identifier: GPL-2.0-only
//! What the sampler has read at one time.

use std::time::Duration;

/// The least that a victim must give back: all memory divided by the first, but at most the second.
const MIN_VICTIM_DIVISOR: u64 = 1024;
const MAX_MIN_VICTIM_BYTES: u64 = 16 << 20;

/// What was read at one time. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// When, on a monotonic clock.
    pub at: Duration,
    /// All memory, or the limit.
    pub total: u64,
    /// MemAvailable, or what is left of the limit: what can be allocated without swapping.
    pub available: u64,
    /// Free swap on disks.
    pub disk_free: u64,
    /// Free swap that is memory itself: zram. In bytes before compression.
    pub zram_free: u64,
    /// What is in zram, before compression and after.
    pub zram: [u64; 2],
    /// PSI totals since boot: the time in which some task stalled for memory, and in which all did; `None`
    /// without PSI.
    pub stalled: Option<[Duration; 2]>,
}

impl Sample {
    /// Returns how many bytes a victim must give back at least.
    pub fn min_victim_bytes(&self) -> u64 {
        (self.total / MIN_VICTIM_DIVISOR).min(MAX_MIN_VICTIM_BYTES)
    }
}
