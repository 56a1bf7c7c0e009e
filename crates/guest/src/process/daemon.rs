// SPDX-License-Identifier: GPL-2.0-only
//! A running `memreap daemon`.

use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::process::{self, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use linux::{Process, Root};
use rustix::process::{Pid, Signal};
use serde::Deserialize;

use crate::system::cgroup::TemporaryCgroup;
use crate::system::clock;

const CONFIG: &str = "/run/memreap.toml";
/// What the daemon has killed.
pub const HISTORY: &str = "/run/history.jsonl";
/// What the daemon writes to standard error.
pub const LOG: &str = "/run/daemon.log";
/// The socket on which the daemon says that it is ready, as to a service manager.
const NOTIFY_SOCKET: &str = "/run/notify";
/// How long it may take to get ready, and to end.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How often its end is looked for.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The part of an entry in the daemon's history that scenarios read.
#[derive(Deserialize)]
pub struct Kill {
    pub unix_ms: u64,
    pub pid: i32,
    pub processes: u32,
    pub bytes: u64,
    pub method: String,
    pub took_us: u64,
    pub ending: String,
    /// Bytes, before and after.
    pub available: [u64; 2],
}

/// A running daemon that is ready, in a cgroup of its own, as a service manager starts it.
pub struct Daemon {
    child: process::Child,
    // Dropped when the child has ended: it has to be empty then.
    _group: TemporaryCgroup,
}

impl Daemon {
    /// Starts the daemon, which never kills processes of these names; `act` is that table of its configuration. The
    /// caller must be single-threaded.
    ///
    /// # Errors
    /// When it does not get ready; [`LOG`] says why.
    pub fn start(spared: &[&str], act: &str) -> Result<Self> {
        let rule = |name| format!("[[rule]]\nname = \"{name}\"\nnever = true\n");
        let rules: String = spared.iter().map(rule).collect();
        let record = format!("record = {{ history = \"{HISTORY}\" }}");
        fs::write(CONFIG, format!("{record}\nact = {{ {act} }}\n{rules}")).context(CONFIG)?;
        // A daemon before this one may have left them.
        for path in [HISTORY, NOTIFY_SOCKET] {
            match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e).context(path),
                _ => {}
            }
        }
        let manager = UnixDatagram::bind(NOTIFY_SOCKET).context(NOTIFY_SOCKET)?;
        manager.set_read_timeout(Some(TIMEOUT))?;
        let mut command = Command::new("/bin/memreap");
        command
            .args(["daemon", "--config", CONFIG])
            .env("NOTIFY_SOCKET", NOTIFY_SOCKET)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(LOG).context(LOG)?);
        let group = TemporaryCgroup::new("service", "memory")?;
        let child = group.within(|| command.spawn().context("/bin/memreap"))?;
        let daemon = Self { child, _group: group };
        let mut message = [0; 4096];
        loop {
            let len = manager.recv(&mut message).context("the daemon does not get ready")?;
            if &message[..len] == b"READY=1" {
                return Ok(daemon);
            }
        }
    }

    /// Returns how many pages the daemon has waited for since it began.
    ///
    /// # Errors
    /// When it is gone.
    pub fn major_faults(&self) -> Result<u64> {
        Ok(Process::open(&Root::system(), Pid::from_child(&self.child).into())?.stat()?.majflt)
    }

    /// Ends the daemon, as a service manager does, and returns what it has killed.
    ///
    /// # Errors
    /// When it has failed, or does not end.
    pub fn end(mut self) -> Result<Vec<Kill>> {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, Signal::TERM).context("the daemon is gone")?;
        ensure!(
            clock::within(TIMEOUT, CHECK_INTERVAL, || Ok(self.child.try_wait()?.is_some()))?,
            "the daemon does not end"
        );
        let status = self.child.wait()?;
        ensure!(status.success(), "the daemon ended with {status}");
        // Whoever has killed nobody has no history.
        let text = match fs::read_to_string(HISTORY) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.context(HISTORY)?,
        };
        text.lines().map(|line| serde_json::from_str(line).context(HISTORY)).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has ended, or the guest ends soon.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
