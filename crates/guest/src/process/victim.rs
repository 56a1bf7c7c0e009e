// SPDX-License-Identifier: GPL-2.0-only
//! A process to be killed, with a given amount of private anonymous memory in a given number of VMAs, all of
//! it resident.

use std::ops::Range;
use std::os::fd::AsFd as _;
use std::{fs, io, ptr, thread};

use anyhow::{Context as _, Result, anyhow, ensure};
use linux::pidfd::Release;
use linux::{PidFd, Process, Root};
use rustix::mm::{Advice, MapFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use rustix::thread::CpuSet;

use crate::memory::mapping::Mapping;
use crate::memory::{PAGE_BYTES, vmas_in};
use crate::process::child::{self, Child, Reports};
use crate::system::counters::cpu_time;
use crate::system::{clock, sched};

/// How a victim's memory is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Pages of all VMAs together, spread evenly.
    pub pages: usize,
    /// VMAs, with a hole of one page after each so that they are not merged.
    pub vmas: usize,
}

impl Layout {
    /// Bytes of memory, without the holes.
    pub fn bytes(self) -> usize {
        self.pages * PAGE_BYTES
    }

    /// Bytes of the address range that contains all VMAs and the holes after them.
    fn span(self) -> usize {
        (self.pages + self.vmas) * PAGE_BYTES
    }

    /// The numbers of the pages of VMA `i`, which run through all VMAs.
    fn pages_of(self, i: usize) -> Range<usize> {
        i * self.pages / self.vmas..(i + 1) * self.pages / self.vmas
    }

    /// The offsets of pages of VMA `i` in the span, in bytes.
    fn offsets(i: usize, pages: Range<usize>) -> Range<usize> {
        (pages.start + i) * PAGE_BYTES..(pages.end + i) * PAGE_BYTES
    }
}

/// A child that keeps its memory and sleeps. If it has not been reaped, it is killed and reaped when this is
/// dropped.
pub struct Victim {
    child: Child,
    pidfd: PidFd,
}

impl Victim {
    /// Forks a victim, and waits until all of its memory is resident. It allocates the memory on all of
    /// `cpus` and stays on the last of them. The caller must be single-threaded.
    ///
    /// The victim is SCHED_BATCH: it competes like any other task once it runs, but when a kill wakes it up
    /// it does not preempt a reaper between the reaper's kill and its process_mrelease(2), which would then
    /// come too late.
    ///
    /// # Errors
    /// When fork(2) fails, the victim does not get its memory, or its layout in /proc is another one (VMAs
    /// merged, pages missing).
    pub fn spawn(layout: Layout, cpus: Range<usize>) -> Result<Self> {
        Self::spawn_to(layout, cpus, || child::sleep_for_ever())
    }

    /// Like [`Victim::spawn`], but once its memory is resident the child runs `then` instead of sleeping, and
    /// exits.
    ///
    /// # Errors
    /// Those of [`Victim::spawn`].
    pub fn spawn_to(layout: Layout, cpus: Range<usize>, then: impl FnOnce()) -> Result<Self> {
        let prepare = |reports: &mut Reports| reports.send(allocate(layout, cpus)? as u64);
        let (child, mut reports) = Child::fork_reporting(prepare, then)?;
        let pidfd = PidFd::open(child.pid().into())?;
        let victim = Self { child, pidfd };
        let base = usize::try_from(reports.receive().context("the victim")?)?;
        victim.verify(layout, base)?;
        Ok(victim)
    }

    /// The pidfd, for kills and process_mrelease(2).
    pub fn pidfd(&self) -> &PidFd {
        &self.pidfd
    }

    /// The process ID.
    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    /// Sends SIGKILL.
    ///
    /// # Errors
    /// Those of pidfd_send_signal(2).
    pub fn kill(&self) -> linux::Result<()> {
        self.pidfd.send_signal(Signal::KILL)
    }

    /// Releases its memory in the caller's context ([`mrelease`]).
    ///
    /// # Errors
    /// Those of process_mrelease(2).
    pub fn mrelease(&self) -> Result<Option<Released>> {
        Ok(mrelease(&self.pidfd)?)
    }

    /// Gives the victim the scheduling of most tasks: SCHED_OTHER, on any of the first `cpus` CPUs.
    ///
    /// # Errors
    /// Those of sched_setscheduler(2) and sched_setaffinity(2).
    pub fn set_free(&self, cpus: usize) -> Result<()> {
        linux::sched::set_policy(self.pid().as_raw_pid(), libc::SCHED_OTHER, 0).context("SCHED_OTHER")?;
        let mut all = CpuSet::new();
        (0..cpus).for_each(|cpu| all.set(cpu));
        rustix::thread::sched_setaffinity(Some(self.pid()), &all).context("let a victim run on all CPUs")
    }

    /// Stops the victim, and waits until it is stopped.
    ///
    /// # Errors
    /// Those of pidfd_send_signal(2) and waitid(2).
    pub fn stop(&self) -> Result<()> {
        self.pidfd.send_signal(Signal::STOP)?;
        waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)?;
        Ok(())
    }

    /// Waits until the victim is a zombie, whose memory has been freed, and does not reap it.
    ///
    /// # Errors
    /// Those of waitid(2).
    pub fn wait_until_dead(&self) -> io::Result<()> {
        waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        Ok(())
    }

    /// Returns its CPU time in nanoseconds. It is exact while the victim does not run: asleep or a zombie.
    ///
    /// # Errors
    /// When the kernel does not account for it (CONFIG_SCHED_INFO).
    pub fn cpu_time(&self) -> Result<u64> {
        let path = format!("/proc/{}/schedstat", self.pid());
        let ns = cpu_time(&fs::read_to_string(&path).with_context(|| path.clone())?);
        ns.filter(|&ns| ns > 0).with_context(|| format!("{path}: no CPU time (CONFIG_SCHED_INFO)"))
    }

    /// Waits for the victim's end and reaps it.
    ///
    /// # Errors
    /// Those of waitid(2).
    pub fn reap(self) -> Result<()> {
        self.child.wait().map(drop)
    }

    /// Checks in /proc that the victim has its layout, from the address `base` on.
    fn verify(&self, layout: Layout, base: usize) -> Result<()> {
        let path = format!("/proc/{}/maps", self.pid());
        let (vmas, bytes) = vmas_in(&path, base..base + layout.span())?;
        ensure!(
            vmas == layout.vmas && bytes == layout.bytes(),
            "{path}: {vmas} VMAs with {bytes} bytes, not {} with {}",
            layout.vmas,
            layout.bytes()
        );
        let bytes = Process::open(&Root::system(), self.pid().into())?.status()?.rss_anon;
        // The counter may lag behind by a batch per CPU.
        ensure!(
            bytes >= layout.bytes() as u64 / 100 * 99,
            "only {} KiB of {} KiB of the victim are resident",
            bytes >> 10,
            layout.bytes() >> 10
        );
        Ok(())
    }
}

/// Allocates the memory; returns its address.
fn allocate(layout: Layout, cpus: Range<usize>) -> Result<usize> {
    rustix::thread::disable_transparent_huge_pages(true).context("prctl THP")?;
    let memory = Mapping::anonymous(layout.span(), MapFlags::PRIVATE | MapFlags::NORESERVE).context("mmap")?;
    let base = memory.leak().expose_provenance();
    for i in 0..layout.vmas {
        let hole = base + Layout::offsets(i, layout.pages_of(i)).end;
        // SAFETY: the page after each VMA is inside the mapping made above (`span` counts one per VMA), and
        // no reference points into that mapping.
        unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(hole), PAGE_BYTES) }.context("munmap a hole")?;
    }
    // Most of a round is spent here, so all CPUs take part.
    let share = layout.pages.div_ceil(cpus.len());
    thread::scope(|scope| {
        let workers: Vec<_> = cpus
            .clone()
            .enumerate()
            .map(|(i, cpu)| {
                let pages = i * share..layout.pages.min((i + 1) * share);
                scope.spawn(move || sched::pin(cpu).and_then(|()| populate(base, layout, pages)))
            })
            .collect();
        // Joined one by one: the scope may end before its threads are gone.
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| anyhow!("a thread died"))?)
    })?;
    sched::pin(cpus.end - 1)?;
    sched::set_policy(libc::SCHED_BATCH, 0).context("SCHED_BATCH")?;
    Ok(base)
}

/// Has the kernel allocate some of the pages.
fn populate(base: usize, layout: Layout, pages: Range<usize>) -> Result<()> {
    for i in 0..layout.vmas {
        let all = layout.pages_of(i);
        let (start, end) = (all.start.max(pages.start), all.end.min(pages.end));
        if start >= end {
            continue;
        }
        let range = Layout::offsets(i, start..end);
        let at = ptr::with_exposed_provenance_mut(base + range.start);
        // SAFETY: the range is in a mapping that lives as long as the process; populating does not change
        // contents.
        unsafe { rustix::mm::madvise(at, range.len(), Advice::LinuxPopulateWrite) }
            .context("madvise(MADV_POPULATE_WRITE), which Linux has since 5.14")?;
    }
    Ok(())
}

/// The outcome of process_mrelease(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The victim had freed its memory before the call: there was nothing to release.
    pub too_late: bool,
    /// CPU time of the calls in nanoseconds.
    pub cpu: u64,
    /// How often the call returned EAGAIN.
    pub again: u32,
}

/// Releases a dying process's memory in the caller's context, and repeats that on EAGAIN. Returns `None` if
/// the process is not dying.
///
/// # Errors
/// Those of process_mrelease(2), except for "not dying", "too late" and "try again".
pub fn mrelease(pidfd: &PidFd) -> linux::Result<Option<Released>> {
    let started = clock::thread_cpu();
    let mut again = 0;
    let too_late = loop {
        match pidfd.release_memory()? {
            Release::Done => break false,
            Release::Again => again += 1,
            Release::Gone => break true,
            Release::NotDying => return Ok(None),
        }
    };
    Ok(Some(Released { too_late, cpu: clock::thread_cpu() - started, again }))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};

    use linux::pidfd::expedite_supported;

    use super::*;

    #[test]
    fn a_layout_spreads_all_pages_and_leaves_holes() {
        for (pages, vmas) in [(131_072, 100), (131_072, 1000), (131_072, 1), (7, 3)] {
            let layout = Layout { pages, vmas };
            let all: Vec<_> = (0..vmas).map(|i| Layout::offsets(i, layout.pages_of(i))).collect();
            assert_eq!(all[0].start, 0);
            assert_eq!(all.iter().map(Range::len).sum::<usize>(), layout.bytes());
            assert!(all.windows(2).all(|w| w[0].end + PAGE_BYTES == w[1].start));
            assert_eq!(all[vmas - 1].end + PAGE_BYTES, layout.span());
        }
    }

    #[test]
    fn a_victim_has_its_layout_and_dies() {
        let victim = Victim::spawn(Layout { pages: 500, vmas: 7 }, 0..1).unwrap();
        assert!(victim.cpu_time().unwrap() > 0);
        victim.kill().unwrap();
        victim.wait_until_dead().unwrap();
        victim.reap().unwrap();
    }

    #[test]
    fn a_victim_may_end_by_itself() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let read = || drop(File::from(reader).read(&mut [0]));
        let victim = Victim::spawn_to(Layout { pages: 10, vmas: 1 }, 0..1, read).unwrap();
        File::from(writer).write_all(b"x").unwrap();
        victim.wait_until_dead().unwrap();
        victim.reap().unwrap();
    }

    #[test]
    fn a_kill_is_expedited_or_not_sent() {
        let victim = Victim::spawn(Layout { pages: 10, vmas: 1 }, 0..1).unwrap();
        match victim.pidfd.kill_expedited() {
            Ok(()) => assert!(expedite_supported()),
            Err(e) => {
                assert_eq!((e.raw_os_error(), expedite_supported()), (Some(libc::EINVAL), false));
                // Only a living process can be stopped.
                victim.stop().unwrap();
                victim.kill().unwrap();
            }
        }
        victim.wait_until_dead().unwrap();
        victim.reap().unwrap();
    }
}
