// SPDX-License-Identifier: GPL-2.0-only
//! Records memory and the ends of processes while the guest is out of memory. To need no memory itself, the
//! recorder is a real-time thread that allocates nothing and opens nothing.

use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;

use anyhow::{Context as _, Result, ensure};
use linux::cgroup::MemoryStat;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::levels::{Level, RECOVERED_FOR_NS, RECOVERED_SHARE};
use super::login::{self, Login};
use super::process::Process;
use crate::system::cgroup::Cgroup;
use crate::system::counters::value;
use crate::system::{clock, sched};

/// How often memory in use is read and processes that ended are reaped.
const TICK_NS: u64 = 5_000_000;
/// How often a sample is taken, ...
const SAMPLE_INTERVAL_NS: u64 = 50_000_000;
/// ... and while less than a fifth of memory is available, which is when memreap's daemon samples as often.
const CLOSE_INTERVAL_NS: u64 = 10_000_000;
const CLOSE_DIVISOR: u64 = 5;
/// Below this part of memory, as in the daemon's sampler, /proc/vmstat is not read, for which the kernel allocates.
const SHORT_DIVISOR: u64 = 32;
/// Of how many processes the memory is read: a reading takes some ten microseconds of each tick.
const MAX_USAGES: usize = 32;
/// Room for the longest file, /proc/vmstat.
const BUFFER_BYTES: usize = 16 << 10;
/// Above all contestants that set a real-time priority themselves.
const REALTIME_PRIORITY: i32 = 50;

/// The guest's memory at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// On the monotonic clock, in nanoseconds.
    pub at: u64,
    /// In KiB, as in /proc/meminfo.
    pub available: u64,
    pub free: u64,
    pub swap_free: u64,
    /// Microseconds since boot in which some tasks, and all tasks, were stalled on memory (PSI).
    pub some_us: u64,
    pub full_us: u64,
    /// How long after `at` these were read, at the latest, in microseconds.
    pub within_us: u64,
    /// In KiB, as in /proc/meminfo.
    pub total: u64,
    pub swap_total: u64,
    /// Pages that the kernel has scanned for the machine since boot; `None` where memory is short.
    pub scanned: Option<u64>,
    /// What the limited cgroup has left, in KiB; 0 if there is none.
    pub left_in_limit: u64,
}

/// The cgroup that limits a load.
pub struct LimitedCgroup {
    /// Its memory.current and memory.stat.
    current: File,
    stat: File,
    limit_kib: u64,
}

impl LimitedCgroup {
    /// Opens a cgroup whose limit is `limit_kib`.
    ///
    /// # Errors
    /// When the cgroup has no memory controller.
    pub fn open(cgroup: &Cgroup, limit_kib: u64) -> Result<Self> {
        Ok(Self { current: cgroup.open("memory.current")?, stat: cgroup.open("memory.stat")?, limit_kib })
    }

    /// Returns what it has left, in KiB. As in MemAvailable, the page cache is.
    fn left_kib(&self, buffer: &mut [u8]) -> Result<u64> {
        let used = number_in(&self.current, buffer).unwrap_or(0);
        // Files in memory, which cannot be dropped, are on other lists.
        let stat = read(&self.stat, buffer)?;
        ensure!(stat.contains("\ninactive_file "), "memory.stat has no inactive_file");
        let cache = MemoryStat::parse(Path::new("memory.stat"), stat.as_bytes())?.file;
        Ok(self.limit_kib.saturating_sub(used.saturating_sub(cache) / 1024))
    }
}

/// The processes whose memory is recorded.
pub struct Watched {
    /// The files memory.current and memory.swap.current of the first processes' cgroups.
    usage_files: Vec<(File, File)>,
}

impl Watched {
    /// Opens what is needed of all these processes, in their order.
    ///
    /// # Errors
    /// When a cgroup has no memory controller.
    pub fn new<'a>(processes: impl Iterator<Item = &'a Process>) -> Result<Self> {
        let files = processes.take(MAX_USAGES).map(|process| {
            let open = |name| process.cgroup.open(name);
            Ok((open("memory.current")?, open("memory.swap.current")?))
        });
        Ok(Self { usage_files: files.collect::<Result<_>>()? })
    }
}

/// What was recorded.
#[derive(Default)]
pub struct Recording {
    /// When the load began and when the recording ended, in nanoseconds on the monotonic clock.
    pub start: u64,
    pub end: u64,
    pub samples: Vec<Sample>,
    /// The memory of each process's cgroup over time, in the order of [`Watched`]; only of the first ones.
    pub usage: Vec<Vec<Level>>,
    /// What each has in swap, in the same order, at every sample.
    pub swap: Vec<Vec<Level>>,
    /// When the load was over; `None` if it was not.
    pub over: Option<u64>,
    pub logins: Vec<Login>,
    /// Whether the load and the recovery took longer than the limit.
    pub timed_out: bool,
    pub total_kib: u64,
    /// How many processes the kernel's OOM killer killed.
    pub oom_kills: u64,
}

impl Recording {
    /// Returns what was still usable before `at`: available memory and free swap, in KiB.
    pub fn usable(&self, at: u64) -> Option<u64> {
        let before = self.samples.iter().take_while(|sample| sample.at <= at).last()?;
        Some(before.available + before.swap_free)
    }

    /// Returns the memory that was available to the load, and the total, in KiB: of the limited cgroup if
    /// there is one, of the guest otherwise.
    pub fn levels(&self, limited: Option<&LimitedCgroup>) -> (Vec<Level>, u64) {
        let available = |s: &Sample| if limited.is_some() { s.left_in_limit } else { s.available };
        let levels = self.samples.iter().map(|s| Level { at: s.at, kib: available(s) }).collect();
        (levels, limited.map_or(self.total_kib, |group| group.limit_kib))
    }
}

/// When a recording ends.
pub struct EndCondition<'a> {
    /// The longest that it may take.
    pub limit_ns: u64,
    /// Whether the load has ended.
    pub is_over: &'a (dyn Fn() -> bool + Sync),
    /// How long to continue then; `None` is until memory has recovered.
    pub continue_ns: Option<u64>,
    /// Ends what is left of the load. It is called before anything else, which might never end without
    /// memory.
    pub clean_up: &'a (dyn Fn() -> Result<()> + Sync),
}

/// Starts the load by calling `start`, and records until `end_condition`. The caller must have locked its
/// memory.
///
/// # Errors
/// When a file cannot be read, or the thread gets no real-time priority.
pub fn record(
    watched: &Watched,
    limited: Option<&LimitedCgroup>,
    start: impl FnOnce() + Send,
    end_condition: &EndCondition<'_>,
) -> Result<Recording> {
    let record = || {
        sched::set_policy(libc::SCHED_FIFO, REALTIME_PRIORITY).context("SCHED_FIFO for the recorder")?;
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("timer slack")?;
        Recorder::new(watched, limited, end_condition)?.run(start)
    };
    let over = AtomicBool::new(false);
    let mut logins = login::room(end_condition.limit_ns)?;
    let mut recording = std::thread::scope(|scope| {
        let user = std::thread::Builder::new().spawn_scoped(scope, || login::repeat(&mut logins, &over));
        let user = user.context("start the thread that logs in")?;
        let recorder = std::thread::Builder::new().spawn_scoped(scope, record);
        let recorded = recorder.context("start the recorder").map(join);
        over.store(true, Ordering::Release);
        join(user)?;
        recorded?
    })?;
    recording.logins = logins;
    Ok(recording)
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

struct Recorder<'a> {
    watched: &'a Watched,
    limited: Option<&'a LimitedCgroup>,
    end_condition: &'a EndCondition<'a>,
    meminfo: File,
    pressure: Option<File>,
    vmstat: File,
    buffer: [u8; BUFFER_BYTES],
    recording: Recording,
}

impl<'a> Recorder<'a> {
    fn new(
        watched: &'a Watched,
        limited: Option<&'a LimitedCgroup>,
        end_condition: &'a EndCondition<'a>,
    ) -> Result<Self> {
        const MEMINFO: &str = "/proc/meminfo";
        const PRESSURE: &str = "/proc/pressure/memory";
        const VMSTAT: &str = "/proc/vmstat";
        let meminfo = File::open(MEMINFO).context(MEMINFO)?;
        let mut buffer = [0; BUFFER_BYTES];
        let total_kib = value(read(&meminfo, &mut buffer)?, "MemTotal:").context(MEMINFO)?;
        // Late ticks are not made up for, so there are never more than these.
        let ticks = usize::try_from(end_condition.limit_ns / TICK_NS)? + 2;
        let room = usize::try_from(end_condition.limit_ns / SAMPLE_INTERVAL_NS)? + 3;
        let samples = Vec::with_capacity(ticks + 1);
        let each = |room| watched.usage_files.iter().map(|_| Vec::with_capacity(room)).collect();
        let (usage, swap) = (each(ticks), each(room));
        Ok(Self {
            watched,
            limited,
            end_condition,
            meminfo,
            // Some machines have none (psi=0).
            pressure: File::open(PRESSURE).ok(),
            vmstat: File::open(VMSTAT).context(VMSTAT)?,
            buffer,
            recording: Recording { samples, usage, swap, total_kib, ..Recording::default() },
        })
    }

    fn run(mut self, start: impl FnOnce()) -> Result<Recording> {
        self.sample()?;
        self.read_usage();
        self.read_swap();
        let oom_kills = self.oom_kills()?;
        self.recording.start = clock::now();
        start();
        let (mut next, mut next_sample) = (self.recording.start, self.recording.start + SAMPLE_INTERVAL_NS);
        let (mut over_since, mut recovered_since) = (None, None);
        loop {
            next = (next + TICK_NS).max(clock::now());
            clock::sleep_until(next)?;
            self.read_usage();
            reap();
            let now = clock::now();
            if now < next_sample {
                let close = |last: &&Sample| last.available < last.total / CLOSE_DIVISOR;
                // The tick nearest to it.
                let due = |last: &Sample| last.at + CLOSE_INTERVAL_NS - TICK_NS / 2 <= now;
                if self.recording.samples.last().filter(close).is_some_and(due) {
                    self.sample()?;
                }
                continue;
            }
            next_sample = (next_sample + SAMPLE_INTERVAL_NS).max(now);
            let recovered = self.sample()?;
            self.read_swap();
            if now - self.recording.start >= self.end_condition.limit_ns {
                self.recording.timed_out = true;
                break;
            }
            if !(self.end_condition.is_over)() {
                continue;
            }
            let over = *over_since.get_or_insert(now);
            recovered_since = if recovered { recovered_since.or(Some(now)) } else { None };
            // Somewhat longer than needed, so that the samples show it.
            let for_long = |since: u64| now - since >= RECOVERED_FOR_NS + RECOVERED_FOR_NS / 10;
            let has_recovered = recovered_since.is_some_and(for_long);
            if self.end_condition.continue_ns.map_or(has_recovered, |ns| now - over >= ns) {
                break;
            }
        }
        self.recording.end = clock::now();
        self.recording.oom_kills = self.oom_kills()? - oom_kills;
        let end = self.recording.end;
        self.recording.over = over_since.or_else(|| (self.end_condition.is_over)().then_some(end));
        (self.end_condition.clean_up)()?;
        Ok(self.recording)
    }

    fn oom_kills(&mut self) -> Result<u64> {
        let text = read(&self.vmstat, &mut self.buffer)?;
        value(text, "oom_kill ").context("/proc/vmstat has no oom_kill")
    }

    /// Takes a sample. Returns whether memory has recovered, for now.
    fn sample(&mut self) -> Result<bool> {
        // In the order of the daemon's sampler.
        let mut sample = Sample { at: clock::now(), ..Sample::default() };
        if let Some(pressure) = &self.pressure {
            let text = read(pressure, &mut self.buffer)?;
            let stalled = |kind| total(text, kind).context("memory pressure");
            (sample.some_us, sample.full_us) = (stalled("some ")?, stalled("full ")?);
        }
        sample.within_us = (clock::now() - sample.at) / 1000;
        let text = read(&self.meminfo, &mut self.buffer)?;
        let number = |key| value(text, key).context("/proc/meminfo");
        (sample.available, sample.free) = (number("MemAvailable:")?, number("MemFree:")?);
        (sample.swap_total, sample.swap_free) = (number("SwapTotal:")?, number("SwapFree:")?);
        sample.total = number("MemTotal:")?;
        if sample.available >= sample.total / SHORT_DIVISOR {
            let text = read(&self.vmstat, &mut self.buffer)?;
            sample.scanned = value(text, "pgscan_kswapd ").zip(value(text, "pgscan_direct ")).map(|(a, b)| a + b);
        }
        let (available, all) = match self.limited {
            None => (sample.available, self.recording.total_kib),
            Some(group) => {
                sample.left_in_limit = group.left_kib(&mut self.buffer)?;
                (sample.left_in_limit, group.limit_kib)
            }
        };
        let samples = &mut self.recording.samples;
        ensure!(samples.len() < samples.capacity(), "more samples than there is room for");
        samples.push(sample);
        Ok(available as f64 >= RECOVERED_SHARE * all as f64)
    }

    /// Reads how much memory each cgroup has. Unlike a process's counters, those of a cgroup can be read
    /// without a reference to the memory of a process that ends.
    fn read_usage(&mut self) {
        let files = self.watched.usage_files.iter().map(|(memory, _)| memory);
        push_all(files.zip(&mut self.recording.usage), &mut self.buffer);
    }

    fn read_swap(&mut self) {
        let files = self.watched.usage_files.iter().map(|(_, swap)| swap);
        push_all(files.zip(&mut self.recording.swap), &mut self.buffer);
    }
}

/// Reaps children as soon as they end, as a desktop does: some contestants take a zombie for a living process.
/// Nobody waits for one of them during a recording, and a call for each would take the CPU from everybody.
fn reap() {
    while matches!(waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG), Ok(Some(_))) {}
}

/// Adds what each cgroup's file says now. A cgroup that is gone has no memory any more.
fn push_all<'a>(files: impl Iterator<Item = (&'a File, &'a mut Vec<Level>)>, buffer: &mut [u8]) {
    for (file, usage) in files.filter(|(_, usage)| usage.len() < usage.capacity()) {
        let bytes = number_in(file, buffer).unwrap_or(0);
        usage.push(Level { at: clock::now(), kib: bytes / 1024 });
    }
}

/// Reads a file in /proc or /sys, as far as it fits.
fn read<'a>(file: &File, buffer: &'a mut [u8]) -> Result<&'a str> {
    let n = file.read_at(buffer, 0).context("read from /proc or /sys")?;
    Ok(std::str::from_utf8(&buffer[..n])?)
}

fn number_in(file: &File, buffer: &mut [u8]) -> Option<u64> {
    read(file, buffer).ok()?.trim_end().parse().ok()
}

/// Returns the total of a line of /proc/pressure/memory, in microseconds.
fn total(text: &str, kind: &str) -> Option<u64> {
    text.lines().find(|line| line.starts_with(kind))?.rsplit_once("total=")?.1.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_keys() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!((total(text, "some "), total(text, "full "), total(text, "none ")), (Some(12), Some(7), None));
    }
}
