// SPDX-License-Identifier: GPL-2.0-only
//! The [`World`] on the running system: /proc, cgroups, signals.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arrayvec::{ArrayString, ArrayVec};
use linux::cgroup::{Cgroup, Hierarchy};
use linux::meminfo::MemInfo;
use linux::pidfd::{PidFd, Signal};
use linux::scan::Scan;
use linux::{Dir, Pid, Root};

use super::limits;
use super::sampler::{self, Buffer, Limited, Memory};
use crate::choice::{CgroupPath, Choice, Chooser, ChooserThread, Danger, Group, NoVictim};
use crate::config::{Config, WholeCgroup};
use crate::daemon::act::reapers::{Reapers, Slot};
use crate::daemon::act::{boost, cgroup_kill};
use crate::daemon::decide::governor::Governor;
use crate::daemon::decide::reason::{Ending, Reason};
use crate::daemon::decide::sample::Sample;
use crate::daemon::decide::world::{Progress, World};
use crate::daemon::report::notify::Notifier;
use crate::daemon::report::record::KillRecord;
use crate::kill::{Fate, Method, SignalFirst, Victim};
use crate::policy::Policy;

/// Processes that are known, at most; more are not considered.
pub const MAX_PROCESSES: u32 = 32 << 10;
/// The machine, and so many limited cgroups.
pub const MAX_MEMORIES: usize = 16;
/// How long to wait for the memory of a process that has exited: some of what was expected may never be seen
/// as free, because other processes allocated it at once.
const MEMORY_TIMEOUT: Duration = Duration::from_millis(500);
/// How long to wait when another process uses the memory, and it may be that this exits, too, as long as none is seen
/// to be freed.
const SHARED_TIMEOUT: Duration = Duration::from_millis(100);
/// When the memory is seen to be free within this time after the exit, it was back at the exit.
const AT_EXIT_TOLERANCE: Duration = Duration::from_millis(5);
/// A process's memory is back when this part of it at most is left.
const MAX_REMAINDER_DIVISOR: u64 = 8;
/// All victims' memory is back when this part of what was expected was seen to be free, ...
const MIN_FREED_DIVISOR: u64 = 4;
/// ... and either nearly all, or between two checks not even this part more.
const FREEING_DIVISOR: u64 = 16;
/// From this part of memory on it is said who holds shared memory by descriptors.
const MIN_HELD_DIVISOR: u64 = 64;
/// The time between two searches for limits, at least.
const LIMIT_SEARCH_INTERVAL: Duration = Duration::from_secs(2);
/// The niceness of threads that free memory as long as it is critical, and afterwards.
const CRITICAL_NICE: i32 = -20;
const RELIEVED_NICE: i32 = 10;

/// The running system.
pub struct System {
    began: Instant,
    /// The memories that are watched; the first is the machine's, or in a container its limit.
    pub memories: Vec<Memory>,
    buffer: Buffer,
    chooser: ChooserThread,
    /// The threads that free victims' memory.
    pub reapers: Reapers,
    /// Without its policy.
    config: Config,
    policy: Arc<Policy>,
    dry_run: bool,
    scan: Scan,
    /// The root of the cgroup hierarchy, if v2 is mounted.
    cgroups: Option<Dir>,
    /// The victim that is dying for each memory.
    killed: Vec<Option<KilledVictim>>,
    /// The last sample of each memory.
    samples: [Sample; MAX_MEMORIES],
    /// When limits were last searched for.
    searched: Option<Duration>,
    /// It was reported that there are more processes than are considered.
    told_of_too_many: bool,
    /// It was reported that there are more than can be watched.
    limits_left_out: bool,
    /// The journal, the metrics and so on.
    pub notifier: Notifier,
    /// Memories that cannot be read any more, and the endings of victims that are dying for them.
    pub vanished: ArrayVec<(usize, Ending), MAX_MEMORIES>,
}

/// A victim that was killed, until its memory is back.
struct KilledVictim {
    /// Its slot in the reapers; `None` if none was free.
    slot: Option<Slot>,
    /// The cgroup that was killed with it.
    cgroup: Option<Cgroup>,
    refused_errno: Option<i32>,
    record: KillRecord,
    /// What was to come back of the first victim, in bytes.
    bytes: u64,
    at: Instant,
    /// What was free when it was killed, memory and swap, in bytes.
    free_before: u64,
    /// And at the last check.
    free_last: u64,
    /// From how many available bytes on memory is no longer critical.
    critical_level: u64,
    /// When its process was seen to have exited, or its memory to be freed.
    over: Option<Instant>,
    /// Whether hardly any was back when the kernel had freed what it can.
    left_to_exit: bool,
}

impl System {
    /// Puts the parts together.
    ///
    /// # Errors
    /// When the thread that chooses cannot be started.
    #[expect(clippy::too_many_arguments, reason = "each is a part, and named where it is made")]
    pub fn new(
        first: Memory,
        chooser: Chooser,
        reapers: Reapers,
        mut config: Config,
        dry_run: bool,
        scan: Scan,
        cgroups: Option<Dir>,
        notifier: Notifier,
    ) -> io::Result<Self> {
        let policy = Arc::new(std::mem::take(&mut config.policy));
        let chooser = ChooserThread::start(chooser, Arc::clone(&policy), config.kill.by_cgroup)?;
        let mut memories = Vec::with_capacity(MAX_MEMORIES);
        memories.push(first);
        Ok(Self {
            began: Instant::now(),
            memories,
            buffer: sampler::buffer(),
            chooser,
            reapers,
            config,
            policy,
            dry_run,
            scan,
            cgroups,
            killed: std::iter::repeat_with(|| None).take(MAX_MEMORIES).collect(),
            samples: [Sample::default(); MAX_MEMORIES],
            searched: None,
            told_of_too_many: false,
            limits_left_out: false,
            notifier,
            vanished: ArrayVec::new(),
        })
    }

    /// Takes another configuration.
    pub fn reconfigure(&mut self, mut config: Config) {
        self.policy = Arc::new(std::mem::take(&mut config.policy));
        self.chooser.reconfigure(Arc::clone(&self.policy), config.kill.by_cgroup);
        self.config = config;
    }

    /// Returns the configuration, without the policy.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Has the threads of the chooser work once. Also clears the machine's last sample: a victim must give back a part
    /// of all memory, and with a total of 0 the next choice takes even `dummy`, which has hardly any.
    pub fn rehearse(&mut self, dummy: Pid) {
        self.samples[0] = Sample::default();
        if let Ok(dummy) = PidFd::open(dummy) {
            boost::boost(&self.scan, self.cgroups.as_ref(), &dummy, b"");
        }
        self.chooser.rehearse(dummy);
    }

    /// Whether cgroups with limits are to be searched for: each search walks the cgroup tree.
    pub fn limit_search_is_due(&self) -> bool {
        let due = self.searched.is_none_or(|when| self.began.elapsed() - when >= LIMIT_SEARCH_INTERVAL);
        due && self.config.act.cgroups
    }

    /// Finds cgroups that are close to their limit, and watches them from then on.
    pub fn find_limits(&mut self, hierarchy: &Hierarchy) {
        let Some(root) = self.cgroups.as_ref() else { return };
        let began = self.began;
        self.searched = Some(began.elapsed());
        let (memories, buffer, notifier) = (&mut self.memories, &mut self.buffer, &mut self.notifier);
        let act = &self.config.act;
        let mut left_out = false;
        let relief = |limit| act.relief(limit);
        limits::find(root, 0, relief, |path| {
            let path = Path::new(OsStr::from_bytes(path));
            if memories.iter().any(|m| m.cgroup() == Some(path)) {
                return;
            }
            if memories.len() == MAX_MEMORIES {
                left_out = true;
                return;
            }
            let short =
                Limited::open(&Root::system(), hierarchy, path, &mut buffer[..]).and_then(|limited| {
                    let Some(memory) = limited.map(Memory::Limited) else { return Ok(None) };
                    let sample = memory.sample(began, &mut buffer[..])?;
                    Ok((sample.available < act.relief(sample.total)).then_some(memory))
                });
            match short {
                Ok(Some(memory)) => memories.push(memory),
                Ok(None) => {}
                // Gone again.
                Err(e) if e.is_unsupported() => {}
                Err(e) => notifier.read_failed(&e),
            }
        });
        if left_out && !std::mem::replace(&mut self.limits_left_out, true) {
            self.notifier.note(format_args!(
                "more than {} cgroups are close to their limits; the others are left to the kernel",
                MAX_MEMORIES - 1
            ));
        }
    }

    /// Stops watching a cgroup; the last one takes its index.
    pub fn swap_remove(&mut self, memory: usize) {
        self.memories.swap_remove(memory);
        self.killed[memory] = None;
        self.killed.swap(memory, self.memories.len());
        self.samples.swap(memory, self.memories.len());
    }

    /// Returns the cgroup of a victim, if it is to be killed as a whole.
    fn whole_group(&self, choice: &Choice, governor: &Governor) -> Option<Group> {
        let wanted = governor.missing();
        choice.group.filter(|group| is_whole(self.config.kill.whole_cgroup, group, choice.bytes, wanted))
    }

    /// Kills a victim by `kill`, and begins to free its memory. Returns its slot in the reapers, if one was free.
    ///
    /// # Errors
    /// The errno when the kernel refuses the signal.
    fn kill_process(
        &self,
        victim: Victim,
        cgroup: &CgroupPath,
        kill: fn(&Reapers, Victim) -> Result<Slot, PidFd>,
    ) -> Result<Option<Slot>, i32> {
        self.chooser.note_kill(victim.pidfd.opened_as());
        match kill(&self.reapers, victim) {
            Ok(slot) => Ok(Some(slot)),
            // All slots are taken by victims that are dying: then without help.
            Err(pidfd) => {
                let sent = pidfd.send_signal(Signal::KILL);
                sent.map_err(|e| e.raw_os_error().unwrap_or(libc::ESRCH))?;
                self.boost(&pidfd, cgroup);
                Ok(None)
            }
        }
    }

    /// Has a victim run before others. Opens files, and so may wait for memory: after its cgroup was killed, if it is.
    fn boost(&self, victim: &PidFd, cgroup: &CgroupPath) {
        boost::boost(&self.scan, self.cgroups.as_ref(), victim, cgroup);
    }
}

/// Whether a cgroup is to be killed as a whole, when its best process gives back `bytes` and `wanted` are
/// needed.
fn is_whole(when: WholeCgroup, group: &Group, bytes: u64, wanted: u64) -> bool {
    let whole = match when {
        WholeCgroup::Never => false,
        WholeCgroup::OomGroup => group.oom_group,
        WholeCgroup::Always => true,
        // Several kills, each with a wait, where one would do.
        WholeCgroup::Auto => group.oom_group || (bytes < wanted && group.bytes / 2 > bytes),
    };
    whole && group.expendable && group.processes > 1
}

/// Whether more of `expected` bytes comes back when `freed` were seen to be free, `step` of them since the last
/// check.
fn more_comes_back(expected: u64, freed: u64, step: u64) -> bool {
    freed < expected / MIN_FREED_DIVISOR
        || (freed < expected - expected / MAX_REMAINDER_DIVISOR && step > expected / FREEING_DIVISOR)
}

/// How the wait for `expected` bytes has ended when `freed` were seen to be free.
fn ending(fate: Fate, expected: u64, freed: u64) -> Ending {
    // One that shares the memory lives on, and no wait gets it back.
    if fate == Fate::Shared && freed < expected / MIN_FREED_DIVISOR { Ending::Late } else { Ending::Back }
}

impl World for System {
    type Victim = Choice;

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn sample(&mut self, memory: usize) -> Option<Sample> {
        match self.memories.get(memory)?.sample(self.began, &mut self.buffer[..]) {
            Ok(sample) => {
                self.samples[memory] = sample;
                Some(sample)
            }
            Err(e) => {
                if memory > 0 {
                    // A cgroup can be removed only when no process is left in it.
                    let dying = if e.is_unsupported() { Ending::Back } else { Ending::Late };
                    let _ = self.vanished.try_push((memory, dying));
                } else {
                    self.notifier.read_failed(&e);
                }
                None
            }
        }
    }

    fn prepare(&mut self, budget: Duration, danger: Danger) {
        self.chooser.refresh(budget, danger, self.samples[0].min_victim_bytes());
    }

    fn grace_ahead(&self, memory: usize, all: Option<SignalFirst>) -> Duration {
        let rule = if memory == 0 { self.chooser.rule_ahead() } else { None };
        self.policy.signal_first(rule, all).map_or(Duration::ZERO, |first| first.grace)
    }

    fn choose(&mut self, memory: usize) -> Result<Choice, NoVictim> {
        // Not anywhere, when the memory is no longer watched.
        let watched = self.memories.get(memory).ok_or(NoVictim::None)?;
        let below = match watched.cgroup() {
            // The first one is all that this daemon can see.
            Some(cgroup) if memory > 0 => {
                let mut path = CgroupPath::new();
                let whole = path.try_extend_from_slice(cgroup.as_os_str().as_encoded_bytes());
                Some(whole.map(|()| path).map_err(|_| NoVictim::None)?)
            }
            _ => None,
        };
        // Processes that are dying already are never chosen.
        let choice = self.chooser.choose(below, self.samples[memory].min_victim_bytes());
        if self.chooser.processes() > MAX_PROCESSES && !std::mem::replace(&mut self.told_of_too_many, true) {
            self.notifier.warning(format_args!(
                "there are more than {MAX_PROCESSES} processes; the newest are not considered as victims"
            ));
        }
        choice
    }

    fn bytes_back(&self, victim: &Choice, governor: &Governor) -> u64 {
        self.whole_group(victim, governor).map_or(victim.bytes, |group| group.bytes)
    }

    fn group_size(&self, victim: &Choice) -> (u32, u64) {
        victim.group.map_or((1, victim.bytes), |group| (group.processes, group.bytes))
    }

    fn warn(&mut self, memory: usize, governor: &Governor) -> bool {
        let because = governor.explanation();
        if memory > 0 {
            // Not again soon if there is none: this waits for the choice.
            if let Ok(victim) = self.choose(memory) {
                self.notifier.warn(&victim, &because);
            }
            return true;
        }
        // Memory may be gone before a new choice is made.
        let Some((when, victim)) = self.chooser.take_ahead() else { return false };
        self.notifier.warn(&victim, &because);
        self.chooser.keep_ahead(when, victim);
        true
    }

    fn no_kill_helps(&mut self, memory: usize, reason: Reason, why: Option<NoVictim>, governor: &Governor) {
        let info = match &self.memories[memory] {
            Memory::Machine(machine) if why != Some(NoVictim::Late) => machine.info(&mut self.buffer[..]),
            _ => None,
        };
        let is_much = |info: &&MemInfo| info.shmem > info.total / MIN_HELD_DIVISOR;
        let holder = info.as_ref().filter(is_much).and_then(|_| self.chooser.largest_holder());
        self.notifier.no_kill_helps(reason, why, &governor.explanation(), info.as_ref(), holder);
    }

    fn signal_first(&self, victim: &Choice, all: Option<SignalFirst>) -> Option<SignalFirst> {
        self.policy.signal_first(victim.rule, all)
    }

    fn send_first_signal(&mut self, _memory: usize, victim: &Choice, signal: Signal) {
        if self.dry_run {
            return;
        }
        let sent = victim.pidfd.send_signal(signal);
        self.notifier.first_signal_sent(victim, signal, sent.err().as_ref());
    }

    fn recheck(&mut self, victim: Choice) -> Option<Choice> {
        let now = self.chooser.recheck(victim.pid).filter(|_| victim.pidfd.is_alive().unwrap_or(false));
        // One that exits has given up its memory already, and is not chosen: to kill it does no harm, and says when its
        // memory is back.
        now.or_else(|| Some(victim).filter(|v| has_left_memory(&self.scan, v.pid)))
    }

    fn kill(&mut self, memory: usize, mut victim: Choice, reason: Reason, governor: &Governor) {
        let last = governor.last();
        let at = Instant::now();
        let sharers = u32::try_from(victim.pool.len()).unwrap_or(u32::MAX);
        let mut record = KillRecord {
            unix_ms: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
            pid: victim.pid,
            comm: victim.comm,
            uid: victim.uid,
            cgroup: victim.cgroup.clone(),
            parent: victim.parent,
            command_line: victim.command_line.clone(),
            processes: 1 + sharers,
            sharers,
            whole: false,
            expected: victim.bytes,
            freed: None,
            exact: victim.precision.is_exact(),
            reason,
            because: governor.explanation(),
            rule: ArrayString::new(),
            method: self.reapers.method(),
            ending: Ending::DryRun,
            available: [last.map_or(0, |s| s.available); 2],
            took: Duration::ZERO,
            choice_took: victim.cost.took,
        };
        if let Some(rule) = victim.rule {
            // What does not fit is cut off.
            for c in self.policy.rule(rule).chars() {
                if record.rule.try_push(c).is_err() {
                    break;
                }
            }
        }
        let free = last.map_or(0, Sample::headroom);
        let mut killed = KilledVictim {
            slot: None,
            cgroup: None,
            refused_errno: None,
            record,
            bytes: victim.bytes,
            at,
            free_before: free,
            free_last: free,
            critical_level: governor.critical_level(),
            over: None,
            left_to_exit: false,
        };
        if !self.dry_run {
            let group = self.whole_group(&victim, governor).zip(victim.leaf.take());
            let pool = std::mem::take(&mut victim.pool);
            match self.kill_process(victim.into(), &killed.record.cgroup, Reapers::kill) {
                Ok(slot @ Some(_)) => killed.slot = slot,
                Ok(None) => killed.record.method = Method::Plain,
                Err(errno) => killed.refused_errno = Some(errno),
            }
            // Without them hardly any memory comes back.
            for member in pool {
                if killed.refused_errno.is_none() {
                    let _ = self.kill_process(member.into(), &CgroupPath::new(), Reapers::kill_additional);
                }
            }
            // After the victim, as this can wait for a lock of the cgroups.
            if let Some((group, cgroup)) = group
                && cgroup_kill::kill(&cgroup, self.reapers.method())
            {
                killed.cgroup = Some(cgroup);
                (killed.record.processes, killed.record.whole) = (group.processes, true);
                killed.record.expected = group.bytes;
                killed.record.exact = false;
            }
            if let Some(slot) = &killed.slot {
                slot.if_killed(|pidfd| self.boost(pidfd, &killed.record.cgroup));
            }
        }
        if let Some(entry) = self.killed.get_mut(memory) {
            *entry = Some(killed);
        }
    }

    fn kill_another(&mut self, memory: usize) -> Option<u64> {
        let killed = self.killed.get(memory)?.as_ref()?;
        // Processes outside of all cgroups do not belong together.
        if self.dry_run || killed.refused_errno.is_some() || killed.record.cgroup.is_empty() {
            return None;
        }
        // The first victim is the best of them, and may not be seen to be dying yet.
        let (cgroup, first) = (&killed.record.cgroup, killed.record.pid);
        let next = || self.chooser.another(cgroup);
        let victim = std::iter::from_fn(next).find(|victim| victim.pid != first)?;
        let bytes = victim.bytes;
        if let Some(slot) = self.kill_process(victim.into(), cgroup, Reapers::kill_additional).ok()? {
            slot.if_killed(|pidfd| self.boost(pidfd, cgroup));
        }
        let record = &mut self.killed[memory].as_mut()?.record;
        record.processes += 1;
        record.expected += bytes;
        record.exact = false;
        Some(bytes)
    }

    fn progress(&mut self, memory: usize) -> Progress {
        let sample = self.samples.get(memory).copied().unwrap_or_default();
        let Some(Some(killed)) = self.killed.get_mut(memory) else {
            return Progress::Ended(Ending::Gone);
        };
        if self.dry_run {
            return Progress::Ended(Ending::DryRun);
        }
        if let Some(errno) = killed.refused_errno {
            return Progress::Ended(Ending::Refused(errno));
        }
        let Some(outcome) = killed.slot.as_ref().and_then(|slot| self.reapers.outcome(slot)) else {
            return Progress::Dying;
        };
        let (free, expected) = (sample.headroom(), killed.record.expected);
        let freed = free.saturating_sub(killed.free_before);
        let step = free.saturating_sub(std::mem::replace(&mut killed.free_last, free));
        let critical = sample.available < killed.critical_level;
        self.reapers.lower_priority(if critical { CRITICAL_NICE } else { RELIEVED_NICE });
        killed.record.method = outcome.method;
        // A cgroup that cannot be read was removed.
        let cgroup_is_empty = killed.cgroup.as_ref().is_none_or(|c| !c.is_populated().unwrap_or(false));
        match outcome.fate {
            Fate::Refused(errno) => return Progress::Ended(Ending::Refused(errno)),
            Fate::Gone | Fate::Spared if killed.cgroup.is_none() => return Progress::Ended(Ending::Gone),
            _ if !cgroup_is_empty => return Progress::Dying,
            Fate::Dying => {
                // Memory that the kernel frees is back long before a process has exited that waits for a CPU.
                // A process that does not wait has exited by then, and its swap is free, too.
                let waits_for_cpu =
                    outcome.method == Method::Expedite && killed.at.elapsed() >= MEMORY_TIMEOUT;
                let left = || self.scan.statm(killed.record.pid).map_or(0, |memory| memory.resident);
                let freed_by_kernel = outcome.back.is_some()
                    || (waits_for_cpu && left() <= killed.bytes / MAX_REMAINDER_DIVISOR);
                // The kernel frees private memory only. If hardly any is back, its own exit has to free the rest.
                killed.left_to_exit |= freed_by_kernel && freed < expected / MIN_FREED_DIVISOR;
                if !freed_by_kernel || killed.left_to_exit {
                    return Progress::Dying;
                }
            }
            _ => {}
        }
        // A process that was reading the victim's memory just then keeps it until it has read it: the victim
        // can have exited and its memory not be free.
        let over = *killed.over.get_or_insert_with(Instant::now);
        let timeout = if outcome.fate == Fate::Shared && step == 0 { SHARED_TIMEOUT } else { MEMORY_TIMEOUT };
        if more_comes_back(expected, freed, step) && over.elapsed() < timeout {
            return Progress::Dying;
        }
        let back = if killed.left_to_exit { outcome.exited } else { outcome.back };
        killed.record.took = match (&killed.cgroup, back) {
            (None, Some(back)) if over.elapsed() < AT_EXIT_TOLERANCE => back,
            _ => killed.at.elapsed(),
        };
        Progress::Ended(ending(outcome.fate, expected, freed))
    }

    fn has_exited(&mut self, victim: &Choice) -> bool {
        victim.pidfd.has_exited().unwrap_or(false)
    }

    fn finish(&mut self, memory: usize, ending: Ending) {
        let Some(mut killed) = self.killed.get_mut(memory).and_then(Option::take) else { return };
        let record = &mut killed.record;
        record.ending = ending;
        // Back at an unknown time: its cgroup was removed.
        let unseen = ending == Ending::Back && record.took.is_zero();
        if ending == Ending::Late || unseen {
            record.took = killed.at.elapsed();
        }
        let now = self.memories.get(memory).and_then(|m| m.sample(self.began, &mut self.buffer[..]).ok());
        // Of a cgroup that was removed, the last sample.
        record.available[1] = now.unwrap_or(self.samples[memory]).available;
        if matches!(ending, Ending::Back | Ending::Late) {
            record.freed = now.map(|sample| sample.headroom().saturating_sub(killed.free_before));
        }
        self.notifier.killed(record);
    }
}

/// Whether a process that is still there has left its memory, with all of its threads: the first can exit before the
/// others.
fn has_left_memory(scan: &Scan, pid: Pid) -> bool {
    let mut left = scan.statm(pid).is_ok_and(|memory| memory.resident == 0);
    let listed = scan.threads(pid, &mut [MaybeUninit::uninit(); 2048], |thread| {
        // One that cannot be read has exited meanwhile.
        left &= !scan.statm(thread).is_ok_and(|memory| memory.resident > 0);
        left
    });
    left && listed.is_ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_void};
    use std::thread;

    use linux::scan::{Brief, File};

    use super::*;
    use crate::config::Kill;

    extern "C" fn second_thread(_: *mut c_void) -> c_int {
        // SAFETY: takes a number.
        unsafe { libc::sleep(60) };
        0
    }

    #[test]
    fn memory_is_left_by_the_last_thread() {
        let mut stack = [0_u128; 1 << 10];
        let work = || {
            let flags = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
            // SAFETY: the thread has a stack of its own, which stays, and makes one system call. So does this one.
            unsafe {
                libc::clone(second_thread, stack.as_mut_ptr_range().end.cast(), flags, std::ptr::null_mut());
                libc::syscall(libc::SYS_exit, 0);
            }
            1
        };
        // SAFETY: the child makes system calls only.
        let pid = unsafe { linux::child::fork(work) }.unwrap();
        let scan = Scan::open(&Root::system()).unwrap();
        let brief = || Brief::parse(scan.process(pid, File::Status, &mut [0; 1 << 14]).unwrap()).unwrap();
        while brief().has_memory {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((scan.statm(pid).unwrap().resident, brief().threads), (0, 2));
        assert!(!has_left_memory(&scan, pid));
        PidFd::open(pid).unwrap().send_signal(Signal::KILL).unwrap();
        while brief().threads > 1 {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(has_left_memory(&scan, pid));
        rustix::process::waitpid(Some(pid.into()), rustix::process::WaitOptions::empty()).unwrap();
        assert!(!has_left_memory(&scan, pid));
    }

    #[test]
    fn memory_is_back_when_no_more_of_it_comes() {
        // Of a victim of 200 MiB 80 were free when the kill was reported as over.
        assert!(more_comes_back(200, 80, 80));
        assert!(more_comes_back(200, 0, 0), "nothing was seen yet");
        assert!(!more_comes_back(200, 190, 190));
        assert!(!more_comes_back(200, 80, 0), "the others took the rest at once");
        // Another process may have it, or have taken it at once.
        assert_eq!(
            [ending(Fate::Shared, 200, 8), ending(Fate::Killed, 200, 8)],
            [Ending::Late, Ending::Back]
        );
        assert_eq!(ending(Fate::Shared, 200, 80), Ending::Back, "of a group only one was shared");
    }

    #[test]
    fn a_browser_is_not_killed_for_a_tab() {
        const MIB: u64 = 1 << 20;
        let browser = Group { bytes: 1500 * MIB, processes: 30, expendable: true, oom_group: false };
        let asked = Group { oom_group: true, ..browser };
        let is_whole = |when, group: &Group| is_whole(when, group, 400 * MIB, 600 * MIB);
        let default = Kill::default().whole_cgroup;
        assert!(!is_whole(default, &browser) && is_whole(default, &asked));
        assert!(is_whole(WholeCgroup::Auto, &browser) && is_whole(WholeCgroup::Always, &browser));
        assert!(!is_whole(WholeCgroup::Never, &asked));
        // With a process that must not be killed, or with no other process.
        for spared in [Group { expendable: false, ..asked }, Group { processes: 1, ..asked }] {
            assert!(!is_whole(WholeCgroup::Always, &spared), "{spared:?}");
        }
    }
}
