// SPDX-License-Identifier: GPL-2.0-only
//! One run: collects the guest's events and finds wrong victims.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use protocol::faceoff::{Death, Event, Idle, Outcome, Sample, Who};

use super::cell::{Cell, CellName};

/// A run: a line of `faceoff.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    pub contestant: String,
    /// The load and the machine.
    pub cell: CellName,
    /// The number of the round, from 0.
    pub round: usize,
    pub seed: u64,
    /// The key of the snapshot that the run started from.
    pub snapshot: String,
    /// How long the run took on the host, in seconds.
    pub seconds: f64,
    /// The largest share of the host's CPU time that was stolen in ten seconds of the run, 0 to 1; see
    /// [`crate::stolen`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
    /// Why the run failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The outcome of a load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Outcome>,
    /// The cost of being idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    #[serde(with = "columns")]
    pub samples: Vec<Sample>,
    /// The processes that ended.
    pub deaths: Vec<Death>,
    /// The journal and the kernel log.
    pub log: String,
}

impl Run {
    /// Makes a run without results.
    pub fn new(contestant: &str, cell: &CellName, round: usize, seed: u64) -> Self {
        Self {
            contestant: contestant.to_owned(),
            cell: cell.clone(),
            round,
            seed,
            snapshot: String::new(),
            seconds: 0.0,
            stolen: None,
            failure: None,
            result: None,
            idle: None,
            samples: Vec::new(),
            deaths: Vec::new(),
            log: String::new(),
        }
    }

    /// Adds an event of the guest.
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

    /// Whether the guest delivered the result of this cell, which is the run's.
    pub fn is_complete(&self, cell: &Cell) -> bool {
        if cell.is_idle() { self.idle.is_some() } else { self.result.is_some() }
    }

    /// Returns the number of wrong victims by their kind; empty if there was none.
    pub fn wrong(&self) -> BTreeMap<String, u64> {
        self.result.as_ref().map_or_else(BTreeMap::new, wrong)
    }
}

/// Returns the number of victims that should not have been killed: all but hogs, and more of these than were
/// necessary ("one too many").
fn wrong(result: &Outcome) -> BTreeMap<String, u64> {
    let bad = result.kills.iter().filter(|(who, n)| **who != Who::Hog && **n > 0);
    let mut wrong: BTreeMap<String, u64> = bad.map(|(who, n)| (who.to_string(), *n)).collect();
    let kills = result.kills.get(&Who::Hog).copied().unwrap_or(0);
    if let Some(needed) = result.needed_kills.filter(|needed| kills > *needed) {
        wrong.insert("one too many".to_owned(), kills - needed);
    }
    wrong
}

/// Returns what to show about an event during the run.
pub(super) fn progress(event: &Event) -> Option<String> {
    match event {
        Event::Ready => Some("the guest is warmed up".to_owned()),
        Event::Started { pid: Some(pid) } => Some(format!("started, process {pid}")),
        Event::Started { pid: None } => Some("started".to_owned()),
        Event::Death(death) => Some(format!("{} ({}) died", death.who, death.name)),
        Event::Result(result) => Some(format!("longest stall {:.0} ms", result.longest_stall_ms)),
        _ => None,
    }
}

/// Samples as columns of differences, a fifth of their size as objects: each column has the difference of each sample
/// to the one before, in whole KiB or microseconds; zeros at its end are left out.
mod columns {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize as _, Serializer};

    use super::Sample;

    type Column = (&'static str, fn(&Sample) -> i64, fn(&mut Sample, i64));

    const TIME: &str = "t_us";
    #[rustfmt::skip]
    const COLUMNS: [Column; 11] = [
        (TIME, |s| (s.t * 1e3).round() as i64, |s, v| s.t = v as f64 / 1e3),
        ("avail", |s| s.avail.cast_signed(), |s, v| s.avail = v.cast_unsigned()),
        ("free", |s| s.free.cast_signed(), |s, v| s.free = v.cast_unsigned()),
        ("swap_free", |s| s.swap_free.cast_signed(), |s, v| s.swap_free = v.cast_unsigned()),
        ("some_us", |s| s.some_us.cast_signed(), |s, v| s.some_us = v.cast_unsigned()),
        ("full_us", |s| s.full_us.cast_signed(), |s, v| s.full_us = v.cast_unsigned()),
        ("total", |s| s.total.cast_signed(), |s, v| s.total = v.cast_unsigned()),
        ("swap_total", |s| s.swap_total.cast_signed(), |s, v| s.swap_total = v.cast_unsigned()),
        // 0 is none.
        ("scanned", |s| s.scanned.map_or(0, |n| n.cast_signed() + 1), |s, v| {
            s.scanned = v.cast_unsigned().checked_sub(1);
        }),
        ("within_us", |s| s.within_us.cast_signed(), |s, v| s.within_us = v.cast_unsigned()),
        ("fg_gap_us", |s| (s.fg_gap_ms * 1e3).round() as i64, |s, v| s.fg_gap_ms = v as f64 / 1e3),
    ];

    pub(super) fn serialize<S: Serializer>(samples: &[Sample], serializer: S) -> Result<S::Ok, S::Error> {
        let column = |(name, get, _): &Column| {
            let mut before = 0;
            let value = |sample| get(sample) - std::mem::replace(&mut before, get(sample));
            let mut values: Vec<_> = samples.iter().map(value).collect();
            if *name != TIME {
                values.truncate(values.iter().rposition(|v| *v != 0).map_or(0, |last| last + 1));
            }
            (*name, values)
        };
        let columns = COLUMNS.iter().map(column).filter(|(_, values)| !values.is_empty());
        columns.collect::<BTreeMap<_, _>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Sample>, D::Error> {
        let columns = BTreeMap::<String, Vec<i64>>::deserialize(deserializer)?;
        let mut samples = vec![Sample::default(); columns.get(TIME).map_or(0, Vec::len)];
        for (name, values) in &columns {
            let known = COLUMNS.iter().find(|(known, ..)| known == name).filter(|_| values.len() <= samples.len());
            let (_, _, set) =
                known.ok_or_else(|| serde::de::Error::custom(format!("samples: {name}: wrong column")))?;
            let mut value = 0;
            for (i, sample) in samples.iter_mut().enumerate() {
                value += values.get(i).copied().unwrap_or(0);
                set(sample, value);
            }
        }
        Ok(samples)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::summary::tests::cells;
    use super::*;

    pub(in crate::faceoff) fn outcome(stall: f64, back: Option<f64>) -> Outcome {
        Outcome {
            longest_stall_ms: stall,
            total_stall_ms: stall,
            longest_login_ms: 0.0,
            late_logins: 0,
            recovered_ms: back,
            usable_kib: None,
            lost_kib: Some(0),
            signal_to_back_ms: None,
            kills: BTreeMap::from([(Who::Hog, 1)]),
            kernel_oom_kills: 0,
            first_signal_ms: Some(5.0),
            needed_kills: Some(1),
            served: true,
            timed_out: false,
        }
    }

    #[test]
    fn wrong_victims_are_counted() {
        let judged = |kills: &[(Who, u64)], needed_kills| {
            let kills = kills.iter().copied().collect();
            let outcome = Outcome { kills, needed_kills, ..outcome(1.0, None) };
            wrong(&outcome).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(judged(&[(Who::Hog, 1), (Who::Innocent, 0)], Some(1)), []);
        assert_eq!(judged(&[], Some(1)), [], "no kill was necessary");
        assert_eq!(judged(&[(Who::Hog, 1)], Some(0)), [("one too many".to_owned(), 1)]);
        assert_eq!(judged(&[(Who::Hog, 1), (Who::Innocent, 1)], Some(1)), [("innocent".to_owned(), 1)]);
        assert_eq!(judged(&[(Who::Foreground, 1), (Who::System, 2)], None).len(), 2);
        assert_eq!(judged(&[(Who::System, 1), (Who::Hog, 9)], None), [("system".to_owned(), 1)]);
        assert_eq!(judged(&[(Who::Hog, 200)], None), [], "a group dies as a whole");
        assert_eq!(judged(&[(Who::Hog, 3)], Some(1)), [("one too many".to_owned(), 2)]);
    }

    #[test]
    fn a_run_is_complete_with_what_its_cell_measures() {
        let mut cell = cells().remove(0);
        let mut run = Run::new("peer", &CellName("hog".into()), 0, 7);
        run.take(Event::Log { text: "a\n".into() });
        run.take(Event::Log { text: "b".into() });
        assert_eq!(run.log, "a\nb\n");
        assert!(!run.is_complete(&cell));
        run.take(Event::Result(outcome(12.5, None)));
        assert!(run.is_complete(&cell));
        cell.load.idle_s = Some(60);
        assert!(!run.is_complete(&cell));
        let again = |run: &Run| serde_json::from_str::<Run>(&serde_json::to_string(run).unwrap());
        assert_eq!(again(&run).unwrap(), run);
        run.samples = (0..3)
            .map(|n| Sample {
                t: 50.5 * n as f64,
                avail: 900 - 400 * n,
                scanned: (n < 2).then_some(7 + n),
                fg_gap_ms: [0.0, 9.5, 0.0][n as usize],
                ..Sample::default()
            })
            .collect();
        let text = serde_json::to_string(&run).unwrap();
        let columns = r#""samples":{"avail":[900,-400,-400],"fg_gap_us":[0,9500,-9500],"#.to_owned()
            + r#""scanned":[8,1,-9],"t_us":[0,50500,50500]}"#;
        assert!(text.contains(&columns), "{text}");
        assert_eq!(again(&run).unwrap(), run);
        for (what, wrong) in [("avail", "afail"), ("-400,-400", "-400,-400,1"), ("t_us", "t_ms")] {
            assert!(serde_json::from_str::<Run>(&text.replace(what, wrong)).is_err(), "{wrong}");
        }
    }
}
