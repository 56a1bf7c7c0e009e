// SPDX-License-Identifier: GPL-2.0-only
//! `memreap kill`.

pub mod plan;
mod progress;
mod report;

use std::io::{ErrorKind, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use linux::Root;
use linux::meminfo::MemInfo;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::interrupt::Interrupt;
use crate::exit::Exit;
use crate::kill::engine::MIN_THREADED_VICTIM_BYTES;
use crate::kill::target::{self, Facts, Problem, ProblemKind, Rules, Target};
use crate::kill::{Armed, Fate, KernelFeatures, Method, Outcome, Victim, WaitEnd, raise_priority};
use crate::units;
use plan::{Plan, Show};
use progress::Progress;
use report::{Memory, Report, VictimReport, VictimResult};

/// How often the progress line is updated.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Kills, and prints the result. The exit code is about the kill: where the result cannot be written, that is said on
/// stderr.
///
/// # Errors
/// When /proc cannot be read or is not this PID namespace's, before anything is killed. Problems with single targets are in the output.
pub fn run(plan: &Plan) -> Result<Exit> {
    let report = execute(plan)?;
    let mut stderr = std::io::stderr();
    for problem in &report.errors {
        let _ = writeln!(stderr, "memreap: {}", problem.message);
    }
    let text = match plan.show {
        Show::Text => report.text(),
        Show::Json => serde_json::to_string(&report)? + "\n",
        Show::Nothing => String::new(),
    };
    // Who does not read it may want to know what the exit code says.
    if let Err(e) = std::io::stdout().write_all(text.as_bytes())
        && e.kind() != ErrorKind::BrokenPipe
    {
        let _ = writeln!(stderr, "memreap: the result cannot be written: {e}");
    }
    Ok(report.exit)
}

fn execute(plan: &Plan) -> Result<Report> {
    // Not for a walk over page tables, which takes long.
    if !plan.exact {
        let _ = raise_priority();
    }
    // Each process takes two, and a name can fit thousands.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    target::check_proc()?;
    let root = Root::system();
    let method = plan.method.unwrap_or_else(Method::best);
    let mut report = Report::new(plan, method, memory(&root)?);
    if !method.supported() {
        let message =
            format!("this kernel does not have --method {}; 'memreap doctor' lists what it has", method.name());
        report.errors.push(Problem::new(ProblemKind::Unsupported, message));
        report.exit = Exit::Usage;
        return Ok(report);
    }

    let rules = Rules { all: plan.all, force: plan.force };
    let selection = target::select(&root, &plan.selectors, rules);
    let problem_exit = selection.problems.iter().map(|p| p.kind.exit()).max();
    report.errors.extend(selection.problems);
    let (zombies, mut live): (Vec<_>, Vec<_>) = selection.targets.into_iter().partition(|t| t.facts.zombie);
    if plan.exact {
        live.iter_mut().for_each(Target::measure);
    }
    if let Some(exit) = problem_exit
        && !plan.keep_going
    {
        report.add(live, |_| VictimResult::Spared);
        report.exit = exit;
        return Ok(report);
    }
    report.add(zombies, |_| VictimResult::Zombie);
    report.exit = problem_exit.unwrap_or(Exit::Done);

    if plan.dry_run {
        report.add(live, |facts| VictimResult::WouldKill { method: expected_method(facts, method) });
    } else if !live.is_empty() {
        kill_all(plan, &root, method, live, &mut report)?;
    }
    Ok(report)
}

/// The kill, from arming to the end of the wait.
fn kill_all(plan: &Plan, root: &Root, method: Method, targets: Vec<Target>, report: &mut Report) -> Result<()> {
    let expected: u64 = targets.iter().map(|target| target.facts.bytes).sum();
    // Before threads are started.
    let interrupt = Interrupt::catch().context("cannot catch Ctrl-C")?;
    let mut victims = Vec::with_capacity(targets.len());
    let mut killed = Vec::with_capacity(targets.len());
    for Target { pidfd, facts, .. } in targets {
        let (bytes, vm_size, core_dumping) = (facts.bytes_for_threads(), facts.vm_size, facts.core_dumping);
        victims.push(Victim { pidfd, bytes, vm_size, core_dumping });
        killed.push(facts);
    }
    let count = victims.len();
    let kernel = KernelFeatures::read(root);
    // A user who asks for the kernel's workers gets these alone.
    let paced_workers = plan.method.is_none() && kernel.paced_workers;
    let kernel = KernelFeatures { paced_workers, ..kernel };
    let armed = Armed::new(victims, method, kernel);
    report.threads = armed.threads();
    let before = memory(root)?;

    let mut wait = WaitEnd::TimeUp;
    if let Some(first) = plan.signal_first {
        armed.send_first_signal(first.signal.signal());
        let mut progress = Progress::new(plan.show != Show::Nothing);
        wait = armed.wait(Instant::now() + first.grace, interrupt.as_fd(), PROGRESS_INTERVAL, || {
            progress.show(|elapsed| {
                let left = units::time(first.grace.saturating_sub(elapsed));
                format!("{} sent to {count}; SIGKILL in {left} to those that are left", first.signal)
            });
        })?;
    }
    if wait == WaitEnd::TimeUp {
        armed.kill();
        let mut progress = Progress::new(plan.show != Show::Nothing);
        wait = armed.wait(Instant::now() + plan.timeout, interrupt.as_fd(), PROGRESS_INTERVAL, || {
            progress.show(|elapsed| {
                let back = memory(root).map_or(0, |now| now.gain_since(&before)).min(expected);
                let rate = units::rate(back as f64 / elapsed.as_secs_f64());
                format!("{} of {} back, {rate}, {}", units::bytes(back), units::bytes(expected), units::time(elapsed))
            });
        })?;
    }
    report.interrupted = wait == WaitEnd::Interrupted && interrupt.take();
    let outcomes = armed.outcomes();
    report.before = before;
    report.after = memory(root).ok();
    for (facts, outcome) in killed.into_iter().zip(outcomes) {
        if let Fate::Refused(errno) = outcome.fate {
            let problem = refusal(&facts, errno);
            report.exit = report.exit.max(problem.kind.exit());
            report.errors.push(problem);
        }
        report.exit = report.exit.max(exit_of(&outcome));
        report.victims.push(VictimReport { facts, result: VictimResult::Attempted(outcome) });
    }
    if report.interrupted {
        report.exit = Exit::Interrupted;
    }
    Ok(())
}

fn exit_of(outcome: &Outcome) -> Exit {
    match outcome.fate {
        Fate::Killed | Fate::Exited | Fate::Gone => Exit::Done,
        Fate::Shared => Exit::Shared,
        Fate::Dying => Exit::StillDying,
        // Reported otherwise: by Ctrl-C, by the error.
        Fate::Spared | Fate::Refused(_) => Exit::Done,
    }
}

/// The error for a signal that the kernel refused although it had permitted it before.
fn refusal(victim: &Facts, errno: i32) -> Problem {
    let error = std::io::Error::from_raw_os_error(errno);
    let is_denied = matches!(errno, libc::EPERM | libc::EACCES);
    let kind = if is_denied { ProblemKind::NotPermitted } else { ProblemKind::System };
    let message = format!("cannot signal {}: {error}", victim.label());
    Problem { pid: Some(victim.pid.get()), ..Problem::new(kind, message) }
}

/// Returns by which method a process's memory will come back, if `method` is tried and is in time.
fn expected_method(facts: &Facts, method: Method) -> Method {
    let has_thread = facts.bytes_for_threads() >= MIN_THREADED_VICTIM_BYTES;
    if method == Method::Mrelease && !has_thread { Method::Plain } else { method }
}

fn memory(root: &Root) -> Result<Memory> {
    let info = MemInfo::read(root)?;
    Ok(Memory { anon: info.anon, free: info.free, available: info.available, swap_free: info.swap_free })
}
