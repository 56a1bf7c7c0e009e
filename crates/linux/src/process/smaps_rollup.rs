// SPDX-License-Identifier: GPL-2.0-only
//! /proc/PID/smaps_rollup.

use std::path::Path;

use crate::text::missing;
use crate::{Result, text};

/// What /proc/PID/smaps_rollup says, in bytes: the sums over all mappings, from the page tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollup {
    /// Pages that are there.
    pub rss: u64,
    /// Anonymous memory, each page divided by the number of processes that map it.
    pub pss_anon: u64,
    /// Pages of files, likewise.
    pub pss_file: u64,
    /// Shared memory, likewise: tmpfs, memfd, MAP_SHARED | MAP_ANONYMOUS.
    pub pss_shmem: u64,
    /// Mapped by this process only, not written to.
    pub private_clean: u64,
    /// Mapped by this process only, written to.
    pub private_dirty: u64,
    /// Anonymous.
    pub anonymous: u64,
    /// Anonymous memory in swap, each page divided by the number of processes that share it.
    pub swap_pss: u64,
}

impl Rollup {
    /// Parses /proc/PID/smaps_rollup.
    ///
    /// # Errors
    /// When `Rss`, a part of `Pss`, `Private_Clean`, `Private_Dirty` or `SwapPss` is missing, or a size does
    /// not fit into 64 bits.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let (mut rss, mut private_clean, mut private_dirty, mut swap_pss) = (None, None, None, None);
        let (mut pss_anon, mut pss_file, mut pss_shmem) = (None, None, None);
        let mut rollup = Self::default();
        // The first line is the address range.
        for line in text::lines(path, bytes).skip(1) {
            let line = line?;
            let Some((key, value)) = line.key_value() else {
                return Err(line.error("not a key and a value"));
            };
            match key {
                b"Rss" => rss = Some(line.kib(value)?),
                b"Pss_Anon" => pss_anon = Some(line.kib(value)?),
                b"Pss_File" => pss_file = Some(line.kib(value)?),
                b"Pss_Shmem" => pss_shmem = Some(line.kib(value)?),
                b"Private_Clean" => private_clean = Some(line.kib(value)?),
                b"Private_Dirty" => private_dirty = Some(line.kib(value)?),
                b"Anonymous" => rollup.anonymous = line.kib(value)?,
                b"SwapPss" => swap_pss = Some(line.kib(value)?),
                _ => {}
            }
        }
        Ok(Self {
            rss: rss.ok_or_else(|| missing(path, bytes, "Rss: is missing"))?,
            pss_anon: pss_anon.ok_or_else(|| missing(path, bytes, "Pss_Anon: is missing"))?,
            pss_file: pss_file.ok_or_else(|| missing(path, bytes, "Pss_File: is missing"))?,
            pss_shmem: pss_shmem.ok_or_else(|| missing(path, bytes, "Pss_Shmem: is missing"))?,
            private_clean: private_clean.ok_or_else(|| missing(path, bytes, "Private_Clean: is missing"))?,
            private_dirty: private_dirty.ok_or_else(|| missing(path, bytes, "Private_Dirty: is missing"))?,
            swap_pss: swap_pss.ok_or_else(|| missing(path, bytes, "SwapPss: is missing"))?,
            ..rollup
        })
    }

    /// What comes back when the process dies: the anonymous and the shared memory that it alone maps, and
    /// its share of swap. Pages of files stay in the page cache, and could be reclaimed without its death.
    ///
    /// Never less than that, and no more than its share of anonymous and shared memory. More only where it
    /// maps files and memory that others hold too: the sums of clean and dirty pages do not tell them apart.
    /// Shared memory that outlives its last mapping is counted, though it does not come back: a file on a
    /// tmpfs, or a memfd that another process has open.
    pub fn comes_back(&self) -> u64 {
        let private = self.private_clean.saturating_add(self.private_dirty);
        // What others map, too, is in `pss_file` by half at most: so at least this much of it is private.
        let files = self.pss_file.saturating_mul(2).saturating_sub(self.rss.saturating_sub(self.anonymous));
        private.saturating_sub(files).saturating_add(self.swap_pss).min(self.share())
    }

    /// Its share of anonymous and shared memory, in memory and in swap. Of what several processes give back together,
    /// each counts for so much at most.
    pub fn share(&self) -> u64 {
        self.pss_anon.saturating_add(self.pss_shmem).saturating_add(self.swap_pss)
    }
}

#[cfg(test)]
mod tests;
