// SPDX-License-Identifier: GPL-2.0-only
//! The tables of the face-off, for the page and the terminal.

use protocol::faceoff::Variant;

use super::summary::{Entry, Spread, Summary};
use crate::ab::verdict::Verdict;
use crate::format::{number, ratio};

/// A table. The first columns are text, the others are right-aligned.
pub(super) struct Table {
    pub(super) head: Vec<&'static str>,
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
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), alarm: false }
    }

    fn alarm_if(alarm: bool, text: impl Into<String>) -> Self {
        Self { text: text.into(), alarm }
    }
}

/// Returns the table of all contestants under a load.
pub(super) fn load(summary: &Summary, variant: Variant) -> Table {
    let mut head = vec![
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
    let has_camera = variant == Variant::Apps;
    if has_camera {
        head.insert(3, "camera served, ms");
    }
    let rows = summary.of_variant(variant).map(|(who, entry)| {
        let late = entry.timed_out + entry.not_served;
        let ended_well = match late {
            _ if entry.runs == 0 => "-".to_owned(),
            0 => "yes".to_owned(),
            _ => format!("{} late, {} unserved", entry.timed_out, entry.not_served),
        };
        let wrong = wrong(entry);
        let mut row = vec![
            Cell::new(&who.title),
            Cell::alarm_if(!entry.failures.is_empty(), runs(entry)),
            Cell::new(spread(&entry.longest_stall_ms, "")),
            Cell::new(spread(&entry.total_stall_ms, "")),
            Cell::new(spread(&entry.low_to_recovered_ms, "never")),
            Cell::new(spread(&entry.first_signal_ms, "")),
            Cell::new(spread(&entry.signal_to_back_ms, "")),
            Cell::new(entry.kills.values().sum::<u64>().to_string()),
            Cell::new(entry.kernel_oom_kills.to_string()),
            Cell::alarm_if(late > 0, ended_well),
            Cell::alarm_if(wrong.is_some(), wrong.unwrap_or_else(|| "none".to_owned())),
        ];
        if has_camera {
            row.insert(3, Cell::new(spread(&entry.camera_ms, "never")));
        }
        row
    });
    Table { rows: rows.collect(), head, text_columns: 1 }
}

/// Returns the table of the contestants' cost while the machine is idle.
pub(super) fn idle(summary: &Summary) -> Table {
    let rows = summary.of_variant(Variant::Idle).map(|(who, entry)| {
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
pub(super) fn comparison(summary: &Summary) -> Table {
    let title = |name: &str| summary.who(name).map_or(name, |who| &who.title).to_owned();
    let value = |value: Option<f64>| value.map_or_else(|| "never".to_owned(), ms);
    let rows = summary.comparison.iter().map(|row| {
        vec![
            Cell::new(row.variant.name()),
            Cell::new(title(&row.contestant)),
            Cell::new(metric(&row.metric)),
            Cell::new(title(&row.best_peer)),
            Cell::new(value(row.ours)),
            Cell::new(value(row.theirs)),
            Cell::new(ratio(row.ratio)),
            Cell::alarm_if(row.verdict == Verdict::Worse, row.verdict.to_string()),
        ]
    });
    let head =
        vec!["variant", "ours", "metric", "best of the others", "ours, ms", "theirs, ms", "ratio", "verdict"];
    Table { rows: rows.collect(), head, text_columns: 4 }
}

/// Returns a metric's name for readers.
pub(super) fn metric(name: &str) -> &str {
    match name {
        "longest_stall_ms" => "longest stall",
        "low_to_recovered_ms" => "recovery",
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
    (entry.wrong_runs > 0)
        .then(|| format!("{} in {} of {} runs", victims.join(", "), entry.wrong_runs, entry.runs))
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

    #[test]
    fn spreads_say_never_where_it_matters() {
        let of = |values: &[Option<f64>], median, worst| Spread { values: values.to_vec(), median, worst };
        assert_eq!(spread(&of(&[], None, None), ""), "-");
        assert_eq!(spread(&of(&[Some(12.4)], Some(12.4), Some(12.4)), ""), "12");
        assert_eq!(spread(&of(&[Some(1.0), None], Some(1.0), None), "never"), "1 / never");
        assert_eq!(spread(&of(&[Some(1.0), None], Some(1.0), None), ""), "1 / -");
    }
}
