// SPDX-License-Identifier: GPL-2.0-only
//! The messages of a guest on the virtio-serial port [`PORT`].
//!
//! The stream of a healthy guest begins with [`Message::Hello`] and ends with [`Message::Exit`].

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of the port in the guest.
pub const PORT: &str = "memreap.results";

/// Which direction of a metric is an improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less is better: times, counts of contended locks.
    Lower,
    /// More is better: throughput.
    Higher,
}

impl fmt::Display for Better {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Lower => "lower",
            Self::Higher => "higher",
        })
    }
}

/// A message: a line from the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Message {
    /// The first message: what booted.
    Hello {
        /// The kernel's release, for example `6.12.117`.
        release: String,
        /// The number of CPUs that are online.
        cpus: u32,
    },
    /// The value of a metric in this boot.
    Sample(Sample),
    /// How something developed in this boot.
    Series(Series),
    /// A note for the reader of the results.
    Note(String),
    /// What the guest is doing: shown while it runs, but not stored.
    Progress(String),
    /// A piece of a command's standard output.
    Out(String),
    /// A piece of a command's standard error.
    Err(String),
    /// Why the kernel is tainted, as in /proc/sys/kernel/tainted, when the job is over.
    Tainted(u64),
    /// The last message: the exit status of the job.
    Exit(i32),
}

/// The value of a metric in a boot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// The case and the metric, for example `100-vmas/pte-lock-contended`.
    pub metric: String,
    /// The value's unit, for example `ms`.
    pub unit: String,
    /// Which direction is an improvement.
    pub better: Better,
    /// The value in `unit`. It must be finite.
    pub value: f64,
}

/// How something developed in a boot. It is for a picture; no statistics are made of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// What developed, for example `frames that are late`.
    pub what: String,
    /// Times in milliseconds, in ascending order, and values. They are joined by lines.
    pub points: Vec<[f64; 2]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let sample = Sample { metric: "a/b".into(), unit: "ms".into(), better: Better::Lower, value: 0.1 };
        for (message, text) in [
            (Message::Hello { release: "6.12".into(), cpus: 2 }, r#"{"hello":{"release":"6.12","cpus":2}}"#),
            (Message::Sample(sample), r#"{"sample":{"metric":"a/b","unit":"ms","better":"lower","value":0.1}}"#),
            (
                Message::Series(Series { what: "MiB".into(), points: vec![[0.0, 1.5]] }),
                r#"{"series":{"what":"MiB","points":[[0.0,1.5]]}}"#,
            ),
            (Message::Note("x".into()), r#"{"note":"x"}"#),
            (Message::Exit(-1), r#"{"exit":-1}"#),
        ] {
            assert_eq!(serde_json::to_string(&message).unwrap(), text);
            assert_eq!(serde_json::from_str::<Message>(text).unwrap(), message);
        }
    }

    #[test]
    fn unknown_fields_and_messages_are_refused() {
        for bad in [
            r#"{"hello":{"release":"6.12","cpus":2,"mem_kib":1,"swap_kib":1}}"#,
            r#"{"sample":{"metric":"a","unit":"","better":"lower","value":1,"rounds":5}}"#,
            r#"{"sample":{"metric":"a","unit":"","better":"lower","value":null}}"#,
            r#"{"unheard":1}"#,
        ] {
            assert!(serde_json::from_str::<Message>(bad).is_err(), "{bad}");
        }
    }
}
