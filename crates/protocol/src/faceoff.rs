// SPDX-License-Identifier: GPL-2.0-only
//! The messages of the face-off: the lab sends a [`Job`] on [`JOB_PORT`], the guest answers with [`Event`]s
//! on [`EVENT_PORT`]. `t` and times whose names end in `_ms` are in milliseconds; `t` is the time since the
//! start of the load.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::load::Load;

/// The virtio-serial port from the guest to the lab.
pub const EVENT_PORT: &str = "memreap.channel";
/// The virtio-serial port from the lab to the guest.
pub const JOB_PORT: &str = "memreap.job";

/// The parameter on the guest's kernel command line that says how large its zram is, in MiB.
pub const ZRAM_PARAMETER: &str = "faceoff.zram_mib=";

/// The kind of a process in the face-off, by which a victim is right or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Who {
    /// A process that takes the memory.
    Hog,
    /// A process that does no harm.
    Innocent,
    /// The app that the user is using.
    Foreground,
    /// A process that the machine itself needs.
    System,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hog => "hog",
            Self::Innocent => "innocent",
            Self::Foreground => "foreground",
            Self::System => "system",
        })
    }
}

/// The lab's request to the warmed-up guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The contestant's name.
    pub contestant: String,
    /// The systemd unit to start, if any.
    pub unit: Option<String>,
    /// The folder on the payload disk that is copied to the root folder, if any.
    pub files: Option<String>,
    /// The load.
    pub load: Load,
    /// The seed of the random content of memory.
    pub seed: u64,
    /// The time limit of the load, in seconds.
    pub limit_s: u64,
    /// The time between the start of the contestant and that of the load, in seconds.
    pub settle_s: u64,
    /// Shell lines to run before the contestant is started.
    pub setup: Vec<String>,
}

/// An event: a line from the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Event {
    /// The guest is warmed up and waits for a job. Its state is saved at this point.
    Ready,
    /// The contestant is running.
    Started {
        /// The PID of its main process; `None` for the kernel alone.
        pid: Option<u32>,
    },
    /// A sample of the machine's state.
    Sample(Sample),
    /// A process has ended.
    Death(Death),
    /// The outcome of a load.
    Result(Outcome),
    /// The cost of being idle.
    Idle(Idle),
    /// A part of the journal and the kernel log.
    Log {
        /// The lines.
        text: String,
    },
    /// The guest cannot continue.
    Error {
        /// The reason.
        text: String,
    },
    /// The last event.
    End,
}

/// The state of the machine, sampled every 50 ms, and every 10 ms while memory is nearly short: what the governor of
/// memreap's daemon has, and how late the foreground was. Series before December 2026 have no `total`, `swap_total`,
/// `scanned` and `within_us` of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// The time of the sample.
    pub t: f64,
    /// MemAvailable, KiB.
    pub avail: u64,
    /// MemFree, KiB.
    pub free: u64,
    /// SwapFree, KiB.
    pub swap_free: u64,
    /// The time since boot during which some tasks were stalled on memory (PSI), in microseconds.
    pub some_us: u64,
    /// The time since boot during which all tasks were stalled on memory, in microseconds.
    pub full_us: u64,
    /// MemTotal, KiB; 0 if it was not recorded.
    #[serde(default)]
    pub total: u64,
    /// SwapTotal, KiB.
    #[serde(default)]
    pub swap_total: u64,
    /// How many pages the kernel has scanned for the machine since boot; `None` where hardly any memory is available, or
    /// where it was not recorded.
    #[serde(default)]
    pub scanned: Option<u64>,
    /// How long after `t` PSI was read at the latest, in microseconds.
    #[serde(default)]
    pub within_us: u64,
    /// The longest frame delay of the foreground since the previous sample.
    pub fg_gap_ms: f64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndedBy {
    /// It got SIGKILL.
    #[serde(rename = "SIGKILL")]
    Kill,
    /// It got SIGTERM.
    #[serde(rename = "SIGTERM")]
    Term,
    /// It exited.
    #[serde(rename = "exit")]
    Exit,
}

/// A process that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Death {
    /// The time of its end.
    pub t: f64,
    /// Its kind.
    pub who: Who,
    /// Its command name.
    pub name: String,
    /// Its PID.
    pub pid: i32,
    /// How it ended.
    pub by: EndedBy,
    /// The time of the signal, on the same clock as `t`.
    pub signal_t: Option<f64>,
    /// The command name of the sender; if the kernel killed it, that of the process that ran out of memory.
    pub sender: Option<String>,
    /// Its memory at the time of the signal, that in swap included, in KiB.
    pub rss_kib: Option<u64>,
    /// The time from the signal until 90 % of its memory were free.
    pub back_ms: Option<f64>,
}

/// The outcome of one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The longest frame delay of the foreground.
    pub longest_stall_ms: f64,
    /// The sum of its frame delays above 50 ms.
    pub total_stall_ms: f64,
    /// The longest time that a login took: a connection over a local socket until its shell answers.
    pub longest_login_ms: f64,
    /// The number of logins that took longer than 5 s.
    pub late_logins: u64,
    /// The time from the start of the load until nobody took memory any more and 10 % of it stayed available;
    /// `None` if that did not happen, or if somebody was killed where nobody had to die.
    pub recovered_ms: Option<f64>,
    /// What was still available at the first kill, together with the free swap, in KiB.
    pub usable_kib: Option<u64>,
    /// What the killed processes held, in memory and in swap, in KiB; `None` if that is not known of all, as of
    /// one that shares its cgroup.
    pub lost_kib: Option<u64>,
    /// The time from the signal of the first kill until that memory was free.
    pub signal_to_back_ms: Option<f64>,
    /// The number of processes killed by a signal, by their kind.
    pub kills: BTreeMap<Who, u64>,
    /// How many of them the kernel's OOM killer chose.
    pub kernel_oom_kills: u64,
    /// The time of the signal of the first kill.
    pub first_signal_ms: Option<f64>,
    /// The number of kills that were necessary; `None` if it is not defined for the load.
    pub needed_kills: Option<u64>,
    /// Whether the load ended as it should: the hog was killed, or, where nobody had to die, nobody did.
    pub served: bool,
    /// Whether the time limit was exceeded.
    pub timed_out: bool,
}

/// The cost of the contestant while the machine is idle.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Idle {
    /// The duration of the measurement, in seconds.
    pub seconds: f64,
    /// The proportional set size of all processes of the contestant at the end, in KiB.
    pub pss_kib: f64,
    /// Their CPU time.
    pub cpu_ms: f64,
    /// The number of context switches of all their threads.
    pub wakeups: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        Outcome {
            longest_stall_ms: 1.5,
            total_stall_ms: 0.0,
            longest_login_ms: 9.5,
            late_logins: 0,
            recovered_ms: None,
            usable_kib: Some(5),
            lost_kib: Some(900),
            signal_to_back_ms: Some(2.0),
            kills: BTreeMap::from([(Who::Hog, 2), (Who::System, 1)]),
            kernel_oom_kills: 1,
            first_signal_ms: Some(3.0),
            needed_kills: Some(1),
            served: true,
            timed_out: false,
        }
    }

    fn death() -> Death {
        Death {
            t: 80.0,
            who: Who::Hog,
            name: "hog".into(),
            pid: 7,
            by: EndedBy::Kill,
            signal_t: Some(30.0),
            sender: Some("memreap".into()),
            rss_kib: Some(900),
            back_ms: None,
        }
    }

    #[test]
    fn events_are_read_as_they_were_written() {
        for event in [
            Event::Ready,
            Event::Started { pid: None },
            Event::Sample(Sample { t: 50.0, avail: 1, fg_gap_ms: 6.5, ..Sample::default() }),
            Event::Death(death()),
            Event::Result(outcome()),
            Event::Idle(Idle { seconds: 60.0, pss_kib: 350.0, cpu_ms: 36.0, wakeups: 60 }),
            Event::Log { text: "a\n".into() },
            Event::Error { text: "no".into() },
            Event::End,
        ] {
            let text = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event, "{text}");
            let more = match text.contains(":{") {
                true => text.replacen(":{", r#":{"more":1,"#, 1),
                false => format!(r#"{{{text}:1}}"#),
            };
            assert!(serde_json::from_str::<Event>(&more).is_err(), "{more}");
        }
    }

    #[test]
    fn events_have_stable_names_in_json() {
        let json = |event: &Event| serde_json::to_string(event).unwrap();
        assert_eq!(json(&Event::Ready), r#""ready""#);
        let line = json(&Event::Result(outcome()));
        assert!(line.starts_with(r#"{"result":{"longest_stall_ms":1.5,"#), "{line}");
        // Older results have the number, too.
        assert!(line.contains(r#""lost_kib":900,"#), "{line}");
        assert!(line.contains(r#""kills":{"hog":2,"system":1}"#), "{line}");
        let line = json(&Event::Death(death()));
        assert!(line.contains(r#""who":"hog","name":"hog","pid":7,"by":"SIGKILL","#), "{line}");
        for bad in ["", "hello", r#""what""#, r#"{"result":{}}"#] {
            assert!(serde_json::from_str::<Event>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_job_is_read_as_it_was_written() {
        let job = r#"{"contestant":"earlyoom","unit":"earlyoom.service","files":null,"load":LOAD,"seed":7,"limit_s":40,"settle_s":3,"setup":[]}"#;
        let line = job.replace(
            "LOAD",
            r#"{"about":"a","order":1,"machines":["m"],"process":[{"name":"hog","who":"hog","run":[{"do":"take","size":"98 % of available"}]}]}"#,
        );
        let job: Job = serde_json::from_str(&line).unwrap();
        assert_eq!((job.load.process[0].count, job.files.as_deref()), (1, None));
        let again = serde_json::to_string(&job).unwrap();
        assert_eq!(serde_json::from_str::<Job>(&again).unwrap(), job);
        for (what, wrong) in [("seed", "sead"), ("98 %", "98 %%"), ("take", "tame"), ("\"run\"", "\"ran\"")] {
            assert!(serde_json::from_str::<Job>(&line.replace(what, wrong)).is_err(), "{wrong}");
        }
    }
}
