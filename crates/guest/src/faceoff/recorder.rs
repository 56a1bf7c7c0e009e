//! Watches the machine while it is out of memory, without needing any itself: a real-time thread
//! that allocates nothing and opens nothing.

use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::desktop::{Actor, Scope};
use super::verdict::{CALM, Level, RECOVERED, Usage};
use crate::measure::free_memory;
use crate::system::counters::value;

/// How often memory in use is read, and who ended is waited for.
const TICK: u64 = 5_000_000;
/// How often a sample is taken.
const SAMPLE: u64 = 50_000_000;
/// Room for the longest file, /proc/vmstat.
const BUFFER: usize = 16 << 10;
/// Above all daemons that use a real-time priority of their own.
const PRIORITY: i32 = 50;

/// The machine at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// On the monotonic clock, in nanoseconds.
    pub at: u64,
    /// In KiB, as /proc/meminfo has them.
    pub available: u64,
    pub free: u64,
    pub swap_free: u64,
    /// Microseconds since the boot that some and all tasks waited for memory.
    pub some: u64,
    pub full: u64,
    /// What the box still has, in KiB, where the load is in one.
    pub room: u64,
}

/// A group with a limit that the load is in.
pub struct BoxFiles {
    current: File,
    /// In KiB.
    limit: u64,
}

impl BoxFiles {
    /// Of a group whose limit is so many KiB.
    ///
    /// # Errors
    /// When the group has no memory controller.
    pub fn open(scope: &Scope, limit: u64) -> Result<Self> {
        Ok(Self { current: scope.open("memory.current")?, limit })
    }
}

/// Whose end to wait for, and which memory to watch.
pub struct Watched {
    /// Children of this process; waited for.
    children: Vec<OwnedFd>,
    /// One per group that has a process of its own.
    groups: Vec<File>,
}

impl Watched {
    /// All these actors. Group number n is that of actor number n.
    ///
    /// # Errors
    /// When a group has no memory controller.
    pub fn of<'a>(actors: impl Iterator<Item = &'a Actor>) -> Result<Self> {
        let mut watched = Self { children: Vec::new(), groups: Vec::new() };
        for actor in actors {
            watched.children.push(actor.pidfd.try_clone().context("duplicate a pidfd")?);
            watched.groups.push(actor.scope.open("memory.current")?);
        }
        Ok(watched)
    }
}

/// What was seen.
pub struct Recording {
    /// The start of the load, and when it was over.
    pub start: u64,
    pub end: u64,
    pub samples: Vec<Sample>,
    /// One list per group.
    pub usage: Vec<Vec<Usage>>,
    /// Whether the load ended by itself.
    pub is_over: bool,
    /// Whether that, and what should follow, took longer than it might.
    pub timed_out: bool,
    /// All memory, in KiB.
    pub total: u64,
    /// How many processes the kernel killed for want of memory.
    pub oom_kills: u64,
}

impl Recording {
    /// What there was for the load, of how much: in its box if it has one.
    pub fn levels(&self, boxed: Option<&BoxFiles>) -> (Vec<Level>, u64) {
        let available = |s: &Sample| if boxed.is_some() { s.room } else { s.available };
        let levels = self.samples.iter().map(|s| Level { at: s.at, available: available(s) }).collect();
        (levels, boxed.map_or(self.total, |b| b.limit))
    }
}

/// When a recording ends.
pub struct Until<'a> {
    /// Nanoseconds that it takes at most.
    pub limit: u64,
    /// Whether the load has ended.
    pub is_over: &'a (dyn Fn() -> bool + Sync),
    /// How long to go on then; without it, until memory has recovered.
    pub after: Option<u64>,
    /// What is left of the load is ended before anything else is done, which might take for ever.
    pub clear: &'a (dyn Fn() -> Result<()> + Sync),
}

/// Starts the load by `go` and records until it is over. The caller must have locked its memory.
///
/// # Errors
/// When a file cannot be read, or the thread gets no real-time priority.
pub fn record(
    watched: &Watched,
    boxed: Option<&BoxFiles>,
    go: impl FnOnce() + Send,
    until: &Until<'_>,
) -> Result<Recording> {
    let record = || {
        free_memory::set_policy(libc::SCHED_FIFO, PRIORITY).context("SCHED_FIFO for the recorder")?;
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("timer slack")?;
        Recorder::new(watched, boxed, until)?.run(go)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, record);
        match thread.context("start the recorder")?.join() {
            Ok(recorded) => recorded,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

struct Recorder<'a> {
    watched: &'a Watched,
    boxed: Option<&'a BoxFiles>,
    until: &'a Until<'a>,
    meminfo: File,
    pressure: File,
    vmstat: File,
    buffer: [u8; BUFFER],
    recording: Recording,
    ended: Vec<bool>,
}

impl<'a> Recorder<'a> {
    fn new(watched: &'a Watched, boxed: Option<&'a BoxFiles>, until: &'a Until<'a>) -> Result<Self> {
        const MEMINFO: &str = "/proc/meminfo";
        const PRESSURE: &str = "/proc/pressure/memory";
        const VMSTAT: &str = "/proc/vmstat";
        let meminfo = File::open(MEMINFO).context(MEMINFO)?;
        let mut buffer = [0; BUFFER];
        let total = value(read(&meminfo, &mut buffer)?, "MemTotal:").context(MEMINFO)?;
        // A tick that comes late leaves one out, so there are at most so many, and the first.
        let ticks = usize::try_from(until.limit / TICK)? + 2;
        let samples = Vec::with_capacity(usize::try_from(until.limit / SAMPLE)? + 3);
        let usage = watched.groups.iter().map(|_| Vec::with_capacity(ticks)).collect();
        Ok(Self {
            watched,
            boxed,
            until,
            meminfo,
            pressure: File::open(PRESSURE).context("no pressure-stall information (CONFIG_PSI, psi=1)")?,
            vmstat: File::open(VMSTAT).context(VMSTAT)?,
            buffer,
            recording: Recording {
                start: 0,
                end: 0,
                samples,
                usage,
                is_over: false,
                timed_out: false,
                total,
                oom_kills: 0,
            },
            ended: vec![false; watched.children.len()],
        })
    }

    fn run(mut self, go: impl FnOnce()) -> Result<Recording> {
        self.sample()?;
        self.watch_groups();
        let oom_kills = self.oom_kills()?;
        self.recording.start = free_memory::now();
        go();
        let (mut next, mut next_sample) = (self.recording.start, self.recording.start + SAMPLE);
        let (mut over_since, mut calm_since) = (None, None);
        loop {
            next = (next + TICK).max(free_memory::now());
            free_memory::sleep_until(next)?;
            self.watch_groups();
            self.wait_for_children();
            let now = free_memory::now();
            if now < next_sample {
                continue;
            }
            next_sample = (next_sample + SAMPLE).max(now);
            let recovered = self.sample()?;
            if now - self.recording.start >= self.until.limit {
                self.recording.timed_out = true;
                break;
            }
            if !(self.until.is_over)() {
                continue;
            }
            let over = *over_since.get_or_insert(now);
            calm_since = if recovered { calm_since.or(Some(now)) } else { None };
            // Somewhat longer than what counts as calm, so that it is seen to be.
            let calm = |since: u64| now - since >= CALM + CALM / 10;
            if self.until.after.map_or(calm_since.is_some_and(calm), |after| now - over >= after) {
                break;
            }
        }
        self.recording.end = free_memory::now();
        self.recording.oom_kills = self.oom_kills()? - oom_kills;
        self.recording.is_over = over_since.is_some() || (self.until.is_over)();
        (self.until.clear)()?;
        Ok(self.recording)
    }

    fn oom_kills(&mut self) -> Result<u64> {
        let text = read(&self.vmstat, &mut self.buffer)?;
        value(text, "oom_kill ").context("/proc/vmstat has no oom_kill")
    }

    /// Notes the machine as it is; says whether there is memory enough for the load.
    fn sample(&mut self) -> Result<bool> {
        let at = free_memory::now();
        let text = read(&self.meminfo, &mut self.buffer)?;
        let number = |key| value(text, key).context("/proc/meminfo");
        let mut sample = Sample {
            at,
            available: number("MemAvailable:")?,
            free: number("MemFree:")?,
            swap_free: number("SwapFree:")?,
            ..Sample::default()
        };
        let text = read(&self.pressure, &mut self.buffer)?;
        let stalled = |kind| total(text, kind).context("/proc/pressure/memory");
        (sample.some, sample.full) = (stalled("some ")?, stalled("full ")?);
        let (available, all) = match self.boxed {
            None => (sample.available, self.recording.total),
            Some(boxed) => {
                let used = number_in(&boxed.current, &mut self.buffer).unwrap_or(0) / 1024;
                sample.room = boxed.limit.saturating_sub(used);
                (sample.room, boxed.limit)
            }
        };
        let samples = &mut self.recording.samples;
        ensure!(samples.len() < samples.capacity(), "more samples than there is room for");
        samples.push(sample);
        Ok(available as f64 >= RECOVERED * all as f64)
    }

    /// Notes how much memory each group has. The group's counter, unlike a process's, can be read
    /// without holding on to that memory while the process ends.
    fn watch_groups(&mut self) {
        for (group, usage) in self.watched.groups.iter().zip(&mut self.recording.usage) {
            // A group that is gone has nothing any more.
            let bytes = number_in(group, &mut self.buffer).unwrap_or(0);
            if usage.len() < usage.capacity() {
                usage.push(Usage { at: free_memory::now(), kib: bytes / 1024 });
            }
        }
    }

    /// Reaps who ended at once, as a desktop does: some daemons take a zombie for a living process.
    fn wait_for_children(&mut self) {
        for (pidfd, ended) in self.watched.children.iter().zip(&mut self.ended) {
            if !*ended {
                let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
                *ended = !matches!(waitid(WaitId::PidFd(pidfd.as_fd()), how), Ok(None));
            }
        }
    }
}

/// Whether a process has ended, be it reaped or not.
pub fn has_ended(pidfd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// The whole of a file in /proc or /sys, as far as it fits.
fn read<'a>(file: &File, buffer: &'a mut [u8]) -> Result<&'a str> {
    let n = file.read_at(buffer, 0).context("read from /proc or /sys")?;
    Ok(std::str::from_utf8(&buffer[..n])?)
}

fn number_in(file: &File, buffer: &mut [u8]) -> Option<u64> {
    read(file, buffer).ok()?.trim_end().parse().ok()
}

/// The total of a line of /proc/pressure/memory.
fn total(text: &str, kind: &str) -> Option<u64> {
    text.lines().find(|line| line.starts_with(kind))?.rsplit_once("total=")?.1.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_keys() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(
            (total(text, "some "), total(text, "full "), total(text, "none ")),
            (Some(12), Some(7), None)
        );
    }
}
