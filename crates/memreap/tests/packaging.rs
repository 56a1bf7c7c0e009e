// SPDX-License-Identifier: GPL-2.0-only
//! What the system is given to run the daemon.

use std::path::Path;
use std::process::Command;

#[test]
fn the_unit_is_valid_and_exposes_little() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/test.sh");
    let output = Command::new("sh").arg(&script).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    if text.contains("systemd-analyze is not installed") {
        testing::skipped("systemd-analyze is not installed");
    }
}
