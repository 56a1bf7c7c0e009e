// SPDX-License-Identifier: GPL-2.0-only

use crate::{ControlKernel, Guest, MANY_CPUS_TIMEOUT, Scenario, group, lower};

const ALL: &[&str] =
    &["lognormal-200", "lognormal-2000", "lognormal-10000", "near-equal-2000", "all-cpus-2000", "ascending-2000"];

pub const OOM_SELECT: Scenario = Scenario {
    name: "oom-select",
    about: "the OOM killer chooses among many processes: how fast, and the right one?",
    sentences: sentences! {
        "icount-64"
            "With 64 CPUs, the OOM killer kills a smaller process than the largest in {ours victim/misses} of 13 cases \
             made to mislead it, instead of {stock victim/misses}";
        "icount-16"
            "With 16 CPUs, the OOM killer kills a smaller process than the largest in {ours victim/misses} of 13 cases \
             made to mislead it, instead of {stock victim/misses}";
    },
    controls: &[ControlKernel::patch("stock-precise"), ControlKernel::patch("memreap-plain-sums")],
    // The cost of a precise sum and the error of an approximate one depend on the number of CPUs.
    guests: &[
        Guest { name: "icount-16", cpus: 16, mem_mib: 4096, timeout: MANY_CPUS_TIMEOUT, ..Guest::ICOUNT },
        Guest { name: "icount-64", cpus: 64, mem_mib: 4096, timeout: MANY_CPUS_TIMEOUT, ..Guest::ICOUNT },
    ],
    metrics: metrics! {
        ALL => {
            lower "select-us" "us"
                "time from the start of the choice to its end, in guest time, when a memory cgroup is over its limit";
            lower "precise-share" "percent"
                "precise sums taken, in per cent of the processes; on kernels without the topic, sums of a stock \
                 counter by four";
        }
        &["lognormal-2000"] => {
            lower "select-global-us" "us" "the same among all processes of the system (SysRq `f`)";
        }
        &["lognormal-2000", "all-cpus-2000"] => {
            lower "report-us" "us"
                "the choice in the cgroup, and the report of all its processes in the kernel's log \
                 (`vm.oom_dump_tasks=1`, the default)";
        }
        &["victim"] => {
            lower "misses" "count"
                "of 13 populations per boot that are made to be mistaken: how often a smaller process was killed than \
                 the largest one (a tie is right)";
            lower "short-mb" "MB" "by how much it was smaller, mean over the populations";
        }
    },
};
