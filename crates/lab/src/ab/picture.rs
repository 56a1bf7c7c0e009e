// SPDX-License-Identifier: GPL-2.0-only
//! Draws how things developed in the first boot of each arm, as SVG: a chart per series, a line per arm.

use protocol::results::Series;

use crate::ab::results::{Course, Meta};
use crate::svg::{Scale, Svg};

/// The width in SVG units, which are CSS pixels at the usual width.
const WIDTH: f64 = 860.0;
/// The ends of the charts. The arms' names are to the right of them.
const LEFT: f64 = 52.0;
const RIGHT: f64 = WIDTH - 110.0;
/// The height of a chart, and how far apart two are.
const CHART_HEIGHT: f64 = 120.0;
const CHART_DISTANCE: f64 = 172.0;
/// The top of the first chart.
const TOP: f64 = 24.0;

const STYLE: &str = "\
.course text { font: 11px system-ui, -apple-system, \"Segoe UI\", Roboto, sans-serif; fill: #59636e; }
.course path { fill: none; }
.course .grid { stroke: #8a94a0; stroke-opacity: .3; }
.course .stock { stroke: #0067a8; stroke-width: 1.8; stroke-dasharray: 6 3; }
.course .changed { stroke: #c26a00; stroke-width: 2.2; }
@media (prefers-color-scheme: dark) {
  .course text { fill: #a3aeba; }
  .course .stock { stroke: #5cb8f0; }
  .course .changed { stroke: #f0a83c; }
}
";

/// Renders the picture, for an HTML page or a file of its own. A series that only one of the arms has is left out; `None` if there is
/// no other.
pub fn svg(meta: &Meta, course: &Course) -> Option<String> {
    let charts: Vec<[&Series; 2]> = (course.base.iter())
        .filter_map(|base| Some([base, course.changed.iter().find(|s| s.what == base.what)?]))
        .collect();
    let all = || charts.iter().flatten().flat_map(|series| &series.points);
    let end = all().map(|point| point[0]).fold(0.0, f64::max);
    if end <= 0.0 {
        return None;
    }
    let time = Scale::linear(0.0, end, LEFT, RIGHT);
    let names: Vec<&str> = charts.iter().map(|[base, _]| base.what.as_str()).collect();
    let label = format!("{} over time, {} and {}", names.join("; "), meta.base(), meta.changed());
    let height = TOP + CHART_DISTANCE * charts.len() as f64;
    let mut svg = Svg::begin("course", (WIDTH, height), &label, STYLE);
    let arms = [("stock", meta.base()), ("changed", meta.changed())];
    for (line, (class, name)) in arms.into_iter().enumerate() {
        let y = TOP + 12.0 + 18.0 * line as f64;
        svg.path(class, (RIGHT + 8.0, y), "h24");
        svg.text("", (RIGHT + 38.0, y + 4.0), name);
    }
    for (place, chart) in charts.iter().enumerate() {
        let top = TOP + CHART_DISTANCE * place as f64;
        let most = chart.iter().flat_map(|s| &s.points).map(|point| point[1]).fold(1.0, f64::max);
        let scale = Scale::linear(0.0, most, top + CHART_HEIGHT, top);
        svg.text("", (LEFT, top - 8.0), &chart[0].what);
        svg.grid(&time, &scale);
        for ((class, _), series) in arms.iter().zip(chart) {
            svg.line(class, series.points.iter().map(|[at, v]| (time.at(*at), scale.at(*v))));
        }
    }
    svg.anchored("end", "", (RIGHT, height - 8.0), "milliseconds");
    Some(svg.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::results::fixture;

    fn course(what: &str, base: &[[f64; 2]], changed: &[[f64; 2]]) -> Course {
        let series = |points: &[[f64; 2]]| vec![Series { what: what.into(), points: points.to_vec() }];
        Course { base: series(base), changed: series(changed) }
    }

    #[test]
    fn an_arm_that_is_slower_has_the_longer_line() {
        let meta = fixture::results().meta;
        let svg = svg(&meta, &course("<MiB>", &[[0.0, 0.0], [100.0, 8.0]], &[[0.0, 0.0], [50.0, 8.0]])).unwrap();
        assert!(svg.contains("class=\"stock\" d=\"M52.0 144.0L750.0 24.0\""), "{svg}");
        assert!(svg.contains("class=\"changed\" d=\"M52.0 144.0L401.0 24.0\""), "{svg}");
        assert!(svg.contains("&lt;MiB&gt;"));
    }

    #[test]
    fn nothing_is_drawn_of_what_one_arm_lacks() {
        let meta = fixture::results().meta;
        assert_eq!(svg(&meta, &course("MiB", &[], &[])), None);
        let line = [[0.0, 0.0], [9.0, 1.0]];
        let mut one = course("MiB", &line, &line);
        one.changed[0].what = "frames".into();
        assert_eq!(svg(&meta, &one), None);
    }
}
