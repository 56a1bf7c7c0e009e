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
