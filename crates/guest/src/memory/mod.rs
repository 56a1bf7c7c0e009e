// SPDX-License-Identifier: GPL-2.0-only
//! Memory in the states that scenarios need: touched or not, merged by KSM, and swap space.

pub mod ksm;
pub mod mapping;
pub mod region;
pub mod swap;

use std::fs;
use std::ops::Range;

use anyhow::{Context as _, Result, anyhow};
use linux::maps::Mapping;
use linux::pagemap::{Page, Pagemap};

/// Bytes of a page.
pub const PAGE_BYTES: usize = if cfg!(feature = "pages-64k") { 64 << 10 } else { 4 << 10 };

/// Returns the number and the total size of the mappings that lie in `range`, by a /proc/PID/maps.
///
/// # Errors
/// When the file cannot be read or parsed.
pub fn vmas_in(maps: &str, range: Range<usize>) -> Result<(usize, usize)> {
    let (mut vmas, mut bytes) = (0, 0);
    for line in fs::read_to_string(maps).with_context(|| maps.to_owned())?.lines() {
        let mapping = Mapping::parse(line.as_bytes()).with_context(|| format!("{maps}: {line}"))?;
        if mapping.start < range.end && mapping.end > range.start {
            (vmas, bytes) = (vmas + 1, bytes + mapping.end - mapping.start);
        }
    }
    Ok((vmas, bytes))
}

/// Reads what is at an address of this process, whose pagemap this is.
///
/// # Errors
/// When that cannot be read.
pub fn page_at(pagemap: &Pagemap, address: usize) -> Result<Page> {
    pagemap.page((address / PAGE_BYTES) as u64).map_err(|e| anyhow!("/proc/self/pagemap: {address:#x}: {e:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_in_the_range_count() {
        let maps = std::env::temp_dir().join(format!("maps-{}", std::process::id()));
        let path = maps.to_str().unwrap();
        let text = "00400000-00401000 r-xp 00000000 00:02 1 /init\n\
                    7f0000000000-7f0000002000 rw-p 00000000 00:00 0 \n\
                    7f0000003000-7f0000005000 rw-p 00000000 00:00 0 \n\
                    7f0000006000-7f0000007000 rw-p 00000000 00:00 0 [stack]\n";
        fs::write(&maps, text).unwrap();
        assert_eq!(vmas_in(path, 0x7f00_0000_0000..0x7f00_0000_6000).unwrap(), (2, 0x4000));
        fs::write(&maps, "nonsense\n").unwrap();
        assert!(vmas_in(path, 0..1).unwrap_err().to_string().contains("nonsense"));
        fs::remove_file(maps).unwrap();
    }
}
