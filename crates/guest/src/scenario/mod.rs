//! The workloads the lab runs in a guest, one file per scenario. A scenario does its rounds
//! inside one boot and reports **one number per metric** (the median of the rounds): samples
//! inside a boot are correlated, so the host compares boots, not rounds.

mod arguments;
mod daemon;
mod expedite;
mod fault;
mod ksm_rmap;
mod oom_select;
mod reap;
mod rss_counters;
mod soak;
mod swap_release;

use anyhow::{Result, bail};

use init::report::Reporter;

pub use init::report::Better;

/// One workload, run as root inside a freshly booted guest.
///
/// The guest is idle when `run` starts: /proc, /sys, /dev, /tmp, cgroup2, tracefs and debugfs
/// are mounted (see crates/init), loopback is up, and nothing else runs but PID 1. The
/// scenario runs in a child of PID 1, so it may fork, exit or be killed without taking the
/// guest down; orphans are reaped by PID 1.
pub trait Scenario: Sync {
    /// The name the host asks for: `lab ab NAME`.
    fn name(&self) -> &'static str;

    /// The names of all that `run` reports with the same arguments in a guest of so many CPUs: with
    /// them expectations are checked before anything is booted.
    ///
    /// # Errors
    /// When it does not know these arguments.
    fn metrics(&self, _args: &[String], _cpus: usize) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Does the work and reports through `out`.
    ///
    /// # Errors
    /// Whatever keeps the scenario from measuring. The error is reported as a note and the
    /// guest exits with status 1: a scenario never reports a number it did not measure.
    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()>;
}

/// Every scenario this binary knows.
pub fn all() -> &'static [&'static dyn Scenario] {
    &[
        &daemon::Daemon,
        &expedite::Expedite,
        &fault::Fault,
        &ksm_rmap::KsmRmap,
        &oom_select::OomSelect,
        &reap::Reap,
        &rss_counters::RssCounters,
        &soak::Soak,
        &swap_release::SwapRelease,
    ]
}

/// The scenario called `name`.
///
/// # Errors
/// When there is none; the message lists those that exist.
pub fn find(name: &str) -> Result<&'static dyn Scenario> {
    let Some(found) = all().iter().find(|s| s.name() == name) else {
        let known: Vec<_> = all().iter().map(|s| s.name()).collect();
        bail!("no scenario '{name}' in this guest; there are: {}", known.join(", "));
    };
    Ok(*found)
}

/// What is reported of `T`s, as metrics call it, and where it is in one.
pub type Figure<T> = (&'static str, fn(&T) -> f64);

/// The name of what is measured in a case.
pub fn metric(case: &str, what: &str) -> String {
    format!("{case}/{what}")
}

/// The middle value, or the mean of the two in the middle; NaN when there is none.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}
