// SPDX-License-Identifier: GPL-2.0-only
//! One load: starts it, records what happens, and reports the outcome.

use anyhow::{Result, ensure};

use protocol::faceoff::{Death, Event, Job, Outcome, Sample};

use super::channel::Channel;
use super::deaths::{self, DeathSummary};
use super::desktop::Desktop;
use super::frames::{self, Frame};
use super::levels;
use super::load::Load;
use super::login;
use super::process::{Process, has_ended};
use super::recorder::{self, EndCondition, Recording, Watched};
use crate::system::clock::ms;
use crate::trace::tracefs::Trace;

/// A load that is over.
pub struct Measurement {
    recording: Recording,
    deaths: Vec<Death>,
    outcome: Outcome,
    /// The frames of the foreground app.
    frames: Vec<Frame>,
}

impl Measurement {
    /// Runs a job's load on the desktop. `trace` has the events of signals and of processes' ends.
    ///
    /// # Errors
    /// When the load cannot be prepared, or not everything was recorded.
    pub fn take(desktop: &Desktop, job: &Job, trace: &Trace) -> Result<Self> {
        let load = Load::prepare(&job.load, job.seed)?;
        let all = || desktop.processes.iter().chain(&load.processes);
        // A kill before the load is not traced, and makes it another load.
        for Process { pidfd, cgroup, who, .. } in all() {
            ensure!(!has_ended(pidfd), "{}: the {who} ended before the load began", cgroup.file(""));
        }
        let watched = Watched::new(all())?;
        let end_condition = EndCondition {
            limit_ns: job.limit_s * 1_000_000_000,
            is_over: &|| load.is_over(),
            continue_ns: load.continue_ns(),
            clean_up: &|| load.clean_up(),
        };
        let (recording, text) = trace.record_outermost(|| {
            recorder::record(&watched, load.limited.as_ref(), || load.start_all(), &end_condition)
        })?;
        let foreground = load.foreground().unwrap_or(&desktop.processes[0]);
        let frames = foreground.shared.frames(recording.end);
        let known = all().flat_map(|process| process.pids.iter().map(|&pid| (pid, process.who))).collect();
        let deaths = deaths::identify(deaths::endings(&text, recording.end)?, &known);
        let start = recording.start;
        let since_start = |at: u64| (at as f64 - start as f64) / 1e6;
        let (longest_stall_ms, total_stall_ms) = frames::stalls(&frames::between(&frames, start, recording.end));
        let (levels, total) = recording.levels(load.limited.as_ref());
        let (longest_login_ms, late_logins) = login::summary(&recording.logins);
        // In a cgroup that several processes share, the usage of one of them is not known.
        let usage = |pid| {
            let group = all().position(|process| process.pids == [pid]);
            let each = group.and_then(|i| Some((recording.usage.get(i)?, recording.swap.get(i)?)));
            each.map_or((&[][..], &[][..]), |(memory, swap)| (memory, swap))
        };
        let summary = DeathSummary::new(deaths, start, recording.end, usage);
        // A load that fits is over as soon as it is killed.
        let over = recording.over.filter(|_| !summary.is_needless(job.load.needed_kills));
        let outcome = Outcome {
            longest_stall_ms,
            total_stall_ms,
            longest_login_ms,
            late_logins,
            recovered_ms: over.and_then(|over| levels::recovered(&levels, total, start, over)),
            usable_kib: summary.first_signal.and_then(|(at, _)| recording.usable(at)),
            lost_kib: summary.lost_kib(),
            signal_to_back_ms: summary.first_signal.and_then(|(_, back)| back),
            kills: summary.kills,
            kernel_oom_kills: recording.oom_kills,
            first_signal_ms: summary.first_signal.map(|(at, _)| since_start(at)),
            needed_kills: job.load.needed_kills,
            served: over.is_some(),
            timed_out: recording.timed_out,
        };
        Ok(Self { recording, deaths: summary.deaths, outcome, frames })
    }

    /// Sends all samples, deaths and the outcome to the lab.
    ///
    /// # Errors
    /// When the channel is broken.
    pub fn report(&self, channel: &mut Channel) -> Result<()> {
        let start = self.recording.start;
        let mut before = start;
        for sample in &self.recording.samples {
            let event = Event::Sample(Sample {
                // The first sample is from just before the start.
                t: ms(sample.at.saturating_sub(start)),
                avail: sample.available,
                free: sample.free,
                swap_free: sample.swap_free,
                some_us: sample.some_us,
                full_us: sample.full_us,
                total: sample.total,
                swap_total: sample.swap_total,
                scanned: sample.scanned,
                within_us: sample.within_us,
                fg_gap_ms: frames::longest_visible_delay(&self.frames, before, sample.at),
            });
            channel.send(&event)?;
            before = sample.at.max(start);
        }
        self.deaths.iter().try_for_each(|death| channel.send(&Event::Death(death.clone())))?;
        channel.send(&Event::Result(self.outcome.clone()))
    }
}
