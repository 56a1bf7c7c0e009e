// SPDX-License-Identifier: GPL-2.0-only
//! What one boot leaves in its folder: the console, the channel, QEMU's own output and its command line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context as _, Result, bail};

use crate::progress::unpoisoned;
use crate::vm::console::Watch;
use crate::vm::qemu;

/// The files of one boot.
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    /// What the serial console showed.
    pub(crate) console: PathBuf,
    /// What came over the result channel.
    pub(crate) channel: PathBuf,
    /// QEMU's standard error.
    pub(crate) qemu: PathBuf,
    /// QEMU's command line, to repeat the boot.
    pub(crate) command: PathBuf,
}

impl Logs {
    /// The paths in `folder`, none of which need exist.
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self {
            console: folder.join("console.log"),
            channel: folder.join("channel.jsonl"),
            qemu: folder.join("qemu.log"),
            command: folder.join("qemu.cmd"),
        }
    }

    /// Notes the command, empties the logs (QEMU makes them only if it gets that far, and what an earlier
    /// boot left must not be read), and sends QEMU's standard error to its log.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn begin(&self, qemu: &mut Command) -> Result<()> {
        let cannot = |path: &Path| format!("cannot write {}", path.display());
        let folder = qemu.get_current_dir().map_or(String::new(), |dir| format!("cd {}; ", dir.display()));
        fs::write(&self.command, format!("{folder}{}\n", qemu::quoted(qemu)))
            .with_context(|| cannot(&self.command))?;
        for log in [&self.console, &self.channel] {
            File::create(log).with_context(|| cannot(log))?;
        }
        qemu.stderr(File::create(&self.qemu).with_context(|| cannot(&self.qemu))?);
        Ok(())
    }
}

/// Appends to `text` the end of a log, or its part from a line that contains `from` on: about `lines`
/// lines. Nothing if there is no such log, or it is empty.
pub(crate) fn append_excerpt(text: &mut String, log: &Path, from: Option<&str>, lines: usize) {
    let bytes = fs::read(log).unwrap_or_default();
    let content = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = content.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
    let end = all.len().saturating_sub(lines);
    let start = from.and_then(|from| all.iter().position(|line| line.contains(from)));
    let start = start.map_or(end, |start| start.saturating_sub(2).min(end.max(start)));
    if start < all.len() {
        // A String takes every write.
        let _ = writeln!(text, "--- {}", log.display());
    }
    for line in all.iter().skip(start).take(lines + 2) {
        let _ = writeln!(text, "  {line}");
    }
}

/// What a running QEMU writes: the console, which is watched, and the channel.
pub(crate) struct Output {
    console: Follower,
    channel: Follower,
    /// What the console has said.
    pub(crate) watch: Watch,
}

impl Output {
    /// Follows the logs of a boot; `allow` are regular expressions for console lines that are expected.
    ///
    /// # Errors
    /// When a log cannot be read, or an expression is wrong.
    pub(crate) fn follow(logs: &Logs, allow: &[String]) -> Result<Self> {
        Ok(Self {
            console: Follower::new(&logs.console)?,
            channel: Follower::new(&logs.channel)?,
            watch: Watch::new(allow)?,
        })
    }

    /// Shows the watch what is new on the console, and returns what is new on the channel.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub(crate) fn read(&mut self) -> Result<Vec<u8>> {
        self.watch.feed(&self.console.read()?);
        self.channel.read()
    }
}

/// Reads a file while another process appends to it.
struct Follower(File);

impl Follower {
    fn new(path: &Path) -> Result<Self> {
        Ok(Self(File::open(path).with_context(|| format!("cannot read {}", path.display()))?))
    }

    /// Returns what was appended since the last call.
    fn read(&mut self) -> Result<Vec<u8>> {
        let mut new = Vec::new();
        self.0.read_to_end(&mut new).context("reading a guest's log")?;
        Ok(new)
    }
}

/// Makes a log folder this process's own until it ends, so that two labs in one checkout do not
/// write into each other's logs, nor read each other's results: the second gets `<folder>.2`.
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
        fs::create_dir_all(&ours).with_context(|| format!("cannot make {}", ours.display()))?;
        let path = ours.join("lock");
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
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
        // And stays ours.
        assert_eq!(claim(&logs).unwrap(), second);
        assert_eq!(claim(&dir.path().join("free")).unwrap(), dir.path().join("free"));
    }
}
