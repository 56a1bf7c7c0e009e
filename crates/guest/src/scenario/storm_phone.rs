// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `storm-phone`: 15 applications in the background have two thirds of their memory in zram, and little
//! memory is free. A camera is started, which needs 256 MiB at once, and a killer that works as Android's
//! lmkd does ends applications one by one until it has that. How long does the camera wait, how many
//! frames of the foreground are late, and how many applications had to die?

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};

use super::arguments::Arguments;
use super::interface::Scenario;
use super::metrics::{Metric, median};
use crate::measure::free_memory;
use crate::memory::PAGE_BYTES;
use crate::memory::region::Region;
use crate::memory::swap::Area;
use crate::process::child::{Board, Child};
use crate::process::swapped::{Layout, Victims};
use crate::process::victim::mrelease;
use crate::system::{clock, sched};
use init::report::{Better, Reporter};

/// `storm-phone [rounds=N]`
pub struct StormPhone;

const APPS: usize = 15;
/// What each of them has in zram.
const LAYOUT: Layout = Layout { share: 65, scattered: false };
const SWAP_BYTES: u64 = 1 << 30;
const CAMERA_MIB: usize = 256;
/// What is free when the camera starts.
const FREE_BYTES: u64 = 96 << 20;
/// The killer ends an application while less than this is free. It is above the kernel's own watermarks.
const KILL_BELOW_BYTES: u64 = 64 << 20;
/// How often the killer looks.
const KILLER_INTERVAL: Duration = Duration::from_millis(5);
/// How long the killer waits for a victim before it takes the next one, as lmkd does.
const DEATH_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Between two frames of the foreground: 60 in a second.
const FRAME_NS: u64 = 16_666_667;
/// What the foreground touches for each frame.
const FRAME_BYTES: usize = 8 << 20;
/// How many frames count from the start of the camera on: longer than it takes on any kernel.
const FRAMES: u64 = 120;
/// Frames before that.
const WARM_UP_FRAMES: u64 = 10;
/// How much longer than all that happens the picture is.
const PICTURE_MARGIN_NS: u64 = 50_000_000;

/// The metrics of a round, and their units.
const METRICS: [(Metric<Round>, &str); 4] = [
    (("camera-ms", |r| clock::ms(r.camera)), "ms"),
    // Without the time in which memory is zeroed and mapped, which nobody can save it.
    (("camera-wait-ms", |r| clock::ms(r.camera.saturating_sub(r.alone))), "ms"),
    (("late-frames", |r| r.late as f64), "count"),
    (("kills", |r| r.kills as f64), "count"),
];

impl Scenario for StormPhone {
    fn name(&self) -> &'static str {
        "storm-phone"
    }

    fn metrics(&self, args: &[String], _cpus: usize) -> Result<Vec<String>> {
        Options::parse(args)?;
        Ok(METRICS.iter().map(|&((name, _), _)| name.to_owned()).collect())
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let options = Options::parse(args)?;
        let _area = Area::zram(SWAP_BYTES, None)?;
        let mut rounds = Vec::new();
        for i in 0..options.rounds {
            out.progress(&format!("round {}", i + 1));
            rounds.push(round(out)?);
        }
        if let Some(first) = rounds.first() {
            first.draw(out);
        }
        for ((name, value), unit) in METRICS {
            out.sample(name, unit, Better::Lower, median(rounds.iter().map(value)));
        }
        Ok(())
    }
}

struct Options {
    rounds: u32,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let args = Arguments::new(args, &[], &["rounds"])?;
        Ok(Self { rounds: args.rounds()?.unwrap_or(1) })
    }
}

/// What one round measured: times in nanoseconds.
struct Round {
    /// From the start of the camera until it has its memory.
    camera: u64,
    /// The same while there was enough memory.
    alone: u64,
    late: u64,
    kills: u64,
    /// What happened when, in nanoseconds from the start of the camera, and how many at once: MiB that it got,
    /// frames that were late, applications that were killed.
    events: [(&'static str, Vec<(u64, u64)>); 3],
}

impl Round {
    /// Sends how the events add up over time.
    fn draw(&self, out: &mut Reporter) {
        let all = self.events.iter().flat_map(|(_, events)| events);
        let end = all.map(|&(at, _)| at).max().unwrap_or(0) + PICTURE_MARGIN_NS;
        for (what, events) in &self.events {
            let (mut sum, mut points) = (0, vec![[0.0, 0.0]]);
            for &(at, count) in events {
                points.push([clock::ms(at), sum as f64]);
                sum += count;
                points.push([clock::ms(at), sum as f64]);
            }
            points.push([clock::ms(end), sum as f64]);
            out.series(what, points);
        }
    }
}

fn round(out: &mut Reporter) -> Result<Round> {
    let alone = last(&Camera::start()?.take()?);
    let apps = Victims::start(APPS, LAYOUT).context("applications")?;
    let foreground = Foreground::start()?;
    let camera = Camera::start()?;
    let killer = Killer::start(&apps)?;
    // The rest of the machine's memory is somebody's who does not give it back.
    let spare = free_memory::settled()?.saturating_sub(FREE_BYTES);
    let others = Region::new(usize::try_from(spare)? / PAGE_BYTES)?;
    others.lock().context("no memory to lock")?;
    killer.board.set(GO, 1);
    foreground.wait_for(WARM_UP_FRAMES)?;
    let (start, first) = (clock::now(), foreground.frames());
    let arrivals = camera.take()?;
    foreground.wait_for(first + FRAMES)?;
    let late = foreground.late(start)?;
    let kills = killer.board.get(KILLS);
    let kill_times = (0..kills as usize).map(|i| killer.board.get(KILL_TIMES + i));
    out.note(&format!("{} MiB were taken by others", spare >> 20));
    ensure!(kills > 0, "nobody had to die: the camera had {} MiB", free_memory::free() >> 20);
    let camera = last(&arrivals);
    let events = [
        ("MiB that the camera has", arrivals.into_iter().map(|at| (at, 1)).collect()),
        ("late frames of the foreground", late.iter().map(|&(at, missed)| (at - start, missed)).collect()),
        ("applications killed", kill_times.map(|at| (at.saturating_sub(start), 1)).collect()),
    ];
    let late = late.iter().map(|&(_, missed)| missed).sum();
    Ok(Round { camera, alone, late, kills, events })
}

fn last(times: &[u64]) -> u64 {
    times.last().copied().unwrap_or(0)
}

/// A process that takes much memory when it is told to.
struct Camera {
    child: Child,
    board: Board,
}

/// Cells of boards: begin; when each MiB was there; applications that were killed, and when.
const GO: usize = 0;
const ARRIVALS: usize = 1;
const KILLS: usize = 1;
const KILL_TIMES: usize = 2;

impl Camera {
    fn start() -> Result<Self> {
        let board = Board::new(ARRIVALS + CAMERA_MIB)?;
        let child = Child::fork(|| {
            let pages = (1 << 20) / PAGE_BYTES;
            let memory = Region::new(CAMERA_MIB * pages)?;
            while board.get(GO) == 0 {
                thread::sleep(Duration::from_micros(200));
            }
            for mib in 0..CAMERA_MIB {
                memory.touch(mib * pages..(mib + 1) * pages);
                board.set(ARRIVALS + mib, clock::now());
            }
            loop {
                thread::park();
            }
        })?;
        Ok(Self { child, board })
    }

    /// Returns how long it took until each MiB was there, in nanoseconds.
    fn take(&self) -> Result<Vec<u64>> {
        let start = clock::now();
        self.board.set(GO, 1);
        let cells = ARRIVALS..ARRIVALS + CAMERA_MIB;
        self.child.wait_until(|| self.board.get(cells.end - 1) > 0)?;
        Ok(cells.map(|i| self.board.get(i) - start).collect())
    }
}

/// Kills applications, the last one started first, while memory is short.
struct Killer {
    _child: Child,
    board: Board,
}

impl Killer {
    fn start(apps: &Victims) -> Result<Self> {
        let board = Board::new(KILL_TIMES + APPS)?;
        let child = Child::fork(|| {
            sched::set_policy(libc::SCHED_FIFO, 1).context("SCHED_FIFO")?;
            while board.get(GO) == 0 {
                thread::sleep(KILLER_INTERVAL);
            }
            for (i, app) in apps.pidfds().rev().enumerate() {
                while free_memory::free() >= KILL_BELOW_BYTES {
                    thread::sleep(KILLER_INTERVAL);
                }
                board.set(KILL_TIMES + i, clock::now());
                board.set(KILLS, i as u64 + 1);
                pidfd_send_signal(app, Signal::KILL).context("pidfd_send_signal")?;
                mrelease(app).context("process_mrelease")?;
                poll(&mut [PollFd::new(&app, PollFlags::IN)], Some(&DEATH_TIMEOUT)).context("poll")?;
            }
            loop {
                thread::park();
            }
        })?;
        Ok(Self { _child: child, board })
    }
}

/// A process that draws a frame each 16.7 ms.
struct Foreground {
    child: Child,
    /// The number of frames, then when each was done.
    board: Board,
}

impl Foreground {
    fn start() -> Result<Self> {
        let most = WARM_UP_FRAMES + 10 * FRAMES;
        let board = Board::new(1 + usize::try_from(most)?)?;
        let child = Child::fork(|| {
            let pages = FRAME_BYTES / PAGE_BYTES;
            let memory = Region::new(pages)?;
            let mut due = clock::now();
            for frame in 0..most {
                memory.touch(0..pages);
                board.set(1 + usize::try_from(frame)?, clock::now());
                board.set(0, frame + 1);
                // A frame that was missed is not drawn later.
                while due <= clock::now() {
                    due += FRAME_NS;
                }
                clock::sleep_until(due)?;
            }
            anyhow::bail!("{most} frames were not enough")
        })?;
        Ok(Self { child, board })
    }

    fn frames(&self) -> u64 {
        self.board.get(0)
    }

    fn wait_for(&self, frames: u64) -> Result<()> {
        self.child.wait_until(|| self.frames() >= frames)
    }

    /// Returns when frames came after `start` that were late, and how many were missed before each.
    fn late(&self, start: u64) -> Result<Vec<(u64, u64)>> {
        let count = usize::try_from(self.frames())?;
        let times: Vec<u64> = (1..=count).map(|i| self.board.get(i)).collect();
        let first = times.iter().rposition(|&at| at <= start).context("no frame before the camera")?;
        let late = times[first..].windows(2).map(|pair| (pair[1], missed(pair[1] - pair[0])));
        Ok(late.filter(|&(_, missed)| missed > 0).collect())
    }
}

/// The frames that were missed between two that are so many nanoseconds apart. Half a frame of jitter is none.
fn missed(gap: u64) -> u64 {
    ((gap + FRAME_NS / 2) / FRAME_NS).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::super::arguments::{assert_refused, words};
    use super::*;

    #[test]
    fn arguments_have_defaults() {
        assert_eq!(Options::parse(&[]).unwrap().rounds, 1);
        assert_eq!(Options::parse(&words(&["rounds=3"])).unwrap().rounds, 3);
        assert_refused(Options::parse, &["rounds=0", "case=x"], &[]);
    }

    #[test]
    fn a_gap_of_several_frames_has_missed_all_but_the_last() {
        let gaps = [FRAME_NS / 2, FRAME_NS, FRAME_NS + FRAME_NS / 4, 2 * FRAME_NS, 4 * FRAME_NS + 1];
        assert_eq!(gaps.map(missed), [0, 0, 0, 1, 3]);
    }
}
