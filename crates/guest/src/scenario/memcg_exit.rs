// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `memcg-exit`: a job of a thousand threads dies in a cgroup that is at its limit. How long until
//! the cgroup is empty and its memory back, how often do its threads call the OOM killer, and what does a
//! neighbour get done meanwhile?
//!
//! To exit, each thread has to read its control block back from swap, because the head of its list of robust futexes
//! is there: so it charges a page to a cgroup that has no room for it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, kill_process};

use super::arguments::Arguments;
use super::metrics::{Metric, each_case, metric_name, report_medians};
use crate::measure::recorder::Recorder;
use crate::memory::PAGE_BYTES;
use crate::memory::region::Region;
use crate::memory::swap::Area;
use crate::process::child::{Board, Child};
use crate::process::foreground::{Work, Worker};
use crate::system::cgroup::TemporaryCgroup;
use crate::system::{clock, counters};
use init::report::Reporter;

struct Case {
    name: &'static str,
    /// Whether the kernel kills the job, because it exceeds its limit. Otherwise another process does, by SIGKILL.
    oom: bool,
    /// Whether the job's memory is in zswap, which is charged to its cgroup. Otherwise it is in zram, which
    /// is not.
    zswap: bool,
    /// What the job has in memory at its limit.
    resident_bytes: usize,
    /// Whether the limit is that of the cgroup above, and the neighbour is below it, too.
    shared_limit: bool,
}

const OOM: Case = Case { name: "oom", oom: true, zswap: false, resident_bytes: 64 << 20, shared_limit: false };
const CASES: [Case; 5] = [
    Case { name: "killed", oom: false, ..OOM },
    OOM,
    Case { name: "oom-zswap", zswap: true, ..OOM },
    // An eighth of the limit is less than a page for each thread.
    Case { name: "oom-small", resident_bytes: 1 << 20, ..OOM },
    Case { name: "oom-shared", shared_limit: true, ..OOM },
];

/// The metrics of a round.
const METRICS: [Metric<Round>; 3] = [
    ("gone-ms", |r| clock::ms(r.gone)),
    ("memory-95-ms", |r| clock::ms(r.back)),
    ("oom-calls", |r| r.oom_calls as f64),
];

/// The threads of the job.
const THREADS: usize = 1000;
/// The memory of each thread that goes to swap, beside its stack.
const THREAD_BYTES: usize = 64 << 10;
const STACK_BYTES: usize = 64 << 10;
/// What a neighbour below the same limit has.
const NEIGHBOUR_BYTES: u64 = 8 << 20;
const SWAP_BYTES: u64 = 1 << 30;
/// How often the kernel is asked to swap all of a job out.
const RECLAIM_TRIES: usize = 20;
/// How often the job's memory is read.
const READING_INTERVAL: Duration = Duration::from_millis(1);
/// The part of a job's memory that may be left when it is back.
const LEFT_DIVISOR: u64 = 20;
/// For how long a neighbour's work counts, alone and from the kill on: longer than the storm on any kernel.
const NEIGHBOUR_WINDOW: Duration = Duration::from_secs(3);
/// Longer than a neighbour's step.
const STEP_LIMIT: Duration = Duration::from_millis(200);

pub fn run(_: &Arguments, out: &mut Reporter) -> Result<()> {
    each_case(CASES.iter().map(|case| (case.name, case)), out, |name, case, out| {
        let area = if case.zswap { Area::on_zswap(SWAP_BYTES)? } else { Area::zram(SWAP_BYTES, None)? };
        out.progress(name);
        let job = Job::start(case)?;
        area.check_zswap()?;
        report_medians(out, name, &METRICS, &[job.die(case.oom)?]);
        let neighbour = metric_name(name, "neighbour-percent");
        if out.expects(&neighbour) {
            out.progress(&format!("{name}: a neighbour"));
            out.sample(&neighbour, neighbour_percent(Job::start(case)?, case.oom)?);
        }
        Ok(())
    })
}

/// Returns what a neighbour gets done beside a job that dies, in percent of what it does beside one that is
/// idle; 0 if it is killed.
fn neighbour_percent(job: Job, oom: bool) -> Result<f64> {
    // With a cgroup of its own it has as much of the CPUs as the job has.
    let group = TemporaryCgroup::new(&job.beside("neighbour"), "cpu")?;
    let worker = group.within(|| Worker::start(Work::Allocate))?;
    let alone = clock::now();
    thread::sleep(NEIGHBOUR_WINDOW);
    let start = clock::now();
    // Without a look at it until it is gone: that would cost the neighbour, the more the longer it takes.
    job.kill(oom)?;
    job.child.wait()?;
    let end = start + u64::try_from(NEIGHBOUR_WINDOW.as_nanos())?;
    // A step that has begun by then is to be noted.
    clock::sleep_until(end + u64::try_from(STEP_LIMIT.as_nanos())?)?;
    if worker.was_killed()? {
        return Ok(0.0);
    }
    let steps = worker.end(alone, end)?;
    let before = steps_until(&steps, start - alone);
    Ok(100.0 * (steps.len() - before) as f64 / before as f64)
}

/// Returns how many steps that take so many nanoseconds each are done by `time`.
fn steps_until(steps: &[u64], time: u64) -> usize {
    let mut at = 0;
    steps
        .iter()
        .take_while(|&&step| {
            at += step;
            at <= time
        })
        .count()
}

/// What one round measured: times in nanoseconds since the kill.
struct Round {
    gone: u64,
    back: u64,
    /// How often a task asked for the OOM killer.
    oom_calls: u64,
}

/// The state of a dying job.
#[derive(Clone, Copy)]
struct Reading {
    /// Nanoseconds on the monotonic clock.
    at: u64,
    /// Bytes of memory that are charged to its cgroup.
    memory: u64,
    gone: bool,
}

/// A process of many threads in a cgroup that is at its limit.
struct Job {
    // Dropped before its cgroup, which has to be empty then.
    child: Child,
    /// A byte lets it go on. While it waits for that, it takes no CPU time.
    gate: File,
    group: TemporaryCgroup,
    /// The cgroup above, if that has the limit.
    above: Option<TemporaryCgroup>,
    /// What it has at its limit, in bytes.
    memory: u64,
}

/// A cgroup with a limit for all below it.
const SHARED: &str = "shared";

/// The cell of its board: threads that are ready.
const READY: usize = 0;

impl Job {
    /// The caller must be single-threaded.
    fn start(case: &Case) -> Result<Self> {
        let above = case.shared_limit.then(|| TemporaryCgroup::new(SHARED, "memory")).transpose()?;
        if let Some(above) = &above {
            // For the neighbour's.
            above.control("cpu")?;
        }
        let path = if case.shared_limit { format!("{SHARED}/job") } else { "job".to_owned() };
        let group = TemporaryCgroup::new(&path, "memory")?;
        let board = Board::new(1)?;
        let (reader, writer) = rustix::pipe::pipe().context("pipe")?;
        let (reader, mut gate) = (File::from(reader), File::from(writer));
        let child = group.within(|| Child::fork(|| live(&board, &reader, case.resident_bytes)))?;
        let ready = |count| child.wait_until(|| board.get(READY) == count);
        ready(THREADS as u64)?;
        group.reclaim_all(RECLAIM_TRIES)?;
        let swapped = group.number("memory.swap.current")?;
        let least = (THREADS * THREAD_BYTES) as u64;
        ensure!(swapped >= least, "only {swapped} bytes of the job are in swap, not {least}");
        group.set("memory.swap.max", "0")?;
        gate.write_all(&[0]).context("pipe to the job")?;
        ready(THREADS as u64 + 1)?;
        let memory = group.number("memory.current")?;
        match &above {
            Some(above) => above.set("memory.max", &(memory + NEIGHBOUR_BYTES).to_string())?,
            None => group.set("memory.max", &memory.to_string())?,
        }
        ensure!(!child.has_ended()?, "the job died too early");
        Ok(Self { child, gate, group, above, memory })
    }

    /// The path of a cgroup beside the job's.
    fn beside(&self, name: &str) -> String {
        if self.above.is_some() { format!("{SHARED}/{name}") } else { name.to_owned() }
    }

    /// Has it killed.
    fn kill(&self, oom: bool) -> Result<()> {
        match oom {
            true => (&self.gate).write_all(&[0]).context("pipe to the job"),
            false => kill_process(self.child.pid(), Signal::KILL).context("kill"),
        }
    }

    /// Has it killed, and waits until its memory is back.
    fn die(self, oom: bool) -> Result<Round> {
        let read = || {
            let gone = self.child.has_ended()?;
            Ok(Reading { at: clock::now(), memory: self.group.number("memory.current")?, gone })
        };
        let mut recorder = Recorder::new(READING_INTERVAL, Reading { at: 1, memory: 1, gone: true });
        let back = |r: &Reading| r.memory <= self.memory / LEFT_DIVISOR;
        let (start, readings) = recorder.record_while(read, |ended| {
            let start = clock::now();
            self.kill(oom)?;
            while !ended() {
                let now = read()?;
                if now.gone && back(&now) {
                    break;
                }
                thread::sleep(READING_INTERVAL);
            }
            // The recorder sees the same.
            thread::sleep(2 * READING_INTERVAL);
            Ok(start)
        })?;
        let since =
            |what: &dyn Fn(&Reading) -> bool| readings.iter().find(|r| r.at > start && what(r)).map(|r| r.at - start);
        let events = self.above.as_ref().unwrap_or(&self.group).get("memory.events")?;
        let round = Round {
            gone: since(&|r| r.gone).context("the job did not end")?,
            back: since(&back).context("its memory did not come back")?,
            oom_calls: counters::value(&events, "oom ").context("memory.events has no oom")?,
        };
        self.child.wait()?;
        Ok(round)
    }
}

/// The life of the job's process: it uses memory up to the limit when it may go on, and then exceeds it.
fn live(board: &Board, mut gate: &File, resident_bytes: usize) -> Result<()> {
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let life = || -> Result<()> {
                let pages = THREAD_BYTES / PAGE_BYTES;
                let own = Region::new(pages)?;
                own.touch(0..pages);
                board.add(READY, 1);
                loop {
                    thread::park();
                }
            };
            thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, life)?;
        }
        let mut wait = || gate.read_exact(&mut [0]).context("pipe from the parent");
        let pages = resident_bytes / PAGE_BYTES;
        let resident = Region::new(pages + OOM.resident_bytes / PAGE_BYTES)?;
        wait()?;
        resident.touch(0..pages);
        board.add(READY, 1);
        wait()?;
        resident.touch(pages..pages + OOM.resident_bytes / PAGE_BYTES);
        anyhow::bail!("the limit was exceeded")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_count_that_end_in_time() {
        assert_eq!([9, 10, 20, 29, 30, 100].map(|time| steps_until(&[10, 10, 10], time)), [0, 1, 2, 2, 3, 3]);
    }
}
