// SPDX-License-Identifier: GPL-2.0-only
//! Decides about a process: whether it must never be killed, or how much its memory counts. Nothing here
//! reads a file, and judging does not allocate.

mod pattern;

use std::ops::RangeInclusive;

use linux::Pid;
use linux::cgroup::OomPreference;

use crate::kill::SignalFirst;

pub use pattern::Pattern;

/// How much oom_score_adj can add to a process's memory, in multiples of what it holds. The kernel has no
/// such limit, and kills processes that hold nothing if only their oom_score_adj is high enough.
const MAX_ADJ_FACTOR: f64 = 9.0;

/// Any user can give a process any name, and move it between cgroups below [`USERS_CGROUP`], so what a rule protects
/// that asks for nothing else is this part of memory and swap at most.
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

/// What is known of a process when it is judged.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its ID.
    pub pid: Pid,
    /// Its name.
    pub comm: &'a [u8],
    /// Its arguments, separated by NUL; `None` when they cannot be read.
    pub command_line: Option<&'a [u8]>,
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

impl Rule {
    fn fits(&self, subject: &Subject<'_>) -> bool {
        let any = |patterns: &[Pattern], bytes| patterns.is_empty() || patterns.iter().any(|p| p.fits(bytes));
        // Cheap ones first.
        (self.users.is_empty() || self.users.contains(&subject.uid))
            && self.oom_score_adj.as_ref().is_none_or(|range| range.contains(&subject.oom_score_adj))
            && any(&self.names, subject.comm)
            && any(&self.cgroups, subject.cgroup)
            && subject.command_line.map_or(
                // It may be one that must not be killed.
                self.effect == Effect::Never || self.command_lines.is_empty(),
                |command_line| any(&self.command_lines, command_line),
            )
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

    /// Never kill these processes: the caller itself and those on which it depends. Until this is called
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
        let found = self.rules.iter().zip(0..).find(|(rule, _)| rule.fits(subject));
        let (factor, up_to, rule) = match found {
            Some((Rule { effect: Effect::Never, .. }, index)) => return Verdict::never(index),
            Some((rule @ Rule { effect: Effect::Weight(factor), .. }, index)) => {
                let anywhere = rule.cgroups.is_empty() || subject.cgroup.starts_with(USERS_CGROUP);
                let is_bounded = rule.users.is_empty() && anywhere && *factor < 1.0 && self.total > 0;
                let most = if is_bounded { self.total / PROTECTED_BY_NAME_DIVISOR } else { u64::MAX };
                (*factor, most.min(rule.up_to.unwrap_or(u64::MAX)), Some(index))
            }
            None => (1.0, u64::MAX, None),
        };
        let (factor, up_to, rule) = match subject.preference {
            OomPreference::Avoid if factor > AVOID_FACTOR => {
                (AVOID_FACTOR, u64::MAX, rule.or(Some(AVOID_RULE)))
            }
            _ => (factor, up_to, rule),
        };
        let offset = f64::from(subject.oom_score_adj) / 1000.0 * self.total as f64;
        // Desktops give all programs of a user the same high value; it must not undo a protection.
        let offset = if offset > 0.0 { offset * factor.min(1.0) } else { offset };
        Verdict { never: false, factor, up_to, offset: offset as i64, rule }
    }

    /// Returns the label of a rule.
    pub fn rule(&self, index: u16) -> &str {
        match index {
            INIT_RULE => "PID 1",
            SPARED_RULE => "memreap itself and its ancestors",
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

    /// Whether a rule asks for command lines. Reading them can wait for the process.
    pub fn needs_command_line(&self) -> bool {
        self.rules.iter().any(|rule| !rule.command_lines.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn subject(comm: &str) -> Subject<'_> {
        Subject {
            pid: Pid::new(4711).unwrap(),
            comm: comm.as_bytes(),
            command_line: Some(b""),
            uid: 1000,
            cgroup: b"/user.slice/a.scope",
            oom_score_adj: 0,
            preference: OomPreference::None,
        }
    }

    fn rule(effect: Effect) -> Rule {
        Rule {
            label: format!("{effect:?}"),
            names: vec![],
            command_lines: vec![],
            users: vec![],
            cgroups: vec![],
            oom_score_adj: None,
            effect,
            up_to: None,
            signal_first: None,
        }
    }

    fn names(names: &[&str], effect: Effect) -> Rule {
        Rule { names: names.iter().map(|n| Pattern::name(n).unwrap()).collect(), ..rule(effect) }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = Policy::new(vec![
            names(&["a", "b*"], Effect::Never),
            names(&["bc", "c"], Effect::Weight(0.1)),
            names(&["c", "d"], Effect::Weight(2.0)),
        ]);
        let judged = |comm| {
            let verdict = policy.judge(&subject(comm));
            (verdict.never, verdict.factor, verdict.rule)
        };
        assert_eq!(judged("bc"), (true, 0.0, Some(0)));
        assert_eq!(judged("c"), (false, 0.1, Some(1)));
        assert_eq!(judged("d"), (false, 2.0, Some(2)));
        assert_eq!(judged("e"), (false, 1.0, None));
        assert_eq!((policy.rule(2), policy.rule(7)), ("Weight(2.0)", "?"));
    }

    #[test]
    fn all_keys_of_a_rule_must_fit() {
        let never = Rule {
            names: vec![Pattern::name("x").unwrap()],
            command_lines: vec![Pattern::command_line("x *").unwrap()],
            users: vec![7, 1000],
            cgroups: vec![Pattern::cgroup("/user.slice/*").unwrap()],
            oom_score_adj: Some(-5..=5),
            ..rule(Effect::Never)
        };
        let policy = Policy::new(vec![never]);
        assert!(policy.needs_command_line());
        let fitting = Subject { command_line: Some(b"x\0y\0"), ..subject("x") };
        assert!(policy.judge(&fitting).never);
        for other in [
            Subject { comm: b"y", ..fitting },
            Subject { command_line: Some(b""), ..fitting },
            Subject { uid: 8, ..fitting },
            Subject { cgroup: b"", ..fitting },
            Subject { oom_score_adj: 6, ..fitting },
        ] {
            assert!(!policy.judge(&other).never, "{other:?}");
        }
        let unknown = |subject| Subject { command_line: None, ..subject };
        assert!(policy.judge(&unknown(fitting)).never);
        assert!(!policy.judge(&unknown(Subject { uid: 8, ..fitting })).never);
        let command_lines = vec![Pattern::command_line("*").unwrap()];
        let weight = Rule { command_lines, ..rule(Effect::Weight(2.0)) };
        assert_eq!(Policy::new(vec![weight]).judge(&unknown(fitting)), Verdict::PLAIN);
    }

    #[test]
    fn some_are_never_killed_whatever_the_rules() {
        let mut policy = Policy::new(vec![rule(Effect::Weight(1e6))]);
        policy.spare(vec![Pid::new(42).unwrap()]);
        let mut one = subject("x");
        assert!(!policy.judge(&one).never);
        one.oom_score_adj = -1000;
        let verdict = policy.judge(&one);
        assert!(verdict.never && verdict.score(u64::MAX) == 0);
        assert_eq!(verdict.rule.map(|r| policy.rule(r)), Some("oom_score_adj -1000"));
        one.oom_score_adj = 0;
        for (pid, why) in [(1, "PID 1"), (42, "memreap itself and its ancestors")] {
            one.pid = Pid::new(pid).unwrap();
            let verdict = policy.judge(&one);
            assert_eq!((verdict.never, verdict.rule.map(|r| policy.rule(r))), (true, Some(why)));
        }
    }

    #[test]
    fn what_a_unit_asks_for_is_respected() {
        let policy =
            Policy::new(vec![names(&["shell"], Effect::Weight(0.01)), names(&["big"], Effect::Weight(2.0))]);
        let judged = |comm, preference| {
            let verdict = policy.judge(&Subject { preference, ..subject(comm) });
            (verdict.score(1000), verdict.rule.map(|rule| policy.rule(rule)))
        };
        let avoid = Some("ManagedOOMPreference=avoid");
        assert_eq!(judged("big", OomPreference::Omit), (0, Some("ManagedOOMPreference=omit")));
        assert_eq!(judged("other", OomPreference::Avoid), (100, avoid));
        // The rule still says which signal comes first.
        assert_eq!(judged("big", OomPreference::Avoid), (100, Some("Weight(2.0)")));
        // A rule that protects more stays.
        assert_eq!(judged("shell", OomPreference::Avoid), (10, Some("Weight(0.01)")));
    }

    #[test]
    fn oom_score_adj_is_a_share_of_all_memory() {
        let mut policy = Policy::default();
        let with = |policy: &Policy, adj| policy.judge(&Subject { oom_score_adj: adj, ..subject("x") });
        assert_eq!(with(&policy, 500).score(GIB), GIB);
        policy.set_total(8 * GIB);
        assert_eq!(with(&policy, 500).score(GIB), 5 * GIB);
        assert_eq!(with(&policy, -125).score(3 * GIB), 2 * GIB);
        assert_eq!(with(&policy, -500).score(3 * GIB), 1);
        // A process that holds nothing cannot help, whatever its oom_score_adj.
        assert_eq!(with(&policy, 1000).score(1 << 20), 10 << 20);
    }

    #[test]
    fn oom_score_adj_does_not_undo_a_protection() {
        let mut policy = Policy::new(vec![names(&["shell"], Effect::Weight(0.1))]);
        policy.set_total(10 * GIB);
        let score =
            |comm, adj, bytes| policy.judge(&Subject { oom_score_adj: adj, ..subject(comm) }).score(bytes);
        assert_eq!(score("shell", 100, GIB), GIB / 10 + GIB / 10);
        assert!(score("shell", 200, GIB) < score("hog", 0, GIB));
        // What makes a kill less likely still does.
        assert_eq!(score("shell", -100, GIB), 1);
    }

    #[test]
    fn what_is_plainly_a_fault_is_not_protected() {
        let shell = Rule { up_to: Some(GIB), ..names(&["shell"], Effect::Weight(0.01)) };
        let mut policy = Policy::new(vec![shell]);
        policy.set_total(24 * GIB);
        let verdict = policy.judge(&subject("shell"));
        assert_eq!(verdict.score(GIB), GIB / 100);
        assert_eq!(verdict.score(3 * GIB), 2 * GIB + GIB / 100);
    }

    #[test]
    fn what_users_can_choose_protects_a_part_of_memory_only() {
        let mut policy = Policy::new(vec![
            Rule { users: vec![0], ..names(&["x"], Effect::Weight(0.01)) },
            names(&["x"], Effect::Weight(0.01)),
            Rule { cgroups: vec![Pattern::cgroup("/**").unwrap()], ..rule(Effect::Weight(0.01)) },
        ]);
        policy.set_total(64 * GIB);
        // Any user can enter the cgroup of the second.
        for by_user in [subject("x"), subject("y")] {
            let verdict = policy.judge(&by_user);
            assert_eq!(verdict.score(8 * GIB), 8 * GIB / 100);
            assert!(verdict.score(60 * GIB) > 52 * GIB);
        }
        let service = policy.judge(&Subject { cgroup: b"/system.slice/y.service", ..subject("y") });
        assert_eq!(service.score(60 * GIB), 60 * GIB / 100);
        let root = policy.judge(&Subject { uid: 0, ..subject("x") });
        assert_eq!(root.score(60 * GIB), 60 * GIB / 100);
    }

    proptest! {
        #[test]
        fn more_bytes_never_score_less(
            factor in prop_oneof![1e-6..1.0, Just(1.0), 1.0..1e6],
            offset: i64,
            a: u64,
            b: u64,
        ) {
            let verdict = Verdict { factor, offset, ..Verdict::PLAIN };
            let (less, more) = (a.min(b), a.max(b));
            prop_assert!(verdict.score(less) <= verdict.score(more));
            prop_assert!(verdict.score(less) > 0);
        }
    }
}
