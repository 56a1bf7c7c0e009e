// SPDX-License-Identifier: GPL-2.0-only
//! Processes that are named as one: a tree, a cgroup, those of a unit or of a user.
//!
//! **None escapes by fork(2).** The kernel kills a cgroup at once, with what is just being forked (cgroup.kill). All
//! others are stopped, and searched for until a search finds nothing new; then all are killed. Searching alone does
//! not do: where processes fork faster than they are found it does not end; and a child whose parent dies between the
//! last search and its own signal is adopted by another process, and nothing says any more that it was in the tree.
//! What is spared after all is continued. A process that the kernel does not stop in time can still start one that
//! escapes.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use linux::cgroup::{Cgroup, Hierarchy};
use linux::dir::Failure;
use linux::pidfd::Signal;
use linux::process::{State, pids};
use linux::{Dir, Pid, PidFd, Process, Root, escape};

use super::target::{Problem, ProblemKind, Target, hides_processes, open_target, stat_of, threads};
use crate::users;

/// How long to wait for those that were sent SIGSTOP and wait for something in the kernel: it can take for ever, as
/// after vfork(2) whose child is stopped before it executes a program.
const WAITING_TIMEOUT: Duration = Duration::from_millis(100);
/// How often to look.
const STOP_STEP: Duration = Duration::from_micros(500);
/// What systemd calls units with processes. A name that ends otherwise is a service's, as for systemctl.
const UNIT_SUFFIXES: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];

/// How many processes are named as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetName {
    /// A process and all that descend from it.
    Tree(Pid),
    /// A cgroup and those below it, by its path in the v2 hierarchy, or with the path where that is mounted.
    Cgroup(PathBuf),
    /// A systemd unit: of the system's manager for root, else of the user's own.
    Unit(String),
    /// All with this real user, a name or a number.
    User(String),
}

impl SetName {
    /// What it is: the option without hyphens.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tree(_) => "tree",
            Self::Cgroup(_) => "cgroup",
            Self::Unit(_) => "unit",
            Self::User(_) => "user",
        }
    }

    /// The text for when there are no processes.
    pub(super) fn none(&self) -> String {
        format!("there are no processes: {self}")
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match self {
            Self::Tree(pid) => write!(f, "{kind} {pid}"),
            Self::Cgroup(path) => write!(f, "{kind} {}", escape(path)),
            Self::Unit(name) | Self::User(name) => write!(f, "{kind} {}", escape(name)),
        }
    }
}

/// Processes that are named as one, and what is known of them.
#[derive(Debug)]
pub struct Set {
    name: SetName,
    kind: Kind,
    members: BTreeMap<Pid, Member>,
    /// Some of it is not to be killed: memreap itself, what is protected or cannot be seen.
    is_partial: bool,
    /// There are some in the cgroup, as vhost's in that of a virtual machine; no kill means them.
    has_kernel_threads: bool,
}

#[derive(Debug)]
enum Kind {
    /// Its first process, until that was searched for.
    Tree(Option<Box<Target>>),
    Cgroup {
        cgroup: Cgroup,
        path: Vec<u8>,
        may_kill: bool,
    },
    User(u32),
}

#[derive(Debug)]
struct Member {
    pidfd: PidFd,
    is_spared: bool,
    stop: Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Runs,
    /// By us.
    Stopped,
    /// By somebody else, before.
    Before,
}

impl Set {
    /// Opens what is named; nothing is searched for yet. `check` says what is against killing a process.
    ///
    /// # Errors
    /// When there is no such thing, or it must not be killed.
    pub fn open(root: &Root, name: &SetName, check: impl Fn(&Target) -> Result<(), Problem>) -> Result<Self, Problem> {
        let kind = match name {
            SetName::Tree(pid) => {
                // So that --keep-going does not kill all the machine but for PID 1.
                let target = open_target(root, *pid, |_| Ok(true))?;
                check(&target)?;
                Kind::Tree(Some(Box::new(target)))
            }
            SetName::Cgroup(path) => open_cgroup(root, path)?,
            SetName::Unit(unit) => open_unit(root, unit)?,
            SetName::User(user) => Kind::User(user_id(user)?),
        };
        Ok(Self { name: name.clone(), kind, members: BTreeMap::new(), is_partial: false, has_kernel_threads: false })
    }

    /// What it was named by.
    pub fn name(&self) -> &SetName {
        &self.name
    }

    /// The path of its cgroup in the v2 hierarchy, if it is one.
    pub fn cgroup_path(&self) -> Option<&OsStr> {
        match &self.kind {
            Kind::Cgroup { path, .. } => Some(OsStr::from_bytes(path)),
            _ => None,
        }
    }

    /// The cgroup, if the kernel can kill all of the set at once.
    pub fn at_once(&self) -> Option<&Cgroup> {
        match &self.kind {
            Kind::Cgroup { cgroup, may_kill: true, .. } if !self.is_partial => Some(cgroup),
            _ => None,
        }
    }

    /// Whether processes are left in a cgroup that was killed at once. What has been removed is empty.
    pub fn is_populated(&self, root: &Root) -> bool {
        let Kind::Cgroup { cgroup, path, .. } = &self.kind else { return false };
        let is_process = |pid: &Pid| stat_of(root, *pid).is_ok_and(|stat| !stat.is_kernel_thread());
        cgroup.is_populated() == Ok(true)
            && (!self.has_kernel_threads
                || list(cgroup, path).is_ok_and(|listed| listed.unseen > 0 || listed.pids.iter().any(is_process)))
    }

    /// Whether no process was found, memreap itself excepted.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Searches for processes that are not known yet, and returns each of them, or what is against killing it. Has no
    /// effect on them.
    ///
    /// # Errors
    /// When some cannot be found out: nothing of the set should be killed then.
    pub(super) fn search(
        &mut self,
        root: &Root,
        check: impl Fn(&Target) -> Result<(), Problem>,
    ) -> Result<Vec<Result<Target, Problem>>, Problem> {
        let mut found = match &mut self.kind {
            Kind::Tree(first) => {
                let first = first.take().map(|first| *first);
                return self.search_tree(root, first, check);
            }
            Kind::User(uid) => {
                let uid = *uid;
                let belongs = |process: &Process| process.status().map(|status| status.uid == uid);
                let mut targets = Vec::new();
                for pid in pids(root).map_err(Problem::system)? {
                    let fits = || Process::open(root, pid).and_then(|process| belongs(&process)).unwrap_or(false);
                    if !self.is_known(pid) && fits() {
                        targets.extend(open_if_there(root, pid, belongs)?);
                    }
                }
                targets
            }
            Kind::Cgroup { cgroup, path, .. } => {
                let listed = list(cgroup, path)?;
                if listed.unseen > 0 {
                    self.is_partial = true;
                    let text = format!(
                        "{} processes of cgroup {} are not in this PID namespace: run memreap where they are",
                        listed.unseen,
                        escape(&path[..])
                    );
                    return Err(Problem::new(ProblemKind::NotPermitted, text));
                }
                let mut targets = Vec::new();
                for pid in listed.pids.into_iter().filter(|pid| !self.is_known(*pid)) {
                    targets.extend(open_if_there(root, pid, |_| Ok(true))?);
                }
                let found = targets.len();
                targets.retain(|target| !target.facts.kernel_thread);
                self.has_kernel_threads |= targets.len() < found;
                if !targets.is_empty() {
                    // What is still there is what was opened: no other process has its ID.
                    let Kind::Cgroup { cgroup, path, .. } = &self.kind else { return Ok(Vec::new()) };
                    let again = list(cgroup, path)?.pids;
                    targets.retain(|t| again.contains(&t.facts.pid) && is_still(&t.pidfd, t.facts.pid));
                }
                targets
            }
        };
        found.retain(|target| !self.leave_out(target.facts.pid));
        found.into_iter().map(|target| self.take_in(target, &check)).collect()
    }

    /// What is against a tree or a user's processes where some of them may be hidden.
    pub(super) fn hidden(&self, root: &Root) -> Option<Problem> {
        if matches!(self.kind, Kind::Cgroup { .. }) || !hides_processes(root) {
            return None;
        }
        let text = "/proc hides processes of other users (hidepid), so some of it may be left: run as root, or kill \
                    what can be seen by --keep-going";
        Some(Problem::new(ProblemKind::NotPermitted, text.to_owned()))
    }

    /// As [`Set::search`], for a tree, from the top down. `first` is its first process, at the first time.
    fn search_tree(
        &mut self,
        root: &Root,
        first: Option<Target>,
        check: impl Fn(&Target) -> Result<(), Problem>,
    ) -> Result<Vec<Result<Target, Problem>>, Problem> {
        let mut children = BTreeMap::<Pid, Vec<Pid>>::new();
        for pid in pids(root).map_err(Problem::system)? {
            if let Some(parent) = stat_of(root, pid).ok().and_then(|stat| stat.ppid) {
                children.entry(parent).or_default().push(pid);
            }
        }
        let mut found = Vec::new();
        let mut parents: Vec<Pid> = self.members.keys().copied().collect();
        if let Some(first) = first {
            parents.push(first.facts.pid);
            found.push(self.take_in(first, &check)?);
        }
        while let Some(parent) = parents.pop() {
            for pid in children.remove(&parent).unwrap_or_default() {
                if self.is_known(pid) || self.leave_out(pid) {
                    continue;
                }
                let belongs = |process: &Process| process.stat().map(|stat| stat.ppid == Some(parent));
                let Some(target) = open_if_there(root, pid, belongs)? else { continue };
                // The parent's ID was its own when that was read.
                if self.members.get(&parent).is_some_and(|member| is_still(&member.pidfd, parent)) {
                    parents.push(pid);
                    found.push(self.take_in(target, &check)?);
                }
            }
        }
        Ok(found)
    }

    /// Adds a process. The outer error is of the set, the inner one of this process.
    fn take_in(
        &mut self,
        target: Target,
        check: impl Fn(&Target) -> Result<(), Problem>,
    ) -> Result<Result<Target, Problem>, Problem> {
        let judged = check(&target);
        self.is_partial |= judged.is_err();
        let pidfd = target.pidfd.try_clone().map_err(Problem::system)?;
        self.members.insert(target.facts.pid, Member { pidfd, is_spared: judged.is_err(), stop: Stop::Runs });
        Ok(judged.map(|()| target))
    }

    /// Whether it is memreap itself, which no set means.
    fn leave_out(&mut self, pid: Pid) -> bool {
        self.is_partial |= pid == Pid::own();
        pid == Pid::own()
    }

    /// Whether it was found already; not if another process has its ID by now.
    fn is_known(&self, pid: Pid) -> bool {
        self.members.get(&pid).is_some_and(|member| is_still(&member.pidfd, pid))
    }

    /// Stops what the kernel does not kill at once, and waits until it does not run any more, or `until`.
    pub(super) fn stop(&mut self, root: &Root, until: Instant) {
        if self.at_once().is_some() {
            return;
        }
        let running = |member: &&mut Member| member.stop == Stop::Runs && !member.is_spared;
        let mut stopping = Vec::new();
        for member in self.members.values_mut().filter(|m| running(m)) {
            let pid = member.pidfd.opened_as();
            let is_stopped = stat_of(root, pid).is_ok_and(|stat| stat.state == State::Other(b'T'));
            if member.pidfd.send_signal(Signal::STOP).is_ok() {
                member.stop = if is_stopped { Stop::Before } else { Stop::Stopped };
                stopping.push(pid);
            }
        }
        let began = Instant::now();
        loop {
            stopping.retain(|pid| activity(root, *pid) != Activity::None);
            let is_waiting = |pid: &Pid| activity(root, *pid) != Activity::Runs;
            let is_done = began.elapsed() >= WAITING_TIMEOUT && stopping.iter().all(is_waiting);
            if stopping.is_empty() || is_done || Instant::now() >= until {
                return;
            }
            thread::sleep(STOP_STEP);
        }
    }

    /// Has those go on that [`Set::stop`] has stopped.
    pub(super) fn release(&mut self) {
        for member in self.members.values_mut().filter(|member| member.stop == Stop::Stopped) {
            // It has been killed meanwhile.
            let _ = member.pidfd.send_signal(Signal::CONT);
            member.stop = Stop::Runs;
        }
    }
}

/// Whether the process behind a pidfd still has this ID, so that no other has it.
fn is_still(pidfd: &PidFd, pid: Pid) -> bool {
    pidfd.pid().ok().flatten() == Some(pid)
}

/// As [`open_target`]; `None` if it is gone, or does not belong there any more.
fn open_if_there(
    root: &Root,
    pid: Pid,
    belongs: impl FnOnce(&Process) -> linux::Result<bool>,
) -> Result<Option<Target>, Problem> {
    match open_target(root, pid, belongs) {
        Ok(target) => Ok(Some(target)),
        Err(problem) if problem.kind == ProblemKind::NotFound => Ok(None),
        Err(problem) => Err(problem),
    }
}

/// What the threads of a process do: the most of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Activity {
    /// All are stopped or gone.
    None,
    /// One waits for something else than the signal. It may be starting a process.
    Waits,
    /// One runs, or is about to, with a signal pending.
    Runs,
}

fn activity(root: &Root, pid: Pid) -> Activity {
    let stats = threads(root, pid).filter_map(|thread| thread.stat().ok());
    let activities = stats.map(|stat| match stat.state {
        State::Zombie | State::Other(b'T' | b't' | b'X') => Activity::None,
        // It sleeps although it was sent a signal: its cgroup is frozen, or another thread takes the signal first.
        State::Other(b'D' | b'S') => Activity::Waits,
        State::Other(_) => Activity::Runs,
    });
    activities.max().unwrap_or(Activity::None)
}

/// The processes of a cgroup and of those below it.
#[derive(Default)]
struct Listed {
    pids: Vec<Pid>,
    /// How many there are besides, in another PID namespace.
    unseen: usize,
}

fn list(cgroup: &Cgroup, path: &[u8]) -> Result<Listed, Problem> {
    let failed = |failure: Failure| {
        let (kind, why) = match failure {
            Failure::Other(errno) if errno.raw_os_error() == libc::EOPNOTSUPP => {
                (ProblemKind::NotFound, "it has threads and no processes (threaded); give the one above it".to_owned())
            }
            Failure::Denied => (ProblemKind::NotPermitted, "not permitted".to_owned()),
            Failure::Other(errno) => (ProblemKind::System, errno.to_string()),
            failure => (ProblemKind::System, format!("{failure:?}")),
        };
        Problem::new(kind, format!("the processes of cgroup {} cannot be listed: {why}", escape(path)))
    };
    let mut listed = Listed::default();
    let mut below = Vec::new();
    add_members(cgroup, &mut listed)
        .or_else(|failure| if is_removed(failure) { Ok(()) } else { Err(failed(failure)) })?;
    let add_below = |cgroup: &Cgroup, below: &mut Vec<Result<Cgroup, Failure>>| {
        let added = cgroup.for_each_child(|child| below.push(child));
        added.or_else(|failure| if is_removed(failure) { Ok(()) } else { Err(failed(failure)) })
    };
    add_below(cgroup, &mut below)?;
    while let Some(child) = below.pop() {
        match child.and_then(|child| add_members(&child, &mut listed).map(|()| child)) {
            Ok(child) => add_below(&child, &mut below)?,
            Err(failure) if is_threaded(failure) || is_removed(failure) => {}
            // Somebody in it may be protected.
            Err(failure) => return Err(failed(failure)),
        }
    }
    Ok(listed)
}

/// Those above a threaded cgroup list its processes.
fn is_threaded(failure: Failure) -> bool {
    failure == Failure::Other(rustix::io::Errno::OPNOTSUPP)
}

fn add_members(cgroup: &Cgroup, listed: &mut Listed) -> Result<(), Failure> {
    cgroup.for_each_member(|pid| match pid {
        Some(pid) => listed.pids.push(pid),
        None => listed.unseen += 1,
    })
}

fn is_removed(failure: Failure) -> bool {
    matches!(failure, Failure::Gone) || failure == Failure::Other(rustix::io::Errno::NODEV)
}

fn hierarchy(root: &Root) -> Result<Hierarchy, Problem> {
    Hierarchy::find(root)
        .map_err(Problem::system)?
        .ok_or_else(|| Problem::new(ProblemKind::NotFound, "there are no cgroups v2: mount -t cgroup2".to_owned()))
}

fn open_cgroup(root: &Root, path: &Path) -> Result<Kind, Problem> {
    let hierarchy = hierarchy(root)?;
    let below = path.strip_prefix(&hierarchy.path).unwrap_or(path);
    // Of "." nothing is left.
    let is_part = |part: &Component<'_>| !matches!(part, Component::RootDir | Component::CurDir);
    let below: PathBuf = below.components().filter(is_part).collect();
    let below = below.as_os_str().as_bytes();
    if below.is_empty() {
        let text = "the root of all cgroups is all of the machine: give one below it".to_owned();
        return Err(Problem::new(ProblemKind::Protected, text));
    }
    open_kind(&hierarchy, [b"/", below].concat())
}

fn open_kind(hierarchy: &Hierarchy, path: Vec<u8>) -> Result<Kind, Problem> {
    let dir = Dir::open(&hierarchy.path).map_err(Problem::system)?;
    match Cgroup::open(&dir, &path) {
        Ok(cgroup) if cgroup.dir().has(c"cgroup.procs") => {
            let may_kill = cgroup.may_kill();
            Ok(Kind::Cgroup { cgroup, path, may_kill })
        }
        Ok(_) | Err(Failure::Gone) => {
            let text = format!("there is no cgroup {} in {}", escape(&path[..]), escape(&hierarchy.path));
            Err(Problem::new(ProblemKind::NotFound, text))
        }
        Err(failure) => {
            let kind = match failure {
                Failure::Denied => ProblemKind::NotPermitted,
                Failure::Malformed => ProblemKind::NotFound,
                _ => ProblemKind::System,
            };
            let text = format!(
                "cgroup {} cannot be opened: {failure:?}; a path has no '..', and at most 511 bytes",
                escape(&path[..])
            );
            Err(Problem::new(kind, text))
        }
    }
}

/// Finds a unit by its name: managers put their units into slices only, so what a service or a container makes below
/// itself is none, whatever its name is.
fn open_unit(root: &Root, unit: &str) -> Result<Kind, Problem> {
    let hierarchy = hierarchy(root)?;
    let has_suffix = UNIT_SUFFIXES.iter().any(|suffix| unit.ends_with(suffix));
    let name = if has_suffix { unit.to_owned() } else { format!("{unit}.service") };
    let user = rustix::process::getuid();
    let manager = if user.is_root() {
        String::new()
    } else {
        format!("/user.slice/user-{0}.slice/user@{0}.service", user.as_raw())
    };
    let top = Dir::open(&hierarchy.path).map_err(Problem::system)?;
    let mut slices = vec![manager.clone().into_bytes()];
    while let Some(slice) = slices.pop() {
        // What was removed meanwhile has no units.
        let Ok(opened) = Cgroup::open(&top, &slice) else { continue };
        let mut found = None;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let _ = opened.dir().for_each_entry(&mut buffer, |entry: &CStr, is_dir| {
            let entry = entry.to_bytes();
            let path = || [&slice[..], b"/", entry].concat();
            // Before names that could be taken for the kernel's files, as cpu.service, and before '_', is a '_'.
            if is_dir && entry.strip_prefix(b"_").unwrap_or(entry) == name.as_bytes() {
                found = Some(path());
            } else if is_dir && entry.ends_with(b".slice") {
                slices.push(path());
            }
            found.is_none()
        });
        if let Some(path) = found {
            return open_kind(&hierarchy, path);
        }
    }
    let whose = if user.is_root() { "the system's manager" } else { "this user's manager" };
    let text = format!("no unit of {whose} is called {} and has a cgroup; --cgroup takes a path", escape(&name));
    Err(Problem::new(ProblemKind::NotFound, text))
}

fn user_id(user: &str) -> Result<u32, Problem> {
    let id = user.parse().ok().or_else(|| users::id(user)).ok_or_else(|| {
        Problem::new(ProblemKind::NotFound, format!("/etc/passwd has no user '{}'; give a number", escape(user)))
    })?;
    if id == 0 {
        let text = "user root runs the system: give processes, a tree, a unit or a cgroup".to_owned();
        return Err(Problem::new(ProblemKind::Protected, text));
    }
    Ok(id)
}
