//! What a topic promises: `kernel/<topic>/expect.toml`, checked against a run's results.
//!
//! ```toml
//! aa_clean = true             # no A/A control of the scenario may see a difference
//!
//! [[known_worse]]             # what may get worse, but not below this ratio; nothing else may
//! metric = "100-vmas/zone-lock-contended"
//! at_least = 0.4              # 0.0 where the base arm has 0: then the ratio says nothing
//!
//! [[expect]]                  # one metric, changed arm against base arm
//! metric = "100-vmas/pte-lock-contended"
//! mode = "multi"              # optional; without it, every mode that has the metric
//! at_least = 33.0             # the ratio; above 1 is an improvement
//! verdict = "better"          # optional
//! share_at_most = 0.03        # optional: all boots together, this share of the base arm's
//!
//! [[compare]]                 # two metrics of one arm, or one of any two arms, by their medians
//! arm = "memreap"
//! metric = "100-vmas/mrelease2-90"
//! not_worse_than = "100-vmas/mrelease-90"
//! tolerance = 0.05            # optional: so much worse is still fine
//! than_arm = "stock-precise"  # optional: the second metric is of this arm, so two arms are compared
//! times = 15.0                # optional: must be so many times as good
//!
//! [[bound]]                   # one metric of one arm, by its median
//! arm = "memreap"
//! metric = "20000-vmas-2-maps/vmas-per-mapping"
//! at_most = 1.5
//! mode = "icount"             # optional, as in all tables
//! cpus = 64                   # optional, too: of a scenario with several guests of one mode
//! ```
//!
//! `scenario = "..."` in a table, or once at the top for all, tells metrics of the same name
//! apart. A metric that the results do not have fails its expectation.
//!
//! `at_least` is a promise, a floor of `[[known_worse]]` as well: it is kept if the lower end of the
//! ratio's 95 % interval is not below it. So it is kept by luck in one of forty runs at most, and a run
//! that is too noisy, or has too few pairs for an interval, keeps no promise.
//!
//! `share_at_most` is for counts that go down to almost nothing: where one arm has zeros, a ratio
//! depends on how they are treated ([`crate::ab::stats`]), a share of a sum does not.
//!
//! [`Terms`] say what is left out where the results cannot show it.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use comfy_table::{Attribute, Cell, Color};
use serde::Deserialize;
use toml::Spanned;

use crate::ab::catalog::run_name;
use crate::ab::results::{Metric, Results};
use crate::ab::stats::{MIN_PAIRS, median};
use crate::ab::table;
use crate::ab::verdict::Verdict;
use crate::format::{interval, number, percent, ratio};
use protocol::results::Better;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    scenario: Option<String>,
    #[serde(default)]
    aa_clean: bool,
    #[serde(default)]
    known_worse: Vec<KnownWorse>,
    #[serde(default)]
    expect: Vec<Expect>,
    #[serde(default)]
    compare: Vec<Compare>,
    #[serde(default)]
    bound: Vec<Bound>,
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table for each metric that may get worse: [[known_worse]] with metric = \"...\" and \
                 at_least = the ratio below which it must not fall"
)]
struct KnownWorse {
    metric: String,
    at_least: f64,
    scenario: Option<String>,
    mode: Option<String>,
    cpus: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    metric: Spanned<String>,
    scenario: Option<String>,
    mode: Option<String>,
    cpus: Option<u32>,
    at_least: Option<f64>,
    share_at_most: Option<f64>,
    verdict: Option<Verdict>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Compare {
    arm: Spanned<String>,
    metric: String,
    not_worse_than: String,
    than_arm: Option<Spanned<String>>,
    #[serde(default)]
    tolerance: f64,
    #[serde(default = "one")]
    times: f64,
    scenario: Option<String>,
    mode: Option<String>,
    cpus: Option<u32>,
}

fn one() -> f64 {
    1.0
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bound {
    arm: Spanned<String>,
    metric: String,
    at_most: f64,
    scenario: Option<String>,
    mode: Option<String>,
    cpus: Option<u32>,
}

/// What the results were to show.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Whether they are of a smoke run, one pair: then `at_least` and `share_at_most` are judged by the
    /// pair's own figures, which only have to show half of what is promised, and what needs more pairs is
    /// left out: verdicts, what got worse, the A/A control, and in guests that run in real time all but
    /// large ratios.
    pub smoke: bool,
    /// Whether they have an A/A control. Without one, `aa_clean` is left out.
    pub aa: bool,
}

/// One expectation and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What is expected, in words.
    pub expected: String,
    /// What was measured, or why nothing was.
    pub measured: String,
    /// Whether that is enough.
    pub state: State,
}

/// What became of an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It was measured.
    Met,
    /// It was not.
    Missed,
    /// Nobody looked; see [`Terms`].
    LeftOut,
}

impl State {
    fn of(met: bool) -> Self {
        if met { Self::Met } else { Self::Missed }
    }
}

/// Checks `results` against an `expect.toml`.
///
/// # Errors
/// When the file cannot be read, or is not of the form that the module describes; the error
/// names file and line.
pub fn check(results: &Results, path: &Path, terms: Terms) -> Result<Vec<Checked>> {
    let text = fs::read_to_string(path).with_context(|| format!("{}: cannot read", path.display()))?;
    check_text(results, &text, path, terms)
}

fn check_text(results: &Results, text: &str, path: &Path, terms: Terms) -> Result<Vec<Checked>> {
    let bad = |span: Range<usize>, what: String| anyhow!("{}:{}: {what}", path.display(), line(text, &span));
    let file: File =
        toml::from_str(text).map_err(|e| bad(e.span().unwrap_or_default(), e.message().to_owned()))?;
    let tables = file.expect.len() + file.compare.len() + file.bound.len();
    if !file.aa_clean && file.known_worse.is_empty() && tables == 0 {
        bail!("{}: expects nothing; remove the file or write expectations", path.display());
    }
    let mut checked = Vec::new();
    if file.aa_clean {
        checked.push(aa_clean(results, file.scenario.as_deref(), terms));
    }
    for known in &file.known_worse {
        checked.extend(Scope::of_known_worse(&file, known).known_worse(results, known, terms));
    }
    checked.push(nothing_else_worse(results, &file, terms));
    for expect in &file.expect {
        if expect.at_least.is_none() && expect.share_at_most.is_none() && expect.verdict.is_none() {
            let what = "give at_least, share_at_most or verdict, or nothing is expected of this metric";
            return Err(bad(expect.metric.span(), what.to_owned()));
        }
        let scope = Scope::new(&file, &expect.scenario, &expect.mode, expect.cpus);
        checked.extend(scope.expect(results, expect, terms));
    }
    for compare in &file.compare {
        let scope = Scope::new(&file, &compare.scenario, &compare.mode, compare.cpus);
        let side = |arm| side(results, arm, bad);
        let first = side(&compare.arm)?;
        let second = compare.than_arm.as_ref().map_or(Ok(first), side)?;
        checked.extend(scope.compare(results, compare, first, second));
    }
    for bound in &file.bound {
        let scope = Scope::new(&file, &bound.scenario, &bound.mode, bound.cpus);
        checked.extend(scope.bound(results, bound, side(results, &bound.arm, bad)?));
    }
    Ok(checked)
}

/// The arm of that name, or what is `bad` about it.
fn side<'a>(
    results: &Results,
    arm: &'a Spanned<String>,
    bad: impl Fn(Range<usize>, String) -> anyhow::Error,
) -> Result<Side<'a>> {
    Side::of(results, arm.get_ref()).map_err(|what| bad(arm.span(), what))
}

/// One arm of the results.
#[derive(Clone, Copy)]
enum Side<'a> {
    Base,
    Changed,
    /// A kernel beside the two, by its name.
    Beside(&'a str),
}

impl<'a> Side<'a> {
    /// The arm of that name, or of the name that it has by default.
    fn of(results: &Results, arm: &'a str) -> Result<Self, String> {
        let (base, changed) = (results.meta.base(), results.meta.changed());
        match arm {
            _ if arm == base => Ok(Self::Base),
            _ if arm == changed => Ok(Self::Changed),
            "stock" => Ok(Self::Base),
            "memreap" => Ok(Self::Changed),
            _ if results.meta.arms.iter().skip(2).any(|beside| beside.name == arm) => Ok(Self::Beside(arm)),
            _ => {
                let known = [base, changed].into_iter();
                let known = known.chain(results.meta.arms.iter().skip(2).map(|beside| beside.name.as_str()));
                Err(format!("no arm '{arm}'; there are: {}", known.collect::<Vec<_>>().join(", ")))
            }
        }
    }

    /// NaN, which meets no expectation, if the metric was not measured on the arm.
    fn median(self, metric: &Metric) -> f64 {
        match self {
            Self::Base => median(&metric.stock),
            Self::Changed => median(&metric.memreap),
            Self::Beside(arm) => metric.beside(arm).unwrap_or(f64::NAN),
        }
    }
}

/// Whether nothing was missed.
#[must_use]
pub fn passed(checked: &[Checked]) -> bool {
    checked.iter().all(|c| c.state != State::Missed)
}

/// The expectations as a table for the terminal; `width` and `colour` as in [`table::render`].
#[must_use]
pub fn render(checked: &[Checked], width: Option<u16>, colour: bool) -> String {
    let mut table = table::new_table(width, colour);
    table.set_header(["expected", "measured", ""]);
    for check in checked {
        let (word, shade) = match check.state {
            State::Met => ("ok", Color::Green),
            State::Missed => ("MISSED", Color::Red),
            State::LeftOut => ("-", Color::Grey),
        };
        table.add_row([
            Cell::new(&check.expected),
            Cell::new(&check.measured),
            Cell::new(word).fg(shade).add_attribute(Attribute::Bold),
        ]);
    }
    let count = |state| checked.iter().filter(|c| c.state == state).count();
    let [met, missed, left_out] = [State::Met, State::Missed, State::LeftOut].map(count);
    let left_out = if left_out > 0 { format!(", {left_out} left out") } else { String::new() };
    table::lines(&table)
        + &format!("\n{} expectations: {met} met, {missed} missed{left_out}\n", checked.len())
}

/// What is said of an expectation that more pairs could have met.
const TOO_FEW: &str = "too few pairs";

fn left_out(expected: String, why: &str) -> Checked {
    Checked { expected, measured: format!("left out{why}"), state: State::LeftOut }
}

fn needs_pairs(expected: String) -> Checked {
    left_out(expected, ": needs pairs")
}

fn nothing_else_worse(results: &Results, file: &File, terms: Terms) -> Checked {
    let expected = match file.known_worse.as_slice() {
        [] => "nothing got worse".to_owned(),
        _ => "nothing else got worse".to_owned(),
    };
    if terms.smoke {
        return needs_pairs(expected);
    }
    let scenario = file.scenario.as_deref();
    let known = |m: &Metric| {
        let of = |known: &&KnownWorse| Scope::of_known_worse(file, known).holds(m, &known.metric);
        file.known_worse.iter().find(of).is_some()
    };
    let worse: Vec<String> = results
        .metrics
        .iter()
        .filter(|m| m.verdict == Verdict::Worse && scenario.is_none_or(|s| m.scenario == s))
        .filter(|m| !known(m))
        .map(|m| format!("{}: {}", place(m), ratio(m.ratio)))
        .collect();
    let (measured, met) = match worse.as_slice() {
        _ if results.meta.pairs < MIN_PAIRS => (TOO_FEW.to_owned(), false),
        [] => ("nothing".to_owned(), true),
        worse => (worse.join("; "), false),
    };
    Checked { expected, measured, state: State::of(met) }
}

fn aa_clean(results: &Results, scenario: Option<&str>, terms: Terms) -> Checked {
    let expected = "A/A control: no difference in any metric".to_owned();
    if terms.smoke {
        return needs_pairs(expected);
    }
    if !terms.aa {
        return left_out(expected, " (--no-aa)");
    }
    let metrics: Vec<&Metric> =
        results.metrics.iter().filter(|m| scenario.is_none_or(|s| m.scenario == s)).collect();
    let without = metrics.iter().find(|m| m.aa.is_none());
    let alarms: Vec<String> = metrics
        .iter()
        .filter_map(|m| m.aa.as_ref().filter(|aa| aa.verdict.is_difference()).map(|aa| (m, aa)))
        .map(|(m, aa)| format!("{}: {} {}", place(m), ratio(aa.ratio), aa.verdict))
        .collect();
    let (measured, met) = match (without, alarms.as_slice()) {
        (Some(without), _) => (format!("{} has no control", place(without)), false),
        _ if results.meta.pairs < MIN_PAIRS => (TOO_FEW.to_owned(), false),
        (None, []) => (format!("{} metrics, all same or no verdict", metrics.len()), !metrics.is_empty()),
        (None, alarms) => (alarms.join("; "), false),
    };
    Checked { expected, measured, state: State::of(met) }
}

/// A promise about one metric in words, and whether it is kept: `None` if the run cannot tell.
type Promise = (String, Option<bool>);

fn at_least(metric: &Metric, least: f64, terms: Terms) -> Promise {
    // A rounding error in exp(ln(x)) must not turn identical boots into a miss.
    const ROUNDING: f64 = 1e-9;
    let reaches = |shown: f64, least: f64| shown >= least * (1.0 - ROUNDING);
    let words = format!("at least {}", ratio(least));
    if !terms.smoke {
        return (words, Some(metric.ci95.is_some_and(|[lowest, _]| reaches(lowest, least))));
    }
    match by_one_pair(metric, least) {
        Some(part) => (format!("{words} ({} by one pair)", ratio(part)), Some(reaches(metric.ratio, part))),
        None => (words, None),
    }
}

/// What one pair has to show of a ratio that is promised: half of a gain, in logarithms; where nothing
/// is to be gained, it may be a fifth below. Guests in real time share the host with whatever else runs
/// there, and beside two compilers a pair showed 0.77x of a promised 1.25x: they have to show what is
/// far beyond that, and nothing else.
fn by_one_pair(metric: &Metric, least: f64) -> Option<f64> {
    const FAR: f64 = 10.0;
    let virtual_time = metric.mode.as_deref() == Some("icount");
    match least {
        _ if !virtual_time && least < FAR => None,
        _ if least > 1.0 => Some(least.sqrt()),
        _ => Some(least * 0.8),
    }
}

/// `share_at_most`, of which one pair has to show half as well.
fn at_most_a_share(metric: &Metric, most: f64, terms: Terms) -> Promise {
    let [changed, base] = sums(metric);
    let words = format!("at most {} of base", percent(most));
    if terms.smoke {
        let part = most.sqrt();
        return (format!("{words} ({} by one pair)", percent(part)), Some(changed <= part * base));
    }
    (words, Some(changed <= most * base))
}

/// All that was measured on the changed kernel, and on the base.
fn sums(metric: &Metric) -> [f64; 2] {
    [&metric.memreap, &metric.stock].map(|arm| arm.iter().sum())
}

/// The ratio, how sure it is, and the verdict.
fn judged(metric: &Metric, terms: Terms) -> String {
    let of = ratio(metric.ratio);
    match metric.ci95 {
        _ if terms.smoke => of,
        Some(ends) => format!("{of} ({}), {}", interval(ends), metric.verdict),
        None => format!("{of}, {TOO_FEW}"),
    }
}

/// Which of the results' metrics an expectation is about.
struct Scope<'a> {
    scenario: Option<&'a str>,
    mode: Option<&'a str>,
    cpus: Option<u32>,
}

impl<'a> Scope<'a> {
    fn new(
        file: &'a File,
        scenario: &'a Option<String>,
        mode: &'a Option<String>,
        cpus: Option<u32>,
    ) -> Self {
        Self { scenario: scenario.as_deref().or(file.scenario.as_deref()), mode: mode.as_deref(), cpus }
    }

    fn of_known_worse(file: &'a File, known: &'a KnownWorse) -> Self {
        Self::new(file, &known.scenario, &known.mode, known.cpus)
    }

    /// Whether it is the metric of that name, in a guest that is meant.
    fn holds(&self, m: &Metric, name: &str) -> bool {
        m.metric == name
            && self.scenario.is_none_or(|s| m.scenario == s)
            && self.mode.is_none_or(|mode| m.mode.as_deref() == Some(mode))
            && self.cpus.is_none_or(|cpus| m.cpus == Some(cpus))
    }

    fn find<'r>(&self, results: &'r Results, name: &str) -> Vec<&'r Metric> {
        results.metrics.iter().filter(|m| self.holds(m, name)).collect()
    }

    fn known_worse(&self, results: &Results, known: &KnownWorse, terms: Terms) -> Vec<Checked> {
        let wanted = |name: &str| format!("{name}: may get worse");
        let found = self.find(results, &known.metric);
        if found.is_empty() {
            return vec![missing(wanted(&known.metric), &known.metric)];
        }
        let checked = found.into_iter().map(|m| {
            let (floor, kept) = match known.at_least {
                0.0 => (String::new(), Some(true)),
                least => at_least(m, least, terms),
            };
            let separator = if floor.is_empty() { "" } else { ", " };
            let expected = wanted(&place(m)) + separator + &floor;
            match kept {
                Some(kept) => Checked { expected, measured: judged(m, terms), state: State::of(kept) },
                None => needs_pairs(expected),
            }
        });
        checked.collect()
    }

    fn expect(&self, results: &Results, expect: &Expect, terms: Terms) -> Vec<Checked> {
        let name = expect.metric.get_ref();
        let found = self.find(results, name);
        if found.is_empty() {
            return vec![missing(name.clone(), name)];
        }
        found.into_iter().flat_map(|m| expected_of(m, expect, terms)).collect()
    }

    fn compare(
        &self,
        results: &Results,
        compare: &Compare,
        side: Side<'_>,
        other_side: Side<'_>,
    ) -> Vec<Checked> {
        let Compare { metric, not_worse_than, tolerance, times, .. } = compare;
        let arm = compare.arm.get_ref();
        let how = match times {
            1.0 => "not worse than".to_owned(),
            _ => format!("at least {} as good as", ratio(*times)),
        };
        let than = compare.than_arm.as_ref().map_or(String::new(), |arm| format!(" on {}", arm.get_ref()));
        let wanted =
            format!("on {arm}: {metric} {how} {not_worse_than}{than} (tolerance {})", percent(*tolerance));
        let others = self.find(results, not_worse_than);
        let found = self.find(results, metric);
        if found.is_empty() {
            return vec![missing(wanted, metric)];
        }
        let checked = found.into_iter().map(|m| {
            let Some(other) = others.iter().find(|o| guest(o) == guest(m)) else {
                return missing(wanted.clone(), not_worse_than);
            };
            let (value, limit) = (side.median(m), other_side.median(other));
            let comparable = (&m.unit, m.better) == (&other.unit, other.better);
            let met = comparable
                && match m.better {
                    Better::Lower => value * times <= limit * (1.0 + tolerance),
                    Better::Higher => value * (1.0 + tolerance) >= limit * times,
                };
            let measured = format!("{} {} against {} {}", number(value), m.unit, number(limit), other.unit);
            Checked { expected: wanted.clone(), measured, state: State::of(met) }
        });
        checked.collect()
    }

    fn bound(&self, results: &Results, bound: &Bound, side: Side<'_>) -> Vec<Checked> {
        let wanted =
            |metric: &str| format!("on {}: {metric} at most {}", bound.arm.get_ref(), number(bound.at_most));
        let found = self.find(results, &bound.metric);
        if found.is_empty() {
            return vec![missing(wanted(&bound.metric), &bound.metric)];
        }
        let checked = found.into_iter().map(|m| {
            let value = side.median(m);
            let measured = format!("{} {}", number(value), m.unit);
            Checked { expected: wanted(&place(m)), measured, state: State::of(value <= bound.at_most) }
        });
        checked.collect()
    }
}

/// The metric against what is expected of it, and apart from it what needs more pairs.
fn expected_of(m: &Metric, expect: &Expect, terms: Terms) -> Vec<Checked> {
    let promises = [
        expect.at_least.map(|least| at_least(m, least, terms)),
        expect.share_at_most.map(|most| at_most_a_share(m, most, terms)),
        expect.verdict.map(|verdict| (verdict.to_string(), (!terms.smoke).then_some(m.verdict == verdict))),
    ];
    let (told, untold): (Vec<Promise>, Vec<Promise>) =
        promises.into_iter().flatten().partition(|(_, kept)| kept.is_some());
    let of = |promises: &[Promise]| {
        let words: Vec<&str> = promises.iter().map(|(words, _)| words.as_str()).collect();
        format!("{}: {}", place(m), words.join(", "))
    };
    let mut checked = Vec::new();
    if !told.is_empty() {
        let mut measured = judged(m, terms);
        if expect.share_at_most.is_some() {
            let [changed, base] = sums(m);
            let share = if base > 0.0 { percent(changed / base) } else { "-".to_owned() };
            measured = format!("{measured}, {share} ({} of {} {})", number(changed), number(base), m.unit);
        }
        let met = told.iter().all(|(_, kept)| *kept == Some(true));
        checked.push(Checked { expected: of(&told), measured, state: State::of(met) });
    }
    if !untold.is_empty() {
        checked.push(needs_pairs(of(&untold)));
    }
    checked
}

/// How it is said that an expectation is of a metric that was not measured.
const MISSING: &str = "the results have no";

fn missing(expected: String, metric: &str) -> Checked {
    Checked { expected, measured: format!("{MISSING} {metric}"), state: State::Missed }
}

/// What tells the guests apart in which metrics are measured.
fn guest(metric: &Metric) -> (&str, Option<&str>, Option<u32>) {
    (&metric.scenario, metric.mode.as_deref(), metric.cpus)
}

fn place(metric: &Metric) -> String {
    match &metric.mode {
        Some(mode) => format!("{} ({})", metric.metric, run_name(mode, metric.cpus)),
        None => metric.metric.clone(),
    }
}

/// The line, from 1, in which the span begins.
fn line(text: &str, span: &Range<usize>) -> usize {
    text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use super::*;
    use crate::ab::catalog::{self, Scenario, mode_name};
    use crate::ab::results::{ArmMeta, Beside, fixture};

    const ALL: Terms = Terms { smoke: false, aa: true };
    const SMOKE: Terms = Terms { smoke: true, aa: false };

    fn check_fixture(text: &str) -> Result<Vec<Checked>> {
        check_text(&fixture::results(), text, Path::new("kernel/reap/expect.toml"), ALL)
    }

    /// Results of a smoke run: one pair, no intervals, no verdicts, no control.
    fn one_pair() -> Results {
        let mut results = fixture::results();
        results.meta.pairs = 1;
        for metric in &mut results.metrics {
            (metric.ci95, metric.aa, metric.verdict) = (None, None, Verdict::None);
        }
        results
    }

    /// Without the check that every file has, that nothing else got worse.
    fn own(checked: Vec<Checked>) -> Vec<Checked> {
        checked.into_iter().filter(|c| !c.expected.ends_with("got worse")).collect()
    }

    fn passes(text: &str) -> Vec<bool> {
        own(check_fixture(text).unwrap()).iter().map(|c| c.state == State::Met).collect()
    }

    /// Results with all that the scenario reports, in all its guests and on all its kernels.
    fn all_of(scenario: &Scenario) -> Results {
        let mut results = fixture::results();
        let (arm, like) = (results.meta.arms[0].clone(), results.metrics[0].clone());
        let controls = scenario.controls.iter().map(|c| ArmMeta { name: c.name.into(), ..arm.clone() });
        results.meta.arms.extend(controls);
        results.metrics.clear();
        for run in scenario.runs {
            let args: Vec<String> = run.args.iter().map(|&arg| arg.to_owned()).collect();
            let metrics = guest::metrics(scenario.name, &args, run.cpus.try_into().unwrap()).unwrap();
            assert!(!metrics.is_empty(), "{run:?}");
            results.metrics.extend(metrics.into_iter().map(|metric| Metric {
                scenario: scenario.name.into(),
                metric,
                mode: Some(mode_name(run.mode).into()),
                cpus: scenario.cpus_in_name(run),
                ..like.clone()
            }));
        }
        results
    }

    /// What the text names of which `results` have nothing.
    fn unknown(results: &Results, text: &str, path: &Path) -> Vec<String> {
        let checked = check_text(results, text, path, ALL).unwrap();
        let missing = checked.into_iter().filter(|c| c.measured.starts_with(MISSING));
        missing.map(|c| c.expected).collect()
    }

    #[test]
    fn what_topics_expect_is_what_scenarios_report() {
        let topics = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel");
        let mut files: BTreeSet<_> =
            fs::read_dir(&topics).unwrap().map(|entry| entry.unwrap().path().join("expect.toml")).collect();
        files.retain(|path| path.is_file());
        let mut wrong = Vec::new();
        for scenario in catalog::all() {
            let path = topics.join(scenario.name).join("expect.toml");
            assert!(files.remove(&path), "no {}", path.display());
            let text = fs::read_to_string(&path).unwrap();
            let unknown = unknown(&all_of(scenario), &text, &path).into_iter();
            wrong.extend(unknown.map(|what| format!("{}: {what}", scenario.name)));
        }
        assert!(wrong.is_empty(), "no scenario reports:\n{}", wrong.join("\n"));
        assert!(files.is_empty(), "of no scenario: {files:?}");
    }

    #[test]
    fn names_that_no_scenario_reports_are_found() {
        let results = all_of(catalog::select(&["reap".into()]).unwrap()[0]);
        let unknown = |text: &str| unknown(&results, text, Path::new("x")).len();
        let expect = |metric: &str| format!("[[expect]]\nmetric = '{metric}'\nat_least = 1.0\n");
        assert_eq!(unknown(&expect("1-vma/mrelease-90")), 0);
        assert_eq!(unknown(&expect("1-vma/mrelease-91")), 1);
        // Reported, but not in this guest.
        assert_eq!(unknown(&format!("{}mode = 'icount'", expect("1-vma/mrelease-90"))), 1);
        let known = |metric: &str| format!("[[known_worse]]\nmetric = '{metric}'\nat_least = 0.5\n");
        assert_eq!(unknown(&(known("1-vma/kill-cpu") + &known("1-vma/kill-cpus"))), 1);
        for (metric, other, missed) in
            [("kill-90", "kill-cpu", 0), ("kil-90", "kill-cpu", 1), ("kill-90", "cpu", 1)]
        {
            let text = format!("arm = 'stock'\nmetric = '1-vma/{metric}'\nnot_worse_than = '1-vma/{other}'");
            assert_eq!(unknown(&format!("[[compare]]\n{text}")), missed, "{text}");
        }
        assert_eq!(unknown("[[bound]]\narm = 'memreap'\nmetric = '2-vmas/kill-90'\nat_most = 1"), 1);
    }

    /// Results in which one metric, of interval `[0.5, 0.7]`, is worse.
    fn one_worse() -> Results {
        let mut results = fixture::results();
        results.metrics.iter_mut().for_each(|m| m.verdict = Verdict::Same);
        let worse = &mut results.metrics[1];
        (worse.verdict, worse.ratio, worse.ci95) = (Verdict::Worse, 0.6, Some([0.5, 0.7]));
        results
    }

    #[test]
    fn what_gets_worse_must_be_known_and_has_a_floor() {
        let judge = |metric: &str, at_least: f64, more: &str| {
            let text = format!("[[known_worse]]\nmetric = '{metric}'\nat_least = {at_least:?}\n{more}");
            let checked = check_text(&one_worse(), &text, Path::new("x"), ALL).unwrap();
            assert_eq!(checked.len(), 2);
            assert_eq!(checked[1].expected, "nothing else got worse");
            checked.iter().map(|c| c.state == State::Met).collect::<Vec<_>>()
        };
        let name = "100-vmas/mrelease-90";
        assert_eq!(judge("100-vmas/pte-lock-contended", 0.5, ""), [true, false]);
        assert_eq!(judge(name, 0.5, ""), [true, true]);
        // A floor is a promise: the whole interval is above it.
        assert_eq!(judge(name, 0.51, ""), [false, true]);
        assert_eq!(judge(name, 0.5, "mode = 'multi'\nscenario = 'reap'"), [true, true]);
        // Known in other guests only.
        assert_eq!(judge(name, 0.5, "mode = 'icount'"), [false, false]);
        assert_eq!(judge(name, 0.5, "cpus = 64"), [false, false]);
        assert_eq!(judge(name, 0.5, "scenario = 'other'"), [false, false]);
        let without = check_text(&one_worse(), "aa_clean = true", Path::new("x"), ALL).unwrap();
        assert_eq!((without[1].expected.as_str(), without[1].state), ("nothing got worse", State::Missed));
    }

    #[test]
    fn promises_are_kept_by_the_lower_end_of_the_interval() {
        let mut results = fixture::results();
        let state = |results: &Results, what: &str| {
            let text = format!("[[expect]]\nmetric = '100-vmas/mrelease-90'\n{what}");
            let checked = own(check_text(results, &text, Path::new("x"), ALL).unwrap());
            (checked[0].state, checked[0].measured.clone())
        };
        let metric = &mut results.metrics[1];
        (metric.ratio, metric.ci95, metric.verdict) = (1.5, Some([1.2, 1.9]), Verdict::Better);
        let shown = "1.50x (1.20 - 1.90), better".to_owned();
        assert_eq!(state(&results, "at_least = 1.2"), (State::Met, shown.clone()));
        assert_eq!(state(&results, "at_least = 1.21"), (State::Missed, shown));
        // Identical boots, but for the last digit.
        results.metrics[1].ci95 = Some([1.0 - 1e-15, 1.0]);
        assert_eq!(state(&results, "at_least = 1.0").0, State::Met);
        results.metrics[1].ci95 = None;
        let few = (State::Missed, "1.50x, too few pairs".to_owned());
        assert_eq!(state(&results, "at_least = 1.0"), few);
        let few = check_text(&one_pair(), "aa_clean = true", Path::new("x"), ALL).unwrap();
        assert_eq!((few[1].state, few[1].measured.as_str()), (State::Missed, TOO_FEW));
        let mut few = fixture::results();
        few.meta.pairs = 5;
        let few = check_text(&few, "aa_clean = true", Path::new("x"), ALL).unwrap();
        assert_eq!((few[0].state, few[0].measured.as_str()), (State::Missed, TOO_FEW));
    }

    #[test]
    fn one_pair_has_to_show_half_of_a_promise() {
        let judge = |metric: usize, ratio: f64, least: f64, table: &str| {
            let mut results = one_pair();
            results.metrics[metric].ratio = ratio;
            let name = &results.metrics[metric].metric;
            let text = format!("[[{table}]]\nmetric = '{name}'\nat_least = {least:?}");
            own(check_text(&results, &text, Path::new("x"), SMOKE).unwrap())[0].state
        };
        let of_mode = |mode| one_pair().metrics.iter().position(|m| m.mode.as_deref() == Some(mode)).unwrap();
        let (virtual_time, real_time) = (of_mode("icount"), of_mode("multi"));
        for table in ["expect", "known_worse"] {
            let promises = [(1.25, 1.12, 1.11), (100.0, 10.1, 9.9), (1.0, 0.81, 0.79), (0.5, 0.41, 0.39)];
            for (least, enough, too_little) in promises {
                assert_eq!(judge(virtual_time, enough, least, table), State::Met, "{least}");
                assert_eq!(judge(virtual_time, too_little, least, table), State::Missed, "{least}");
            }
            // Others on the host decide in real time, unless it is far off.
            assert_eq!(judge(real_time, 10.1, 100.0, table), State::Met);
            assert_eq!(judge(real_time, 9.9, 100.0, table), State::Missed);
            for least in [0.5, 1.0, 1.25, 9.9] {
                assert_eq!(judge(real_time, 0.1, least, table), State::LeftOut, "{least}");
            }
        }
    }

    #[test]
    fn what_needs_pairs_is_left_out_of_a_smoke_run() {
        let text = r#"
            aa_clean = true
            [[expect]]
            metric = "100-vmas/pte-lock-contended"
            at_least = 33.0
            share_at_most = 0.03
            verdict = "better"
            [[expect]]
            metric = "1-vma/kill-instructions"
            verdict = "same"
            [[expect]]
            metric = "1-vma/freed-descending"
            at_least = 0.5
            share_at_most = 0.4
            [[expect]]
            metric = "gone/metric"
            verdict = "better"
            [[compare]]
            arm = "memreap"
            metric = "100-vmas/mrelease-90"
            not_worse_than = "100-vmas/pte-lock-contended"
            [[bound]]
            arm = "memreap"
            metric = "100-vmas/mrelease-90"
            at_most = 30.0
        "#;
        let checked = check_text(&one_pair(), text, Path::new("x"), SMOKE).unwrap();
        fixture::golden("expect-smoke.txt", &render(&checked, None, false));
        assert!(!passed(&checked));
        let left_out: Vec<Checked> = checked.into_iter().filter(|c| c.state == State::LeftOut).collect();
        assert!(passed(&left_out) && left_out.len() == 5);
    }

    #[test]
    fn without_a_control_aa_clean_is_left_out() {
        let mut results = fixture::results();
        results.metrics.iter_mut().for_each(|m| m.aa = None);
        let terms = Terms { smoke: false, aa: false };
        let judge = |terms| check_text(&results, "aa_clean = true", Path::new("x"), terms).unwrap();
        assert_eq!(judge(ALL)[0].state, State::Missed);
        let checked = &judge(terms)[..1];
        assert!(passed(checked));
        let text = render(checked, None, false);
        assert!(text.contains("left out (--no-aa)"), "{text}");
        assert!(text.ends_with("1 expectations: 0 met, 0 missed, 1 left out\n"), "{text}");
    }

    #[test]
    fn golden_table_of_met_and_missed() {
        let text = r#"
            aa_clean = true
            [[expect]]
            metric = "100-vmas/pte-lock-contended"
            at_least = 33.0
            share_at_most = 0.03
            verdict = "better"
            [[expect]]
            metric = "100-vmas/mrelease-90"
            at_least = 1.25
            [[expect]]
            metric = "gone/metric"
            verdict = "same"
            [[compare]]
            arm = "memreap"
            metric = "100-vmas/mrelease-90"
            not_worse_than = "100-vmas/pte-lock-contended"
        "#;
        let checked = check_fixture(text).unwrap();
        assert!(!passed(&checked));
        fixture::golden("expect.txt", &render(&checked, None, false));
    }

    #[test]
    fn expectations_select_by_scenario_and_mode() {
        let of = |more: &str| {
            passes(&format!("[[expect]]\nmetric = '1-vma/kill-instructions'\nverdict = 'same'\n{more}"))
        };
        assert_eq!(of(""), [true]);
        assert_eq!(of("mode = 'icount'"), [true]);
        assert_eq!(of("share_at_most = 1.0"), [true]);
        assert_eq!(of("share_at_most = 0.99"), [false]);
        assert_eq!(of("mode = 'multi'"), [false]);
        assert_eq!(of("scenario = 'other'"), [false]);
    }

    #[test]
    fn a_metric_in_two_modes_must_pass_in_both() {
        let mut results = fixture::results();
        let mut twin = results.metrics[0].clone();
        (twin.mode, twin.ci95) = (Some("icount".into()), Some([2.0, 200.0]));
        results.metrics.push(twin);
        let text = "[[expect]]\nmetric = '100-vmas/pte-lock-contended'\nat_least = 33.0";
        let checked = check_text(&results, text, Path::new("x"), ALL).unwrap();
        assert_eq!(own(checked).iter().map(|c| c.state == State::Met).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn guests_of_one_mode_are_told_apart_by_their_cpus() {
        let mut results = fixture::results();
        for (cpus, factor) in [(16, 1.0), (64, 10.0)] {
            for name in ["a", "b"] {
                let mut metric = results.metrics[1].clone();
                (metric.metric, metric.cpus) = (name.into(), Some(cpus));
                (metric.ci95, metric.memreap) = (Some([factor; 2]), vec![factor]);
                results.metrics.push(metric);
            }
        }
        let judge = |text: &str| {
            let checked = own(check_text(&results, text, Path::new("x"), ALL).unwrap());
            checked.iter().map(|c| (c.expected.contains("-64)"), c.state == State::Met)).collect::<Vec<_>>()
        };
        let expect = "[[expect]]\nmetric = 'a'\nat_least = 5.0";
        assert_eq!(judge(expect), [(false, false), (true, true)]);
        assert_eq!(judge(&format!("{expect}\ncpus = 64")), [(true, true)]);
        assert!(!judge(&format!("{expect}\ncpus = 8"))[0].1);
        let compare = "[[compare]]\narm = 'memreap'\nmetric = 'b'\nnot_worse_than = 'a'";
        let passes: Vec<bool> = judge(compare).iter().map(|&(_, pass)| pass).collect();
        assert_eq!(passes, [true, true]);
    }

    #[test]
    fn comparisons_within_an_arm_know_direction_and_tolerance() {
        let mut results = fixture::results();
        let mut slower = results.metrics[1].clone();
        slower.metric = "100-vmas/mrelease2-90".into();
        slower.memreap.iter_mut().for_each(|v| *v *= 1.04);
        results.metrics.push(slower);
        let compare = |first: &str, second: &str, tolerance: f64| {
            let text = format!(
                "[[compare]]\narm = 'memreap'\nmetric = '100-vmas/{first}'\n\
                 not_worse_than = '100-vmas/{second}'\ntolerance = {tolerance:?}"
            );
            own(check_text(&results, &text, Path::new("x"), ALL).unwrap())[0].state == State::Met
        };
        assert!(compare("mrelease2-90", "mrelease-90", 0.05));
        assert!(!compare("mrelease2-90", "mrelease-90", 0.03));
        assert!(compare("mrelease-90", "mrelease2-90", 0.0));
    }

    #[test]
    fn any_two_arms_are_compared_by_a_factor() {
        let mut results = fixture::results();
        let beside = |arm: &str| ArmMeta { name: arm.into(), ..results.meta.arms[0].clone() };
        let arms = [beside("third"), beside("unused")];
        results.meta.arms.extend(arms);
        let metric = &mut results.metrics[1];
        metric.memreap = vec![2.0];
        metric.beside = vec![Beside { arm: "third".into(), values: vec![20.0, 30.0, 40.0] }];
        let name = metric.metric.clone();
        let compare = |arm: &str, than: &str, more: &str| {
            let text = format!(
                "[[compare]]\narm = '{arm}'\nmetric = '{name}'\nnot_worse_than = '{name}'\n\
                 than_arm = '{than}'\n{more}"
            );
            check_text(&results, &text, Path::new("x"), ALL)
                .map(|checked| own(checked)[0].state == State::Met)
        };
        assert!(compare("memreap", "third", "").unwrap());
        assert!(compare("memreap", "third", "times = 15.0").unwrap());
        assert!(!compare("memreap", "third", "times = 15.1").unwrap());
        assert!(compare("memreap", "third", "times = 15.1\ntolerance = 0.01").unwrap());
        assert!(!compare("third", "memreap", "").unwrap());
        assert!(!compare("memreap", "unused", "").unwrap());
        let error = compare("memreap", "fourth", "").unwrap_err().to_string();
        assert!(error.contains("no arm 'fourth'; there are: stock, memreap, third, unused"), "{error}");
        results.metrics[1].better = Better::Higher;
        results.metrics[1].memreap = vec![450.0];
        let text = format!(
            "[[compare]]\narm = 'memreap'\nmetric = '{name}'\nnot_worse_than = '{name}'\n\
             than_arm = 'third'\ntimes = "
        );
        let judge =
            |times| own(check_text(&results, &format!("{text}{times:?}"), Path::new("x"), ALL).unwrap());
        assert!(judge(15.0)[0].state == State::Met && judge(15.1)[0].state == State::Missed);
        assert!(judge(15.0)[0].expected.contains("at least 15.0x as good as"), "{}", judge(15.0)[0].expected);
    }

    #[test]
    fn a_bound_is_for_one_arm_and_its_median() {
        let mut results = fixture::results();
        results.metrics[0].stock = vec![90.0, 100.0, 1000.0];
        results.metrics[0].memreap = vec![1.0, 2.0, 50.0];
        let bound = |arm: &str, at_most: f64, more: &str| {
            let metric = "100-vmas/pte-lock-contended";
            let text =
                format!("[[bound]]\narm = '{arm}'\nmetric = '{metric}'\nat_most = {at_most:?}\n{more}");
            let checked = own(check_text(&results, &text, Path::new("x"), ALL).unwrap());
            (checked[0].state == State::Met, checked[0].measured.clone())
        };
        assert_eq!(bound("memreap", 2.0, ""), (true, "2 count".to_owned()));
        assert!(!bound("memreap", 1.9, "").0);
        assert!(bound("stock", 100.0, "mode = 'multi'").0 && !bound("stock", 99.0, "").0);
        assert!(bound("stock", 1000.0, "mode = 'icount'").1.contains("have no"));
    }

    #[test]
    fn aa_clean_needs_controls_that_see_nothing() {
        let judge =
            |results: &Results| own(check_text(results, "aa_clean = true", Path::new("x"), ALL).unwrap());
        let mut results = fixture::results();
        assert!(passed(&judge(&results)));
        results.metrics[1].aa.as_mut().unwrap().verdict = Verdict::Worse;
        assert!(judge(&results)[0].measured.contains("mrelease-90"));
        assert!(!passed(&judge(&results)));
        // Another scenario's alarm is another topic's.
        let own_scenario = format!("scenario = '{}'\naa_clean = true", results.metrics[0].scenario);
        results.metrics[1].scenario = "another".into();
        assert!(passed(&own(check_text(&results, &own_scenario, Path::new("x"), ALL).unwrap())));
        results.metrics[2].aa = None;
        assert!(!passed(&judge(&results)));
    }

    #[test]
    fn errors_name_file_line_and_remedy() {
        for (text, said) in [
            ("aa_clean = true\n[[expect]]\nmetrics = 'a'", ":3: unknown field `metrics`"),
            ("\n[[expect]]\nmetric = 'a'", ":3: give at_least"),
            ("[[expect]]\nmetric = 'a'\nverdict = 'good'", ":3: unknown variant"),
            ("[[compare]]\narm = 'x'\nmetric = 'a'\nnot_worse_than = 'b'", ":2: no arm 'x'"),
            ("\n[[bound]]\narm = 'x'\nmetric = 'a'\nat_most = 1", ":3: no arm 'x'"),
            ("[[bound]]\narm = 'stock'\nmetric = 'a'", ":1: missing field `at_most`"),
            ("a = = 1", ":1: "),
            ("aa_clean = true\nknown_worse = [\n'a',\n'b']", ":3: "),
            (
                "known_worse = ['a']",
                "invalid type: string \"a\", expected a table for each metric that may get worse: [[known_worse]] with metric = \"...\" and at_least = the ratio",
            ),
            ("[[known_worse]]\nmetric = 'a'", ":1: missing field `at_least`"),
            ("", "expects nothing"),
        ] {
            let error = format!("{:#}", check_fixture(text).unwrap_err());
            assert!(error.starts_with("kernel/reap/expect.toml"), "{error}");
            assert!(error.contains(said), "{said:?} is not in: {error}");
        }
    }
}
