// SPDX-License-Identifier: GPL-2.0-only
//! The face-off: the lab sends one [`Job`] on [`JOB_PORT`], the guest answers with [`Event`]s on
//! [`EVENT_PORT`]. Times whose names end in `_ms`, and `t`, are milliseconds; `t` counts from the start of
//! the load.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The virtio-serial port from the guest to the lab.
pub const EVENT_PORT: &str = "memreap.channel";
/// The virtio-serial port from the lab to the guest.
pub const JOB_PORT: &str = "memreap.job";

/// The load that the guest is put under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// Memory that does not compress, as fast as possible.
    #[default]
    Hog,
    /// Memory that compresses 3:1, as fast as possible.
    Compressible,
    /// 50 MB/s without end.
    Leak,
    /// Many small processes that grow together.
    Forks,
    /// A hog in a cgroup with a limit of its own.
    Limit,
    /// A hog beside a larger process that does no harm.
    Innocent,
    /// An app in front needs the memory of those in the background.
    Apps,
    /// No load: what the contestant itself costs.
    Idle,
}

impl Variant {
    /// All variants, in the order of the tables.
    pub const ALL: [Self; 8] = [
        Self::Hog,
        Self::Compressible,
        Self::Leak,
        Self::Forks,
        Self::Limit,
        Self::Innocent,
        Self::Apps,
        Self::Idle,
    ];

    /// The name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hog => "hog",
            Self::Compressible => "compressible",
            Self::Leak => "leak",
            Self::Forks => "forks",
            Self::Limit => "limit",
            Self::Innocent => "innocent",
            Self::Apps => "apps",
            Self::Idle => "idle",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Variant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|variant| variant.name() == text).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.into_iter().map(Self::name).collect();
            format!("no variant '{text}'; there are: {}", known.join(", "))
        })
    }
}

/// What a process of the face-off is to the one who judges deaths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Who {
    /// A process that takes the memory.
    Hog,
    /// A process that does no harm.
    Innocent,
    /// The app that the user looks at.
    Foreground,
    /// A process that the machine itself needs.
    System,
    /// An app that nobody looks at, which may be killed.
    Background,
    /// An app that asks for memory, and should get it.
    Camera,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hog => "hog",
            Self::Innocent => "innocent",
            Self::Foreground => "foreground",
            Self::System => "system",
            Self::Background => "background",
            Self::Camera => "camera",
        })
    }
}

/// What the lab asks of the warmed-up guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The contestant's name.
    pub contestant: String,
    /// The systemd unit to start, if any.
    pub unit: Option<String>,
    /// The folder on the payload disk that is copied over the root, if any.
    pub files: Option<String>,
    /// The load.
    pub variant: Variant,
    /// The seed of all content.
    pub seed: u64,
    /// The most that a load may take, and how long [`Variant::Idle`] takes, in seconds.
    pub limit_s: u64,
    /// How long the contestant has to settle, in seconds.
    pub settle_s: u64,
    /// Shell lines to run before the contestant is started.
    pub setup: Vec<String>,
}

/// One line from the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Event {
    /// Warmed up and waiting for a job: the moment to freeze the guest.
    Ready,
    /// The contestant runs.
    Started {
        /// Its main process; none for the kernel alone.
        pid: Option<u32>,
    },
    /// A reading of the recorder.
    Sample(Sample),
    /// A process is gone.
    Death(Death),
    /// The outcome of a load.
    Result(Outcome),
    /// The cost of doing nothing.
    Idle(Idle),
    /// Journal and kernel log, for the reader.
    Log {
        /// Lines.
        text: String,
    },
    /// The guest cannot go on.
    Error {
        /// Why.
        text: String,
    },
    /// The last line.
    End,
}

/// The machine at one moment; taken every 50 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// When.
    pub t: f64,
    /// MemAvailable, KiB.
    pub avail: u64,
    /// MemFree, KiB.
    pub free: u64,
    /// SwapFree, KiB.
    pub swap_free: u64,
    /// Time since boot in which some tasks were stalled on memory (PSI), microseconds.
    pub some_us: u64,
    /// Time since boot in which all tasks were, microseconds.
    pub full_us: u64,
    /// The foreground's worst frame delay since the sample before.
    pub fg_gap_ms: f64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndedBy {
    /// It was killed.
    #[serde(rename = "SIGKILL")]
    Kill,
    /// It was asked to end.
    #[serde(rename = "SIGTERM")]
    Term,
    /// It ended by itself.
    #[serde(rename = "exit")]
    Exit,
}

/// A process that is gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Death {
    /// When.
    pub t: f64,
    /// What it was.
    pub who: Who,
    /// Its command name.
    pub name: String,
    /// Its PID.
    pub pid: i32,
    /// How it ended.
    pub by: EndedBy,
    /// When the signal was sent, on the clock of `t`.
    pub signal_t: Option<f64>,
    /// The command name of the sender; if the kernel killed it, of the process that was out of memory.
    pub sender: Option<String>,
    /// What it held at the signal, KiB.
    pub rss_kib: Option<u64>,
    /// From the signal until nine tenths of its memory were back.
    pub back_ms: Option<f64>,
}

/// The outcome of one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The foreground's worst frame delay.
    pub longest_stall_ms: f64,
    /// All its frame delays above 50 ms together.
    pub total_stall_ms: f64,
    /// From the first time below 5 % available until 10 % and staying there; 0 if it never fell that low,
    /// none if it did not recover.
    pub low_to_recovered_ms: Option<f64>,
    /// From the first kill's signal until its memory was back.
    pub signal_to_back_ms: Option<f64>,
    /// How many died by a signal, by what they were.
    pub kills: BTreeMap<Who, u64>,
    /// How many of them the kernel chose.
    pub kernel_oom_kills: u64,
    /// When the first kill's signal was sent.
    pub first_signal_ms: Option<f64>,
    /// How many kills were enough; none where that is not a number.
    pub needed_kills: Option<u64>,
    /// Whether the load ended as it should: the hog gone, or the camera with its memory.
    pub served: bool,
    /// Whether it had not ended when the time was up.
    pub timed_out: bool,
    /// How long the camera waited for its memory; none if it did not get it, or there is no camera.
    pub camera_ms: Option<f64>,
}

/// The cost of doing nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Idle {
    /// For how long, in seconds.
    pub seconds: f64,
    /// Proportional set size of all processes of the contestant at the end, KiB.
    pub pss_kib: f64,
    /// CPU time.
    pub cpu_ms: f64,
    /// Context switches of all its threads.
    pub wakeups: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        Outcome {
            longest_stall_ms: 1.5,
            total_stall_ms: 0.0,
            low_to_recovered_ms: None,
            signal_to_back_ms: Some(2.0),
            kills: BTreeMap::from([(Who::Hog, 2), (Who::Camera, 1)]),
            kernel_oom_kills: 1,
            first_signal_ms: Some(3.0),
            needed_kills: Some(1),
            served: true,
            timed_out: false,
            camera_ms: Some(4.0),
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
    fn nothing_of_an_event_is_lost_on_the_way() {
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
    fn events_have_their_names_in_the_line() {
        let json = |event: &Event| serde_json::to_string(event).unwrap();
        assert_eq!(json(&Event::Ready), r#""ready""#);
        let line = json(&Event::Result(outcome()));
        assert!(line.starts_with(r#"{"result":{"longest_stall_ms":1.5,"#), "{line}");
        assert!(line.contains(r#""kills":{"hog":2,"camera":1}"#), "{line}");
        let line = json(&Event::Death(death()));
        assert!(line.contains(r#""who":"hog","name":"hog","pid":7,"by":"SIGKILL","#), "{line}");
        for bad in ["", "hello", r#""what""#, r#"{"result":{}}"#] {
            assert!(serde_json::from_str::<Event>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_job_has_a_variant_that_there_is() {
        let line = r#"{"contestant":"earlyoom","unit":"earlyoom.service","files":null,"variant":"hog","seed":7,"limit_s":40,"settle_s":3,"setup":[]}"#;
        let job: Job = serde_json::from_str(line).unwrap();
        assert_eq!((job.variant, job.files.as_deref()), (Variant::Hog, None));
        assert_eq!(serde_json::to_string(&job).unwrap(), line);
        assert!(serde_json::from_str::<Job>(&line.replace("hog", "pig")).is_err());
        assert!(serde_json::from_str::<Job>(&line.replace("seed", "sead")).is_err());
        for variant in Variant::ALL {
            assert_eq!(variant.name().parse(), Ok(variant));
            assert_eq!(serde_json::to_string(&variant).unwrap(), format!("\"{variant}\""));
        }
        assert!("hug".parse::<Variant>().unwrap_err().contains("no variant 'hug'; there are: hog,"));
    }
}
