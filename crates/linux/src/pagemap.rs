// SPDX-License-Identifier: GPL-2.0-only
//! /proc/PID/pagemap: what each page of a process's address space is. Page by page, at any place: the cost does not
//! depend on the size of the process.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::retry_on_intr;

use crate::dir::Failure;
use crate::{Error, read};

/// /proc/PID/pagemap, open. It stays that address space's when the process executes another program.
#[derive(Debug)]
pub struct Pagemap(OwnedFd);

/// What is at a page of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page(u64);

impl Pagemap {
    pub(crate) fn new(file: OwnedFd) -> Self {
        Self(file)
    }

    /// Opens that of the calling process.
    ///
    /// # Errors
    /// When the kernel does not have it (CONFIG_PROC_PAGE_MONITOR).
    pub fn own() -> crate::Result<Self> {
        let path = Path::new("/proc/self/pagemap");
        read::open(path).map(Self).map_err(|e| Error::io(path, e))
    }

    /// Reads what is at the page with this number: its address, divided by the size of a page. Waits for the lock of
    /// the memory map.
    ///
    /// # Errors
    /// When it cannot be read; [`Failure::Gone`] when there is no memory any more, or never can be at that place.
    pub fn page(&self, number: u64) -> Result<Page, Failure> {
        const ENTRY_BYTES: u64 = size_of::<u64>() as u64;
        let mut entry = [0; size_of::<u64>()];
        let at = number.checked_mul(ENTRY_BYTES).ok_or(Failure::Malformed)?;
        match retry_on_intr(|| rustix::io::pread(&self.0, &mut entry, at))? {
            0 => Err(Failure::Gone),
            len if len == entry.len() => Ok(Page(u64::from_ne_bytes(entry))),
            _ => Err(Failure::Malformed),
        }
    }
}

/// Bits as in the kernel's Documentation/admin-guide/mm/pagemap.rst.
impl Page {
    /// Memory is mapped there.
    pub fn is_present(self) -> bool {
        self.bit(63)
    }

    /// It is in swap.
    pub fn is_swapped(self) -> bool {
        self.bit(62)
    }

    /// The page frame of memory that is mapped; 0 for who has no CAP_SYS_ADMIN.
    pub fn frame(self) -> u64 {
        self.0 & ((1 << 55) - 1)
    }

    /// It is a file's or shared memory, not anonymous.
    pub fn is_file_or_shared(self) -> bool {
        self.bit(61)
    }

    /// Nothing else maps this page. Never set for a page in swap.
    pub fn is_exclusive(self) -> bool {
        self.bit(56)
    }

    fn bit(self, n: u32) -> bool {
        self.0 & 1 << n != 0
    }
}

#[cfg(test)]
mod tests {
    use crate::Root;
    use crate::scan::Scan;

    #[test]
    fn entries_are_distinguished() {
        let (there, swapped) = (super::Page(1 << 63 | 0x1234), super::Page(1 << 62));
        assert!(there.is_present() && !there.is_swapped() && there.frame() == 0x1234);
        assert!(swapped.is_swapped() && !swapped.is_present());
    }

    #[test]
    fn pages_are_what_they_are() {
        let size = rustix::param::page_size();
        let scan = Scan::open(&Root::system()).unwrap();
        let pagemap = super::Pagemap::own().unwrap();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        let map = |flags| {
            // SAFETY: a new mapping, of two pages.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), 2 * size, protection, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            // SAFETY: the first of the two.
            unsafe { at.cast::<u8>().write_volatile(1) };
            at as usize / size
        };
        let private = map(flags | libc::MAP_PRIVATE);
        let page = |number: usize| pagemap.page(number as u64).unwrap();
        let written = page(private);
        assert!(written.is_present() && written.is_exclusive());
        assert!(!written.is_file_or_shared());
        let untouched = page(private + 1);
        assert!(!untouched.is_present() && !untouched.is_exclusive());
        assert!(page(map(flags | libc::MAP_SHARED)).is_file_or_shared());
        // SAFETY: the child only waits for a signal.
        let child = unsafe { crate::child::fork(|| libc::pause()) }.unwrap();
        assert!(page(private).is_present() && !page(private).is_exclusive());
        let childs = scan.pagemap(child).unwrap();
        assert!(childs.page(private as u64).unwrap().is_present());
        crate::PidFd::open(child).unwrap().send_signal(crate::pidfd::Signal::KILL).unwrap();
        rustix::process::waitpid(Some(child.into()), rustix::process::WaitOptions::empty()).unwrap();
        assert!(page(private).is_exclusive());
        assert_eq!(childs.page(private as u64), Err(crate::dir::Failure::Gone));
        assert_eq!(pagemap.page(u64::MAX), Err(crate::dir::Failure::Malformed));
    }
}
