// SPDX-License-Identifier: GPL-2.0-only
//! What `memreap kill` prints, as text and as JSON.

use std::fmt::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use linux::{Pid, Root, escape};
use serde::{Serialize, Serializer};

use super::plan::Plan;
use crate::exit::Exit;
use crate::kill::set::Set;
use crate::kill::target::{Facts, Problem, ProblemKind, Selection, Target};
use crate::kill::{Fate, Method, Outcome};
use crate::units;

/// The version of the JSON. Fields may be added without a new one; 2 renamed a victim's `means` to `method`.
const VERSION: u32 = 2;
/// With less memory than this no rate is printed: it says more about the clock than about the memory.
const MIN_RATED_BYTES: u64 = 1 << 20;
/// With less memory than this no shortfall is printed: what other processes allocate and free is as much.
const MIN_SHORTFALL_BYTES: u64 = 64 << 20;
/// How often to look whether a cgroup is empty.
const EMPTY_STEP: Duration = Duration::from_millis(5);

/// All that is printed; the `--help` lists the JSON's fields.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// "kill".
    pub command: &'static str,
    /// No signals were sent.
    pub dry_run: bool,
    /// How it ended.
    #[serde(rename = "exit_code", serialize_with = "code")]
    pub exit: Exit,
    /// How the memory was to come back.
    #[serde(serialize_with = "method_name")]
    pub method: Method,
    /// Threads of memreap that freed memory.
    pub threads: usize,
    /// The signal before SIGKILL.
    pub signal_first: Option<FirstReport>,
    /// How long was waited at most after SIGKILL.
    pub timeout_seconds: f64,
    /// Ctrl-C ended the wait.
    pub interrupted: bool,
    /// The system's memory before the first signal.
    pub before: Memory,
    /// The system's memory at the end.
    pub after: Option<Memory>,
    /// How many bytes of anonymous memory and swap fewer are in use then. The victims' `bytes` are what was expected.
    pub freed: Option<u64>,
    /// What names many processes.
    pub sets: Vec<SetReport>,
    /// The processes.
    pub victims: Vec<VictimReport>,
    /// What went wrong.
    pub errors: Vec<Problem>,
}

/// A signal before SIGKILL.
#[derive(Clone, Debug, Serialize)]
pub struct FirstReport {
    signal: String,
    grace_seconds: f64,
}

/// Bytes, from /proc/meminfo.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// AnonPages.
    pub anon: u64,
    /// MemFree. Leaves out the free pages in per-CPU lists, which after the end of a large
    /// process can be half of what it had.
    pub free: u64,
    /// MemAvailable.
    pub available: u64,
    /// SwapFree.
    pub swap_free: u64,
}

impl Memory {
    /// How many bytes fewer of anonymous memory and swap are used now than then; 0 if more.
    pub fn gain_since(&self, then: &Self) -> u64 {
        (then.anon + self.swap_free).saturating_sub(self.anon + then.swap_free)
    }
}

/// A tree, a cgroup, a unit's or a user's processes.
#[derive(Clone, Debug, Serialize)]
pub struct SetReport {
    kind: &'static str,
    target: String,
    cgroup: Option<String>,
    /// The kernel kills them all at once.
    pub at_once: bool,
}

impl SetReport {
    /// What is known before the kill.
    pub fn new(set: &Set) -> Self {
        Self {
            kind: set.name().kind(),
            target: set.name().to_string(),
            cgroup: set.cgroup_path().map(|path| escape(path).to_string()),
            at_once: set.at_once().is_some(),
        }
    }
}

/// One process.
#[derive(Clone, Debug)]
pub struct VictimReport {
    /// What was read of it before the kill.
    pub facts: Facts,
    /// Which of the sets it was found by.
    pub set: Option<usize>,
    /// What became of it.
    pub result: VictimResult,
}

/// What was done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimResult {
    /// Nothing: there were problems with other targets, or Ctrl-C.
    Spared,
    /// A dry run.
    WouldKill {
        /// How its memory would come back.
        method: Method,
    },
    /// It was dead already.
    Zombie,
    /// It was killed, or the attempt failed; see [`Outcome::fate`].
    Attempted(Outcome),
}

/// [`VictimResult`] as JSON.
#[derive(Default, Serialize)]
struct ResultJson {
    outcome: &'static str,
    method: Option<&'static str>,
    /// From the signal until the memory was back.
    seconds: Option<f64>,
    bytes_per_second: Option<f64>,
    /// From the signal until the process had exited.
    exited_seconds: Option<f64>,
    mrelease: Option<Calls>,
}

#[derive(Serialize)]
struct Calls {
    calls: u32,
    again: u32,
    race_lost: bool,
}

impl Report {
    /// A report of a run that has not begun.
    pub fn new(plan: &Plan, method: Method, before: Memory) -> Self {
        Self {
            version: VERSION,
            command: "kill",
            dry_run: plan.dry_run,
            exit: Exit::Done,
            method,
            threads: 0,
            signal_first: plan.signal_first.map(|first| FirstReport {
                signal: first.signal.to_string(),
                grace_seconds: first.grace.as_secs_f64(),
            }),
            timeout_seconds: plan.timeout.as_secs_f64(),
            interrupted: false,
            before,
            after: None,
            freed: None,
            sets: Vec::new(),
            victims: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Sets the system's memory at the end.
    pub fn set_after(&mut self, after: Option<Memory>) {
        self.after = after;
        self.freed = after.map(|after| after.gain_since(&self.before));
    }

    /// Adds processes that were not killed.
    pub fn add(&mut self, targets: Vec<Target>, result: impl Fn(&Facts) -> VictimResult) {
        self.victims.extend(targets.into_iter().map(|target| {
            let result = result(&target.facts);
            VictimReport { facts: target.facts, set: target.set, result }
        }));
    }

    /// Adds what is against the kill. Returns the exit code for that.
    pub fn take_problems(&mut self, selection: &mut Selection) -> Option<Exit> {
        let exit = selection.problems.iter().map(|problem| problem.kind.exit()).max();
        self.errors.append(&mut selection.problems);
        exit
    }

    /// Adds a problem, with its exit code.
    pub fn add_problem(&mut self, problem: Problem) {
        self.exit = self.exit.max(problem.kind.exit());
        self.errors.push(problem);
    }

    /// Waits until the cgroups that were killed as a whole have no process any more, and says if there are still some.
    pub fn check_empty(&mut self, root: &Root, selection: &Selection, until: Instant, interrupted: impl Fn() -> bool) {
        for set in selection.sets.iter().filter(|set| set.at_once().is_some()) {
            while set.is_populated(root) && !self.interrupted {
                if Instant::now() >= until {
                    let name = set.name().to_string();
                    let text = format!("{name} still has processes: started or moved there since, or still dying");
                    self.add_problem(Problem { target: Some(name), ..Problem::new(ProblemKind::NotEmpty, text) });
                    break;
                }
                thread::sleep(EMPTY_STEP);
                self.interrupted |= interrupted();
            }
        }
    }

    /// For people, a line per process; but one for all of a set of which nothing special is to be told.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (index, set) in self.sets.iter().enumerate() {
            let of_set = || self.victims.iter().filter(|victim| victim.set == Some(index));
            if of_set().any(VictimReport::is_plain) {
                let killed = of_set().filter(|victim| victim.fate() == Some(Fate::Killed)).count();
                let how = if set.at_once { ", all at once" } else { "" };
                let _ = writeln!(text, "{}: {killed} of {} processes killed{how}", set.target, of_set().count());
            }
        }
        for victim in self.victims.iter().filter(|victim| victim.set.is_none() || !victim.is_plain()) {
            let _ = writeln!(text, "{}", victim.line(self));
        }
        if let Some(line) = self.total() {
            let _ = writeln!(text, "{line}");
        }
        if let Some(line) = self.shortfall() {
            let _ = writeln!(text, "{line}");
        }
        if self.interrupted && self.outcomes().any(|(_, o)| o.fate != Fate::Spared) {
            text.push_str("interrupted: what was killed stays killed, and its memory goes on coming back\n");
        }
        text
    }

    fn outcomes(&self) -> impl Iterator<Item = (&Facts, &Outcome)> {
        self.victims.iter().filter_map(|victim| match &victim.result {
            VictimResult::Attempted(outcome) => Some((&victim.facts, outcome)),
            _ => None,
        })
    }

    /// The sum over several processes.
    fn total(&self) -> Option<String> {
        let would = |victim: &&VictimReport| matches!(victim.result, VictimResult::WouldKill { .. });
        let would: Vec<_> = self.victims.iter().filter(would).collect();
        if would.len() > 1 {
            let (least, most) = together(would.iter().map(|victim| &victim.facts));
            let [least_text, most_text] = [least, most].map(units::bytes);
            let bytes = match least {
                0 => format!("at most {most_text}"),
                least if least == most => most_text,
                _ => format!("{least_text} to {most_text}"),
            };
            return Some(format!("{} processes: {bytes} would come back", would.len()));
        }
        let came: Vec<_> = self.outcomes().filter_map(|(facts, o)| Some((facts, o.started + o.back?))).collect();
        let last = came.iter().map(|(_, at)| *at).max()?;
        let (least, most) = together(came.iter().map(|(facts, _)| *facts));
        let bytes = self.freed.map_or(most, |freed| freed.clamp(least, most));
        // What they share counts for each, and others may have taken some since.
        let of = if bytes < most { format!(" of at most {}", units::bytes(most)) } else { String::new() };
        (came.len() > 1).then(|| format!("{} processes: {}", came.len(), back(bytes, &of, last)))
    }

    /// A note for when the system has got much less memory back than its processes had.
    fn shortfall(&self) -> Option<String> {
        // Shared memory, which an exact figure counts, is not anonymous.
        let anonymous = |facts: &Facts| facts.bytes.min(facts.anonymous());
        let back = self.outcomes().filter(|(_, o)| o.back.is_some());
        let sum: u64 = back.map(|(facts, _)| anonymous(facts).min(facts.share)).sum();
        let gain = self.freed?;
        let exact = self.outcomes().all(|(facts, _)| facts.exact);
        let remedy = if exact { "" } else { " (--exact leaves them out)" };
        (sum >= MIN_SHORTFALL_BYTES && gain < sum / 5 * 4).then(|| {
            format!(
                "note: the system uses only {} less than before: pages that other processes use too do not \
                 come back{remedy}, and others may have taken memory since",
                units::bytes(gain)
            )
        })
    }
}

/// What processes give back if they die together, in bytes, at least and at most.
fn together<'a>(all: impl Iterator<Item = &'a Facts>) -> (u64, u64) {
    all.fold((0, 0), |(least, most), facts| {
        let alone = if facts.exact { facts.bytes.min(facts.share) } else { 0 };
        (least + alone, most + facts.share)
    })
}

/// "2.0 GiB back in 0.41 s (4.9 GiB/s)", with `of` after the size.
fn back(bytes: u64, of: &str, time: Duration) -> String {
    let mut text = format!("{}{of} back in {}", units::bytes(bytes), units::time(time));
    if bytes >= MIN_RATED_BYTES
        && let Some(rate) = rate(bytes, time)
    {
        let _ = write!(text, " ({})", units::rate(rate));
    }
    text
}

fn rate(bytes: u64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| bytes as f64 / time.as_secs_f64())
}

impl VictimReport {
    /// It was killed, and there is no more to say.
    fn is_plain(&self) -> bool {
        matches!(self.fate(), Some(Fate::Killed | Fate::Gone))
    }

    fn fate(&self) -> Option<Fate> {
        match self.result {
            VictimResult::Attempted(outcome) => Some(outcome.fate),
            _ => None,
        }
    }

    fn line(&self, report: &Report) -> String {
        let (who, bytes) = (self.facts.label(), units::bytes(self.facts.bytes));
        match &self.result {
            VictimResult::Spared => format!("not killed: {who}"),
            VictimResult::Zombie => {
                let parent = self.facts.ppid.map_or_else(String::new, |ppid| format!(", process {ppid},"));
                format!(
                    "{who} is dead already (a zombie) and has no memory to give back; its parent{parent} has not waited for it"
                )
            }
            VictimResult::WouldKill { method } => {
                let at_most = if self.facts.exact { "" } else { "at most " };
                format!("would kill {who}: {at_most}{bytes} would come back, by {}", method.name())
            }
            VictimResult::Attempted(outcome) => match outcome.fate {
                Fate::Spared => format!("not killed: {who}"),
                Fate::Gone => format!("{who} was gone before the signal"),
                Fate::Refused(_) => format!("not killed: {who}"),
                Fate::Exited => {
                    let signal = report.signal_first.as_ref().map_or("the signal", |first| &first.signal);
                    let end = outcome.back.unwrap_or_default();
                    format!("{who} ended after {signal}: {bytes} back in {}", units::time(end))
                }
                Fate::Killed => {
                    let late = if outcome.race_lost && self.facts.bytes >= MIN_RATED_BYTES {
                        " (mrelease came too late)"
                    } else {
                        ""
                    };
                    let back = back(self.facts.bytes, "", outcome.back.unwrap_or_default());
                    format!("killed {who}: {back} by {}{late}", outcome.method.name())
                }
                Fate::Shared => format!(
                    "killed {who}, but its {bytes} did not come back: another process that lives shares the memory"
                ),
                Fate::Dying => {
                    let waited = if report.interrupted {
                        String::new()
                    } else {
                        format!(" after {}", units::time(Duration::from_secs_f64(report.timeout_seconds)))
                    };
                    let memory = match outcome.back {
                        Some(time) => {
                            format!("; its {bytes} came back in {} by {}", units::time(time), outcome.method.name())
                        }
                        None if self.facts.bytes == 0 => String::new(),
                        None => format!("; it may hold {bytes} still"),
                    };
                    format!("{who} is still dying{waited}{memory}")
                }
            },
        }
    }

    fn result_json(&self) -> ResultJson {
        let outcome = match &self.result {
            VictimResult::Spared => return ResultJson { outcome: "spared", ..ResultJson::default() },
            VictimResult::Zombie => return ResultJson { outcome: "zombie", ..ResultJson::default() },
            VictimResult::WouldKill { method } => {
                return ResultJson { outcome: "would_kill", method: Some(method.name()), ..ResultJson::default() };
            }
            VictimResult::Attempted(outcome) => outcome,
        };
        let name = match outcome.fate {
            Fate::Killed => "killed",
            Fate::Exited => "exited",
            Fate::Gone => "gone",
            Fate::Shared => "shared",
            Fate::Dying => "dying",
            Fate::Spared => "spared",
            Fate::Refused(_) => "refused",
        };
        ResultJson {
            outcome: name,
            method: matches!(outcome.fate, Fate::Killed | Fate::Dying).then(|| outcome.method.name()),
            seconds: outcome.back.map(|t| t.as_secs_f64()),
            bytes_per_second: outcome.back.and_then(|t| rate(self.facts.bytes, t)),
            exited_seconds: outcome.exited.map(|t| t.as_secs_f64()),
            mrelease: (outcome.calls > 0).then_some(Calls {
                calls: outcome.calls,
                again: outcome.again,
                race_lost: outcome.race_lost,
            }),
        }
    }
}

impl Serialize for VictimReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct VictimJson {
            pid: i32,
            comm: String,
            uid: u32,
            ppid: Option<i32>,
            start_time: u64,
            rss_anon: u64,
            swap: u64,
            bytes: u64,
            exact: bool,
            set: Option<usize>,
            #[serde(flatten)]
            result: ResultJson,
        }
        let facts = &self.facts;
        let victim = VictimJson {
            pid: facts.pid.get(),
            comm: escape(facts.comm.as_bytes()).to_string(),
            uid: facts.uid,
            ppid: facts.ppid.map(Pid::get),
            start_time: facts.start_time,
            rss_anon: facts.rss_anon,
            swap: facts.swap,
            bytes: facts.bytes,
            exact: facts.exact,
            set: self.set,
            result: self.result_json(),
        };
        victim.serialize(serializer)
    }
}

fn code<S: Serializer>(exit: &Exit, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(exit.code())
}

fn method_name<S: Serializer>(method: &Method, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(method.name())
}

#[cfg(test)]
mod tests;
