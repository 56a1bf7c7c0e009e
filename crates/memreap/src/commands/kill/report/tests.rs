// SPDX-License-Identifier: GPL-2.0-only

use linux::process::Comm;

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
    report.set_after(Some(Memory { anon: 2 << 30, ..memory }));
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
    let facts = Facts {
        pid: Pid::new(pid).unwrap(),
        comm: Comm::new(b"firefox").unwrap(),
        uid: 1000,
        ppid: Pid::new(77),
        start_time: 5,
        kernel_thread: false,
        zombie: false,
        core_dumping: false,
        vm_size: 0,
        rss_anon: bytes,
        swap: 0,
        bytes,
        exact: false,
        share: bytes,
    };
    VictimReport { facts, set: None, result }
}

fn line(fate: Fate) -> String {
    victim(1234, 2 << 30, VictimResult::Attempted(outcome(fate))).line(&report())
}

#[test]
fn a_line_for_every_fate() {
    assert_eq!(line(Fate::Killed), "killed 1234 (firefox): 2.0 GiB back in 0.41 s (4.9 GiB/s) by mrelease");
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
    report.set_after(Some(Memory { anon: 3 << 30, ..report.before }));
    assert!(report.text().contains("the system uses only 1.0 GiB less than before"), "{}", report.text());
    // What others do must not look like a shortfall of little.
    report.victims = vec![victim(1, 1 << 20, VictimResult::Attempted(outcome(Fate::Killed)))];
    report.set_after(Some(report.before));
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
