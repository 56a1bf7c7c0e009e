// SPDX-License-Identifier: GPL-2.0-only
//! How much work processes and threads get done in parallel, one on each CPU.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::program::Program;
use crate::memory::region::Region;
use crate::process::child::{Board, Child};
use crate::scenario::metrics::{each_case, median, metric_name};
use crate::system::clock::now;
use crate::system::sched;
use init::report::Reporter;

/// How often the work is counted, and for how long each time.
const WINDOWS: u32 = 5;
const WINDOW: Duration = Duration::from_millis(240);
/// How long everything runs before that.
const WARM_UP: Duration = Duration::from_millis(100);
/// Pages that are touched and unmapped at a time.
const PAGES: usize = 2048;

/// Does some work and returns how much.
type Work<'a> = dyn Fn() -> Result<u64> + Sync + 'a;

/// Measures and reports everything.
pub fn measure(out: &mut Reporter) -> Result<()> {
    let cpus = sched::online_cpus()?;
    let program = Program::new()?;
    let touch = || {
        Region::new(PAGES)?.touch(0..PAGES);
        Ok(PAGES as u64)
    };
    let fork = || Child::fork(|| Ok(()))?.join().map(|()| 1);
    let exec = || program.run().map(|()| 1);
    // With the number of threads of each process.
    let processes = vec![1; cpus];
    let cases: [(&str, (&[usize], &Work<'_>)); 5] = [
        ("fault-processes", (&processes, &touch)),
        ("fault-threads", (&[cpus], &touch)),
        ("fork-1", (&[1], &fork)),
        ("fork-all", (&processes, &fork)),
        ("exec-all", (&processes, &exec)),
    ];
    each_case(cases, out, |case, (workers, work), out| {
        out.progress(case);
        out.sample(&metric_name(case, "rate"), rate(workers, work)?);
        Ok(())
    })
}

/// Returns how much work is done per second. `processes` has the number of threads of each process.
fn rate(processes: &[usize], work: &Work<'_>) -> Result<f64> {
    let board = Board::new(processes.iter().sum())?;
    let mut children = Vec::new();
    let mut first = 0;
    for &threads in processes {
        let places = first..first + threads;
        first = places.end;
        let board = &board;
        let life = || match threads {
            1 => work_forever(board, places.start, work),
            // Ends with the process.
            _ => thread::scope(|scope| {
                places.for_each(|place| drop(scope.spawn(move || work_forever(board, place, work))));
                Ok(())
            }),
        };
        children.push(Child::fork(life)?);
    }
    wait_for_progress(&children, &board)?;
    thread::sleep(WARM_UP);
    let mut rates = Vec::new();
    for _ in 0..WINDOWS {
        let (began, before) = (now(), board.all().sum::<u64>());
        thread::sleep(WINDOW);
        let (ended, after) = (now(), board.all().sum::<u64>());
        rates.push((after - before) as f64 / (ended - began) as f64 * 1e9);
    }
    wait_for_progress(&children, &board)?;
    Ok(median(rates.into_iter()))
}

/// Waits until every worker has done some work since this was called.
fn wait_for_progress(children: &[Child], board: &Board) -> Result<()> {
    let before: Vec<u64> = board.all().collect();
    let all = || board.all().zip(&before).all(|(now, before)| now > *before);
    children.iter().try_for_each(|child| child.wait_until(all))
}

/// Works until the process is killed, or ends it when the work fails. A worker's place on the board is also
/// the number of its CPU.
fn work_forever(board: &Board, place: usize, work: &Work<'_>) -> ! {
    let failed = sched::pin(place).and_then(|()| {
        loop {
            board.add(place, work()?);
        }
    });
    let failed: Result<()> = failed;
    eprintln!("guest: a worker: {failed:?}");
    // SAFETY: _exit takes no memory and ends the process without any handlers.
    unsafe { libc::_exit(1) }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use anyhow::bail;

    use super::*;

    #[test]
    fn a_rate_is_that_of_all_workers() {
        let work = || {
            thread::sleep(Duration::from_millis(30));
            Ok(9)
        };
        // At most nine times in a window.
        let most = 9.0 * 9.0 / WINDOW.as_secs_f64();
        let one = rate(&[1], &work).unwrap();
        assert!(one > 0.0 && one <= most, "{one}");
        // A busy machine may let them sleep for longer, but not every time.
        let both = (0..100).map(|_| rate(&[2], &work).unwrap()).find(|&two| two > most);
        assert!(both.is_some_and(|two| two <= 2.0 * most), "{both:?}");
    }

    #[test]
    fn work_that_fails_is_no_rate() {
        let began = Instant::now();
        let slow = move || if began.elapsed() < WARM_UP * 2 { Ok(1) } else { bail!("on purpose") };
        assert!(rate(&[1], &|| bail!("on purpose")).is_err());
        assert!(rate(&[2], &slow).is_err());
    }
}
