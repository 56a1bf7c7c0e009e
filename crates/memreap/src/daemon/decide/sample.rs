// SPDX-License-Identifier: GPL-2.0-only
//! What the sampler has read at one time.

use std::time::Duration;

/// The least that a victim must give back: all memory divided by this, ...
const MIN_VICTIM_DIVISOR: u64 = 1024;
/// ... but at most this.
pub const MAX_MIN_VICTIM_BYTES: u64 = 16 << 20;

/// What was read at one time. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// When, on a monotonic clock.
    pub at: Duration,
    /// All memory, or the limit.
    pub total: u64,
    /// `total` is the limit of a cgroup.
    pub is_limit: bool,
    /// MemAvailable, or what is left of the limit: what can be allocated without swapping.
    pub available: u64,
    /// MemFree, or what of the limit is not charged: what is available without any reclaim.
    pub free: u64,
    /// All of swap: on disks, and in zram before compression.
    pub swap_total: u64,
    /// What of it is free.
    pub swap_free: u64,
    /// PSI's totals since boot: the time in which some task stalled for memory, and in which all did; `None`
    /// without PSI.
    pub stalled: Option<[Duration; 2]>,
    /// How long after `at` these were read at the latest. Whoever reads can be kept from it, even in real time: a virtual
    /// machine by its host.
    pub stalled_within: Duration,
    /// How many pages the kernel has looked at since boot to reclaim memory for the machine, and not at the limit of a
    /// cgroup; `None` where that does not matter (a limit, or hardly any memory is available) or is not known.
    pub scanned: Option<u64>,
}

impl Sample {
    /// Returns how many bytes can still be used: available memory and free swap.
    pub fn headroom(&self) -> u64 {
        self.available.saturating_add(self.swap_free)
    }

    /// Returns how many bytes a victim must give back at least.
    pub fn min_victim_bytes(&self) -> u64 {
        (self.total / MIN_VICTIM_DIVISOR).min(MAX_MIN_VICTIM_BYTES)
    }
}
