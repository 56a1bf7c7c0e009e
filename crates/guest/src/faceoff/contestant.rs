// SPDX-License-Identifier: GPL-2.0-only
//! The contestant, which defends the desktop: installs it from the payload disk, starts it, and reads its
//! journal.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context as _, Result, ensure};

use protocol::faceoff::Job;

use super::FOLDER;
use super::command::{output, run};

/// The payload disk: a tar file without a file system.
const PAYLOAD: &str = "/dev/vdb";
/// The ioctl that drops what is cached of a block device.
const BLKFLSBUF: libc::Ioctl = 0x1261;

/// Installs and starts the contestant, and waits until it has settled. Returns the PID of its main process,
/// if it has one.
///
/// # Errors
/// When the payload lacks it, its setup fails, or it does not start.
pub fn start(job: &Job) -> Result<Option<u32>> {
    if Path::new(PAYLOAD).exists() {
        unpack()?;
    }
    if let Some(files) = &job.files {
        run("cp", &["-r", "--preserve=mode", "--", &format!("{FOLDER}/{files}/."), "/"])?;
    }
    for line in &job.setup {
        run("/bin/sh", &["-c", line])?;
    }
    let pid = match &job.unit {
        None => None,
        Some(unit) => {
            run("systemctl", &["daemon-reload"])?;
            // What it says itself is better than systemd's advice where to look.
            run("systemctl", &["start", unit]).with_context(|| journal(unit).unwrap_or_default())?;
            let pid = property(unit, "MainPID")?;
            Some(pid.parse().with_context(|| format!("{unit} has no main process: '{pid}'"))?)
        }
    };
    thread::sleep(Duration::from_secs(job.settle_s));
    if let Some(unit) = &job.unit {
        // A contestant that gave up meanwhile would look like one that does nothing.
        let state = property(unit, "ActiveState")?;
        ensure!(state == "active", "{unit} is {state} after {} s", job.settle_s);
    }
    Ok(pid)
}

/// The payload may have changed since the snapshot, so what is cached of it is dropped.
fn unpack() -> Result<()> {
    drop_cache()?;
    // This program runs, and need not be replaced.
    run("tar", &["-xf", PAYLOAD, "-C", FOLDER, "--no-same-owner", "--exclude=guest"])?;
    drop_cache()
}

fn drop_cache() -> Result<()> {
    let device = File::open(PAYLOAD).context(PAYLOAD)?;
    // SAFETY: the call takes no memory.
    let ret = unsafe { libc::ioctl(device.as_raw_fd(), BLKFLSBUF, 0) };
    ensure!(ret == 0, "{PAYLOAD}: BLKFLSBUF: {}", io::Error::last_os_error());
    Ok(())
}

fn property(unit: &str, name: &str) -> Result<String> {
    let text = output("systemctl", &["show", &format!("--property={name}"), "--value", unit])?;
    Ok(text.trim().to_owned())
}

/// Returns the last lines of a unit's journal.
///
/// # Errors
/// When journald does not answer in time.
pub fn journal(unit: &str) -> Result<String> {
    output("timeout", &["20", "journalctl", "--unit", unit, "--output=cat", "--lines=50", "--no-pager"])
}

/// Returns the control group of a unit, relative to the root of the hierarchy.
///
/// # Errors
/// When the unit is not running.
pub fn cgroup(unit: &str) -> Result<String> {
    let path = property(unit, "ControlGroup")?;
    ensure!(!path.is_empty(), "{unit} has no control group");
    Ok(path.trim_start_matches('/').to_owned())
}
