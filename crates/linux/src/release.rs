// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's release.

use std::path::Path;

use crate::{Result, Root, escape, read, text};

/// A kernel's release, as uname(2) returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// All of it: "6.12.43+deb13-amd64".
    pub text: String,
    /// The 6.
    pub major: u32,
    /// The 12.
    pub minor: u32,
}

impl Release {
    /// The running kernel's, from /proc/sys/kernel/osrelease.
    ///
    /// # Errors
    /// When the file cannot be read; and as [`Release::parse`].
    pub fn read(root: &Root) -> Result<Self> {
        let path = root.proc().join("sys/kernel/osrelease");
        Self::parse(&path, &read::file(&path, read::SMALL_FILE_BYTES)?)
    }

    /// Parses a release with a line end.
    ///
    /// # Errors
    /// When it does not begin with two numbers and a dot between.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let line = text::single(path, bytes)?;
        let error = || line.error("not a kernel's release");
        let (major, rest) = leading_number(line.bytes).ok_or_else(error)?;
        let rest = rest.strip_prefix(b".").ok_or_else(error)?;
        let (minor, _) = leading_number(rest).ok_or_else(error)?;
        Ok(Self { text: escape(line.bytes).to_string(), major, minor })
    }

    /// Whether it is this version or a later one.
    pub fn is_at_least(&self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

fn leading_number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let end = bytes.iter().position(|b| !b.is_ascii_digit()).unwrap_or(bytes.len());
    Some((text::number(&bytes[..end])?, &bytes[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Release> {
        Release::parse(Path::new("/proc/sys/kernel/osrelease"), text.as_bytes())
    }

    #[test]
    fn releases_of_distributions() {
        for (text, version) in [
            ("6.12.43+deb13-amd64\n", (6, 12)),
            ("5.15.0-91-generic\n", (5, 15)),
            ("6.18.0-rc3-00012-gabcdef\n", (6, 18)),
            ("6.18-rc3\n", (6, 18)),
            ("7.0\n", (7, 0)),
            ("4.19.325\n", (4, 19)),
        ] {
            let r = parse(text).unwrap();
            assert_eq!((r.major, r.minor), version, "{text}");
            assert_eq!(r.text, text.trim_end());
        }
        for wrong in ["", "\n", "6\n", "6.\n", "6.x\n", "x6.1\n", "4294967296.0\n", "6.12", "-6.1\n", "+6.1\n"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn later_is_at_least() {
        let r = parse("6.2.0\n").unwrap();
        assert!(r.is_at_least(5, 15) && r.is_at_least(6, 2));
        assert!(!r.is_at_least(6, 10) && !r.is_at_least(7, 0));
    }
}
