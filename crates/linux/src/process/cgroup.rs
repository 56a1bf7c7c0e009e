// SPDX-License-Identifier: GPL-2.0-only
//! /proc/PID/cgroup.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::{Result, text};

/// The path in the v2 hierarchy, which is the one with the number 0 and no controllers.
///
/// # Errors
/// When a line is cut off, or the path is not absolute.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Option<PathBuf>> {
    for line in text::lines(path, bytes) {
        let line = line?;
        match line.bytes.strip_prefix(b"0::") {
            Some(cgroup) if cgroup.starts_with(b"/") => {
                return Ok(Some(PathBuf::from(OsStr::from_bytes(cgroup))));
            }
            Some(_) => return Err(line.error("the path of a cgroup starts with /")),
            None => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Option<PathBuf>> {
        super::parse(Path::new("/proc/1/cgroup"), bytes)
    }

    #[test]
    fn the_v2_line_is_found_among_those_of_v1() {
        let text = b"10:memory:/a\n1:name=systemd:/0::/b\n0::/user.slice/x:y \xff\n";
        assert_eq!(parse(text).unwrap().unwrap(), Path::new(OsStr::from_bytes(b"/user.slice/x:y \xff")));
        assert_eq!(parse(b"10:memory:/a\n").unwrap(), None);
        assert_eq!(parse(b"").unwrap(), None);
        assert_eq!(parse(b"0::/../a\n").unwrap().unwrap(), Path::new("/../a"));
        assert!(parse(b"0::\n").is_err());
        assert!(parse(b"0::a\n").is_err());
        assert!(parse(b"0::/a").is_err());
    }
}
