//! Processes that go on working while others are killed, and note how long each step takes.

use std::hint;

use anyhow::{Context as _, Result, ensure};

use crate::memory::region::Region;
use crate::process::child::{Board, Child};
use crate::system::clock;

/// Pages that an allocating step touches for the first time, and gives back.
const PAGES: usize = 256;
/// What a computing step does: about a millisecond under emulation.
const LOOPS: u32 = 150_000;
/// Steps that are noted at most.
const STEPS: usize = 20_000;

/// What a process does in each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Touches a MiB of fresh memory, and gives it back.
    Allocate,
    /// The same calculation each time.
    Compute,
}

impl Work {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Allocate, Self::Compute];

    /// As metrics call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocate => "fg-alloc",
            Self::Compute => "fg-compute",
        }
    }
}

/// A process at work. Killed when dropped.
pub struct Worker {
    child: Child,
    /// How many steps have ended, and when each of them did.
    noted: Board,
}

impl Worker {
    /// Starts one. The caller must be single-threaded.
    ///
    /// # Errors
    /// When there is no process or no memory for it.
    pub fn start(work: Work) -> Result<Self> {
        let noted = Board::new(1 + STEPS)?;
        let child = Child::fork(|| {
            let region = Region::new(PAGES)?;
            for step in 0..STEPS {
                match work {
                    Work::Allocate => {
                        region.touch(0..PAGES);
                        region.free(0..PAGES)?;
                    }
                    Work::Compute => (0..LOOPS).for_each(|i| {
                        hint::black_box(i);
                    }),
                }
                noted.set(1 + step, clock::now());
                noted.set(0, step as u64 + 1);
            }
            anyhow::bail!("no room for more than {STEPS} steps")
        })?;
        let worker = Self { child, noted };
        worker.child.wait_until(|| worker.noted.get(0) > 1)?;
        Ok(worker)
    }

    /// Ends it; gives the nanoseconds of all steps that were under way between two moments.
    ///
    /// # Errors
    /// When it has not been working all that time.
    pub fn end(self, from: u64, to: u64) -> Result<Vec<u64>> {
        let count = usize::try_from(self.noted.get(0))?;
        let ends: Vec<u64> = (1..=count).map(|i| self.noted.get(i)).collect();
        steps(&ends, from, to).with_context(|| format!("{count} steps were noted, and not all of that time"))
    }
}

/// How long those steps took that were under way between two moments; `ends`: of all steps.
fn steps(ends: &[u64], from: u64, to: u64) -> Option<Vec<u64>> {
    let within = |w: &&[u64]| w[1] > from && w[0] < to;
    let covered = *ends.first()? <= from && *ends.last()? >= to;
    covered.then(|| ends.windows(2).filter(within).map(|w| w[1] - w[0]).collect())
}

/// How long steps took, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// Half of them took no longer.
    pub p50: f64,
    /// Of a hundred all but one.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Steps {
    /// Of these nanoseconds.
    ///
    /// # Errors
    /// When there are too few for anything to be said.
    pub fn of(mut nanos: Vec<u64>) -> Result<Self> {
        const FEW: usize = 20;
        ensure!(nanos.len() >= FEW, "only {} steps", nanos.len());
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
    fn percentiles_are_steps_that_were_taken() {
        let all = Steps::of((1..=200).rev().map(|us| us * 1000).collect()).unwrap();
        assert_eq!(all, Steps { p50: 100.0, p99: 198.0, max: 200.0 });
        assert!(Steps::of(vec![1; 19]).is_err());
    }

    #[test]
    fn workers_work() {
        for work in Work::ALL {
            let worker = Worker::start(work).unwrap();
            let from = clock::now();
            worker.child.wait_until(|| worker.noted.get(0) > 30).unwrap();
            let to = worker.noted.get(30);
            assert!(worker.end(from.min(to), to).unwrap().iter().all(|&ns| ns > 0), "{work:?}");
        }
    }
}
