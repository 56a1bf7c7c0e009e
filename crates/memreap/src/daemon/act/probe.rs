//! Finding out in time how well a process's memory compresses: a little of it is swapped out before the
//! kernel has to, and zram says what that took.
//!
//! Without it the first to know would be those who wait: the kernel begins to swap when the page cache is
//! gone, and only then shows whether swapping gives anything back.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::daemon::files;
use crate::kill::prestarted::{self, STACK_BYTES};
use arrayvec::{ArrayString, ArrayVec};
use linux::{Pid, PidFd};

/// How much is swapped out, in so many pieces all over the mapping: not all of it need be in memory.
/// Enough to tell, and nothing that would be missed.
const SIZE: usize = 8 << 20;
const PIECES: usize = 64;
/// The largest part of a program's map that is read; what is beyond is not looked at.
const MAPS: usize = 1 << 20;

/// A thread that swaps a little of a process out. To read where its memory is can wait for the process,
/// so nobody waits for this.
pub struct Probe {
    shared: Arc<Shared>,
}

struct Shared {
    proc: OwnedFd,
    job: Mutex<Option<(PidFd, usize)>>,
    turn: Condvar,
}

impl Probe {
    /// Starts the thread.
    ///
    /// # Errors
    /// When that is not possible.
    pub fn new(proc: &OwnedFd) -> io::Result<Self> {
        let shared =
            Arc::new(Shared { proc: proc.try_clone()?, job: Mutex::new(None), turn: Condvar::new() });
        let probe = Self { shared: Arc::clone(&shared) };
        let mut buffer = vec![0; 16 << 10];
        prestarted::start("probe", STACK_BYTES, move || shared.live(&mut buffer))?;
        Ok(probe)
    }

    /// Swaps a little of this process out, which uses so many bytes, when the thread has time for it; if it
    /// has not, the last one asked for counts.
    pub fn ask(&self, process: PidFd, used: u64) {
        let job = (process, usize::try_from(used).unwrap_or(usize::MAX));
        *self.shared.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(job);
        self.shared.turn.notify_one();
    }
}

impl Shared {
    fn live(&self, buffer: &mut [u8]) {
        loop {
            let mut job = self.job.lock().unwrap_or_else(PoisonError::into_inner);
            let (process, used) = loop {
                match job.take() {
                    Some(job) => break job,
                    None => job = self.turn.wait(job).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(job);
            // What cannot be done is not known in time, and that is all.
            if let Some((start, end)) = self.largest(process.opened_as(), buffer) {
                let _ = page_out(&process, &pieces(start, end, used));
            }
        }
    }

    /// The largest private, writable mapping of no file. It may be another's by the time that it is used:
    /// what that costs is that some pages are swapped out that need not be.
    fn largest(&self, pid: Pid, buffer: &mut [u8]) -> Option<(usize, usize)> {
        let mut path = ArrayString::<32>::new();
        std::fmt::Write::write_fmt(&mut path, format_args!("{pid}/maps\0")).ok()?;
        let path = CStr::from_bytes_with_nul(path.as_bytes()).ok()?;
        let mut best: Option<(usize, usize)> = None;
        files::each_line(&self.proc, path, buffer, MAPS, |line| {
            if let Some((start, end)) = own_memory(line)
                && best.is_none_or(|(s, e)| end - start > e - s)
            {
                best = Some((start, end));
            }
        })?;
        best
    }
}

/// The range of a line of /proc/PID/maps, if it is private memory of no file.
fn own_memory(line: &[u8]) -> Option<(usize, usize)> {
    let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let (range, mode) = (fields.next()?, fields.next()?);
    let (_offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?);
    let (start, end) = range.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    // Not the stack, which is in use by its nature.
    let stack = fields.next() == Some("[stack]");
    (mode == "rw-p" && inode == "0" && !stack && start < end).then_some((start, end))
}

/// What of a mapping is swapped out: pieces of where `used` bytes are if it was filled from the bottom, and
/// as many of where they are if it was filled from the top. Much more may be reserved than is used.
fn pieces(start: usize, end: usize, used: usize) -> ArrayVec<libc::iovec, PIECES> {
    let page = rustix::param::page_size();
    let len = (SIZE / PIECES).next_multiple_of(page);
    let half = ((end - start) / 2).min(used) / page * page;
    let step = (half / (PIECES / 2)).max(len).next_multiple_of(page);
    let low = (start..start + half).step_by(step).take(PIECES / 2);
    let high = (end - half..end).step_by(step).take(PIECES / 2);
    low.map(|at| (at, start + half))
        .chain(high.map(|at| (at, end)))
        .map(|(at, end)| libc::iovec { iov_base: at as *mut _, iov_len: len.min(end - at) })
        .collect()
}

/// process_madvise(2) with MADV_PAGEOUT.
fn page_out(process: &PidFd, ranges: &[libc::iovec]) -> io::Result<()> {
    // SAFETY: live ranges; the addresses are the other process's, and paging out changes no contents.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_fd().as_raw_fd(),
            ranges.as_ptr(),
            ranges.len(),
            libc::MADV_PAGEOUT,
            0_u32,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn only_private_memory_of_no_file_counts() {
        let line = |mode, inode, name| format!("7f00-9f00 {mode} 00000000 00:00 {inode}   {name}");
        assert_eq!(own_memory(line("rw-p", 0, "").as_bytes()), Some((0x7f00, 0x9f00)));
        assert_eq!(own_memory(line("rw-p", 0, "[heap]").as_bytes()), Some((0x7f00, 0x9f00)));
        for (mode, inode, name) in
            [("rw-s", 0, ""), ("r--p", 0, ""), ("rw-p", 5, "/x"), ("rw-p", 0, "[stack]"), ("---p", 0, "")]
        {
            assert_eq!(own_memory(line(mode, inode, name).as_bytes()), None);
        }
        for wrong in [&b""[..], b"\xff", b"1-2", b"9-1 rw-p 0 0 0", b"x-y rw-p 0 0 0"] {
            assert_eq!(own_memory(wrong), None);
        }
    }

    #[test]
    fn the_largest_mapping_is_found() {
        let proc = rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let large = vec![1_u8; 256 << 20];
        let shared = Shared { proc, job: Mutex::new(None), turn: Condvar::new() };
        let mut buffer = vec![0; 4096];
        let (start, end) = shared.largest(Pid::own(), &mut buffer).unwrap();
        let middle = large.as_ptr() as usize + large.len() / 2;
        assert!((start..end).contains(&middle));
        let own = PidFd::open(Pid::own()).unwrap();
        page_out(&own, &pieces(start, end, large.len())).unwrap();
    }

    #[test]
    fn pieces_are_whole_pages_of_the_mapping_and_apart() {
        let page = rustix::param::page_size();
        for size in [1, 3, 100, 1000, 12345, 1 << 20] {
            let (start, end) = (5 * page, 5 * page + size * page);
            let all = pieces(start, end, usize::MAX);
            assert!(size < 2 || !all.is_empty());
            assert!(all.iter().map(|p| p.iov_len).sum::<usize>() <= SIZE);
            let mut from = start;
            for piece in &all {
                let at = piece.iov_base as usize;
                assert!(
                    at >= from
                        && at + piece.iov_len <= end
                        && at.is_multiple_of(page)
                        && piece.iov_len.is_multiple_of(page)
                );
                from = at + piece.iov_len;
            }
        }
        // Of a reservation only what may be used.
        let all = pieces(0, 1 << 34, 1 << 30);
        assert_eq!(all.len(), PIECES);
        let inside = |p: &libc::iovec| !((1 << 30)..(1 << 34) - (1 << 30)).contains(&(p.iov_base as usize));
        assert!(all.iter().all(inside));
    }
}
