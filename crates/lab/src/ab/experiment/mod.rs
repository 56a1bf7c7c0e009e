// SPDX-License-Identifier: GPL-2.0-only
//! Runs one comparison: boots both arms alternately, collects one number per metric and boot, and passes them
//! to the statistics.
//!
//! The boots of a pair are back to back. Their order is drawn from balanced ones, so that neither a slow drift of the
//! host nor the place within the pair favours an arm; [`order`] has the details. Guests whose clock counts
//! instructions do not depend on the load of the host, so several of them run at a time; see
//! [`guests_at_a_time`].
//!
//! A run writes to the output folder:
//!
//! ```text
//! results.json   report.html             the complete run, at its end
//! results-partial.json                   the results so far, after each pair; without verdicts
//! boots/<scenario>-<guest>/<pair>-<arm>/ the logs and the samples (boot.json) of each boot
//! boots/.../<pair>-<arm>.failed/         the first attempt at a boot that had to be repeated
//! previous/                              the same files of the previous run
//! ```
//!
//! A lock next to that folder serialises runs that use it.

mod failure;
mod order;
mod record;
mod samples;
mod session;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, bail, ensure};
use protocol::results::Message;
use scenarios::{Guest, Mode, Scenario};

use crate::WrongUsage;
use crate::ab::experiment::order::{Role, order};
use crate::ab::experiment::samples::conclude;
use crate::ab::experiment::session::{BootCounter, Session, file_name, name_again};
use crate::ab::report;
use crate::ab::results::{ArmMeta, Meta, Results, Run};
use crate::ab::stats::{self, Rules};
use crate::ab::workload::{self, Workload};
use crate::context::Context;
use crate::format;
use crate::host;
use crate::host::write_atomically;
use crate::vm::boot::{self, Boot};
use crate::vm::channel::Outcome;
use crate::vm::job::{Arm, Job};
use crate::vm::parallel;
use crate::vm::probe::Accel;

pub use failure::Failure;

/// What to compare, and with how many boots. What is not explained is as the option of that name of `lab ab`.
#[derive(Clone)]
pub struct Plan {
    /// The scenarios, or that of the workload.
    pub scenarios: Vec<&'static Scenario>,
    pub case: Option<String>,
    pub guest: Option<String>,
    /// A program of the user's instead of the scenarios.
    pub workload: Option<Workload>,
    pub pairs: usize,
    pub seed: u64,
    /// The base arm and the changed arm.
    pub arms: [Arm; 2],
    /// The control kernels of the scenarios ([`Scenario::controls`]), matched by name. A control kernel that
    /// is missing here is not measured.
    pub controls: Vec<Arm>,
    /// Whether each pair has a second boot of the base arm, for the A/A control.
    pub aa: bool,
    pub min_effect: f64,
    pub alpha: f64,
    /// Whether this is a smoke run, which only checks that both arms deliver all metrics: one pair, no A/A
    /// control, no verdicts. Its output goes to the folder `smoke`, so results of a full run are kept.
    pub smoke: bool,
    /// Whether to reuse boots of an earlier run that had the same kernel, guest and QEMU.
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
/// [`Failure`] when a guest fails twice or delivers other metrics than the other boots, [`WrongUsage`] for an invalid
/// plan. Any other error is a problem of the host.
pub fn run(ctx: &Context, accel: Accel, plan: &Plan) -> Result<Results> {
    let name = accel.to_string();
    let booter = Booter {
        key: &|arm, job| boot::content_key(ctx, accel, arm, job),
        boot: &|arm, job, logs| match plan.workload {
            Some(_) => boot_workload(ctx, accel, arm, job, logs),
            // What a scenario says beside its metrics is in the logs: with --json, stdout is for the results.
            None => boot::boot_with(ctx, accel, arm, job, logs, &mut |message| {
                if let Message::Err(text) = message {
                    ctx.progress.suspend(|| eprint!("{text}"));
                }
            }),
        },
    };
    run_with(ctx, &name, plan, &booter)
}

/// Boots a guest with a workload, whose output has its metrics. The output is in the boot's logs.
fn boot_workload(ctx: &Context, accel: Accel, arm: &Arm, job: &Job, logs: &Path) -> Result<Boot> {
    let mut output = String::new();
    let mut boot = boot::boot_with(ctx, accel, arm, job, logs, &mut |message| {
        if let Message::Out(text) = message {
            output.push_str(text);
        }
    })?;
    if boot.outcome.is_success() {
        match workload::metrics(&output) {
            Ok(samples) => boot.samples = samples,
            Err(e) => boot.outcome = Outcome::Garbage(format!("{e:#}")),
        }
    }
    Ok(boot)
}

type KeyOf<'a> = dyn Fn(&Arm, &Job) -> Result<String> + Sync + 'a;
type BootOne<'a> = dyn Fn(&Arm, &Job, &Path) -> Result<Boot> + Sync + 'a;

/// How guests are booted. Tests pass a substitute that boots nothing.
struct Booter<'a> {
    /// Returns the key of everything that the outcome depends on, like [`boot::content_key`].
    key: &'a KeyOf<'a>,
    /// Boots one guest, like [`boot::boot`].
    boot: &'a BootOne<'a>,
}

fn run_with(ctx: &Context, accelerator: &str, plan: &Plan, booter: &Booter<'_>) -> Result<Results> {
    let mut plan = plan.clone();
    let mut out = ctx.out.clone();
    if plan.smoke {
        (plan.pairs, plan.aa) = (1, false);
        out.push("smoke");
    }
    let rules = Rules { alpha: plan.alpha, min_effect: plan.min_effect };
    // Checks the rules now and not only after all boots.
    stats::compare(&[], rules).map_err(|e| WrongUsage(e.to_string()))?;
    let wrong = |what| WrongUsage(format!("{} pairs: {what}", plan.pairs));
    ensure!((1..=stats::MAX_PAIRS).contains(&plan.pairs), wrong("too few or too many to compare"));
    ensure!(
        plan.pairs < stats::MIN_PAIRS || stats::smallest_p(plan.pairs) < plan.alpha,
        wrong("p is never below --alpha: more pairs, or a larger one")
    );
    // Those of the folders of a pair's boots.
    let again = plan.aa.then(|| name_again(&plan.arms[0]));
    let names = plan.arms.iter().chain(&plan.controls).map(|arm| arm.name.clone()).chain(again);
    let names: Vec<String> = names.map(|name| file_name(&name)).collect();
    if let Some(name) = names.iter().enumerate().find_map(|(i, n)| names[..i].contains(n).then_some(n)) {
        bail!(WrongUsage(format!(
            "two arms are called '{name}' in files, where the base arm's second boot has its name and a 2; give \
             them different names"
        )));
    }
    let guests = chosen_guests(&plan.scenarios, plan.guest.as_deref(), plan.case.as_deref())?;
    let _turn = host::lock(ctx, &out)?;
    if plan.resume {
        // If this run fails, results of an earlier one must not look like its results.
        ["results.json", "report.html"].iter().try_for_each(|name| remove(&out.join(name)))?;
    } else {
        put_aside(&out)?;
    }

    let mut meta = Meta {
        kernel: String::new(),
        source: plan.source.clone(),
        accelerator: accelerator.to_owned(),
        accelerator_reason: plan.accelerator_reason.clone(),
        pairs: plan.pairs,
        seed: Some(plan.seed),
        date: String::new(),
        min_effect: plan.min_effect,
        alpha: plan.alpha,
        host: machine(),
        workload: plan.workload.as_ref().map(Workload::key).transpose()?,
        command: plan.command.clone(),
        arms: plan.arms.iter().chain(&plan.controls).map(|arm| arm_meta(arm, &ctx.cache)).collect(),
        repeated: Vec::new(),
        partial: false,
    };

    let step = ctx.progress.step(if plan.smoke { "smoke comparison" } else { "comparing" });
    let boots_of =
        |(scenario, _): &(&Scenario, &Guest)| order(0, plan.seed, plan.aa, &plan.controls_of(scenario)).len();
    let boots = plan.pairs * guests.iter().map(boots_of).sum::<usize>();
    let (counter, said_stale) = (BootCounter::new(boots), AtomicBool::new(false));
    let keys = Mutex::new(BTreeMap::new());
    let session = Session { ctx, plan: &plan, out: &out, step, counter, said_stale, keys, booter };
    let mut runs: Vec<Run> = Vec::new();
    for (scenario, guest) in guests {
        let controls = plan.controls_of(scenario);
        let control_names: Vec<String> = controls.iter().map(|&i| plan.controls[i].name.clone()).collect();
        runs.push(samples::empty(scenario, guest, accelerator));
        let current = runs.len() - 1;
        let at_a_time = guests_at_a_time(ctx, scenario, guest);
        let pairs: Vec<usize> = (0..plan.pairs).collect();
        // As many pairs at a time as guests, so that none of them has to wait for the end of a pair.
        for pairs in pairs.chunks(at_a_time) {
            let of_pair = |&pair| order(pair, plan.seed, plan.aa, &controls).into_iter().map(move |role| (pair, role));
            let boots: Vec<(usize, Role)> = pairs.iter().flat_map(of_pair).collect();
            let booted = parallel::map(at_a_time, &boots, |&(pair, role)| {
                session.boot(scenario, guest, pair, role).map(|boot| (role, boot))
            });
            for booted in booted {
                let (role, booted) = booted?;
                let run = &mut runs[current];
                meta.repeated.extend(booted.repeated.clone());
                if guest.mode == Mode::Multi {
                    run.stolen = [run.stolen, booted.boot.stolen].into_iter().flatten().reduce(f64::max);
                }
                let place = |i| controls.iter().position(|&c| c == i).unwrap_or_default();
                let to = if let Role::ControlKernel(i) = role { Role::ControlKernel(place(i)) } else { role };
                let release = booted.deliver_to(run, &control_names, to)?;
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
                let partial = conclude(&meta, &runs, rules, true)?;
                partial.write(&out.join("results-partial.json"))?;
            }
        }
    }
    let results = conclude(&meta, &runs, rules, false)?;
    results.write(&out.join("results.json"))?;
    write_atomically(&out.join("report.html"), &report::html(&results))?;
    remove(&out.join("results-partial.json"))?;
    session.step.done(&format!("{} metrics, {}", results.metrics().count(), session.counter));
    Ok(results)
}

/// Returns how many guests of that kind are booted at a time; warns if memory is short even for one.
fn guests_at_a_time(ctx: &Context, scenario: &Scenario, guest: &Guest) -> usize {
    let available = parallel::available_mib().unwrap_or(u64::MAX);
    let fit = parallel::guests_that_fit(guest.mem_mib, available);
    if fit == 0 {
        ctx.progress.warn(&format!(
            "{}/{}: {available} MiB of memory are available, too few for a guest of {} MiB; it may be killed",
            scenario.name, guest.name, guest.mem_mib
        ));
    }
    parallel::measured_guests(guest.mode, host::cpus(), fit)
}

impl Plan {
    /// Returns the scenario's control kernels as indices of `controls`.
    fn controls_of(&self, scenario: &Scenario) -> Vec<usize> {
        let wanted = |control: &scenarios::ControlKernel| self.controls.iter().position(|a| a.name == control.name);
        scenario.controls.iter().filter_map(wanted).collect()
    }
}

/// Returns the guests of the scenarios: all, or that of one name, as far as they have the case.
///
/// # Errors
/// [`WrongUsage`] when a scenario has no guest of that name, or none of these guests has the case.
pub fn chosen_guests<'a>(
    scenarios: &[&'a Scenario],
    guest: Option<&str>,
    case: Option<&str>,
) -> Result<Vec<(&'a Scenario, &'a Guest)>> {
    let mut chosen = Vec::new();
    for &scenario in scenarios {
        let wrong = |kind, name, known: Vec<String>| {
            WrongUsage(format!("{}: {}", scenario.name, format::no_such(kind, name, known)))
        };
        let mut guests: Vec<&Guest> = scenario.guests.iter().collect();
        if let Some(name) = guest {
            guests.retain(|guest| guest.name == name);
            let known = || scenario.guests.iter().map(|guest| guest.name.to_owned()).collect();
            ensure!(!guests.is_empty(), wrong("guest", name, known()));
        }
        if let Some(case) = case {
            let known: BTreeSet<String> = guests.iter().flat_map(|guest| scenario.cases(guest.name)).collect();
            guests.retain(|guest| !scenario.reported(guest.name, Some(case)).is_empty());
            ensure!(!guests.is_empty(), wrong("case", case, known.into_iter().collect()));
        }
        chosen.extend(guests.into_iter().map(|guest| (scenario, guest)));
    }
    Ok(chosen)
}

/// Moves the files of the previous run to `previous`, so that they cannot be mistaken for those of this run
/// if it fails.
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

/// Describes an arm. A kernel in the cache is named by its place there, so that results say the same wherever
/// the cache is.
fn arm_meta(arm: &Arm, cache: &Path) -> ArmMeta {
    let bzimage = arm.bzimage.strip_prefix(cache).unwrap_or(&arm.bzimage);
    ArmMeta {
        name: arm.name.clone(),
        cmdline: arm.cmdline.clone(),
        bzimage: bzimage.display().to_string(),
        release: None,
    }
}

/// Returns the host's CPUs as text; `None` if /proc does not name the model.
fn machine() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let model = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "))?.1;
    let cpus = std::thread::available_parallelism().ok()?;
    Some(format!("{cpus} CPUs, {}", model.trim()))
}
