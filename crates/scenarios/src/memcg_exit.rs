// SPDX-License-Identifier: GPL-2.0-only

use crate::{ControlKernel, Guest, LONG_TIMEOUT, Metric, Mode, Scenario, group, higher, lower};

const METRICS: &[Metric] = metrics! {
    lower "gone-ms" "ms" "time from the kill, or from when it goes beyond the limit, until the process is dead";
    lower "memory-95-ms" "ms" "until 5 % of its memory are left, by `memory.current`";
    lower "oom-calls" "count" "how often a task asked for the OOM killer (`oom` in `memory.events`)";
};

const ICOUNT: Guest = Guest { cpus: 2, mem_mib: 1024, timeout: LONG_TIMEOUT, ..Guest::ICOUNT };

pub const MEMCG_EXIT: Scenario = Scenario {
    name: "memcg-exit",
    about: "a job of 1,000 threads, swapped out, dies in a cgroup at its limit: how long, and who waits",
    sentences: sentences! {
        "icount"
            "A job of 1,000 threads, half of it in zswap, dies at its memory limit, and its memory is back after {ours \
             oom-zswap/memory-95-ms} ms instead of {stock oom-zswap/memory-95-ms}";
        "multi"
            "While a job of 1,000 threads dies at its memory limit, a neighbour gets {ours \
             oom-zswap/neighbour-percent} % of its work done instead of {stock oom-zswap/neighbour-percent}";
    },
    controls: &[ControlKernel::changed("memreap-others", "memreap.memcg_exit=0")],
    guests: &[ICOUNT, Guest { name: "multi", mode: Mode::Multi, ..ICOUNT }],
    // With icount, CPUs take turns: one slows down the other, and nothing is said about a neighbour.
    metrics: metrics! {
        &["killed", "oom", "oom-zswap", "oom-small"] => METRICS
        &["oom-shared"], only(&["multi"]) => METRICS
        &["killed", "oom", "oom-zswap", "oom-small", "oom-shared"], only(&["multi"]) => {
            higher "neighbour-percent" "%"
                "steps that a process in another cgroup completes in the 3 s after the kill, in percent of those in \
                 the 3 s before it; 0 if it is killed. A step touches a MiB of fresh memory and frees it";
        }
    },
};
