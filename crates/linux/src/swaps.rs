// SPDX-License-Identifier: GPL-2.0-only
//! /proc/swaps.

use std::path::Path;

use crate::{Result, text};

/// Returns how much is free in all areas, in bytes, by the text of /proc/swaps. Allocates nothing.
///
/// # Errors
/// When a line has too few fields, or a number is not in its range.
pub fn free(path: &Path, bytes: &[u8]) -> Result<u64> {
    // After the heading.
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

    fn free(areas: &str) -> Result<u64> {
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        super::free(Path::new("/proc/swaps"), format!("{heading}{areas}").as_bytes())
    }

    #[test]
    fn what_is_free_is_added_up() {
        let areas = "/dev/zram0    partition\t100\t\t12\t\t100\n\
                     /swap\\040file\\040(deleted) file\t\t70\t\t0\t\t-2\n/zram file 30 31 -3\n";
        assert_eq!(free(areas).unwrap(), 158 << 10);
        assert_eq!(free("").unwrap(), 0);
    }

    #[test]
    fn what_is_no_swap_is_an_error() {
        for wrong in ["/a file 1\n", "/a file 1 2 3", "/a file -1 2 3\n", "/a file 18446744073709551616 0 0\n", "\n"] {
            assert!(free(wrong).is_err(), "{wrong:?}");
        }
    }
}
