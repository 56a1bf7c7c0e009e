// SPDX-License-Identifier: GPL-2.0-only
//! Where the pages of this process are: /proc/self/pagemap.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result};

use super::PAGE_BYTES;

/// /proc/self/pagemap.
pub struct Pagemap(File);

impl Pagemap {
    /// Opens it.
    ///
    /// # Errors
    /// When the kernel does not have it (`CONFIG_PROC_PAGE_MONITOR`).
    pub fn open() -> Result<Self> {
        Ok(Self(File::open("/proc/self/pagemap").context("/proc/self/pagemap")?))
    }

    /// Reads the entry of the page at this address.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn entry(&self, address: usize) -> Result<Entry> {
        Ok(Entry(read_u64(&self.0, address / PAGE_BYTES).context("/proc/self/pagemap")?))
    }
}

/// One page's entry.
#[derive(Clone, Copy)]
pub struct Entry(u64);

impl Entry {
    /// Whether the page is in memory.
    pub fn present(self) -> bool {
        self.0 >> 63 & 1 == 1
    }

    /// Whether it is in swap.
    pub fn swapped(self) -> bool {
        self.0 >> 62 & 1 == 1
    }

    /// The page frame, if it is in memory; 0 for readers without `CAP_SYS_ADMIN`.
    pub fn frame(self) -> u64 {
        self.0 & ((1 << 55) - 1)
    }
}

/// Reads a number from a file that is an array of them.
///
/// # Errors
/// Those of pread(2).
pub fn read_u64(file: &File, index: usize) -> io::Result<u64> {
    let mut word = [0; size_of::<u64>()];
    file.read_exact_at(&mut word, (index * size_of::<u64>()) as u64)?;
    Ok(u64::from_ne_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pagemap_entries_are_distinguished() {
        let there = Entry(1 << 63 | 0x1234);
        assert!(there.present() && !there.swapped() && there.frame() == 0x1234);
        assert!(Entry(1 << 62).swapped() && !Entry(1 << 62).present());
    }
}
