// SPDX-License-Identifier: GPL-2.0-only
//! What holds for the process as a whole: its end by Ctrl-C, and its limits.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
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

/// Makes SIGINT, SIGTERM and SIGHUP end the lab cleanly: kill the children, remove stagings, exit with 130.
///
/// # Errors
/// When the signals cannot be handled, or the thread that waits for them cannot be started.
pub fn exit_cleanly_on_interrupt() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle Ctrl-C")?;
    std::thread::Builder::new()
        .name("interrupt".into())
        .spawn(move || signals.forever().next().map(|_| interrupted()))
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

fn interrupted() -> ! {
    // Locked until exit, so that no child is started and no staging is made or renamed any more.
    let cleanup = cleanup();
    // SIGTERM first: a child may be a lab with its own cleanup. Errors are ignored: the group may be gone
    // already.
    let signal = |signal| {
        for &group in &cleanup.groups {
            let _ = kill_process_group(group, signal);
        }
    };
    signal(Signal::TERM);
    let deadline = Instant::now() + TERM_GRACE;
    let alive = || cleanup.groups.iter().any(|&g| test_kill_process_group(g).is_ok());
    while alive() && Instant::now() < deadline {
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
    if std::io::stderr().is_terminal() {
        // A spinner may have hidden the cursor.
        eprintln!("\x1b[?25h");
    }
    eprintln!("interrupted");
    process::exit(130)
}
