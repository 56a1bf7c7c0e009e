// SPDX-License-Identifier: GPL-2.0-only
//! The cost of a page fault, a fork, an exec and a thread. With icount a nanosecond is an instruction.

use std::{io, thread};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::program::Program;
use crate::memory::PAGE_BYTES;
use crate::memory::region::Region;
use crate::process::child::{self, Board, Child};
use crate::scenario::metrics::{median, typical};
use crate::system::clock::now;
use init::report::Reporter;

/// What a round of page faults touches.
const PAGES: usize = (32 << 20) / PAGE_BYTES;
/// Rounds of page faults, and of shorter work.
const ROUNDS: usize = 5;
const SHORT_ROUNDS: usize = 400;
/// The first rounds, which are slow and do not count: of page faults, and of shorter work.
const WARM_UP_ROUNDS: usize = 1;
const SHORT_WARM_UP_ROUNDS: usize = 10;

/// Measures and reports everything.
pub fn measure(out: &mut Reporter) -> Result<()> {
    let fault = |prepare: fn() -> Result<()>| {
        let touch = || {
            Region::new(PAGES)?.touch(0..PAGES);
            Ok(())
        };
        let rounds = by_child(ROUNDS, WARM_UP_ROUNDS, prepare, touch)?;
        Ok(median(rounds.into_iter()) / PAGES as f64)
    };
    let short = |prepare: fn() -> Result<()>, work: &dyn Fn() -> Result<()>| {
        Ok(typical(by_child(SHORT_ROUNDS, SHORT_WARM_UP_ROUNDS, prepare, work)?))
    };
    let program = Program::new()?;
    let cases: [(&str, &dyn Fn() -> Result<f64>); 7] = [
        ("fault/instructions", &|| fault(alone)),
        ("fault-threaded/instructions", &|| fault(child::start_sleeper)),
        ("fork/instructions", &|| short(alone, &|| Child::fork(|| Ok(()))?.join())),
        ("exec/instructions", &|| short(alone, &|| program.run())),
        ("thread/instructions", &|| short(child::start_sleeper, &start_thread)),
        ("fork-threaded/instructions", &|| short(alone, &|| Child::fork(start_thread)?.join())),
        ("thread-first/instructions", &|| Ok(typical(first_threads(SHORT_ROUNDS)?))),
    ];
    for (metric, measure) in cases {
        if out.expects(metric) {
            out.progress(metric);
            let instructions = measure()?;
            out.sample(metric, instructions);
        }
    }
    Ok(())
}

/// The preparation of a process that stays single-threaded.
fn alone() -> Result<()> {
    Ok(())
}

/// Has a child call `prepare`, and then `work` in each round. Returns the nanoseconds of each round after the
/// first `warm_up`.
fn by_child(
    rounds: usize,
    warm_up: usize,
    prepare: impl FnOnce() -> Result<()>,
    mut work: impl FnMut() -> Result<()>,
) -> Result<Vec<f64>> {
    let board = Board::new(warm_up + rounds)?;
    let life = || {
        prepare()?;
        for round in 0..warm_up + rounds {
            let began = now();
            work()?;
            board.set(round, now() - began);
        }
        Ok(())
    };
    Child::fork(life)?.join()?;
    Ok(board.all().skip(warm_up).map(|ns| ns as f64).collect())
}

/// Starts a thread and waits for its end.
fn start_thread() -> Result<()> {
    let thread = thread::Builder::new().spawn(|| ()).context("start a thread")?;
    thread.join().map_err(|_| anyhow!("a thread died"))
}

/// Returns the nanoseconds that the first thread of each of `rounds` processes takes, without the cost of the
/// pages that the process copies until then.
fn first_threads(rounds: usize) -> Result<Vec<f64>> {
    let board = Board::new(1)?;
    let mut firsts = Vec::new();
    for _ in 0..SHORT_WARM_UP_ROUNDS + rounds {
        let life = || {
            own_all_pages()?;
            let began = now();
            start_thread()?;
            board.set(0, now() - began);
            Ok(())
        };
        Child::fork(life)?.join()?;
        firsts.push(board.get(0) as f64);
    }
    Ok(firsts.split_off(SHORT_WARM_UP_ROUNDS))
}

/// Gives a process that was just forked copies of all its writable pages.
fn own_all_pages() -> Result<()> {
    // SAFETY: neither call takes memory. Locked pages are copied, and stay so when unlocked.
    let ret = unsafe { if libc::mlockall(libc::MCL_CURRENT) == 0 { libc::munlockall() } else { -1 } };
    ensure!(ret == 0, "mlockall: {}", io::Error::last_os_error());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_first_rounds_do_not_count() {
        let mut round = 0;
        let work = || {
            round += 1;
            thread::sleep(std::time::Duration::from_millis(if round <= 2 { 400 } else { 1 }));
            Ok(())
        };
        let rounds = by_child(3, 2, alone, work).unwrap();
        assert!(rounds.len() == 3 && rounds.iter().all(|ns| (1e6..399e6).contains(ns)), "{rounds:?}");
    }

    #[test]
    fn first_threads_are_timed_one_by_one() {
        let firsts = first_threads(3).unwrap();
        assert!(firsts.len() == 3 && firsts.iter().all(|&ns| ns > 0.0), "{firsts:?}");
    }

    #[test]
    fn a_forked_process_owns_all_pages_after_that() {
        let faults = || {
            let usage = fs::read_to_string("/proc/self/stat").unwrap();
            usage.rsplit_once(')').unwrap().1.split_whitespace().nth(10 - 3).unwrap().parse::<u64>().unwrap()
        };
        const PAGES: usize = 100;
        let region = Region::new(PAGES).unwrap();
        region.touch(0..PAGES);
        let board = Board::new(2).unwrap();
        let child = Child::fork(|| {
            for i in 0..2 {
                let before = faults();
                region.touch(if i == 0 { 0..PAGES / 2 } else { PAGES / 2..PAGES });
                board.set(i, faults() - before);
                own_all_pages()?;
            }
            Ok(())
        });
        child.unwrap().join().unwrap();
        assert!(board.get(0) >= 50 && board.get(1) < 10, "{:?}", board.all().collect::<Vec<_>>());
    }
}
