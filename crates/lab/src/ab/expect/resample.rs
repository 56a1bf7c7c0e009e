// SPDX-License-Identifier: GPL-2.0-only
//! No promise of an `expect.toml` may be missed by chance: the published results are drawn again, to as many pairs as
//! `make demo`, a smoke run and a full run have, and each promise is judged in each of these runs.
//!
//! Each boot is drawn from what the published boots of its arm predict of the next one: Student's t around the mean of
//! their logarithms. A boot like one in 24 may be in none of eight, but is in the tail of their distribution.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use super::file::File;
use super::judge::is_named;
use super::tests::{all_of, own, repository};
use super::*;
use scenarios::Scenario;

use crate::ab::results::{ArmRole, ControlValues, Metric, Run};
use crate::ab::stats::tests::Noise;
use crate::ab::stats::{self, Pairs, Rules};
use crate::ab::workload;
use crate::kernel::series;
use crate::vm::parallel;
use protocol::results::Better;

/// How many runs are drawn for a promise, which may be missed in one of them.
const RUNS: usize = 1000;
/// The pairs of `lab ab` without `--pairs`.
const PAIRS_OF_A_FULL_RUN: usize = 8;

/// What promises are about and no published results of that series have. These promises are not judged here.
const WITHOUT_RESULTS: &[&str] = &[
    "6.12 oom-select: guest icount-16",
    "6.12 oom-select: kernel memreap-plain-sums",
    "6.12 oom-select: kernel stock-precise",
    "6.12 rss-counters: kernel memreap-rss-counters",
    "6.12 rss-counters: case error-all in guest icount-16",
    "6.12 rss-counters: case error-all in guest multi",
    "6.12 swap-batch: kernel memreap-off",
    "6.12 swap-defer: kernel memreap-batch",
    "6.12 swap-defer: kernel memreap-off",
    "7.3 memcg-exit: guest multi",
    "7.3 oom-select: case all-cpus-2000 in guest icount-64",
    "7.3 oom-select: case ascending-2000 in guest icount-64",
    "7.3 oom-select: case lognormal-10000 in guest icount-64",
    "7.3 oom-select: case lognormal-200 in guest icount-64",
    "7.3 oom-select: case near-equal-2000 in guest icount-64",
    "7.3 oom-select: case victim in guest icount-64",
    "7.3 release: guest multi",
    "7.3 rss-counters: guest icount-16",
    "7.3 rss-counters: guest icount-64",
    "7.3 rss-counters: guest multi",
    "7.3 rss-counters: kernel memreap-rss-counters",
    "7.3 storm-phone-cases: guest icount-2",
    "7.3 storm-phone-cases: guest icount-8",
    "7.3 storm-phone-cases: guest multi",
    "7.3 storm-phone-cases: kernel memreap-none",
];

/// Identifies a metric among all scenarios and guests: scenario, guest and metric.
type Key = [String; 3];

fn key(run: &Run, metric: &Metric) -> Key {
    [&run.scenario, &run.guest, &metric.metric].map(String::clone)
}

/// Returns the latest published boots of each metric on kernels of a series, those of stock against the changed kernel
/// as it is by default.
fn published(series: &str) -> BTreeMap<Key, Metric> {
    let results = repository().join("docs/results");
    let folder = if series == series::DEFAULT { results } else { results.join(series) };
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<Results> = files
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .map(|path| Results::read(&path).unwrap())
        .collect();
    all.sort_by(|a, b| a.meta.date.cmp(&b.meta.date));
    let mut latest = BTreeMap::new();
    for Results { meta, runs, .. } in all {
        for mut run in runs {
            // In swap-defer, what is measured by swap-batch is an arm.
            match (meta.base(), meta.changed(), run.scenario.as_str()) {
                ("stock", "memreap", _) => {}
                ("stock", "memreap-batch", "swap-defer") => run.scenario = "swap-batch".into(),
                // A peer, or a patch of its own.
                _ if series != series::DEFAULT => continue,
                other => panic!("published results of {other:?}"),
            }
            for mut metric in std::mem::take(&mut run.metrics) {
                if let Some(aa) = metric.aa.take() {
                    metric.base.extend(aa.base);
                }
                latest.insert(key(&run, &metric), metric);
            }
        }
    }
    latest
}

/// Returns the results that a scenario has in its guests, or in that of a name, as far as they are published.
fn published_of(scenario: &Scenario, guest: Option<&str>, published: &BTreeMap<Key, Metric>) -> Results {
    let mut results = all_of(scenario);
    results.runs.retain(|run| guest.is_none_or(|guest| guest == run.guest));
    for run in &mut results.runs {
        let metrics = std::mem::take(&mut run.metrics);
        run.metrics = metrics.iter().filter_map(|m| published.get(&key(run, m)).cloned()).collect();
    }
    results
}

/// The distribution of the next boot's value.
struct Next {
    /// The mean of the logarithms.
    mean: f64,
    /// The scale of the deviation from it.
    scale: f64,
    degrees: f64,
    /// What is added to values before the logarithm is taken, because some are 0.
    offset: f64,
    /// Whether all values are whole numbers.
    whole: bool,
}

impl Next {
    fn of(values: &[f64]) -> Self {
        let offset = if values.contains(&0.0) { 0.5 } else { 0.0 };
        let logs: Vec<f64> = values.iter().map(|v| (v + offset).ln()).collect();
        let n = logs.len() as f64;
        Self {
            mean: stats::mean(&logs),
            scale: (stats::variance(&logs) * (1.0 + 1.0 / n)).sqrt(),
            degrees: n - 1.0,
            offset,
            whole: values.iter().all(|v| v.fract() == 0.0),
        }
    }

    fn at(&self, t: f64) -> f64 {
        let value = ((self.mean + self.scale * t).exp() - self.offset).max(0.0);
        if self.whole { value.round() } else { value }
    }

    /// Draws a value, by Bailey's polar method.
    fn draw(&self, random: &mut Noise) -> f64 {
        self.at(self.radius(random.uniform()) * (std::f64::consts::TAU * random.uniform()).cos())
    }

    /// Returns a distance from the mean that is exceeded at most with that probability.
    fn radius(&self, probability: f64) -> f64 {
        (self.degrees * (probability.powf(-2.0 / self.degrees) - 1.0)).sqrt()
    }
}

/// Makes results of `pairs` pairs: `value` gives that of a boot, from the distribution of its arm and whether a large
/// value there is bad for a promise. Without `by_pairs` there are no ratios, only values.
fn run_of(published: &Results, pairs: usize, by_pairs: bool, mut value: impl FnMut(&Next, bool) -> f64) -> Results {
    let mut results = published.clone();
    results.meta.pairs = pairs;
    for metric in results.metrics_mut() {
        let lower = metric.better == Better::Lower;
        let mut boots = |values: &[f64], large: bool| {
            let next = Next::of(values);
            (0..pairs).map(|_| value(&next, large)).collect::<Vec<_>>()
        };
        metric.base = boots(&metric.base, !lower);
        metric.changed = boots(&metric.changed, lower);
        for ControlValues { values, .. } in &mut metric.controls {
            *values = boots(values, lower);
        }
    }
    if !by_pairs {
        return results;
    }
    let all: Vec<Pairs<'_>> =
        (results.metrics()).map(|(_, m)| Pairs { base: &m.base, changed: &m.changed, better: m.better }).collect();
    let compared = stats::compare(&all, Rules::default()).unwrap();
    for (metric, compared) in results.metrics_mut().zip(compared) {
        (metric.ratio, metric.ci95, metric.p) = (compared.ratio, compared.ci95, compared.p);
        metric.verdict = compared.verdict;
    }
    results
}

/// A kind of run, and its pairs.
#[derive(Clone, Copy)]
struct Drawn<'a> {
    what: &'static str,
    kind: RunKind<'a>,
    pairs: usize,
}

const DEMO: RunKind<'_> = RunKind { series: series::DEFAULT, case: None, smoke: false, aa: false };

/// The kinds of runs on kernels of a series.
fn kinds(series: &str) -> [Drawn<'_>; 2] {
    // Without the A/A control, whose alarms are not about the promises.
    let kind = |smoke| RunKind { series, case: None, smoke, aa: false };
    [
        Drawn { what: "smoke run", kind: kind(true), pairs: 1 },
        Drawn { what: "full run", kind: kind(false), pairs: PAIRS_OF_A_FULL_RUN },
    ]
}

fn read(scenario: &Scenario) -> (PathBuf, String) {
    let path = PathBuf::from("kernel").join(scenario.name).join("expect.toml");
    let text = fs::read_to_string(repository().join(&path)).unwrap();
    (path, text)
}

/// Returns what a file promises about kernels of a series.
fn of_series(text: &str, series: &str) -> File {
    let mut file: File = toml::from_str(text).unwrap();
    file.keep_series(series);
    file
}

/// Returns a file for each promise in the file about kernels of a series, and the metrics that it is about.
fn promises(text: &str, series: &str) -> Vec<(File, Vec<String>)> {
    let File { scenario, known_worse, expect, compare, bound, .. } = of_series(text, series);
    let empty = || File { scenario: scenario.clone(), ..File::default() };
    let mut all = Vec::new();
    for known in known_worse {
        let metric = known.metric.clone();
        all.push((File { known_worse: vec![known], ..empty() }, vec![metric]));
    }
    for expect in expect {
        let metric = expect.metric.get_ref().clone();
        all.push((File { expect: vec![expect], ..empty() }, vec![metric]));
    }
    for compare in compare {
        let metrics = vec![compare.metric.clone(), compare.not_worse_than.clone()];
        all.push((File { compare: vec![compare], ..empty() }, metrics));
    }
    for bound in bound {
        let metric = bound.metric.clone();
        all.push((File { bound: vec![bound], ..empty() }, vec![metric]));
    }
    all
}

/// Whether a metric has one of these names.
fn is_one_of(metric: &Metric, names: &[String]) -> bool {
    names.iter().any(|name| is_named(metric, name))
}

/// Returns the guest that a promise is about; `None` for all.
fn guest_of(promise: &File) -> Option<&String> {
    let guests = (promise.expect.iter().map(|e| &e.guest))
        .chain(promise.known_worse.iter().map(|k| &k.guest))
        .chain(promise.compare.iter().map(|c| &c.guest))
        .chain(promise.bound.iter().map(|b| &b.guest));
    guests.flatten().next()
}

/// Returns what a promise needs that is not published: kernels, guests, and cases of other guests. `all` are the
/// metrics that the scenario reports.
fn without_results(promise: &File, names: &[String], all: &Results, results: &Results) -> Vec<String> {
    let of_compare = promise.compare.iter().flat_map(|c| [Some(&c.arm), c.than_arm.as_ref()]).flatten();
    let arms = of_compare.chain(promise.bound.iter().map(|b| &b.arm)).map(|arm| arm.get_ref());
    let kernels = arms.filter(|arm| !["stock", "memreap"].contains(&arm.as_str())).filter(|arm| {
        let mut promised = results.metrics().filter(|(_, m)| is_one_of(m, names));
        promised.all(|(_, m)| m.values_on(ArmRole::Control(arm)).is_empty())
    });
    let guest = guest_of(promise);
    let is_missing = |(run, m): &(&Run, &Metric)| {
        guest.is_none_or(|guest| *guest == run.guest)
            && is_one_of(m, names)
            && results.metrics().all(|(other, r)| key(other, r) != key(run, m))
    };
    let metrics = all.metrics().filter(is_missing).map(|(run, m)| {
        match results.run(&run.scenario, &run.guest).is_some_and(|run| !run.metrics.is_empty()) {
            true => format!("case {} in guest {}", m.case(), run.guest),
            false => format!("guest {}", run.guest),
        }
    });
    kernels.map(|kernel| format!("kernel {kernel}")).chain(metrics).collect()
}

/// Returns how many of the drawn runs miss each promise, for those that may be missed at all.
fn misses(results: &Results, promise: &File, drawn: Drawn<'_>) -> BTreeMap<String, usize> {
    let missed = |results: &Results| {
        let checked = own(check_file(results, promise, drawn.kind, |_, what| anyhow!(what)).unwrap());
        checked.into_iter().filter(|c| c.state == State::Missed).map(|c| c.expected)
    };
    // If even the boots are good enough that are further off than all of a run in all but one of so many runs,
    // it need not be drawn.
    let far = 1.0 / (2 * drawn.pairs * RUNS) as f64;
    let by_pairs = promise.compare.is_empty() && promise.bound.is_empty();
    let worst = run_of(results, drawn.pairs, by_pairs, |next, large| {
        next.at(next.radius(far) * if large { 1.0 } else { -1.0 })
    });
    if promise.compare.is_empty() && missed(&worst).next().is_none() {
        return BTreeMap::new();
    }
    let mut random = Noise(1);
    let mut misses = BTreeMap::new();
    for _ in 0..RUNS {
        let run = run_of(results, drawn.pairs, by_pairs, |next, _| next.draw(&mut random));
        missed(&run).for_each(|what| *misses.entry(what).or_default() += 1);
    }
    misses
}

/// Says of each promise that is missed too often where it is and what to do.
fn too_often(path: &Path, what: &str, pairs: usize, misses: BTreeMap<String, usize>) -> Vec<String> {
    let often = misses.into_iter().filter(|(_, missed)| *missed > 1);
    let text = |(promise, missed)| {
        format!(
            "{}: {promise}: missed in {missed} of {RUNS} runs drawn from docs/results, {what} ({pairs} pairs)",
            path.display()
        )
    };
    often.map(text).collect()
}

#[test]
fn no_promise_is_missed_by_chance() {
    let series = series::names(&repository()).unwrap();
    let published: Vec<_> = series.iter().map(|series| published(series)).collect();
    let of_scenario = |series: &str, published: &BTreeMap<Key, Metric>, scenario: &Scenario| {
        let (path, text) = read(scenario);
        let results = published_of(scenario, None, published);
        let (mut without, mut often) = (Vec::new(), Vec::new());
        for (promise, names) in promises(&text, series) {
            let missing = without_results(&promise, &names, &all_of(scenario), &results);
            let has_kernels = missing.iter().all(|what| !what.starts_with("kernel "));
            without.extend(missing.into_iter().map(|what| format!("{series} {}: {what}", scenario.name)));
            let mut results = results.clone();
            results.runs.retain(|run| guest_of(&promise).is_none_or(|guest| *guest == run.guest));
            for run in &mut results.runs {
                run.metrics.retain(|m| is_one_of(m, &names));
            }
            if results.metrics().next().is_none() || !has_kernels {
                continue;
            }
            for drawn in kinds(series) {
                let misses = misses(&results, &promise, drawn);
                often.extend(too_often(&path, drawn.what, drawn.pairs, misses));
            }
        }
        Ok((without, often))
    };
    let all: Vec<_> = series
        .iter()
        .zip(&published)
        .flat_map(|of| scenarios::all().iter().map(move |scenario| (of, scenario)))
        .collect();
    let found = parallel::map(crate::host::cpus(), &all, |((series, published), scenario)| {
        of_scenario(series, published, scenario)
    });
    let (without, often): (Vec<_>, Vec<_>) = found.into_iter().map(Result::unwrap).unzip();
    let without: BTreeSet<String> = without.into_iter().flatten().collect();
    let known: BTreeSet<String> = WITHOUT_RESULTS.iter().map(|&what| what.to_owned()).collect();
    let unknown = without.difference(&known).map(|what| format!("{what}: no published results have it"));
    let stale = known.difference(&without).map(|what| format!("{what}: published; remove it from WITHOUT_RESULTS"));
    assert_none(&often.into_iter().flatten().chain(unknown).chain(stale).collect::<Vec<_>>());
}

/// Reads the default of a variable of the Makefile.
fn variable(makefile: &str, name: &str) -> String {
    let lines = makefile.lines();
    let value = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(" ?= ")).next();
    value.unwrap().to_owned()
}

#[test]
fn make_demo_does_not_fail_by_chance() {
    let makefile = fs::read_to_string(repository().join("Makefile")).unwrap();
    let pairs: usize = variable(&makefile, "PAIRS").parse().unwrap();
    let guest = variable(&makefile, "GUEST");
    let names: Vec<String> = variable(&makefile, "SCENARIOS").split(' ').map(str::to_owned).collect();
    let (published, scenarios) = (published(series::DEFAULT), workload::scenarios(None, &names).unwrap());
    let parts = scenarios.iter().map(|scenario| published_of(scenario, Some(&guest), &published));
    let all = parts.reduce(|mut all, more| {
        all.runs.extend(more.runs);
        all
    });
    let all = all.unwrap();
    let read = |scenario: &&Scenario| {
        let (path, text) = read(scenario);
        (path, of_series(&text, series::DEFAULT))
    };
    let files: Vec<(PathBuf, File)> = scenarios.iter().map(read).collect();
    // As many on any host, so that the runs are the same.
    let seeds = [1, 2, 3, 4];
    let counted = parallel::map(crate::host::cpus(), &seeds, |&seed| {
        let (mut random, mut misses) = (Noise(seed), vec![BTreeMap::<String, usize>::new(); files.len()]);
        for _ in 0..RUNS / seeds.len() {
            let run = run_of(&all, pairs, true, |next, _| next.draw(&mut random));
            for ((_, file), misses) in files.iter().zip(&mut misses) {
                let checked = check_file(&run, file, DEMO, |_, what| anyhow!(what))?;
                for missed in checked.into_iter().filter(|c| c.state == State::Missed) {
                    *misses.entry(missed.expected).or_default() += 1;
                }
            }
        }
        Ok(misses)
    });
    let mut all_misses = vec![BTreeMap::<String, usize>::new(); files.len()];
    for misses in counted.into_iter().map(Result::unwrap) {
        for (all, misses) in all_misses.iter_mut().zip(misses) {
            misses.into_iter().for_each(|(what, missed)| *all.entry(what).or_default() += missed);
        }
    }
    let often = files.iter().zip(all_misses);
    let often = often.flat_map(|((path, _), misses)| too_often(path, "make demo", pairs, misses));
    assert_none(&often.collect::<Vec<_>>());
}

#[test]
fn a_ratio_to_a_stock_that_varies_is_found() {
    let (scenario, metric) = (scenarios::find("memcg-exit").unwrap(), "oom-small/memory-95-ms");
    let mut results = published_of(scenario, Some("icount"), &published(series::DEFAULT));
    results.runs.iter_mut().for_each(|run| run.metrics.retain(|m| m.metric == metric));
    let missed = |promise: &str| {
        let file = of_series(promise, series::DEFAULT);
        let misses = misses(&results, &file, Drawn { what: "make demo", kind: DEMO, pairs: 6 });
        misses.into_values().max().unwrap_or(0)
    };
    // Stock's boots take 100 to 4,000 ms: a ratio of an eighth of what was measured is missed now and then.
    let of_ratio = missed(&format!("[[expect]]\nmetric = \"{metric}\"\nat_least = 2.5\n"));
    assert!(of_ratio > RUNS / 100, "{of_ratio}");
    let of_ours = missed(&format!("[[bound]]\narm = \"memreap\"\nmetric = \"{metric}\"\nat_most = 300\n"));
    assert!(of_ours <= 1, "{of_ours}");
}

fn assert_none(problems: &[String]) {
    assert!(
        problems.is_empty(),
        "{}\nPromise a ratio only where stock is steady; where it varies, a [[bound]] on the changed kernel's time or \
         count.",
        problems.join("\n")
    );
}
