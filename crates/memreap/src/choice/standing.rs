// SPDX-License-Identifier: GPL-2.0-only
//! What is known of one process, whether or not a choice considers it.

use std::time::Instant;

use linux::process::Comm;
use linux::scan::Failure;
use linux::{Pid, PidFd};

use super::chooser::Chooser;
use super::examine::Detail;
use super::table::Counters;
use crate::policy::{Policy, Verdict};

/// How a process stands when victims are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// Its name.
    pub comm: Comm,
    /// Its real user.
    pub uid: u32,
    /// It has memory: not so for kernel threads and zombies. Without it the policy was not asked.
    pub has_memory: bool,
    /// It was killed a moment ago, and its memory is expected to come back.
    pub is_dying: bool,
    /// The caller may send it signals.
    pub may_signal: bool,
    /// What the policy says.
    pub verdict: Verdict,
    /// What comes back when it dies, in bytes: with what it shares with others, and without what it maps.
    pub estimate: u64,
}

impl Chooser {
    /// Looks at a process as a choice does.
    ///
    /// # Errors
    /// When it is gone, or cannot be read.
    pub fn standing(&mut self, policy: &Policy, pid: Pid) -> Result<Standing, Failure> {
        // Before anything is read: so that it is about one process.
        let pidfd = PidFd::open(pid).map_err(|_| Failure::Gone)?;
        let may_signal = pidfd.check_permission().is_ok();
        let table = &self.population.table;
        let known = table.find(pid).and_then(|index| table.entries()[index].reading);
        let read = self.examiner.examine(pid, known.as_ref(), policy, &Counters::UNKNOWN, Detail::Victim)?;
        if pidfd.pid().ok().flatten() != Some(pid) {
            return Err(Failure::Gone);
        }
        Ok(Standing {
            comm: read.comm,
            uid: read.uid,
            has_memory: read.has_memory,
            is_dying: read.dying_until.is_some_and(|until| Instant::now() < until),
            may_signal,
            verdict: read.verdict,
            estimate: read.estimate(),
        })
    }
}
