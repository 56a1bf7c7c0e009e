// SPDX-License-Identifier: GPL-2.0-only
//! One victim: what is known of it before, and what happened to it.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use linux::PidFd;
use linux::pidfd::{Release, Signal};

use super::method::{Method, send_sigkill};

/// The pause after process_mrelease(2) answered EAGAIN, doubled each time from the first to the second.
pub(crate) const MIN_RETRY_PAUSE: Duration = Duration::from_micros(50);
const MAX_RETRY_PAUSE: Duration = Duration::from_millis(2);
/// How long a spinner calls process_mrelease(2) before the signal is sent: it uses a whole CPU meanwhile.
const MAX_SPIN: Duration = Duration::from_millis(50);
/// Stands for the time of what has not happened.
const NOT_YET: u64 = u64::MAX;

/// A process that is to be killed.
#[derive(Debug)]
pub struct Victim {
    /// Signals go through this only.
    pub pidfd: PidFd,
    /// How much memory is expected to come back, in bytes.
    pub bytes: u64,
    /// The size of its address space in bytes: the same for victims that share one.
    pub vm_size: u64,
    /// It is dumping its core: then EINVAL from process_mrelease(2) does not mean that another process shares
    /// its memory.
    pub core_dumping: bool,
}

/// What became of one victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Dead of SIGKILL, memory back.
    Killed,
    /// Ended by itself after the first signal.
    Exited,
    /// Was gone before any signal reached it.
    Gone,
    /// Dead of SIGKILL, but another process uses the same memory and lives.
    Shared,
    /// Sent SIGKILL, and not gone when the wait ended.
    Dying,
    /// No SIGKILL was sent: the wait after the first signal was interrupted.
    Spared,
    /// The kernel refused the signal with this error number.
    Refused(i32),
}

/// What was measured of one victim. Times count from the SIGKILL; where none was sent, from the first
/// signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub fate: Fate,
    /// How its memory came back. [`Method::Plain`] where process_mrelease came too late.
    pub method: Method,
    /// The signal from which times count, after that to the first victim.
    pub started: Duration,
    /// When its private memory was back: when process_mrelease(2) had freed it, or when the
    /// process had exited, whichever was first.
    pub back: Option<Duration>,
    /// When the process had exited.
    pub exited: Option<Duration>,
    /// Calls of process_mrelease(2) after the kill.
    pub calls: u32,
    /// How many of them answered EAGAIN.
    pub again: u32,
    /// All of them came too late: the victim was past exit_mm(), and freed its memory itself.
    pub race_lost: bool,
}

/// A victim and what happened to it, written by several threads at once.
pub(crate) struct TrackedVictim {
    pub(crate) pidfd: PidFd,
    core_dumping: bool,
    /// Another victim may share its memory.
    pub(super) may_share_memory: bool,
    /// Where the victim was in the caller's list.
    pub(super) position: usize,
    first_signal_ns: AtomicU64,
    sigkill_ns: AtomicU64,
    freed_ns: AtomicU64,
    exited_ns: AtomicU64,
    expedited: AtomicBool,
    refused_errno: AtomicI32,
    mrelease_calls: AtomicU32,
    eagain_calls: AtomicU32,
    mrelease_too_late: AtomicBool,
    memory_is_shared: AtomicBool,
}

/// What times count from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch(Instant);

impl Epoch {
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds since the epoch.
    pub(super) fn elapsed_ns(self) -> u64 {
        // 2^64 ns are 584 years.
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(NOT_YET)
    }
}

impl TrackedVictim {
    pub(crate) fn new(victim: Victim, position: usize, may_share_memory: bool) -> Self {
        Self {
            pidfd: victim.pidfd,
            core_dumping: victim.core_dumping,
            may_share_memory,
            position,
            first_signal_ns: AtomicU64::new(NOT_YET),
            sigkill_ns: AtomicU64::new(NOT_YET),
            freed_ns: AtomicU64::new(NOT_YET),
            exited_ns: AtomicU64::new(NOT_YET),
            expedited: AtomicBool::new(false),
            refused_errno: AtomicI32::new(0),
            mrelease_calls: AtomicU32::new(0),
            eagain_calls: AtomicU32::new(0),
            mrelease_too_late: AtomicBool::new(false),
            memory_is_shared: AtomicBool::new(false),
        }
    }

    /// Sends a signal that asks to end.
    pub(super) fn send_first_signal(&self, epoch: Epoch, signal: Signal) {
        let at_ns = epoch.elapsed_ns();
        match self.pidfd.send_signal(signal) {
            Ok(()) => record_first(&self.first_signal_ns, at_ns),
            Err(e) => self.record_refusal(&e),
        }
    }

    /// Sends SIGKILL.
    pub(crate) fn send_sigkill(&self, epoch: Epoch, method: Method) {
        let at_ns = epoch.elapsed_ns();
        match send_sigkill(&self.pidfd, method) {
            Ok(expedited) => self.record_sigkill(at_ns, expedited),
            Err(e) => self.record_refusal(&e),
        }
    }

    /// Records that it was sent SIGKILL; `is_expedited` says whether the kernel frees its memory.
    pub(super) fn record_sigkill(&self, at_ns: u64, is_expedited: bool) {
        self.expedited.store(is_expedited, Ordering::Release);
        record_first(&self.sigkill_ns, at_ns);
    }

    /// Calls process_mrelease(2) until it has freed the memory or can no longer do so. `sharer_dies_too` says
    /// whether another process that shares the memory is about to be killed as well; `abandoned` ends the
    /// attempts.
    pub(crate) fn free_memory(&self, epoch: Epoch, sharer_dies_too: impl Fn() -> bool, abandoned: impl Fn() -> bool) {
        let began = Instant::now();
        let mut pause = MIN_RETRY_PAUSE;
        // The last call, made after the kill, found that a process that lives uses this memory.
        let mut in_use = false;
        loop {
            let killed = self.was_killed();
            // Before the call: a process that is killed during it may still have been alive for it.
            let sharer_dies_too = sharer_dies_too();
            let answer = self.pidfd.release_memory();
            if killed {
                self.mrelease_calls.fetch_add(1, Ordering::Relaxed);
            }
            match answer {
                Ok(Release::Done) => {
                    record_first(&self.freed_ns, epoch.elapsed_ns());
                    return;
                }
                Ok(Release::Gone) => {
                    let finding = if in_use { &self.memory_is_shared } else { &self.mrelease_too_late };
                    finding.store(true, Ordering::Release);
                    return;
                }
                Ok(Release::Again) => {
                    self.eagain_calls.fetch_add(1, Ordering::Relaxed);
                    in_use = false;
                }
                Ok(Release::NotDying) if !killed => {
                    if self.refused_errno.load(Ordering::Acquire) != 0 || began.elapsed() > MAX_SPIN {
                        return;
                    }
                    // No pause: this is the race.
                    continue;
                }
                Ok(Release::NotDying) => in_use = !self.core_dumping && !sharer_dies_too,
                Err(_) => return,
            }
            if abandoned() {
                return;
            }
            thread::sleep(pause);
            pause = (2 * pause).min(MAX_RETRY_PAUSE);
        }
    }

    fn record_refusal(&self, error: &linux::Error) {
        let errno = if error.is_gone() { libc::ESRCH } else { error.raw_os_error().unwrap_or(libc::EIO) };
        self.refused_errno.store(errno, Ordering::Release);
    }

    /// It has not exited, and the kernel has not refused the signal.
    pub(crate) fn is_pending(&self) -> bool {
        recorded(&self.exited_ns).is_none() && (self.was_killed() || self.refused_errno.load(Ordering::Acquire) == 0)
    }

    /// It was sent SIGKILL.
    pub(crate) fn was_killed(&self) -> bool {
        recorded(&self.sigkill_ns).is_some()
    }

    /// The time since it was sent SIGKILL; none before.
    pub(crate) fn age(&self, epoch: Epoch) -> Duration {
        let sent = recorded(&self.sigkill_ns);
        sent.map_or(Duration::ZERO, |sent| Duration::from_nanos(epoch.elapsed_ns().saturating_sub(sent)))
    }

    /// Checks whether it has exited, and records the time when it first sees that.
    pub(crate) fn check_exited(&self, epoch: Epoch) -> bool {
        if recorded(&self.exited_ns).is_none() && self.pidfd.has_exited().unwrap_or(false) {
            record_first(&self.exited_ns, epoch.elapsed_ns());
        }
        recorded(&self.exited_ns).is_some()
    }

    /// Records that it was seen to have exited.
    pub(super) fn record_exit(&self, at_ns: u64) {
        record_first(&self.exited_ns, at_ns);
    }

    /// It is pending and has not been sent SIGKILL.
    pub(crate) fn awaits_sigkill(&self) -> bool {
        self.is_pending() && !self.was_killed()
    }

    /// When it was sent the signal from which its times count, in nanoseconds after the epoch.
    pub(super) fn start_ns(&self) -> Option<u64> {
        recorded(&self.sigkill_ns).or(recorded(&self.first_signal_ns))
    }

    /// What became of it; `origin_ns` is when the first victim was signalled.
    pub(crate) fn outcome(&self, origin_ns: u64) -> Outcome {
        let (first, sent) = (recorded(&self.first_signal_ns), recorded(&self.sigkill_ns));
        let (freed, exited) = (recorded(&self.freed_ns), recorded(&self.exited_ns));
        let start = self.start_ns();
        let since = |end: u64| Duration::from_nanos(end.saturating_sub(start.unwrap_or(end)));
        let shared = freed.is_none() && self.memory_is_shared.load(Ordering::Acquire);
        let refused = self.refused_errno.load(Ordering::Acquire);
        let fate = match (first, sent, exited) {
            (_, Some(_), Some(_)) if shared => Fate::Shared,
            (_, Some(_), Some(_)) => Fate::Killed,
            (_, Some(_), None) => Fate::Dying,
            (Some(_), None, _) if exited.is_some() || refused == libc::ESRCH => Fate::Exited,
            (None, None, _) if exited.is_some() || refused == libc::ESRCH => Fate::Gone,
            (_, None, _) if refused != 0 => Fate::Refused(refused),
            (_, None, _) => Fate::Spared,
        };
        let back = match fate {
            Fate::Killed | Fate::Dying | Fate::Exited => freed.into_iter().chain(exited).min(),
            _ => None,
        };
        let expedited = self.expedited.load(Ordering::Acquire);
        let method = if expedited {
            Method::Expedite
        } else if freed.is_some() && freed == back {
            Method::Mrelease
        } else {
            Method::Plain
        };
        Outcome {
            fate,
            method,
            started: Duration::from_nanos(start.unwrap_or(origin_ns).saturating_sub(origin_ns)),
            back: back.map(since),
            exited: exited.map(since),
            calls: self.mrelease_calls.load(Ordering::Relaxed),
            again: self.eagain_calls.load(Ordering::Relaxed),
            // The kernel's workers are never too late.
            race_lost: !expedited && freed.is_none() && !shared && self.mrelease_too_late.load(Ordering::Acquire),
        }
    }
}

/// When something happened, in nanoseconds after the epoch; `None` if it has not.
fn recorded(time_ns: &AtomicU64) -> Option<u64> {
    Some(time_ns.load(Ordering::Acquire)).filter(|at| *at != NOT_YET)
}

/// Records when something happened; the earliest time counts, whatever the order of the calls.
fn record_first(time_ns: &AtomicU64, at_ns: u64) {
    time_ns.fetch_min(at_ns, Ordering::AcqRel);
}

#[cfg(test)]
mod tests;
