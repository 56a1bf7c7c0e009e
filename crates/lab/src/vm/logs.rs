// SPDX-License-Identifier: GPL-2.0-only
//! The log files of one boot: the console, the channel, QEMU's output and its command line.

use fs_err::{self as fs, File};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Result, bail};

use crate::host;
use crate::progress::unpoisoned;
use crate::vm::console::ConsoleWatch;

/// The files of one boot.
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    /// The output of the serial console.
    pub(crate) console: PathBuf,
    /// The data of the result channel.
    pub(crate) channel: PathBuf,
    /// QEMU's standard error.
    pub(crate) qemu: PathBuf,
    /// QEMU's command line, to repeat the boot.
    pub(crate) command: PathBuf,
}

impl Logs {
    /// Returns the paths in `folder`. The files need not exist.
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self {
            console: folder.join("console.log"),
            channel: folder.join("channel.jsonl"),
            qemu: folder.join("qemu.log"),
            command: folder.join("qemu.cmd"),
        }
    }

    /// Writes the command to its file, empties the logs, and redirects QEMU's standard error to its log. The
    /// logs are emptied because QEMU may fail before it does that, and logs of an earlier boot must not be
    /// read.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn begin(&self, qemu: &mut Command) -> Result<()> {
        let folder = qemu.get_current_dir().map_or(String::new(), |dir| format!("cd {}; ", dir.display()));
        fs::write(&self.command, format!("{folder}{}\n", host::command_text(qemu)))?;
        for log in [&self.console, &self.channel] {
            File::create(log)?;
        }
        qemu.stderr(File::create(&self.qemu)?.into_file());
        Ok(())
    }
}

/// Appends about `lines` lines of a log to `text`: from the line that contains `from` on, or the end of the
/// log. Appends nothing if there is no such log or it is empty.
pub(crate) fn append_excerpt(text: &mut String, log: &Path, from: Option<&str>, lines: usize) {
    let bytes = fs::read(log).unwrap_or_default();
    let content = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = content.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
    let end = all.len().saturating_sub(lines);
    let start = from.and_then(|from| all.iter().position(|line| line.contains(from)));
    let start = start.map_or(end, |start| start.saturating_sub(2).min(end.max(start)));
    if start < all.len() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "--- {}", log.display());
    }
    for line in all.iter().skip(start).take(lines + 2) {
        let _ = writeln!(text, "  {line}");
    }
}

/// Follows the console and the channel of a running guest.
pub(crate) struct Output {
    console: File,
    channel: File,
    pub(crate) watch: ConsoleWatch,
}

impl Output {
    /// Follows the logs of a boot. `allow` are regular expressions of expected console lines.
    ///
    /// # Errors
    /// When a log cannot be read or an expression is invalid.
    pub(crate) fn follow(logs: &Logs, allow: &[String]) -> Result<Self> {
        Ok(Self {
            console: File::open(&logs.console)?,
            channel: File::open(&logs.channel)?,
            watch: ConsoleWatch::new(allow)?,
        })
    }

    /// Passes new data of the console to the watch and returns new data of the channel. What the kernel has printed
    /// before a message on the channel has been seen with it.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub(crate) fn read(&mut self) -> Result<Vec<u8>> {
        let (mut messages, mut console) = (Vec::new(), Vec::new());
        self.channel.read_to_end(&mut messages)?;
        self.console.read_to_end(&mut console)?;
        self.watch.feed(&console);
        Ok(messages)
    }
}

/// Reserves a log folder for this process until it ends and returns its path. If another lab has reserved it,
/// the path is `<folder>.2` and so on, so that labs in one checkout do not write or read each other's logs.
///
/// # Errors
/// When the folder cannot be made, or too many labs use it.
pub(crate) fn claim(folder: &Path) -> Result<PathBuf> {
    static CLAIMED: Mutex<BTreeMap<PathBuf, (PathBuf, File)>> = Mutex::new(BTreeMap::new());
    const MAX_FOLDERS: u32 = 100;
    let mut claimed = unpoisoned(&CLAIMED);
    if let Some((ours, _)) = claimed.get(folder) {
        return Ok(ours.clone());
    }
    for n in 1..=MAX_FOLDERS {
        let mut name = folder.as_os_str().to_owned();
        if n > 1 {
            name.push(format!(".{n}"));
        }
        let ours = PathBuf::from(name);
        fs::create_dir_all(&ours)?;
        let path = ours.join("lock");
        let file = File::create(&path)?;
        if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok() {
            claimed.insert(folder.to_owned(), (ours.clone(), file));
            return Ok(ours);
        }
    }
    bail!("{}: {MAX_FOLDERS} other labs are writing here", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_folder_belongs_to_one_lab() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("boot");
        fs::create_dir(&logs).unwrap();
        let other = File::create(logs.join("lock")).unwrap();
        rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let second = dir.path().join("boot.2");
        assert_eq!(claim(&logs).unwrap(), second);
        // A second call returns the same folder.
        assert_eq!(claim(&logs).unwrap(), second);
        assert_eq!(claim(&dir.path().join("free")).unwrap(), dir.path().join("free"));
    }
}
