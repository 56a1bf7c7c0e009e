//! `faceoff.html`: one file without scripts, fonts or links to anywhere else, in the style of
//! [`crate::ab::report`]; and its plots as SVG files of their own.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::IDLE;
use super::figures::{Entry, Figures, Spread, Who, typical};
use super::record::{Run, Sample};
use crate::ab::report::{STYLE, Scale, escape, factor};
use crate::ab::results::{Verdict, write_atomically};
use crate::ab::table::{number, round};

const PAGE_STYLE: &str = include_str!("page.css");
const PLOT_STYLE: &str = include_str!("plot.css");

/// A plot's size in its own units, which are CSS pixels at its usual width.
const WIDTH: f64 = 860.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = WIDTH - 12.0;
/// Top and bottom of the two charts, one above the other.
const MEMORY: (f64, f64) = (60.0, 210.0);
const STALLS: (f64, f64) = (246.0, 396.0);
const HEIGHT: f64 = 430.0;
/// The legend, as many in a row as have room for their names.
const IN_A_ROW: usize = 4;
/// The stalls' scale begins with a frame.
const FRAME_MS: f64 = 10.0;
/// As many line styles as `plot.css` has.
const STYLES: usize = 7;

/// The whole page.
#[must_use]
pub fn html(figures: &Figures, runs: &[Run]) -> String {
    let meta = &figures.meta;
    let kernels: Vec<String> =
        meta.kernels.iter().map(|(tree, release)| format!("{tree} {release}")).collect();
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>The face-off</title>\n<style>\n{STYLE}{PAGE_STYLE}</style>\n</head>\n<body>\n<header>\n\
         <h1>The face-off</h1>\n<p class=\"soft\">{} · QEMU {} · {} CPUs, {} MiB · {}</p>\n</header>\n<main>\n",
        escape(&kernels.join(", ")),
        escape(&meta.accelerator),
        meta.cpus,
        meta.memory_mib,
        escape(&meta.date)
    );
    page += &comparison(figures);
    for variant in figures.variants() {
        let _ = writeln!(page, "<h2 id=\"{0}\">{0}</h2>", escape(variant));
        page += &if variant == IDLE { idle(figures) } else { load(figures, variant) };
        if let Some(svg) = plot(figures, runs, variant) {
            let _ = writeln!(page, "<div class=\"plots\"><article class=\"card\">{svg}</article></div>");
        }
        page += &failures(figures, variant);
    }
    page += &method(figures);
    page + "</main>\n</body>\n</html>\n"
}

/// Writes every plot to `<variant>.svg` in `folder`; gives the files.
///
/// # Errors
/// When they cannot be written.
pub fn write_svgs(figures: &Figures, runs: &[Run], folder: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut files = Vec::new();
    for variant in figures.variants() {
        if let Some(svg) = plot(figures, runs, variant) {
            let file = folder.join(format!("{variant}.svg"));
            write_atomically(&file, &(svg + "\n"))?;
            files.push(file);
        }
    }
    Ok(files)
}

/// Milliseconds for people.
pub(super) fn ms(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |v| number(v.round()))
}

/// Median and worst; `never` where the runs did not come to it.
pub(super) fn spread(spread: &Spread, never: &str) -> String {
    let shown =
        |value: Option<f64>| if value.is_none() && !never.is_empty() { never.to_owned() } else { ms(value) };
    match spread.values.len() {
        0 => "-".to_owned(),
        1 => shown(spread.median),
        _ => format!("{} / {}", shown(spread.median), shown(spread.worst)),
    }
}

/// Who died wrongly, or nothing.
pub(super) fn wrong(entry: &Entry) -> String {
    let victims: Vec<String> = entry.wrong.iter().map(|(who, n)| format!("{n} {who}")).collect();
    match entry.wrong_runs {
        0 => String::new(),
        n => format!("{} in {n} of {} runs", victims.join(", "), entry.runs),
    }
}

fn comparison(figures: &Figures) -> String {
    if figures.comparison.is_empty() {
        return String::new();
    }
    let title = |name: &str| figures.who(name).map_or(name, |who| &who.title).to_owned();
    let mut out = String::from(
        "<section aria-labelledby=\"against\">\n<h2 id=\"against\">Against the best of the others</h2>\n\
         <p class=\"soft\">Medians over the runs; the best of the others is chosen anew in every row. Above 1 \
         ours is better. Stalls below 10 ms and recoveries below 50 ms are not told apart. <i>better</i>: than every \
         one of the others, <i>worse</i>: than the best, by the exact rank-sum test at 5 %.</p>\n<ul class=\"tiles\">\n",
    );
    for middle in &figures.middle {
        let class = if middle.worst_ratio >= 1.0 { "better" } else { "worse" };
        let _ = writeln!(
            out,
            "<li class=\"{class}\"><b>{}</b> {}, {}: the middle of the variants; at worst {} in {}</li>",
            factor(middle.median_ratio),
            escape(&title(&middle.contestant)),
            metric(&middle.metric),
            factor(middle.worst_ratio),
            escape(&middle.worst_variant)
        );
    }
    out += "</ul>\n<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">variant</th><th scope=\"col\">ours</th>\
            <th scope=\"col\">metric</th><th scope=\"col\" class=\"n\">ours, ms</th>\
            <th scope=\"col\">best of the others</th><th scope=\"col\" class=\"n\">theirs, ms</th>\
            <th scope=\"col\" class=\"n\">ratio</th><th scope=\"col\">verdict</th></tr></thead>\n<tbody>\n";
    for row in &figures.comparison {
        let never = |value: Option<f64>| if value.is_none() { "never".to_owned() } else { ms(value) };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td>{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td{}>{}</td></tr>",
            escape(&row.variant),
            escape(&title(&row.contestant)),
            metric(&row.metric),
            never(row.ours),
            escape(&title(&row.best_peer)),
            never(row.theirs),
            factor(row.ratio),
            if row.verdict == Verdict::Worse { " class=\"bad\"" } else { "" },
            row.verdict
        );
    }
    out + "</tbody></table></div>\n</section>\n"
}

/// A metric's name for people.
pub(super) fn metric(name: &str) -> &str {
    match name {
        "longest_stall_ms" => "longest stall",
        "low_to_recovered_ms" => "recovery",
        other => other,
    }
}

fn table(head: &[&str], rows: &[Vec<(String, bool)>]) -> String {
    let mut out = String::from("<div class=\"scroll\"><table>\n<thead><tr>");
    for (column, name) in head.iter().enumerate() {
        let class = if column == 0 { "" } else { " class=\"n\"" };
        let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", escape(name));
    }
    out += "</tr></thead>\n<tbody>\n";
    for row in rows {
        out += "<tr>";
        for (column, (text, bad)) in row.iter().enumerate() {
            let class = match (column, bad) {
                (0, _) => "",
                (_, true) => " class=\"n bad\"",
                (_, false) => " class=\"n\"",
            };
            let _ = write!(out, "<td{class}>{}</td>", escape(text));
        }
        out += "</tr>\n";
    }
    out + "</tbody></table></div>\n"
}

fn load(figures: &Figures, variant: &str) -> String {
    let rows: Vec<Vec<(String, bool)>> = figures
        .of_variant(variant)
        .map(|(who, entry)| {
            let wrong = wrong(entry);
            let late = entry.timed_out + entry.not_served;
            vec![
                (who.title.clone(), false),
                (runs(entry), !entry.failures.is_empty()),
                (spread(&entry.longest_stall_ms, ""), false),
                (spread(&entry.total_stall_ms, ""), false),
                (spread(&entry.low_to_recovered_ms, "never"), false),
                (spread(&entry.first_signal_ms, ""), false),
                (spread(&entry.signal_to_back_ms, ""), false),
                (entry.kills.values().sum::<u64>().to_string(), false),
                (entry.kernel_oom_kills.to_string(), false),
                (
                    if late > 0 {
                        format!("{} late, {} unserved", entry.timed_out, entry.not_served)
                    } else {
                        "yes".into()
                    },
                    late > 0,
                ),
                (if wrong.is_empty() { "none".into() } else { wrong.clone() }, !wrong.is_empty()),
            ]
        })
        .collect();
    let head = [
        "contestant",
        "runs",
        "longest stall, ms",
        "total stall, ms",
        "5 % to recovered, ms",
        "first signal, ms",
        "signal to memory back, ms",
        "kills",
        "by the kernel",
        "ended well",
        "wrong victims",
    ];
    format!("<p class=\"soft\">Median / worst of the runs.</p>\n{}", table(&head, &rows))
}

fn idle(figures: &Figures) -> String {
    let rows: Vec<Vec<(String, bool)>> = figures
        .of_variant(IDLE)
        .map(|(who, entry)| {
            vec![
                (who.title.clone(), false),
                (entry.runs.to_string(), !entry.failures.is_empty()),
                (spread(&entry.pss_kib, ""), false),
                (spread(&entry.cpu_ms, ""), false),
                (spread(&entry.wakeups, ""), false),
            ]
        })
        .collect();
    table(&["contestant", "runs", "PSS, KiB", "CPU, ms in 60 s", "wake-ups in 60 s"], &rows)
}

fn runs(entry: &Entry) -> String {
    match entry.disturbed {
        0 => entry.runs.to_string(),
        n => format!("{}, {n} disturbed", entry.runs),
    }
}

fn failures(figures: &Figures, variant: &str) -> String {
    let mut out = String::new();
    for (who, entry) in figures.of_variant(variant) {
        for failure in &entry.failures {
            let _ = writeln!(
                out,
                "<details><summary class=\"alarm\">{}: a run failed</summary><pre>{}</pre></details>",
                escape(&who.title),
                // Line breaks are what a log is made of.
                failure.lines().map(escape).collect::<Vec<_>>().join("\n")
            );
        }
    }
    out
}

fn method(figures: &Figures) -> String {
    let meta = &figures.meta;
    let packages: Vec<String> =
        meta.packages.iter().map(|(name, version)| format!("{name} {version}")).collect();
    format!(
        "<section aria-labelledby=\"method\">\n<h2 id=\"method\">How this was measured</h2>\n\
         <p>Every run starts from one snapshot of the warmed-up guest, contestants taking turns. The foreground \
         is an application that draws a frame every 10 ms; a stall is how late a frame is. A run is given up after \
         {} s, and made again, twice at most, if more than 2 % of the host's own CPU time was stolen meanwhile. \
         Seeds from {}. The curves are of the run whose longest stall is the middle one.</p>\n\
         <p class=\"soft\">Debian packages: {}.</p>\n</section>\n",
        meta.limit_s,
        meta.seed,
        escape(&packages.join(", "))
    )
}

/// One contestant's curve.
struct Curve<'a> {
    who: &'a Who,
    /// Which line style.
    style: usize,
    samples: &'a [Sample],
}

/// One of a plot's charts.
struct Chart<'a> {
    title: &'a str,
    /// Of the values, upwards.
    scale: &'a Scale,
    /// Top and bottom.
    at: (f64, f64),
    value: fn(&Sample) -> f64,
}

/// Memory that is left and stalls over time, a line per contestant.
fn plot(figures: &Figures, runs: &[Run], variant: &str) -> Option<String> {
    let curves: Vec<Curve<'_>> = figures
        .contestants
        .iter()
        .enumerate()
        .filter_map(|(place, who)| {
            let samples = typical(runs, &who.name, variant)?.samples.as_slice();
            (samples.len() > 1).then_some(Curve { who, style: place % STYLES, samples })
        })
        .collect();
    let all = || curves.iter().flat_map(|curve| curve.samples);
    let end = all().map(|s| s.t).fold(0.0, f64::max);
    if curves.is_empty() || end <= 0.0 {
        return None;
    }
    let mib: fn(&Sample) -> f64 = |s| (s.avail + s.swap_free) / 1024.0;
    let time = Scale::linear(0.0, end / 1000.0, LEFT, RIGHT);
    let memory = Scale::linear(0.0, all().map(mib).fold(1.0, f64::max), MEMORY.1, MEMORY.0);
    let longest = all().map(|s| s.fg_gap_ms).fold(FRAME_MS * 10.0, f64::max);
    let stalls = Scale::log(FRAME_MS, longest, STALLS.1, STALLS.0);
    let names: Vec<&str> = curves.iter().map(|curve| curve.who.title.as_str()).collect();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fo\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{}: memory and stalls over time of {}\"><style>{PLOT_STYLE}</style>",
        escape(variant),
        escape(&names.join(", "))
    );
    for (at, curve) in curves.iter().enumerate() {
        let x = LEFT + (at % IN_A_ROW) as f64 * ((RIGHT - LEFT) / IN_A_ROW as f64);
        let y = 12.0 + (at / IN_A_ROW) as f64 * 15.0;
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
        Chart { title: "available memory and free swap, MiB", scale: &memory, at: MEMORY, value: mib },
        Chart {
            title: "how late frames are, ms",
            scale: &stalls,
            at: STALLS,
            value: |s| s.fg_gap_ms.max(FRAME_MS),
        },
    ];
    for Chart { title, scale, at: (top, bottom), value } in charts {
        let _ = write!(svg, "<text x=\"{LEFT}\" y=\"{:.0}\">{title}</text>", top - 8.0);
        for tick in scale.ticks() {
            let y = scale.at(tick);
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 5.0,
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
    let _ =
        write!(svg, "<text x=\"{RIGHT}\" y=\"{:.0}\" text-anchor=\"end\">seconds</text></svg>", HEIGHT - 4.0);
    Some(svg)
}

#[cfg(test)]
mod tests {
    use super::super::figures::Meta;
    use super::super::figures::tests::{contestant, run};
    use super::*;

    fn two() -> (Figures, Vec<Run>) {
        let who = [contestant("peer", "peer"), contestant("memreap", "memreap")];
        let mut runs = vec![run("peer", "hog", 0, 300.0, None), run("memreap", "hog", 0, 100.0, Some(400.0))];
        for run in &mut runs {
            run.samples = (0..3_u8)
                .map(|i| Sample {
                    t: f64::from(i) * 50.0,
                    avail: 1024.0,
                    fg_gap_ms: 5.0,
                    ..Sample::default()
                })
                .collect();
        }
        let mut failed = run("peer", "hog", 1, 1.0, None);
        failed.failure = Some("panic <here>\nmore".into());
        runs.push(failed);
        (Figures::of(Meta { limit_s: 40, ..Meta::default() }, &who, &runs), runs)
    }

    #[test]
    fn the_page_has_every_contestant_and_failure() {
        let (figures, runs) = two();
        let page = html(&figures, &runs);
        for text in ["PEER", "MEMREAP", "never", "panic &lt;here&gt;\nmore", "3.00×", "<svg"] {
            assert!(page.contains(text), "{text}");
        }
        assert!(!page.contains("<script") && !page.contains("NaN") && !page.contains("inf"));
        let empty = html(&Figures::default(), &[]);
        assert!(empty.contains("</html>") && !empty.contains("<svg"));
    }

    #[test]
    fn a_plot_has_a_line_per_contestant_and_chart() {
        let (figures, runs) = two();
        let svg = plot(&figures, &runs, "hog").unwrap();
        // Two in the legend, two in each chart.
        assert_eq!(svg.matches("class=\"line c0\"").count(), 3);
        assert_eq!(svg.matches("class=\"line c1\"").count(), 3);
        assert!(!svg.contains("NaN"));
        assert!(plot(&figures, &runs, "leak").is_none());
        let dir = tempfile::tempdir().unwrap();
        let files = write_svgs(&figures, &runs, &dir.path().join("plots")).unwrap();
        assert_eq!(files, [dir.path().join("plots/hog.svg")]);
        assert!(fs::read_to_string(&files[0]).unwrap().starts_with("<svg xmlns"));
    }

    #[test]
    fn spreads_read_well() {
        let of = |values: &[Option<f64>], median, worst| Spread { values: values.to_vec(), median, worst };
        assert_eq!(spread(&of(&[], None, None), ""), "-");
        assert_eq!(spread(&of(&[Some(12.4)], Some(12.4), Some(12.4)), ""), "12");
        assert_eq!(spread(&of(&[Some(1.0), None], Some(1.0), None), "never"), "1 / never");
    }
}
