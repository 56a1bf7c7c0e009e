// SPDX-License-Identifier: GPL-2.0-only
//! Measures in time how well a process's memory compresses: a little of it is swapped out before the kernel
//! has to, and zram says how much space that took.
//!
//! Otherwise the first to know would be the processes that wait for memory: the kernel begins to swap when
//! the page cache is gone, and only then shows how much swapping frees.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use arrayvec::ArrayVec;
use linux::maps::Mapping;
use linux::pidfd::AddressRange;
use linux::scan::{File, Scan};
use linux::{Pid, PidFd, Root};

use crate::kill::prestarted::{self, STACK_BYTES};

/// How much is swapped out: enough to measure, and little enough not to be missed.
const PROBE_BYTES: usize = 8 << 20;
/// In how many pieces, all over the mapping: not all of it need be in memory.
const PIECES: usize = 64;
/// The part of a process's maps that is read, at most.
const MAX_MAPS_BYTES: usize = 1 << 20;

/// A thread that swaps a little of a process out. Reading where its memory is can wait for the process, so
/// nothing waits for this thread.
pub struct Probe {
    shared: Arc<Shared>,
}

struct Shared {
    scan: Scan,
    /// The process, and how many bytes it uses.
    job: Mutex<Option<(PidFd, usize)>>,
    job_posted: Condvar,
}

impl Probe {
    /// Starts the thread.
    ///
    /// # Errors
    /// When that is not possible, or /proc cannot be opened.
    pub fn new(root: &Root) -> io::Result<Self> {
        let scan = Scan::open(root).map_err(io::Error::other)?;
        let shared = Arc::new(Shared { scan, job: Mutex::new(None), job_posted: Condvar::new() });
        let probe = Self { shared: Arc::clone(&shared) };
        let mut buffer = vec![0; 16 << 10];
        prestarted::start("probe", STACK_BYTES, move || shared.work(&mut buffer))?;
        Ok(probe)
    }

    /// Has a little of a process swapped out, which uses `used_bytes`, when the thread has time for it; until
    /// then a later request replaces this one.
    pub fn request(&self, process: PidFd, used_bytes: u64) {
        let job = (process, usize::try_from(used_bytes).unwrap_or(usize::MAX));
        *self.shared.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(job);
        self.shared.job_posted.notify_one();
    }
}

impl Shared {
    /// What the thread does: one job after the other.
    fn work(&self, buffer: &mut [u8]) {
        loop {
            let mut job = self.job.lock().unwrap_or_else(PoisonError::into_inner);
            let (process, used_bytes) = loop {
                match job.take() {
                    Some(job) => break job,
                    None => job = self.job_posted.wait(job).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(job);
            // When it fails, the yield of swap is not known in time, and that is all.
            if let Some((start, end)) = self.largest_private(process.opened_as(), buffer) {
                let _ = process.page_out(&pieces(start, end, used_bytes));
            }
        }
    }

    /// Returns the range of the largest private, writable, anonymous mapping. It may be another process's by
    /// the time that it is used: then some pages are swapped out that need not be.
    fn largest_private(&self, pid: Pid, buffer: &mut [u8]) -> Option<(usize, usize)> {
        let mut best: Option<(usize, usize)> = None;
        let read = self.scan.for_each_line(pid, File::Maps, buffer, MAX_MAPS_BYTES, |line| {
            if let Some((start, end)) = private_range(line)
                && best.is_none_or(|(s, e)| end - start > e - s)
            {
                best = Some((start, end));
            }
        });
        read.ok().and(best)
    }
}

/// The range of a line of /proc/PID/maps, if it is private, writable, anonymous memory. Not the stack, which
/// is in use.
fn private_range(line: &[u8]) -> Option<(usize, usize)> {
    let Mapping { start, end, mode, inode, name, .. } = Mapping::parse(line)?;
    (mode == "rw-p" && inode == 0 && name != "[stack]").then_some((start, end))
}

/// Returns what of a mapping is swapped out: pieces of where `used_bytes` are if it was filled from the
/// bottom, and as many of where they are if it was filled from the top. Much more may be reserved than is
/// used.
fn pieces(start: usize, end: usize, used_bytes: usize) -> ArrayVec<AddressRange, PIECES> {
    let page = rustix::param::page_size();
    let len = (PROBE_BYTES / PIECES).next_multiple_of(page);
    let half = ((end - start) / 2).min(used_bytes) / page * page;
    let step = (half / (PIECES / 2)).max(len).next_multiple_of(page);
    let low = (start..start + half).step_by(step).take(PIECES / 2);
    let high = (end - half..end).step_by(step).take(PIECES / 2);
    low.map(|at| (at, start + half))
        .chain(high.map(|at| (at, end)))
        .map(|(at, end)| AddressRange { start: at, len: len.min(end - at) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_memory_of_no_file_counts() {
        let line = |mode, inode, name| format!("7f00-9f00 {mode} 00000000 00:00 {inode}   {name}");
        assert_eq!(private_range(line("rw-p", 0, "").as_bytes()), Some((0x7f00, 0x9f00)));
        assert_eq!(private_range(line("rw-p", 0, "[heap]").as_bytes()), Some((0x7f00, 0x9f00)));
        for (mode, inode, name) in
            [("rw-s", 0, ""), ("r--p", 0, ""), ("rw-p", 5, "/x"), ("rw-p", 0, "[stack]"), ("---p", 0, "")]
        {
            assert_eq!(private_range(line(mode, inode, name).as_bytes()), None);
        }
        for wrong in [&b""[..], b"\xff", b"1-2", b"9-1 rw-p 0 0 0", b"x-y rw-p 0 0 0"] {
            assert_eq!(private_range(wrong), None);
        }
    }

    #[test]
    fn the_largest_mapping_is_found() {
        let scan = Scan::open(&Root::system()).unwrap();
        let large = vec![1_u8; 256 << 20];
        let shared = Shared { scan, job: Mutex::new(None), job_posted: Condvar::new() };
        let mut buffer = vec![0; 4096];
        let (start, end) = shared.largest_private(Pid::own(), &mut buffer).unwrap();
        let middle = large.as_ptr() as usize + large.len() / 2;
        assert!((start..end).contains(&middle));
        let own = PidFd::open(Pid::own()).unwrap();
        own.page_out(&pieces(start, end, large.len())).unwrap();
    }

    #[test]
    fn pieces_are_whole_pages_of_the_mapping_and_apart() {
        let page = rustix::param::page_size();
        for size in [1, 3, 100, 1000, 12345, 1 << 20] {
            let (start, end) = (5 * page, 5 * page + size * page);
            let all = pieces(start, end, usize::MAX);
            assert!(size < 2 || !all.is_empty());
            assert!(all.iter().map(|p| p.len).sum::<usize>() <= PROBE_BYTES);
            let mut from = start;
            for piece in &all {
                let at = piece.start;
                assert!(
                    at >= from
                        && at + piece.len <= end
                        && at.is_multiple_of(page)
                        && piece.len.is_multiple_of(page)
                );
                from = at + piece.len;
            }
        }
        // Of a reservation only what may be used.
        let all = pieces(0, 1 << 34, 1 << 30);
        assert_eq!(all.len(), PIECES);
        let inside = |p: &AddressRange| !((1 << 30)..(1 << 34) - (1 << 30)).contains(&p.start);
        assert!(all.iter().all(inside));
    }
}
