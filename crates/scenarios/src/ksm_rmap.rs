// SPDX-License-Identifier: GPL-2.0-only

use crate::{Group, Guest, Metric, Scenario, Sentence, group, lower};

const CASES: &[&str] = &["2000-vmas-2-maps", "2000-vmas-200-maps", "20000-vmas-2-maps", "20000-vmas-200-maps"];
const OF_20000_VMAS: &[&str] = &["20000-vmas-2-maps", "20000-vmas-200-maps"];
/// Pages migrate between two nodes.
const TWO_NODES: &str = "numa=fake=2";

const fn walk(unit: &'static str) -> Metric {
    lower(
        "walk",
        unit,
        "time of a call of rmap_walk_ksm() in a migration, which makes two: the mean of both kinds' medians",
    )
}

const fn lock_hold(unit: &'static str) -> Metric {
    lower("lock-hold", unit, "the longest hold of the anon_vma's lock in a walk, median over the walks")
}

const fn fault_anon_p50(unit: &'static str) -> Metric {
    lower("fault-anon-p50", unit, "first touch of a VMA that joins the anon_vma, while pages are being migrated")
}

const fn fault_anon_max(unit: &'static str) -> Metric {
    lower("fault-anon-max", unit, "the longest of these")
}

const fn of_icount(cases: &'static [&'static str], metrics: &'static [Metric]) -> Group {
    group(cases, metrics).only(&["icount"])
}

pub const KSM_RMAP: Scenario = Scenario {
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
    guests: &[
        Guest { mem_mib: 768, cmdline: TWO_NODES, ..Guest::MULTI },
        Guest { cmdline: TWO_NODES, ..Guest::ICOUNT },
    ],
    metrics: &[
        group(
            CASES,
            &[
                walk("ms"),
                lock_hold("ms"),
                lower("lock-hold-max", "ms", "the longest hold in a fifth of the walks, median of the fifths"),
            ],
        )
        .only(&["multi"]),
        group(
            OF_20000_VMAS,
            &[
                fault_anon_p50("ms"),
                fault_anon_max("ms"),
                lower("fault-ksm-p50", "ms", "read of a page that is being migrated just then"),
                lower("fault-ksm-max", "ms", "the longest of these"),
            ],
        )
        .only(&["multi"]),
        of_icount(
            CASES,
            &[
                walk("ns"),
                lock_hold("ns"),
                lower(
                    "vmas-per-mapping",
                    "count",
                    "VMAs visited by a walk, for each place at which the page is mapped",
                ),
                lower("walk-reclaim", "ns", "time of a walk in reclaim"),
            ],
        ),
        of_icount(OF_20000_VMAS, &[fault_anon_p50("ns"), fault_anon_max("ns")]),
        of_icount(OF_20000_VMAS, &[lower("growth", "ratio", "`walk` with 20,000 VMAs over `walk` with 2,000")])
            .of_all_cases(),
        of_icount(
            &[],
            &[
                lower(
                    "merge-instructions",
                    "instructions",
                    "CPU time of ksmd for a page from its first sight to being merged",
                ),
                lower(
                    "remerge-instructions",
                    "instructions",
                    "the same for one that has been merged and changes: eight times in a row, with `smart_scan` as by \
                     default",
                ),
                lower("remerge-scans", "count", "the full scans of all memory until it is merged again"),
            ],
        )
        .of_all_cases(),
    ],
};
