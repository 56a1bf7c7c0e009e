// SPDX-License-Identifier: GPL-2.0-only

use crate::{ControlKernel, Guest, LONG_TIMEOUT, Metric, Mode, Scenario, group, lower};

const METRICS: &[Metric] = metrics! {
    lower "camera-ms" "ms" "time until the camera has touched all of its memory";
    lower "camera-wait-ms" "ms"
        "`camera-ms` less the time to zero and map the memory: the shortest of three tries on the same machine before \
         the other processes are started";
    lower "late-frames" "count"
        "frames of the foreground that were missed from the start of the camera on, until 120 more were drawn: two \
         seconds if none is late";
    lower "kills" "count" "processes that died in that time";
    lower "oom-kills" "count" "of those, the ones that the kernel's OOM killer chose";
};

const PHONE: Guest = Guest { cpus: 2, mem_mib: 1536, timeout: LONG_TIMEOUT, ..Guest::ICOUNT };

pub const STORM_PHONE: Scenario = Scenario {
    name: "storm-phone",
    about: "a camera needs memory on a phone whose apps are in zram, and a killer like lmkd ends some of them",
    sentences: sentences! {
        "icount"
            "A camera on a full phone has its 256 MiB after {ours camera-ms} ms instead of {stock camera-ms}, and \
             {ours late-frames} frames of the application in the foreground are late instead of {stock late-frames}";
    },
    controls: &[],
    // `make demo` begins with it. Two CPUs at once are among the cases: times vary too much there.
    guests: &[PHONE],
    metrics: metrics! { &[] => METRICS },
};

pub const STORM_PHONE_CASES: Scenario = Scenario {
    name: "storm-phone-cases",
    about: "the same with a driver's buffers, slow CPUs, memreap as the killer, and each topic alone",
    sentences: sentences! {
        "icount-2"
            "A camera on a full phone has 256 buffers of its driver after {ours driver/camera-ms} ms instead of {stock \
             driver/camera-ms}";
        "multi"
            "While a camera takes its memory on a full phone, {ours memory/late-frames} frames of the application in \
             the foreground are late instead of {stock memory/late-frames}";
        "icount-8"
            "A camera on a phone whose background has slow CPUs waits for its memory for {ours slow/camera-wait-ms} ms \
             instead of {stock slow/camera-wait-ms}";
    },
    controls: &[
        ControlKernel::changed(
            "memreap-none",
            "memreap.reap=0 memreap.release=0 memreap.swap_batch=0 memreap.swap_defer=0",
        ),
        ControlKernel::changed("memreap-reap", "memreap.release=0 memreap.swap_batch=0 memreap.swap_defer=0"),
        ControlKernel::changed("memreap-release", "memreap.reap=0 memreap.swap_batch=0 memreap.swap_defer=0"),
        ControlKernel::changed("memreap-swap", "memreap.reap=0 memreap.release=0"),
        ControlKernel::changed("memreap-no-reap", "memreap.reap=0"),
        ControlKernel::changed("memreap-no-release", "memreap.release=0"),
        ControlKernel::changed("memreap-off", "memreap.swap_batch=0 memreap.swap_defer=0"),
    ],
    guests: &[
        Guest { name: "icount-2", ..PHONE },
        Guest { name: "multi", mode: Mode::Multi, ..PHONE },
        Guest { name: "icount-8", cpus: 8, ..PHONE },
    ],
    metrics: metrics! {
        &["memory"], only(&["icount-2", "multi"]) => METRICS
        &["driver", "scattered", "daemon"], only(&["icount-2"]) => METRICS
        &["slow"], only(&["icount-8"]) => METRICS
    },
};
