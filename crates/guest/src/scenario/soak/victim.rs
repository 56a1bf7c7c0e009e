// SPDX-License-Identifier: GPL-2.0-only
//! Processes that are killed, and how that is waited for.

use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use linux::PidFd;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid};

use super::Counts;
use crate::process::child::{self, Child};
use crate::process::victim::mrelease;
use crate::system::clock;

/// How long a victim may take to die until it counts as stuck. Debug kernels are slow.
pub(super) const DEATH_TIMEOUT: Duration = Duration::from_secs(60);

/// A kill by this process.
pub(super) struct Kill {
    pub(super) delay: Duration,
    /// Whether the kernel frees the memory at once.
    pub(super) expedited: bool,
}

/// A child with a process group of its own, to be killed.
pub(super) struct Victim {
    pid: Pid,
    pub(super) pidfd: PidFd,
}

impl Victim {
    /// Forks a child, which runs `life` and then sleeps until it is killed.
    pub(super) fn fork(life: impl FnOnce()) -> Result<Self> {
        // This process has one thread here: all others were joined.
        let child = Child::fork(|| {
            rustix::process::setpgid(None, None)?;
            life();
            child::sleep_for_ever()
        });
        let pid = child?.into_pid();
        Ok(Self { pid, pidfd: PidFd::open(pid.into())? })
    }

    /// Releases the victim's memory in one thread per delay, each of which retries until the victim is dying.
    /// Kills it, or leaves that to the OOM killer.
    pub(super) fn release(&self, delays: &[Duration], kill: Option<Kill>, counts: &mut Counts) -> Result<()> {
        // When the OOM killer kills is not known. A victim that this process has killed, and that still
        // cannot be released soon, shares its memory with a process that lives on.
        let (timeout, pause) = match kill {
            Some(_) => (Duration::from_millis(200), Duration::ZERO),
            None => (DEATH_TIMEOUT, Duration::from_millis(1)),
        };
        thread::scope(|scope| {
            let threads: Vec<_> = delays
                .iter()
                .map(|&delay| {
                    scope.spawn(move || {
                        thread::sleep(delay);
                        let began = Instant::now();
                        loop {
                            let done = mrelease(&self.pidfd)?;
                            if done.is_some() || began.elapsed() > timeout {
                                return linux::Result::Ok(done);
                            }
                            if pause.is_zero() { thread::yield_now() } else { thread::sleep(pause) }
                        }
                    })
                })
                .collect();
            if let Some(Kill { delay, expedited }) = kill {
                thread::sleep(delay);
                if expedited { self.pidfd.kill_expedited() } else { self.pidfd.send_signal(Signal::KILL) }?;
            }
            // Joined one by one: the scope may end before its threads are gone, and the next fork needs a
            // single-threaded process.
            for thread in threads {
                let done = thread.join().map_err(|_| anyhow!("a releasing thread died"))?;
                counts.add(done?);
            }
            Ok(())
        })
    }

    /// Waits for the end of the victim, and then of everything that it started.
    pub(super) fn end(self) -> Result<()> {
        let pid = self.pid;
        let dead = || waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        within(DEATH_TIMEOUT, || !matches!(dead(), Ok(None))).with_context(|| format!("victim {pid} does not die"))?;
        within(DEATH_TIMEOUT, || {
            // Processes that share the memory or were forked outlive the victim; PID 1 reaps them.
            let _ = kill_process_group(pid, Signal::KILL);
            test_kill_process_group(pid) == Err(Errno::SRCH)
        })
        .with_context(|| format!("process group {pid} does not die"))
    }
}

/// Polls until `done` returns true.
///
/// # Errors
/// When the time is up.
pub(super) fn within(limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let is_done = clock::within(limit, Duration::from_millis(1), || Ok(done()))?;
    ensure!(is_done, "not within {} s", limit.as_secs());
    Ok(())
}
