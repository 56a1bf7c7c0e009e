// SPDX-License-Identifier: GPL-2.0-only
//! What every scenario implements.

use anyhow::Result;

use init::report::Reporter;

/// One workload, run as root inside a freshly booted guest.
///
/// The guest is idle when `run` starts: /proc, /sys, /dev, /tmp, cgroup2, tracefs and debugfs are mounted
/// (see crates/init), loopback is up, and nothing runs but PID 1. The scenario runs in a child of PID 1, so
/// it may fork, exit or be killed without ending the guest; PID 1 reaps orphans.
pub trait Scenario: Sync {
    /// The name on the lab's command line: `lab ab NAME`.
    fn name(&self) -> &'static str;

    /// The names of all metrics that `run` reports with the same arguments in a guest of `cpus` CPUs. With
    /// them expectations are checked before anything is booted.
    ///
    /// # Errors
    /// When it does not accept these arguments.
    fn metrics(&self, _args: &[String], _cpus: usize) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Does the work and reports to `out`.
    ///
    /// # Errors
    /// Whatever keeps the scenario from measuring. The error is reported as a note and the guest exits with
    /// status 1: a scenario never reports a value that it did not measure.
    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()>;
}
