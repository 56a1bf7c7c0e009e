// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's log, from a given moment on.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;

use anyhow::{Context as _, Result, bail};

const PATH: &str = "/dev/kmsg";
/// The most bytes that one read returns.
const MAX_RECORD_BYTES: usize = 8192;

/// The kernel's log from the moment on at which this was opened.
pub struct Kmsg(File);

impl Kmsg {
    /// Opens the log at its end.
    ///
    /// # Errors
    /// When /dev/kmsg cannot be read.
    pub fn from_now() -> Result<Self> {
        let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(PATH).context(PATH)?;
        file.seek(SeekFrom::End(0)).context(PATH)?;
        Ok(Self(file))
    }

    /// Returns the lines logged since the last call, without their prefixes.
    ///
    /// # Errors
    /// When some were overwritten before they could be read.
    pub fn lines(&mut self) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut record = vec![0; MAX_RECORD_BYTES];
        loop {
            match self.0.read(&mut record) {
                Ok(0) => return Ok(lines),
                Ok(n) => lines.extend(message(&String::from_utf8_lossy(&record[..n]))),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(lines),
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => bail!("{PATH}: lines were lost"),
                Err(e) => return Err(e).context(PATH),
            }
        }
    }
}

/// Returns TEXT of a record `PRIORITY,NUMBER,TIME,FLAGS;TEXT`. Lines that follow are properties.
fn message(record: &str) -> Option<String> {
    Some(record.lines().next()?.split_once(';')?.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_s_text_follows_the_semicolon() {
        assert_eq!(message("6,339,5140900,-;a: b; c\n SUBSYSTEM=acpi\n").as_deref(), Some("a: b; c"));
        assert_eq!(message("nonsense"), None);
    }
}
