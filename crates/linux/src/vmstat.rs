// SPDX-License-Identifier: GPL-2.0-only
//! /proc/vmstat: counters since boot, and gauges.

use std::collections::BTreeMap;
use std::path::Path;

use crate::text::Line;
use crate::{Result, Root, read, text};

/// All counters by name.
///
/// # Errors
/// When the file cannot be read, or a line is not a name and a number.
pub fn all(root: &Root) -> Result<BTreeMap<String, u64>> {
    with_file(root, |path, bytes| {
        text::lines(path, bytes)
            .map(|line| {
                let (name, line) = name(line?)?;
                Ok((String::from_utf8_lossy(name).into_owned(), value(name, line)?))
            })
            .collect()
    })
}

/// One counter, or `None` when the kernel does not have it.
///
/// # Errors
/// When the file cannot be read, or the counter's line is not a name and a number.
pub fn counter(root: &Root, name: &str) -> Result<Option<u64>> {
    counters(root, [name]).map(|[value]| value)
}

/// Several counters from one reading.
///
/// # Errors
/// As [`counter`].
pub fn counters<const N: usize>(root: &Root, names: [&str; N]) -> Result<[Option<u64>; N]> {
    with_file(root, |path, bytes| parse(path, bytes, names))
}

/// Finds counters in the text of /proc/vmstat.
///
/// # Errors
/// As [`counter`].
pub fn parse<const N: usize>(path: &Path, bytes: &[u8], names: [&str; N]) -> Result<[Option<u64>; N]> {
    let mut values = [None; N];
    for line in text::lines(path, bytes) {
        let (found, line) = name(line?)?;
        for (wanted, slot) in names.iter().zip(&mut values) {
            if wanted.as_bytes() == found {
                *slot = Some(value(found, line)?);
            }
        }
    }
    Ok(values)
}

fn with_file<T>(root: &Root, parse: impl FnOnce(&Path, &[u8]) -> Result<T>) -> Result<T> {
    let path = root.proc().join("vmstat");
    parse(&path, &read::file(&path, read::SMALL_FILE_BYTES)?)
}

fn name(line: Line<'_>) -> Result<(&[u8], Line<'_>)> {
    match line.bytes.iter().position(|&b| b == b' ') {
        Some(space) if space > 0 => Ok((&line.bytes[..space], line)),
        _ => Err(line.error("not a name and a number")),
    }
}

fn value(name: &[u8], line: Line<'_>) -> Result<u64> {
    line.number(&line.bytes[name.len() + 1..])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const TEXT: &str = "nr_free_pages 18446744073709551615\nexpedite_kill_more 7\nexpedite_kill 3\n";

    #[test]
    fn a_counter_is_found_by_its_whole_name() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("proc")).unwrap();
        fs::write(dir.path().join("proc/vmstat"), TEXT).unwrap();
        let root = Root::at(dir.path());
        assert_eq!(counter(&root, "expedite_kill").unwrap(), Some(3));
        assert_eq!(counter(&root, "expedite").unwrap(), None);
        assert_eq!(counters(&root, ["nr_free_pages", "x"]).unwrap(), [Some(u64::MAX), None]);
        let all = all(&root).unwrap();
        assert_eq!(all.len(), 3);
        assert_eq!(all["expedite_kill_more"], 7);
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
