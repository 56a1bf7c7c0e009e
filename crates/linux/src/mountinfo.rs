// SPDX-License-Identifier: GPL-2.0-only
//! /proc/PID/mountinfo: what is mounted where.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::{Result, Root, read, text};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The file system's type, such as "cgroup2".
    pub fs_type: OsString,
}

/// The mounts that the calling process sees, in the order they were made in.
///
/// # Errors
/// When the file cannot be read; and as [`parse`].
pub fn own(root: &Root) -> Result<Vec<Mount>> {
    let path = root.proc().join("self/mountinfo");
    parse(&path, &read::file(&path, read::LARGE_FILE_BYTES)?)
}

/// Parses /proc/PID/mountinfo.
///
/// # Errors
/// When a line has too few fields or no separator.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Mount>> {
    text::lines(path, bytes)
        .map(|line| {
            let line = line?;
            // ID, parent's ID, device, root, mount point, options, any number of other fields,
            // "-", type, source, options. The source may be an empty string.
            let mut fields = line.bytes.split(|&b| b == b' ');
            let mut next = || fields.next().ok_or_else(|| line.error("fields are missing"));
            for _ in 0..3 {
                next()?;
            }
            let (root, mount_point) = (next()?, next()?);
            while next()? != b"-" {}
            let fs_type = next()?;
            // The source, the options.
            for _ in 0..2 {
                next()?;
            }
            Ok(Mount {
                root: unescape(root).into(),
                mount_point: unescape(mount_point).into(),
                fs_type: unescape(fs_type),
            })
        })
        .collect()
}

/// A name in which the kernel has written some bytes as a backslash and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut name = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        match (byte, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                name.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                name.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Vec<Mount>> {
        super::parse(Path::new("/proc/self/mountinfo"), text.as_bytes())
    }

    #[test]
    fn optional_fields_and_escapes() {
        let mounts = parse(
            "22 27 0:21 / /proc rw - proc proc rw\n\
             36 35 98:0 /a\\040b /c\\134d\\012 rw,noatime master:1 shared:2 - fuse.x /dev/\\043 rw\n\
             37 35 0:9 / /e rw -  tmpfs rw\n\
             38 35 0:9 / /f rw - tmpfs  rw\n",
        )
        .unwrap();
        assert_eq!(mounts[1].root, Path::new("/a b"));
        assert_eq!(mounts[1].mount_point, Path::new("/c\\d\n"));
        assert_eq!(mounts[1].fs_type, "fuse.x");
        assert_eq!((mounts[2].fs_type.to_str(), mounts[3].fs_type.to_str()), (Some(""), Some("tmpfs")));
    }

    #[test]
    fn a_line_without_its_end_or_separator_is_an_error() {
        for wrong in
            ["1 2 0:1 / / rw - proc proc rw", "1 2 0:1 / / rw proc proc rw\n", "1 2 0:1 / / rw - proc p\n", "\n"]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_name_survives(name in prop::collection::vec(1u8.., 0..40)) {
            let mut shown = Vec::new();
            for &byte in &name {
                if b" \t\n\\#".contains(&byte) {
                    shown.extend(format!("\\{byte:03o}").bytes());
                } else {
                    shown.push(byte);
                }
            }
            prop_assert_eq!(unescape(&shown).into_vec(), name);
        }
    }
}
