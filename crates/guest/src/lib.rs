//! PID 1 of the lab's guests, and the workloads ("scenarios") that run in them.
//!
//! The host puts this one static binary into the initramfs as `/init` beside `/job.json`. As
//! PID 1 it mounts the usual file systems, opens the result channel, does the job, reports the
//! exit status and restarts the machine, which ends QEMU. A scenario runs in a second process
//! of the same binary (`/init scenario NAME ARGS...`), so that whatever happens to it, PID 1
//! lives to report it.

mod cgroup;
mod child;
mod comeback;
mod counters;
mod dice;
mod exec;
mod faceoff;
mod foreground;
mod freemem;
mod hogs;
mod init;
mod kmsg;
mod ksm;
mod leaks;
mod locktrace;
mod population;
mod ptelock;
mod region;
mod report;
mod rmaptrace;
mod scenario;
mod swap;
mod swapped;
mod tracefs;
mod victim;

use std::process::ExitCode;
use std::thread;

use anyhow::{Context as _, Result};

use report::Reporter;

/// What a Rust program that panics exits with; kept, although the release profile aborts.
const PANICKED: u8 = 101;

/// The program.
pub fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if rustix::process::getpid().is_init() {
        init::run()
    }
    match args.next().as_deref() {
        // What a scenario runs to see what it costs to run something.
        Some("true") => ExitCode::SUCCESS,
        Some("scenario") => run_scenario(&args.collect::<Vec<_>>()),
        Some("faceoff") => faceoff::run(),
        Some("faceoff-role") => faceoff::play(&args.collect::<Vec<_>>()),
        _ => {
            eprintln!("guest: this is PID 1 of a lab guest, or 'guest scenario NAME ARGS...' in one");
            ExitCode::from(2)
        }
    }
}

/// The metrics that a scenario with these arguments reports in a guest of so many CPUs.
///
/// # Errors
/// When there is no such scenario, or it does not know these arguments.
pub fn metrics(scenario: &str, args: &[String], cpus: usize) -> Result<Vec<String>> {
    scenario::find(scenario)?.metrics(args, cpus)
}

/// Runs one scenario in the process that PID 1 started for it. The result channel is standard
/// input: a virtio port can be opened only once, so it must be inherited.
fn run_scenario(args: &[String]) -> ExitCode {
    let mut out = match Reporter::from_stdin() {
        Ok(out) => out,
        Err(e) => {
            eprintln!("guest: no result channel on standard input: {e}");
            return ExitCode::FAILURE;
        }
    };
    report_panics(&out, |_| std::process::exit(PANICKED.into()));
    let Some((name, rest)) = args.split_first() else {
        out.note("no scenario named");
        return ExitCode::from(2);
    };
    let done = scenario::find(name).and_then(|s| {
        let cpus = thread::available_parallelism().context("number of CPUs")?.get();
        out.report_only(s.metrics(rest, cpus)?);
        s.run(rest, &mut out)
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            out.note(&format!("scenario {name}: {e:#}"));
            ExitCode::FAILURE
        }
    }
}

/// A panic of this program goes to the host as a note, then `end` decides how to end: the
/// process for a scenario, the machine for PID 1.
fn report_panics(out: &Reporter, end: impl Fn(&mut Reporter) + Send + Sync + 'static) {
    let Ok(out) = out.try_clone() else { return };
    let out = std::sync::Mutex::new(out);
    std::panic::set_hook(Box::new(move |info| {
        eprintln!("guest: {info}");
        if let Ok(mut out) = out.lock() {
            out.note(&format!("the guest program panicked: {info}"));
            end(&mut out);
        }
    }));
}
