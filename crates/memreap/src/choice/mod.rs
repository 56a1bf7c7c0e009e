//! Choosing the victim: exactly, at little cost.
//!
//! What counts is what comes back when a process dies: its private memory but for pages of files, and its
//! share of swap, which only a walk of its page tables tells (smaps_rollup). What /proc/PID/status says
//! (`RssAnon`, `RssShmem` and `VmSwap`) is cheap, and an upper bound once it is known how far its counters can
//! be off. So all processes are ranked by their bounds, and read exactly from the top down until the next
//! bound cannot beat the best exact figure: the same victim as if all had been read ([`search`]).
//!
//! With thousands of processes even the cheap readings take too long at the moment of the choice. They are
//! made beforehand ([`Chooser::refresh`]), a slice at a time, and stay upper bounds as the system's own
//! counters say how much can have been allocated since ([`table`]). Only those whose bound could still
//! beat the best are read again. When a kill may come soon, those that may be chosen are also read exactly
//! beforehand, and what is remembered of that decides if it provably still can ([`cache`]).
//!
//! (A bound grows by all that the system allocates, as it could have been this process. When that is more
//! than the best one has, every process is a candidate again, and only a look excludes it, in whatever order.
//! So refreshes must be more frequent than what it takes to allocate as much as the largest holds.)

mod cache;
mod groups;
mod readers;
mod search;
mod table;

use std::collections::BinaryHeap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::cgroup::{Hierarchy, Namespace};
use linux::process::{Comm, State};
use linux::scan::{self, Brief, Failure, File, Scan};
use linux::{Pid, PidFd, Root};
use rustix::fs::{CWD, Mode, OFlags};

use crate::kill::target;
use crate::policy::{Policy, Subject, Verdict};
use cache::{Figure, Memory, WORTH};
use groups::{Groups, Tally};
use readers::{Answer, COMMAND_LINE, Private, Readers};
use search::{Candidate, Readings, best};
use table::{Counters, Machine, Reading, Table};

/// The longest path of a cgroup that is remembered; a longer one is cut off.
pub const CGROUP: usize = 256;

/// A path of a cgroup, or as much of it as is remembered.
type Path = arrayvec::ArrayVec<u8, CGROUP>;

/// How long an exact reading may take, and all of a choice's together.
const EXACT: Duration = Duration::from_millis(50);
const ALL_EXACT: Duration = Duration::from_millis(100);
/// How long it is from one exact reading in advance to the next.
const AHEAD: Duration = Duration::from_millis(250);
/// How many times as long as the last one took is waited before the next: while a large process fills a
/// slow swap, it would otherwise be read all the time, at the cost of all others.
const PAUSE: u32 = 20;
/// How long a command line may take. Nobody is waiting for a victim then.
const TEXT: Duration = Duration::from_millis(20);
/// How old what is known of the cgroups may be.
const GROUPS_AGE: Duration = Duration::from_millis(500);
/// So many IDs are tried one by one for new processes; when there are more, all are listed.
const TRIED: u64 = 512;
/// IDs below this are not given away again after a wrap-around.
const RESERVED: u64 = 300;
/// The most members of a group that are looked at before it is said that all of them may be killed.
const MEMBERS: usize = 512;
/// How many candidates are remembered.
const EXPLAINED: usize = 32;
/// A line per process, and one of all its groups.
const BUFFER: usize = 128 << 10;
/// For the names in a directory.
const NAMES: usize = 32 << 10;

/// What a choice cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Processes there are.
    pub processes: u32,
    /// Cheap readings (statm, status), of which the upper bounds are made.
    pub cheap: u32,
    /// Exact readings (smaps_rollup).
    pub exact: u32,
    /// Exact readings that were not done in time.
    pub late: u32,
    /// How long it took.
    pub took: Duration,
}

/// Where a victim is looked for.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// Everywhere; with `by_cgroup` in the leaf cgroup that holds most.
    All {
        /// Choose a cgroup first.
        by_cgroup: bool,
    },
    /// In the cgroup with this path and those below it.
    Below(&'a [u8]),
}

/// A process that was chosen. It is held; what is told about it is its own.
#[derive(Debug)]
pub struct Choice {
    /// The handle on it.
    pub pidfd: PidFd,
    /// Its ID.
    pub pid: Pid,
    /// Its name.
    pub comm: Comm,
    /// Its user.
    pub uid: u32,
    /// Its cgroup in the v2 hierarchy; empty without one.
    pub cgroup: arrayvec::ArrayVec<u8, CGROUP>,
    /// What comes back when it dies, in bytes.
    pub bytes: u64,
    /// `bytes` is exact; else it is the upper bound.
    pub exact: bool,
    /// The size of its address space, in bytes.
    pub vm_size: u64,
    /// What all processes of its cgroup hold (anonymous memory and swap), in bytes, and how many they are; `None`
    /// without the memory controller.
    pub group: Option<Group>,
    /// The rule that weighed it.
    pub rule: Option<u16>,
    /// What the choice cost.
    pub cost: Cost,
}

/// A leaf cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Anonymous memory and swap in bytes.
    pub bytes: u64,
    /// Processes in it.
    pub processes: u32,
    /// No rule forbids to kill any of them.
    pub expendable: bool,
    /// memory.oom.group is set.
    pub oom_group: bool,
}

/// One that was considered in the last choice.
#[derive(Clone, Copy, Debug)]
pub struct Considered {
    /// Its ID.
    pub pid: Pid,
    /// Its name.
    pub comm: Comm,
    /// Its user.
    pub uid: u32,
    /// What comes back at most, in bytes.
    pub bound: u64,
    /// What comes back, or was taken for it, if it was looked at closely.
    pub bytes: Option<u64>,
    /// `bytes` is exact.
    pub exact: bool,
    /// What the policy says.
    pub verdict: Verdict,
    /// What counts: of the exact figure or the one taken for it, else of the bound.
    pub score: u64,
}

/// Chooses victims. All memory it needs is allocated when it is made.
pub struct Chooser {
    table: Table,
    groups: Option<Groups>,
    /// When the cgroups were found.
    walked: Option<Instant>,
    eyes: Eyes,
    readers: Arc<Readers>,
    heap: BinaryHeap<Candidate>,
    /// The last two looks for new processes.
    marks: Option<[Mark; 2]>,
    memory: Memory,
    /// Who would give back less is not chosen, in bytes.
    least: u64,
    /// The exact reading in advance that is not over.
    ahead: Option<Ahead>,
    /// When the last one began.
    began: Option<Instant>,
    /// How long that took, as far as it was noticed.
    lasted: Duration,
    /// Who is looked at next.
    cursor: usize,
    considered: Vec<Considered>,
    /// Those in a cgroup, and below, in order.
    members: Vec<Pid>,
}

/// What it takes to look at a process.
struct Eyes {
    scan: Arc<Scan>,
    readers: Arc<Readers>,
    machine: Machine,
    buffer: Vec<u8>,
    names: Vec<MaybeUninit<u8>>,
    text: Box<[u8; COMMAND_LINE]>,
    /// That of the process that was looked at last.
    cgroup: Path,
    /// Where the paths of cgroups begin, with a v2 hierarchy.
    namespace: Option<Namespace>,
    /// Same-page merging, where the kernel has it.
    ksm: Option<OwnedFd>,
    own: Pid,
    /// Ourselves, our parent, and so on.
    line: Vec<Pid>,
    cost: Cost,
}

/// An exact reading in advance.
struct Ahead {
    pidfd: PidFd,
    /// What was read before it began, and in which round.
    before: Reading,
    round: u32,
}

/// How far it had come with new processes at some time.
#[derive(Clone, Copy)]
struct Mark {
    last_pid: u64,
    forks: u64,
}

/// What of a process is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Its memory, and the rest if it seems to have changed.
    Memory,
    /// All but the command line.
    All,
    /// Also the command line, if it matters and is not known.
    CommandLine,
}

/// Where a victim must be.
#[derive(Clone, Copy)]
enum Within<'a> {
    Anywhere,
    Below(&'a [u8]),
    Leaf(usize),
}

/// One that was read exactly, and is held.
struct Found {
    pidfd: PidFd,
    pid: Pid,
    reading: Reading,
    cgroup: Path,
    bytes: u64,
    exact: bool,
}

impl Chooser {
    /// Gets ready for at most `processes` processes; when there are more, the rest is not looked at and
    /// [`Cost::processes`] says how many there are.
    ///
    /// # Errors
    /// When /proc cannot be opened or threads cannot be started.
    pub fn new(root: &Root, processes: usize) -> io::Result<Self> {
        let scan = Arc::new(Scan::open(root).map_err(io::Error::other)?);
        let readers = Arc::new(Readers::new(&scan)?);
        let hierarchy = Hierarchy::find(root).ok().flatten();
        let groups = hierarchy.as_ref().and_then(|h| Groups::open(&h.path, h.controls("memory")));
        let eyes = Eyes {
            scan,
            readers: Arc::clone(&readers),
            machine: Machine::find(root),
            buffer: vec![0; BUFFER],
            names: vec![MaybeUninit::uninit(); NAMES],
            text: Box::new([0; COMMAND_LINE]),
            cgroup: Path::new(),
            namespace: hierarchy.map(|h| h.namespace),
            ksm: open_ksm(root),
            own: Pid::own(),
            line: target::ancestry(root),
            cost: Cost::default(),
        };
        Ok(Self {
            table: Table::new(processes),
            groups,
            walked: None,
            eyes,
            readers,
            heap: BinaryHeap::with_capacity(processes.max(groups::CGROUPS) + 1),
            marks: None,
            memory: Memory::default(),
            least: 0,
            ahead: None,
            began: None,
            lasted: Duration::ZERO,
            cursor: 0,
            considered: Vec::with_capacity(EXPLAINED),
            members: Vec::with_capacity(processes),
        })
    }

    /// Brings what is known up to date for at most `budget`, so that a choice will be fast. New processes
    /// come first, then one after the other. It takes some milliseconds longer when all processes have to
    /// be listed: the first time, after many new ones, and once per turn.
    ///
    /// With `ahead`, when a kill may come soon, those who may be chosen are read exactly as well, one every
    /// now and then, by a thread that nobody waits for.
    pub fn refresh(&mut self, policy: &Policy, budget: Duration, ahead: bool) {
        let deadline = Instant::now() + budget;
        let now = self.begin();
        self.walk();
        self.catch_up(policy, &now, deadline);
        self.collect(Instant::now());
        if ahead {
            self.read_ahead(policy, &now);
        }
    }

    fn catch_up(&mut self, policy: &Policy, now: &Counters, deadline: Instant) {
        for index in 0..self.table.len() {
            if self.table.get(index).reading.is_none() {
                if Instant::now() >= deadline {
                    return;
                }
                self.look(index, policy, now, Look::CommandLine);
            }
        }
        for _ in 0..self.table.len() {
            if Instant::now() >= deadline {
                return;
            }
            if self.cursor >= self.table.len() {
                self.cursor = 0;
                // One that got an ID of its maker's choice has left no trace but this.
                self.list();
                if self.table.len() == 0 {
                    return;
                }
            }
            if self.table.get(self.cursor).round != self.table.round {
                self.look(self.cursor, policy, now, Look::CommandLine);
            }
            self.cursor += 1;
        }
    }

    /// Takes in what was read in advance, if it is there by then.
    fn collect(&mut self, deadline: Instant) {
        if self.ahead.is_none() {
            return;
        }
        let answer = self.readers.finish(deadline);
        if answer == Answer::Late {
            return;
        }
        self.lasted = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        if let (Some(ahead), Answer::Read(private)) = (self.ahead.take(), answer) {
            self.remember(ahead.pidfd, private, &ahead.before, ahead.round);
        }
    }

    /// Remembers an exact reading of a process that has been held since before it.
    fn remember(&mut self, pidfd: PidFd, private: Private, before: &Reading, round: u32) {
        let eyes = &mut self.eyes;
        let after = Counters::read(&eyes.scan, &eyes.machine, &mut eyes.buffer);
        if let Ok(after) = after
            && before.at != Counters::UNKNOWN
            && pidfd.is_alive().unwrap_or(false)
        {
            let allocated = after.allocated.saturating_sub(before.at.allocated);
            self.memory.keep(pidfd, Figure::new(private, before, round, allocated));
        }
    }

    /// What is remembered of a process, how much is new since, and what was read of it last.
    fn recall(&self, index: usize) -> Option<(&Figure, u64, &Reading)> {
        let entry = &self.table.entries()[index];
        let figure = self.memory.find(entry.pid)?;
        let newcomers = self.table.newcomers(figure.round, entry.pid)?;
        Some((figure, newcomers, entry.reading.as_ref()?))
    }

    /// Begins to read the one exactly that could have most, but for those that were read a short time ago,
    /// unless one of these is known to have more.
    fn read_ahead(&mut self, policy: &Policy, now: &Counters) {
        let pause = AHEAD.max(self.lasted * PAUSE);
        if self.ahead.is_some() || self.began.is_some_and(|began| began.elapsed() < pause) {
            return;
        }
        self.memory.fade();
        let least = self.memory.all().filter_map(|pid| {
            let (figure, newcomers, reading) = self.recall(self.table.find(pid)?)?;
            Some(reading.verdict.score(figure.least(reading, newcomers)))
        });
        let least = least.max().unwrap_or(0);
        let entries = self.table.entries().iter().enumerate();
        let top = entries
            .filter(|(_, entry)| !entry.gone && !self.memory.is_recent(entry.pid))
            .filter_map(|(index, entry)| {
                let reading = entry.reading.as_ref().filter(|reading| reading.eligible())?;
                let bound = reading.bound(now);
                Some((reading.verdict.score(bound), index)).filter(|_| bound >= WORTH)
            })
            .max();
        let Some((_, index)) = top.filter(|(score, _)| *score > least) else { return };
        let Ok(pidfd) = PidFd::open(self.table.get(index).pid) else { return };
        self.look(index, policy, now, Look::Memory);
        let Some(before) = self.table.get(index).reading.filter(Reading::eligible) else { return };
        if pidfd.check_permission().is_ok() && self.readers.begin(before.holder) {
            self.began = Some(Instant::now());
            self.ahead = Some(Ahead { pidfd, before, round: self.table.round });
        }
    }

    /// Forgets what is known of the processes. To be called when the policy has changed.
    pub fn forget(&mut self) {
        self.table.doubt(|_| true);
    }

    /// Chooses nobody from now on, by whatever weight, whose death gives back less than this, in bytes. In a group
    /// that gives back more, each alone may give less.
    pub fn set_least(&mut self, bytes: u64) {
        self.least = bytes;
    }

    /// The process whose death gives back most under this policy, or `None` when none may be killed.
    ///
    /// With `by_cgroup`, when a leaf cgroup that may be killed as a whole holds more than the process does,
    /// it is the best process in there: for a caller who kills the group, or its members one by one.
    pub fn choose(&mut self, policy: &Policy, scope: Scope<'_>) -> Option<Choice> {
        let began = Instant::now();
        self.eyes.cost = Cost::default();
        self.considered.clear();
        let found = self.search(policy, scope);
        self.considered.sort_unstable_by_key(|c| (std::cmp::Reverse(c.score), c.pid));
        let cost = &mut self.eyes.cost;
        let processes = self.table.entries().iter().filter(|entry| !entry.gone).count();
        cost.processes = u32::try_from(processes).unwrap_or(u32::MAX).saturating_add(self.table.left_out);
        cost.took = began.elapsed();
        let (found, group) = found?;
        Some(Choice {
            pidfd: found.pidfd,
            pid: found.pid,
            comm: found.reading.comm,
            uid: found.reading.uid,
            cgroup: found.cgroup,
            bytes: found.bytes,
            exact: found.exact,
            vm_size: found.reading.vm_size,
            group,
            rule: found.reading.verdict.rule,
            cost: self.eyes.cost,
        })
    }

    /// The next best of this cgroup among those that were considered in the last choice, by what it gives back at
    /// most: nobody but itself is looked at for it. Each is given once.
    pub fn another(&mut self, policy: &Policy, cgroup: &[u8]) -> Option<Choice> {
        let began = Instant::now();
        while !self.considered.is_empty() {
            let pid = self.considered.remove(0).pid;
            let Some(pidfd) = PidFd::open(pid).ok().filter(|pidfd| pidfd.check_permission().is_ok()) else {
                continue;
            };
            // What was known of it has the verdict; its memory is read anew, and is its own as it is held.
            let known = self.table.find(pid).and_then(|index| self.table.entries()[index].reading);
            let look = self.eyes.look(pid, known.as_ref(), policy, &Counters::UNKNOWN, Look::All);
            let Some(reading) = look.ok().filter(Reading::eligible) else { continue };
            if self.eyes.cgroup[..] != *cgroup || !pidfd.is_alive().unwrap_or(false) {
                continue;
            }
            return Some(Choice {
                pidfd,
                pid,
                comm: reading.comm,
                uid: reading.uid,
                cgroup: self.eyes.cgroup.clone(),
                bytes: reading.estimate(),
                exact: false,
                vm_size: reading.vm_size,
                group: None,
                rule: reading.verdict.rule,
                cost: Cost { took: began.elapsed(), ..Cost::default() },
            });
        }
        None
    }

    /// Those that were considered in the last choice, by falling score: all that were read exactly, and
    /// the next ones. None after the last of them could have been chosen.
    pub fn explain(&self) -> impl Iterator<Item = &Considered> {
        self.considered.iter()
    }

    /// What the last choice cost, also when nobody could be chosen.
    pub fn cost(&self) -> Cost {
        self.eyes.cost
    }

    fn search(&mut self, policy: &Policy, scope: Scope<'_>) -> Option<(Found, Option<Group>)> {
        let now = self.begin();
        let within = match scope {
            Scope::All { .. } => {
                self.walk();
                Within::Anywhere
            }
            Scope::Below(path) => {
                self.list_below(path);
                Within::Below(path)
            }
        };
        let mut search = Search { chooser: self, policy, now, left: ALL_EXACT, within };
        let mut best = search.best_process();
        if let Scope::All { by_cgroup: true } = scope
            && let Some((score, leaf)) = search.best_group()
            && best.as_ref().is_none_or(|(process, _)| score > *process)
            && search.chooser.list_members(leaf)
        {
            search.within = Within::Leaf(leaf);
            search.chooser.considered.clear();
            // In a group that has just vanished is nobody.
            best = search.best_process().or(best);
        }
        let (_, found) = best?;
        let group = search.describe(&found);
        Some((found, group))
    }

    /// What each refresh and choice begins with: takes out what is gone, finds what is new.
    fn begin(&mut self) -> Counters {
        self.table.round = self.table.round.wrapping_add(1);
        self.table.clear_gone();
        self.find_new();
        let eyes = &mut self.eyes;
        Counters::read(&eyes.scan, &eyes.machine, &mut eyes.buffer).unwrap_or_else(|_| {
            // How old readings have aged cannot be told.
            self.table.doubt(|_| true);
            Counters::UNKNOWN
        })
    }

    /// Makes new processes known. Their IDs are those that have been given away since last time, as long as
    /// that did not go around.
    ///
    /// (Forks that fail use up IDs, too, and are not counted. Should that ever hide a wrap-around, a process
    /// is taken for its predecessor until it is looked at again.)
    fn find_new(&mut self) {
        let eyes = &mut self.eyes;
        let Ok(last_pid) = eyes.scan.last_pid() else {
            self.marks = None;
            return self.list();
        };
        let last_pid = u64::from(last_pid.unsigned_abs());
        if let Some([older, newer]) = self.marks
            && older.last_pid == last_pid
            && newer.last_pid == last_pid
        {
            return;
        }
        let Ok(forks) = eyes.scan.forks(&mut eyes.buffer) else {
            self.marks = None;
            return self.list();
        };
        let now = Mark { last_pid, forks };
        let Some([older, newer]) = self.marks.replace([now, now]) else {
            return self.list();
        };
        // Those since the last time but one: an ID that was given away need not have had a process yet.
        self.marks = Some([newer, now]);
        let (old, new) = (older.last_pid, now.last_pid);
        if forks.saturating_sub(older.forks).saturating_add(RESERVED) >= eyes.machine.pid_max {
            self.table.doubt(|_| true);
            return self.list();
        }
        let given = |pid: i32| {
            let pid = u64::from(pid.unsigned_abs());
            if new < old { pid > old || pid <= new } else { pid > old && pid <= new }
        };
        self.table.doubt(given);
        if new < old || new - old > TRIED {
            return self.list();
        }
        for pid in (old + 1)..=new {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::new) {
                self.table.add(pid);
            }
        }
    }

    /// Lists all processes. Those that are not there are gone.
    fn list(&mut self) {
        let table = &mut self.table;
        table.left_out = 0;
        let mut next = 0;
        let listed = self.eyes.scan.pids(&mut self.eyes.names, |pid| {
            while next < table.len() && table.get(next).pid < pid {
                table.get(next).gone = true;
                next += 1;
            }
            table.add(pid);
            if next < table.len() && table.get(next).pid == pid {
                table.get(next).gone = false;
                next += 1;
            }
            true
        });
        if listed.is_ok() {
            for index in next..table.len() {
                table.get(index).gone = true;
            }
        }
        table.clear_gone();
    }

    /// Finds the cgroups, unless that was just done.
    fn walk(&mut self) {
        if let Some(groups) = &mut self.groups
            && groups.controlled()
            && self.walked.is_none_or(|walked| walked.elapsed() > GROUPS_AGE)
        {
            groups.walk(b"", &mut self.eyes.names);
            self.walked = Some(Instant::now());
        }
    }

    /// Lists those in a cgroup and below.
    fn list_below(&mut self, path: &[u8]) {
        self.members.clear();
        let Some(groups) = &mut self.groups else { return };
        groups.walk(path, &mut self.eyes.names);
        // Other cgroups are not known now.
        self.walked = None;
        let members = &mut self.members;
        groups.all_members(&mut self.eyes.buffer, |pid| {
            if members.len() < members.capacity() {
                members.extend(pid);
            }
        });
        members.sort_unstable();
        for pid in members {
            self.table.add(*pid);
        }
    }

    /// Lists those in a leaf; false when that cannot be told.
    fn list_members(&mut self, leaf: usize) -> bool {
        self.members.clear();
        let Some(groups) = &self.groups else { return false };
        let members = &mut self.members;
        let mut all = true;
        let told = groups.members(leaf, &mut self.eyes.buffer, |pid| {
            all &= pid.is_some() && members.len() < MEMBERS.min(members.capacity());
            if all {
                members.extend(pid);
            }
        });
        members.sort_unstable();
        told && all
    }

    /// Looks at a process; it has a reading afterwards, unless it is gone or cannot be read.
    fn look(&mut self, index: usize, policy: &Policy, now: &Counters, look: Look) {
        let round = self.table.round;
        let entry = self.table.get(index);
        let read = self.eyes.look(entry.pid, entry.reading.as_ref(), policy, now, look);
        entry.round = round;
        entry.gone = read == Err(Failure::Gone);
        entry.reading = read.ok();
    }
}

impl Eyes {
    /// Reads what is to be known of a process. `old` is what was known of it.
    fn look(
        &mut self,
        pid: Pid,
        old: Option<&Reading>,
        policy: &Policy,
        now: &Counters,
        look: Look,
    ) -> Result<Reading, Failure> {
        self.cost.cheap = self.cost.cheap.saturating_add(1);
        let brief = self.brief(pid)?;
        if brief.tgid != pid {
            // A thread.
            return Err(Failure::Gone);
        }
        // When a process's first thread ends before the others, it looks like a zombie, without memory; the
        // others have it.
        let headless = !brief.has_memory && brief.state == State::Zombie && brief.threads > 1;
        let (holder, memory) =
            if headless { self.other_thread(pid).unwrap_or((pid, brief)) } else { (pid, brief) };
        let leader = brief.session == Some(pid);
        let mut reading = Reading {
            comm: brief.comm,
            uid: brief.uid,
            leader,
            holder,
            has_memory: memory.has_memory,
            killed: brief.killed || memory.killed,
            vm_size: memory.vm_size,
            anon: memory.rss_anon.saturating_add(memory.swap),
            mapped: memory.rss_shmem,
            slack: self.machine.slack(memory.threads).saturating_mul(2),
            at: *now,
            verdict: Verdict { never: false, factor: 1.0, offset: 0, rule: None },
            judged: 0,
            command_line: false,
            cgroup: 0,
        };
        let old = old.filter(|old| (old.comm, old.uid, old.leader) == (brief.comm, brief.uid, leader));
        if !reading.has_memory {
            return Ok(reading);
        }
        if look == Look::Memory
            && let Some(old) = old
        {
            reading.verdict = old.verdict;
            reading.judged = old.judged;
            reading.command_line = old.command_line;
            reading.cgroup = old.cgroup;
            return Ok(reading);
        }
        self.judge(pid, &brief, &mut reading, old, policy, look)?;
        Ok(reading)
    }

    /// Reads the rest of what the policy asks for, and asks the policy unless it was asked that before.
    fn judge(
        &mut self,
        pid: Pid,
        brief: &Brief,
        reading: &mut Reading,
        old: Option<&Reading>,
        policy: &Policy,
        look: Look,
    ) -> Result<(), Failure> {
        let file = self.scan.process(pid, File::OomScoreAdj, &mut self.buffer)?;
        let oom_score_adj = scan::adjustment(file).ok_or(Failure::Malformed)?;
        self.cgroup.clear();
        if let Some(namespace) = &self.namespace {
            let file = self.scan.process(pid, File::Cgroup, &mut self.buffer)?;
            let told = scan::cgroup(file);
            let path = namespace.resolve(told).unwrap_or([b"", told]);
            self.cgroup = groups::shortened(path);
            // What was cut off is no path of a group.
            let whole = self.cgroup.len() == path[0].len() + path[1].len();
            reading.cgroup = groups::hash(if whole { &self.cgroup } else { b"" });
        }
        let mut hasher = DefaultHasher::new();
        (brief.comm, brief.uid, reading.leader, reading.cgroup, oom_score_adj).hash(&mut hasher);
        reading.judged = hasher.finish();
        let ask = policy.needs_command_line() && look == Look::CommandLine;
        if let Some(old) = old.filter(|old| old.judged == reading.judged && (old.command_line || !ask)) {
            reading.verdict = old.verdict;
            reading.command_line = old.command_line;
        } else {
            let mut len = 0;
            if ask
                && let Answer::Read(got) =
                    self.readers.command_line(reading.holder, Instant::now() + TEXT, &mut self.text)
            {
                len = got;
                reading.command_line = true;
            }
            reading.verdict = policy.judge(&Subject {
                pid,
                comm: brief.comm.as_bytes(),
                command_line: &self.text[..len],
                uid: brief.uid,
                cgroup: &self.cgroup,
                oom_score_adj,
            });
        }
        // Whatever the policy says.
        reading.verdict.never |= pid.get() == 1
            || pid == self.own
            || brief.ppid == Some(self.own)
            || self.line.contains(&pid)
            || oom_score_adj == -1000;
        Ok(())
    }

    fn brief(&mut self, pid: Pid) -> Result<Brief, Failure> {
        Brief::parse(self.scan.process(pid, File::Status, &mut self.buffer)?).ok_or(Failure::Malformed)
    }

    /// Same-page merging is at work, or it cannot be told.
    fn merges(&self) -> bool {
        let mut buffer = [0; 16];
        self.ksm
            .as_ref()
            .is_some_and(|ksm| scan::file(ksm, c"run", &mut buffer).map_or(true, |run| run.starts_with(b"1")))
    }

    /// A thread that still has the process's memory.
    fn other_thread(&mut self, pid: Pid) -> Option<(Pid, Brief)> {
        let (scan, buffer) = (&self.scan, &mut self.buffer);
        let mut found = None;
        let listed = scan.threads(pid, &mut self.names, |thread| {
            found = scan
                .process(thread, File::Status, buffer)
                .ok()
                .and_then(Brief::parse)
                .filter(|brief| brief.tgid == pid && brief.has_memory)
                .map(|brief| (thread, brief));
            found.is_none()
        });
        listed.ok().and(found)
    }
}

/// A choice that is being made.
struct Search<'a> {
    chooser: &'a mut Chooser,
    policy: &'a Policy,
    now: Counters,
    /// How long exact readings may still take.
    left: Duration,
    within: Within<'a>,
}

impl Search<'_> {
    /// The process with the greatest score, and that.
    fn best_process(&mut self) -> Option<(u64, Found)> {
        let mut heap = std::mem::take(&mut self.chooser.heap);
        heap.clear();
        let members = match self.within {
            Within::Anywhere => None,
            Within::Below(_) | Within::Leaf(_) => Some(&self.chooser.members),
        };
        for (index, entry) in self.chooser.table.entries().iter().enumerate() {
            let bound = match &entry.reading {
                // Of what has no memory there is nothing to be had; what comes from a kernel thread (few
                // programs do) is found at the next refresh.
                Some(reading) if !reading.eligible() || reading.bound(&self.now) < self.least() => continue,
                Some(reading) => reading.verdict.score(reading.bound(&self.now)),
                None => u64::MAX,
            };
            if !entry.gone && members.is_none_or(|members| members.binary_search(&entry.pid).is_ok()) {
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                heap.push(Candidate { bound, pid: entry.pid.get(), index, fresh: false });
            }
        }
        let best = best(&mut heap, self);
        // Who would have been next.
        while self.chooser.considered.len() < EXPLAINED
            && let Some(next) = heap.pop()
        {
            self.note(next.index as usize, next.bound, None, false);
        }
        self.chooser.heap = heap;
        best
    }

    /// The leaf cgroup with the greatest score that may be killed as a whole.
    fn best_group(&mut self) -> Option<(u64, usize)> {
        let chooser = &mut *self.chooser;
        let groups = chooser.groups.as_mut().filter(|groups| groups.controlled())?;
        groups.tally(chooser.table.entries());
        let mut heap = std::mem::take(&mut chooser.heap);
        heap.clear();
        let least = chooser.least;
        groups.expendable(|index, bytes, verdict| {
            if bytes < least {
                return;
            }
            let id = i32::try_from(index).unwrap_or(i32::MAX);
            let bound = verdict.score(bytes);
            heap.push(Candidate { bound, pid: id, index: id.unsigned_abs(), fresh: true });
        });
        let best = best(&mut heap, &mut GroupSearch(self));
        self.chooser.heap = heap;
        best
    }

    /// What is to be told of the group of a victim.
    fn describe(&mut self, found: &Found) -> Option<Group> {
        let groups = self.chooser.groups.as_ref()?;
        let leaf = groups.leaf(found.reading.cgroup)?;
        let (bytes, oom_group) = groups.bytes(leaf, &mut self.chooser.eyes.buffer)?;
        let tally = self.members(leaf);
        Some(Group {
            bytes,
            processes: tally.map_or(0, |tally| tally.processes),
            expendable: tally.is_some_and(|tally| tally.expendable()),
            oom_group,
        })
    }

    /// Looks at all members of a leaf; `None` when they are too many or cannot be told.
    fn members(&mut self, leaf: usize) -> Option<Tally> {
        let chooser = &mut *self.chooser;
        if !chooser.list_members(leaf) {
            return None;
        }
        let mut tally = Tally::EMPTY;
        for pid in &chooser.members {
            let known = chooser.table.find(*pid);
            let old = known.and_then(|index| chooser.table.entries()[index].reading);
            match chooser.eyes.look(*pid, old.as_ref(), self.policy, &self.now, Look::All) {
                Ok(reading) => tally.count(&reading),
                Err(Failure::Gone) => {}
                Err(_) => return None,
            }
        }
        Some(tally)
    }

    /// Remembers one for [`Chooser::explain`].
    fn note(&mut self, index: usize, score: u64, bytes: Option<u64>, exact: bool) {
        let entry = &self.chooser.table.entries()[index];
        let Some(reading) = &entry.reading else { return };
        // Not beyond what there is room for: this may be the one that is wanted.
        if self.chooser.considered.len() < EXPLAINED {
            self.chooser.considered.push(Considered {
                pid: entry.pid,
                comm: reading.comm,
                uid: reading.uid,
                bound: reading.bound(&self.now),
                bytes,
                exact,
                verdict: reading.verdict,
                score,
            });
        }
    }
}

impl Readings for Search<'_> {
    type Found = Found;

    fn look(&mut self, index: u32) -> Option<u64> {
        let index = index as usize;
        self.chooser.look(index, self.policy, &self.now, Look::Memory);
        let reading = self.chooser.table.get(index).reading.as_ref().filter(|r| r.eligible())?;
        Some(reading.verdict.score(reading.bound(&self.now)))
    }

    fn floor(&mut self, index: u32) -> Option<u64> {
        let index = index as usize;
        let chooser = &mut *self.chooser;
        if chooser.eyes.merges() {
            return None;
        }
        let pid = chooser.table.get(index).pid;
        let coming = chooser.ahead.as_ref().is_some_and(|ahead| ahead.pidfd.opened_as() == pid);
        let began = Instant::now();
        // It has a start, so it is waited for rather than begun anew.
        let wait =
            if coming && chooser.memory.find(pid).is_none() { EXACT.min(self.left) } else { Duration::ZERO };
        chooser.collect(began + wait);
        self.left = self.left.saturating_sub(began.elapsed());
        let (figure, newcomers, reading) = chooser.recall(index)?;
        Some(reading.verdict.score(figure.least(reading, newcomers)))
    }

    fn recall(&mut self, index: u32) -> Option<(u64, Found)> {
        let index = index as usize;
        let (pidfd, reading) = self.hold(index)?;
        // What was remembered may have got too old just now.
        let (bytes, exact) = self
            .chooser
            .recall(index)
            .map_or((reading.estimate(), false), |(figure, newcomers, now)| figure.likely(now, newcomers));
        self.found(index, pidfd, reading, bytes, exact)
    }

    fn exact(&mut self, index: u32) -> Option<(u64, Found)> {
        let index = index as usize;
        let (pidfd, reading) = self.hold(index)?;
        let chooser = &mut *self.chooser;
        let cost = &mut chooser.eyes.cost;
        let began = Instant::now();
        let answer = chooser.readers.private(reading.holder, began + EXACT.min(self.left));
        self.left = self.left.saturating_sub(began.elapsed());
        let (bytes, exact) = match answer {
            Answer::Read(private) => {
                cost.exact += 1;
                if private.own >= WORTH
                    && let Ok(another) = PidFd::open(pidfd.opened_as())
                {
                    chooser.remember(another, private, &reading, chooser.table.round);
                }
                (private.bytes, true)
            }
            Answer::Late => {
                cost.late += 1;
                let known =
                    chooser.recall(index).map(|(figure, newcomers, now)| figure.likely(now, newcomers));
                (known.map_or(reading.estimate(), |(bytes, _)| bytes), false)
            }
            // What must not be looked at can still be killed, perhaps.
            Answer::Failed(Failure::Denied) => (reading.estimate(), false),
            Answer::Failed(_) => return None,
        };
        self.found(index, pidfd, reading, bytes, exact)
    }
}

impl Search<'_> {
    /// Who would give back less is not chosen, in bytes.
    fn least(&self) -> u64 {
        // All of the group gives back more.
        if matches!(self.within, Within::Leaf(_)) { 0 } else { self.chooser.least }
    }

    /// Holds a process and looks at it.
    fn hold(&mut self, index: usize) -> Option<(PidFd, Reading)> {
        let chooser = &mut *self.chooser;
        let pid = chooser.table.get(index).pid;
        // Held before anything is read that is believed, and still alive after: so it was its own.
        let pidfd = PidFd::open(pid).ok()?;
        if pidfd.check_permission().is_err() {
            return None;
        }
        chooser.look(index, self.policy, &self.now, Look::All);
        let reading = chooser.table.get(index).reading.filter(Reading::eligible)?;
        let inside = match (self.within, &chooser.groups) {
            (Within::Anywhere, _) => true,
            (Within::Below(path), _) => groups::is_below(&chooser.eyes.cgroup, path),
            (Within::Leaf(leaf), Some(groups)) => groups.leaf(reading.cgroup) == Some(leaf),
            (Within::Leaf(_), None) => false,
        };
        inside.then_some((pidfd, reading))
    }

    /// What was found out about a process that was looked at last, if it still lives.
    fn found(
        &mut self,
        index: usize,
        pidfd: PidFd,
        reading: Reading,
        bytes: u64,
        exact: bool,
    ) -> Option<(u64, Found)> {
        if bytes < self.least().max(1) || !pidfd.is_alive().unwrap_or(false) {
            return None;
        }
        let score = reading.verdict.score(bytes);
        let cgroup = self.chooser.eyes.cgroup.clone();
        self.note(index, score, Some(bytes), exact);
        let pid = pidfd.opened_as();
        Some((score, Found { pidfd, pid, reading, cgroup, bytes, exact }))
    }
}

/// The search for the best group.
struct GroupSearch<'a, 'b>(&'a mut Search<'b>);

impl Readings for GroupSearch<'_, '_> {
    type Found = usize;

    fn look(&mut self, _index: u32) -> Option<u64> {
        // All bounds are fresh.
        None
    }

    fn floor(&mut self, _index: u32) -> Option<u64> {
        None
    }

    fn recall(&mut self, _index: u32) -> Option<(u64, usize)> {
        None
    }

    fn exact(&mut self, index: u32) -> Option<(u64, usize)> {
        let index = index as usize;
        let tally = self.0.members(index).filter(Tally::expendable)?;
        let groups = self.0.chooser.groups.as_ref()?;
        let (bytes, _) = groups.bytes(index, &mut self.0.chooser.eyes.buffer)?;
        Some((tally.verdict.score(bytes), index))
    }
}

/// The controls of same-page merging, if there are any.
fn open_ksm(root: &Root) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, root.sys().join("kernel/mm/ksm"), flags, Mode::empty()).ok()
}

#[cfg(test)]
mod tests;
