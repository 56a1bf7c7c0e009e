// SPDX-License-Identifier: GPL-2.0-only
//! From rounds to the values of metrics: a boot reports **one value per metric**, the median of its rounds.

use anyhow::{Context as _, Result};

use init::report::Reporter;

/// A metric's name without its case, and how to read its value from a `T`.
pub type Metric<T> = (&'static str, fn(&T) -> f64);

/// The full name of a metric.
pub fn metric_name(case: &str, metric: &str) -> String {
    if case.is_empty() { metric.to_owned() } else { format!("{case}/{metric}") }
}

/// Runs those of the cases, by their names, of which a metric is to be reported, one after the other.
///
/// # Errors
/// The first one of `run`, with the case's name.
pub fn each_case<'c, C>(
    cases: impl IntoIterator<Item = (&'c str, C)>,
    out: &mut Reporter,
    mut run: impl FnMut(&'c str, C, &mut Reporter) -> Result<()>,
) -> Result<()> {
    for (name, case) in cases {
        if out.expects_case(name) {
            run(name, case, out).with_context(|| format!("case {name}"))?;
        }
    }
    Ok(())
}

/// Reports the medians of what rounds have measured.
pub fn report_medians<T>(out: &mut Reporter, case: &str, metrics: &[Metric<T>], rounds: &[T]) {
    for (name, value) in metrics {
        out.sample(&metric_name(case, name), median(rounds.iter().map(value)));
    }
}

/// Returns the middle value, or the mean of the two in the middle; NaN when there is none.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// Returns the mean of all rounds except for the longest tenth and the shortest tenth. It varies less than a
/// median: there are a few kinds of rounds, with and without a timer interrupt or a list of free pages that
/// must be refilled, and how many there are of each kind depends on the moment at which a boot begins.
pub fn typical(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    let tenth = rounds.len() / 10;
    let most = &rounds[tenth..rounds.len() - tenth];
    most.iter().sum::<f64>() / most.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_rounds_do_not_count() {
        let rounds = [900.0, 10.0, 12.0, 11.0, 13.0, 1.0, 14.0, 10.0, 13.0, 13.0];
        assert_eq!(typical(rounds.to_vec()), 12.0);
        assert_eq!(typical(vec![7.0]), 7.0);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }

    #[test]
    fn a_metric_without_a_case_has_its_own_name() {
        assert_eq!([metric_name("a", "b"), metric_name("", "b")], ["a/b", "b"]);
    }
}
