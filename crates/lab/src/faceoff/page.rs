// SPDX-License-Identifier: GPL-2.0-only
//! Renders `faceoff.html`, a single file without scripts, fonts or external links like [`crate::ab::report`],
//! with the plots of [`plots`].

use std::fmt::Write as _;

use super::cell::CellName;
use super::plots;
use super::record::Run;
use super::snapshot::SNAPSHOTS;
use super::summary::Summary;
use super::tables::{self, Table};
use crate::html::{self, escape};

const PAGE_STYLE: &str = include_str!("page.css");

/// Renders the page.
pub fn html(summary: &Summary, runs: &[Run]) -> String {
    let meta = &summary.meta;
    let kernels: Vec<String> = meta.kernels.iter().map(|(tree, release)| format!("{tree} {release}")).collect();
    let mut page = html::begin("The face-off", "The face-off", PAGE_STYLE);
    let _ = writeln!(
        page,
        "<p class=\"soft\">{} · QEMU {} · {}</p>\n</header>\n<main>",
        escape(&kernels.join(", ")),
        escape(&meta.accelerator),
        escape(&meta.date)
    );
    page += &comparison(summary);
    page += &card(plots::overview(summary));
    let grid = tables::grid(summary);
    page += &section("The grid", "Medians of the longest stalls in ms, and kills that were needless or wrong.", &grid);
    for cell in &summary.cells {
        let about = format!("{}. {}.", cell.about, cell.machine);
        let table = match cell.idle {
            true => tables::idle(summary, &cell.name),
            false => tables::load(summary, &cell.name),
        };
        page += &section(&cell.name.0, &format!("{about} Median / worst of the runs."), &table);
        page += &card(plots::cell(summary, runs, &cell.name));
        page += &failures(summary, &cell.name);
    }
    page += &method(summary);
    page + html::END
}

fn card(svg: Option<String>) -> String {
    let frame = |svg| format!("<div class=\"plots\"><article class=\"card\">{svg}</article></div>\n");
    svg.map_or_else(String::new, frame)
}

fn section(title: &str, about: &str, content: &Table<'_>) -> String {
    if content.rows.is_empty() {
        return String::new();
    }
    let (title, about) = (escape(title), escape(about));
    format!("<h2 id=\"{title}\">{title}</h2>\n<p class=\"soft\">{about}</p>\n{}", table(content))
}

fn comparison(summary: &Summary) -> String {
    let overall = section(
        "Against each of the others",
        "Over all loads: the median of the ratios of medians, above 1 ours is better. better and \
         worse by the exact stratified rank-sum test, two-sided, at 5 % for all rows together, if the median differs by 10 % or \
         more. Stalls below 10 ms, recoveries below 50 ms and logins below 100 ms are not distinguished. Those with early \
         reclaim are compared with each other.",
        &tables::overall(summary),
    );
    let best = section(
        "Against the best of the others",
        "Load by load, medians; ratios are seed by seed, with intervals that stand for themselves. The best of several is \
         chosen after the runs, so ratios somewhat below 1 are to be expected where all are alike.",
        &tables::comparison(summary),
    );
    overall + &best
}

fn table(table: &Table<'_>) -> String {
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

fn failures(summary: &Summary, cell: &CellName) -> String {
    let mut out = String::new();
    for (who, entry) in summary.of_cell(cell) {
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
    let packages: Vec<String> = meta.packages.iter().map(|(name, version)| format!("{name} {version}")).collect();
    format!(
        "<section aria-labelledby=\"method\">\n<h2 id=\"method\">How this was measured</h2>\n\
         <p>Every run starts from a snapshot of the warmed-up guest, the contestants alternating; rounds take turns with {} \
         snapshots of each kernel and machine. The foreground \
         is an application that draws a frame every 10 ms; a stall is how late a frame is. A run is stopped after \
         {} s. It is repeated, at most twice, if more than 2 % of the host's CPU time was stolen in any ten seconds of it. Seeds \
         from {}. The curves are of the run with the median of the longest stalls.</p>\n\
         <p class=\"soft\">Debian packages: {}.</p>\n</section>\n",
        SNAPSHOTS,
        meta.limit_s,
        meta.seed,
        escape(&packages.join(", "))
    )
}

#[cfg(test)]
pub(super) mod tests {
    use protocol::faceoff::Sample;

    use super::super::summary::Meta;
    use super::super::summary::tests::{cells, contestant, run};
    use super::*;

    pub(in crate::faceoff) fn two() -> (Summary, Vec<Run>) {
        let who = [contestant("peer", "peer"), contestant("memreap", "memreap")];
        let mut runs = vec![run("peer", "hog", 0, 300.0, None), run("memreap", "hog", 0, 100.0, Some(400.0))];
        for run in &mut runs {
            run.samples = (0..3_u8)
                .map(|i| Sample { t: f64::from(i) * 50.0, avail: 1024, fg_gap_ms: 5.0, ..Sample::default() })
                .collect();
        }
        let mut failed = run("peer", "hog", 1, 1.0, None);
        failed.failure = Some("panic <here>\nmore".into());
        runs.push(failed);
        (Summary::of(Meta { limit_s: 40, ..Meta::default() }, &who, &cells(), &runs), runs)
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
}
