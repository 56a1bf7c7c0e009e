// SPDX-License-Identifier: GPL-2.0-only
//! The scenarios of `lab ab` and the guests that they run in.
//!
//! The workload itself is in `crates/guest/src/scenario/<name>.rs`. This is what the host must know before it
//! boots a guest.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::format;
use crate::vm::job::Mode;

/// A scenario and the guests that it runs in.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line, in results and in the guest.
    pub name: &'static str,
    /// A one-line description.
    pub about: &'static str,
    /// What a comparison says first. Of those that its guests can say, the first one is said.
    pub sentences: &'static [Sentence],
    /// The guests. Each is booted once per arm and pair. No two have the same mode and number of CPUs.
    pub runs: &'static [Run],
    /// Control kernels, which are measured in every pair in addition to the two arms. They do not affect
    /// the verdicts.
    pub controls: &'static [ControlKernel],
}

/// What a comparison says of a scenario to a reader who knows neither its metrics nor the lab.
#[derive(Clone, Copy, Debug)]
pub struct Sentence {
    /// The guest that reports its metrics, by its name in tables.
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
    /// The kernel parameters that turn the changed kernel into it. `None` if it has its own build, one of
    /// [`crate::kernel::CONTROLS`].
    pub parameters: Option<&'static str>,
}

impl ControlKernel {
    const fn patch(name: &'static str) -> Self {
        Self { name, parameters: None }
    }

    const fn changed(name: &'static str, parameters: &'static str) -> Self {
        Self { name, parameters: Some(parameters) }
    }
}

impl Scenario {
    /// Returns the number of CPUs of a run if it is part of the run's name, because the scenario has several
    /// guests of that mode.
    #[must_use]
    pub fn cpus_in_name(&self, run: &Run) -> Option<u32> {
        let several = self.runs.iter().filter(|other| other.mode == run.mode).count() > 1;
        several.then_some(run.cpus)
    }

    /// Returns the name of a run in files and tables.
    #[must_use]
    pub fn run_name(&self, run: &Run) -> String {
        run_name(mode_name(run.mode), self.cpus_in_name(run))
    }
}

/// One guest of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// How time and concurrency are simulated.
    pub mode: Mode,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub mem_mib: u32,
    /// A guest that takes longer counts as hung.
    pub timeout: Duration,
    /// Arguments of the scenario in the guest.
    pub args: &'static [&'static str],
    /// Kernel parameters of all arms. An arm's own parameters come later and override them.
    pub cmdline: &'static str,
}

/// The limit of most guests, the same as in [`crate::vm::job::Job::new`].
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(180);
/// For guests that fill much memory.
const LONG_TIMEOUT: Duration = Duration::from_secs(600);
/// For guests with up to 64 CPUs that one host thread emulates. Ten minutes were too few for four of them on
/// two CPUs.
const MANY_CPUS_TIMEOUT: Duration = Duration::from_secs(2400);

/// For guests with more CPUs than the host. Each CPU would calibrate its delay loop, which fails when the
/// host does not run it all the time. `lpj` skips the calibration; the value is rather too high, which only
/// makes delays longer. `norandmaps`: see the scenario `rss-counters`.
const MANY_CPUS_PARAMETERS: &str = "norandmaps lpj=4000000";

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "reap",
        about: "512 MiB of a killed process come back: time, lock contention, CPU time",
        sentences: &[
            Sentence {
                guest: "multi",
                text: "A killed process of 512 MiB gives 90 % of them back after {ours 100-vmas/mrelease-90} ms \
                       instead of {stock 100-vmas/mrelease-90}, and two CPUs wait for each other at its page tables \
                       {ours 100-vmas/pte-lock-contended} times instead of {stock 100-vmas/pte-lock-contended}",
            },
            Sentence {
                guest: "icount",
                text: "A killed process of 128 MiB is gone after {ours 100-vmas/kill-instructions} instructions \
                       instead of {stock 100-vmas/kill-instructions}",
            },
        ],
        controls: &[],
        runs: &[
            Run {
                mode: Mode::Multi,
                cpus: 2,
                mem_mib: 1536,
                timeout: DEFAULT_TIMEOUT,
                args: &[],
                cmdline: "",
            },
            // Contention is measured in `multi`; icount runs one CPU. Instructions per page do not depend on
            // the size and vary little, so one round with a small victim is enough.
            Run {
                mode: Mode::Icount,
                cpus: 1,
                mem_mib: 512,
                timeout: DEFAULT_TIMEOUT,
                args: &["icount", "mib=128", "rounds=1"],
                cmdline: "",
            },
        ],
    },
    Scenario {
        name: "release",
        about: "what it costs to free the pages of a process: contiguous, fragmented, soon used again",
        sentences: &[
            Sentence {
                guest: "icount",
                text: "A killed process of 64 MiB frees them in {ours contiguous/exit-instructions} instructions \
                       instead of {stock contiguous/exit-instructions} where its pages are neighbours, and in {ours \
                       single/exit-instructions} instead of {stock single/exit-instructions} where no two are",
            },
            Sentence {
                guest: "multi",
                text: "CPUs that take 8 MiB and give them back wait for each other {ours \
                       munmap-8-mib/zone-lock-contended} times instead of {stock munmap-8-mib/zone-lock-contended}",
            },
        ],
        controls: &[],
        // norandmaps: as in `rss-counters`.
        runs: &[
            Run {
                mode: Mode::Icount,
                cpus: 1,
                mem_mib: 512,
                timeout: DEFAULT_TIMEOUT,
                args: &[],
                cmdline: "norandmaps",
            },
            Run {
                mode: Mode::Multi,
                cpus: 2,
                mem_mib: 512,
                timeout: DEFAULT_TIMEOUT,
                args: &["multi"],
                cmdline: "",
            },
        ],
    },
    Scenario {
        name: "ksm-rmap",
        about: "KSM pages in many VMAs are moved and reclaimed: the walks, locks held, faults delayed",
        sentences: &[
            Sentence {
                guest: "icount",
                text: "To find the 200 places where a page is mapped that KSM has merged takes {ours \
                       20000-vmas-200-maps/walk} ns instead of {stock 20000-vmas-200-maps/walk}",
            },
            Sentence {
                guest: "multi",
                text: "While the kernel moves pages that KSM has merged, the first touch of memory beside them takes \
                       at most {ours 20000-vmas-200-maps/fault-anon-max} ms instead of \
                       {stock 20000-vmas-200-maps/fault-anon-max}",
            },
        ],
        controls: &[],
        // Pages migrate between two nodes.
        runs: &[
            Run {
                mode: Mode::Multi,
                cpus: 2,
                mem_mib: 768,
                timeout: DEFAULT_TIMEOUT,
                args: &[],
                cmdline: "numa=fake=2",
            },
            Run {
                mode: Mode::Icount,
                cpus: 1,
                mem_mib: 512,
                timeout: DEFAULT_TIMEOUT,
                args: &["icount"],
                cmdline: "numa=fake=2",
            },
        ],
    },
    Scenario {
        name: "expedite",
        about: "killed processes that can hardly run: how fast their memory comes back, and who pays",
        sentences: &[
            Sentence {
                guest: "icount",
                text: "A killed process that may use 10 % of a CPU gives back {ours cpu-10/kill-rate} MB/s instead \
                       of {stock cpu-10/kill-rate}",
            },
            Sentence {
                guest: "multi",
                text: "A killed process that may use 10 % of a CPU gives back {ours cpu-10/kill-rate} MB/s instead \
                       of {stock cpu-10/kill-rate}",
            },
        ],
        controls: &[],
        runs: &[
            Run {
                mode: Mode::Multi,
                cpus: 2,
                mem_mib: 1024,
                timeout: DEFAULT_TIMEOUT,
                args: &[],
                cmdline: "",
            },
            Run {
                mode: Mode::Icount,
                cpus: 1,
                mem_mib: 640,
                timeout: DEFAULT_TIMEOUT,
                args: &["icount"],
                cmdline: "",
            },
        ],
    },
    Scenario {
        name: "rss-counters",
        about: "what it costs to count a process's pages, and how far off others see them",
        // The other topics make page faults and exits cheaper, too.
        sentences: &[
            Sentence {
                guest: "icount-64",
                text: "With 64 CPUs, what /proc/PID/stat says of a process is wrong by {ours error-all/stat} MB \
                       instead of {stock error-all/stat}",
            },
            Sentence {
                guest: "icount-16",
                text: "With 16 CPUs, what /proc/PID/stat says of a process is wrong by {ours error-all/stat} MB \
                       instead of {stock error-all/stat}",
            },
            Sentence {
                guest: "multi",
                text: "With two CPUs, what /proc/PID/stat says of a process is wrong by {ours error-all/stat} MB \
                       instead of {stock error-all/stat}",
            },
            Sentence {
                guest: "icount-1",
                text: "A page fault costs {ours fault/instructions} instructions instead of {stock \
                       fault/instructions}",
            },
        ],
        controls: &[ControlKernel::patch("memreap-rss-counters")],
        // The error grows with the number of CPUs, so there are guests with few and with many. The CPUs
        // work one after the other anyway, and an arm64 guest locks up with 64 at once. norandmaps: the addresses
        // of a process decide how many page tables and VMAs it has, and so what a fork or a fault costs;
        // without it that would vary more than the regression that must be detected.
        runs: &[
            Run {
                mode: Mode::Icount,
                cpus: 1,
                mem_mib: 512,
                timeout: DEFAULT_TIMEOUT,
                args: &["instructions"],
                cmdline: "norandmaps",
            },
            Run {
                mode: Mode::Multi,
                cpus: 2,
                mem_mib: 512,
                timeout: DEFAULT_TIMEOUT,
                args: &["rates", "errors"],
                cmdline: "norandmaps",
            },
            Run {
                mode: Mode::Icount,
                cpus: 16,
                mem_mib: 768,
                timeout: MANY_CPUS_TIMEOUT,
                args: &["errors"],
                cmdline: MANY_CPUS_PARAMETERS,
            },
            Run {
                mode: Mode::Icount,
                cpus: 64,
                mem_mib: 1024,
                timeout: MANY_CPUS_TIMEOUT,
                args: &["errors"],
                cmdline: MANY_CPUS_PARAMETERS,
            },
        ],
    },
    Scenario {
        name: "oom-select",
        about: "the OOM killer chooses among many processes: how fast, and the right one?",
        sentences: &[
            Sentence {
                guest: "icount-64",
                text: "With 64 CPUs, the OOM killer kills a smaller process than the largest in {ours \
                       victim/misses} of 13 cases made to mislead it, instead of {stock victim/misses}",
            },
            Sentence {
                guest: "icount-16",
                text: "With 16 CPUs, the OOM killer kills a smaller process than the largest in {ours \
                       victim/misses} of 13 cases made to mislead it, instead of {stock victim/misses}",
            },
        ],
        controls: &[ControlKernel::patch("stock-precise"), ControlKernel::patch("memreap-plain-sums")],
        // The cost of a precise sum and the error of an approximate one depend on the number of CPUs.
        runs: &[
            Run {
                mode: Mode::Icount,
                cpus: 16,
                mem_mib: 4096,
                timeout: MANY_CPUS_TIMEOUT,
                args: &[],
                cmdline: "",
            },
            Run {
                mode: Mode::Icount,
                cpus: 64,
                mem_mib: 4096,
                timeout: MANY_CPUS_TIMEOUT,
                args: &[],
                cmdline: "",
            },
        ],
    },
    Scenario {
        name: "swap-batch",
        about: "the same as swap-defer, and nothing is deferred",
        sentences: &[Sentence {
            guest: "icount",
            text: "Eight killed processes, two thirds of them in swap, are gone after {ours 8x64-65/gone-ms} ms \
                       instead of {stock 8x64-65/gone-ms}, though no slot is released later",
        }],
        controls: &[ControlKernel::changed("memreap-off", "memreap.swap_batch=0 memreap.swap_defer=0")],
        // With two CPUs, it is an arm of swap-defer.
        runs: &[Run {
            mode: Mode::Icount,
            cpus: 1,
            mem_mib: 2048,
            timeout: LONG_TIMEOUT,
            args: &["icount"],
            cmdline: "memreap.swap_defer=0",
        }],
    },
    Scenario {
        name: "swap-defer",
        about: "killed processes whose memory is mostly in swap: how fast it comes back, and who waits",
        // The other topics alone, and slots that are released together, but at once.
        sentences: &[
            Sentence {
                guest: "icount",
                text: "Eight killed processes, two thirds of them in swap, are gone after {ours 8x64-65/gone-ms} ms \
                       instead of {stock 8x64-65/gone-ms}",
            },
            Sentence {
                guest: "multi",
                text: "Eight killed processes, two thirds of them in swap, are gone after {ours 8x64-65/gone-ms} ms \
                       instead of {stock 8x64-65/gone-ms}",
            },
        ],
        controls: &[
            ControlKernel::changed("memreap-off", "memreap.swap_batch=0 memreap.swap_defer=0"),
            ControlKernel::changed("memreap-batch", "memreap.swap_defer=0"),
        ],
        runs: &[
            Run {
                mode: Mode::Icount,
                cpus: 1,
                mem_mib: 2048,
                timeout: LONG_TIMEOUT,
                args: &["icount"],
                cmdline: "",
            },
            // The file below the loop device is in memory, too; with less, more than the share of a victim is
            // swapped out.
            Run { mode: Mode::Multi, cpus: 2, mem_mib: 3072, timeout: LONG_TIMEOUT, args: &[], cmdline: "" },
        ],
    },
    Scenario {
        name: "storm-phone",
        about: "a camera needs memory on a phone whose apps are in zram, and a killer like lmkd ends some of them",
        sentences: &[Sentence {
            guest: "icount",
            text: "A camera on a full phone has its 256 MiB after {ours camera-ms} ms instead of {stock \
                       camera-ms}, and {ours late-frames} frames of the application in the foreground are late \
                       instead of {stock late-frames}",
        }],
        controls: &[],
        // `make demo` begins with it. Two CPUs at once are among the cases: times vary too much there.
        runs: &[Run {
            mode: Mode::Icount,
            cpus: 2,
            mem_mib: 1536,
            timeout: LONG_TIMEOUT,
            args: &[],
            cmdline: "",
        }],
    },
    Scenario {
        name: "storm-phone-cases",
        about: "the same with a driver's buffers, slow CPUs, memreap as the killer, and each topic alone",
        sentences: &[
            Sentence {
                guest: "icount-2",
                text: "A camera on a full phone has 256 buffers of its driver after {ours driver/camera-ms} ms \
                       instead of {stock driver/camera-ms}",
            },
            Sentence {
                guest: "multi",
                text: "While a camera takes its memory on a full phone, {ours memory/late-frames} frames of the \
                       application in the foreground are late instead of {stock memory/late-frames}",
            },
            Sentence {
                guest: "icount-8",
                text: "A camera on a phone whose background has slow CPUs waits for its memory for {ours \
                       slow/camera-wait-ms} ms instead of {stock slow/camera-wait-ms}",
            },
        ],
        controls: &[
            ControlKernel::changed(
                "memreap-none",
                "memreap.reap=0 memreap.release=0 memreap.swap_batch=0 memreap.swap_defer=0",
            ),
            ControlKernel::changed(
                "memreap-reap",
                "memreap.release=0 memreap.swap_batch=0 memreap.swap_defer=0",
            ),
            ControlKernel::changed(
                "memreap-release",
                "memreap.reap=0 memreap.swap_batch=0 memreap.swap_defer=0",
            ),
            ControlKernel::changed("memreap-swap", "memreap.reap=0 memreap.release=0"),
            ControlKernel::changed("memreap-no-reap", "memreap.reap=0"),
            ControlKernel::changed("memreap-no-release", "memreap.release=0"),
            ControlKernel::changed("memreap-off", "memreap.swap_batch=0 memreap.swap_defer=0"),
        ],
        runs: &[
            Run { mode: Mode::Icount, cpus: 2, mem_mib: 1536, timeout: LONG_TIMEOUT, args: &[], cmdline: "" },
            Run {
                mode: Mode::Multi,
                cpus: 2,
                mem_mib: 1536,
                timeout: LONG_TIMEOUT,
                args: &["memory"],
                cmdline: "",
            },
            Run {
                mode: Mode::Icount,
                cpus: 8,
                mem_mib: 1536,
                timeout: LONG_TIMEOUT,
                args: &["slow"],
                cmdline: "",
            },
        ],
    },
    Scenario {
        name: "memcg-exit",
        about: "a job of 1,000 threads, swapped out, dies in a cgroup at its limit: how long, and who waits",
        sentences: &[
            Sentence {
                guest: "icount",
                text: "A job of 1,000 threads, half of it in zswap, dies at its memory limit, and its memory is \
                       back after {ours oom-zswap/memory-95-ms} ms instead of {stock oom-zswap/memory-95-ms}",
            },
            Sentence {
                guest: "multi",
                text: "While a job of 1,000 threads dies at its memory limit, a neighbour gets {ours \
                       oom-zswap/neighbour-percent} % of its work done instead of {stock \
                       oom-zswap/neighbour-percent}",
            },
        ],
        controls: &[ControlKernel::changed("memreap-others", "memreap.memcg_exit=0")],
        runs: &[
            Run {
                mode: Mode::Icount,
                cpus: 2,
                mem_mib: 1024,
                timeout: LONG_TIMEOUT,
                args: &["icount"],
                cmdline: "",
            },
            Run { mode: Mode::Multi, cpus: 2, mem_mib: 1024, timeout: LONG_TIMEOUT, args: &[], cmdline: "" },
        ],
    },
];

/// Returns all scenarios, in the order in which they run.
#[must_use]
pub fn all() -> &'static [Scenario] {
    SCENARIOS
}

/// Returns the scenarios of these names, in the given order; all of them if there is no name.
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
            bail!(format::no_such("scenario", name, all().iter().map(|s| s.name)));
        };
        if selected.iter().any(|s| s.name == scenario.name) {
            bail!("scenario '{name}' is given twice");
        }
        selected.push(scenario);
    }
    Ok(selected)
}

/// Returns the control kernels of all scenarios, each once, sorted by name.
#[must_use]
pub fn controls() -> Vec<ControlKernel> {
    let mut controls: Vec<ControlKernel> = all().iter().flat_map(|s| s.controls.iter().copied()).collect();
    controls.sort_unstable();
    controls.dedup();
    controls
}

/// Returns the mode's name in files and tables.
#[must_use]
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Multi => "multi",
        Mode::Icount => "icount",
    }
}

/// Returns the run's name in files and tables: its mode, and its CPUs if the mode is ambiguous
/// ([`Scenario::cpus_in_name`]), for example `icount-64`.
#[must_use]
pub fn run_name(mode: &str, cpus: Option<u32>) -> String {
    cpus.map_or_else(|| mode.to_owned(), |cpus| format!("{mode}-{cpus}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn runs_of_a_scenario_have_different_names() {
        for scenario in all() {
            let mut names: Vec<String> = scenario.runs.iter().map(|run| scenario.run_name(run)).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), scenario.runs.len(), "{}: {names:?}", scenario.name);
        }
        let run = |mode, cpus| Run { mode, cpus, ..all()[0].runs[0] };
        let runs = [run(Mode::Icount, 1), run(Mode::Multi, 2), run(Mode::Icount, 64)];
        let scenario = Scenario { runs: runs.to_vec().leak(), ..all()[0] };
        assert_eq!(runs.map(|run| scenario.cpus_in_name(&run)), [Some(1), None, Some(64)]);
        assert_eq!([run_name("icount", Some(64)), run_name("multi", None)], ["icount-64", "multi"]);
    }

    #[test]
    fn control_kernels_have_different_names() {
        let mut names: Vec<&str> = controls().iter().map(|control| control.name).collect();
        let all = names.len();
        names.extend(["stock", "memreap"]);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all + 2, "{names:?}");
        let mut built: Vec<&str> =
            controls().iter().filter(|c| c.parameters.is_none()).map(|c| c.name).collect();
        let mut named = crate::kernel::CONTROLS.to_vec();
        named.sort_unstable();
        built.sort_unstable();
        assert_eq!(built, named, "each is built, and each is compared with");
        assert!(controls().iter().all(|control| control.parameters != Some("")));
    }

    #[test]
    fn scenarios_are_selected_by_name() {
        assert_eq!(select(&[]).unwrap().len(), all().len());
        assert_eq!(select(&["reap".into()]).unwrap()[0].name, "reap");
        let unknown = select(&["raep".into()]).unwrap_err().to_string();
        assert!(unknown.contains("raep") && unknown.contains("reap"), "{unknown}");
        assert!(select(&["reap".into(), "reap".into()]).is_err());
    }
}
