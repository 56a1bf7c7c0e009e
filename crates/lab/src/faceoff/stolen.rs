// SPDX-License-Identifier: GPL-2.0-only
//! How much of the host's time its own hypervisor gave to others.
//!
//! Where the host is a virtual machine, a guest of ours stands still whenever the host does, and a frame that is
//! late for that says nothing about the contestant. What was stolen does not depend on what the guest does, so
//! runs can be judged by it without favour.

use std::fs;

/// Beyond this share a run is disturbed.
const MAX_STOLEN_SHARE: f64 = 0.02;

/// The time of all CPUs since the host booted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuTimes {
    /// In all, in clock ticks.
    all: u64,
    /// Of that, stolen.
    stolen: u64,
}

impl CpuTimes {
    /// Reads them; `None` where /proc/stat does not say.
    #[must_use]
    pub fn now() -> Option<Self> {
        parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Which share was stolen since, 0 to 1.
    #[must_use]
    pub fn stolen_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.stolen.saturating_sub(before.stolen) as f64 / all as f64
    }
}

/// Whether a run of which this share was stolen is better made again.
#[must_use]
pub fn is_disturbed(share: f64) -> bool {
    share > MAX_STOLEN_SHARE
}

/// The first line: user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in the first two.
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
