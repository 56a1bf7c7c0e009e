// SPDX-License-Identifier: GPL-2.0-only

use crate::{ControlKernel, Guest, LONG_TIMEOUT, Metric, Mode, Scenario, Sentence, group, lower};

const METRICS: &[Metric] = &[
    lower("camera-ms", "ms", "time until the camera has touched all of its memory"),
    lower(
        "camera-wait-ms",
        "ms",
        "`camera-ms` less the time to zero and map the memory: the shortest of three tries on the same machine before \
         the other processes are started",
    ),
    lower(
        "late-frames",
        "count",
        "frames of the foreground that were missed from the start of the camera on, until 120 more were drawn: two \
         seconds if none is late",
    ),
    lower("kills", "count", "processes that died in that time"),
    lower("oom-kills", "count", "of those, the ones that the kernel's OOM killer chose"),
];

const PHONE: Guest = Guest { cpus: 2, mem_mib: 1536, timeout: LONG_TIMEOUT, ..Guest::ICOUNT };

pub const STORM_PHONE: Scenario = Scenario {
    name: "storm-phone",
    about: "a camera needs memory on a phone whose apps are in zram, and a killer like lmkd ends some of them",
    sentences: &[Sentence {
        guest: "icount",
        text: "A camera on a full phone has its 256 MiB after {ours camera-ms} ms instead of {stock \
               camera-ms}, and {ours late-frames} frames of the application in the foreground are late \
               instead of {stock late-frames}",
    }],
    controls: &[],
    // `make demo` begins with it. Two CPUs at once are among the cases: times vary too much there.
    guests: &[PHONE],
    metrics: &[group(&[], METRICS)],
    doc: "\
All topics together, as a phone needs them. Fifteen processes of 64 MiB have 65 % of their memory in zram, the rest of the machine's memory
is locked but for 96 MiB, and a foreground draws a frame each 16.7 ms, for each of which it touches 8 MiB. Then a camera touches 256 MiB as
fast as it can, and a killer, the same on both kernels, ends processes after the pattern of Android's lmkd. It is real-time and looks at
free memory every 5 ms; below 64 MiB it kills the last process of the list, calls process_mrelease(2), and waits for at most 100 ms for its
death before it looks again. Unlike this killer, lmkd reaps in threads of its own, and gives a victim the CPUs of the foreground.

{metrics}

The report begins with a picture: what the camera has, frames that were late and processes killed, over time, in the first boot of each arm.
Any scenario can have one: what the guest sends as a `series` is drawn, and no statistics are made of it.
",
};

pub const STORM_PHONE_CASES: Scenario = Scenario {
    name: "storm-phone-cases",
    about: "the same with a driver's buffers, slow CPUs, memreap as the killer, and each topic alone",
    sentences: &[
        Sentence {
            guest: "icount-2",
            text: "A camera on a full phone has 256 buffers of its driver after {ours driver/camera-ms} ms \
                   instead of {stock driver/camera-ms}",
        },
        Sentence {
            guest: "multi",
            text: "While a camera takes its memory on a full phone, {ours memory/late-frames} frames of the \
                   application in the foreground are late instead of {stock memory/late-frames}",
        },
        Sentence {
            guest: "icount-8",
            text: "A camera on a phone whose background has slow CPUs waits for its memory for {ours \
                   slow/camera-wait-ms} ms instead of {stock slow/camera-wait-ms}",
        },
    ],
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
    metrics: &[
        group(&["memory"], METRICS).only(&["icount-2", "multi"]),
        group(&["driver", "scattered", "daemon"], METRICS).only(&["icount-2"]),
        group(&["slow"], METRICS).only(&["icount-8"]),
    ],
    doc: "\
The same with what else there is on a phone, under icount; `memory` also on two CPUs at once.

| case | what |
|---|---|
| `memory` | the same as `storm-phone` |
| `driver` | the camera's memory is 256 buffers of 1 MiB from the system heap (`/dev/dma_heap/system`), which the kernel allocates in chunks of 1 MiB, 64 KiB or 4 KiB |
| `scattered` | no two neighbours in memory have neighbouring slots in zram, as after long use |
| `daemon` | `memreap daemon` with its own configuration is the killer. Swap has hardly more room than the processes need: with room there, it would kill nobody, as nobody has to die |
| `slow` | eight CPUs, of which the processes in the background have four (cpuset), and each of them 40 % of the time of one (`cpu.max`), until the killer, as lmkd does, takes both away from a victim |

{metrics}

Beside the two arms there is the changed kernel with parts of it turned off by boot parameters: without `reap`, `release` and both topics of
swap (`memreap-none`), with one of them (`memreap-reap`, `memreap-release`, `memreap-swap`), and with all but one (`memreap-no-reap`,
`memreap-no-release`, `memreap-off`). `memreap.swap_batch=0` does not undo that zram frees the slots of a range together.
",
};
