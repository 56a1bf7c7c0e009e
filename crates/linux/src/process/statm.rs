// SPDX-License-Identifier: GPL-2.0-only
//! /proc/PID/statm.

use std::path::Path;

use crate::{Result, text};

/// What /proc/PID/statm says, in bytes. All 0 for a kernel thread or a zombie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statm {
    /// The address space.
    pub size: u64,
    /// The pages that are there: anonymous, of files, and shared memory.
    pub resident: u64,
    /// Of those, files' and shared memory's.
    pub shared: u64,
    /// The program's code.
    pub text: u64,
    /// The program's data and stack.
    pub data: u64,
}

impl Statm {
    /// Parses /proc/PID/statm.
    ///
    /// # Errors
    /// When a field is missing or not in its range.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let line = text::single(path, bytes)?;
        let mut fields = line.fields();
        let mut next = || -> Result<u64> {
            let field = fields.next().ok_or_else(|| line.error("fields are missing"))?;
            let pages: u64 = line.number(field)?;
            pages
                .checked_mul(rustix::param::page_size() as u64)
                .ok_or_else(|| line.error("a size beyond 64 bits"))
        };
        let (size, resident, shared, text) = (next()?, next()?, next()?, next()?);
        // A field that is always 0 now: libraries.
        next()?;
        Ok(Self { size, resident, shared, text, data: next()? })
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
        for wrong in
            ["", "\n", "1 2 3 4 5\n", "1 2 3 4 5 6", "1 2 3 4 5 -6\n", "18446744073709551615 2 3 4 5 6 7\n"]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_pages_become_bytes(pages in prop::array::uniform5(0..=u64::MAX >> 16)) {
            let [size, resident, shared, text, data] = pages;
            let statm = parse(&format!("{size} {resident} {shared} {text} 0 {data} 0\n")).unwrap();
            let got = [statm.size, statm.resident, statm.shared, statm.text, statm.data];
            prop_assert_eq!(got, pages.map(|p| p * rustix::param::page_size() as u64));
        }
    }
}
