// SPDX-License-Identifier: GPL-2.0-only
//! Which processes ended during a load, how, and when their memory was back. Times are nanoseconds on the
//! monotonic clock unless their names say otherwise.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;

use protocol::faceoff::{Death, EndedBy, Who};

use super::levels::{self, Level};
use crate::system::clock::ms;
use crate::trace::tracefs;

/// How a process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    pub pid: i32,
    /// Its command name when it was signalled, or when it ended.
    pub name: String,
    /// When the first SIGTERM or SIGKILL was sent, if any was.
    pub signalled: Option<u64>,
    /// The command name of its sender; if the kernel killed it, of the process that was out of memory.
    pub sender: Option<String>,
    /// Whether one of the signals was SIGKILL.
    pub killed: bool,
    /// When it had ended; `None` if it has not.
    pub ended: Option<u64>,
}

/// Returns all processes that ended, or were sent a SIGKILL, until `end`, in the order of their first event.
/// `trace` has the events signal_generate and sched_process_exit, with times of the monotonic clock.
///
/// # Errors
/// When a line is no event, for example one that reports lost events.
pub fn endings(trace: &str, end: u64) -> Result<Vec<Ending>> {
    let mut endings: Vec<Ending> = Vec::new();
    let mut by_pid: HashMap<i32, usize> = HashMap::new();
    for event in tracefs::events(trace) {
        let (line, event) = event?;
        let at = event.at * 1000;
        // Processes that die later were killed to clean up.
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
            endings.push(Ending { pid, name: name.to_owned(), ..Ending::default() });
            endings.len() - 1
        });
        let ending = &mut endings[i];
        // Later events of this PID are about another process, or about none.
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
    // A process that handles SIGTERM may live on.
    endings.retain(|ending| ending.ended.is_some() || ending.killed);
    Ok(endings)
}

/// Parses `... comm=NAME pid=N ...`, where the name may contain spaces.
fn name_and_pid(fields: &str) -> Option<(&str, i32)> {
    let (name, rest) = fields.split_once("comm=")?.1.rsplit_once(" pid=")?;
    Some((name, rest.split(' ').next()?.parse().ok()?))
}

/// Adds what each process was. Of processes that are not in `known`, only those that were signalled count,
/// as [`Who::System`]; workers that udev ends when they are idle do not.
pub fn identify(endings: Vec<Ending>, known: &BTreeMap<i32, Who>) -> Vec<(Ending, Who)> {
    let is_udev = |ending: &Ending| ending.name.contains("udev-worker");
    let identify = |ending: Ending| match known.get(&ending.pid) {
        Some(&who) => Some((ending, who)),
        None if ending.signalled.is_some() && !is_udev(&ending) => Some((ending, Who::System)),
        None => None,
    };
    endings.into_iter().filter_map(identify).collect()
}

/// The processes that died during a load.
#[derive(Debug, Default, PartialEq)]
pub struct DeathSummary {
    pub deaths: Vec<Death>,
    /// How many died by a signal.
    pub kills: BTreeMap<Who, u64>,
    /// When the first signal was sent, and after how many milliseconds its memory was back.
    pub first_signal: Option<(u64, Option<f64>)>,
}

impl DeathSummary {
    /// Summarizes a load that took from `start` to `end`. `usage` returns what a process has in memory and in
    /// swap over time; empty where that is not known.
    pub fn new<'a>(
        deaths: Vec<(Ending, Who)>,
        start: u64,
        end: u64,
        usage: impl Fn(i32) -> (&'a [Level], &'a [Level]),
    ) -> Self {
        let since_start = |at: u64| (at as f64 - start as f64) / 1e6;
        let mut summary = Self::default();
        for (ending, who) in deaths {
            // A signal from before the load has nothing to do with it.
            let signal = ending.signalled.filter(|&at| at >= start);
            let (before, back) = match signal {
                None => (None, None),
                Some(at) => {
                    let (memory, swap) = usage(ending.pid);
                    let in_swap = levels::returned(swap, at).0.unwrap_or(0);
                    match levels::returned(memory, at) {
                        // A process has returned its memory when its end is recorded.
                        (None, None) => (None, ending.ended.map(|ended| ms(ended.saturating_sub(at)))),
                        (before, back) => (before.map(|kib| kib + in_swap), back),
                    }
                }
            };
            if let Some(at) = signal {
                *summary.kills.entry(who).or_default() += 1;
                if summary.first_signal.is_none_or(|(first, _)| at < first) {
                    summary.first_signal = Some((at, back));
                }
            }
            summary.deaths.push(Death {
                t: since_start(ending.ended.unwrap_or(end)),
                who,
                name: ending.name,
                pid: ending.pid,
                by: match (signal, ending.killed) {
                    (None, _) => EndedBy::Exit,
                    (_, true) => EndedBy::Kill,
                    (_, false) => EndedBy::Term,
                },
                signal_t: signal.map(since_start),
                sender: ending.sender,
                rss_kib: before,
                back_ms: back,
            });
        }
        summary
    }

    /// What the killed processes held, in KiB; `None` if that is not known of all.
    pub fn lost_kib(&self) -> Option<u64> {
        self.deaths.iter().filter(|death| death.signal_t.is_some()).map(|death| death.rss_kib).sum()
    }

    /// Whether somebody was killed where nobody had to die.
    pub fn is_needless(&self, needed_kills: Option<u64>) -> bool {
        needed_kills == Some(0) && !self.kills.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn deaths_are_identified_by_pid() {
        let known = BTreeMap::from([(200, Who::Hog), (202, Who::Innocent), (203, Who::Hog)]);
        let dead = identify(endings(TRACE, u64::MAX).unwrap(), &known);
        let identified: Vec<(i32, Who)> = dead.iter().map(|(ending, who)| (ending.pid, *who)).collect();
        assert_eq!(identified, [(200, Who::Hog), (62, Who::System), (202, Who::Innocent)]);
    }

    #[test]
    fn the_summary_has_kills_and_returned_memory() {
        let ending = |pid, signalled: Option<u64>, killed, ended: Option<u64>| Ending {
            pid,
            name: format!("p{pid}"),
            signalled: signalled.map(|at| at * 1_000_000),
            sender: None,
            killed,
            ended: ended.map(|at| at * 1_000_000),
        };
        let deaths = vec![
            (ending(1, Some(130), true, Some(180)), Who::Hog),
            (ending(2, Some(120), false, Some(150)), Who::System),
            (ending(3, None, false, Some(140)), Who::Foreground),
            (ending(4, Some(160), true, None), Who::Innocent),
        ];
        let usage = [(0, 500), (125, 900), (170, 80)].map(|(at, kib)| Level { at: at * 1_000_000, kib });
        let swap = [Level { at: 0, kib: 50 }];
        let of_pid = |pid| if pid == 1 { (&usage[..], &swap[..]) } else { Default::default() };
        let summary = DeathSummary::new(deaths, 100_000_000, 200_000_000, of_pid);
        assert_eq!(summary.kills, BTreeMap::from([(Who::Hog, 1), (Who::System, 1), (Who::Innocent, 1)]));
        let hog = DeathSummary { deaths: summary.deaths[..1].to_vec(), ..DeathSummary::default() };
        assert_eq!((hog.lost_kib(), summary.lost_kib()), (Some(950), None), "of the others it is not known");
        assert_eq!([Some(0), Some(1), None].map(|n| summary.is_needless(n)), [true, false, false]);
        let nobody = DeathSummary::default();
        assert_eq!((nobody.lost_kib(), nobody.is_needless(Some(0))), (Some(0), false));
        // The first signal is not that of the first death in the list.
        assert_eq!(summary.first_signal, Some((120_000_000, Some(30.0))));
        let shown: Vec<_> = summary.deaths.iter().map(|d| (d.t, d.by, d.signal_t, d.rss_kib, d.back_ms)).collect();
        let expected = [
            (80.0, EndedBy::Kill, Some(30.0), Some(950), Some(40.0)),
            (50.0, EndedBy::Term, Some(20.0), None, Some(30.0)),
            (40.0, EndedBy::Exit, None, None, None),
            (100.0, EndedBy::Kill, Some(60.0), None, None),
        ];
        assert_eq!(shown, expected);
    }
}
