//! A process's name.

use std::fmt;
use std::path::Path;

use crate::{Error, Result, escape};

/// The name of a process: bytes of its own choice (but NUL), usually at most 15. Displayed with
/// what is not printable escaped.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Comm {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl Comm {
    /// The most the kernel shows, in bytes: names of kernel threads.
    pub const MAX: usize = 64;

    /// `None` when it is too long for a name.
    pub fn new(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { len: u8::try_from(name.len()).ok()?, bytes })
    }

    /// The name as it is.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Parses /proc/PID/comm.
    ///
    /// # Errors
    /// When it has no end, or is too long.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        // The name itself may have line ends.
        let name =
            bytes.strip_suffix(b"\n").ok_or_else(|| Error::parse(path, 1, "the line is cut off", bytes))?;
        Self::new(name).ok_or_else(|| Error::parse(path, 1, "too long for a name", bytes))
    }
}

impl fmt::Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escape(self.as_bytes()).fmt(f)
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}
