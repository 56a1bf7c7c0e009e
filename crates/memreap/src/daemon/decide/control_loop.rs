// SPDX-License-Identifier: GPL-2.0-only
//! The daemon's control loop: samples, decides, kills, and waits for the memory before it decides again.
//!
//! All that it sees and does goes through [`World`], so that the same code runs on the system and in a
//! simulation of many days.

use std::time::Duration;

use super::governor::{Advice, Governor};
use super::reason::{Ending, Reason};
use super::sample::Sample;
use super::world::{Progress, World};
use crate::choice::{Danger, NoVictim};
use crate::config::{Config, Kill};

/// The pause after memory is back: the kernel's counters lag, and a rate needs some samples.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// The time from one kill to the next, at least: what is used until then must come back as well.
const KILL_INTERVAL: Duration = Duration::from_millis(200);
/// A kill that comes later than this after the last one is for another shortage.
const SAME_SHORTAGE_WINDOW: Duration = Duration::from_secs(3);
/// How often a victim is checked, and memory meanwhile.
const VICTIM_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The time until the next search when there is no victim.
const NO_VICTIM_RETRY: Duration = Duration::from_millis(250);
/// When the choice has been late for so long, that is reported.
const LATE_REPORT_TIME: Duration = Duration::from_secs(2);
/// A kill has helped when this part of what was expected was seen to be free (the rest may have been
/// allocated at once), ...
const FREED_DIVISOR: u64 = 4;
/// ... and when what was expected was not less than this part of what was missing.
const MISSING_DIVISOR: u64 = 8;
/// After kills that did not help, the wait for the next one is so many times as long each time, up to the
/// maximum.
const BACKOFF_FACTOR: u32 = 4;
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// A victim that gives back more than those that did not help, by this part, is killed without that wait.
const LARGER_DIVISOR: u64 = 2;
/// A victim is one of many when its cgroup holds at least so many times as much. Then as many are killed
/// together as are missing, and the next ones without that wait if there are fewer each time.
const MANY_FACTOR: u64 = 8;
/// The pause after what would have been a kill in a dry run.
const DRY_RUN_PAUSE: Duration = Duration::from_secs(10);
/// The time until the next sample divided by this is spent on updating what is known of candidates.
const PREPARE_DIVISOR: u32 = 50;
/// The time between two warnings, at least.
const WARNING_INTERVAL: Duration = Duration::from_secs(30);

enum State<V> {
    /// No victim is dying for this memory.
    Watching {
        /// No kill before this time.
        from: Duration,
    },
    /// A victim was sent the first signal, and is killed at `until`.
    FirstSignalSent { victim: V, reason: Reason, until: Duration },
    /// A victim was sent SIGKILL.
    Killed { deadline: Duration },
}

/// A kill of which it is not known yet whether it has helped. Sizes in bytes.
struct Attempt {
    at: Duration,
    /// What was to come back of the first victim, and of all together; and what was missing.
    bytes: u64,
    expected: u64,
    missing: u64,
    /// The headroom at the time, and the largest since.
    headroom: u64,
    max_headroom: u64,
    /// The processes in the victim's cgroup.
    group_processes: u32,
}

/// Consecutive kills that did not help.
#[derive(Clone, Copy, Default)]
struct FailedKills {
    count: u32,
    /// The most that a victim was to give back, in bytes.
    bytes: u64,
    /// The processes in the cgroup of the last victim.
    group_processes: u32,
    /// Until then only a victim that gives back more is killed.
    until: Duration,
    /// It was reported that no kill helps.
    reported: bool,
}

/// Processes of one cgroup that were killed together. Sizes in bytes.
#[derive(Clone, Copy)]
struct Batch {
    at: Duration,
    /// What the victims held, and what the others of their cgroup held.
    killed: u64,
    left: u64,
    /// How often the missing amount had been doubled.
    doubled: u32,
}

/// What is known of one memory, and what is being done for it.
struct MemoryState<V> {
    governor: Governor,
    state: State<V>,
    attempt: Option<Attempt>,
    failed: FailedKills,
    batch: Option<Batch>,
    /// Since when the choice has been late.
    late_since: Option<Duration>,
    /// When the last victim was killed.
    killed: Option<Duration>,
    warned: Option<Duration>,
}

/// Keeps memories from running out.
pub struct ControlLoop<V> {
    memories: Vec<MemoryState<V>>,
    kill: Kill,
}

/// When [`ControlLoop::step`] is to be called next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When the kernel reports pressure.
    Rest,
    /// After this time.
    After(Duration),
}

impl<V> ControlLoop<V> {
    /// A control loop for at most `max_memories` memories.
    pub fn new(config: &Config, max_memories: usize) -> Self {
        let mut memories = Vec::with_capacity(max_memories);
        memories.push(MemoryState::new(Governor::new(config.act.clone())));
        Self { memories, kill: config.kill.clone() }
    }

    /// Takes another configuration. Kills that have begun go on.
    pub fn reconfigure(&mut self, config: &Config) {
        self.kill = config.kill.clone();
        for memory in &mut self.memories {
            memory.governor.reconfigure(config.act.clone());
            memory.failed = FailedKills::default();
        }
    }

    /// Sets the number of memories that are watched; the first is always the same one.
    pub fn resize(&mut self, count: usize) {
        while self.memories.len() < count.min(self.memories.capacity()) {
            let governor = self.memories[0].governor.for_another();
            self.memories.push(MemoryState::new(governor));
        }
        self.memories.truncate(count.max(1));
    }

    /// Whether a memory is not short, and no victim is dying for it.
    pub fn has_enough(&self, memory: usize) -> bool {
        self.memories.get(memory).is_some_and(|MemoryState { governor, state, .. }| {
            matches!(state, State::Watching { .. })
                && governor.last().is_some_and(|sample| sample.available >= governor.relief_level())
        })
    }

    /// Stops watching a memory; the last one takes its index. `dying` is the ending of a victim that is dying for it.
    pub fn swap_remove(&mut self, memory: usize, dying: Ending, world: &mut dyn World<Victim = V>) {
        let removed = self.memories.swap_remove(memory);
        removed.finish_pending(memory, dying, world);
        self.memories[0].killed = self.memories[0].killed.max(removed.killed);
    }

    /// The daemon stops, and waits for no victim.
    pub fn stop(&mut self, world: &mut dyn World<Victim = V>) {
        for (index, memory) in self.memories.iter().enumerate() {
            memory.finish_pending(index, Ending::Late, world);
        }
    }

    /// Returns the governor of a memory.
    pub fn governor(&self, memory: usize) -> Option<&Governor> {
        self.memories.get(memory).map(|memory| &memory.governor)
    }

    /// Returns how close a kill for the first memory is.
    pub fn danger(&self) -> Danger {
        self.memories[0].governor.danger()
    }

    /// Whether there is time for what may wait for memory: no kill is imminent for the first one, as at a limit it can be
    /// for ever, and none was just now for any.
    pub fn may_wait(&self, now: Duration) -> bool {
        let is_long_ago = |at: Duration| now.saturating_sub(at) >= SAME_SHORTAGE_WINDOW;
        self.danger() != Danger::Imminent
            && self.memories.iter().all(|memory| memory.killed.is_none_or(is_long_ago))
    }

    /// The kernel has reported pressure.
    pub fn pressure_reported(&mut self, now: Duration) {
        for memory in &mut self.memories {
            memory.governor.pressure_reported(now);
        }
    }

    /// Samples all memories once, and acts.
    pub fn step(&mut self, world: &mut dyn World<Victim = V>) -> Next {
        let mut next: Option<Duration> = None;
        for (index, memory) in self.memories.iter_mut().enumerate() {
            let Some(sample) = world.sample(index) else { continue };
            let pause = memory.step(index, sample, &self.kill, world);
            next = match (next, pause) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        match next {
            Some(pause) => {
                // A victim that is chosen in advance is one for the first memory.
                world.prepare(pause / PREPARE_DIVISOR, self.danger());
                Next::After(pause)
            }
            None => Next::Rest,
        }
    }
}

impl<V> MemoryState<V> {
    fn new(governor: Governor) -> Self {
        Self {
            governor,
            state: State::Watching { from: Duration::ZERO },
            attempt: None,
            failed: FailedKills::default(),
            batch: None,
            late_since: None,
            killed: None,
            warned: None,
        }
    }

    /// Takes a sample and acts on it. Returns the time until the next sample; `None` to wait for pressure.
    fn step(
        &mut self,
        memory: usize,
        sample: Sample,
        kill: &Kill,
        world: &mut dyn World<Victim = V>,
    ) -> Option<Duration> {
        let now = sample.at;
        self.governor.set_grace(world.grace_ahead(memory, kill.signal_first));
        let advice = self.governor.observe(sample);
        if let Some(attempt) = &mut self.attempt {
            attempt.max_headroom = attempt.max_headroom.max(self.governor.outlook().headroom);
        }
        if sample.available >= self.governor.relief_level() {
            (self.attempt, self.failed) = (None, FailedKills::default());
        }
        loop {
            // An arm that stays in its state puts it back.
            match std::mem::replace(&mut self.state, State::Watching { from: now }) {
                State::Watching { from } if now < from => {
                    self.state = State::Watching { from };
                    return Some((from - now).min(VICTIM_CHECK_INTERVAL));
                }
                State::Watching { from } => match advice {
                    Advice::Kill(reason) => {
                        self.judge_last_kill();
                        let victim = match self.choose(memory, reason, &sample, world) {
                            Ok(victim) => victim,
                            Err(pause) => {
                                self.state = State::Watching { from: now + pause };
                                return Some(pause);
                            }
                        };
                        match world.signal_first(&victim, kill.signal_first) {
                            Some(first) if !self.governor.is_critical() => {
                                world.send_first_signal(memory, &victim, first.signal.signal());
                                let until = now + first.grace;
                                self.state = State::FirstSignalSent { victim, reason, until };
                                return Some(VICTIM_CHECK_INTERVAL.min(first.grace));
                            }
                            // When memory is critical there is no time for a first signal.
                            _ => self.kill(memory, victim, reason, kill, world),
                        }
                    }
                    advice => {
                        self.late_since = None;
                        self.state = State::Watching { from };
                        return self.watch(memory, now, advice, world);
                    }
                },
                State::FirstSignalSent { victim, reason, until } => {
                    if world.has_exited(&victim) {
                        self.governor.victim_died();
                        self.state = State::Watching { from: now + SETTLE_TIME };
                        return Some(VICTIM_CHECK_INTERVAL);
                    }
                    if !self.governor.is_low() && !matches!(advice, Advice::Kill(_)) {
                        // It did what it was asked for, or another process exited: it may live.
                        continue;
                    }
                    if now < until && !self.governor.is_critical() {
                        self.state = State::FirstSignalSent { victim, reason, until };
                        return Some(VICTIM_CHECK_INTERVAL.min(until - now));
                    }
                    // It may be exempt by now, or one that is may have joined its cgroup.
                    let Some(victim) = world.recheck(victim) else { continue };
                    self.kill(memory, victim, reason, kill, world);
                }
                State::Killed { deadline } => match world.progress(memory) {
                    Progress::Dying if now < deadline => {
                        self.state = State::Killed { deadline };
                        return Some(VICTIM_CHECK_INTERVAL);
                    }
                    Progress::Dying => {
                        world.finish(memory, Ending::Late);
                        // The next kill at once, if it is still needed: the deadline was the wait.
                        self.state = State::Watching { from: now };
                    }
                    Progress::Ended(ending) => {
                        world.finish(memory, ending);
                        self.governor.victim_died();
                        if matches!(ending, Ending::DryRun | Ending::Gone | Ending::Late) {
                            // The daemon killed nothing, or another process keeps the memory and is to die next.
                            self.attempt = None;
                        }
                        let pause = match ending {
                            Ending::DryRun => DRY_RUN_PAUSE,
                            // Another victim may do.
                            Ending::Gone | Ending::Late | Ending::Refused(_) => VICTIM_CHECK_INTERVAL,
                            Ending::Back => SETTLE_TIME,
                        };
                        self.state = State::Watching { from: now + pause };
                        return Some(VICTIM_CHECK_INTERVAL);
                    }
                },
            }
        }
    }

    /// Chooses the process to kill now.
    ///
    /// # Errors
    /// The time until the next search, when there is no victim, or when the next kill has to wait.
    fn choose(
        &mut self,
        memory: usize,
        reason: Reason,
        now: &Sample,
        world: &mut dyn World<Victim = V>,
    ) -> Result<V, Duration> {
        let chosen = world.choose(memory);
        let late_since = self.late_since.take().unwrap_or(now.at);
        let victim = match chosen {
            Ok(victim) => victim,
            Err(NoVictim::Late) => {
                self.late_since = Some(late_since);
                if now.at.saturating_sub(late_since) >= LATE_REPORT_TIME {
                    self.report_no_kill_helps(memory, reason, Some(NoVictim::Late), world);
                }
                return Err(VICTIM_CHECK_INTERVAL);
            }
            Err(NoVictim::None) => {
                self.report_no_kill_helps(memory, reason, Some(NoVictim::None), world);
                return Err(NO_VICTIM_RETRY);
            }
        };
        let expected = world.bytes_back(&victim, &self.governor);
        let (group_processes, group_bytes) = world.group_size(&victim);
        // The others of the cgroup take what a kill gives back. But they get fewer, unless they are
        // restarted.
        let group_shrinks =
            group_processes < self.failed.group_processes && group_bytes / MANY_FACTOR >= expected;
        let larger = expected >= self.failed.bytes + self.failed.bytes / LARGER_DIVISOR;
        if now.at < self.failed.until && !larger && !group_shrinks {
            // A single kill may have failed only because another process allocated at the same time.
            if self.failed.count > 1 {
                self.report_no_kill_helps(memory, reason, None, world);
            }
            return Err(NO_VICTIM_RETRY.min(self.failed.until - now.at));
        }
        let headroom = self.governor.outlook().headroom;
        self.attempt = Some(Attempt {
            at: now.at,
            bytes: expected,
            expected,
            missing: self.governor.missing(),
            headroom,
            max_headroom: headroom,
            group_processes,
        });
        Ok(victim)
    }

    /// Records whether the last kill has helped, now that there is a reason for another one.
    fn judge_last_kill(&mut self) {
        let Some(attempt) = self.attempt.take() else { return };
        if attempt.max_headroom - attempt.headroom >= attempt.expected / FREED_DIVISOR
            && attempt.expected >= attempt.missing / MISSING_DIVISOR
        {
            self.failed = FailedKills::default();
            return;
        }
        let failed = &mut self.failed;
        failed.count = failed.count.saturating_add(1);
        failed.bytes = failed.bytes.max(attempt.bytes);
        failed.group_processes = attempt.group_processes;
        let wait = SETTLE_TIME.saturating_mul(BACKOFF_FACTOR.saturating_pow(failed.count)).min(MAX_BACKOFF);
        failed.until = attempt.at + wait;
    }

    fn report_no_kill_helps(
        &mut self,
        memory: usize,
        reason: Reason,
        why: Option<NoVictim>,
        world: &mut dyn World<Victim = V>,
    ) {
        if !std::mem::replace(&mut self.failed.reported, true) {
            world.no_kill_helps(memory, reason, why, &self.governor);
        }
    }

    fn kill(
        &mut self,
        memory: usize,
        victim: V,
        reason: Reason,
        kill: &Kill,
        world: &mut dyn World<Victim = V>,
    ) {
        let (group_processes, group_bytes) = world.group_size(&victim);
        let bytes = world.bytes_back(&victim, &self.governor);
        world.kill(memory, victim, reason, &self.governor);
        // Not when the processes of the cgroup are restarted.
        let first_or_fewer = self.failed.count == 0 || group_processes < self.failed.group_processes;
        if group_bytes / MANY_FACTOR >= bytes && first_or_fewer {
            let killed = self.kill_more(memory, bytes, group_bytes, world);
            if let Some(attempt) = &mut self.attempt {
                attempt.expected = killed;
            }
        }
        let now = world.now();
        self.killed = Some(now);
        self.state = State::Killed { deadline: now + kill.deadline };
    }

    /// Kills more processes of the victim's cgroup. One of many alone changes nothing, and the next one would
    /// be killed only after a wait: so as many are killed with it as give back what is missing, and twice as
    /// much each time the others have taken that at once. `killed` bytes of the `group_bytes` have been
    /// killed before; returns how many it is afterwards.
    fn kill_more(
        &mut self,
        memory: usize,
        mut killed: u64,
        group_bytes: u64,
        world: &mut dyn World<Victim = V>,
    ) -> u64 {
        let at = world.now();
        let taken_by_others = |batch: &Batch| {
            at.saturating_sub(batch.at) < SAME_SHORTAGE_WINDOW
                && group_bytes >= batch.left.saturating_add(batch.killed / 2)
        };
        let doubled = self.batch.filter(taken_by_others).map_or(0, |batch| batch.doubled.saturating_add(1));
        let missing = self.governor.missing().saturating_add(self.governor.growth(KILL_INTERVAL));
        let wanted = missing.saturating_mul(2_u64.saturating_pow(doubled));
        while killed < wanted
            && world.now().saturating_sub(at) < SETTLE_TIME
            && let Some(bytes) = world.kill_another(memory)
        {
            killed += bytes;
        }
        self.batch = Some(Batch { at, killed, left: group_bytes.saturating_sub(killed), doubled });
        killed
    }

    /// Ends the wait for a victim, if there is one, so that every kill is reported. `dying` is the ending of
    /// a victim that still has its memory.
    fn finish_pending(&self, memory: usize, dying: Ending, world: &mut dyn World<Victim = V>) {
        if let State::Killed { .. } = self.state {
            let ending = match world.progress(memory) {
                Progress::Ended(ending) => ending,
                Progress::Dying => dying,
            };
            world.finish(memory, ending);
        }
    }

    /// Does what is due while there is no reason to kill. Returns the time until the next sample.
    fn watch(
        &mut self,
        memory: usize,
        now: Duration,
        advice: Advice,
        world: &mut dyn World<Victim = V>,
    ) -> Option<Duration> {
        let Advice::SampleAfter(pause) = advice else { return None };
        let due = self.warned.is_none_or(|when| now.saturating_sub(when) >= WARNING_INTERVAL);
        if due && self.governor.danger() == Danger::Imminent && world.warn(memory, &self.governor) {
            self.warned = Some(now);
        }
        Some(pause)
    }
}
