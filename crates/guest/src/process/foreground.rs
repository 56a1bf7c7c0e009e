// SPDX-License-Identifier: GPL-2.0-only
//! Processes that work while others are killed, and note how long each step takes.

use std::hint;

use anyhow::{Context as _, Result, ensure};

use crate::memory::region::Region;
use crate::process::child::{Board, Child};
use crate::system::clock;

/// Pages that an allocating step touches and frees.
const STEP_PAGES: usize = 256;
/// Iterations of a computing step: about a millisecond under emulation.
const STEP_ITERATIONS: u32 = 150_000;
/// The most steps that are noted: 6 s of them, of 60 us each.
const MAX_STEPS: usize = 100_000;

/// What a process does in each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Touches a MiB of new memory and frees it.
    Allocate,
    /// The same calculation each time.
    Compute,
}

/// A working process. It is killed when this is dropped.
pub struct Worker {
    child: Child,
    /// First the number of steps that have ended, then the time at which each of them did, in nanoseconds on
    /// the monotonic clock.
    noted: Board,
}

impl Worker {
    /// Starts a worker. The caller must be single-threaded.
    ///
    /// # Errors
    /// When memory cannot be allocated, or fork(2) fails.
    pub fn start(work: Work) -> Result<Self> {
        let noted = Board::new(1 + MAX_STEPS)?;
        let child = Child::fork(|| {
            let region = Region::new(STEP_PAGES)?;
            for step in 0..MAX_STEPS {
                match work {
                    Work::Allocate => {
                        region.touch(0..STEP_PAGES);
                        region.free(0..STEP_PAGES)?;
                    }
                    Work::Compute => (0..STEP_ITERATIONS).for_each(|i| {
                        hint::black_box(i);
                    }),
                }
                noted.set(1 + step, clock::now());
                noted.set(0, step as u64 + 1);
            }
            anyhow::bail!("no room for more than {MAX_STEPS} steps")
        })?;
        let worker = Self { child, noted };
        worker.child.wait_until(|| worker.noted.get(0) > 1)?;
        Ok(worker)
    }

    /// Whether somebody has killed it.
    ///
    /// # Errors
    /// Those of waitid(2), and when it has ended by itself.
    pub fn was_killed(&self) -> Result<bool> {
        self.child.was_killed()
    }

    /// Kills the worker. Returns the nanoseconds that each step took which ran between two moments.
    ///
    /// # Errors
    /// When the worker has not been working all that time.
    pub fn end(self, from: u64, to: u64) -> Result<Vec<u64>> {
        let count = usize::try_from(self.noted.get(0))?;
        let ends: Vec<u64> = (1..=count).map(|i| self.noted.get(i)).collect();
        steps(&ends, from, to).with_context(|| format!("{count} steps were noted, which do not cover that time"))
    }
}

/// Returns how long each step took that ran between two moments. `ends` has the ends of all steps; `None` if
/// they do not cover that time.
fn steps(ends: &[u64], from: u64, to: u64) -> Option<Vec<u64>> {
    let within = |w: &&[u64]| w[1] > from && w[0] < to;
    let covered = *ends.first()? <= from && *ends.last()? >= to;
    covered.then(|| ends.windows(2).filter(within).map(|w| w[1] - w[0]).collect())
}

/// Quantiles of how long steps took, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest step.
    pub max: f64,
}

impl Steps {
    /// Computes the quantiles of steps, given in nanoseconds.
    ///
    /// # Errors
    /// When there are too few steps.
    pub fn of(mut nanos: Vec<u64>) -> Result<Self> {
        const MIN_STEPS: usize = 20;
        ensure!(nanos.len() >= MIN_STEPS, "only {} steps", nanos.len());
        nanos.sort_unstable();
        let at = |share: f64| {
            let i = (share * nanos.len() as f64).ceil() as usize;
            nanos[i.clamp(1, nanos.len()) - 1] as f64 / 1e3
        };
        Ok(Self { p50: at(0.5), p99: at(0.99), max: at(1.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_count_that_overlap_the_window() {
        let ends = [10, 20, 35, 40, 60, 70];
        assert_eq!(steps(&ends, 20, 60), Some(vec![15, 5, 20]));
        assert_eq!(steps(&ends, 21, 61), Some(vec![15, 5, 20, 10]));
        assert_eq!(steps(&ends, 10, 70), Some(vec![10, 15, 5, 20, 10]));
        assert_eq!(steps(&ends, 9, 60), None);
        assert_eq!(steps(&ends, 20, 71), None);
        assert_eq!(steps(&[], 0, 0), None);
    }

    #[test]
    fn percentiles_are_those_of_actual_steps() {
        let all = Steps::of((1..=200).rev().map(|us| us * 1000).collect()).unwrap();
        assert_eq!(all, Steps { p50: 100.0, p99: 198.0, max: 200.0 });
        assert!(Steps::of(vec![1; 19]).is_err());
    }

    #[test]
    fn workers_work() {
        for work in [Work::Allocate, Work::Compute] {
            let worker = Worker::start(work).unwrap();
            let from = clock::now();
            worker.child.wait_until(|| worker.noted.get(0) > 30).unwrap();
            let to = worker.noted.get(30);
            assert!(worker.end(from.min(to), to).unwrap().iter().all(|&ns| ns > 0), "{work:?}");
        }
    }
}
