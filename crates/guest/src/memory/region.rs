//! Memory of which a process touches what it wants to have.

use std::ops::Range;
use std::ptr;

use anyhow::{Context as _, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::PAGE_BYTES;

/// Pages of a page table.
pub const TABLE: usize = 512;

/// An anonymous mapping that begins with a page table. Unmapped when dropped.
pub struct Region {
    /// Where the mapping is, and its bytes.
    mapping: (*mut u8, usize),
    /// Where the region begins.
    at: *mut u8,
    pages: usize,
}

impl Region {
    /// Maps so many pages, none of which is there.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn new(pages: usize) -> Result<Self> {
        Self::map(pages, MapFlags::PRIVATE)
    }

    /// The same of shared memory.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn shared(pages: usize) -> Result<Self> {
        Self::map(pages, MapFlags::SHARED)
    }

    fn map(pages: usize, kind: MapFlags) -> Result<Self> {
        let size = (pages + TABLE) * PAGE_BYTES;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                kind | MapFlags::NORESERVE,
            )
        }
        .context("mmap")?
        .cast::<u8>();
        let at = start.wrapping_add(start.align_offset(TABLE * PAGE_BYTES));
        Ok(Self { mapping: (start, size), at, pages })
    }

    /// Writes to each of these pages, in order.
    ///
    /// # Panics
    /// When the region has no such page.
    pub fn touch(&self, pages: Range<usize>) {
        assert!(pages.end <= self.pages);
        for page in pages {
            // SAFETY: the page is within the mapping, see above, which nobody refers to.
            unsafe { self.at.add(page * PAGE_BYTES).write_volatile(1) };
        }
    }

    /// Gives these pages back, as far as this process goes.
    ///
    /// # Errors
    /// What madvise(2) says.
    ///
    /// # Panics
    /// When the region has no such page.
    pub fn free(&self, pages: Range<usize>) -> Result<()> {
        assert!(pages.end <= self.pages);
        let at = self.at.wrapping_add(pages.start * PAGE_BYTES).cast();
        // SAFETY: the pages are within the mapping, see above, which nobody refers to.
        unsafe { rustix::mm::madvise(at, pages.len() * PAGE_BYTES, Advice::LinuxDontNeed) }
            .context("madvise(MADV_DONTNEED)")
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: nobody refers to the mapping.
        let _ = unsafe { rustix::mm::munmap(self.mapping.0.cast(), self.mapping.1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the first pages are there.
    fn there(region: &Region, pages: usize) -> Vec<bool> {
        let mut flags = vec![0u8; pages];
        // SAFETY: the pages are mapped, and there is a byte for each.
        let ret = unsafe { libc::mincore(region.at.cast(), pages * PAGE_BYTES, flags.as_mut_ptr()) };
        assert_eq!(ret, 0);
        flags.iter().map(|f| f & 1 == 1).collect()
    }

    #[test]
    fn only_what_is_touched_and_not_freed_is_there() {
        let region = Region::new(8).unwrap();
        assert_eq!(region.at.addr() % (TABLE * PAGE_BYTES), 0);
        assert_eq!(there(&region, 8), [false; 8]);
        region.touch(1..6);
        region.free(2..4).unwrap();
        assert_eq!(there(&region, 8), [false, true, false, false, true, true, false, false]);
    }

    #[test]
    fn only_shared_memory_keeps_what_a_process_gives_back() {
        for (region, kept) in [(Region::new(1).unwrap(), 0), (Region::shared(1).unwrap(), 1)] {
            region.touch(0..1);
            region.free(0..1).unwrap();
            // SAFETY: the page is mapped.
            assert_eq!(unsafe { region.at.read_volatile() }, kept);
        }
    }
}
