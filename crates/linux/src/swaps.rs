// SPDX-License-Identifier: GPL-2.0-only
//! /proc/swaps.

use std::path::{Path, PathBuf};

use crate::{Result, Root, mountinfo, read, text};

/// One area of swap. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The device or file; a removed file's ends in " (deleted)".
    pub path: PathBuf,
    /// Its size.
    pub size: u64,
    /// What is used of it.
    pub used: u64,
    /// The highest is used first.
    pub priority: i32,
}

/// The areas that are switched on; none when the kernel has no swap.
///
/// # Errors
/// When the file cannot be read; and as [`parse`].
pub fn read(root: &Root) -> Result<Vec<Swap>> {
    let path = root.proc().join("swaps");
    read::file_if_there(&path, read::SMALL_FILE_BYTES)?.map_or(Ok(Vec::new()), |bytes| parse(&path, &bytes))
}

/// Parses /proc/swaps.
///
/// # Errors
/// When a line has too few fields, or a number is not in its range.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Swap>> {
    text::lines(path, bytes)
        // The heading.
        .skip(1)
        .map(|line| {
            let line = line?;
            let mut fields = line.fields();
            let mut next = || fields.next().ok_or_else(|| line.error("fields are missing"));
            let (name, _kind, size, used, priority) = (next()?, next()?, next()?, next()?, next()?);
            let kib = |field| {
                line.number::<u64>(field)?
                    .checked_mul(1024)
                    .ok_or_else(|| line.error("a size beyond 64 bits"))
            };
            Ok(Swap {
                path: mountinfo::unescape(name).into(),
                size: kib(size)?,
                used: kib(used)?,
                priority: line.number(priority)?,
            })
        })
        .collect()
}

/// Returns how much is free in all areas, in bytes, by the text of /proc/swaps. Allocates nothing.
///
/// # Errors
/// As [`parse`].
pub fn free(path: &Path, bytes: &[u8]) -> Result<u64> {
    text::lines(path, bytes).skip(1).try_fold(0_u64, |sum, line| {
        let line = line?;
        let mut fields = line.fields().skip(2);
        let mut next = || fields.next().ok_or_else(|| line.error("fields are missing"));
        let (size, used) = (line.number::<u64>(next()?)?, line.number(next()?)?);
        Ok(sum.saturating_add(size.saturating_sub(used).saturating_mul(1024)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADING: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";

    fn parse(text: &str) -> Result<Vec<Swap>> {
        super::parse(Path::new("/proc/swaps"), text.as_bytes())
    }

    #[test]
    fn what_is_free_is_added_up() {
        let text = format!(
            "{HEADING}/dev/zram0 partition 100 12 100\n/dev/vda2 partition 70 0 -2\n/zram file 30 31 -3\n"
        );
        assert_eq!(free(Path::new("/proc/swaps"), text.as_bytes()).unwrap(), 158 << 10);
        assert!(free(Path::new("f"), format!("{HEADING}/dev/vda 1\n").as_bytes()).is_err());
    }

    #[test]
    fn devices_and_files() {
        let swaps = parse(&format!(
            "{HEADING}/dev/zram0                              partition\t4194300\t\t12\t\t100\n\
             /swap\\040file\\040(deleted)               file\t\t8\t\t0\t\t-2\n"
        ))
        .unwrap();
        assert_eq!(
            swaps,
            [
                Swap { path: "/dev/zram0".into(), size: 4_194_300 << 10, used: 12 << 10, priority: 100 },
                Swap { path: "/swap file (deleted)".into(), size: 8 << 10, used: 0, priority: -2 },
            ]
        );
        assert_eq!(parse(HEADING).unwrap(), []);
    }

    #[test]
    fn what_is_no_swap_is_an_error() {
        for wrong in
            ["/a file 1 2\n", "/a file 1 2 3", "/a file -1 2 3\n", "/a file 18446744073709551615 0 0\n", "\n"]
        {
            assert!(parse(&format!("{HEADING}{wrong}")).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_kernel_without_swap_has_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&Root::at(dir.path())).unwrap(), []);
    }
}
