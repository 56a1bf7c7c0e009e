// SPDX-License-Identifier: GPL-2.0-only
//! Pressure stall information (PSI): the share of time in which tasks waited for memory; and triggers that report
//! when it rises.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::text::{Line as TextLine, missing};
use crate::{Error, Result, Root, read, text};

/// The whole system's, below /proc.
const SYSTEM_FILE: &str = "pressure/memory";

/// The pressure on memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Line,
    /// All tasks that were not idle waited.
    pub full: Option<Line>,
}

/// The share of time in percent, and the time itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// In the last 10 s.
    pub avg10: f64,
    /// Since boot, or since the cgroup was made.
    pub total: Duration,
}

impl Pressure {
    /// The whole system's.
    ///
    /// # Errors
    /// When it cannot be read ([`Error::is_unsupported`] if the kernel does without PSI); and as
    /// [`Pressure::parse`].
    pub fn read(root: &Root) -> Result<Self> {
        let path = root.proc().join(SYSTEM_FILE);
        Self::parse(&path, &read::file(&path, read::SMALL_FILE_BYTES)?)
    }

    /// Parses a file of PSI.
    ///
    /// # Errors
    /// When the line "some" is missing, or a field is missing or not a number.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let (mut some, mut full) = (None, None);
        for line in text::lines(path, bytes) {
            let line = line?;
            let mut fields = line.fields();
            match fields.next() {
                Some(b"some") => some = Some(Line::parse(line, fields)?),
                Some(b"full") => full = Some(Line::parse(line, fields)?),
                _ => {}
            }
        }
        Ok(Self { some: some.ok_or_else(|| missing(path, bytes, "the line \"some\" is missing"))?, full })
    }
}

impl Line {
    fn parse<'a>(line: TextLine<'a>, fields: impl Iterator<Item = &'a [u8]>) -> Result<Self> {
        let (mut avg10, mut total) = (None, None);
        for field in fields {
            let Some(equals) = field.iter().position(|&b| b == b'=') else {
                return Err(line.error("not a name and a value"));
            };
            let value = &field[equals + 1..];
            match &field[..equals] {
                b"avg10" => avg10 = Some(percent(line, value)?),
                b"total" => total = Some(Duration::from_micros(line.number(value)?)),
                _ => {}
            }
        }
        Ok(Self {
            avg10: avg10.ok_or_else(|| line.error("avg10= is missing"))?,
            total: total.ok_or_else(|| line.error("total= is missing"))?,
        })
    }
}

fn percent(line: TextLine<'_>, value: &[u8]) -> Result<f64> {
    // Not "inf", "nan", "1e9" or "-1", which f64 takes.
    if value.iter().all(|b| b.is_ascii_digit() || *b == b'.') {
        // No more digits than a number in 64 bits has, so it cannot overflow to infinity.
        if value.len() <= 24 {
            return line.number(value);
        }
    }
    Err(line.error("not a percentage"))
}

/// A file that becomes ready (POLLPRI, EPOLLPRI) when for longer than a threshold within a window of time at least
/// one task waited; at most once per window.
#[derive(Debug)]
pub struct Trigger(OwnedFd);

impl Trigger {
    /// A trigger on the whole system. The window is 0.5 s to 10 s, and without `CAP_SYS_RESOURCE` a multiple
    /// of 2 s (since Linux 6.5; before, that capability or root was needed); the threshold is at most the
    /// window.
    ///
    /// # Errors
    /// EINVAL for a window or threshold that the caller may not have; EACCES and EPERM
    /// ([`Error::is_denied`]); [`Error::is_unsupported`] if the kernel does without PSI.
    pub fn new(root: &Root, threshold: Duration, window: Duration) -> Result<Self> {
        Self::on_file(root.proc().join(SYSTEM_FILE), threshold, window)
    }

    /// A trigger on a cgroup, by its directory.
    ///
    /// # Errors
    /// As [`Trigger::new`].
    pub fn on_cgroup(dir: &Path, threshold: Duration, window: Duration) -> Result<Self> {
        Self::on_file(dir.join("memory.pressure"), threshold, window)
    }

    fn on_file(path: PathBuf, threshold: Duration, window: Duration) -> Result<Self> {
        // The kernel replaces the last byte by a NUL, so there is one more.
        let request = format!("some {} {}\n", threshold.as_micros(), window.as_micros());
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = rustix::fs::openat(CWD, &path, flags, Mode::empty()).map_err(|e| Error::io(&path, e))?;
        let wrote = rustix::io::write(&fd, request.as_bytes()).map_err(|e| Error::io(&path, e))?;
        // The kernel takes all or nothing.
        if wrote == request.len() { Ok(Self(fd)) } else { Err(Error::io(&path, Errno::IO)) }
    }
}

impl AsFd for Trigger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests;
