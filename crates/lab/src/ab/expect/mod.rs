// SPDX-License-Identifier: GPL-2.0-only
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
//! [`RunKind`] say what is left out where the results cannot show it.

mod file;
mod judge;
mod render;
#[cfg(test)]
mod tests;

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use toml::Spanned;

use crate::ab::expect::file::File;
use crate::ab::expect::judge::{Arm, Scope, aa_clean, nothing_else_worse};
use crate::ab::results::Results;

pub use render::render;

/// What the results were to show.
#[derive(Clone, Copy, Debug)]
pub struct RunKind {
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
    /// Nobody looked; see [`RunKind`].
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
pub fn check(results: &Results, path: &Path, kind: RunKind) -> Result<Vec<Checked>> {
    let text = fs::read_to_string(path).with_context(|| format!("{}: cannot read", path.display()))?;
    check_text(results, &text, path, kind)
}

fn check_text(results: &Results, text: &str, path: &Path, kind: RunKind) -> Result<Vec<Checked>> {
    let bad = |span: Range<usize>, what: String| anyhow!("{}:{}: {what}", path.display(), line(text, &span));
    let file: File =
        toml::from_str(text).map_err(|e| bad(e.span().unwrap_or_default(), e.message().to_owned()))?;
    let tables = file.expect.len() + file.compare.len() + file.bound.len();
    if !file.aa_clean && file.known_worse.is_empty() && tables == 0 {
        bail!("{}: expects nothing; remove the file or write expectations", path.display());
    }
    let mut checked = Vec::new();
    if file.aa_clean {
        checked.push(aa_clean(results, file.scenario.as_deref(), kind));
    }
    for known in &file.known_worse {
        checked.extend(Scope::of_known_worse(&file, known).known_worse(results, known, kind));
    }
    checked.push(nothing_else_worse(results, &file, kind));
    for expect in &file.expect {
        if expect.at_least.is_none() && expect.share_at_most.is_none() && expect.verdict.is_none() {
            let what = "give at_least, share_at_most or verdict, or nothing is expected of this metric";
            return Err(bad(expect.metric.span(), what.to_owned()));
        }
        let scope = Scope::new(&file, &expect.scenario, &expect.mode, expect.cpus);
        checked.extend(scope.expect(results, expect, kind));
    }
    for compare in &file.compare {
        let scope = Scope::new(&file, &compare.scenario, &compare.mode, compare.cpus);
        let named = |arm| arm_named(results, arm, bad);
        let first = named(&compare.arm)?;
        let second = compare.than_arm.as_ref().map_or(Ok(first), named)?;
        checked.extend(scope.compare(results, compare, first, second));
    }
    for bound in &file.bound {
        let scope = Scope::new(&file, &bound.scenario, &bound.mode, bound.cpus);
        checked.extend(scope.bound(results, bound, arm_named(results, &bound.arm, bad)?));
    }
    Ok(checked)
}

/// The arm of that name, or what is `bad` about it.
fn arm_named<'a>(
    results: &Results,
    arm: &'a Spanned<String>,
    bad: impl Fn(Range<usize>, String) -> anyhow::Error,
) -> Result<Arm<'a>> {
    Arm::of(results, arm.get_ref()).map_err(|what| bad(arm.span(), what))
}

/// Whether nothing was missed.
#[must_use]
pub fn passed(checked: &[Checked]) -> bool {
    checked.iter().all(|c| c.state != State::Missed)
}

/// The line, from 1, in which the span begins.
fn line(text: &str, span: &Range<usize>) -> usize {
    text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1
}
