// SPDX-License-Identifier: GPL-2.0-only
//! One comparison: boots both arms in turns, collects one number per metric and boot, and
//! hands them to the statistics.
//!
//! Boots of a pair are back to back, and their order rotates so that neither a slow drift of
//! the host nor a place within the pair favours an arm; [`order`] has the details. Guests whose
//! counter counts instructions do not mind the host, and share it; see [`guests_at_a_time`].
//!
//! A run leaves in the output folder:
//!
//! ```text
//! results.json   report.html          the whole run; written at its end
//! results-partial.json                after each pair, until the run ends; no verdicts
//! boots/<scenario>-<run>/<pair>-<arm>/   each boot's logs, and what it delivered (boot.json); a run is a
//!                                      mode, with its CPUs if the scenario has several: icount-64
//! boots/.../<pair>-<arm>.failed/         the first attempt at a boot that had to be made again
//! previous/                           the same of the run before
//! ```
//!
//! A lock beside that folder makes runs take turns in it.

mod failure;
mod order;
mod record;
mod samples;
mod session;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, bail};

use crate::ab::catalog::{self, Run, Scenario, mode_name, run_name};
use crate::ab::experiment::order::{Role, order};
use crate::ab::experiment::samples::{Group, conclude};
use crate::ab::experiment::session::{BootCounter, Session};
use crate::ab::report;
use crate::ab::results::{ArmMeta, Meta, Results, RunMeta};
use crate::ab::stats::{self, Rules};
use crate::context::Context;
use crate::host;
use crate::host::write_atomically;
use crate::vm::accel::Accel;
use crate::vm::boot::{self, Boot};
use crate::vm::job::{Arm, Job, Mode};
use crate::vm::parallel;

pub use failure::{Cause, Failure};

/// What to compare, and how thoroughly.
#[derive(Clone)]
pub struct Plan {
    /// Names of scenarios; empty means all.
    pub scenarios: Vec<String>,
    /// Arguments for the scenarios in the guest, after those that the catalog gives them.
    pub args: Vec<String>,
    /// Pairs per scenario and run.
    pub pairs: usize,
    /// Base and changed.
    pub arms: [Arm; 2],
    /// Kernels that scenarios need beside the two ([`Scenario::controls`]), by their names; those
    /// that are not here are left out.
    pub controls: Vec<Arm>,
    /// Whether every pair has a second boot of the base arm: the A/A control.
    pub aa: bool,
    /// The smallest effect that counts, as a fraction.
    pub min_effect: f64,
    /// The family-wise error rate of the verdicts.
    pub alpha: f64,
    /// Only checks that both arms deliver all metrics: one pair, no control, no verdicts; the
    /// output goes to the folder `smoke` and leaves that of a full run alone.
    pub smoke: bool,
    /// Takes boots that an earlier run made of the same kernel, guest and QEMU instead of making them
    /// again.
    pub resume: bool,
    /// Where the kernel comes from, for the report.
    pub source: Option<String>,
    /// Why this accelerator was chosen, for the report.
    pub accelerator_reason: Option<String>,
    /// The command that reproduces the run, for the report.
    pub command: Option<String>,
}

/// Runs the plan with real guests.
///
/// # Errors
/// [`Failure`] when a guest fails or delivers other metrics than its peers; anything else is
/// the host's trouble or a plan that makes no sense.
pub fn run(ctx: &Context, accel: Accel, plan: &Plan) -> Result<Results> {
    let name = accel.to_string();
    let booter = Booter {
        key: &|arm, job| boot::content_key(ctx, accel, arm, job),
        boot: &|arm, job, logs| boot::boot(ctx, accel, arm, job, logs),
    };
    run_with(ctx, &name, plan, &catalog::select(&plan.scenarios)?, &booter)
}

type KeyOf<'a> = dyn Fn(&Arm, &Job) -> Result<String> + Sync + 'a;
type BootOne<'a> = dyn Fn(&Arm, &Job, &Path) -> Result<Boot> + Sync + 'a;

/// How guests are booted; tests pass something quicker.
struct Booter<'a> {
    /// What the outcome depends on, as [`boot::content_key`].
    key: &'a KeyOf<'a>,
    /// Boots one guest, as [`boot::boot`].
    boot: &'a BootOne<'a>,
}

fn run_with(
    ctx: &Context,
    accelerator: &str,
    plan: &Plan,
    scenarios: &[&Scenario],
    booter: &Booter<'_>,
) -> Result<Results> {
    let mut plan = plan.clone();
    let mut out = ctx.out.clone();
    if plan.smoke {
        (plan.pairs, plan.aa) = (1, false);
        out.push("smoke");
    }
    let rules = Rules { alpha: plan.alpha, min_effect: plan.min_effect };
    // Says now what would otherwise be said after all boots.
    stats::compare(&[], rules)?;
    if !(1..=stats::MAX_PAIRS).contains(&plan.pairs) {
        bail!("{} pairs: between 1 and {} can be compared", plan.pairs, stats::MAX_PAIRS);
    }
    let names: Vec<&String> = plan.arms.iter().chain(&plan.controls).map(|arm| &arm.name).collect();
    if let Some(name) = names.iter().enumerate().find_map(|(i, n)| names[..i].contains(n).then_some(n)) {
        bail!("two arms are called '{name}'; give them different names");
    }
    let _turn = host::lock(ctx, &out)?;
    if plan.resume {
        // Results without a run that ended well would be taken for this one's.
        ["results.json", "report.html"].iter().try_for_each(|name| remove(&out.join(name)))?;
    } else {
        put_aside(&out)?;
    }

    let runs: Vec<(&Scenario, &Run)> =
        scenarios.iter().flat_map(|s| s.runs.iter().map(move |run| (*s, run))).collect();
    let mut meta = Meta {
        kernel: String::new(),
        source: plan.source.clone(),
        accelerator: accelerator.to_owned(),
        accelerator_reason: plan.accelerator_reason.clone(),
        cpus: runs.iter().map(|(_, run)| run.cpus).max().unwrap_or(0),
        memory_mib: runs.iter().map(|(_, run)| run.mem_mib).max(),
        pairs: plan.pairs,
        date: String::new(),
        min_effect: Some(plan.min_effect),
        alpha: Some(plan.alpha),
        host: machine(),
        command: plan.command.clone(),
        arms: plan.arms.iter().chain(&plan.controls).map(arm_meta).collect(),
        runs: runs
            .iter()
            .map(|(scenario, run)| RunMeta {
                scenario: scenario.name.to_owned(),
                mode: mode_name(run.mode).to_owned(),
                cpus: run.cpus,
                memory_mib: run.mem_mib,
                accelerator: match run.mode {
                    Mode::Multi => accelerator,
                    Mode::Icount => "tcg",
                }
                .to_owned(),
            })
            .collect(),
        repeated: Vec::new(),
        partial: false,
    };

    let step = ctx.progress.step(if plan.smoke { "smoke comparison" } else { "comparing" });
    let boots_of = |(scenario, _): &(&Scenario, &Run)| order(0, plan.aa, &plan.beside(scenario)).len();
    let boots = plan.pairs * runs.iter().map(boots_of).sum::<usize>();
    let (counter, said_stale) = (BootCounter::new(boots), AtomicBool::new(false));
    let session = Session { ctx, plan: &plan, out: &out, step, counter, said_stale, booter };
    let mut groups: Vec<Group> = Vec::new();
    for (scenario, run) in runs {
        let beside = plan.beside(scenario);
        groups.push(Group::new(scenario, run, beside.iter().map(|&i| plan.controls[i].name.clone())));
        let current = groups.len() - 1;
        let at_a_time = guests_at_a_time(ctx, scenario, run);
        let pairs: Vec<usize> = (0..plan.pairs).collect();
        // So many pairs at a time that no lane waits for another.
        for pairs in pairs.chunks(at_a_time) {
            let of_pair = |&pair| order(pair, plan.aa, &beside).into_iter().map(move |role| (pair, role));
            let boots: Vec<(usize, Role)> = pairs.iter().flat_map(of_pair).collect();
            let booted = parallel::map(at_a_time, &boots, |&(pair, role)| {
                session.boot(scenario, run, pair, role).map(|boot| (role, boot))
            });
            for booted in booted {
                let (role, booted) = booted?;
                meta.repeated.extend(booted.repeated.clone());
                let place = |i| beside.iter().position(|&b| b == i).unwrap_or_default();
                let to = if let Role::ControlKernel(i) = role { Role::ControlKernel(place(i)) } else { role };
                let release = booted.deliver_to(&mut groups[current], to)?;
                let arm = match role {
                    Role::Base | Role::BaseAgain => 0,
                    Role::Changed => 1,
                    Role::ControlKernel(i) => plan.arms.len() + i,
                };
                if let Some(arm) = meta.arms.get_mut(arm) {
                    arm.release = release;
                }
            }
            if !plan.smoke {
                let partial = conclude(&meta, &groups, rules, true)?;
                partial.write(&out.join("results-partial.json"))?;
            }
        }
    }
    let results = conclude(&meta, &groups, rules, false)?;
    results.write(&out.join("results.json"))?;
    write_atomically(&out.join("report.html"), &report::html(&results))?;
    remove(&out.join("results-partial.json"))?;
    session.step.done(&format!("{} metrics, {}", results.metrics.len(), session.counter));
    Ok(results)
}

/// How many of the run's guests are booted at a time.
fn guests_at_a_time(ctx: &Context, scenario: &Scenario, run: &Run) -> usize {
    let available = parallel::available_mib().unwrap_or(u64::MAX);
    let fit = parallel::guests_that_fit(run.mem_mib, available);
    if fit == 0 {
        ctx.progress.warn(&format!(
            "{}/{}: {available} MiB of memory are available, too few for a guest of {} MiB; it may be killed",
            scenario.name,
            run_name(mode_name(run.mode), scenario.cpus_in_name(run)),
            run.mem_mib
        ));
    }
    parallel::measured_guests(run.mode, host::cpus(), fit)
}

impl Plan {
    /// The scenario's kernels beside the two, by their places in `controls`.
    fn beside(&self, scenario: &Scenario) -> Vec<usize> {
        let wanted =
            |control: &catalog::ControlKernel| self.controls.iter().position(|a| a.name == control.name);
        scenario.controls.iter().filter_map(wanted).collect()
    }
}

/// Moves what an earlier run left into `previous`, so that no file of it can be taken for this
/// run's when this one fails.
fn put_aside(out: &Path) -> Result<()> {
    let previous = out.join("previous");
    let old: Vec<PathBuf> = ["results.json", "results-partial.json", "report.html", "boots"]
        .map(|name| out.join(name))
        .into_iter()
        .filter(|path| path.exists())
        .collect();
    if old.is_empty() {
        return Ok(());
    }
    remove(&previous)?;
    fs::create_dir_all(&previous).with_context(|| format!("{}: cannot create", previous.display()))?;
    for path in old {
        let Some(name) = path.file_name() else { continue };
        fs::rename(&path, previous.join(name))
            .with_context(|| format!("{}: cannot move into previous/", path.display()))?;
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    host::remove_any(path).with_context(|| format!("{}: cannot remove", path.display()))
}

fn arm_meta(arm: &Arm) -> ArmMeta {
    ArmMeta {
        name: arm.name.clone(),
        cmdline: arm.cmdline.clone(),
        bzimage: arm.bzimage.display().to_string(),
        release: None,
    }
}

/// The machine the guests ran on; nothing if /proc does not tell.
fn machine() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let model = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "))?.1;
    let cpus = std::thread::available_parallelism().ok()?;
    Some(format!("{cpus} CPUs, {}", model.trim()))
}
