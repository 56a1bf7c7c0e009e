// SPDX-License-Identifier: GPL-2.0-only
//! Renders `faceoff.html`, a single file without scripts, fonts or external links like [`crate::ab::report`],
//! and its plots as SVG files.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use protocol::faceoff::{Sample, Variant};

use super::record::Run;
use super::summary::{Participant, Summary, typical};
use super::tables::{self, Table, metric};
use crate::format::round;
use crate::host::write_atomically;
use crate::html::{self, Scale, escape, factor};

const PAGE_STYLE: &str = include_str!("page.css");
const PLOT_STYLE: &str = include_str!("plot.css");

/// The width of a plot in SVG units, which are CSS pixels at its usual width.
const PLOT_WIDTH: f64 = 860.0;
/// The left and the right end of the charts.
const PLOT_LEFT: f64 = 52.0;
const PLOT_RIGHT: f64 = PLOT_WIDTH - 12.0;
/// The top and the bottom of the chart of memory.
const MEMORY_CHART: (f64, f64) = (60.0, 210.0);
/// The top and the bottom of the chart of stalls, below the other one.
const STALL_CHART: (f64, f64) = (246.0, 396.0);
/// The height of a plot.
const PLOT_HEIGHT: f64 = 430.0;
/// How many entries of the legend are in a row: their names must have room.
const LEGEND_COLUMNS: usize = 4;
/// The lower end of the scale of stalls.
const FRAME_INTERVAL_MS: f64 = 10.0;
/// The number of line styles in `plot.css`.
const LINE_STYLES: usize = 7;

/// Renders the page.
#[must_use]
pub fn html(summary: &Summary, runs: &[Run]) -> String {
    let meta = &summary.meta;
    let kernels: Vec<String> =
        meta.kernels.iter().map(|(tree, release)| format!("{tree} {release}")).collect();
    let mut page = html::begin("The face-off", "The face-off", PAGE_STYLE);
    let _ = writeln!(
        page,
        "<p class=\"soft\">{} · QEMU {} · {} CPUs, {} MiB · {}</p>\n</header>\n<main>",
        escape(&kernels.join(", ")),
        escape(&meta.accelerator),
        meta.cpus,
        meta.memory_mib,
        escape(&meta.date)
    );
    page += &comparison(summary);
    for variant in summary.variants() {
        let _ = writeln!(page, "<h2 id=\"{variant}\">{variant}</h2>");
        page += &match variant {
            Variant::Idle => table(&tables::idle(summary)),
            load => format!(
                "<p class=\"soft\">Median / worst of the runs.</p>\n{}",
                table(&tables::load(summary, load))
            ),
        };
        if let Some(svg) = plot(summary, runs, variant) {
            let _ = writeln!(page, "<div class=\"plots\"><article class=\"card\">{svg}</article></div>");
        }
        page += &failures(summary, variant);
    }
    page += &method(summary);
    page + html::END
}

/// Writes every plot to `<variant>.svg` in `folder` and returns the paths.
///
/// # Errors
/// When they cannot be written.
pub fn write_svgs(summary: &Summary, runs: &[Run], folder: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut files = Vec::new();
    for variant in summary.variants() {
        if let Some(svg) = plot(summary, runs, variant) {
            let file = folder.join(format!("{variant}.svg"));
            write_atomically(&file, &(svg + "\n"))?;
            files.push(file);
        }
    }
    Ok(files)
}

fn comparison(summary: &Summary) -> String {
    if summary.comparison.is_empty() {
        return String::new();
    }
    let title = |name: &str| summary.who(name).map_or(name, |who| &who.title).to_owned();
    let mut out = String::from(
        "<section aria-labelledby=\"against\">\n<h2 id=\"against\">Against the best of the others</h2>\n\
         <p class=\"soft\">Medians over the runs; the best of the others is chosen for every row. Above 1 ours is \
         better. Stalls below 10 ms and recoveries below 50 ms are not distinguished. <i>better</i> and <i>worse</i> \
         by the exact two-sided rank-sum test at 5 %, corrected for the number of others.</p>\n<ul class=\"tiles\">\n",
    );
    for median in &summary.middle {
        let class = if median.worst_ratio >= 1.0 { "better" } else { "worse" };
        let _ = writeln!(
            out,
            "<li class=\"{class}\"><b>{}</b> {}, {}: the median of the variants; {} at worst, in {}</li>",
            factor(median.median_ratio),
            escape(&title(&median.contestant)),
            metric(&median.metric),
            factor(median.worst_ratio),
            median.worst_variant
        );
    }
    out + "</ul>\n" + &table(&tables::comparison(summary)) + "</section>\n"
}

fn table(table: &Table) -> String {
    let class = |column: usize, alarm: bool| match (column < table.text_columns, alarm) {
        (true, false) => "",
        (true, true) => " class=\"bad\"",
        (false, false) => " class=\"n\"",
        (false, true) => " class=\"n bad\"",
    };
    let mut out = String::from("<div class=\"scroll\"><table>\n<thead><tr>");
    for (column, head) in table.head.iter().enumerate() {
        let _ = write!(out, "<th scope=\"col\"{}>{}</th>", class(column, false), escape(head));
    }
    out += "</tr></thead>\n<tbody>\n";
    for row in &table.rows {
        out += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(out, "<td{}>{}</td>", class(column, cell.alarm), escape(&cell.text));
        }
        out += "</tr>\n";
    }
    out + "</tbody></table></div>\n"
}

fn failures(summary: &Summary, variant: Variant) -> String {
    let mut out = String::new();
    for (who, entry) in summary.of_variant(variant) {
        for failure in &entry.failures {
            let _ = writeln!(
                out,
                "<details><summary class=\"alarm\">{}: a run failed</summary><pre>{}</pre></details>",
                escape(&who.title),
                // Escaped by lines, because escape() replaces line breaks.
                failure.lines().map(escape).collect::<Vec<_>>().join("\n")
            );
        }
    }
    out
}

fn method(summary: &Summary) -> String {
    let meta = &summary.meta;
    let packages: Vec<String> =
        meta.packages.iter().map(|(name, version)| format!("{name} {version}")).collect();
    format!(
        "<section aria-labelledby=\"method\">\n<h2 id=\"method\">How this was measured</h2>\n\
         <p>Every run starts from one snapshot of the warmed-up guest, the contestants alternating. The foreground \
         is an application that draws a frame every 10 ms; a stall is how late a frame is. A run is stopped after \
         {} s. It is repeated, at most twice, if more than 2 % of the host's CPU time was stolen during it. Seeds \
         from {}. The curves are of the run with the median of the longest stalls.</p>\n\
         <p class=\"soft\">Debian packages: {}.</p>\n</section>\n",
        meta.limit_s,
        meta.seed,
        escape(&packages.join(", "))
    )
}

/// The curve of a contestant.
struct Curve<'a> {
    who: &'a Participant,
    /// Which line style.
    style: usize,
    samples: &'a [Sample],
}

/// A chart of a plot.
struct Chart<'a> {
    title: &'a str,
    /// The vertical scale of the values.
    scale: &'a Scale,
    /// The top and the bottom.
    at: (f64, f64),
    value: fn(&Sample) -> f64,
}

/// Renders the plot of a variant: available memory and stalls over time, a line per contestant. `None` if
/// there are no samples.
fn plot(summary: &Summary, runs: &[Run], variant: Variant) -> Option<String> {
    let curves: Vec<Curve<'_>> = summary
        .contestants
        .iter()
        .enumerate()
        .filter_map(|(place, who)| {
            let samples = typical(runs, &who.name, variant)?.samples.as_slice();
            (samples.len() > 1).then_some(Curve { who, style: place % LINE_STYLES, samples })
        })
        .collect();
    let all = || curves.iter().flat_map(|curve| curve.samples);
    let end = all().map(|s| s.t).fold(0.0, f64::max);
    if curves.is_empty() || end <= 0.0 {
        return None;
    }
    let mib: fn(&Sample) -> f64 = |s| (s.avail + s.swap_free) as f64 / 1024.0;
    let time = Scale::linear(0.0, end / 1000.0, PLOT_LEFT, PLOT_RIGHT);
    let memory = Scale::linear(0.0, all().map(mib).fold(1.0, f64::max), MEMORY_CHART.1, MEMORY_CHART.0);
    let longest = all().map(|s| s.fg_gap_ms).fold(FRAME_INTERVAL_MS * 10.0, f64::max);
    let stalls = Scale::log(FRAME_INTERVAL_MS, longest, STALL_CHART.1, STALL_CHART.0);
    let names: Vec<&str> = curves.iter().map(|curve| curve.who.title.as_str()).collect();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fo\" viewBox=\"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}\" role=\"img\" \
         aria-label=\"{}: memory and stalls over time of {}\"><style>{PLOT_STYLE}</style>",
        variant,
        escape(&names.join(", "))
    );
    for (at, curve) in curves.iter().enumerate() {
        let x = PLOT_LEFT + (at % LEGEND_COLUMNS) as f64 * ((PLOT_RIGHT - PLOT_LEFT) / LEGEND_COLUMNS as f64);
        let y = 12.0 + (at / LEGEND_COLUMNS) as f64 * 15.0;
        let _ = write!(
            svg,
            "<path class=\"line c{}\" d=\"M{x:.0} {y:.0}h26\"/><text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            curve.style,
            x + 32.0,
            y + 4.0,
            escape(&curve.who.title)
        );
    }
    let charts: [Chart<'_>; 2] = [
        Chart { title: "available memory and free swap, MiB", scale: &memory, at: MEMORY_CHART, value: mib },
        Chart {
            title: "how late frames are, ms",
            scale: &stalls,
            at: STALL_CHART,
            value: |s| s.fg_gap_ms.max(FRAME_INTERVAL_MS),
        },
    ];
    for Chart { title, scale, at: (top, bottom), value } in charts {
        let _ = write!(svg, "<text x=\"{PLOT_LEFT}\" y=\"{:.0}\">{title}</text>", top - 8.0);
        for tick in scale.ticks() {
            let y = scale.at(tick);
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{PLOT_LEFT} {y:.1}H{PLOT_RIGHT}\"/>\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                PLOT_LEFT - 5.0,
                y + 4.0,
                round(tick)
            );
        }
        for tick in time.ticks() {
            let x = time.at(tick);
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{x:.1} {top}V{bottom}\"/>\
                 <text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
                bottom + 14.0,
                round(tick)
            );
        }
        for curve in &curves {
            let points: Vec<String> = curve
                .samples
                .iter()
                .map(|s| format!("{:.1} {:.1}", time.at(s.t / 1000.0), scale.at(value(s))))
                .collect();
            let _ = write!(svg, "<path class=\"line c{}\" d=\"M{}\"/>", curve.style, points.join("L"));
        }
    }
    let _ = write!(
        svg,
        "<text x=\"{PLOT_RIGHT}\" y=\"{:.0}\" text-anchor=\"end\">seconds</text></svg>",
        PLOT_HEIGHT - 4.0
    );
    Some(svg)
}

#[cfg(test)]
mod tests {
    use super::super::summary::Meta;
    use super::super::summary::tests::{contestant, run};
    use super::*;

    fn two() -> (Summary, Vec<Run>) {
        let who = [contestant("peer", "peer"), contestant("memreap", "memreap")];
        let mut runs = vec![
            run("peer", Variant::Hog, 0, 300.0, None),
            run("memreap", Variant::Hog, 0, 100.0, Some(400.0)),
        ];
        for run in &mut runs {
            run.samples = (0..3_u8)
                .map(|i| Sample { t: f64::from(i) * 50.0, avail: 1024, fg_gap_ms: 5.0, ..Sample::default() })
                .collect();
        }
        let mut failed = run("peer", Variant::Hog, 1, 1.0, None);
        failed.failure = Some("panic <here>\nmore".into());
        runs.push(failed);
        (Summary::of(Meta { limit_s: 40, ..Meta::default() }, &who, &runs), runs)
    }

    #[test]
    fn the_page_has_every_contestant_and_failure() {
        let (summary, runs) = two();
        let page = html(&summary, &runs);
        for text in ["PEER", "MEMREAP", "never", "panic &lt;here&gt;\nmore", "3.00x", "<svg"] {
            assert!(page.contains(text), "{text}");
        }
        assert!(!page.contains("<script") && !page.contains("NaN") && !page.contains("inf"));
        let empty = html(&Summary::default(), &[]);
        assert!(empty.contains("</html>") && !empty.contains("<svg"));
    }

    #[test]
    fn a_plot_has_a_line_per_contestant_and_chart() {
        let (summary, runs) = two();
        let svg = plot(&summary, &runs, Variant::Hog).unwrap();
        // Two in the legend, two in each chart.
        assert_eq!(svg.matches("class=\"line c0\"").count(), 3);
        assert_eq!(svg.matches("class=\"line c1\"").count(), 3);
        assert!(!svg.contains("NaN"));
        assert!(plot(&summary, &runs, Variant::Leak).is_none());
        let dir = tempfile::tempdir().unwrap();
        let files = write_svgs(&summary, &runs, &dir.path().join("plots")).unwrap();
        assert_eq!(files, [dir.path().join("plots/hog.svg")]);
        assert!(fs::read_to_string(&files[0]).unwrap().starts_with("<svg xmlns"));
    }
}
