// SPDX-License-Identifier: GPL-2.0-only
//! The tables of the face-off, for the page and the terminal.

use super::cell::CellName;
use super::summary::{Comparison, Entry, Spread, Summary};
use crate::ab::results::Verdict;
use crate::format::{interval, number, p_value, ratio};

/// A table. The first columns are text, the others are right-aligned.
pub(super) struct Table<'a> {
    pub(super) head: Vec<&'a str>,
    /// The number of text columns at the left.
    pub(super) text_columns: usize,
    pub(super) rows: Vec<Vec<Cell>>,
}

/// A cell.
pub(super) struct Cell {
    pub(super) text: String,
    /// Whether the cell is highlighted as a problem.
    pub(super) alarm: bool,
}

impl Cell {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), alarm: false }
    }

    pub(super) fn alarm_if(alarm: bool, text: impl Into<String>) -> Self {
        Self { text: text.into(), alarm }
    }
}

/// Returns the table of all contestants in a cell.
pub(super) fn load<'a>(summary: &'a Summary, cell: &CellName) -> Table<'a> {
    let head = vec![
        "contestant",
        "runs",
        "longest stall, ms",
        "total stall, ms",
        "longest login, ms",
        "start to recovered, ms",
        "first kill, ms",
        "usable then, MiB",
        "kill to memory back, ms",
        "kills",
        "by the kernel",
        "lost, MiB",
        "ended well",
        "needless or wrong kills",
    ];
    let rows = summary.of_cell(cell).map(|(who, entry)| {
        let late = entry.timed_out + entry.not_served;
        let ended_well = match late {
            _ if entry.runs == 0 => "-".to_owned(),
            0 => "yes".to_owned(),
            _ => format!("{} late, {} unserved", entry.timed_out, entry.not_served),
        };
        let wrong = wrong(entry);
        let login = spread(&entry.longest_login_ms, "");
        vec![
            Cell::new(&who.title),
            Cell::alarm_if(!entry.failures.is_empty(), runs(entry)),
            Cell::new(spread(&entry.longest_stall_ms, "")),
            Cell::new(spread(&entry.total_stall_ms, "")),
            Cell::alarm_if(entry.late_logins > 0, login),
            Cell::new(spread(&entry.recovered_ms, "never")),
            Cell::new(spread(&entry.first_signal_ms, "")),
            Cell::new(spread(&entry.usable_kib.in_units_of(1024.0), "")),
            Cell::new(spread(&entry.signal_to_back_ms, "")),
            Cell::new(entry.kills.values().sum::<u64>().to_string()),
            Cell::new(entry.kernel_oom_kills.to_string()),
            Cell::new(spread(&entry.lost_kib.in_units_of(1024.0), "")),
            Cell::alarm_if(late > 0, ended_well),
            Cell::alarm_if(wrong.is_some(), wrong.unwrap_or_else(|| "none".to_owned())),
        ]
    });
    Table { rows: rows.collect(), head, text_columns: 1 }
}

/// Returns the grid: cells by contestants; in each the median and the longest of the longest stalls in ms, how many
/// were killed in all runs, and in how many memory did not recover. An alarm is where somebody died who need not
/// have died.
pub(super) fn grid(summary: &Summary) -> Table<'_> {
    let mut head = vec!["load"];
    head.extend(summary.contestants.iter().map(|who| who.title.as_str()));
    let loads = summary.cells.iter().filter(|cell| !cell.idle);
    let rows = loads.map(|cell| {
        let fits = if cell.needed_kills == Some(0) { ", fits" } else { "" };
        let mut row = vec![Cell::new(format!("{}{fits}", cell.name))];
        row.extend(summary.contestants.iter().map(|who| {
            let found = summary.of_cell(&cell.name).find(|(other, _)| other.name == who.name);
            found.map_or_else(|| Cell::new(""), |(_, entry)| Cell::alarm_if(entry.wrong_runs > 0, outcome(entry)))
        }));
        row
    });
    Table { rows: rows.collect(), head, text_columns: 1 }
}

/// Returns the grid in Markdown, with what is an alarm in bold. Where there are enough runs, it ends with a column that
/// compares ours with the best of the others seed by seed.
pub fn markdown(summary: &Summary) -> String {
    let Table { mut head, mut rows, .. } = grid(summary);
    let stalls = || summary.comparison.iter().filter(|row| row.metric == "longest_stall_ms");
    if stalls().any(|row| summary.paired(row).is_some()) {
        head.push("memreap against the best of the others");
        for (row, cell) in rows.iter_mut().zip(summary.cells.iter().filter(|cell| !cell.idle)) {
            let found = stalls().find(|row| row.cell == cell.name);
            row.push(Cell::new(found.map_or_else(String::new, |found| {
                let peer =
                    summary.who(&found.best_peer).map_or("", |who| who.title.split(',').next().unwrap_or_default());
                format!("{peer}: {}", compared(summary, found).text)
            })));
        }
    }
    let mut text = format!("| {} |\n{}|\n", head.join(" | "), "|---".repeat(head.len()));
    for row in rows {
        let bold = |cell: Cell| if cell.alarm { format!("**{}**", cell.text) } else { cell.text };
        let row: Vec<String> = row.into_iter().map(bold).collect();
        text += &format!("| {} |\n", row.join(" | "));
    }
    text
}

/// Returns the ratio of ours and the best of the others, with its interval; where that has 1 in it, how many runs would
/// tell.
fn compared(summary: &Summary, row: &Comparison) -> Cell {
    let Some(paired) = summary.paired(row) else { return Cell::new("too few runs") };
    let between = interval(paired.interval);
    if paired.excludes_1() {
        return Cell::alarm_if(paired.ratio < 1.0, format!("{} ({between})", ratio(paired.ratio)));
    }
    let runs = paired.needed_runs.map_or_else(|| "more than 999".to_owned(), |runs| runs.to_string());
    Cell::new(format!("unclear ({between}), {runs} runs"))
}

fn outcome(entry: &Entry) -> String {
    let mut notes = Vec::new();
    let kills: u64 = entry.kills.values().sum();
    if kills > 0 {
        let of = if entry.runs == 1 { String::new() } else { format!(" in {} runs", entry.runs) };
        notes.push(format!("{kills} killed{of}"));
    }
    let not_recovered = entry.recovered_ms.values.iter().filter(|value| value.is_none()).count();
    if not_recovered > 0 {
        notes.push(format!("{not_recovered} of {} not recovered", entry.runs));
    }
    if entry.late_logins > 0 {
        notes.push(format!("{} late logins", entry.late_logins));
    }
    let stall = spread(&entry.longest_stall_ms, "");
    if notes.is_empty() { stall } else { format!("{stall} ({})", notes.join(", ")) }
}

/// Returns the table of the contestants' cost while the machine is idle.
pub(super) fn idle<'a>(summary: &'a Summary, cell: &CellName) -> Table<'a> {
    let rows = summary.of_cell(cell).map(|(who, entry)| {
        vec![
            Cell::new(&who.title),
            Cell::alarm_if(!entry.failures.is_empty(), runs(entry)),
            Cell::new(spread(&entry.pss_kib, "")),
            Cell::new(spread(&entry.cpu_ms, "")),
            Cell::new(spread(&entry.wakeups, "")),
        ]
    });
    let head = vec!["contestant", "runs", "PSS, KiB", "CPU, ms in 60 s", "wake-ups in 60 s"];
    Table { rows: rows.collect(), head, text_columns: 1 }
}

/// Returns the table that compares ours with the best of the others.
pub(super) fn comparison(summary: &Summary) -> Table<'_> {
    let title = |name: &str| summary.who(name).map_or(name, |who| &who.title).to_owned();
    let value = |value: Option<f64>| value.map_or_else(|| "never".to_owned(), ms);
    let rows = summary.comparison.iter().map(|row| {
        vec![
            Cell::new(row.cell.to_string()),
            Cell::new(title(&row.contestant)),
            Cell::new(metric(&row.metric)),
            Cell::new(title(&row.best_peer)),
            Cell::new(value(row.ours)),
            Cell::new(value(row.theirs)),
            compared(summary, row),
        ]
    });
    let head = vec!["load", "ours", "metric", "best of the others", "ours, ms", "theirs, ms", "ratio by seed"];
    Table { rows: rows.collect(), head, text_columns: 4 }
}

/// Returns the table that compares ours with each of the others over all loads.
pub(super) fn overall(summary: &Summary) -> Table<'_> {
    let title = |name: &str| summary.who(name).map_or(name, |who| &who.title).to_owned();
    let rows = summary.overall.iter().map(|row| {
        vec![
            Cell::new(title(&row.contestant)),
            Cell::new(metric(&row.metric)),
            Cell::new(title(&row.peer)),
            Cell::new(row.cells.to_string()),
            Cell::new(ratio(row.ratio)),
            Cell::new(format!("{} ({})", ratio(row.worst_ratio), row.worst_cell)),
            Cell::new(p_value(row.p)),
            Cell::alarm_if(row.verdict == Verdict::Worse, row.verdict.to_string()),
        ]
    });
    let head = vec!["ours", "metric", "other", "loads", "ratio", "worst", "p", "verdict"];
    Table { rows: rows.collect(), head, text_columns: 3 }
}

/// Returns a metric's name for readers.
pub(super) fn metric(name: &str) -> &str {
    match name {
        "longest_stall_ms" => "longest stall",
        "recovered_ms" => "start to recovered",
        "longest_login_ms" => "longest login",
        other => other,
    }
}

fn ms(value: f64) -> String {
    number(value.round())
}

/// Formats median and worst value. `never` is the text for a missing value; `-` if it is empty.
fn spread(spread: &Spread, never: &str) -> String {
    let shown = |value: Option<f64>| match value {
        Some(value) => ms(value),
        None if never.is_empty() => "-".to_owned(),
        None => never.to_owned(),
    };
    match spread.values.len() {
        0 => "-".to_owned(),
        1 => shown(spread.median),
        _ => format!("{} / {}", shown(spread.median), shown(spread.worst)),
    }
}

/// Returns the wrong victims as text, if there are any.
fn wrong(entry: &Entry) -> Option<String> {
    let victims: Vec<String> = entry.wrong.iter().map(|(who, n)| format!("{n} {who}")).collect();
    (entry.wrong_runs > 0).then(|| format!("{} in {} of {} runs", victims.join(", "), entry.wrong_runs, entry.runs))
}

fn runs(entry: &Entry) -> String {
    let mut text = entry.runs.to_string();
    for (count, what) in [(entry.failures.len(), "failed"), (entry.disturbed, "disturbed")] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faceoff::summary::tests::{run, summary};
    use protocol::faceoff::Who;

    #[test]
    fn markdown_tells_who_died_and_what_was_not_enough() {
        let mut bad = run("memreap", "hog", 1, 300.0, None);
        bad.result.as_mut().unwrap().kills.insert(Who::Innocent, 2);
        let summary = summary(&[
            run("none", "hog", 0, 1500.0, Some(700.0)),
            run("memreap", "hog", 0, 100.0, Some(700.0)),
            bad,
            run("none", "leak", 0, 20.0, Some(700.0)),
        ]);
        let expected = "| load | NONE | MEMREAP |\n|---|---|---|\n\
            | hog | 1,500 (1 killed) | **200 / 300 (4 killed in 2 runs, 1 of 2 not recovered)** |\n\
            | leak | 20 (1 killed) |  |\n";
        assert_eq!(markdown(&summary), expected);
    }

    #[test]
    fn a_ratio_is_printed_where_its_interval_excludes_1() {
        let column = |ratios: [f64; 5]| {
            let of = |(round, ratio): (usize, &f64)| {
                [run("peer", "hog", round, 300.0 * ratio, None), run("memreap", "hog", round, 300.0, None)]
            };
            let text = markdown(&summary(&ratios.iter().enumerate().flat_map(of).collect::<Vec<_>>()));
            text.lines().last().unwrap().rsplit(" | ").next().unwrap().to_owned()
        };
        assert_eq!(column([2.0, 4.0, 1.5, 4.0, 3.0]), "PEER: 2.70x (1.50 - 4.00) |");
        let unclear = column([2.0, 0.5, 1.5, 4.0, 3.0]);
        assert!(unclear.starts_with("PEER: unclear (0.50 - 4.00), ") && unclear.ends_with(" runs |"), "{unclear}");
    }

    #[test]
    fn spreads_say_never_where_it_matters() {
        let of = |values: &[Option<f64>], median, worst| Spread { values: values.to_vec(), median, worst };
        assert_eq!(spread(&of(&[], None, None), ""), "-");
        assert_eq!(spread(&of(&[Some(12.4)], Some(12.4), Some(12.4)), ""), "12");
        assert_eq!(spread(&of(&[Some(1.0), None], Some(1.0), None), "never"), "1 / never");
        assert_eq!(spread(&of(&[Some(1.0), None], Some(1.0), None), ""), "1 / -");
    }
}
