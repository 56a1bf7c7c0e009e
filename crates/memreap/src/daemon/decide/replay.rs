// SPDX-License-Identifier: GPL-2.0-only
//! Runs the governor over samples that were recorded before: what the daemon would have decided.

use std::time::Duration;

use arrayvec::ArrayString;

use super::governor::{Advice, BLIND_INTERVAL, Governor, REPORT_WINDOW, REPORTED_STALL};
use super::reason::Reason;
use super::sample::Sample;

/// A kill that the governor advises.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The sample after which it does.
    pub sample: Sample,
    /// Why.
    pub reason: Reason,
    /// The numbers behind it, for people.
    pub because: ArrayString<160>,
}

/// Returns the first kill that the governor advises; `None` if there is none. Of the samples, in the order of their
/// time, it sees those that are nearest to when the daemon would have taken one. Nothing is interpolated. The kernel
/// reports pressure by `lag` later than it could, which moves all samples that follow.
pub fn first_kill(mut governor: Governor, samples: &[Sample], lag: Duration) -> Option<Decision> {
    let (mut due, mut reported) = (samples.first().map(|first| first.at), None);
    for (i, sample) in samples.iter().enumerate() {
        let is_nearest = |due: Duration| {
            let next = samples.get(i + 1).map(|next| next.at.saturating_sub(due));
            sample.at >= due || next.is_none_or(|after| after > due - sample.at)
        };
        // Where it stalled enough `lag` ago.
        let then = samples[..=i].iter().rposition(|then| then.at.saturating_add(lag) <= sample.at);
        let stalled = then.is_some_and(|then| has_stalled(&samples[..=then]));
        if stalled && reported.is_none_or(|at| sample.at - at >= REPORT_WINDOW) {
            reported = Some(sample.at);
            governor.pressure_reported(sample.at);
        } else if !due.is_some_and(is_nearest) {
            continue;
        }
        due = match governor.observe(*sample) {
            Advice::Kill(reason) => return Some(Decision { sample: *sample, reason, because: governor.explanation() }),
            Advice::SampleAfter(pause) => Some(sample.at.saturating_add(pause)),
            Advice::Rest => sample.stalled.is_none().then_some(sample.at + BLIND_INTERVAL),
        };
    }
    None
}

/// Whether the kernel reports pressure at the last of these samples.
fn has_stalled(samples: &[Sample]) -> bool {
    let Some((now, before)) = samples.split_last() else { return false };
    let first = before.iter().rev().take_while(|then| now.at - then.at <= REPORT_WINDOW).last();
    let sums = now.stalled.zip(first.and_then(|then| then.stalled));
    sums.is_some_and(|(now, then)| now[0].saturating_sub(then[0]) >= REPORTED_STALL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Act;

    const MIB: u64 = 1 << 20;

    /// 2 GiB, sampled so often, of which a process takes 100 MiB a second from 400 MiB on, the last of it while tasks
    /// stall.
    fn leak(every: Duration) -> Vec<Sample> {
        let at = |tick| every * tick;
        let available = |at: Duration| (400.0 - 100.0 * at.as_secs_f64()).max(0.0) as u64 * MIB;
        let stalled = |at: Duration| Some([at.saturating_sub(Duration::from_secs(3)); 2]);
        let sample = |at| Sample {
            at,
            total: 2048 * MIB,
            available: available(at),
            free: available(at),
            stalled: stalled(at),
            ..Sample::default()
        };
        (0..).map(at).take_while(|at| at.as_secs() < 6).map(sample).collect()
    }

    #[test]
    fn a_kill_is_seen_as_soon_as_the_samples_allow() {
        // 1 % are 20.48 MiB.
        let due = Duration::from_secs_f64(3.8);
        for every in [5, 10, 50, 100].map(Duration::from_millis) {
            let decision = first_kill(Governor::new(Act::default()), &leak(every), Duration::ZERO).unwrap();
            let at = decision.sample.at;
            assert_eq!(decision.reason, Reason::Critical, "{every:?}");
            assert!(at >= due && at <= due + every.max(Duration::from_millis(20)), "{every:?}: {at:?}");
        }
    }

    #[test]
    fn without_pressure_nothing_is_looked_at() {
        let mut samples = leak(Duration::from_millis(50));
        for sample in &mut samples {
            sample.stalled = Some([Duration::ZERO; 2]);
        }
        // The first sample is the daemon's start.
        assert_eq!(first_kill(Governor::new(Act::default()), &samples, Duration::ZERO), None);
        for sample in &mut samples {
            sample.stalled = None;
        }
        assert!(first_kill(Governor::new(Act::default()), &samples, Duration::ZERO).is_some());
    }
}
