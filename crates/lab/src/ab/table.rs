// SPDX-License-Identifier: GPL-2.0-only
//! Renders a comparison as a table for the terminal.

use std::io::IsTerminal as _;

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_HORIZONTAL_ONLY};
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, TableComponent};
use textwrap::{Options, WordSplitter};

use crate::ab::results::{ArmRole, Metric, Results, Verdict};
use crate::ab::stats::{MIN_PAIRS, median};
use crate::format::{counted, interval, number, p_value, percent, ratio};

/// Prints the table to stdout. On a terminal it has colours and fits the width; otherwise it is plain and as
/// wide as necessary.
pub fn print(results: &Results) {
    let (width, colour) = stdout_style();
    print!("{}", render(results, width, colour));
}

/// Returns the width of stdout in columns if it is a terminal, and whether to use colours.
pub fn stdout_style() -> (Option<u16>, bool) {
    if !std::io::stdout().is_terminal() {
        return (None, false);
    }
    let colour = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    (Table::new().width(), colour)
}

/// Renders one row per metric, the number of metrics per verdict, and an explanation. A table that is wider
/// than `width` columns becomes a list.
pub fn render(results: &Results, width: Option<u16>, colour: bool) -> String {
    let table = metrics_table(results, colour);
    // Without colour codes, the number of characters is the width.
    let needed = metrics_table(results, false).lines().map(|line| line.chars().count()).max();
    let fits = width.is_none_or(|width| needed.unwrap_or(0) <= usize::from(width));
    let mut text = if fits { lines(&table) } else { list(results, width, colour) };
    text.push('\n');
    text.extend(footer(results).iter().map(|line| wrapped(line, 0, width)));
    text
}

/// Renders the results as one pastes them under a patch, in Markdown that is also readable as text.
pub fn markdown(results: &Results) -> String {
    let mut table = metrics_table(results, false);
    table.load_preset(ASCII_MARKDOWN);
    let mut text = format!("{}\n\n", lines(&table));
    text.extend(footer(results).iter().map(|line| format!("- {line}\n")));
    if let Some(command) = &results.meta.command {
        text.push_str(&format!("\n    {command}\n"));
    }
    text
}

fn metrics_table(results: &Results, colour: bool) -> Table {
    let meta = &results.meta;
    let controlled = results.aa_controls().next().is_some();
    let mut table = new_table(None, colour);
    let mut header = vec!["scenario", "metric", "unit", meta.base(), meta.changed(), "ratio"];
    header.extend(["95 %", "p", "verdict"]);
    if controlled {
        header.push("A/A");
    }
    let controls = results.control_names();
    header.extend(&controls);
    table.set_header(header.into_iter().map(|h| Cell::new(h).add_attribute(Attribute::Bold)));
    for run in &results.runs {
        for (i, metric) in run.metrics.iter().enumerate() {
            let shown = if i == 0 { run.name() } else { String::new() };
            let median = |arm| metric.median_on(ArmRole::Control(arm)).map_or("-".to_owned(), number);
            let others = controls.iter().map(|arm| Cell::new(median(arm)));
            table.add_row(row(metric, shown, controlled).into_iter().chain(others));
        }
    }
    let last = 9 + usize::from(controlled);
    for column in (3..8).chain(last..last + controls.len()) {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Renders the content of the table as a paragraph per metric.
fn list(results: &Results, width: Option<u16>, colour: bool) -> String {
    let mut text = String::new();
    for (run, metric) in results.metrics() {
        if std::ptr::eq(metric, &run.metrics[0]) {
            text.push_str(&format!("{}\n", run.name()));
        }
        let verdict = match metric.verdict {
            Verdict::Better if colour => "\u{1b}[1;32mbetter\u{1b}[0m".to_owned(),
            Verdict::Worse if colour => "\u{1b}[1;31mworse\u{1b}[0m".to_owned(),
            verdict => verdict.to_string(),
        };
        text.push_str(&format!("  {}: {verdict}\n", metric.metric));
        let line = format!(
            "{} -> {} {}, {}{}, p {}{}",
            number(metric.base_median()),
            number(metric.changed_median()),
            metric.unit,
            ratio(metric.ratio),
            metric.ci95.map_or(String::new(), |ends| format!(" ({})", interval(ends))),
            p_value(metric.p),
            metric.aa.as_ref().map_or(String::new(), |aa| format!(", A/A {}", aa.verdict)),
        );
        let others = metric.controls.iter();
        let others = others.map(|b| format!("; {}: {} {}", b.arm, number(median(&b.values)), metric.unit));
        let line = line + &others.collect::<String>();
        text.push_str(&wrapped(&line, 4, width));
    }
    text
}

fn row(metric: &Metric, group: String, controlled: bool) -> Vec<Cell> {
    let interval = metric.ci95.map_or("-".to_owned(), interval);
    let mut cells = vec![
        Cell::new(group),
        Cell::new(&metric.metric),
        Cell::new(&metric.unit),
        Cell::new(number(metric.base_median())),
        Cell::new(number(metric.changed_median())),
        Cell::new(ratio(metric.ratio)),
        Cell::new(interval),
        Cell::new(p_value(metric.p)),
        verdict_cell(metric.verdict),
    ];
    if controlled {
        cells.push(metric.aa.as_ref().map_or_else(
            || Cell::new("-"),
            |aa| {
                let text = format!("{} {}", ratio(aa.ratio), aa.verdict);
                if aa.verdict.is_difference() {
                    Cell::new(text).fg(Color::Red).add_attribute(Attribute::Bold)
                } else {
                    Cell::new(text).add_attribute(Attribute::Dim)
                }
            },
        ));
    }
    cells
}

fn verdict_cell(verdict: Verdict) -> Cell {
    let cell = Cell::new(verdict);
    match verdict {
        Verdict::Better => cell.fg(Color::Green).add_attribute(Attribute::Bold),
        Verdict::Worse => cell.fg(Color::Red).add_attribute(Attribute::Bold),
        Verdict::Same => cell,
        Verdict::None => cell.add_attribute(Attribute::Dim),
    }
}

/// Returns the number of metrics per verdict in one line.
pub fn summary(results: &Results) -> String {
    let count = |verdict| results.count(verdict);
    let mut text = format!(
        "{} metrics: {} better, {} worse, {} same, {} no verdict",
        results.metrics().count(),
        count(Verdict::Better),
        count(Verdict::Worse),
        count(Verdict::Same),
        count(Verdict::None),
    );
    let alarms = results.aa_controls().filter(|aa| aa.verdict.is_difference()).count();
    match (results.aa_controls().count(), alarms) {
        (0, _) => text.push_str("; no A/A control"),
        (_, 0) => text.push_str("; A/A control clean"),
        (_, n) => text.push_str(&format!("; A/A control shows a difference in {n}")),
    }
    text
}

/// Returns what failed, the verdicts, the conditions of the measurement and the explanation, one sentence per line.
fn footer(results: &Results) -> Vec<String> {
    let meta = &results.meta;
    let source = meta.source.as_ref().map_or(String::new(), |s| format!(" ({s})"));
    let pairs = if meta.partial { "up to " } else { "" };
    let mut lines: Vec<String> = meta.repeated.iter().map(|repeated| format!("FAILED: {repeated}")).collect();
    lines.push(summary(results));
    lines.push(format!(
        "Linux {}{source}, QEMU {}, {pairs}{}, {}",
        meta.kernels(),
        meta.accelerator,
        counted(meta.pairs, "pair"),
        meta.date
    ));
    lines.extend(meta.host.as_ref().map(|host| format!("host: {host}")));
    lines.push(format!(
        "{} and {}: medians over the boots. ratio: geometric mean over the pairs, above 1 is better.",
        meta.base(),
        meta.changed()
    ));
    lines.extend(explanation(results));
    lines
}

/// Returns an explanation of the verdicts, one sentence per entry. The report uses it, too.
pub fn explanation(results: &Results) -> Vec<String> {
    let meta = &results.meta;
    if meta.partial {
        return vec!["The run was interrupted: there are no verdicts.".to_owned()];
    }
    if meta.pairs < MIN_PAIRS {
        return vec![format!("Verdicts and intervals need {MIN_PAIRS} pairs.")];
    }
    let effect = percent(meta.min_effect);
    let mut lines = vec![
        "p: exact paired sign-flip test, adjusted over all metrics (Westfall-Young step-down max-T).".to_owned(),
        format!(
            "better, worse: p < {} and an effect of at least {effect}. same: the 95 % interval lies within {effect}.",
            meta.alpha
        ),
    ];
    if results.aa_controls().next().is_some() {
        lines.push(format!(
            "A/A: {} against a second set of {} boots; a metric that differs there gets no verdict.",
            meta.base(),
            meta.base()
        ));
    }
    lines
}

/// Makes a table with a line below its header and none between rows. It does not query the terminal.
pub(crate) fn new_table(width: Option<u16>, colour: bool) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY);
    table.remove_style(TableComponent::HorizontalLines);
    table.remove_style(TableComponent::MiddleIntersections);
    match width {
        Some(width) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    if colour {
        table.enforce_styling()
    } else {
        table.force_no_tty()
    };
    table
}

/// Returns the table's text without trailing blanks, with a final newline.
pub(crate) fn lines(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Wraps `text` to `width` columns and indents every line; with a final newline.
pub(crate) fn wrapped(text: &str, indent: usize, width: Option<u16>) -> String {
    let margin = " ".repeat(indent);
    let options = Options::new(width.map_or(usize::MAX, usize::from))
        .initial_indent(&margin)
        .subsequent_indent(&margin)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(text, options) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::results::fixture;

    #[test]
    fn golden_table() {
        fixture::golden("table.txt", &render(&fixture::results(), None, false));
    }

    #[test]
    fn golden_table_on_a_narrow_terminal() {
        let text = render(&fixture::results(), Some(72), false);
        assert!(text.lines().all(|line| line.chars().count() <= 72), "{text}");
        fixture::golden("table-narrow.txt", &text);
    }

    #[test]
    fn golden_markdown() {
        fixture::golden("table.md", &markdown(&fixture::results()));
    }

    #[test]
    fn control_kernels_have_columns() {
        let results = fixture::results_with_control_kernel();
        let text = render(&results, None, false);
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().trim_end();
        assert!(line("verdict").ends_with("precise <1>"), "{text}");
        assert!(line("pte-lock-contended").ends_with(" -"), "{text}");
        assert!(line("mrelease-90").ends_with(" 30,500"), "{text}");
        let narrow = render(&results, Some(72), false);
        let flat = narrow.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("; precise <1>: 30,500 ms"), "{narrow}");
        assert_eq!(flat.matches("; precise <1>:").count(), 3, "{narrow}");
    }

    #[test]
    fn colours_only_when_asked_for() {
        assert!(!render(&fixture::results(), None, false).contains('\u{1b}'));
        assert!(render(&fixture::results(), Some(100), true).contains('\u{1b}'));
    }

    #[test]
    fn boots_that_were_repeated_are_shown() {
        let text = render(&fixture::results_with_repeated(), None, false);
        let line = "FAILED: pair 2/8, memreap, reap/multi: the kernel panicked: <no>; repeated, logs in boots/x";
        assert!(text.lines().any(|l| l == line), "{text}");
    }

    #[test]
    fn too_few_pairs_are_reported() {
        let mut results = fixture::results();
        results.meta.pairs = 1;
        for metric in results.metrics_mut() {
            (metric.ci95, metric.aa) = (None, None);
        }
        let text = render(&results, None, false);
        assert!(text.contains("need 6 pairs") && text.contains("no A/A control"), "{text}");
    }
}
