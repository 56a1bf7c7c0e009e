// SPDX-License-Identifier: GPL-2.0-only
//! Why a process would not be killed now: which rule or reason spares it, or which one would be taken instead.

use std::io::{self, Write};

use linux::{Pid, PidFd, Root};
use serde::Serialize;

use crate::choice::{Choice, Chooser, Scope, Standing};
use crate::kill::target::thread_of;
use crate::policy::{Policy, Verdict};
use crate::{units, users};

/// The answer; the `--help` lists the JSON's fields.
#[derive(Debug, Serialize)]
pub struct WhyNot {
    pid: i32,
    name: String,
    uid: u32,
    user: String,
    reason: Reason,
    rule: Option<String>,
    /// What comes back.
    bytes: u64,
    exact: bool,
    /// What counts.
    score: u64,
    /// What counts of the one that would be killed, if that is why.
    victim_score: Option<u64>,
    /// It would be killed because all of its cgroup counts, so much in so many processes.
    #[serde(skip)]
    victim_group: Option<(u64, u32)>,
    /// A victim gives back so many bytes at least.
    smallest_bytes: u64,
    #[serde(skip)]
    weighed: String,
}

/// Why it would not be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Reason {
    /// It would be.
    Victim,
    /// It would be, with the one that was chosen.
    WithVictim,
    /// A rule, or what no rule can change.
    Never,
    /// A kernel thread or a zombie.
    NoMemory,
    /// It was killed a moment ago.
    Dying,
    /// The caller may not send it signals.
    NotPermitted,
    /// It gives back less than the smallest victim.
    TooSmall,
    /// Another one counts for more.
    Less,
}

/// The process that would be killed, and what it counts for.
pub struct Victim<'a> {
    pub choice: &'a Choice,
    pub score: u64,
}

impl WhyNot {
    /// Finds out how a process stands. A victim gives back `smallest_bytes` at least.
    ///
    /// # Errors
    /// Text for the user, when it is no process, or cannot be read.
    pub fn find(
        root: &Root,
        chooser: &mut Chooser,
        policy: &Policy,
        pid: Pid,
        victim: Option<Victim<'_>>,
        smallest_bytes: u64,
    ) -> Result<Self, String> {
        let standing = chooser.standing(policy, pid).map_err(|_| unknown(root, pid))?;
        let is_victim = victim.as_ref().is_some_and(|victim| victim.choice.pid == pid);
        // As closely as the choice has read the victim.
        let (bytes, exact) = match &victim {
            Some(victim) if is_victim => (victim.choice.bytes, victim.choice.precision.is_exact()),
            _ => match chooser.choose(policy, Scope::One(pid)) {
                Some(alone) => (alone.bytes, alone.precision.is_exact()),
                None => (standing.estimate, false),
            },
        };
        let is_in_pool = |choice: &Choice| choice.pool.iter().any(|member| member.pidfd.opened_as() == pid);
        let is_in_leaf = |choice: &Choice| {
            let dies = choice.group.is_some_and(|group| group.dies_together() && group.expendable);
            dies && choice.leaf.as_ref().is_some_and(|leaf| leaf.cgroup().contains(pid) == Ok(true))
        };
        let score = standing.verdict.score(bytes);
        let reason = match &victim {
            _ if !standing.has_memory => Reason::NoMemory,
            _ if standing.verdict.never => Reason::Never,
            _ if standing.is_dying => Reason::Dying,
            _ if !standing.may_signal => Reason::NotPermitted,
            _ if is_victim => Reason::Victim,
            Some(victim) if is_in_pool(victim.choice) || is_in_leaf(victim.choice) => Reason::WithVictim,
            _ if bytes < smallest_bytes => Reason::TooSmall,
            _ => Reason::Less,
        };
        let Standing { comm, uid, verdict, .. } = standing;
        let beaten = victim.filter(|_| reason == Reason::Less);
        let group = beaten.as_ref().and_then(|victim| victim.choice.group);
        Ok(Self {
            pid: pid.get(),
            name: comm.to_string(),
            uid,
            user: users::name(uid),
            reason,
            rule: verdict.rule.map(|rule| policy.rule(rule).to_owned()),
            bytes,
            exact,
            score,
            victim_score: beaten.map(|victim| victim.score).filter(|theirs| *theirs >= score),
            victim_group: group.filter(|group| group.expendable).map(|group| (group.bytes, group.processes)),
            smallest_bytes,
            weighed: weighed(policy, &verdict),
        })
    }

    /// Prints it for people. `victim` is how the process that would be killed is called.
    pub fn write(&self, out: &mut impl Write, victim: Option<&str>) -> io::Result<()> {
        let who = format!("{} ({})", self.pid, self.name);
        let victim = victim.unwrap_or("no process");
        let bytes = units::bytes(self.bytes);
        match self.reason {
            Reason::Victim => writeln!(out, "{who} would be killed"),
            Reason::WithVictim => writeln!(out, "{who} would be killed together with {victim}"),
            Reason::Never => match &self.rule {
                Some(rule) => writeln!(out, "{who} is never killed: {rule}"),
                None => writeln!(out, "{who} is never killed: it is a child of memreap"),
            },
            Reason::NoMemory => {
                writeln!(out, "{who} has no memory to give back: it is a kernel thread, or dead already (a zombie)")
            }
            Reason::Dying => writeln!(out, "{who} has been killed, and its memory is expected to come back by itself"),
            Reason::NotPermitted => {
                writeln!(
                    out,
                    "{who} is user {}'s, and not this user's to kill: run as root for the daemon's choice",
                    self.user
                )
            }
            Reason::TooSmall => {
                let smallest = units::bytes(self.smallest_bytes);
                writeln!(out, "{who} gives back {bytes}, less than the smallest victim, {smallest}{}", self.weighed)
            }
            Reason::Less => {
                let score = units::bytes(self.score);
                match (self.victim_score, self.victim_group) {
                    (Some(theirs), _) => writeln!(
                        out,
                        "{victim} would be killed instead: it counts for {}, {who} for {score}, {} less",
                        units::bytes(theirs),
                        units::bytes(theirs - self.score)
                    )?,
                    (None, Some((bytes, processes))) => writeln!(
                        out,
                        "{victim} would be killed instead: all of its cgroup counts, {} in {processes} processes; {who} \
                         counts for {score}",
                        units::bytes(bytes)
                    )?,
                    (None, None) => writeln!(out, "{victim} would be killed")?,
                }
                writeln!(out, "{who} gives back {bytes}{}", self.weighed)
            }
        }
    }
}

/// How a verdict makes what counts of what comes back.
fn weighed(policy: &Policy, verdict: &Verdict) -> String {
    let mut text = String::new();
    if verdict.factor != 1.0 {
        text.push_str(&format!("; weighed by {}", verdict.factor));
        if verdict.up_to < u64::MAX {
            text.push_str(&format!(", {} of it at most", units::bytes(verdict.up_to)));
        }
    }
    if verdict.offset != 0 {
        let what = if verdict.offset > 0 { "adds up to" } else { "takes off" };
        text.push_str(&format!("; oom_score_adj {what} {}", units::bytes(verdict.offset.unsigned_abs())));
    }
    if let Some(rule) = verdict.rule {
        text.push_str(&format!("; rule \"{}\"", policy.rule(rule)));
    }
    text
}

/// Why nothing is known of it.
fn unknown(root: &Root, pid: Pid) -> String {
    match (thread_of(root, pid), PidFd::open(pid)) {
        (Some(owner), _) => format!("{pid} is a thread of process {owner}: give {owner}"),
        (None, Ok(_)) => format!("process {pid} cannot be read: /proc hides it (hidepid); run as root"),
        (None, Err(_)) => format!("no process has the ID {pid}"),
    }
}
