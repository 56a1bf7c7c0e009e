// SPDX-License-Identifier: GPL-2.0-only
//! The history of comparisons, one per commit for example: how a metric developed, and where it changed.
//!
//! Comparisons with the same base kernel and workload are one series. What is compared between its entries is the
//! ratio to the base, which was booted beside each of them: hosts and days may differ. An entry is a change when its
//! 95 % interval and that of the last change before it (at first, of the first entry) are apart, and its ratio
//! differs by the smallest effect that the comparison claims. So a drift in steps that are too small to be seen one
//! by one is found, too.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use comfy_table::CellAlignment;
use serde::Serialize;

use crate::WrongUsage;
use crate::ab::results::{Metric, Results};
use crate::ab::table::new_table;
use crate::context::Context;
use crate::format::{interval, number, ratio};

/// The file in the output folder, one comparison per line.
pub const HISTORY_FILE: &str = "history.jsonl";
/// The columns of the largest ratio's bar.
const BAR_COLUMNS: f64 = 30.0;

/// Show how metrics developed over several comparisons, and where they changed
///
/// `lab ab` appends each complete comparison to target/lab/history.jsonl. Those with the same base kernel are one
/// series, in which an entry is a change when its 95 % interval and that of the last change are apart. Finding (exit
/// code 1): the last entry of a series is a change for the worse.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lab history                             all metrics
  lab history --metric fault              one
  lab history monday.json tuesday.json    results of other machines")]
pub struct HistoryOptions {
    /// Histories or results.json, oldest first [default: target/lab/history.jsonl]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Only this metric
    #[arg(long, value_name = "NAME")]
    pub metric: Option<String>,
    /// Print the series as JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints the series, and returns whether none of them ends in a change for the worse.
///
/// # Errors
/// As [`read`]; [`WrongUsage`] when there is no series.
pub fn run(ctx: &Context, options: &HistoryOptions) -> Result<bool> {
    let own = [ctx.out.join(HISTORY_FILE)];
    let files: &[PathBuf] = if options.files.is_empty() { &own } else { &options.files };
    let mut comparisons = Vec::new();
    for file in files {
        comparisons.extend(read(file)?);
    }
    let all = series(&comparisons, options.metric.as_deref());
    let wanted = options.metric.as_deref().unwrap_or("comparison");
    ensure!(!all.is_empty(), WrongUsage(format!("no '{wanted}' in {} comparisons", comparisons.len())));
    if options.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        print!("{}", render(&all));
    }
    Ok(!has_got_worse(&all))
}

/// A metric over several comparisons with the same base kernel.
#[derive(Debug, PartialEq, Serialize)]
pub struct Series {
    /// Scenario and guest, for example `reap/icount`.
    pub scenario: String,
    pub metric: String,
    /// The unit of the medians.
    pub unit: String,
    /// The base kernel.
    pub base: String,
    /// The guest's machine: what another one shows is another series.
    pub machine: String,
    /// The key of a workload of the user's: what another program measures is another series.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The comparisons, in the order in which they were made.
    pub entries: Vec<Entry>,
}

/// A metric in one comparison.
#[derive(Debug, PartialEq, Serialize)]
pub struct Entry {
    /// When the comparison ended.
    pub date: String,
    /// The changed kernel.
    pub kernel: String,
    pub median: f64,
    /// Its ratio to the base kernel; above 1 is better.
    pub ratio: f64,
    /// The ratio's interval; `None` with fewer than six pairs.
    pub ci95: Option<[f64; 2]>,
    /// The ratio to the last change before; `None` if it is no change.
    pub change: Option<f64>,
    /// A smaller change is not claimed, as a fraction.
    #[serde(skip)]
    min_effect: f64,
}

/// Appends a comparison.
///
/// # Errors
/// When the file cannot be written.
pub fn append(results: &Results, path: &Path) -> Result<()> {
    let line = serde_json::to_string(results)? + "\n";
    let file = File::options().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .with_context(|| format!("{}: cannot write", path.display()))
}

/// Reads the comparisons of a history, or of one `results.json`.
///
/// # Errors
/// When it cannot be read or has another format. The error names file and line.
pub fn read(path: &Path) -> Result<Vec<Results>> {
    let text = fs::read_to_string(path).with_context(|| format!("{}: cannot read", path.display()))?;
    if path.extension().is_none_or(|extension| extension != "jsonl") {
        return Ok(vec![Results::parse(path, &text)?]);
    }
    let parse = |(i, line): (usize, &str)| Results::parse(path, line).with_context(|| format!("line {}", i + 1));
    text.lines().enumerate().filter(|(_, line)| !line.is_empty()).map(parse).collect()
}

/// Arranges comparisons as series, of `metric` or of all metrics, and finds where they changed.
pub fn series(comparisons: &[Results], metric: Option<&str>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for results in comparisons {
        let (base, changed) = kernels(results);
        for (run, found) in results.metrics().filter(|(_, m)| metric.is_none_or(|name| name == m.metric)) {
            let scenario = run.name();
            let machine = format!("{} CPUs, {} MiB, {}", run.cpus, run.memory_mib, run.accelerator);
            let workload = &results.meta.workload;
            let is_it = |s: &Series| {
                (&s.scenario, &s.metric, &s.base, &s.machine, &s.workload)
                    == (&scenario, &found.metric, &base, &machine, workload)
            };
            let index = all.iter().position(is_it).unwrap_or_else(|| {
                all.push(Series {
                    scenario,
                    metric: found.metric.clone(),
                    unit: format!("{}, {} is better", found.unit, found.better),
                    base: base.clone(),
                    machine: machine.clone(),
                    workload: workload.clone(),
                    entries: Vec::new(),
                });
                all.len() - 1
            });
            all[index].entries.push(entry(found, results, &changed));
        }
    }
    for series in &mut all {
        mark_changes(&mut series.entries);
    }
    all
}

fn entry(metric: &Metric, results: &Results, kernel: &str) -> Entry {
    Entry {
        date: results.meta.date.clone(),
        kernel: kernel.to_owned(),
        median: metric.changed_median(),
        ratio: metric.ratio,
        ci95: metric.ci95,
        change: None,
        min_effect: results.meta.min_effect,
    }
}

/// Returns what the base and the changed kernel of a comparison are.
fn kernels(results: &Results) -> (String, String) {
    let sources: Vec<&str> = results.meta.source.as_deref().unwrap_or_default().split("; ").collect();
    let of = |i: usize, name: &str| {
        let parameters = results.meta.arms.get(i).map_or("", |arm| arm.cmdline.as_str());
        // Both are of one source if there is only one.
        let source = sources.get(i).or(sources.last()).copied().unwrap_or_default();
        [name, source, parameters].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    };
    (of(0, results.meta.base()), of(1, results.meta.changed()))
}

fn mark_changes(entries: &mut [Entry]) {
    let mut last: Option<(f64, [f64; 2])> = None;
    for entry in entries {
        let Some(here @ [low, high]) = entry.ci95 else { continue };
        if let Some((before, [last_low, last_high])) = last {
            let change = entry.ratio / before;
            let apart = high < last_low || low > last_high;
            if !apart || change.max(1.0 / change) < 1.0 + entry.min_effect {
                continue;
            }
            entry.change = Some(change);
        }
        last = Some((entry.ratio, here));
    }
}

/// Whether the last entry of a series is a change for the worse.
pub fn has_got_worse(all: &[Series]) -> bool {
    all.iter().filter_map(|series| series.entries.last()?.change).any(|change| change < 1.0)
}

/// Renders a table per series, with a bar for each ratio.
pub fn render(all: &[Series]) -> String {
    let mut text = String::new();
    for series in all {
        let Series { scenario, metric, unit, base, machine, .. } = series;
        text.push_str(&format!("{scenario} {metric} ({unit}), against {base}, {machine}\n"));
        let mut table = new_table(None, false);
        table.set_header(["date", "kernel", "median", "ratio", "95 %", "", ""]);
        let largest = series.entries.iter().map(|entry| entry.ratio).fold(f64::MIN_POSITIVE, f64::max);
        for entry in &series.entries {
            let columns = (entry.ratio / largest * BAR_COLUMNS).round().max(0.0) as usize;
            let change = entry
                .change
                .map(|change| format!("{}, {}", if change < 1.0 { "worse" } else { "better" }, ratio(change)));
            table.add_row([
                entry.date.clone(),
                entry.kernel.clone(),
                number(entry.median),
                ratio(entry.ratio),
                entry.ci95.map_or("too few pairs".to_owned(), interval),
                "\u{2588}".repeat(columns),
                change.unwrap_or_default(),
            ]);
        }
        for column in 2..4 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for line in table.lines() {
            text.push_str(&format!("{}\n", line.trim_end()));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::results::fixture;

    /// Comparisons of one metric with these ratios and intervals.
    fn comparisons(of: &[(f64, Option<[f64; 2]>)]) -> Vec<Results> {
        of.iter()
            .enumerate()
            .map(|(i, &(ratio, ci95))| {
                let mut results = fixture::results();
                results.runs.truncate(1);
                results.runs[0].metrics.truncate(1);
                let metric = &mut results.runs[0].metrics[0];
                (metric.ratio, metric.ci95) = (ratio, ci95);
                results.meta.source = Some(format!("debian, slim; .@c{i}, slim"));
                results
            })
            .collect()
    }

    fn changes(of: &[(f64, Option<[f64; 2]>)]) -> Vec<Option<f64>> {
        series(&comparisons(of), None)[0].entries.iter().map(|entry| entry.change).collect()
    }

    #[test]
    fn a_change_is_where_intervals_are_apart() {
        let near = |ratio: f64| (ratio, Some([ratio - 0.02, ratio + 0.02]));
        assert_eq!(changes(&[near(1.0), near(1.01), near(0.99)]), [None, None, None]);
        let found = changes(&[near(1.0), near(1.01), near(0.8), near(0.81), near(1.0)]);
        assert_eq!(found, [None, None, Some(0.8), None, Some(1.25)]);
        // Small steps add up, and too few pairs say nothing.
        let found = changes(&[near(1.0), near(0.98), (0.5, None), near(0.97), near(0.95)]);
        assert_eq!(found, [None, None, None, None, Some(0.95)]);
        // Under icount, intervals are apart by nothing that matters.
        let exact = |ratio: f64| (ratio, Some([ratio - 1e-5, ratio + 1e-5]));
        assert_eq!(changes(&[exact(1.0), exact(0.999), exact(0.9)]), [None, None, Some(0.9)]);
    }

    #[test]
    fn only_the_last_entry_decides_the_exit_code() {
        let near = |ratio: f64| (ratio, Some([ratio - 0.02, ratio + 0.02]));
        let worse = |of: &[_]| has_got_worse(&series(&comparisons(of), None));
        assert!(worse(&[near(1.0), near(0.8)]));
        assert!(!worse(&[near(1.0), near(0.8), near(0.8)]) && !worse(&[near(1.0), near(1.2)]));
    }

    #[test]
    fn a_series_has_one_base() {
        let mut two = comparisons(&[(1.0, None), (1.0, None)]);
        assert_eq!(series(&two, None).len(), 1);
        two[1].meta.source = Some("debian, debug; .@c1, debug".to_owned());
        let all = series(&two, None);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].entries[0].kernel, "memreap .@c0, slim memreap.example=\"1\"");
        assert!(series(&two, Some("other")).is_empty());
        two[1].meta.workload = Some("0123".to_owned());
        assert_eq!(series(&two[1..], None)[0].workload.as_deref(), Some("0123"));
        two.push(two[1].clone());
        two[2].meta.workload = Some("4567".to_owned());
        assert_eq!(series(&two, None).len(), 3, "another program under the same name");
    }

    #[test]
    fn what_was_appended_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(HISTORY_FILE);
        let two = comparisons(&[(1.0, None), (0.8, Some([0.7, 0.9]))]);
        two.iter().for_each(|results| append(results, &path).unwrap());
        assert_eq!(read(&path).unwrap(), two);
        fs::write(&path, "{}\n").unwrap();
        assert!(format!("{:#}", read(&path).unwrap_err()).contains("line 1"));
        assert!(append(&two[0], &dir.path().join("none/x.jsonl")).is_err());
    }

    #[test]
    fn a_bar_is_as_long_as_its_ratio() {
        let near = |ratio: f64| (ratio, Some([ratio - 0.02, ratio + 0.02]));
        let text = render(&series(&comparisons(&[near(1.0), near(0.5)]), None));
        let bars: Vec<usize> = text.lines().map(|line| line.matches('\u{2588}').count()).collect();
        assert!(bars.contains(&30) && bars.contains(&15), "{text}");
        assert!(text.contains("worse, 0.50x"), "{text}");
    }
}
