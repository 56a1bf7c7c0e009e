// SPDX-License-Identifier: GPL-2.0-only

use fastrand::Rng;

use super::*;
use crate::policy::Verdict;

#[derive(Clone, Copy)]
struct Process {
    pid: i32,
    stale: u64,
    bound: u64,
    exact: u64,
    gone: bool,
    verdict: Verdict,
}

struct Population {
    all: Vec<Process>,
    fresh_bounds: usize,
    exacts: usize,
}

impl Scores for Population {
    type Found = i32;

    fn fresh_bound(&mut self, index: u32) -> Option<u64> {
        self.fresh_bounds += 1;
        let p = self.all[index as usize];
        // One may exit after it was read.
        (!p.gone || p.pid % 2 == 0).then(|| p.verdict.score(p.bound))
    }

    fn exact(&mut self, index: u32, _best: Option<(&mut u64, &mut i32)>) -> Option<(u64, i32)> {
        self.exacts += 1;
        let p = self.all[index as usize];
        (!p.gone).then(|| (p.verdict.score(p.exact), p.pid))
    }
}

fn population(rng: &mut Rng) -> Population {
    let n = rng.u64(..200);
    // Small numbers, so that there are many ties.
    let spread = [4, 1000, 1 << 40][rng.usize(..3)];
    // How far bounds are off.
    let width = [1, spread / 50 + 1, spread][rng.usize(..3)];
    let factors = [1.0, 1.0, 1.0, 0.1, 2.0, 0.0];
    let all = (0..n)
        .map(|i| {
            let exact = rng.u64(..spread);
            let bound = exact + rng.u64(..width);
            let offset = if rng.u64(..4) == 0 { rng.u64(..2 * spread).cast_signed() - spread.cast_signed() } else { 0 };
            Process {
                pid: i32::try_from(i + 2).unwrap(),
                exact,
                bound,
                stale: bound + rng.u64(..width),
                gone: rng.u64(..10) == 0,
                verdict: Verdict {
                    never: rng.u64(..10) == 0,
                    factor: factors[rng.usize(..6)],
                    up_to: u64::MAX,
                    offset,
                    rule: None,
                },
            }
        })
        .collect();
    Population { all, fresh_bounds: 0, exacts: 0 }
}

#[test]
fn the_best_is_that_of_reading_all() {
    let mut rng = Rng::with_seed(0);
    for round in 0..7500 {
        let mut population = population(&mut rng);
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
        // Just what the best has, just more, or nothing.
        let best_score = expected.map_or(0, |(score, _)| score);
        let floor = [0, best_score, best_score + 1][rng.usize(..3)];
        let expected = expected.filter(|(score, _)| *score >= floor);
        assert_eq!(best(&mut heap, &mut population, floor), expected, "round {round}");
        assert!(population.exacts <= population.fresh_bounds);
    }
}

#[test]
fn what_cannot_win_is_not_looked_at() {
    let verdict = Verdict::PLAIN;
    let process = |pid, exact: u64| Process { pid, stale: exact + 20, bound: exact + 10, exact, gone: false, verdict };
    let all: Vec<_> = (1..=1000).map(|i| process(i, u64::try_from(i).unwrap() * 100)).collect();
    let mut heap: BinaryHeap<_> = all
        .iter()
        .enumerate()
        .map(|(i, p)| Candidate { bound: p.stale, pid: p.pid, index: u32::try_from(i).unwrap(), fresh: false })
        .collect();
    let mut population = Population { all, fresh_bounds: 0, exacts: 0 };
    assert_eq!(best(&mut heap, &mut population, 0), Some((100_000, 1000)));
    assert_eq!((population.fresh_bounds, population.exacts), (1, 1));
    assert_eq!(heap.len(), 999);
}
