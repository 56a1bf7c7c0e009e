// SPDX-License-Identifier: GPL-2.0-only
//! Checks the results of a run against the expectations of a topic: `kernel/<topic>/expect.toml`.
//!
//! ```toml
//! scenario = "reap"           # optional: whose metrics the tables are about
//! series = "6.12"             # optional: which kernels the tables are about; without it, all
//! aa_clean = true             # no A/A control of the scenario may show a difference
//!
//! [[known_worse]]             # a metric that may get worse, down to this ratio; no other metric may
//! metric = "100-vmas/zone-lock-contended"  # "*/zone-lock-contended": in all cases; not in [[compare]]
//! at_least = 0.4              # 0.0 if the base arm has the value 0, so that the ratio is meaningless
//!
//! [[expect]]                  # one metric: changed arm against base arm
//! metric = "100-vmas/pte-lock-contended"
//! guest = "multi"             # optional, in all tables; without it, every guest that has the metric
//! series = "7.3"              # optional, in all tables; without it, that of the file
//! at_least = 33.0             # the ratio; above 1 is an improvement
//! verdict = "better"          # optional
//! share_at_most = 0.03        # optional: the sum over all boots, as a share of the base arm's sum
//!
//! [[compare]]                 # medians of two metrics of one arm, or of one metric of two arms
//! arm = "memreap"
//! metric = "100-vmas/mrelease2-90"
//! not_worse_than = "100-vmas/mrelease-90"
//! tolerance = 0.05            # optional: this much worse is still accepted
//! than_arm = "stock-precise"  # optional: the arm of the second metric
//! times = 15.0                # optional: the first must be this many times as good
//!
//! [[bound]]                   # the median of one metric of one arm
//! arm = "memreap"
//! metric = "20000-vmas-2-maps/vmas-per-mapping"
//! at_most = 1.5               # or at_least
//! each_boot = true            # optional: of the values of all boots instead of their median
//! ```
//!
//! An expectation of a metric that the results do not have is missed, unless a guest of the scenario that
//! it may be of was not booted.
//!
//! `at_least`, also that of `[[known_worse]]`, is met if the lower end of the ratio's 95 % interval is not
//! below it. So it is met by chance in at most one of forty runs. A run that is too noisy, or has too few
//! pairs for an interval, misses it.
//!
//! `share_at_most` is for counts that fall to almost zero. With zeros, a ratio depends on their treatment
//! ([`crate::ab::stats`]); a share of a sum does not. 0.0 is met if the changed arm has none; any other share is missed
//! if the base arm has none.
//!
//! No promise may be missed by chance, which a test finds out from the published results: a ratio is promised only where
//! stock is steady, and where it varies a `[[bound]]` says what the changed kernel does. Where a single boot may be far
//! off, as in guests that run in real time, medians are compared (`[[compare]]`).
//!
//! [`RunKind`] decides which expectations are left out because the results cannot show them.

mod file;
mod judge;
#[cfg(test)]
mod resample;
#[cfg(test)]
mod tests;

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use comfy_table::{Attribute, Cell, Color};
use toml::Spanned;

use crate::ab::expect::file::File;
use crate::ab::expect::judge::{Scope, aa_clean, nothing_else_worse, without_control};
use crate::ab::results::{ArmRole, Results};
use crate::ab::table;
use crate::format::line_of;

/// What kind of run the results are from.
#[derive(Clone, Copy, Debug)]
pub struct RunKind<'a> {
    /// The series of the changed arm's kernel. Tables for others are left out.
    pub series: &'a str,
    /// The only case that was run, if not all were.
    pub case: Option<&'a str>,
    /// Whether it is a smoke run with one pair. Then `at_least` and `share_at_most` are judged by the values
    /// of that pair, which only have to show half of the expected effect. Expectations that need more pairs
    /// are left out: verdicts, metrics that got worse, the A/A control, bounds of a median and, in guests that run in
    /// real time, comparisons and all but large ratios.
    pub smoke: bool,
    /// Whether it has an A/A control. Without one, `aa_clean` is left out.
    pub aa: bool,
}

/// One expectation and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The expectation as text.
    pub expected: String,
    /// The measured value, or why there is none.
    pub measured: String,
    /// The outcome.
    pub state: State,
}

/// The outcome of an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The results meet the expectation.
    Met,
    /// The results do not meet the expectation.
    Missed,
    /// The expectation was not checked; see [`RunKind`].
    LeftOut,
    /// No guest was booted that may have its metric.
    NotRun,
}

impl State {
    fn of(met: bool) -> Self {
        if met { Self::Met } else { Self::Missed }
    }
}

/// Checks `results` against the `expect.toml` at `path`. Returns the outcome of each expectation.
///
/// # Errors
/// When the file cannot be read or does not have the form that the module describes. The error names file
/// and line.
pub fn check(results: &Results, path: &Path, kind: RunKind<'_>) -> Result<Vec<Checked>> {
    check_text(results, &read(path)?, path, kind)
}

/// Checks that a file can be read and has expectations, before anything is measured. What they are of is known
/// afterwards only.
///
/// # Errors
/// Names the file, the line and the problem.
pub fn validate(path: &Path) -> Result<()> {
    parse(&read(path)?, path).map(drop)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("{}: cannot read", path.display()))
}

fn error(path: &Path, text: &str, span: &Range<usize>, what: &str) -> anyhow::Error {
    anyhow!("{}:{}: {what}", path.display(), line_of(text, span))
}

fn parse(text: &str, path: &Path) -> Result<File> {
    let file: File = toml::from_str(text).map_err(|e| error(path, text, &e.span().unwrap_or_default(), e.message()))?;
    let tables = file.expect.len() + file.compare.len() + file.bound.len();
    if !file.aa_clean && file.known_worse.is_empty() && tables == 0 {
        bail!("{}: expects nothing; remove the file or write expectations", path.display());
    }
    Ok(file)
}

fn check_text(results: &Results, text: &str, path: &Path, kind: RunKind<'_>) -> Result<Vec<Checked>> {
    let mut file = parse(text, path)?;
    file.keep_series(kind.series);
    check_file(results, &file, kind, |span, what| error(path, text, &span, &what))
}

/// Checks `results` against the tables of a file; `bad` makes the error for a part of its text.
fn check_file(
    results: &Results,
    file: &File,
    kind: RunKind<'_>,
    bad: impl Fn(Range<usize>, String) -> anyhow::Error,
) -> Result<Vec<Checked>> {
    let mut checked = Vec::new();
    if file.aa_clean {
        checked.push(aa_clean(results, file.scenario.as_deref(), kind));
    }
    for known in &file.known_worse {
        checked.extend(Scope::new(file, &known.guest).known_worse(results, known, kind));
    }
    checked.push(nothing_else_worse(results, file, kind));
    for expect in &file.expect {
        if expect.at_least.is_none() && expect.share_at_most.is_none() && expect.verdict.is_none() {
            let what = "give at_least, share_at_most or verdict, or nothing is expected of this metric";
            return Err(bad(expect.metric.span(), what.to_owned()));
        }
        let scope = Scope::new(file, &expect.guest);
        checked.extend(scope.expect(results, expect, kind));
    }
    for compare in &file.compare {
        if [&compare.metric, &compare.not_worse_than].iter().any(|metric| metric.starts_with("*/")) {
            return Err(bad(compare.arm.span(), "name the metrics that are compared, without *".to_owned()));
        }
        let scope = Scope::new(file, &compare.guest);
        let named = |arm| arm_named(results, arm, &bad);
        let first = named(&compare.arm)?;
        let second = compare.than_arm.as_ref().map_or(Ok(first), named)?;
        match (first, second) {
            (Some(first), Some(second)) => checked.extend(scope.compare(results, compare, [first, second], kind)),
            _ => checked.push(without_control(&compare.metric)),
        }
    }
    for bound in &file.bound {
        if bound.at_most.is_none() && bound.at_least.is_none() {
            return Err(bad(bound.arm.span(), "give at_most or at_least".to_owned()));
        }
        let scope = Scope::new(file, &bound.guest);
        match arm_named(results, &bound.arm, &bad)? {
            Some(arm) => checked.extend(scope.bound(results, bound, arm, kind)),
            None => checked.push(without_control(&bound.metric)),
        }
    }
    Ok(checked)
}

/// Returns the arm of that name, or `None` if it is a control kernel that was not booted, as with `--arm`; `bad` makes
/// the error if there is no such arm.
fn arm_named<'a>(
    results: &Results,
    arm: &'a Spanned<String>,
    bad: impl Fn(Range<usize>, String) -> anyhow::Error,
) -> Result<Option<ArmRole<'a>>> {
    let name = arm.get_ref();
    match results.meta.arm(name) {
        Ok(role) => Ok(Some(role)),
        Err(_) if scenarios::controls().iter().any(|control| control.name == name) => Ok(None),
        Err(what) => Err(bad(arm.span(), what.to_string())),
    }
}

/// Whether no expectation was missed.
pub fn passed(checked: &[Checked]) -> bool {
    checked.iter().all(|c| c.state != State::Missed)
}

/// Renders the outcomes as a table for the terminal; those of guests that were not booted are only counted.
/// `width` is in columns, `None` for no limit; `colour` allows colours.
pub fn render(checked: &[Checked], width: Option<u16>, colour: bool) -> String {
    let mut table = table::new_table(width, colour);
    table.set_header(["expected", "measured", ""]);
    for check in checked.iter().filter(|c| c.state != State::NotRun) {
        let (word, shade) = match check.state {
            State::Met => ("ok", Color::Green),
            State::Missed => ("MISSED", Color::Red),
            State::LeftOut | State::NotRun => ("-", Color::Grey),
        };
        table.add_row([
            Cell::new(&check.expected),
            Cell::new(&check.measured),
            Cell::new(word).fg(shade).add_attribute(Attribute::Bold),
        ]);
    }
    let count = |state| checked.iter().filter(|c| c.state == state).count();
    let [met, missed] = [State::Met, State::Missed].map(count);
    let mut text = format!("\n{} expectations: {met} met, {missed} missed", checked.len());
    for (state, what) in [(State::LeftOut, "left out"), (State::NotRun, "of guests that were not booted")] {
        match count(state) {
            0 => {}
            some => text += &format!(", {some} {what}"),
        }
    }
    table::lines(&table) + &text + "\n"
}
