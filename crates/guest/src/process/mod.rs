//! Processes that a scenario starts: to kill them, to load the CPUs, or to see what they suffer.

pub mod child;
pub mod foreground;
pub mod hogs;
pub mod population;
pub mod swapped;
pub mod victim;

use anyhow::Result;
use linux::{Process, Root};
use rustix::process::Pid;

/// Bytes of a process that are resident, as the kernel counts them exactly for /proc/PID/statm.
///
/// # Errors
/// When there is no such process.
pub fn resident_bytes(pid: Pid) -> Result<u64> {
    Ok(Process::open(&Root::system(), pid.into())?.statm()?.resident)
}
