//! One comparison: boots both arms in turns, collects one number per metric and boot, and
//! hands them to the statistics.
//!
//! Boots of a pair are back to back, and their order rotates so that neither a slow drift of
//! the host nor a place within the pair favours an arm; [`order`] has the details. Guests whose
//! clock counts instructions do not mind the host, and share it; see [`lanes_of`].
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

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};

use crate::ab::catalog::{self, Run, Scenario, mode_name, run_name};
use crate::ab::kept::{self, Kept};
use crate::ab::report;
use crate::ab::results::{ArmMeta, Beside, Control, Meta, Metric, Repeated, Results, RunMeta};
use crate::ab::stats::{self, Comparison, Pairs, Rules};
use crate::ab::verdict::Verdict;
use crate::context::Context;
use crate::host;
use crate::host::write_atomically;
use crate::progress::{Step, elapsed};
use crate::vm::accel::Accel;
use crate::vm::boot::{self, Boot};
use crate::vm::channel::Outcome;
use crate::vm::job::{Arm, GuestCommand, Job, Mode};
use crate::vm::lanes;
use protocol::results::Sample;

/// How much of a failed guest's console an error shows.
const TAIL_LINES: usize = 30;

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

/// A comparison that ended because of a guest. Reaches the caller through
/// [`anyhow::Error::downcast_ref`].
#[derive(Debug)]
pub struct Failure {
    /// Which boot: `pair 3/8, memreap, reap/multi`.
    pub boot: String,
    /// What went wrong.
    pub cause: Cause,
    /// The boot's folder with all its logs.
    pub logs: PathBuf,
    /// The evidence: the ends of the logs that matter; see [`Boot::tail`].
    pub tail: String,
}

/// What was wrong with a boot.
#[derive(Debug)]
pub enum Cause {
    /// The guest did not end as it should.
    Outcome(Outcome),
    /// The guest ended well, but what it delivered is not what the other boots deliver.
    Metrics(String),
}

impl Failure {
    /// The exit code for it: 3 when the host's QEMU is at fault, 4 when the guest is.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.cause {
            Cause::Outcome(Outcome::Qemu { .. }) => 3,
            _ => 4,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outcome(outcome) => write!(f, "{outcome}"),
            Self::Metrics(what) => f.write_str(what),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n{}\n", self.boot, self.cause, self.tail.trim_end())?;
        write!(f, "all logs of this boot: {}", self.logs.display())
    }
}

impl std::error::Error for Failure {}

/// Which of a pair's boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Base,
    Changed,
    /// The base arm again.
    Control,
    /// A kernel beside the two, by its place in [`Plan::controls`].
    Beside(usize),
}

/// The order of the boots within a pair.
///
/// Two arms alternate: AB BA AB BA. With the control all six orders of three take turns, each
/// second one the reverse of the one before. Either way any two roles swap places from each
/// even pair to the next, so that over two pairs a steady drift adds the same to both, and over
/// six pairs every role has every place twice. Kernels beside these come last, and in each second
/// pair first.
fn order(pair: usize, control: bool, beside: &[usize]) -> Vec<Role> {
    use Role::{Base as B, Changed as C, Control as K};
    const TWO: [&[Role]; 2] = [&[B, C], &[C, B]];
    const THREE: [&[Role]; 6] = [&[B, C, K], &[K, C, B], &[C, K, B], &[B, K, C], &[K, B, C], &[C, B, K]];
    let arms = if control { THREE[pair % THREE.len()] } else { TWO[pair % TWO.len()] };
    let beside = beside.iter().map(|&i| Role::Beside(i));
    if pair.is_multiple_of(2) {
        arms.iter().copied().chain(beside).collect()
    } else {
        beside.rev().chain(arms.iter().copied()).collect()
    }
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
    let (clock, other) = (Clock::new(boots), AtomicBool::new(false));
    let session = Session { ctx, plan: &plan, out: &out, step, clock, other, booter };
    let mut groups: Vec<Group> = Vec::new();
    for (scenario, run) in runs {
        let beside = plan.beside(scenario);
        groups.push(Group::new(scenario, run, beside.iter().map(|&i| plan.controls[i].name.clone())));
        let current = groups.len() - 1;
        let lanes = lanes_of(ctx, scenario, run);
        let pairs: Vec<usize> = (0..plan.pairs).collect();
        // So many pairs at a time that no lane waits for another.
        for pairs in pairs.chunks(lanes) {
            let of_pair = |&pair| order(pair, plan.aa, &beside).into_iter().map(move |role| (pair, role));
            let boots: Vec<(usize, Role)> = pairs.iter().flat_map(of_pair).collect();
            let booted = lanes::work(lanes, &boots, |&(pair, role)| {
                session.boot(scenario, run, pair, role).map(|boot| (role, boot))
            });
            for booted in booted {
                let (role, booted) = booted?;
                meta.repeated.extend(booted.repeated.clone());
                let place = |i| beside.iter().position(|&b| b == i).unwrap_or_default();
                let to = if let Role::Beside(i) = role { Role::Beside(place(i)) } else { role };
                let release = booted.deliver_to(&mut groups[current], to)?;
                let arm = match role {
                    Role::Base | Role::Control => 0,
                    Role::Changed => 1,
                    Role::Beside(i) => plan.arms.len() + i,
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
    session.step.done(&format!("{} metrics, {}", results.metrics.len(), session.clock));
    Ok(results)
}

/// How many of the run's guests are booted at a time.
fn lanes_of(ctx: &Context, scenario: &Scenario, run: &Run) -> usize {
    let available = lanes::available_mib().unwrap_or(u64::MAX);
    let fit = lanes::that_fit(run.mem_mib, available);
    if fit == 0 {
        ctx.progress.warn(&format!(
            "{}/{}: {available} MiB of memory are available, too few for a guest of {} MiB; it may be killed",
            scenario.name,
            run_name(mode_name(run.mode), scenario.cpus_in_name(run)),
            run.mem_mib
        ));
    }
    lanes::at_a_time(run.mode, host::cpus(), fit)
}

impl Plan {
    /// The scenario's kernels beside the two, by their places in `controls`.
    fn beside(&self, scenario: &Scenario) -> Vec<usize> {
        let wanted = |control: &catalog::Control| self.controls.iter().position(|a| a.name == control.name);
        scenario.controls.iter().filter_map(wanted).collect()
    }
}

/// A run in progress.
struct Session<'a> {
    ctx: &'a Context,
    plan: &'a Plan,
    out: &'a Path,
    step: Step,
    clock: Clock,
    /// Whether it has been said that an earlier run's boots are others than this one's.
    other: AtomicBool,
    booter: &'a Booter<'a>,
}

/// A boot that ended well, before anybody has looked at what it delivers.
struct Booted {
    name: String,
    logs: PathBuf,
    boot: Boot,
    /// The attempt before, if there was one.
    repeated: Option<Repeated>,
}

impl Session<'_> {
    /// Boots one guest, or takes what an earlier run kept of this boot. One that fails is made
    /// again, once.
    fn boot(&self, scenario: &Scenario, run: &Run, pair: usize, role: Role) -> Result<Booted> {
        let [base, changed] = &self.plan.arms;
        let (arm, arm_name) = match role {
            Role::Base => (base, base.name.clone()),
            Role::Control => (base, format!("{}2", base.name)),
            Role::Changed => (changed, changed.name.clone()),
            Role::Beside(i) => (&self.plan.controls[i], self.plan.controls[i].name.clone()),
        };
        let run_name = run_name(mode_name(run.mode), scenario.cpus_in_name(run));
        let scenario = scenario.name;
        let pair = pair + 1;
        let name = format!("pair {pair}/{}, {arm_name}, {scenario}/{run_name}", self.plan.pairs);
        let left = self.clock.left().map_or(String::new(), |t| format!(", {} left", elapsed(t)));
        self.step.detail(&format!("{name}{left}"));

        let logs = self
            .out
            .join("boots")
            .join(format!("{scenario}-{run_name}"))
            .join(format!("{pair:02}-{}", file_name(&arm_name)));
        let job = job(scenario, run, &self.plan.args);
        let key = (self.booter.key)(arm, &job).with_context(|| name.clone())?;
        let repeated = kept::earlier_failure(&logs, &key)?;
        if let Some(kept) = self.kept(&name, &logs, &key)? {
            self.clock.count_taken();
            return Ok(Booted { boot: taken(kept, &logs), name, logs, repeated });
        }
        let attempt = |name| self.attempt(arm, &job, name, &logs);
        let booted = match attempt(name.clone())? {
            Ok(booted) => Booted { repeated, ..booted },
            Err(failure) => {
                let repeated = self.set_aside(&failure, &key)?;
                let booted = attempt(format!("{name}, second attempt"))??;
                Booted { name, repeated: Some(repeated), ..booted }
            }
        };
        let Boot { release, samples, .. } = booted.boot.clone();
        Kept { key, release, samples }.write(&booted.logs)?;
        Ok(booted)
    }

    /// What an earlier run kept of this boot, if it was the same by its key. What was not is forgotten.
    fn kept(&self, name: &str, logs: &Path, key: &str) -> Result<Option<Kept>> {
        match Kept::read(logs) {
            Some(kept) if kept.key != key => {
                if !self.other.fetch_or(true, Ordering::Relaxed) {
                    let what = "is of another kernel, guest or QEMU; all such boots are made again";
                    self.ctx.progress.note(&format!("{name}: the earlier one {what}"));
                }
                kept::forget(logs)?;
                Ok(None)
            }
            kept => Ok(kept),
        }
    }

    fn attempt(&self, arm: &Arm, job: &Job, name: String, logs: &Path) -> Result<Result<Booted, Failure>> {
        fs::create_dir_all(logs).with_context(|| format!("{}: cannot create", logs.display()))?;
        let boot = (self.booter.boot)(arm, job, logs).with_context(|| name.clone())?;
        self.clock.count();
        let booted = Booted { name, logs: logs.to_owned(), boot, repeated: None };
        Ok(match booted.boot.outcome {
            Outcome::Exit(0) => Ok(booted),
            ref outcome => Err(booted.failure(Cause::Outcome(outcome.clone()))),
        })
    }

    /// Keeps the logs of an attempt that failed, and says that there will be another one.
    fn set_aside(&self, failure: &Failure, key: &str) -> Result<Repeated> {
        let to = kept::failed_folder(&failure.logs);
        let repeated = Repeated {
            boot: failure.boot.clone(),
            what: failure.cause.to_string(),
            logs: to.strip_prefix(self.out).unwrap_or(&to).display().to_string(),
            exit_code: failure.exit_code(),
        };
        kept::set_aside(&failure.logs, key, &repeated)?;
        let Repeated { boot, what, .. } = &repeated;
        self.ctx.progress.warn(&format!("{boot}: {what}; it is made again; logs: {}", to.display()));
        Ok(repeated)
    }
}

/// A boot of an earlier run.
fn taken(kept: Kept, logs: &Path) -> Boot {
    Boot {
        outcome: Outcome::Exit(0),
        samples: kept.samples,
        notes: Vec::new(),
        release: kept.release,
        console_log: logs.join("console.log"),
        channel_log: logs.join("channel.jsonl"),
        elapsed: Duration::ZERO,
    }
}

impl Booted {
    /// Adds what the guest delivered to its group, and gives its kernel's release.
    fn deliver_to(self, group: &mut Group, role: Role) -> Result<Option<String>> {
        match group.take(role, &self.boot.samples) {
            Ok(()) => Ok(self.boot.release),
            Err(what) => {
                kept::forget(&self.logs)?;
                Err(self.failure(Cause::Metrics(what)).into())
            }
        }
    }

    fn failure(&self, cause: Cause) -> Failure {
        let (boot, logs) = (self.name.clone(), self.logs.clone());
        Failure { boot, cause, logs, tail: self.boot.tail(TAIL_LINES) }
    }
}

fn job(scenario: &str, run: &Run, args: &[String]) -> Job {
    let own = run.args.iter().map(|&arg| arg.to_owned());
    let command =
        GuestCommand::Scenario { name: scenario.to_owned(), args: own.chain(args.iter().cloned()).collect() };
    Job {
        cpus: run.cpus,
        mem_mib: run.mem_mib,
        mode: run.mode,
        timeout: run.timeout,
        cmdline: run.cmdline.to_owned(),
        ..Job::new(command)
    }
}

/// The boots of one scenario's run.
struct Group {
    scenario: &'static str,
    mode: &'static str,
    cpus: Option<u32>,
    /// The names of the kernels beside the two.
    beside: Vec<String>,
    metrics: Vec<Collected>,
}

/// One metric's values so far; the arrays are indexed by pair.
struct Collected {
    /// The first boot's sample: name, unit and direction that all boots must repeat.
    like: Sample,
    base: Vec<f64>,
    changed: Vec<f64>,
    control: Vec<f64>,
    /// The kernels beside the two, in the order of [`Group::beside`].
    beside: Vec<Vec<f64>>,
}

impl Group {
    fn new(scenario: &Scenario, run: &Run, beside: impl Iterator<Item = String>) -> Self {
        let (mode, cpus) = (mode_name(run.mode), scenario.cpus_in_name(run));
        Self { scenario: scenario.name, mode, cpus, beside: beside.collect(), metrics: Vec::new() }
    }

    /// Takes one boot's samples (of the kernel beside the two that is `i`th in this group, if that
    /// is the role), or says what is wrong with them.
    fn take(&mut self, role: Role, samples: &[Sample]) -> Result<(), String> {
        if samples.is_empty() {
            return Err("the guest ended well but delivered no metric".to_owned());
        }
        for (i, sample) in samples.iter().enumerate() {
            let name = &sample.metric;
            if samples[..i].iter().any(|other| other.metric == *name) {
                return Err(format!("metric '{name}' came more than once in one boot"));
            }
            if !sample.value.is_finite() || sample.value < 0.0 {
                return Err(format!("metric '{name}' has the value {}", sample.value));
            }
        }
        if self.metrics.is_empty() {
            self.metrics = samples
                .iter()
                .map(|like| Collected {
                    like: like.clone(),
                    base: Vec::new(),
                    changed: Vec::new(),
                    control: Vec::new(),
                    beside: vec![Vec::new(); self.beside.len()],
                })
                .collect();
        }
        if let Some(extra) = samples.iter().find(|s| self.metrics.iter().all(|m| m.like.metric != s.metric)) {
            return Err(format!("metric '{}' is new: earlier boots have no such", extra.metric));
        }
        for metric in &mut self.metrics {
            let like = &metric.like;
            let Some(sample) = samples.iter().find(|s| s.metric == like.metric) else {
                return Err(format!("metric '{}' is missing", like.metric));
            };
            if (&sample.unit, sample.better) != (&like.unit, like.better) {
                return Err(format!(
                    "metric '{}' is in '{}' ({} is better), in earlier boots in '{}' ({})",
                    like.metric, sample.unit, sample.better, like.unit, like.better
                ));
            }
            let values = match role {
                Role::Base => &mut metric.base,
                Role::Changed => &mut metric.changed,
                Role::Control => &mut metric.control,
                Role::Beside(i) => &mut metric.beside[i],
            };
            values.push(sample.value);
        }
        Ok(())
    }
}

/// The statistics of all groups. A partial run's groups have different numbers of pairs, so
/// each is a family of its own and nothing gets a verdict.
fn conclude(meta: &Meta, groups: &[Group], rules: Rules, partial: bool) -> Result<Results> {
    let families: Vec<&[Group]> = if partial { groups.chunks(1).collect() } else { vec![groups] };
    let mut metrics = Vec::new();
    for family in families {
        let collected: Vec<(&Group, &Collected)> =
            family.iter().flat_map(|g| g.metrics.iter().map(move |m| (g, m))).collect();
        let main = compare(&collected, rules, |m| &m.changed)?;
        let has_control = collected.iter().any(|(_, m)| !m.control.is_empty());
        let control = match has_control {
            true => compare(&collected, rules, |m| &m.control)?.into_iter().map(Some).collect(),
            false => vec![None; main.len()],
        };
        for (((group, m), main), control) in collected.into_iter().zip(main).zip(control) {
            let mut metric = metric(group, m, &main, control.as_ref());
            if partial {
                metric.verdict = Verdict::None;
            }
            metrics.push(metric);
        }
    }
    let base = meta.arms.first().and_then(|arm| arm.release.clone());
    let kernel = base.unwrap_or_else(|| "of unknown release".to_owned());
    let meta = Meta { kernel, date: utc_now(), partial, ..meta.clone() };
    Ok(Results { meta, metrics })
}

fn compare(
    collected: &[(&Group, &Collected)],
    rules: Rules,
    other: impl Fn(&Collected) -> &[f64],
) -> Result<Vec<Comparison>> {
    let pairs: Vec<Pairs<'_>> = collected
        .iter()
        .map(|(_, m)| Pairs { base: &m.base, changed: other(m), better: m.like.better })
        .collect();
    Ok(stats::compare(&pairs, rules)?)
}

fn metric(group: &Group, m: &Collected, main: &Comparison, aa: Option<&Comparison>) -> Metric {
    Metric {
        scenario: group.scenario.to_owned(),
        metric: m.like.metric.clone(),
        mode: Some(group.mode.to_owned()),
        cpus: group.cpus,
        unit: m.like.unit.clone(),
        better: m.like.better,
        stock: m.base.clone(),
        memreap: m.changed.clone(),
        ratio: main.ratio,
        ci95: main.ci95,
        p: main.p,
        p_raw: Some(main.p_raw),
        beside: group
            .beside
            .iter()
            .zip(&m.beside)
            .map(|(arm, values)| Beside { arm: arm.clone(), values: values.clone() })
            .collect(),
        verdict: main.checked_by(aa),
        aa: aa.map(|aa| Control {
            stock2: m.control.clone(),
            ratio: aa.ratio,
            ci95: aa.ci95,
            p: aa.p,
            verdict: aa.verdict,
        }),
    }
}

/// How many boots there are, and how long the rest of them will take.
struct Clock {
    began: Instant,
    made: AtomicUsize,
    taken: AtomicUsize,
    all: usize,
}

impl Clock {
    fn new(all: usize) -> Self {
        Self { began: Instant::now(), made: AtomicUsize::new(0), taken: AtomicUsize::new(0), all }
    }

    fn count(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one of an earlier run.
    fn count_taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Nothing while no boot tells how long one takes.
    fn left(&self) -> Option<Duration> {
        let made = self.made.load(Ordering::Relaxed);
        let rest = self.all.saturating_sub(made + self.taken.load(Ordering::Relaxed));
        let made = u32::try_from(made).ok().filter(|&n| n > 0)?;
        Some(self.began.elapsed() / made * u32::try_from(rest).ok()?)
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} boots", self.all)?;
        match self.taken.load(Ordering::Relaxed) {
            0 => Ok(()),
            taken => write!(f, ", {taken} of them from an earlier run"),
        }
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

/// Removes a file or a folder; it is fine if there is none.
fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("{}: cannot remove", path.display()))
        }
        _ => Ok(()),
    }
}

fn arm_meta(arm: &Arm) -> ArmMeta {
    ArmMeta {
        name: arm.name.clone(),
        cmdline: arm.cmdline.clone(),
        bzimage: arm.bzimage.display().to_string(),
        release: None,
    }
}

/// The arm's name as part of a path: names come from the command line.
fn file_name(arm: &str) -> String {
    arm.chars().map(|c| if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' }).collect()
}

/// The machine the guests ran on; nothing if /proc does not tell.
fn machine() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let model = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "))?.1;
    let cpus = std::thread::available_parallelism().ok()?;
    Some(format!("{cpus} CPUs, {}", model.trim()))
}

fn utc_now() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(now.as_secs())
}

/// Seconds since 1970 as UTC in RFC 3339. The calendar repeats every 400 years (146,097 days);
/// years are taken to begin in March, which puts the leap day last.
fn rfc3339(secs: u64) -> String {
    let (days, time) = (secs / 86_400, secs % 86_400);
    // Day 0 of this count is 0000-03-01.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (year, day) = (era * 400 + year, day - (153 * month + 2) / 5 + 1);
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    let (h, m, s) = (time / 3_600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::HashMap;
    use std::sync::Mutex;
    use std::thread;

    use super::*;
    use crate::progress::{Progress, unpoisoned};
    use protocol::results::Better;

    const SECOND: Duration = Duration::from_secs(1);
    const RUNS: [Run; 2] = [
        Run { mode: Mode::Multi, cpus: 2, mem_mib: 64, timeout: SECOND, args: &[], cmdline: "" },
        Run { mode: Mode::Icount, cpus: 1, mem_mib: 32, timeout: SECOND, args: &[], cmdline: "numa=fake=2" },
    ];
    const SCENARIO: Scenario = Scenario { name: "synthetic", about: "", runs: &RUNS, controls: &[] };

    struct Fixture {
        _dir: tempfile::TempDir,
        ctx: Context,
        plan: Plan,
    }

    fn fixture() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let ctx = Context {
            repo: dir.path().into(),
            cache: dir.path().join("cache"),
            out: dir.path().join("out"),
            kernel: None,
            progress: Progress::quiet(),
        };
        let arm = |name: &str| Arm {
            name: name.into(),
            bzimage: format!("/boot/{name}").into(),
            cmdline: String::new(),
        };
        let plan = Plan {
            scenarios: Vec::new(),
            args: Vec::new(),
            pairs: 6,
            arms: [arm("stock"), arm("memreap")],
            controls: Vec::new(),
            aa: true,
            min_effect: 0.03,
            alpha: 0.05,
            smoke: false,
            resume: false,
            source: None,
            accelerator_reason: None,
            command: None,
        };
        Fixture { _dir: dir, ctx, plan }
    }

    fn sample(metric: &str, value: f64) -> Sample {
        Sample { metric: metric.into(), unit: "ms".into(), better: Better::Lower, value }
    }

    fn boot(logs: &Path, outcome: Outcome, samples: Vec<Sample>) -> Boot {
        let console_log = logs.join("console.log");
        fs::write(&console_log, "first line\nKernel panic - not syncing: no\n").unwrap();
        Boot {
            outcome,
            samples,
            notes: Vec::new(),
            release: Some("6.12.117".into()),
            console_log,
            channel_log: logs.join("channel.jsonl"),
            elapsed: Duration::ZERO,
        }
    }

    /// A stock boot takes 20 ms and a memreap boot 10, a little more each time.
    fn healthy(arm: &Arm, logs: &Path, boots: usize) -> Boot {
        let ms = if arm.name == "stock" { 20.0 } else { 10.0 };
        let drift = 1.0 + boots as f64 / 1000.0;
        boot(logs, Outcome::Exit(0), vec![sample("c/time", ms * drift), sample("c/const", 7.0)])
    }

    type TestBooter<'a> = dyn FnMut(&Arm, &Job, &Path) -> Result<Boot> + Send + 'a;

    fn run_fixture(f: &Fixture, booter: &mut TestBooter<'_>) -> Result<Results> {
        let booter = Mutex::new(booter);
        compare_with(f, &[&SCENARIO], &|arm, job, logs| (unpoisoned(&booter))(arm, job, logs))
    }

    fn compare_with(f: &Fixture, scenarios: &[&Scenario], boot: &BootOne<'_>) -> Result<Results> {
        let key = |arm: &Arm, job: &Job| Ok(format!("{arm:?} {job:?}"));
        run_with(&f.ctx, "tcg", &f.plan, scenarios, &Booter { key: &key, boot })
    }

    #[test]
    fn whole_run_gives_verdicts_and_files() {
        let f = fixture();
        let mut boots = Vec::new();
        let results = run_fixture(&f, &mut |arm, job, logs| {
            boots.push((arm.name.clone(), job.cpus, job.cmdline.clone()));
            Ok(healthy(arm, logs, boots.len()))
        })
        .unwrap();
        assert_eq!(boots.len(), 2 * 6 * 3);
        // Kernel parameters are the run's, whatever the arm.
        assert!(boots.iter().all(|(_, cpus, cmdline)| (*cpus == 2) == cmdline.is_empty()), "{boots:?}");
        let got: Vec<_> = results
            .metrics
            .iter()
            .map(|m| (m.metric.as_str(), m.mode.as_deref(), m.verdict, m.stock.len()))
            .collect();
        assert_eq!(
            got,
            [
                ("c/time", Some("multi"), Verdict::Better, 6),
                ("c/const", Some("multi"), Verdict::Same, 6),
                ("c/time", Some("icount"), Verdict::Better, 6),
                ("c/const", Some("icount"), Verdict::Same, 6),
            ]
        );
        assert!(results.metrics.iter().all(|m| {
            m.aa.as_ref().is_some_and(|aa| aa.verdict == Verdict::Same && aa.stock2.len() == 6)
        }));
        assert_eq!((results.meta.cpus, results.meta.memory_mib), (2, Some(64)));
        let out = &f.ctx.out;
        assert_eq!(Results::read(&out.join("results.json")).unwrap(), results);
        assert!(out.join("report.html").is_file());
        assert!(!out.join("results-partial.json").exists());
        for boot in ["synthetic-multi/01-stock", "synthetic-icount/06-stock2"] {
            assert!(out.join("boots").join(boot).join("console.log").is_file(), "{boot}");
        }

        // The next run puts these aside, whatever becomes of it.
        run_fixture(&f, &mut |_, _, _| bail!("no")).unwrap_err();
        assert!(out.join("previous/results.json").is_file());
        assert!(out.join("previous/boots/synthetic-multi").is_dir());
        assert!(!out.join("results.json").exists());
    }

    #[test]
    fn runs_in_one_folder_take_turns() {
        let f = fixture();
        let booted = Mutex::new(Vec::new());
        let begun = std::sync::Barrier::new(2);
        let run = |name: &'static str, ms: f64| {
            let once = std::sync::Once::new();
            compare_with(&f, &[&SCENARIO], &|_, _, logs| {
                // The second run begins when the first one has a boot, and gets time to disturb it.
                once.call_once(|| {
                    if name == "first" {
                        begun.wait();
                        thread::sleep(Duration::from_millis(200));
                    }
                });
                unpoisoned(&booted).push(name);
                Ok(boot(logs, Outcome::Exit(0), vec![sample("c/time", ms)]))
            })
        };
        let [first, second] = thread::scope(|scope| {
            let first = scope.spawn(|| run("first", 10.0));
            let second = scope.spawn(|| {
                begun.wait();
                run("second", 20.0)
            });
            [first, second].map(|run| run.join().unwrap().unwrap())
        });
        assert_eq!(booted.into_inner().unwrap(), [["first"; 36], ["second"; 36]].concat());
        let out = &f.ctx.out;
        for (results, folder, ms) in [(first, out.join("previous"), 10.0), (second, out.clone(), 20.0)] {
            assert!(results.metrics.iter().all(|m| m.stock == [ms; 6] && m.memreap == [ms; 6]));
            assert_eq!(Results::read(&folder.join("results.json")).unwrap(), results);
            assert!(folder.join("boots/synthetic-icount/06-stock2/console.log").is_file());
            assert!(!folder.join("results-partial.json").exists());
        }
    }

    #[test]
    fn guests_for_which_memory_is_short_are_booted_one_by_one() {
        let f = fixture();
        let runs = vec![Run { mem_mib: u32::MAX, ..RUNS[1] }];
        let scenario = Scenario { runs: runs.leak(), ..SCENARIO };
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        compare_with(&f, &[&scenario], &|_, _, logs| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(2));
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(boot(logs, Outcome::Exit(0), vec![sample("c/time", 1.0)]))
        })
        .unwrap();
        assert_eq!(most.into_inner(), 1);
    }

    #[test]
    fn several_guests_of_one_mode_are_kept_apart() {
        let f = fixture();
        let run = |cpus| Run { cpus, ..RUNS[1] };
        let runs = vec![run(1), run(64), RUNS[0]];
        let scenario = Scenario { runs: runs.leak(), ..SCENARIO };
        let results = compare_with(&f, &[&scenario], &|_, job, logs| {
            Ok(boot(logs, Outcome::Exit(0), vec![sample("c/cpus", f64::from(job.cpus))]))
        })
        .unwrap();
        let got: Vec<_> =
            results.metrics.iter().map(|m| (m.mode.as_deref().unwrap(), m.cpus, m.stock[0])).collect();
        assert_eq!(got, [("icount", Some(1), 1.0), ("icount", Some(64), 64.0), ("multi", None, 2.0)]);
        for boot in
            ["synthetic-icount-1/01-stock", "synthetic-icount-64/06-stock2", "synthetic-multi/01-stock"]
        {
            assert!(f.ctx.out.join("boots").join(boot).join("console.log").is_file(), "{boot}");
        }
        let page = fs::read_to_string(f.ctx.out.join("report.html")).unwrap();
        let of_64 = page.split("<h2>synthetic/icount-64</h2>").nth(1).unwrap();
        assert!(of_64.starts_with("\n<p class=\"soft\">Guest: 64 CPUs"), "{}", &of_64[..80]);
    }

    #[test]
    fn kernels_beside_the_two_are_booted_where_they_are_needed() {
        let mut f = fixture();
        let arm = |name: &str| Arm { name: name.into(), ..f.plan.arms[0].clone() };
        let controls = vec![arm("unwanted"), arm("second"), arm("first")];
        f.plan.controls = controls;
        let control = |name| catalog::Control { name, parameters: None };
        let named = ["first", "second", "absent"].map(control).to_vec().leak();
        let with = Scenario { name: "with", controls: named, ..SCENARIO };
        let booted = Mutex::new(Vec::new());
        let results = compare_with(&f, &[&SCENARIO, &with], &|arm, job, logs| {
            let GuestCommand::Scenario { name, .. } = &job.command else { panic!() };
            unpoisoned(&booted).push(format!("{name} {}", arm.name));
            let value = match arm.name.as_str() {
                "first" => 100.0,
                "second" => 200.0,
                _ => 7.0,
            };
            Ok(boot(logs, Outcome::Exit(0), vec![sample("c/time", value)]))
        })
        .unwrap();
        let booted = booted.into_inner().unwrap();
        let times = |boot: &str| booted.iter().filter(|b| *b == boot).count();
        assert_eq!([times("with first"), times("with second"), times("with stock")], [12, 12, 24]);
        assert_eq!(booted.len(), 2 * 6 * 3 + 2 * 6 * 5);
        for metric in &results.metrics {
            let beside: Vec<_> = metric.beside.iter().map(|b| (b.arm.as_str(), b.values.clone())).collect();
            match metric.scenario.as_str() {
                "with" => assert_eq!(beside, [("first", vec![100.0; 6]), ("second", vec![200.0; 6])]),
                _ => assert!(beside.is_empty()),
            }
            assert_eq!((metric.verdict, metric.stock.len()), (Verdict::Same, 6));
        }
        let names: Vec<&str> = results.meta.arms.iter().map(|arm| arm.name.as_str()).collect();
        assert_eq!(names, ["stock", "memreap", "unwanted", "second", "first"]);
        assert!(results.meta.arms[4].release.is_some() && results.meta.arms[2].release.is_none());
    }

    #[test]
    fn orders_are_balanced() {
        for control in [false, true] {
            let roles = if control { 3 } else { 2 };
            let cycle: Vec<_> = (0..6).map(|pair| order(pair, control, &[])).collect();
            // Each second pair is the reverse of the one before.
            let with_more: Vec<_> = (0..6).map(|pair| order(pair, control, &[1, 0])).collect();
            for two in cycle.chunks(2).chain(with_more.chunks(2)) {
                let reversed: Vec<Role> = two[0].iter().rev().copied().collect();
                assert_eq!(reversed, two[1]);
            }
            assert!(with_more.iter().all(|o| o.len() == roles + 2 && o.contains(&Role::Beside(0))));
            // Every role has every place equally often.
            for place in 0..roles {
                for role in [Role::Base, Role::Changed, Role::Control].iter().take(roles) {
                    let times = cycle.iter().filter(|o| o[place] == *role).count();
                    assert_eq!(times, 6 / roles, "{role:?} in place {place}");
                }
            }
        }
    }

    fn panic() -> Outcome {
        Outcome::Panic { line: "Kernel panic - not syncing: no".into() }
    }

    #[test]
    fn boot_that_fails_twice_ends_the_run_and_says_all() {
        let mut f = fixture();
        f.plan.aa = false;
        let mut boots = 0;
        let error = run_fixture(&f, &mut |arm, _, logs| {
            boots += 1;
            Ok(if boots >= 3 { boot(logs, panic(), vec![]) } else { healthy(arm, logs, boots) })
        })
        .unwrap_err();
        assert_eq!(boots, 4);
        let failure = error.downcast_ref::<Failure>().unwrap();
        assert_eq!(failure.exit_code(), 4);
        let text = failure.to_string();
        let boot = "pair 2/6, memreap, synthetic/multi, second attempt: the kernel panicked";
        for part in [boot, "not syncing: no", "Kernel panic", "02-memreap"] {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        let of_second = f.ctx.out.join("boots/synthetic-multi/02-memreap");
        assert!(of_second.join("console.log").is_file() && !of_second.join("boot.json").exists());
        assert!(kept::failed_folder(&of_second).join("console.log").is_file());
        // The first pair is kept, without verdicts.
        let partial = Results::read(&f.ctx.out.join("results-partial.json")).unwrap();
        assert!(partial.meta.partial);
        assert_eq!(partial.metrics[0].stock.len(), 1);
        assert!(partial.metrics.iter().all(|m| m.verdict == Verdict::None));
        assert!(!f.ctx.out.join("results.json").exists());
    }

    #[test]
    fn boot_that_fails_is_made_again_and_never_forgotten() {
        let f = fixture();
        let mut boots = 0;
        let results = run_fixture(&f, &mut |arm, _, logs| {
            boots += 1;
            let qemu = Outcome::Qemu { error: "gone".into() };
            Ok(match boots {
                6 => boot(logs, panic(), vec![sample("c/time", 1.0)]),
                9 => boot(logs, qemu, vec![]),
                _ => healthy(arm, logs, boots),
            })
        })
        .unwrap();
        assert_eq!(boots, 2 * 6 * 3 + 2);
        assert!(results.metrics.iter().all(|m| m.stock.len() == 6 && m.verdict != Verdict::None));
        let repeated = &results.meta.repeated;
        let told: Vec<_> = repeated.iter().map(|r| (r.boot.as_str(), r.exit_code)).collect();
        let of = |pair, arm| format!("pair {pair}/6, {arm}, synthetic/multi");
        assert_eq!(told, [(of(2, "stock").as_str(), 4), (of(3, "stock2").as_str(), 3)]);
        assert!(repeated[0].what.contains("not syncing: no") && repeated[1].what.contains("gone"));
        assert_eq!(results.exit_code(), Some(4));
        for repeated in repeated {
            let logs = f.ctx.out.join(&repeated.logs);
            assert!(logs.join("console.log").is_file(), "{logs:?}");
            assert!(logs.with_extension("").join("console.log").is_file(), "{logs:?}");
        }
        assert_eq!(Results::read(&f.ctx.out.join("results.json")).unwrap(), results);
    }

    /// What the boot with these logs measures, whenever it is made.
    fn steady(logs: &Path) -> Boot {
        let name = logs.strip_prefix(logs.ancestors().nth(2).unwrap()).unwrap().display().to_string();
        let ms = name.bytes().fold(0.1, |sum: f64, byte| (sum * 1.7 + f64::from(byte)) % 10.0) + 20.0 / 3.0;
        boot(logs, Outcome::Exit(0), vec![sample("c/time", ms)])
    }

    /// The plan's kernels as files, and their contents as keys.
    fn with_kernels(f: &mut Fixture) {
        for arm in &mut f.plan.arms {
            arm.bzimage = f.ctx.repo.join(&arm.name);
            fs::write(&arm.bzimage, "a kernel").unwrap();
        }
    }

    /// Runs the plan on these kernels until `limit` boots have been made, and says which were.
    fn run_some(f: &Fixture, limit: usize, fails: &str) -> (Result<Results>, Vec<String>) {
        let made = Mutex::new(Vec::new());
        let key = |arm: &Arm, job: &Job| {
            Ok(format!("{} {} {job:?}", fs::read_to_string(&arm.bzimage)?, arm.cmdline))
        };
        let make = |_: &Arm, _: &Job, logs: &Path| {
            let mut made = unpoisoned(&made);
            if made.len() == limit {
                bail!("broken off");
            }
            let name = logs.file_name().unwrap().to_string_lossy().into_owned();
            let fails = name == fails && !made.contains(&name);
            made.push(name);
            Ok(if fails { boot(logs, panic(), vec![]) } else { steady(logs) })
        };
        let results = run_with(&f.ctx, "tcg", &f.plan, &[&SCENARIO], &Booter { key: &key, boot: &make });
        (results, made.into_inner().unwrap())
    }

    #[test]
    fn continued_run_is_as_one_that_was_not_broken_off() {
        let mut whole = fixture();
        with_kernels(&mut whole);
        let (expected, all) = run_some(&whole, usize::MAX, "");
        let expected = expected.unwrap().metrics;
        for limit in [0, 1, 17, 18, 19, 35, 36] {
            let mut f = fixture();
            with_kernels(&mut f);
            f.plan.resume = true;
            let (first, made) = run_some(&f, limit, "");
            assert_eq!(first.is_ok(), limit == all.len());
            assert_eq!(made.len(), limit);
            let (results, rest) = run_some(&f, usize::MAX, "");
            assert_eq!(rest.len(), all.len() - limit);
            assert_eq!(results.unwrap().metrics, expected);
            assert!(!f.ctx.out.join("previous").exists());
            // Without it, all boots are made.
            f.plan.resume = false;
            assert_eq!(run_some(&f, usize::MAX, "").1.len(), all.len());
            assert!(f.ctx.out.join("previous/boots/synthetic-multi").is_dir());
        }
    }

    #[test]
    fn boots_of_another_kernel_or_plan_are_made_again() {
        let mut f = fixture();
        with_kernels(&mut f);
        f.plan.resume = true;
        run_some(&f, usize::MAX, "").0.unwrap();
        fs::write(&f.plan.arms[1].bzimage, "another kernel").unwrap();
        let (results, made) = run_some(&f, usize::MAX, "");
        results.unwrap();
        assert_eq!(made.len(), 2 * 6);
        assert!(made.iter().all(|name| name.ends_with("-memreap")), "{made:?}");
        // More pairs: those that there are are taken.
        f.plan.pairs = 7;
        assert_eq!(run_some(&f, usize::MAX, "").1.len(), 2 * 3);
        f.plan.args = vec!["case=c".into()];
        assert_eq!(run_some(&f, usize::MAX, "").1.len(), 2 * 3 * 7);
        // What cannot be read is not there.
        fs::write(f.ctx.out.join("boots/synthetic-multi/01-stock/boot.json"), "{").unwrap();
        assert_eq!(run_some(&f, 0, "").0.unwrap_err().to_string(), "pair 1/7, stock, synthetic/multi");
        assert!(!f.ctx.out.join("results.json").exists() && !f.ctx.out.join("report.html").exists());
    }

    #[test]
    fn continued_run_knows_what_failed_before() {
        let mut f = fixture();
        with_kernels(&mut f);
        f.plan.resume = true;
        // Broken off after the boot that failed, was made again and ended well.
        run_some(&f, 9, "03-stock2").0.unwrap_err();
        let (results, made) = run_some(&f, usize::MAX, "");
        assert_eq!(made.len(), 2 * 6 * 3 - 8);
        let repeated = results.unwrap().meta.repeated;
        assert_eq!(repeated.len(), 1);
        assert_eq!(
            (repeated[0].boot.as_str(), repeated[0].exit_code),
            ("pair 3/6, stock2, synthetic/multi", 4)
        );
        // It was another kernel's failure.
        fs::write(&f.plan.arms[0].bzimage, "another kernel").unwrap();
        assert!(run_some(&f, usize::MAX, "").0.unwrap().meta.repeated.is_empty());
        assert!(!f.ctx.out.join(&repeated[0].logs).exists());
    }

    #[test]
    fn missing_qemu_is_the_hosts_trouble() {
        let f = fixture();
        let qemu = Outcome::Qemu { error: "No such file or directory".into() };
        let error = run_fixture(&f, &mut |_, _, logs| Ok(boot(logs, qemu.clone(), vec![]))).unwrap_err();
        assert_eq!(error.downcast_ref::<Failure>().unwrap().exit_code(), 3);
    }

    #[test]
    fn metrics_must_be_the_same_in_every_boot() {
        let good = || vec![sample("a", 1.0), sample("b", 2.0)];
        let other_unit = Sample { unit: "us".into(), ..sample("b", 2.0) };
        let cases: HashMap<&str, Vec<Sample>> = HashMap::from([
            ("metric 'b' is missing", vec![sample("a", 1.0)]),
            ("metric 'c' is new", vec![sample("a", 1.0), sample("b", 1.0), sample("c", 1.0)]),
            ("metric 'a' came more than once", vec![sample("a", 1.0), sample("a", 1.0)]),
            ("metric 'b' is in 'us'", vec![sample("a", 1.0), other_unit]),
            ("metric 'a' has the value NaN", vec![sample("a", f64::NAN), sample("b", 1.0)]),
            ("delivered no metric", vec![]),
        ]);
        for (said, second) in cases {
            let f = fixture();
            let mut boots = 0;
            let error = run_fixture(&f, &mut |_, _, logs| {
                boots += 1;
                let samples = if boots == 2 { second.clone() } else { good() };
                Ok(boot(logs, Outcome::Exit(0), samples))
            })
            .unwrap_err();
            let failure = error.downcast_ref::<Failure>().unwrap();
            assert_eq!(failure.exit_code(), 4);
            assert!(failure.to_string().contains(said), "{said:?} is not in: {failure}");
            // Whoever continues makes this boot again.
            let kept =
                |boot: &str| f.ctx.out.join("boots/synthetic-multi").join(boot).join("boot.json").exists();
            assert!(kept("01-stock") && !kept("01-memreap"));
        }
    }

    #[test]
    fn smoke_is_one_pair_beside_the_full_run() {
        let mut f = fixture();
        f.plan.smoke = true;
        let mut boots = 0;
        let results = run_fixture(&f, &mut |arm, _, logs| {
            boots += 1;
            Ok(healthy(arm, logs, boots))
        })
        .unwrap();
        assert_eq!((boots, results.meta.pairs), (4, 1));
        assert!(results.metrics.iter().all(|m| m.verdict == Verdict::None && m.aa.is_none()));
        assert!(f.ctx.out.join("smoke/results.json").is_file());
        assert!(!f.ctx.out.join("results.json").exists());
    }

    #[test]
    fn senseless_plans_are_refused_before_any_boot() {
        type Spoil = fn(&mut Plan);
        let spoils: [Spoil; 5] = [
            |p| p.pairs = 0,
            |p| p.pairs = 21,
            |p| p.alpha = 1.5,
            |p| p.arms[1].name = "stock".into(),
            |p| p.controls = vec![p.arms[1].clone()],
        ];
        for spoil in spoils {
            let mut f = fixture();
            spoil(&mut f.plan);
            let refused = run_fixture(&f, &mut |_, _, _| panic!("booted"));
            assert!(refused.is_err());
        }
    }

    #[test]
    fn dates_of_leap_years() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_798_761_599), "2026-12-31T23:59:59Z");
    }
}
