// SPDX-License-Identifier: GPL-2.0-only
//! The common parts of the lab's HTML pages. A page is a single file without scripts, fonts or external
//! links.

use std::fmt::Write as _;

use crate::format;

const STYLE: &str = include_str!("html.css");

/// The end of a page: closes the `<main>` that the caller opened and the document of [`begin`].
pub(crate) const END: &str = "</main>\n</body>\n</html>\n";

/// Returns the beginning of a page, up to the heading inside of `<header>`, which the caller closes. `style`
/// is added to the common style sheet.
pub(crate) fn begin(title: &str, heading: &str, style: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n<header>\n<h1>{}</h1>\n",
        escape(title),
        escape(heading)
    )
}

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // HTML does not allow control characters, not even as references.
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Like [`format::ratio`], with a multiplication sign.
pub(crate) fn factor(value: f64) -> String {
    format::ratio(value).replace('x', "×")
}

/// Maps values to coordinates of a plot.
pub(crate) struct Scale {
    lo: f64,
    hi: f64,
    left: f64,
    right: f64,
    is_log: bool,
}

impl Scale {
    /// A logarithmic scale from `lo` at coordinate `left` to `hi` at `right`.
    pub(crate) fn log(lo: f64, hi: f64, left: f64, right: f64) -> Self {
        Self { lo, hi, left, right, is_log: true }
    }

    /// A linear scale from `lo` at coordinate `left` to `hi` at `right`.
    pub(crate) fn linear(lo: f64, hi: f64, left: f64, right: f64) -> Self {
        Self { lo, hi, left, right, is_log: false }
    }

    /// Returns a linear scale that includes all values, and 0 unless that would waste half of the scale.
    pub(crate) fn of_values<'a>(
        values: impl Iterator<Item = &'a f64> + Clone,
        left: f64,
        right: f64,
    ) -> Self {
        let lo = values.clone().copied().fold(f64::INFINITY, f64::min);
        let hi = values.copied().fold(f64::NEG_INFINITY, f64::max);
        let (lo, hi) = match (lo, hi) {
            _ if !lo.is_finite() || !hi.is_finite() => (0.0, 1.0),
            _ if hi <= 0.0 => (0.0, 1.0),
            _ if lo < hi / 2.0 => (0.0, hi * 1.03),
            // Values that are nearly equal are in the middle of the scale.
            _ => {
                let margin = ((hi - lo) * 0.06).max(hi * 1e-6);
                (lo - margin, hi + margin)
            }
        };
        Self { lo, hi, left, right, is_log: false }
    }

    /// Returns the coordinate of a value.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let place = if self.is_log {
            (value / self.lo).ln() / (self.hi / self.lo).ln()
        } else {
            (value - self.lo) / (self.hi - self.lo)
        };
        self.left + place * (self.right - self.left)
    }

    /// Returns a few round values on the scale.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        if self.is_log && self.hi / self.lo > 4.0 {
            let steps: &[f64] = if self.hi / self.lo > 100.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let decades = self.lo.log10().floor() as i32..=self.hi.log10().ceil() as i32;
            return decades
                .flat_map(|e| steps.iter().map(move |s| s * 10_f64.powi(e)))
                .filter(|t| (self.lo..=self.hi).contains(t))
                .collect();
        }
        let rough = (self.hi - self.lo) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = power * [1.0, 2.0, 5.0, 10.0].into_iter().find(|s| s * power >= rough).unwrap_or(10.0);
        let first = (self.lo / step).ceil() as i64;
        let last = (self.hi / step).floor() as i64;
        (first..=last).map(|i| i as f64 * step).collect()
    }
}

/// Renders the grid of a chart as SVG, with the values of its lines to the left of it and below.
pub(crate) fn grid(x: &Scale, y: &Scale) -> String {
    let (left, right, bottom, top) = (x.left, x.right, y.left, y.right);
    let mut svg = String::new();
    for tick in y.ticks() {
        let at = y.at(tick);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{left} {at:.1}H{right}\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 5.0,
            at + 4.0,
            format::round(tick)
        );
    }
    for tick in x.ticks() {
        let at = x.at(tick);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{at:.1} {top}V{bottom}\"/>\
             <text x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
            bottom + 14.0,
            format::round(tick)
        );
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_few_and_round() {
        let of = |values: &[f64]| Scale::of_values(values.iter(), 0.0, 1.0).ticks();
        assert_eq!(of(&[3.0, 612.0]), [0.0, 200.0, 400.0, 600.0]);
        assert_eq!(of(&[28.2, 33.1]), [28.0, 30.0, 32.0]);
        assert_eq!(Scale::log(0.9, 150.0, 0.0, 1.0).ticks(), [1.0, 10.0, 100.0]);
        assert_eq!(Scale::log(0.4, 6.0, 0.0, 1.0).ticks(), [0.5, 1.0, 2.0, 5.0]);
        for values in [[0.0, 0.0], [7.0, 7.0], [48_209_000.0, 48_210_000.0]] {
            let ticks = of(&values);
            assert!((1..=7).contains(&ticks.len()), "{values:?}: {ticks:?}");
        }
    }
}
