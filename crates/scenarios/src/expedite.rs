// SPDX-License-Identifier: GPL-2.0-only

use crate::{Guest, Scenario, group, higher, lower};

/// Those in which all ways to kill are compared.
const KILLS: &[&str] = &["free", "cpu-10", "hogs", "nice-19", "stopped", "many"];
const BESIDE_HOGS: &[&str] = &["hogs", "nice-19"];

const KILL_RATE: &str = "until 90 % of the memory is back: one pidfd_send_signal(2), with PIDFD_SIGNAL_EXPEDITE where \
                         the kernel has it";
const KILL_FOREGROUND: &str = "the work that the hogs do in a fixed time, longer than any of these kills takes";

const BACK: &str = "A killed process that may use 10 % of a CPU gives back {ours cpu-10/kill-rate} MB/s instead \
                    of {stock cpu-10/kill-rate}";

pub const EXPEDITE: Scenario = Scenario {
    name: "expedite",
    about: "killed processes that can hardly run: how fast their memory comes back, and who pays",
    sentences: sentences! {
        "icount" BACK;
        "multi" BACK;
    },
    controls: &[],
    guests: &[Guest { mem_mib: 1024, ..Guest::MULTI }, Guest { mem_mib: 640, ..Guest::ICOUNT }],
    metrics: metrics! {
        KILLS => {
            higher "kill-rate" "MB/s" KILL_RATE;
            higher "plain-rate" "MB/s" "the same by kill(2)";
            higher "memreap-rate" "MB/s" "the same by `memreap kill --json`, from the start of the command";
        }
        KILLS, only(&["icount"]) => {
            higher "mrelease-rate" "MB/s" "the same by SIGKILL and process_mrelease(2) in one thread";
        }
        &["cpu-10"] => {
            higher "cgroup-rate" "MB/s" "the same by a write to the cgroup's `cgroup.kill`";
            higher "size-rate" "MB/s" "the same by kill(2) with vm.expedite_min_kbytes below the victim's size";
        }
        BESIDE_HOGS => {
            higher "kill-foreground" "loops/ms" KILL_FOREGROUND;
            higher "plain-foreground" "loops/ms" "the same with the kill of `plain-rate`";
            higher "memreap-foreground" "loops/ms" "the same with that of `memreap-rate`";
        }
        BESIDE_HOGS, only(&["icount"]) => {
            higher "mrelease-foreground" "loops/ms" "the same with that of `mrelease-rate`";
        }
        &["bystander"] => {
            higher "kill-rate" "MB/s" KILL_RATE;
            higher "kill-foreground" "loops/ms" KILL_FOREGROUND;
            lower "kill-longest-wait" "ms" "the longest time for which a hog does not run after the kill";
            higher "unpaced-rate" "MB/s" "the kill of `kill-rate` with vm.expedite_cpu_percent=100";
            higher "unpaced-foreground" "loops/ms" "the hogs' work with that kill";
            lower "unpaced-longest-wait" "ms" "a hog's longest wait with that kill";
        }
        &[], of_all_cases() => {
            higher "worst/kill-rate" "MB/s" "the slowest case: how much memory must be kept free depends on it";
            higher "worst/memreap-rate" "MB/s" "the same by `memreap kill`";
        }
        &["hostile"] => {
            higher "repeats-foreground" "loops/ms"
                "what hogs get done beside four processes that have 5 % of a CPU together and kill the same victims \
                 all the time";
            higher "forks-foreground" "loops/ms" "the same, and they kill new ones";
            higher "heirs-foreground" "loops/ms" "children that have inherited 64 MiB by fork(2)";
            higher "sharers-foreground" "loops/ms"
                "children with which they share their memory, beside 1,000 processes that sleep";
        }
    },
};
