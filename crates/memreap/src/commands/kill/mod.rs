// SPDX-License-Identifier: GPL-2.0-only
//! `memreap kill`.

pub mod plan;
mod progress;
mod report;

use std::io::{ErrorKind, Write as _};
use std::mem;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use linux::Root;
use linux::meminfo::MemInfo;
use linux::signal;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::interrupt::Interrupt;
use crate::exit::Exit;
use crate::kill::engine::MIN_THREADED_VICTIM_BYTES;
use crate::kill::target::{self, Facts, Problem, ProblemKind, Rules, Selection, Target};
use crate::kill::{Armed, Fate, KernelFeatures, Method, Outcome, Victim, WaitEnd, Whole, raise_priority};
use crate::say;
use crate::units;
use plan::{Plan, Show};
use progress::Progress;
use report::{Memory, Report, SetReport, VictimReport, VictimResult};

/// How often the progress line is updated.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Kills, and prints the result. The exit code is about the kill: where the result cannot be written, that is said on
/// stderr.
///
/// # Errors
/// When /proc cannot be read or is not this PID namespace's, before anything is killed. Problems with single targets are in the output.
#[inline(never)] // Its stack would be that of the daemon, too.
pub fn run(plan: &Plan) -> Result<Exit> {
    let report = execute(plan)?;
    for problem in &report.errors {
        say(format_args!("memreap: {}", problem.message));
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
        say(format_args!("memreap: the result cannot be written: {e}"));
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
    let mut selection = target::select(&root, &plan.selectors, rules);
    let problem_exit = report.take_problems(&mut selection);
    report.sets = selection.sets.iter().map(SetReport::new).collect();
    let targets = mem::take(&mut selection.targets);
    let (zombies, mut live): (Vec<_>, Vec<_>) = targets.into_iter().partition(|t| t.facts.zombie);
    if plan.exact {
        live.iter_mut().for_each(Target::measure);
        target::count_shared_once(&mut live);
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
        Kill { plan, root: &root, method }.run(live, &mut selection, &mut report)?;
    }
    Ok(report)
}

/// How to kill.
#[derive(Clone, Copy)]
struct Kill<'a> {
    plan: &'a Plan,
    root: &'a Root,
    method: Method,
}

/// Processes that are about to be killed.
struct Victims {
    armed: Armed,
    facts: Vec<Facts>,
    sets: Vec<Option<usize>>,
    bytes: u64,
}

impl Victims {
    /// Those of a set, by their places in the list.
    fn of_set(&self, set: usize) -> Vec<usize> {
        (0..self.sets.len()).filter(|place| self.sets[*place] == Some(set)).collect()
    }
}

impl Kill<'_> {
    /// The kill, from arming to the end of the wait.
    fn run(self, targets: Vec<Target>, selection: &mut Selection, report: &mut Report) -> Result<()> {
        let Self { plan, root, .. } = self;
        // Before threads are started.
        let interrupt = Interrupt::catch().context("cannot catch Ctrl-C")?;
        let unblocked = signal::block_all()?;
        let mut victims = vec![self.arm(targets)];
        unblocked.restore()?;
        let before = memory(root)?;

        let mut wait = WaitEnd::TimeUp;
        if let Some(first) = plan.signal_first {
            let count = victims[0].facts.len();
            victims[0].armed.send_first_signal(first.signal.signal());
            let mut progress = Progress::new(plan.show != Show::Nothing);
            let until = Instant::now() + first.grace;
            wait = victims[0].armed.wait(until, interrupt.as_fd(), PROGRESS_INTERVAL, || {
                progress.show(|elapsed| {
                    let left = units::time(first.grace.saturating_sub(elapsed));
                    format!("{} sent to {count}; SIGKILL in {left} to those that are left", first.signal)
                });
            })?;
        }
        // Those of a set may have left others behind.
        let has_rest = wait == WaitEnd::TimeUp || wait == WaitEnd::AllExited && !selection.sets.is_empty();
        if has_rest && self.kill(&mut victims, selection, report)? {
            let expected = victims.iter().map(|victims| victims.bytes).sum();
            let until = Instant::now() + plan.timeout;
            let mut progress = Progress::new(plan.show != Show::Nothing);
            let mut show = || {
                progress.show(|elapsed| {
                    let back = memory(root).map_or(0, |now| now.gain_since(&before)).min(expected);
                    let rate = units::rate(back as f64 / elapsed.as_secs_f64());
                    let (back, expected) = (units::bytes(back), units::bytes(expected));
                    format!("{back} of {expected} back, {rate}, {}", units::time(elapsed))
                });
            };
            for victims in &victims {
                wait = victims.armed.wait(until, interrupt.as_fd(), PROGRESS_INTERVAL, &mut show)?;
                if wait == WaitEnd::Interrupted {
                    break;
                }
            }
            if wait != WaitEnd::Interrupted {
                report.check_empty(root, selection, until, || interrupt.take());
            }
        }
        report.interrupted |= wait == WaitEnd::Interrupted && interrupt.take();
        report.before = before;
        for victims in victims {
            report.threads += victims.armed.threads();
            let outcomes = victims.armed.outcomes();
            for ((facts, set), outcome) in victims.facts.into_iter().zip(victims.sets).zip(outcomes) {
                if let Fate::Refused(errno) = outcome.fate {
                    let problem = refusal(&facts, errno);
                    report.add_problem(problem);
                }
                report.exit = report.exit.max(exit_of(&outcome));
                report.victims.push(VictimReport { facts, set, result: VictimResult::Attempted(outcome) });
            }
        }
        report.set_after(memory(root).ok());
        if report.interrupted {
            report.exit = report.exit.max(Exit::Interrupted);
        }
        Ok(())
    }

    fn arm(self, targets: Vec<Target>) -> Victims {
        let bytes = targets.iter().map(|target| target.facts.bytes.min(target.facts.share)).sum();
        let mut victims = Vec::with_capacity(targets.len());
        let (mut all_facts, mut sets) = (Vec::with_capacity(targets.len()), Vec::with_capacity(targets.len()));
        for Target { pidfd, facts, set, .. } in targets {
            let (bytes, vm_size, core_dumping) = (facts.bytes_for_threads(), facts.vm_size, facts.core_dumping);
            victims.push(Victim { pidfd, bytes, vm_size, core_dumping });
            all_facts.push(facts);
            sets.push(set);
        }
        let kernel = KernelFeatures::read(self.root);
        // A user who asks for the kernel's workers gets these alone.
        let paced_workers = self.plan.method.is_none() && kernel.paced_workers;
        let kernel = KernelFeatures { paced_workers, ..kernel };
        Victims { armed: Armed::new(victims, self.method, kernel), facts: all_facts, sets, bytes }
    }

    /// Sends SIGKILL to all that is named: also to what has been started meanwhile, which is added to the victims.
    /// Returns whether it did: not if there is a problem with what was started.
    fn kill(self, victims: &mut Vec<Victims>, selection: &mut Selection, report: &mut Report) -> Result<bool> {
        // None must end or stop this program while it keeps others stopped.
        let unblocked = signal::block_all()?;
        let outrun = selection.hold(self.root);
        let problem_exit = report.take_problems(selection);
        report.exit = report.exit.max(problem_exit.unwrap_or(Exit::Done));
        let late = mem::take(&mut selection.targets);
        let goes_on = problem_exit.is_none() || self.plan.keep_going;
        if goes_on {
            if !late.is_empty() {
                victims.push(self.arm(late));
            }
            let at_once: Vec<_> = (0..selection.sets.len())
                .filter_map(|set| Some((set, selection.sets[set].at_once()?, victims[0].of_set(set))))
                .collect();
            let wholes: Vec<_> =
                at_once.iter().map(|(_, cgroup, victims)| Whole { cgroup, victims: &victims[..] }).collect();
            let killed = victims[0].armed.kill_with(&wholes);
            victims[1..].iter().for_each(|late| late.armed.kill());
            for ((set, ..), is_killed) in at_once.iter().zip(killed) {
                report.sets[*set].at_once = is_killed;
            }
            outrun.into_iter().for_each(|problem| report.add_problem(problem));
        } else {
            report.add(late, |_| VictimResult::Spared);
        }
        // What has not been killed, by whatever went wrong, is not left stopped.
        selection.release();
        unblocked.restore()?;
        Ok(goes_on)
    }
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
