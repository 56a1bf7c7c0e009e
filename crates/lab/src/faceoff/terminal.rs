// SPDX-License-Identifier: GPL-2.0-only
//! Renders the face-off for the terminal.

use comfy_table::{Attribute, Cell, CellAlignment, Color};

use super::summary::Summary;
use super::tables::{self, Table};
use crate::ab::table::{lines, new_table};

/// Renders the summary: a table per load, the grid, ours compared with the best of the others.
pub fn render(summary: &Summary, colour: bool) -> String {
    let mut text = String::new();
    let mut section = |title: &str, table: &Table<'_>| {
        if !table.rows.is_empty() {
            let gap = if text.is_empty() { "" } else { "\n" };
            text += &format!("{gap}{title}\n{}", drawn(table, colour));
        }
    };
    for cell in &summary.cells {
        let title = format!("{}: {}; {}", cell.name, cell.about, cell.machine);
        match cell.idle {
            true => section(&title, &tables::idle(summary, &cell.name)),
            false => section(&format!("{title} (median / worst)"), &tables::load(summary, &cell.name)),
        }
    }
    section("Medians of the longest stalls in ms, and wrong kills:", &tables::grid(summary));
    section("Ours against the best of the others (medians; above 1 ours is better):", &tables::comparison(summary));
    section("Ours against each of the others over all loads:", &tables::overall(summary));
    text
}

/// Draws a table.
pub(super) fn drawn(table: &Table<'_>, colour: bool) -> String {
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
    use protocol::load::Load;

    use super::super::cell::{Cell, CellName};
    use super::super::record::Run;
    use super::super::summary::Meta;
    use super::super::summary::tests::{cells, contestant, run};
    use super::*;

    #[test]
    fn everything_is_there_and_plain_without_colours() {
        let who = [contestant("peer", "peer"), contestant("memreap", "memreap")];
        let mut bad = run("peer", "hog", 0, 300.0, None);
        if let Some(result) = &mut bad.result {
            result.kills.insert(Who::Innocent, 1);
        }
        let mut cells = cells();
        let idle_cell = Cell { name: CellName("idle".into()), ..cells[0].clone() };
        let idle_cell = Cell { load: Load { idle_s: Some(60), ..idle_cell.load.clone() }, ..idle_cell };
        let idle = Idle { seconds: 60.0, pss_kib: 350.0, cpu_ms: 36.0, wakeups: 61 };
        let idle = Run { idle: Some(idle), ..Run::new("peer", &idle_cell.name, 0, 1) };
        let runs = [bad, run("memreap", "hog", 0, 100.0, Some(400.0)), idle];
        cells.push(idle_cell);
        let summary = Summary::of(Meta { limit_s: 40, ..Meta::default() }, &who, &cells, &runs);
        let text = render(&summary, false);
        for needle in ["never", "1 innocent in 1 of 1 runs", "3.00x", "350", "idle: ", "over all loads", "no verdict"] {
            assert!(text.contains(needle), "{needle}:\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
        assert!(render(&summary, true).contains('\u{1b}'));
        assert_eq!(render(&Summary::default(), false), "");
    }
}
