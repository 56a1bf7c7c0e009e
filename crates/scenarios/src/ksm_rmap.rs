// SPDX-License-Identifier: GPL-2.0-only

use crate::{Guest, Scenario, group, lower};

const CASES: &[&str] = &["2000-vmas-2-maps", "2000-vmas-200-maps", "20000-vmas-2-maps", "20000-vmas-200-maps"];
const OF_20000_VMAS: &[&str] = &["20000-vmas-2-maps", "20000-vmas-200-maps"];
/// Pages migrate between two nodes.
const TWO_NODES: &str = "numa=fake=2";

const WALK: &str = "time of a call of rmap_walk_ksm() in a migration, which makes two: the mean of both kinds' medians";
const HOLD: &str = "the longest hold of the anon_vma's lock in a walk, median over the walks";
const FAULT: &str = "first touch of a VMA that joins the anon_vma, while pages are being migrated";

pub const KSM_RMAP: Scenario = Scenario {
    name: "ksm-rmap",
    about: "KSM pages in many VMAs are moved and reclaimed: the walks, locks held, faults delayed",
    sentences: sentences! {
        "icount"
            "To find the 200 places where a page is mapped that KSM has merged takes {ours 20000-vmas-200-maps/walk} \
             ns instead of {stock 20000-vmas-200-maps/walk}";
        "multi"
            "While the kernel moves pages that KSM has merged, the first touch of memory beside them takes at most \
             {ours 20000-vmas-200-maps/fault-anon-max} ms instead of {stock 20000-vmas-200-maps/fault-anon-max}";
    },
    controls: &[],
    guests: &[
        Guest { mem_mib: 768, cmdline: TWO_NODES, ..Guest::MULTI },
        Guest { cmdline: TWO_NODES, ..Guest::ICOUNT },
    ],
    metrics: metrics! {
        CASES, only(&["multi"]) => {
            lower "walk" "ms" WALK;
            lower "lock-hold" "ms" HOLD;
            lower "lock-hold-max" "ms" "the longest hold in a fifth of the walks, median of the fifths";
        }
        OF_20000_VMAS, only(&["multi"]) => {
            lower "fault-anon-p50" "ms" FAULT;
            lower "fault-anon-max" "ms" "the longest of these";
            lower "fault-ksm-p50" "ms" "read of a page that is being migrated just then";
            lower "fault-ksm-max" "ms" "the longest of these";
        }
        CASES, only(&["icount"]) => {
            lower "walk" "ns" WALK;
            lower "lock-hold" "ns" HOLD;
            lower "vmas-per-mapping" "count" "VMAs visited by a walk, for each place at which the page is mapped";
            lower "walk-reclaim" "ns" "time of a walk in reclaim";
        }
        OF_20000_VMAS, only(&["icount"]) => {
            lower "fault-anon-p50" "ns" FAULT;
            lower "fault-anon-max" "ns" "the longest of these";
        }
        OF_20000_VMAS, only(&["icount"]), of_all_cases() => {
            lower "growth" "ratio" "`walk` with 20,000 VMAs over `walk` with 2,000";
        }
        &[], only(&["icount"]), of_all_cases() => {
            lower "merge-instructions" "instructions"
                "CPU time of ksmd for a page from its first sight to being merged";
            lower "remerge-instructions" "instructions"
                "the same for one that has been merged and changes: eight times in a row, with `smart_scan` as by \
                 default";
            lower "remerge-scans" "count" "the full scans of all memory until it is merged again";
        }
    },
};
