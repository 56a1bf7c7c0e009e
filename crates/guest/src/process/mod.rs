// SPDX-License-Identifier: GPL-2.0-only
//! Processes that a scenario starts: to kill them, to load the CPUs, or to measure how they are slowed down.

pub mod child;
pub mod daemon;
pub mod foreground;
pub mod hogs;
pub mod population;
pub mod swapped;
pub mod victim;

use anyhow::Result;
use linux::{Process, Root};
use rustix::process::Pid;

/// Returns the resident bytes of a process, which the kernel sums up exactly for /proc/PID/statm.
///
/// # Errors
/// When there is no such process.
pub fn resident_bytes(pid: Pid) -> Result<u64> {
    Ok(Process::open(&Root::system(), pid.into())?.statm()?.resident)
}
