// SPDX-License-Identifier: GPL-2.0-only
//! Finds the processes that a user names, and opens pidfds on them.
//!
//! A pidfd is opened before anything is read about the process. What was read is used only if the pidfd says
//! afterwards that its process still has the ID: then no other process can have had it in between, and the
//! facts are about the process behind the pidfd.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use linux::process::{Comm, Stat, State, Status, share_memory};
use linux::{Pid, PidFd, Process, Root, escape, process};
use serde::Serialize;

use super::set::{Set, SetName};
use crate::exit::Exit;
use crate::{units, users};

/// How long to search for processes that start others meanwhile, before those that are known are killed.
const HOLD_TIMEOUT: Duration = Duration::from_secs(2);
/// With how many address spaces of one size another one is compared: the forks of one process can be thousands.
const MAX_OF_ONE_SIZE: usize = 16;

/// How a process is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// By its ID.
    Pid(Pid),
    /// By all of its comm, or of the base name of `argv[0]` or of its executable.
    Name(OsString),
    /// Many, by what they have in common.
    Set(SetName),
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) => pid.fmt(f),
            Self::Name(name) => escape(name).fmt(f),
            Self::Set(name) => name.fmt(f),
        }
    }
}

/// What is known of a process behind a pidfd. Sizes in bytes.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Its ID.
    pub pid: Pid,
    /// Its name.
    pub comm: Comm,
    /// Its effective user.
    pub uid: u32,
    /// Its parent, if that is in our PID namespace.
    pub ppid: Option<Pid>,
    /// When it started, in clock ticks after boot: with the ID, this names it uniquely.
    pub start_time: u64,
    /// It is part of the kernel.
    pub kernel_thread: bool,
    /// It is dead already; only its parent has not asked for its exit status.
    pub zombie: bool,
    /// It is dumping its core: until that is done the kernel does not let others free its memory.
    pub core_dumping: bool,
    /// The size of its address space.
    pub vm_size: u64,
    /// Private anonymous memory. The counter may lag by some pages per CPU; pages that
    /// other processes use too (after fork) are included.
    pub rss_anon: u64,
    /// Its memory in swap, likewise.
    pub swap: u64,
    /// What comes back when it dies: exactly, or at most.
    pub bytes: u64,
    /// Which of the two `bytes` is.
    pub exact: bool,
    /// What comes back of it at most when others die with it that share its memory.
    pub share: u64,
}

/// A process that was chosen.
#[derive(Debug)]
pub struct Target {
    /// What signals go through.
    pub pidfd: PidFd,
    /// Its files in /proc.
    pub process: Process,
    /// What was read, after `pidfd` was opened.
    pub facts: Facts,
    /// The set in [`Selection::sets`] that it was found by.
    pub set: Option<usize>,
}

/// Why a process is not killed, as text and as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What the user typed.
    pub target: Option<String>,
    /// Which process, if there is one.
    pub pid: Option<i32>,
    /// What kind of problem.
    pub kind: ProblemKind,
    /// What to tell the user, with the remedy.
    pub message: String,
}

/// Kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// No such process.
    NotFound,
    /// The caller may not signal it, or not read it.
    NotPermitted,
    /// The name fits several.
    Ambiguous,
    /// It needs `--force`.
    Protected,
    /// A kernel thread.
    KernelThread,
    /// The kernel does not have the method.
    Unsupported,
    /// Some processes are left.
    NotEmpty,
    /// Trouble of the system.
    System,
}

impl ProblemKind {
    /// The exit code for it.
    pub fn exit(self) -> Exit {
        match self {
            Self::NotFound => Exit::NotFound,
            Self::NotPermitted => Exit::NotPermitted,
            Self::Ambiguous | Self::Protected | Self::KernelThread => Exit::Refused,
            Self::Unsupported => Exit::Usage,
            Self::NotEmpty => Exit::StillDying,
            Self::System => Exit::Internal,
        }
    }
}

impl Problem {
    /// A problem of nobody yet.
    pub fn new(kind: ProblemKind, message: String) -> Self {
        Self { target: None, pid: None, kind, message }
    }

    /// The text of an error with its causes.
    pub(super) fn system(error: linux::Error) -> Self {
        Self::new(ProblemKind::System, format!("{:#}", anyhow::Error::from(error)))
    }
}

/// What to choose by.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A name may fit several processes.
    pub all: bool,
    /// Protection does not count.
    pub force: bool,
}

/// The processes that were chosen, each once, and what is against the rest.
#[derive(Debug)]
pub struct Selection {
    /// To be killed.
    pub targets: Vec<Target>,
    /// Not to be killed.
    pub problems: Vec<Problem>,
    /// What names many.
    pub sets: Vec<Set>,
    protected: Protected,
}

/// Checks that /proc is this PID namespace's: a pidfd is opened by an ID in this one, and read is what has that ID in
/// /proc.
///
/// # Errors
/// Text for the user when it is not, or the kernel has no pidfds.
pub fn check_proc() -> io::Result<()> {
    let own = PidFd::open(Pid::own()).map_err(io::Error::other)?;
    if own.pid().ok().flatten() == Some(Pid::own()) {
        return Ok(());
    }
    Err(io::Error::other(
        "/proc is missing or another PID namespace's: mount that of this one (mount -t proc proc /proc, or \
         unshare --mount-proc)",
    ))
}

/// Finds processes and opens pidfds on them.
pub fn select(root: &Root, selectors: &[Selector], rules: Rules) -> Selection {
    let mut selection = Selection {
        targets: Vec::new(),
        problems: Vec::new(),
        sets: Vec::new(),
        protected: Protected::find(root, rules.force),
    };
    for selector in selectors {
        let about = |problem| Problem { target: Some(selector.to_string()), ..problem };
        let found = match selector {
            Selector::Pid(pid) => open_target(root, *pid, |_| Ok(true))
                .map(|target| vec![target])
                .map_err(|problem| Problem { pid: Some(pid.get()), ..problem }),
            Selector::Name(name) => find(root, name, rules.all),
            Selector::Set(name) => {
                if let Err(problem) = selection.add_set(root, name) {
                    selection.problems.push(about(problem));
                }
                continue;
            }
        };
        match found {
            Ok(targets) => {
                for target in targets {
                    match selection.protected.check(&target) {
                        Ok(()) => selection.add(target),
                        Err(problem) => selection.problems.push(about(problem)),
                    }
                }
            }
            Err(problem) => selection.problems.push(about(problem)),
        }
    }
    selection
}

impl Selection {
    /// Finds the processes of a set, without any effect on them.
    fn add_set(&mut self, root: &Root, name: &SetName) -> Result<(), Problem> {
        let set = Set::open(root, name, |target| self.protected.check(target))?;
        self.sets.push(set);
        let known = self.targets.len() + self.problems.len();
        if let Err(problem) = self.search(root, self.sets.len() - 1) {
            // With --keep-going the other targets are killed, and it must not be.
            self.sets.pop();
            return Err(problem);
        }
        if let Some(problem) = self.sets.last().and_then(|set| set.hidden(root)) {
            self.problems.push(Problem { target: Some(name.to_string()), ..problem });
        }
        if known == self.targets.len() + self.problems.len() && self.sets.last().is_some_and(Set::is_empty) {
            return Err(Problem::new(ProblemKind::NotFound, name.none()));
        }
        Ok(())
    }

    /// Adds the processes of a set that have come since they were last searched for. Returns how many.
    fn search(&mut self, root: &Root, index: usize) -> Result<usize, Problem> {
        let found = self.sets[index].search(root, |target| self.protected.check(target))?;
        let name = self.sets[index].name().to_string();
        let count = found.len();
        for found in found {
            match found {
                Ok(target) => self.add(Target { set: Some(index), ..target }),
                Err(problem) => self.problems.push(Problem { target: Some(name.clone()), ..problem }),
            }
        }
        Ok(count)
    }

    /// Adds those that have come since, and sees to it that no more come: what the kernel does not kill at once is
    /// stopped, and searched for again until there is nothing new. [`Selection::release`] has it go on. Returns what to
    /// tell of sets that start processes faster than they are found.
    pub fn hold(&mut self, root: &Root) -> Vec<Problem> {
        let until = Instant::now() + HOLD_TIMEOUT;
        let mut outrun = Vec::new();
        for index in 0..self.sets.len() {
            let target = Some(self.sets[index].name().to_string());
            loop {
                self.sets[index].stop(root, until);
                match self.search(root, index) {
                    Ok(0) => break,
                    // The kernel takes care of those that come from now on.
                    Ok(_) if self.sets[index].at_once().is_some() => break,
                    Ok(_) if Instant::now() >= until => {
                        let text = format!(
                            "{} starts processes faster than they are found, so some are left: only a cgroup is killed \
                             at once (systemd-run --scope)",
                            self.sets[index].name()
                        );
                        outrun.push(Problem { target, ..Problem::new(ProblemKind::NotEmpty, text) });
                        break;
                    }
                    Ok(_) => {}
                    Err(problem) => {
                        self.problems.push(Problem { target, ..problem });
                        break;
                    }
                }
            }
        }
        outrun
    }

    /// Has those go on that were stopped.
    pub fn release(&mut self) {
        self.sets.iter_mut().for_each(Set::release);
    }

    fn add(&mut self, target: Target) {
        if !self.has(&target) {
            self.targets.push(target);
        }
    }

    fn has(&self, target: &Target) -> bool {
        // A pidfd does not keep the ID. If the first has exited and left it to the second, that is left out and lives.
        self.targets.iter().any(|t| t.facts.pid == target.facts.pid)
    }
}

impl Target {
    /// Finds out exactly what comes back, by a walk of its page tables. That is not permitted for all processes; what
    /// comes back at most is kept then.
    pub fn measure(&mut self) {
        if let Ok(rollup) = self.process.smaps_rollup() {
            (self.facts.bytes, self.facts.exact, self.facts.share) = (rollup.comes_back(), true, rollup.share());
        }
    }
}

/// Lets an address space that several of the targets have count for the first of them only. For measured ones.
pub fn count_shared_once(targets: &mut [Target]) {
    let mut known: HashMap<u64, Vec<Pid>> = HashMap::new();
    for Target { facts, .. } in targets {
        // One that others share has their size, and few of one size are not shared; forks of one process can be.
        let known = known.entry(facts.vm_size).or_default();
        if known.iter().any(|pid| share_memory(*pid, facts.pid)) {
            facts.share = 0;
        } else if known.len() < MAX_OF_ONE_SIZE {
            known.push(facts.pid);
        }
    }
}

/// Opens the process with this ID, if it `belongs` to those that are meant.
pub(super) fn open_target(
    root: &Root,
    pid: Pid,
    belongs: impl FnOnce(&Process) -> linux::Result<bool>,
) -> Result<Target, Problem> {
    let not_found = || Problem::new(ProblemKind::NotFound, format!("no process has the ID {pid}"));
    let pidfd = match PidFd::open(pid) {
        Ok(pidfd) => pidfd,
        Err(e) if e.is_gone() => return Err(not_found()),
        // EINVAL, or ENOENT since Linux 6.15.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => {
            return Err(match thread_of(root, pid) {
                Some(owner) => {
                    let text = format!("{pid} is a thread of process {owner}; to kill that, give {owner}");
                    Problem::new(ProblemKind::NotFound, text)
                }
                None => not_found(),
            });
        }
        Err(e) => return Err(Problem::system(e)),
    };
    let read = Process::open(root, pid).and_then(|process| {
        let facts = Facts::read(root, &process)?;
        let belongs = belongs(&process)?;
        Ok((process, facts, belongs))
    });
    // Only now is what was read known to be about the process behind the pidfd.
    let still_there = match pidfd.pid() {
        Ok(now) => now == Some(pid),
        Err(e) => return Err(Problem::system(e)),
    };
    match read {
        Ok((process, facts, true)) if still_there => Ok(Target { pidfd, process, facts, set: None }),
        _ if !still_there => Err(not_found()),
        Ok(_) => Err(Problem::new(ProblemKind::NotFound, format!("{pid} has got another name, user or parent"))),
        // It is there, yet it cannot be seen.
        Err(e) if e.is_gone() || e.is_denied() => Err(Problem::new(
            ProblemKind::NotPermitted,
            format!("process {pid} cannot be read: /proc hides it (hidepid); run as root"),
        )),
        Err(e) => Err(Problem::system(e)),
    }
}

/// /proc/PID/stat of the process that has this ID now.
pub(super) fn stat_of(root: &Root, pid: Pid) -> linux::Result<Stat> {
    Process::open(root, pid)?.stat()
}

/// The process that the thread `tid` belongs to, if it is one.
pub(crate) fn thread_of(root: &Root, tid: Pid) -> Option<Pid> {
    let tgid = Process::open(root, tid).ok()?.status().ok()?.tgid;
    (tgid != tid).then_some(tgid)
}

impl Facts {
    fn read(root: &Root, process: &Process) -> linux::Result<Self> {
        let stat = process.stat()?;
        let status = process.status()?;
        // When a process's first thread exits before the others, the process looks like a zombie without
        // memory; the other threads have it.
        let leader_exited = stat.state == State::Zombie && status.threads > 1;
        let memory = if leader_exited { other_thread(root, process.pid()).unwrap_or(status) } else { status };
        let bytes = memory.rss_anon.saturating_add(memory.swap);
        Ok(Self {
            pid: process.pid(),
            comm: stat.comm,
            uid: status.effective_uid,
            ppid: stat.ppid,
            start_time: stat.start_time,
            kernel_thread: stat.is_kernel_thread(),
            zombie: stat.state == State::Zombie && !leader_exited,
            core_dumping: memory.core_dumping,
            vm_size: memory.vm_size,
            rss_anon: memory.rss_anon,
            swap: memory.swap,
            bytes,
            exact: false,
            share: bytes,
        })
    }

    /// "4711 (name)".
    pub fn label(&self) -> String {
        format!("{} ({})", self.pid, escape(self.comm.as_bytes()))
    }

    /// How much of its anonymous memory comes back at most when it dies.
    pub fn anonymous(&self) -> u64 {
        self.rss_anon.saturating_add(self.swap)
    }

    /// How much others can free for it: nothing if most is shared memory, which only its exit gives back.
    pub fn bytes_for_threads(&self) -> u64 {
        if self.anonymous() < self.bytes / 2 { 0 } else { self.anonymous() }
    }

    /// Time since the process was started.
    fn age(&self) -> Duration {
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let ticks = now.tv_sec.unsigned_abs().saturating_mul(per_second);
        Duration::from_secs(ticks.saturating_sub(self.start_time) / per_second)
    }
}

/// The status of a thread that still has the process's memory.
fn other_thread(root: &Root, pid: Pid) -> Option<Status> {
    threads(root, pid).filter_map(|thread| thread.status().ok()).find(|status| status.tgid == pid && status.has_memory)
}

/// The threads of a process; none if it is gone.
pub(super) fn threads(root: &Root, pid: Pid) -> impl Iterator<Item = Process> {
    let tasks = fs::read_dir(root.proc().join(pid.to_string()).join("task"));
    let tids = tasks.into_iter().flatten().filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    tids.filter_map(|tid| Process::open(root, tid).ok())
}

/// Whether the caller may signal it.
fn permitted(target: &Target) -> Result<(), Problem> {
    match target.pidfd.check_permission() {
        Err(e) if e.is_denied() => {
            let text = format!(
                "not permitted to kill {}, which is user {}'s: run as root or with CAP_KILL",
                target.facts.label(),
                users::name(target.facts.uid)
            );
            Err(Problem::new(ProblemKind::NotPermitted, text))
        }
        // One that has gone in the meantime is dealt with when the signal is sent.
        _ => Ok(()),
    }
}

/// All processes that a name fits; without `all`, the one.
fn find(root: &Root, name: &OsStr, all: bool) -> Result<Vec<Target>, Problem> {
    let mut targets = Vec::new();
    let mut hidden = false;
    for pid in process::pids(root).map_err(Problem::system)? {
        // A name never means memreap itself.
        if pid == Pid::own() {
            continue;
        }
        // Compared first and opened afterwards: few fit, and opening costs more.
        match Process::open(root, pid).and_then(|process| fits(name, &process)) {
            Ok(true) => {}
            Ok(false) => continue,
            // It and those after it would be left alive.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                return Err(Problem::system(e));
            }
            Err(e) => {
                hidden |= e.is_denied();
                continue;
            }
        }
        match open_target(root, pid, |process| fits(name, process)) {
            Ok(target) => targets.push(target),
            // Gone, or another by now.
            Err(problem) if problem.kind == ProblemKind::NotFound => {}
            Err(problem) => return Err(problem),
        }
    }
    // It gives nothing back, and the one that lives is meant.
    if targets.len() > 1 && targets.iter().filter(|target| !target.facts.zombie).count() == 1 {
        targets.retain(|target| !target.facts.zombie);
    }
    match targets.len() {
        0 => Err(Problem::new(ProblemKind::NotFound, not_found_text(name, hidden || hides_processes(root)))),
        1 => Ok(targets),
        _ if all => Ok(targets),
        n => Err(Problem::new(ProblemKind::Ambiguous, ambiguous_text(name, n, &targets))),
    }
}

fn not_found_text(name: &OsStr, hidden: bool) -> String {
    let mut text = format!("no process is called '{}'", escape(name));
    if name.as_bytes().contains(&b'/') {
        text.push_str("; a program is named without its folder");
    }
    if hidden {
        text.push_str("; /proc hides processes of other users (hidepid): run as root to see them");
    }
    text
}

/// Whether /proc shows only some processes: PID 1 is always there.
pub(crate) fn hides_processes(root: &Root) -> bool {
    Pid::new(1).is_some_and(|init| stat_of(root, init).is_err())
}

fn ambiguous_text(name: &OsStr, n: usize, targets: &[Target]) -> String {
    /// About as many as fit on a screen.
    const LISTED: usize = 40;
    let mut text = format!("'{}' fits {n} processes; give a PID, or --all to kill them all:", escape(name));
    for target in targets.iter().take(LISTED) {
        let command = target.process.cmdline().unwrap_or_default();
        let command: Vec<String> = command.iter().map(|arg| escape(arg).to_string()).collect();
        let mut command = command.join(" ");
        if command.is_empty() {
            command = format!("[{}]", escape(target.facts.comm.as_bytes()));
        }
        text.push_str(&format!(
            "\n  {:>7}  {:<8}  {:>8}  {:>4}  {}",
            target.facts.pid,
            users::name(target.facts.uid),
            units::bytes(target.facts.bytes),
            units::age(target.facts.age()),
            shortened(&command),
        ));
    }
    if n > LISTED {
        text.push_str(&format!("\n  and {} more", n - LISTED));
    }
    text
}

fn shortened(text: &str) -> String {
    const WIDTH: usize = 60;
    if text.chars().count() <= WIDTH {
        return text.to_owned();
    }
    text.chars().take(WIDTH - 3).chain("...".chars()).collect()
}

/// Whether a name is the process's. Reads no more than it has to: the command line of a process
/// cannot be read while its memory map is locked.
fn fits(name: &OsStr, process: &Process) -> linux::Result<bool> {
    if process.comm()?.as_bytes() == name.as_bytes() {
        return Ok(true);
    }
    // What only the owner may read cannot fit.
    let exe = match process.exe() {
        Err(e) if e.is_denied() => None,
        exe => exe?,
    };
    if exe.is_some_and(|exe| is_program(name, &exe)) {
        return Ok(true);
    }
    Ok(process.cmdline()?.first().is_some_and(|argv0| is_argv0(name, argv0)))
}

fn is_program(name: &OsStr, exe: &Path) -> bool {
    let path = exe.as_os_str().as_bytes();
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    base_name(path) == name.as_bytes()
}

fn is_argv0(name: &OsStr, argv0: &OsStr) -> bool {
    let argv0 = argv0.as_bytes();
    // A title that a process has given itself may have a path in it: "worker: reading /srv/postgres".
    let title = if argv0.contains(&b' ') { argv0 } else { base_name(argv0) };
    title == name.as_bytes()
}

fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

/// Processes that are killed only with --force.
#[derive(Debug)]
struct Protected {
    /// See [`ancestry`].
    ancestry: Vec<Pid>,
    /// When the last of them that can be read started, in clock ticks after boot, if it has a parent that cannot: those
    /// above that one, which are older, are not known.
    unknown_before: Option<u64>,
    /// That is given.
    force: bool,
}

/// Returns the caller itself, then its parent and so on, as far as they can be read.
#[cfg(test)]
pub(crate) fn ancestry(root: &Root) -> Vec<Pid> {
    ancestors(root).0
}

/// As [`ancestry`], and [`Protected::unknown_before`].
fn ancestors(root: &Root) -> (Vec<Pid>, Option<u64>) {
    let mut pids = vec![Pid::own()];
    let mut oldest = None;
    while let Ok(stat) = stat_of(root, pids[pids.len() - 1]) {
        // A parent that died while we looked has a new one, which may be one seen already.
        match stat.ppid.filter(|parent| !pids.contains(parent)) {
            Some(parent) => pids.push(parent),
            None => return (pids, None),
        }
        oldest = Some(stat.start_time);
    }
    (pids, oldest)
}

impl Protected {
    fn find(root: &Root, force: bool) -> Self {
        let (ancestry, unknown_before) = ancestors(root);
        // Else it has just exited.
        let unknown_before = unknown_before.filter(|_| hides_processes(root));
        Self { ancestry, unknown_before, force }
    }

    /// Says what is against killing a process.
    fn check(&self, target: &Target) -> Result<(), Problem> {
        let found = self.check_identity(target).and_then(|()| permitted(target));
        found.map_err(|problem| Problem { pid: Some(target.facts.pid.get()), ..problem })
    }

    fn check_identity(&self, target: &Target) -> Result<(), Problem> {
        let pid = target.facts.pid;
        let who = if target.facts.kernel_thread {
            let text = format!("{} is a kernel thread, which cannot be killed", target.facts.label());
            return Err(Problem::new(ProblemKind::KernelThread, text));
        } else if self.force {
            return Ok(());
        } else if pid.get() == 1 {
            "the init process"
        } else if pid == Pid::own() {
            "memreap itself"
        } else if self.ancestry.contains(&pid) {
            "an ancestor of memreap"
        } else if self.unknown_before.is_some_and(|start| target.facts.start_time <= start) {
            "perhaps an ancestor of memreap, as /proc hides who started that (hidepid)"
        } else {
            return Ok(());
        };
        let text = format!("{} is {who}: --force kills it, --keep-going kills the others", target.facts.label());
        Err(Problem::new(ProblemKind::Protected, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_names_are_compared_whole() {
        let exe = |name: &str, exe: &str| is_program(name.as_ref(), exe.as_ref());
        assert!(exe("firefox", "/usr/lib/firefox/firefox"));
        assert!(exe("firefox", "/usr/lib/firefox/firefox (deleted)"));
        assert!(!exe("fire", "/usr/lib/firefox/firefox"));
        assert!(!exe("firefox", "/usr/lib/firefox/firefox-bin"));
        assert!(!exe("lib", "/usr/lib/firefox"));
        let argv0 = |name: &str, argv0: &str| is_argv0(name.as_ref(), argv0.as_ref());
        assert!(argv0("nginx", "nginx") && argv0("nginx", "/usr/sbin/nginx"));
        assert!(!argv0("nginx", "nginx: worker process"));
        assert!(!argv0("postgres", "worker: reading /srv/postgres") && !argv0("0", "sshd: u@pts/0"));
        assert!(!argv0("", "x"));
    }

    #[test]
    fn a_long_command_is_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = shortened(&"ä".repeat(100));
        assert_eq!(long.chars().count(), 60);
        assert!(long.ends_with("ä..."));
    }

    #[test]
    fn the_ancestry_goes_up_to_init() {
        let pids = ancestry(&Root::system());
        assert_eq!(pids[0], Pid::own());
        assert!(pids.len() > 1);
    }

    #[test]
    fn who_is_older_than_a_hidden_parent_may_be_an_ancestor() {
        let tree = tempfile::tempdir().unwrap();
        let add = |pid: i32, ppid: i32, start: u64| {
            let dir = tree.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&dir).unwrap();
            let zeroes = "0 ".repeat(17);
            let stat = format!("{pid} (x) S {ppid} {zeroes}{start} {}\n", "0 ".repeat(30));
            fs::write(dir.join("stat"), stat).unwrap();
        };
        let (own, root) = (Pid::own().get(), Root::at(tree.path()));
        let [above, hidden] = [own + 1, own + 2];
        let pids = |pids: &[i32]| pids.iter().map(|pid| Pid::new(*pid).unwrap()).collect::<Vec<_>>();
        add(own, above, 90);
        add(above, hidden, 70);
        assert_eq!(ancestors(&root), (pids(&[own, above, hidden]), Some(70)));
        add(hidden, 0, 50);
        assert_eq!(ancestors(&root), (pids(&[own, above, hidden]), None));
    }

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
            pid: Pid::own(),
            comm: Comm::new(b"x").unwrap(),
            uid: 0,
            ppid: None,
            start_time: 0,
            kernel_thread: false,
            zombie: false,
            core_dumping: false,
            vm_size: 0,
            rss_anon: 7 << 10,
            swap: 100 << 10,
            bytes: 107 << 10,
            exact: false,
            share: 107 << 10,
        };
        for exact in [true, false] {
            let mut target = Target {
                pidfd: PidFd::open(Pid::own()).unwrap(),
                process: Process::open(&Root::at(tree.path()), Pid::own()).unwrap(),
                facts: facts.clone(),
                set: None,
            };
            if exact {
                target.measure();
            }
            assert_eq!((target.facts.bytes, target.facts.exact), (107 << 10, exact));
        }
    }
}
