//! The face-off on the terminal.

use comfy_table::{Attribute, Cell, CellAlignment, Color, Table};

use super::IDLE;
use super::figures::{Entry, Figures};
use super::page::{metric, ms, spread, wrong};
use crate::ab::results::Verdict;
use crate::ab::table::{lines, new_table, ratio};

/// All figures as text: the loads, the idle costs, ours against the best of the others.
#[must_use]
pub fn render(figures: &Figures, colour: bool) -> String {
    let mut text = String::new();
    let loads: Vec<&str> = figures.variants().into_iter().filter(|v| *v != IDLE).collect();
    if !loads.is_empty() {
        text += "Median / worst of the runs, in ms.\n";
        text += &lines(&load_table(figures, &loads, colour));
    }
    if figures.of_variant(IDLE).next().is_some() {
        text += "\nIdle, for 60 s.\n";
        text += &lines(&idle_table(figures, colour));
    }
    if !figures.comparison.is_empty() {
        text += "\nOurs against the best of the others (medians; above 1 ours is better; the verdict is about all of them).\n";
        text += &lines(&comparison_table(figures, colour));
        for middle in &figures.middle {
            text += &format!(
                "{}, {}: {} in the middle of the variants, at worst {} ({})\n",
                middle.contestant,
                metric(&middle.metric),
                ratio(middle.median_ratio),
                ratio(middle.worst_ratio),
                middle.worst_variant
            );
        }
    }
    text
}

fn new(head: &[&str], left: usize, colour: bool) -> Table {
    let mut table = new_table(None, colour);
    table.set_header(head.iter().map(|h| Cell::new(h).add_attribute(Attribute::Bold)));
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn ended_well(entry: &Entry) -> &'static str {
    match entry.timed_out + entry.not_served {
        _ if entry.runs == 0 => "-",
        0 => "yes",
        _ => "no",
    }
}

fn alarm(text: String, bad: bool) -> Cell {
    let cell = Cell::new(text);
    if bad { cell.fg(Color::Red).add_attribute(Attribute::Bold) } else { cell }
}

fn load_table(figures: &Figures, variants: &[&str], colour: bool) -> Table {
    let head = [
        "variant",
        "contestant",
        "runs",
        "longest stall",
        "total stall",
        "recovery",
        "first signal",
        "signal to back",
        "kills",
        "ended well",
        "wrong victims",
    ];
    let mut table = new(&head, 2, colour);
    for &variant in variants {
        for (at, (who, entry)) in figures.of_variant(variant).enumerate() {
            let late = entry.timed_out + entry.not_served;
            let failed = entry.failures.len();
            let runs = match (failed, entry.disturbed) {
                (0, 0) => entry.runs.to_string(),
                (0, disturbed) => format!("{} ({disturbed} disturbed)", entry.runs),
                (failed, _) => format!("{} ({failed} failed)", entry.runs),
            };
            let wrong = wrong(entry);
            table.add_row([
                Cell::new(if at == 0 { variant } else { "" }),
                Cell::new(&who.name),
                alarm(runs, failed > 0),
                Cell::new(spread(&entry.longest_stall_ms, "")),
                Cell::new(spread(&entry.total_stall_ms, "")),
                Cell::new(spread(&entry.low_to_recovered_ms, "never")),
                Cell::new(spread(&entry.first_signal_ms, "")),
                Cell::new(spread(&entry.signal_to_back_ms, "")),
                Cell::new(entry.kills.values().sum::<u64>()),
                alarm(ended_well(entry).to_owned(), late > 0),
                alarm(if wrong.is_empty() { "none".into() } else { wrong.clone() }, !wrong.is_empty()),
            ]);
        }
    }
    table
}

fn idle_table(figures: &Figures, colour: bool) -> Table {
    let mut table = new(&["contestant", "runs", "PSS, KiB", "CPU, ms", "wake-ups"], 1, colour);
    for (who, entry) in figures.of_variant(IDLE) {
        table.add_row([
            who.name.clone(),
            entry.runs.to_string(),
            spread(&entry.pss_kib, ""),
            spread(&entry.cpu_ms, ""),
            spread(&entry.wakeups, ""),
        ]);
    }
    table
}

fn comparison_table(figures: &Figures, colour: bool) -> Table {
    let mut table = new(
        &["variant", "ours", "metric", "best of the others", "ours", "theirs", "ratio", "verdict"],
        4,
        colour,
    );
    for row in &figures.comparison {
        let never = |value: Option<f64>| if value.is_none() { "never".to_owned() } else { ms(value) };
        table.add_row([
            Cell::new(&row.variant),
            Cell::new(&row.contestant),
            Cell::new(metric(&row.metric)),
            Cell::new(&row.best_peer),
            Cell::new(never(row.ours)),
            Cell::new(never(row.theirs)),
            Cell::new(ratio(row.ratio)),
            alarm(row.verdict.to_string(), row.verdict == Verdict::Worse),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::figures::Meta;
    use super::super::figures::tests::{contestant, run};
    use super::super::record::{Idle, Run};
    use super::*;

    #[test]
    fn everything_is_there_and_plain_without_colours() {
        let who = [contestant("peer", "peer"), contestant("memreap", "memreap")];
        let mut bad = run("peer", "hog", 0, 300.0, None);
        if let Some(result) = &mut bad.result {
            result.kills.insert("innocent".into(), 1);
        }
        let idle = Idle { seconds: 60.0, pss_kib: 350.0, cpu_ms: 36.0, wakeups: 61.0 };
        let idle =
            Run { contestant: "peer".into(), variant: IDLE.into(), idle: Some(idle), ..Run::default() };
        let runs = [bad, run("memreap", "hog", 0, 100.0, Some(400.0)), idle];
        let figures = Figures::of(Meta { limit_s: 40, ..Meta::default() }, &who, &runs);
        let text = render(&figures, false);
        for needle in [
            "never",
            "1 innocent in 1 of 1 runs",
            "3.00x",
            "350",
            "Idle, for 60 s.",
            "in the middle",
            "no verdict",
        ] {
            assert!(text.contains(needle), "{needle}:\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
        assert!(render(&figures, true).contains('\u{1b}'));
        assert_eq!(render(&Figures::default(), false), "");
    }
}
