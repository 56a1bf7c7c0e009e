// SPDX-License-Identifier: GPL-2.0-only
//! Files of the kernel that stay open and are read again and again.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::{Error, Result, read};

/// A file that stays open, so that reading it again opens nothing and allocates no memory of the process.
///
/// For files whose text the kernel makes when they are read from their beginning, as those of
/// /proc, /sys and cgroups are.
#[derive(Debug)]
pub struct Source {
    fd: OwnedFd,
    path: PathBuf,
}

impl Source {
    /// Opens a file.
    ///
    /// # Errors
    /// When there is none ([`Error::is_unsupported`]) or it may not be read.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        match read::open(&path) {
            Ok(fd) => Ok(Self { fd, path }),
            Err(e) => Err(Error::io(&path, e)),
        }
    }

    /// As [`Source::open`]; `None` when there is no such file.
    ///
    /// # Errors
    /// When it is there and cannot be opened.
    pub fn open_if_there(path: impl Into<PathBuf>) -> Result<Option<Self>> {
        match Self::open(path) {
            Err(e) if e.is_unsupported() => Ok(None),
            other => other.map(Some),
        }
    }

    /// Parses what the file says now. Allocates nothing unless there is an error or `parse` does.
    ///
    /// # Errors
    /// When it cannot be read (ENODEV when its cgroup or device is gone), has as many bytes as
    /// `buffer` or more, and what `parse` says.
    pub fn parse<T>(&self, buffer: &mut [u8], parse: impl FnOnce(&Path, &[u8]) -> Result<T>) -> Result<T> {
        let bytes = read::again(&self.fd, buffer).and_then(|bytes| bytes.ok_or(Errno::FBIG));
        parse(&self.path, bytes.map_err(|errno| Error::io(&self.path, errno))?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_text_of_now_is_read_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert!(Source::open_if_there(&path).unwrap().is_none());
        fs::write(&path, "one").unwrap();
        let source = Source::open(&path).unwrap();
        let mut buffer = [0; 4];
        let mut text = || source.parse(&mut buffer, |_, bytes| Ok(bytes.to_vec()));
        assert_eq!(text().unwrap(), b"one");
        fs::write(&path, "2").unwrap();
        assert_eq!(text().unwrap(), b"2");
        fs::write(&path, "four").unwrap();
        assert_eq!(text().unwrap_err().raw_os_error(), Some(libc::EFBIG));
    }
}
