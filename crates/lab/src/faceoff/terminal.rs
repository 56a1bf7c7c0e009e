// SPDX-License-Identifier: GPL-2.0-only
//! Renders the face-off for the terminal.

use comfy_table::{Attribute, Cell, CellAlignment, Color};

use protocol::faceoff::Variant;

use super::summary::Summary;
use super::tables::{self, Table, metric};
use crate::ab::table::{lines, new_table};
use crate::format::ratio;

/// Renders the summary: a table per load, the idle costs, ours compared with the best of the others.
#[must_use]
pub fn render(summary: &Summary, colour: bool) -> String {
    let mut text = String::new();
    let mut section = |title: &str, table: &Table| {
        if !table.rows.is_empty() {
            let gap = if text.is_empty() { "" } else { "\n" };
            text += &format!("{gap}{title}\n{}", drawn(table, colour));
        }
    };
    for variant in summary.variants() {
        match variant {
            Variant::Idle => section("idle, for 60 s:", &tables::idle(summary)),
            load => {
                section(&format!("{load} (median / worst of the runs):"), &tables::load(summary, load));
            }
        }
    }
    section(
        "Ours against the best of the others (medians; above 1 ours is better):",
        &tables::comparison(summary),
    );
    for median in &summary.middle {
        text += &format!(
            "{}, {}: {} in the median of the variants, {} at worst ({})\n",
            median.contestant,
            metric(&median.metric),
            ratio(median.median_ratio),
            ratio(median.worst_ratio),
            median.worst_variant
        );
    }
    text
}

fn drawn(table: &Table, colour: bool) -> String {
    let mut drawn = new_table(None, colour);
    drawn.set_header(table.head.iter().map(|head| Cell::new(head).add_attribute(Attribute::Bold)));
    for column in drawn.column_iter_mut().skip(table.text_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for row in &table.rows {
        drawn.add_row(row.iter().map(|cell| {
            let text = Cell::new(&cell.text);
            if cell.alarm { text.fg(Color::Red).add_attribute(Attribute::Bold) } else { text }
        }));
    }
    lines(&drawn)
}

#[cfg(test)]
mod tests {
    use protocol::faceoff::{Idle, Who};

    use super::super::record::Run;
    use super::super::summary::Meta;
    use super::super::summary::tests::{contestant, run};
    use super::*;

    #[test]
    fn everything_is_there_and_plain_without_colours() {
        let who = [contestant("peer", "peer"), contestant("memreap", "memreap")];
        let mut bad = run("peer", Variant::Hog, 0, 300.0, None);
        if let Some(result) = &mut bad.result {
            result.kills.insert(Who::Innocent, 1);
        }
        let idle = Idle { seconds: 60.0, pss_kib: 350.0, cpu_ms: 36.0, wakeups: 61 };
        let idle = Run { idle: Some(idle), ..Run::new("peer", Variant::Idle, 0, 1) };
        let runs = [bad, run("memreap", Variant::Hog, 0, 100.0, Some(400.0)), idle];
        let summary = Summary::of(Meta { limit_s: 40, ..Meta::default() }, &who, &runs);
        let text = render(&summary, false);
        for needle in [
            "never",
            "1 innocent in 1 of 1 runs",
            "3.00x",
            "350",
            "idle, for 60 s:",
            "in the median",
            "no verdict",
        ] {
            assert!(text.contains(needle), "{needle}:\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
        assert!(render(&summary, true).contains('\u{1b}'));
        assert_eq!(render(&Summary::default(), false), "");
    }
}
