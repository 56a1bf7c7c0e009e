// SPDX-License-Identifier: GPL-2.0-only
//! The workloads that the lab runs in a guest, one file per scenario; crates/scenarios has their guests and metrics.
//!
//! A workload runs as root inside a freshly booted guest, which is idle: /proc, /sys, /dev, /tmp, cgroup2, tracefs and
//! debugfs are mounted (see crates/init), loopback is up, and nothing runs but PID 1. It runs in a child of PID 1, so
//! it may fork, exit or be killed without ending the guest; PID 1 reaps orphans. It does its rounds inside one boot and
//! reports **one value per metric**, the median of the rounds: rounds of one boot are correlated, so the host compares
//! boots, not rounds. It never reports a value that it did not measure.

mod arguments;
mod daemon;
mod expedite;
mod fault;
mod ksm_rmap;
mod memcg_exit;
mod metrics;
mod oom_select;
mod reap;
mod release;
mod rss_counters;
mod soak;
mod storm_phone;
mod swap_defer;

use anyhow::{Context as _, Result};

use arguments::Arguments;
use init::report::Reporter;

/// Does the work and reports.
type Run = fn(&Arguments, &mut Reporter) -> Result<()>;

/// The scenarios by name, each with the keys of its own among its arguments.
const SCENARIOS: [(&str, &[&str], Run); 14] = [
    ("daemon", &[], daemon::run),
    ("expedite", &[], expedite::run),
    ("fault", &[], fault::run),
    ("ksm-rmap", &[], ksm_rmap::run),
    ("memcg-exit", &[], memcg_exit::run),
    ("oom-select", &["seed"], oom_select::run),
    ("reap", &[], reap::run),
    ("release", &[], release::run),
    ("rss-counters", &[], rss_counters::run),
    ("soak", &["seconds", "seed"], soak::run),
    ("storm-phone", &[], storm_phone::run),
    ("storm-phone-cases", &[], storm_phone::run),
    ("swap-batch", &[], swap_defer::run),
    ("swap-defer", &[], swap_defer::run),
];

/// Runs the scenario called `name` with these arguments.
///
/// # Errors
/// When there is no such scenario, when it does not accept the arguments, and whatever keeps it from measuring all that
/// is declared for this guest.
pub fn run(name: &str, args: &[String], out: &mut Reporter) -> Result<()> {
    let found = SCENARIOS.iter().find(|(known, ..)| *known == name);
    let (_, keys, run) = found.with_context(|| {
        let known = SCENARIOS.map(|(name, ..)| name).join(", ");
        format!("no scenario '{name}' in this guest; there are: {known}")
    })?;
    let mut args = Arguments::parse(scenarios::find(name), args, keys)?;
    out.expect(std::mem::take(&mut args.metrics));
    run(&args, out)?;
    out.check_complete()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// All code below a folder.
    fn code(folder: &Path) -> String {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| if path.is_dir() { code(&path) } else { fs::read_to_string(path).unwrap() }).collect()
    }

    #[test]
    fn every_declared_metric_is_measured() {
        // In a boot, the reporter makes sure of both directions. This finds a metric that no code ever mentions.
        let code = code(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
        for scenario in scenarios::all() {
            assert!(SCENARIOS.iter().any(|(name, ..)| *name == scenario.name), "{}", scenario.name);
            let metrics = scenario.metrics.iter().flat_map(|group| group.metrics);
            let names = metrics.map(|metric| metric.name.rsplit('/').next().unwrap_or_default());
            for name in names.chain(scenario.metrics.iter().flat_map(|group| group.cases.iter().copied())) {
                assert!(code.contains(&format!("\"{name}\"")), "{}: nothing measures {name}", scenario.name);
            }
        }
    }
}
