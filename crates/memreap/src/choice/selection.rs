// SPDX-License-Identifier: GPL-2.0-only
//! A choice that is being made: what it reads of processes, and how closely.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use linux::scan::Failure;
use linux::{Pid, PidFd};

use super::cgroup_path::{self, CgroupPath, is_below};
use super::chooser::{Chooser, MAX_CONSIDERED};
use super::examine::Detail;
use super::page_sample::{Counts, FIRST_ERROR, SAMPLED_FROM_BYTES, SECOND_ERROR};
use super::readers::{Answer, Readers};
use super::result::{Choice, CommandLine, Considered, Cost, MAX_POOL, Pool, Precision};
use super::table::{Counters, Reading};
use crate::policy::Policy;

/// How long a close reading may take, and all of a choice's together: it may have to wait for a lock. In place of a
/// late one there is [`Reading::estimate`], and the choice is a guess.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(50);
const ALL_CLOSE_TIMEOUT: Duration = Duration::from_millis(100);
/// Two processes of which each may be the larger, within so many standard errors, are looked at once more.
const OVERLAP_ERRORS: u64 = 3;
/// Up to this size, in bytes, a process is read exactly of which a sample found hardly anything, or that has more than
/// one part in [`SWAP_DIVISOR`] in swap: a sample does not see whose that is.
const EXACT_UP_TO_BYTES: u64 = 4 * SAMPLED_FROM_BYTES;
const SWAP_DIVISOR: u64 = 20;

/// Where a victim must be.
#[derive(Clone, Copy)]
pub(super) enum Within<'a> {
    Anywhere,
    Below(&'a [u8]),
    Leaf(usize),
    One,
}

/// A candidate that was read closely, with a pidfd on it.
pub(super) struct Found {
    pub(super) pidfd: PidFd,
    pub(super) pid: Pid,
    pub(super) reading: Reading,
    pub(super) cgroup: CgroupPath,
    pub(super) back: Back,
}

impl Found {
    /// Returns it as a choice of this process alone.
    pub(super) fn into_choice(self, cost: Cost) -> Choice {
        let Self { pidfd, pid, reading, cgroup, back } = self;
        Choice {
            pidfd,
            oom_score_adj: None,
            pid,
            comm: reading.comm,
            uid: reading.uid,
            cgroup,
            bytes: back.bytes,
            precision: back.precision,
            pool: Pool::new(),
            vm_size: reading.vm_size,
            core_dumping: reading.core_dumping,
            group: None,
            leaf: None,
            parent: None,
            command_line: CommandLine::new(),
            rule: reading.verdict.rule,
            cost,
        }
    }
}

/// What comes back when a process dies.
#[derive(Clone, Copy)]
pub(super) struct Back {
    pub(super) bytes: u64,
    pub(super) precision: Precision,
    /// The sample it is estimated from, and whether that is as good as it gets.
    pub(super) sample: Option<(Counts, bool)>,
}

impl Back {
    pub(super) fn guess(reading: &Reading) -> Self {
        Self { bytes: reading.estimate(), precision: Precision::Guess, sample: None }
    }

    /// The least and the most that it may be: in 997 of 1,000 cases, if it is a sample's.
    pub(super) fn range(&self) -> (u64, u64) {
        let off = match self.precision {
            Precision::Sampled { error } => error.saturating_mul(OVERLAP_ERRORS),
            Precision::Exact | Precision::Guess => 0,
        };
        (self.bytes.saturating_sub(off), self.bytes.saturating_add(off))
    }
}

/// A process that does not give back alone all that it has.
#[derive(Clone, Copy)]
pub(super) struct Sharer {
    pub(super) index: usize,
    /// The rest, in bytes.
    pub(super) shared: u64,
}

/// Those that share most.
pub(super) type Sharers = ArrayVec<Sharer, MAX_SHARERS>;

/// How many are kept: as many as may be killed for one memory.
const MAX_SHARERS: usize = MAX_POOL + 1;

/// A choice that is being made.
pub(super) struct Selection<'a> {
    pub(super) chooser: &'a mut Chooser,
    pub(super) policy: &'a Policy,
    pub(super) now: Counters,
    /// From then on what is known has to do.
    pub(super) deadline: Instant,
    /// How long exact readings may still take, and how much longer if processes share memory.
    time_left: Duration,
    more_time: Duration,
    pub(super) within: Within<'a>,
    /// Processes are read exactly if need be.
    pub(super) exactly: bool,
    /// Of the processes that were read closely.
    pub(super) sharers: Sharers,
}

impl<'a> Selection<'a> {
    pub(super) fn new(chooser: &'a mut Chooser, policy: &'a Policy, now: Counters, within: Within<'a>) -> Self {
        let deadline = Instant::now() + chooser.reading_timeout;
        let time = ALL_CLOSE_TIMEOUT;
        Self {
            chooser,
            policy,
            now,
            deadline,
            time_left: time,
            more_time: time,
            within,
            exactly: true,
            sharers: Sharers::new(),
        }
    }

    /// Has exact readings take as long again as they could from the start, once.
    pub(super) fn allow_more_time(&mut self) {
        self.time_left += std::mem::take(&mut self.more_time);
    }

    pub(super) fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Keeps a process for [`Chooser::explain`], with what was read of it and what that counts, or the most it can be.
    pub(super) fn add_considered(&mut self, index: usize, read: Option<(u64, &Back)>) {
        let entry = &self.chooser.population.table.entries()[index];
        let Some(reading) = entry.reading.as_ref().filter(|reading| !reading.verdict.never) else { return };
        if matches!(self.within, Within::One) {
            return;
        }
        let bound = reading.upper_bound(&self.now);
        let (score, back) = read.unzip();
        // Not more than there is room for: nothing may be allocated.
        if self.chooser.considered.len() < MAX_CONSIDERED {
            self.chooser.considered.push(Considered {
                pid: entry.pid,
                comm: reading.comm,
                uid: reading.uid,
                bound,
                bytes: back.map(|back| back.bytes),
                precision: back.map_or(Precision::Guess, |back| back.precision),
                verdict: reading.verdict,
                score: score.unwrap_or_else(|| reading.verdict.score(bound)),
            });
        }
    }

    /// Returns how many bytes a process must give back to be chosen.
    pub(super) fn min_bytes(&self) -> u64 {
        // All of a group gives back more.
        if matches!(self.within, Within::Leaf(_)) { 0 } else { self.chooser.min_bytes }
    }

    pub(super) fn read(&mut self, index: usize, detail: Detail) {
        let chooser = &mut *self.chooser;
        chooser.population.read(index, self.policy, &self.now, detail, &mut chooser.examiner);
    }

    /// Opens a pidfd on a process and reads the process.
    pub(super) fn open(&mut self, index: usize) -> Option<(PidFd, Reading)> {
        let pid = self.chooser.population.table.get(index).pid;
        // Opened before anything is read that is used, and still alive afterwards: so what was read is about
        // the process behind the pidfd.
        let pidfd = PidFd::open(pid).ok()?;
        if pidfd.check_permission().is_err() {
            return None;
        }
        self.read(index, Detail::Victim);
        let chooser = &mut *self.chooser;
        let reading = chooser.population.table.get(index).reading.filter(Reading::eligible)?;
        let inside = match (self.within, &chooser.membership.groups) {
            (Within::Anywhere | Within::One, _) => true,
            (Within::Below(path), _) => is_below(&chooser.examiner.cgroup, path),
            (Within::Leaf(leaf), Some(groups)) => groups.leaf(reading.cgroup_hash) == Some(leaf),
            (Within::Leaf(_), None) => false,
        };
        inside.then_some((pidfd, reading))
    }

    /// Returns the score of the process that was read last, and what was found out about it, if it is still
    /// alive.
    pub(super) fn found(&mut self, index: usize, pidfd: PidFd, reading: Reading, back: Back) -> Option<(u64, Found)> {
        let score = reading.verdict.score(back.bytes);
        let cgroup = cgroup_path::cut(&self.chooser.examiner.cgroup);
        self.add_considered(index, Some((score, &back)));
        if back.bytes < self.min_bytes().max(1) || !pidfd.is_alive().unwrap_or(false) {
            return None;
        }
        let pid = pidfd.opened_as();
        Some((score, Found { pidfd, pid, reading, cgroup, back }))
    }

    /// Has a thread read what takes time, no longer than there is time.
    pub(super) fn closely<T>(&mut self, read: impl FnOnce(&Readers, Instant) -> Answer<T>) -> Answer<T> {
        let began = Instant::now();
        let answer = read(&self.chooser.examiner.readers, began + CLOSE_TIMEOUT.min(self.time_left));
        self.time_left = self.time_left.saturating_sub(began.elapsed());
        answer
    }

    /// Reads what comes back of a process: exactly if that is fast, else by a sample. `None` when it is gone.
    pub(super) fn read_back(&mut self, reading: &Reading) -> Option<Back> {
        let all = reading.sizes.sum();
        let is_swapped = reading.sizes.swap > all / SWAP_DIVISOR;
        if all >= if is_swapped { EXACT_UP_TO_BYTES } else { SAMPLED_FROM_BYTES } {
            let process = reading.sampled(FIRST_ERROR);
            match self.closely(|readers, deadline| readers.sample(process, deadline)) {
                Answer::Read(counts) if counts.is_enough() || all > EXACT_UP_TO_BYTES => {
                    self.chooser.examiner.cost.sampled += 1;
                    return Some(self.estimate(reading, counts, false));
                }
                Answer::Late => {
                    self.chooser.examiner.cost.late += 1;
                    return Some(Back::guess(reading));
                }
                Answer::Read(_) | Answer::Failed(_) => {}
            }
        }
        let answer = self.closely(|readers, deadline| readers.comes_back(reading.memory_tid, deadline));
        let cost = &mut self.chooser.examiner.cost;
        match answer {
            Answer::Read(bytes) => {
                cost.exact += 1;
                Some(Back { bytes, precision: Precision::Exact, sample: None })
            }
            Answer::Late => {
                cost.late += 1;
                Some(Back::guess(reading))
            }
            // A process that must not be traced can still be killed, perhaps.
            Answer::Failed(Failure::Denied) => Some(Back::guess(reading)),
            // It is gone, or the kernel has no such file.
            Answer::Failed(_) => (!self.chooser.examiner.constants.tells_shared).then(|| Back::guess(reading)),
        }
    }

    fn estimate(&self, reading: &Reading, counts: Counts, is_best: bool) -> Back {
        let estimate = counts.estimate(&reading.sizes, self.chooser.examiner.constants.page_bytes);
        let precision = Precision::Sampled { error: estimate.error };
        Back { bytes: estimate.bytes, precision, sample: Some((counts, is_best)) }
    }

    /// Adds a second sample to a first one.
    pub(super) fn look_closer(&mut self, reading: &Reading, back: &mut Back) {
        let Some((mut counts, false)) = back.sample else { return };
        let process = reading.sampled(SECOND_ERROR);
        if let Answer::Read(more) = self.closely(|readers, deadline| readers.sample(process, deadline)) {
            self.chooser.examiner.cost.sampled += 1;
            counts.add(&more);
            *back = self.estimate(reading, counts, true);
        }
    }
}
