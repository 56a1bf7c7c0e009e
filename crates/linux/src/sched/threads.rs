// SPDX-License-Identifier: GPL-2.0-only
//! How all threads of another process are scheduled.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use super::{policy, set_policy};
use crate::Pid;
use crate::dir::{Dir, Failure};
use crate::scan::Scan;

/// The most threads of a process that are changed.
const MAX_THREADS: usize = 1024;

/// A scheduling policy, with the lowest priority where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `SCHED_OTHER`: as most threads.
    Other,
    /// `SCHED_IDLE`: only when no other thread wants to run. The niceness is kept for when it is `Other`
    /// again.
    Idle,
    /// `SCHED_RR` at priority 1: before all threads that are not real-time.
    RoundRobin,
}

impl Policy {
    fn number(self) -> i32 {
        match self {
            Self::Other => libc::SCHED_OTHER,
            Self::Idle => libc::SCHED_IDLE,
            Self::RoundRobin => libc::SCHED_RR,
        }
    }

    /// Sets this policy for a thread, or for the calling one if `tid` is 0.
    ///
    /// # Errors
    /// As [`set_policy`].
    pub fn apply(self, tid: i32) -> Result<(), rustix::io::Errno> {
        self.apply_with(tid, 0)
    }

    /// `flags` are those of sched_setscheduler(2).
    fn apply_with(self, tid: i32, flags: i32) -> Result<(), rustix::io::Errno> {
        set_policy(tid, self.number() | flags, i32::from(self == Self::RoundRobin))
    }
}

/// The threads of a process: of the one that had this ID when they were opened, even if another has it now.
#[derive(Debug)]
pub struct Threads(Dir);

impl Threads {
    /// Opens the list of a process's threads.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn open(scan: &Scan, pid: Pid) -> Result<Self, Failure> {
        scan.tasks(pid).map(Self)
    }

    /// Sets the policy of all threads. Needs CAP_SYS_NICE; threads for which the kernel refuses it keep theirs.
    pub fn set_policy(&self, policy: Policy) {
        let _ = self.for_each(|tid, name| {
            let Some((before, flags)) = current(tid) else { return };
            if policy.apply_with(tid.get(), flags).is_err() {
                return;
            }
            // A thread that has exited meanwhile may have left its ID to another one.
            if !self.0.has(name) {
                let before = if before == libc::SCHED_IDLE { Policy::Idle } else { Policy::Other };
                let _ = before.apply_with(tid.get(), flags);
            }
        });
    }

    fn for_each(&self, mut each: impl FnMut(Pid, &CStr)) -> Result<(), Failure> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut left = MAX_THREADS;
        let mut too_many = false;
        self.0.for_each_entry(&mut buffer, |name, _| {
            let Some(tid) = name.to_str().ok().and_then(|name| name.parse::<Pid>().ok()) else { return true };
            match left.checked_sub(1) {
                Some(fewer) => left = fewer,
                None => too_many = true,
            }
            if !too_many {
                each(tid, name);
            }
            !too_many
        })?;
        if too_many { Err(Failure::Malformed) } else { Ok(()) }
    }
}

/// The policy of a thread, and its flags.
fn current(tid: Pid) -> Option<(i32, i32)> {
    let policy = policy(tid.get()).ok()?;
    let flags = policy & libc::SCHED_RESET_ON_FORK;
    Some((policy - flags, flags))
}
