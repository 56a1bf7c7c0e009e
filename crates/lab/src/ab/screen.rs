// SPDX-License-Identifier: GPL-2.0-only
//! Renders the end of a comparison for a reader who sees it for the first time: a sentence per scenario, what is
//! worse, which promises are missed, what was not run, and where the report is.

use std::path::Path;

use crate::ab::expect::{Checked, State};
use crate::ab::results::{Results, Verdict};
use crate::ab::sentence::{Said, sentences, verdict};
use crate::ab::stats::MIN_PAIRS;
use crate::format::{counted, number};

/// The width at which text is wrapped that is not for a terminal.
const WIDTH: u16 = 100;

/// Renders the screen, wrapped to `width` columns. `checked` are the outcomes of the expectations, if any were
/// checked. Returns `None` if there is no sentence for one of the scenarios: then only the table shows its results.
pub fn render(results: &Results, checked: Option<&[Checked]>, report: &Path, width: Option<u16>) -> Option<String> {
    let said = sentences(results);
    if said.len() < results.scenarios().len() {
        return None;
    }
    let mut paragraphs = vec![conditions(results)];
    paragraphs.extend(said.iter().map(|said| sentence(results, said)));
    paragraphs.extend((results.meta.pairs >= MIN_PAIRS).then(|| worse(results)));
    paragraphs.extend(results.meta.repeated.iter().map(|repeated| format!("FAILED: {repeated}")));
    if let Some(checked) = checked {
        paragraphs.push(promises(checked));
        paragraphs.extend(checked.iter().filter(|c| c.state == State::Missed).map(missed));
    }
    paragraphs.extend(not_run(results));
    paragraphs.push(format!("Report: {} (or --verbose for all figures here)", report.display()));
    let wrapped = |text: &String| crate::ab::table::wrapped(text, 0, Some(width.unwrap_or(WIDTH)));
    Some(paragraphs.iter().map(wrapped).collect::<Vec<_>>().join("\n"))
}

fn conditions(results: &Results) -> String {
    let meta = &results.meta;
    let medians = match meta.pairs {
        1 => "one boot of each".to_owned(),
        pairs => format!("medians of {pairs} boots of each"),
    };
    let mut text = format!(
        "{} against {}: Linux {} in QEMU ({}), {medians}.",
        meta.changed(),
        meta.base(),
        meta.kernels(),
        meta.accelerator
    );
    if meta.pairs < MIN_PAIRS {
        text += &format!(" Verdicts need {MIN_PAIRS} pairs.");
    }
    text
}

fn sentence(results: &Results, said: &Said<'_>) -> String {
    let verdict = if results.meta.pairs < MIN_PAIRS { String::new() } else { format!(" ({})", verdict(said.main)) };
    format!("{}: {}{verdict}.", said.scenario, said.text)
}

fn worse(results: &Results) -> String {
    let worse = results.metrics().filter(|(_, metric)| metric.verdict == Verdict::Worse);
    let worse: Vec<String> = worse
        .map(|(run, metric)| {
            format!(
                "{} {}, {} {} instead of {}",
                run.name(),
                metric.metric,
                number(metric.changed_median()),
                metric.unit,
                number(metric.base_median())
            )
        })
        .collect();
    match worse.as_slice() {
        [] => format!("Worse: nothing, of {}.", counted(results.metrics().count(), "metric")),
        worse => format!("Worse: {}.", worse.join("; ")),
    }
}

fn promises(checked: &[Checked]) -> String {
    let count = |state| checked.iter().filter(|c| c.state == state).count();
    // As a guest or case was not run, or there are too few boots.
    let open = match count(State::LeftOut) + count(State::NotRun) {
        0 => String::new(),
        open => format!(", {open} not judged"),
    };
    format!("Promises (kernel/*/expect.toml): {} kept, {} missed{open}.", count(State::Met), count(State::Missed))
}

fn missed(checked: &Checked) -> String {
    format!("MISSED: {}; measured: {}", checked.expected, checked.measured)
}

/// Says in one paragraph which guests of the scenarios were not booted.
fn not_run(results: &Results) -> Option<String> {
    let booted = results.scenarios();
    let guests: Vec<String> = (scenarios::all().iter())
        .filter(|scenario| booted.contains(&scenario.name))
        .flat_map(|scenario| scenario.guests.iter().map(move |guest| (scenario.name, guest.name)))
        .filter(|(scenario, guest)| results.run(scenario, guest).is_none())
        .map(|(scenario, guest)| format!("{scenario}/{guest}"))
        .collect();
    let controls = results.aa_controls().next().is_none().then(|| "the A/A control".to_owned());
    let all: Vec<String> = guests.into_iter().chain(controls).collect();
    (!all.is_empty()).then(|| format!("Not run: {}.", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::results::fixture;

    fn checked() -> Vec<Checked> {
        let of = |expected: &str, measured: &str, state| Checked {
            expected: expected.into(),
            measured: measured.into(),
            state,
        };
        vec![
            of("100-vmas/mrelease-90 (multi): at least 1.45x", "2.35x (2.14 - 2.54), better", State::Met),
            of("1-vma/mrelease-cpu (multi): at least 1.18x", "1.10x (0.98 - 1.21), no verdict", State::Missed),
            of("1-vma/kill-instructions", "the results have no 1-vma/kill-instructions", State::NotRun),
        ]
    }

    #[test]
    fn golden_screen() {
        let results = fixture::results();
        let report = Path::new("/checkout/target/lab/report.html");
        fixture::golden("screen.txt", &render(&results, Some(&checked()), report, None).unwrap());
    }

    #[test]
    fn golden_screen_of_one_pair() {
        let mut results = fixture::results();
        results.meta.pairs = 1;
        results.runs.retain(|run| run.guest == "multi");
        for metric in results.metrics_mut() {
            (metric.ci95, metric.aa, metric.verdict) = (None, None, Verdict::None);
        }
        let text = render(&results, None, Path::new("report.html"), Some(72)).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 72), "{text}");
        fixture::golden("screen-one-pair.txt", &text);
    }

    #[test]
    fn what_has_no_sentence_is_a_table() {
        let mut results = fixture::results();
        results.runs[0].scenario = "a-workload".into();
        assert!(render(&results, None, Path::new("x"), None).is_none());
    }
}
