// SPDX-License-Identifier: GPL-2.0-only
//! `memreap history` on files as the daemon writes them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Ran, memreap};
use serde_json::{Value, json};

/// 29 November 2026, 12:00 UTC, in milliseconds since 1970.
const NOON_MS: u64 = 1_795_953_600_000;

struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new(history: &[u8]) -> Self {
        let files = Self { dir: tempfile::tempdir().unwrap() };
        fs::write(files.history(), history).unwrap();
        files.configure(&format!("\"{}\"", files.history().display()));
        files
    }

    fn configure(&self, history: &str) {
        fs::write(self.config(), format!("record.history = {history}\n")).unwrap();
    }

    fn history(&self) -> PathBuf {
        self.dir.path().join("history.jsonl")
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("memreap.toml")
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = memreap();
        Ran::from(
            command.args(["history", "--config"]).arg(self.config()).args(args).env("TZ", "UTC").output().unwrap(),
        )
    }
}

/// A line as the daemon writes it, so many seconds after noon.
fn line(second: u64, comm: &str, unit: &str, reason: &str, ending: &str) -> Vec<u8> {
    let kill = json!({
        "unix_ms": NOON_MS + second * 1000, "pid": 4711, "comm": comm, "uid": 0, "cgroup": format!("/a/{unit}"),
        "unit": unit, "pod": "", "container": "", "parent": 7, "parent_comm": "sh", "command_line": "x --y",
        "processes": 1, "bytes": 2_u64 << 30, "freed": 1_u64 << 30, "exact": true, "reason": reason,
        "because": "80 MiB of 2.0 GiB were available", "rule": "cc", "method": "mrelease", "ending": ending,
        "available": [1, 2], "took_us": 41_000, "choice_us": 900, "of_tomorrow": [1],
    });
    // The first field comes first.
    let text = kill.to_string();
    let (before, after) = text.split_once(&format!("\"unix_ms\":{}", NOON_MS + second * 1000)).unwrap();
    let rest = format!("{before}{after}").replace(",,", ",").replace("{,", "{").replace(",}", "}");
    format!("{{\"unix_ms\":{},{}\n", NOON_MS + second * 1000, &rest[1..]).into_bytes()
}

fn comms(ran: &Ran) -> Vec<String> {
    let json = ran.json();
    json["kills"].as_array().unwrap().iter().map(|kill| kill["comm"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn kills_are_told_with_time_unit_reason_and_what_was_tried_before() {
    let lines = [
        line(0, "one", "a.service", "stall", "late"),
        line(12, "two", "b.service", "critical", "back"),
        line(3600, "three", "", "stall", "dry-run"),
    ];
    let files = Files::new(&lines.concat());
    let ran = files.run(&[]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    let known = "    80 MiB of 2.0 GiB were available; rule \"cc\"; parent 7 (sh); command line \"x --y\"\n";
    let expected = format!(
        "2026-11-29 12:00:00  stall     a.service  killed 4711 (one), user root: 2.0 GiB not back after 41 ms\n{known}\
         2026-11-29 12:00:12  critical  b.service  killed 4711 (two), user root: 1.0 GiB back in 41 ms by mrelease\n\
         {known}    tried before: 4711 (one) 12.0 s earlier: late\n\
         2026-11-29 13:00:00  stall     -  would kill 4711 (three), user root: 2.0 GiB would come back\n{known}\
         2 kills; by reason: critical 1, stall 1; by unit: a.service 1, b.service 1; 1 in dry runs\n"
    );
    assert_eq!(ran.out, expected);
    for (args, names) in [
        (&["--since", "2026-11-29 12:00:01"][..], &["two", "three"][..]),
        (&["--since", "2026-11-30"], &[]),
        (&["--unit", "b.service"], &["two"]),
        (&["--unit", "b"], &["two"]),
        (&["--reason", "stall", "--since", "50000d"], &["one", "three"]),
    ] {
        assert_eq!(comms(&files.run(&[args, &["--json"]].concat())), names, "{args:?}");
    }
    // In the file, backslashes are escaped; systemd's names have their own.
    let escaped = Files::new(&line(0, "qemu", r"machine-vm\\x2d1.scope", "stall", "back"));
    assert_eq!(comms(&escaped.run(&["--unit", r"machine-vm\x2d1.scope", "--json"])), ["qemu"]);
    let out = escaped.run(&[]).out;
    assert!(
        out.contains(r"  machine-vm\x2d1.scope  ") && out.ends_with("by unit: machine-vm\\x2d1.scope 1\n"),
        "{out}"
    );
    assert_eq!(files.run(&["--since", "2026-11-30"]).out, "no kills\n");
    assert_eq!(files.run(&["--since", "yesterday"]).code, Some(2));
    assert_eq!(files.run(&["--reason", "staal"]).code, Some(2));
}

#[test]
fn the_json_has_the_documented_fields_and_those_of_tomorrow() {
    let lines =
        [line(0, "one", "", "stall", "late"), line(90, "two", "", "stall", "back"), line(181, "x", "", "y", "z")];
    let json = Files::new(&lines.concat()).run(&["--json"]).json();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(keys(&json), "command errors kills version");
    let kill = &json["kills"][1];
    assert_eq!((&kill["of_tomorrow"][0], &kill["bytes"]), (&1.into(), &(2_u64 << 30).into()));
    assert_eq!(keys(&kill["tried"][0]), "comm ending pid unix_ms");
    // What is longer ago is of another shortage.
    assert_eq!((&json["kills"][0]["tried"], &json["kills"][2]["tried"]), (&json!([]), &json!([])));
}

#[test]
fn what_the_command_before_a_kill_did_is_told() {
    let whole = String::from_utf8(line(0, "one", "", "stall", "averted")).unwrap();
    let files = Files::new(whole.replace("\"of_tomorrow\":[1]", "\"before\":\"fr\\u001bed\"").as_bytes());
    let out = files.run(&[]).out;
    assert!(out.contains("user root: averted\n"), "{out}");
    assert!(out.contains("    tried before: the command before it: fr\\u{1b}ed\n"), "{out}");
}

#[test]
fn bad_and_torn_lines_are_told_and_lose_nothing() {
    let [one, two, three, four] = ["one", "two", "three", "four"].map(|name| line(0, name, "", "stall", "back"));
    let torn = &three[..three.len() / 2];
    // A power failure can leave NULs; and another daemon's line may follow what was cut off.
    let history = [&one[..], b"{\"no\": \"kill\"}\n\n\0\0\0", &two, torn, &three, &four[..four.len() - 1]].concat();
    let files = Files::new(&history);
    let mut rotated = files.history().into_os_string();
    rotated.push(".1");
    fs::write(Path::new(&rotated), [&b"\xff\x1b[2J\n"[..], &line(0, "old", "", "stall", "back")].concat()).unwrap();
    let ran = files.run(&["--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(comms(&ran), ["old", "one", "two", "three", "four"]);
    let path = files.history().display().to_string();
    let told: Vec<_> = ran.err.lines().collect();
    let places = [
        format!("{path}.1:1: no kill"),
        format!("{path}:2: no kill"),
        format!("{path}:4: what"),
        format!("{path}:5: what"),
    ];
    assert_eq!(told.len(), places.len(), "{ran:?}");
    for (told, place) in told.iter().zip(&places) {
        assert!(told.starts_with(&format!("memreap: {place}")), "{told}");
    }
    assert!(!ran.err.contains('\x1b'));
    let json = ran.json();
    assert_eq!((&json["errors"][2]["line"], &json["errors"][2]["file"]), (&4.into(), &path.into()));
}

#[test]
fn no_file_is_no_kill_and_what_cannot_be_read_is_an_error() {
    let files = Files::new(b"");
    assert_eq!(files.run(&[]).out, "no kills\n");
    fs::remove_file(files.history()).unwrap();
    assert_eq!(files.run(&[]).out, "no kills\n");
    files.configure("false");
    let ran = files.run(&[]);
    assert!(ran.code == Some(2) && ran.err.contains("keeps no history"), "{ran:?}");
    files.configure("\"/dev/zero\"");
    let ran = files.run(&[]);
    assert!(ran.code == Some(70) && ran.err.contains("/dev/zero cannot be read: not a regular file"), "{ran:?}");
}

#[test]
fn what_nobody_reads_on_stderr_changes_nothing() {
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let files = Files::new(b"{\"torn\n");
    let history = |files: &Files| {
        let mut command = memreap();
        Ran::from(
            command.args(["history", "--json", "--config"]).arg(files.config()).stderr(closed()).output().unwrap(),
        )
    };
    let ran = history(&files);
    assert_eq!((ran.code, ran.json()["errors"].as_array().unwrap().len()), (Some(0), 1), "{ran:?}");
    files.configure("wrong");
    assert_eq!(history(&files).code, Some(2));
    for command in [&["daemon", "--check-config"][..], &["daemon"], &["pick"], &["watch"]] {
        let mut process = memreap();
        process.args(command).arg("--config").arg(files.config()).stderr(closed());
        assert_eq!(process.output().unwrap().status.code(), Some(2), "{command:?}");
    }
    // The answer of one that nobody reads.
    let ended = memreap().arg("doctor").stdout(closed()).output().unwrap().status.code();
    assert_eq!(ended, memreap().arg("doctor").output().unwrap().status.code());
}
