// SPDX-License-Identifier: GPL-2.0-only
//! Evaluates all runs: medians and worst cases per contestant and cell, and this project's contestants
//! compared with the best of the others. These are the types of `faceoff.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use protocol::faceoff::{Idle, Outcome, Who};

use super::cell::{Cell, CellName};
use super::contestant::Contestant;
use super::record::Run;
use crate::ab::ranks::{Stratum, holm, p_smaller};
use crate::ab::results::Verdict;
use crate::ab::stats::{self, median};
use crate::stolen::is_disturbed;

/// Stalls are compared with this resolution: a frame is due every 10 ms.
const STALL_RESOLUTION_MS: f64 = 10.0;
/// Recoveries are compared with this resolution: memory is sampled every 50 ms.
const RECOVERY_RESOLUTION_MS: f64 = 50.0;
/// Logins are compared with this resolution: a shell takes some of it under emulation.
const LOGIN_RESOLUTION_MS: f64 = 100.0;
/// The probability of one or more false claims among all comparisons.
const ALPHA: f64 = 0.05;
/// A smaller median difference is not claimed, as a fraction.
const MIN_EFFECT: f64 = 0.10;

/// The conditions of the runs. Runs with different fingerprints cannot be combined.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// The start of the first run: local time with its UTC offset.
    pub date: String,
    /// `kvm` or `tcg`.
    pub accelerator: String,
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
    /// Whether the kernel begins to reclaim early for it.
    pub watermark: bool,
}

impl From<&Contestant> for Participant {
    fn from(contestant: &Contestant) -> Self {
        Self {
            name: contestant.name.clone(),
            title: contestant.title.clone(),
            ours: contestant.is_ours(),
            watermark: contestant.has_watermark(),
        }
    }
}

/// A cell of the grid in the summary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellInfo {
    pub name: CellName,
    /// What the load is.
    pub about: String,
    /// What the machine is.
    pub machine: String,
    /// How many had to die, where that is defined.
    pub needed_kills: Option<u64>,
    /// Its own time limit, in seconds.
    pub limit_s: Option<u64>,
    /// Whether it measures what a contestant costs.
    pub idle: bool,
}

impl From<&Cell> for CellInfo {
    fn from(cell: &Cell) -> Self {
        Self {
            name: cell.name.clone(),
            about: cell.load.about.clone(),
            machine: cell.machine.about.clone(),
            needed_kills: cell.load.needed_kills,
            limit_s: cell.load.limit_s,
            idle: cell.is_idle(),
        }
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

    /// Returns the same in a larger unit.
    pub(super) fn in_units_of(&self, unit: f64) -> Self {
        let scaled = |value: Option<f64>| value.map(|value| value / unit);
        let values = self.values.iter().copied().map(scaled).collect();
        Self { values, median: scaled(self.median), worst: scaled(self.worst) }
    }
}

/// All runs of one contestant in one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub contestant: String,
    /// The load and the machine.
    pub cell: CellName,
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
    /// The longest time that a login took, in ms.
    pub longest_login_ms: Spread,
    /// The number of logins in all runs that took longer than 5 s.
    pub late_logins: u64,
    /// The time from the start of the load to recovery, in ms.
    pub recovered_ms: Spread,
    /// What was still available at the first kill, with the free swap, in KiB.
    pub usable_kib: Spread,
    /// What the killed processes held in a run, in KiB, where that is known.
    pub lost_kib: Spread,
    /// The time from the first signal until the memory was free, in ms.
    pub signal_to_back_ms: Spread,
    /// The time from the start of the load to the first signal, in ms.
    pub first_signal_ms: Spread,
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

/// One of this project's contestants compared with the best of the others in one cell. Two values of a few runs
/// each support no verdict; that is of [`Overall`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The name of our contestant.
    pub contestant: String,
    /// The load and the machine.
    pub cell: CellName,
    /// The metric: the name of a field of [`Entry`].
    pub metric: String,
    /// Its median in ms; `None` if it did not recover within the limit.
    pub ours: Option<f64>,
    /// The other contestant with the smallest median.
    pub best_peer: String,
    /// The median of that one in ms; `None` as above.
    pub theirs: Option<f64>,
    /// `theirs` divided by `ours`: above 1, ours is better.
    pub ratio: f64,
}

/// How one of ours compares with another contestant in one cell, seed by seed: the same load on the same snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paired {
    /// The geometric mean of the ratios of the pairs: above 1, ours is better.
    pub ratio: f64,
    /// The 95 % interval of that, or of five pairs the range of their ratios, which is one of 94 %.
    pub interval: [f64; 2],
    /// Of so many pairs that vary as these the interval would exclude 1 in four of five series; `None` beyond 999.
    pub needed_runs: Option<usize>,
}

impl Paired {
    /// The pairs that the interval needs.
    const MIN_PAIRS: usize = 5;

    /// Of the logarithms of the ratios; `None` of fewer than five.
    fn of(ratios: &[f64]) -> Option<Self> {
        if ratios.len() < Self::MIN_PAIRS {
            return None;
        }
        let range =
            || [ratios.iter().copied().fold(f64::MAX, f64::min), ratios.iter().copied().fold(f64::MIN, f64::max)];
        let (mean, deviation) = (stats::mean(ratios), stats::variance(ratios).sqrt());
        let excludes = |n: &usize| {
            // Student's t for 95 %, nearly, and one of five series by which it is missed.
            let df = *n as f64 - 1.0;
            (1.96 + 2.4 / df + 2.8 / (df * df) + 0.84) * deviation <= mean.abs() * (*n as f64).sqrt()
        };
        Some(Self {
            ratio: mean.exp(),
            interval: stats::interval(ratios).unwrap_or_else(range).map(f64::exp),
            needed_runs: (stats::MIN_PAIRS..1000).find(excludes),
        })
    }

    /// Whether it tells who is better.
    pub fn excludes_1(&self) -> bool {
        self.interval[0] > 1.0 || self.interval[1] < 1.0
    }
}

/// One of this project's contestants compared with another one over all cells that both were run in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overall {
    /// The name of our contestant.
    pub contestant: String,
    /// The name of the other one, which has the same setting of the kernel.
    pub peer: String,
    /// The metric: the name of a field of [`Entry`].
    pub metric: String,
    /// The number of cells.
    pub cells: usize,
    /// The median over the cells of the ratios of medians: above 1, ours is better.
    pub ratio: f64,
    /// The smallest ratio.
    pub worst_ratio: f64,
    /// The cell with the smallest ratio.
    pub worst_cell: CellName,
    /// The two-sided p-value of the stratified rank-sum test.
    pub p: f64,
    /// What can be claimed: with all that stands beside it, at most 5 % of such tables have a false claim.
    pub verdict: Verdict,
}

/// The content of `faceoff.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub meta: Meta,
    /// The contestants, in their order.
    pub contestants: Vec<Participant>,
    /// The cells that were run, in their order.
    pub cells: Vec<CellInfo>,
    /// The results, by cell and contestant.
    pub entries: Vec<Entry>,
    /// Ours against the best of the others, by our contestant, metric and cell.
    pub comparison: Vec<Comparison>,
    /// Ours against each of the others over all cells, by our contestant, metric and the other one.
    pub overall: Vec<Overall>,
}

impl Summary {
    /// Evaluates the runs.
    pub fn of(meta: Meta, contestants: &[Contestant], cells: &[Cell], runs: &[Run]) -> Self {
        let contestants: Vec<Participant> = contestants.iter().map(Participant::from).collect();
        let mut entries = Vec::new();
        for cell in cells {
            for who in &contestants {
                let of = |run: &&Run| run.cell == cell.name && run.contestant == who.name;
                let mut own: Vec<&Run> = runs.iter().filter(of).collect();
                own.sort_by_key(|run| run.round);
                if !own.is_empty() {
                    entries.push(entry(&who.name, cell, &own));
                }
            }
        }
        let took_part = |who: &Participant| entries.iter().any(|e: &Entry| e.contestant == who.name);
        let contestants: Vec<Participant> = contestants.into_iter().filter(took_part).collect();
        let cells: Vec<CellInfo> = cells
            .iter()
            .filter(|cell| entries.iter().any(|e: &Entry| e.cell == cell.name))
            .map(CellInfo::from)
            .collect();
        let mut summary = Self { meta, contestants, cells, entries, ..Self::default() };
        summary.comparison = summary.compared_with_the_best();
        summary.overall = summary.compared_over_all();
        summary
    }

    /// Returns the entries of a cell, in the order of the contestants.
    pub fn of_cell(&self, cell: &CellName) -> impl Iterator<Item = (&Participant, &Entry)> {
        let of = move |entry: &&Entry| entry.cell == *cell;
        self.entries.iter().filter(of).filter_map(|entry| Some((self.who(&entry.contestant)?, entry)))
    }

    /// Returns the contestant of that name.
    pub fn who(&self, name: &str) -> Option<&Participant> {
        self.contestants.iter().find(|who| who.name == name)
    }

    /// Returns a finding, if there is one: a wrong victim of one of our contestants, or another contestant that is
    /// better over all loads.
    pub fn finding(&self) -> Option<String> {
        let ours = |name: &str| self.who(name).is_some_and(|who| who.ours);
        let wrong = self.entries.iter().find(|e| ours(&e.contestant) && e.wrong_runs > 0);
        if let Some(entry) = wrong {
            let victims: Vec<String> = entry.wrong.iter().map(|(who, n)| format!("{n} {who}")).collect();
            return Some(format!("{}, {}: wrong victims: {}", entry.contestant, entry.cell, victims.join(", ")));
        }
        let worse = self.overall.iter().find(|c| c.verdict == Verdict::Worse)?;
        Some(format!("{}: {} is better in {}", worse.contestant, worse.peer, worse.metric))
    }

    /// Returns the pairs of entries of two contestants that delivered results in the same cell.
    fn pairs<'a>(&'a self, a: &'a Participant, b: &'a Participant) -> impl Iterator<Item = [&'a Entry; 2]> {
        self.cells.iter().filter(|cell| !cell.idle).filter_map(|cell| {
            let of = |who: &Participant| {
                self.entries.iter().find(|e| e.cell == cell.name && e.contestant == who.name && e.runs > 0)
            };
            Some([of(a)?, of(b)?])
        })
    }

    /// Returns one of ours and one of the others for every comparison: with the same setting of the kernel.
    fn opponents(&self) -> impl Iterator<Item = (&Participant, &Participant)> {
        let ours = self.contestants.iter().filter(|who| who.ours);
        ours.flat_map(|own| {
            let others = self.contestants.iter().filter(|who| !who.ours && who.watermark == own.watermark);
            others.map(move |other| (own, other))
        })
    }

    fn compared_with_the_best(&self) -> Vec<Comparison> {
        let mut best: Vec<Comparison> = Vec::new();
        for metric in &METRICS {
            for (own, other) in self.opponents() {
                for [ours, theirs] in self.pairs(own, other) {
                    let found = Comparison {
                        contestant: own.name.clone(),
                        cell: ours.cell.clone(),
                        metric: metric.name.to_owned(),
                        ours: (metric.of)(ours).median,
                        best_peer: other.name.clone(),
                        theirs: (metric.of)(theirs).median,
                        ratio: self.typical(metric, theirs) / self.typical(metric, ours),
                    };
                    let same = |c: &&mut Comparison| {
                        (&c.contestant, &c.cell, &c.metric) == (&own.name, &ours.cell, &found.metric)
                    };
                    match best.iter_mut().find(same) {
                        Some(before) if before.ratio <= found.ratio => {}
                        Some(before) => *before = found,
                        None => best.push(found),
                    }
                }
            }
        }
        best
    }

    /// Returns how ours and the best of the others compare seed by seed; `None` if a run failed, or with fewer than five.
    pub fn paired(&self, row: &Comparison) -> Option<Paired> {
        let metric = METRICS.iter().find(|metric| metric.name == row.metric)?;
        let of = |who: &str| {
            let entry = self.entries.iter().find(|e| e.cell == row.cell && e.contestant == who)?;
            // Values are in the order of the rounds, each of which has one seed.
            let whole = entry.failures.is_empty();
            let limit_ms = self.limit_ms(entry);
            whole.then(|| metric.runs(entry).into_iter().map(move |ms| ms.min(limit_ms)).collect::<Vec<_>>())
        };
        let (ours, theirs) = (of(&row.contestant)?, of(&row.best_peer)?);
        let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| (theirs / ours).ln()).collect();
        Paired::of(&ratios).filter(|_| ours.len() == theirs.len())
    }

    fn compared_over_all(&self) -> Vec<Overall> {
        let mut overall = Vec::new();
        for metric in &METRICS {
            for (own, other) in self.opponents() {
                let (mut ratios, mut strata) = (Vec::new(), Vec::new());
                for [ours, theirs] in self.pairs(own, other) {
                    let ratio = self.typical(metric, theirs) / self.typical(metric, ours);
                    ratios.push((ratio, ours.cell.clone()));
                    strata.push(Stratum { values: metric.runs(ours), others: metric.runs(theirs) });
                }
                let values: Vec<f64> = ratios.iter().map(|(ratio, _)| *ratio).collect();
                let worst = ratios.into_iter().min_by(|(a, _), (b, _)| a.total_cmp(b));
                let Some((worst_ratio, worst_cell)) = worst else { continue };
                let [better, worse] =
                    [p_smaller(&strata), p_smaller(&strata.iter().map(Stratum::swapped).collect::<Vec<_>>())];
                overall.push(Overall {
                    contestant: own.name.clone(),
                    peer: other.name.clone(),
                    metric: metric.name.to_owned(),
                    cells: values.len(),
                    ratio: median(&values),
                    worst_ratio,
                    worst_cell,
                    p: (2.0 * better.min(worse)).min(1.0),
                    verdict: if better <= worse { Verdict::Better } else { Verdict::Worse },
                });
            }
        }
        let p_values: Vec<f64> = overall.iter().map(|o| o.p).collect();
        for (row, claimed) in overall.iter_mut().zip(holm(&p_values, ALPHA)) {
            let effect = row.ratio.max(1.0 / row.ratio) - 1.0;
            // A direction that the median does not share is no claim either.
            let agrees = (row.ratio > 1.0) == (row.verdict == Verdict::Better);
            if !claimed || !agrees || effect < MIN_EFFECT {
                row.verdict = Verdict::None;
            }
        }
        overall
    }

    /// Returns an entry's median in ms, no smaller than what can be distinguished.
    fn typical(&self, metric: &Metric, entry: &Entry) -> f64 {
        (metric.of)(entry).median.unwrap_or(self.limit_ms(entry)).max(metric.resolution_ms)
    }

    /// Returns the time limit of an entry's runs.
    fn limit_ms(&self, entry: &Entry) -> f64 {
        let own = self.cells.iter().find(|cell| cell.name == entry.cell).and_then(|cell| cell.limit_s);
        own.unwrap_or(self.meta.limit_s) as f64 * 1000.0
    }
}

/// What contestants are compared by. Smaller is better.
struct Metric {
    name: &'static str,
    of: fn(&Entry) -> &Spread,
    /// Smaller values are not distinguished.
    resolution_ms: f64,
}

const METRICS: [Metric; 3] = [
    Metric { name: "longest_stall_ms", of: |e| &e.longest_stall_ms, resolution_ms: STALL_RESOLUTION_MS },
    Metric { name: "recovered_ms", of: |e| &e.recovered_ms, resolution_ms: RECOVERY_RESOLUTION_MS },
    Metric { name: "longest_login_ms", of: |e| &e.longest_login_ms, resolution_ms: LOGIN_RESOLUTION_MS },
];

impl Metric {
    /// Returns the values of an entry's runs. What did not happen took for ever.
    fn runs(&self, entry: &Entry) -> Vec<f64> {
        let values = (self.of)(entry).values.iter();
        values.map(|v| v.unwrap_or(f64::INFINITY).max(self.resolution_ms)).collect()
    }
}

fn entry(contestant: &str, cell: &Cell, runs: &[&Run]) -> Entry {
    let good: Vec<&&Run> = runs.iter().filter(|run| run.failure.is_none() && run.is_complete(cell)).collect();
    let results: Vec<&Outcome> = good.iter().filter_map(|run| run.result.as_ref()).collect();
    let each = |get: fn(&Outcome) -> Option<f64>| results.iter().map(|r| get(r)).collect::<Vec<_>>();
    let idle = |get: fn(&Idle) -> f64| {
        Spread::of_those(good.iter().filter_map(|run| run.idle.as_ref()).map(|i| Some(get(i))).collect())
    };
    let wrong: Vec<BTreeMap<String, u64>> = good.iter().map(|run| run.wrong()).collect();
    Entry {
        contestant: contestant.to_owned(),
        cell: cell.name.clone(),
        runs: good.len(),
        failures: runs.iter().filter_map(|run| run.failure.clone()).collect(),
        disturbed: good.iter().filter(|run| run.stolen.is_some_and(is_disturbed)).count(),
        timed_out: results.iter().filter(|r| r.timed_out).count(),
        not_served: results.iter().filter(|r| !r.served).count(),
        longest_stall_ms: Spread::of_those(each(|r| Some(r.longest_stall_ms))),
        total_stall_ms: Spread::of_those(each(|r| Some(r.total_stall_ms))),
        longest_login_ms: Spread::of_those(each(|r| Some(r.longest_login_ms))),
        late_logins: results.iter().map(|r| r.late_logins).sum(),
        recovered_ms: Spread::until(each(|r| r.recovered_ms)),
        usable_kib: Spread::of_those(each(|r| r.usable_kib.map(|kib| kib as f64))),
        lost_kib: Spread::of_those(each(|r| r.lost_kib.map(|kib| kib as f64))),
        signal_to_back_ms: Spread::of_those(each(|r| r.signal_to_back_ms)),
        first_signal_ms: Spread::of_those(each(|r| r.first_signal_ms)),
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
pub fn typical<'a>(runs: &'a [Run], contestant: &str, cell: &CellName) -> Option<&'a Run> {
    let mut own: Vec<(f64, &Run)> = runs
        .iter()
        .filter(|run| run.contestant == contestant && run.cell == *cell && run.failure.is_none())
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
            like: (like != name).then(|| like.into()),
            install: BTreeMap::new(),
        }
    }

    /// The cells `hog` and `leak` of the checkout.
    pub(in crate::faceoff) fn cells() -> Vec<Cell> {
        let repo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let all = crate::faceoff::cell::all(repo).unwrap();
        crate::faceoff::cell::select(&all, &["hog@desktop".into(), "leak@desktop".into()]).unwrap()
    }

    pub(in crate::faceoff) fn run(who: &str, cell: &str, round: usize, stall: f64, back: Option<f64>) -> Run {
        Run { result: Some(outcome(stall, back)), ..Run::new(who, &CellName(cell.into()), round, 1) }
    }

    pub(in crate::faceoff) fn summary(runs: &[Run]) -> Summary {
        let who = [contestant("none", "none"), contestant("peer", "peer"), contestant("memreap", "memreap")];
        Summary::of(Meta { limit_s: 40, ..Meta::default() }, &who, &cells(), runs)
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
    fn runs_are_grouped_by_contestant_and_cell() {
        let mut failed = run("peer", "hog", 2, 9e9, None);
        failed.failure = Some("panic".into());
        let mut bad = run("peer", "hog", 1, 300.0, Some(500.0));
        bad.result.as_mut().unwrap().kills.insert(Who::Innocent, 2);
        let summary = summary(&[bad, run("peer", "hog", 0, 100.0, Some(700.0)), failed]);
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
            run("none", "hog", 0, 5000.0, None),
            run("peer", "hog", 0, 300.0, Some(800.0)),
            run("memreap", "hog", 0, 100.0, Some(400.0)),
            run("none", "leak", 0, 20.0, Some(0.0)),
            run("peer", "leak", 0, 30.0, None),
            run("memreap", "leak", 0, 4.0, Some(10.0)),
        ];
        let compared = summary(&runs);
        let ratio = |metric: &str, cell: &str| {
            let found = compared.comparison.iter().find(|c| c.metric == metric && c.cell.0 == cell).unwrap();
            (found.best_peer.as_str(), found.ratio)
        };
        assert_eq!(ratio("longest_stall_ms", "hog"), ("peer", 3.0));
        assert_eq!(ratio("recovered_ms", "hog"), ("peer", 2.0));
        assert_eq!(ratio("longest_stall_ms", "leak"), ("none", 2.0), "4 ms counts as 10");
        assert_eq!(ratio("recovered_ms", "leak"), ("none", 1.0));
        let late = summary(&[run("none", "leak", 0, 20.0, None), run("memreap", "leak", 0, 4.0, Some(900.0))]);
        let recovered = late.comparison.iter().find(|c| c.metric == "recovered_ms").unwrap();
        assert_eq!(recovered.ratio, 100.0, "the limit of the load is 90 s");
        let peer = compared.overall.iter().find(|o| o.peer == "peer").unwrap();
        assert_eq!((peer.cells, peer.ratio), (2, 3.0));
        assert_eq!((peer.worst_ratio, peer.worst_cell.0.as_str()), (3.0, "hog"));
    }

    #[test]
    fn an_insignificant_difference_is_no_finding() {
        let rounds = |n: usize| -> Vec<Run> {
            let of = |round| {
                let stall = move |base: usize| (base + round) as f64;
                ["hog", "leak"].into_iter().flat_map(move |cell| {
                    [
                        run("none", cell, round, stall(20), Some(400.0)),
                        run("peer", cell, round, stall(60), Some(400.0)),
                        run("memreap", cell, round, stall(40), Some(400.0)),
                    ]
                })
            };
            (0..n).flat_map(of).collect()
        };
        let verdicts = |summary: &Summary| -> Vec<(String, Verdict)> {
            let stalls = summary.overall.iter().filter(|o| o.metric == "longest_stall_ms");
            stalls.map(|o| (o.peer.clone(), o.verdict)).collect()
        };
        let (few, many) = (summary(&rounds(2)), summary(&rounds(5)));
        assert!(verdicts(&few).iter().all(|(_, v)| *v == Verdict::None), "{few:?}");
        assert_eq!(few.finding(), None);
        let expected = [("none".to_owned(), Verdict::Worse), ("peer".to_owned(), Verdict::Better)];
        assert_eq!(verdicts(&many), expected, "worse needs as few runs as better");
        assert!(many.finding().unwrap().contains("memreap: none is better in longest_stall_ms"));
        assert!(many.overall.iter().filter(|o| o.metric == "recovered_ms").all(|o| o.verdict == Verdict::None));
        let mut runs = rounds(2);
        runs[2].result.as_mut().unwrap().kills.insert(Who::System, 1);
        assert!(summary(&runs).finding().unwrap().contains("wrong victims: 1 system"));
    }

    #[test]
    fn rows_are_compared_seed_by_seed() {
        let paired = |ratios: &[f64]| {
            let of = |(round, ratio): (usize, &f64)| {
                // A seed that is hard for one is for the other.
                let stall = 100.0 * (round + 1) as f64;
                [run("peer", "hog", round, stall * ratio, None), run("memreap", "hog", round, stall, None)]
            };
            let summary = summary(&ratios.iter().enumerate().flat_map(of).collect::<Vec<_>>());
            summary.paired(&summary.comparison[0])
        };
        assert_eq!(paired(&[2.0; 4]), None);
        let five = paired(&[2.0, 4.0, 8.0, 4.0, 4.0]).unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(five.ratio, 4.0) && near(five.interval[0], 2.0) && near(five.interval[1], 8.0), "{five:?}");
        assert!(five.excludes_1() && five.needed_runs == Some(6));
        let unclear = paired(&[0.5, 2.0, 1.0, 4.0, 1.0]).unwrap();
        assert!(
            !unclear.excludes_1() && unclear.needed_runs.is_some_and(|runs| (40..80).contains(&runs)),
            "{unclear:?}"
        );
        let eight = paired(&[1.1, 1.2, 0.9, 1.3, 1.2, 1.1, 1.2, 1.3]).unwrap();
        assert!(eight.excludes_1() && eight.interval[0] > 0.9, "{eight:?}");
    }

    #[test]
    fn the_typical_run_is_the_median() {
        let runs = [30.0, 10.0, 20.0].map(|stall| run("peer", "hog", 0, stall, None));
        assert_eq!(
            typical(&runs, "peer", &CellName("hog".into())).unwrap().result.as_ref().unwrap().longest_stall_ms,
            20.0
        );
        assert!(typical(&runs, "peer", &CellName("leak".into())).is_none());
    }
}
