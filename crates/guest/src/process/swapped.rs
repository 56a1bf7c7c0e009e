// SPDX-License-Identifier: GPL-2.0-only
//! Processes to be killed whose memory is mostly in swap.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;
use std::{fs, io, iter, ops::Range, thread};

use anyhow::{Context as _, Result, ensure};
use linux::PidFd;
use rustix::mm::{Advice, MapFlags};
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

use crate::memory::PAGE_BYTES;
use crate::memory::mapping::Mapping;
use crate::process::child::{Board, Child, sleep_for_ever};
use crate::rng::Rng;
use crate::system::cgroup::TemporaryCgroup;
use crate::system::counters::{meminfo, value};

/// Pages of a process: 64 MiB.
pub const VICTIM_PAGES: usize = (64 << 20) / PAGE_BYTES;
/// So many bytes of each page are random and the others zero, so that it is compressed to a third and no two
/// pages are equal. Nothing that is measured decompresses a page: only its size matters.
const RANDOM_BYTES: usize = PAGE_BYTES * 165 / 512;
/// Pages of a process that are paged out before those of the next one.
const TURN_PAGES: usize = 64;
/// The share in swap may differ from the requested one by so much.
const TOLERANCE_PERCENT: f64 = 1.0;
/// How often the kernel is asked to drop pages from memory that are in swap as well.
const DROP_TRIES: u32 = 100;
/// So many bytes of a process may be in memory as well: memory.stat may lag behind by so much.
const MAX_COPIES: usize = 512 << 10;
/// How often to look whether all pages have been written to swap.
const WRITEBACK_POLL: Duration = Duration::from_millis(5);

/// Some processes, each in a memory cgroup of its own. They are killed when this is dropped.
pub struct Victims {
    victims: Vec<Victim>,
    /// Exact bytes in swap.
    swap_bytes: u64,
    /// All CPUs, if they may use only some, and limited time of those.
    outside: Option<String>,
}

struct Victim {
    // Dropped before its cgroup, which has to be empty then.
    child: Child,
    pidfd: PidFd,
    group: TemporaryCgroup,
}

/// Which pages go to swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The percentage of them.
    pub share: usize,
    /// Whether no neighbours in memory have neighbouring swap slots. Otherwise 64 in a row do.
    pub scattered: bool,
}

impl Layout {
    /// Returns the pages that go to swap, in order, in turns of at most [`TURN_PAGES`] pages.
    fn turns(self) -> Vec<Vec<Range<usize>>> {
        let out = |i: usize| (i + 1) * self.share / 100 > i * self.share / 100;
        if !self.scattered {
            let pieces = (0..VICTIM_PAGES / TURN_PAGES).filter(|&i| out(i));
            return pieces.map(|i| iter::once(i * TURN_PAGES..(i + 1) * TURN_PAGES).collect()).collect();
        }
        // Every eighth page, then the same from the second page on, and so on.
        const STRIDE: usize = 8;
        let pages = (0..STRIDE).flat_map(|first| (first..VICTIM_PAGES).step_by(STRIDE));
        let pages: Vec<Range<usize>> = pages.filter(|&i| out(i)).map(|i| i..i + 1).collect();
        pages.chunks(TURN_PAGES).map(<[_]>::to_vec).collect()
    }
}

impl Victims {
    /// Starts `count` processes of 64 MiB, and has the share of their memory swapped out that `layout`
    /// requests: turn by turn, so that their swap slots alternate. The caller must be single-threaded.
    ///
    /// # Errors
    /// When there is not enough memory or swap, or another share is in swap in the end.
    pub fn start(count: usize, layout: Layout) -> Result<Self> {
        let memory = Memory::new()?;
        let ready = Board::new(count)?;
        let mut victims = Vec::new();
        for i in 0..count {
            let group = TemporaryCgroup::new(&format!("swapped-{i}"), "memory")?;
            let life = || {
                memory.fill(i as u64)?;
                ready.set(i, 1);
                sleep_for_ever()
            };
            let child = group.within(|| Child::fork(life))?;
            let pidfd = PidFd::open(child.pid().into())?;
            victims.push(Victim { child, pidfd, group });
        }
        for (i, victim) in victims.iter().enumerate() {
            victim.child.wait_until(|| ready.get(i) == 1)?;
        }
        for turn in layout.turns() {
            for victim in &victims {
                victim.page_out(&memory, &turn)?;
            }
        }
        let mut all = Self { victims, swap_bytes: 0, outside: None };
        all.drop_copies()?;
        for victim in &all.victims {
            let swap_bytes = victim.swap_bytes()?;
            let share = 100.0 * swap_bytes as f64 / (VICTIM_PAGES * PAGE_BYTES) as f64;
            ensure!(
                (share - layout.share as f64).abs() <= TOLERANCE_PERCENT,
                "{share:.1} % of a victim are in swap, not {} %",
                layout.share
            );
            all.swap_bytes += swap_bytes;
        }
        Ok(all)
    }

    /// Moves them to the second half of the CPUs, and lets each use so many percent of the time of one.
    ///
    /// # Errors
    /// When the kernel has no such controllers or CPUs.
    pub fn confine(&mut self, percent: u32) -> Result<()> {
        const PERIOD_US: u32 = 10_000;
        let cpus = thread::available_parallelism().context("number of CPUs")?.get();
        // A cpuset with processes in it cannot be told to use those of its parent again.
        self.outside = Some(format!("0-{}", cpus - 1));
        let cpus = format!("{}-{}", cpus / 2, cpus - 1);
        for Victim { group, .. } in &self.victims {
            group.control("cpuset")?;
            group.set("cpuset.cpus", &cpus)?;
            group.control("cpu")?;
            group.set("cpu.max", &format!("{} {PERIOD_US}", PERIOD_US / 100 * percent))?;
        }
        Ok(())
    }

    /// Lifts what [`Victims::confine`] has set for the process with this index.
    ///
    /// # Errors
    /// Those of the cgroup's files.
    pub fn unconfine(&self, index: usize) -> Result<()> {
        let Some(cpus) = &self.outside else { return Ok(()) };
        let group = &self.victims[index].group;
        group.set("cpuset.cpus", cpus)?;
        group.set("cpu.max", "max")
    }

    /// Returns how many of them have ended.
    ///
    /// # Errors
    /// Those of waitid(2).
    pub fn ended(&self) -> Result<usize> {
        let ended = self.victims.iter().map(|victim| victim.child.has_ended());
        Ok(ended.collect::<Result<Vec<bool>>>()?.into_iter().filter(|&ended| ended).count())
    }

    /// Bytes in swap, of all processes together.
    pub fn swap_bytes(&self) -> u64 {
        self.swap_bytes
    }

    /// Resident bytes, of all processes together.
    pub fn ram_bytes(&self) -> u64 {
        (self.victims.len() * VICTIM_PAGES * PAGE_BYTES) as u64 - self.swap_bytes
    }

    /// The processes' IDs.
    pub fn pids(&self) -> Vec<i32> {
        self.victims.iter().map(|m| m.child.pid().as_raw_pid()).collect()
    }

    /// The pidfd of the process with this index.
    pub fn pidfd(&self, index: usize) -> &PidFd {
        &self.victims[index].pidfd
    }

    /// Sends SIGKILL to all of them.
    ///
    /// # Errors
    /// Those of pidfd_send_signal(2).
    pub fn kill(&self) -> Result<()> {
        self.victims.iter().try_for_each(|m| Ok(m.pidfd.send_signal(Signal::KILL)?))
    }

    /// Waits until all are zombies, whose memory has been freed, and does not reap them.
    ///
    /// # Errors
    /// Those of waitid(2).
    pub fn wait_until_dead(&self) -> Result<()> {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        self.victims
            .iter()
            .try_for_each(|m| waitid(WaitId::Pid(m.child.pid()), how).context("wait for a victim").map(drop))
    }

    /// Has the kernel drop pages from memory that are in swap as well. Where swap is written asynchronously,
    /// they are dropped only by the next reclaim, which finds them first; but not as long as they are being
    /// written: then it swaps out others.
    fn drop_copies(&self) -> Result<()> {
        for _ in 0..DROP_TRIES {
            while meminfo("Writeback:")? > 0 {
                thread::sleep(WRITEBACK_POLL);
            }
            let mut left = 0;
            for victim in &self.victims {
                let copies = victim.copies()?;
                if copies > MAX_COPIES {
                    // Reclaim does more than it is asked to, and would go on with other pages.
                    victim.group.reclaim(copies / 2)?;
                    left += copies;
                }
            }
            if left == 0 {
                return Ok(());
            }
        }
        ensure!(false, "{} KiB are both in swap and in memory", meminfo("SwapCached:")?);
        Ok(())
    }
}

impl Victim {
    /// Has the kernel page out these pages.
    fn page_out(&self, memory: &Memory, pages: &[Range<usize>]) -> Result<()> {
        let part = |pages: &Range<usize>| libc::iovec {
            iov_base: memory.0.at().wrapping_add(pages.start * PAGE_BYTES).cast(),
            iov_len: pages.len() * PAGE_BYTES,
        };
        let parts: Vec<libc::iovec> = pages.iter().map(part).collect();
        // SAFETY: reads as many iovecs as there are. They describe memory of another process, at the same
        // addresses, whose contents do not change.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.pidfd.as_fd().as_raw_fd(),
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

    /// Returns the bytes that are both in swap and in memory.
    fn copies(&self) -> Result<usize> {
        let text = self.group.get("memory.stat")?;
        let bytes = value(&text, "swapcached ").context("memory.stat: no swapcached")?;
        Ok(usize::try_from(bytes)?)
    }

    /// Returns the bytes in swap, counted page by page: the kernel's counters may lag behind.
    fn swap_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/smaps_rollup", self.child.pid());
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let kib = value(&text, "Swap:").with_context(|| format!("{path}: no Swap"))?;
        Ok(kib * 1024)
    }
}

/// The memory of the processes, at the same address in each of them.
struct Memory(Mapping);

impl Memory {
    fn new() -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        Ok(Self(Mapping::anonymous(VICTIM_PAGES * PAGE_BYTES, flags).context("mmap")?))
    }

    /// Fills each page with a content that depends on the page and the seed.
    fn fill(&self, seed: u64) -> Result<()> {
        // This is cheaper than a fault for each page.
        // SAFETY: populating does not change contents.
        unsafe { rustix::mm::madvise(self.0.at().cast(), self.0.bytes(), Advice::LinuxPopulateWrite) }
            .context("madvise(MADV_POPULATE_WRITE)")?;
        let mut rng = Rng(seed << 32);
        for page in 0..VICTIM_PAGES {
            for word in 0..RANDOM_BYTES / 8 {
                // SAFETY: within the mapping and aligned; no reference to it exists.
                unsafe { self.0.at().add(page * PAGE_BYTES + word * 8).cast::<u64>().write(rng.bits()) };
            }
        }
        Ok(())
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
                assert!(count.abs_diff(VICTIM_PAGES * share / 100) <= TURN_PAGES, "{layout:?}: {count}");
                // Each half of the memory has the same share.
                let half = pages.iter().filter(|&&page| page < VICTIM_PAGES / 2).count();
                assert!(count.abs_diff(2 * half) <= 2 * TURN_PAGES, "{layout:?}: {half}");
                pages.sort_unstable();
                pages.dedup();
                assert_eq!(pages.len(), count);
                assert!(pages.last().is_none_or(|&last| last < VICTIM_PAGES));
                let turns = layout.turns();
                let size = |turn: &Vec<Range<usize>>| turn.iter().map(Range::len).sum::<usize>();
                assert!(turns.iter().rev().skip(1).all(|turn| size(turn) == TURN_PAGES));
            }
        }
    }

    #[test]
    fn neighbours_go_out_together_or_not() {
        let together = |layout| out(layout).windows(2).filter(|w| w[1] == w[0] + 1).count();
        assert!(together(Layout { share: 65, scattered: false }) > VICTIM_PAGES / 2);
        assert_eq!(together(Layout { share: 65, scattered: true }), 0);
    }

    #[test]
    fn pages_differ_and_are_mostly_zero() {
        let memory = Memory::new().unwrap();
        memory.fill(1).unwrap();
        // SAFETY: the mapping is that long, and not written to any more.
        let bytes = unsafe { std::slice::from_raw_parts(memory.0.at(), memory.0.bytes()) };
        let mut heads: Vec<u64> = Vec::new();
        for page in bytes.chunks(PAGE_BYTES) {
            heads.push(u64::from_ne_bytes(page[..8].try_into().unwrap()));
            assert!(page[RANDOM_BYTES..].iter().all(|&b| b == 0));
        }
        heads.sort_unstable();
        heads.dedup();
        assert_eq!(heads.len(), VICTIM_PAGES);
    }
}
