// SPDX-License-Identifier: GPL-2.0-only
//! The sections of docs/measuring.md about the scenarios, from what crates/scenarios says of them.

use scenarios::{Group, METRICS_LINE, Metric, Scenario};

use crate::format::{counted, number};

/// Returns a section in Markdown for each scenario.
#[must_use]
pub fn sections() -> String {
    scenarios::all().iter().map(section).collect::<Vec<_>>().join("\n")
}

fn section(scenario: &Scenario) -> String {
    let doc = scenario.doc.replace(METRICS_LINE, table(scenario).trim_end());
    format!("## The scenario `{}`\n\n{doc}", scenario.name)
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
        return format!("Guests: {guests}. The metrics are those of `{}`.", other.name);
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
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_section_has_guests_and_metrics_with_their_places() {
        let text = section(scenarios::find("memcg-exit").unwrap());
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
        assert!(
            section(scenarios::find("ksm-rmap").unwrap())
                .contains("\n| *of all cases together, in `icount`* ")
        );
        assert!(
            section(scenarios::find("swap-defer").unwrap())
                .contains("The metrics are those of `swap-batch`.")
        );
        let plain = section(scenarios::find("storm-phone").unwrap());
        assert!(plain.contains("\n|---|---|---|\n| `camera-ms` | lower (ms) |"), "{plain}");
    }
}
