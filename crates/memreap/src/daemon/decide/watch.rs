// SPDX-License-Identifier: GPL-2.0-only
//! One memory that is watched: decides, kills, and waits for the memory before it decides again.

use std::iter::Sum;
use std::time::Duration;

use super::governor::{Advice, Governor};
use super::reason::{Before, Ending, Obstacle, Reason};
use super::sample::Sample;
use super::world::{Gain, Gone, Progress, World};
use crate::choice::{Danger, NoVictim};
use crate::config::{Act, Config, Kill};

/// The pause after memory is back: the kernel's counters lag, and a rate needs some samples.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// The time from one kill to the next, at least: what is used until then must come back as well.
const KILL_INTERVAL: Duration = Duration::from_millis(200);
/// A kill that comes later than this after the last one is for another shortage.
pub(super) const SAME_SHORTAGE_WINDOW: Duration = Duration::from_secs(3);
/// How often a victim is checked, and memory meanwhile.
const VICTIM_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// When a choice took longer than this, memory is sampled again before the kill: what the choice waited for, memory, may
/// be back.
const MAX_CHOICE_TIME: Duration = VICTIM_CHECK_INTERVAL;
/// How often the command that runs before a kill is asked whether it has ended.
const BEFORE_CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// So many kills in a row it can avert, until there was a kill or the shortage is over, ...
const MAX_AVERTED: u32 = 3;
/// ... each of them so soon after the last.
const AVERTED_AGAIN_WINDOW: Duration = Duration::from_secs(60);
/// The time until the next search when there is no victim.
const NO_VICTIM_RETRY: Duration = Duration::from_millis(250);
/// When the choice has been late for so long, that is reported.
const LATE_REPORT_TIME: Duration = Duration::from_secs(2);
/// A kill has helped when this part of what was expected was seen to be free (the rest may have been
/// allocated at once), and that was not less than what is critical.
const FREED_DIVISOR: u64 = 4;
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
/// The time between two warnings, at least.
const WARNING_INTERVAL: Duration = Duration::from_secs(30);

enum State<V, D> {
    /// No victim is dying for this memory.
    Watching {
        /// No kill before this time.
        from: Duration,
    },
    /// A victim was asked to end while there is time, and is killed only for a reason.
    Asked { victim: V, at: Duration, grace: Duration },
    /// A victim was chosen for a reason to kill.
    Chosen { pending: Pending<V>, stage: Stage },
    /// Memory is back before a victim was killed that had been asked. That it exits until then is recorded: its memory
    /// goes piece by piece, and before it does.
    Spared { victim: V, reason: Reason, before: Before, until: Duration },
    /// A victim was sent SIGKILL.
    Killed { dying: D, deadline: Duration },
}

/// A victim that is about to be killed.
struct Pending<V> {
    victim: V,
    reason: Reason,
    /// When it was chosen.
    chosen: Duration,
    /// It was sent the first signal.
    asked: bool,
}

/// What is done about a victim before it is killed.
#[derive(Clone, Copy)]
enum Stage {
    /// Nothing yet.
    New,
    /// The command that runs before a kill has time until `until` to answer.
    CommandRuns { ticket: u32, until: Duration },
    /// It has freed something: the next sample decides.
    LookAgain,
    /// It has ended, or there is none.
    Due { before: Before },
    /// The victim was sent the first signal, and is killed at `until`.
    FirstSignalSent { before: Before, until: Duration },
}

/// What is next for a victim.
enum Step {
    /// That, and to take the next sample after so long, or to go on at once.
    To(Stage, Option<Duration>),
    /// The same at once, if it may still be killed.
    Recheck(Stage),
    /// The reason to kill is gone since it was chosen.
    Drop,
    Kill(Before),
    /// The reason to kill is gone since the command was asked.
    Avert(Before),
    /// It did what it was asked for, or another process exited: it may live.
    Spare {
        before: Before,
        until: Duration,
    },
    /// It has exited, as it was asked to.
    Exited(Before),
}

/// A kill of which it is not known yet whether it has helped. Sizes in bytes.
struct Attempt {
    at: Duration,
    /// What was to come back of the first victim, and of all together.
    bytes: u64,
    expected: u64,
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

/// What holds for all memories.
pub(super) struct Common {
    pub(super) settings: Kill,
    pub(super) polite_interval: Duration,
    /// When the last victim was killed, for whichever memory.
    pub(super) last_kill: Option<Duration>,
    /// From then on one may be asked to end while there is time.
    ask_from: Duration,
}

impl Common {
    pub(super) fn new(config: &Config) -> Self {
        let (settings, polite_interval) = (config.kill.clone(), config.act.polite_interval);
        Self { settings, polite_interval, last_kill: None, ask_from: Duration::ZERO }
    }

    /// Whether the last kill was just now, and for another memory than that whose last one was at `own`.
    fn killed_for_another(&self, own: Option<Duration>, now: Duration) -> bool {
        self.last_kill.is_some_and(|at| self.last_kill != own && now.saturating_sub(at) < KILL_INTERVAL)
    }
}

/// What victims of other memories give back of one. Sizes in bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct FromOthers {
    /// Those that are dying, or will be when the command that runs before a kill has ended.
    dying: u64,
    /// Those that were asked to end, and have time for it.
    asked: u64,
}

impl Sum for FromOthers {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self { dying: sum.dying + one.dying, asked: sum.asked + one.asked })
    }
}

/// One memory, what is known of it, and what is being done for it.
pub(super) struct Watch<W: World + ?Sized> {
    pub(super) memory: W::Memory,
    pub(super) governor: Governor,
    /// The last sample, also when it means nothing to the governor.
    pub(super) last: Sample,
    state: State<W::Victim, W::Dying>,
    /// When a victim was last killed for it.
    pub(super) last_kill: Option<Duration>,
    attempt: Option<Attempt>,
    failed: FailedKills,
    batch: Option<Batch>,
    /// Since when it waits for victims of other memories, and when it last did.
    waits: Option<(Duration, Duration)>,
    /// Kills in a row that the command before them has averted, and when the last of them was.
    averted: (u32, Duration),
    /// Since when the choice has been late.
    late_since: Option<Duration>,
    warned: Option<Duration>,
}

impl<W: World + ?Sized> Watch<W> {
    pub(super) fn new(memory: W::Memory, governor: Governor) -> Self {
        Self {
            memory,
            governor,
            last: Sample::default(),
            state: State::Watching { from: Duration::ZERO },
            last_kill: None,
            attempt: None,
            failed: FailedKills::default(),
            batch: None,
            waits: None,
            averted: (0, Duration::ZERO),
            late_since: None,
            warned: None,
        }
    }

    /// Takes another configuration.
    pub(super) fn reconfigure(&mut self, act: &Act) {
        self.governor.reconfigure(act.clone());
        self.failed = FailedKills::default();
    }

    /// Whether memory is not short, and no victim is dying for it.
    pub(super) fn has_enough(&self) -> bool {
        matches!(self.state, State::Watching { .. })
            && self.governor.last().is_some_and(|sample| sample.available >= self.governor.relief_level())
    }

    /// Takes a sample and acts on it, again at once if need be. Returns the time until the next sample; `None` to wait
    /// for pressure.
    ///
    /// # Errors
    /// When memory cannot be read.
    pub(super) fn step(
        &mut self,
        from_others: FromOthers,
        common: &mut Common,
        world: &mut W,
    ) -> Result<Option<Duration>, Gone> {
        loop {
            let sample = world.sample(&self.memory)?;
            self.last = sample;
            match self.act_on(&sample, from_others, common, world) {
                Some(Duration::ZERO) => {}
                pause => return Ok(pause),
            }
        }
    }

    fn act_on(
        &mut self,
        sample: &Sample,
        from_others: FromOthers,
        common: &mut Common,
        world: &mut W,
    ) -> Option<Duration> {
        let now = sample.at;
        let signal_first = common.settings.signal_first;
        // Who has been asked already is killed when it must be.
        let is_asked = matches!(self.state, State::Asked { .. });
        let grace = if is_asked { Duration::ZERO } else { world.grace_ahead(&self.memory, signal_first) };
        self.governor.set_grace(grace);
        let advice = self.governor.observe(*sample);
        if let Some(attempt) = &mut self.attempt {
            attempt.max_headroom = attempt.max_headroom.max(self.governor.outlook().headroom);
        }
        if sample.available >= self.governor.relief_level() {
            (self.attempt, self.failed, self.averted.0) = (None, FailedKills::default(), 0);
            self.waits = None;
        }
        loop {
            // An arm that stays in its state puts it back.
            match std::mem::replace(&mut self.state, State::Watching { from: now }) {
                State::Watching { from } if now < from => {
                    self.state = State::Watching { from };
                    return Some((from - now).min(VICTIM_CHECK_INTERVAL));
                }
                State::Watching { from } => match advice {
                    Advice::Kill(_) if self.waits_for_others(from_others, common, now) => {
                        self.state = State::Watching { from };
                        return Some(VICTIM_CHECK_INTERVAL);
                    }
                    Advice::Kill(reason) => {
                        self.judge_last_kill();
                        match self.choose(reason, now, world) {
                            Ok(victim) => {
                                let pending = Pending { victim, reason, chosen: now, asked: false };
                                self.state = State::Chosen { pending, stage: Stage::New };
                                if world.now().saturating_sub(now) > MAX_CHOICE_TIME {
                                    return Some(Duration::ZERO);
                                }
                            }
                            Err(pause) => {
                                self.state = State::Watching { from: now + pause };
                                return Some(pause);
                            }
                        }
                    }
                    advice => {
                        self.late_since = None;
                        self.state = State::Watching { from };
                        return self.watch(now, advice, from_others, common, world);
                    }
                },
                State::Asked { victim, at, grace } => {
                    if world.has_exited(&victim) {
                        return Some(self.victim_exited(victim, Reason::Polite, Before::None, now, world));
                    }
                    let age = now.saturating_sub(at);
                    let pause = match advice {
                        // By then another one may be the victim.
                        _ if age >= grace.max(common.polite_interval) => continue,
                        Advice::Kill(_) if self.waits_for_others(from_others, common, now) => VICTIM_CHECK_INTERVAL,
                        Advice::Kill(reason) if age >= grace || self.governor.is_critical() => {
                            self.judge_last_kill();
                            let Some(victim) = world.recheck(victim, age) else { continue };
                            if let Err(pause) = self.weigh(&victim, reason, now, world) {
                                self.state = State::Watching { from: now + pause };
                                return Some(pause);
                            }
                            let pending = Pending { victim, reason, chosen: now, asked: true };
                            self.state = State::Chosen { pending, stage: Stage::New };
                            continue;
                        }
                        Advice::Kill(_) => VICTIM_CHECK_INTERVAL,
                        Advice::SampleAfter(pause) if self.governor.is_low() => pause,
                        // It did what it was asked for, or another process exited: it may live.
                        _ => {
                            let (reason, before, until) = (Reason::Polite, Before::None, at + grace);
                            self.state = State::Spared { victim, reason, before, until };
                            continue;
                        }
                    };
                    self.state = State::Asked { victim, at, grace };
                    return Some(pause);
                }
                State::Spared { victim, reason, before, until } => {
                    if world.has_exited(&victim) {
                        return Some(self.victim_exited(victim, reason, before, now, world));
                    }
                    if now < until && !matches!(advice, Advice::Kill(_)) {
                        self.state = State::Spared { victim, reason, before, until };
                        return Some(VICTIM_CHECK_INTERVAL);
                    }
                }
                State::Chosen { mut pending, stage } => {
                    match self.next_step(&mut pending, stage, advice, common, world) {
                        Step::To(stage, pause) => {
                            self.state = State::Chosen { pending, stage };
                            if pause.is_some() {
                                return pause;
                            }
                        }
                        Step::Recheck(stage) => {
                            let Pending { victim, reason, chosen, asked } = pending;
                            match world.recheck(victim, now.saturating_sub(chosen)) {
                                Some(victim) => {
                                    let pending = Pending { victim, reason, chosen, asked };
                                    self.state = State::Chosen { pending, stage };
                                }
                                None => self.attempt = None,
                            }
                        }
                        Step::Drop => self.attempt = None,
                        Step::Kill(before) => self.kill(pending.victim, pending.reason, before, common, world),
                        Step::Avert(before) => {
                            self.averted = (self.averted_in_a_row(now) + 1, now);
                            self.attempt = None;
                            world.not_killed(pending.victim, pending.reason, before, Ending::Averted, &self.governor);
                        }
                        Step::Spare { before, until } => {
                            let Pending { victim, reason, .. } = pending;
                            self.state = State::Spared { victim, reason, before, until };
                        }
                        Step::Exited(before) => {
                            return Some(self.victim_exited(pending.victim, pending.reason, before, now, world));
                        }
                    }
                }
                State::Killed { mut dying, deadline } => match world.progress(&mut dying, sample) {
                    Progress::Dying if now < deadline => {
                        self.state = State::Killed { dying, deadline };
                        return Some(VICTIM_CHECK_INTERVAL);
                    }
                    Progress::Dying => {
                        world.killed(&self.memory, dying, Ending::Late, sample);
                        // The next kill at once, if it is still needed: the deadline was the wait.
                        self.state = State::Watching { from: now };
                    }
                    Progress::Ended(ending) => {
                        world.killed(&self.memory, dying, ending, sample);
                        self.governor.victim_died();
                        if matches!(ending, Ending::DryRun | Ending::Gone | Ending::Late) {
                            // The daemon killed nothing, or another process keeps the memory and is to die next.
                            self.attempt = None;
                        }
                        let pause = match ending {
                            Ending::DryRun => DRY_RUN_PAUSE,
                            // Another victim may do.
                            Ending::Gone | Ending::Late | Ending::Refused(_) => VICTIM_CHECK_INTERVAL,
                            Ending::Back | Ending::Averted | Ending::Exited => SETTLE_TIME,
                        };
                        self.state = State::Watching { from: now + pause };
                        return Some(VICTIM_CHECK_INTERVAL);
                    }
                },
            }
        }
    }

    /// Whether a kill for this memory has to wait for victims of others: what they give back may be all that is missing
    /// here. But others may be killed again and again.
    fn waits_for_others(&mut self, from_others: FromOthers, common: &Common, now: Duration) -> bool {
        let FromOthers { dying, asked } = from_others;
        let coming = dying + if self.governor.is_critical() { 0 } else { asked };
        // How long it waits, and the pause after which it is for something else.
        let (longest, pause) = if coming > 0 && coming >= self.governor.missing() {
            (common.settings.deadline, KILL_INTERVAL)
        } else if common.killed_for_another(self.last_kill, now) {
            (KILL_INTERVAL, SAME_SHORTAGE_WINDOW)
        } else {
            return false;
        };
        let since = match self.waits {
            Some((since, last)) if now.saturating_sub(last) < pause => since,
            _ => now,
        };
        self.waits = Some((since, now));
        now.saturating_sub(since) < longest
    }

    /// Returns what comes back of `memory`, another one, without a kill for it.
    pub(super) fn gives_to(&self, memory: &W::Memory, world: &W) -> FromOthers {
        let gain = |victim| world.gain_for(victim, memory, self.governor.missing());
        match &self.state {
            State::Killed { dying, .. } => FromOthers { dying: world.comes_back(dying, memory), asked: 0 },
            State::Chosen { pending, stage: Stage::FirstSignalSent { .. } } => {
                FromOthers { dying: 0, asked: gain(&pending.victim) }
            }
            State::Chosen { pending, .. } => FromOthers { dying: gain(&pending.victim), asked: 0 },
            State::Asked { victim, .. } => FromOthers { dying: 0, asked: gain(victim) },
            State::Watching { .. } | State::Spared { .. } => FromOthers::default(),
        }
    }

    /// A victim has exited that was asked to. Returns the time until the next sample.
    fn victim_exited(
        &mut self,
        victim: W::Victim,
        reason: Reason,
        before: Before,
        now: Duration,
        world: &mut W,
    ) -> Duration {
        world.not_killed(victim, reason, before, Ending::Exited, &self.governor);
        self.governor.victim_died();
        self.state = State::Watching { from: now + SETTLE_TIME };
        VICTIM_CHECK_INTERVAL
    }

    /// Whether there is no time for the command that runs before a kill.
    fn is_too_late_for(&self, settings: &Kill) -> bool {
        !settings.before_when_critical && self.governor.is_critical()
    }

    /// Returns how many kills in a row were averted.
    fn averted_in_a_row(&self, now: Duration) -> u32 {
        let (count, last) = self.averted;
        if now.saturating_sub(last) < AVERTED_AGAIN_WINDOW { count } else { 0 }
    }

    /// Has the command run that runs before a kill. Returns a ticket for its answer.
    ///
    /// # Errors
    /// What takes the place of an answer.
    fn ask_before(&self, pending: &Pending<W::Victim>, settings: &Kill, world: &mut W) -> Result<u32, Before> {
        if settings.before.is_none() {
            return Err(Before::None);
        }
        if self.is_too_late_for(settings) {
            return Err(Before::Skipped);
        }
        world.ask_before(&pending.victim, pending.reason, &self.governor, settings.before_limit)
    }

    /// Decides what is next for a victim, by the last sample.
    fn next_step(
        &self,
        pending: &mut Pending<W::Victim>,
        stage: Stage,
        advice: Advice,
        common: &Common,
        world: &mut W,
    ) -> Step {
        let (now, settings) = (self.last.at, &common.settings);
        let is_reason_gone = !matches!(advice, Advice::Kill(_));
        match stage {
            Stage::New if is_reason_gone && !self.governor.is_low() => Step::Drop,
            Stage::New => match self.ask_before(pending, settings, world) {
                Ok(ticket) => {
                    let until = world.now() + settings.before_limit;
                    Step::To(Stage::CommandRuns { ticket, until }, Some(BEFORE_CHECK_INTERVAL))
                }
                Err(before) => Step::To(Stage::Due { before }, None),
            },
            Stage::CommandRuns { ticket, until } => {
                let before = match world.answer(ticket) {
                    Some(before) => before,
                    None if now >= until => Before::TimedOut,
                    None if self.is_too_late_for(settings) => Before::Skipped,
                    None => return Step::To(stage, Some(BEFORE_CHECK_INTERVAL.min(until - now))),
                };
                match before {
                    // This sample may be older than what was freed.
                    Before::Freed if self.averted_in_a_row(now) < MAX_AVERTED => {
                        Step::To(Stage::LookAgain, Some(BEFORE_CHECK_INTERVAL))
                    }
                    _ if is_reason_gone && !self.governor.is_low() => Step::Avert(before),
                    _ => Step::Recheck(Stage::Due { before }),
                }
            }
            Stage::LookAgain if is_reason_gone => Step::Avert(Before::Freed),
            Stage::LookAgain => Step::Recheck(Stage::Due { before: Before::Freed }),
            Stage::Due { before } => match world.signal_first(&pending.victim, settings.signal_first) {
                Some(first) if !self.governor.is_critical() && !pending.asked => {
                    world.send_first_signal(&pending.victim, first.signal.signal());
                    pending.asked = true;
                    let stage = Stage::FirstSignalSent { before, until: now + first.grace };
                    Step::To(stage, Some(VICTIM_CHECK_INTERVAL.min(first.grace)))
                }
                // When memory is critical there is no time for a first signal.
                _ => Step::Kill(before),
            },
            Stage::FirstSignalSent { before, .. } if world.has_exited(&pending.victim) => Step::Exited(before),
            Stage::FirstSignalSent { before, until } if is_reason_gone && !self.governor.is_low() => {
                Step::Spare { before, until }
            }
            Stage::FirstSignalSent { until, .. } if now < until && !self.governor.is_critical() => {
                Step::To(stage, Some(VICTIM_CHECK_INTERVAL.min(until - now)))
            }
            // It may be exempt by now, or one that is may have joined its cgroup.
            Stage::FirstSignalSent { before, .. } => Step::Recheck(Stage::Due { before }),
        }
    }

    /// Chooses the process to kill now.
    ///
    /// # Errors
    /// The time until the next search, when there is no victim, or when the next kill has to wait.
    fn choose(&mut self, reason: Reason, now: Duration, world: &mut W) -> Result<W::Victim, Duration> {
        let chosen = world.choose(&self.memory, self.last.min_victim_bytes());
        let late_since = self.late_since.take().unwrap_or(now);
        let victim = match chosen {
            Ok(victim) => victim,
            Err(NoVictim::Late) => {
                self.late_since = Some(late_since);
                if now.saturating_sub(late_since) >= LATE_REPORT_TIME {
                    self.report_no_kill_helps(reason, Obstacle::NoVictim(NoVictim::Late), world);
                }
                return Err(VICTIM_CHECK_INTERVAL);
            }
            Err(NoVictim::None) => {
                self.report_no_kill_helps(reason, Obstacle::NoVictim(NoVictim::None), world);
                return Err(NO_VICTIM_RETRY);
            }
        };
        self.weigh(&victim, reason, now, world)?;
        Ok(victim)
    }

    /// Notes that a victim is about to be killed, if there is no need to wait after kills that did not help.
    ///
    /// # Errors
    /// The time until the next search.
    fn weigh(&mut self, victim: &W::Victim, reason: Reason, now: Duration, world: &mut W) -> Result<(), Duration> {
        let Gain { bytes: expected, group_processes, group_bytes } = world.gain(victim, self.governor.missing());
        // The others of the cgroup take what a kill gives back. But they get fewer, unless they are
        // restarted.
        let group_shrinks = group_processes < self.failed.group_processes && group_bytes / MANY_FACTOR >= expected;
        let larger = expected >= self.failed.bytes + self.failed.bytes / LARGER_DIVISOR;
        if now < self.failed.until && !larger && !group_shrinks {
            // A single kill may have failed only because another process allocated at the same time.
            if self.failed.count > 1 {
                self.report_no_kill_helps(reason, Obstacle::KillsFail, world);
            }
            return Err(NO_VICTIM_RETRY.min(self.failed.until - now));
        }
        let headroom = self.governor.outlook().headroom;
        self.attempt =
            Some(Attempt { at: now, bytes: expected, expected, headroom, max_headroom: headroom, group_processes });
        Ok(())
    }

    /// Records whether the last kill has helped, now that there is a reason for another one.
    fn judge_last_kill(&mut self) {
        let Some(attempt) = self.attempt.take() else { return };
        if attempt.max_headroom - attempt.headroom >= attempt.expected / FREED_DIVISOR
            && attempt.expected >= self.governor.critical_level()
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

    fn report_no_kill_helps(&mut self, reason: Reason, obstacle: Obstacle, world: &mut W) {
        if !std::mem::replace(&mut self.failed.reported, true) {
            world.no_kill_helps(&self.memory, reason, obstacle, &self.governor);
        }
    }

    fn kill(&mut self, victim: W::Victim, reason: Reason, before: Before, common: &mut Common, world: &mut W) {
        self.averted.0 = 0;
        let gain = world.gain(&victim, self.governor.missing());
        let mut dying = world.kill(victim, reason, before, &self.governor);
        // Not when the processes of the cgroup are restarted.
        let first_or_fewer = self.failed.count == 0 || gain.group_processes < self.failed.group_processes;
        if gain.group_bytes / MANY_FACTOR >= gain.bytes && first_or_fewer {
            let killed = self.kill_more(&mut dying, gain, world);
            if let Some(attempt) = &mut self.attempt {
                attempt.expected = killed;
            }
        }
        let now = world.now();
        (common.last_kill, self.last_kill, self.waits) = (Some(now), Some(now), None);
        self.state = State::Killed { dying, deadline: now + common.settings.deadline };
    }

    /// Kills more processes of the victim's cgroup. One of many alone changes nothing, and the next one would
    /// be killed only after a wait: so as many are killed with it as give back what is missing, and twice as
    /// much each time the others have taken that at once. `gain` is the victim's; returns how many bytes come back
    /// of all that were killed.
    fn kill_more(&mut self, dying: &mut W::Dying, gain: Gain, world: &mut W) -> u64 {
        let Gain { bytes: mut killed, group_bytes, .. } = gain;
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
            && let Some(bytes) = world.kill_another(dying)
        {
            killed += bytes;
        }
        self.batch = Some(Batch { at, killed, left: group_bytes.saturating_sub(killed), doubled });
        killed
    }

    /// Ends the wait for a victim, if there is one, so that every kill is reported. `ending` is that of
    /// a victim that still has its memory.
    pub(super) fn give_up(&mut self, ending: Ending, world: &mut W) {
        let nothing = State::Watching { from: Duration::ZERO };
        if let State::Killed { mut dying, .. } = std::mem::replace(&mut self.state, nothing) {
            let ending = match world.progress(&mut dying, &self.last) {
                Progress::Ended(ending) => ending,
                Progress::Dying => ending,
            };
            world.killed(&self.memory, dying, ending, &self.last);
        }
    }

    /// Does what is due while there is no reason to kill. Returns the time until the next sample.
    fn watch(
        &mut self,
        now: Duration,
        advice: Advice,
        from_others: FromOthers,
        common: &mut Common,
        world: &mut W,
    ) -> Option<Duration> {
        let Advice::SampleAfter(pause) = advice else { return None };
        // What others' victims give back may be enough.
        let is_first = from_others.dying + from_others.asked == 0;
        if is_first && now >= common.ask_from && self.governor.is_time_to_ask() {
            let victim = world.choose(&self.memory, self.last.min_victim_bytes()).ok();
            match victim.filter(|victim| world.gives_back_alone(victim)) {
                Some(victim) => {
                    let polite = common.settings.polite;
                    let first = world.signal_first(&victim, Some(polite)).unwrap_or(polite);
                    world.send_first_signal(&victim, first.signal.signal());
                    common.ask_from = now + common.polite_interval;
                    self.state = State::Asked { victim, at: now, grace: first.grace };
                    return Some(VICTIM_CHECK_INTERVAL);
                }
                // Whoever it is, when there is a reason to kill it is searched for again.
                None => common.ask_from = now + NO_VICTIM_RETRY,
            }
        }
        let due = self.warned.is_none_or(|when| now.saturating_sub(when) >= WARNING_INTERVAL);
        if due && self.governor.danger() == Danger::Imminent && world.warn(&self.memory, &self.governor) {
            self.warned = Some(now);
        }
        Some(pause)
    }
}
