// SPDX-License-Identifier: GPL-2.0-only
//! Errors, with the path and the line.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::{Pid, escape};

/// The most of an offending line that an error repeats, in bytes.
const MAX_EXCERPT_BYTES: usize = 80;

/// Why something could not be read from the kernel or done by it.
///
/// As usual the text does not repeat that of [`source`](std::error::Error::source): print the
/// chain, as `{:#}` of `anyhow` does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written.
    #[error("{}", escape(.path))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file does not say what it should.
    #[error("{}:{line}: {what}: \"{text}\"", escape(.path))]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        what: Cow<'static, str>,
        /// The beginning of the line, printable.
        text: String,
    },
    /// The process has exited and was waited for, or is hidden from the caller (hidepid=2).
    #[error("process {pid} is gone")]
    Gone {
        /// The ID it had.
        pid: Pid,
    },
    /// A system call on a process failed.
    #[error("{call} on process {pid}")]
    Call {
        /// The system call.
        call: &'static str,
        /// Which process.
        pid: Pid,
        /// What the kernel said.
        source: io::Error,
    },
}

/// [`std::result::Result`] with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { path: path.to_owned(), source: source.into() }
    }

    /// An error about a system call on a process; ESRCH means that the process is gone.
    pub(crate) fn call(call: &'static str, pid: Pid, errno: Errno) -> Self {
        match errno {
            Errno::SRCH => Self::Gone { pid },
            errno => Self::Call { call, pid, source: errno.into() },
        }
    }

    /// `line` counts from 1.
    pub(crate) fn parse(path: &Path, line: usize, what: impl Into<Cow<'static, str>>, text: &[u8]) -> Self {
        let cut = &text[..text.len().min(MAX_EXCERPT_BYTES)];
        let more = if cut.len() < text.len() { "..." } else { "" };
        Self::Parse {
            path: path.to_owned(),
            line,
            what: what.into(),
            text: format!("{}{more}", escape(cut.trim_ascii_end())),
        }
    }

    /// Whether the process does not exist any more (or cannot be seen, see [`Error::Gone`]). A
    /// zombie still exists: reading what it no longer has fails in other ways.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    /// Whether the caller may not do this: EPERM or EACCES.
    pub fn is_denied(&self) -> bool {
        matches!(self.errno(), Some(Errno::PERM | Errno::ACCESS))
    }

    /// Whether this kernel does not have what was asked for: there is no such file or system
    /// call, or it is switched off (PSI with `psi=0` or cgroup.pressure).
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno(), Some(Errno::NOENT | Errno::NODEV | Errno::NOSYS | Errno::OPNOTSUPP))
    }

    /// The error number the kernel gave, if it gave one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } | Self::Call { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    fn errno(&self) -> Option<Errno> {
        self.raw_os_error().map(Errno::from_raw_os_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_switched_off_is_unsupported() {
        // Reading memory.pressure after `echo 0 > cgroup.pressure` gives ENODEV, with psi=0 EOPNOTSUPP.
        for (errno, unsupported) in [(Errno::NODEV, true), (Errno::OPNOTSUPP, true), (Errno::IO, false)] {
            let error = Error::io(Path::new("memory.pressure"), errno);
            assert_eq!(error.is_unsupported(), unsupported, "{error}");
        }
    }
}
