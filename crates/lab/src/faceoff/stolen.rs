// SPDX-License-Identifier: GPL-2.0-only
//! Measures stolen time: the CPU time that the host's hypervisor gave to other machines.
//!
//! If the host is a virtual machine, its guests stop whenever it does, and frames that are late for that
//! reason say nothing about a contestant. Stolen time does not depend on the guest, so repeating runs by it
//! does not favour any contestant.

use std::fs;

/// A run with a larger share of stolen time is disturbed.
const MAX_STOLEN_SHARE: f64 = 0.02;

/// The CPU time of all CPUs since the host booted, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuTimes {
    /// The total.
    all: u64,
    /// The stolen part.
    stolen: u64,
}

impl CpuTimes {
    /// Reads the current values; `None` if /proc/stat does not have them.
    #[must_use]
    pub fn now() -> Option<Self> {
        parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Returns the share that was stolen since `before`, 0 to 1.
    #[must_use]
    pub fn stolen_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.stolen.saturating_sub(before.stolen) as f64 / all as f64
    }
}

/// Whether a run with this share of stolen time should be repeated.
#[must_use]
pub fn is_disturbed(share: f64) -> bool {
    share > MAX_STOLEN_SHARE
}

/// Parses the first line: user, nice, system, idle, iowait, irq, softirq, steal. The time of guests, which
/// follows, is included in the first two.
fn parse(stat: &str) -> Option<CpuTimes> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    Some(CpuTimes { all: fields.iter().sum(), stolen: *fields.get(7)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_all_cpus() {
        let before = parse("cpu  10 0 10 70 0 0 0 10 5 5\ncpu0 1 2 3\n").unwrap();
        assert_eq!(before, CpuTimes { all: 100, stolen: 10 });
        let after = parse("cpu  60 0 10 80 0 0 10 40 55 5\n").unwrap();
        assert!((after.stolen_since(before) - 0.3).abs() < 1e-9);
        assert!(is_disturbed(after.stolen_since(before)) && !is_disturbed(before.stolen_since(before)));
        for none in ["", "cpu 1 2 3\n", "intr 1\n"] {
            assert_eq!(parse(none), None, "{none}");
        }
        assert!(CpuTimes::now().is_some());
    }
}
