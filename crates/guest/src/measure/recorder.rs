// SPDX-License-Identifier: GPL-2.0-only
//! Takes readings at a fixed interval while something else happens.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::system::{clock, sched};

/// Room for six seconds of readings at the shortest interval in use, 400 us. Nothing may be allocated while
/// readings are taken.
const MAX_READINGS: usize = 15_000;
/// How often it is checked whether the recording has begun.
const START_POLL_INTERVAL: Duration = Duration::from_micros(100);

/// The readings of one round, in memory that is allocated before.
pub struct Recorder<T> {
    readings: Vec<T>,
    interval: Duration,
}

impl<T: Copy + Send> Recorder<T> {
    /// Allocates and touches the memory. A reading will be taken every `interval`. `filler` must not be all
    /// zeroes: an allocator returns zeroed memory that is not allocated yet.
    pub fn new(interval: Duration, filler: T) -> Self {
        Self { readings: vec![filler; MAX_READINGS], interval }
    }

    /// Calls `read` at each interval while `work` runs, in a SCHED_FIFO thread on the caller's CPUs. `work`
    /// begins after the first reading; its argument returns whether the thread has ended, which it does early
    /// only when it failed. Returns the readings, in order.
    ///
    /// # Errors
    /// When `work` or a reading fails, the thread does not get its priority, or there are more readings than
    /// fit.
    pub fn record_while<W>(
        &mut self,
        read: impl FnMut() -> Result<T> + Send,
        work: impl FnOnce(&dyn Fn() -> bool) -> Result<W>,
    ) -> Result<(W, Vec<T>)> {
        let (running, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let recorder = scope.spawn(|| self.record(read, &running, &stop).map(<[_]>::to_vec));
            while !running.load(Ordering::Acquire) && !recorder.is_finished() {
                thread::sleep(START_POLL_INTERVAL);
            }
            let done = work(&|| recorder.is_finished());
            stop.store(true, Ordering::Release);
            let readings = recorder.join().map_err(|_| anyhow!("the recording thread died"))?;
            Ok((done?, readings?))
        })
    }

    /// Calls `read` at each interval until `stop`. Sets `running` after the first reading.
    fn record(&mut self, mut read: impl FnMut() -> Result<T>, running: &AtomicBool, stop: &AtomicBool) -> Result<&[T]> {
        sched::set_policy(libc::SCHED_FIFO, 1).context("SCHED_FIFO for the recording thread")?;
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("timer slack")?;
        let mut taken = 0;
        let mut next = clock::now();
        while !stop.load(Ordering::Acquire) {
            ensure!(
                taken < MAX_READINGS,
                "memory did not come back within {:?}",
                self.interval * u32::try_from(MAX_READINGS)?
            );
            self.readings[taken] = read()?;
            taken += 1;
            running.store(true, Ordering::Release);
            next = (next + self.interval.as_nanos() as u64).max(clock::now());
            clock::sleep_until(next)?;
        }
        Ok(&self.readings[..taken])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_taken_in_order_while_the_work_runs() {
        let interval = Duration::from_millis(1);
        let recorded = Recorder::new(interval, 1).record_while(
            || Ok(clock::now()),
            |_| {
                thread::sleep(interval * 10);
                Ok(())
            },
        );
        match recorded {
            Ok(((), all)) => assert!(all.len() > 2 && all.windows(2).all(|w| w[0] < w[1]), "{all:?}"),
            // Not every user may have a real-time thread.
            Err(e) => testing::skipped(format_args!("{e:#}")),
        }
    }
}
