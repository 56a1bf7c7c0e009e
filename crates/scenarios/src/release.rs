// SPDX-License-Identifier: GPL-2.0-only

use crate::{FIXED_ADDRESSES, Guest, Scenario, group, lower};

pub const RELEASE: Scenario = Scenario {
    name: "release",
    about: "what it costs to free the pages of a process: contiguous, fragmented, soon used again",
    sentences: sentences! {
        "icount"
            "A killed process of 64 MiB frees them in {ours contiguous/exit-instructions} instructions instead of \
             {stock contiguous/exit-instructions} where its pages are neighbours, and in {ours \
             single/exit-instructions} instead of {stock single/exit-instructions} where no two are";
        "multi"
            "CPUs that take 8 MiB and give them back wait for each other {ours munmap-8-mib/zone-lock-contended} times \
             instead of {stock munmap-8-mib/zone-lock-contended}";
    },
    controls: &[],
    guests: &[Guest { cmdline: FIXED_ADDRESSES, ..Guest::ICOUNT }, Guest::MULTI],
    metrics: metrics! {
        &["contiguous", "single", "pieces-of-4", "pieces-of-8", "pieces-of-16"], only(&["icount"]) => {
            lower "exit-instructions" "instructions" "CPU time of the victim from SIGKILL on";
        }
        &["fork-256-kib", "fork-1-mib", "fork-8-mib"], only(&["icount"]) => {
            lower "life-instructions" "instructions"
                "all that a process costs which touches that much and exits: the mean of 100 in a row, without the \
                 longest and the shortest tenth";
        }
        &["munmap-8-mib", "exit-8-mib"], only(&["multi"]) => {
            lower "zone-lock-contended" "count" "how often a CPU waits for the lock of the zone's free lists";
            lower "loops-ms" "ms" "time until all CPUs are done";
        }
    },
};
