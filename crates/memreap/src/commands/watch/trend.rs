// SPDX-License-Identifier: GPL-2.0-only
//! A forecast of memory over seconds. It is for people: the daemon does not kill by a forecast.

use std::collections::VecDeque;
use std::time::Duration;

use crate::daemon::decide::sample::Sample;

/// The time over which the rate is taken, if there are more than two samples in it.
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// At a lower rate memory does not run out, it only fluctuates.
const STEADY_BYTES_PER_SECOND: f64 = (1 << 20) as f64;

/// When memory will be gone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Forecast {
    /// Memory that is available and swap that is free, in bytes.
    pub headroom: u64,
    /// How fast the headroom shrinks, in bytes per second; negative when it grows.
    pub rate: f64,
    /// When it is gone at that rate; `None` if it does not shrink.
    pub left: Option<Duration>,
}

#[derive(Default)]
pub(super) struct Trend {
    samples: VecDeque<Sample>,
}

impl Trend {
    pub(super) fn observe(&mut self, sample: Sample) -> Forecast {
        let oldest = sample.at.saturating_sub(RATE_WINDOW);
        while self.samples.len() > 1 && self.samples.front().is_some_and(|s| s.at < oldest) {
            self.samples.pop_front();
        }
        let headroom = |s: &Sample| s.headroom() as f64;
        let now = headroom(&sample);
        let rate = self.samples.front().map_or(0.0, |then| {
            let span = sample.at.saturating_sub(then.at).as_secs_f64();
            if span > 0.0 { (headroom(then) - now) / span } else { 0.0 }
        });
        self.samples.push_back(sample);
        let left = (rate > STEADY_BYTES_PER_SECOND).then(|| Duration::from_secs_f64(now / rate));
        Forecast { headroom: sample.headroom(), rate, left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn sample(at: f64, available: u64) -> Sample {
        Sample { at: Duration::from_secs_f64(at), total: 4096 * MIB, available, ..Sample::default() }
    }

    #[test]
    fn a_steady_loss_is_extended() {
        let mut trend = Trend::default();
        assert_eq!(trend.observe(sample(0.0, 1000 * MIB)).left, None);
        let forecast = trend.observe(sample(1.0, 900 * MIB));
        assert_eq!((forecast.rate, forecast.left), (100.0 * MIB as f64, Some(Duration::from_secs(9))));
        // Nothing lost since: over both seconds it is half of that.
        assert_eq!(trend.observe(sample(2.0, 900 * MIB)).left, Some(Duration::from_secs(18)));
        // In the end, it is forgotten.
        for at in 3..9 {
            trend.observe(sample(f64::from(at), 900 * MIB));
        }
        assert_eq!(trend.observe(sample(9.0, 900 * MIB)).left, None);
    }

    #[test]
    fn samples_that_are_far_apart_count_too() {
        let mut trend = Trend::default();
        trend.observe(sample(0.0, 1000 * MIB));
        trend.observe(sample(60.0, 1000 * MIB));
        assert_eq!(trend.observe(sample(70.0, 900 * MIB)).left, Some(Duration::from_secs(90)));
    }

    #[test]
    fn what_is_swapped_out_is_not_lost() {
        let mut trend = Trend::default();
        let with_swap = |at, available, swap_free| Sample { swap_free, ..sample(at, available) };
        trend.observe(with_swap(0.0, 100 * MIB, 500 * MIB));
        let forecast = trend.observe(with_swap(1.0, 60 * MIB, 500 * MIB));
        assert_eq!((forecast.headroom, forecast.rate), (560 * MIB, 40.0 * MIB as f64));
        // More is available, as pages were swapped out.
        assert_eq!(trend.observe(with_swap(2.0, 160 * MIB, 400 * MIB)).rate, 20.0 * MIB as f64);
    }

    #[test]
    fn a_clock_that_stands_still_does_no_harm() {
        let mut trend = Trend::default();
        trend.observe(sample(1.0, 5));
        assert_eq!(trend.observe(sample(1.0, 0)).left, None);
        assert_eq!(trend.observe(sample(0.5, 0)).left, None);
    }
}
