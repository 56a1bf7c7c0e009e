//! The search for the best of many when looking closely is dear.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// One of those to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its score is not greater than this.
    pub(super) bound: u64,
    /// Decides between equals: the lowest wins. Of a process that waits in vfork(2) and its child, which
    /// use the same memory, that is the parent, without whom the child goes on.
    pub(super) pid: i32,
    /// Whose it is, for the caller.
    pub(super) index: u32,
    /// The bound is of now.
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

/// Ways to look at a candidate. `None` when it need not be considered any more.
pub(super) trait Readings {
    /// What is known of the best one.
    type Found;

    /// A bound that is of now.
    fn look(&mut self, index: u32) -> Option<u64>;

    /// A score that the true one is not below, if one is known without looking closely. The bound is of now.
    fn floor(&mut self, index: u32) -> Option<u64>;

    /// What is known of one whose floor has decided, and its score as far as that is known.
    fn recall(&mut self, index: u32) -> Option<(u64, Self::Found)>;

    /// The true score.
    fn exact(&mut self, index: u32) -> Option<(u64, Self::Found)>;
}

/// The one with the greatest true score: the same as if all were read exactly, because none is left
/// out whose bound could beat the best. Leaves those that were not read exactly in the heap, but for
/// what [`Readings`] has dismissed.
pub(super) fn best<R: Readings>(
    candidates: &mut BinaryHeap<Candidate>,
    readings: &mut R,
) -> Option<(u64, R::Found)> {
    let mut best: Option<(Candidate, R::Found)> = None;
    // One whose floor is above the best that was read exactly, with that as its bound.
    let mut floor: Option<Candidate> = None;
    loop {
        let beaten = floor.or(best.as_ref().map(|(best, _)| *best));
        let next = candidates.peek().copied().filter(|next| beaten.is_none_or(|b| next.rank() > b.rank()));
        let read = match (next, floor) {
            (None, None) => break,
            (None, Some(leader)) => {
                let recalled = readings.recall(leader.index);
                if recalled.is_some() {
                    return recalled;
                }
                floor = None;
                continue;
            }
            (Some(next), _) if !next.fresh => {
                candidates.pop();
                if let Some(bound) = readings.look(next.index) {
                    candidates.push(Candidate { bound, fresh: true, ..next });
                }
                continue;
            }
            // Its floor does not decide.
            (Some(_), Some(leader)) => {
                floor = None;
                leader
            }
            (Some(next), None) => {
                candidates.pop();
                let known = readings.floor(next.index).map(|bound| Candidate { bound, ..next });
                if known.is_some_and(|known| beaten.is_none_or(|b| known.rank() > b.rank())) {
                    floor = known;
                    continue;
                }
                next
            }
        };
        let Some((score, found)) = readings.exact(read.index) else { continue };
        let read = Candidate { bound: score, ..read };
        if best.as_ref().is_none_or(|(best, _)| read.rank() > best.rank()) {
            best = Some((read, found));
        }
    }
    best.map(|(candidate, found)| (candidate.bound, found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Verdict;

    /// Marsaglia's xorshift64: fast, and the same on every run.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }
    }

    #[derive(Clone, Copy)]
    struct Process {
        pid: i32,
        stale: u64,
        bound: u64,
        exact: u64,
        /// What the exact figure is not below.
        floor: Option<u64>,
        gone: bool,
        verdict: Verdict,
    }

    struct Population {
        all: Vec<Process>,
        looks: usize,
        exacts: usize,
        recalls: usize,
    }

    impl Readings for Population {
        type Found = i32;

        fn look(&mut self, index: u32) -> Option<u64> {
            self.looks += 1;
            let p = self.all[index as usize];
            // One may end after it was looked at.
            (!p.gone || p.pid % 2 == 0).then(|| p.verdict.score(p.bound))
        }

        fn floor(&mut self, index: u32) -> Option<u64> {
            let p = self.all[index as usize];
            p.floor.map(|floor| p.verdict.score(floor))
        }

        fn recall(&mut self, index: u32) -> Option<(u64, i32)> {
            self.recalls += 1;
            let p = self.all[index as usize];
            (!p.gone).then(|| (p.verdict.score(p.exact), p.pid))
        }

        fn exact(&mut self, index: u32) -> Option<(u64, i32)> {
            self.exacts += 1;
            let p = self.all[index as usize];
            (!p.gone).then(|| (p.verdict.score(p.exact), p.pid))
        }
    }

    fn population(random: &mut Random) -> Population {
        let n = random.below(200);
        // Small numbers, so that there are many ties.
        let spread = [4, 1000, 1 << 40][random.below(3) as usize];
        // How far bounds are off, so that floors decide as well.
        let width = [1, spread / 50 + 1, spread][random.below(3) as usize];
        let factors = [1.0, 1.0, 1.0, 0.1, 2.0, 0.0];
        let all = (0..n)
            .map(|i| {
                let exact = random.below(spread);
                let bound = exact + random.below(width);
                let offset = if random.below(4) == 0 {
                    random.below(2 * spread).cast_signed() - spread.cast_signed()
                } else {
                    0
                };
                Process {
                    pid: i32::try_from(i + 2).unwrap(),
                    exact,
                    bound,
                    stale: bound + random.below(width),
                    floor: (random.below(2) == 0).then(|| exact.saturating_sub(random.below(width))),
                    gone: random.below(10) == 0,
                    verdict: Verdict {
                        never: random.below(10) == 0,
                        factor: factors[random.below(6) as usize],
                        offset,
                        rule: None,
                    },
                }
            })
            .collect();
        Population { all, looks: 0, exacts: 0, recalls: 0 }
    }

    #[test]
    fn the_best_is_that_of_reading_all() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let (mut decided, mut vain) = (0, 0);
        for round in 0..5000 {
            let mut population = population(&mut random);
            let mut heap: BinaryHeap<_> = population
                .all
                .iter()
                .enumerate()
                .filter(|(_, p)| !p.verdict.never)
                .map(|(i, p)| Candidate {
                    bound: p.verdict.score(p.stale),
                    pid: p.pid,
                    index: u32::try_from(i).unwrap(),
                    fresh: false,
                })
                .collect();
            let expected = population
                .all
                .iter()
                .filter(|p| !p.verdict.never && !p.gone)
                .max_by_key(|p| (p.verdict.score(p.exact), Reverse(p.pid)))
                .map(|p| (p.verdict.score(p.exact), p.pid));
            assert_eq!(best(&mut heap, &mut population), expected, "round {round}");
            assert!(population.exacts <= population.looks);
            decided += usize::from(population.recalls > 0);
            vain += usize::from(population.recalls > 1);
        }
        assert!(decided > 1000 && vain > 20, "{decided} {vain}");
    }

    #[test]
    fn what_cannot_win_is_not_looked_at() {
        let verdict = Verdict { never: false, factor: 1.0, offset: 0, rule: None };
        let process = |pid, exact: u64| Process {
            pid,
            stale: exact + 20,
            bound: exact + 10,
            exact,
            floor: None,
            gone: false,
            verdict,
        };
        let all: Vec<_> = (1..=1000).map(|i| process(i, u64::try_from(i).unwrap() * 100)).collect();
        let mut heap: BinaryHeap<_> = all
            .iter()
            .enumerate()
            .map(|(i, p)| Candidate {
                bound: p.stale,
                pid: p.pid,
                index: u32::try_from(i).unwrap(),
                fresh: false,
            })
            .collect();
        let mut population = Population { all, looks: 0, exacts: 0, recalls: 0 };
        assert_eq!(best(&mut heap, &mut population), Some((100_000, 1000)));
        assert_eq!((population.looks, population.exacts), (1, 1));
        assert_eq!(heap.len(), 999);
    }

    #[test]
    fn a_floor_above_all_bounds_is_enough() {
        let verdict = Verdict { never: false, factor: 1.0, offset: 0, rule: None };
        let run = |floor, decoy| {
            let process = |pid, exact, bound, floor| Process {
                pid,
                stale: bound,
                bound,
                exact,
                floor,
                gone: false,
                verdict,
            };
            // One that only looks large is read first; the next two are decided by what is known.
            let all = vec![
                process(1, 10, decoy, None),
                process(2, 900, 1000, floor),
                process(3, 800, 850, Some(700)),
            ];
            let mut heap: BinaryHeap<_> = (0_u32..)
                .zip(&all)
                .map(|(index, p)| Candidate { bound: p.stale, pid: p.pid, index, fresh: false })
                .collect();
            let mut population = Population { all, looks: 0, exacts: 0, recalls: 0 };
            let found = best(&mut heap, &mut population);
            (found, population.exacts, population.recalls)
        };
        let hog = Some((900, 2));
        assert_eq!(run(Some(860), 800), (hog, 0, 1));
        assert_eq!(run(Some(860), 2000), (hog, 1, 1));
        // Another one could have more; its own bound settles it then.
        assert_eq!(run(Some(840), 800), (hog, 1, 0));
        assert_eq!(run(None, 800), (hog, 1, 0));
    }
}
