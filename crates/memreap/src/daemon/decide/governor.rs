// SPDX-License-Identifier: GPL-2.0-only
//! Decides when to kill: a pure function of the samples so far. The time is part of each sample, so the same
//! code runs on the system and in a simulation.
//!
//! A process that takes all but the last of memory and gives it back looks, until then, like one that does
//! not stop, and others wait for memory for as long: up to five seconds were measured. So no forecast kills,
//! nor do stalls alone, but what is there: hardly any memory *and swap* are left; or hardly any memory is, and
//! tasks wait; or they have waited for very long.

use std::fmt::Write as _;
use std::time::Duration;

use arrayvec::{ArrayString, ArrayVec};

use super::reason::Reason;
use super::sample::Sample;
use crate::choice::Danger;
use crate::config::Act;
use crate::units::Size;

/// Samples that are kept: at the shortest tick, more than the longest window.
const MAX_SAMPLES: usize = 128;
/// The kernel reports pressure when some task has stalled for memory for this long, on up to so many CPUs, ...
pub const REPORTED_STALL: Duration = Duration::from_millis(5);
const REPORTED_STALL_CPUS: u32 = 8;
/// ...within this window.
pub const REPORT_WINDOW: Duration = Duration::from_millis(500);
/// How often memory is sampled where there is no PSI.
pub const BLIND_INTERVAL: Duration = Duration::from_millis(250);
/// Who is asked to end needs some time to do so.
const MIN_POLITE_TIME: Duration = Duration::from_millis(500);
/// No faster is memory taken, for how long the daemon can rest before the polite level; and the longest rest.
const MAX_RATE_BYTES_PER_SECOND: f64 = (4_u64 << 30) as f64;
const MAX_POLITE_REST: Duration = Duration::from_secs(10);

/// Returns [`REPORTED_STALL`] on a machine of so many CPUs: each that is busy takes its share of what one task's stall
/// counts, and at the limit of a cgroup one task matters.
pub fn reported_stall(cpus: usize) -> Duration {
    REPORTED_STALL * REPORTED_STALL_CPUS / u32::try_from(cpus).unwrap_or(u32::MAX).max(REPORTED_STALL_CPUS)
}

macro_rules! thresholds {
    ($($(#[doc = $about:literal])+ $name:ident = $value:expr,)+) => {
        /// All numbers of the decision but those that a user sets ([`Act`]).
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Thresholds {
            $($(#[doc = $about])+ pub $name: f64,)+
        }

        impl Thresholds {
            /// Those of the daemon.
            pub const USUAL: Self = Self { $($name: $value,)+ };

            /// Returns each with its name, for those who try others.
            pub fn each(&mut self) -> impl Iterator<Item = (&'static str, &mut f64)> {
                [$((stringify!($name), &mut self.$name),)+].into_iter()
            }
        }
    };
}

thresholds! {
    // When to kill.
    /// The time over which rate and shares of stalls are taken. For as long some task must stall without a break when no
    /// memory is available: what fits stalls for three seconds, but leaves more than 1 % of memory.
    window_s = REPORT_WINDOW.as_secs_f64(),
    /// The least time between two samples from which they are. Shorter is noise: reclaim works in bursts.
    min_rate_span_s = 0.05,
    /// At a lower rate memory does not run out, it only fluctuates.
    steady_bytes_per_s = (1 << 20) as f64,
    /// What runs out later than this is tolerable, and no reason to sample.
    horizon_s = 150.0,
    /// The share of the time in which all tasks stall from which it counts as pressure.
    pressure_stall_percent = 10.0,
    /// This part of swap counts as used up: the last of it is full within a second, and then the kernel kills.
    swap_reserve_share = 0.05,
    /// No memory is available at all where less than this part of `act.critical` is free, about twice what the kernel
    /// keeps for itself.
    no_memory_share = 0.5,
    /// So many times `act.critical` count as no memory where the kernel reclaims early.
    early_reclaim_factor = 3.0,
    /// How much of the window all tasks must have stalled, not only some: half of what it can be where one of two CPUs
    /// computes.
    min_full_stall_percent = 25.0,
    /// Stalls are no reason while available memory grows by so many times `act.critical` meanwhile: what fits stalls as
    /// much while the kernel swaps others out for it, faster than it takes memory.
    recovery_factor = 1.0,
    /// The time constant of the average of stalls in which thrashing shows that lets tasks run in between, ...
    average_time_s = 20.0,
    /// ... and the average from which on it is a reason to kill. In the face-off loads that fit reach 35 % at most, a
    /// leak into swap on a hard disk 62 %.
    max_average_stall_percent = 50.0,
    // When to sample and to warn.
    /// When memory and swap run out within this time, warnings are due.
    warning_time_s = 4.0,
    /// The shortest time between two samples, ...
    min_tick_s = 0.01,
    /// ... the longest, ...
    max_tick_s = BLIND_INTERVAL.as_secs_f64(),
    /// ... and the longest below `low`.
    max_short_tick_s = 0.1,
    /// Samples until memory runs out at the present rate, at least.
    samples_until_exhausted = 16.0,
    /// How long there must have been no reason to sample for pressure to be over.
    quiet_time_s = 3.0,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing, until the kernel reports pressure.
    Rest,
    /// Take the next sample after this time.
    SampleAfter(Duration),
    /// Kill now.
    Kill(Reason),
}

/// What follows from the last samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Memory that is available, in bytes.
    pub available: u64,
    /// Memory that is available and swap that is free, in bytes.
    pub headroom: u64,
    /// How fast the headroom shrinks, in bytes per second; negative when it grows.
    pub rate: f64,
    /// The time until the headroom is used up at that rate; `None` if it does not shrink.
    pub time_left: Option<Duration>,
    /// The share of the last 0.5 s in which some tasks stalled, and in which all did; `None` without PSI.
    pub stall_percent: Option<[f64; 2]>,
}

/// Decides about one memory: the machine's, or a cgroup's limit.
#[derive(Clone, Debug)]
pub struct Governor {
    act: Act,
    thresholds: Thresholds,
    /// How long the next victim has before it is killed, so much earlier a kill is due.
    grace: Duration,
    samples: ArrayVec<Sample, MAX_SAMPLES>,
    outlook: Outlook,
    /// The average share of the time in which all tasks stalled while memory was low and reclaimed, in percent.
    average_stall_percent: f64,
    /// When there last was a reason for frequent samples.
    last_concern: Option<Duration>,
}

impl Governor {
    /// A governor for the machine's memory, without samples.
    pub fn new(act: Act) -> Self {
        Self {
            act,
            thresholds: Thresholds::USUAL,
            grace: Duration::ZERO,
            samples: ArrayVec::new(),
            outlook: Outlook::default(),
            average_stall_percent: 0.0,
            last_concern: None,
        }
    }

    /// The same with other numbers, to see what each is for.
    #[must_use]
    pub fn with(self, thresholds: Thresholds) -> Self {
        Self { thresholds, ..self }
    }

    /// A governor for another memory, with the thresholds of this one.
    pub fn for_another(&self) -> Self {
        Self::new(self.act.clone()).with(self.thresholds)
    }

    /// Takes other thresholds.
    pub fn reconfigure(&mut self, act: Act) {
        self.act = act;
    }

    /// Sets how long the next victim will have from the first signal to SIGKILL.
    pub fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// Returns what follows from the last samples.
    pub fn outlook(&self) -> Outlook {
        self.outlook
    }

    /// Returns the last sample, if there was one.
    pub fn last(&self) -> Option<&Sample> {
        self.samples.last()
    }

    /// A victim is dead: what was seen so far means nothing.
    pub fn victim_died(&mut self) {
        self.samples.clear();
        self.average_stall_percent = 0.0;
    }

    /// The kernel has reported pressure.
    pub fn pressure_reported(&mut self, at: Duration) {
        self.last_concern = Some(at);
    }

    /// Returns from how many available bytes on there is no shortage.
    pub fn relief_level(&self) -> u64 {
        self.act.relief(self.total())
    }

    /// Returns below how many available bytes memory is short (`act.low`).
    fn low_level(&self) -> u64 {
        self.act.low.of(self.total())
    }

    /// Returns below how many available bytes memory is critical (`act.critical`).
    pub fn critical_level(&self) -> u64 {
        self.act.critical.of(self.total())
    }

    /// Returns below how many bytes of headroom memory and swap are critical.
    fn critical_headroom(&self) -> u64 {
        let swap = self.samples.last().map_or(0, |s| times(s.swap_total, self.thresholds.swap_reserve_share));
        self.critical_level().saturating_add(swap.min(self.act.critical.most))
    }

    fn total(&self) -> u64 {
        self.samples.last().map_or(0, |s| s.total)
    }

    /// Returns how many bytes must come back for the shortage to end.
    pub fn missing(&self) -> u64 {
        self.low_level().saturating_sub(self.outlook.available)
    }

    /// Returns how many bytes are used within `time` at the present rate.
    pub fn growth(&self, time: Duration) -> u64 {
        (self.outlook.rate.max(0.0) * time.as_secs_f64()) as u64
    }

    /// Whether there is no time for anything but SIGKILL.
    pub fn is_critical(&self) -> bool {
        self.is_critical_after(Duration::ZERO) || self.none_is_left()
    }

    /// Whether there is no memory, however much of swap is free. MemAvailable alone does not tell: it is what is left
    /// above the watermarks, which may be far up (vm.watermark_scale_factor). A cgroup that swaps is always at its
    /// limit.
    fn none_is_left(&self) -> bool {
        let critical = self.critical_level();
        let last = times(critical, self.thresholds.no_memory_share);
        self.samples.last().is_some_and(|now| !now.is_limit && now.available < critical && now.free < last)
    }

    /// Whether memory and swap are critical by then.
    fn is_critical_after(&self, time: Duration) -> bool {
        self.outlook.headroom < self.critical_headroom().saturating_add(self.growth(time))
    }

    /// Returns below how much headroom the next victim is asked to end, in bytes.
    fn polite_level(&self) -> Option<u64> {
        let (level, now) = (self.act.polite?, self.samples.last()?);
        Some(level.of(now.total.saturating_add(now.swap_total)))
    }

    /// Returns how long the daemon can rest when the kernel reports no pressure: for ever, unless the next victim is to
    /// be asked to end, as the kernel reports pressure only when hardly any memory is free.
    pub fn longest_rest(&self) -> Option<Duration> {
        let left = self.outlook.headroom.saturating_sub(self.polite_level()?);
        Some(Duration::from_secs_f64(left as f64 / MAX_RATE_BYTES_PER_SECOND).clamp(BLIND_INTERVAL, MAX_POLITE_REST))
    }

    /// Whether the next victim is to be asked to end (`act.polite`): little is left, it shrinks, and there is time.
    pub fn is_time_to_ask(&self) -> bool {
        let (Some(level), Some(now)) = (self.polite_level(), self.samples.last()) else { return false };
        self.is_low()
            && self.outlook.headroom < level
            && self.outlook.time_left.is_some_and(|left| left >= MIN_POLITE_TIME)
            && !self.is_critical()
            // As for a reason to kill.
            && (!now.is_limit || self.has_pressure())
    }

    /// Whether memory is short.
    pub fn is_low(&self) -> bool {
        self.outlook.available < self.low_level()
    }

    /// Whether the machine has reclaimed memory since the first sample. If not, tasks do not stall because it is short:
    /// a cgroup's own memory.high stalls them, too, and anyone can set one.
    fn is_reclaiming(&self) -> bool {
        let scanned = |sample: Option<&Sample>| sample.and_then(|s| s.scanned);
        let now = scanned(self.samples.last());
        now.is_none() || now != scanned(self.samples.first())
    }

    fn runs_out_within(&self, seconds: f64) -> bool {
        self.outlook.time_left.is_some_and(|left| left.as_secs_f64() < seconds)
    }

    fn has_pressure(&self) -> bool {
        self.outlook.stall_percent.is_some_and(|[_, all]| all >= self.thresholds.pressure_stall_percent)
    }

    /// Returns how close a kill is. When it is imminent, a warning is due.
    pub fn danger(&self) -> Danger {
        let stalled = self.outlook.stall_percent.is_some_and(|[_, all]| all >= self.thresholds.min_full_stall_percent);
        match self.is_low() {
            true if self.runs_out_within(self.thresholds.warning_time_s) || stalled => Danger::Imminent,
            true => Danger::Possible,
            false => Danger::None,
        }
    }

    /// Takes a sample, and returns what to do.
    pub fn observe(&mut self, sample: Sample) -> Advice {
        let average = self.samples.last().and_then(|last| self.average_stall(last, &sample));
        // However often memory is sampled, the samples that are kept reach back over the longest window.
        if let [.., before, last] = self.samples[..]
            && (last.at - before.at).as_secs_f64() < self.thresholds.min_tick_s
        {
            self.samples.pop();
        }
        if self.samples.is_full() {
            self.samples.remove(0);
        }
        self.samples.push(sample);
        self.outlook = self.compute_outlook();
        self.average_stall_percent = average.filter(|_| self.is_low() && self.is_reclaiming()).unwrap_or(0.0);
        match self.reason() {
            Some(reason) => {
                self.last_concern = Some(sample.at);
                Advice::Kill(reason)
            }
            None => self.next_tick(&sample),
        }
    }

    /// Returns the first sample of the window, if it is long enough ago for a rate.
    fn since(&self) -> Option<&Sample> {
        let now = self.samples.last()?;
        let from = now.at.saturating_sub(seconds(self.thresholds.window_s));
        let least = self.thresholds.min_rate_span_s;
        self.samples.iter().find(|s| s.at >= from && s.at < now.at).filter(|s| (now.at - s.at).as_secs_f64() >= least)
    }

    fn compute_outlook(&self) -> Outlook {
        let Some(now) = self.samples.last() else { return Outlook::default() };
        // What is used, and not what is left: a balloon driver, memory hotplug, swapoff or a new limit changes
        // the total at any time, and that is no rate.
        let used = |s: &Sample| (s.total + s.swap_total) as f64 - s.headroom() as f64;
        let rate = self.since().map_or(0.0, |then| (used(now) - used(then)) / (now.at - then.at).as_secs_f64());
        let headroom = now.headroom();
        let time_left = (rate > self.thresholds.steady_bytes_per_s)
            .then(|| Duration::from_secs_f64((headroom as f64 / rate).min(1e6)));
        let stall_percent = self.since().and_then(|then| stall_percent(then, now));
        Outlook { available: now.available, headroom, rate, time_left, stall_percent }
    }

    /// Returns the average with the time between two samples, exponentially weighted; `None` without PSI.
    fn average_stall(&self, last: &Sample, now: &Sample) -> Option<f64> {
        let span = (now.at - last.at).as_secs_f64();
        let stalled = now.stalled?[1].saturating_sub(last.stalled?[1]).as_secs_f64().min(span);
        let average_time = self.thresholds.average_time_s;
        let kept = average_time / (average_time + span);
        let share = if span > 0.0 { stalled / span * 100.0 } else { 0.0 };
        Some(self.average_stall_percent * kept + share * (1.0 - kept))
    }

    fn reason(&self) -> Option<Reason> {
        let thresholds = &self.thresholds;
        let now = self.samples.last()?;
        // An administrator has set the limit, perhaps close to what is needed: to be near it is no shortage as long
        // as no task stalls.
        if now.is_limit && !self.has_pressure() {
            return None;
        }
        // Little is left, but that may have been so for long and stay so: a victim that is dying already may
        // be enough.
        let acute = self.runs_out_within(thresholds.horizon_s) || self.has_pressure() || now.stalled.is_none();
        // Before memory is short, a rate says nothing of a process that fits.
        let grace = if self.is_low() { self.grace } else { Duration::ZERO };
        if acute && self.is_critical_after(grace) {
            return Some(Reason::Critical);
        }
        if self.average_stall_percent >= thresholds.max_average_stall_percent {
            return Some(Reason::Stall);
        }
        let [_, all] = self.outlook.stall_percent?;
        // Swapping out takes memory, too, and to zram nearly as much as it frees.
        if self.none_is_left() && all >= thresholds.pressure_stall_percent {
            return Some(Reason::Critical);
        }
        // Of all of that time, and not of what was sampled of it.
        let window = seconds(thresholds.window_s);
        let then = self.samples.iter().rfind(|then| then.at.saturating_add(window) <= now.at)?;
        let [some, all] = stall_percent(then, now)?;
        let stalled = some >= self.act.stall && all >= thresholds.min_full_stall_percent;
        let early = self.act.early_reclaim && !now.is_limit;
        let factor = if early { thresholds.early_reclaim_factor } else { 1.0 };
        let nearly_none = times(self.critical_level(), factor).min(self.low_level());
        let growth = times(self.critical_level(), thresholds.recovery_factor);
        let recovers = now.available >= then.available.saturating_add(growth);
        (now.available < nearly_none && stalled && !recovers).then_some(Reason::Stall)
    }

    fn next_tick(&mut self, sample: &Sample) -> Advice {
        let thresholds = &self.thresholds;
        let short = self.is_low() && (self.outlook.time_left.is_some() || self.has_pressure());
        if short || self.runs_out_within(thresholds.horizon_s) || self.has_pressure() {
            self.last_concern = Some(sample.at);
        }
        match self.last_concern {
            Some(when) if sample.at.saturating_sub(when).as_secs_f64() < thresholds.quiet_time_s => {
                let left = self.outlook.time_left.map_or(f64::INFINITY, |left| left.as_secs_f64());
                let longest = if short { thresholds.max_short_tick_s } else { thresholds.max_tick_s };
                let tick = (left / thresholds.samples_until_exhausted).min(longest).max(thresholds.min_tick_s);
                Advice::SampleAfter(seconds(tick))
            }
            _ => {
                self.last_concern = None;
                // The last one says how much there is; no rate follows from it.
                self.samples.retain(|s| s.at == sample.at);
                Advice::Rest
            }
        }
    }

    /// Returns the numbers behind a decision, for people.
    pub fn explanation(&self) -> ArrayString<160> {
        let mut text = ArrayString::new();
        let Some(now) = self.samples.last() else { return text };
        let Outlook { rate, time_left, stall_percent, .. } = self.outlook;
        // What does not fit is cut off.
        let _ = write!(text, "{} of {} available", Size(now.available), Size(now.total));
        let _ = write!(text, ", {} of swap free", Size(now.swap_free));
        if let Some(left) = time_left {
            let _ = write!(text, ", gone in {:.1} s at {}/s", left.as_secs_f64(), Size(rate as u64));
        }
        if let Some([some, all]) = stall_percent.filter(|[_, all]| *all >= 1.0) {
            let _ = write!(text, ", some stalled {some:.0} %, all {all:.0} %");
        }
        if self.average_stall_percent >= self.thresholds.max_average_stall_percent {
            let _ = write!(text, " ({:.0} % of 20 s)", self.average_stall_percent);
        }
        text
    }
}

/// Returns so many seconds, also for ever.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Returns so many bytes times a factor.
fn times(bytes: u64, factor: f64) -> u64 {
    (bytes as f64 * factor) as u64
}

/// Returns the least share of the time between two samples in which some tasks stalled, and in which all did;
/// `None` without PSI.
fn stall_percent(then: &Sample, now: &Sample) -> Option<[f64; 2]> {
    let (sums, before) = (now.stalled?, then.stalled?);
    let span = (now.at + now.stalled_within - then.at).as_secs_f64();
    let share = |which: usize| {
        let stalled = sums[which].saturating_sub(before[which]).as_secs_f64();
        (stalled / span * 100.0).min(100.0)
    };
    Some([share(0), share(1)])
}

#[cfg(test)]
mod tests;
