// SPDX-License-Identifier: GPL-2.0-only
//! A cache of exact readings, and what they still say later.
//!
//! Reading the page tables of a large process takes tens of milliseconds, most of all when it is about to be
//! chosen. So it is read shortly before, and what has happened since is bounded instead.
//!
//! **Why an old reading decides.** The anonymous memory of a process, in RAM and in swap, is private or
//! shared, and private memory becomes shared only by a fork: with a new process, which then holds as much.
//! All that the process gets otherwise is private. So what it shares has grown since by no more than what all
//! new processes hold, whichever process started them, and the rest of what it holds now is private.
//!
//! What it shared then is what it held less what was read as private. While it was read it may have freed
//! memory that had been counted, and got new memory that was counted again; including that, it never held
//! more than before plus all that the system allocated meanwhile. Pages of files are left out, because other
//! processes can map them at any time, and so is swap that may be shared, because it counts in part, and no
//! longer once it is back in RAM. Same-page merging (KSM) shares without a fork: while it runs, the cache is
//! not used.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use linux::{Pid, PidFd};

use super::readers::Private;
use super::table::Reading;

/// How many readings are cached.
const MAX_ENTRIES: usize = 4;
/// Less private memory than this is read as fast as it is looked up.
pub(super) const MIN_CACHED_BYTES: u64 = 32 << 20;
/// How long a reading is used. The bounds hold for longer, but get wider.
const MAX_AGE: Duration = Duration::from_secs(2);
/// A process is not read in advance again sooner than this.
const MIN_REREAD_AGE: Duration = Duration::from_secs(1);

/// What is kept of an exact reading. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExactFigure {
    /// What would have come back at the time.
    bytes: u64,
    /// The private anonymous memory, at least.
    own: u64,
    /// The anonymous memory that it held before.
    anon: u64,
    /// What it can have held at most while it was read.
    max_held: u64,
    /// Processes that are known only since a later refresh or choice may be new.
    pub(super) round: u32,
}

impl ExactFigure {
    /// From a reading that began after `before` was read, in this round; the system has allocated
    /// `allocated_bytes` from then until it was done.
    pub(super) fn new(private: Private, before: &Reading, round: u32, allocated_bytes: u64) -> Self {
        let max_held = before.anon.saturating_add(before.counter_error).saturating_add(allocated_bytes);
        Self { bytes: private.bytes, own: private.own.min(max_held), anon: before.anon, max_held, round }
    }

    /// Returns how many bytes come back now at least, when new processes hold no more than
    /// `new_process_bytes`.
    pub(super) fn lower_bound(&self, now: &Reading, new_process_bytes: u64) -> u64 {
        let shared = self.max_held.saturating_sub(self.own).saturating_add(new_process_bytes);
        now.anon.saturating_sub(now.counter_error).saturating_sub(shared)
    }

    /// Returns how many bytes come back now: as much more or less as it holds more or less; and whether
    /// nothing has changed.
    pub(super) fn estimate(&self, now: &Reading, new_process_bytes: u64) -> (u64, bool) {
        let bytes = self.bytes.saturating_add(now.anon).saturating_sub(self.anon);
        (bytes, new_process_bytes == 0 && now.anon.abs_diff(self.anon) <= now.counter_error)
    }
}

/// The exact readings of a few processes.
#[derive(Default)]
pub(super) struct ExactCache(ArrayVec<Entry, MAX_ENTRIES>);

struct Entry {
    pid: Pid,
    /// Its ID can be reused, the pidfd cannot.
    pidfd: PidFd,
    figure: ExactFigure,
    at: Instant,
}

impl ExactCache {
    /// Adds a reading, in place of an older one of the same process or the oldest of all.
    pub(super) fn insert(&mut self, pidfd: PidFd, figure: ExactFigure) {
        let pid = pidfd.opened_as();
        self.0.retain(|known| known.pid != pid);
        if self.0.is_full() {
            self.0.remove(0);
        }
        self.0.push(Entry { pid, pidfd, figure, at: Instant::now() });
    }

    /// Removes readings that are too old.
    pub(super) fn expire(&mut self) {
        self.0.retain(|known| known.at.elapsed() < MAX_AGE);
    }

    /// Returns the reading of a process, if it is not too old and the process has not exited.
    pub(super) fn get(&self, pid: Pid) -> Option<&ExactFigure> {
        let known = self.0.iter().find(|known| known.pid == pid && known.at.elapsed() < MAX_AGE)?;
        known.pidfd.is_alive().unwrap_or(false).then_some(&known.figure)
    }

    /// Returns the processes that have a reading.
    pub(super) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.0.iter().map(|known| known.pid)
    }

    /// Whether a process was read so recently that it need not be read in advance.
    pub(super) fn is_recent(&self, pid: Pid) -> bool {
        self.0.iter().any(|known| known.pid == pid && known.at.elapsed() < MIN_REREAD_AGE)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::table::Counters;
    use super::*;

    const PAGE: u64 = 4096;
    /// Ours is 0, and shares with 1 from the beginning.
    const PROCESSES: usize = 12;

    /// An anonymous page: who maps it, and whether it is in swap.
    #[derive(Clone, Copy)]
    struct Page {
        holders: u16,
        swapped: bool,
    }

    struct World {
        /// In the order in which a reading comes to them.
        pages: Vec<Page>,
        allocated: u64,
        /// Processes there have been.
        made: usize,
    }

    impl World {
        fn held(&self, process: usize) -> u64 {
            self.pages.iter().filter(|page| page.holders & 1 << process != 0).count() as u64 * PAGE
        }

        fn own(&self) -> u64 {
            self.pages.iter().filter(|page| page.holders == 1).count() as u64 * PAGE
        }

        fn reading(&self) -> Reading {
            let at = Counters {
                allocated_bytes: self.allocated,
                faults: 0,
                mapped_bytes: 0,
                mapped_bytes_per_fault: 1,
            };
            Reading::with(self.held(0), 0, at)
        }

        fn step(&mut self, (what, which, process): (u8, usize, usize)) {
            let process = process % self.made;
            let at = which % self.pages.len().max(1);
            match what {
                // A process allocates: mostly ours.
                0 | 1 => {
                    self.allocated += PAGE;
                    let holders = if what == 0 { 1 } else { 1 << process };
                    self.pages.push(Page { holders, swapped: false });
                }
                // A fork, and seldom: the child may have children, and its parent may end before it.
                2 if which % 4 == 0 && self.made < PROCESSES => {
                    let child = 1 << self.made;
                    for page in self.pages.iter_mut().filter(|page| page.holders & 1 << process != 0) {
                        page.holders |= child;
                    }
                    self.made += 1;
                }
                // An end; not ours.
                3 if which % 4 == 0 && process > 0 => {
                    self.pages.iter_mut().for_each(|page| page.holders &= !(1 << process));
                }
                _ if self.pages.is_empty() => {}
                // A page is given back by who has it.
                2..=4 => self.pages[at].holders &= !(1 << process),
                5 => self.pages[at].swapped ^= true,
                // A shared page is written to, and copied.
                _ if self.pages[at].holders.count_ones() > 1 && self.pages[at].holders & 1 == 1 => {
                    self.pages[at].holders &= !1;
                    self.allocated += PAGE;
                    self.pages.push(Page { holders: 1, swapped: false });
                }
                _ => {}
            }
        }

        /// What smaps_rollup says of these pages.
        fn walk(&self, pages: std::ops::Range<usize>) -> (u64, u64, u64) {
            let (mut private, mut swap, mut swap_share) = (0, 0, 0);
            for page in self.pages[pages].iter().filter(|page| page.holders & 1 == 1) {
                if page.swapped {
                    swap += PAGE;
                    swap_share += PAGE / u64::from(page.holders.count_ones());
                } else if page.holders == 1 {
                    private += PAGE;
                }
            }
            (private, swap, swap_share)
        }
    }

    fn steps(most: usize) -> impl Strategy<Value = Vec<(u8, usize, usize)>> {
        prop::collection::vec((0_u8..7, 0_usize..1000, 0_usize..1000), 0..most)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Processes that allocate, free, swap, fork, end and write to what they share, also while one of
        /// them is read.
        #[test]
        fn a_lower_bound_is_never_too_high(
            start in prop::collection::vec((1_u16..4, any::<bool>()), 0..60),
            while_read in steps(30),
            after in steps(60),
            part in 0_usize..60,
        ) {
            let pages = start.into_iter().map(|(holders, swapped)| Page { holders, swapped }).collect();
            let mut world = World { pages, allocated: 0, made: 2 };
            let before = world.reading();
            let half = part.min(world.pages.len());
            let first = world.walk(0..half);
            while_read.into_iter().for_each(|step| world.step(step));
            let second = world.walk(half..world.pages.len());
            let rollup = linux::process::Rollup {
                private_dirty: first.0 + second.0,
                // Shared memory, of which nothing may be counted.
                private_clean: 7 * PAGE,
                rss: first.0 + second.0 + 7 * PAGE,
                anonymous: first.0 + second.0,
                swap: first.1 + second.1,
                swap_pss: first.2 + second.2,
                ..Default::default()
            };
            let figure = ExactFigure::new(Private::of(&rollup), &before, 0, world.allocated);
            after.into_iter().for_each(|step| world.step(step));
            let new_process_bytes = (2..world.made).map(|process| world.held(process)).sum();
            let (least, own) = (figure.lower_bound(&world.reading(), new_process_bytes), world.own());
            prop_assert!(least <= own, "{least} of {own}");
        }
    }

    fn figure_of(own: u64, anon: u64) -> ExactFigure {
        let before = Reading::with(anon, 0, Counters::UNKNOWN);
        ExactFigure::new(Private { bytes: own + 5, own }, &before, 0, 0)
    }

    #[test]
    fn growth_and_shrinking_are_followed() {
        let figure = figure_of(700, 1000);
        let now = |anon, slack| Reading { counter_error: slack, ..Reading::with(anon, 0, Counters::UNKNOWN) };
        assert_eq!(figure.lower_bound(&now(1000, 0), 0), 700);
        assert_eq!(figure.lower_bound(&now(1500, 0), 0), 1200);
        assert_eq!(figure.lower_bound(&now(600, 0), 0), 300);
        assert_eq!(figure.lower_bound(&now(200, 0), 0), 0);
        assert_eq!(figure.lower_bound(&now(1000, 10), 50), 640);
        assert_eq!(figure.estimate(&now(1000, 10), 0), (705, true));
        assert_eq!(figure.estimate(&now(1010, 10), 1), (715, false));
        assert_eq!(figure.estimate(&now(900, 10), 0), (605, false));
    }

    #[test]
    fn the_oldest_makes_room_and_a_dead_process_has_none() {
        let mut cache = ExactCache::default();
        let mut children: Vec<_> = (0..=MAX_ENTRIES)
            .map(|_| std::process::Command::new("sleep").arg("60").spawn().unwrap())
            .collect();
        let pids: Vec<_> = children.iter().map(|child| Pid::new(child.id().cast_signed()).unwrap()).collect();
        for (i, pid) in pids.iter().enumerate() {
            cache.insert(PidFd::open(*pid).unwrap(), figure_of(i as u64, 100));
        }
        cache.insert(PidFd::open(pids[1]).unwrap(), figure_of(50, 100));
        assert_eq!(cache.get(pids[0]), None);
        assert_eq!(cache.get(pids[1]), Some(&figure_of(50, 100)));
        assert_eq!(cache.get(pids[2]), Some(&figure_of(2, 100)));
        assert!(cache.is_recent(pids[1]) && !cache.is_recent(pids[0]));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(cache.get(pids[2]), None);
    }
}
