//! Breaks the guest on purpose, one way per run. The lab's own tests use it to prove that each
//! kind of failure is reported for what it is; see `crates/lab/tests/faults.rs`.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};

use super::Scenario;
use crate::process::child::Child;
use init::report::Reporter;

/// The kernel's own crash test module: the name of a crash point written here runs it.
const LKDTM: &str = "/sys/kernel/debug/provoke-crash/DIRECT";

/// `fault warn|oops|panic|ub|leak|hang|garbage|silent|rust-panic|exit N`
pub struct Fault;

impl Scenario for Fault {
    fn name(&self) -> &'static str {
        "fault"
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        out.progress(&format!("about to break: {}", args.join(" ")));
        match args[..] {
            // Ends well otherwise: the warning alone must fail the boot.
            ["warn"] => lkdtm("WARNING"),
            ["oops"] => lkdtm("EXCEPTION"),
            ["panic"] => lkdtm("PANIC"),
            // Neither keeps the guest from ending well.
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
            _ => bail!("fault: warn|oops|panic|ub|leak|hang|garbage|silent|rust-panic|exit N, not {args:?}"),
        }
    }
}

fn lkdtm(point: &str) -> Result<()> {
    fs::write(LKDTM, point).with_context(|| format!("{LKDTM} (CONFIG_LKDTM)"))
}

/// Has the kernel allocate memory and jump into it. Nothing in there may be executed, so it ends the
/// process in the middle of the system call, and nobody is left who knows of that memory.
fn leak() -> Result<()> {
    // More than once, as a stale pointer somewhere may keep one from being noticed.
    for _ in 0..4 {
        let status = Child::fork(|| lkdtm("EXEC_KMALLOC"))?.wait()?;
        ensure!(status.terminating_signal().is_some(), "lkdtm came back from data ({status:?})");
    }
    Ok(())
}
