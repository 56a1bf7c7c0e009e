//! What a topic promises: `kernel/<topic>/expect.toml`, checked against a run's results.
//!
//! ```toml
//! aa_clean = true             # no A/A control of the scenario may see a difference
//! known_worse = ["100-vmas/zone-lock-contended"]  # what may get worse; nothing else may
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
//! `share_at_most` is for counts that go down to almost nothing: where one arm has zeros, a ratio
//! depends on how they are treated ([`crate::stats`]), a share of a sum does not.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use comfy_table::{Attribute, Cell, Color};
use serde::Deserialize;
use toml::Spanned;

use crate::catalog::run_name;
use crate::results::{Better, Metric, Results, Verdict};
use crate::stats::median;
use crate::table::{self, number, percent, ratio};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    scenario: Option<String>,
    #[serde(default)]
    aa_clean: bool,
    #[serde(default)]
    known_worse: Vec<String>,
    #[serde(default)]
    expect: Vec<Expect>,
    #[serde(default)]
    compare: Vec<Compare>,
    #[serde(default)]
    bound: Vec<Bound>,
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

/// One expectation and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What is expected, in words.
    pub expected: String,
    /// What was measured, or why nothing was.
    pub measured: String,
    /// Whether that is enough.
    pub pass: bool,
}

/// Checks `results` against an `expect.toml`.
///
/// # Errors
/// When the file cannot be read, or is not of the form that the module describes; the error
/// names file and line.
pub fn check(results: &Results, path: &Path) -> Result<Vec<Checked>> {
    let text = fs::read_to_string(path).with_context(|| format!("{}: cannot read", path.display()))?;
    check_text(results, &text, path)
}

fn check_text(results: &Results, text: &str, path: &Path) -> Result<Vec<Checked>> {
    let bad = |span: Range<usize>, what: String| anyhow!("{}:{}: {what}", path.display(), line(text, &span));
    let file: File =
        toml::from_str(text).map_err(|e| bad(e.span().unwrap_or_default(), e.message().to_owned()))?;
    let tables = file.expect.len() + file.compare.len() + file.bound.len();
    if !file.aa_clean && file.known_worse.is_empty() && tables == 0 {
        bail!("{}: expects nothing; remove the file or write expectations", path.display());
    }
    let mut checked = Vec::new();
    if file.aa_clean {
        checked.push(aa_clean(results, file.scenario.as_deref()));
    }
    checked.push(nothing_else_worse(results, &file));
    for expect in &file.expect {
        if expect.at_least.is_none() && expect.share_at_most.is_none() && expect.verdict.is_none() {
            let what = "give at_least, share_at_most or verdict, or nothing is expected of this metric";
            return Err(bad(expect.metric.span(), what.to_owned()));
        }
        let scope = Scope::new(&file, &expect.scenario, &expect.mode, expect.cpus);
        checked.extend(scope.expect(results, expect));
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

/// Whether everything passed.
#[must_use]
pub fn passed(checked: &[Checked]) -> bool {
    checked.iter().all(|c| c.pass)
}

/// The expectations as a table for the terminal; `width` and `colour` as in [`table::render`].
#[must_use]
pub fn render(checked: &[Checked], width: Option<u16>, colour: bool) -> String {
    let mut table = table::new_table(width, colour);
    table.set_header(["expected", "measured", ""]);
    for check in checked {
        let (word, shade) = if check.pass { ("ok", Color::Green) } else { ("MISSED", Color::Red) };
        table.add_row([
            Cell::new(&check.expected),
            Cell::new(&check.measured),
            Cell::new(word).fg(shade).add_attribute(Attribute::Bold),
        ]);
    }
    let missed = checked.iter().filter(|c| !c.pass).count();
    let met = checked.len() - missed;
    table::lines(&table) + &format!("\n{} expectations: {met} met, {missed} missed\n", checked.len())
}

fn nothing_else_worse(results: &Results, file: &File) -> Checked {
    let expected = match file.known_worse.as_slice() {
        [] => "nothing got worse".to_owned(),
        known => format!("nothing got worse but {}", known.join(", ")),
    };
    let scenario = file.scenario.as_deref();
    let worse: Vec<String> = results
        .metrics
        .iter()
        .filter(|m| m.verdict == Verdict::Worse && scenario.is_none_or(|s| m.scenario == s))
        .filter(|m| !file.known_worse.contains(&m.metric))
        .map(|m| format!("{}: {}", place(m), ratio(m.ratio)))
        .collect();
    let pass = worse.is_empty();
    let measured = if pass { "nothing".to_owned() } else { worse.join("; ") };
    Checked { expected, measured, pass }
}

fn aa_clean(results: &Results, scenario: Option<&str>) -> Checked {
    let expected = "A/A control: no difference in any metric".to_owned();
    let metrics: Vec<&Metric> =
        results.metrics.iter().filter(|m| scenario.is_none_or(|s| m.scenario == s)).collect();
    let Some(without) = metrics.iter().find(|m| m.aa.is_none()) else {
        let alarms: Vec<String> = metrics
            .iter()
            .filter_map(|m| m.aa.as_ref().filter(|aa| aa.verdict.is_difference()).map(|aa| (m, aa)))
            .map(|(m, aa)| format!("{}: {} {}", place(m), ratio(aa.ratio), aa.verdict))
            .collect();
        let pass = alarms.is_empty() && !metrics.is_empty();
        let measured = match pass {
            true => format!("{} metrics, all same or no verdict", metrics.len()),
            false => alarms.join("; "),
        };
        return Checked { expected, measured, pass };
    };
    Checked { expected, measured: format!("{} has no control", place(without)), pass: false }
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

    fn find<'r>(&self, results: &'r Results, name: &str) -> Vec<&'r Metric> {
        let wanted = |m: &&Metric| {
            m.metric == name
                && self.scenario.is_none_or(|s| m.scenario == s)
                && self.mode.is_none_or(|mode| m.mode.as_deref() == Some(mode))
                && self.cpus.is_none_or(|cpus| m.cpus == Some(cpus))
        };
        results.metrics.iter().filter(wanted).collect()
    }

    fn expect(&self, results: &Results, expect: &Expect) -> Vec<Checked> {
        let wanted = [
            expect.at_least.map(|least| format!("at least {}", ratio(least))),
            expect.share_at_most.map(|most| format!("at most {} of base", percent(most))),
            expect.verdict.map(|verdict| verdict.to_string()),
        ];
        let wanted = wanted.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let found = self.find(results, expect.metric.get_ref());
        if found.is_empty() {
            return vec![missing(format!("{}: {wanted}", expect.metric.get_ref()), expect.metric.get_ref())];
        }
        let checked = found.into_iter().map(|m| {
            let sums = [&m.memreap, &m.stock].map(|arm| arm.iter().sum::<f64>());
            let mut measured = format!("{}, {}", ratio(m.ratio), m.verdict);
            if expect.share_at_most.is_some() {
                let [changed, base] = sums;
                let share = if base > 0.0 { percent(changed / base) } else { "-".to_owned() };
                measured =
                    format!("{measured}, {share} ({} of {} {})", number(changed), number(base), m.unit);
            }
            let pass = expect.at_least.is_none_or(|least| m.ratio >= least)
                && expect.share_at_most.is_none_or(|most| sums[0] <= most * sums[1])
                && expect.verdict.is_none_or(|verdict| m.verdict == verdict);
            Checked { expected: format!("{}: {wanted}", place(m)), measured, pass }
        });
        checked.collect()
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
            let pass = comparable
                && match m.better {
                    Better::Lower => value * times <= limit * (1.0 + tolerance),
                    Better::Higher => value * (1.0 + tolerance) >= limit * times,
                };
            let measured = format!("{} {} against {} {}", number(value), m.unit, number(limit), other.unit);
            Checked { expected: wanted.clone(), measured, pass }
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
            Checked { expected: wanted(&place(m)), measured, pass: value <= bound.at_most }
        });
        checked.collect()
    }
}

/// How it is said that an expectation is of a metric that was not measured.
const MISSING: &str = "the results have no";

fn missing(expected: String, metric: &str) -> Checked {
    Checked { expected, measured: format!("{MISSING} {metric}"), pass: false }
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
    use crate::catalog::{self, Scenario, mode_name};
    use crate::results::{ArmMeta, Beside, fixture};

    fn check_fixture(text: &str) -> Result<Vec<Checked>> {
        check_text(&fixture::results(), text, Path::new("kernel/reap/expect.toml"))
    }

    /// Without the check that every file has, that nothing else got worse.
    fn own(checked: Vec<Checked>) -> Vec<Checked> {
        checked.into_iter().filter(|c| !c.expected.starts_with("nothing got worse")).collect()
    }

    fn passes(text: &str) -> Vec<bool> {
        own(check_fixture(text).unwrap()).iter().map(|c| c.pass).collect()
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
        let checked = check_text(results, text, path).unwrap();
        let missing = checked.into_iter().filter(|c| c.measured.starts_with(MISSING));
        let file: File = toml::from_str(text).unwrap();
        let scope = Scope::new(&file, &None, &None, None);
        let known_worse = file.known_worse.iter().filter(|name| scope.find(results, name).is_empty());
        missing.map(|c| c.expected).chain(known_worse.cloned()).collect()
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
        assert_eq!(unknown("known_worse = ['1-vma/kill-cpu', '1-vma/kill-cpus']"), 1);
        for (metric, other, missed) in
            [("kill-90", "kill-cpu", 0), ("kil-90", "kill-cpu", 1), ("kill-90", "cpu", 1)]
        {
            let text = format!("arm = 'stock'\nmetric = '1-vma/{metric}'\nnot_worse_than = '1-vma/{other}'");
            assert_eq!(unknown(&format!("[[compare]]\n{text}")), missed, "{text}");
        }
        assert_eq!(unknown("[[bound]]\narm = 'memreap'\nmetric = '2-vmas/kill-90'\nat_most = 1"), 1);
    }

    #[test]
    fn what_gets_worse_must_be_known() {
        let mut results = fixture::results();
        results.metrics.iter_mut().for_each(|m| m.verdict = Verdict::Same);
        results.metrics[1].verdict = Verdict::Worse;
        let judge = |known: &str| {
            let text =
                format!("aa_clean = false\nknown_worse = [{known}]\n[[expect]]\nmetric = 'x'\nat_least = 1");
            check_text(&results, &text, Path::new("x")).unwrap()[0].pass
        };
        assert!(!judge(""));
        assert!(judge("'100-vmas/mrelease-90'"));
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
        (twin.mode, twin.ratio) = (Some("icount".into()), 2.0);
        results.metrics.push(twin);
        let text = "[[expect]]\nmetric = '100-vmas/pte-lock-contended'\nat_least = 33.0";
        let checked = check_text(&results, text, Path::new("x")).unwrap();
        assert_eq!(own(checked).iter().map(|c| c.pass).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn guests_of_one_mode_are_told_apart_by_their_cpus() {
        let mut results = fixture::results();
        for (cpus, factor) in [(16, 1.0), (64, 10.0)] {
            for name in ["a", "b"] {
                let mut metric = results.metrics[1].clone();
                (metric.metric, metric.cpus) = (name.into(), Some(cpus));
                (metric.ratio, metric.memreap) = (factor, vec![factor]);
                results.metrics.push(metric);
            }
        }
        let judge = |text: &str| {
            let checked = own(check_text(&results, text, Path::new("x")).unwrap());
            checked.iter().map(|c| (c.expected.contains("-64)"), c.pass)).collect::<Vec<_>>()
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
            own(check_text(&results, &text, Path::new("x")).unwrap())[0].pass
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
            check_text(&results, &text, Path::new("x")).map(|checked| own(checked)[0].pass)
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
        let judge = |times| own(check_text(&results, &format!("{text}{times:?}"), Path::new("x")).unwrap());
        assert!(judge(15.0)[0].pass && !judge(15.1)[0].pass);
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
            let checked = own(check_text(&results, &text, Path::new("x")).unwrap());
            (checked[0].pass, checked[0].measured.clone())
        };
        assert_eq!(bound("memreap", 2.0, ""), (true, "2 count".to_owned()));
        assert!(!bound("memreap", 1.9, "").0);
        assert!(bound("stock", 100.0, "mode = 'multi'").0 && !bound("stock", 99.0, "").0);
        assert!(bound("stock", 1000.0, "mode = 'icount'").1.contains("have no"));
    }

    #[test]
    fn aa_clean_needs_controls_that_see_nothing() {
        let judge = |results: &Results| own(check_text(results, "aa_clean = true", Path::new("x")).unwrap());
        let mut results = fixture::results();
        assert!(passed(&judge(&results)));
        results.metrics[1].aa.as_mut().unwrap().verdict = Verdict::Worse;
        assert!(judge(&results)[0].measured.contains("mrelease-90"));
        assert!(!passed(&judge(&results)));
        // Another scenario's alarm is another topic's.
        let own_scenario = format!("scenario = '{}'\naa_clean = true", results.metrics[0].scenario);
        results.metrics[1].scenario = "another".into();
        assert!(passed(&own(check_text(&results, &own_scenario, Path::new("x")).unwrap())));
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
            ("", "expects nothing"),
        ] {
            let error = format!("{:#}", check_fixture(text).unwrap_err());
            assert!(error.starts_with("kernel/reap/expect.toml"), "{error}");
            assert!(error.contains(said), "{said:?} is not in: {error}");
        }
    }
}
