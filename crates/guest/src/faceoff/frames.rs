// SPDX-License-Identifier: GPL-2.0-only
//! Frames of an app, and how late they were. Times are nanoseconds on the monotonic clock, delays are
//! milliseconds.

use crate::system::clock::ms;

/// A frame that is later than this is a stall.
const STALL_MS: f64 = 50.0;

/// A frame of an app that draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// When it should have ended.
    pub due: u64,
    /// When it ended.
    pub ended: u64,
}

impl Frame {
    fn delay_ms(self) -> f64 {
        ms(self.ended.saturating_sub(self.due))
    }
}

/// The parts of these frames between two moments: a frame that ended later is as late as it was at `to`,
/// delay before `from` does not count.
pub fn between(frames: &[Frame], from: u64, to: u64) -> Vec<Frame> {
    overlapping(frames, from, to).map(|f| Frame { due: f.due.max(from), ended: f.ended.min(to) }).collect()
}

/// The longest delay, and the sum of all delays that were stalls, in milliseconds.
pub fn stalls(frames: &[Frame]) -> (f64, f64) {
    let delays = || frames.iter().map(|f| f.delay_ms());
    (delays().fold(0.0, f64::max), delays().filter(|&delay| delay > STALL_MS).sum())
}

/// The longest delay, in milliseconds, that a user could have seen between two moments. A frame that is
/// late for longer counts in each interval until it ends, with its delay so far.
pub fn longest_visible_delay(frames: &[Frame], from: u64, to: u64) -> f64 {
    let visible = overlapping(frames, from, to).map(|f| Frame { due: f.due, ended: f.ended.min(to) });
    visible.map(Frame::delay_ms).fold(0.0, f64::max)
}

fn overlapping(frames: &[Frame], from: u64, to: u64) -> impl Iterator<Item = &Frame> {
    frames.iter().filter(move |f| f.ended > from && f.due < to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn frames(points: &[(u64, u64)]) -> Vec<Frame> {
        points.iter().map(|&(due, ended)| Frame { due: due * MS, ended: ended * MS }).collect()
    }

    #[test]
    fn stalls_are_late_frames_and_the_longest_is_any() {
        let all = frames(&[(10, 8), (20, 60), (70, 121), (131, 331)]);
        assert_eq!(stalls(&all), (200.0, 251.0));
        assert_eq!(stalls(&all[..2]), (40.0, 0.0));
        assert_eq!(stalls(&[]), (0.0, 0.0));
    }

    #[test]
    fn only_the_part_within_counts() {
        // The last one was not due yet.
        let all = frames(&[(10, 20), (30, 130), (140, 300), (310, 200)]);
        assert_eq!(between(&all, 50 * MS, 200 * MS), frames(&[(50, 130), (140, 200)]));
        assert_eq!(stalls(&between(&all, 50 * MS, 200 * MS)), (80.0, 140.0));
    }

    #[test]
    fn a_long_stall_grows_from_interval_to_interval() {
        let all = frames(&[(10, 11), (20, 170)]);
        let seen = |from: u64, to: u64| longest_visible_delay(&all, from * MS, to * MS);
        assert_eq!([seen(0, 15), seen(50, 100), seen(100, 150), seen(150, 200)], [1.0, 80.0, 130.0, 150.0]);
        assert_eq!(seen(200, 250), 0.0);
    }
}
