// SPDX-License-Identifier: GPL-2.0-only
//! Parses the Test Anything Protocol of kernel selftests (Documentation/dev-tools/ktap.rst): a plan `1..N`,
//! and a line `ok N name` or `not ok N name` for each case. Nested results are indented and ignored: the test
//! that prints them also prints their summary.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::vm::channel::Outcome;

/// The exit status of a kernel selftest that cannot run on this system (KSFT_SKIP).
const STATUS_SKIPPED: i32 = 4;

/// How a program or one of its cases ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    #[default]
    Pass,
    Skip,
    Fail,
}

/// The result of one program in one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub status: Status,
    /// Why the program as a whole failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The cases by name.
    pub cases: BTreeMap<String, Status>,
    /// The reasons of skipped cases, by name. The name of the program as a whole is "".
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub skips: BTreeMap<String, String>,
    /// How long the guest ran, in seconds.
    #[serde(default)]
    pub seconds: u64,
    /// The output, if it did not pass.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
}

impl Report {
    /// Makes the report of a program that printed `text` in a guest that ended with `outcome`. `evidence`
    /// returns the relevant part of the logs; it is called if the guest was not healthy.
    pub fn new(outcome: &Outcome, text: &str, must_be_tap: bool, evidence: impl Fn() -> String) -> Self {
        let tap = Tap::parse(text);
        let is_tap = tap.version || tap.plan.is_some();
        let case_failed = tap.cases.values().any(|&c| c == Status::Fail);
        let why = match outcome {
            Outcome::Exit(0 | STATUS_SKIPPED) if is_tap || must_be_tap => tap.complaint(),
            Outcome::Exit(0 | STATUS_SKIPPED) => None,
            // Failed cases explain the status.
            Outcome::Exit(1) if is_tap && case_failed => tap.complaint().or(Some("cases failed".into())),
            other => Some(other.to_string()),
        };
        let mut skips = tap.skips;
        let skipped = *outcome == Outcome::Exit(STATUS_SKIPPED) || tap.all_skipped;
        if skipped && skips.is_empty() {
            skips.insert(String::new(), "no reason given".into());
        }
        let all_cases_skipped = tap.version && tap.cases.values().all(|&c| c == Status::Skip);
        let status = if why.is_some() || case_failed {
            Status::Fail
        } else if skipped || all_cases_skipped {
            Status::Skip
        } else {
            Status::Pass
        };
        let mut output = String::new();
        if status != Status::Pass {
            text.clone_into(&mut output);
        }
        if !outcome.is_healthy() {
            output.push_str(&evidence());
        }
        Self { status, why, cases: tap.cases, skips, seconds: 0, output }
    }

    /// Makes the report of a program that was not started.
    pub fn not_run(why: &str) -> Self {
        Self { status: Status::Fail, why: Some(why.to_owned()), ..Self::default() }
    }

    /// Returns a summary such as `pass` or `FAIL: exit status 1 (3 ok, 1 not ok)`.
    pub fn summary(&self) -> String {
        let number = |status| self.cases.values().filter(|&&c| c == status).count();
        let mut text = match self.status {
            Status::Pass => "pass".to_owned(),
            Status::Skip => "skip".to_owned(),
            Status::Fail => format!("FAIL: {}", self.why.as_deref().unwrap_or("cases failed")),
        };
        let counts: Vec<_> = [(Status::Pass, "ok"), (Status::Fail, "not ok"), (Status::Skip, "skipped")]
            .into_iter()
            .filter(|&(status, _)| number(status) > 0)
            .map(|(status, word)| format!("{} {word}", number(status)))
            .collect();
        if !counts.is_empty() {
            text.push_str(&format!(" ({})", counts.join(", ")));
        }
        text
    }
}

#[derive(Debug, Default)]
struct Tap {
    version: bool,
    plan: Option<usize>,
    results: usize,
    cases: BTreeMap<String, Status>,
    skips: BTreeMap<String, String>,
    /// Whether the plan has no tests: `1..0 # SKIP reason`.
    all_skipped: bool,
    bailed: Option<String>,
}

impl Tap {
    fn parse(text: &str) -> Self {
        let mut tap = Self::default();
        for line in text.lines() {
            if line.starts_with("TAP version") || line.starts_with("KTAP version") {
                tap.version = true;
            } else if let Some(plan) = line.strip_prefix("1..") {
                let (number, directive) = plan.split_once('#').unwrap_or((plan, ""));
                tap.plan = number.trim().parse().ok();
                if tap.plan == Some(0) {
                    tap.all_skipped = true;
                    let reason = skip_reason(directive).unwrap_or_default();
                    tap.skips.insert(String::new(), reason.to_owned());
                }
            } else if let Some(rest) = line.strip_prefix("not ok ") {
                tap.case(rest, Status::Fail);
            } else if let Some(rest) = line.strip_prefix("ok ") {
                tap.case(rest, Status::Pass);
            } else if let Some(why) = line.strip_prefix("Bail out!") {
                tap.bailed = Some(why.trim().to_owned());
            }
        }
        tap
    }

    fn case(&mut self, rest: &str, status: Status) {
        let (rest, directive) = rest.split_once(" # ").unwrap_or((rest, ""));
        let (number, name) = rest.split_once(' ').unwrap_or((rest, ""));
        if number.parse::<usize>().is_err() {
            return;
        }
        self.results += 1;
        let name = name.trim_start_matches("- ").trim();
        let name = if name.is_empty() { number } else { name };
        let status = match skip_reason(directive) {
            Some(reason) => {
                self.skips.insert(name.to_owned(), reason.to_owned());
                Status::Skip
            }
            // An expected failure counts as a pass.
            None if known_to_fail(directive) => Status::Pass,
            None => status,
        };
        // Some tests repeat names. A later pass must not hide a failure.
        let kept = self.cases.entry(name.to_owned()).or_insert(status);
        if status == Status::Fail {
            *kept = status;
        }
    }

    /// Returns what is wrong with the stream or its results.
    fn complaint(&self) -> Option<String> {
        if let Some(why) = &self.bailed {
            return Some(format!("bailed out: {why}"));
        }
        match self.plan {
            None => Some("no TAP plan in its output".into()),
            Some(plan) if plan != self.results => Some(format!("planned {plan} results, reported {}", self.results)),
            Some(_) if self.cases.values().any(|&c| c == Status::Fail) => Some("cases failed".into()),
            Some(_) => None,
        }
    }
}

/// Returns the reason in `SKIP reason`; `SKIP` may be in lower case.
fn skip_reason(directive: &str) -> Option<&str> {
    let directive = directive.trim();
    let (word, reason) = directive.split_once(' ').unwrap_or((directive, ""));
    word.eq_ignore_ascii_case("skip").then(|| reason.trim())
}

fn known_to_fail(directive: &str) -> bool {
    let word = directive.split_whitespace().next().unwrap_or_default();
    ["TODO", "XFAIL"].iter().any(|known| word.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: Outcome, text: &str, must_be_tap: bool) -> Report {
        Report::new(&outcome, text, must_be_tap, || "the log's end".into())
    }

    const GOOD: &str = "TAP version 13\n1..2\n# a remark\nok 1 one\nok 2 two # SKIP no swap\n";

    #[test]
    fn a_stream_is_judged_as_a_whole() {
        let good = report(Outcome::Exit(0), GOOD, true);
        assert_eq!((good.status, good.summary().as_str()), (Status::Pass, "pass (1 ok, 1 skipped)"));
        for (text, why) in [
            ("", "no TAP plan"),
            ("TAP version 13\nok 1 one\n", "no TAP plan"),
            ("TAP version 13\n1..2\nok 1 one\n", "planned 2 results, reported 1"),
            ("TAP version 13\n1..1\nok 1 one\nok 2 two\n", "planned 1 results, reported 2"),
            ("TAP version 13\n1..1\nnot ok 1 one\n", "cases failed"),
            ("TAP version 13\n1..2\nok 1 one\nBail out! no memory\n", "bailed out: no memory"),
        ] {
            let bad = report(Outcome::Exit(0), text, true);
            assert_eq!(bad.status, Status::Fail, "{text}");
            assert!(bad.summary().contains(why), "{text}: {}", bad.summary());
        }
    }

    #[test]
    fn the_guest_s_end_counts_more_than_the_stream() {
        let splat = Outcome::Splat { kind: "WARN", line: "WARNING: x".into() };
        for outcome in [splat, Outcome::NoResult, Outcome::Exit(2)] {
            assert_eq!(report(outcome, GOOD, false).status, Status::Fail);
        }
        assert!(report(Outcome::NoResult, GOOD, false).output.ends_with("the log's end"));
        // Some of the kernel's tests print no TAP: only their status counts.
        assert_eq!(report(Outcome::Exit(0), "OK\n", false).status, Status::Pass);
        assert_eq!(report(Outcome::Exit(STATUS_SKIPPED), "", false).status, Status::Skip);
        assert_eq!(report(Outcome::Exit(0), "1..0 # SKIP none\n", false).status, Status::Skip);
    }

    #[test]
    fn skips_have_a_reason() {
        let skips =
            |outcome, text| -> Vec<(String, String)> { report(outcome, text, false).skips.into_iter().collect() };
        let of = |case: &str, reason: &str| (case.to_owned(), reason.to_owned());
        assert_eq!(skips(Outcome::Exit(0), GOOD), [of("two", "no swap")]);
        assert_eq!(skips(Outcome::Exit(0), "1..1\nok 1 a # skip\n"), [of("a", "")]);
        assert_eq!(skips(Outcome::Exit(STATUS_SKIPPED), "1..0 # SKIP needs root\n"), [of("", "needs root")]);
        assert_eq!(skips(Outcome::Exit(0), "1..0\n"), [of("", "")]);
        assert_eq!(skips(Outcome::Exit(STATUS_SKIPPED), "no KSM here\n"), [of("", "no reason given")]);
        assert_eq!(skips(Outcome::Exit(0), "1..1\nok 1 a # XFAIL known\n"), []);
    }

    #[test]
    fn a_name_that_fails_once_has_failed() {
        let tap = Tap::parse("1..3\nnot ok 1 same\nok 2 same\nok 3\n");
        assert_eq!(tap.cases["same"], Status::Fail);
        assert_eq!(tap.cases["3"], Status::Pass);
        assert_eq!(tap.results, 3);
    }
}
