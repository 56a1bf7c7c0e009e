// SPDX-License-Identifier: GPL-2.0-only
//! SVG pictures, for pages and as files of their own. What they look like is in the style sheets: a picture follows its
//! reader's light or dark scheme.

use std::fmt::Write as _;

use crate::format;
use crate::html::escape;

/// A picture that is being drawn. Coordinates are SVG units, which are CSS pixels at the usual width.
pub(crate) struct Svg(String);

impl Svg {
    /// Begins a picture of this width and height. `label` is a description for those who do not see it, `style` a style
    /// sheet of its own.
    pub(crate) fn begin(class: &str, size: (f64, f64), label: &str, style: &str) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"{class}\" viewBox=\"0 0 {} {:.0}\" role=\"img\" \
             aria-label=\"{}\"><style>{style}</style>\n",
            size.0,
            size.1,
            escape(label)
        ))
    }

    /// Begins a picture of a page by this tag and what describes it.
    pub(crate) fn with_head(head: String) -> Self {
        Self(head)
    }

    /// Adds what has no function of its own here.
    pub(crate) fn add(&mut self, element: &str) {
        self.0 += element;
    }

    /// Writes a text that begins at this place.
    pub(crate) fn text(&mut self, class: &str, at: (f64, f64), text: &str) {
        self.anchored("start", class, at, text);
    }

    /// Writes a text with its `start`, `middle` or `end` at this place.
    pub(crate) fn anchored(&mut self, anchor: &str, class: &str, (x, y): (f64, f64), text: &str) {
        let (class, text) = (if class.is_empty() { "" } else { &format!(" class=\"{class}\"") }, escape(text));
        let _ = writeln!(self.0, "<text{class} x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
    }

    /// Draws from here on as `relative` says, in the words of an SVG path.
    pub(crate) fn path(&mut self, class: &str, (x, y): (f64, f64), relative: &str) {
        let _ = writeln!(self.0, "<path class=\"{class}\" d=\"M{x:.1} {y:.1}{relative}\"/>");
    }

    /// Draws a line through these points, if there is one.
    pub(crate) fn line(&mut self, class: &str, mut points: impl Iterator<Item = (f64, f64)>) {
        if let Some(first) = points.next() {
            let rest: String = points.map(|(x, y)| format!("L{x:.1} {y:.1}")).collect();
            self.path(class, first, &rest);
        }
    }

    /// Draws a rectangle from its upper left corner.
    pub(crate) fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let _ = writeln!(
            self.0,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        );
    }

    /// Draws the grid of a chart, with the values of its lines to the left of it and below.
    pub(crate) fn grid(&mut self, x: &Scale, y: &Scale) {
        for tick in y.ticks() {
            let at = y.at(tick);
            self.path("grid", (x.left, at), &format!("H{}", x.right));
            self.anchored("end", "", (x.left - 5.0, at + 4.0), &format::round(tick));
        }
        for tick in x.ticks() {
            let at = x.at(tick);
            self.path("grid", (at, y.right), &format!("V{}", y.left));
            self.anchored("middle", "", (at, y.left + 14.0), &format::round(tick));
        }
    }

    /// Ends the picture.
    pub(crate) fn end(self) -> String {
        self.0 + "</svg>\n"
    }
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
    pub(crate) fn of_values<'a>(values: impl Iterator<Item = &'a f64> + Clone, left: f64, right: f64) -> Self {
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
