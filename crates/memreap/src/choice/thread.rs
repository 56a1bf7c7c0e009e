// SPDX-License-Identifier: GPL-2.0-only
//! The chooser in a thread of its own, for a caller that must never wait.
//!
//! Whatever is opened or read below /proc, the kernel allocates some memory for. A thread that allocates when
//! none is left waits until there is some (`throttle_direct_reclaim` in the kernel): 2 to 13 s were measured,
//! and the kernel's OOM killer acted sooner. So the thread that decides reads only files that it has open
//! until the kill, and has this one choose. When the answer is late, it takes the victim that was last chosen in
//! advance: this thread chooses until it has to wait, so that one was the best when memory ran out.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use linux::{Pid, PidFd, scan};

use super::cgroup_path::CgroupPath;
use super::chooser::Chooser;
use super::holder::Holder;
use super::leaf::Leaf;
use super::result::{Choice, CommandLine, Grouping, MAX_POOL, Parent, Scope};
use crate::kill::prestarted;
use crate::policy::Policy;

/// How long a caller waits for its answer. If the thread is busy with what nobody waits for, a refresh as a rule, the
/// caller first waits for the end of that, until it has taken as long. A choice among a thousand processes takes
/// a tenth of it.
const TIMEOUT: Duration = Duration::from_millis(250);
/// How long it may take to find out who holds memory by descriptors.
const HOLDER_TIMEOUT: Duration = Duration::from_millis(150);
/// How long it may take when nothing is short.
const REHEARSAL_TIMEOUT: Duration = Duration::from_secs(5);
/// The time from one choice in advance to the next when a kill is possible, and at least when it is imminent. The
/// first is made as soon as memory is low: later the kernel may not answer.
const POSSIBLE_INTERVAL: Duration = Duration::from_secs(2);
const IMMINENT_INTERVAL: Duration = Duration::from_millis(250);
/// Between these two it is so many times as long as the choice took: that reads page tables exactly, and in a large
/// process it takes a CPU from all others, also where nobody has to die in the end.
const INTERVAL_FACTOR: u32 = 20;
/// The time between two readings of the same process's command line, at least: it may wait for the process.
const COMMAND_LINE_INTERVAL: Duration = Duration::from_secs(2);
/// A choice that is not older is as good as a new one.
const MAX_YOUNG_AGE: Duration = Duration::from_millis(100);
/// An older choice is not used.
const MAX_AHEAD_AGE: Duration = Duration::from_secs(15);
/// An older group is not killed as a whole: a little more than from one choice in advance to the next.
const MAX_GROUP_AGE: Duration = Duration::from_secs(3);
const STACK_BYTES: usize = 256 << 10;

/// How close a kill is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Danger {
    /// There is enough memory.
    #[default]
    None,
    /// Memory is low.
    Possible,
    /// And it will be gone within seconds.
    Imminent,
}

/// Why nothing was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoVictim {
    /// Nothing may be killed, or is large enough.
    None,
    /// The kernel has not answered yet.
    Late,
}

/// The thread. It ends when this is dropped, unless it has to wait.
pub struct ChooserThread {
    shared: Arc<Shared>,
    /// How long a caller waits.
    timeout: Duration,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Victims that die together: as many as share a memory, or are of one cgroup.
type Killed = ArrayVec<Pid, { MAX_POOL + 1 }>;

struct State {
    work: Work,
    settings: Settings,
    /// The last victim of all that was chosen for nobody who waited, and when.
    ahead: Option<(Instant, Choice)>,
    /// The processes that were killed last, until the thread knows that.
    killed: Killed,
    findings: Findings,
}

/// What the thread has found out besides.
#[derive(Clone, Copy, Default)]
struct Findings {
    /// How many processes there were at the last choice.
    processes: u32,
    /// Who holds most memory by descriptors, if that was asked for.
    holder: Option<Holder>,
}

/// How to choose.
#[derive(Clone)]
struct Settings {
    policy: Arc<Policy>,
    grouping: Grouping,
    /// What was chosen by another version is not used.
    version: u32,
}

#[expect(clippy::large_enum_variant, reason = "nothing may be allocated")]
enum Work {
    /// Nothing to do.
    None,
    Asked(Request),
    Running {
        since: Instant,
        /// Somebody waits for the answer.
        awaited: bool,
    },
    /// The answer to who waits.
    Done(Option<Choice>),
    /// There will be no more requests.
    End,
}

enum Request {
    Refresh {
        budget: Duration,
        danger: Danger,
        min_bytes: u64,
    },
    /// Choose in the cgroup with this path, or anywhere.
    Choose {
        below: Option<CgroupPath>,
        min_bytes: u64,
    },
    Another {
        cgroup: CgroupPath,
    },
    Recheck {
        pid: Pid,
    },
    /// Find out who holds most memory by descriptors.
    Holder,
    Rehearse {
        dummy: Pid,
    },
}

impl ChooserThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When that fails.
    pub fn start(chooser: Chooser, policy: Arc<Policy>, grouping: Grouping) -> io::Result<Self> {
        let settings = Settings { policy, grouping, version: 0 };
        let state =
            State { work: Work::None, settings, ahead: None, killed: Killed::new(), findings: Findings::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let own = Arc::clone(&shared);
        prestarted::start("chooser", STACK_BYTES, move || {
            // The caller waits for it.
            let _ = prestarted::raise_priority();
            let mut worker = Worker { chooser, version: 0, chosen_ahead: None, known: None };
            own.work(|settings, killed, request| worker.run(settings, killed, request));
        })?;
        Ok(Self { shared, timeout: TIMEOUT })
    }

    /// Chooses by another policy from now on.
    pub fn reconfigure(&self, policy: Arc<Policy>, grouping: Grouping) {
        let mut state = self.shared.lock();
        let version = state.settings.version.wrapping_add(1);
        state.settings = Settings { policy, grouping, version };
        state.ahead = None;
    }

    /// Begins to update what is known, as [`Chooser::refresh`], unless the thread has something else to do.
    /// In danger it also chooses a victim in advance, from time to time.
    pub fn refresh(&self, budget: Duration, danger: Danger, min_bytes: u64) {
        let mut state = self.shared.lock();
        if danger == Danger::None {
            state.ahead = None;
        }
        if matches!(state.work, Work::None) {
            state.work = Work::Asked(Request::Refresh { budget, danger, min_bytes });
            self.shared.changed.notify_all();
        }
    }

    /// Chooses a victim that gives back at least `min_bytes`, below a cgroup or, with `None`, anywhere.
    ///
    /// # Errors
    /// Why there is none.
    pub fn choose(&self, below: Option<CgroupPath>, min_bytes: u64) -> Result<Choice, NoVictim> {
        let anywhere = below.is_none();
        let is_young = |(when, _): &mut (Instant, Choice)| anywhere && when.elapsed() < MAX_YOUNG_AGE;
        let young = self.shared.lock().ahead.take_if(is_young);
        if let Some((_, choice)) = young.filter(|(_, choice)| choice.is_still_good(min_bytes)) {
            return Ok(choice);
        }
        let answer = self.shared.ask(Request::Choose { below, min_bytes }, self.timeout);
        // Once: it may be the one that is killed now.
        let ahead = self.shared.lock().ahead.take_if(|_| anywhere || answer.is_some());
        if let Some(choice) = answer {
            return choice.ok_or(NoVictim::None);
        }
        ahead
            .filter(|(when, choice)| when.elapsed() < MAX_AHEAD_AGE && choice.is_still_good(min_bytes))
            // Another one that must not be killed may share the memory by now.
            .filter(|(_, choice)| choice.gives_back_alone())
            .map(|(when, choice)| choice.with_group_of(when.elapsed()))
            .ok_or(NoVictim::Late)
    }

    /// Takes what was last chosen in advance among all processes, and when that was. Does not wait.
    pub fn take_ahead(&self) -> Option<(Instant, Choice)> {
        self.shared.lock().ahead.take()
    }

    /// Returns what `read` reads of what was last chosen in advance, if there is anything. Does not wait.
    pub fn read_ahead<T>(&self, read: impl FnOnce(&Choice) -> T) -> Option<T> {
        self.shared.lock().ahead.as_ref().map(|(_, choice)| read(choice))
    }

    /// Gives it back, unless there is a later one.
    pub fn keep_ahead(&self, when: Instant, choice: Choice) {
        self.shared.lock().ahead.get_or_insert((when, choice));
    }

    /// Returns the next best process of a cgroup, as [`Chooser::another`], if that is known in time.
    pub fn another(&self, cgroup: &CgroupPath) -> Option<Choice> {
        self.shared.ask(Request::Another { cgroup: cgroup.clone() }, self.timeout).flatten()
    }

    /// Returns what is to be said now about a process that was chosen some time ago.
    ///
    /// # Errors
    /// When it may not be killed any more, or that is not known in time.
    pub fn recheck(&self, pid: Pid) -> Result<Choice, NoVictim> {
        self.shared.ask(Request::Recheck { pid }, self.timeout).ok_or(NoVictim::Late)?.ok_or(NoVictim::None)
    }

    /// Notes that a process was killed for its memory, as [`Chooser::note_kill`].
    pub fn note_kill(&self, pid: Pid) {
        // Those for which there is no room are no victims for as long as they are seen to die.
        let _ = self.shared.lock().killed.try_push(pid);
    }

    /// Returns the process that holds most memory by descriptors, if that is known in time.
    pub fn largest_holder(&self) -> Option<Holder> {
        self.shared.ask(Request::Holder, self.timeout)?;
        self.shared.lock().findings.holder
    }

    /// Does what [`Chooser::rehearse`] does.
    pub fn rehearse(&self, dummy: Pid) {
        self.shared.ask(Request::Rehearse { dummy }, REHEARSAL_TIMEOUT);
    }

    /// Returns how many processes there were at the last choice.
    pub fn processes(&self) -> u32 {
        self.shared.lock().findings.processes
    }
}

impl Drop for ChooserThread {
    fn drop(&mut self) {
        self.shared.lock().work = Work::End;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread do something, and returns its answer; `None` when it is late.
    fn ask(&self, request: Request, timeout: Duration) -> Option<Option<Choice>> {
        let mut request = Some(request);
        let mut deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            match std::mem::replace(&mut state.work, Work::None) {
                Work::None => {
                    state.work = Work::Asked(request.take()?);
                    self.changed.notify_all();
                    deadline = Instant::now() + timeout;
                }
                Work::Done(choice) => return Some(choice),
                other => {
                    if let Work::Running { since, awaited: false } = other {
                        deadline = deadline.min(since + timeout);
                    }
                    state.work = other;
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                match &mut state.work {
                    Work::Running { awaited, .. } => *awaited = false,
                    // A request that has not begun is withdrawn.
                    work => *work = Work::None,
                }
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What the thread does: one request after the other. `run` returns also what it has found out besides.
    fn work(&self, mut run: impl FnMut(&Settings, Killed, Request) -> (Option<Choice>, Findings)) {
        let mut state = self.lock();
        loop {
            let request = match std::mem::replace(&mut state.work, Work::None) {
                Work::Asked(request) => request,
                Work::End => return,
                other => {
                    state.work = other;
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
            };
            let (settings, killed) = (state.settings.clone(), std::mem::take(&mut state.killed));
            let awaited = !matches!(request, Request::Refresh { .. });
            state.work = Work::Running { since: Instant::now(), awaited };
            drop(state);
            let anywhere = matches!(request, Request::Refresh { .. } | Request::Choose { below: None, .. });
            let (choice, findings) = run(&settings, killed, request);
            state = self.lock();
            state.findings = findings;
            match &state.work {
                Work::End => return,
                Work::Running { awaited: true, .. } => state.work = Work::Done(choice),
                _ => {
                    state.work = Work::None;
                    // An answer that came too late is of use the next time.
                    if let Some(choice) = choice
                        && anywhere
                        && state.settings.version == settings.version
                        && !state.killed.contains(&choice.pid)
                    {
                        state.ahead = Some((Instant::now(), choice));
                    }
                }
            }
            self.changed.notify_all();
        }
    }
}

/// What the thread has.
struct Worker {
    chooser: Chooser,
    /// Of the settings that it knows the processes by.
    version: u32,
    /// When it last began to choose in advance, and how long that took.
    chosen_ahead: Option<(Instant, Duration)>,
    /// The process that was chosen last.
    known: Option<Known>,
}

/// What a kill's record says of a process that the choice does not need.
struct Known {
    pidfd: PidFd,
    /// When it was read.
    at: Instant,
    parent: Option<Parent>,
    command_line: CommandLine,
}

impl Worker {
    fn run(&mut self, settings: &Settings, killed: Killed, request: Request) -> (Option<Choice>, Findings) {
        let (chooser, policy) = (&mut self.chooser, &settings.policy);
        if std::mem::replace(&mut self.version, settings.version) != settings.version {
            chooser.forget();
        }
        killed.into_iter().for_each(|pid| chooser.note_kill(pid));
        chooser.set_grouping(settings.grouping);
        let mut holder = None;
        let mut choice = match request {
            Request::Refresh { budget, danger, min_bytes } => {
                chooser.refresh(policy, budget);
                let is_due = self.chosen_ahead.is_none_or(|(when, took)| when.elapsed() >= interval(danger, took));
                if danger > Danger::None && is_due {
                    chooser.set_min_bytes(min_bytes);
                    let began = Instant::now();
                    let choice = chooser.choose(policy, Scope::All);
                    self.chosen_ahead = Some((began, began.elapsed()));
                    choice
                } else {
                    None
                }
            }
            Request::Choose { below, min_bytes } => {
                chooser.set_min_bytes(min_bytes);
                chooser.choose(policy, below.as_ref().map_or(Scope::All, |path| Scope::Below(path)))
            }
            // It is in the record of another one.
            Request::Another { cgroup } => {
                let findings = Findings { processes: chooser.cost().processes, holder };
                return (chooser.another(policy, &cgroup), findings);
            }
            Request::Recheck { pid } => {
                chooser.set_min_bytes(0);
                chooser.choose(policy, Scope::One(pid))
            }
            Request::Holder => {
                holder = chooser.largest_holder(HOLDER_TIMEOUT);
                None
            }
            Request::Rehearse { dummy } => {
                chooser.rehearse(policy, dummy);
                None
            }
        };
        if let Some(choice) = &mut choice {
            self.describe(choice);
        }
        (choice, Findings { processes: self.chooser.cost().processes, holder })
    }

    /// Adds to a choice what the record of its kill says besides: after the kill it cannot be read any more.
    fn describe(&mut self, choice: &mut Choice) {
        let is_same = |known: &Known| known.pidfd.opened_as() == choice.pid && known.pidfd.is_alive().unwrap_or(false);
        let known = self.known.take().filter(is_same);
        let known = match known {
            Some(known) if known.at.elapsed() < COMMAND_LINE_INTERVAL => Some(known),
            older => {
                let (parent, mut command_line) = self.chooser.describe(choice);
                // What cannot be read in time is what it was.
                if command_line.is_empty()
                    && let Some(older) = older
                {
                    command_line = older.command_line;
                }
                PidFd::open(choice.pid).ok().map(|pidfd| Known { pidfd, at: Instant::now(), parent, command_line })
            }
        };
        if let Some(known) = &known {
            (choice.parent, choice.command_line) = (known.parent, known.command_line.clone());
        }
        self.known = known;
    }
}

/// Returns the time from a choice in advance, which took so long, to the next one.
fn interval(danger: Danger, took: Duration) -> Duration {
    match danger {
        Danger::None | Danger::Possible => POSSIBLE_INTERVAL,
        Danger::Imminent => took.saturating_mul(INTERVAL_FACTOR).clamp(IMMINENT_INTERVAL, POSSIBLE_INTERVAL),
    }
}

impl Choice {
    /// Returns it without its group, if that was found too long ago, or has changed: one that must not be killed may have
    /// joined, or may be exempt by now. Does not wait.
    pub fn with_group_of(mut self, age: Duration) -> Self {
        if let Some(group) = &mut self.group {
            group.expendable &= age < MAX_GROUP_AGE && self.leaf.as_ref().is_some_and(Leaf::is_unchanged);
        }
        self
    }

    /// Whether it was worth `min_bytes`, and is neither gone nor exempt by now. Does not wait.
    pub fn is_still_good(&self, min_bytes: u64) -> bool {
        // The best process of a group that was chosen may have little.
        let group = self.group.filter(|group| group.expendable).map_or(0, |group| group.bytes);
        self.bytes.max(group) >= min_bytes
            && self.pidfd.is_alive().unwrap_or(false)
            // It may be exempt by now.
            && oom_score_adj(self).is_some_and(|adjustment| adjustment > -1000)
    }
}

fn oom_score_adj(choice: &Choice) -> Option<i16> {
    let mut text = [0; 8];
    let len = rustix::io::pread(choice.oom_score_adj.as_ref()?, &mut text[..], 0).ok()?;
    scan::adjustment(&text[..len])
}

#[cfg(test)]
mod tests;
