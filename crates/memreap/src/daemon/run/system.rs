// SPDX-License-Identifier: GPL-2.0-only
//! The [`World`](crate::daemon::decide::world::World) on the running system: /proc, cgroups, signals.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::cgroup::Hierarchy;
use linux::meminfo::MemInfo;
use linux::pidfd::{PidFd, Signal};
use linux::scan::Scan;
use linux::{Dir, Pid, Root};

use super::limits;
use super::sampler::{self, Buffer, Limited, Memory};
use crate::choice::{CgroupPath, Choice, Chooser, ChooserThread, Danger, Group, Leaf, NoVictim, is_below};
use crate::config::{Config, WholeCgroup};
use crate::daemon::act::dying::Dying;
use crate::daemon::act::reapers::{Reapers, Slot};
use crate::daemon::act::{boost, cgroup_kill};
use crate::daemon::decide::control_loop::ControlLoop;
use crate::daemon::decide::governor::Governor;
use crate::daemon::decide::reason::{Before, Ending, Obstacle, Reason};
use crate::daemon::decide::sample::Sample;
use crate::daemon::decide::world::{Gain, Gone, Kills, Observes, Progress, Reports, World};
use crate::daemon::report::hook::Hook;
use crate::daemon::report::notify::Notifier;
use crate::daemon::report::record::KillRecord;
use crate::kill::{Method, SignalFirst, Victim};
use crate::policy::Policy;

/// Processes that are known, at most; more are not considered.
pub const MAX_PROCESSES: u32 = 32 << 10;
/// Cgroups with a limit that are watched, at most.
pub const MAX_LIMITS: usize = 15;
/// From this part of memory on it is said who holds shared memory by descriptors.
const MIN_HELD_DIVISOR: u64 = 64;
/// Processes that share a memory are killed together so long after they were chosen, at most.
const MAX_POOL_AGE: Duration = Duration::from_secs(2);
/// The time between two searches for limits, at least.
const LIMIT_SEARCH_INTERVAL: Duration = Duration::from_secs(2);

/// The running system, or what stands in for parts of it.
pub type LiveWorld<'a> = dyn World<Memory = Memory, Victim = Choice, Dying = Dying> + 'a;

/// The running system.
pub struct System {
    began: Instant,
    buffer: Buffer,
    chooser: ChooserThread,
    /// The threads that free victims' memory.
    pub reapers: Reapers,
    /// Without its policy.
    config: Config,
    policy: Arc<Policy>,
    dry_run: bool,
    /// What runs before a kill.
    pub hook: Option<Hook>,
    scan: Scan,
    /// The root of the cgroup hierarchy, if v2 is mounted.
    cgroups: Option<Dir>,
    /// When limits were last searched for.
    searched: Option<Duration>,
    /// It was reported that there are more processes than are considered.
    told_of_too_many: bool,
    /// It was reported that there are more limits than can be watched.
    limits_left_out: bool,
    /// The journal, the metrics and so on.
    pub notifier: Notifier,
}

impl System {
    /// Puts the parts together.
    ///
    /// # Errors
    /// When the thread that chooses cannot be started.
    pub fn new(
        chooser: Chooser,
        reapers: Reapers,
        mut config: Config,
        dry_run: bool,
        scan: Scan,
        cgroups: Option<Dir>,
        notifier: Notifier,
    ) -> io::Result<Self> {
        let policy = Arc::new(std::mem::take(&mut config.policy));
        let chooser = ChooserThread::start(chooser, Arc::clone(&policy), config.kill.grouping())?;
        Ok(Self {
            began: Instant::now(),
            buffer: sampler::buffer(),
            chooser,
            reapers,
            config,
            policy,
            dry_run,
            hook: None,
            scan,
            cgroups,
            searched: None,
            told_of_too_many: false,
            limits_left_out: false,
            notifier,
        })
    }

    /// Takes another configuration.
    pub fn reconfigure(&mut self, mut config: Config) {
        self.policy = Arc::new(std::mem::take(&mut config.policy));
        self.chooser.reconfigure(Arc::clone(&self.policy), config.kill.grouping());
        match &self.hook {
            Some(hook) => {
                if let Err(e) = hook.configure(&config.kill) {
                    self.notifier.warning(format_args!("the process that runs kill.before is gone: {e}"));
                }
            }
            None if config.kill.before.is_some() && !self.dry_run => {
                self.notifier.warning(format_args!("kill.before can be turned on only by a restart"));
            }
            None => {}
        }
        if config.record != self.config.record {
            self.notifier.warning(format_args!("record.history and record.metrics change only by a restart"));
            config.record = self.config.record.clone();
        }
        self.config = config;
    }

    /// Returns the configuration, without the policy.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Has the threads of the chooser work once.
    pub fn rehearse(&mut self, dummy: Pid) {
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

    /// Finds cgroups that are close to their limit, and has them watched from then on.
    pub fn find_limits(&mut self, hierarchy: &Hierarchy, control_loop: &mut ControlLoop<LiveWorld<'static>>) {
        let Some(root) = self.cgroups.as_ref() else { return };
        let began = self.began;
        self.searched = Some(began.elapsed());
        let (buffer, notifier) = (&mut self.buffer, &mut self.notifier);
        let act = &self.config.act;
        let mut left_out = false;
        let relief = |limit| act.relief(limit);
        limits::find(root, 0, relief, |path| {
            let path = Path::new(OsStr::from_bytes(path));
            if control_loop.limits().any(|memory| memory.cgroup() == Some(path)) {
                return;
            }
            if !control_loop.has_room() {
                left_out = true;
                return;
            }
            let short = Limited::open(&Root::system(), hierarchy, path, &mut buffer[..]).and_then(|limited| {
                let Some(memory) = limited.map(Memory::Limited) else { return Ok(None) };
                let sample = memory.sample(began, &mut buffer[..])?;
                Ok((sample.available < act.relief(sample.total)).then_some(memory))
            });
            match short {
                Ok(Some(memory)) => control_loop.watch(memory),
                Ok(None) => {}
                // Gone again.
                Err(e) if e.is_unsupported() => {}
                Err(e) => notifier.read_failed(&e),
            }
        });
        if left_out && !std::mem::replace(&mut self.limits_left_out, true) {
            self.notifier.note(format_args!(
                "more than {MAX_LIMITS} cgroups are close to their limits; the others are left to the kernel"
            ));
        }
    }

    /// Returns the cgroup of a victim, if it is to be killed as a whole when `missing` bytes must come back.
    fn whole_group(&self, choice: &Choice, missing: u64) -> Option<Group> {
        choice.group.filter(|group| is_whole(self.config.kill.whole_cgroup, group, choice.bytes, missing))
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

    /// Returns the record of a kill that is decided now.
    fn record(&self, victim: &Choice, reason: Reason, governor: &Governor) -> KillRecord {
        let rule = victim.rule.map_or("", |rule| self.policy.rule(rule));
        KillRecord::new(victim, reason, governor, rule, self.reapers.method())
    }

    /// Has a victim run before others. Opens files, and so may wait for memory: after its cgroup was killed, if it is.
    fn boost(&self, victim: &PidFd, cgroup: &CgroupPath) {
        boost::boost(&self.scan, self.cgroups.as_ref(), victim, cgroup);
    }
}

impl Observes for System {
    type Memory = Memory;
    type Victim = Choice;

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn sample(&mut self, memory: &Memory) -> Result<Sample, Gone> {
        memory.sample(self.began, &mut self.buffer[..]).map_err(|e| {
            if memory.cgroup().is_none() {
                self.notifier.read_failed(&e);
            }
            // A cgroup can be removed only when no process is left in it.
            Gone(if e.is_unsupported() { Ending::Back } else { Ending::Late })
        })
    }

    fn prepare(&mut self, budget: Duration, danger: Danger, min_bytes: u64) {
        self.chooser.refresh(budget, danger, min_bytes);
    }

    fn grace_ahead(&self, memory: &Memory, all: Option<SignalFirst>) -> Duration {
        let ahead =
            if memory.cgroup().is_none() { self.chooser.read_ahead(|v| self.signal_first(v, all)) } else { None };
        let first = ahead.unwrap_or_else(|| self.policy.signal_first(None, all));
        first.map_or(Duration::ZERO, |first| first.grace)
    }

    fn choose(&mut self, memory: &Memory, min_bytes: u64) -> Result<Choice, NoVictim> {
        let below = memory.cgroup().map(|cgroup| CgroupPath::try_from(cgroup.as_os_str().as_encoded_bytes()));
        // Processes that are dying already are never chosen.
        let choice = self.chooser.choose(below.transpose().map_err(|_| NoVictim::None)?, min_bytes);
        if self.chooser.processes() > MAX_PROCESSES && !std::mem::replace(&mut self.told_of_too_many, true) {
            self.notifier.warning(format_args!(
                "there are more than {MAX_PROCESSES} processes; the newest are not considered as victims"
            ));
        }
        choice
    }

    fn gain(&self, victim: &Choice, missing: u64) -> Gain {
        let bytes = self.whole_group(victim, missing).map_or(victim.bytes, |group| group.bytes);
        let (group_processes, group_bytes) =
            victim.group.map_or((1, victim.bytes), |group| (group.processes, group.bytes));
        Gain { bytes, group_processes, group_bytes }
    }

    fn gain_for(&self, victim: &Choice, memory: &Memory, missing: u64) -> u64 {
        if is_in(&victim.cgroup, memory) { self.gain(victim, missing).bytes } else { 0 }
    }

    fn signal_first(&self, victim: &Choice, all: Option<SignalFirst>) -> Option<SignalFirst> {
        // One of them that ends gives back nothing.
        if !self.gives_back_alone(victim) {
            return None;
        }
        self.policy.signal_first(victim.rule, all)
    }

    fn gives_back_alone(&self, victim: &Choice) -> bool {
        victim.gives_back_alone()
    }

    fn recheck(&mut self, victim: Choice, age: Duration) -> Option<Choice> {
        // To search for what shares its memory again takes long.
        if !self.gives_back_alone(&victim) && age <= MAX_POOL_AGE {
            return Some(victim).filter(|victim| victim.is_still_good(0));
        }
        match self.chooser.recheck(victim.pid) {
            Ok(now) if victim.pidfd.is_alive().unwrap_or(false) => Some(now),
            // As a victim that was chosen in advance.
            Err(NoVictim::Late) => Some(victim.with_group_of(age)).filter(|victim| victim.is_still_good(0)),
            // One that exits has given up its memory already, and is not chosen: to kill it does no harm, and says when
            // its memory is back.
            _ => Some(victim).filter(|v| has_left_memory(&self.scan, v.pid)),
        }
    }

    fn has_exited(&self, victim: &Choice) -> bool {
        victim.pidfd.has_exited().unwrap_or(false)
    }
}

impl Kills for System {
    type Dying = Dying;

    fn ask_before(
        &mut self,
        victim: &Choice,
        reason: Reason,
        governor: &Governor,
        limit: Duration,
    ) -> Result<u32, Before> {
        let record = self.record(victim, reason, governor);
        let Some(hook) = &mut self.hook else { return Err(Before::None) };
        hook.ask(&record, limit).ok_or(Before::Failed)
    }

    fn answer(&mut self, ticket: u32) -> Option<Before> {
        self.hook.as_mut().map_or(Some(Before::None), |hook| hook.answer(ticket))
    }

    fn send_first_signal(&mut self, victim: &Choice, signal: Signal) {
        let sent = if self.dry_run { Ok(()) } else { victim.pidfd.send_signal(signal) };
        self.notifier.first_signal_sent(victim, signal, self.dry_run, sent.err().as_ref());
    }

    fn kill(&mut self, mut victim: Choice, reason: Reason, before: Before, governor: &Governor) -> Dying {
        let record = KillRecord { before, ..self.record(&victim, reason, governor) };
        let mut dying = Dying::new(record, governor);
        if self.dry_run {
            dying.unsent = Some(Ending::DryRun);
            return dying;
        }
        let record = &mut dying.record;
        let group = self.whole_group(&victim, governor.missing()).zip(victim.leaf.take().map(Leaf::into_cgroup));
        let pool = std::mem::take(&mut victim.pool);
        match self.kill_process(victim.into(), &record.cgroup, Reapers::kill) {
            Ok(slot @ Some(_)) => dying.slot = slot,
            Ok(None) => record.method = Method::Plain,
            Err(errno) => dying.unsent = Some(Ending::Refused(errno)),
        }
        // Without them hardly any memory comes back.
        for member in pool {
            if dying.unsent.is_none()
                && let Ok(Some(slot)) = self.kill_process(member, &CgroupPath::new(), Reapers::kill_additional)
            {
                dying.sharers.push(slot);
            }
        }
        // After the victim, as this can wait for a lock of the cgroups.
        if let Some((group, cgroup)) = group
            && cgroup_kill::kill(&cgroup, self.reapers.method())
        {
            dying.cgroup = Some(cgroup);
            (record.processes, record.whole) = (group.processes, true);
            (record.expected, record.exact) = (group.bytes, false);
        }
        for slot in dying.slot.iter().chain(&dying.sharers) {
            slot.if_killed(|pidfd| self.boost(pidfd, &record.cgroup));
        }
        dying
    }

    fn kill_another(&mut self, dying: &mut Dying) -> Option<u64> {
        let record = &mut dying.record;
        // Processes outside of all cgroups do not belong together.
        if dying.unsent.is_some() || record.cgroup.is_empty() {
            return None;
        }
        // The first victim is the best of them, and may not be seen to be dying yet.
        let (cgroup, first) = (&record.cgroup, record.pid);
        let next = || self.chooser.another(cgroup);
        let victim = std::iter::from_fn(next).find(|victim| victim.pid != first)?;
        let bytes = victim.bytes;
        if let Some(slot) = self.kill_process(victim.into(), cgroup, Reapers::kill_additional).ok()? {
            slot.if_killed(|pidfd| self.boost(pidfd, cgroup));
        }
        record.processes += 1;
        record.expected += bytes;
        record.exact = false;
        Some(bytes)
    }

    fn comes_back(&self, dying: &Dying, memory: &Memory) -> u64 {
        let record = &dying.record;
        if dying.unsent.is_none() && is_in(&record.cgroup, memory) { record.expected } else { 0 }
    }

    fn progress(&mut self, dying: &mut Dying, last: &Sample) -> Progress {
        dying.progress(last, &self.reapers, &self.scan)
    }
}

impl Reports for System {
    fn warn(&mut self, memory: &Memory, governor: &Governor) -> bool {
        let because = governor.explanation();
        if memory.cgroup().is_some() {
            // Not again soon if there is none: this waits for the choice.
            if let Ok(victim) = self.choose(memory, governor.last().map_or(0, Sample::min_victim_bytes)) {
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

    fn no_kill_helps(&mut self, memory: &Memory, reason: Reason, obstacle: Obstacle, governor: &Governor) {
        let info = match memory {
            Memory::Machine(machine) if obstacle != Obstacle::NoVictim(NoVictim::Late) => {
                machine.info(&mut self.buffer[..])
            }
            _ => None,
        };
        let is_much = |info: &&MemInfo| info.shmem > info.total / MIN_HELD_DIVISOR;
        let holder = info.as_ref().filter(is_much).and_then(|_| self.chooser.largest_holder());
        self.notifier.no_kill_helps(reason, obstacle, &governor.explanation(), info.as_ref(), holder);
    }

    fn not_killed(&mut self, victim: Choice, reason: Reason, before: Before, ending: Ending, governor: &Governor) {
        // In a dry run nobody was asked.
        if self.dry_run && ending == Ending::Exited {
            return;
        }
        let record = self.record(&victim, reason, governor);
        self.notifier.killed(&KillRecord { before, ending, ..record });
    }

    fn killed(&mut self, memory: &Memory, dying: Dying, ending: Ending, last: &Sample) {
        let now = memory.sample(self.began, &mut self.buffer[..]).ok();
        self.notifier.killed(&dying.finish(ending, now, last));
    }
}

/// Whether a cgroup is to be killed as a whole, when its best process gives back `bytes` and `wanted` are
/// needed.
fn is_whole(when: WholeCgroup, group: &Group, bytes: u64, wanted: u64) -> bool {
    let whole = match when {
        WholeCgroup::Never => false,
        WholeCgroup::OomGroup => group.dies_together(),
        WholeCgroup::Always => true,
        // Several kills, each with a wait, where one would do.
        WholeCgroup::Auto => group.dies_together() || (bytes < wanted && group.bytes / 2 > bytes),
    };
    whole && group.expendable && group.processes > 1
}

/// Whether what a process holds that is in `cgroup` is part of `memory`.
fn is_in(cgroup: &CgroupPath, memory: &Memory) -> bool {
    memory.cgroup().is_none_or(|limited| is_below(cgroup, limited.as_os_str().as_bytes()))
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

    use linux::process::Status;
    use linux::scan::File;

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
        let status = || Status::parse(scan.process(pid, File::Status, &mut [0; 1 << 14]).unwrap()).unwrap();
        while status().has_memory {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((scan.statm(pid).unwrap().resident, status().threads), (0, 2));
        assert!(!has_left_memory(&scan, pid));
        PidFd::open(pid).unwrap().send_signal(Signal::KILL).unwrap();
        while status().threads > 1 {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(has_left_memory(&scan, pid));
        rustix::process::waitpid(Some(pid.into()), rustix::process::WaitOptions::empty()).unwrap();
        assert!(!has_left_memory(&scan, pid));
    }

    #[test]
    fn a_browser_is_not_killed_for_a_tab() {
        const MIB: u64 = 1 << 20;
        let browser = Group { bytes: 1500 * MIB, processes: 30, expendable: true, oom_group: false, shares: false };
        let asked = Group { oom_group: true, ..browser };
        let is_whole = |when, group: &Group| is_whole(when, group, 400 * MIB, 600 * MIB);
        let default = Kill::default().whole_cgroup;
        assert!(!is_whole(default, &browser) && is_whole(default, &asked));
        assert!(is_whole(WholeCgroup::Auto, &browser) && is_whole(WholeCgroup::Always, &browser));
        assert!(is_whole(default, &Group { shares: true, ..browser }));
        assert!(!is_whole(WholeCgroup::Never, &asked));
        // With a process that must not be killed, or with no other process.
        for spared in [Group { expendable: false, ..asked }, Group { processes: 1, ..asked }] {
            assert!(!is_whole(WholeCgroup::Always, &spared), "{spared:?}");
        }
    }
}
