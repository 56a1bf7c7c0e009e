//! Memory that a process of the face-off shares with the one that started it, across an exec.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::{ptr, slice};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;

use super::verdict::Frame;

/// Processes that one process may start of its own.
pub const HANDS: usize = 256;

/// What is on the sheet before the frames. All zeroes at first.
#[repr(C)]
struct Head {
    /// 1 when the process may begin with what it is there for.
    go: AtomicU32,
    /// 1 when the process is prepared.
    ready: AtomicU32,
    /// When the process had all the memory it wanted, on the monotonic clock.
    served: AtomicU64,
    /// Frames that have ended.
    ended: AtomicU64,
    /// When the frame under way should end.
    due: AtomicU64,
    hands: [Hand; HANDS],
}

/// A process that the sheet's process started.
#[repr(C)]
struct Hand {
    pid: AtomicU64,
    grown: AtomicU32,
}

/// A frame that has ended.
#[repr(C)]
struct Slot {
    due: AtomicU64,
    ended: AtomicU64,
}

/// One process's sheet. Its memory is never given back: there is one per process, and both sides
/// need it as long as they live.
pub struct Sheet {
    head: &'static Head,
    /// A ring: the latest frames.
    slots: &'static [Slot],
}

impl Sheet {
    /// A sheet with room for so many frames, and the file that makes it the other process's too.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn create(frames: usize) -> Result<(Self, OwnedFd)> {
        let fd = rustix::fs::memfd_create("sheet", MemfdFlags::CLOEXEC).context("memfd_create")?;
        let size = size_of::<Head>() + frames * size_of::<Slot>();
        rustix::fs::ftruncate(&fd, size as u64).context("size of a sheet")?;
        Ok((Self::map(&fd, size)?, fd))
    }

    /// The sheet in a file that the process was given.
    ///
    /// # Errors
    /// When it is no sheet.
    pub fn open(file: &File) -> Result<Self> {
        let size = usize::try_from(file.metadata().context("a sheet's size")?.len())?;
        ensure!(size >= size_of::<Head>(), "a sheet of {size} bytes is none");
        Self::map(file, size)
    }

    fn map(fd: impl AsFd, size: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                fd,
                0,
            )
        }
        .context("map a sheet")?;
        let frames = (size - size_of::<Head>()) / size_of::<Slot>();
        // SAFETY: the mapping has room for the head and the slots behind it, both aligned to eight
        // bytes and made of atomics for which all zeroes are valid, and is never unmapped.
        unsafe {
            let head = &*at.cast::<Head>();
            let slots = at.cast::<u8>().add(size_of::<Head>()).cast::<Slot>();
            Ok(Self { head, slots: slice::from_raw_parts(slots, frames) })
        }
    }

    /// The process is prepared.
    pub fn set_ready(&self) {
        self.head.ready.store(1, Ordering::Release);
    }

    /// Whether the process is prepared.
    pub fn is_ready(&self) -> bool {
        self.head.ready.load(Ordering::Acquire) == 1
    }

    /// Lets the process, and those that it started, begin.
    pub fn go(&self) {
        self.head.go.store(1, Ordering::Release);
        // Who is not waiting yet will see the 1; that is the only way for the call to fail.
        let _ = futex::wake(&self.head.go, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps until told to begin.
    pub fn wait_for_go(&self) {
        while self.head.go.load(Ordering::Acquire) == 0 {
            // Whether it was a wake-up, a signal or too late to sleep: the word says.
            let _ = futex::wait(&self.head.go, futex::Flags::empty(), 0, None);
        }
    }

    /// The process has all the memory it wanted.
    pub fn set_served(&self, at: u64) {
        self.head.served.store(at, Ordering::Release);
    }

    /// When the process had all the memory it wanted.
    pub fn served(&self) -> Option<u64> {
        Some(self.head.served.load(Ordering::Acquire)).filter(|&at| at > 0)
    }

    /// Notes a process that the sheet's process started.
    pub fn set_hand(&self, i: usize, pid: i32) {
        self.head.hands[i].pid.store(u64::from(pid.unsigned_abs()), Ordering::Release);
    }

    /// The processes that the sheet's process started, in order.
    pub fn hands(&self) -> impl Iterator<Item = i32> {
        let pids = self.head.hands.iter().map(|hand| hand.pid.load(Ordering::Acquire));
        pids.take_while(|&pid| pid != 0).map(|pid| pid as i32)
    }

    /// One of those processes has grown to its size.
    pub fn set_grown(&self, i: usize) {
        self.head.hands[i].grown.store(1, Ordering::Release);
    }

    /// Whether that process has grown to its size.
    pub fn is_grown(&self, i: usize) -> bool {
        self.head.hands[i].grown.load(Ordering::Acquire) == 1
    }

    /// The next frame should end then.
    pub fn begin_frame(&self, due: u64) {
        self.head.due.store(due, Ordering::Release);
    }

    /// The frame under way has ended.
    pub fn end_frame(&self, at: u64) {
        let n = self.head.ended.load(Ordering::Acquire);
        let slot = &self.slots[(n % self.slots.len() as u64) as usize];
        slot.due.store(self.head.due.load(Ordering::Acquire), Ordering::Release);
        slot.ended.store(at, Ordering::Release);
        self.head.ended.store(n + 1, Ordering::Release);
    }

    /// How many frames have ended.
    pub fn frame_count(&self) -> u64 {
        self.head.ended.load(Ordering::Acquire)
    }

    /// The latest frames, in order; the last one is under way and counts as ended at `now`.
    pub fn frames(&self, now: u64) -> Vec<Frame> {
        let ended = self.frame_count();
        let room = self.slots.len() as u64;
        // The oldest one may be being overwritten.
        let first = (ended + 1).saturating_sub(room);
        let frame = |n: u64| {
            let slot = &self.slots[(n % room) as usize];
            Frame { due: slot.due.load(Ordering::Acquire), ended: slot.ended.load(Ordering::Acquire) }
        };
        let mut frames: Vec<Frame> = (first..ended).map(frame).collect();
        let due = self.head.due.load(Ordering::Acquire);
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
    fn both_sides_see_the_same_sheet() {
        let (ours, fd) = Sheet::create(4).unwrap();
        let theirs = Sheet::open(&File::from(fd)).unwrap();
        assert!(!ours.is_ready() && ours.served().is_none() && ours.hands().next().is_none());
        theirs.set_ready();
        theirs.set_served(9);
        theirs.set_hand(0, 77);
        theirs.set_hand(1, 78);
        theirs.set_grown(1);
        ours.go();
        theirs.wait_for_go();
        assert!(ours.is_ready() && !ours.is_grown(0) && ours.is_grown(1));
        assert_eq!((ours.served(), ours.hands().collect::<Vec<_>>()), (Some(9), vec![77, 78]));
    }

    #[test]
    fn the_latest_frames_are_kept_and_the_one_under_way() {
        let (sheet, _) = Sheet::create(4).unwrap();
        assert_eq!(sheet.frames(5), []);
        let frame = |due, ended| Frame { due, ended };
        for n in 1..=6 {
            sheet.begin_frame(10 * n);
            sheet.end_frame(10 * n + n);
        }
        assert_eq!(sheet.frames(99), [frame(40, 44), frame(50, 55), frame(60, 66)]);
        sheet.begin_frame(70);
        assert_eq!(sheet.frames(99).last(), Some(&frame(70, 99)));
    }

    #[test]
    fn what_is_too_small_is_no_sheet() {
        let fd = rustix::fs::memfd_create("small", MemfdFlags::CLOEXEC).unwrap();
        assert!(Sheet::open(&File::from(fd)).is_err());
    }
}
