// SPDX-License-Identifier: GPL-2.0-only
//! Scenarios `storm-phone` and `storm-phone-cases`: applications in the background are mostly in zram, a camera needs
//! memory at once, and a killer ends applications until it has that. How long does the camera wait, how many
//! frames of the foreground are late, and how many applications had to die?

use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context as _, Result, ensure};
use protocol::results::{Message, Series};
use rustix::process::Signal;

use super::arguments::Arguments;
use super::metrics::{Metric, each_case, metric_name, report_medians};
use crate::measure::free_memory;
use crate::memory::PAGE_BYTES;
use crate::memory::region::Region;
use crate::memory::swap::Area;
use crate::process::child::{Board, Child, sleep_for_ever};
use crate::process::daemon::{Daemon, LOG};
use crate::process::swapped::{Layout, Victims};
use crate::process::victim::mrelease;
use crate::system::{clock, counters, sched};
use init::report::Reporter;

/// The case of `storm-phone`, which has no name, and those of `storm-phone-cases`.
const CASES: [Case; 6] = [
    PLAIN,
    Case { name: "memory", ..PLAIN },
    Case { name: "driver", buffers: true, ..PLAIN },
    Case { name: "scattered", scattered: true, ..PLAIN },
    Case { name: "daemon", daemon: true, swap_bytes: FULL_SWAP_BYTES, ..PLAIN },
    Case { name: "slow", slow: true, ..PLAIN },
];

/// A camera, a killer and the applications.
struct Case {
    /// The first part of the metrics' names, or nothing.
    name: &'static str,
    /// Whether the camera takes buffers that the kernel allocates, from the heap that cameras and displays use.
    /// Otherwise it takes memory of its own.
    buffers: bool,
    /// Whether `memreap daemon` kills; otherwise [`Killer::Lmkd`].
    daemon: bool,
    /// Whether applications have half of the CPUs, which are slow, as those in the background of a phone.
    slow: bool,
    /// Whether no neighbours in memory have neighbouring swap slots.
    scattered: bool,
    swap_bytes: u64,
}

const PLAIN: Case =
    Case { name: "", buffers: false, daemon: false, slow: false, scattered: false, swap_bytes: SWAP_BYTES };

const APPS: usize = 15;
/// The percentage of each that is in zram.
const SWAPPED_PERCENT: usize = 65;
const SWAP_BYTES: u64 = 1 << 30;
/// Hardly more than the applications have in swap: with room there, nobody has to die.
const FULL_SWAP_BYTES: u64 = 640 << 20;
const CAMERA_MIB: usize = 256;
/// How often a camera is started while there is enough memory. The host may slow it down.
const ALONE_TRIES: usize = 3;
/// What is free when the camera starts.
const FREE_BYTES: u64 = 96 << 20;
/// The killer ends an application while less than this is free. It is above the kernel's own watermarks.
const KILL_BELOW_BYTES: u64 = 64 << 20;
/// The part of a CPU's time that an application gets of a slow one.
const SLOW_PERCENT: u32 = 40;
/// How often the killer looks.
const KILLER_INTERVAL: Duration = Duration::from_millis(5);
/// How long the killer waits for a victim before it takes the next one, as lmkd does.
const DEATH_TIMEOUT: Duration = Duration::from_millis(100);
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

/// The metrics of a round.
const METRICS: [Metric<Round>; 5] = [
    ("camera-ms", |r| clock::ms(r.camera)),
    // Without the time in which memory is zeroed and mapped, which nobody can save it.
    ("camera-wait-ms", |r| clock::ms(r.camera - r.alone)),
    ("late-frames", |r| r.late as f64),
    ("kills", |r| r.kills as f64),
    ("oom-kills", |r| r.oom_kills as f64),
];

pub fn run(_: &Arguments, out: &mut Reporter) -> Result<()> {
    each_case(CASES.iter().map(|case| (case.name, case)), out, |_, case, out| case.run(out))
}

/// What one round measured: times in nanoseconds.
struct Round {
    /// From the start of the camera until it has its memory.
    camera: u64,
    /// The same while there was enough memory, at best.
    alone: u64,
    late: u64,
    kills: u64,
    /// Of those, by the kernel's OOM killer.
    oom_kills: u64,
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
            out.send(&Message::Series(Series { what: (*what).to_owned(), points }));
        }
    }
}

impl Case {
    fn run(&self, out: &mut Reporter) -> Result<()> {
        let _area = Area::zram(self.swap_bytes, None)?;
        out.progress(&metric_name(self.name, "camera"));
        let round = self.round(out)?;
        // A guest has one picture.
        if self.name.is_empty() {
            round.draw(out);
        }
        report_medians(out, self.name, &METRICS, &[round]);
        Ok(())
    }

    fn round(&self, out: &mut Reporter) -> Result<Round> {
        let alone = || Ok(last(&Camera::start(self.buffers)?.take()?));
        let alone = (0..ALONE_TRIES).map(|_| alone()).collect::<Result<Vec<_>>>()?;
        let alone = alone.into_iter().min().context("no camera alone")?;
        let layout = Layout { share: SWAPPED_PERCENT, scattered: self.scattered };
        let mut apps = Victims::start(APPS, layout).context("applications")?;
        if self.slow {
            apps.confine(SLOW_PERCENT)?;
        }
        let foreground = Foreground::start()?;
        let camera = Camera::start(self.buffers)?;
        let killer = Killer::start(self.daemon, &apps)?;
        // The rest of the machine's memory is somebody's who does not give it back.
        let spare = free_memory::settled()?.saturating_sub(FREE_BYTES);
        let others = Region::new(usize::try_from(spare)? / PAGE_BYTES)?;
        never_kill(true)?;
        others.lock().context("no memory to lock")?;
        killer.begin();
        foreground.wait_for(WARM_UP_FRAMES)?;
        // The camera would have the memory of one that died sooner, for nothing.
        ensure!(apps.ended()? == 0, "an application died before the camera began");
        let oom_kills = counters::oom_kills()?;
        let (start, first) = (clock::now(), foreground.frames());
        let arrivals = camera.take()?;
        foreground.wait_for(first + FRAMES)?;
        let late = foreground.late(start)?;
        let (kills, oom_kills) = (apps.ended()? as u64, counters::oom_kills()? - oom_kills);
        out.note(&format!("{} MiB were taken by others", spare >> 20));
        ensure!(kills > 0, "nobody had to die: {} MiB are free", free_memory::free() >> 20);
        let killed = killer.end(out)?;
        never_kill(false)?;
        let camera = last(&arrivals);
        ensure!(camera > alone, "the camera did not wait: {camera} ns, {alone} ns alone");
        let events = [
            ("MiB that the camera has", arrivals.into_iter().map(|at| (at, 1)).collect()),
            ("late frames of the foreground", late.iter().map(|&(at, missed)| (at - start, missed)).collect()),
            ("applications killed", killed.into_iter().map(|at| (at.saturating_sub(start), 1)).collect()),
        ];
        let late = late.iter().map(|&(_, missed)| missed).sum();
        Ok(Round { camera, alone, late, kills, oom_kills, events })
    }
}

/// Whether this process and those that it forks from now on are spared, by the kernel and by memreap.
fn never_kill(spared: bool) -> Result<()> {
    const PATH: &str = "/proc/self/oom_score_adj";
    fs::write(PATH, if spared { "-1000" } else { "0" }).context(PATH)
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
    fn start(buffers: bool) -> Result<Self> {
        let board = Board::new(ARRIVALS + CAMERA_MIB)?;
        let child = Child::fork(|| {
            never_kill(true)?;
            let pages = (1 << 20) / PAGE_BYTES;
            let memory = Region::new(CAMERA_MIB * pages)?;
            let heap = buffers.then(BufferHeap::open).transpose()?;
            let mut buffers = Vec::with_capacity(CAMERA_MIB);
            while board.get(GO) == 0 {
                thread::sleep(Duration::from_micros(200));
            }
            for mib in 0..CAMERA_MIB {
                match &heap {
                    None => memory.touch(mib * pages..(mib + 1) * pages),
                    Some(heap) => buffers.push(heap.allocate(1 << 20)?),
                }
                board.set(ARRIVALS + mib, clock::now());
            }
            sleep_for_ever()
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

/// The system heap of DMA buffers, in which a buffer need not be contiguous (CONFIG_DMABUF_HEAPS_SYSTEM).
struct BufferHeap(File);

impl BufferHeap {
    const PATH: &str = "/dev/dma_heap/system";

    fn open() -> Result<Self> {
        Ok(Self(File::open(Self::PATH).context(Self::PATH)?))
    }

    /// Allocates a buffer of zeroed memory, which is freed with its last descriptor.
    fn allocate(&self, bytes: u64) -> Result<OwnedFd> {
        /// The kernel's struct dma_heap_allocation_data.
        #[repr(C)]
        struct Allocation {
            len: u64,
            fd: u32,
            fd_flags: u32,
            heap_flags: u64,
        }
        const DMA_HEAP_IOCTL_ALLOC: libc::Ioctl = 0xC018_4800u32 as libc::Ioctl;
        let fd_flags = (libc::O_RDWR | libc::O_CLOEXEC) as u32;
        let mut allocation = Allocation { len: bytes, fd: 0, fd_flags, heap_flags: 0 };
        // SAFETY: the call reads and writes the structure, which outlives it.
        let ret = unsafe { libc::ioctl(self.0.as_raw_fd(), DMA_HEAP_IOCTL_ALLOC, &mut allocation) };
        ensure!(ret == 0, "{}: no {bytes} bytes: {}", Self::PATH, io::Error::last_os_error());
        // SAFETY: the kernel has just created the descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(allocation.fd)?) })
    }
}

/// Kills applications while memory is short.
enum Killer {
    /// The last one started first, as Android's low-memory killer does: the signal, then the victim leaves the slow
    /// CPUs, then process_mrelease(2).
    Lmkd(Child, Board),
    Memreap(Daemon),
}

impl Killer {
    fn start(daemon: bool, apps: &Victims) -> Result<Self> {
        if daemon {
            return Ok(Self::Memreap(Daemon::start(&[], "")?));
        }
        let board = Board::new(KILL_TIMES + APPS)?;
        let child = Child::fork(|| {
            sched::set_policy(libc::SCHED_FIFO, 1).context("SCHED_FIFO")?;
            while board.get(GO) == 0 {
                thread::sleep(KILLER_INTERVAL);
            }
            for (i, index) in (0..APPS).rev().enumerate() {
                let app = apps.pidfd(index);
                while free_memory::free() >= KILL_BELOW_BYTES {
                    thread::sleep(KILLER_INTERVAL);
                }
                board.set(KILL_TIMES + i, clock::now());
                board.set(KILLS, i as u64 + 1);
                app.send_signal(Signal::KILL)?;
                apps.unconfine(index)?;
                mrelease(app)?;
                app.wait_exit(DEATH_TIMEOUT)?;
            }
            sleep_for_ever()
        })?;
        Ok(Self::Lmkd(child, board))
    }

    fn begin(&self) {
        if let Self::Lmkd(_, board) = self {
            board.set(GO, 1);
        }
    }

    /// Returns the times of its kills on the monotonic clock, in nanoseconds, if they are known.
    fn end(self, out: &mut Reporter) -> Result<Vec<u64>> {
        match self {
            Self::Lmkd(child, board) => {
                ensure!(!child.has_ended()?, "the killer ended; the console says why");
                Ok((0..board.get(KILLS) as usize).map(|i| board.get(KILL_TIMES + i)).collect())
            }
            Self::Memreap(daemon) => {
                daemon.end()?;
                out.send(&Message::Out(fs::read_to_string(LOG).context(LOG)?));
                Ok(Vec::new())
            }
        }
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
            never_kill(true)?;
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
    use super::*;

    #[test]
    fn a_gap_of_several_frames_has_missed_all_but_the_last() {
        let gaps = [FRAME_NS / 2, FRAME_NS, FRAME_NS + FRAME_NS / 4, 2 * FRAME_NS, 4 * FRAME_NS + 1];
        assert_eq!(gaps.map(missed), [0, 0, 0, 1, 3]);
    }
}
