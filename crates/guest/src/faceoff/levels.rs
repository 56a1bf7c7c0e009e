// SPDX-License-Identifier: GPL-2.0-only
//! Memory over time: when it was low and when it had recovered, and when a killed process's memory was
//! back. Times are nanoseconds on the monotonic clock unless their names say otherwise.

use crate::system::clock::ms;

/// Memory has recovered when this share of all memory is available...
pub const RECOVERED_SHARE: f64 = 0.10;
/// ...and stays so for this long: one second.
pub const RECOVERED_FOR_NS: u64 = 1_000_000_000;
/// A killed process's memory is back when no more than one part in ten is left.
const LEFT_DIVISOR: u64 = 10;

/// Memory at one moment: what is available, or what a cgroup uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// When.
    pub at: u64,
    pub kib: u64,
}

/// Milliseconds from `start` until the load was over, at `over`, and available memory had reached
/// [`RECOVERED_SHARE`] of `total` and stayed there for [`RECOVERED_FOR_NS`]. `None` if it did not recover.
pub fn recovered(levels: &[Level], total: u64, start: u64, over: u64) -> Option<f64> {
    let mut since = None;
    for level in levels {
        if (level.kib as f64) < RECOVERED_SHARE * total as f64 {
            since = None;
            continue;
        }
        let begun = over.max(*since.get_or_insert(level.at));
        if level.at >= begun + RECOVERED_FOR_NS {
            return Some(ms(begun.saturating_sub(start)));
        }
    }
    None
}

/// Returns the usage in KiB at the moment `signal`, and the milliseconds from then until nine tenths of it
/// were back. `None` without a reading before the signal, and for memory that did not come back.
pub fn returned(usage: &[Level], signal: u64) -> (Option<u64>, Option<f64>) {
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
        points.iter().map(|&(at, kib)| Level { at: at * MS, kib }).collect()
    }

    #[test]
    fn recovery_counts_from_the_start_to_what_stays() {
        let all = [(0, 500), (50, 49), (100, 101), (150, 99), (200, 120), (700, 100), (1200, 300), (1900, 300)];
        let recovered = |n: usize, over: u64| recovered(&levels(&all[..n]), 1000, 0, over * MS);
        assert_eq!(recovered(8, 170), Some(200.0));
        assert_eq!(recovered(8, 0), Some(200.0));
        assert_eq!(recovered(8, 800), Some(800.0), "the load went on");
        assert_eq!(recovered(8, 1000), None, "not for long enough");
        assert_eq!(recovered(6, 170), None);
        assert_eq!(recovered(0, 0), None);
    }

    #[test]
    fn memory_is_back_when_nine_tenths_are() {
        let usage = levels(&[(0, 900), (5, 1000), (10, 800), (15, 101), (20, 100), (25, 0)]);
        assert_eq!(returned(&usage, 6 * MS), (Some(1000), Some(14.0)));
        assert_eq!(returned(&usage, 10 * MS), (Some(800), Some(15.0)));
        assert_eq!(returned(&usage[..4], 6 * MS), (Some(1000), None));
        assert_eq!(returned(&usage[1..], 0), (None, None));
    }
}
