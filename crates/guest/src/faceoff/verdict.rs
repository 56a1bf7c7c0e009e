//! What a recording says: how long the user waited, when there was memory again, who died of what.
//! Times are nanoseconds on the monotonic clock unless they are said to be milliseconds.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;

use protocol::faceoff::Who;

use crate::trace::tracefs;

/// A frame that is later than that is a stall.
const STALL_MS: f64 = 50.0;
/// Memory is low from this share of all memory on...
const LOW: f64 = 0.05;
/// ...and has recovered when it stays above this one...
pub const RECOVERED: f64 = 0.10;
/// ...for so long.
pub const CALM: u64 = 1_000_000_000;
/// A victim's memory is back when no more than one part in so many is left.
const LEFT: u64 = 10;

/// Milliseconds of a time.
pub fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// A frame of an app that draws, or a wait that counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// When it should have ended.
    pub due: u64,
    /// When it did.
    pub ended: u64,
}

impl Frame {
    fn delay_ms(self) -> f64 {
        ms(self.ended.saturating_sub(self.due))
    }
}

/// What of these frames was between two moments: those that ended later are as late as they were at
/// the end, those that ended before it began do not count.
pub fn between(frames: &[Frame], from: u64, to: u64) -> Vec<Frame> {
    let within = |f: &&Frame| f.ended > from && f.due < to;
    frames.iter().filter(within).map(|f| Frame { due: f.due.max(from), ended: f.ended.min(to) }).collect()
}

/// The longest delay in milliseconds, and the sum of all that were stalls.
pub fn stalls(frames: &[Frame]) -> (f64, f64) {
    let delays = || frames.iter().map(|f| f.delay_ms());
    (delays().fold(0.0, f64::max), delays().filter(|&delay| delay > STALL_MS).sum())
}

/// The worst delay in milliseconds that was noticed between two moments; a frame that is late for
/// longer is noticed in each interval until it ends.
pub fn worst_gap(frames: &[Frame], from: u64, to: u64) -> f64 {
    stalls(&between_as_seen(frames, from, to)).0
}

fn between_as_seen(frames: &[Frame], from: u64, to: u64) -> Vec<Frame> {
    let within = |f: &&Frame| f.ended > from && f.due < to;
    frames.iter().filter(within).map(|f| Frame { due: f.due, ended: f.ended.min(to) }).collect()
}

/// Available memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// When.
    pub at: u64,
    /// KiB.
    pub available: u64,
}

/// Milliseconds from the first level below a twentieth of `total` until it was a tenth again and
/// stayed so for a second. 0 when it never fell that low, nothing when it did not recover.
pub fn low_to_recovered(levels: &[Level], total: u64) -> Option<f64> {
    let share = |level: &Level| level.available as f64 / total as f64;
    let Some(low) = levels.iter().position(|level| share(level) < LOW) else { return Some(0.0) };
    let mut since = None;
    for level in &levels[low..] {
        if share(level) < RECOVERED {
            since = None;
            continue;
        }
        let begun = *since.get_or_insert(level.at);
        if level.at - begun >= CALM {
            return Some(ms(begun - levels[low].at));
        }
    }
    None
}

/// Memory in use by somebody at one moment, in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// When.
    pub at: u64,
    /// KiB.
    pub kib: u64,
}

/// What somebody had at the moment `signal`, in KiB, and the milliseconds from then until nine
/// tenths of it were back. Nothing without a reading before, or when it did not come back.
pub fn given_back(usage: &[Usage], signal: u64) -> (Option<u64>, Option<f64>) {
    let after = usage.partition_point(|u| u.at <= signal);
    let Some(had) = after.checked_sub(1).map(|i| usage[i].kib) else { return (None, None) };
    let back = usage[after..].iter().find(|u| u.kib <= had / LEFT);
    (Some(had), back.map(|u| ms(u.at - signal)))
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub pid: i32,
    /// Its name when it got the signal, or when it ended.
    pub name: String,
    /// The first signal that ends processes, if there was one.
    pub signalled: Option<u64>,
    /// Who sent it, by name; whoever was out of memory, if it was the kernel.
    pub sender: Option<String>,
    /// Whether one of them was SIGKILL.
    pub killed: bool,
    /// When it had ended; nothing if it has not.
    pub ended: Option<u64>,
}

/// All processes that ended, or got a SIGKILL, until `end`, in the order of the first sign of it. The
/// trace has signal_generate and sched_process_exit, by the monotonic clock.
///
/// # Errors
/// A line that is no event, as when some were lost.
pub fn endings(trace: &str, end: u64) -> Result<Vec<Ending>> {
    let mut endings: Vec<Ending> = Vec::new();
    let mut by_pid: HashMap<i32, usize> = HashMap::new();
    for event in tracefs::events(trace) {
        let (line, event) = event?;
        let at = event.at * 1000;
        // Whoever dies later was cleared away.
        if at > end {
            continue;
        }
        let number = |key| tracefs::text_field(event.fields, key).and_then(|word| word.parse::<i32>().ok());
        let signal = match event.name {
            "signal_generate" => number("sig").filter(|sig| [libc::SIGKILL, libc::SIGTERM].contains(sig)),
            "sched_process_exit" => None,
            _ => continue,
        };
        if event.name == "signal_generate" && signal.is_none() {
            continue;
        }
        let Some((name, pid)) = name_and_pid(event.fields) else {
            anyhow::bail!("line {line} of the trace has no process: '{}'", event.fields)
        };
        let i = *by_pid.entry(pid).or_insert_with(|| {
            endings.push(Ending {
                pid,
                name: name.to_owned(),
                signalled: None,
                sender: None,
                killed: false,
                ended: None,
            });
            endings.len() - 1
        });
        let ending = &mut endings[i];
        // What comes after the end is about another process of that number, or about nobody.
        if ending.ended.is_some() {
            continue;
        }
        match signal {
            None => ending.ended = Some(at),
            Some(signal) => {
                ending.killed |= signal == libc::SIGKILL;
                ending.signalled.get_or_insert(at);
                ending.sender.get_or_insert_with(|| event.task.to_owned());
            }
        }
    }
    // Who handles a SIGTERM lives on.
    endings.retain(|ending| ending.ended.is_some() || ending.killed);
    Ok(endings)
}

/// `... comm=NAME pid=N ...`, where the name may have spaces.
fn name_and_pid(fields: &str) -> Option<(&str, i32)> {
    let (name, rest) = fields.split_once("comm=")?.1.rsplit_once(" pid=")?;
    Some((name, rest.split(' ').next()?.parse().ok()?))
}

/// Who died, and who it was: everybody of `cast`, and others only if they were signalled. Workers
/// that udev ends when they are idle are none.
pub fn deaths(endings: Vec<Ending>, cast: &BTreeMap<i32, Who>) -> Vec<(Ending, Who)> {
    let is_udev = |ending: &Ending| ending.name.contains("udev-worker");
    let judge = |ending: Ending| match cast.get(&ending.pid) {
        Some(&who) => Some((ending, who)),
        None if ending.signalled.is_some() && !is_udev(&ending) => Some((ending, Who::System)),
        None => None,
    };
    endings.into_iter().filter_map(judge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn frames(points: &[(u64, u64)]) -> Vec<Frame> {
        points.iter().map(|&(due, ended)| Frame { due: due * MS, ended: ended * MS }).collect()
    }

    #[test]
    fn stalls_are_late_frames_and_the_longest_is_any() {
        let all = frames(&[(10, 8), (20, 60), (70, 121), (131, 331)]);
        assert_eq!(stalls(&all), (200.0, 251.0));
        assert_eq!(stalls(&all[..2]), (40.0, 0.0));
        assert_eq!(stalls(&[]), (0.0, 0.0));
    }

    #[test]
    fn only_the_part_within_counts() {
        let all = frames(&[(10, 20), (30, 130), (140, 300), (310, 320)]);
        assert_eq!(between(&all, 50 * MS, 200 * MS), frames(&[(50, 130), (140, 200)]));
        assert_eq!(stalls(&between(&all, 50 * MS, 200 * MS)), (80.0, 140.0));
    }

    #[test]
    fn a_long_stall_is_seen_growing() {
        let all = frames(&[(10, 11), (20, 170)]);
        let seen = |from: u64, to: u64| worst_gap(&all, from * MS, to * MS);
        assert_eq!([seen(0, 15), seen(50, 100), seen(100, 150), seen(150, 200)], [1.0, 80.0, 130.0, 150.0]);
        assert_eq!(seen(200, 250), 0.0);
    }

    fn levels(points: &[(u64, u64)]) -> Vec<Level> {
        points.iter().map(|&(at, available)| Level { at: at * MS, available }).collect()
    }

    #[test]
    fn recovery_counts_from_the_first_low_to_what_stays() {
        let all = [(0, 500), (50, 49), (100, 101), (150, 99), (200, 120), (700, 100), (1200, 300)];
        assert_eq!(low_to_recovered(&levels(&all), 1000), Some(150.0));
        assert_eq!(low_to_recovered(&levels(&all[..6]), 1000), None);
        assert_eq!(low_to_recovered(&levels(&all[..1]), 1000), Some(0.0));
        assert_eq!(low_to_recovered(&levels(&[(0, 50)]), 1000), Some(0.0));
        assert_eq!(low_to_recovered(&[], 1000), Some(0.0));
    }

    #[test]
    fn memory_is_back_when_nine_tenths_are() {
        let usage: Vec<Usage> = [(0, 900), (5, 1000), (10, 800), (15, 101), (20, 100), (25, 0)]
            .map(|(at, kib)| Usage { at: at * MS, kib })
            .to_vec();
        assert_eq!(given_back(&usage, 6 * MS), (Some(1000), Some(14.0)));
        assert_eq!(given_back(&usage, 10 * MS), (Some(800), Some(15.0)));
        assert_eq!(given_back(&usage[..4], 6 * MS), (Some(1000), None));
        assert_eq!(given_back(&usage[1..], 0), (None, None));
    }

    const TRACE: &str = "# tracer: nop
        earlyoom-77    [001] d..1.    10.000100: signal_generate: sig=15 errno=0 code=0 comm=hog pid=200 grp=1 res=0
        earlyoom-77    [001] d..1.    10.000200: signal_generate: sig=17 errno=0 code=0 comm=sh pid=9 grp=1 res=0
        earlyoom-77    [001] d..1.    10.000300: signal_generate: sig=9 errno=0 code=0 comm=hog pid=200 grp=1 res=0
             hog-200   [000] .....    10.000900: sched_process_exit: comm=hog pid=200 prio=120
             cat-201   [000] .....    10.001000: sched_process_exit: comm=cat pid=201 prio=120
 systemd-udevd-50      [000] d....    10.001100: signal_generate: sig=15 errno=0 code=0 comm=(udev-worker) pid=60 grp=1 res=0
   (udev-worker)-60    [000] .....    10.001200: sched_process_exit: comm=(udev-worker) pid=60 prio=120
         systemd-1     [000] d....    10.001300: signal_generate: sig=15 errno=0 code=0 comm=polite one pid=61 grp=1 res=0
         systemd-1     [000] d....    10.001400: signal_generate: sig=9 errno=0 code=0 comm=my d pid=62 grp=1 res=0
          editor-202   [000] .....    10.001500: sched_process_exit: comm=editor pid=202 prio=120
";

    #[test]
    fn endings_have_their_first_signal() {
        let endings = endings(TRACE, u64::MAX).unwrap();
        let pids: Vec<i32> = endings.iter().map(|ending| ending.pid).collect();
        assert_eq!(pids, [200, 201, 60, 62, 202]);
        let first = &endings[0];
        assert_eq!((first.signalled, first.ended), (Some(10_000_100_000), Some(10_000_900_000)));
        assert_eq!((first.name.as_str(), first.killed), ("hog", true));
        assert_eq!((first.sender.as_deref(), &endings[1].sender), (Some("earlyoom"), &None));
        assert_eq!((endings[1].signalled, endings[1].killed), (None, false));
        assert_eq!((endings[3].name.as_str(), endings[3].ended), ("my d", None));
        let cut = super::endings(TRACE, 10_000_500_000).unwrap();
        assert_eq!((cut.len(), cut[0].ended), (1, None));
        assert!(super::endings("CPU:0 [LOST 12 EVENTS]", 0).is_err());
    }

    #[test]
    fn deaths_are_judged_by_who_it_was() {
        let cast = BTreeMap::from([(200, Who::Hog), (202, Who::Innocent), (203, Who::Hog)]);
        let dead = deaths(endings(TRACE, u64::MAX).unwrap(), &cast);
        let judged: Vec<(i32, Who)> = dead.iter().map(|(ending, who)| (ending.pid, *who)).collect();
        assert_eq!(judged, [(200, Who::Hog), (62, Who::System), (202, Who::Innocent)]);
    }
}
