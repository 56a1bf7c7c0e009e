// SPDX-License-Identifier: GPL-2.0-only
//! The workloads ("scenarios") that run in the lab's guests, and the guest's side of the face-off.
//!
//! PID 1 (crates/init) starts a scenario as `/bin/guest scenario NAME ARGS...`.

mod faceoff;
mod measure;
mod memory;
mod process;
mod rng;
mod scenario;
mod system;
mod trace;

use std::process::ExitCode;

use init::report::Reporter;
use init::{PANIC_STATUS, report_panics};

/// The program.
pub fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        // A scenario measures what it costs to run a program: this one.
        Some("true") => ExitCode::SUCCESS,
        Some("scenario") => run_scenario(&args.collect::<Vec<_>>()),
        Some("faceoff") => faceoff::run(),
        Some("faceoff-workload") => faceoff::run_workload(&args.collect::<Vec<_>>()),
        _ => {
            eprintln!("guest: this runs in a lab guest, as 'guest scenario NAME ARGS...'");
            ExitCode::from(2)
        }
    }
}

/// Runs one scenario in the process that PID 1 started for it. Standard input is the result channel: a
/// virtio port can be opened only once, so it must be inherited.
fn run_scenario(args: &[String]) -> ExitCode {
    let mut out = match Reporter::from_stdin() {
        Ok(out) => out,
        Err(e) => {
            eprintln!("guest: no result channel on standard input: {e}");
            return ExitCode::FAILURE;
        }
    };
    report_panics(&out, |_| std::process::exit(PANIC_STATUS.into()));
    let Some((name, rest)) = args.split_first() else {
        out.note("no scenario named");
        return ExitCode::from(2);
    };
    match scenario::run(name, rest, &mut out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            out.note(&format!("scenario {name}: {e:#}"));
            ExitCode::FAILURE
        }
    }
}
