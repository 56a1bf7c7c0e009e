// SPDX-License-Identifier: GPL-2.0-only
//! Memory over time: when it was low and when it had recovered, and when a killed process's memory was
//! back. Times are nanoseconds on the monotonic clock unless their names say otherwise.

use crate::system::clock::ms;

/// Memory is low when less than this share of all memory is available.
const LOW_SHARE: f64 = 0.05;
/// It has recovered when this share is available again...
pub const RECOVERED_SHARE: f64 = 0.10;
/// ...and stays so for this long: one second.
pub const RECOVERED_FOR_NS: u64 = 1_000_000_000;
/// A killed process's memory is back when no more than one part in ten is left.
const LEFT_DIVISOR: u64 = 10;

/// Available memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// When.
    pub at: u64,
    /// In KiB.
    pub available: u64,
}

/// Milliseconds from the first level below [`LOW_SHARE`] of `total` until it reached [`RECOVERED_SHARE`]
/// and stayed there for [`RECOVERED_FOR_NS`]. 0 if it never fell that low, `None` if it did not recover.
pub fn low_to_recovered(levels: &[Level], total: u64) -> Option<f64> {
    let share = |level: &Level| level.available as f64 / total as f64;
    let Some(low) = levels.iter().position(|level| share(level) < LOW_SHARE) else { return Some(0.0) };
    let mut since = None;
    for level in &levels[low..] {
        if share(level) < RECOVERED_SHARE {
            since = None;
            continue;
        }
        let begun = *since.get_or_insert(level.at);
        if level.at - begun >= RECOVERED_FOR_NS {
            return Some(ms(begun - levels[low].at));
        }
    }
    None
}

/// Memory in use by one cgroup at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// When.
    pub at: u64,
    /// In KiB.
    pub kib: u64,
}

/// Returns the usage in KiB at the moment `signal`, and the milliseconds from then until nine tenths of it
/// were back. `None` without a reading before the signal, and for memory that did not come back.
pub fn returned(usage: &[Usage], signal: u64) -> (Option<u64>, Option<f64>) {
    let after = usage.partition_point(|u| u.at <= signal);
    let Some(before) = after.checked_sub(1).map(|i| usage[i].kib) else { return (None, None) };
    let back = usage[after..].iter().find(|u| u.kib <= before / LEFT_DIVISOR);
    (Some(before), back.map(|u| ms(u.at - signal)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn levels(points: &[(u64, u64)]) -> Vec<Level> {
        points.iter().map(|&(at, available)| Level { at: at * MS, available }).collect()
    }

    #[test]
    fn recovery_counts_from_the_first_low_to_what_stays() {
        let all = [(0, 500), (50, 49), (100, 101), (150, 99), (200, 120), (700, 100), (1200, 300)];
        assert_eq!(low_to_recovered(&levels(&all), 1000), Some(150.0));
        assert_eq!(low_to_recovered(&levels(&all[..6]), 1000), None);
        assert_eq!(low_to_recovered(&levels(&all[..1]), 1000), Some(0.0));
        assert_eq!(low_to_recovered(&levels(&[(0, 50)]), 1000), Some(0.0));
        assert_eq!(low_to_recovered(&[], 1000), Some(0.0));
    }

    #[test]
    fn memory_is_back_when_nine_tenths_are() {
        let usage: Vec<Usage> = [(0, 900), (5, 1000), (10, 800), (15, 101), (20, 100), (25, 0)]
            .map(|(at, kib)| Usage { at: at * MS, kib })
            .to_vec();
        assert_eq!(returned(&usage, 6 * MS), (Some(1000), Some(14.0)));
        assert_eq!(returned(&usage, 10 * MS), (Some(800), Some(15.0)));
        assert_eq!(returned(&usage[..4], 6 * MS), (Some(1000), None));
        assert_eq!(returned(&usage[1..], 0), (None, None));
    }
}
