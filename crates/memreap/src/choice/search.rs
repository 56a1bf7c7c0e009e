// SPDX-License-Identifier: GPL-2.0-only
//! Finds the best of many candidates when an exact reading is expensive.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// One of those to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its score is not greater than this.
    pub(super) bound: u64,
    /// Decides between equals: the lowest wins. Of a process that waits in vfork(2) and its child, which use
    /// the same memory, that is usually the parent.
    pub(super) pid: i32,
    /// Identifies it to the caller.
    pub(super) index: u32,
    /// The bound is current.
    pub(super) fresh: bool,
}

impl Candidate {
    fn rank(&self) -> (u64, Reverse<i32>) {
        (self.bound, Reverse(self.pid))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.rank(), self.index, self.fresh).cmp(&(other.rank(), other.index, other.fresh))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The scores of candidates, at increasing cost. `None` when a candidate need not be considered any more.
pub(super) trait Scores {
    /// What is returned about the best one.
    type Found;

    /// Returns a current upper bound.
    fn fresh_bound(&mut self, index: u32) -> Option<u64>;

    /// Returns the exact score. When that of the best one until now is not known well enough to tell which of the
    /// two is better, it is corrected.
    fn exact(&mut self, index: u32, best: Option<(&mut u64, &mut Self::Found)>) -> Option<(u64, Self::Found)>;
}

/// Returns the candidate with the greatest exact score: the same as if all were read exactly, because none is
/// left out whose upper bound could beat the best. One with a score below `floor` is of no interest. Leaves
/// those that were not read exactly in the heap, except for those that [`Scores`] has dismissed.
pub(super) fn best<R: Scores>(
    candidates: &mut BinaryHeap<Candidate>,
    scores: &mut R,
    floor: u64,
) -> Option<(u64, R::Found)> {
    let mut best: Option<(Candidate, R::Found)> = None;
    while let Some(next) = candidates.peek().copied()
        && next.bound >= floor
        && best.as_ref().is_none_or(|(best, _)| next.rank() > best.rank())
    {
        candidates.pop();
        if !next.fresh {
            if let Some(bound) = scores.fresh_bound(next.index) {
                candidates.push(Candidate { bound, fresh: true, ..next });
            }
        } else if let Some((score, found)) =
            scores.exact(next.index, best.as_mut().map(|(best, found)| (&mut best.bound, found)))
        {
            let read = Candidate { bound: score, ..next };
            if best.as_ref().is_none_or(|(best, _)| read.rank() > best.rank()) {
                best = Some((read, found));
            }
        }
    }
    best.map(|(candidate, found)| (candidate.bound, found)).filter(|(score, _)| *score >= floor)
}

#[cfg(test)]
mod tests;
