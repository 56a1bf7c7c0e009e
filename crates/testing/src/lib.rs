// SPDX-License-Identifier: GPL-2.0-only
//! How a test is skipped where the host lacks what it needs.

use std::fmt::Display;
use std::io::Write as _;
use std::panic::Location;

/// Set, and not empty, where a test that is skipped has failed.
const NO_SKIPS: &str = "MEMREAP_NO_SKIPS";

/// Says where and why a test, or a part of it, is skipped.
///
/// # Panics
/// If `MEMREAP_NO_SKIPS` is set.
#[track_caller]
pub fn skipped(why: impl Display) {
    // Not by eprintln!(), whose text the harness hides if a test passes.
    let _ = writeln!(std::io::stderr(), "{}: skipped: {why}", Location::caller());
    let fails = std::env::var_os(NO_SKIPS).is_some_and(|value| !value.is_empty());
    assert!(!fails, "skipped although {NO_SKIPS} is set: {why}");
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    #[ignore = "run by the other test, in a process of its own"]
    fn skip() {
        skipped("as a test");
    }

    #[test]
    fn a_skip_is_told_and_fails_if_there_may_be_none() {
        for (set, passes) in [("", true), ("1", false)] {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "--ignored", "tests::skip"])
                .env(NO_SKIPS, set)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success(), passes, "{text}");
            assert!(text.contains("lib.rs:") && text.contains(": skipped: as a test\n"), "{text}");
        }
    }
}
