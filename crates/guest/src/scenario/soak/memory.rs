// SPDX-License-Identifier: GPL-2.0-only
//! Memory of all kinds, and what victims do with it.

use std::mem::ManuallyDrop;
use std::ptr;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, madvise};

use super::{MIB_BYTES, micros};
use crate::memory::PAGE_BYTES;
use crate::memory::mapping::{Mapping, READ_WRITE};
use crate::process::child;
use crate::rng::Rng;
use crate::system::sched;

/// About the most memory of a victim.
const VICTIM_BYTES: usize = 40 * MIB_BYTES;

/// What a victim does: it allocates memory of all kinds, then maps and unmaps until its end.
pub(super) fn grow(mut rng: Rng) {
    let mut left = VICTIM_BYTES;
    while left > 0 {
        let size = (16 + rng.below(2048)) * PAGE_BYTES;
        left = left.saturating_sub(size);
        // A failure (no memory, no huge page) does not matter: the next attempt may succeed.
        let _ = map(&mut rng, size);
        if rng.one_in(8) {
            start_companion(&mut rng);
        }
    }
    loop {
        let size = (1 + rng.below(64)) * PAGE_BYTES;
        hop(&mut rng);
        if let Ok(area) = anonymous(size, MapFlags::PRIVATE) {
            touch(&area, size);
            if rng.one_in(4) {
                // SAFETY: advice on a mapping that is ours; its contents stay.
                let _ = unsafe { madvise(area.at().cast(), size, Advice::LinuxPageOut) };
                read(&area);
            }
        }
        thread::sleep(micros(&mut rng, 500));
    }
}

/// Starts something that works on the same memory: a thread, a process that shares it, or a fork.
fn start_companion(rng: &mut Rng) {
    let mut own = Rng(rng.bits());
    match rng.below(3) {
        0 => drop(thread::spawn(move || {
            loop {
                let size = (1 + own.below(256)) * PAGE_BYTES;
                hop(&mut own);
                if let Ok(area) = anonymous(size, MapFlags::PRIVATE) {
                    touch(&area, size);
                    // The memory may be freed on another CPU than it was allocated on.
                    hop(&mut own);
                    if own.one_in(2) {
                        drop(area);
                    } else {
                        // It stays mapped, so that the address space keeps changing, within limits.
                        area.leak();
                        thread::sleep(Duration::from_millis(5));
                    }
                }
                thread::sleep(micros(&mut own, 300));
            }
        })),
        1 => share_memory(),
        _ => {
            // SAFETY: after this fork from a process that may have threads, the child only makes
            // system calls and writes to memory that it has: nothing that takes a lock.
            if unsafe { libc::fork() } == 0 {
                loop {
                    // SAFETY: usleep takes a number.
                    unsafe { libc::usleep(200) };
                    if let Ok(area) = anonymous(16 * PAGE_BYTES, MapFlags::PRIVATE) {
                        touch(&area, area.bytes());
                    }
                }
            }
        }
    }
}

/// Starts a process that shares this one's memory (CLONE_VM) and outlives it for a moment.
fn share_memory() {
    let size = 16 * PAGE_BYTES;
    let Ok(stack) = anonymous(size, MapFlags::PRIVATE) else { return };
    let stack = ptr::slice_from_raw_parts_mut(stack.leak().cast(), size / size_of::<u128>());
    // SAFETY: the stack is a mapping of its own that is never unmapped.
    let _ = unsafe { child::share_memory(stack) };
}

fn anonymous(size: usize, flags: MapFlags) -> Result<Mapping, Errno> {
    Mapping::anonymous(size, flags | MapFlags::NORESERVE)
}

/// The same, for memory that stays mapped.
fn kept(size: usize, flags: MapFlags) -> Result<ManuallyDrop<Mapping>, Errno> {
    anonymous(size, flags).map(ManuallyDrop::new)
}

/// Writes to every page of the first `size` bytes.
fn touch(area: &Mapping, size: usize) {
    for offset in (0..size).step_by(PAGE_BYTES) {
        // SAFETY: inside a writable mapping that only this function accesses.
        unsafe { area.at().add(offset).write_volatile(1) };
    }
}

/// Reads every page.
fn read(area: &Mapping) {
    for offset in (0..area.bytes()).step_by(PAGE_BYTES) {
        // SAFETY: inside a readable mapping.
        let _ = unsafe { area.at().add(offset).read_volatile() };
    }
}

/// Maps and fills one area of a random kind, which stays mapped.
fn map(rng: &mut Rng, size: usize) -> Result<(), Errno> {
    match rng.below(6) {
        0 => touch(&*kept(size, MapFlags::PRIVATE)?, size),
        1 => touch(&*kept(size, MapFlags::SHARED)?, size),
        2 => {
            // A private mapping of a file: some pages are read, some copied on write.
            let file = rustix::fs::memfd_create("soak", rustix::fs::MemfdFlags::CLOEXEC)?;
            rustix::fs::ftruncate(&file, size as u64)?;
            let area = ManuallyDrop::new(Mapping::of_file(&file, 0, size, READ_WRITE, MapFlags::PRIVATE)?);
            read(&area);
            touch(&area, size / 2);
        }
        3 => {
            // Two huge pages fit wherever the mapping starts; one of them is split then.
            let size = 6 * MIB_BYTES;
            let area = kept(size, MapFlags::PRIVATE)?;
            // SAFETY: advice on a mapping that is ours; the contents do not matter.
            unsafe { madvise(area.at().cast(), size, Advice::LinuxHugepage) }?;
            touch(&area, size);
            if rng.one_in(2) {
                let page = rng.below(size / PAGE_BYTES) * PAGE_BYTES;
                // SAFETY: one page inside the mapping, whose contents do not matter.
                unsafe { madvise(area.at().add(page).cast(), PAGE_BYTES, Advice::LinuxDontNeed) }?;
            }
        }
        4 => {
            let area = kept(size, MapFlags::PRIVATE)?;
            // SAFETY: locking a mapping that is ours changes nothing in it.
            unsafe { rustix::mm::mlock(area.at().cast(), size / 2) }?;
            touch(&area, size);
        }
        _ => {
            // Many VMAs: every other page is read-only.
            let area = kept(size, MapFlags::PRIVATE)?;
            touch(&area, size);
            for offset in (0..size).step_by(2 * PAGE_BYTES) {
                // SAFETY: one page inside the mapping, which is not written to any more.
                unsafe { rustix::mm::mprotect(area.at().add(offset).cast(), PAGE_BYTES, MprotectFlags::READ) }?;
            }
        }
    }
    Ok(())
}

/// Allocates some memory and keeps it.
pub(super) fn allocate_some(rng: &mut Rng) {
    let flags = if rng.one_in(32) { MapFlags::SHARED } else { MapFlags::PRIVATE };
    let size = (1 + rng.below(256)) * PAGE_BYTES;
    if let Ok(area) = kept(size, flags) {
        touch(&area, size);
    }
}

/// Moves the calling thread to a random CPU.
fn hop(rng: &mut Rng) {
    // Fails if there is no such CPU now.
    let _ = sched::pin(rng.below(8));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_memory_can_be_mapped() {
        let mut rng = Rng(3);
        for _ in 0..24 {
            // Locking may exceed a limit here; nothing else may fail.
            match map(&mut rng, 16 * PAGE_BYTES) {
                Ok(()) | Err(Errno::NOMEM | Errno::PERM | Errno::INVAL) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }
}
