// SPDX-License-Identifier: GPL-2.0-only
//! /proc/meminfo.

use std::path::Path;

use crate::text::missing;
use crate::{Result, Root, read, text};

/// What /proc/meminfo says, in bytes. The whole machine's, also inside a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// Memory the kernel manages.
    pub total: u64,
    /// Pages that are not used.
    pub free: u64,
    /// What programs can get without swapping, as the kernel estimates it.
    pub available: u64,
    /// Block devices' part of the page cache.
    pub buffers: u64,
    /// The page cache otherwise, with shared memory and without `swap_cached`.
    pub cached: u64,
    /// Pages in memory that also are in swap.
    pub swap_cached: u64,
    /// All of swap.
    pub swap_total: u64,
    /// What of swap is not used.
    pub swap_free: u64,
    /// Anonymous memory in page tables.
    pub anon: u64,
    /// Shared memory and tmpfs.
    pub shmem: u64,
    /// The kernel's caches that can be reclaimed.
    pub slab_reclaimable: u64,
    /// The kernel's other memory from slabs.
    pub slab_unreclaimable: u64,
    /// Page tables.
    pub page_tables: u64,
    /// Huge pages of hugetlbfs, used or not.
    pub hugetlb: u64,
}

impl MemInfo {
    /// Reads /proc/meminfo.
    ///
    /// # Errors
    /// When it cannot be read; and as [`MemInfo::parse`].
    pub fn read(root: &Root) -> Result<Self> {
        let path = root.proc().join("meminfo");
        Self::parse(&path, &read::file(&path, read::SMALL_FILE_BYTES)?)
    }

    /// Parses /proc/meminfo.
    ///
    /// # Errors
    /// When `MemTotal`, `MemFree`, `MemAvailable`, `SwapTotal` or `SwapFree` is missing, or a
    /// size does not fit into 64 bits. What else is missing is 0.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let (mut total, mut free, mut available) = (None, None, None);
        let (mut swap_total, mut swap_free) = (None, None);
        let mut info = Self::default();
        for line in text::lines(path, bytes) {
            let line = line?;
            let Some((key, value)) = line.key_value() else {
                return Err(line.error("not a key and a value"));
            };
            match key {
                b"MemTotal" => total = Some(line.kib(value)?),
                b"MemFree" => free = Some(line.kib(value)?),
                b"MemAvailable" => available = Some(line.kib(value)?),
                b"Buffers" => info.buffers = line.kib(value)?,
                b"Cached" => info.cached = line.kib(value)?,
                b"SwapCached" => info.swap_cached = line.kib(value)?,
                b"SwapTotal" => swap_total = Some(line.kib(value)?),
                b"SwapFree" => swap_free = Some(line.kib(value)?),
                b"AnonPages" => info.anon = line.kib(value)?,
                b"Shmem" => info.shmem = line.kib(value)?,
                b"SReclaimable" => info.slab_reclaimable = line.kib(value)?,
                b"SUnreclaim" => info.slab_unreclaimable = line.kib(value)?,
                b"PageTables" => info.page_tables = line.kib(value)?,
                b"Hugetlb" => info.hugetlb = line.kib(value)?,
                _ => {}
            }
        }
        Ok(Self {
            total: total.ok_or_else(|| missing(path, bytes, "MemTotal: is missing"))?,
            free: free.ok_or_else(|| missing(path, bytes, "MemFree: is missing"))?,
            available: available.ok_or_else(|| missing(path, bytes, "MemAvailable: is missing"))?,
            swap_total: swap_total.ok_or_else(|| missing(path, bytes, "SwapTotal: is missing"))?,
            swap_free: swap_free.ok_or_else(|| missing(path, bytes, "SwapFree: is missing"))?,
            ..info
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<MemInfo> {
        MemInfo::parse(Path::new("/proc/meminfo"), text.as_bytes())
    }

    const REQUIRED: [&str; 5] = ["MemTotal", "MemFree", "MemAvailable", "SwapTotal", "SwapFree"];

    #[test]
    fn each_required_line_is_missed() {
        for left_out in REQUIRED {
            let text: String =
                REQUIRED.iter().filter(|key| **key != left_out).map(|key| format!("{key}: 1 kB\n")).collect();
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(&format!("{left_out}: is missing")), "{error}");
        }
    }

    #[test]
    fn lines_without_a_unit_and_unknown_lines_are_passed_over() {
        let text: String = REQUIRED.iter().map(|key| format!("{key}:   2 kB\n")).collect();
        let info = parse(&format!("HugePages_Total:       0\nNew(thing): x\n{text}Hugetlb: 3 kB\n")).unwrap();
        assert_eq!((info.total, info.hugetlb), (2048, 3072));
    }

    #[test]
    fn a_file_that_is_not_there_is_no_process_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let error = MemInfo::read(&Root::at(dir.path())).unwrap_err();
        assert!(!error.is_gone() && error.is_unsupported(), "{error:?}");
    }

    proptest! {
        #[test]
        fn any_sizes_in_any_order(
            sizes in prop::array::uniform5(0..=u64::MAX / 1024),
            order in Just(vec![0, 1, 2, 3, 4]).prop_shuffle(),
        ) {
            let text: String =
                order.iter().map(|&i: &usize| format!("{}: {:>8} kB\n", REQUIRED[i], sizes[i])).collect();
            let info = parse(&text).unwrap();
            let got = [info.total, info.free, info.available, info.swap_total, info.swap_free];
            prop_assert_eq!(got, sizes.map(|kib| kib * 1024));
            // Cut anywhere, it is an error and never a smaller number.
            for cut in 0..text.len() {
                prop_assert!(parse(&text[..cut]).is_err());
            }
        }
    }
}
