// SPDX-License-Identifier: GPL-2.0-only
//! Decides about a process: whether it must never be killed, or how much its memory counts. Nothing here
//! reads a file, and judging does not allocate.

mod pattern;

use std::ops::RangeInclusive;

use linux::Pid;
use linux::cgroup::OomPreference;

use crate::kill::SignalFirst;

pub use pattern::Pattern;
pub(crate) use pattern::without_padding;

/// How much oom_score_adj can add to a process's memory, in multiples of what it holds. The kernel has no
/// such limit, and kills processes that hold nothing if only their oom_score_adj is high enough.
const MAX_ADJ_FACTOR: f64 = 9.0;

/// Any user can give a process any name (and, in a mount namespace, its program any path), and move it between cgroups
/// below [`USERS_CGROUP`], so what a rule protects that asks for nothing else is this part of memory and swap at most.
const PROTECTED_BY_NAME_DIVISOR: u64 = 8;
const USERS_CGROUP: &[u8] = b"/user.slice/";

/// Indices for [`Policy::rule`] of verdicts that no rule can change.
const INIT_RULE: u16 = u16::MAX;
const SPARED_RULE: u16 = u16::MAX - 1;
const EXEMPT_RULE: u16 = u16::MAX - 2;
const OMIT_RULE: u16 = u16::MAX - 3;
const AVOID_RULE: u16 = u16::MAX - 4;

/// The memory of a unit that is to be avoided counts by this factor at most.
const AVOID_FACTOR: f64 = 0.1;

/// What is known of the program that a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exe<'a> {
    /// Its path.
    Path(&'a [u8]),
    /// It cannot be read.
    Unreadable,
    /// It was not read: the verdict is the greatest there can be.
    Unread,
}

/// What is known of a process when it is judged.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its ID.
    pub pid: Pid,
    /// Its name.
    pub comm: &'a [u8],
    /// Its arguments, separated by NUL; `None` when they cannot be read.
    pub command_line: Option<&'a [u8]>,
    /// The program that it runs.
    pub exe: Exe<'a>,
    /// Its real user.
    pub uid: u32,
    /// Its cgroup in the v2 hierarchy, "/a/b"; empty without one.
    pub cgroup: &'a [u8],
    /// -1000 to 1000.
    pub oom_score_adj: i16,
    /// What its unit asks for.
    pub preference: OomPreference,
}

/// How a process was judged, and by which rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// It must not be killed, whatever it holds.
    pub never: bool,
    /// Factor on the bytes that come back...
    pub factor: f64,
    /// ...up to this number; what is beyond counts fully.
    pub up_to: u64,
    /// Bytes on top, as the kernel's OOM killer adds them for oom_score_adj; may be negative.
    pub offset: i64,
    /// The rule that fitted, an index for [`Policy::rule`]; `None` when none did.
    pub rule: Option<u16>,
}

impl Verdict {
    /// Of a process that no rule fits: its memory counts as it is.
    pub const PLAIN: Self = Self { never: false, factor: 1.0, up_to: u64::MAX, offset: 0, rule: None };

    fn never(rule: u16) -> Self {
        Self { never: true, factor: 0.0, rule: Some(rule), ..Self::PLAIN }
    }

    /// Returns what counts in the choice: greater with more bytes, never negative.
    pub fn score(&self, bytes: u64) -> u64 {
        if self.never {
            return 0;
        }
        let weighed = bytes.min(self.up_to);
        let (beyond, bytes) = ((bytes - weighed) as f64, bytes as f64);
        let score = weighed as f64 * self.factor + beyond + (self.offset as f64).min(bytes * MAX_ADJ_FACTOR);
        // 0 is for a process that must not be killed.
        if score < 1.0 { 1 } else { score as u64 }
    }
}

/// What a rule does to the processes it fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// They are never killed.
    Never,
    /// Their memory counts by this factor.
    Weight(f64),
}

/// Which processes are judged how. All that is set must fit; of several patterns or users, one.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// What it is called in output.
    pub label: String,
    /// For the name; empty for any.
    pub names: Vec<Pattern>,
    /// For the command line; empty for any.
    pub command_lines: Vec<Pattern>,
    /// For the path of the executable; empty for any.
    pub exes: Vec<Pattern>,
    /// The real user; empty for any.
    pub users: Vec<u32>,
    /// For the path of the cgroup; empty for any.
    pub cgroups: Vec<Pattern>,
    /// Where oom_score_adj lies; `None` for anywhere.
    pub oom_score_adj: Option<RangeInclusive<i16>>,
    /// What it does.
    pub effect: Effect,
    /// What counts by a factor: so many bytes of a process at most, and what is beyond fully; `None` for all.
    pub up_to: Option<u64>,
    /// What they are sent before SIGKILL; `None` for nothing.
    pub signal_first: Option<SignalFirst>,
}

/// Whether a rule fits a process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    No,
    Yes,
    /// That depends on what was not read.
    Perhaps,
}

impl Rule {
    fn fits(&self, subject: &Subject<'_>) -> Fit {
        let any = |patterns: &[Pattern], bytes| patterns.is_empty() || patterns.iter().any(|p| p.fits(bytes));
        // Cheap ones first.
        let fits_else = (self.users.is_empty() || self.users.contains(&subject.uid))
            && self.oom_score_adj.as_ref().is_none_or(|range| range.contains(&subject.oom_score_adj))
            && any(&self.names, subject.comm)
            && any(&self.cgroups, subject.cgroup)
            && subject.command_line.map_or(
                // It may be one that must not be killed.
                self.effect == Effect::Never || self.command_lines.is_empty(),
                |command_line| any(&self.command_lines, command_line),
            );
        let is_one = |fits| if fits { Fit::Yes } else { Fit::No };
        match subject.exe {
            _ if !fits_else || self.exes.is_empty() => is_one(fits_else),
            Exe::Path(path) => is_one(any(&self.exes, path)),
            // As with a command line.
            Exe::Unreadable => is_one(self.effect == Effect::Never),
            Exe::Unread => Fit::Perhaps,
        }
    }
}

/// The rules. Without any, all processes but PID 1 and those that are exempt from the kernel's OOM
/// killer may be killed, and their memory counts by what it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    rules: Vec<Rule>,
    spared: Vec<Pid>,
    total: u64,
}

impl Policy {
    /// So many rules a file can have at most: each process is compared with all of them.
    pub const MAX_RULES: usize = 1000;

    /// A policy of rules, in their order.
    pub fn new(rules: Vec<Rule>) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Never kill these processes. Until this is called
    /// again.
    pub fn spare(&mut self, pids: Vec<Pid>) {
        self.spared = pids;
    }

    /// Sets of how many bytes oom_score_adj is a share: memory and swap. Until this is called it does not
    /// count, except for -1000.
    pub fn set_total(&mut self, bytes: u64) {
        self.total = bytes;
    }

    /// Judges a process; the first rule that fits decides. Allocates nothing.
    pub fn judge(&self, subject: &Subject<'_>) -> Verdict {
        if subject.pid.get() == 1 {
            return Verdict::never(INIT_RULE);
        }
        if self.spared.contains(&subject.pid) {
            return Verdict::never(SPARED_RULE);
        }
        if subject.oom_score_adj <= -1000 {
            return Verdict::never(EXEMPT_RULE);
        }
        if subject.preference == OomPreference::Omit {
            return Verdict::never(OMIT_RULE);
        }
        // The greatest factor of the rules that may fit, and the least that counts by it.
        let mut possible: Option<(f64, u64)> = None;
        let mut said = Some((1.0, u64::MAX, None));
        for (rule, index) in self.rules.iter().zip(0..) {
            match (rule.fits(subject), rule.effect) {
                (Fit::No, _) | (Fit::Perhaps, Effect::Never) => {}
                (Fit::Perhaps, Effect::Weight(factor)) => {
                    let (greatest, least) = possible.unwrap_or((factor, u64::MAX));
                    possible = Some((greatest.max(factor), least.min(self.most(rule, factor, subject))));
                }
                (Fit::Yes, Effect::Weight(factor)) => {
                    said = Some((factor, self.most(rule, factor, subject), Some(index)));
                    break;
                }
                (Fit::Yes, Effect::Never) if possible.is_none() => return Verdict::never(index),
                (Fit::Yes, Effect::Never) => {
                    said = None;
                    break;
                }
            }
        }
        let (said_factor, said_up_to, rule) = said.unwrap_or((0.0, u64::MAX, None));
        let factor = possible.map_or(said_factor, |(greatest, _)| greatest.max(said_factor));
        let bound = possible.filter(|_| factor < 1.0).map(|(_, least)| least.min(said_up_to));
        let up_to = bound.unwrap_or(if possible.is_some() { u64::MAX } else { said_up_to });
        let (factor, up_to, rule) = match subject.preference {
            OomPreference::Avoid if factor > AVOID_FACTOR => {
                let up_to = possible.map_or(u64::MAX, |(_, least)| least.min(said_up_to));
                (AVOID_FACTOR, up_to, rule.or(Some(AVOID_RULE)))
            }
            _ => (factor, up_to, rule),
        };
        let offset = f64::from(subject.oom_score_adj) / 1000.0 * self.total as f64;
        // Desktops give all programs of a user the same high value; it must not undo a protection.
        let offset = if offset > 0.0 { offset * factor.min(1.0) } else { offset };
        Verdict { never: false, factor, up_to, offset: offset as i64, rule }
    }

    /// Returns how many bytes of a process a rule's factor is for.
    fn most(&self, rule: &Rule, factor: f64, subject: &Subject<'_>) -> u64 {
        let anywhere = rule.cgroups.is_empty() || subject.cgroup.starts_with(USERS_CGROUP);
        let is_bounded = rule.users.is_empty() && anywhere && factor < 1.0 && self.total > 0;
        let most = if is_bounded { self.total / PROTECTED_BY_NAME_DIVISOR } else { u64::MAX };
        most.min(rule.up_to.unwrap_or(u64::MAX))
    }

    /// Returns the label of a rule.
    pub fn rule(&self, index: u16) -> &str {
        match index {
            INIT_RULE => "PID 1",
            SPARED_RULE => "memreap itself",
            EXEMPT_RULE => "oom_score_adj -1000",
            OMIT_RULE => "ManagedOOMPreference=omit",
            AVOID_RULE => "ManagedOOMPreference=avoid",
            _ => self.rules.get(usize::from(index)).map_or("?", |rule| rule.label.as_str()),
        }
    }

    /// Returns what a rule has its processes sent before SIGKILL; `all` when none of the rules decided.
    pub fn signal_first(&self, rule: Option<u16>, all: Option<SignalFirst>) -> Option<SignalFirst> {
        rule.and_then(|index| self.rules.get(usize::from(index))).map_or(all, |rule| rule.signal_first)
    }

    /// Whether a rule asks for executables.
    pub fn needs_exe(&self) -> bool {
        self.rules.iter().any(|rule| !rule.exes.is_empty())
    }

    /// Whether a rule asks for command lines. Reading them can wait for the process.
    pub fn needs_command_line(&self) -> bool {
        self.rules.iter().any(|rule| !rule.command_lines.is_empty())
    }
}

#[cfg(test)]
mod tests;
