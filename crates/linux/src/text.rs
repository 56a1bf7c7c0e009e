// SPDX-License-Identifier: GPL-2.0-only
//! Parses lines and numbers, as the kernel's text files have them.

use std::borrow::Cow;
use std::path::Path;
use std::str::FromStr;

use crate::{Error, Result};

/// One line of a file, without its end.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    path: &'a Path,
    number: usize,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Line<'a> {
    pub(crate) fn error(self, what: impl Into<Cow<'static, str>>) -> Error {
        Error::parse(self.path, self.number, what, self.bytes)
    }

    /// A decimal number that fits into `T`, without space around it or a plus sign.
    pub(crate) fn number<T: FromStr>(self, field: &[u8]) -> Result<T> {
        number(field).ok_or_else(|| self.error("not a number in the range expected here"))
    }

    /// A size as in "   12 kB", in bytes.
    pub(crate) fn kib(self, value: &[u8]) -> Result<u64> {
        let number = value.strip_suffix(b" kB").ok_or_else(|| self.error("not a size in kB"))?;
        self.number::<u64>(number.trim_ascii_start())?
            .checked_mul(1024)
            .ok_or_else(|| self.error("a size beyond 64 bits"))
    }

    /// The line's key and value when it has the form "key: value".
    pub(crate) fn key_value(self) -> Option<(&'a [u8], &'a [u8])> {
        let colon = self.bytes.iter().position(|&b| b == b':')?;
        Some((&self.bytes[..colon], self.bytes[colon + 1..].trim_ascii_start()))
    }

    /// What is between spaces and tabs.
    pub(crate) fn fields(self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.split(|b| matches!(b, b' ' | b'\t')).filter(|f| !f.is_empty())
    }
}

/// The lines of a file. One without an end is an error, as its last number may be cut in two.
pub(crate) fn lines<'a>(path: &'a Path, bytes: &'a [u8]) -> impl Iterator<Item = Result<Line<'a>>> {
    bytes.split_inclusive(|&b| b == b'\n').enumerate().map(move |(i, bytes)| {
        let line = Line { path, number: i + 1, bytes };
        match bytes.strip_suffix(b"\n") {
            Some(bytes) => Ok(Line { bytes, ..line }),
            None => Err(line.error("the line is cut off")),
        }
    })
}

/// The only line of a file.
pub(crate) fn single<'a>(path: &'a Path, bytes: &'a [u8]) -> Result<Line<'a>> {
    let mut lines = lines(path, bytes);
    let line = lines.next().ok_or_else(|| Error::parse(path, 1, "the file is empty", b""))??;
    match lines.next() {
        None => Ok(line),
        Some(more) => Err(more?.error("one line is expected")),
    }
}

/// A file of one number, as sysctls and module parameters are.
pub(crate) fn single_number<T: FromStr>(path: &Path, bytes: &[u8]) -> Result<T> {
    let line = single(path, bytes)?;
    line.number(line.bytes)
}

/// An error about something that a file should have but has not.
pub(crate) fn missing(path: &Path, bytes: &[u8], what: &'static str) -> Error {
    let lines = bytes.split_inclusive(|&b| b == b'\n').count();
    Error::parse(path, lines.max(1), what, b"")
}

pub(crate) fn number<T: FromStr>(field: &[u8]) -> Option<T> {
    let text = std::str::from_utf8(field).ok()?;
    // FromStr takes "+1", which the kernel never writes.
    if text.starts_with('+') { None } else { text.parse().ok() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(bytes: &[u8]) -> Line<'_> {
        Line { path: Path::new("f"), number: 1, bytes }
    }

    #[test]
    fn numbers_are_digits_that_fit() {
        let l = line(b"x");
        assert_eq!(l.number::<u8>(b"255").unwrap(), 255);
        assert_eq!(l.number::<i32>(b"-1").unwrap(), -1);
        for wrong in [&b"256"[..], b"-1", b"+1", b" 1", b"1 ", b"", b"1\0", b"\xff"] {
            assert!(l.number::<u8>(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn sizes_are_in_kib_and_do_not_wrap() {
        let l = line(b"x");
        assert_eq!(l.kib(b"       4 kB").unwrap(), 4096);
        assert_eq!(l.kib(b"18014398509481983 kB").unwrap(), u64::MAX - 1023);
        for wrong in [&b"18014398509481984 kB"[..], b"4", b"4 MB", b"4 k", b" kB"] {
            assert!(l.kib(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn errors_name_file_and_line() {
        let text = b"a: 1 kB\nb: \x1b[31m kB\n";
        let second = lines(Path::new("/proc/x"), text).nth(1).unwrap().unwrap();
        let error = second.kib(second.key_value().unwrap().1).unwrap_err();
        assert_eq!(error.to_string(), r#"/proc/x:2: not a number in the range expected here: "b: \u{1b}[31m kB""#);
    }

    #[test]
    fn a_line_without_an_end_is_an_error() {
        let all: Vec<_> = lines(Path::new("f"), b"a 1\nb 12").map(|l| l.is_ok()).collect();
        assert_eq!(all, [true, false]);
        assert!(single(Path::new("f"), b"1\n2\n").is_err());
        assert!(single(Path::new("f"), b"").is_err());
        assert_eq!(single(Path::new("f"), b"\n").unwrap().bytes, b"");
    }

    proptest! {
        #[test]
        fn any_number_survives(n: u64, i: i64) {
            let l = line(b"");
            prop_assert_eq!(l.number::<u64>(n.to_string().as_bytes()).unwrap(), n);
            prop_assert_eq!(l.number::<i64>(i.to_string().as_bytes()).unwrap(), i);
        }
    }
}
