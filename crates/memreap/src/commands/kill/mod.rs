//! `memreap kill`.

mod progress;
mod report;

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use linux::features::{self, Topic};
use linux::meminfo::MemInfo;
use linux::{Pid, Root};

use crate::commands::interrupt::Interrupt;
use crate::exit::Exit;
use crate::kill::engine::{self, Armed, Fate, Held, Kernel, Method, Outcome, Wait};
use crate::kill::signal::FirstSignal;
use crate::kill::target::{self, Kind, Rules, Selector, Target};
use crate::units;
use progress::Progress;
use report::{Fault, Memory, Report, Story, Victim, Was};

/// How often the progress is brought up to date.
const INTERVAL: Duration = Duration::from_millis(100);

/// What is to be done: the arguments, with all defaults applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whom to kill.
    pub selectors: Vec<Selector>,
    /// A name may fit several processes.
    pub all: bool,
    /// Protection does not count.
    pub force: bool,
    /// Problems with some targets do not spare the others.
    pub keep_going: bool,
    /// A signal before SIGKILL.
    pub first: Option<First>,
    /// How long to wait for the end after SIGKILL.
    pub timeout: Duration,
    /// How to get the memory back; `None` is the best there is.
    pub method: Option<Method>,
    /// Send no signal.
    pub dry_run: bool,
    /// Count what comes back by walking the page tables.
    pub exact: bool,
    /// What to print.
    pub show: Show,
}

/// A signal that asks to end, and how long to wait for what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// The signal.
    pub signal: FirstSignal,
    /// How long until SIGKILL.
    pub grace: Duration,
}

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Lines for people.
    Text,
    /// One JSON object.
    Json,
    /// Errors only.
    Nothing,
}

/// Kills, and prints what came of it.
///
/// # Errors
/// When the system is in no state to find out: /proc cannot be read, threads cannot be started,
/// or the output cannot be written. Trouble with single targets is in the output.
pub fn run(plan: &Plan) -> Result<Exit> {
    let report = execute(plan)?;
    for fault in &report.errors {
        eprintln!("memreap: {}", fault.message);
    }
    let text = match plan.show {
        Show::Text => report.text(),
        Show::Json => serde_json::to_string(&report)? + "\n",
        Show::Nothing => String::new(),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(report.exit)
}

/// A target and what is told about it.
struct Chosen {
    target: Target,
    /// What comes back: exactly, or at most.
    bytes: u64,
    exact: bool,
}

fn execute(plan: &Plan) -> Result<Report> {
    // Not for a walk over page tables, which is long.
    if !plan.exact {
        let _ = engine::prefer_this_thread();
    }
    let root = Root::system();
    let method = plan.method.unwrap_or_else(Method::best);
    let mut report = Report::new(plan, method, memory(&root)?);
    if !method.supported() {
        let message = format!(
            "this kernel does not have --method {}; 'memreap doctor' says what it has",
            method.name()
        );
        report.errors.push(Fault { target: None, pid: None, kind: "unsupported", message });
        report.exit = Exit::Usage;
        return Ok(report);
    }

    let rules = Rules { all: plan.all, force: plan.force };
    let selection = target::select(&root, &plan.selectors, rules);
    let troubled = selection.problems.iter().map(|p| p.kind.exit()).max();
    report.add_problems(&selection.problems);
    let (zombies, live): (Vec<_>, Vec<_>) = selection.targets.into_iter().partition(|t| t.facts.zombie);
    let chosen: Vec<_> = live.into_iter().map(|target| Chosen::new(target, plan.exact)).collect();
    if let Some(exit) = troubled
        && !plan.keep_going
    {
        report.victims.extend(chosen.iter().map(|c| c.report(Story::Spared)));
        report.exit = exit;
        return Ok(report);
    }
    report.victims.extend(zombies.into_iter().map(|target| Chosen::new(target, false).report(Story::Zombie)));
    report.exit = troubled.unwrap_or(Exit::Done);

    if plan.dry_run {
        report.victims.extend(chosen.iter().map(|c| c.report(Story::WouldKill { means: method })));
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
    let mut told = Vec::with_capacity(chosen.len());
    for c in chosen {
        told.push(c.report(Story::Spared));
        let facts = &c.target.facts;
        let (vm_size, core_dumping) = (facts.vm_size, facts.core_dumping);
        victims.push(Held { pidfd: c.target.pidfd, bytes: c.bytes, vm_size, core_dumping });
    }
    let count = victims.len();
    // Who asks for the kernel's workers gets these alone.
    let paced = plan.method.is_none() && workers_are_paced(root);
    let kernel = Kernel { together: reap_is_on(root), paced };
    let armed = Armed::new(victims, method, kernel).context("cannot start threads")?;
    report.threads = armed.threads();
    let before = memory(root)?;

    let mut wait = Wait::TimeUp;
    if let Some(first) = plan.first {
        armed.ask(first.signal.signal());
        let mut progress = Progress::new(plan.show != Show::Nothing);
        wait = armed.wait(Instant::now() + first.grace, interrupt.as_fd(), INTERVAL, || {
            progress.show(|elapsed| {
                let left = units::time(first.grace.saturating_sub(elapsed));
                format!("{} sent to {count}; SIGKILL in {left} to those that are left", first.signal)
            });
        })?;
    }
    if wait == Wait::TimeUp {
        armed.fire();
        let mut progress = Progress::new(plan.show != Show::Nothing);
        wait = armed.wait(Instant::now() + plan.timeout, interrupt.as_fd(), INTERVAL, || {
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
    report.interrupted = wait == Wait::Interrupted && interrupt.take();
    let outcomes = armed.outcomes();
    report.before = before;
    report.after = Some(memory(root)?);
    for (mut victim, outcome) in told.into_iter().zip(outcomes) {
        if let Fate::Refused(errno) = outcome.fate {
            let fault = refused(&victim, errno);
            report.exit = report.exit.max(fault.1);
            report.errors.push(fault.0);
        }
        report.exit = report.exit.max(exit_of(&outcome));
        victim.story = Story::Struck(outcome);
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
        // Told by other means: Ctrl-C, the error.
        Fate::Spared | Fate::Refused(_) => Exit::Done,
    }
}

/// A signal that the kernel refused although it said before that it would not.
fn refused(victim: &Victim, errno: i32) -> (Fault, Exit) {
    let error = std::io::Error::from_raw_os_error(errno);
    let kind = if matches!(errno, libc::EPERM | libc::EACCES) { Kind::NotPermitted } else { Kind::System };
    let message = format!("cannot signal {}: {error}", victim.label());
    (Fault { target: None, pid: Some(victim.was.pid), kind: kind.name(), message }, kind.exit())
}

impl Chosen {
    fn new(target: Target, exact: bool) -> Self {
        let at_most = target.facts.bytes();
        // Not in reach of everybody, and then the upper bound has to do.
        let rollup = if exact { target.process.smaps_rollup().ok() } else { None };
        match rollup {
            Some(rollup) => Self { target, bytes: rollup.comes_back(), exact: true },
            None => Self { target, bytes: at_most, exact: false },
        }
    }

    fn report(&self, story: Story) -> Victim {
        let facts = &self.target.facts;
        let was = Was {
            pid: self.target.process.pid().get(),
            comm: linux::escape(facts.comm.as_bytes()).to_string(),
            uid: facts.uid,
            ppid: facts.ppid.map(Pid::get),
            start_time: facts.start_time,
            rss_anon: facts.rss_anon,
            swap: facts.swap,
            bytes: self.bytes,
            exact: self.exact,
        };
        Victim { was, story }
    }
}

fn memory(root: &Root) -> Result<Memory> {
    let info = MemInfo::read(root)?;
    Ok(Memory { anon: info.anon, free: info.free, available: info.available, swap_free: info.swap_free })
}

/// Whether several threads can free one address space together.
pub(crate) fn reap_is_on(root: &Root) -> bool {
    // What cannot be read is not counted on.
    matches!(Topic::Reap.is_on(root), Ok(Some(true)))
}

/// Whether the kernel's workers leave a share of their CPU to others.
fn workers_are_paced(root: &Root) -> bool {
    matches!(features::expedite_cpu_percent(root), Ok(Some(percent)) if percent < 100)
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
