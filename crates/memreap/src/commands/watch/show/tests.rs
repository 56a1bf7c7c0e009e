// SPDX-License-Identifier: GPL-2.0-only

use linux::process::Comm;
use linux::psi::{Line, Pressure};
use linux::{Pid, PidFd};

use super::super::trend::Forecast;
use super::*;
use crate::choice::{Choice, Cost, Pool};
use crate::daemon::decide::sample::Sample;

const MIB: u64 = 1 << 20;

fn entry(unix_ms: u64) -> Entry {
    serde_json::from_value(json!({
        "unix_ms": unix_ms, "pid": 42, "comm": r"h\u{1b}og", "uid": 4_000_000_000u32, "cgroup": "/a",
        "processes": 1, "bytes": 300 * MIB, "exact": true, "reason": "stall", "because": "",
        "rule": "", "method": "mrelease", "ending": "back", "available": [1, 2], "took_us": 41_000,
        "choice_us": 900,
    }))
    .unwrap()
}

fn view() -> View {
    let line = |avg10| Line { avg10, total: Duration::ZERO };
    let pid = Pid::own();
    let choice = Choice {
        pidfd: PidFd::open(pid).unwrap(),
        oom_score_adj: None,
        pid,
        comm: Comm::new(b"a\x1bb").unwrap(),
        uid: 4_000_000_000,
        cgroup: b"/user.slice"[..].try_into().unwrap(),
        bytes: 700 * MIB,
        precision: Precision::Guess,
        pool: Pool::new(),
        vm_size: 0,
        core_dumping: false,
        group: None,
        leaf: None,
        parent: None,
        command_line: crate::choice::CommandLine::new(),
        rule: Some(3),
        cost: Cost { processes: 312, cheap: 20, exact: 3, sampled: 1, late: 0, took: Duration::from_millis(4) },
    };
    View {
        at: UNIX_EPOCH + Duration::from_secs(1000),
        sample: Sample { total: 2000 * MIB, available: 100 * MIB, swap_free: 530 * MIB, ..Sample::default() },
        forecast: Forecast { headroom: 630 * MIB, rate: 33.0 * MIB as f64, left: Some(Duration::from_secs(10)) },
        pressure: Some(Pressure { some: line(12.34), full: Some(line(5.0)) }),
        next: Some(Next { choice, rule: "shell".to_owned() }),
        kills: Ok(vec![entry(880_000), entry(995_000)]),
    }
}

#[test]
fn the_picture() {
    let mut view = view();
    let pid = Pid::own();
    let victim = format!("{pid} (a\\u{{1b}}b), user 4000000000: at most 700 MiB would come back (shell)");
    let kill = r"42 (h\u{1b}og), user 4000000000: 300 MiB back after 41 ms by mrelease; stall";
    assert_eq!(
        lines(&view),
        [
            "memory    100 MiB of 2.0 GiB available (5 %)".to_owned(),
            "swap      530 MiB free".to_owned(),
            "pressure  some 12.3 %, full 5.0 % of the last 10 s".to_owned(),
            "forecast  gone in 10.0 s at 33 MiB/s".to_owned(),
            format!("next      {victim}"),
            "          of 312 processes, 3 read exactly and 1 by a sample, in 4.0 ms".to_owned(),
            format!("kills     5s ago  {kill}"),
            format!("          2m ago  {kill}"),
        ]
    );
    view.next = None;
    view.pressure = None;
    view.forecast.left = None;
    view.sample.swap_free = 0;
    view.kills = Err("/x cannot be read".to_owned());
    assert_eq!(
        lines(&view)[1..],
        [
            "swap      none free",
            "pressure  not known: this kernel does not have PSI",
            "forecast  does not run out",
            "next      none",
            "kills     /x cannot be read",
        ]
    );
    assert!(line(&view).ends_with("does not run out; next none"), "{}", line(&view));
}

#[test]
fn json_says_it_all() {
    let mut view = view();
    let value = json(&view).unwrap();
    assert_eq!(value["next"]["bytes"], 700 * MIB);
    assert_eq!(value["next"]["comm"], r"a\u{1b}b");
    assert_eq!((&value["headroom"], &value["seconds_left"]), (&json!(630 * MIB), &json!(10.0)));
    assert_eq!((&value["pressure"]["full_avg10"], &value["kills"][1]["pid"]), (&json!(5.0), &json!(42)));
    view.next = None;
    view.pressure = None;
    view.kills = Err("/x cannot be read".to_owned());
    let value = json(&view).unwrap();
    assert!(["next", "pressure", "kills"].iter().all(|key| value[key].is_null()), "{value}");
}

#[test]
fn a_picture_is_drawn_over_the_last_one() {
    let mut picture = Picture::default();
    let mut drawn = |size, lines: &[&str]| {
        let mut out = Vec::new();
        let lines: Vec<_> = lines.iter().map(|l| (*l).to_owned()).collect();
        picture.draw(&mut out, size, &lines).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(drawn([80, 24], &["abc", "d"]), "\x1b[Kabc\n\x1b[Kd\n\x1b[J");
    // Two lines up. A line that wraps, or scrolls the first one away, would break that.
    assert_eq!(drawn([2, 3], &["ää!", "b", "c"]), "\x1b[2F\x1b[Kää\n\x1b[Kb\n\x1b[J");
    assert_eq!(drawn([2, 1], &["a"]), "\x1b[2F\x1b[J");
    assert_eq!(drawn([2, 1], &["a"]), "\x1b[J");
}

#[test]
fn a_history_from_the_future_does_no_harm() {
    assert!(kill(&entry(u64::MAX), UNIX_EPOCH).starts_with("0s ago"));
}
