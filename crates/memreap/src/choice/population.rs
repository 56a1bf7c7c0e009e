// SPDX-License-Identifier: GPL-2.0-only
//! Keeps the table of processes complete: finds new ones, removes those that are gone, and reads them again.

use std::time::Instant;

use linux::Pid;
use linux::scan::Failure;

use super::examine::{Detail, Examiner};
use super::table::{Counters, Table};
use crate::policy::Policy;

/// So many IDs are tried one by one for new processes; when there are more, all are listed.
const MAX_TRIED_IDS: u64 = 512;
/// IDs below this are not used again after a wrap-around (`RESERVED_PIDS` in the kernel).
const RESERVED_IDS: u64 = 300;

/// How far the kernel had come with IDs and forks at some time.
#[derive(Clone, Copy)]
struct ForkMark {
    last_pid: u64,
    forks: u64,
}

/// All processes, as far as they are known.
pub(super) struct Population {
    pub(super) table: Table,
    /// At the last two searches for new processes.
    marks: Option<[ForkMark; 2]>,
    /// The index of the process that is read next by [`Population::catch_up`].
    cursor: usize,
}

impl Population {
    pub(super) fn new(max_processes: usize) -> Self {
        Self { table: Table::new(max_processes), marks: None, cursor: 0 }
    }

    /// Begins a refresh or a choice: removes what is gone, finds what is new. Returns the system's counters.
    pub(super) fn begin_round(&mut self, examiner: &mut Examiner) -> Counters {
        self.table.round = self.table.round.wrapping_add(1);
        examiner.forget_preferences();
        self.table.remove_gone();
        self.find_new(examiner);
        examiner.counters().unwrap_or_else(|_| {
            // How far processes can have grown since they were read is not known.
            self.table.invalidate(|_| true);
            Counters::UNKNOWN
        })
    }

    /// Adds new processes to the table. Their IDs are those that have been used since last time, as long as
    /// these did not wrap around.
    ///
    /// (Forks that fail use up IDs, too, and are not counted. Should that ever hide a wrap-around, a process
    /// is taken for its predecessor until it is read again.)
    fn find_new(&mut self, examiner: &mut Examiner) {
        let Ok(last_pid) = examiner.scan.last_pid() else {
            self.marks = None;
            return self.list(examiner);
        };
        let last_pid = u64::from(last_pid.unsigned_abs());
        if let Some([older, newer]) = self.marks
            && older.last_pid == last_pid
            && newer.last_pid == last_pid
        {
            return;
        }
        let Ok(forks) = examiner.scan.forks(&mut examiner.buffer) else {
            self.marks = None;
            return self.list(examiner);
        };
        let now = ForkMark { last_pid, forks };
        let Some([older, newer]) = self.marks.replace([now, now]) else {
            return self.list(examiner);
        };
        // Those since the last time but one: an ID that was allocated need not have had a process yet.
        self.marks = Some([newer, now]);
        let (old, new) = (older.last_pid, now.last_pid);
        if forks.saturating_sub(older.forks).saturating_add(RESERVED_IDS) >= examiner.constants.pid_max {
            self.table.invalidate(|_| true);
            return self.list(examiner);
        }
        let may_be_reused = |pid: i32| {
            let pid = u64::from(pid.unsigned_abs());
            if new < old { pid > old || pid <= new } else { pid > old && pid <= new }
        };
        self.table.invalidate(may_be_reused);
        if new < old || new - old > MAX_TRIED_IDS {
            return self.list(examiner);
        }
        for pid in (old + 1)..=new {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::new) {
                self.table.add(pid);
            }
        }
    }

    /// Lists all processes, and removes those that are gone.
    fn list(&mut self, examiner: &mut Examiner) {
        let table = &mut self.table;
        table.not_stored = 0;
        let mut next = 0;
        let listed = examiner.scan.pids(&mut examiner.names, |pid| {
            while next < table.len() && table.get(next).pid < pid {
                table.get(next).gone = true;
                next += 1;
            }
            table.add(pid);
            if next < table.len() && table.get(next).pid == pid {
                table.get(next).gone = false;
                next += 1;
            }
            true
        });
        if listed.is_ok() {
            for index in next..table.len() {
                table.get(index).gone = true;
            }
        }
        table.remove_gone();
    }

    /// Reads new processes, and then one process after the other, until `deadline`.
    pub(super) fn catch_up(&mut self, policy: &Policy, now: &Counters, deadline: Instant, examiner: &mut Examiner) {
        for index in 0..self.table.len() {
            if self.table.get(index).reading.is_none() {
                if Instant::now() >= deadline {
                    return;
                }
                self.read(index, policy, now, Detail::All, examiner);
            }
        }
        for _ in 0..self.table.len() {
            if Instant::now() >= deadline {
                return;
            }
            if self.cursor >= self.table.len() {
                self.cursor = 0;
                // A process whose parent has chosen its ID is found by this only.
                self.list(examiner);
                if self.table.len() == 0 {
                    return;
                }
            }
            if self.table.get(self.cursor).last_round != self.table.round {
                self.read(self.cursor, policy, now, Detail::All, examiner);
            }
            self.cursor += 1;
        }
    }

    /// Reads a process again; it has a reading afterwards, unless it is gone or cannot be read.
    pub(super) fn read(
        &mut self,
        index: usize,
        policy: &Policy,
        now: &Counters,
        detail: Detail,
        examiner: &mut Examiner,
    ) {
        let round = self.table.round;
        let entry = self.table.get(index);
        let read = examiner.examine(entry.pid, entry.reading.as_ref(), policy, now, detail);
        entry.last_round = round;
        entry.gone = read == Err(Failure::Gone);
        entry.reading = read.ok();
    }
}
