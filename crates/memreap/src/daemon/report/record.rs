// SPDX-License-Identifier: GPL-2.0-only
//! A kill, as it is reported to the journal, the history, the metrics and the hook.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrayvec::ArrayString;
use linux::Pid;
use linux::process::Comm;

use super::workload::Workload;
use crate::choice::{CgroupPath, Choice, CommandLine, Parent};
use crate::daemon::decide::governor::Governor;
use crate::daemon::decide::reason::{Before, Ending, Reason};
use crate::kill::Method;
use crate::units::{Size, Time};

/// A kill, from the decision to the memory.
#[derive(Clone, Debug)]
pub struct KillRecord {
    /// When it was decided, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The victim's ID.
    pub pid: Pid,
    /// Its name.
    pub comm: Comm,
    /// Its user.
    pub uid: u32,
    /// Its cgroup; empty without one.
    pub cgroup: CgroupPath,
    /// Its parent, if that is known.
    pub parent: Option<Parent>,
    /// The beginning of its command line; empty if that is not known.
    pub command_line: CommandLine,
    /// How many processes were killed together.
    pub processes: u32,
    /// So many of them because they share the victim's memory.
    pub sharers: u32,
    /// All processes of the cgroup were killed.
    pub whole: bool,
    /// What was expected to come back, in bytes.
    pub expected: u64,
    /// By how much what is free, memory and swap, has grown meanwhile, in bytes; `None` where that cannot be said.
    /// Others take and give back memory at the same time.
    pub freed: Option<u64>,
    /// `expected` was exact.
    pub exact: bool,
    /// Why it was killed.
    pub reason: Reason,
    /// The numbers behind the reason, for people: "180 MiB of 2.0 GiB available, gone in 0.4 s at 420 MiB/s".
    pub because: ArrayString<160>,
    /// The label of the rule that decided the victim's weight; empty for none.
    pub rule: ArrayString<64>,
    /// What came of the command that runs before a kill.
    pub before: Before,
    /// How the memory came back.
    pub method: Method,
    /// How it ended.
    pub ending: Ending,
    /// MemAvailable (or what is left of the limit) before and after, in bytes.
    pub available: [u64; 2],
    /// From the signal until the memory was back.
    pub took: Duration,
    /// How long the choice took.
    pub choice_took: Duration,
}

impl KillRecord {
    /// A kill that is decided now, of the victim and those that share its memory. `rule` is the label of the rule that
    /// decided the victim's weight; what of it does not fit is cut off.
    pub fn new(victim: &Choice, reason: Reason, governor: &Governor, rule: &str, method: Method) -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sharers = u32::try_from(victim.pool.len()).unwrap_or(u32::MAX);
        let mut label = ArrayString::new();
        let _ = rule.chars().try_for_each(|c| label.try_push(c));
        Self {
            unix_ms: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
            pid: victim.pid,
            comm: victim.comm,
            uid: victim.uid,
            cgroup: victim.cgroup.clone(),
            parent: victim.parent,
            command_line: victim.command_line.clone(),
            processes: 1 + sharers,
            sharers,
            whole: false,
            expected: victim.bytes,
            freed: None,
            exact: victim.precision.is_exact(),
            reason,
            because: governor.explanation(),
            rule: label,
            before: Before::None,
            method,
            ending: Ending::DryRun,
            available: [governor.last().map_or(0, |sample| sample.available); 2],
            took: Duration::ZERO,
            choice_took: victim.cost.took,
        }
    }

    /// Returns texts about the victim that may be empty, each with its name in the journal and for the command.
    pub fn texts<'a>(&'a self, workload: &'a Workload<'a>) -> [(&'static str, &'a [u8]); 5] {
        [
            ("MEMREAP_UNIT", workload.unit),
            ("MEMREAP_POD", workload.pod.as_bytes()),
            ("MEMREAP_CONTAINER", workload.container),
            ("MEMREAP_PARENT_COMM", self.parent.as_ref().map_or(b"", |parent| parent.comm.as_bytes())),
            ("MEMREAP_COMMAND_LINE", &self.command_line),
        ]
    }

    /// Returns the victim's unit, pod and container.
    pub fn workload(&self) -> Workload<'_> {
        Workload::of(&self.cgroup)
    }

    /// How much came back, in bytes: what was expected, or what was seen if that is less.
    pub fn back(&self) -> u64 {
        match self.ending {
            Ending::Back | Ending::Exited => back(self.expected, self.freed),
            Ending::Late => back(self.expected, self.freed.or(Some(0))),
            Ending::Gone | Ending::DryRun | Ending::Refused(_) | Ending::Averted => 0,
        }
    }
}

/// How much came back, in bytes, when `expected` was and what is free grew by `freed`, if that is known.
pub fn back(expected: u64, freed: Option<u64>) -> u64 {
    freed.map_or(expected, |freed| freed.min(expected))
}

/// One line: which process, what came back, why.
impl fmt::Display for KillRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kill = self;
        let victim = VictimText(kill);
        let about = if kill.exact { "" } else { "about " };
        let (size, took) = (Size(kill.expected), Time(kill.took));
        match kill.ending {
            Ending::Back => {
                write!(f, "killed {victim}: ")?;
                // What was expected is no result.
                if let Some(freed) = kill.freed.filter(|freed| *freed < kill.expected / 4 * 3) {
                    write!(f, "{} of ", Size(freed))?;
                }
                write!(f, "{about}{size} back in {took} by {}", kill.method.name())?;
            }
            Ending::Late => write!(f, "killed {victim}: {about}{size} not back after {took}")?,
            Ending::Gone => write!(f, "{victim}, was gone before the signal")?,
            Ending::DryRun => write!(f, "would kill {victim}: {about}{size} would come back")?,
            Ending::Averted => write!(f, "spared {victim}: the reason to kill is gone")?,
            Ending::Exited => write!(f, "asked {victim}, to end, and it did: it held {about}{size}")?,
            Ending::Refused(errno) => {
                write!(f, "could not kill {victim}: ")?;
                match errno {
                    libc::EPERM => f.write_str("not permitted (CAP_KILL)")?,
                    errno => write!(f, "error {errno}")?,
                }
            }
        }
        if !kill.because.is_empty() {
            write!(f, "; {}", linux::escape(kill.because.as_bytes()))?;
        }
        if let Some(Parent { pid, comm }) = kill.parent {
            write!(f, "; parent {pid} ({comm})")?;
        }
        if !kill.command_line.is_empty() {
            write!(f, "; command line \"{}\"", linux::escape(&kill.command_line[..]))?;
        }
        if !kill.rule.is_empty() {
            write!(f, "; rule \"{}\"", linux::escape(kill.rule.as_bytes()))?;
        }
        if kill.before != Before::None {
            write!(f, "; the command before it: {}", kill.before.name())?;
        }
        Ok(())
    }
}

/// The victim, and those that were killed with it.
struct VictimText<'a>(&'a KillRecord);

impl fmt::Display for VictimText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kill = self.0;
        write!(f, "{} ({}), user {}", kill.pid, kill.comm, kill.uid)?;
        let cgroup = linux::escape(&kill.cgroup[..]);
        match kill.processes {
            0 | 1 => Ok(()),
            all if kill.whole => write!(f, ", and all of {cgroup}, {all} processes"),
            some => {
                if kill.sharers > 0 {
                    write!(f, ", and {} more that share its memory", kill.sharers)?;
                }
                match some - 1 - kill.sharers {
                    0 => Ok(()),
                    others => write!(f, ", and {others} more of {cgroup}"),
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
