// SPDX-License-Identifier: GPL-2.0-only
//! The exact rank-sum test: whether the values of one group are smaller than those of another.
//!
//! It is for runs that are not paired; [`crate::ab::stats`] compares pairs. Nothing is assumed about the
//! distribution of the noise, only that without a difference all runs are exchangeable. That also holds if
//! conditions drift, as long as the groups alternate; the test is then conservative.

use crate::ab::verdict::Verdict;

/// The probability of a false claim per comparison, both directions together.
const ALPHA: f64 = 0.05;

/// Returns the one-sided p-value: the probability that the rank sum of `values` among both groups is as small
/// as this one or smaller if there is no difference (Wilcoxon 1945; Mann and Whitney 1947). It is exact.
/// Equal values share the mean of their ranks. 1 if a group is empty. Infinity is allowed; NaN is the largest
/// value.
#[must_use]
pub fn p_smaller(values: &[f64], others: &[f64]) -> f64 {
    let mut all: Vec<(f64, bool)> =
        values.iter().map(|v| (*v, true)).chain(others.iter().map(|v| (*v, false))).collect();
    all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    // Twice the rank, so that means of ranks are whole numbers.
    let mut ranks = Vec::with_capacity(all.len());
    let mut found = 0;
    for group in all.chunk_by(|(a, _), (b, _)| a.total_cmp(b).is_eq()) {
        let rank = 2 * ranks.len() + group.len() + 1;
        found += rank * group.iter().filter(|(_, own)| *own).count();
        ranks.extend(std::iter::repeat_n(rank, group.len()));
    }
    // ways[count][sum]: the number of ways to choose `count` ranks with this sum.
    let mut ways = vec![vec![0.0; found + 1]; values.len() + 1];
    let mut choices = vec![0.0; values.len() + 1];
    (ways[0][0], choices[0]) = (1.0, 1.0);
    for rank in ranks {
        for count in (1..=values.len()).rev() {
            choices[count] += choices[count - 1];
            for sum in rank..=found {
                ways[count][sum] += ways[count - 1][sum - rank];
            }
        }
    }
    ways[values.len()].iter().sum::<f64>() / choices[values.len()]
}

/// Compares `ours` with `others[best]`, the best of several groups; smaller is better. Both directions are
/// tested at the same level. The level is divided by the number of groups because the best was chosen after
/// the fact. Returns `Better`, `Worse` or `None`, never `Same`.
#[must_use]
pub fn against_best(ours: &[f64], others: &[Vec<f64>], best: usize) -> Verdict {
    let Some(theirs) = others.get(best) else { return Verdict::None };
    let level = ALPHA / 2.0 / others.len() as f64;
    if p_smaller(ours, theirs) <= level {
        Verdict::Better
    } else if p_smaller(theirs, ours) <= level {
        Verdict::Worse
    } else {
        Verdict::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::stats::median;

    /// The same by enumerating all assignments of values to groups.
    fn by_trying(values: &[f64], others: &[f64]) -> f64 {
        let all: Vec<f64> = [values, others].concat();
        let rank = |v: f64| {
            all.iter()
                .map(|a| {
                    if *a < v {
                        1.0
                    } else if *a == v {
                        0.5
                    } else {
                        0.0
                    }
                })
                .sum::<f64>()
        };
        let found: f64 = values.iter().map(|v| rank(*v)).sum();
        let sums: Vec<f64> = (0_u32..1 << all.len())
            .filter(|set| set.count_ones() as usize == values.len())
            .map(|set| (0..all.len()).filter(|i| set >> i & 1 == 1).map(|i| rank(all[i])).sum())
            .collect();
        sums.iter().filter(|sum| **sum <= found).count() as f64 / sums.len() as f64
    }

    #[test]
    fn it_is_exact() {
        assert!(
            (p_smaller(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]) - 1.0 / 252.0).abs() < 1e-12
        );
        assert!((p_smaller(&[6.0, 7.0], &[1.0, 2.0]) - 1.0).abs() < 1e-12);
        let inf = f64::INFINITY;
        let groups: [&[f64]; 6] =
            [&[], &[3.0], &[1.0, 3.0, 5.0], &[3.0, 3.0, 4.0, inf], &[2.0, 6.0, 6.0, inf, inf], &[0.5; 4]];
        for a in groups {
            for b in groups {
                let (p, tried) = (p_smaller(a, b), by_trying(a, b));
                assert!((p - tried).abs() < 1e-12, "{a:?} {b:?}: {p}, should be {tried}");
            }
        }
    }

    #[test]
    fn a_claim_needs_enough_runs() {
        let runs = |n: u8, from: f64| (0..n).map(|i| from + f64::from(i)).collect::<Vec<_>>();
        let both = |n| [runs(n, 30.0), runs(n, 20.0)];
        assert_eq!(against_best(&runs(5, 10.0), &both(5), 1), Verdict::Better);
        assert_eq!(against_best(&runs(4, 10.0), &both(4), 1), Verdict::None, "luck in two tries");
        assert_eq!(against_best(&runs(4, 10.0), &both(4)[1..], 0), Verdict::Better);
        assert_eq!(against_best(&runs(3, 10.0), &both(3)[1..], 0), Verdict::None, "three runs can be luck");
        assert_eq!(against_best(&runs(5, 25.0), &both(5), 1), Verdict::Worse);
        assert_eq!(against_best(&runs(5, 22.0), &both(5), 1), Verdict::None);
        assert_eq!(against_best(&runs(5, 10.0), &[], 0), Verdict::None);
    }

    /// Exchanging the two groups exchanges the verdicts.
    #[test]
    fn better_and_worse_are_judged_alike() {
        let swapped = |verdict| match verdict {
            Verdict::Better => Verdict::Worse,
            Verdict::Worse => Verdict::Better,
            other => other,
        };
        let mut claims = 0;
        for set in (0_u32..1 << 10).filter(|set| set.count_ones() == 5) {
            let group = |own: u32| -> Vec<f64> {
                (0..10_u8).filter(|i| set >> i & 1 == own).map(f64::from).collect()
            };
            let verdict = against_best(&group(1), &[group(0)], 0);
            claims += usize::from(verdict.is_difference());
            assert_eq!(against_best(&group(0), &[group(1)], 0), swapped(verdict), "{set:b}");
        }
        assert!(claims > 0);
    }

    /// Without a difference, the rate of claims over all assignments of runs is at most [`ALPHA`].
    #[test]
    fn luck_alone_makes_few_claims() {
        const OURS: u32 = 5;
        const THEIRS: u32 = 4;
        let (mut better, mut worse, mut deals) = (0, 0, 0);
        for set in (0_u32..1 << (OURS + 2 * THEIRS)).filter(|set| set.count_ones() == OURS) {
            let (ours, rest): (Vec<u32>, Vec<u32>) = (0..OURS + 2 * THEIRS).partition(|i| set >> i & 1 == 1);
            let ours: Vec<f64> = ours.into_iter().map(f64::from).collect();
            // The two others are interchangeable: the smallest of their runs is the first one's.
            let is_half = |other: &u32| other.count_ones() == THEIRS && other & 1 == 1;
            for other in (0_u32..1 << (2 * THEIRS)).filter(is_half) {
                let of = |own: u32| {
                    let its = |i: &usize| other >> i & 1 == own;
                    (0..rest.len()).filter(its).map(|i| f64::from(rest[i])).collect::<Vec<_>>()
                };
                let theirs = [of(1), of(0)];
                let best = usize::from(median(&theirs[1]) < median(&theirs[0]));
                deals += 1;
                match against_best(&ours, &theirs, best) {
                    Verdict::Better => better += 1,
                    Verdict::Worse => worse += 1,
                    _ => (),
                }
            }
        }
        assert!(better > 0 && worse > 0, "{better} {worse} of {deals}");
        assert!(f64::from(better + worse) / f64::from(deals) <= ALPHA, "{better} {worse} of {deals}");
    }
}
