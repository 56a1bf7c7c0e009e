// SPDX-License-Identifier: GPL-2.0-only
//! Measures stolen time: the CPU time that the host's hypervisor gave to other machines.
//!
//! If the host is a virtual machine, its guests stop whenever it does, and what takes longer for that reason
//! says nothing about a kernel or a contestant. Stolen time does not depend on the guest, so repeating runs by
//! it does not favour any of them.

use fs_err as fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

/// How many times a run is made, at most, if the host is disturbed each time.
const MAX_ATTEMPTS: u32 = 3;
/// A run with a larger share of stolen time is disturbed.
const MAX_STOLEN_SHARE: f64 = 0.02;
/// The share is judged over windows of this length, in seconds. Over whole runs, a long run would hide a stop of a
/// second that a short one would not.
const WINDOW_S: usize = 10;

/// The CPU time of all CPUs since the host booted, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CpuTimes {
    /// The total.
    all: u64,
    /// The stolen part.
    stolen: u64,
}

impl CpuTimes {
    /// Reads the current values; `None` if /proc/stat does not have them.
    fn now() -> Option<Self> {
        parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Returns the share that was stolen since `before`, 0 to 1.
    fn stolen_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.stolen.saturating_sub(before.stolen) as f64 / all as f64
    }
}

/// Measures stolen time from its start to its end.
pub struct Watch {
    stop: Sender<()>,
    readings: JoinHandle<Vec<CpuTimes>>,
}

impl Watch {
    /// Begins to read the CPU times every second.
    pub fn start() -> Self {
        let (stop, stopped) = mpsc::channel();
        let read = move || {
            let mut readings: Vec<CpuTimes> = CpuTimes::now().into_iter().collect();
            loop {
                let over = stopped.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout);
                readings.extend(CpuTimes::now());
                if over {
                    return readings;
                }
            }
        };
        Self { stop, readings: std::thread::spawn(read) }
    }

    /// Returns the largest share that was stolen in any window, 0 to 1; `None` if /proc/stat does not say.
    pub fn end(self) -> Option<f64> {
        // The thread waits for this or for the sender's end.
        let _ = self.stop.send(());
        worst_window(&self.readings.join().ok()?)
    }
}

/// Returns the largest share over [`WINDOW_S`] readings, or over all if there are fewer.
fn worst_window(readings: &[CpuTimes]) -> Option<f64> {
    let length = WINDOW_S.min(readings.len().checked_sub(1)?).max(1);
    let windows = readings.windows(length + 1);
    windows.map(|window| window[length].stolen_since(window[0])).reduce(f64::max)
}

/// Whether a run with this share of stolen time should be repeated.
pub fn is_disturbed(share: f64) -> bool {
    share > MAX_STOLEN_SHARE
}

/// Makes a run by `one`, and repeats it while its share of stolen time is too large. Returns the least
/// disturbed run of up to [`MAX_ATTEMPTS`]. `share` is `None` for one that failed, which is not repeated;
/// `note` takes a line for people before each repetition.
///
/// # Errors
/// Those of `one`.
pub fn run_undisturbed<T>(
    mut one: impl FnMut() -> Result<T>,
    share: impl Fn(&T) -> Option<f64>,
    mut note: impl FnMut(&str),
) -> Result<T> {
    let mut best = one()?;
    for _ in 1..MAX_ATTEMPTS {
        let Some(stolen) = share(&best).filter(|&share| is_disturbed(share)) else { break };
        let percent = stolen * 100.0;
        note(&format!("{percent:.0} % of the host's CPU time was stolen for {WINDOW_S} s; repeating the run"));
        let again = one()?;
        if share(&again).is_none_or(|share| share < stolen) {
            best = again;
        }
    }
    Ok(best)
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
        assert!(Watch::start().end().is_some());
    }

    #[test]
    fn a_short_stop_counts_whatever_the_length_of_the_run() {
        let times = |stolen: &[u64]| -> Vec<CpuTimes> {
            let mut sum = 0;
            let mut add = |(n, stolen): (usize, &u64)| {
                sum += stolen;
                CpuTimes { all: 100 * n as u64, stolen: sum }
            };
            stolen.iter().enumerate().map(&mut add).collect()
        };
        let mut readings = [0; 100];
        readings[50] = 40;
        assert_eq!(worst_window(&times(&readings)), Some(0.04));
        assert_eq!(worst_window(&times(&[0, 40, 0])), Some(0.2));
        assert_eq!(worst_window(&times(&[0])), None);
    }

    #[test]
    fn the_least_disturbed_run_counts() {
        let run = |shares: &[Option<f64>]| {
            let (mut next, mut notes) = (shares.iter().copied(), 0);
            let best = run_undisturbed(|| Ok(next.next().unwrap()), |&share| share, |_| notes += 1).unwrap();
            (best, notes)
        };
        assert_eq!(run(&[Some(0.01)]), (Some(0.01), 0));
        assert_eq!(run(&[Some(0.3), Some(0.0)]), (Some(0.0), 1));
        assert_eq!(run(&[Some(0.3), Some(0.1), Some(0.2)]), (Some(0.1), 2));
        // One that failed tells more than a disturbed one.
        assert_eq!(run(&[None]), (None, 0));
        assert_eq!(run(&[Some(0.3), None]), (None, 1));
    }
}
