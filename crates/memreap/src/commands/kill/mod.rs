// SPDX-License-Identifier: GPL-2.0-only
//! `memreap kill`.

pub mod plan;
mod progress;
mod report;

use std::io::{ErrorKind, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use linux::meminfo::MemInfo;
use linux::{Pid, Root};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::interrupt::Interrupt;
use crate::exit::Exit;
use crate::kill::engine::MIN_THREADED_VICTIM_BYTES;
use crate::kill::target::{self, Kind, Rules, Target};
use crate::kill::{Armed, Fate, KernelFeatures, Method, Outcome, Victim, WaitEnd, raise_priority};
use crate::units;
use plan::{Plan, Show};
use progress::Progress;
use report::{Fault, Memory, Report, VictimFacts, VictimReport, VictimResult};

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
    for fault in &report.errors {
        let _ = writeln!(stderr, "memreap: {}", fault.message);
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

/// A target and the memory that is expected of it.
struct Chosen {
    target: Target,
    /// What comes back, in bytes: exactly, or at most.
    bytes: u64,
    exact: bool,
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
        let message = format!(
            "this kernel does not have --method {}; 'memreap doctor' lists what it has",
            method.name()
        );
        report.errors.push(Fault { target: None, pid: None, kind: "unsupported", message });
        report.exit = Exit::Usage;
        return Ok(report);
    }

    let rules = Rules { all: plan.all, force: plan.force };
    let selection = target::select(&root, &plan.selectors, rules);
    let problem_exit = selection.problems.iter().map(|p| p.kind.exit()).max();
    report.add_problems(&selection.problems);
    let (zombies, live): (Vec<_>, Vec<_>) = selection.targets.into_iter().partition(|t| t.facts.zombie);
    let chosen: Vec<_> = live.into_iter().map(|target| Chosen::new(target, plan.exact)).collect();
    if let Some(exit) = problem_exit
        && !plan.keep_going
    {
        report.victims.extend(chosen.iter().map(|c| c.report(VictimResult::Spared)));
        report.exit = exit;
        return Ok(report);
    }
    report
        .victims
        .extend(zombies.into_iter().map(|target| Chosen::new(target, false).report(VictimResult::Zombie)));
    report.exit = problem_exit.unwrap_or(Exit::Done);

    if plan.dry_run {
        let would_kill = |c: &Chosen| c.report(VictimResult::WouldKill { method: c.expected_method(method) });
        report.victims.extend(chosen.iter().map(would_kill));
    } else if !chosen.is_empty() {
        kill_all(plan, &root, method, chosen, &mut report)?;
    }
    Ok(report)
}

/// The kill, from arming to the end of the wait.
fn kill_all(
    plan: &Plan,
    root: &Root,
    method: Method,
    chosen: Vec<Chosen>,
    report: &mut Report,
) -> Result<()> {
    let expected: u64 = chosen.iter().map(|c| c.bytes).sum();
    // Before threads are started.
    let interrupt = Interrupt::catch().context("cannot catch Ctrl-C")?;
    let mut victims = Vec::with_capacity(chosen.len());
    let mut reports = Vec::with_capacity(chosen.len());
    for c in chosen {
        reports.push(c.report(VictimResult::Spared));
        let (facts, bytes) = (&c.target.facts, c.bytes_for_threads());
        let (vm_size, core_dumping) = (facts.vm_size, facts.core_dumping);
        victims.push(Victim { pidfd: c.target.pidfd, bytes, vm_size, core_dumping });
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
                format!(
                    "{} of {} back, {rate}, {}",
                    units::bytes(back),
                    units::bytes(expected),
                    units::time(elapsed)
                )
            });
        })?;
    }
    report.interrupted = wait == WaitEnd::Interrupted && interrupt.take();
    let outcomes = armed.outcomes();
    report.before = before;
    report.after = memory(root).ok();
    for (mut victim, outcome) in reports.into_iter().zip(outcomes) {
        if let Fate::Refused(errno) = outcome.fate {
            let (fault, exit) = refusal(&victim, errno);
            report.exit = report.exit.max(exit);
            report.errors.push(fault);
        }
        report.exit = report.exit.max(exit_of(&outcome));
        victim.result = VictimResult::Attempted(outcome);
        report.victims.push(victim);
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
fn refusal(victim: &VictimReport, errno: i32) -> (Fault, Exit) {
    let error = std::io::Error::from_raw_os_error(errno);
    let kind = if matches!(errno, libc::EPERM | libc::EACCES) { Kind::NotPermitted } else { Kind::System };
    let message = format!("cannot signal {}: {error}", victim.label());
    (Fault { target: None, pid: Some(victim.facts.pid), kind: kind.name(), message }, kind.exit())
}

impl Chosen {
    fn new(target: Target, exact: bool) -> Self {
        let at_most = target.facts.bytes();
        // Not permitted for all processes; the upper bound is used then.
        let rollup = if exact { target.process.smaps_rollup().ok() } else { None };
        match rollup {
            Some(rollup) => Self { target, bytes: rollup.comes_back(), exact: true },
            None => Self { target, bytes: at_most, exact: false },
        }
    }

    /// How many bytes others can free for it: none if most is shared memory, which only its exit gives back.
    fn bytes_for_threads(&self) -> u64 {
        let private = self.target.facts.bytes();
        if private < self.bytes / 2 { 0 } else { private }
    }

    /// Returns by which method its memory will come back, if `method` is tried and is in time.
    fn expected_method(&self, method: Method) -> Method {
        let has_thread = self.bytes_for_threads() >= MIN_THREADED_VICTIM_BYTES;
        if method == Method::Mrelease && !has_thread { Method::Plain } else { method }
    }

    fn report(&self, result: VictimResult) -> VictimReport {
        let read = &self.target.facts;
        let facts = VictimFacts {
            pid: self.target.process.pid().get(),
            comm: linux::escape(read.comm.as_bytes()).to_string(),
            uid: read.uid,
            ppid: read.ppid.map(Pid::get),
            start_time: read.start_time,
            rss_anon: read.rss_anon,
            swap: read.swap,
            bytes: self.bytes,
            exact: self.exact,
        };
        VictimReport { facts, result }
    }
}

fn memory(root: &Root) -> Result<Memory> {
    let info = MemInfo::read(root)?;
    Ok(Memory { anon: info.anon, free: info.free, available: info.available, swap_free: info.swap_free })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use linux::{PidFd, Process};

    use super::*;
    use crate::kill::target::Facts;

    #[test]
    fn an_exact_figure_counts_swap_once() {
        let tree = tempfile::tempdir().unwrap();
        let dir = tree.path().join(format!("proc/{}", Pid::own()));
        fs::create_dir_all(&dir).unwrap();
        let rollup = "0-1 ---p 0 00:00 0 [rollup]\nRss: 7 kB\nPss: 7 kB\nPss_Anon: 7 kB\nPss_File: 0 kB\n\
                      Pss_Shmem: 0 kB\nPrivate_Clean: 0 kB\nPrivate_Dirty: 7 kB\nAnonymous: 7 kB\nSwap: 100 kB\n\
                      SwapPss: 100 kB\n";
        fs::write(dir.join("smaps_rollup"), rollup).unwrap();
        let facts = Facts {
            comm: linux::process::Comm::new(b"x").unwrap(),
            uid: 0,
            ppid: None,
            start_time: 0,
            kernel_thread: false,
            zombie: false,
            core_dumping: false,
            vm_size: 0,
            rss_anon: 7 << 10,
            swap: 100 << 10,
        };
        for exact in [true, false] {
            let target = Target {
                pidfd: PidFd::open(Pid::own()).unwrap(),
                process: Process::open(&Root::at(tree.path()), Pid::own()).unwrap(),
                facts: facts.clone(),
            };
            let chosen = Chosen::new(target, exact);
            assert_eq!((chosen.bytes, chosen.exact), (107 << 10, exact));
        }
    }
}
