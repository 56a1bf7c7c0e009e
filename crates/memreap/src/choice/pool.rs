// SPDX-License-Identifier: GPL-2.0-only
//! Processes that share one memory by fork(2): it comes back when all of them die, and not before.

use arrayvec::ArrayVec;
use linux::scan::Failure;
use linux::{Pid, PidFd};

use super::cgroup_path;
use super::page_sample::FIRST_ERROR;
use super::readers::Answer;
use super::result::{MAX_POOL, Pool, Precision};
use super::selection::{Back, Found, Selection, Sharer};
use super::table::Reading;
use crate::kill::Victim;
use crate::policy::Verdict;

/// Processes that die together must give back more than so many times what the best one gives back alone: more is lost
/// with them, and another kill may follow.
pub(super) const MIN_GAIN: u64 = 4;
/// A process belongs to the pool if it has at least this part of the memory that the first process shares.
const MIN_COMMON_PART: f64 = 0.5;

/// What came of the search for processes that share one memory.
#[expect(clippy::large_enum_variant, reason = "nothing may be allocated")]
pub(super) enum PoolSearch {
    /// The first of them, and the others.
    Found(Found, Pool),
    /// There are too many of them, or it could not be found out in time which they are.
    Unknown,
    /// There are none, or their death is not worth it, or one of them must not be killed.
    None,
}

impl Selection<'_> {
    /// Notes what a process has and does not give back alone.
    pub(super) fn note_shared(&mut self, index: usize, reading: &Reading, back: &Back) {
        let shared = reading.estimate().saturating_sub(back.bytes);
        if back.precision != Precision::Guess && shared >= self.chooser.min_bytes.max(1) {
            self.note_sharer(Sharer { index, shared });
        }
    }

    pub(super) fn note_sharer(&mut self, new: Sharer) {
        // A cgroup's are read once more with all.
        if let Some(known) = self.sharers.iter_mut().find(|sharer| sharer.index == new.index) {
            known.shared = known.shared.max(new.shared);
        } else if !self.sharers.is_full() {
            self.sharers.push(new);
        } else if let Some(least) = self.sharers.iter_mut().min_by_key(|sharer| sharer.shared)
            && least.shared < new.shared
        {
            *least = new;
        }
    }

    /// Whether what one of those shares that were read counts so much.
    pub(super) fn shares(&self, score: u64) -> bool {
        self.sharers.iter().any(|sharer| self.shared_score(sharer) >= Some(score))
    }

    /// What that counts which a process shares.
    fn shared_score(&self, sharer: &Sharer) -> Option<u64> {
        Some(self.reading(sharer)?.verdict.score(sharer.shared))
    }

    fn reading(&self, sharer: &Sharer) -> Option<Reading> {
        self.chooser.population.table.entries()[sharer.index].reading
    }

    /// Finds the process that shares most memory and those that share it with it, if all of them may be killed,
    /// there are not too many, and their score is more than [`MIN_GAIN`] times `floor`. Else the same with another
    /// memory; but not where a group `dies_whole` that shares one of which it is not known by whom.
    pub(super) fn best_pool(&mut self, floor: u64, dies_whole: bool) -> PoolSearch {
        let mut sharers = std::mem::take(&mut self.sharers);
        sharers.retain(|sharer| self.shared_score(sharer).is_some_and(|score| score / MIN_GAIN > floor));
        if sharers.is_empty() {
            return PoolSearch::None;
        }
        // Where addresses are not random, they do not tell which processes share memory.
        if !self.chooser.examiner.constants.random_addresses {
            return PoolSearch::Unknown;
        }
        self.allow_more_time();
        sharers.sort_unstable_by_key(|sharer| sharer.shared);
        let mut found = PoolSearch::None;
        while let Some(first) = sharers.pop() {
            let Some(reading) = self.reading(&first) else { continue };
            match self.pool_of(first, &reading, floor) {
                PoolSearch::None => {}
                PoolSearch::Unknown if dies_whole => return PoolSearch::Unknown,
                PoolSearch::Unknown => found = PoolSearch::Unknown,
                PoolSearch::Found(first, others) => return PoolSearch::Found(first, others),
            }
            // Those that share it with another one do, too.
            sharers.retain(|other| {
                let other = self.reading(other);
                other.is_some_and(|other| self.is_related(&reading, other.memory_tid) == Some(false))
            });
        }
        found
    }

    /// As [`Selection::best_pool`], with the memory of the process `first`.
    fn pool_of(&mut self, first: Sharer, first_reading: &Reading, floor: u64) -> PoolSearch {
        let (mut verdicts, mut pool) = (ArrayVec::<Verdict, MAX_POOL>::new(), Pool::new());
        let mut own = 0_u64;
        for index in 0..self.chooser.population.table.len() {
            let entry = self.chooser.population.table.entries()[index];
            // One that has less cannot hold back most of it.
            let known = entry.reading.filter(|known| known.estimate() >= first.shared / 2);
            let Some(known) = known.filter(|_| !entry.gone && index != first.index) else { continue };
            // The process that is looked at, and not another one that gets its ID.
            let looked_at = match PidFd::open(entry.pid) {
                Ok(pidfd) => pidfd,
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => continue,
                Err(_) => return PoolSearch::Unknown,
            };
            match self.is_related(first_reading, known.memory_tid) {
                Some(true) => {}
                Some(false) => continue,
                None => return PoolSearch::Unknown,
            }
            // One that must not be killed holds it back.
            let Some((pidfd, reading)) = self.open(index) else { return PoolSearch::None };
            let back = self.read_back(&reading);
            if !looked_at.is_alive().unwrap_or(true) {
                continue;
            }
            let Some(back) = back else { return PoolSearch::Unknown };
            // A guess has what it shares in it.
            if back.precision != Precision::Guess {
                own = own.saturating_add(back.bytes);
            }
            let Reading { vm_size, core_dumping, verdict, .. } = reading;
            let member = Victim { pidfd, bytes: 0, vm_size, core_dumping };
            if verdicts.try_push(verdict).is_err() || pool.try_push(member).is_err() {
                return PoolSearch::Unknown;
            }
        }
        // Who else has it cannot be seen.
        if pool.is_empty() {
            return PoolSearch::None;
        }
        let Some((pidfd, reading)) = self.open(first.index) else { return PoolSearch::None };
        let cgroup = cgroup_path::cut(&self.chooser.examiner.cgroup);
        let Some(alone) = self.read_back(&reading) else { return PoolSearch::None };
        let shared = reading.estimate().saturating_sub(alone.bytes);
        let bytes = shared.saturating_add(alone.bytes).saturating_add(own);
        let verdicts = verdicts.iter().chain([&reading.verdict]);
        let score = verdicts.map(|verdict| verdict.score(bytes)).min().unwrap_or(0);
        if score / MIN_GAIN <= floor || !pidfd.is_alive().unwrap_or(false) {
            return PoolSearch::None;
        }
        let error = alone.precision.error().unwrap_or(0);
        let back = Back { bytes, precision: Precision::Sampled { error }, sample: None };
        self.add_considered(first.index, Some((score, &back)));
        let pid = pidfd.opened_as();
        PoolSearch::Found(Found { pidfd, pid, reading, cgroup, back }, pool)
    }

    /// Whether a process has the memory that another one shares; `None` when that cannot be found out.
    fn is_related(&mut self, reading: &Reading, other: Pid) -> Option<bool> {
        let process = reading.sampled(FIRST_ERROR);
        match self.closely(|readers, deadline| readers.common_part(process, other, deadline)) {
            Answer::Read(part) => Some(part.is_some_and(|part| part >= MIN_COMMON_PART)),
            Answer::Failed(Failure::Gone) => Some(false),
            Answer::Failed(_) | Answer::Late => None,
        }
    }
}
