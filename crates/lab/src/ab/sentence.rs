// SPDX-License-Identifier: GPL-2.0-only
//! Says in one sentence per scenario what a comparison has found: [`Scenario::sentences`] with the medians put in.

use scenarios::{Scenario, Sentence};

use crate::ab::results::{Metric, Results, Verdict};
use crate::format::{number, ratio};

/// A sentence about a scenario.
#[derive(Clone, Debug)]
pub struct Said<'r> {
    pub scenario: &'r str,
    /// The sentence, without the full stop.
    pub text: String,
    /// The metric that it is mainly about.
    pub main: &'r Metric,
}

/// Returns a sentence for each scenario of the results that has one for a guest that was booted, in their order.
pub fn sentences(results: &Results) -> Vec<Said<'_>> {
    results.scenarios().into_iter().filter_map(|scenario| of_scenario(results, scenario)).collect()
}

fn of_scenario<'r>(results: &'r Results, name: &'r str) -> Option<Said<'r>> {
    let scenario = scenarios::find(name)?;
    scenario.sentences.iter().find_map(|sentence| said(results, scenario, sentence))
}

/// Returns the sentence; `None` if the results do not have its metrics.
fn said<'r>(results: &'r Results, scenario: &'static Scenario, sentence: &Sentence) -> Option<Said<'r>> {
    let run = results.run(scenario.name, sentence.guest)?;
    let (mut text, mut main) = (String::new(), None);
    for (plain, arm, name) in parts(sentence.text) {
        text += plain;
        if name.is_empty() {
            break;
        }
        let metric = run.metrics.iter().find(|metric| metric.metric == name)?;
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
pub fn verdict(metric: &Metric) -> String {
    match metric.verdict {
        Verdict::Better | Verdict::Worse => format!("{}, {}", metric.verdict, ratio(metric.ratio)),
        Verdict::Same | Verdict::None => metric.verdict.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::results::{Run, fixture};

    /// Results with these metrics in one guest of a scenario.
    fn with(scenario: &str, guest: &str, names: &[&str]) -> Results {
        let mut results = fixture::results();
        results.runs.truncate(1);
        let like = results.runs[0].metrics[0].clone();
        let metrics = names.iter().map(|&name| Metric { metric: name.into(), ..like.clone() }).collect();
        let run = results.runs.remove(0);
        results.runs.push(Run { scenario: scenario.into(), guest: guest.into(), metrics, ..run });
        results
    }

    #[test]
    fn medians_are_put_in() {
        let mut results = with("storm-phone", "icount", &["late-frames", "camera-ms"]);
        let metrics = &mut results.runs[0].metrics;
        (metrics[0].base, metrics[0].changed) = (vec![3.0, 4.0, 5.0], vec![0.0]);
        (metrics[1].base, metrics[1].changed) = (vec![328.4], vec![263.2]);
        let said = sentences(&results);
        assert_eq!(
            said[0].text,
            "A camera on a full phone has its 256 MiB after 263 ms instead of 328, and 0 frames of the application \
             in the foreground are late instead of 4"
        );
        assert_eq!((said[0].scenario, said[0].main.metric.as_str()), ("storm-phone", "camera-ms"));
        results.runs[0].metrics.remove(0);
        assert!(sentences(&results).is_empty());
        assert_eq!([0.0, 191_873.0, 35_069_991.0].map(figure), ["0", "191,873", "35.1 million"]);
    }

    #[test]
    fn guests_are_distinguished() {
        let names = ["fault/instructions", "error-all/stat"];
        let text = |guest| sentences(&with("rss-counters", guest, &names))[0].text.clone();
        assert!(text("icount-64").starts_with("With 64 CPUs"));
        assert!(text("multi").starts_with("With two CPUs"));
        assert!(text("icount-1").starts_with("A page fault"));
        assert!(sentences(&with("a-workload", "multi", &names)).is_empty());
    }

    #[test]
    fn each_guest_has_a_sentence_of_metrics_that_it_reports() {
        for scenario in scenarios::all() {
            for run in scenario.guests {
                let guest = run.name;
                let metrics = scenario.reported(guest, None);
                let names: Vec<&str> = metrics.iter().map(|reported| reported.name.as_str()).collect();
                let results = with(scenario.name, guest, &names);
                assert_eq!(sentences(&results).len(), 1, "{}/{guest}", scenario.name);
            }
            for sentence in scenario.sentences {
                let arms: Vec<&str> = parts(sentence.text).map(|(_, arm, _)| arm).collect();
                let (last, arms) = arms.split_last().unwrap();
                let known = arms.iter().all(|arm| ["ours", "stock"].contains(arm));
                assert!(known && last.is_empty(), "{}: {}", scenario.name, sentence.text);
                assert!(scenario.guest(sentence.guest).is_some(), "{}: no guest {}", scenario.name, sentence.guest);
            }
        }
    }
}
