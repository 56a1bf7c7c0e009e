//! The face-off in the guest: sets a desktop up, waits (the host keeps the warmed-up machine in a
//! file), then lets one contestant defend it against one load, and says how that went.
//!
//! It runs as root in a service of the guest's systemd; the other processes are started from it,
//! and are the same program with a role for arguments.

mod channel;
mod contestant;
mod desktop;
mod idle;
mod load;
mod recorder;
mod shared_page;
mod verdict;
mod workload;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::mm::MlockAllFlags;
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};

use protocol::faceoff::{Death, EndedBy, Event, Job, Outcome, Sample, Variant, Who};

use crate::trace::tracefs::{Clock, Trace};
use channel::Channel;
use desktop::Stage;
use load::Load;
use recorder::{Recording, Until, Watched};
use verdict::{Ending, Frame, Usage, ms};

/// What the stage is filled from; the load has the job's seed.
const STAGE_SEED: u64 = 1;
const TRACEFS: &str = "/sys/kernel/tracing";
/// Room per CPU for the trace: all signals and ends of some hundred processes.
const TRACE_KIB: u32 = 1024;
/// How long the host has to take what was said, before the machine is switched off.
const LINGER: Duration = Duration::from_secs(1);

/// Sets the stage, waits for a job, does it, and ends the machine.
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

/// Plays a role in it.
pub fn play(args: &[String]) -> ExitCode {
    match workload::play(args) {
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
    trace.set_room(TRACE_KIB)?;
    trace.also("signal/signal_generate");
    trace.also("sched/sched_process_exit");
    let stage = Stage::set(STAGE_SEED)?;
    rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).context("mlockall")?;
    channel.send(&Event::Ready)?;
    let job = channel::wait_for_job()?;
    let pid = contestant::start(&job).with_context(|| format!("contestant {}", job.contestant))?;
    channel.send(&Event::Started { pid })?;
    if job.variant == Variant::Idle {
        let idle = idle::measure(job.unit.as_deref(), Duration::from_secs(job.limit_s))?;
        channel.send(&Event::Idle(idle))?;
    } else {
        Run::measure(&stage, &job, &trace)?.report(channel)?;
    }
    if let Some(unit) = &job.unit {
        channel.send(&Event::Log { text: contestant::journal(unit)? })?;
    }
    let log = desktop::output("dmesg", &[])?;
    let lines: Vec<&str> = log.lines().filter(|line| is_about_oom(line)).collect();
    if !lines.is_empty() {
        channel.send(&Event::Log { text: lines.join("\n") })?;
    }
    Ok(())
}

fn is_about_oom(line: &str) -> bool {
    ["oom", "Out of memory", "out of memory", "Killed process"].iter().any(|words| line.contains(words))
}

/// A load that is over.
struct Run {
    recording: Recording,
    deaths: Vec<Death>,
    outcome: Outcome,
    /// The frames of the app in front.
    frames: Vec<Frame>,
}

impl Run {
    /// Has the load go off, and finds out what happened.
    fn measure(stage: &Stage, job: &Job, trace: &Trace) -> Result<Self> {
        let load = Load::prepare(job.variant, job.seed)?;
        let everybody = || stage.actors.iter().chain(&load.actors);
        let watched = Watched::of(everybody())?;
        let until = Until {
            limit: job.limit_s * 1_000_000_000,
            is_over: &|| load.is_over(),
            after: load.after(),
            clear: &|| load.clear(),
        };
        let (recording, text) = trace
            .record_outermost(|| recorder::record(&watched, load.boxed.as_ref(), || load.go(), &until))?;
        let in_time = |at: &u64| *at <= recording.end;
        let camera = load.camera().map(|actor| actor.sheet.served().filter(in_time));
        let foreground = load.foreground().unwrap_or(&stage.actors[0]);
        let frames = foreground.sheet.frames(recording.end);
        let deaths = verdict::deaths(verdict::endings(&text, recording.end)?, &desktop::cast(everybody()));
        let start = recording.start;
        let since_start = |at: u64| (at as f64 - start as f64) / 1e6;
        // Who is dead draws nothing any more, which is no stall.
        let end_of_frames = deaths
            .iter()
            .find(|(ending, _)| foreground.pids.contains(&ending.pid))
            .and_then(|(ending, _)| ending.ended)
            .unwrap_or(recording.end);
        let mut counted = verdict::between(&frames, start, end_of_frames);
        // Whoever asks for memory waits for it from the moment that it asks.
        if let Some(served) = camera {
            counted.push(Frame { due: start, ended: served.unwrap_or(recording.end) });
        }
        let (longest_stall_ms, total_stall_ms) = verdict::stalls(&counted);
        let (levels, total) = recording.levels(load.boxed.as_ref());
        // Of a group that several share nobody can say what one of them had.
        let usage = |pid| {
            let group = everybody().position(|actor| actor.pids == [pid]);
            group.map_or(&[][..], |i| &recording.usage[i])
        };
        let bill = Bill::of(deaths, start, recording.end, usage);
        let outcome = Outcome {
            longest_stall_ms,
            total_stall_ms,
            low_to_recovered_ms: verdict::low_to_recovered(&levels, total),
            signal_to_back_ms: bill.first_signal.and_then(|(_, back)| back),
            kills: bill.kills,
            kernel_oom_kills: recording.oom_kills,
            first_signal_ms: bill.first_signal.map(|(at, _)| since_start(at)),
            needed_kills: load.needed_kills(),
            served: camera.map_or(recording.is_over, |served| served.is_some()),
            timed_out: recording.timed_out,
            camera_ms: camera.flatten().map(since_start),
        };
        Ok(Self { recording, deaths: bill.deaths, outcome, frames })
    }

    /// Tells the host.
    fn report(&self, channel: &mut Channel) -> Result<()> {
        let start = self.recording.start;
        let mut before = start;
        for sample in &self.recording.samples {
            let event = Event::Sample(Sample {
                // The first one is from just before.
                t: ms(sample.at.saturating_sub(start)),
                avail: sample.available,
                free: sample.free,
                swap_free: sample.swap_free,
                some_us: sample.some,
                full_us: sample.full,
                fg_gap_ms: verdict::worst_gap(&self.frames, before, sample.at),
            });
            channel.send(&event)?;
            before = sample.at.max(start);
        }
        self.deaths.iter().try_for_each(|death| channel.send(&Event::Death(death.clone())))?;
        channel.send(&Event::Result(self.outcome.clone()))
    }
}

/// Who died during a load.
#[derive(Debug, Default, PartialEq)]
struct Bill {
    deaths: Vec<Death>,
    kills: BTreeMap<Who, u64>,
    /// When the first signal was sent, and after how many milliseconds its memory was back.
    first_signal: Option<(u64, Option<f64>)>,
}

impl Bill {
    /// For a load from `start` to `end`; `usage` has what a process had, if that is known.
    fn of<'a>(deaths: Vec<(Ending, Who)>, start: u64, end: u64, usage: impl Fn(i32) -> &'a [Usage]) -> Self {
        let since_start = |at: u64| (at as f64 - start as f64) / 1e6;
        let mut bill = Self::default();
        for (ending, who) in deaths {
            // What was sent before the load is not about it.
            let signal = ending.signalled.filter(|&at| at >= start);
            let (had, back) = match signal {
                None => (None, None),
                Some(at) => match verdict::given_back(usage(ending.pid), at) {
                    // A process gives its memory back before its end is noted.
                    (None, None) => (None, ending.ended.map(|ended| ms(ended.saturating_sub(at)))),
                    known => known,
                },
            };
            if let Some(at) = signal {
                *bill.kills.entry(who).or_default() += 1;
                if bill.first_signal.is_none_or(|(first, _)| at < first) {
                    bill.first_signal = Some((at, back));
                }
            }
            bill.deaths.push(Death {
                t: since_start(ending.ended.unwrap_or(end)),
                who,
                name: ending.name,
                pid: ending.pid,
                by: match (signal, ending.killed) {
                    (None, _) => EndedBy::Exit,
                    (_, true) => EndedBy::Kill,
                    (_, false) => EndedBy::Term,
                },
                signal_t: signal.map(since_start),
                sender: ending.sender,
                rss_kib: had,
                back_ms: back,
            });
        }
        bill
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bill_has_who_was_killed_and_what_came_back() {
        let ending = |pid, signalled: Option<u64>, killed, ended: Option<u64>| Ending {
            pid,
            name: format!("p{pid}"),
            signalled: signalled.map(|at| at * 1_000_000),
            sender: None,
            killed,
            ended: ended.map(|at| at * 1_000_000),
        };
        let deaths = vec![
            (ending(1, Some(130), true, Some(180)), Who::Hog),
            (ending(2, Some(120), false, Some(150)), Who::System),
            (ending(3, None, false, Some(140)), Who::Background),
            (ending(4, Some(160), true, None), Who::Innocent),
        ];
        let usage = [(0, 500), (125, 900), (170, 80)].map(|(at, kib)| Usage { at: at * 1_000_000, kib });
        let of_pid = |pid| if pid == 1 { &usage[..] } else { &[] };
        let bill = Bill::of(deaths, 100_000_000, 200_000_000, of_pid);
        assert_eq!(bill.kills, BTreeMap::from([(Who::Hog, 1), (Who::System, 1), (Who::Innocent, 1)]));
        // The first signal is not that of the first death in the list.
        assert_eq!(bill.first_signal, Some((120_000_000, Some(30.0))));
        let shown: Vec<_> =
            bill.deaths.iter().map(|d| (d.t, d.by, d.signal_t, d.rss_kib, d.back_ms)).collect();
        let expected = [
            (80.0, EndedBy::Kill, Some(30.0), Some(900), Some(40.0)),
            (50.0, EndedBy::Term, Some(20.0), None, Some(30.0)),
            (40.0, EndedBy::Exit, None, None, None),
            (100.0, EndedBy::Kill, Some(60.0), None, None),
        ];
        assert_eq!(shown, expected);
    }
}
