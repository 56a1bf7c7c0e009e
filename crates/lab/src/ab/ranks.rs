// SPDX-License-Identifier: GPL-2.0-only
//! The exact stratified rank-sum test: whether one contestant's values are smaller than another's over many loads.
//!
//! It is for runs that are not paired; [`crate::ab::stats`] compares pairs. Values are ranked within each load
//! only, because loads differ by more than contestants do, and the rank sums are added up (van Elteren 1960, with
//! equal weights). Nothing is assumed about the distribution of the noise, only that without a difference the runs
//! of a load are exchangeable. That also holds if conditions drift, as long as the groups alternate; the test is
//! then conservative.

/// The runs of two groups under one load.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stratum {
    /// The values of the group in question.
    pub values: Vec<f64>,
    /// The values of the other one.
    pub others: Vec<f64>,
}

impl Stratum {
    /// Returns the same with the groups exchanged.
    pub fn swapped(&self) -> Self {
        Self { values: self.others.clone(), others: self.values.clone() }
    }
}

/// Returns the one-sided p-value: the probability that the rank sums of `values` are together as small as these or
/// smaller if there is no difference. It is exact. Equal values share the mean of their ranks. Strata in which
/// a group is empty do not count; 1 without any other. Infinity is allowed; NaN is the largest value.
pub fn p_smaller(strata: &[Stratum]) -> f64 {
    let (mut found, mut probabilities) = (0, vec![1.0]);
    for stratum in strata.iter().filter(|s| !s.values.is_empty() && !s.others.is_empty()) {
        let (sum, more) = rank_sums(stratum);
        found += sum;
        let mut next = vec![0.0; probabilities.len() + more.len() - 1];
        for (a, p) in probabilities.iter().enumerate() {
            for (b, q) in more.iter().enumerate() {
                next[a + b] += p * q;
            }
        }
        probabilities = next;
    }
    probabilities.iter().take(found + 1).sum::<f64>().min(1.0)
}

/// Returns twice the rank sum of a stratum's values, so that means of ranks are whole numbers, and the probability
/// of each such sum.
fn rank_sums(stratum: &Stratum) -> (usize, Vec<f64>) {
    let mut all: Vec<(f64, bool)> = stratum.values.iter().map(|v| (*v, true)).collect();
    all.extend(stratum.others.iter().map(|v| (*v, false)));
    all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut ranks = Vec::with_capacity(all.len());
    let mut found = 0;
    for group in all.chunk_by(|(a, _), (b, _)| a.total_cmp(b).is_eq()) {
        let rank = 2 * ranks.len() + group.len() + 1;
        found += rank * group.iter().filter(|(_, own)| *own).count();
        ranks.extend(std::iter::repeat_n(rank, group.len()));
    }
    // ways[count][sum]: the number of ways to choose `count` ranks with this sum.
    let own = stratum.values.len();
    let largest: usize = ranks.iter().sum();
    let mut ways = vec![vec![0.0; largest + 1]; own + 1];
    ways[0][0] = 1.0;
    for rank in ranks {
        for count in (1..=own).rev() {
            for sum in rank..=largest {
                ways[count][sum] += ways[count - 1][sum - rank];
            }
        }
    }
    let all_ways: f64 = ways[own].iter().sum();
    (found, ways[own].iter().map(|n| n / all_ways).collect())
}

/// Returns which of several hypotheses are rejected so that the probability of one or more false rejections is at
/// most `alpha` (Holm 1979).
pub fn holm(p_values: &[f64], alpha: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut rejected = vec![false; p_values.len()];
    for (place, &i) in order.iter().enumerate() {
        if p_values[i] > alpha / (p_values.len() - place) as f64 {
            break;
        }
        rejected[i] = true;
    }
    rejected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stratum(values: &[f64], others: &[f64]) -> Stratum {
        Stratum { values: values.to_vec(), others: others.to_vec() }
    }

    /// Returns the rank sums of all assignments of a stratum's values to its groups, the real one first.
    fn all_sums(stratum: &Stratum) -> Vec<f64> {
        let all: Vec<f64> = [stratum.values.clone(), stratum.others.clone()].concat();
        let rank = |v: f64| -> f64 {
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
                .sum()
        };
        let sets = (0_u32..1 << all.len()).filter(|s| s.count_ones() as usize == stratum.values.len());
        let sum = |set: u32| (0..all.len()).filter(|i| set >> i & 1 == 1).map(|i| rank(all[i])).sum();
        std::iter::once(stratum.values.iter().map(|v| rank(*v)).sum()).chain(sets.map(sum)).collect()
    }

    #[test]
    fn it_is_exact() {
        let inf = f64::INFINITY;
        let groups: [&[f64]; 5] = [&[3.0], &[1.0, 3.0, 5.0], &[3.0, 3.0, 4.0, inf], &[2.0, 6.0, inf], &[0.5; 4]];
        for a in groups {
            for b in groups {
                let strata = [stratum(a, b), stratum(&[1.0, 4.0], &[2.0, 3.0, 9.0])];
                let (first, second) = (all_sums(&strata[0]), all_sums(&strata[1]));
                let found = first[0] + second[0];
                let sums: Vec<f64> = first[1..].iter().flat_map(|x| second[1..].iter().map(move |y| x + y)).collect();
                let tried = sums.iter().filter(|sum| **sum <= found).count() as f64 / sums.len() as f64;
                let p = p_smaller(&strata);
                assert!((p - tried).abs() < 1e-12, "{a:?} {b:?}: {p}, should be {tried}");
            }
        }
        let five = stratum(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]);
        assert!((p_smaller(&[five]) - 1.0 / 252.0).abs() < 1e-12);
        assert_eq!(p_smaller(&[]), 1.0);
        assert_eq!(p_smaller(&[stratum(&[], &[1.0]), stratum(&[1.0], &[])]), 1.0);
    }

    #[test]
    fn loads_add_up() {
        let three = |from: f64| vec![from, from + 1.0, from + 2.0];
        let load = |level: f64| stratum(&three(level), &three(level + 10.0));
        assert!((p_smaller(&[load(0.0)]) - 0.05).abs() < 1e-12);
        assert!((p_smaller(&[load(0.0), load(1000.0)]) - 0.0025).abs() < 1e-12);
        let mixed = [load(0.0), load(0.0).swapped()];
        assert!(p_smaller(&mixed) > 0.4, "one load each way says nothing");
        // Exchanging the groups exchanges the directions.
        assert_eq!(p_smaller(&mixed.each_ref().map(Stratum::swapped)), p_smaller(&mixed));
    }

    #[test]
    fn many_claims_need_more_each() {
        assert_eq!(holm(&[0.04, 0.01, 0.03], 0.05), [false, true, false]);
        assert_eq!(holm(&[0.04, 0.01, 0.02], 0.05), [true, true, true]);
        assert_eq!(holm(&[0.9, 0.0], 0.05), [false, true]);
        assert_eq!(holm(&[], 0.05), [false; 0]);
    }
}
