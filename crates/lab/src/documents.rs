// SPDX-License-Identifier: GPL-2.0-only
//! Generates the tables of the documents from the raw results in `docs/results`.
//!
//! `docs/results/tables.toml` defines the tables: each row is a metric of a results file in that folder.
//!
//! ```toml
//! [[table]]
//! name = "reap"                  # the table is between `<!-- table: reap -->` and `<!-- end of table -->`
//! file = "reap.json"
//! sources = false                # no line below it about date, command and pairs of its files
//! [[table.row]]
//! label = "SIGKILL, 90 % back, 100 VMAs"
//! scenario = "reap"
//! metric = "100-vmas/kill-90"
//! guest = "multi"                # only if several guests in the file report the metric
//! file = "other.json"            # only if it is not the table's file
//!
//! [[table]]
//! name = "architectures"
//! column = [{ label = "x86-64" }, { label = "arm64", folder = "arm64" }]  # a column of ratios each, from the
//!                                # files of that name in docs/results and docs/results/arm64, if it is in there
//!
//! [[table]]
//! name = "topics"
//! file = "storm-phone-cases.json"
//! column = [{ label = "stock", arm = "stock" }, { label = "no topic", arm = "memreap-none" }]  # medians of an arm
//!
//! [[table]]
//! name = "face-off"
//! faceoff = "faceoff/faceoff.json" # its cells are the rows, its contestants the columns; faceoff.svg is its picture
//! ```
//!
//! Tables are in README.md, in docs/results.md and in the pages of `docs/results`. Two are not defined there: `scenarios`
//! has the sections about the scenarios, with their metrics, from crates/scenarios ([`crate::ab::sections`]), and `worse`
//! all that any of the files above says is worse with memreap than on stock.
//!
//! Scenarios that say how things develop are drawn beside the file, as `.svg`.
//!
//! `lab report --documents` writes the tables and pictures. A test of the lab fails if a table differs from the files.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::ab::picture;
use crate::ab::results::{Metric, Results, Run, Verdict};
use crate::ab::sections::sections;
use crate::faceoff::summary::Summary;
use crate::faceoff::{plots, tables};
use crate::format::{counted, interval, number, ratio};

/// The documents with generated tables, besides the pages in [`RESULTS_FOLDER`].
const DOCUMENTS: [&str; 3] = ["README.md", "docs/results.md", "docs/measuring.md"];
/// The folder with the raw results, and a page for each topic.
const RESULTS_FOLDER: &str = "docs/results";
/// The same, as a link in docs/results.md.
const RAW: &str = "results/";
/// The begin of the line before a table, followed by its name.
const TABLE_BEGIN: &str = "<!-- table: ";
/// The line after a table.
const TABLE_END: &str = "<!-- end of table -->";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    table: Vec<Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    file: Option<String>,
    faceoff: Option<String>,
    #[serde(default = "yes")]
    sources: bool,
    #[serde(default)]
    column: Vec<Column>,
    #[serde(default)]
    row: Vec<Row>,
}

fn yes() -> bool {
    true
}

/// Ratios from files of the same names in a folder, or medians of one arm.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Column {
    label: String,
    #[serde(default)]
    folder: PathBuf,
    arm: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    label: String,
    scenario: String,
    metric: String,
    guest: Option<String>,
    file: Option<String>,
}

/// A document or picture that differs from the raw results.
#[derive(Debug)]
pub struct Outdated {
    /// Its path in the checkout.
    pub path: PathBuf,
    /// The text that it should have.
    pub text: String,
}

/// Generates the tables of all documents below `repo`, and the pictures of face-offs, and returns what differs.
///
/// # Errors
/// When a file cannot be read; when `tables.toml` names a file or a metric that does not exist, or a table
/// that no document has; when a document has a table that is not in `tables.toml`; when a results file is
/// used in no table.
pub fn outdated(repo: &Path) -> Result<Vec<Outdated>> {
    let path = repo.join(RESULTS_FOLDER).join("tables.toml");
    let manifest: Manifest = toml::from_str(&read(&path)?).with_context(|| path.display().to_string())?;
    let mut files = Files { folder: repo.join(RESULTS_FOLDER), read: BTreeMap::new(), of_table: Vec::new() };
    let mut tables = BTreeMap::from([("scenarios", sections(repo)?)]);
    let mut outdated = Vec::new();
    for table in &manifest.table {
        files.of_table.clear();
        let text = match &table.faceoff {
            Some(file) => faceoff(&files.folder, file, &mut outdated),
            None if table.column.is_empty() => markdown(table, &mut files),
            None => columns(table, &mut files),
        };
        let text = text.map(|text| if table.sources { text + &files.sources() } else { text });
        let text = text.with_context(|| format!("{}: table {}", path.display(), table.name))?;
        ensure!(
            tables.insert(table.name.as_str(), text).is_none(),
            "{}: two tables are called {}",
            path.display(),
            table.name
        );
    }
    for (name, results) in &files.read {
        for (_, course) in results.pictures() {
            let path = files.folder.join(name).with_extension("svg");
            if let Some(text) = picture::svg(&results.meta, course) {
                update(path, text, &mut outdated);
            }
        }
    }
    tables.insert("worse", worse(&files.read));
    let mut documents: Vec<PathBuf> = DOCUMENTS.iter().map(|document| repo.join(document)).collect();
    for entry in fs::read_dir(&files.folder).with_context(|| files.folder.display().to_string())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        ensure!(
            !name.ends_with(".json") || files.read.contains_key(&name),
            "{RESULTS_FOLDER}/{name}: no table uses it"
        );
        if name.ends_with(".md") {
            documents.push(files.folder.join(name));
        }
    }
    let mut used = BTreeSet::new();
    for path in documents {
        let before = read(&path)?;
        let text = with_tables(&before, &tables, &mut used).with_context(|| path.display().to_string())?;
        if text != before {
            outdated.push(Outdated { path, text });
        }
    }
    if let Some(unused) = tables.keys().find(|name| !used.contains(**name)) {
        bail!("{}: no document has the table {unused}: a line `{TABLE_BEGIN}{unused} -->`", path.display());
    }
    Ok(outdated)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Adds a file to `outdated` if it differs from `text`.
fn update(path: PathBuf, text: String, outdated: &mut Vec<Outdated>) {
    if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
        outdated.push(Outdated { path, text });
    }
}

/// The results files that were read.
struct Files {
    /// The folder below which they are.
    folder: PathBuf,
    /// By name, relative to the folder.
    read: BTreeMap<String, Results>,
    /// The names of those that the present table uses, in the order of first use.
    of_table: Vec<String>,
}

impl Files {
    /// Returns the results in the file `name`.
    fn results(&mut self, name: &str) -> Result<&Results> {
        if !self.of_table.iter().any(|used| used == name) {
            self.of_table.push(name.to_owned());
        }
        if !self.read.contains_key(name) {
            self.read.insert(name.to_owned(), Results::read(&self.folder.join(name))?);
        }
        Ok(&self.read[name])
    }

    /// Returns the paragraph below the present table: its files, and what their `meta` says. Empty without files.
    fn sources(&self) -> String {
        let sources: Vec<String> = self.of_table.iter().map(|name| source(name, &self.read[name])).collect();
        if sources.is_empty() { String::new() } else { format!("\n{}\n", sources.join(". ")) }
    }
}

/// Says of a results file when and by which command it was made, with how many pairs, and its verdicts if there were
/// enough pairs for any.
fn source(name: &str, results: &Results) -> String {
    let meta = &results.meta;
    let metrics: Vec<&Metric> = results.metrics().map(|(_, metric)| metric).collect();
    let date = meta.date.split('T').next().unwrap_or_default();
    let mut text = format!("[{name}]({name}): {date}, {}", counted(meta.pairs, "pair"));
    if let Some(command) = &meta.command {
        let _ = write!(text, ", `{command}`");
    }
    if metrics.iter().any(|metric| metric.ci95.is_some()) {
        let counts = [Verdict::Better, Verdict::Same, Verdict::None, Verdict::Worse]
            .map(|verdict| (metrics.iter().filter(|metric| metric.verdict == verdict).count(), verdict));
        let counts = counts.iter().filter(|(n, _)| *n > 0).map(|(n, verdict)| format!("{n} {verdict}"));
        let of = counted(metrics.len(), "metric");
        let _ = write!(text, "; of {of}: {}", counts.collect::<Vec<_>>().join(", "));
    }
    if !meta.repeated.is_empty() {
        let _ = write!(text, "; {} repeated", counted(meta.repeated.len(), "boot"));
    }
    text
}

/// Returns the table of a face-off in Markdown. The picture beside its file, `.svg`, is added to `outdated` if it
/// differs.
fn faceoff(folder: &Path, name: &str, outdated: &mut Vec<Outdated>) -> Result<String> {
    let path = folder.join(name);
    let summary: Summary = serde_json::from_str(&read(&path)?).with_context(|| path.display().to_string())?;
    let picture = path.with_extension("svg");
    let text = plots::overview(&summary).context("no cell that could be drawn")? + "\n";
    update(picture, text, outdated);
    let date = summary.meta.date.split(' ').next().unwrap_or_default();
    let runs = summary.entries.iter().map(|entry| entry.runs).sum();
    Ok(format!("{}\n[{name}]({name}): {date}, {}\n", tables::markdown(&summary), counted(runs, "run")))
}

/// Returns the table in Markdown.
fn markdown(table: &Table, files: &mut Files) -> Result<String> {
    let mut text = String::new();
    let mut arms = None;
    for row in &table.row {
        let name = file_name(table, row)?;
        let results = files.results(name)?;
        let meta = &results.meta;
        let other = meta.other_kernel().map_or(String::new(), |release| format!(" {release}"));
        let these = (format!("{} {}", meta.base(), meta.kernel), format!("{}{other}", meta.changed()));
        match &arms {
            None => {
                let _ = writeln!(text, "| | {} | {} | ratio (95 %) | verdict |", these.0, these.1);
                text += "|---|---|---|---|---|\n";
                arms = Some(these);
            }
            Some(arms) => ensure!(*arms == these, "{name} compares other arms than the rows before"),
        }
        let metric = find(results, row).with_context(|| format!("{RESULTS_FOLDER}/{name}"))?;
        let metric = metric
            .with_context(|| format!("{RESULTS_FOLDER}/{name}: there is no {} of {}", row.metric, row.scenario))?;
        let _ = writeln!(text, "| {} | {} |", row.label, cells_of(metric).join(" | "));
    }
    Ok(text)
}

/// Returns a table in Markdown with a column for each of several files or arms.
fn columns(table: &Table, files: &mut Files) -> Result<String> {
    let labels: Vec<_> = table.column.iter().map(|column| column.label.as_str()).collect();
    let mut text = format!("| | {} |\n|---|{}\n", labels.join(" | "), "---|".repeat(labels.len()));
    for row in &table.row {
        let mut cells = Vec::new();
        for column in &table.column {
            cells.push(cell(column, file_name(table, row)?, row, files)?);
        }
        ensure!(
            cells.iter().any(Option::is_some),
            "{RESULTS_FOLDER}: no column has {} of {}",
            row.metric,
            row.scenario
        );
        // Not every scenario runs everywhere.
        let cells: Vec<_> = cells.into_iter().map(|c| c.unwrap_or_else(|| "not measured".to_owned())).collect();
        let _ = writeln!(text, "| {} | {} |", row.label, cells.join(" | "));
    }
    Ok(text)
}

fn cell(column: &Column, name: &str, row: &Row, files: &mut Files) -> Result<Option<String>> {
    let name = column.folder.join(name).display().to_string();
    if !files.folder.join(&name).is_file() {
        return Ok(None);
    }
    let results = files.results(&name)?;
    let metric = find(results, row).with_context(|| format!("{RESULTS_FOLDER}/{name}"))?;
    let Some(metric) = metric else { return Ok(None) };
    if let Some(arm) = &column.arm {
        let arm = results.meta.arm(arm).with_context(|| format!("{RESULTS_FOLDER}/{name}"))?;
        let median = metric.median_on(arm);
        return Ok(median.map(|median| with_unit(median, metric)));
    }
    let [base, changed, ratio, _] = cells_of(metric);
    let text = if ratio.is_empty() { format!("{base} to {changed}") } else { ratio };
    Ok(Some(if metric.ratio < 1.0 { format!("**{text}**") } else { text }))
}

/// Returns the table of all that is worse: a row for the cases of a guest that lose in the same metric.
fn worse(files: &BTreeMap<String, Results>) -> String {
    let mut text = String::from(
        "| on | in | worse | worst case | stock | memreap | ratio (95 %) | raw data |\n|---|---|---|---|---|---|---|---|\n",
    );
    let mut files: Vec<_> = files.iter().collect();
    files.sort_by_key(|(name, results)| (name.contains('/'), &results.meta.kernel));
    for (name, results) in files {
        let meta = &results.meta;
        if (meta.base(), meta.changed(), meta.other_kernel()) != ("stock", "memreap", None) {
            continue;
        }
        let folder = name.split_once('/').map(|(folder, _)| folder).filter(|folder| folder.starts_with("arm64"));
        let machine = folder.unwrap_or("x86-64");
        for run in &results.runs {
            let lost: Vec<&Metric> = run.metrics.iter().filter(|metric| metric.verdict == Verdict::Worse).collect();
            for (i, first) in lost.iter().enumerate() {
                let what = first.short_name();
                let is_it = |metric: &Metric| metric.short_name() == what;
                if lost[..i].iter().any(|metric| is_it(metric)) {
                    continue;
                }
                let cases = lost.iter().filter(|metric| is_it(metric));
                let worst = cases
                    .clone()
                    .max_by(|a, b| loss(a).partial_cmp(&loss(b)).unwrap_or(Ordering::Equal))
                    .unwrap_or(first);
                let all = run.metrics.iter().filter(|metric| is_it(metric)).count();
                let scenario = scenarios::find(&run.scenario);
                let mut reported = scenario.into_iter().flat_map(|scenario| scenario.reported(&run.guest, None));
                let about = reported.find(|reported| reported.name == worst.metric);
                let [base, changed, ratio, _] = cells_of(worst);
                let _ = writeln!(
                    text,
                    "| {}, {machine} | `{}`, {} | `{what}`{} | {}{} | {base} | {changed} | {ratio} | [{name}]({RAW}{name}) |",
                    meta.kernel,
                    run.scenario,
                    run.guest,
                    about.map_or(String::new(), |reported| format!(": {}", reported.metric.about)),
                    worst.case(),
                    if all > 1 { format!(", {} of {all}", cases.count()) } else { String::new() },
                );
            }
        }
    }
    text
}

/// How much worse a metric is, to compare cases: by its ratio, and, beyond any ratio, by how far it is from nothing.
fn loss(metric: &Metric) -> (bool, f64) {
    let (base, changed) = (metric.base_median(), metric.changed_median());
    let is_ratio = base > 0.0 && changed > 0.0;
    (!is_ratio, if is_ratio { metric.ratio.recip() } else { (changed - base).abs() })
}

fn file_name<'t>(table: &'t Table, row: &'t Row) -> Result<&'t str> {
    let name = row.file.as_deref().or(table.file.as_deref());
    name.with_context(|| format!("row \"{}\": neither it nor its table has a file", row.label))
}

/// Returns the row's metric, if there is one.
fn find<'r>(results: &'r Results, row: &Row) -> Result<Option<&'r Metric>> {
    let is_it = |(run, metric): &(&Run, &Metric)| {
        let is_guest = row.guest.as_ref().is_none_or(|guest| *guest == run.guest);
        run.scenario == row.scenario && is_guest && metric.metric == row.metric
    };
    let mut found = results.metrics().filter(is_it).map(|(_, metric)| metric);
    match (found.next(), found.next()) {
        (metric, None) => Ok(metric),
        (_, Some(_)) => {
            bail!("several guests report {} of {}: say which `guest`", row.metric, row.scenario)
        }
    }
}

fn with_unit(value: f64, metric: &Metric) -> String {
    match metric.unit.as_str() {
        "count" => number(value),
        unit => format!("{} {unit}", number(value)),
    }
}

fn cells_of(metric: &Metric) -> [String; 4] {
    let (base, changed) = (metric.base_median(), metric.changed_median());
    let interval = metric.ci95.map_or(String::new(), |ends| format!(" ({})", interval(ends)));
    [
        with_unit(base, metric),
        with_unit(changed, metric),
        // With a zero, a ratio says how zeros are treated and nothing else.
        if base > 0.0 && changed > 0.0 { format!("{}{interval}", ratio(metric.ratio)) } else { String::new() },
        // Too few pairs for an interval are too few for a verdict; that is no finding about the metric.
        if metric.ci95.is_some() { metric.verdict.to_string() } else { counted(metric.base.len(), "pair") },
    ]
}

/// Returns the document with its tables replaced. Adds the names of its tables to `used`.
fn with_tables<'t>(document: &str, tables: &BTreeMap<&'t str, String>, used: &mut BTreeSet<&'t str>) -> Result<String> {
    let mut text = String::with_capacity(document.len());
    let mut inside = false;
    for (number, line) in document.split_inclusive('\n').enumerate() {
        let place = || format!("line {}", number + 1);
        let trimmed = line.trim_end();
        if trimmed == TABLE_END {
            ensure!(inside, "{}: no table begins before this end", place());
            inside = false;
        } else if let Some(name) = trimmed.strip_prefix(TABLE_BEGIN).and_then(|rest| rest.strip_suffix(" -->")) {
            ensure!(!inside, "{}: the table before has no `{TABLE_END}`", place());
            let (&name, table) = tables
                .get_key_value(name)
                .with_context(|| format!("{}: the table {name} is not in {RESULTS_FOLDER}/tables.toml", place()))?;
            used.insert(name);
            text += line;
            text += table;
            inside = true;
            continue;
        }
        if !inside {
            text += line;
        }
    }
    ensure!(!inside, "the last table has no `{TABLE_END}`");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::results::{ArmMeta, fixture};

    const TABLES: &str = r#"
        [[table]]
        name = "small"
        file = "a.json"
        [[table.row]]
        label = "locks"
        scenario = "reap"
        metric = "100-vmas/pte-lock-contended"
        [[table.row]]
        label = "time"
        scenario = "reap"
        metric = "100-vmas/mrelease-90"
    "#;

    /// Makes a checkout with these tables, a results file and two documents.
    fn checkout(tables: &str, readme: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(RESULTS_FOLDER);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("tables.toml"), tables).unwrap();
        fixture::results().write(&folder.join("a.json")).unwrap();
        fs::write(dir.path().join("README.md"), readme).unwrap();
        let files = BTreeMap::from([("a.json".to_owned(), fixture::results())]);
        let results = format!("{TABLE_BEGIN}worse -->\n{}{TABLE_END}\n", worse(&files));
        fs::write(dir.path().join("docs/results.md"), results).unwrap();
        let texts = dir.path().join("crates/scenarios/src");
        fs::create_dir_all(&texts).unwrap();
        for scenario in scenarios::all() {
            let name = scenario.name.replace('-', "_") + ".md";
            fs::write(texts.join(name), "{metrics}\n").unwrap();
        }
        let sections = sections(dir.path()).unwrap();
        let measuring = format!("{TABLE_BEGIN}scenarios -->\n{sections}{TABLE_END}\n");
        fs::write(dir.path().join("docs/measuring.md"), measuring).unwrap();
        dir
    }

    #[test]
    fn where_stock_has_nothing_the_worst_case_is_the_largest() {
        let mut results = fixture::results();
        let like = results.runs[0].metrics[0].clone();
        let case = |(case, base, changed): (&str, f64, f64)| Metric {
            metric: format!("{case}/x"),
            base: vec![base],
            changed: vec![changed],
            // As the half count that is added has it.
            ratio: (base + 0.5) / (changed + 0.5),
            verdict: Verdict::Worse,
            ..like.clone()
        };
        let mut worst = |cases: &[(&str, f64, f64)]| {
            results.runs[0].metrics = cases.iter().copied().map(case).collect();
            let text = worse(&BTreeMap::from([("a.json".to_owned(), results.clone())]));
            text.lines().nth(2).unwrap().split(" | ").nth(3).unwrap().to_owned()
        };
        assert_eq!(worst(&[("a", 0.0, 1.0), ("b", 0.0, 50.0), ("c", 1.0, 99.0)]), "b, 3 of 3");
        assert_eq!(worst(&[("a", 2.0, 3.0), ("b", 90.0, 100.0)]), "a, 2 of 2");
    }

    const EMPTY: &str = "before\n<!-- table: small -->\nold\n<!-- end of table -->\nafter\n";

    #[test]
    fn a_table_says_what_the_file_says() {
        let dir = checkout(TABLES, EMPTY);
        let found = outdated(dir.path()).unwrap();
        assert_eq!(found.len(), 1);
        let expected = "before\n<!-- table: small -->\n\
            | | stock 6.12.117 | memreap | ratio (95 %) | verdict |\n|---|---|---|---|---|\n\
            | locks | 606 | 4.50 | 140x (96.5 - 310) | better |\n\
            | time | 30.5 ms | 29.9 ms | 1.03x (0.99 - 1.07) | no verdict |\n\n\
            [a.json](a.json): 2026-11-21, 8 pairs, `lab ab reap --pairs 8`; \
            of 4 metrics: 1 better, 1 same, 1 no verdict, 1 worse\n\
            <!-- end of table -->\nafter\n";
        assert_eq!(found[0].text, expected);
        fs::write(&found[0].path, &found[0].text).unwrap();
        assert!(outdated(dir.path()).unwrap().is_empty());
        fs::write(&found[0].path, expected.replace("606", "607")).unwrap();
        assert_eq!(outdated(dir.path()).unwrap().len(), 1, "a value that the file does not have");
    }

    #[test]
    fn a_page_beside_the_results_may_have_the_table_and_it_may_be_without_sources() {
        let tables = TABLES.replace("file = \"a.json\"", "file = \"a.json\"\nsources = false");
        let dir = checkout(&tables, "x\n");
        let page = dir.path().join(RESULTS_FOLDER).join("reap.md");
        fs::write(&page, EMPTY).unwrap();
        let found = outdated(dir.path()).unwrap();
        assert_eq!(found[0].path, page);
        assert!(found[0].text.ends_with("| no verdict |\n<!-- end of table -->\nafter\n"), "{}", found[0].text);
    }

    #[test]
    fn what_is_worse_in_any_file_is_in_one_table() {
        let mut files = BTreeMap::from([("7.3/a.json".to_owned(), fixture::results())]);
        let mut own = fixture::results();
        own.meta.arms[1].name = "mine".into();
        files.insert("b.json".to_owned(), own);
        let text = worse(&files);
        // Not what two kernels of a user's own differ in.
        let [row] = text.lines().skip(2).collect::<Vec<_>>()[..] else { panic!("{text}") };
        let about = "share of the reaper's steps that go down the address space";
        let start = format!("| 6.12.117, x86-64 | `reap`, multi | `freed-descending`: {about} | 1-vma | 98 percent |");
        assert!(row.starts_with(&start), "{row}");
        assert!(row.ends_with("| 0.51x (0.51 - 0.52) | [7.3/a.json](results/7.3/a.json) |"), "{row}");
    }

    #[test]
    fn a_source_says_what_was_repeated() {
        let text = source("b/a.json", &fixture::results_with_repeated());
        assert!(text.starts_with("[b/a.json](b/a.json): 2026-11-21, "), "{text}");
        assert!(text.ends_with("; 2 boots repeated"), "{text}");
    }

    #[test]
    fn columns_are_files_of_the_same_name() {
        let columns = "column = [{ label = \"here\" }, { label = \"there\", folder = \"b\" }]\n[[table.row]]";
        let tables = TABLES.replacen("[[table.row]]", columns, 1);
        let dir = checkout(&tables, EMPTY);
        let folder = dir.path().join(RESULTS_FOLDER).join("b");
        fs::create_dir(&folder).unwrap();
        let mut there = fixture::results();
        for metric in there.metrics_mut() {
            metric.ratio = 0.5;
            metric.ci95 = None;
        }
        there.write(&folder.join("a.json")).unwrap();
        let found = outdated(dir.path()).unwrap();
        let table = "| | here | there |\n|---|---|---|\n\
            | locks | 140x (96.5 - 310) | **0.50x** |\n\
            | time | 1.03x (0.99 - 1.07) | **0.50x** |\n";
        assert!(found[0].text.contains(table), "{}", found[0].text);
        fs::write(dir.path().join(RESULTS_FOLDER).join("tables.toml"), tables.replace("mrelease-90", "mrelease-91"))
            .unwrap();
        let unknown = format!("{:#}", outdated(dir.path()).unwrap_err());
        assert!(unknown.contains("no column has 100-vmas/mrelease-91 of reap"), "{unknown}");
    }

    #[test]
    fn columns_are_arms() {
        let columns = "column = [{ label = \"A\", arm = \"stock\" }, { label = \"B\", arm = \"memreap\" }, \
            { label = \"C\", arm = \"control\" }]\n[[table.row]]";
        let tables = TABLES.replacen("[[table.row]]", columns, 1);
        let dir = checkout(&tables, EMPTY);
        let unknown = format!("{:#}", outdated(dir.path()).unwrap_err());
        assert!(unknown.contains("a.json: no arm 'control'; there are: stock, memreap"), "{unknown}");

        let mut results = fixture::results();
        let control = ArmMeta { name: "control".into(), ..results.meta.arms[0].clone() };
        results.meta.arms.push(control);
        results.write(&dir.path().join(RESULTS_FOLDER).join("a.json")).unwrap();
        let table = "| | A | B | C |\n|---|---|---|---|\n\
            | locks | 606 | 4.50 | not measured |\n\
            | time | 30.5 ms | 29.9 ms | not measured |\n";
        let text = &outdated(dir.path()).unwrap()[0].text;
        assert!(text.contains(table), "{text}");
    }

    #[test]
    fn errors_name_what_does_not_match() {
        let error = |tables: &str, readme: &str| {
            let dir = checkout(tables, readme);
            format!("{:#}", outdated(dir.path()).unwrap_err())
        };
        let wrong = TABLES.replace("mrelease-90", "mrelease-91");
        assert!(error(&wrong, EMPTY).contains("there is no 100-vmas/mrelease-91 of reap"));
        assert!(error(TABLES, "x\n").contains("no document has the table small"));
        assert!(error(TABLES, &EMPTY.replace("small", "large")).contains("line 2: the table large is not in"));
        assert!(error(TABLES, &EMPTY.replace(TABLE_END, "")).contains("the last table has no"));
        assert!(error(&TABLES.replace("a.json", "b.json"), EMPTY).contains("b.json: cannot read"));
        assert!(error("table = []", "x\n").contains("a.json: no table uses it"));
    }

    #[test]
    fn the_documents_say_what_was_measured() {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let paths: Vec<PathBuf> = outdated(&repo).unwrap().into_iter().map(|o| o.path).collect();
        assert!(paths.is_empty(), "{paths:?}: run `cargo run -p lab -- report --documents`");
    }
}
