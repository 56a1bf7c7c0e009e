// SPDX-License-Identifier: GPL-2.0-only
//! What `memreap kill` prints, as text and as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::plan::Plan;
use crate::exit::Exit;
use crate::kill::target::Problem;
use crate::kill::{Fate, Method, Outcome};
use crate::units;

/// The version of the JSON. Fields may be added without a new one; 2 renamed a victim's `means` to `method`.
const VERSION: u32 = 2;
/// With less memory than this no rate is printed: it says more about the clock than about the memory.
const MIN_RATED_BYTES: u64 = 1 << 20;
/// With less memory than this no shortfall is printed: what other processes allocate and free is as much.
const MIN_SHORTFALL_BYTES: u64 = 64 << 20;

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
    /// The processes.
    pub victims: Vec<VictimReport>,
    /// What went wrong.
    pub errors: Vec<Fault>,
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

/// One process.
#[derive(Clone, Debug)]
pub struct VictimReport {
    /// What was read of it before the kill.
    pub facts: VictimFacts,
    /// What became of it.
    pub result: VictimResult,
}

/// What was read of a process before anything was done to it.
#[derive(Clone, Debug, Serialize)]
pub struct VictimFacts {
    /// Its ID.
    pub pid: i32,
    /// Its name, printable.
    pub comm: String,
    /// Its effective user.
    pub uid: u32,
    /// Its parent.
    pub ppid: Option<i32>,
    /// When it started, in clock ticks after boot: with the ID, this names it uniquely.
    pub start_time: u64,
    /// Anonymous memory that it had, in bytes.
    pub rss_anon: u64,
    /// Its memory in swap, in bytes.
    pub swap: u64,
    /// What comes back: exactly, or at most.
    pub bytes: u64,
    /// Which of the two `bytes` is.
    pub exact: bool,
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

/// What went wrong with a target.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    /// What the user typed.
    pub target: Option<String>,
    /// Which process, if there is one.
    pub pid: Option<i32>,
    /// The kind, one word.
    pub kind: &'static str,
    /// For people, with the remedy.
    pub message: String,
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
            victims: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Adds what is wrong with targets.
    pub fn add_problems(&mut self, problems: &[Problem]) {
        self.errors.extend(problems.iter().map(|problem| Fault {
            target: Some(problem.target.clone()),
            pid: problem.pid.map(linux::Pid::get),
            kind: problem.kind.name(),
            message: problem.message.clone(),
        }));
    }

    /// For people, a line per process.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for victim in &self.victims {
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

    fn outcomes(&self) -> impl Iterator<Item = (&VictimFacts, &Outcome)> {
        self.victims.iter().filter_map(|victim| match &victim.result {
            VictimResult::Attempted(outcome) => Some((&victim.facts, outcome)),
            _ => None,
        })
    }

    /// Returns how many bytes came back, and after what time the last of them did.
    fn back(&self) -> (u64, Duration) {
        self.outcomes()
            .filter_map(|(facts, o)| Some((facts.bytes, o.started + o.back?)))
            .fold((0, Duration::ZERO), |(sum, last), (bytes, at)| (sum + bytes, last.max(at)))
    }

    /// The sum over several processes.
    fn total(&self) -> Option<String> {
        if self.dry_run && self.victims.len() > 1 {
            let sum = self.victims.iter().map(|v| v.facts.bytes).sum();
            return Some(format!("{} processes: {} would come back", self.victims.len(), units::bytes(sum)));
        }
        let came = self.outcomes().filter(|(_, o)| o.back.is_some()).count();
        let (sum, last) = self.back();
        (came > 1).then(|| format!("{came} processes: {}", back(sum, last)))
    }

    /// A note for when the system has got much less memory back than its processes had.
    fn shortfall(&self) -> Option<String> {
        // Shared memory, which an exact figure counts, is not anonymous.
        let anonymous = |facts: &VictimFacts| facts.bytes.min(facts.rss_anon.saturating_add(facts.swap));
        let back = self.outcomes().filter(|(_, o)| o.back.is_some());
        let sum: u64 = back.map(|(facts, _)| anonymous(facts)).sum();
        let gain = self.after?.gain_since(&self.before);
        (sum >= MIN_SHORTFALL_BYTES && gain < sum / 5 * 4).then(|| {
            format!(
                "note: the system uses only {} less than before: pages that other processes use too do not \
                 come back (--exact leaves them out), and others may have taken memory since",
                units::bytes(gain)
            )
        })
    }
}

/// "2.0 GiB back in 0.41 s (4.9 GiB/s)"
fn back(bytes: u64, time: Duration) -> String {
    let mut text = format!("{} back in {}", units::bytes(bytes), units::time(time));
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
    /// "4711 (name)".
    pub fn label(&self) -> String {
        format!("{} ({})", self.facts.pid, self.facts.comm)
    }

    fn line(&self, report: &Report) -> String {
        let (who, bytes) = (self.label(), units::bytes(self.facts.bytes));
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
                    let back = back(self.facts.bytes, outcome.back.unwrap_or_default());
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
                            format!(
                                "; its {bytes} came back in {} by {}",
                                units::time(time),
                                outcome.method.name()
                            )
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
                return ResultJson {
                    outcome: "would_kill",
                    method: Some(method.name()),
                    ..ResultJson::default()
                };
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
        struct Flat<'a> {
            #[serde(flatten)]
            facts: &'a VictimFacts,
            #[serde(flatten)]
            result: ResultJson,
        }
        Flat { facts: &self.facts, result: self.result_json() }.serialize(serializer)
    }
}

fn code<S: Serializer>(exit: &Exit, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(exit.code())
}

fn method_name<S: Serializer>(method: &Method, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(method.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::kill::plan::Show;

    const MS: Duration = Duration::from_millis(1);

    fn report() -> Report {
        let plan = Plan {
            selectors: Vec::new(),
            all: false,
            force: false,
            keep_going: false,
            signal_first: None,
            timeout: 10_000 * MS,
            method: None,
            dry_run: false,
            exact: false,
            show: Show::Text,
        };
        let memory = Memory { anon: 4 << 30, free: 1 << 30, available: 2 << 30, swap_free: 1 << 30 };
        let mut report = Report::new(&plan, Method::Mrelease, memory);
        report.after = Some(Memory { anon: 2 << 30, ..memory });
        report
    }

    fn outcome(fate: Fate) -> Outcome {
        Outcome {
            fate,
            method: Method::Mrelease,
            started: Duration::ZERO,
            back: Some(410 * MS),
            exited: Some(420 * MS),
            calls: 2,
            again: 1,
            race_lost: false,
        }
    }

    fn victim(pid: i32, bytes: u64, result: VictimResult) -> VictimReport {
        let facts = VictimFacts {
            pid,
            comm: "firefox".to_owned(),
            uid: 1000,
            ppid: Some(77),
            start_time: 5,
            rss_anon: bytes,
            swap: 0,
            bytes,
            exact: false,
        };
        VictimReport { facts, result }
    }

    fn line(fate: Fate) -> String {
        victim(1234, 2 << 30, VictimResult::Attempted(outcome(fate))).line(&report())
    }

    #[test]
    fn a_line_for_every_fate() {
        assert_eq!(
            line(Fate::Killed),
            "killed 1234 (firefox): 2.0 GiB back in 0.41 s (4.9 GiB/s) by mrelease"
        );
        assert_eq!(line(Fate::Gone), "1234 (firefox) was gone before the signal");
        assert_eq!(line(Fate::Spared), "not killed: 1234 (firefox)");
        assert_eq!(line(Fate::Refused(1)), "not killed: 1234 (firefox)");
        assert_eq!(
            line(Fate::Shared),
            "killed 1234 (firefox), but its 2.0 GiB did not come back: another process that lives shares the \
             memory"
        );
        assert_eq!(
            line(Fate::Dying),
            "1234 (firefox) is still dying after 10.0 s; its 2.0 GiB came back in 0.41 s by mrelease"
        );
        let mut report = report();
        report.signal_first = Some(FirstReport { signal: "SIGTERM".to_owned(), grace_seconds: 2.0 });
        let exited = victim(1234, 2 << 30, VictimResult::Attempted(outcome(Fate::Exited)));
        assert_eq!(exited.line(&report), "1234 (firefox) ended after SIGTERM: 2.0 GiB back in 0.41 s");
    }

    #[test]
    fn a_line_for_those_not_killed() {
        let line = |result| victim(1234, 2 << 30, result).line(&report());
        assert_eq!(line(VictimResult::Spared), "not killed: 1234 (firefox)");
        assert_eq!(
            line(VictimResult::Zombie),
            "1234 (firefox) is dead already (a zombie) and has no memory to give back; its parent, process 77, \
             has not waited for it"
        );
        assert_eq!(
            line(VictimResult::WouldKill { method: Method::Expedite }),
            "would kill 1234 (firefox): at most 2.0 GiB would come back, by expedite"
        );
    }

    #[test]
    fn what_is_still_dying_holds_what_it_had() {
        let dying = Outcome { back: None, ..outcome(Fate::Dying) };
        let line = |bytes| victim(1, bytes, VictimResult::Attempted(dying)).line(&report());
        assert_eq!(line(1 << 30), "1 (firefox) is still dying after 10.0 s; it may hold 1.0 GiB still");
        assert_eq!(line(0), "1 (firefox) is still dying after 10.0 s");
    }

    #[test]
    fn a_lost_race_is_told_where_it_matters() {
        let lost = Outcome { method: Method::Plain, race_lost: true, ..outcome(Fate::Killed) };
        let line = |bytes| victim(1, bytes, VictimResult::Attempted(lost)).line(&report());
        assert!(line(2 << 30).ends_with("by plain (mrelease came too late)"), "{}", line(2 << 30));
        assert_eq!(line(100 << 10), "killed 1 (firefox): 100 KiB back in 0.41 s by plain");
    }

    #[test]
    fn several_have_a_sum_that_ends_with_the_last() {
        let mut report = report();
        let late = Outcome { started: 90 * MS, ..outcome(Fate::Killed) };
        report.victims = vec![
            victim(1, 1 << 30, VictimResult::Attempted(outcome(Fate::Killed))),
            victim(2, 1 << 30, VictimResult::Attempted(late)),
            victim(3, 1 << 30, VictimResult::Attempted(outcome(Fate::Gone))),
        ];
        report.victims[2].result = VictimResult::Attempted(Outcome { back: None, ..outcome(Fate::Gone) });
        let text = report.text();
        assert_eq!(text.lines().last(), Some("2 processes: 2.0 GiB back in 0.50 s (4.0 GiB/s)"), "{text}");
    }

    #[test]
    fn less_back_than_said_is_told() {
        let mut report = report();
        report.victims = vec![victim(1, 2 << 30, VictimResult::Attempted(outcome(Fate::Killed)))];
        assert_eq!(report.shortfall(), None);
        report.after = Some(Memory { anon: 3 << 30, ..report.before });
        assert!(report.text().contains("the system uses only 1.0 GiB less than before"), "{}", report.text());
        // What others do must not look like a shortfall of little.
        report.victims = vec![victim(1, 1 << 20, VictimResult::Attempted(outcome(Fate::Killed)))];
        report.after = Some(report.before);
        assert_eq!(report.shortfall(), None);
    }

    #[test]
    fn the_gain_counts_memory_and_swap() {
        let then = Memory { anon: 100, free: 0, available: 0, swap_free: 50 };
        let now = Memory { anon: 70, swap_free: 60, ..then };
        assert_eq!((now.gain_since(&then), then.gain_since(&now)), (40, 0));
    }

    #[test]
    fn json_has_null_for_what_is_not_known() {
        let json = |result| serde_json::to_value(victim(1, 1 << 20, result)).unwrap();
        let zombie = json(VictimResult::Zombie);
        assert_eq!((&zombie["outcome"], &zombie["seconds"]), (&"zombie".into(), &serde_json::Value::Null));
        let killed = json(VictimResult::Attempted(outcome(Fate::Killed)));
        assert_eq!((&killed["method"], &killed["mrelease"]["again"]), (&"mrelease".into(), &1.into()));
        assert_eq!(killed["seconds"], 0.41);
        assert_eq!(serde_json::to_value(report()).unwrap()["exit_code"], 0);
    }
}
