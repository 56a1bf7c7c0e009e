// SPDX-License-Identifier: GPL-2.0-only
//! A process to be killed, with a given amount of private anonymous memory in a given number of VMAs, all of
//! it resident.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::{fs, ptr, thread};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::mm::{Advice, MapFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};
use rustix::thread::CpuSet;

use crate::memory::mapping::Mapping;
use crate::memory::{PAGE_BYTES, vmas_in};
use crate::process::child;
use crate::system::counters::{cpu_time, value};
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
    pid: Pid,
    pidfd: OwnedFd,
    reaped: bool,
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
        let (reader, writer) = rustix::pipe::pipe().context("pipe")?;
        // SAFETY: the process is single-threaded, so the child may use everything the parent
        // may; it never returns from here.
        let pid = match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()).context("fork a victim"),
            0 => {
                drop(reader);
                live(layout, cpus, File::from(writer), then)
            }
            pid => Pid::from_raw(pid).context("fork returned no PID")?,
        };
        drop(writer);
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(e) => {
                // There is no Victim yet whose drop would do this.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
                return Err(e).context("pidfd_open");
            }
        };
        let victim = Self { pid, pidfd, reaped: false };
        let base = read_base(File::from(reader))?;
        victim.verify(layout, base)?;
        Ok(victim)
    }

    /// The pidfd, for kills and process_mrelease(2).
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The process ID.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends SIGKILL.
    ///
    /// # Errors
    /// Those of pidfd_send_signal(2).
    pub fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.pidfd, Signal::KILL)?)
    }

    /// Sends SIGKILL, and has the kernel free the memory at once. A kernel that cannot do that
    /// ([`expedites`]) sends nothing.
    ///
    /// # Errors
    /// Those of pidfd_send_signal(2).
    pub fn kill_expedited(&self) -> io::Result<()> {
        kill_expedited(self.pidfd())
    }

    /// Releases its memory in the caller's context ([`mrelease`]).
    ///
    /// # Errors
    /// Those of process_mrelease(2).
    pub fn mrelease(&self) -> Result<Option<Released>> {
        mrelease(self.pidfd()).context("process_mrelease")
    }

    /// Gives the victim the scheduling of most tasks: SCHED_OTHER, on any of the first `cpus` CPUs.
    ///
    /// # Errors
    /// Those of sched_setscheduler(2) and sched_setaffinity(2).
    pub fn set_free(&self, cpus: usize) -> Result<()> {
        sched::set_policy_of(self.pid.as_raw_pid(), libc::SCHED_OTHER, 0).context("SCHED_OTHER")?;
        let mut all = CpuSet::new();
        (0..cpus).for_each(|cpu| all.set(cpu));
        rustix::thread::sched_setaffinity(Some(self.pid), &all).context("let a victim run on all CPUs")
    }

    /// Stops the victim, and waits until it is stopped.
    ///
    /// # Errors
    /// Those of pidfd_send_signal(2) and waitid(2).
    pub fn stop(&self) -> io::Result<()> {
        pidfd_send_signal(&self.pidfd, Signal::STOP)?;
        waitid(WaitId::PidFd(self.pidfd()), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)?;
        Ok(())
    }

    /// Waits until the victim is a zombie, whose memory has been freed, and does not reap it.
    ///
    /// # Errors
    /// Those of waitid(2).
    pub fn wait_until_dead(&self) -> io::Result<()> {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::PidFd(self.pidfd()), how)?;
        Ok(())
    }

    /// Returns its CPU time in nanoseconds. It is exact while the victim does not run: asleep or a zombie.
    ///
    /// # Errors
    /// When the kernel does not account for it (CONFIG_SCHED_INFO).
    pub fn cpu_time(&self) -> Result<u64> {
        let path = format!("/proc/{}/schedstat", self.pid);
        let ns = cpu_time(&fs::read_to_string(&path).with_context(|| path.clone())?);
        ns.filter(|&ns| ns > 0).with_context(|| format!("{path}: no CPU time (CONFIG_SCHED_INFO)"))
    }

    /// Waits for the victim's end and reaps it.
    ///
    /// # Errors
    /// Those of waitid(2).
    pub fn reap(mut self) -> io::Result<()> {
        waitid(WaitId::PidFd(self.pidfd()), WaitIdOptions::EXITED)?;
        self.reaped = true;
        Ok(())
    }

    /// Checks in /proc that the victim has its layout, from the address `base` on.
    fn verify(&self, layout: Layout, base: usize) -> Result<()> {
        let path = format!("/proc/{}/maps", self.pid);
        let (vmas, bytes) = vmas_in(&path, base..base + layout.span())?;
        ensure!(
            vmas == layout.vmas && bytes == layout.bytes(),
            "{path}: {vmas} VMAs with {bytes} bytes, not {} with {}",
            layout.vmas,
            layout.bytes()
        );
        let path = format!("/proc/{}/status", self.pid);
        let status = fs::read_to_string(&path).with_context(|| path.clone())?;
        let kib = value(&status, "RssAnon:").with_context(|| format!("{path}: no RssAnon"))?;
        // The counter may lag behind by a batch per CPU.
        ensure!(
            (kib << 10) >= layout.bytes() as u64 / 100 * 99,
            "{path}: only {kib} KiB of {} KiB are resident",
            layout.bytes() >> 10
        );
        Ok(())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        if !self.reaped {
            // A failure cannot be handled; PID 1 reaps what is left.
            let _ = self.kill();
            let _ = waitid(WaitId::PidFd(self.pidfd()), WaitIdOptions::EXITED);
        }
    }
}

/// Reads the victim's message: the address of its memory, or an error.
fn read_base(mut pipe: File) -> Result<usize> {
    let mut message = Vec::new();
    // Up to end of file: the child closes the pipe when it is ready, or when it dies.
    pipe.read_to_end(&mut message).context("read from the victim")?;
    match message.split_first() {
        Some((b'b', base)) => {
            let base = base.try_into().context("the victim sent only a part of its address")?;
            Ok(usize::from_ne_bytes(base))
        }
        Some((b'e', why)) => bail!("the victim: {}", String::from_utf8_lossy(why)),
        _ => bail!("the victim died before its memory was resident (is the guest large enough?)"),
    }
}

/// What the child does.
fn live(layout: Layout, cpus: Range<usize>, mut pipe: File, then: impl FnOnce()) -> ! {
    let message = match allocate(layout, cpus) {
        Ok(base) => [b"b".as_slice(), &base.to_ne_bytes()].concat(),
        Err(e) => [b"e".as_slice(), format!("{e:#}").as_bytes()].concat(),
    };
    let failed = message[0] == b'e' || pipe.write_all(&message).is_err();
    drop(pipe);
    if !failed {
        then();
    }
    // SAFETY: _exit takes no memory and ends the process without the parent's handlers.
    unsafe { libc::_exit(failed.into()) }
}

/// Allocates the memory; returns its address.
fn allocate(layout: Layout, cpus: Range<usize>) -> Result<usize> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("prctl")?;
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
pub fn mrelease(pidfd: BorrowedFd<'_>) -> io::Result<Option<Released>> {
    let started = clock::thread_cpu();
    let mut again = 0;
    let too_late = loop {
        // SAFETY: takes a descriptor and flags, no memory.
        let ret = unsafe { libc::syscall(libc::SYS_process_mrelease, pidfd.as_raw_fd(), 0) };
        if ret == 0 {
            break false;
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN) => again += 1,
            Some(libc::ESRCH) => break true,
            Some(libc::EINVAL) => return Ok(None),
            _ => return Err(error),
        }
    };
    Ok(Some(Released { too_late, cpu: clock::thread_cpu() - started, again }))
}

/// The highest bit of the flags of pidfd_send_signal(2), which the topic `expedite` adds.
const PIDFD_SIGNAL_EXPEDITE: libc::c_uint = 1 << 31;

/// Whether the kernel supports a kill that frees the victim's memory at once.
pub fn expedites() -> bool {
    // If the flag is known, the error is that there is no such descriptor.
    send_expedited(-1).is_err_and(|e| e.raw_os_error() == Some(libc::EBADF))
}

/// Sends SIGKILL to the process of a pidfd, and has the kernel free its memory at once.
///
/// # Errors
/// Those of pidfd_send_signal(2): EINVAL in a kernel without [`expedites`], which sends nothing.
pub fn kill_expedited(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    send_expedited(pidfd.as_raw_fd())
}

fn send_expedited(pidfd: RawFd) -> io::Result<()> {
    let no_info = ptr::null::<libc::siginfo_t>();
    // SAFETY: takes a descriptor, numbers, and a null pointer where it may.
    let ret =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, libc::SIGKILL, no_info, PIDFD_SIGNAL_EXPEDITE) };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
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
        match victim.kill_expedited() {
            Ok(()) => assert!(expedites()),
            Err(e) => {
                assert_eq!((e.raw_os_error(), expedites()), (Some(libc::EINVAL), false));
                // Only a living process can be stopped.
                victim.stop().unwrap();
                victim.kill().unwrap();
            }
        }
        victim.wait_until_dead().unwrap();
        victim.reap().unwrap();
    }
}
