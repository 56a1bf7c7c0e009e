// SPDX-License-Identifier: GPL-2.0-only
//! Scheduling: the policy of a thread, the CPUs that it may use, and how many CPUs there are.

use std::io;

use anyhow::{Context as _, Result};
use linux::Root;
use rustix::thread::CpuSet;

/// Sets the calling thread's scheduling policy.
///
/// # Errors
/// Those of sched_setscheduler(2).
pub fn set_policy(policy: i32, priority: i32) -> io::Result<()> {
    Ok(linux::sched::set_policy(0, policy, priority)?)
}

/// Restricts the calling thread to one CPU.
///
/// # Errors
/// When there is no such CPU.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("pin to CPU {cpu}"))
}

/// The number of online CPUs, also those that this process may not use.
///
/// # Errors
/// When sysfs has no list of them.
pub fn online_cpus() -> Result<usize> {
    linux::sched::online_cpus(&Root::system()).context("the list of CPUs in /sys")
}
