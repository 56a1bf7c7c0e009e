// SPDX-License-Identifier: GPL-2.0-only
//! A victim that was killed, and the wait for its memory.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use linux::cgroup::Cgroup;
use linux::scan::Scan;

use super::reapers::{Reapers, Slot};
use crate::choice::MAX_POOL;
use crate::daemon::decide::governor::Governor;
use crate::daemon::decide::reason::Ending;
use crate::daemon::decide::sample::Sample;
use crate::daemon::decide::world::Progress;
use crate::daemon::report::record::KillRecord;
use crate::kill::{Fate, Method};

/// How long to wait for the memory of a process that has exited: some of what was expected may never be seen
/// as free, because other processes allocated it at once.
const MEMORY_TIMEOUT: Duration = Duration::from_millis(500);
/// How long to wait when another process uses the memory, and it may be that this exits, too, as long as none is seen
/// to be freed.
const SHARED_TIMEOUT: Duration = Duration::from_millis(100);
/// When the memory is seen to be free within this time after the exit, it was back at the exit.
const AT_EXIT_TOLERANCE: Duration = Duration::from_millis(5);
/// A process's memory is back when this part of it at most is left.
const MAX_REMAINDER_DIVISOR: u64 = 8;
/// All victims' memory is back when this part of what was expected was seen to be free, ...
const MIN_FREED_DIVISOR: u64 = 4;
/// ... and either nearly all, or between two checks not even this part more.
const FREEING_DIVISOR: u64 = 16;
/// The niceness of threads that free memory as long as it is critical, and afterwards.
const CRITICAL_NICE: i32 = -20;
const RELIEVED_NICE: i32 = 10;

/// A victim that was killed, and those that were killed with it, until their memory is back. Sizes in bytes.
pub struct Dying {
    /// Its slot in the reapers; `None` if none was free.
    pub slot: Option<Slot>,
    /// Those of the processes that share its memory: it is back when all of them have given it up.
    pub sharers: ArrayVec<Slot, MAX_POOL>,
    /// The cgroup that was killed with it.
    pub cgroup: Option<Cgroup>,
    /// Why no signal was sent, if none was.
    pub unsent: Option<Ending>,
    /// What will be reported.
    pub record: KillRecord,
    /// What was to come back of the first victim.
    bytes: u64,
    at: Instant,
    /// What was free when it was killed, memory and swap.
    free_before: u64,
    /// And at the last check.
    free_last: u64,
    /// From how much available memory on it is no longer critical.
    critical_level: u64,
    /// When its process was seen to have exited, or its memory to be freed.
    over: Option<Instant>,
    /// Whether hardly any was back when the kernel had freed what it can.
    left_to_exit: bool,
}

impl Dying {
    /// A victim that is killed now.
    pub fn new(record: KillRecord, governor: &Governor) -> Self {
        let free = governor.last().map_or(0, Sample::headroom);
        Self {
            slot: None,
            sharers: ArrayVec::new(),
            cgroup: None,
            unsent: None,
            bytes: record.expected,
            record,
            at: Instant::now(),
            free_before: free,
            free_last: free,
            critical_level: governor.critical_level(),
            over: None,
            left_to_exit: false,
        }
    }

    /// Returns whether it still has its memory, by the last sample, and where it does not, notes how that came back.
    /// Has threads that free it compete less for CPUs once memory is not critical any more.
    pub fn progress(&mut self, last: &Sample, reapers: &Reapers, scan: &Scan) -> Progress {
        if let Some(ending) = self.unsent {
            return Progress::Ended(ending);
        }
        let Some(outcome) = self.slot.as_ref().and_then(|slot| reapers.outcome(slot)) else {
            return Progress::Dying;
        };
        let (free, expected) = (last.headroom(), self.record.expected);
        let freed = free.saturating_sub(self.free_before);
        let step = free.saturating_sub(std::mem::replace(&mut self.free_last, free));
        let critical = last.available < self.critical_level;
        reapers.lower_priority(if critical { CRITICAL_NICE } else { RELIEVED_NICE });
        self.record.method = outcome.method;
        // A cgroup that cannot be read was removed.
        let cgroup_is_empty = self.cgroup.as_ref().is_none_or(|c| !c.is_populated().unwrap_or(false));
        let is_alone = self.sharers.is_empty();
        let has_memory = |slot: &Slot| {
            reapers.outcome(slot).is_some_and(|outcome| outcome.fate == Fate::Dying && outcome.back.is_none())
        };
        match outcome.fate {
            Fate::Refused(errno) if is_alone => return Progress::Ended(Ending::Refused(errno)),
            Fate::Gone | Fate::Spared if is_alone && self.cgroup.is_none() => return Progress::Ended(Ending::Gone),
            _ if !cgroup_is_empty || self.sharers.iter().any(has_memory) => return Progress::Dying,
            Fate::Dying => {
                // Memory that the kernel frees is back long before a process has exited that waits for a CPU.
                // A process that does not wait has exited by then, and its swap is free, too.
                let waits_for_cpu = outcome.method == Method::Expedite && self.at.elapsed() >= MEMORY_TIMEOUT;
                let left = || scan.statm(self.record.pid).map_or(0, |memory| memory.resident);
                let freed_by_kernel =
                    outcome.back.is_some() || (waits_for_cpu && left() <= self.bytes / MAX_REMAINDER_DIVISOR);
                // The kernel frees private memory only. If hardly any is back, its own exit has to free the rest.
                self.left_to_exit |= freed_by_kernel && freed < expected / MIN_FREED_DIVISOR;
                if !freed_by_kernel || self.left_to_exit {
                    return Progress::Dying;
                }
            }
            _ => {}
        }
        // A process that was reading the victim's memory just then keeps it until it has read it: the victim
        // can have exited and its memory not be free.
        let over = *self.over.get_or_insert_with(Instant::now);
        let timeout = if outcome.fate == Fate::Shared && step == 0 { SHARED_TIMEOUT } else { MEMORY_TIMEOUT };
        if more_comes_back(expected, freed, step) && over.elapsed() < timeout {
            return Progress::Dying;
        }
        let back = if self.left_to_exit { outcome.exited } else { outcome.back };
        self.record.took = match (&self.cgroup, back) {
            (None, Some(back)) if over.elapsed() < AT_EXIT_TOLERANCE => back,
            _ => self.at.elapsed(),
        };
        Progress::Ended(ending(outcome.fate, expected, freed))
    }

    /// Ends the wait, and returns what is to be reported. `now` is a sample of now, if there is one, `last` the last
    /// one before that.
    pub fn finish(mut self, ending: Ending, now: Option<Sample>, last: &Sample) -> KillRecord {
        let record = &mut self.record;
        record.ending = ending;
        // Back at an unknown time: its cgroup was removed.
        let unseen = ending == Ending::Back && record.took.is_zero();
        if ending == Ending::Late || unseen {
            record.took = self.at.elapsed();
        }
        record.available[1] = now.unwrap_or(*last).available;
        if matches!(ending, Ending::Back | Ending::Late) {
            record.freed = now.map(|sample| sample.headroom().saturating_sub(self.free_before));
        }
        self.record
    }
}

/// Whether more of `expected` bytes comes back when `freed` were seen to be free, `step` of them since the last
/// check.
fn more_comes_back(expected: u64, freed: u64, step: u64) -> bool {
    freed < expected / MIN_FREED_DIVISOR
        || (freed < expected - expected / MAX_REMAINDER_DIVISOR && step > expected / FREEING_DIVISOR)
}

/// How the wait for `expected` bytes has ended when `freed` were seen to be free.
fn ending(fate: Fate, expected: u64, freed: u64) -> Ending {
    // One that shares the memory lives on, and no wait gets it back.
    if fate == Fate::Shared && freed < expected / MIN_FREED_DIVISOR { Ending::Late } else { Ending::Back }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_back_when_no_more_of_it_comes() {
        // Of a victim of 200 MiB 80 were free when the kill was reported as over.
        assert!(more_comes_back(200, 80, 80));
        assert!(more_comes_back(200, 0, 0), "nothing was seen yet");
        assert!(!more_comes_back(200, 190, 190));
        assert!(!more_comes_back(200, 80, 0), "the others took the rest at once");
        // Another process may have it, or have taken it at once.
        assert_eq!([ending(Fate::Shared, 200, 8), ending(Fate::Killed, 200, 8)], [Ending::Late, Ending::Back]);
        assert_eq!(ending(Fate::Shared, 200, 80), Ending::Back, "of a group only one was shared");
    }
}
