// SPDX-License-Identifier: GPL-2.0-only
//! Processes that only use CPU time, and count how much work they get done.

use std::time::Duration;
use std::{hint, thread};

use anyhow::Result;

use super::child::{Board, Child};
use crate::system::clock;

/// Iterations of one unit of work: some microseconds under emulation.
const UNIT_ITERATIONS: u32 = 1000;
/// How often a resting hog checks whether it should work.
const REST_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The numbers of each hog on the board: units of work done, whether to work, and the longest time between two
/// units of work, in nanoseconds.
const NUMBERS: usize = 3;
const DONE: usize = 0;
const WORKING: usize = 1;
const LONGEST_GAP: usize = 2;

/// Some hogs at the caller's nice value. They rest until [`Hogs::work`], and are killed when this is dropped.
pub struct Hogs {
    hogs: Vec<Child>,
    board: Board,
}

impl Hogs {
    /// Forks the hogs. The caller must be single-threaded.
    ///
    /// # Errors
    /// When memory cannot be allocated, or fork(2) fails.
    pub fn start(count: usize) -> Result<Self> {
        let board = Board::new(count * NUMBERS)?;
        let hogs = (0..count).map(|hog| Child::fork(|| live(&board, hog * NUMBERS)));
        Ok(Self { hogs: hogs.collect::<Result<_>>()?, board })
    }

    /// Has all of them work, or rest, within [`REST_POLL_INTERVAL`].
    pub fn work(&self, working: bool) {
        self.cells(WORKING).for_each(|cell| self.board.set(cell, working.into()));
    }

    /// Returns the longest time for which one of them that should work did not, in nanoseconds, since this
    /// was last called.
    pub fn take_longest_gap(&self) -> u64 {
        self.cells(LONGEST_GAP).map(|cell| self.board.take(cell)).max().unwrap_or_default()
    }

    /// Returns the units of work that all of them have done so far.
    pub fn done(&self) -> u64 {
        self.cells(DONE).map(|cell| self.board.get(cell)).sum()
    }

    /// Where that number of each hog is.
    fn cells(&self, number: usize) -> impl Iterator<Item = usize> {
        (0..self.hogs.len()).map(move |hog| hog * NUMBERS + number)
    }
}

/// What a hog does whose numbers begin there.
fn live(board: &Board, first: usize) -> Result<()> {
    let mut last = None;
    loop {
        if board.get(first + WORKING) != 0 {
            (0..UNIT_ITERATIONS).for_each(|step| {
                hint::black_box(step);
            });
            board.add(first + DONE, 1);
            let now = clock::now();
            if let Some(last) = last.replace(now) {
                board.raise(first + LONGEST_GAP, now - last);
            }
        } else {
            last = None;
            thread::sleep(REST_POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn hogs_work_only_when_they_should() {
        let hogs = Hogs::start(2).unwrap();
        thread::sleep(REST_POLL_INTERVAL * 5);
        assert_eq!(hogs.done(), 0);
        hogs.work(true);
        let began = Instant::now();
        while hogs.cells(DONE).any(|cell| hogs.board.get(cell) == 0) {
            assert!(began.elapsed() < Duration::from_secs(10), "a hog does not work");
            thread::sleep(REST_POLL_INTERVAL);
        }
        hogs.work(false);
        thread::sleep(REST_POLL_INTERVAL * 50);
        let done = hogs.done();
        assert!(hogs.take_longest_gap() > 0);
        thread::sleep(REST_POLL_INTERVAL * 50);
        // A hog that rests waits for nothing.
        assert_eq!((hogs.done(), hogs.take_longest_gap()), (done, 0));
    }
}
