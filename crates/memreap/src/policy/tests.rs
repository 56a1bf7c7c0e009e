// SPDX-License-Identifier: GPL-2.0-only

use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

fn subject(comm: &str) -> Subject<'_> {
    Subject {
        pid: Pid::new(4711).unwrap(),
        comm: comm.as_bytes(),
        command_line: Some(b""),
        exe: Exe::Unread,
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
        exes: vec![],
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
    for (pid, why) in [(1, "PID 1"), (42, "memreap itself")] {
        one.pid = Pid::new(pid).unwrap();
        let verdict = policy.judge(&one);
        assert_eq!((verdict.never, verdict.rule.map(|r| policy.rule(r))), (true, Some(why)));
    }
}

#[test]
fn what_a_unit_asks_for_is_respected() {
    let policy = Policy::new(vec![names(&["shell"], Effect::Weight(0.01)), names(&["big"], Effect::Weight(2.0))]);
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
    let score = |comm, adj, bytes| policy.judge(&Subject { oom_score_adj: adj, ..subject(comm) }).score(bytes);
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

#[test]
fn executables() {
    let exes = |paths: &[&str]| paths.iter().map(|path| Pattern::exe(path).unwrap()).collect();
    let never = Rule { exes: exes(&["/usr/sbin/mysqld", "/opt/*/bin/**"]), ..rule(Effect::Never) };
    let prefer = Rule { exes: exes(&["/**/chrome"]), ..rule(Effect::Weight(10.0)) };
    let policy = Policy::new(vec![never, prefer, names(&["x"], Effect::Weight(0.5))]);
    assert!(policy.needs_exe() && !Policy::default().needs_exe());
    let judged = |exe| {
        let verdict = policy.judge(&Subject { exe, ..subject("x") });
        (verdict.never, verdict.factor, verdict.rule)
    };
    assert_eq!(judged(Exe::Path(b"/usr/sbin/mysqld")), (true, 0.0, Some(0)));
    assert_eq!(judged(Exe::Path(b"/opt/db/bin/server")), (true, 0.0, Some(0)));
    assert_eq!(judged(Exe::Path(b"/opt/google/chrome")), (false, 10.0, Some(1)));
    for other in [&b"/tmp/usr/sbin/mysqld"[..], b"/usr/sbin/mysqld2", b"/opt/bin/server", b""] {
        assert_eq!(judged(Exe::Path(other)), (false, 0.5, Some(2)), "{other:?}");
    }
    assert_eq!(judged(Exe::Unreadable), (true, 0.0, Some(0)));
    // The most that it may be.
    assert_eq!(judged(Exe::Unread), (false, 10.0, Some(2)));
}

/// Rules of all kinds, of which each may fit the subject or not.
fn any_rule() -> impl Strategy<Value = Rule> {
    let effect = prop_oneof![Just(Effect::Never), (1e-3..100.0).prop_map(Effect::Weight)];
    let up_to = prop::option::of(0..4 * GIB);
    let [exe, name, user] = std::array::from_fn(|_| any::<Option<bool>>());
    (effect, up_to, exe, name, user).prop_map(|(effect, up_to, exe, name, user)| {
        let fits = |fits: bool, yes, no| if fits { yes } else { no };
        Rule {
            exes: exe.iter().map(|exe| Pattern::exe(fits(*exe, "/a/b", "/c")).unwrap()).collect(),
            names: name.iter().map(|name| Pattern::name(fits(*name, "x", "y")).unwrap()).collect(),
            users: user.iter().map(|user| if *user { 1000 } else { 7 }).collect(),
            up_to,
            ..rule(effect)
        }
    })
}

proptest! {
    #[test]
    fn who_was_not_read_scores_no_less(
        rules in prop::collection::vec(any_rule(), 0..6),
        oom_score_adj in -999..=1000_i16,
        avoid: bool,
        bytes in 0..8 * GIB,
    ) {
        let mut policy = Policy::new(rules);
        policy.set_total(8 * GIB);
        let preference = if avoid { OomPreference::Avoid } else { OomPreference::None };
        let score = |exe| policy.judge(&Subject { exe, oom_score_adj, preference, ..subject("x") }).score(bytes);
        for exe in [Exe::Path(b"/a/b"), Exe::Path(b"/d"), Exe::Unreadable] {
            prop_assert!(score(exe) <= score(Exe::Unread), "{exe:?}");
        }
    }

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
