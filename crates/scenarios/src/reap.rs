// SPDX-License-Identifier: GPL-2.0-only

use crate::{Guest, Scenario, group, higher, lower};

const VMAS: &[&str] = &["100-vmas", "1000-vmas", "1-vma"];

pub const REAP: Scenario = Scenario {
    name: "reap",
    about: "512 MiB of a killed process come back: time, lock contention, CPU time",
    sentences: sentences! {
        "multi"
            "A killed process of 512 MiB gives 90 % of them back after {ours 100-vmas/mrelease-90} ms instead of \
             {stock 100-vmas/mrelease-90}, and two CPUs wait for each other at its page tables {ours \
             100-vmas/pte-lock-contended} times instead of {stock 100-vmas/pte-lock-contended}";
        "icount"
            "A killed process of 128 MiB is gone after {ours 100-vmas/kill-instructions} instructions instead of \
             {stock 100-vmas/kill-instructions}";
    },
    controls: &[],
    guests: &[
        Guest { mem_mib: 1536, ..Guest::MULTI },
        // Contention is measured in `multi`; icount runs one CPU.
        Guest::ICOUNT,
    ],
    metrics: metrics! {
        VMAS, only(&["multi"]) => {
            lower "kill-90" "ms" "time from SIGKILL until 90 % is back";
            lower "kill-cpu" "ms" "CPU time of the exiting process from SIGKILL on";
            lower "mrelease-90" "ms" "time until 90 % is back with one process_mrelease(2) thread";
            lower "mrelease-cpu" "ms" "CPU time of the exiting process and that thread together";
            lower "mrelease2-90" "ms" "time until 90 % is back with two such threads";
            lower "mrelease2-cpu" "ms" "CPU time of the exiting process and both threads together";
            lower "pte-lock-contended" "count" "entries into the slow path of page tables' locks";
            lower "pte-lock-wait" "us" "time spent there";
            lower "lru-lock-contended" "count" "entries into the slow path of the LRU lists' locks";
            lower "lru-lock-wait" "us" "time spent there";
            lower "zone-lock-contended" "count" "entries into the slow path of the zone's lock";
            higher "freed-descending" "percent" "share of the reaper's steps that go down the address space";
        }
        VMAS, only(&["icount"]) => {
            lower "kill-instructions" "instructions" "CPU time of the exiting process, with 128 MiB";
            lower "mrelease-instructions" "instructions" "the same with one process_mrelease(2) thread, of both";
        }
        &["throttled"] => {
            lower "mrelease-back" "ms" "time from SIGKILL until process_mrelease(2) has returned in one thread";
        }
        &["throttled"], only(&["multi"]) => {
            lower "mrelease2-back" "ms" "the same, in both of two threads";
        }
    },
};
