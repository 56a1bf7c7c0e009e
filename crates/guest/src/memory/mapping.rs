// SPDX-License-Identifier: GPL-2.0-only
//! Mappings of memory.

use std::os::fd::AsFd;
use std::{mem, ptr};

use rustix::io::Result;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Readable and writable.
pub const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A mapping. Unmapped when dropped; no reference into it may be left then.
#[derive(Debug)]
pub struct Mapping {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: this is an address and a length, which any thread may have and unmap.
unsafe impl Send for Mapping {}
// SAFETY: nothing changes by a reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps anonymous memory, readable and writable, at an address of the kernel's choice.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn anonymous(bytes: usize, flags: MapFlags) -> Result<Self> {
        Self::protected(bytes, READ_WRITE, flags)
    }

    /// The same with this protection.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn protected(bytes: usize, protection: ProtFlags, flags: MapFlags) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags) }?;
        Ok(Self { at: at.cast(), bytes })
    }

    /// Maps the bytes of a file from `offset` on.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn of_file(
        file: impl AsFd,
        offset: usize,
        bytes: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, file, offset as u64) }?;
        Ok(Self { at: at.cast(), bytes })
    }

    /// Its address.
    pub fn at(&self) -> *mut u8 {
        self.at
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Leaves it mapped until the process ends, and returns its address.
    pub fn leak(self) -> *mut u8 {
        let at = self.at;
        mem::forget(self);
        at
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and by its contract no reference into it is left. A failure leaves it
        // mapped.
        let _ = unsafe { munmap(self.at.cast(), self.bytes) };
    }
}
