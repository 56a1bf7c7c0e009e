// SPDX-License-Identifier: GPL-2.0-only
//! What the system is given to run the daemon.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::path::Path;
use std::process::Command;

#[test]
fn the_unit_is_valid_and_exposes_little() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/test.sh");
    let output = Command::new("sh").arg(&script).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    for line in text.lines().filter(|line| line.contains(" is not installed")) {
        testing::skipped(line);
    }
}

/// Helm is hardly anywhere; what it renders is forgotten when the version is changed.
#[test]
fn the_chart_and_what_it_renders_are_of_this_version() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    for (file, key, count) in [
        ("helm/memreap/Chart.yaml", "version:", 1),
        ("helm/memreap/Chart.yaml", "appVersion:", 1),
        ("kubernetes/memreap.yaml", "app.kubernetes.io/version:", 4),
        ("kubernetes/memreap.yaml", "image: memreap:", 1),
    ] {
        let text = std::fs::read_to_string(packaging.join(file)).unwrap();
        let found = text.lines().filter_map(|line| line.trim_start().strip_prefix(key));
        let found: Vec<&str> = found.map(|version| version.trim().trim_matches('"')).collect();
        assert_eq!(found, vec![env!("CARGO_PKG_VERSION"); count], "{file}: {key}");
    }
}
