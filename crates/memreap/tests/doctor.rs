// SPDX-License-Identifier: GPL-2.0-only
//! `memreap doctor` on the running system.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod common;

use std::process::Command;

use common::{Mounted, Node, Ran, in_a_namespace, memreap};

#[test]
fn doctor_tells_what_is_here() {
    let ran = Ran::from(memreap().arg("doctor").output().unwrap());
    let works = linux::pidfd::supported();
    assert_eq!(ran.code, Some(if works { 0 } else { 1 }), "{ran:?}");
    assert!(ran.out.contains("process_mrelease") && ran.out.contains("RLIMIT_MEMLOCK"), "{ran:?}");
    let ran = Ran::from(memreap().args(["doctor", "--json"]).output().unwrap());
    let json = ran.json();
    assert_eq!((&json["version"], &json["command"]), (&2.into(), &"doctor".into()));
    assert_eq!(json["exit_code"], ran.code.unwrap());
    let findings = json["findings"].as_array().unwrap();
    assert!(findings.len() >= 15, "{findings:?}");
    for finding in findings {
        let mut keys: Vec<_> = finding.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["for", "found", "remedy", "state", "thing"]);
        assert_ne!(finding["state"], "unknown", "{finding}");
    }
    let kernel = rustix::system::uname().release().to_str().unwrap().to_owned();
    assert_eq!(findings[0]["found"], kernel);
}

#[test]
fn doctor_tells_when_cgroups_cannot_be_seen() {
    let Some(node) = Node::new() else { return };
    for mounted in [Mounted::Host, Mounted::Own] {
        let mut command = memreap();
        let command = node.contain(command.args(["doctor", "--json"]), mounted);
        let json = Ran::from(command.output().unwrap()).json();
        let finding = json["findings"].as_array().unwrap().iter().find(|f| f["thing"] == "cgroup v2").unwrap();
        let outside = finding["found"].as_str().unwrap().contains("where the cgroups of ");
        assert_eq!(outside, mounted == Mounted::Own, "{finding}");
        assert!(!outside || finding["state"] == "off" && finding["remedy"].is_string(), "{finding}");
    }
}

#[test]
fn where_proc_is_of_no_use_doctor_and_kill_say_so() {
    in_a_namespace("useless_proc", "true");
}

#[test]
#[ignore = "runs in a namespace"]
fn useless_proc() {
    let ran = |prepare: &str, args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "sh", "-c"]);
        // It is PID 1, and has a child with the ID 2 or more.
        command.arg(format!("{prepare} && {{ sleep 100 & }} && \"$@\"")).args(["sh", env!("CARGO_BIN_EXE_memreap")]);
        Ran::from(command.args(args).output().unwrap())
    };
    let other = "/proc is missing or another PID namespace's: ";
    for (prepare, told) in [
        ("true", other),
        ("mount -t tmpfs none /proc", other),
        ("mount -t proc -o subset=pid none /proc", "/proc/meminfo: No such file or directory"),
    ] {
        if ran(prepare, &["--version"]).code != Some(0) {
            testing::skipped(format_args!("not permitted: {prepare}"));
            continue;
        }
        let doctor = ran(prepare, &["doctor"]);
        assert!(doctor.out.contains("MISSING /proc "), "{prepare}: {doctor:?}");
        assert!(doctor.out.ends_with("memreap cannot work here\n"), "{prepare}: {doctor:?}");
        assert_eq!(doctor.code, Some(1), "{prepare}");
        let kill = ran(prepare, &["kill", "2"]);
        assert!(kill.err.starts_with(&format!("memreap: {told}")), "{prepare}: {kill:?}");
        assert_eq!(kill.code, Some(70), "{prepare}");
    }
    assert_eq!(ran("mount -t proc none /proc", &["doctor"]).code, Some(0));
}
