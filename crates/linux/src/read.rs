// SPDX-License-Identifier: GPL-2.0-only
//! Reads files of the kernel, with a limit on their size.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::path::Arg;

use crate::{Error, Result};

/// Files with a handful of numbers.
pub(crate) const SMALL_FILE_BYTES: usize = 64 << 10;
/// Files with a line per mount or per supplementary group, of which there can be 65,536.
pub(crate) const LARGE_FILE_BYTES: usize = 16 << 20;
/// What one read(2) of most files below /proc returns at most, so that one allocation is enough.
const PROC_READ_BYTES: usize = 4096;

/// The whole file. More than `limit` bytes are an error: no file of the kernel that is read with
/// that limit can be as large, so whatever it is, it is not one.
pub(crate) fn file(path: &Path, limit: usize) -> Result<Vec<u8>> {
    open(path)
        .and_then(|fd| {
            let bytes = up_to(fd, limit + 1)?;
            if bytes.len() > limit {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            Ok(bytes)
        })
        .map_err(|e| Error::io(path, e))
}

/// The whole file, or `None` when there is none.
pub(crate) fn file_if_there(path: &Path, limit: usize) -> Result<Option<Vec<u8>>> {
    match file(path, limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(open_at(CWD, path)?)
}

/// Opens a file below an open directory, for reading. Allocates nothing when `name` is a C string.
pub(crate) fn open_at(dir: impl AsFd, name: impl Arg + Copy) -> std::result::Result<OwnedFd, Errno> {
    // O_NONBLOCK and O_NOCTTY: what is mounted over a file of the kernel may be a pipe or a terminal.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    retry_on_intr(|| rustix::fs::openat(&dir, name, flags, Mode::empty()))
}

/// Reads what one read(2) returns. Allocates nothing.
pub(crate) fn some(file: impl AsFd, buffer: &mut [u8]) -> std::result::Result<usize, Errno> {
    retry_on_intr(|| rustix::io::read(&file, &mut *buffer))
}

/// Reads all that an open file says now, from its beginning; `None` when that does not fit into `buffer` with a byte to
/// spare. Allocates nothing.
pub(crate) fn again(file: impl AsFd, buffer: &mut [u8]) -> std::result::Result<Option<&[u8]>, Errno> {
    let mut len = 0;
    loop {
        match retry_on_intr(|| rustix::io::pread(&file, &mut buffer[len..], len as u64))? {
            0 if len == buffer.len() => return Ok(None),
            0 => return Ok(Some(&buffer[..len])),
            got => len += got,
        }
    }
}

/// As [`file()`], for a file in an open directory. More than `limit` bytes are cut off.
pub(crate) fn up_to_at(dir: impl AsFd, name: &CStr, limit: usize) -> std::result::Result<Vec<u8>, Errno> {
    up_to(open_at(dir, name)?, limit)
}

/// What a file has, but no more than `limit` bytes.
fn up_to(fd: impl AsFd, limit: usize) -> std::result::Result<Vec<u8>, Errno> {
    let mut bytes = Vec::with_capacity(limit.min(PROC_READ_BYTES));
    while bytes.len() < limit {
        if bytes.len() == bytes.capacity() {
            bytes.reserve(bytes.len());
        }
        let start = bytes.len();
        let room = bytes.capacity().min(limit);
        bytes.resize(room, 0);
        let got = some(&fd, &mut bytes[start..]);
        bytes.truncate(start + *got.as_ref().unwrap_or(&0));
        if got? == 0 {
            break;
        }
    }
    Ok(bytes)
}
