// SPDX-License-Identifier: GPL-2.0-only
//! /proc/vmstat: counters since boot, and gauges.

use std::path::Path;

use crate::{Result, text};

/// Finds counters in the text of /proc/vmstat; one that the kernel does not have is `None`. Allocates nothing.
///
/// # Errors
/// When a line has no name, or what follows the name of one of them is not a number.
pub fn parse<const N: usize>(path: &Path, bytes: &[u8], names: [&str; N]) -> Result<[Option<u64>; N]> {
    let mut values = [None; N];
    for line in text::lines(path, bytes) {
        let line = line?;
        let space = line.bytes.iter().position(|&b| b == b' ').filter(|at| *at > 0);
        let space = space.ok_or_else(|| line.error("not a name and a number"))?;
        for (wanted, slot) in names.iter().zip(&mut values) {
            if wanted.as_bytes() == &line.bytes[..space] {
                *slot = Some(line.number(&line.bytes[space + 1..])?);
            }
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_whole_name() {
        let text = b"nr_free_pages 18446744073709551615\nexpedite_kill_more 7\nexpedite_kill 3\n";
        let values = parse(Path::new("vmstat"), text, ["expedite_kill", "expedite", "nr_free_pages"]);
        assert_eq!(values.unwrap(), [Some(3), None, Some(u64::MAX)]);
    }

    #[test]
    fn what_is_no_counter_is_an_error() {
        let path = Path::new("/proc/vmstat");
        for wrong in ["a\n", " 1\n", "a 18446744073709551616\n", "a -1\n", "a 1", "a  1\n", "\n"] {
            let error = parse(path, format!("b 1\n{wrong}").as_bytes(), ["a"]).unwrap_err();
            assert!(error.to_string().starts_with("/proc/vmstat:2: "), "{error}");
        }
    }
}
