//! `memreap doctor` on the running system.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod common;

use common::{Ran, memreap};

#[test]
fn doctor_tells_what_is_here() {
    let ran = Ran::from(memreap().arg("doctor").output().unwrap());
    let works = linux::pidfd::supported();
    assert_eq!(ran.code, Some(if works { 0 } else { 1 }), "{ran:?}");
    assert!(ran.out.contains("process_mrelease") && ran.out.contains("RLIMIT_MEMLOCK"), "{ran:?}");
    let ran = Ran::from(memreap().args(["doctor", "--json"]).output().unwrap());
    let json = ran.json();
    assert_eq!((&json["version"], &json["command"]), (&1.into(), &"doctor".into()));
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
