// SPDX-License-Identifier: GPL-2.0-only
//! Reads the likely victims exactly, before a choice is made.

use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::{Pid, PidFd};

use super::cache::{ExactCache, ExactFigure, MIN_CACHED_BYTES};
use super::examine::{Detail, Examiner};
use super::population::Population;
use super::readers::{Answer, Private, Readers};
use super::table::{Counters, Reading, Table};
use crate::policy::Policy;

/// The time between two exact readings in advance, at least.
const MIN_PAUSE: Duration = Duration::from_millis(250);
/// The pause is at least so many times as long as the last reading took: while a large process fills a slow
/// swap, it would otherwise be read all the time, at the cost of all other processes.
const PAUSE_FACTOR: u32 = 20;

/// An exact reading in advance that has not ended.
struct Pending {
    pidfd: PidFd,
    /// What was read before it began, and in which round.
    before: Reading,
    round: u32,
}

/// Exact readings in advance, and the cache of what they have found.
pub(super) struct ReadAhead {
    readers: Arc<Readers>,
    pub(super) cache: ExactCache,
    pending: Option<Pending>,
    /// When the last one began.
    began: Option<Instant>,
    /// How long it took, until its end was noticed.
    last_duration: Duration,
}

impl ReadAhead {
    pub(super) fn new(readers: Arc<Readers>) -> Self {
        Self {
            readers,
            cache: ExactCache::default(),
            pending: None,
            began: None,
            last_duration: Duration::ZERO,
        }
    }

    /// Whether a reading of this process has begun and not ended.
    pub(super) fn is_pending(&self, pid: Pid) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.pidfd.opened_as() == pid)
    }

    /// Puts the reading that has begun into the cache, if it ends by `deadline`.
    pub(super) fn collect(&mut self, deadline: Instant, examiner: &mut Examiner) {
        if self.pending.is_none() {
            return;
        }
        let answer = self.readers.background_result(deadline);
        if answer == Answer::Late {
            return;
        }
        self.last_duration = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        if let (Some(pending), Answer::Read(private)) = (self.pending.take(), answer) {
            self.remember(pending.pidfd, private, &pending.before, pending.round, examiner);
        }
    }

    /// Puts an exact reading into the cache. The pidfd must have been opened before `before` was read.
    pub(super) fn remember(
        &mut self,
        pidfd: PidFd,
        private: Private,
        before: &Reading,
        round: u32,
        examiner: &mut Examiner,
    ) {
        if let Ok(after) = examiner.counters()
            && before.counters != Counters::UNKNOWN
            && pidfd.is_alive().unwrap_or(false)
        {
            let allocated_bytes = after.allocated_bytes.saturating_sub(before.counters.allocated_bytes);
            self.cache.insert(pidfd, ExactFigure::new(private, before, round, allocated_bytes));
        }
    }

    /// Returns what is cached of a process, how many bytes processes hold that are new since, and what was
    /// read of it last.
    pub(super) fn recall<'a>(
        &'a self,
        table: &'a Table,
        index: usize,
    ) -> Option<(&'a ExactFigure, u64, &'a Reading)> {
        let entry = &table.entries()[index];
        let figure = self.cache.get(entry.pid)?;
        let new_process_bytes = table.new_process_bytes(figure.round, entry.pid)?;
        Some((figure, new_process_bytes, entry.reading.as_ref()?))
    }

    /// Begins to read the process that could have the greatest score, among those that were not read
    /// recently, unless one that is cached is known to have a greater one.
    pub(super) fn start_next(
        &mut self,
        population: &mut Population,
        policy: &Policy,
        now: &Counters,
        examiner: &mut Examiner,
    ) {
        let pause = MIN_PAUSE.max(self.last_duration * PAUSE_FACTOR);
        if self.pending.is_some() || self.began.is_some_and(|began| began.elapsed() < pause) {
            return;
        }
        self.cache.expire();
        let table = &population.table;
        let known = self.cache.pids().filter_map(|pid| {
            let (figure, new_process_bytes, reading) = self.recall(table, table.find(pid)?)?;
            Some(reading.verdict.score(figure.lower_bound(reading, new_process_bytes)))
        });
        let known = known.max().unwrap_or(0);
        let entries = table.entries().iter().enumerate();
        let top = entries
            .filter(|(_, entry)| !entry.gone && !self.cache.is_recent(entry.pid))
            .filter_map(|(index, entry)| {
                let reading = entry.reading.as_ref().filter(|reading| reading.eligible())?;
                let bound = reading.upper_bound(now);
                Some((reading.verdict.score(bound), index)).filter(|_| bound >= MIN_CACHED_BYTES)
            })
            .max();
        let Some((_, index)) = top.filter(|(score, _)| *score > known) else { return };
        let Ok(pidfd) = PidFd::open(population.table.get(index).pid) else { return };
        population.read(index, policy, now, Detail::Memory, examiner);
        let Some(before) = population.table.get(index).reading.filter(Reading::eligible) else { return };
        if pidfd.check_permission().is_ok() && self.readers.start_in_background(before.memory_tid) {
            self.began = Some(Instant::now());
            self.pending = Some(Pending { pidfd, before, round: population.table.round });
        }
    }
}
