// SPDX-License-Identifier: GPL-2.0-only
//! All runs put together: medians and worst cases per contestant and variant, and this project's own
//! contestants compared with the best of the others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use protocol::faceoff::{Idle, Outcome, Variant, Who};

use super::contestant::Contestant;
use super::record::Run;
use super::stolen::is_disturbed;
use crate::ab::ranks::against_best;
use crate::ab::stats::median;
use crate::ab::verdict::Verdict;

/// A frame is planned every 10 ms: shorter delays are not distinguished.
const STALL_RESOLUTION_MS: f64 = 10.0;
/// Memory is read every 50 ms.
const RECOVERY_RESOLUTION_MS: f64 = 50.0;

/// Under what conditions the runs were made: those of another fingerprint may not join them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// When the first run began, local time with its offset.
    pub date: String,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// Guest CPUs.
    pub cpus: u32,
    /// Guest memory, MiB.
    pub memory_mib: u32,
    /// Of round 0; a round's seed is this plus its number.
    pub seed: u64,
    /// When a load that has not ended is given up, seconds.
    pub limit_s: u64,
    /// Kernel releases by tree.
    pub kernels: BTreeMap<String, String>,
    /// The contestants' Debian packages and their versions.
    pub packages: BTreeMap<String, String>,
    /// Of the image and of all programs and files that go into the guest.
    pub fingerprint: String,
}

/// A contestant, as the reader of the summary needs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Participant {
    /// Its folder.
    pub name: String,
    /// What it is called.
    pub title: String,
    /// One of this project's own.
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
    /// None: it did not come to that.
    pub values: Vec<Option<f64>>,
    /// None: more than half of the runs have no value, or there is none.
    pub median: Option<f64>,
    /// The largest; none when any run did not come to that, or there is no run.
    pub worst: Option<f64>,
}

impl Spread {
    /// Where no value means "never": it counts as worse than any other.
    fn until(values: Vec<Option<f64>>) -> Self {
        let endless: Vec<f64> = values.iter().map(|v| v.unwrap_or(f64::INFINITY)).collect();
        let known = |value: f64| value.is_finite().then_some(value);
        let worst = endless.iter().copied().reduce(f64::max).and_then(known);
        Self { median: known(median(&endless)), worst, values }
    }

    /// Where no value means that there was nothing to measure: it does not count.
    fn of_those(values: Vec<Option<f64>>) -> Self {
        let known: Vec<f64> = values.iter().copied().flatten().collect();
        let middle = median(&known);
        let worst = known.into_iter().reduce(f64::max);
        Self { median: middle.is_finite().then_some(middle), worst, values }
    }
}

/// All runs of one contestant in one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Who.
    pub contestant: String,
    /// The load.
    pub variant: Variant,
    /// How many runs delivered figures.
    pub runs: usize,
    /// Those that did not, and why.
    pub failures: Vec<String>,
    /// Runs during which the host was disturbed all the same, after several tries.
    #[serde(default)]
    pub disturbed: usize,
    /// Runs that were not over in time.
    pub timed_out: usize,
    /// Runs in which the load did not end as it should.
    pub not_served: usize,
    /// The foreground's worst frame delay, ms.
    pub longest_stall_ms: Spread,
    /// Its frame delays above 50 ms together.
    pub total_stall_ms: Spread,
    /// From 5 % available to recovered.
    pub low_to_recovered_ms: Spread,
    /// From the first signal until the memory was back.
    pub signal_to_back_ms: Spread,
    /// From the load's start to the first signal.
    pub first_signal_ms: Spread,
    /// With a camera: how long it waited for its memory.
    pub camera_ms: Spread,
    /// Deaths by a signal, by what died, over all runs.
    pub kills: BTreeMap<Who, u64>,
    /// Those of them that the kernel chose.
    pub kernel_oom_kills: u64,
    /// Wrong victims, by what they were, over all runs.
    pub wrong: BTreeMap<String, u64>,
    /// Runs with a wrong victim.
    pub wrong_runs: usize,
    /// Idle: proportional set size, KiB.
    pub pss_kib: Spread,
    /// Idle: processor time, ms.
    pub cpu_ms: Spread,
    /// Idle: context switches.
    pub wakeups: Spread,
}

/// One of our contestants against the best of the others, in one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Ours.
    pub contestant: String,
    /// The load.
    pub variant: Variant,
    /// `longest_stall_ms` or `low_to_recovered_ms`.
    pub metric: String,
    /// Our median; none: not recovered within the limit.
    pub ours: Option<f64>,
    /// The other with the smallest median.
    pub best_peer: String,
    /// Its median.
    pub theirs: Option<f64>,
    /// Theirs by ours: above 1 we are better.
    pub ratio: f64,
    /// What the runs support about ours and the best of the others.
    pub verdict: Verdict,
}

/// The middle of a contestant's ratios over all variants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MedianRatio {
    /// Ours.
    pub contestant: String,
    /// As in [`Comparison`].
    pub metric: String,
    /// Of the ratios.
    pub median_ratio: f64,
    /// The smallest, and where.
    pub worst_ratio: f64,
    /// The variant that has it.
    pub worst_variant: Variant,
}

/// `faceoff.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The conditions.
    pub meta: Meta,
    /// Those who took part, in their order.
    pub contestants: Vec<Participant>,
    /// By variant, then contestant.
    pub entries: Vec<Entry>,
    /// By contestant of ours, metric, variant.
    pub comparison: Vec<Comparison>,
    /// By contestant of ours and metric.
    pub middle: Vec<MedianRatio>,
}

impl Summary {
    /// Puts the runs together.
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

    /// The variants that were run, in order.
    #[must_use]
    pub fn variants(&self) -> Vec<Variant> {
        let mut all: Vec<Variant> = self.entries.iter().map(|entry| entry.variant).collect();
        all.dedup();
        all
    }

    /// The entries of one variant, in the contestants' order.
    pub fn of_variant(&self, variant: Variant) -> impl Iterator<Item = (&Participant, &Entry)> {
        let of = move |entry: &&Entry| entry.variant == variant;
        self.entries.iter().filter(of).filter_map(|entry| Some((self.who(&entry.contestant)?, entry)))
    }

    /// A contestant by its name.
    #[must_use]
    pub fn who(&self, name: &str) -> Option<&Participant> {
        self.contestants.iter().find(|who| who.name == name)
    }

    /// A finding is a wrong victim of ours, or a variant in which another is better beyond chance.
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
        let (mut comparison, mut middle) = (Vec::new(), Vec::new());
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
                    middle.push(MedianRatio {
                        contestant: own.name.clone(),
                        metric: metric.to_owned(),
                        median_ratio: median(&values),
                        worst_ratio: ratio,
                        worst_variant: variant,
                    });
                }
            }
        }
        (comparison, middle)
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

/// The run to draw: the one whose longest stall is the middle one.
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
    fn a_missing_value_is_never_or_nothing() {
        let never = Spread::until(vec![Some(1.0), None, Some(3.0)]);
        assert_eq!((never.median, never.worst), (Some(3.0), None));
        assert_eq!(Spread::until(vec![None, None, Some(3.0)]).median, None);
        assert_eq!(Spread::until(Vec::new()).median, None);
        let some = Spread::of_those(vec![Some(1.0), None, Some(3.0)]);
        assert_eq!((some.median, some.worst), (Some(2.0), Some(3.0)));
        assert_eq!(Spread::of_those(vec![None]).median, None);
    }

    #[test]
    fn runs_are_put_together_by_contestant_and_variant() {
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
        let middle = &compared.middle[0];
        assert_eq!(
            (middle.median_ratio, middle.worst_ratio, middle.worst_variant),
            (2.5, 2.0, Variant::Leak)
        );
    }

    #[test]
    fn what_may_be_luck_is_no_finding() {
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
    fn the_typical_run_is_the_middle_one() {
        let runs = [30.0, 10.0, 20.0].map(|stall| run("peer", Variant::Hog, 0, stall, None));
        assert_eq!(
            typical(&runs, "peer", Variant::Hog).unwrap().result.as_ref().unwrap().longest_stall_ms,
            20.0
        );
        assert!(typical(&runs, "peer", Variant::Leak).is_none());
    }
}
