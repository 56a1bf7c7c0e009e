// SPDX-License-Identifier: GPL-2.0-only
//! Names and values of metrics.

/// A metric's name without its case, and how to read its value from a `T`.
pub type Metric<T> = (&'static str, fn(&T) -> f64);

/// The full name of a metric.
pub fn metric_name(case: &str, metric: &str) -> String {
    format!("{case}/{metric}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }
}
