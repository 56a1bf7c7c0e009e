// SPDX-License-Identifier: GPL-2.0-only

use crate::{ControlKernel, FIXED_ADDRESSES, Guest, MANY_CPUS_TIMEOUT, Metric, Scenario, group, higher, lower};

/// For guests with more CPUs than the host. Each CPU would calibrate its delay loop, which fails when the
/// host does not run it all the time. `lpj` skips the calibration; the value is rather too high, which only
/// makes delays longer.
const MANY_CPUS_PARAMETERS: &str = "norandmaps lpj=4000000";

const ERRORS: &[Metric] = metrics! {
    lower "stat" "MB" "by how much /proc/PID/stat differs from `statm`";
    lower "oom" "MB" "by how much the task dump of an OOM kill does";
    lower "threaded-stat" "MB" "`stat` of a process with a second thread";
    lower "threaded-oom" "MB" "`oom` of such a process";
};

pub const RSS_COUNTERS: Scenario = Scenario {
    name: "rss-counters",
    about: "what it costs to count a process's pages, and how far off others see them",
    sentences: sentences! {
        "icount-64"
            "With 64 CPUs, what /proc/PID/stat says of a process is wrong by {ours error-all/stat} MB instead of \
             {stock error-all/stat}";
        "icount-16"
            "With 16 CPUs, what /proc/PID/stat says of a process is wrong by {ours error-all/stat} MB instead of \
             {stock error-all/stat}";
        "multi"
            "With two CPUs, what /proc/PID/stat says of a process is wrong by {ours error-all/stat} MB instead of \
             {stock error-all/stat}";
        "icount-1" "A page fault costs {ours fault/instructions} instructions instead of {stock fault/instructions}";
    },
    // The other topics make page faults and exits cheaper, too.
    controls: &[ControlKernel::patch("memreap-rss-counters")],
    // The error grows with the number of CPUs, so there are guests with few and with many. The CPUs
    // work one after the other anyway, and an arm64 guest locks up with 64 at once.
    guests: &[
        Guest { name: "icount-1", cmdline: FIXED_ADDRESSES, ..Guest::ICOUNT },
        Guest { cmdline: FIXED_ADDRESSES, ..Guest::MULTI },
        Guest {
            name: "icount-16",
            cpus: 16,
            mem_mib: 768,
            timeout: MANY_CPUS_TIMEOUT,
            cmdline: MANY_CPUS_PARAMETERS,
            ..Guest::ICOUNT
        },
        Guest {
            name: "icount-64",
            cpus: 64,
            mem_mib: 1024,
            timeout: MANY_CPUS_TIMEOUT,
            cmdline: MANY_CPUS_PARAMETERS,
            ..Guest::ICOUNT
        },
    ],
    metrics: metrics! {
        &[], only(&["icount-1"]) => {
            lower "fault/instructions" "instructions"
                "of a page fault: 32 MiB mapped, touched and unmapped again, as page_fault1 of will-it-scale does";
            lower "fault-threaded/instructions" "instructions"
                "the same in a process with a second thread, which sleeps";
            lower "fork/instructions" "instructions" "of a child from fork(2) to its end";
            lower "exec/instructions" "instructions" "of fork, exec of a static program that does nothing, and its end";
            lower "thread/instructions" "instructions" "of a thread from start to end";
            lower "fork-threaded/instructions" "instructions" "of a child with a second thread in it";
            lower "thread-first/instructions" "instructions"
                "of a process's first thread, for which the counters are spread";
        }
        &["fault-processes", "fault-threads", "fork-1", "fork-all", "exec-all"], only(&["multi"]) => {
            higher "rate" "1/s" "the same by one or all CPUs at once, per second";
        }
        &["error-1", "error-all", "error-hopping"], only(&["multi", "icount-16", "icount-64"]) => ERRORS
        &["error-4"], only(&["icount-16", "icount-64"]) => ERRORS
        &["error-all"], only(&["multi", "icount-16", "icount-64"]) => {
            lower "stat-read" "us" "time to read /proc/PID/stat, median of 200";
            lower "threaded-stat-read" "us" "the same of a process with a second thread";
        }
    },
};
