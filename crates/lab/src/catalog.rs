//! The scenarios that `lab ab` can compare arms with: what guest each of them needs.
//!
//! The workload itself is in `crates/guest/src/scenario/<name>.rs`; here is what the host must
//! know before it boots anything.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::boot::Mode;

/// One scenario and the guests it is run in.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The name, in the guest as well.
    pub name: &'static str,
    /// One line for `--help` and the report.
    pub about: &'static str,
    /// One guest per measuring mode; each is booted once per arm and pair.
    pub runs: &'static [Run],
}

/// The guest of one scenario in one mode.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// How time and concurrency are simulated.
    pub mode: Mode,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub mem_mib: u32,
    /// A guest that takes longer hangs.
    pub timeout: Duration,
    /// Arguments for the scenario in the guest.
    pub args: &'static [&'static str],
    /// Kernel parameters that both arms need; an arm's own come after them, and win.
    pub cmdline: &'static str,
}

const MINUTES: Duration = Duration::from_secs(180);

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "reap",
        about: "512 MiB of a killed process come back: time, lock contention, CPU time",
        runs: &[
            Run { mode: Mode::Multi, cpus: 2, mem_mib: 1536, timeout: MINUTES, args: &[], cmdline: "" },
            // icount runs on one CPU only: contention is what `multi` is for. Instructions per page do
            // not depend on the size, and repeat so closely that one round of a small victim will do.
            Run {
                mode: Mode::Icount,
                cpus: 1,
                mem_mib: 512,
                timeout: MINUTES,
                args: &["icount", "mib=128", "rounds=1"],
                cmdline: "",
            },
        ],
    },
    Scenario {
        name: "ksm-rmap",
        about: "KSM pages in many VMAs are moved and reclaimed: the walks, locks held, faults delayed",
        // Pages move between two nodes.
        runs: &[
            Run {
                mode: Mode::Multi,
                cpus: 2,
                mem_mib: 768,
                timeout: MINUTES,
                args: &[],
                cmdline: "numa=fake=2",
            },
            Run {
                mode: Mode::Icount,
                cpus: 1,
                mem_mib: 512,
                timeout: MINUTES,
                args: &["icount"],
                cmdline: "numa=fake=2",
            },
        ],
    },
    Scenario {
        name: "expedite",
        about: "killed processes that can hardly run: how fast their memory comes back, and who pays",
        runs: &[
            Run { mode: Mode::Multi, cpus: 2, mem_mib: 1024, timeout: MINUTES, args: &[], cmdline: "" },
            Run {
                mode: Mode::Icount,
                cpus: 1,
                mem_mib: 512,
                timeout: MINUTES,
                args: &["icount"],
                cmdline: "",
            },
        ],
    },
];

/// All scenarios, in the order in which they are run.
#[must_use]
pub fn all() -> &'static [Scenario] {
    SCENARIOS
}

/// The scenarios of these names, in the given order; all of them if no name is given.
///
/// # Errors
/// When there is no scenario of that name, or a name is given twice.
pub fn select(names: &[String]) -> Result<Vec<&'static Scenario>> {
    if names.is_empty() {
        return Ok(all().iter().collect());
    }
    let mut selected: Vec<&'static Scenario> = Vec::new();
    for name in names {
        let Some(scenario) = all().iter().find(|s| s.name == name) else {
            let known: Vec<&str> = all().iter().map(|s| s.name).collect();
            bail!("no scenario '{name}'; there are: {}", known.join(", "));
        };
        if selected.iter().any(|s| s.name == scenario.name) {
            bail!("scenario '{name}' is given twice");
        }
        selected.push(scenario);
    }
    Ok(selected)
}

/// The mode's name in files and tables.
#[must_use]
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Multi => "multi",
        Mode::Icount => "icount",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn selects_by_name_and_names_what_there_is() {
        assert_eq!(select(&[]).unwrap().len(), all().len());
        assert_eq!(select(&["reap".into()]).unwrap()[0].name, "reap");
        let unknown = select(&["raep".into()]).unwrap_err().to_string();
        assert!(unknown.contains("raep") && unknown.contains("reap"), "{unknown}");
        assert!(select(&["reap".into(), "reap".into()]).is_err());
    }
}
