//! When to act: a pure function of what was seen so far. Time comes in with the samples, so the same
//! code runs on the system and in a simulation.
//!
//! What counts is the *headroom*: the memory that is available, and what swap can still free. A page
//! that is swapped out to zram frees only what compression saves, and with data that cannot be
//! compressed nothing at all, however much of swap is unused. So swap counts by its *yield*: the
//! share of a page that swapping it out gives back, as measured on the latest pages.

use std::fmt::Write as _;
use std::time::Duration;

use arrayvec::{ArrayString, ArrayVec};

use crate::config::Act;
use crate::daemon::report::record::Reason;
use crate::units::Size;

/// Samples that are remembered: with the shortest tick, more than the window.
const SAMPLES: usize = 128;
/// What the rate is taken over. Shorter is noise: reclaim works in bursts.
const WINDOW: Duration = Duration::from_millis(400);
/// What must bear a forecast out: the further ahead, the longer back. The part of the horizon.
const PAST: u32 = 2;
/// The least time between two samples from which a rate is taken.
const SPAN: Duration = Duration::from_millis(50);
/// What the share of stalls is taken over.
const STALL_WINDOW: Duration = Duration::from_secs(1);
/// A share over less than this is too hasty to kill for.
const STALL_SPAN: Duration = Duration::from_millis(700);
/// When less than this times `low` is available, looks are frequent.
const TENSE: u64 = 2;
/// When the headroom is gone within so many horizons, looks are frequent and warnings are due.
const NEAR: u32 = 2;
/// How much must have been swapped out for its compression to say something.
const EVIDENCE: u64 = 1 << 20;
/// How much of what was swapped out before counts fully; half of what is older is forgotten.
const MEMORY: u64 = 32 << 20;
/// How much a device must hold for the average to say something.
const AVERAGE: u64 = 16 << 20;
/// The yield of compressed swap of which nothing is known.
const PRIOR: f64 = 0.5;
/// Shortest and longest pause between two looks while there is pressure, and the longest when memory is
/// short. A look takes some milliseconds on a slow machine, at real time: ten in a second are enough as
/// long as nothing is near.
const TICK: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];
const TENSE_TICK: Duration = Duration::from_millis(100);
/// Looks until memory runs out at the present rate, at least.
const LOOKS: u32 = 16;
/// What runs out later than this is nothing to press anybody for.
const FORESEEABLE: Duration = Duration::from_secs(30);
/// How long it must have been quiet for pressure to be over.
const QUIET: Duration = Duration::from_secs(3);
/// The share of the time in percent in which all tasks stall that is more than a hiccup.
const TROUBLE: f64 = 5.0;
/// The least that somebody must give back to be killed for it: this part of all memory, but at most so many
/// bytes.
const TRIFLE: u64 = 1024;
const TRIFLE_MOST: u64 = 16 << 20;
/// Below this rate memory does not run out, it wavers: bytes per second.
const STEADY: f64 = (1 << 20) as f64;
/// And so it does where what is left would last for longer than this. (7 % of 2 GiB last for less, at more than
/// [`STEADY`]; where there is more memory, more of it comes and goes.)
const LASTING: Duration = Duration::from_secs(150);

/// What was seen at one time. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// When, on any clock that does not go back.
    pub at: Duration,
    /// All memory, or the limit.
    pub total: u64,
    /// What can be had without swapping.
    pub available: u64,
    /// Free swap that is not memory itself: a disk.
    pub disk_free: u64,
    /// Free swap that is memory itself: zram.
    pub zram_free: u64,
    /// What is in zram, before compression and after.
    pub zram: [u64; 2],
    /// Since boot: time in which some task stalled for memory, and in which all did; `None` where the
    /// kernel does not say.
    pub stalled: Option<[Duration; 2]>,
}

impl Sample {
    /// Nobody is killed who would give back less than this, in bytes.
    pub fn least(&self) -> u64 {
        (self.total / TRIFLE).min(TRIFLE_MOST)
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing, until the kernel tells of pressure.
    Rest,
    /// Look again after this time.
    Look(Duration),
    /// Kill.
    Act(Reason),
}

/// What was made of the last sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Memory that is available, in bytes.
    pub available: u64,
    /// Memory and swap that are left, in bytes.
    pub headroom: u64,
    /// How fast it goes, in bytes per second; negative when it grows.
    pub rate: f64,
    /// When it will be gone; `None` if it does not shrink.
    pub left: Option<Duration>,
    /// The same at the rate of a longer time: reclaim works in bursts, and a second of one is no forecast for
    /// the next two.
    pub borne_out: Option<Duration>,
    /// The share of the time in which all tasks stalled, in percent; `None` where the kernel does not say.
    pub full: Option<f64>,
    /// The share of a page that swapping it out frees, 0 to 1.
    pub swap_yield: f64,
}

/// Watches over one amount of memory: the machine's, or a cgroup's limit.
#[derive(Clone, Debug)]
pub struct Governor {
    act: Act,
    /// It is a limit that somebody has set, maybe close to what is needed: being near it is no trouble
    /// as long as nobody stalls.
    limited: bool,
    samples: ArrayVec<Sample, SAMPLES>,
    outlook: Outlook,
    /// The yield as measured, what zram held at the last sample, and what went there lately: before
    /// compression and after.
    measured: Option<f64>,
    zram: Option<[u64; 2]>,
    swapped: [u64; 2],
    /// When there last was a reason to look.
    troubled: Option<Duration>,
}

impl Governor {
    /// For the machine's memory, without knowledge of the past.
    pub fn new(act: Act) -> Self {
        Self {
            act,
            limited: false,
            samples: ArrayVec::new(),
            outlook: Outlook::default(),
            measured: None,
            zram: None,
            swapped: [0; 2],
            troubled: None,
        }
    }

    /// For a cgroup's limit, with these thresholds.
    pub fn limited(&self) -> Self {
        Self { limited: true, ..Self::new(self.act.clone()) }
    }

    /// Other thresholds from now on.
    pub fn set(&mut self, act: Act) {
        self.act = act;
    }

    /// What was made of the last sample.
    pub fn outlook(&self) -> Outlook {
        self.outlook
    }

    /// The last sample, if there was one.
    pub fn last(&self) -> Option<&Sample> {
        self.samples.last()
    }

    /// Forgets at which rate memory goes: it has changed by leaps, as after a kill.
    pub fn forget_rate(&mut self) {
        self.samples.clear();
    }

    /// The kernel has told of pressure.
    pub fn alarm(&mut self, at: Duration) {
        self.troubled = Some(at);
    }

    /// How many bytes can be used up before there is a need to look: what is above where looks become
    /// frequent. `None` when nothing was seen yet.
    pub fn slack(&self) -> Option<u64> {
        let now = self.samples.last()?;
        Some(now.available.saturating_sub(self.well()))
    }

    /// When so much is available all is well, and looks are not frequent. In bytes.
    pub fn well(&self) -> u64 {
        self.low().saturating_mul(TENSE)
    }

    /// When less is available, memory is short. In bytes.
    fn low(&self) -> u64 {
        self.act.low.of(self.total())
    }

    /// When so much is available nobody has to be killed at once. In bytes.
    pub fn bearable(&self) -> u64 {
        self.act.critical.of(self.total())
    }

    fn total(&self) -> u64 {
        self.samples.last().map_or(0, |s| s.total)
    }

    /// What must come back for this not to be a reason to kill any more, in bytes, as far as an amount can say.
    pub fn missing(&self, reason: Reason) -> u64 {
        match reason {
            Reason::Stall => self.low().saturating_sub(self.outlook.available),
            Reason::Critical | Reason::Forecast => self.bearable().saturating_sub(self.outlook.headroom),
        }
    }

    /// The same, and what will have been used after a time, in bytes.
    pub fn missing_after(&self, reason: Reason, time: Duration) -> u64 {
        self.missing(reason).saturating_add(self.growth(time))
    }

    /// What is used within a time at the present rate, in bytes.
    pub fn growth(&self, time: Duration) -> u64 {
        (self.outlook.rate.max(0.0) * time.as_secs_f64()) as u64
    }

    /// Whether it matters, and is not known, what swapping out gives back.
    pub fn wants_evidence(&self) -> bool {
        let Some(now) = self.samples.last() else { return false };
        now.zram_free > 0 && self.measured.is_none() && now.available < self.well()
    }

    /// Whether somebody should be told now that a kill may come.
    pub fn is_close(&self) -> bool {
        let Some(sample) = self.samples.last() else { return false };
        sample.available < self.low() && self.outlook.left.is_some_and(|left| left < NEAR * self.act.horizon)
    }

    /// Whether memory is short and gets shorter, so that it matters who runs.
    pub fn presses(&self) -> bool {
        let Some(sample) = self.samples.last() else { return false };
        let Outlook { left, full, .. } = self.outlook;
        let stalled = full.is_some_and(|full| full >= TROUBLE);
        let shrinks = !self.limited && left.is_some_and(|left| left < FORESEEABLE);
        sample.available < self.low() && (shrinks || stalled)
    }

    /// Takes a sample in, and says what to do.
    pub fn observe(&mut self, sample: Sample) -> Advice {
        // A clock that went back: what was seen before says nothing.
        if self.samples.last().is_some_and(|last| last.at > sample.at) {
            self.forget_rate();
        }
        if self.samples.is_full() {
            self.samples.remove(0);
        }
        self.samples.push(sample);
        self.measure_yield(&sample);
        self.outlook = self.look();
        match self.reason() {
            Some(reason) => {
                self.troubled = Some(sample.at);
                Advice::Act(reason)
            }
            None => self.pause(&sample),
        }
    }

    /// What the latest pages that went to zram took there. Not only the very latest: the first that the
    /// kernel swaps out are those that nobody has used for long, and not those of whoever takes the memory.
    fn measure_yield(&mut self, sample: &Sample) {
        let [original, used] = sample.zram;
        let Some([original_then, used_then]) = self.zram.replace(sample.zram) else { return };
        if original <= original_then {
            // Pages have come back or were freed.
            return;
        }
        self.swapped[0] += original - original_then;
        self.swapped[1] += used.saturating_sub(used_then);
        if self.swapped[0] > MEMORY {
            self.swapped = self.swapped.map(|bytes| bytes / 2);
        }
        let [original, used] = self.swapped;
        if original >= EVIDENCE {
            self.measured = Some(1.0 - (used as f64 / original as f64).min(1.0));
        }
    }

    fn swap_yield(&self, sample: &Sample) -> f64 {
        let [original, used] = sample.zram;
        self.measured.unwrap_or_else(|| {
            if original >= AVERAGE { 1.0 - (used as f64 / original as f64).clamp(0.0, 1.0) } else { PRIOR }
        })
    }

    fn look(&self) -> Outlook {
        let Some(now) = self.samples.last() else { return Outlook::default() };
        let swap_yield = self.swap_yield(now);
        // With one and the same yield at both ends: learning something is not losing memory.
        let headroom = |s: &Sample| s.available as f64 + s.disk_free as f64 + s.zram_free as f64 * swap_yield;
        // What is used, and not what is left: a balloon driver, memory hot plug or a new limit changes all
        // memory at any time, and that is no rate at which it goes.
        let used = |s: &Sample| s.total as f64 - headroom(s);
        let since = |window: Duration| {
            let from = now.at.saturating_sub(window);
            self.samples.iter().find(|s| s.at >= from).filter(|s| now.at - s.at >= SPAN)
        };
        let rate = |window| {
            since(window).map_or(0.0, |then| (used(now) - used(then)) / (now.at - then.at).as_secs_f64())
        };
        let left =
            |rate: f64| (rate > STEADY).then(|| Duration::from_secs_f64((headroom(now) / rate).min(1e6)));
        let full = since(STALL_WINDOW).and_then(|then| {
            let stalled = now.stalled?[1].saturating_sub(then.stalled?[1]);
            Some((stalled.as_secs_f64() / (now.at - then.at).as_secs_f64() * 100.0).min(100.0))
        });
        let longer = rate(WINDOW.max(self.act.horizon / PAST));
        let rate = rate(WINDOW);
        let (left, borne_out) = (left(rate), left(longer));
        let (available, headroom) = (now.available, headroom(now) as u64);
        Outlook { available, headroom, rate, left, borne_out, full, swap_yield }
    }

    fn reason(&self) -> Option<Reason> {
        let now = self.samples.last()?;
        let Outlook { headroom, left, borne_out, full, .. } = self.outlook;
        let stalled = |share| full.is_some_and(|full| full >= share);
        if self.limited && !stalled(TROUBLE) {
            return None;
        }
        // Little is left, but that may have been so for long and stay so: whoever is dying already may
        // have been enough.
        let shrinks = left.is_some_and(|left| left < LASTING);
        let uneasy = shrinks || stalled(TROUBLE) || now.stalled.is_none();
        if uneasy && headroom < self.bearable() {
            return Some(Reason::Critical);
        }
        if now.available >= self.low() {
            return None;
        }
        if [left, borne_out].iter().all(|left| left.is_some_and(|left| left < self.act.horizon)) {
            return Some(Reason::Forecast);
        }
        // Within a limit nobody reclaims in the background: those who stall are those who allocate.
        let (span, share) =
            if self.limited { (STALL_SPAN / 2, self.act.stall / 2.0) } else { (STALL_SPAN, self.act.stall) };
        let long = self.samples.first().is_some_and(|first| now.at - first.at >= span);
        (long && stalled(share)).then_some(Reason::Stall)
    }

    fn pause(&mut self, sample: &Sample) -> Advice {
        let tense = sample.available < self.well()
            || self.outlook.left.is_some_and(|left| left < NEAR * self.act.horizon);
        if tense {
            self.troubled = Some(sample.at);
        }
        match self.troubled {
            Some(when) if sample.at.saturating_sub(when) < QUIET => {
                let left = self.outlook.left.unwrap_or(Duration::MAX);
                let longest = if tense { TENSE_TICK } else { TICK[1] };
                Advice::Look((left / LOOKS).clamp(TICK[0], longest))
            }
            _ => {
                self.troubled = None;
                // The last one tells how much there is, but nothing of a rate.
                self.samples.retain(|s| s.at == sample.at);
                // The next one to take much memory may have other data in it.
                self.measured = None;
                self.swapped = [0; 2];
                Advice::Rest
            }
        }
    }

    /// The figures behind a decision, for people.
    pub fn because(&self) -> ArrayString<160> {
        let mut text = ArrayString::new();
        let Some(now) = self.samples.last() else { return text };
        let Outlook { rate, left, full, .. } = self.outlook;
        // What does not fit is cut off.
        let _ = write!(text, "{} of {} available", Size(now.available), Size(now.total));
        let swap = self.outlook.headroom.saturating_sub(now.available);
        let _ = write!(text, ", swap good for {}", Size(swap));
        if let Some(left) = left {
            let _ = write!(text, ", gone in {:.1} s at {}/s", left.as_secs_f64(), Size(rate as u64));
        }
        if let Some(full) = full.filter(|full| *full >= 1.0) {
            let _ = write!(text, ", {full:.0} % stalled");
        }
        text
    }
}
