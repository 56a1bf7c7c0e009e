// SPDX-License-Identifier: GPL-2.0-only
//! `memreap watch` on the running system.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{NO_VICTIM, Ran, Setup, Victim, interrupt, memreap};
use serde_json::Value;

/// Only processes with this name may be killed.
fn only(name: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text =
        format!("record.history = false\n[[rule]]\nlabel = \"the one\"\nname = \"{name}\"\nweight = 1\n{NO_VICTIM}");
    fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn the_next_victim_is_shown() {
    let setup = Setup { mib: 32, ..Setup::default() };
    let victim = Victim::new(&setup);
    let config = only(str::from_utf8(&setup.name).unwrap());
    let args = ["watch", "-n", "1", "--json", "--config"];
    let json = Ran::from(memreap().args(args).arg(config.path()).output().unwrap()).json();
    assert_eq!(json["next"]["pid"].to_string(), victim.pid());
    assert!(json["next"]["bytes"].as_u64().unwrap() >= 32 << 20, "{json}");
    assert_eq!(json["next"]["rule"], "the one");
    assert!(json["total"].as_u64() >= json["available"].as_u64());
    let args = ["watch", "-n", "8", "-i", "1ms", "--config"];
    let began = Instant::now();
    let ran = Ran::from(memreap().args(args).arg(config.path()).output().unwrap());
    // However often it is asked for, it is not done more often than every 100 ms.
    assert!(began.elapsed() >= Duration::from_millis(700));
    let lines: Vec<_> = ran.out.lines().collect();
    assert_eq!(lines.len(), 8, "{ran:?}");
    assert!(lines[1].contains(&format!("; next {} (", victim.pid())), "{ran:?}");
}

#[test]
fn ctrl_c_ends_it_well() {
    let config = only("no process has this");
    let mut child = memreap()
        .args(["watch", "-i", "1h", "--json", "--config"])
        .arg(config.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let json: Value = serde_json::from_str(&line).unwrap();
    assert!(json["next"].is_null(), "{json}");
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_wrong_configuration_is_wrong_usage() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "[act]\nlow = 0\n").unwrap();
    let ran = Ran::from(memreap().args(["watch", "-n", "1", "--config"]).arg(file.path()).output().unwrap());
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{ran:?}");
    assert!(ran.err.contains(":2: act.low: 0 % is not more than act.critical"), "{ran:?}");
}
