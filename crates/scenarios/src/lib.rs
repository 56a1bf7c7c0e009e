// SPDX-License-Identifier: GPL-2.0-only
//! The scenarios of `lab ab`, as data: the guests that they run in, the metrics that they report, and what all that
//! means. One file per scenario, with a text beside it.
//!
//! The lab boots the guests, judges by the metrics' directions, and writes each scenario's text, the `.md` file beside
//! its declaration, with the table of its metrics to docs/measuring.md. The guest (`crates/guest/src/scenario`, the
//! workloads) reports values by name: it gets units from here, and fails if it reports another metric than those
//! declared for it, or not all of them.

/// Metrics, or groups of them by their cases: a table that is written as one.
///
/// A metric is a row: the direction that is better, the name, the unit, the text. A group is its cases, what else is
/// said of it ([`Group::only`], [`Group::of_all_cases`]), `=>`, and rows in braces or the name of such a list.
macro_rules! metrics {
    (@ {$($row:tt)*}) => { metrics!($($row)*) };
    (@ $list:ident) => { $list };
    ($($better:ident $name:literal $unit:literal $about:expr;)*) => { &[$($better($name, $unit, $about)),*] };
    ($($cases:expr $(, $limit:ident $guests:tt)* => $metrics:tt)*) => {
        &[$(group($cases, metrics!(@ $metrics))$(.$limit $guests)*),*]
    };
}

/// Sentences, in rows: the guest, the text.
macro_rules! sentences {
    ($($guest:literal $text:expr;)*) => { &[$($crate::Sentence { guest: $guest, text: $text }),*] };
}

mod expedite;
mod ksm_rmap;
mod memcg_exit;
mod oom_select;
mod reap;
mod release;
mod rss_counters;
mod storm_phone;
mod swap;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use protocol::results::Better;
use serde::{Deserialize, Serialize};

/// All scenarios, in the order in which they run.
const ALL: &[Scenario] = &[
    reap::REAP,
    release::RELEASE,
    ksm_rmap::KSM_RMAP,
    expedite::EXPEDITE,
    rss_counters::RSS_COUNTERS,
    oom_select::OOM_SELECT,
    swap::SWAP_BATCH,
    swap::SWAP_DEFER,
    storm_phone::STORM_PHONE,
    storm_phone::STORM_PHONE_CASES,
    memcg_exit::MEMCG_EXIT,
];

/// A workload, and the guests that it runs in.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line, in results and in the guest.
    pub name: &'static str,
    /// A one-line description.
    pub about: &'static str,
    /// What a comparison says first. Of those that its guests can say, the first one is said.
    pub sentences: &'static [Sentence],
    /// The guests, each with a name of its own. Each is booted once per arm and pair.
    pub guests: &'static [Guest],
    /// Control kernels, which are measured in every pair in addition to the two arms. They do not affect
    /// the verdicts.
    pub controls: &'static [ControlKernel],
    /// The metrics, by the cases and guests that report them.
    pub metrics: &'static [Group],
}

/// What a comparison says of a scenario to a reader who knows neither its metrics nor the lab.
#[derive(Clone, Copy, Debug)]
pub struct Sentence {
    /// The name of the guest that reports its metrics.
    pub guest: &'static str,
    /// The sentence, without the full stop. `{ours METRIC}` and `{stock METRIC}` stand for the medians of the changed
    /// and the base arm. The first metric is the main one, whose verdict follows the sentence.
    pub text: &'static str,
}

/// A kernel that is measured for comparison, besides stock and the changed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ControlKernel {
    /// Its name in tables.
    pub name: &'static str,
    /// The kernel parameters that turn the changed kernel into it. `None` if it has its own build, by a patch in
    /// kernel/controls.
    pub parameters: Option<&'static str>,
}

/// One guest of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// Its name, by which it is chosen and known in results: its mode, and its CPUs if that is not enough.
    pub name: &'static str,
    /// How time and concurrency are simulated.
    pub mode: Mode,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub mem_mib: u32,
    /// A guest that takes longer counts as hung.
    pub timeout: Duration,
    /// Kernel parameters of all arms. An arm's own parameters come later and override them.
    pub cmdline: &'static str,
}

/// How guest time passes under TCG. Under KVM it is always real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One host thread per CPU, real time: real concurrency, and noise.
    Multi,
    /// Time is the number of instructions executed by all CPUs together. It repeats closely and shows cost,
    /// not parallelism. Always under TCG.
    Icount,
}

/// Metrics that the same guests report of the same cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The cases. The name of a metric is `CASE/NAME`; that of one without a case is in an empty list.
    pub cases: &'static [&'static str],
    /// The names of the guests that report them; all if there is none.
    pub guests: &'static [&'static str],
    /// Whether they are about all cases together, and are not reported if only one case is run.
    pub of_all_cases: bool,
    /// The metrics.
    pub metrics: &'static [Metric],
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name without the case, or with its only one.
    pub name: &'static str,
    /// The unit of its values.
    pub unit: &'static str,
    /// Which direction is an improvement.
    pub better: Better,
    /// What it is, in Markdown and on one line.
    pub about: &'static str,
}

/// A metric that a guest reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    /// Its full name, `CASE/NAME`.
    pub name: String,
    /// What it is.
    pub metric: &'static Metric,
}

/// All scenarios, in the order in which they run.
#[must_use]
pub fn all() -> &'static [Scenario] {
    ALL
}

/// Returns the scenario of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}

/// Returns the control kernels of all scenarios, each once, sorted by name.
#[must_use]
pub fn controls() -> Vec<ControlKernel> {
    let mut controls: Vec<ControlKernel> = ALL.iter().flat_map(|s| s.controls.iter().copied()).collect();
    controls.sort_unstable();
    controls.dedup();
    controls
}

impl Scenario {
    /// Returns the guest of that name.
    #[must_use]
    pub fn guest(&self, name: &str) -> Option<&'static Guest> {
        self.guests.iter().find(|guest| guest.name == name)
    }

    /// Returns the metrics that a guest reports if it runs all cases, or only one; none if it has no such case.
    #[must_use]
    pub fn reported(&self, guest: &str, case: Option<&str>) -> Vec<Reported> {
        let groups = self.metrics.iter().filter(|group| group.is_of(guest));
        let all = groups.filter(|group| case.is_none() || !group.of_all_cases).flat_map(Group::reported);
        all.filter(|reported| case.is_none_or(|case| reported.case() == case)).collect()
    }

    /// Returns the cases of which a guest can run only one.
    #[must_use]
    pub fn cases(&self, guest: &str) -> Vec<String> {
        let groups = self.metrics.iter().filter(|group| group.is_of(guest) && !group.of_all_cases);
        let mut cases: Vec<String> = Vec::new();
        for reported in groups.flat_map(Group::reported) {
            if !reported.case().is_empty() && cases.iter().all(|case| case != reported.case()) {
                cases.push(reported.case().to_owned());
            }
        }
        cases
    }
}

impl Group {
    /// Whether a guest reports these metrics.
    #[must_use]
    pub fn is_of(&self, guest: &str) -> bool {
        self.guests.is_empty() || self.guests.contains(&guest)
    }

    fn reported(&self) -> impl Iterator<Item = Reported> {
        let cases = if self.cases.is_empty() { &[""] } else { self.cases };
        cases.iter().flat_map(|case| {
            self.metrics.iter().map(move |metric| Reported {
                name: if case.is_empty() { metric.name.to_owned() } else { format!("{case}/{}", metric.name) },
                metric,
            })
        })
    }

    const fn only(self, guests: &'static [&'static str]) -> Self {
        Self { guests, ..self }
    }

    const fn of_all_cases(self) -> Self {
        Self { of_all_cases: true, ..self }
    }
}

impl Reported {
    /// Returns the part of its name before the `/`; empty if there is none.
    #[must_use]
    pub fn case(&self) -> &str {
        self.name.split_once('/').map_or("", |(case, _)| case)
    }
}

const fn group(cases: &'static [&'static str], metrics: &'static [Metric]) -> Group {
    Group { cases, guests: &[], of_all_cases: false, metrics }
}

/// A metric of which less is better.
const fn lower(name: &'static str, unit: &'static str, about: &'static str) -> Metric {
    Metric { name, unit, better: Better::Lower, about }
}

/// A metric of which more is better.
const fn higher(name: &'static str, unit: &'static str, about: &'static str) -> Metric {
    Metric { name, unit, better: Better::Higher, about }
}

impl Guest {
    /// A guest with two CPUs, real time and a limit that is enough for most.
    const MULTI: Self = Self {
        name: "multi",
        mode: Mode::Multi,
        cpus: 2,
        mem_mib: 512,
        timeout: Duration::from_secs(180),
        cmdline: "",
    };
    /// One whose time is the number of instructions, with one CPU.
    const ICOUNT: Self = Self { name: "icount", mode: Mode::Icount, cpus: 1, ..Self::MULTI };
}

/// For guests that fill much memory.
const LONG_TIMEOUT: Duration = Duration::from_secs(600);
/// For guests with up to 64 CPUs that one host thread emulates. Ten minutes were too few for four of them on
/// two CPUs.
const MANY_CPUS_TIMEOUT: Duration = Duration::from_secs(2400);
/// ASLR off: where a process's memory is decides how many page tables and VMAs it has, and so what a fork or a fault
/// costs; that would vary more than the regression that must be detected.
const FIXED_ADDRESSES: &str = "norandmaps";

impl ControlKernel {
    const fn patch(name: &'static str) -> Self {
        Self { name, parameters: None }
    }

    const fn changed(name: &'static str, parameters: &'static str) -> Self {
        Self { name, parameters: Some(parameters) }
    }
}

impl Mode {
    /// Returns its name in files and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Multi => "multi",
            Self::Icount => "icount",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = [Self::Multi, Self::Icount].into_iter().find(|mode| mode.name() == text);
        mode.ok_or_else(|| "expected multi or icount".to_owned())
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        for scenario in all() {
            assert_eq!(all().iter().filter(|other| other.name == scenario.name).count(), 1, "{}", scenario.name);
            let guests: BTreeSet<&str> = scenario.guests.iter().map(|guest| guest.name).collect();
            assert_eq!(guests.len(), scenario.guests.len(), "{}: {guests:?}", scenario.name);
            for guest in scenario.guests {
                let metrics = scenario.reported(guest.name, None);
                let names: BTreeSet<&str> = metrics.iter().map(|reported| reported.name.as_str()).collect();
                assert_eq!(names.len(), metrics.len(), "{}/{}: a metric twice", scenario.name, guest.name);
            }
        }
        let mut names: Vec<&str> = controls().iter().map(|control| control.name).collect();
        names.extend(["stock", "memreap"]);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        assert!(controls().iter().all(|control| control.parameters != Some("")));
    }

    #[test]
    fn every_guest_has_a_name_that_says_what_it_is_and_metrics() {
        for scenario in all() {
            for guest in scenario.guests {
                let (mode, cpus) = (guest.mode.to_string(), format!("{}-{}", guest.mode, guest.cpus));
                assert!([mode, cpus].contains(&guest.name.to_owned()), "{}/{}", scenario.name, guest.name);
                assert!(!scenario.reported(guest.name, None).is_empty(), "{}/{}", scenario.name, guest.name);
            }
            let known = |guest: &&str| scenario.guest(guest).is_some();
            assert!(scenario.metrics.iter().all(|group| group.guests.iter().all(known)), "{}", scenario.name);
        }
    }

    #[test]
    fn one_case_has_only_its_own_metrics() {
        let expedite = find("expedite").unwrap();
        let names = |guest, case| {
            expedite.reported(guest, Some(case)).into_iter().map(|r| r.name).collect::<Vec<_>>().join(" ")
        };
        let memcg_exit = find("memcg-exit").unwrap();
        let of_shared = |guest| memcg_exit.reported(guest, Some("oom-shared")).into_iter().map(|r| r.name);
        assert!(of_shared("multi").count() > 1 && of_shared("multi").all(|name| name.starts_with("oom-shared/")));
        assert_eq!(of_shared("icount").count(), 0, "it is of the other guest");
        assert_eq!(names("multi", "worst"), "", "it is about all cases");
        let cases = expedite.cases("icount");
        assert!(cases.iter().any(|c| c == "cpu-10") && !cases.iter().any(|c| c == "worst"));
        assert!(!memcg_exit.cases("icount").iter().any(|c| c == "oom-shared"));
        let ksm = find("ksm-rmap").unwrap();
        let has = |case| ksm.reported("icount", case).iter().any(|reported| reported.name == "merge-instructions");
        assert!(has(None) && !has(Some("20000-vmas-2-maps")));
        assert_eq!(find("storm-phone").unwrap().cases("icount"), Vec::<String>::new());
    }

    #[test]
    fn modes_are_read_as_they_are_written() {
        assert_eq!(["multi", "icount"].map(|text| text.parse::<Mode>().unwrap().to_string()), ["multi", "icount"]);
        assert!("kvm".parse::<Mode>().is_err());
    }
}
