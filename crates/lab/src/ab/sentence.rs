// SPDX-License-Identifier: GPL-2.0-only
//! Says in one sentence per scenario what a comparison has found: [`Scenario::sentences`] with the medians put in.

use scenarios::{Scenario, Sentence};

use crate::ab::catalog::run_name;
use crate::ab::results::{Metric, Results};
use crate::ab::verdict::Verdict;
use crate::format::{number, ratio};

/// A sentence about a scenario.
#[derive(Clone, Debug)]
pub struct Said<'r> {
    /// The scenario's name.
    pub scenario: &'r str,
    /// The sentence, without the full stop.
    pub text: String,
    /// The metric that it is mainly about.
    pub main: &'r Metric,
}

/// Returns a sentence for each scenario of the results that has one for a guest that was booted, in their order.
#[must_use]
pub fn sentences(results: &Results) -> Vec<Said<'_>> {
    scenarios(results).into_iter().filter_map(|scenario| of_scenario(results, scenario)).collect()
}

/// Returns the names of the scenarios in the results.
#[must_use]
pub fn scenarios(results: &Results) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for metric in &results.metrics {
        if !names.contains(&metric.scenario.as_str()) {
            names.push(&metric.scenario);
        }
    }
    names
}

fn of_scenario<'r>(results: &'r Results, name: &'r str) -> Option<Said<'r>> {
    let scenario = scenarios::all().iter().find(|scenario| scenario.name == name)?;
    scenario.sentences.iter().find_map(|sentence| said(results, scenario, sentence))
}

/// Returns the sentence; `None` if the results do not have its metrics.
fn said<'r>(results: &'r Results, scenario: &'static Scenario, sentence: &Sentence) -> Option<Said<'r>> {
    let (mut text, mut main) = (String::new(), None);
    for (plain, arm, name) in parts(sentence.text) {
        text += plain;
        if name.is_empty() {
            break;
        }
        let metric = results.metrics.iter().find(|m| {
            let guest = m.mode.as_ref().is_some_and(|mode| run_name(mode, m.cpus) == sentence.guest);
            m.scenario == scenario.name && guest && m.metric == name
        })?;
        text += &figure(if arm == "stock" { metric.base_median() } else { metric.changed_median() });
        main.get_or_insert(metric);
    }
    Some(Said { scenario: scenario.name, text, main: main? })
}

/// Splits a sentence into texts, each with the arm and the metric of the placeholder that follows it; both are empty
/// after the last one.
fn parts(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    text.split('}').map(|part| {
        let (plain, placeholder) = part.split_once('{').unwrap_or((part, ""));
        let (arm, metric) = placeholder.split_once(' ').unwrap_or_default();
        (plain, arm, metric)
    })
}

fn figure(value: f64) -> String {
    const MILLION: f64 = 1e6;
    if value >= MILLION { format!("{} million", number(value / MILLION)) } else { number(value) }
}

/// Returns the verdict about a metric, with its ratio if it is a difference: `better, 1.25x`.
#[must_use]
pub fn verdict(metric: &Metric) -> String {
    match metric.verdict {
        Verdict::Better | Verdict::Worse => format!("{}, {}", metric.verdict, ratio(metric.ratio)),
        Verdict::Same | Verdict::None => metric.verdict.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::ab::catalog::cpus_in_name;
    use crate::ab::results::fixture;

    /// Results with one metric of a guest of a scenario.
    fn with(scenario: &str, mode: &str, cpus: Option<u32>, names: &[&str]) -> Results {
        let mut results = fixture::results();
        let like = results.metrics[0].clone();
        results.metrics = names
            .iter()
            .map(|&name| crate::ab::results::Metric {
                scenario: scenario.into(),
                metric: name.into(),
                mode: Some(mode.into()),
                cpus,
                ..like.clone()
            })
            .collect();
        results
    }

    #[test]
    fn medians_are_put_in() {
        let mut results = with("storm-phone", "icount", None, &["late-frames", "camera-ms"]);
        (results.metrics[0].stock, results.metrics[0].memreap) = (vec![3.0, 4.0, 5.0], vec![0.0]);
        (results.metrics[1].stock, results.metrics[1].memreap) = (vec![328.4], vec![263.2]);
        let said = sentences(&results);
        assert_eq!(
            said[0].text,
            "A camera on a full phone has its 256 MiB after 263 ms instead of 328, and 0 frames of the application \
             in the foreground are late instead of 4"
        );
        assert_eq!((said[0].scenario, said[0].main.metric.as_str()), ("storm-phone", "camera-ms"));
        results.metrics.remove(0);
        assert!(sentences(&results).is_empty());
        assert_eq!([0.0, 191_873.0, 35_069_991.0].map(figure), ["0", "191,873", "35.1 million"]);
    }

    #[test]
    fn guests_are_distinguished() {
        let names = ["fault/instructions", "error-all/stat"];
        let text = |mode, cpus| sentences(&with("rss-counters", mode, cpus, &names))[0].text.clone();
        assert!(text("icount", Some(64)).starts_with("With 64 CPUs"));
        assert!(text("multi", None).starts_with("With two CPUs"));
        assert!(text("icount", Some(1)).starts_with("A page fault"));
        assert!(sentences(&with("a-workload", "multi", None, &names)).is_empty());
    }

    #[test]
    fn each_guest_has_a_sentence_of_metrics_that_it_reports() {
        for scenario in scenarios::all() {
            for run in scenario.guests {
                let guest = run.name;
                let metrics = scenario.reported(guest, None);
                let names: Vec<&str> = metrics.iter().map(|reported| reported.name.as_str()).collect();
                let results = with(scenario.name, run.mode.name(), cpus_in_name(run), &names);
                assert_eq!(sentences(&results).len(), 1, "{}/{guest}", scenario.name);
            }
            for sentence in scenario.sentences {
                let arms: Vec<&str> = parts(sentence.text).map(|(_, arm, _)| arm).collect();
                let (last, arms) = arms.split_last().unwrap();
                let known = arms.iter().all(|arm| ["ours", "stock"].contains(arm));
                assert!(known && last.is_empty(), "{}: {}", scenario.name, sentence.text);
                assert!(
                    scenario.guest(sentence.guest).is_some(),
                    "{}: no guest {}",
                    scenario.name,
                    sentence.guest
                );
            }
        }
    }
}
