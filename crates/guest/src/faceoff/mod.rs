// SPDX-License-Identifier: GPL-2.0-only
//! The face-off in the guest: sets a desktop up and waits (the lab keeps the warmed-up guest in a file), then
//! has one contestant defend the desktop against one load, and reports the outcome.
//!
//! It runs as root in a service of the guest's systemd. The other processes are this program with a
//! workload as arguments, started from it.

mod channel;
mod command;
mod contestant;
mod deaths;
mod desktop;
mod frames;
mod idle;
mod levels;
mod load;
mod login;
mod measurement;
mod process;
mod recorder;
mod shared_page;
mod workload;

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::mm::MlockAllFlags;
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};

use protocol::faceoff::Event;

use crate::trace::tracefs::{Clock, Trace};
use channel::Channel;
use desktop::Desktop;
use measurement::Measurement;

/// Where the payload is unpacked.
const FOLDER: &str = "/var/lib/faceoff";
/// The file that the foreground app maps.
const APP_FILE: &str = "/var/lib/faceoff/app.data";
/// The folder of the files of loads, on the disk.
const DATA_FOLDER: &str = "/var/lib/faceoff/data";
/// The folder of files in memory; no limit but the memory's.
const TMPFS_FOLDER: &str = "/var/lib/faceoff/tmpfs";
/// Seeds the desktop's contents; the load has the job's seed.
const DESKTOP_SEED: u64 = 1;
const TRACEFS: &str = "/sys/kernel/tracing";
/// Trace buffer of each CPU: room for all signals and ends of some hundred processes.
const TRACE_BUFFER_KIB: u32 = 1024;
/// How long the lab has to read the last events before the guest is switched off.
const LINGER: Duration = Duration::from_secs(1);

/// Sets the desktop up, waits for a job, does it, and switches the guest off.
pub fn run() -> ExitCode {
    let mut channel = match Channel::open() {
        Ok(channel) => channel,
        Err(e) => {
            eprintln!("guest: {e:#}");
            return ExitCode::FAILURE;
        }
    };
    let done = face_off(&mut channel);
    let error = done.as_ref().err().map(|e| Event::Error { text: format!("{e:#}") });
    for event in error.into_iter().chain([Event::End]) {
        if let Err(e) = channel.send(&event) {
            eprintln!("guest: {e:#}");
        }
    }
    thread::sleep(LINGER);
    if let Err(e) = reboot(RebootCommand::PowerOff) {
        eprintln!("guest: cannot switch off: {e}");
    }
    ExitCode::from(u8::from(done.is_err()))
}

/// Runs one of the face-off's workloads in this process.
pub fn run_workload(args: &[String]) -> ExitCode {
    match workload::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("guest: {}: {e:#}", args.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn face_off(channel: &mut Channel) -> Result<()> {
    if !Path::new(TRACEFS).join("instances").exists() {
        mount("tracefs", TRACEFS, "tracefs", MountFlags::empty(), None).context("mount tracefs")?;
    }
    let mut trace = Trace::new("faceoff", Clock::Mono, &[])?;
    trace.set_buffer_size(TRACE_BUFFER_KIB)?;
    trace.add_event("signal/signal_generate");
    trace.add_event("sched/sched_process_exit");
    let desktop = Desktop::set_up(DESKTOP_SEED)?;
    rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).context("mlockall")?;
    channel.send(&Event::Ready)?;
    let job = channel::wait_for_job()?;
    let pid = contestant::start(&job).with_context(|| format!("contestant {}", job.contestant))?;
    channel.send(&Event::Started { pid })?;
    if let Some(seconds) = job.load.idle_s {
        let idle = idle::measure(job.unit.as_deref(), Duration::from_secs(seconds))?;
        channel.send(&Event::Idle(idle))?;
    } else {
        Measurement::take(&desktop, &job, &trace)?.report(channel)?;
    }
    if let Some(unit) = &job.unit {
        channel.send(&Event::Log { text: contestant::journal(unit)? })?;
    }
    let log = command::output("dmesg", &[])?;
    let lines: Vec<&str> = log.lines().filter(|line| is_about_oom(line)).collect();
    if !lines.is_empty() {
        channel.send(&Event::Log { text: lines.join("\n") })?;
    }
    Ok(())
}

fn is_about_oom(line: &str) -> bool {
    ["oom", "Out of memory", "out of memory", "Killed process"].iter().any(|words| line.contains(words))
}
