// SPDX-License-Identifier: GPL-2.0-only
//! Decides when to kill: a pure function of the samples so far. The time is part of each sample, so the same
//! code runs on the system and in a simulation.
//!
//! The decision is about the *headroom*: the memory that is available, and what swap can still free. A page
//! that is swapped out to zram frees only what compression saves, and with data that cannot be compressed
//! nothing, however much of swap is unused. So swap counts by its *yield*: the share of a page that swapping
//! it out frees, as measured on the pages that went to zram last.

use std::fmt::Write as _;
use std::time::Duration;

use arrayvec::{ArrayString, ArrayVec};

use super::reason::Reason;
use super::sample::Sample;
use crate::config::Act;
use crate::units::Size;

/// Samples that are kept: at the shortest tick, more than the longest window.
const MAX_SAMPLES: usize = 128;
/// The time over which the rate is taken. Shorter is noise: reclaim works in bursts.
const RATE_WINDOW: Duration = Duration::from_millis(400);
/// A forecast must be confirmed by the rate over the horizon divided by this: the further ahead, the longer
/// back.
const CONFIRM_WINDOW_DIVISOR: u32 = 2;
/// The least time between two samples from which a rate is taken.
const MIN_RATE_SPAN: Duration = Duration::from_millis(50);
/// The time over which the share of stalls is taken.
const STALL_WINDOW: Duration = Duration::from_secs(1);
/// The least time over which a share of stalls is a reason to kill.
const MIN_STALL_SPAN: Duration = Duration::from_millis(700);
/// With more than this times `low` available there is no shortage; below it, samples are frequent.
const RELIEF_FACTOR: u64 = 2;
/// When memory runs out within so many horizons, samples are frequent and warnings are due.
const CLOSE_HORIZONS: u32 = 2;
/// How much must have been swapped out for its compression to be measured.
const MIN_YIELD_BYTES: u64 = 1 << 20;
/// How much of what was swapped out before counts fully; when there is more, half of it is forgotten.
const YIELD_HISTORY_BYTES: u64 = 32 << 20;
/// How much a zram device must hold for the average over all of it to be used.
const MIN_DEVICE_YIELD_BYTES: u64 = 16 << 20;
/// The share of a page that zram frees, when nothing has been measured.
const DEFAULT_SWAP_YIELD: f64 = 0.5;
/// The shortest and longest time between two samples under pressure, and the longest when memory is short. A
/// sample takes some milliseconds on a slow machine, in real time: ten in a second are enough as long as no
/// kill is close.
const MIN_TICK: Duration = Duration::from_millis(10);
const MAX_TICK: Duration = Duration::from_millis(250);
const MAX_SHORT_TICK: Duration = Duration::from_millis(100);
/// Samples until memory runs out at the present rate, at least.
const SAMPLES_UNTIL_EXHAUSTED: u32 = 16;
/// What runs out later than this is no reason to throttle a process.
const THROTTLE_HORIZON: Duration = Duration::from_secs(30);
/// How long there must have been no reason to sample for pressure to be over.
const QUIET_TIME: Duration = Duration::from_secs(3);
/// The share of the time in which all tasks stall from which it counts as pressure.
const PRESSURE_STALL_PERCENT: f64 = 5.0;
/// At a lower rate memory does not run out, it only fluctuates.
const STEADY_BYTES_PER_SECOND: f64 = (1 << 20) as f64;
/// A rate at which what is left lasts for longer than this is tolerable. (7 % of 2 GiB last for less, at more
/// than [`STEADY_BYTES_PER_SECOND`]; where there is more memory, more of it comes and goes.)
const TOLERABLE_TIME_LEFT: Duration = Duration::from_secs(150);

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
    /// Memory and swap that are left, in bytes.
    pub headroom: u64,
    /// How fast the headroom shrinks, in bytes per second; negative when it grows.
    pub rate: f64,
    /// The time until the headroom is used up at that rate; `None` if it does not shrink.
    pub time_left: Option<Duration>,
    /// The same at the rate over a longer time: reclaim works in bursts, and the rate of one burst does not
    /// predict the next seconds.
    pub confirmed_time_left: Option<Duration>,
    /// The share of the time in which all tasks stalled; `None` without PSI.
    pub stall_percent: Option<f64>,
    /// The share of a page that swapping it out frees, 0 to 1.
    pub swap_yield: f64,
}

/// Decides about one memory: the machine's, or a cgroup's limit.
#[derive(Clone, Debug)]
pub struct Governor {
    act: Act,
    /// It is a limit that an administrator has set, perhaps close to what is needed: to be near it is no
    /// shortage as long as no task stalls.
    is_limit: bool,
    samples: ArrayVec<Sample, MAX_SAMPLES>,
    outlook: Outlook,
    /// The yield as measured.
    measured: Option<f64>,
    /// What zram held at the last sample, and what went there since the history began: bytes before
    /// compression and after.
    zram: Option<[u64; 2]>,
    swapped: [u64; 2],
    /// When there last was a reason for frequent samples.
    last_concern: Option<Duration>,
}

impl Governor {
    /// A governor for the machine's memory, without samples.
    pub fn new(act: Act) -> Self {
        Self {
            act,
            is_limit: false,
            samples: ArrayVec::new(),
            outlook: Outlook::default(),
            measured: None,
            zram: None,
            swapped: [0; 2],
            last_concern: None,
        }
    }

    /// A governor for a cgroup's limit, with the thresholds of this one.
    pub fn for_limit(&self) -> Self {
        Self { is_limit: true, ..Self::new(self.act.clone()) }
    }

    /// Takes other thresholds.
    pub fn reconfigure(&mut self, act: Act) {
        self.act = act;
    }

    /// Returns what follows from the last samples.
    pub fn outlook(&self) -> Outlook {
        self.outlook
    }

    /// Returns the last sample, if there was one.
    pub fn last(&self) -> Option<&Sample> {
        self.samples.last()
    }

    /// Forgets the rate: memory has changed at once, as after a kill.
    pub fn forget_rate(&mut self) {
        self.samples.clear();
    }

    /// The kernel has reported pressure.
    pub fn pressure_reported(&mut self, at: Duration) {
        self.last_concern = Some(at);
    }

    /// Returns how many bytes can be used before the next sample is needed: what is available above
    /// [`Self::relief_level`]. `None` before the first sample.
    pub fn usable_before_sampling(&self) -> Option<u64> {
        let now = self.samples.last()?;
        Some(now.available.saturating_sub(self.relief_level()))
    }

    /// Returns from how many available bytes on there is no shortage and samples need not be frequent.
    pub fn relief_level(&self) -> u64 {
        self.low_level().saturating_mul(RELIEF_FACTOR)
    }

    /// Returns below how many available bytes memory is short (`act.low`).
    fn low_level(&self) -> u64 {
        self.act.low.of(self.total())
    }

    /// Returns below how many bytes of headroom memory is critical (`act.critical`).
    pub fn critical_level(&self) -> u64 {
        self.act.critical.of(self.total())
    }

    fn total(&self) -> u64 {
        self.samples.last().map_or(0, |s| s.total)
    }

    /// Returns how many bytes must come back for `reason` to end, as far as that depends on an amount.
    pub fn missing(&self, reason: Reason) -> u64 {
        match reason {
            Reason::Stall => self.low_level().saturating_sub(self.outlook.available),
            Reason::Critical | Reason::Forecast => {
                self.critical_level().saturating_sub(self.outlook.headroom)
            }
        }
    }

    /// The same, with what will have been used after `time` added.
    pub fn missing_after(&self, reason: Reason, time: Duration) -> u64 {
        self.missing(reason).saturating_add(self.growth(time))
    }

    /// Returns how many bytes are used within `time` at the present rate.
    pub fn growth(&self, time: Duration) -> u64 {
        (self.outlook.rate.max(0.0) * time.as_secs_f64()) as u64
    }

    /// Whether the yield of swap matters and has not been measured.
    pub fn needs_swap_yield(&self) -> bool {
        let Some(now) = self.samples.last() else { return false };
        now.zram_free > 0 && self.measured.is_none() && now.available < self.relief_level()
    }

    /// Whether a kill may come soon, so that a warning is due.
    pub fn kill_is_close(&self) -> bool {
        let Some(sample) = self.samples.last() else { return false };
        sample.available < self.low_level()
            && self.outlook.time_left.is_some_and(|left| left < CLOSE_HORIZONS * self.act.horizon)
    }

    /// Whether memory is short and getting shorter, so that the next victim should be throttled.
    pub fn should_throttle(&self) -> bool {
        let Some(sample) = self.samples.last() else { return false };
        let Outlook { time_left, stall_percent, .. } = self.outlook;
        let stalled = stall_percent.is_some_and(|percent| percent >= PRESSURE_STALL_PERCENT);
        let shrinks = !self.is_limit && time_left.is_some_and(|left| left < THROTTLE_HORIZON);
        sample.available < self.low_level() && (shrinks || stalled)
    }

    /// Takes a sample, and returns what to do.
    pub fn observe(&mut self, sample: Sample) -> Advice {
        // The clock went back: earlier samples cannot be used.
        if self.samples.last().is_some_and(|last| last.at > sample.at) {
            self.forget_rate();
        }
        if self.samples.is_full() {
            self.samples.remove(0);
        }
        self.samples.push(sample);
        self.measure_yield(&sample);
        self.outlook = self.compute_outlook();
        match self.reason() {
            Some(reason) => {
                self.last_concern = Some(sample.at);
                Advice::Kill(reason)
            }
            None => self.next_tick(&sample),
        }
    }

    /// Measures the yield on the pages that went to zram last. Not only on the very last: the first pages
    /// that the kernel swaps out are those that were not used for long, and not those of the process that
    /// takes the memory.
    fn measure_yield(&mut self, sample: &Sample) {
        let [original, used] = sample.zram;
        let Some([original_then, used_then]) = self.zram.replace(sample.zram) else { return };
        if original <= original_then {
            // Pages have come back or were freed.
            return;
        }
        self.swapped[0] += original - original_then;
        self.swapped[1] += used.saturating_sub(used_then);
        if self.swapped[0] > YIELD_HISTORY_BYTES {
            self.swapped = self.swapped.map(|bytes| bytes / 2);
        }
        let [original, used] = self.swapped;
        if original >= MIN_YIELD_BYTES {
            self.measured = Some(1.0 - (used as f64 / original as f64).min(1.0));
        }
    }

    fn swap_yield(&self, sample: &Sample) -> f64 {
        let [original, used] = sample.zram;
        self.measured.unwrap_or_else(|| {
            if original >= MIN_DEVICE_YIELD_BYTES {
                1.0 - (used as f64 / original as f64).clamp(0.0, 1.0)
            } else {
                DEFAULT_SWAP_YIELD
            }
        })
    }

    fn compute_outlook(&self) -> Outlook {
        let Some(now) = self.samples.last() else { return Outlook::default() };
        let swap_yield = self.swap_yield(now);
        // With the same yield at both ends: a new measurement is not a loss of memory.
        let headroom = |s: &Sample| s.available as f64 + s.disk_free as f64 + s.zram_free as f64 * swap_yield;
        // What is used, and not what is left: a balloon driver, memory hotplug or a new limit changes the
        // total at any time, and that is no rate.
        let used = |s: &Sample| s.total as f64 - headroom(s);
        let since = |window: Duration| {
            let from = now.at.saturating_sub(window);
            self.samples.iter().find(|s| s.at >= from).filter(|s| now.at - s.at >= MIN_RATE_SPAN)
        };
        let rate = |window| {
            since(window).map_or(0.0, |then| (used(now) - used(then)) / (now.at - then.at).as_secs_f64())
        };
        let left_at = |rate: f64| {
            (rate > STEADY_BYTES_PER_SECOND).then(|| Duration::from_secs_f64((headroom(now) / rate).min(1e6)))
        };
        let stall_percent = since(STALL_WINDOW).and_then(|then| {
            let stalled = now.stalled?[1].saturating_sub(then.stalled?[1]);
            Some((stalled.as_secs_f64() / (now.at - then.at).as_secs_f64() * 100.0).min(100.0))
        });
        let longer = rate(RATE_WINDOW.max(self.act.horizon / CONFIRM_WINDOW_DIVISOR));
        let rate = rate(RATE_WINDOW);
        let (time_left, confirmed_time_left) = (left_at(rate), left_at(longer));
        let (available, headroom) = (now.available, headroom(now) as u64);
        Outlook { available, headroom, rate, time_left, confirmed_time_left, stall_percent, swap_yield }
    }

    fn reason(&self) -> Option<Reason> {
        let now = self.samples.last()?;
        let Outlook { headroom, time_left, confirmed_time_left, stall_percent, .. } = self.outlook;
        let stalled = |percent| stall_percent.is_some_and(|stalled| stalled >= percent);
        if self.is_limit && !stalled(PRESSURE_STALL_PERCENT) {
            return None;
        }
        // Little is left, but that may have been so for long and stay so: a victim that is dying already may
        // be enough.
        let shrinks = time_left.is_some_and(|left| left < TOLERABLE_TIME_LEFT);
        let acute = shrinks || stalled(PRESSURE_STALL_PERCENT) || now.stalled.is_none();
        if acute && headroom < self.critical_level() {
            return Some(Reason::Critical);
        }
        if now.available >= self.low_level() {
            return None;
        }
        if [time_left, confirmed_time_left]
            .iter()
            .all(|left| left.is_some_and(|left| left < self.act.horizon))
        {
            return Some(Reason::Forecast);
        }
        // Within a limit there is no background reclaim: the tasks that stall are those that allocate.
        let (span, percent) = if self.is_limit {
            (MIN_STALL_SPAN / 2, self.act.stall / 2.0)
        } else {
            (MIN_STALL_SPAN, self.act.stall)
        };
        let long = self.samples.first().is_some_and(|first| now.at - first.at >= span);
        (long && stalled(percent)).then_some(Reason::Stall)
    }

    fn next_tick(&mut self, sample: &Sample) -> Advice {
        let short = sample.available < self.relief_level()
            || self.outlook.time_left.is_some_and(|left| left < CLOSE_HORIZONS * self.act.horizon);
        if short {
            self.last_concern = Some(sample.at);
        }
        match self.last_concern {
            Some(when) if sample.at.saturating_sub(when) < QUIET_TIME => {
                let left = self.outlook.time_left.unwrap_or(Duration::MAX);
                let longest = if short { MAX_SHORT_TICK } else { MAX_TICK };
                Advice::SampleAfter((left / SAMPLES_UNTIL_EXHAUSTED).clamp(MIN_TICK, longest))
            }
            _ => {
                self.last_concern = None;
                // The last one says how much there is; no rate follows from it.
                self.samples.retain(|s| s.at == sample.at);
                // The next process that takes much memory may hold other data.
                self.measured = None;
                self.swapped = [0; 2];
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
        let swap = self.outlook.headroom.saturating_sub(now.available);
        let _ = write!(text, ", swap good for {}", Size(swap));
        if let Some(left) = time_left {
            let _ = write!(text, ", gone in {:.1} s at {}/s", left.as_secs_f64(), Size(rate as u64));
        }
        if let Some(percent) = stall_percent.filter(|percent| *percent >= 1.0) {
            let _ = write!(text, ", {percent:.0} % stalled");
        }
        text
    }
}
