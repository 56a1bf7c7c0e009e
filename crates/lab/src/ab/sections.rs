// SPDX-License-Identifier: GPL-2.0-only
//! The sections of docs/measuring.md about the scenarios, from what crates/scenarios says of them.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use scenarios::{Group, Metric, Scenario};

use crate::format::{counted, number};

/// The folder with a text for each scenario. It is not part of crates/scenarios, or each edit of it would be a new
/// guest, with nothing to reuse of earlier boots.
const TEXTS: &str = "crates/scenarios/src";
/// The line of a text that stands for the table of metrics.
const METRICS_LINE: &str = "{metrics}\n";

/// Returns a section in Markdown for each scenario, with the texts in the checkout `repo`.
///
/// # Errors
/// When a scenario has no text, or that has no place for the metrics.
pub fn sections(repo: &Path) -> Result<String> {
    let sections = scenarios::all().iter().map(|scenario| section(repo, scenario));
    Ok(sections.collect::<Result<Vec<_>>>()?.join("\n"))
}

fn section(repo: &Path, scenario: &Scenario) -> Result<String> {
    let path = repo.join(TEXTS).join(scenario.name.replace('-', "_")).with_extension("md");
    let text = fs::read_to_string(&path).with_context(|| format!("{}: cannot read", path.display()))?;
    let (before, after) = text
        .split_once(METRICS_LINE)
        .with_context(|| format!("{}: no line {}", path.display(), METRICS_LINE.trim_end()))?;
    Ok(format!("## The scenario `{}`\n\n{before}{}{after}", scenario.name, table(scenario)))
}

/// Returns the guests and the table of metrics. Groups of metrics begin with a row that says where they are measured.
fn table(scenario: &Scenario) -> String {
    let guests = scenario.guests.iter().map(|guest| {
        let memory = number(guest.mem_mib.into());
        format!("`{}` ({}, {memory} MiB)", guest.name, counted(guest.cpus as usize, "CPU"))
    });
    let guests = guests.collect::<Vec<_>>().join(", ");
    let same = scenarios::all().iter().find(|other| other.metrics == scenario.metrics);
    if let Some(other) = same.filter(|other| other.name != scenario.name) {
        return format!("Guests: {guests}. The metrics are those of `{}`.\n", other.name);
    }
    let mut text = format!("Guests: {guests}.\n\n| metric | better | what |\n|---|---|---|\n");
    for groups in scenario.metrics.chunk_by(|a, b| a.metrics == b.metrics) {
        let places = groups.iter().map(place).collect::<Vec<_>>().join("; ");
        if !places.is_empty() {
            text += &format!("| *{places}* | | |\n");
        }
        for Metric { name, unit, better, about } in groups[0].metrics {
            text += &format!("| `{name}` | {better} ({unit}) | {about} |\n");
        }
    }
    text
}

/// Returns which cases and which guests report a group; empty for all guests of a scenario without cases.
fn place(group: &Group) -> String {
    let list = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let cases = match group.cases {
        [] if group.of_all_cases => Some("of all cases together".to_owned()),
        [] => None,
        cases => Some(format!("of {}", list(cases))),
    };
    let guests = (!group.guests.is_empty()).then(|| format!("in {}", list(group.guests)));
    [cases, guests].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_guests_and_metrics_with_their_places() {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let section = |name| section(&repo, scenarios::find(name).unwrap()).unwrap();
        let text = section("memcg-exit");
        let lines = [
            "## The scenario `memcg-exit`",
            "Guests: `icount` (2 CPUs, 1,024 MiB), `multi` (2 CPUs, 1,024 MiB).",
            "| *of `killed`, `oom`, `oom-zswap`, `oom-small`; of `oom-shared`, in `multi`* | | |",
            "| `memory-95-ms` | lower (ms) | until 5 % of its memory are left, by `memory.current` |",
        ];
        for line in lines {
            assert!(text.lines().any(|l| l == line), "{line:?} is not in {text}");
        }
        assert!(!text.contains(METRICS_LINE));
        assert!(section("ksm-rmap").contains("\n| *of all cases together, in `icount`* "));
        assert!(section("swap-defer").contains("The metrics are those of `swap-batch`."));
        let plain = section("storm-phone");
        assert!(plain.contains("\n|---|---|---|\n| `camera-ms` | lower (ms) |"), "{plain}");
    }
}
