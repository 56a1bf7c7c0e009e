// SPDX-License-Identifier: GPL-2.0-only
//! /proc/PID/statm.

use std::path::Path;

use crate::{Result, text};

/// What /proc/PID/statm says, in bytes. 0 for a kernel thread or a zombie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statm {
    /// The pages that are there: anonymous, of files, and shared memory.
    pub resident: u64,
}

impl Statm {
    /// Parses /proc/PID/statm.
    ///
    /// # Errors
    /// When the field is missing or not in its range.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let line = text::single(path, bytes)?;
        // After the size of the address space.
        let field = line.fields().nth(1).ok_or_else(|| line.error("fields are missing"))?;
        let resident = line
            .number::<u64>(field)?
            .checked_mul(rustix::param::page_size() as u64)
            .ok_or_else(|| line.error("a size beyond 64 bits"))?;
        Ok(Self { resident })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Statm> {
        Statm::parse(Path::new("/proc/1/statm"), text.as_bytes())
    }

    #[test]
    fn what_is_no_statm_is_an_error() {
        for wrong in ["", "\n", "1\n", "1 2 3 4 5 6", "1 -2 3 4 5 6\n", "1 18446744073709551615 3 4 5 6 7\n"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_pages_become_bytes(size: u64, resident in 0..=u64::MAX >> 16) {
            let statm = parse(&format!("{size} {resident} 1 2 0 3 0\n")).unwrap();
            prop_assert_eq!(statm.resident, resident * rustix::param::page_size() as u64);
        }
    }
}
