// SPDX-License-Identifier: GPL-2.0-only
//! Evaluates all runs: medians and worst cases per contestant and variant, and this project's contestants
//! compared with the best of the others. These are the types of `faceoff.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use protocol::faceoff::{Idle, Outcome, Variant, Who};

use super::contestant::Contestant;
use super::record::Run;
use super::stolen::is_disturbed;
use crate::ab::ranks::against_best;
use crate::ab::stats::median;
use crate::ab::verdict::Verdict;

/// Stalls are compared with this resolution: a frame is due every 10 ms.
const STALL_RESOLUTION_MS: f64 = 10.0;
/// Recoveries are compared with this resolution: memory is sampled every 50 ms.
const RECOVERY_RESOLUTION_MS: f64 = 50.0;

/// The conditions of the runs. Runs with different fingerprints cannot be combined.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// The start of the first run: local time with its UTC offset.
    pub date: String,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// Guest CPUs.
    pub cpus: u32,
    /// Guest memory, MiB.
    pub memory_mib: u32,
    /// The seed of round 0. The seed of a round is this plus its number.
    pub seed: u64,
    /// The time limit of a load, in seconds.
    pub limit_s: u64,
    /// Kernel releases by tree.
    pub kernels: BTreeMap<String, String>,
    /// The contestants' Debian packages and their versions.
    pub packages: BTreeMap<String, String>,
    /// The content key of the image and of all programs and files in the guest.
    pub fingerprint: String,
}

/// A contestant in the summary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Participant {
    /// The name of its folder.
    pub name: String,
    /// Its name in tables.
    pub title: String,
    /// Whether it is one of this project's daemons.
    pub ours: bool,
}

impl From<&Contestant> for Participant {
    fn from(contestant: &Contestant) -> Self {
        Self { name: contestant.name.clone(), title: contestant.title.clone(), ours: contestant.is_ours() }
    }
}

/// One number per run, in the order of the rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The values; `None` if the event did not occur.
    pub values: Vec<Option<f64>>,
    /// The median; `None` if there is none or it is infinite.
    pub median: Option<f64>,
    /// The largest value; `None` if there is none or it is infinite.
    pub worst: Option<f64>,
}

impl Spread {
    /// For times until an event: a missing value means "never" and counts as infinite.
    fn until(values: Vec<Option<f64>>) -> Self {
        let endless: Vec<f64> = values.iter().map(|v| v.unwrap_or(f64::INFINITY)).collect();
        let known = |value: f64| value.is_finite().then_some(value);
        let worst = endless.iter().copied().reduce(f64::max).and_then(known);
        Self { median: known(median(&endless)), worst, values }
    }

    /// For values that may not apply to a run: a missing value is ignored.
    fn of_those(values: Vec<Option<f64>>) -> Self {
        let known: Vec<f64> = values.iter().copied().flatten().collect();
        let median = median(&known);
        let worst = known.into_iter().reduce(f64::max);
        Self { median: median.is_finite().then_some(median), worst, values }
    }
}

/// All runs of one contestant in one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The contestant's name.
    pub contestant: String,
    /// The load.
    pub variant: Variant,
    /// The number of runs that delivered a result.
    pub runs: usize,
    /// Why the other runs failed.
    pub failures: Vec<String>,
    /// The number of runs that were disturbed, even after several attempts.
    #[serde(default)]
    pub disturbed: usize,
    /// The number of runs that exceeded the time limit.
    pub timed_out: usize,
    /// The number of runs in which the load did not end as it should.
    pub not_served: usize,
    /// The longest frame delay of the foreground, in ms.
    pub longest_stall_ms: Spread,
    /// The sum of its frame delays above 50 ms, in ms.
    pub total_stall_ms: Spread,
    /// The time from 5 % available memory to recovery, in ms.
    pub low_to_recovered_ms: Spread,
    /// The time from the first signal until the memory was free, in ms.
    pub signal_to_back_ms: Spread,
    /// The time from the start of the load to the first signal, in ms.
    pub first_signal_ms: Spread,
    /// How long the camera waited for its memory, in ms. Only in the variant `apps`.
    pub camera_ms: Spread,
    /// The number of processes killed by a signal in all runs, by their kind.
    pub kills: BTreeMap<Who, u64>,
    /// How many of them the kernel's OOM killer chose.
    pub kernel_oom_kills: u64,
    /// The number of wrong victims in all runs, by their kind.
    pub wrong: BTreeMap<String, u64>,
    /// The number of runs with a wrong victim.
    pub wrong_runs: usize,
    /// Idle: proportional set size, in KiB.
    pub pss_kib: Spread,
    /// Idle: CPU time, in ms.
    pub cpu_ms: Spread,
    /// Idle: number of context switches.
    pub wakeups: Spread,
}

/// One of this project's contestants compared with the best of the others in one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The name of our contestant.
    pub contestant: String,
    /// The load.
    pub variant: Variant,
    /// `longest_stall_ms` or `low_to_recovered_ms`.
    pub metric: String,
    /// Its median in ms; `None` if it did not recover within the limit.
    pub ours: Option<f64>,
    /// The other contestant with the smallest median.
    pub best_peer: String,
    /// The median of that one in ms; `None` as above.
    pub theirs: Option<f64>,
    /// `theirs` divided by `ours`: above 1, ours is better.
    pub ratio: f64,
    /// The verdict of the rank-sum test.
    pub verdict: Verdict,
}

/// The median of a contestant's ratios over all variants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MedianRatio {
    /// The name of our contestant.
    pub contestant: String,
    /// As in [`Comparison`].
    pub metric: String,
    /// The median of the ratios.
    pub median_ratio: f64,
    /// The smallest ratio.
    pub worst_ratio: f64,
    /// The variant with the smallest ratio.
    pub worst_variant: Variant,
}

/// The content of `faceoff.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The conditions.
    pub meta: Meta,
    /// The contestants, in their order.
    pub contestants: Vec<Participant>,
    /// The results, by variant and contestant.
    pub entries: Vec<Entry>,
    /// The comparisons, by our contestant, metric and variant.
    pub comparison: Vec<Comparison>,
    /// The median ratios, by our contestant and metric.
    pub middle: Vec<MedianRatio>,
}

impl Summary {
    /// Evaluates the runs.
    #[must_use]
    pub fn of(meta: Meta, contestants: &[Contestant], runs: &[Run]) -> Self {
        let contestants: Vec<Participant> = contestants.iter().map(Participant::from).collect();
        let mut entries = Vec::new();
        for variant in Variant::ALL {
            for who in &contestants {
                let of = |run: &&Run| run.variant == variant && run.contestant == who.name;
                let mut own: Vec<&Run> = runs.iter().filter(of).collect();
                own.sort_by_key(|run| run.round);
                if !own.is_empty() {
                    entries.push(entry(&who.name, variant, &own));
                }
            }
        }
        let mut summary = Self { meta, contestants, entries, ..Self::default() };
        (summary.comparison, summary.middle) = summary.compared();
        summary
    }

    /// Returns the variants that were run, in order.
    #[must_use]
    pub fn variants(&self) -> Vec<Variant> {
        let mut all: Vec<Variant> = self.entries.iter().map(|entry| entry.variant).collect();
        all.dedup();
        all
    }

    /// Returns the entries of a variant, in the order of the contestants.
    pub fn of_variant(&self, variant: Variant) -> impl Iterator<Item = (&Participant, &Entry)> {
        let of = move |entry: &&Entry| entry.variant == variant;
        self.entries.iter().filter(of).filter_map(|entry| Some((self.who(&entry.contestant)?, entry)))
    }

    /// Returns the contestant of that name.
    #[must_use]
    pub fn who(&self, name: &str) -> Option<&Participant> {
        self.contestants.iter().find(|who| who.name == name)
    }

    /// Returns a finding, if there is one: a wrong victim of one of our contestants, or a variant in which
    /// another contestant is significantly better.
    #[must_use]
    pub fn finding(&self) -> Option<String> {
        let ours = |name: &str| self.who(name).is_some_and(|who| who.ours);
        let wrong = self.entries.iter().find(|e| ours(&e.contestant) && e.wrong_runs > 0);
        if let Some(entry) = wrong {
            let victims: Vec<String> = entry.wrong.iter().map(|(who, n)| format!("{n} {who}")).collect();
            return Some(format!(
                "{}, {}: wrong victims: {}",
                entry.contestant,
                entry.variant,
                victims.join(", ")
            ));
        }
        let worse = self.comparison.iter().find(|c| c.verdict == Verdict::Worse)?;
        Some(format!(
            "{}, {}: {} is better in {}",
            worse.contestant, worse.variant, worse.best_peer, worse.metric
        ))
    }

    fn compared(&self) -> (Vec<Comparison>, Vec<MedianRatio>) {
        let (mut comparison, mut medians) = (Vec::new(), Vec::new());
        let limit = self.meta.limit_s as f64 * 1000.0;
        type Get = fn(&Entry) -> &Spread;
        let metrics: [(&str, Get, f64); 2] = [
            ("longest_stall_ms", |e| &e.longest_stall_ms, STALL_RESOLUTION_MS),
            ("low_to_recovered_ms", |e| &e.low_to_recovered_ms, RECOVERY_RESOLUTION_MS),
        ];
        for own in self.contestants.iter().filter(|who| who.ours) {
            for (metric, get, floor) in metrics {
                let value = |entry: &Entry| get(entry).median.unwrap_or(limit).max(floor);
                let mut ratios = Vec::new();
                for variant in self.variants().into_iter().filter(|v| *v != Variant::Idle) {
                    let with_values = || self.of_variant(variant).filter(|(_, e)| e.runs > 0);
                    let Some((_, ours)) = with_values().find(|(who, _)| who.name == own.name) else {
                        continue;
                    };
                    let peers: Vec<_> = with_values().filter(|(who, _)| !who.ours).collect();
                    let best =
                        (0..peers.len()).min_by(|a, b| value(peers[*a].1).total_cmp(&value(peers[*b].1)));
                    let Some(best) = best else { continue };
                    let (peer, theirs) = peers[best];
                    let runs = |entry: &Entry| -> Vec<f64> {
                        get(entry).values.iter().map(|v| v.unwrap_or(f64::INFINITY).max(floor)).collect()
                    };
                    let of_peers: Vec<_> = peers.iter().map(|(_, entry)| runs(entry)).collect();
                    let ratio = value(theirs) / value(ours);
                    ratios.push((ratio, variant));
                    comparison.push(Comparison {
                        contestant: own.name.clone(),
                        variant,
                        metric: metric.to_owned(),
                        ours: get(ours).median,
                        best_peer: peer.name.clone(),
                        theirs: get(theirs).median,
                        ratio,
                        verdict: against_best(&runs(ours), &of_peers, best),
                    });
                }
                let values: Vec<f64> = ratios.iter().map(|(ratio, _)| *ratio).collect();
                if let Some((ratio, variant)) = ratios.into_iter().min_by(|(a, _), (b, _)| a.total_cmp(b)) {
                    medians.push(MedianRatio {
                        contestant: own.name.clone(),
                        metric: metric.to_owned(),
                        median_ratio: median(&values),
                        worst_ratio: ratio,
                        worst_variant: variant,
                    });
                }
            }
        }
        (comparison, medians)
    }
}

fn entry(contestant: &str, variant: Variant, runs: &[&Run]) -> Entry {
    let good: Vec<&&Run> = runs.iter().filter(|run| run.failure.is_none() && run.is_complete()).collect();
    let results: Vec<&Outcome> = good.iter().filter_map(|run| run.result.as_ref()).collect();
    let each = |get: fn(&Outcome) -> Option<f64>| results.iter().map(|r| get(r)).collect::<Vec<_>>();
    let idle = |get: fn(&Idle) -> f64| {
        Spread::of_those(good.iter().filter_map(|run| run.idle.as_ref()).map(|i| Some(get(i))).collect())
    };
    let wrong: Vec<BTreeMap<String, u64>> = good.iter().map(|run| run.wrong()).collect();
    Entry {
        contestant: contestant.to_owned(),
        variant,
        runs: good.len(),
        failures: runs.iter().filter_map(|run| run.failure.clone()).collect(),
        disturbed: good.iter().filter(|run| run.stolen.is_some_and(is_disturbed)).count(),
        timed_out: results.iter().filter(|r| r.timed_out).count(),
        not_served: results.iter().filter(|r| !r.served).count(),
        longest_stall_ms: Spread::of_those(each(|r| Some(r.longest_stall_ms))),
        total_stall_ms: Spread::of_those(each(|r| Some(r.total_stall_ms))),
        low_to_recovered_ms: Spread::until(each(|r| r.low_to_recovered_ms)),
        signal_to_back_ms: Spread::of_those(each(|r| r.signal_to_back_ms)),
        first_signal_ms: Spread::of_those(each(|r| r.first_signal_ms)),
        camera_ms: match variant {
            Variant::Apps => Spread::until(each(|r| r.camera_ms)),
            _ => Spread::default(),
        },
        kills: sum(results.iter().map(|r| &r.kills)),
        kernel_oom_kills: results.iter().map(|r| r.kernel_oom_kills).sum(),
        wrong_runs: wrong.iter().filter(|wrong| !wrong.is_empty()).count(),
        wrong: sum(wrong.iter()),
        pss_kib: idle(|i| i.pss_kib),
        cpu_ms: idle(|i| i.cpu_ms),
        wakeups: idle(|i| i.wakeups as f64),
    }
}

/// Adds up the counts of several runs.
fn sum<'a, K: Ord + Clone + 'a>(counts: impl Iterator<Item = &'a BTreeMap<K, u64>>) -> BTreeMap<K, u64> {
    let mut sum = BTreeMap::new();
    for (key, n) in counts.flatten().filter(|(_, n)| **n > 0) {
        *sum.entry(key.clone()).or_default() += n;
    }
    sum
}

/// Returns the run to plot: the one with the median of the longest stalls.
#[must_use]
pub fn typical<'a>(runs: &'a [Run], contestant: &str, variant: Variant) -> Option<&'a Run> {
    let mut own: Vec<(f64, &Run)> = runs
        .iter()
        .filter(|run| run.contestant == contestant && run.variant == variant && run.failure.is_none())
        .filter_map(|run| Some((run.result.as_ref()?.longest_stall_ms, run)))
        .collect();
    own.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    own.get(own.len().saturating_sub(1) / 2).map(|(_, run)| *run)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::record::tests::outcome;
    use super::*;
    use crate::kernel::Tree;

    pub(in crate::faceoff) fn contestant(name: &str, like: &str) -> Contestant {
        Contestant {
            name: name.into(),
            title: name.to_uppercase(),
            order: 1,
            kernel: Tree::Stock,
            packages: Vec::new(),
            unit: Some(format!("{name}.service")),
            setup: Vec::new(),
            files_of: like.into(),
            install: Vec::new(),
        }
    }

    pub(in crate::faceoff) fn run(
        who: &str,
        variant: Variant,
        round: usize,
        stall: f64,
        back: Option<f64>,
    ) -> Run {
        Run { result: Some(outcome(stall, back)), ..Run::new(who, variant, round, 1) }
    }

    fn summary(runs: &[Run]) -> Summary {
        let who = [contestant("none", "none"), contestant("peer", "peer"), contestant("memreap", "memreap")];
        Summary::of(Meta { limit_s: 40, ..Meta::default() }, &who, runs)
    }

    #[test]
    fn a_missing_value_is_infinite_or_ignored() {
        let never = Spread::until(vec![Some(1.0), None, Some(3.0)]);
        assert_eq!((never.median, never.worst), (Some(3.0), None));
        assert_eq!(Spread::until(vec![None, None, Some(3.0)]).median, None);
        assert_eq!(Spread::until(Vec::new()).median, None);
        let some = Spread::of_those(vec![Some(1.0), None, Some(3.0)]);
        assert_eq!((some.median, some.worst), (Some(2.0), Some(3.0)));
        assert_eq!(Spread::of_those(vec![None]).median, None);
    }

    #[test]
    fn runs_are_grouped_by_contestant_and_variant() {
        let mut failed = run("peer", Variant::Hog, 2, 9e9, None);
        failed.failure = Some("panic".into());
        let mut bad = run("peer", Variant::Hog, 1, 300.0, Some(500.0));
        bad.result.as_mut().unwrap().kills.insert(Who::Innocent, 2);
        let summary = summary(&[bad, run("peer", Variant::Hog, 0, 100.0, Some(700.0)), failed]);
        assert_eq!(summary.entries.len(), 1);
        let entry = &summary.entries[0];
        assert_eq!((entry.runs, entry.failures.len(), entry.wrong_runs), (2, 1, 1));
        assert_eq!(entry.longest_stall_ms.values, [Some(100.0), Some(300.0)], "in the order of rounds");
        assert_eq!((entry.longest_stall_ms.median, entry.longest_stall_ms.worst), (Some(200.0), Some(300.0)));
        assert_eq!((entry.kills[&Who::Hog], entry.wrong["innocent"]), (2, 2));
        assert!(summary.comparison.is_empty(), "none of ours took part");
        assert_eq!(summary.finding(), None, "a peer's mistakes are no finding");
    }

    #[test]
    fn ours_are_compared_with_the_best_of_the_others() {
        let runs = [
            run("none", Variant::Hog, 0, 5000.0, None),
            run("peer", Variant::Hog, 0, 300.0, Some(800.0)),
            run("memreap", Variant::Hog, 0, 100.0, Some(400.0)),
            run("none", Variant::Leak, 0, 20.0, Some(0.0)),
            run("peer", Variant::Leak, 0, 30.0, None),
            run("memreap", Variant::Leak, 0, 4.0, Some(10.0)),
        ];
        let compared = summary(&runs);
        let ratio = |metric: &str, variant: Variant| {
            let found =
                compared.comparison.iter().find(|c| c.metric == metric && c.variant == variant).unwrap();
            (found.best_peer.as_str(), found.ratio)
        };
        assert_eq!(ratio("longest_stall_ms", Variant::Hog), ("peer", 3.0));
        assert_eq!(ratio("low_to_recovered_ms", Variant::Hog), ("peer", 2.0));
        assert_eq!(ratio("longest_stall_ms", Variant::Leak), ("none", 2.0), "4 ms counts as 10");
        assert_eq!(ratio("low_to_recovered_ms", Variant::Leak), ("none", 1.0));
        let median = &compared.middle[0];
        assert_eq!(
            (median.median_ratio, median.worst_ratio, median.worst_variant),
            (2.5, 2.0, Variant::Leak)
        );
    }

    #[test]
    fn an_insignificant_difference_is_no_finding() {
        let rounds = |n: usize| -> Vec<Run> {
            let of = |round| {
                let stall = |base: usize| (base + round) as f64;
                [
                    run("none", Variant::Leak, round, stall(20), Some(0.0)),
                    run("peer", Variant::Leak, round, stall(60), None),
                    run("memreap", Variant::Leak, round, stall(40), Some(10.0)),
                    run("memreap", Variant::Hog, round, 10.0, Some(400.0)),
                    run("peer", Variant::Hog, round, stall(90), Some(400.0)),
                ]
            };
            (0..n).flat_map(of).collect()
        };
        let verdicts =
            |summary: &Summary| summary.comparison.iter().map(|c| (c.variant, c.verdict)).collect::<Vec<_>>();
        let leak = |verdict| (Variant::Leak, verdict);
        let hog = |verdict| (Variant::Hog, verdict);
        let (few, many) = (summary(&rounds(2)), summary(&rounds(5)));
        assert!(verdicts(&few).iter().all(|(_, v)| *v == Verdict::None), "{few:?}");
        assert_eq!(few.finding(), None);
        let expected = [hog(Verdict::Better), leak(Verdict::Worse), hog(Verdict::None), leak(Verdict::None)];
        assert_eq!(verdicts(&many), expected);
        assert!(many.finding().unwrap().contains("memreap, leak: none is better in longest_stall_ms"));
        let mut runs = rounds(2);
        runs[2].result.as_mut().unwrap().kills.insert(Who::System, 1);
        assert!(summary(&runs).finding().unwrap().contains("wrong victims: 1 system"));
    }

    #[test]
    fn the_typical_run_is_the_median() {
        let runs = [30.0, 10.0, 20.0].map(|stall| run("peer", Variant::Hog, 0, stall, None));
        assert_eq!(
            typical(&runs, "peer", Variant::Hog).unwrap().result.as_ref().unwrap().longest_stall_ms,
            20.0
        );
        assert!(typical(&runs, "peer", Variant::Leak).is_none());
    }
}
