//! The daemon's mind: looks, decides, kills, and waits for the memory before it decides again.
//! Everything that it sees and does goes through [`World`], so that the same code runs on the
//! system and in a simulation of many days.

use std::time::Duration;

use linux::pidfd::Signal;

use super::governor::{Advice, Governor, Sample};
use crate::config::{Act, Config};
use crate::daemon::report::record::{Ending, Reason};

/// After memory is back: the kernel's counters lag, and a rate needs some samples.
const SETTLE: Duration = Duration::from_millis(100);
/// From one kill to the next it takes about that, at least.
const NEXT: Duration = Duration::from_millis(200);
/// After that time it is another shortage.
const RELAPSE: Duration = Duration::from_secs(3);
/// How often a victim is looked at, and memory meanwhile.
const FOLLOW: Duration = Duration::from_millis(20);
/// When there is nobody to kill: how long until the next search.
const NOBODY: Duration = Duration::from_millis(250);
/// A kill has helped when this part of what was expected was seen to be free, as others take of it at once, ...
const SEEN: u64 = 4;
/// ... and when it was not less than this part of what was missing.
const MISSING: u64 = 8;
/// After kills that did not help, the next one comes so many times later each time, at most after the other.
const LATER: u32 = 4;
const LATEST: Duration = Duration::from_secs(60);
/// But whoever would give back more than that by this part of it is killed at once.
const LARGER: u64 = 2;
/// One of many is in a cgroup that holds so many times as much. As many of them die together as are missing, and
/// the next ones at once if there are fewer each time.
const CROWD: u64 = 8;
/// After what would have been a kill in a dry run.
const DRY: Duration = Duration::from_secs(10);
/// The part of the time between looks that is spent on knowing candidates better.
const PREPARING: u32 = 50;
/// Two probes are at least so far apart.
const PROBES: Duration = Duration::from_secs(2);
/// Whom to hold back is chosen anew so often.
const HOLDS: Duration = Duration::from_secs(2);
/// How long there must be no reason to hold somebody back.
const RELIEVED: Duration = Duration::from_secs(3);
/// Two warnings are at least so far apart.
const WARNINGS: Duration = Duration::from_secs(30);

/// How it goes with a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has its memory.
    Dying,
    /// It is over.
    Ended(Ending),
}

/// What the keeper sees and does. Nothing here may allocate or wait.
pub trait World {
    /// A process, or a cgroup, that was chosen and is held.
    type Victim;

    /// The time.
    fn now(&self) -> Duration;

    /// Looks at one of the memories that are watched; `None` when it is not there any more.
    fn sample(&mut self, memory: usize) -> Option<Sample>;

    /// Spends up to `budget` on knowing candidates better; with `ahead`, a kill may come soon.
    fn prepare(&mut self, budget: Duration, ahead: bool);

    /// Chooses the victim whose death gives most of this memory back.
    fn choose(&mut self, memory: usize) -> Option<Self::Victim>;

    /// What comes back when this victim is killed, in bytes.
    fn benefit(&self, victim: &Self::Victim, governor: &Governor) -> u64;

    /// How many processes there are in the victim's cgroup, and what they hold together, in bytes.
    fn crowd(&self, victim: &Self::Victim) -> (u32, u64);

    /// Tells that a kill may come soon.
    fn warn(&mut self, memory: usize, governor: &Governor);

    /// Finds out how well the memory compresses of whoever would be killed.
    fn probe(&mut self, memory: usize);

    /// Holds back whoever would be killed, and nobody else for this memory any more.
    fn hold_back(&mut self, memory: usize, governor: &Governor);

    /// Holds nobody back for this memory any more.
    fn let_go(&mut self, memory: usize);

    /// There is nobody to kill, or, with `killed`, kills did not help. Told once until memory is well again.
    fn helpless(&mut self, memory: usize, reason: Reason, killed: bool, governor: &Governor);

    /// Asks the victim to end.
    fn ask(&mut self, memory: usize, victim: &Self::Victim, signal: Signal);

    /// Kills the victim and begins to get its memory back.
    fn strike(&mut self, memory: usize, victim: Self::Victim, reason: Reason, governor: &Governor);

    /// Kills the next best of the cgroup of the victim that was last struck for this memory, and gives what comes
    /// back of it, in bytes; `None` when there is none.
    fn strike_another(&mut self, memory: usize) -> Option<u64>;

    /// How it goes with the victim that was last struck for this memory.
    fn progress(&mut self, memory: usize) -> Progress;

    /// Whether a victim that was asked has ended.
    fn has_ended(&mut self, victim: &Self::Victim) -> bool;

    /// The end of a kill, or of the wait for it.
    fn finish(&mut self, memory: usize, ending: Ending);
}

enum State<V> {
    /// Nobody is dying for this memory.
    Watching {
        /// Not to act before.
        from: Duration,
    },
    /// Asked to end.
    Asked { victim: V, reason: Reason, until: Duration },
    /// Killed.
    Struck { deadline: Duration },
}

/// A kill of which is not known yet whether it has helped. Sizes in bytes.
struct Attempt {
    at: Duration,
    /// What was to come back, of the first victim and of all, and what was missing.
    bytes: u64,
    expected: u64,
    missing: u64,
    /// The headroom then, and at most since.
    headroom: u64,
    most: u64,
    /// The processes in the victim's cgroup.
    crowd: u32,
}

/// Kills that did not help, one after the other.
#[derive(Clone, Copy, Default)]
struct Vain {
    count: u32,
    /// The most that one process, or a whole cgroup, was to give back, in bytes.
    bytes: u64,
    /// How many processes there were in the cgroup of the last one.
    crowd: u32,
    /// Until when nobody is killed who would not give back more.
    until: Duration,
    /// It was told that no kill helps.
    told: bool,
}

/// Some of many that died together. Sizes in bytes.
#[derive(Clone, Copy)]
struct Batch {
    at: Duration,
    /// What was struck, and what the others of their cgroup held.
    struck: u64,
    left: u64,
    /// How often what was missing had been doubled.
    doubled: u32,
}

struct Watch<V> {
    governor: Governor,
    state: State<V>,
    attempt: Option<Attempt>,
    vain: Vain,
    batch: Option<Batch>,
    warned: Option<Duration>,
    probed: Option<Duration>,
    /// When somebody was last held back, and when that last had its reason.
    held: Option<Held>,
}

#[derive(Clone, Copy)]
struct Held {
    chosen: Duration,
    needed: Duration,
}

/// Keeps memories from running out.
pub struct Keeper<V> {
    watches: Vec<Watch<V>>,
    kill: crate::config::Kill,
}

/// What [`Keeper::step`] wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// To be called when the kernel tells of pressure.
    Rest,
    /// To be called after this time, or when a victim has ended.
    After(Duration),
}

impl<V> Keeper<V> {
    /// For at most `memories` memories at the same time.
    pub fn new(config: &Config, memories: usize) -> Self {
        let mut watches = Vec::with_capacity(memories);
        watches.push(Watch::new(act(config)));
        Self { watches, kill: config.kill.clone() }
    }

    /// Other settings from now on. Who is dying goes on dying.
    pub fn set(&mut self, config: &Config) {
        self.kill = config.kill.clone();
        for watch in &mut self.watches {
            watch.governor.set(act(config));
            watch.vain = Vain::default();
        }
    }

    /// Watches over so many memories from now on; the first is always the same one.
    pub fn resize(&mut self, memories: usize) {
        while self.watches.len() < memories.min(self.watches.capacity()) {
            let governor = self.watches[0].governor.limited();
            self.watches.push(Watch { governor, ..Watch::new(Act::default()) });
        }
        self.watches.truncate(memories.max(1));
    }

    /// One of the memories is no longer watched, as its cgroup was removed, and the last takes its place.
    pub fn swap_remove(&mut self, memory: usize, world: &mut impl World<Victim = V>) {
        // A cgroup is removed when nobody is left in it.
        self.watches.swap_remove(memory).conclude(memory, Ending::Back, world);
    }

    /// The daemon ends, and waits for nobody.
    pub fn end(&mut self, world: &mut impl World<Victim = V>) {
        for (memory, watch) in self.watches.iter().enumerate() {
            watch.conclude(memory, Ending::Late, world);
        }
    }

    /// What is known of a memory.
    pub fn governor(&self, memory: usize) -> Option<&Governor> {
        self.watches.get(memory).map(|watch| &watch.governor)
    }

    /// The kernel has told of pressure.
    pub fn alarm(&mut self, now: Duration) {
        for watch in &mut self.watches {
            watch.governor.alarm(now);
        }
    }

    /// Looks at all memories once and does what is to be done.
    pub fn step(&mut self, world: &mut impl World<Victim = V>) -> Next {
        let mut next: Option<Duration> = None;
        for (memory, watch) in self.watches.iter_mut().enumerate() {
            let Some(sample) = world.sample(memory) else { continue };
            let pause = watch.step(memory, sample, &self.kill, world);
            next = match (next, pause) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        match next {
            Some(pause) => {
                let ahead = self.watches.iter().any(|watch| watch.governor.is_close());
                world.prepare(pause / PREPARING, ahead);
                Next::After(pause)
            }
            None => Next::Rest,
        }
    }
}

/// Who is asked to end before it is killed needs the time for it.
fn act(config: &Config) -> Act {
    let grace = config.kill.signal_first.as_ref().map_or(Duration::ZERO, |first| first.grace);
    Act { horizon: config.act.horizon + grace, ..config.act.clone() }
}

impl<V> Watch<V> {
    fn new(act: Act) -> Self {
        Self {
            governor: Governor::new(act),
            state: State::Watching { from: Duration::ZERO },
            attempt: None,
            vain: Vain::default(),
            batch: None,
            warned: None,
            probed: None,
            held: None,
        }
    }

    /// Gives the time until it wants to look again.
    fn step(
        &mut self,
        memory: usize,
        sample: Sample,
        kill: &crate::config::Kill,
        world: &mut impl World<Victim = V>,
    ) -> Option<Duration> {
        let now = sample.at;
        let advice = self.governor.observe(sample);
        if let Some(attempt) = &mut self.attempt {
            attempt.most = attempt.most.max(self.governor.outlook().headroom);
        }
        if sample.available >= self.governor.well() {
            (self.attempt, self.vain) = (None, Vain::default());
        }
        loop {
            // Replaced below wherever it goes on.
            match std::mem::replace(&mut self.state, State::Watching { from: now }) {
                State::Watching { from } if now < from => {
                    self.state = State::Watching { from };
                    return Some((from - now).min(FOLLOW));
                }
                State::Watching { from } => match advice {
                    Advice::Act(reason) => {
                        self.judge();
                        let victim = match self.choose(memory, reason, &sample, world) {
                            Ok(victim) => victim,
                            Err(pause) => {
                                self.hold_back(memory, now, false, world);
                                self.state = State::Watching { from: now + pause };
                                return Some(pause);
                            }
                        };
                        match &kill.signal_first {
                            // There is no time left to ask for anything.
                            Some(first) if reason != Reason::Critical => {
                                world.ask(memory, &victim, first.signal.signal());
                                self.state = State::Asked { victim, reason, until: now + first.grace };
                                return Some(FOLLOW.min(first.grace));
                            }
                            _ => self.strike(memory, victim, reason, kill, world),
                        }
                    }
                    advice => {
                        self.state = State::Watching { from };
                        return self.look_on(memory, now, advice, world);
                    }
                },
                State::Asked { victim, reason, until } => {
                    if world.has_ended(&victim) {
                        self.governor.forget_rate();
                        self.state = State::Watching { from: now + SETTLE };
                        return Some(FOLLOW);
                    }
                    if now < until && advice != Advice::Act(Reason::Critical) {
                        self.state = State::Asked { victim, reason, until };
                        return Some(FOLLOW.min(until - now));
                    }
                    self.strike(memory, victim, reason, kill, world);
                }
                State::Struck { deadline } => match world.progress(memory) {
                    Progress::Dying if now < deadline => {
                        self.state = State::Struck { deadline };
                        return Some(FOLLOW);
                    }
                    Progress::Dying => {
                        world.finish(memory, Ending::Late);
                        // The next one at once, if it is still needed: the deadline was the wait.
                        self.state = State::Watching { from: now };
                    }
                    Progress::Ended(ending) => {
                        world.finish(memory, ending);
                        self.governor.forget_rate();
                        if matches!(ending, Ending::DryRun | Ending::Gone) {
                            // By us nobody was.
                            self.attempt = None;
                        }
                        let pause = match ending {
                            Ending::DryRun => DRY,
                            // Somebody else's memory may be as good.
                            Ending::Gone | Ending::Refused(_) => FOLLOW,
                            Ending::Back | Ending::Late => SETTLE,
                        };
                        self.state = State::Watching { from: now + pause };
                        return Some(FOLLOW);
                    }
                },
            }
        }
    }

    /// Who is to be killed now; else when to search again.
    fn choose(
        &mut self,
        memory: usize,
        reason: Reason,
        now: &Sample,
        world: &mut impl World<Victim = V>,
    ) -> Result<V, Duration> {
        // Those of whom too little comes back are left alone.
        let chosen = world.choose(memory).map(|victim| (world.benefit(&victim, &self.governor), victim));
        let Some((expected, victim)) = chosen.filter(|(bytes, _)| *bytes >= now.least()) else {
            self.tell(memory, reason, false, world);
            return Err(NOBODY);
        };
        let (crowd, together) = world.crowd(&victim);
        // What a kill gives back, the others take. But they get fewer, unless they are started anew.
        let dwindles = crowd < self.vain.crowd && together / CROWD >= expected;
        let larger = expected >= self.vain.bytes + self.vain.bytes / LARGER;
        if now.at < self.vain.until && !larger && !dwindles {
            // One can be mistaken: somebody was faster.
            if self.vain.count > 1 {
                self.tell(memory, reason, true, world);
            }
            return Err(NOBODY.min(self.vain.until - now.at));
        }
        let (missing, headroom) = (self.governor.missing(reason), self.governor.outlook().headroom);
        self.attempt =
            Some(Attempt { at: now.at, bytes: expected, expected, missing, headroom, most: headroom, crowd });
        Ok(victim)
    }

    /// Whether the last kill has helped, now that there is a reason for another one.
    fn judge(&mut self) {
        let Some(attempt) = self.attempt.take() else { return };
        if attempt.most - attempt.headroom >= attempt.expected / SEEN
            && attempt.expected >= attempt.missing / MISSING
        {
            self.vain = Vain::default();
            return;
        }
        let vain = &mut self.vain;
        vain.count = vain.count.saturating_add(1);
        vain.bytes = vain.bytes.max(attempt.bytes);
        vain.crowd = attempt.crowd;
        let wait = SETTLE.saturating_mul(LATER.saturating_pow(vain.count)).min(LATEST);
        vain.until = attempt.at + wait;
    }

    fn tell(&mut self, memory: usize, reason: Reason, killed: bool, world: &mut impl World<Victim = V>) {
        if !std::mem::replace(&mut self.vain.told, true) {
            world.helpless(memory, reason, killed, &self.governor);
        }
    }

    fn strike(
        &mut self,
        memory: usize,
        victim: V,
        reason: Reason,
        kill: &crate::config::Kill,
        world: &mut impl World<Victim = V>,
    ) {
        let (crowd, together) = world.crowd(&victim);
        let bytes = world.benefit(&victim, &self.governor);
        world.strike(memory, victim, reason, &self.governor);
        // Those who are started anew are not killed by the dozen.
        if together / CROWD >= bytes && (self.vain.count == 0 || crowd < self.vain.crowd) {
            let struck = self.strike_more(memory, bytes, together, reason, world);
            if let Some(attempt) = &mut self.attempt {
                attempt.expected = struck;
            }
        }
        self.state = State::Struck { deadline: world.now() + kill.deadline };
    }

    /// One of many alone changes nothing, and the next one would die after a wait: so as many die with it as give
    /// back what is missing, and each time twice as much if the others of them have taken that at once. `struck`
    /// bytes have been struck of those that they hold `together`; gives how many it is then.
    fn strike_more(
        &mut self,
        memory: usize,
        mut struck: u64,
        together: u64,
        reason: Reason,
        world: &mut impl World<Victim = V>,
    ) -> u64 {
        let at = world.now();
        let taken = |batch: &Batch| {
            at.saturating_sub(batch.at) < RELAPSE && together >= batch.left.saturating_add(batch.struck / 2)
        };
        let doubled = self.batch.filter(taken).map_or(0, |batch| batch.doubled.saturating_add(1));
        let wanted = self.governor.missing_after(reason, NEXT).saturating_mul(2_u64.saturating_pow(doubled));
        while struck < wanted
            && world.now().saturating_sub(at) < SETTLE
            && let Some(bytes) = world.strike_another(memory)
        {
            struck += bytes;
        }
        self.batch = Some(Batch { at, struck, left: together.saturating_sub(struck), doubled });
        struck
    }

    /// Nobody waits any longer for the victim, if somebody was struck: every kill is told. `dying` is what
    /// has become of one whose end was not seen.
    fn conclude(&self, memory: usize, dying: Ending, world: &mut impl World<Victim = V>) {
        if let State::Struck { .. } = self.state {
            let ending = match world.progress(memory) {
                Progress::Ended(ending) => ending,
                Progress::Dying => dying,
            };
            world.finish(memory, ending);
        }
    }

    fn look_on(
        &mut self,
        memory: usize,
        now: Duration,
        advice: Advice,
        world: &mut impl World<Victim = V>,
    ) -> Option<Duration> {
        self.hold_back(memory, now, advice == Advice::Rest, world);
        let Advice::Look(pause) = advice else { return None };
        let due = self.probed.is_none_or(|when| now.saturating_sub(when) >= PROBES);
        if due && self.governor.wants_evidence() {
            self.probed = Some(now);
            world.probe(memory);
        }
        let due = self.warned.is_none_or(|when| now.saturating_sub(when) >= WARNINGS);
        if due && self.governor.is_close() {
            self.warned = Some(now);
            world.warn(memory, &self.governor);
        }
        Some(pause)
    }

    /// Who takes the memory changes seldom, so a choice for it now and then is enough.
    fn hold_back(&mut self, memory: usize, now: Duration, rest: bool, world: &mut impl World<Victim = V>) {
        if self.governor.presses() {
            let chosen = self.held.map(|held| held.chosen);
            let due = chosen.is_none_or(|when| now.saturating_sub(when) >= HOLDS);
            if due {
                world.hold_back(memory, &self.governor);
            }
            self.held = Some(Held { chosen: chosen.filter(|_| !due).unwrap_or(now), needed: now });
        } else if self.held.is_some_and(|held| rest || now.saturating_sub(held.needed) >= RELIEVED) {
            self.held = None;
            world.let_go(memory);
        }
    }
}
