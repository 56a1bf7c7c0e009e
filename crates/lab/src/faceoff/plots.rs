// SPDX-License-Identifier: GPL-2.0-only
//! Draws the face-off as SVG: the overview of all loads and contestants, and per load what happened over time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use protocol::faceoff::{Death, Sample, Who};

use super::cell::CellName;
use super::record::Run;
use super::summary::{Participant, Summary, typical};
use crate::host::write_atomically;
use crate::svg::{Scale, Svg};

/// The width of a plot in SVG units, which are CSS pixels at its usual width.
const PLOT_WIDTH: f64 = 930.0;
/// The left end of the charts; their right end leaves room for the contestants' names.
const PLOT_LEFT: f64 = 52.0;
const PLOT_RIGHT: f64 = PLOT_WIDTH - 248.0;
/// The top and the bottom of the chart of memory.
const MEMORY_CHART: (f64, f64) = (24.0, 194.0);
/// The top and the bottom of the chart of stalls, below the other one.
const STALL_CHART: (f64, f64) = (232.0, 402.0);
/// The top of the list of kills, and the height of its lines.
const KILLS_TOP: f64 = 442.0;
const LINE_HEIGHT: f64 = 14.0;
/// The lower end of the scale of stalls.
const FRAME_INTERVAL_MS: f64 = 10.0;
/// The number of line styles in `plot.css`.
const LINE_STYLES: usize = 9;

/// The overview: the width of the loads' names, the height of a row and of the contestants' names.
const OVERVIEW_LEFT: f64 = 172.0;
const OVERVIEW_ROW: f64 = 22.0;
const OVERVIEW_HEAD: f64 = 48.0;
/// A stall of less than each of these, in ms, has a colour of its own in the overview.
const STALL_STEPS_MS: [f64; 4] = [100.0, 300.0, 1000.0, 3000.0];

/// Writes the overview to `overview.svg` in `folder`, every other plot to `<load>.svg`, and returns the paths.
///
/// # Errors
/// When they cannot be written.
pub fn write_svgs(summary: &Summary, runs: &[Run], folder: &Path) -> Result<Vec<PathBuf>> {
    let overview = overview(summary).map(|svg| ("overview".to_owned(), svg));
    let cells = summary.cells.iter().map(|cell| &cell.name);
    let cells = cells.filter_map(|name| Some((name.to_string(), cell(summary, runs, name)?)));
    let plots = overview.into_iter().chain(cells).map(|(name, svg)| {
        let file = folder.join(format!("{name}.svg"));
        write_atomically(&file, &svg)?;
        Ok(file)
    });
    plots.collect()
}

/// Begins a plot of this height with a description for those who do not see it.
fn begin(height: f64, label: &str) -> Svg {
    Svg::begin("fo", (PLOT_WIDTH, height), label, include_str!("plot.css"))
}

/// Marks a kill.
const CROSS: &str = "m-3 -3l6 6m0 -6l-6 6";

/// Renders the grid of loads and contestants: the median of the longest stalls as colour and in seconds, and a
/// frame around needless or wrong kills with their number. `None` without results.
pub fn overview(summary: &Summary) -> Option<String> {
    let loads: Vec<_> = summary.cells.iter().filter(|cell| !cell.idle).collect();
    if loads.is_empty() {
        return None;
    }
    let width = (PLOT_WIDTH - OVERVIEW_LEFT) / summary.contestants.len() as f64;
    let height = OVERVIEW_HEAD + OVERVIEW_ROW * loads.len() as f64 + 24.0;
    let mut svg = begin(height, "Longest stalls and wrong kills of all contestants under all loads");
    for (column, who) in summary.contestants.iter().enumerate() {
        let x = OVERVIEW_LEFT + width * (column as f64 + 0.5);
        // "systemd-oomd, Fedora, watermark 100" takes three lines.
        let (title, setting) = who.title.split_at(who.title.find(", watermark").unwrap_or(who.title.len()));
        let parts = title.splitn(2, ", ").chain(setting.strip_prefix(", "));
        for (line, part) in parts.enumerate() {
            svg.anchored("middle", "", (x, 12.0 + LINE_HEIGHT * line as f64), part);
        }
    }
    for (row, cell) in loads.iter().enumerate() {
        let y = OVERVIEW_HEAD + OVERVIEW_ROW * row as f64;
        svg.anchored("end", "", (OVERVIEW_LEFT - 8.0, y + 15.0), &cell.name.0);
        for (who, entry) in summary.of_cell(&cell.name) {
            let Some(column) = summary.contestants.iter().position(|other| other.name == who.name) else {
                continue;
            };
            let Some(stall) = entry.longest_stall_ms.median else { continue };
            let step = STALL_STEPS_MS.iter().filter(|&&limit| stall >= limit).count();
            let (frame, kills) = match entry.wrong.values().sum::<u64>() {
                0 => ("", String::new()),
                n => (" wrong", format!(" · {n}\u{2020}")),
            };
            let x = OVERVIEW_LEFT + width * column as f64;
            let box_at = (x + 2.0, y + 2.0);
            svg.rect(&format!("s{step}{frame}"), box_at, (width - 4.0, OVERVIEW_ROW - 4.0));
            let text = format!("{:.2}{kills}", stall / 1000.0);
            svg.anchored("middle", "in", (x + width / 2.0, y + 15.0), &text);
        }
    }
    let legend = "longest stall in s, median of the runs; framed, with \u{2020}: needless or wrong kills in all runs";
    svg.text("", (OVERVIEW_LEFT, height - 6.0), legend);
    Some(svg.end())
}

/// The curve of a contestant.
struct Curve<'a> {
    who: &'a Participant,
    /// Which line style.
    style: usize,
    samples: &'a [Sample],
    deaths: &'a [Death],
}

/// Renders what happened in a cell: available memory and stalls over time, a line per contestant, and who was
/// killed when. `None` if there are no samples.
pub fn cell(summary: &Summary, runs: &[Run], cell: &CellName) -> Option<String> {
    let curves: Vec<Curve<'_>> = summary
        .contestants
        .iter()
        .enumerate()
        .filter_map(|(place, who)| {
            let Run { samples, deaths, .. } = typical(runs, &who.name, cell)?;
            (samples.len() > 1).then_some(Curve { who, style: place % LINE_STYLES, samples, deaths })
        })
        .collect();
    let all = || curves.iter().flat_map(|curve| curve.samples);
    let end = all().map(|s| s.t).fold(0.0, f64::max);
    if curves.is_empty() || end <= 0.0 {
        return None;
    }
    let mib: fn(&Sample) -> f64 = |s| (s.avail + s.swap_free) as f64 / 1024.0;
    let late: fn(&Sample) -> f64 = |s| s.fg_gap_ms.max(FRAME_INTERVAL_MS);
    let time = Scale::linear(0.0, end / 1000.0, PLOT_LEFT, PLOT_RIGHT);
    let memory = Scale::linear(0.0, all().map(mib).fold(1.0, f64::max), MEMORY_CHART.1, MEMORY_CHART.0);
    let longest = all().map(late).fold(FRAME_INTERVAL_MS * 10.0, f64::max);
    let stalls = Scale::log(FRAME_INTERVAL_MS, longest, STALL_CHART.1, STALL_CHART.0);
    let height = KILLS_TOP + LINE_HEIGHT * curves.len() as f64 + 8.0;
    let names: Vec<&str> = curves.iter().map(|curve| curve.who.title.as_str()).collect();
    let mut svg = begin(height, &format!("{cell}: memory and stalls over time of {}", names.join(", ")));
    for (title, scale, (top, bottom), value) in [
        ("available memory and free swap, MiB", &memory, MEMORY_CHART, mib),
        ("how late frames are, ms", &stalls, STALL_CHART, late),
    ] {
        svg.text("", (PLOT_LEFT, top - 8.0), title);
        svg.grid(&time, scale);
        for curve in &curves {
            let place = |s: &Sample, t: f64| (time.at(t / 1000.0), scale.at(value(s)));
            svg.line(&format!("line c{}", curve.style), curve.samples.iter().map(|s| place(s, s.t)));
            for death in kills(curve) {
                let Some(s) = curve.samples.iter().rfind(|s| s.t <= death.at_ms) else { continue };
                svg.path("kill", place(s, death.at_ms), CROSS);
            }
        }
        name_the_ends(&mut svg, &curves, scale, value, (top, bottom));
    }
    svg.text("", (PLOT_LEFT, KILLS_TOP - 8.0), "killed");
    svg.anchored("end", "", (PLOT_RIGHT, STALL_CHART.1 + 28.0), "seconds");
    for (row, curve) in curves.iter().enumerate() {
        let y = KILLS_TOP + LINE_HEIGHT * (row as f64 + 0.7);
        svg.path("grid", (PLOT_LEFT, y), &format!("H{PLOT_RIGHT}"));
        svg.text(&format!("t{}", curve.style), (PLOT_RIGHT + 6.0, y + 4.0), &curve.who.title);
        for kill in kills(curve) {
            let x = time.at(kill.at_ms / 1000.0);
            let (anchor, at) = if x > PLOT_RIGHT - 120.0 { ("end", x - 6.0) } else { ("start", x + 6.0) };
            svg.path("kill", (x, y), CROSS);
            svg.anchored(anchor, if kill.wrong { "bad" } else { "" }, (at, y + 4.0), &kill.text);
        }
    }
    Some(svg.end())
}

/// Kills within one second.
struct Kills {
    /// The time of the first signal.
    at_ms: f64,
    /// Who was killed: `hog`, or `editor, 3 tab`.
    text: String,
    /// Whether one of them was a wrong victim.
    wrong: bool,
}

/// Returns who was killed, those close to each other together, so that their names have room.
fn kills(curve: &Curve<'_>) -> Vec<Kills> {
    const TOGETHER_MS: f64 = 1000.0;
    let mut killed: Vec<(f64, &Death)> =
        curve.deaths.iter().filter_map(|death| Some((death.signal_t?, death))).collect();
    killed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let group = |group: &[(f64, &Death)]| {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, death) in group {
            *counts.entry(death.name.trim_end_matches(|c: char| c.is_ascii_digit())).or_default() += 1;
        }
        let named = counts.into_iter().map(|(name, n)| match n {
            1 => name.to_owned(),
            n => format!("{n} {name}"),
        });
        Kills {
            at_ms: group[0].0,
            text: named.collect::<Vec<_>>().join(", "),
            wrong: group.iter().any(|(_, death)| death.who != Who::Hog),
        }
    };
    killed.chunk_by(|(a, _), (b, _)| b - a < TOGETHER_MS).map(group).collect()
}

/// Writes each contestant's name beside the end of its curve, moved apart where they would overlap.
fn name_the_ends(
    svg: &mut Svg,
    curves: &[Curve<'_>],
    scale: &Scale,
    value: fn(&Sample) -> f64,
    (top, bottom): (f64, f64),
) {
    let mut ends: Vec<(f64, &Curve<'_>)> =
        curves.iter().filter_map(|curve| Some((scale.at(value(curve.samples.last()?)), curve))).collect();
    ends.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut free = top - 4.0;
    for (place, (y, curve)) in ends.iter().enumerate() {
        // The names below need room as well.
        let lowest = bottom + 6.0 - LINE_HEIGHT * (curves.len() - place) as f64;
        let y = y.min(lowest).max(free);
        free = y + LINE_HEIGHT;
        svg.text(&format!("t{}", curve.style), (PLOT_RIGHT + 6.0, y + 4.0), &curve.who.title);
    }
}

#[cfg(test)]
mod tests {
    use protocol::faceoff::EndedBy;

    use super::super::page::tests::two;
    use super::*;

    #[test]
    fn a_plot_has_a_line_per_contestant_and_chart_and_the_kills() {
        let (summary, mut runs) = two();
        let death = |who, name: &str, signal_t| Death {
            t: 90.0,
            who,
            name: name.into(),
            pid: 1,
            by: EndedBy::Kill,
            signal_t,
            sender: None,
            rss_kib: None,
            back_ms: None,
        };
        runs[0].deaths = vec![
            death(Who::Innocent, "tab2", Some(70.0)),
            death(Who::Innocent, "tab1", Some(60.0)),
            death(Who::Innocent, "editor", Some(50.0)),
            death(Who::Hog, "hog", None),
        ];
        let svg = cell(&summary, &runs, &CellName("hog".into())).unwrap();
        for style in ["c0", "c1"] {
            assert_eq!(svg.matches(&format!("class=\"line {style}\"")).count(), 2, "one in each chart");
        }
        assert!(svg.contains("<text class=\"bad\"") && svg.contains(">editor, 2 tab<"), "{svg}");
        assert_eq!(svg.matches("class=\"kill\"").count(), 3, "on both curves and in the list");
        assert!(!svg.contains("NaN"));
        assert!(cell(&summary, &runs, &CellName("leak".into())).is_none());
        let dir = tempfile::tempdir().unwrap();
        let files = write_svgs(&summary, &runs, &dir.path().join("plots")).unwrap();
        assert_eq!(files, ["overview", "hog"].map(|name| dir.path().join(format!("plots/{name}.svg"))));
        assert!(std::fs::read_to_string(&files[1]).unwrap().starts_with("<svg xmlns"));
    }

    #[test]
    fn the_overview_has_a_box_per_result() {
        let (mut summary, _) = two();
        summary.entries[0].wrong.insert("innocent".into(), 2);
        let svg = overview(&summary).unwrap();
        assert_eq!(svg.matches("<rect ").count(), 2);
        assert!(svg.contains("class=\"s2 wrong\"") && svg.contains("0.30 · 2"), "{svg}");
        assert!(overview(&Summary::default()).is_none());
    }
}
