// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `fault`: breaks the guest on purpose, in one way per run. The lab's own tests use it to prove
//! that each kind of failure is reported as what it is; see `crates/lab/tests/faults.rs`.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};

use super::arguments::Arguments;
use crate::process::child::Child;
use init::report::Reporter;

/// The kernel's crash test module. Writing the name of a crash point triggers it.
const LKDTM: &str = "/sys/kernel/debug/provoke-crash/DIRECT";

/// `fault warn|oops|panic|ub|leak|hang|garbage|silent|rust-panic|exit N`
pub fn run(args: &Arguments, out: &mut Reporter) -> Result<()> {
    out.progress(&format!("about to break: {}", args.words.join(" ")));
    match args.words[..] {
        // The guest ends without an error: the warning alone must fail the boot.
        ["warn"] => lkdtm("WARNING"),
        ["oops"] => lkdtm("EXCEPTION"),
        ["panic"] => lkdtm("PANIC"),
        // With neither of these does the guest itself end with an error.
        ["ub"] => lkdtm("ARRAY_BOUNDS"),
        ["leak"] => leak(),
        ["hang"] => loop {
            thread::sleep(Duration::from_secs(3600));
        },
        ["garbage"] => {
            out.raw(b"this is no message\n");
            Ok(())
        }
        ["silent"] => init::power_off(),
        ["rust-panic"] => panic!("a panic on request"),
        ["exit", status] => std::process::exit(status.parse().with_context(|| format!("exit {status}"))?),
        _ => bail!("fault: warn|oops|panic|ub|leak|hang|garbage|silent|rust-panic|exit N, not {:?}", args.words),
    }
}

fn lkdtm(point: &str) -> Result<()> {
    fs::write(LKDTM, point).with_context(|| format!("{LKDTM} (CONFIG_LKDTM)"))
}

/// Has the kernel allocate memory and jump into it. It is not executable, so the kernel ends the process in
/// the middle of the system call, and no pointer to the memory is left.
fn leak() -> Result<()> {
    // More than once, because a stale pointer somewhere may hide one leak.
    for _ in 0..4 {
        let status = Child::fork(|| lkdtm("EXEC_KMALLOC"))?.wait()?;
        ensure!(status.terminating_signal().is_some(), "lkdtm returned from data ({status:?})");
    }
    Ok(())
}
