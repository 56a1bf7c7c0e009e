// SPDX-License-Identifier: GPL-2.0-only

use crate::{ControlKernel, Group, Guest, LONG_TIMEOUT, Scenario, group, lower};

const METRICS: &[Group] = metrics! {
    &[
        "8x64-65", "1x64-65", "4x64-65", "15x64-65", "1x64-95", "8x64-95", "8x64-65-scattered", "8x64-65-lz4",
        "8x64-65-loop", "8x64-65-zswap",
    ] => {
        lower "gone-ms" "ms" "time from the first SIGKILL until the last victim is dead";
        lower "ram-98-ms" "ms" "until 98 % of the memory is back that was not in swap";
        lower "swap-98-ms" "ms"
            "until 98 % of the swap space is not in use any more (/proc/swaps); `SwapFree` counts what waits as free";
        lower "mem-98-ms" "ms" "until free memory has reached 98 % of what it is in the end";
        lower "cpu-ms" "ms"
            "CPU time of all tasks but the scenario's own, victims and kernel threads, until all is back";
        lower "backlog-mb" "MB" "swap space of the victims that is still in use when the last of them is dead";
    }
    &["8x64-65", "1x64-65", "4x64-65", "15x64-65", "1x64-95", "8x64-95", "8x64-65-scattered", "8x64-65-lz4"] => {
        lower "zram-98-ms" "ms" "until zram has given back 98 % of what it gives back in the end";
    }
    &["8x64-65", "1x64-65"], only(&["icount"]) => {
        lower "pte-lock-max-us" "us" "the longest hold of a page table's lock by a victim";
    }
    &["8x64-65"] => {
        lower "fg-alloc-p50-us" "us" "a step of a process that touches a MiB of fresh memory and frees it";
        lower "fg-alloc-p99-us" "us" "one in a hundred takes longer";
        lower "fg-alloc-max-us" "us" "the longest";
        lower "fg-compute-p50-us" "us" "a step of a process that computes, beside it";
        lower "fg-compute-p99-us" "us" "one in a hundred takes longer";
        lower "fg-compute-max-us" "us" "the longest";
    }
};

const GONE: &str = "Eight killed processes, two thirds of them in swap, are gone after {ours 8x64-65/gone-ms} ms \
                    instead of {stock 8x64-65/gone-ms}";

/// The changed kernel without both topics.
const OFF: ControlKernel = ControlKernel::changed("memreap-off", "memreap.swap_batch=0 memreap.swap_defer=0");

const ICOUNT: Guest = Guest { mem_mib: 2048, timeout: LONG_TIMEOUT, ..Guest::ICOUNT };

pub const SWAP_BATCH: Scenario = Scenario {
    name: "swap-batch",
    about: "the same as swap-defer, and nothing is deferred",
    sentences: sentences! {
        "icount"
            "Eight killed processes, two thirds of them in swap, are gone after {ours 8x64-65/gone-ms} ms instead of \
             {stock 8x64-65/gone-ms}, though no slot is released later";
    },
    controls: &[OFF],
    // With two CPUs, it is an arm of swap-defer.
    guests: &[Guest { cmdline: "memreap.swap_defer=0", ..ICOUNT }],
    metrics: METRICS,
};

pub const SWAP_DEFER: Scenario = Scenario {
    name: "swap-defer",
    about: "killed processes whose memory is mostly in swap: how fast it comes back, and who waits",
    sentences: sentences! {
        "icount" GONE;
        "multi" GONE;
    },
    // The other topics alone, and slots that are released together, but at once.
    controls: &[OFF, ControlKernel::changed("memreap-batch", "memreap.swap_defer=0")],
    guests: &[
        ICOUNT,
        // The file below the loop device is in memory, too; with less, more than the share of a victim is
        // swapped out.
        Guest { mem_mib: 3072, timeout: LONG_TIMEOUT, ..Guest::MULTI },
    ],
    metrics: METRICS,
};
