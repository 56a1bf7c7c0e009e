//! What one run gave: the guest's events, put together, and whether the right ones died.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// One line of the guest's channel.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// Warm: the moment to freeze it.
    Ready,
    /// The contestant runs.
    Started {
        /// Its main process; none for the kernel alone.
        #[serde(default)]
        pid: Option<i64>,
    },
    /// One reading of the recorder.
    Sample(Sample),
    /// A process is gone.
    Death(Death),
    /// The figures of a load.
    Result(Outcome),
    /// The figures of doing nothing.
    Idle(Idle),
    /// Journal and kernel log.
    Log {
        /// Lines.
        text: String,
    },
    /// That was all.
    End,
    /// The guest cannot go on.
    Error {
        /// Why.
        text: String,
    },
}

impl Event {
    /// What to show about it while the run goes on.
    pub(super) fn progress(&self) -> Option<String> {
        match self {
            Self::Ready => Some("the guest is warm".to_owned()),
            Self::Started { pid: Some(pid) } => Some(format!("started, process {pid}")),
            Self::Started { pid: None } => Some("started".to_owned()),
            Self::Death(death) => Some(format!("{} ({}) died", death.who, death.name)),
            Self::Result(result) => Some(format!("longest stall {:.0} ms", result.longest_stall_ms)),
            _ => None,
        }
    }
}

/// Reads one line of the channel.
///
/// # Errors
/// Quotes the line's beginning when it is not one that the guest may write.
pub fn parse(line: &str) -> Result<Event> {
    serde_json::from_str(line).with_context(|| {
        let shown: String = line.chars().take(200).collect();
        format!("unexpected \"{shown}\"")
    })
}

/// A reading, every 50 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Milliseconds since the load began.
    pub t: f64,
    /// MemAvailable, KiB.
    pub avail: f64,
    /// MemFree, KiB.
    pub free: f64,
    /// SwapFree, KiB.
    pub swap_free: f64,
    /// Time that some were stalled on memory, in total, microseconds.
    pub some_us: f64,
    /// Time that all were.
    pub full_us: f64,
    /// The foreground's worst frame delay since the last reading, milliseconds.
    pub fg_gap_ms: f64,
}

/// A process that is gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Death {
    /// Milliseconds since the load began.
    pub t: f64,
    /// Its role: hog, innocent, foreground, camera, background or system.
    pub who: String,
    /// Its command name.
    pub name: String,
    /// Its number.
    #[serde(default)]
    pub pid: i64,
    /// `SIGKILL`, `SIGTERM` or `exit`.
    pub by: String,
    /// When the signal was sent.
    #[serde(default)]
    pub signal_t: Option<f64>,
    /// What it held then, KiB.
    #[serde(default)]
    pub rss_kib: Option<f64>,
    /// From the signal until its memory was back, milliseconds.
    #[serde(default)]
    pub back_ms: Option<f64>,
}

/// The figures of one load. Times in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The foreground's worst frame delay.
    pub longest_stall_ms: f64,
    /// All frame delays above 50 ms together.
    pub total_stall_ms: f64,
    /// From the first time below 5 % available until 10 % and staying there; 0 when it never fell
    /// so low, none when it did not recover.
    pub low_to_recovered_ms: Option<f64>,
    /// From the first kill's signal until its memory was back.
    pub signal_to_back_ms: Option<f64>,
    /// How many died by a signal, by role.
    pub kills: BTreeMap<String, u64>,
    /// How many of them the kernel chose.
    pub kernel_oom_kills: u64,
    /// The first signal's time.
    pub first_signal_ms: Option<f64>,
    /// How many kills were enough; none where that is not a number.
    pub needed_kills: Option<u64>,
    /// The load ended as it should: the hog gone, or the camera with its memory.
    pub served: bool,
    /// It had not ended when time was up.
    pub timed_out: bool,
}

/// The figures of doing nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// For how long.
    pub seconds: f64,
    /// KiB.
    pub pss_kib: f64,
    /// Processor time in milliseconds.
    pub cpu_ms: f64,
    /// Context switches of all its threads.
    pub wakeups: f64,
}

/// Everything about one run: a line of `faceoff.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Who.
    pub contestant: String,
    /// The load.
    pub variant: String,
    /// From 0.
    pub round: usize,
    /// Of the load.
    pub seed: u64,
    /// The key of the snapshot that it started from.
    pub snapshot: String,
    /// How long it took on the host, in seconds.
    pub seconds: f64,
    /// The share of the host's CPU time that was stolen from it meanwhile, 0 to 1; see [`super::stolen`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
    /// Why there are no figures, when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The figures of a load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Outcome>,
    /// The figures of doing nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    /// The readings.
    #[serde(default)]
    pub samples: Vec<Sample>,
    /// Who died.
    #[serde(default)]
    pub deaths: Vec<Death>,
    /// Journal and kernel log.
    #[serde(default)]
    pub log: String,
}

impl Run {
    /// Takes the guest's next event.
    pub fn take(&mut self, event: Event) {
        match event {
            Event::Sample(sample) => self.samples.push(sample),
            Event::Death(death) => self.deaths.push(death),
            Event::Result(result) => self.result = Some(result),
            Event::Idle(idle) => self.idle = Some(idle),
            Event::Log { text } => {
                self.log += text.trim_end();
                self.log.push('\n');
            }
            Event::Ready | Event::Started { .. } | Event::End | Event::Error { .. } => {}
        }
    }

    /// Whether the guest delivered what this variant is for.
    pub fn is_complete(&self) -> bool {
        if self.variant == super::IDLE { self.idle.is_some() } else { self.result.is_some() }
    }

    /// The wrong victims of this run, in words; empty when there was none.
    pub fn wrong(&self) -> BTreeMap<String, u64> {
        self.result.as_ref().map_or_else(BTreeMap::new, wrong)
    }
}

/// Who should not have died: anyone but the hog and the background, and hogs beyond those that
/// were enough.
fn wrong(result: &Outcome) -> BTreeMap<String, u64> {
    const RIGHT: [&str; 2] = ["hog", "background"];
    let bad = result.kills.iter().filter(|(who, n)| !RIGHT.contains(&who.as_str()) && **n > 0);
    let mut wrong: BTreeMap<String, u64> = bad.map(|(who, n)| (who.clone(), *n)).collect();
    let kills: u64 = RIGHT.iter().filter_map(|who| result.kills.get(*who)).sum();
    if let Some(needed) = result.needed_kills.filter(|needed| kills > *needed) {
        wrong.insert("one too many".to_owned(), kills - needed);
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str = r#"{"event":"result","longest_stall_ms":12.5,"total_stall_ms":0,
        "low_to_recovered_ms":null,"signal_to_back_ms":10,"kills":{"hog":1,"innocent":0,"foreground":0,
        "system":0,"background":0,"camera":0},"kernel_oom_kills":1,"first_signal_ms":110,
        "needed_kills":1,"served":true,"timed_out":false}"#;

    fn outcome(kills: &[(&str, u64)], needed: Option<u64>) -> Outcome {
        let Event::Result(mut outcome) = parse(RESULT).unwrap() else { panic!("no result") };
        outcome.kills = kills.iter().map(|(who, n)| ((*who).to_owned(), *n)).collect();
        outcome.needed_kills = needed;
        outcome
    }

    #[test]
    fn the_guest_s_lines_are_read() {
        assert_eq!(parse(r#"{"event":"ready"}"#).unwrap(), Event::Ready);
        assert_eq!(parse(r#"{"event":"end"}"#).unwrap(), Event::End);
        assert_eq!(parse(r#"{"event":"started","pid":null}"#).unwrap(), Event::Started { pid: None });
        let sample = r#"{"event":"sample","t":50,"avail":1,"free":2,"swap_free":3,"some_us":4,"full_us":5,"fg_gap_ms":6.5}"#;
        let Event::Sample(sample) = parse(sample).unwrap() else { panic!("no sample") };
        assert_eq!((sample.t, sample.fg_gap_ms), (50.0, 6.5));
        let death = r#"{"event":"death","t":1,"who":"hog","name":"hog","pid":7,"by":"exit","signal_t":null,"rss_kib":0,"back_ms":null}"#;
        let Event::Death(death) = parse(death).unwrap() else { panic!("no death") };
        assert_eq!((death.signal_t, death.pid), (None, 7));
        let Event::Result(result) = parse(RESULT).unwrap() else { panic!("no result") };
        assert_eq!((result.low_to_recovered_ms, result.needed_kills), (None, Some(1)));
        let idle = r#"{"event":"idle","seconds":60,"pss_kib":350,"cpu_ms":36,"wakeups":60}"#;
        assert!(matches!(parse(idle).unwrap(), Event::Idle(_)));
        for bad in ["", "hello", r#"{"event":"what"}"#, r#"{"event":"result"}"#] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let long = format!("x{}", "y".repeat(1000));
        assert!(format!("{:#}", parse(&long).unwrap_err()).len() < 400);
    }

    #[test]
    fn wrong_victims_are_counted() {
        let judged =
            |kills: &[(&str, u64)], needed| wrong(&outcome(kills, needed)).into_iter().collect::<Vec<_>>();
        assert_eq!(judged(&[("hog", 1), ("innocent", 0)], Some(1)), []);
        assert_eq!(judged(&[], Some(1)), [], "nobody had to die after all");
        assert_eq!(judged(&[("hog", 1), ("innocent", 1)], Some(1)), [("innocent".to_owned(), 1)]);
        assert_eq!(judged(&[("foreground", 1), ("system", 2)], None).len(), 2);
        assert_eq!(judged(&[("camera", 1), ("background", 9)], None), [("camera".to_owned(), 1)]);
        assert_eq!(judged(&[("hog", 200)], None), [], "a group dies as a whole");
        assert_eq!(judged(&[("hog", 3)], Some(1)), [("one too many".to_owned(), 2)]);
    }

    #[test]
    fn a_run_is_complete_with_its_own_kind_of_figures() {
        let mut run = Run { variant: "hog".into(), ..Run::default() };
        run.take(parse(r#"{"event":"log","text":"a\n"}"#).unwrap());
        run.take(parse(r#"{"event":"log","text":"b"}"#).unwrap());
        assert_eq!(run.log, "a\nb\n");
        assert!(!run.is_complete());
        run.take(parse(RESULT).unwrap());
        assert!(run.is_complete());
        run.variant = crate::faceoff::IDLE.into();
        assert!(!run.is_complete());
        let text = serde_json::to_string(&run).unwrap();
        assert_eq!(serde_json::from_str::<Run>(&text).unwrap(), run);
    }
}
