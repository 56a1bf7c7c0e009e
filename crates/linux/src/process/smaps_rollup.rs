//! /proc/PID/smaps_rollup.

use std::path::Path;

use crate::text::missing;
use crate::{Result, text};

/// What /proc/PID/smaps_rollup says, in bytes: the sums over all mappings, from the page tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollup {
    /// Pages that are there.
    pub rss: u64,
    /// The same, each divided by the number of processes that map it.
    pub pss: u64,
    /// Mapped by others too, not written to.
    pub shared_clean: u64,
    /// Mapped by others too, written to.
    pub shared_dirty: u64,
    /// Mapped by this process only, not written to. Comes back when it dies if it is anonymous;
    /// what is a file's stays in the page cache, easy to reclaim.
    pub private_clean: u64,
    /// Mapped by this process only, written to.
    pub private_dirty: u64,
    /// Anonymous.
    pub anonymous: u64,
    /// Freed by the process with MADV_FREE, not yet taken by the kernel.
    pub lazy_free: u64,
    /// Huge pages of hugetlbfs of this process only; not in `rss`, and they go back to the pool.
    pub private_hugetlb: u64,
    /// Anonymous memory in swap.
    pub swap: u64,
    /// The same, each divided by the number of processes that share it.
    pub swap_pss: u64,
    /// Locked in memory, as far as in `pss`.
    pub locked: u64,
}

impl Rollup {
    /// Parses /proc/PID/smaps_rollup.
    ///
    /// # Errors
    /// When `Rss`, `Pss`, `Private_Clean`, `Private_Dirty`, `Swap` or `SwapPss` is missing, or a
    /// size does not fit into 64 bits.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let (mut rss, mut pss, mut private_clean, mut private_dirty) = (None, None, None, None);
        let (mut swap, mut swap_pss) = (None, None);
        let mut rollup = Self::default();
        // The first line is the address range.
        for line in text::lines(path, bytes).skip(1) {
            let line = line?;
            let Some((key, value)) = line.key_value() else {
                return Err(line.error("not a key and a value"));
            };
            match key {
                b"Rss" => rss = Some(line.kib(value)?),
                b"Pss" => pss = Some(line.kib(value)?),
                b"Shared_Clean" => rollup.shared_clean = line.kib(value)?,
                b"Shared_Dirty" => rollup.shared_dirty = line.kib(value)?,
                b"Private_Clean" => private_clean = Some(line.kib(value)?),
                b"Private_Dirty" => private_dirty = Some(line.kib(value)?),
                b"Anonymous" => rollup.anonymous = line.kib(value)?,
                b"LazyFree" => rollup.lazy_free = line.kib(value)?,
                b"Private_Hugetlb" => rollup.private_hugetlb = line.kib(value)?,
                b"Swap" => swap = Some(line.kib(value)?),
                b"SwapPss" => swap_pss = Some(line.kib(value)?),
                b"Locked" => rollup.locked = line.kib(value)?,
                _ => {}
            }
        }
        Ok(Self {
            rss: rss.ok_or_else(|| missing(path, bytes, "Rss: is missing"))?,
            pss: pss.ok_or_else(|| missing(path, bytes, "Pss: is missing"))?,
            private_clean: private_clean.ok_or_else(|| missing(path, bytes, "Private_Clean: is missing"))?,
            private_dirty: private_dirty.ok_or_else(|| missing(path, bytes, "Private_Dirty: is missing"))?,
            swap: swap.ok_or_else(|| missing(path, bytes, "Swap: is missing"))?,
            swap_pss: swap_pss.ok_or_else(|| missing(path, bytes, "SwapPss: is missing"))?,
            ..rollup
        })
    }

    /// What is this process's alone: pages and its share of swap. What comes back when it dies,
    /// but for file pages in it, which stay in the page cache.
    pub fn private(&self) -> u64 {
        self.private_clean.saturating_add(self.private_dirty).saturating_add(self.swap_pss)
    }
}
