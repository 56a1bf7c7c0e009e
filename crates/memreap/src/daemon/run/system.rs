//! The [`World`] that is there: /proc, cgroups, signals.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arrayvec::{ArrayString, ArrayVec};
use linux::Root;
use linux::cgroup::Hierarchy;
use linux::pidfd::{PidFd, Signal, SignalFlags};

use super::limits;
use super::sampler::{self, Buffer, Limited, Memory};
use crate::choice::{CGROUP, Choice, Chooser, Group, Scope};
use crate::config::{Config, WholeCgroup};
use crate::daemon::act::probe::Probe;
use crate::daemon::act::reapers::Reapers;
use crate::daemon::act::throttle::{self, Hold};
use crate::daemon::act::{boost, cgroup_kill};
use crate::daemon::decide::control_loop::{Progress, World};
use crate::daemon::decide::governor::{Governor, Sample};
use crate::daemon::files;
use crate::daemon::report::notify::Voice;
use crate::daemon::report::record::{Ending, Kill, Reason};
use crate::kill::{Fate, Method, Victim};

/// The machine, and so many limited cgroups.
pub const MEMORIES: usize = 16;
/// How long the memory of a process that is gone is waited for: some of what was expected may never be
/// seen, as others took it at once.
const LINGER: Duration = Duration::from_millis(500);
/// What is seen as soon as this was there when the process went.
const SOON: Duration = Duration::from_millis(5);
/// The memory of a process is back when no more than this part of it is left.
const FREED: u64 = 8;
/// Two searches for limits are at least so far apart: each walks the cgroup tree.
const SEARCH: Duration = Duration::from_secs(2);
/// The niceness of who frees memory as long as there is hardly any, and from then on.
const HURRIED: i32 = -20;
const UNHURRIED: i32 = 10;

/// The running system.
pub struct System {
    began: Instant,
    /// What is watched over; the first is the machine, or in a container its limit.
    pub memories: Vec<Memory>,
    buffer: Buffer,
    chooser: Chooser,
    probe: Probe,
    /// The threads that get memory back.
    pub reapers: Reapers,
    config: Config,
    dry_run: bool,
    /// Whoever is held back can be let go again.
    may_hold: bool,
    proc: OwnedFd,
    /// Where cgroups are, if v2 is mounted.
    cgroups: Option<OwnedFd>,
    struck: Vec<Option<Struck>>,
    /// Who is held back for which memory.
    holds: [Option<Hold>; MEMORIES],
    /// What was last seen of each memory.
    seen: [Sample; MEMORIES],
    /// When limits were last searched for.
    searched: Option<Duration>,
    /// Who is told.
    pub voice: Voice,
    /// Memories that turned out to be gone.
    pub vanished: ArrayVec<usize, MEMORIES>,
}

/// A victim that is dying.
struct Struck {
    place: Option<usize>,
    /// The cgroup that was killed with it.
    group: Option<OwnedFd>,
    refused: Option<i32>,
    kill: Kill,
    /// What comes back of the first victim, in bytes.
    bytes: u64,
    at: Instant,
    /// What was free when it was killed: memory that was available, and swap.
    free: u64,
    /// What must be available for nobody to have to hurry.
    bearable: u64,
    /// When its process was gone, or its memory freed by us.
    over: Option<Instant>,
}

impl System {
    /// Puts the parts together.
    #[expect(clippy::too_many_arguments, reason = "each is a part, and named where it is made")]
    pub fn new(
        first: Memory,
        chooser: Chooser,
        probe: Probe,
        reapers: Reapers,
        config: Config,
        dry_run: bool,
        proc: OwnedFd,
        cgroups: Option<OwnedFd>,
        mut voice: Voice,
    ) -> Self {
        let may_hold = throttle::can_be_undone();
        if !may_hold && config.act.hold_back {
            voice.note(format_args!("nobody is held back, as that could not be undone (CAP_SYS_NICE)"));
        }
        let mut memories = Vec::with_capacity(MEMORIES);
        memories.push(first);
        Self {
            began: Instant::now(),
            memories,
            buffer: sampler::buffer(),
            chooser,
            probe,
            reapers,
            config,
            dry_run,
            may_hold,
            proc,
            cgroups,
            struck: std::iter::repeat_with(|| None).take(MEMORIES).collect(),
            holds: Default::default(),
            seen: [Sample::default(); MEMORIES],
            searched: None,
            voice,
            vanished: ArrayVec::new(),
        }
    }

    /// Other settings from now on.
    pub fn set(&mut self, config: Config) {
        self.config = config;
        self.chooser.forget();
        // It may be somebody else's turn by these, or nobody's.
        self.let_all_go();
    }

    /// Holds nobody back any more.
    pub fn let_all_go(&mut self) {
        self.let_go_if(|_| true);
    }

    fn let_go_if(&mut self, which: impl Fn(&Hold) -> bool) {
        for memory in 0..MEMORIES {
            if self.holds[memory].as_ref().is_some_and(&which) {
                self.let_go(memory);
            }
        }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Looks for a victim and tells nobody: so that all code and memory that a choice needs is there.
    pub fn rehearse(&mut self) {
        let by_cgroup = self.config.kill.by_cgroup;
        let _ = self.chooser.choose(&self.config.policy, Scope::All { by_cgroup });
        let _ = self.memories[0].sample(Duration::ZERO, &mut self.buffer[..]);
    }

    /// How many bytes of the first memory have been used since that was seen of it; `None` when it cannot
    /// be told.
    pub fn used_since(&mut self, then: Option<&Sample>) -> Option<u64> {
        match &self.memories[0] {
            Memory::Machine(machine) => {
                Some(then?.available.saturating_sub(machine.available(&mut self.buffer[..])?))
            }
            Memory::Limited(_) => None,
        }
    }

    /// Finds zram devices anew.
    pub fn renew(&mut self, root: &Root) {
        if let Some(Memory::Machine(machine)) = self.memories.first_mut()
            && let Err(e) = machine.find_zram(root)
        {
            self.voice.failed(&e);
        }
    }

    /// Finds cgroups with limits, and watches over them from now on.
    pub fn find_limits(&mut self, hierarchy: &Hierarchy) {
        let now = self.began.elapsed();
        let due = self.searched.is_none_or(|when| now - when >= SEARCH);
        let Some(root) = self.cgroups.as_ref().filter(|_| due && self.config.act.cgroups) else { return };
        self.searched = Some(now);
        let total = self.memories[0].sample(now, &mut self.buffer[..]).map_or(u64::MAX, |s| s.total);
        let (memories, buffer, voice) = (&mut self.memories, &mut self.buffer, &mut self.voice);
        limits::find(root, |path| {
            let path = Path::new(OsStr::from_bytes(path));
            if memories.len() == MEMORIES || memories.iter().any(|m| m.cgroup() == Some(path)) {
                return;
            }
            match Limited::open(hierarchy, path, total, &mut buffer[..]) {
                Ok(Some(limited)) => memories.push(Memory::Limited(limited)),
                Ok(None) => {}
                // Gone again.
                Err(e) if e.is_unsupported() => {}
                Err(e) => voice.failed(&e),
            }
        });
    }

    /// Watches over a cgroup no longer; the last takes its place.
    pub fn forget(&mut self, memory: usize) {
        self.let_go(memory);
        self.memories.swap_remove(memory);
        self.struck[memory] = None;
        self.struck.swap(memory, self.memories.len());
        self.holds.swap(memory, self.memories.len());
        self.seen.swap(memory, self.memories.len());
    }

    /// The cgroup of a victim, if it is to be killed as a whole.
    fn whole_group(&self, choice: &Choice, governor: &Governor) -> Option<Group> {
        let available = governor.last().map_or(0, |s| s.available);
        let growth = governor.growth(self.config.act.horizon);
        // It goes on like this until the memory is there.
        let wanted = governor.well().saturating_sub(available).saturating_add(growth);
        choice.group.filter(|group| is_whole(self.config.kill.whole_cgroup, group, choice.bytes, wanted))
    }

    /// Kills a victim by `strike`, and begins to get its memory back; `whole` is for one whose cgroup is killed
    /// with it. Gives the place of what is done about it, if there was one, or the errno of the refusal.
    fn kill(
        &mut self,
        victim: Choice,
        whole: bool,
        strike: fn(&Reapers, Victim) -> Result<usize, PidFd>,
    ) -> Result<Option<usize>, i32> {
        let Choice { pidfd, pid, cgroup, bytes, vm_size, .. } = victim;
        let place = match strike(&self.reapers, Victim { pidfd, bytes, vm_size, core_dumping: false }) {
            Ok(place) => Some(place),
            // All places are taken by victims that are dying: then without help.
            Err(pidfd) => {
                let sent = pidfd.send_signal(Signal::KILL, SignalFlags::empty());
                sent.map_err(|e| e.raw_os_error().unwrap_or(libc::ESRCH))?;
                None
            }
        };
        // Not before the signal, which would wait for it.
        self.let_go_if(|hold| hold.is_of(pid) || whole && hold.cgroup() == &cgroup[..]);
        boost::lift(&self.proc, self.cgroups.as_ref(), pid, &cgroup);
        Ok(place)
    }

    /// Kills the cgroup of a victim as a whole. Gives the cgroup.
    fn kill_group(&self, choice: &Choice) -> Option<OwnedFd> {
        let dir = cgroup_kill::open_below(self.cgroups.as_ref()?, &choice.cgroup)?;
        // It may be another one of that name by now: only this one is killed, and only if the victim
        // is still in it.
        cgroup_kill::is_member(&dir, choice.pid)?;
        cgroup_kill::kill(&dir, self.reapers.method()).then_some(dir)
    }
}

/// Whether a cgroup is to be killed as a whole, whose best process has so many bytes, when so many are wanted.
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

/// What was free, in bytes: of memory and of swap. A victim gives back both, and others take of both.
fn free(sample: &Sample) -> u64 {
    sample.available.saturating_add(sample.zram_free).saturating_add(sample.disk_free)
}

impl World for System {
    type Victim = Choice;

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn sample(&mut self, memory: usize) -> Option<Sample> {
        let at = self.began.elapsed();
        match self.memories.get(memory)?.sample(at, &mut self.buffer[..]) {
            Ok(sample) => {
                self.seen[memory] = sample;
                Some(sample)
            }
            Err(e) => {
                if memory > 0 {
                    // A cgroup that was removed.
                    let _ = self.vanished.try_push(memory);
                } else {
                    self.voice.failed(&e);
                }
                None
            }
        }
    }

    fn prepare(&mut self, budget: Duration, ahead: bool) {
        self.chooser.refresh(&self.config.policy, budget, ahead);
    }

    fn choose(&mut self, memory: usize) -> Option<Choice> {
        let mut path = ArrayVec::<u8, CGROUP>::new();
        let scope = match self.memories.get(memory)?.cgroup() {
            // The first is all that this daemon can see.
            Some(cgroup) if memory > 0 => {
                path.try_extend_from_slice(cgroup.as_os_str().as_encoded_bytes()).ok()?;
                Scope::Below(&path)
            }
            _ => Scope::All { by_cgroup: self.config.kill.by_cgroup },
        };
        self.chooser.set_least(self.seen[memory].least());
        // Those that are dying already are not among them.
        self.chooser.choose(&self.config.policy, scope)
    }

    fn benefit(&self, victim: &Choice, governor: &Governor) -> u64 {
        self.whole_group(victim, governor).map_or(victim.bytes, |group| group.bytes)
    }

    fn crowd(&self, victim: &Choice) -> (u32, u64) {
        victim.group.map_or((1, victim.bytes), |group| (group.processes, group.bytes))
    }

    fn warn(&mut self, memory: usize, governor: &Governor) {
        // Who it would be now is also who is known best when it comes to it.
        if let Some(victim) = self.choose(memory) {
            self.voice.warn(&victim, &governor.because());
        }
    }

    fn probe(&mut self, memory: usize) {
        if !self.dry_run
            && let Some(victim) = self.choose(memory)
        {
            self.probe.ask(victim.pidfd, victim.bytes);
        }
    }

    fn hold_back(&mut self, memory: usize, governor: &Governor) {
        if !self.config.act.hold_back || !self.may_hold || self.dry_run {
            return;
        }
        let Some(victim) = self.choose(memory) else { return self.let_go(memory) };
        let is_held = |hold: &Option<Hold>| hold.as_ref().is_some_and(|hold| hold.is_of(victim.pid));
        if is_held(&self.holds[memory]) {
            return;
        }
        let for_another = self.holds.iter().any(is_held);
        self.let_go(memory);
        if for_another {
            return;
        }
        let Choice { pid, comm, pidfd, cgroup, .. } = victim;
        if let Some(hold) = Hold::on(&self.proc, pidfd, cgroup) {
            self.holds[memory] = Some(hold);
            self.voice.held_back(pid, comm, &governor.because());
        }
    }

    fn let_go(&mut self, memory: usize) {
        if let Some(hold) = self.holds.get_mut(memory).and_then(Option::take) {
            hold.release(&self.proc, self.cgroups.as_ref());
        }
    }

    fn helpless(&mut self, memory: usize, reason: Reason, killed: bool, governor: &Governor) {
        let info = match &self.memories[memory] {
            Memory::Machine(machine) => machine.info(&mut self.buffer[..]),
            Memory::Limited(_) => None,
        };
        self.voice.helpless(reason, killed, &governor.because(), info.as_ref());
    }

    fn ask(&mut self, _memory: usize, victim: &Choice, signal: Signal) {
        if self.dry_run {
            return;
        }
        let sent = victim.pidfd.send_signal(signal, SignalFlags::empty());
        // What it has to tidy up should not take longer than it must.
        self.let_go_if(|hold| hold.is_of(victim.pid));
        self.voice.asked(victim, signal, sent.err().as_ref());
    }

    fn strike(&mut self, memory: usize, victim: Choice, reason: Reason, governor: &Governor) {
        let available = governor.last().map_or(0, |s| s.available);
        let at = Instant::now();
        let mut kill = Kill {
            unix_ms: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
            pid: victim.pid,
            comm: victim.comm,
            uid: victim.uid,
            cgroup: victim.cgroup.clone(),
            processes: 1,
            whole: false,
            expected: victim.bytes,
            exact: victim.exact,
            reason,
            because: governor.because(),
            rule: ArrayString::new(),
            means: self.reapers.method(),
            ending: Ending::DryRun,
            available: [available; 2],
            took: Duration::ZERO,
            cost: victim.cost,
        };
        if let Some(rule) = victim.rule {
            // What does not fit is cut off.
            for c in self.config.policy.rule(rule).chars() {
                if kill.rule.try_push(c).is_err() {
                    break;
                }
            }
        }
        let (free, bearable) = (governor.last().map_or(0, free), governor.bearable());
        let bytes = victim.bytes;
        let mut struck =
            Struck { place: None, group: None, refused: None, kill, bytes, at, free, bearable, over: None };
        if !self.dry_run {
            if let Some(group) = self.whole_group(&victim, governor)
                && let Some(dir) = self.kill_group(&victim)
            {
                struck.group = Some(dir);
                (struck.kill.processes, struck.kill.whole) = (group.processes, true);
                struck.kill.expected = group.bytes;
                struck.kill.exact = false;
            }
            match self.kill(victim, struck.group.is_some(), Reapers::kill) {
                Ok(place @ Some(_)) => struck.place = place,
                Ok(None) => struck.kill.means = Method::Plain,
                Err(errno) => struck.refused = Some(errno),
            }
        }
        if let Some(slot) = self.struck.get_mut(memory) {
            *slot = Some(struck);
        }
    }

    fn strike_another(&mut self, memory: usize) -> Option<u64> {
        let struck = self.struck.get_mut(memory)?.as_mut()?;
        // Outside of all cgroups nobody belongs together.
        if self.dry_run || struck.refused.is_some() || struck.kill.cgroup.is_empty() {
            return None;
        }
        // The first is the best of them, and may not look dead yet.
        let (cgroup, first) = (&struck.kill.cgroup, struck.kill.pid);
        let next = || self.chooser.another(&self.config.policy, cgroup);
        let victim = std::iter::from_fn(next).find(|victim| victim.pid != first)?;
        let bytes = victim.bytes;
        self.kill(victim, false, Reapers::kill_additional).ok()?;
        let kill = &mut self.struck[memory].as_mut()?.kill;
        kill.processes += 1;
        kill.expected += bytes;
        kill.exact = false;
        Some(bytes)
    }

    fn progress(&mut self, memory: usize) -> Progress {
        let seen = self.seen.get(memory).copied().unwrap_or_default();
        let Some(Some(struck)) = self.struck.get_mut(memory) else {
            return Progress::Ended(Ending::Gone);
        };
        if self.dry_run {
            return Progress::Ended(Ending::DryRun);
        }
        if let Some(errno) = struck.refused {
            return Progress::Ended(Ending::Refused(errno));
        }
        let Some(outcome) = struck.place.and_then(|place| self.reapers.outcome(place)) else {
            return Progress::Dying;
        };
        let niceness = if seen.available < struck.bearable { HURRIED } else { UNHURRIED };
        self.reapers.lower_priority(niceness);
        struck.kill.means = outcome.method;
        let whole = struck.group.as_ref().is_none_or(cgroup_kill::is_empty);
        match outcome.fate {
            Fate::Refused(errno) => return Progress::Ended(Ending::Refused(errno)),
            Fate::Gone | Fate::Spared if struck.group.is_none() => return Progress::Ended(Ending::Gone),
            _ if !whole => return Progress::Dying,
            Fate::Dying if outcome.back.is_none() => {
                // What the kernel frees is back long before a process has exited that waits for a CPU. One that does
                // not is gone by then, and its swap with it.
                let waits = outcome.method == Method::Expedite && struck.at.elapsed() >= LINGER;
                let left = || files::statm(&self.proc, struck.kill.pid).map_or(0, |memory| memory.resident);
                if !waits || left() > struck.bytes / FREED {
                    return Progress::Dying;
                }
            }
            _ => {}
        }
        // Whoever read its memory just then has it until that is done: the process can be gone and its
        // memory not be free.
        let over = *struck.over.get_or_insert_with(Instant::now);
        let back = free(&seen) >= struck.free.saturating_add(struck.kill.expected / 4);
        if !back && over.elapsed() < LINGER {
            return Progress::Dying;
        }
        struck.kill.took = match (&struck.group, outcome.back) {
            (None, Some(back)) if over.elapsed() < SOON => back,
            _ => struck.at.elapsed(),
        };
        Progress::Ended(Ending::Back)
    }

    fn has_ended(&mut self, victim: &Choice) -> bool {
        victim.pidfd.has_exited().unwrap_or(false)
    }

    fn finish(&mut self, memory: usize, ending: Ending) {
        let Some(mut struck) = self.struck.get_mut(memory).and_then(Option::take) else { return };
        struck.kill.ending = ending;
        // Back, and nobody has seen when: its cgroup was removed.
        let unseen = ending == Ending::Back && struck.kill.took.is_zero();
        if ending == Ending::Late || unseen {
            struck.kill.took = struck.at.elapsed();
        }
        let now =
            self.memories.get(memory).and_then(|m| m.sample(self.began.elapsed(), &mut self.buffer[..]).ok());
        // Of a cgroup that was removed, the last that was seen.
        struck.kill.available[1] = now.unwrap_or(self.seen[memory]).available;
        self.voice.killed(&struck.kill);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Kill;

    #[test]
    fn a_browser_does_not_die_for_a_tab() {
        const MIB: u64 = 1 << 20;
        let browser = Group { bytes: 1500 * MIB, processes: 30, expendable: true, oom_group: false };
        let asked = Group { oom_group: true, ..browser };
        let is_whole = |when, group: &Group| is_whole(when, group, 400 * MIB, 600 * MIB);
        let default = Kill::default().whole_cgroup;
        assert!(!is_whole(default, &browser) && is_whole(default, &asked));
        assert!(is_whole(WholeCgroup::Auto, &browser) && is_whole(WholeCgroup::Always, &browser));
        assert!(!is_whole(WholeCgroup::Never, &asked));
        // One that must not be killed is in it, or nobody else.
        for spared in [Group { expendable: false, ..asked }, Group { processes: 1, ..asked }] {
            assert!(!is_whole(WholeCgroup::Always, &spared), "{spared:?}");
        }
    }
}
