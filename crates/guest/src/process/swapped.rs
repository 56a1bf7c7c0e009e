//! Processes to kill whose memory is mostly in swap.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::{fs, io, iter, ops::Range, ptr, thread};

use anyhow::{Context as _, Result, ensure};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};

use crate::memory::PAGE_BYTES;
use crate::process::child::{Board, Child};
use crate::rng::Rng;
use crate::system::cgroup::TemporaryCgroup;
use crate::system::counters::{meminfo, value};

/// Pages of a process: 64 MiB.
pub const PAGES: usize = 16 << 10;
/// Of each page so many bytes are random and the rest are zeroes, so that it is compressed to a third
/// and no two are alike. What is measured does not uncompress it: only the size counts.
const RANDOM: usize = 1320;
/// Pages of a process that go out before it is the next one's turn.
const TURN: usize = 64;
/// So many percent more or less in swap than wanted is something else.
const TOLERANCE: f64 = 4.0;
/// How often pages that are in swap, but still in memory, too, are asked for.
const TRIES: u32 = 100;

/// Some processes, each in a memory cgroup of its own. Killed when dropped.
pub struct Flock {
    members: Vec<Member>,
    /// Bytes in swap, exactly.
    swap: u64,
}

struct Member {
    // Dropped before its cgroup is, which has to be empty then.
    child: Child,
    pidfd: OwnedFd,
    group: TemporaryCgroup,
}

/// Which pages go to swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Percent of them.
    pub share: usize,
    /// Whether neighbours in memory have no neighbouring swap slots, instead of 64 in a row.
    pub scattered: bool,
}

impl Layout {
    /// The pages that go out, in order and by turns, each at most [`TURN`] pages.
    fn turns(self) -> Vec<Vec<Range<usize>>> {
        let out = |i: usize| (i + 1) * self.share / 100 > i * self.share / 100;
        if !self.scattered {
            let pieces = (0..PAGES / TURN).filter(|&i| out(i));
            return pieces.map(|i| iter::once(i * TURN..(i + 1) * TURN).collect()).collect();
        }
        // Each eighth page, then again from the second one on.
        const STRIDE: usize = 8;
        let pages = (0..STRIDE).flat_map(|first| (first..PAGES).step_by(STRIDE));
        let pages: Vec<Range<usize>> = pages.filter(|&i| out(i)).map(|i| i..i + 1).collect();
        pages.chunks(TURN).map(<[_]>::to_vec).collect()
    }
}

impl Flock {
    /// Makes processes of 64 MiB, and has the share of their memory swapped out that `layout` says,
    /// all of them by turns, so that their swap slots lie side by side. The caller must be
    /// single-threaded.
    ///
    /// # Errors
    /// When there is not enough memory or swap, or when not that share is in swap in the end.
    pub fn new(size: usize, layout: Layout) -> Result<Self> {
        let memory = Memory::new()?;
        let ready = Board::new(size)?;
        let mut members = Vec::new();
        for i in 0..size {
            let group = TemporaryCgroup::new(&format!("swapped-{i}"), "memory")?;
            group.join()?;
            let child = Child::fork(|| {
                memory.fill(i as u64)?;
                ready.set(i, 1);
                loop {
                    thread::park();
                }
            });
            group.leave()?;
            let child = child?;
            let pidfd = pidfd_open(child.pid(), PidfdFlags::empty()).context("pidfd_open")?;
            members.push(Member { child, pidfd, group });
        }
        for (i, member) in members.iter().enumerate() {
            member.child.wait_until(|| ready.get(i) == 1)?;
        }
        for turn in layout.turns() {
            for member in &members {
                member.page_out(&memory, &turn)?;
            }
        }
        let mut flock = Self { members, swap: 0 };
        flock.drop_copies()?;
        for member in &flock.members {
            let swap = member.swap()?;
            let share = 100.0 * swap as f64 / (PAGES * PAGE_BYTES) as f64;
            ensure!(
                (share - layout.share as f64).abs() <= TOLERANCE,
                "{share:.1} % of a victim are in swap, not {} %",
                layout.share
            );
            flock.swap += swap;
        }
        Ok(flock)
    }

    /// Bytes that are in swap.
    pub fn swap(&self) -> u64 {
        self.swap
    }

    /// Bytes that are in memory.
    pub fn ram(&self) -> u64 {
        (self.members.len() * PAGES * PAGE_BYTES) as u64 - self.swap
    }

    /// The processes' IDs.
    pub fn pids(&self) -> Vec<i32> {
        self.members.iter().map(|m| m.child.pid().as_raw_pid()).collect()
    }

    /// Sends SIGKILL to all of them.
    ///
    /// # Errors
    /// What pidfd_send_signal(2) says.
    pub fn kill(&self) -> Result<()> {
        self.members.iter().try_for_each(|m| Ok(pidfd_send_signal(&m.pidfd, Signal::KILL)?))
    }

    /// Waits until all are dead, which they are after their memory is gone, and leaves them zombies.
    ///
    /// # Errors
    /// What waitid(2) says.
    pub fn wait_until_dead(&self) -> Result<()> {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        self.members
            .iter()
            .try_for_each(|m| waitid(WaitId::Pid(m.child.pid()), how).context("wait for a victim").map(drop))
    }

    /// Has the kernel drop what is in memory although it is in swap, too: where it is written while
    /// others go on, it is dropped only when somebody looks for memory again. It is what they find
    /// first.
    fn drop_copies(&self) -> Result<()> {
        for _ in 0..TRIES {
            let copies = usize::try_from(meminfo("SwapCached:")?)?;
            if copies < 64 * self.members.len() {
                return Ok(());
            }
            for member in &self.members {
                member.group.reclaim(copies / self.members.len() * 1024)?;
            }
        }
        ensure!(false, "{} KiB are in swap and in memory", meminfo("SwapCached:")?);
        Ok(())
    }
}

impl Member {
    fn page_out(&self, memory: &Memory, pages: &[Range<usize>]) -> Result<()> {
        let part = |pages: &Range<usize>| libc::iovec {
            iov_base: memory.at.wrapping_add(pages.start * PAGE_BYTES).cast(),
            iov_len: pages.len() * PAGE_BYTES,
        };
        let parts: Vec<libc::iovec> = pages.iter().map(part).collect();
        // SAFETY: reads as many iovecs as there are. What they describe is memory of another process,
        // which has the same addresses, and stays what it is.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.pidfd.as_raw_fd(),
                parts.as_ptr(),
                parts.len(),
                libc::MADV_PAGEOUT,
                0,
            )
        };
        let bytes: usize = parts.iter().map(|part| part.iov_len).sum();
        ensure!(
            usize::try_from(done) == Ok(bytes),
            "process_madvise(MADV_PAGEOUT): {done} of {bytes}: {}",
            io::Error::last_os_error()
        );
        Ok(())
    }

    /// Bytes in swap, counted page by page: what the kernel keeps count of may lag behind.
    fn swap(&self) -> Result<u64> {
        let path = format!("/proc/{}/smaps_rollup", self.child.pid());
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let kib = value(&text, "Swap:").with_context(|| format!("{path}: no Swap"))?;
        Ok(kib * 1024)
    }
}

/// Where every one of them has its memory. Unmapped when dropped.
struct Memory {
    at: *mut u8,
}

impl Memory {
    fn new() -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                PAGES * PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .context("mmap")?
        .cast();
        Ok(Self { at })
    }

    /// Puts something into each page, which differs by page and seed.
    fn fill(&self, seed: u64) -> Result<()> {
        // Less work than a fault for each page.
        // SAFETY: populating changes nothing in what the memory holds.
        unsafe { rustix::mm::madvise(self.at.cast(), PAGES * PAGE_BYTES, Advice::LinuxPopulateWrite) }
            .context("madvise(MADV_POPULATE_WRITE)")?;
        let mut rng = Rng(seed << 32);
        for page in 0..PAGES {
            for word in 0..RANDOM / 8 {
                // SAFETY: within the mapping, and aligned as that is; nobody refers to it.
                unsafe { self.at.add(page * PAGE_BYTES + word * 8).cast::<u64>().write(rng.bits()) };
            }
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nobody refers to the mapping.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), PAGES * PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(layout: Layout) -> Vec<usize> {
        layout.turns().into_iter().flatten().flatten().collect()
    }

    #[test]
    fn the_share_goes_out_and_each_page_once() {
        for share in [0, 33, 65, 95, 100] {
            for scattered in [false, true] {
                let layout = Layout { share, scattered };
                let mut pages = out(layout);
                let count = pages.len();
                assert!(count.abs_diff(PAGES * share / 100) <= TURN, "{layout:?}: {count}");
                // Also in each part of the memory.
                let half = pages.iter().filter(|&&page| page < PAGES / 2).count();
                assert!(count.abs_diff(2 * half) <= 2 * TURN, "{layout:?}: {half}");
                pages.sort_unstable();
                pages.dedup();
                assert_eq!(pages.len(), count);
                assert!(pages.last().is_none_or(|&last| last < PAGES));
                let turns = layout.turns();
                let size = |turn: &Vec<Range<usize>>| turn.iter().map(Range::len).sum::<usize>();
                assert!(turns.iter().rev().skip(1).all(|turn| size(turn) == TURN));
            }
        }
    }

    #[test]
    fn neighbours_go_out_together_or_not() {
        let together = |layout| out(layout).windows(2).filter(|w| w[1] == w[0] + 1).count();
        assert!(together(Layout { share: 65, scattered: false }) > PAGES / 2);
        assert_eq!(together(Layout { share: 65, scattered: true }), 0);
    }

    #[test]
    fn pages_differ_and_are_mostly_zero() {
        let memory = Memory::new().unwrap();
        memory.fill(1).unwrap();
        // SAFETY: the mapping is so long, and nobody writes to it any more.
        let bytes = unsafe { std::slice::from_raw_parts(memory.at, PAGES * PAGE_BYTES) };
        let mut heads: Vec<u64> = Vec::new();
        for page in bytes.chunks(PAGE_BYTES) {
            heads.push(u64::from_ne_bytes(page[..8].try_into().unwrap()));
            assert!(page[RANDOM..].iter().all(|&b| b == 0));
        }
        heads.sort_unstable();
        heads.dedup();
        assert_eq!(heads.len(), PAGES);
    }
}
