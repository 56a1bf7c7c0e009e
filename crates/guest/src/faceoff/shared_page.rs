// SPDX-License-Identifier: GPL-2.0-only
//! Memory that a workload shares with the process that started it, across an exec.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::MemfdFlags;
use rustix::mm::MapFlags;
use rustix::thread::futex;

use protocol::load::MAX_CHILDREN;

use super::frames::Frame;
use crate::memory::mapping::{Mapping, READ_WRITE};

/// What precedes the frames. All zeroes at first.
#[repr(C)]
struct Header {
    started: Flag,
    ready: Flag,
    done: Flag,
    /// Frames that have ended.
    ended: AtomicU64,
    /// When the current frame should end.
    due: AtomicU64,
    children: [Child; MAX_CHILDREN],
}

/// A process that the workload started.
#[repr(C)]
struct Child {
    pid: AtomicU64,
    grown: Flag,
}

/// Whether something is so: not at first.
#[repr(transparent)]
pub struct Flag(AtomicU32);

impl Flag {
    pub fn set(&self) {
        self.0.store(1, Ordering::Release);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) == 1
    }
}

/// A frame that has ended, in nanoseconds on the monotonic clock.
#[repr(C)]
struct Slot {
    due: AtomicU64,
    ended: AtomicU64,
}

/// The memory that one workload shares. It is never unmapped: there is one per workload, and both sides
/// need it as long as they live.
pub struct SharedPage {
    header: &'static Header,
    /// A ring of the latest frames.
    slots: &'static [Slot],
}

impl SharedPage {
    /// Creates one with room for so many frames. Returns also the file from which the workload opens it.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn create(frames: usize) -> Result<(Self, OwnedFd)> {
        let fd = rustix::fs::memfd_create("shared-page", MemfdFlags::CLOEXEC).context("memfd_create")?;
        let size = size_of::<Header>() + frames * size_of::<Slot>();
        rustix::fs::ftruncate(&fd, size as u64).context("size of the shared page")?;
        Ok((Self::map(&fd, size)?, fd))
    }

    /// Opens the one in a file that the workload inherited.
    ///
    /// # Errors
    /// When the file is too small.
    pub fn open(file: &File) -> Result<Self> {
        let size = usize::try_from(file.metadata().context("size of the shared page")?.len())?;
        ensure!(size >= size_of::<Header>(), "{size} bytes are too few for a shared page");
        Self::map(file, size)
    }

    fn map(fd: impl AsFd, size: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let at = Mapping::of_file(fd, 0, size, READ_WRITE, flags).context("map the shared page")?.leak();
        let frames = (size - size_of::<Header>()) / size_of::<Slot>();
        // SAFETY: the mapping has room for the header and the slots behind it, both aligned to eight
        // bytes and made of atomics for which all zeroes are valid, and is never unmapped.
        unsafe {
            let header = &*at.cast::<Header>();
            let slots = at.add(size_of::<Header>()).cast::<Slot>();
            Ok(Self { header, slots: slice::from_raw_parts(slots, frames) })
        }
    }

    /// Whether the workload is prepared.
    pub fn ready(&self) -> &Flag {
        &self.header.ready
    }

    /// Lets the workload, and the processes that it started, begin.
    pub fn start(&self) {
        self.header.started.set();
        // A process that does not wait yet will read the 1.
        let _ = futex::wake(&self.header.started.0, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps until the workload may begin.
    pub fn wait_for_start(&self) {
        while !self.header.started.is_set() {
            // The word's value shows whether this was a wake-up, or a signal or a late call.
            let _ = futex::wait(&self.header.started.0, futex::Flags::empty(), 0, None);
        }
    }

    /// Whether the workload has done all it has to.
    pub fn done(&self) -> &Flag {
        &self.header.done
    }

    /// Notes a process that the workload started.
    pub fn set_child(&self, i: usize, pid: i32) {
        self.header.children[i].pid.store(u64::from(pid.unsigned_abs()), Ordering::Release);
    }

    /// The processes that the workload started, in order.
    pub fn children(&self) -> impl Iterator<Item = i32> {
        let pids = self.header.children.iter().map(|child| child.pid.load(Ordering::Acquire));
        pids.take_while(|&pid| pid != 0).map(|pid| pid as i32)
    }

    /// Whether one of those processes has grown to its size.
    pub fn grown(&self, i: usize) -> &Flag {
        &self.header.children[i].grown
    }

    /// Begins a frame that should end at `due`.
    pub fn begin_frame(&self, due: u64) {
        self.header.due.store(due, Ordering::Release);
    }

    /// Ends the current frame.
    pub fn end_frame(&self, at: u64) {
        let n = self.header.ended.load(Ordering::Acquire);
        let slot = &self.slots[(n % self.slots.len() as u64) as usize];
        slot.due.store(self.header.due.load(Ordering::Acquire), Ordering::Release);
        slot.ended.store(at, Ordering::Release);
        self.header.ended.store(n + 1, Ordering::Release);
    }

    /// How many frames have ended.
    pub fn frame_count(&self) -> u64 {
        self.header.ended.load(Ordering::Acquire)
    }

    /// The latest frames, in order. The last one is the current frame, which counts as ended at `now`.
    pub fn frames(&self, now: u64) -> Vec<Frame> {
        let ended = self.frame_count();
        let room = self.slots.len() as u64;
        // The oldest one may just be overwritten.
        let first = (ended + 1).saturating_sub(room);
        let frame = |n: u64| {
            let slot = &self.slots[(n % room) as usize];
            Frame { due: slot.due.load(Ordering::Acquire), ended: slot.ended.load(Ordering::Acquire) }
        };
        let mut frames: Vec<Frame> = (first..ended).map(frame).collect();
        let due = self.header.due.load(Ordering::Acquire);
        if frames.last().is_some_and(|last| last.due < due) {
            frames.push(Frame { due, ended: now });
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_share_all_values() {
        let (ours, fd) = SharedPage::create(4).unwrap();
        let theirs = SharedPage::open(&File::from(fd)).unwrap();
        assert!(!ours.ready().is_set() && !ours.done().is_set() && ours.children().next().is_none());
        theirs.ready().set();
        theirs.done().set();
        theirs.set_child(0, 77);
        theirs.set_child(1, 78);
        theirs.grown(1).set();
        ours.start();
        theirs.wait_for_start();
        assert!(ours.ready().is_set() && !ours.grown(0).is_set() && ours.grown(1).is_set());
        assert_eq!((ours.done().is_set(), ours.children().collect::<Vec<_>>()), (true, vec![77, 78]));
    }

    #[test]
    fn the_latest_frames_are_kept_and_the_current_one() {
        let (page, _) = SharedPage::create(4).unwrap();
        assert_eq!(page.frames(5), []);
        let frame = |due, ended| Frame { due, ended };
        for n in 1..=6 {
            page.begin_frame(10 * n);
            page.end_frame(10 * n + n);
        }
        assert_eq!(page.frames(99), [frame(40, 44), frame(50, 55), frame(60, 66)]);
        page.begin_frame(70);
        assert_eq!(page.frames(99).last(), Some(&frame(70, 99)));
    }

    #[test]
    fn a_file_that_is_too_small_is_refused() {
        let fd = rustix::fs::memfd_create("small", MemfdFlags::CLOEXEC).unwrap();
        assert!(SharedPage::open(&File::from(fd)).is_err());
    }
}
