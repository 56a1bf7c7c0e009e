// SPDX-License-Identifier: GPL-2.0-only
//! Statistics: from the numbers of the boots to verdicts.
//!
//! A boot yields one number per metric. A *pair* is one boot of each arm, back to back. All tests rest on one
//! assumption: if the change has no effect, the two boots of a pair are exchangeable, so the sign of the
//! pair's log ratio is positive or negative with equal probability. All `2^n` signings of `n` pairs are
//! enumerated. Nothing is assumed about the distribution of the noise, and no random numbers are used.
//!
//! **Estimate.** `ratio` is the geometric mean of the pairs' ratios, oriented so that above 1 is an
//! improvement.
//!
//! **Interval.** The 95 % interval is the set of ratios that the sign-flip test does not reject. Its ends are
//! order statistics of the means over all `2^n - 1` subsets of the pairs (Hartigan 1969). So the interval and
//! the unadjusted `p` cannot contradict each other, and the interval always contains the estimate. It needs
//! six pairs; with exactly six it is the range of the pairs' ratios.
//!
//! **Many metrics.** A run has dozens of metrics, and some differ by chance. `p` is adjusted by the step-down
//! max-T procedure (Westfall and Young 1993; Romano and Wolf 2005): each signing is applied to *all* metrics
//! at once, and a metric is compared with the largest statistic under that signing of all metrics that are
//! not yet decided. Like Holm's correction, it keeps the probability of one or more false claims at or below
//! alpha, whatever is true of the other metrics. Unlike Holm's, it uses the correlation between metrics of
//! the same boots. That is why a few pairs are enough: the smallest p is `2/2^n` for any number of metrics
//! (0.03 with six pairs, 0.008 with eight). Holm with 24 metrics needs ten pairs before it can claim
//! anything.
//!
//! One signing is applied to several scenarios although each has its own boots: flipping pair `i` of all of
//! them together is one of the exchanges that make no difference if the change has no effect.
//!
//! **The statistic** makes metrics comparable before the maximum is taken:
//!
//! ```text
//! T = |mean d| / sqrt((var d + 2 var c) / n + s^2)
//! ```
//!
//! where `d` are the log ratios of the pairs, `c` the pairs' mean log levels and `s` a third of the minimum
//! effect. Without the last two terms it is the paired t statistic. These terms are the same for every
//! signing, so the test of a single metric is still that of the plain mean. But they keep a metric with tiny,
//! nearly constant differences from reaching an enormous `T` under an unrelated signing, which would hide the
//! other metrics.
//!
//! **Zeros.** A count may be 0 in one arm, and then there is no log ratio. If any value of a comparison is 0,
//! an offset is added to all its values: half a count (if all are whole or half numbers, as medians of counts
//! are) or a thousandth of the largest value, whichever is more. So ratios with a zero stay finite and below
//! about 1000, and comparisons without zeros are not affected.
//!
//! **Verdict.** `better` or `worse`: adjusted `p` below alpha, the ratio exceeds the minimum effect, and the
//! metric's A/A control claims no difference. `same`: the whole interval is within the minimum effect, and
//! the control claims no difference. In all other cases, and always with fewer than six pairs, there is no
//! verdict.

use anyhow::{Result, bail, ensure};

use crate::ab::results::Verdict;
use protocol::results::Better;

/// The fewest pairs that can yield a verdict: with five, p is never below 0.05 (2/2^5 = 0.06).
pub const MIN_PAIRS: usize = 6;

/// Returns the smallest p that so many pairs can have: that of a metric of which all say the same.
pub fn smallest_p(pairs: usize) -> f64 {
    2.0_f64.powf(1.0 - pairs as f64)
}

/// The most pairs that can be compared: all `2^pairs` signings are enumerated, so more would take too long.
pub const MAX_PAIRS: usize = 20;

/// The probability that an interval misses the true ratio: the intervals are 95 % intervals.
const INTERVAL_MISS_RATE: f64 = 0.05;

/// Statistics that differ by less are equal but for rounding. Ties count against a claim.
const TIE_TOLERANCE: f64 = 1e-9;

/// The limits for a claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// The probability of one or more false claims among all metrics of a run.
    pub alpha: f64,
    /// The smallest effect that counts, as a fraction: 0.03 is 3 %.
    pub min_effect: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { alpha: 0.05, min_effect: 0.03 }
    }
}

/// The values of one metric. Entry `i` of both arms belongs to pair `i`.
#[derive(Clone, Copy, Debug)]
pub struct Pairs<'a> {
    /// The base arm.
    pub base: &'a [f64],
    /// The changed arm.
    pub changed: &'a [f64],
    /// Which direction is an improvement.
    pub better: Better,
}

/// The result for one metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Geometric mean of the pairs' ratios; above 1 is an improvement.
    pub ratio: f64,
    /// The 95 % interval of the ratio; `None` with fewer than six pairs.
    pub ci95: Option<[f64; 2]>,
    /// The p-value, adjusted for all metrics that are compared together.
    pub p: f64,
    /// The p-value of this metric alone.
    pub p_raw: f64,
    /// The verdict without regard to the A/A control; see [`Comparison::checked_by`].
    pub verdict: Verdict,
}

impl Comparison {
    /// Returns the verdict in view of the metric's A/A control. A metric that differs between boots of the
    /// same kernel is not reliable and gets no verdict.
    pub fn checked_by(&self, control: Option<&Self>) -> Verdict {
        match control {
            Some(control) if control.verdict.is_difference() => Verdict::None,
            _ => self.verdict,
        }
    }
}

/// Returns the median; NaN if there is no value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mid = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[mid],
        _ => f64::midpoint(sorted[mid - 1], sorted[mid]),
    }
}

/// Compares all metrics of one run. The results are in the order of `metrics`.
///
/// # Errors
/// When the metrics have different numbers of boots or a value that has no ratio, or `rules` are out of
/// range.
pub fn compare(metrics: &[Pairs<'_>], rules: Rules) -> Result<Vec<Comparison>> {
    check(metrics, rules)?;
    let samples: Vec<Sample> = metrics.iter().map(|m| Sample::new(m, rules.min_effect)).collect();
    let adjusted = step_down(&samples);
    let comparisons = samples.iter().zip(adjusted).map(|(sample, p)| {
        let ratio = mean(&sample.d).exp();
        let ci95 = interval(&sample.d).map(|ends| ends.map(f64::exp));
        Comparison { ratio, ci95, p, p_raw: sample.p(), verdict: verdict(ratio, ci95, p, sample.d.len(), rules) }
    });
    Ok(comparisons.collect())
}

fn check(metrics: &[Pairs<'_>], rules: Rules) -> Result<()> {
    let Rules { alpha, min_effect } = rules;
    ensure!(
        (0.0..1.0).contains(&alpha) && (0.0..1.0).contains(&min_effect),
        "alpha {alpha} and minimum effect {min_effect}: both must be at least 0 and below 1"
    );
    let Some(expected) = metrics.first().map(|m| m.base.len()) else {
        return Ok(());
    };
    ensure!((1..=MAX_PAIRS).contains(&expected), "{expected} pairs: between 1 and {MAX_PAIRS} can be compared");
    for (index, metric) in metrics.iter().enumerate() {
        for arm in [metric.base, metric.changed] {
            let found = arm.len();
            ensure!(
                found == expected,
                "metric {index}: {found} boots where {expected} are expected: every pair needs both arms and all \
                 metrics"
            );
            if let Some(value) = arm.iter().find(|v| !v.is_finite() || **v < 0.0) {
                bail!("metric {index}: {value} cannot be compared: values must be finite and not negative");
            }
        }
    }
    Ok(())
}

fn verdict(ratio: f64, ci95: Option<[f64; 2]>, p: f64, pairs: usize, rules: Rules) -> Verdict {
    let limit = 1.0 + rules.min_effect;
    let claim = pairs >= MIN_PAIRS && p < rules.alpha;
    match ci95 {
        Some(_) if claim && ratio >= limit => Verdict::Better,
        Some(_) if claim && ratio <= 1.0 / limit => Verdict::Worse,
        // A rounding error in exp(ln(x)) must not turn identical boots into "no verdict".
        Some([lo, hi]) if lo >= 1.0 / limit - TIE_TOLERANCE && hi <= limit + TIE_TOLERANCE => Verdict::Same,
        _ => Verdict::None,
    }
}

/// One metric, prepared for the signings.
struct Sample {
    /// Log ratio of each pair; above 0 is an improvement.
    d: Vec<f64>,
    /// The sum of the squares of `d`. It is the same under every signing.
    square_sum: f64,
    /// The part of the squared standard error that is the same under every signing.
    floor: f64,
}

impl Sample {
    fn new(pairs: &Pairs<'_>, min_effect: f64) -> Self {
        let raise = zero_offset(pairs.base.iter().chain(pairs.changed));
        let log = |v: &f64| (v + raise).ln();
        let (d, level): (Vec<f64>, Vec<f64>) = pairs
            .base
            .iter()
            .map(log)
            .zip(pairs.changed.iter().map(log))
            .map(|(base, changed)| {
                let gain = match pairs.better {
                    Better::Lower => base - changed,
                    Better::Higher => changed - base,
                };
                (gain, f64::midpoint(base, changed))
            })
            .unzip();
        let square_sum = d.iter().map(|x| x * x).sum();
        // Greater than 0, because differences may be exactly equal.
        let smallest = (min_effect.ln_1p() / 3.0).max(1e-6);
        let n = d.len() as f64;
        let floor = 2.0 * variance(&level) / n + smallest * smallest;
        Self { d, square_sum, floor }
    }

    /// Returns the statistic under the signing for which the signed sum of `d` is `sum`.
    fn statistic(&self, sum: f64) -> f64 {
        let n = self.d.len() as f64;
        let mean = sum / n;
        let variance = match self.d.len() {
            1 => 0.0,
            _ => ((self.square_sum - sum * mean) / (n - 1.0)).max(0.0),
        };
        mean.abs() / (variance / n + self.floor).sqrt()
    }

    fn observed(&self) -> f64 {
        self.statistic(self.d.iter().sum())
    }

    /// Calls `each` with the number of a signing and its statistic, for one of each two opposite signings,
    /// which have the same statistic. Signing 0 is the observed one.
    fn each_signing(&self, mut each: impl FnMut(usize, f64)) {
        let (_, free) = self.d.split_last().unwrap_or((&0.0, &[]));
        let total: f64 = self.d.iter().sum();
        for (signing, flipped) in subset_sums(free).into_iter().enumerate() {
            each(signing, self.statistic(total - 2.0 * flipped));
        }
    }

    /// Returns the exact two-sided p-value of this metric alone.
    fn p(&self) -> f64 {
        let observed = self.observed();
        let (mut all, mut extreme) = (0_u32, 0_u32);
        self.each_signing(|_, t| {
            all += 1;
            extreme += u32::from(at_least(t, observed));
        });
        f64::from(extreme) / f64::from(all)
    }
}

/// Returns the offset for all values of a comparison: 0 unless one of them is 0; see the module's
/// documentation.
fn zero_offset<'a>(values: impl Iterator<Item = &'a f64> + Clone) -> f64 {
    if values.clone().all(|v| *v > 0.0) {
        return 0.0;
    }
    let count = if values.clone().all(|v| (v * 2.0).fract() == 0.0) { 0.5 } else { 0.0 };
    let offset = values.fold(count, |most: f64, v| most.max(v / 1000.0));
    // All are 0: any offset makes them equal.
    if offset > 0.0 { offset } else { 1.0 }
}

/// Returns the adjusted p-value of each sample, by step-down max-T over shared signings.
fn step_down(samples: &[Sample]) -> Vec<f64> {
    let Some(first) = samples.first() else {
        return Vec::new();
    };
    let observed: Vec<f64> = samples.iter().map(Sample::observed).collect();
    let mut least_first: Vec<usize> = (0..samples.len()).collect();
    least_first.sort_by(|&a, &b| observed[a].total_cmp(&observed[b]));

    // Under each signing, the largest statistic of the metrics so far. In ascending order these are the
    // metrics that are not yet decided when this one is.
    let mut largest = vec![0.0_f64; 1 << (first.d.len() - 1)];
    let mut p = vec![1.0; samples.len()];
    for &index in &least_first {
        samples[index].each_signing(|signing, t| largest[signing] = largest[signing].max(t));
        let extreme = largest.iter().filter(|t| at_least(**t, observed[index])).count();
        p[index] = extreme as f64 / largest.len() as f64;
    }
    // A metric can be claimed only if all metrics with larger statistics are.
    let mut floor = 0.0_f64;
    for &index in least_first.iter().rev() {
        floor = floor.max(p[index]);
        p[index] = floor;
    }
    p
}

fn at_least(t: f64, observed: f64) -> bool {
    t >= observed - TIE_TOLERANCE * (1.0 + observed)
}

/// Returns the ends of the 95 % interval of the mean of `d`, on the same (log) scale; `None` for too few
/// pairs.
///
/// The sign-flip test rejects a low centre `x` when too few subsets of `d` have means at or below `x`. So
/// each end is the `k`-th subset mean from that side, where `k` is the first that is not rejected.
pub(crate) fn interval(d: &[f64]) -> Option<[f64; 2]> {
    let signings = (1_usize << d.len()) as f64;
    let rejected = (INTERVAL_MISS_RATE / 2.0 * signings).floor() as usize;
    if rejected == 0 {
        return None;
    }
    // The first subset is empty and has no mean.
    let sums = subset_sums(d).into_iter().enumerate().skip(1);
    let mut means: Vec<f64> = sums.map(|(subset, sum)| sum / f64::from(subset.count_ones())).collect();
    let last = means.len() - rejected;
    let lo = *means.select_nth_unstable_by(rejected - 1, f64::total_cmp).1;
    let hi = *means.select_nth_unstable_by(last, f64::total_cmp).1;
    // The mean itself is never rejected; rounding must not exclude it.
    let centre = mean(d);
    Some([lo.min(centre), hi.max(centre)])
}

/// Returns the sums of all subsets. Bit `i` of an index says whether value `i` is in the subset.
fn subset_sums(values: &[f64]) -> Vec<f64> {
    let mut sums = Vec::with_capacity(1 << values.len());
    sums.push(0.0);
    for value in values {
        sums.extend_from_within(..);
        let half = sums.len() / 2;
        sums[half..].iter_mut().for_each(|sum| *sum += value);
    }
    sums
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the sample variance; 0 for fewer than two values.
pub(crate) fn variance(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let centre = mean(values);
    values.iter().map(|v| (v - centre).powi(2)).sum::<f64>() / (values.len() - 1) as f64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn pairs<'a>(base: &'a [f64], changed: &'a [f64]) -> Pairs<'a> {
        Pairs { base, changed, better: Better::Lower }
    }

    fn one(base: &[f64], changed: &[f64]) -> Comparison {
        compare(&[pairs(base, changed)], Rules::default()).unwrap()[0]
    }

    /// Base values whose log ratios against 1 are `d`.
    fn from_logs(d: &[f64]) -> Vec<f64> {
        d.iter().map(|x| x.exp()).collect()
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn p_of_hand_counted_cases() {
        // All signs alike: only the observed signing and its opposite are as extreme.
        let three = one(&from_logs(&[1.0, 2.0, 4.0]), &[1.0; 3]);
        assert!(near(three.p_raw, 2.0 / 8.0), "{three:?}");
        // |3+1-2| = 2: signed sums are +-6, +-4, +-2, 0, 0; six of eight reach 2.
        let mixed = one(&from_logs(&[3.0, 1.0, -2.0]), &[1.0; 3]);
        assert!(near(mixed.p_raw, 6.0 / 8.0), "{mixed:?}");
        // Ties in magnitude: 1+1+1-1 = 2: sums of four +-1 are 4,2,0,-2,-4 (1,4,6,4,1 ways).
        let ties = one(&from_logs(&[1.0, 1.0, 1.0, -1.0]), &[1.0; 4]);
        assert!(near(ties.p_raw, 10.0 / 16.0), "{ties:?}");
        // Ties that floating point does not see as such: 0.1 + 0.2 against 0.3.
        let inexact = one(&from_logs(&[0.1, 0.2, -0.3]), &[1.0; 3]);
        assert!(near(inexact.p_raw, 1.0), "{inexact:?}");
        let six = one(&[2.0; 6], &[1.0; 6]);
        assert!(near(six.p, 2.0 / 64.0) && six.verdict == Verdict::Better, "{six:?}");
    }

    #[test]
    fn one_metric_alone_is_not_adjusted() {
        let comparison = one(&from_logs(&[0.3, 0.1, -0.2, 0.5, 0.2, 0.4]), &[1.0; 6]);
        assert!(near(comparison.p, comparison.p_raw), "{comparison:?}");
    }

    #[test]
    fn max_t_of_a_hand_counted_case() {
        // Levels are constant, so only the ratios matter.
        let arms = |d: [f64; 2]| [from_logs(&d.map(|x| x / 2.0)), from_logs(&d.map(|x| -x / 2.0))];
        let judged = |d: [[f64; 2]; 2]| judge(&d.map(arms));
        // Two pairs have two signings (and their opposites): as observed, and one flipped.
        // First metric: (1, 1); second: (1, -1), which flipped is (1, 1), too. So the maximum
        // reaches the first metric's statistic under both: p rises from 1/2 to 1.
        let both = judged([[1.0, 1.0], [1.0, -1.0]]);
        assert!(near(both[0].p_raw, 0.5) && near(both[0].p, 1.0), "{both:?}");
        assert!(near(both[1].p, 1.0), "{both:?}");
        // A second metric of a far smaller scale cannot reach it: p stays.
        let both = judged([[1.0, 1.0], [0.001, -0.001]]);
        assert!(near(both[0].p, 0.5), "{both:?}");
        // Step-down: the second metric is compared without the first, which is already decided. Under
        // the flip it is (1, -1), so its own p of 1/2 stays although the first is far larger.
        let both = judged([[5.0, 5.0], [1.0, 1.0]]);
        assert!(near(both[0].p, 0.5) && near(both[1].p, 0.5), "{both:?}");
    }

    #[test]
    fn interval_of_six_is_the_span_and_of_eight_the_sixth_subset_mean() {
        let d = [0.1, 0.4, 0.2, 0.3, 0.6, 0.5];
        let [lo, hi] = interval(&d).unwrap();
        assert!(near(lo, 0.1) && near(hi, 0.6));
        // Smallest subset means of 1..8: 1, 1.5 {1,2}, 2 {2}, {1,3}, {1,2,3}, 2.33 {1,2,4}.
        let [lo, hi] = interval(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
        assert!(near(lo, 7.0 / 3.0) && near(hi, 9.0 - 7.0 / 3.0), "{lo} {hi}");
        assert!(interval(&[1.0; 5]).is_none());
    }

    #[test]
    fn interval_is_the_inverted_test() {
        let mut noise = Noise(7);
        for n in [6, 7, 8, 10] {
            let d: Vec<f64> = (0..n).map(|_| 0.1 + 0.2 * noise.normal()).collect();
            let ends = interval(&d).unwrap();
            let p_at = |centre: f64| {
                let shifted: Vec<f64> = d.iter().map(|x| x - centre).collect();
                one(&from_logs(&shifted), &vec![1.0; n]).p_raw
            };
            for (end, outwards) in ends.into_iter().zip([-1.0, 1.0]) {
                assert!(p_at(end - outwards * 1e-6) > 0.05, "n {n}: inside is rejected");
                assert!(p_at(end + outwards * 1e-6) <= 0.05, "n {n}: outside is not rejected");
            }
        }
    }

    #[test]
    fn ratio_above_one_is_an_improvement_either_way() {
        let (slow, fast) = ([20.0; 6], [10.0; 6]);
        assert!(near(one(&slow, &fast).ratio, 2.0));
        assert_eq!(one(&fast, &slow).verdict, Verdict::Worse);
        let higher = Pairs { base: &slow, changed: &fast, better: Better::Higher };
        let higher = compare(&[higher], Rules::default()).unwrap()[0];
        assert!(near(higher.ratio, 0.5));
        assert_eq!(higher.verdict, Verdict::Worse);
    }

    #[test]
    fn zeros_keep_ratios_finite() {
        let counts = one(&[600.0; 6], &[0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
        assert!(counts.ratio > 300.0 && counts.ratio < 1002.0, "{counts:?}");
        assert_eq!(counts.verdict, Verdict::Better);
        let halves = one(&[13.5; 6], &[0.0; 6]);
        assert!(near(halves.ratio, 28.0), "{halves:?}");
        let times = one(&[19.25; 6], &[0.0; 6]);
        assert!(near(times.ratio, 1001.0), "{times:?}");
        let none = one(&[0.0; 6], &[0.0; 6]);
        assert!(near(none.ratio, 1.0) && none.verdict == Verdict::Same, "{none:?}");
        assert!(near(none.p, 1.0));
    }

    #[test]
    fn verdict_needs_effect_and_pairs_and_a_clean_control() {
        // Beyond chance but below the minimum effect.
        let tiny = one(&[1.01; 8], &[1.0; 8]);
        assert_eq!(tiny.verdict, Verdict::Same);
        assert!(tiny.p < 0.01, "{tiny:?}");
        // Huge, but five pairs.
        assert_eq!(one(&[9.0; 5], &[1.0; 5]).verdict, Verdict::None);
        // Large, but the sign is not settled.
        let torn = one(&[2.0, 2.0, 2.0, 2.0, 2.0, 0.5], &[1.0; 6]);
        assert_eq!(torn.verdict, Verdict::None);
        let (good, bad_control) = (one(&[2.0; 6], &[1.0; 6]), one(&[1.0; 6], &[1.1; 6]));
        assert_eq!(good.checked_by(None), Verdict::Better);
        assert_eq!(good.checked_by(Some(&tiny)), Verdict::Better);
        assert_eq!(good.checked_by(Some(&bad_control)), Verdict::None);
    }

    #[test]
    fn bad_input_is_refused() {
        let refused = |m: &[Pairs<'_>], what: &str| {
            let error = compare(m, Rules::default()).unwrap_err().to_string();
            assert!(error.starts_with(what), "{error}");
        };
        let (six, five) = ([1.0; 6], [1.0; 5]);
        refused(&[pairs(&six, &six), pairs(&six, &five)], "metric 1: 5 boots where 6 are expected");
        refused(&[pairs(&[], &[])], "0 pairs: between 1 and 20");
        refused(&[pairs(&[1.0; 21], &[1.0; 21])], "21 pairs");
        refused(&[pairs(&six, &[1.0, 1.0, -1.0, 1.0, 1.0, 1.0])], "metric 0: -1 cannot be compared");
        refused(&[pairs(&[f64::NAN], &[1.0])], "metric 0: NaN cannot be compared");
    }

    /// SplitMix64 with a fixed seed, so that simulations are reproducible.
    pub(in crate::ab) struct Noise(pub(in crate::ab) u64);

    impl Noise {
        /// A number above 0 and below 1.
        pub(in crate::ab) fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
        }

        fn normal(&mut self) -> f64 {
            (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
        }

        /// A Poisson variate, by Knuth's product method.
        fn count(&mut self, mean: f64) -> f64 {
            let (limit, mut product, mut k) = ((-mean).exp(), self.uniform(), 0.0);
            while product > limit {
                product *= self.uniform();
                k += 1.0;
            }
            k
        }
    }

    /// Simulates a run of `n` pairs: metrics with the given (true ratio, noise), then metrics that do not
    /// differ: times with 3 to 24 % noise, correlated within a boot; nearly constant instruction counts; and
    /// small counts, some of them 0.
    fn simulate(noise: &mut Noise, n: usize, effects: &[(f64, f64)]) -> Vec<[Vec<f64>; 2]> {
        let mut run = Vec::new();
        let drift: Vec<f64> = (0..n).map(|_| 0.05 * noise.normal()).collect();
        let mut boot_noise = || -> Vec<f64> { (0..n).map(|_| noise.normal()).collect() };
        let shared = [boot_noise(), boot_noise()];
        let mut add = |ratio: f64, sd: f64, own: &mut dyn FnMut() -> Vec<f64>| {
            let arms = [0, 1].map(|arm| {
                let own = own();
                let level = if arm == 0 { 0.0 } else { -f64::ln(ratio) };
                (0..n).map(|i| (level + drift[i] + sd * (0.5 * shared[arm][i] + 0.87 * own[i])).exp()).collect()
            });
            run.push(arms);
        };
        for &(ratio, sd) in effects {
            add(ratio, sd, &mut boot_noise);
        }
        for k in 1..=8 {
            add(1.0, 0.03 * f64::from(k), &mut boot_noise);
        }
        for _ in 0..3 {
            add(1.0, 0.0005, &mut boot_noise);
        }
        for mean in [0.7, 3.0, 10.0, 60.0] {
            run.push([0, 1].map(|_| (0..n).map(|_| noise.count(mean)).collect()));
        }
        run
    }

    fn judge(run: &[[Vec<f64>; 2]]) -> Vec<Comparison> {
        let metrics: Vec<Pairs<'_>> = run.iter().map(|[a, b]| pairs(a, b)).collect();
        compare(&metrics, Rules::default()).unwrap()
    }

    #[test]
    fn at_most_one_run_in_twenty_makes_a_false_claim() {
        let mut noise = Noise(20_26);
        for n in [6, 8] {
            for effects in [&[][..], &[(50.0, 0.3), (1.3, 0.05), (0.8, 0.1)]] {
                let runs = 1000;
                let mut with_false_claim = 0;
                for _ in 0..runs {
                    let comparisons = judge(&simulate(&mut noise, n, effects));
                    let null = &comparisons[effects.len()..];
                    with_false_claim += u32::from(null.iter().any(|c| c.p < 0.05));
                }
                // 0.05 plus two standard errors of 1000 draws.
                let rate = f64::from(with_false_claim) / f64::from(runs);
                assert!(rate <= 0.05 + 0.014, "n {n}, {} effects: {rate}", effects.len());
            }
        }
    }

    #[test]
    fn clear_effects_are_found_with_six_pairs() {
        let mut noise = Noise(6);
        let effects = [(100.0, 0.4), (1.5, 0.05), (1.3, 0.04), (0.7, 0.05)];
        let mut found = [0; 4];
        let runs = 200;
        for _ in 0..runs {
            let comparisons = judge(&simulate(&mut noise, 6, &effects));
            for (found, c) in found.iter_mut().zip(&comparisons) {
                *found += u32::from(c.verdict.is_difference());
            }
        }
        for (found, (ratio, sd)) in found.iter().zip(effects) {
            assert!(*found >= runs * 8 / 10, "ratio {ratio}, noise {sd}: {found} of {runs}");
        }
    }

    #[test]
    fn twenty_pairs_are_still_quick() {
        let mut noise = Noise(20);
        let run = simulate(&mut noise, 20, &[(1.1, 0.05)]);
        assert_eq!(judge(&run)[0].verdict, Verdict::Better);
    }
}
