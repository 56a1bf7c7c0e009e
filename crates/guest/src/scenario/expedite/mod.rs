// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `expedite`: how fast does the memory of a killed process come back when the process can hardly
//! free it, and how much work do other processes get done meanwhile? The cases and metrics are those of
//! crates/scenarios. `cgroup` and `size` are the kernel's other two ways to ask for the same as `kill` does; they are
//! measured where it matters most. `plain` must not change its behaviour.

mod hostile;
mod kills;

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::arguments::Arguments;
use super::metrics::{each_case, metric_name};
use crate::measure::free_memory::ShortFreeLists;
use crate::process::hogs::Hogs;
use crate::system::{clock, sched};
use hostile::Attack;
use init::report::Reporter;
use kills::{CASES, Method, Run};

/// How long the hogs work before a kill.
const WARM_UP: Duration = Duration::from_millis(20);
/// How long it is waited for memory to come back.
const RETURN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long free memory is recorded after all is back, and how often that is checked before.
const RETURN_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The period of CPU limits.
const PERIOD: Duration = Duration::from_millis(100);
/// The case in which a user kills all the time.
const HOSTILE: &str = "hostile";
/// The slowest of all cases, for two methods of killing.
const WORST: [(Method, &str); 2] = [(Method::Kill, "worst/kill-rate"), (Method::Memreap, "worst/memreap-rate")];

pub fn run(args: &Arguments, out: &mut Reporter) -> Result<()> {
    let cpus = thread::available_parallelism().context("number of CPUs")?.get();
    let short = ShortFreeLists::set()?;
    let expedites = linux::pidfd::expedite_supported();
    let supports = if expedites { "supports" } else { "does not support" };
    out.note(&format!("the kernel {supports} PIDFD_SIGNAL_EXPEDITE"));
    let mut rates: Vec<(Method, f64)> = Vec::new();
    each_case(CASES.iter().map(|case| (case.name, case)), out, |_, case, out| {
        rates.extend(Run::new(case, cpus, expedites, args.icount())?.all(out)?);
        Ok(())
    })?;
    for (method, metric) in WORST.into_iter().filter(|(_, metric)| out.expects(metric)).collect::<Vec<_>>() {
        let of_method = rates.iter().filter(|(m, _)| *m == method).map(|&(_, rate)| rate);
        out.sample(metric, of_method.fold(f64::INFINITY, f64::min));
    }
    each_case([(HOSTILE, Attack::ALL)], out, |case, attacks, out| {
        for (attack, metric) in attacks {
            let rate = hostile::rate(cpus, expedites, attack, metric, out)?;
            out.sample(&metric_name(case, metric), rate);
        }
        Ok(())
    })?;
    drop(short);
    Ok(())
}

/// Returns the hogs' work per millisecond from `start`, when it was `before`, until the window's end.
fn foreground(hogs: &Hogs, start: u64, before: u64, window: Duration) -> Result<f64> {
    // So that this is on time although the hogs leave no CPU idle.
    sched::set_policy(libc::SCHED_FIFO, 1).context("SCHED_FIFO to count the hogs' work")?;
    clock::sleep_until(start + window.as_nanos() as u64)?;
    let (done, now) = (hogs.done(), clock::now());
    sched::set_policy(libc::SCHED_OTHER, 0).context("SCHED_OTHER")?;
    Ok((done - before) as f64 / ((now - start) as f64 / 1e6))
}
