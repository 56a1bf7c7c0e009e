// SPDX-License-Identifier: GPL-2.0-only

use crate::{ControlKernel, Guest, MANY_CPUS_TIMEOUT, Scenario, Sentence, group, lower};

pub const OOM_SELECT: Scenario = Scenario {
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
    guests: &[
        Guest { name: "icount-16", cpus: 16, mem_mib: 4096, timeout: MANY_CPUS_TIMEOUT, ..Guest::ICOUNT },
        Guest { name: "icount-64", cpus: 64, mem_mib: 4096, timeout: MANY_CPUS_TIMEOUT, ..Guest::ICOUNT },
    ],
    metrics: &[
        group(
            &[
                "lognormal-200",
                "lognormal-2000",
                "lognormal-10000",
                "near-equal-2000",
                "all-cpus-2000",
                "ascending-2000",
            ],
            &[
                lower(
                    "select-us",
                    "us",
                    "time from the start of the choice to its end, in guest time, when a memory cgroup is over its limit",
                ),
                lower(
                    "precise-share",
                    "percent",
                    "precise sums taken, in per cent of the processes; on kernels without the topic, sums of a stock \
                     counter by four",
                ),
            ],
        ),
        group(
            &["lognormal-2000"],
            &[lower("select-global-us", "us", "the same among all processes of the system (SysRq `f`)")],
        ),
        group(
            &["lognormal-2000", "all-cpus-2000"],
            &[lower(
                "report-us",
                "us",
                "the choice in the cgroup, and the report of all its processes in the kernel's log \
                 (`vm.oom_dump_tasks=1`, the default)",
            )],
        ),
        group(
            &["victim"],
            &[
                lower(
                    "misses",
                    "count",
                    "of 13 populations per boot that are made to be mistaken: how often a smaller process was killed \
                     than the largest one (a tie is right)",
                ),
                lower("short-mb", "MB", "by how much it was smaller, mean over the populations"),
            ],
        ),
    ],
    doc: "\
The OOM killer chooses among 200, 2,000 and 10,000 processes, with 16 and 64 CPUs: `lognormal-*` of 4 MiB in the median (deviation of the
logarithm 1), `near-equal-2000` all within 1 % of each other. Half of them have two threads, a third has been on up to eight CPUs besides
the one where it sleeps. In `all-cpus-2000` and `ascending-2000`, which are near-equal as well, those with threads have been on all CPUs; in
the latter each is at least as large as those before it. All map the same file, so that 12 GiB of resident memory need 64 MiB.

{metrics}

For `victim`, 24 processes of 64 to 68 MiB are added to `lognormal-2000`. In each round all of them get new sizes and run on a random
number of CPUs. On each CPU they map or allocate an amount that a CPU of the stock kernel holds back, up to 127 pages with 64 CPUs. The
right victim is computed from `statm`, `VmPTE` and `VmSwap` in /proc, which are precise in all kernels. These populations differ from
boot to boot; the seed is in the boot's notes (`channel.jsonl`), and repeats them:

    lab boot --cpus 64 --mem 4096 --mode icount --copy target/guest/x86_64-unknown-linux-gnu/release/guest:/bin/guest \\
        -- sh -c 'guest scenario oom-select icount-64 case=victim seed=N 0>&1'

The others are the same in all boots.

The kernel `stock-precise` beside the two arms is stock with an OOM killer that sums all counters up
([kernel/controls](../kernel/controls/stock-precise.patch)): the right victim, and what it costs. `memreap-plain-sums` is the changed kernel
without the test whether a task can win: each one is summed up.

Each kind of choice is timed nine times, and the median counts: with 64 emulated CPUs a timer tick falls into one choice in ten, which then
takes three times as long, as each CPU has its turn before it goes on. A choice is timed by kprobes on `out_of_memory` and
`oom_kill_process`. The process that provokes it has priority over all others on the CPU where they sleep, and only a signal ends its write
to `memory.max`. So a killed process cannot give up its memory meanwhile, which would make the kernel choose again.

With more than 8 CPUs an instruction takes 4 ns of guest time under icount, not one. When a task waits for time to pass, every CPU has to be
emulated meanwhile, and every boot waits for 100 ms.
",
};
