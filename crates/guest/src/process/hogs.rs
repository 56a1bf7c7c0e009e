// SPDX-License-Identifier: GPL-2.0-only
//! Processes that only use CPU time, and count how much work they get done.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{hint, io, ptr, slice, thread};

use anyhow::{Context as _, Result};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use crate::system::clock;

/// Iterations of one unit of work: some microseconds under emulation.
const UNIT_ITERATIONS: u32 = 1000;
/// How often a resting hog checks whether it should work.
const REST_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// One hog's part of the shared memory, in cache lines of its own.
#[repr(align(128))]
struct Place {
    /// Units of work done.
    done: AtomicU64,
    /// Whether to work.
    working: AtomicBool,
    /// The longest time between two units of work, in nanoseconds.
    longest_gap: AtomicU64,
}

/// Some hogs at the caller's nice value. They rest until [`Hogs::work`], and are killed when this is dropped.
pub struct Hogs {
    pids: Vec<Pid>,
    places: &'static [Place],
    size: usize,
}

impl Hogs {
    /// Forks the hogs. The caller must be single-threaded.
    ///
    /// # Errors
    /// When memory cannot be allocated, or fork(2) fails.
    pub fn start(count: usize) -> Result<Self> {
        let size = count.max(1) * size_of::<Place>();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
            )
        }
        .context("mmap")?;
        // SAFETY: the mapping is at least as long and as aligned, all zeroes are a valid place,
        // and it is unmapped only when this is dropped, which alone has the reference.
        let places = unsafe { slice::from_raw_parts(at.cast::<Place>(), count) };
        let mut hogs = Self { pids: Vec::new(), places, size };
        for place in hogs.places {
            // SAFETY: the process is single-threaded, so the child may use everything the parent
            // may; it never returns from here.
            let pid = match unsafe { libc::fork() } {
                -1 => return Err(io::Error::last_os_error()).context("fork a hog"),
                0 => live(place),
                pid => Pid::from_raw(pid).context("fork returned no PID")?,
            };
            hogs.pids.push(pid);
        }
        Ok(hogs)
    }

    /// Has all of them work, or rest, within [`REST_POLL_INTERVAL`].
    pub fn work(&self, working: bool) {
        self.places.iter().for_each(|place| place.working.store(working, Ordering::Release));
    }

    /// Returns the longest time for which one of them that should work did not, in nanoseconds, since this
    /// was last called.
    pub fn take_longest_gap(&self) -> u64 {
        self.places.iter().map(|place| place.longest_gap.swap(0, Ordering::AcqRel)).max().unwrap_or_default()
    }

    /// Returns the units of work that all of them have done so far.
    pub fn done(&self) -> u64 {
        self.places.iter().map(|place| place.done.load(Ordering::Acquire)).sum()
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for &pid in &self.pids {
            // A failure cannot be handled; PID 1 reaps what is left.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
        }
        let at = self.places.as_ptr().cast_mut().cast();
        self.places = &[];
        // SAFETY: this mapping was made for the places, and no reference to them is left.
        let _ = unsafe { rustix::mm::munmap(at, self.size) };
    }
}

/// What a hog does.
fn live(place: &Place) -> ! {
    if rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        // SAFETY: _exit takes no memory and ends the process without the parent's handlers.
        unsafe { libc::_exit(1) }
    }
    let mut last = None;
    loop {
        if place.working.load(Ordering::Acquire) {
            (0..UNIT_ITERATIONS).for_each(|step| {
                hint::black_box(step);
            });
            place.done.fetch_add(1, Ordering::Release);
            let now = clock::now();
            if let Some(last) = last.replace(now) {
                place.longest_gap.fetch_max(now - last, Ordering::AcqRel);
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
        while hogs.places.iter().any(|place| place.done.load(Ordering::Acquire) == 0) {
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
