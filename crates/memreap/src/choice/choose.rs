// SPDX-License-Identifier: GPL-2.0-only
//! The choice itself: of a cgroup, of a process, or of processes that share one memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

use linux::cgroup::OomPreference;
use linux::scan::{Failure, File};
use linux::{Pid, PidFd};

use super::cgroup_path;
use super::chooser::{Chooser, MAX_CONSIDERED};
use super::examine::Detail;
use super::groups::Tally;
use super::leaf::Leaf;
use super::pool::{MIN_GAIN, PoolSearch};
use super::result::{Choice, Cost, Group, Pool, Precision, Scope};
use super::search::{Candidate, Scores, best};
use super::selection::{Back, Found, Selection, Sharer, Within};
use super::table::{Counters, Reading};
use crate::policy::{Exe, Policy, Subject, Verdict};

/// One of whose memory it gives back less than this part is not killed with others.
const MIN_OWN_DIVISOR: u64 = 16;
/// What the threads may take to read this process's own memory.
const REHEARSAL_TIME: Duration = Duration::from_secs(1);

/// What is to be killed.
struct Selected {
    found: Found,
    pool: Pool,
    group: Option<Group>,
    leaf: Option<Leaf>,
}

impl Chooser {
    /// Returns the process whose death gives back most under this policy, or `None` when none may be killed.
    ///
    /// With [`Grouping::by_cgroup`](super::Grouping), when a leaf cgroup that may be killed as a whole holds more than
    /// that process, the best process in it is returned: for a caller that kills the group, or its members one by one.
    pub fn choose(&mut self, policy: &Policy, scope: Scope<'_>) -> Option<Choice> {
        let began = Instant::now();
        self.examiner.cost = Cost::default();
        // Not where one is judged anew: the others of its cgroup are asked for afterwards.
        if !matches!(scope, Scope::One(_)) {
            self.considered.clear();
        }
        let found = self.select(policy, scope);
        self.considered.sort_unstable_by_key(|c| (std::cmp::Reverse(c.score), c.pid));
        let table = &self.population.table;
        let processes = table.entries().iter().filter(|entry| !entry.gone).count();
        let cost = &mut self.examiner.cost;
        cost.processes = u32::try_from(processes).unwrap_or(u32::MAX).saturating_add(table.not_stored);
        cost.took = began.elapsed();
        let Selected { found, pool, group, leaf } = found?;
        let oom_score_adj = self.examiner.scan.open_file(found.pid, File::OomScoreAdj).ok();
        Some(Choice { oom_score_adj, pool, group, leaf, ..found.into_choice(self.examiner.cost) })
    }

    /// Returns the next best process of this cgroup among those that were considered in the last choice, by
    /// what it gives back at most; only that process is read for it. Each is returned once.
    pub fn another(&mut self, policy: &Policy, cgroup: &[u8]) -> Option<Choice> {
        let began = Instant::now();
        while !self.considered.is_empty() {
            let considered = self.considered.remove(0);
            let pid = considered.pid;
            let Some(pidfd) = PidFd::open(pid).ok().filter(|pidfd| pidfd.check_permission().is_ok()) else {
                continue;
            };
            // Its memory and its command line are read again, after the pidfd was opened.
            let table = &self.population.table;
            let known = table.find(pid).and_then(|index| table.entries()[index].reading);
            let read = self.examiner.examine(pid, known.as_ref(), policy, &Counters::UNKNOWN, Detail::Victim);
            let Some(reading) = read.ok().filter(Reading::eligible) else { continue };
            if self.examiner.cgroup[..] != *cgroup {
                continue;
            }
            // One that is known to share its memory gives back nothing alone. To find that out takes too long here.
            let (bytes, precision) = match considered.bytes {
                Some(bytes) => (bytes.min(reading.estimate()), considered.precision),
                None => (reading.estimate(), Precision::Guess),
            };
            if bytes < reading.estimate() / MIN_OWN_DIVISOR || !pidfd.is_alive().unwrap_or(false) {
                continue;
            }
            let cgroup = cgroup_path::cut(&self.examiner.cgroup);
            let found = Found { pidfd, pid, reading, cgroup, back: Back { bytes, precision, sample: None } };
            return Some(found.into_choice(Cost { took: began.elapsed(), ..Cost::default() }));
        }
        None
    }

    /// Goes through all that a choice may need, so that it is in memory then. From now on the child `dummy` of
    /// this process may be chosen, and no other one.
    pub fn rehearse(&mut self, policy: &Policy, dummy: Pid) {
        self.examiner.dummy = Some(dummy);
        self.examiner.readers.rehearse(Instant::now() + REHEARSAL_TIME);
        self.rehearse_group(policy, dummy);
        // To go through all rules.
        black_box(policy.judge(&Subject {
            pid: dummy,
            comm: b"-",
            command_line: Some(b"-"),
            exe: Exe::Path(b"/-/-"),
            uid: u32::MAX,
            cgroup: b"/-.slice/-.slice/-.scope/-",
            oom_score_adj: 0,
            preference: OomPreference::None,
        }));
    }

    /// Goes through the choice of a cgroup, and of a process in it, with the cgroup of `dummy`.
    fn rehearse_group(&mut self, policy: &Policy, dummy: Pid) {
        let now = self.population.begin_round(&mut self.examiner);
        self.membership.find_cgroups(&mut self.examiner);
        let mut selection = Selection::new(self, policy, now, Within::Anywhere);
        selection.best_group();
        let table = &selection.chooser.population.table;
        let index = table.find(dummy);
        let reading = index.and_then(|index| table.entries()[index].reading);
        // Nobody shares so much with it.
        if let (Some(index), Some(_)) = (index, reading) {
            selection.sharers.push(Sharer { index, shared: u64::MAX });
            selection.best_pool(0, false);
        }
        let groups = selection.chooser.membership.groups.as_ref();
        if let Some(leaf) = reading.and_then(|reading| groups?.leaf(reading.cgroup_hash)) {
            GroupSelection(&mut selection).exact(u32::try_from(leaf).unwrap_or(u32::MAX), None);
            selection.best_member(leaf, true);
            selection.best_member(leaf, false);
        }
    }

    fn select(&mut self, policy: &Policy, scope: Scope<'_>) -> Option<Selected> {
        let now = self.population.begin_round(&mut self.examiner);
        let within = match scope {
            Scope::All => {
                self.membership.find_cgroups(&mut self.examiner);
                Within::Anywhere
            }
            Scope::Below(path) => {
                self.membership.find_below(path, &mut self.examiner);
                self.membership.list_found(&mut self.examiner, &mut self.population.table);
                Within::Below(path)
            }
            Scope::One(pid) => {
                self.membership.find_cgroups(&mut self.examiner);
                self.membership.members.clear();
                self.membership.members.push(pid);
                Within::One
            }
        };
        let mut selection = Selection::new(self, policy, now, within);
        // First, so that no process is read exactly that a cgroup beats anyway.
        let by_cgroup = selection.chooser.grouping.by_cgroup && !matches!(scope, Scope::One(_));
        let group = by_cgroup.then(|| selection.best_group()).flatten();
        selection.list_again();
        let mut floor = group.map_or(0, |(score, _)| score);
        let mut best = selection.best_process(floor);
        // A process of a group that shares what it holds, and what that counts.
        let mut sharing = None;
        if best.is_none()
            && let Some((score, (leaf, oom_group))) = group
        {
            let outside = std::mem::take(&mut selection.sharers);
            best = selection.best_member(leaf, oom_group);
            // Its processes give back together what they share, and not one by one.
            let shares = !oom_group && selection.shares(score / 2);
            outside.into_iter().for_each(|sharer| selection.note_sharer(sharer));
            // A group that has just vanished has no process.
            if shares || best.is_none() {
                sharing = best.take().map(|(_, found)| (score, found));
                selection.chooser.considered.clear();
                selection.allow_more_time();
                selection.list_again();
                (floor, best) = (0, selection.best_process(0));
            }
        }
        // In a group that is killed as a whole everybody dies that shares memory there.
        let best_score = best.as_ref().map_or(0, |(score, _)| *score).max(floor);
        let may_share = selection.chooser.grouping.whole;
        let pool = match within {
            Within::One => PoolSearch::None,
            _ => selection.best_pool(best_score, may_share && sharing.is_some()),
        };
        let (found, pool) = match (pool, sharing) {
            (PoolSearch::Found(found, pool), _) => (found, pool),
            (PoolSearch::Unknown, Some((score, found))) if may_share && score / MIN_GAIN > best_score => {
                let group = selection.describe_group(&found).map(|group| Group { shares: true, ..group });
                if let Some(leaf) = selection.chooser.whole_leaf(group, &found) {
                    return Some(Selected { found, pool: Pool::new(), group, leaf: Some(leaf) });
                }
                (best?.1, Pool::new())
            }
            _ => (best?.1, Pool::new()),
        };
        let group = selection.describe_group(&found);
        let leaf = self.whole_leaf(group, &found);
        Some(Selected { found, pool, group, leaf })
    }

    /// Opens the leaf cgroup of a victim, whose members were listed last, if there are others in it that may be killed
    /// with it.
    fn whole_leaf(&self, group: Option<Group>, found: &Found) -> Option<Leaf> {
        group.filter(|group| group.expendable && group.processes > 1)?;
        let groups = self.membership.groups.as_ref()?;
        // It may be another one with that path by now.
        let is_in = groups.cgroup(&found.cgroup)?.contains(found.pid) == Ok(true);
        // All of what counts its memory, which the process may be below.
        let cgroup = groups.open_leaf(found.reading.cgroup_hash).filter(|_| is_in)?;
        Some(Leaf::new(cgroup, &self.membership.members))
    }
}

impl Selection<'_> {
    /// Lists the processes below a cgroup again, after those of single leaves were.
    fn list_again(&mut self) {
        if matches!(self.within, Within::Below(_)) {
            let chooser = &mut *self.chooser;
            chooser.membership.list_found(&mut chooser.examiner, &mut chooser.population.table);
        }
    }

    /// Returns the best process of a leaf. If all of it is killed with it, one that may be the best.
    fn best_member(&mut self, leaf: usize, oom_group: bool) -> Option<(u64, Found)> {
        if !self.chooser.membership.list_leaf(leaf, &mut self.chooser.examiner) {
            return None;
        }
        let outside = std::mem::replace(&mut self.within, Within::Leaf(leaf));
        self.exactly = !oom_group;
        self.chooser.considered.clear();
        let best = self.best_process(0);
        (self.within, self.exactly) = (outside, true);
        best
    }

    /// Returns the process with the greatest score, if that is at least `floor`, and the score.
    fn best_process(&mut self, floor: u64) -> Option<(u64, Found)> {
        let mut heap = std::mem::take(&mut self.chooser.heap);
        heap.clear();
        let members = match self.within {
            Within::Anywhere => None,
            Within::Below(_) | Within::Leaf(_) | Within::One => Some(&self.chooser.membership.members),
        };
        let round = self.chooser.population.table.round;
        for (index, entry) in self.chooser.population.table.entries().iter().enumerate() {
            let bound = match &entry.reading {
                // A process without memory gives nothing back; one that was a kernel thread when it was read
                // (few programs start as one) is found at the next refresh.
                Some(reading) if !reading.holds_memory() || reading.upper_bound(&self.now) < self.min_bytes() => {
                    continue;
                }
                Some(reading) => {
                    let (bytes, is_new) = (reading.upper_bound(&self.now), entry.last_round == round);
                    // It may run another program by now, for which other rules hold.
                    let other = if is_new { 0 } else { Verdict::PLAIN.score(bytes) };
                    reading.verdict.score(bytes).max(other)
                }
                None => u64::MAX,
            };
            if !entry.gone && members.is_none_or(|members| members.binary_search(&entry.pid).is_ok()) {
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                heap.push(Candidate { bound, pid: entry.pid.get(), index, fresh: false });
            }
        }
        let best = best(&mut heap, self, floor);
        // The next ones.
        while self.chooser.considered.len() < MAX_CONSIDERED
            && let Some(next) = heap.pop()
        {
            self.add_considered(next.index as usize, None);
        }
        self.chooser.heap = heap;
        best
    }

    /// Returns the leaf cgroup with the greatest score that may be killed as a whole, whether it always is
    /// (memory.oom.group), and the score.
    fn best_group(&mut self) -> Option<(u64, (usize, bool))> {
        self.chooser.membership.groups.as_ref()?;
        // Whether a group may be killed depends on all that are in it.
        for index in 0..self.chooser.population.table.len() {
            if self.chooser.population.table.get(index).reading.is_none() && !self.is_late() {
                self.read(index, Detail::Memory);
            }
        }
        let chooser = &mut *self.chooser;
        let groups = chooser.membership.groups.as_mut()?;
        groups.tally(chooser.population.table.entries());
        let mut heap = std::mem::take(&mut chooser.heap);
        heap.clear();
        let min_bytes = chooser.min_bytes;
        groups.expendable(|index, bytes, verdict| {
            if bytes < min_bytes {
                return;
            }
            let id = i32::try_from(index).unwrap_or(i32::MAX);
            let bound = verdict.score(bytes);
            heap.push(Candidate { bound, pid: id, index: id.unsigned_abs(), fresh: true });
        });
        let best = best(&mut heap, &mut GroupSelection(self), 0);
        self.chooser.heap = heap;
        best
    }

    /// Reads the leaf cgroup of a victim.
    fn describe_group(&mut self, found: &Found) -> Option<Group> {
        let groups = self.chooser.membership.groups.as_ref()?;
        let leaf = groups.leaf(found.reading.cgroup_hash)?;
        let (bytes, oom_group) = groups.bytes(leaf, &mut self.chooser.examiner.buffer)?;
        let tally = self.tally_leaf(leaf);
        Some(Group {
            bytes: tally.map_or(bytes, |tally| tally.comes_back(bytes)),
            processes: tally.map_or(self.chooser.membership.leaf_processes, |tally| tally.processes),
            expendable: tally.is_some_and(|tally| tally.expendable()),
            oom_group,
            shares: false,
        })
    }

    /// Reads all members of a leaf; `None` when they are too many or cannot be read in time.
    fn tally_leaf(&mut self, leaf: usize) -> Option<Tally> {
        let deadline = self.deadline;
        let chooser = &mut *self.chooser;
        if !chooser.membership.list_leaf(leaf, &mut chooser.examiner) {
            return None;
        }
        let table = &chooser.population.table;
        let mut tally = Tally::EMPTY;
        for pid in &chooser.membership.members {
            if Instant::now() >= deadline {
                return None;
            }
            let old = table.find(*pid).and_then(|index| table.entries()[index].reading);
            match chooser.examiner.examine(*pid, old.as_ref(), self.policy, &self.now, Detail::Victim) {
                Ok(reading) => tally.count(&reading),
                // Not one that /proc hides (hidepid=2).
                Err(Failure::Gone) if PidFd::open(*pid).is_err() => {}
                Err(_) => return None,
            }
        }
        Some(tally)
    }
}

impl Scores for Selection<'_> {
    type Found = Found;

    fn fresh_bound(&mut self, index: u32) -> Option<u64> {
        let index = index as usize;
        let is_late = self.is_late();
        if !is_late {
            self.read(index, Detail::Memory);
        }
        let (min_bytes, entry) = (self.min_bytes(), self.chooser.population.table.get(index));
        let reading = entry.reading.as_ref().filter(|r| r.eligible())?;
        let bytes = if is_late { reading.estimate() } else { reading.upper_bound(&self.now) };
        (bytes >= min_bytes).then(|| reading.verdict.score(bytes))
    }

    fn exact(&mut self, index: u32, best: Option<(&mut u64, &mut Found)>) -> Option<(u64, Found)> {
        let index = index as usize;
        let (pidfd, reading) = self.open(index)?;
        if !self.exactly || self.is_late() {
            return self.found(index, pidfd, reading, Back::guess(&reading));
        }
        let mut back = self.read_back(&reading)?;
        self.note_shared(index, &reading, &back);
        if let Some((best_score, best)) = best {
            let score = |reading: &Reading, (least, most)| (reading.verdict.score(least), reading.verdict.score(most));
            let ours = score(&reading, back.range());
            let theirs = score(&best.reading, best.back.range());
            if ours.0 < theirs.1 && theirs.0 < ours.1 {
                self.look_closer(&reading, &mut back);
                self.look_closer(&best.reading, &mut best.back);
                *best_score = best.reading.verdict.score(best.back.bytes);
                if let Some(considered) = self.chooser.considered.iter_mut().find(|c| c.pid == best.pid) {
                    (considered.bytes, considered.precision) = (Some(best.back.bytes), best.back.precision);
                    considered.score = *best_score;
                }
            }
        }
        self.found(index, pidfd, reading, back)
    }
}

/// The choice of the best group. Candidates' bounds are fresh.
struct GroupSelection<'a, 'b>(&'a mut Selection<'b>);

impl Scores for GroupSelection<'_, '_> {
    type Found = (usize, bool);

    fn fresh_bound(&mut self, _index: u32) -> Option<u64> {
        None
    }

    fn exact(&mut self, index: u32, _best: Option<(&mut u64, &mut (usize, bool))>) -> Option<(u64, (usize, bool))> {
        let index = index as usize;
        let tally = self.0.tally_leaf(index).filter(Tally::expendable)?;
        let chooser = &mut *self.0.chooser;
        let groups = chooser.membership.groups.as_ref()?;
        let (charged, oom_group) = groups.bytes(index, &mut chooser.examiner.buffer)?;
        let bytes = tally.comes_back(charged);
        if bytes < chooser.min_bytes {
            return None;
        }
        Some((tally.score(bytes), (index, oom_group)))
    }
}
