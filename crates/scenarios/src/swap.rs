// SPDX-License-Identifier: GPL-2.0-only

use crate::{ControlKernel, Group, Guest, LONG_TIMEOUT, Scenario, Sentence, group, lower};

const ON_ZRAM: &[&str] =
    &["8x64-65", "1x64-65", "4x64-65", "15x64-65", "1x64-95", "8x64-95", "8x64-65-scattered", "8x64-65-lz4"];
const ALL: &[&str] = &[
    "8x64-65",
    "1x64-65",
    "4x64-65",
    "15x64-65",
    "1x64-95",
    "8x64-95",
    "8x64-65-scattered",
    "8x64-65-lz4",
    "8x64-65-loop",
    "8x64-65-zswap",
];

const METRICS: &[Group] = &[
    group(
        ALL,
        &[
            lower("gone-ms", "ms", "time from the first SIGKILL until the last victim is dead"),
            lower("ram-98-ms", "ms", "until 98 % of the memory is back that was not in swap"),
            lower(
                "swap-98-ms",
                "ms",
                "until 98 % of the swap space is not in use any more (/proc/swaps); `SwapFree` counts what waits as free",
            ),
            lower("mem-98-ms", "ms", "until free memory has reached 98 % of what it is in the end"),
            lower(
                "cpu-ms",
                "ms",
                "CPU time of all tasks but the scenario's own, victims and kernel threads, until all is back",
            ),
            lower(
                "backlog-mb",
                "MB",
                "the most swap that waited to be released; 0 on kernels without the topic",
            ),
        ],
    ),
    group(
        ON_ZRAM,
        &[lower("zram-98-ms", "ms", "until zram has given back 98 % of what it gives back in the end")],
    ),
    group(
        &["8x64-65", "1x64-65"],
        &[lower("pte-lock-max-us", "us", "the longest hold of a page table's lock by a victim")],
    )
    .only(&["icount"]),
    group(
        &["8x64-65"],
        &[
            lower(
                "fg-alloc-p50-us",
                "us",
                "a step of a process that touches a MiB of fresh memory and frees it",
            ),
            lower("fg-alloc-p99-us", "us", "one in a hundred takes longer"),
            lower("fg-alloc-max-us", "us", "the longest"),
            lower("fg-compute-p50-us", "us", "a step of a process that computes, beside it"),
            lower("fg-compute-p99-us", "us", "one in a hundred takes longer"),
            lower("fg-compute-max-us", "us", "the longest"),
        ],
    ),
];

/// The changed kernel without both topics.
const OFF: ControlKernel = ControlKernel::changed("memreap-off", "memreap.swap_batch=0 memreap.swap_defer=0");

const ICOUNT: Guest = Guest { mem_mib: 2048, timeout: LONG_TIMEOUT, ..Guest::ICOUNT };

pub const SWAP_BATCH: Scenario = Scenario {
    name: "swap-batch",
    about: "the same as swap-defer, and nothing is deferred",
    sentences: &[Sentence {
        guest: "icount",
        text: "Eight killed processes, two thirds of them in swap, are gone after {ours 8x64-65/gone-ms} ms \
               instead of {stock 8x64-65/gone-ms}, though no slot is released later",
    }],
    controls: &[OFF],
    // With two CPUs, it is an arm of swap-defer.
    guests: &[Guest { cmdline: "memreap.swap_defer=0", ..ICOUNT }],
    metrics: METRICS,
    doc: "\
Processes of 64 MiB whose memory is mostly in swap are killed, all at once: `8x64-65` are eight of them, 65 % in swap. Their memory is
compressed to a third, no two pages are equal, and they are swapped out alternating, 64 pages each, so that their slots are side by side.
Each has its own memory cgroup. `scattered`: no two neighbours in memory have neighbouring slots. `lz4`: zram with that compression.
`loop`: swap on a loop device over a file in memory, which is not notified when a slot is freed. `zswap`: the same below zswap, which
writes nothing to it. In this scenario no slot is released later (boot parameter `memreap.swap_defer=0`).

{metrics}

The steps are taken from the kill on, for longer than the kill takes.

The RAM that is back is the sum of free memory and the size of zram's pool. What the pool gives back leaves the sum as it is, so it grows
only by pages of the victims that were in memory. Mapped pages (`AnonPages`) would show too much too early, because a dying process unmaps
all its pages before it frees the first. Per-CPU counters and lists may hide about 1 MiB. Free memory, free swap and the pool's size are
read each millisecond by a real-time thread, which takes 5 % of that CPU under icount, on all arms alike.

A kprobe shows when a page table's lock is taken, the event `kmem:rss_stat` when it is about to be released. Rounds for that, and rounds
in which other processes work, are separate.

The kernel beside the two arms is the changed one with both topics off (`memreap-off`, boot parameters `memreap.swap_batch=0
memreap.swap_defer=0`).
",
};

pub const SWAP_DEFER: Scenario = Scenario {
    name: "swap-defer",
    about: "killed processes whose memory is mostly in swap: how fast it comes back, and who waits",
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
    // The other topics alone, and slots that are released together, but at once.
    controls: &[OFF, ControlKernel::changed("memreap-batch", "memreap.swap_defer=0")],
    guests: &[
        ICOUNT,
        // The file below the loop device is in memory, too; with less, more than the share of a victim is
        // swapped out.
        Guest { mem_mib: 3072, timeout: LONG_TIMEOUT, ..Guest::MULTI },
    ],
    metrics: METRICS,
    doc: "\
The same as `swap-batch`, with slots that are released later. The kernels beside the two arms are `memreap-off` as there, and the changed
one with slots that are released together, but at once (`memreap-batch`, `memreap.swap_defer=0`).

{metrics}
",
};
