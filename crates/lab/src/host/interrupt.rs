// SPDX-License-Identifier: GPL-2.0-only
//! What holds for the process as a whole: its end by Ctrl-C, and its limits.

use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::process::{self, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process_group, setrlimit, test_kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::files::remove_any;
use crate::progress::unpoisoned;

/// How long children have after SIGTERM to clean up before they are killed.
const TERM_GRACE: Duration = Duration::from_secs(3);

/// What is killed and removed when the lab is interrupted.
pub(super) struct CleanupList {
    /// The process groups of running children.
    pub(super) groups: Vec<Pid>,
    /// The paths of what is being built.
    pub(super) stagings: Vec<PathBuf>,
}

/// Returns the list, locked.
pub(super) fn cleanup() -> MutexGuard<'static, CleanupList> {
    static LIST: Mutex<CleanupList> = Mutex::new(CleanupList { groups: Vec::new(), stagings: Vec::new() });
    unpoisoned(&LIST)
}

/// Makes SIGINT, SIGTERM and, but under nohup(1), SIGHUP end the lab cleanly: kill the children, remove stagings,
/// exit with 130.
///
/// # Errors
/// When the signals cannot be handled, or the thread that waits for them cannot be started.
pub fn exit_cleanly_on_interrupt() -> Result<()> {
    let mut ends = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP)? {
        ends.push(SIGHUP);
    }
    let mut signals = Signals::new(ends).context("cannot handle Ctrl-C")?;
    std::thread::Builder::new()
        .name("interrupt".into())
        .spawn(move || {
            signals.forever().next().map(|_| {
                end_children();
                let stderr = &mut std::io::stderr();
                // A spinner may have hidden the cursor. If nobody reads any more, there is nobody to tell.
                let cursor = if stderr.is_terminal() { "\x1b[?25h\n" } else { "" };
                let _ = writeln!(stderr, "{cursor}interrupted");
                process::exit(130)
            })
        })
        .context("cannot start the thread that waits for Ctrl-C")?;
    Ok(())
}

/// Lets this process have more open files than the usual 1,024: the log folder of every boot stays locked until it
/// ends, and a comparison may have 2,000.
pub fn allow_many_files() {
    const ENOUGH: u64 = 16_384;
    let mut limit = getrlimit(Resource::Nofile);
    let enough = limit.maximum.map_or(ENOUGH, |most| most.min(ENOUGH));
    if limit.current.is_some_and(|now| now < enough) {
        limit.current = Some(enough);
        // If it fails, the limit is as before.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Whether whoever started this process had it ignore the signal.
fn is_ignored(signal: i32) -> Result<bool> {
    let status = fs::read_to_string("/proc/self/status")?;
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    Ok(ignored.context("/proc/self/status has no SigIgn")? & (1 << (signal - 1)) != 0)
}

/// Ends all children and removes stagings; for the end of the lab, as none can be started or made any more.
pub fn end_children() {
    // Never unlocked, so that no child is started and no staging is made or renamed any more.
    let cleanup = ManuallyDrop::new(cleanup());
    let signal = |signal| cleanup.groups.iter().for_each(|&group| kill_group(group, signal));
    // SIGTERM first: a child may be a lab with its own cleanup.
    signal(Signal::TERM);
    let deadline = Instant::now() + TERM_GRACE;
    while cleanup.groups.iter().any(|&group| is_alive(group)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(Signal::KILL);
    for path in &cleanup.stagings {
        // Other threads may still be writing there for a moment, so this may need several attempts.
        for _ in 0..50 {
            if remove_any(path).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Sends a signal to a group, also if it is root's, as that of a child under sudo is. Errors are ignored: the group may
/// be gone already.
fn kill_group(group: Pid, signal: Signal) {
    if kill_process_group(group, signal) == Err(Errno::PERM) {
        // Not by spawn(), which would wait for the list of children.
        let mut kill = Command::new("sudo");
        kill.args(["-n", "kill", &format!("-{}", signal.as_raw()), "--", &format!("-{}", group.as_raw_pid())]);
        let _ = kill.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Whether there is such a group, whoever its owner is.
fn is_alive(group: Pid) -> bool {
    test_kill_process_group(group) != Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn a_group_is_alive_until_it_has_ended() {
        let mut sleep = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let group = Pid::from_child(&sleep);
        assert!(is_alive(group));
        kill_group(group, Signal::TERM);
        sleep.wait().unwrap();
        assert!(!is_alive(group));
    }
}
