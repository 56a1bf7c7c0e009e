// SPDX-License-Identifier: GPL-2.0-only
//! A mapping of which a process touches and frees single pages.

use std::ops::Range;

use anyhow::{Context as _, Result};
use linux::pagemap::Pagemap;
use rustix::mm::{Advice, MapFlags};

use super::mapping::Mapping;
use super::{PAGE_BYTES, page_at};

/// Pages that a page table maps.
pub const TABLE_PAGES: usize = PAGE_BYTES / size_of::<u64>();

/// An anonymous mapping that begins where a page table does. Unmapped when dropped.
pub struct Region {
    _mapping: Mapping,
    /// The address of the region in it.
    at: *mut u8,
    pages: usize,
}

impl Region {
    /// Maps so many private pages, none of which is allocated.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(pages: usize) -> Result<Self> {
        Self::map(pages, MapFlags::PRIVATE)
    }

    /// Maps shared pages in the same way.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn shared(pages: usize) -> Result<Self> {
        Self::map(pages, MapFlags::SHARED)
    }

    fn map(pages: usize, kind: MapFlags) -> Result<Self> {
        let size = (pages + TABLE_PAGES) * PAGE_BYTES;
        let mapping = Mapping::anonymous(size, kind | MapFlags::NORESERVE).context("mmap")?;
        let start = mapping.at();
        let at = start.wrapping_add(start.align_offset(TABLE_PAGES * PAGE_BYTES));
        Ok(Self { _mapping: mapping, at, pages })
    }

    /// Writes to each of these pages, in order.
    ///
    /// # Panics
    /// When the region has no such page.
    pub fn touch(&self, pages: Range<usize>) {
        assert!(pages.end <= self.pages);
        for page in pages {
            // SAFETY: the page is within the mapping, see above, to which no reference exists.
            unsafe { self.at.add(page * PAGE_BYTES).write_volatile(1) };
        }
    }

    /// Touches all pages and keeps them in memory.
    ///
    /// # Errors
    /// Those of mlock(2).
    pub fn lock(&self) -> Result<()> {
        // SAFETY: the pages are within the mapping; locking does not change their contents.
        unsafe { rustix::mm::mlock(self.at.cast(), self.pages * PAGE_BYTES) }.context("mlock")
    }

    /// Returns the page frame of each page, in order; of one that is not resident, it is 0.
    ///
    /// # Errors
    /// When /proc/self/pagemap cannot be read.
    pub fn frames(&self) -> Result<Vec<u64>> {
        let pagemap = Pagemap::own()?;
        let frame = |page| {
            let entry = page_at(&pagemap, self.at.addr() + page * PAGE_BYTES)?;
            Ok(if entry.is_present() { entry.frame() } else { 0 })
        };
        (0..self.pages).map(frame).collect()
    }

    /// Unmaps these pages; private ones are freed by that.
    ///
    /// # Errors
    /// Those of madvise(2).
    ///
    /// # Panics
    /// When the region has no such page.
    pub fn free(&self, pages: Range<usize>) -> Result<()> {
        assert!(pages.end <= self.pages);
        let at = self.at.wrapping_add(pages.start * PAGE_BYTES).cast();
        // SAFETY: the pages are within the mapping, see above, to which no reference exists.
        unsafe { rustix::mm::madvise(at, pages.len() * PAGE_BYTES, Advice::LinuxDontNeed) }
            .context("madvise(MADV_DONTNEED)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the first pages are resident.
    fn resident(region: &Region, pages: usize) -> Vec<bool> {
        let mut flags = vec![0u8; pages];
        // SAFETY: the pages are mapped, and there is a byte for each.
        let ret = unsafe { libc::mincore(region.at.cast(), pages * PAGE_BYTES, flags.as_mut_ptr()) };
        assert_eq!(ret, 0);
        flags.iter().map(|f| f & 1 == 1).collect()
    }

    #[test]
    fn only_pages_that_are_touched_and_not_freed_are_resident() {
        let region = Region::new(8).unwrap();
        assert_eq!(region.at.addr() % (TABLE_PAGES * PAGE_BYTES), 0);
        assert_eq!(resident(&region, 8), [false; 8]);
        region.touch(1..6);
        region.free(2..4).unwrap();
        assert_eq!(resident(&region, 8), [false, true, false, false, true, true, false, false]);
    }

    #[test]
    fn only_shared_memory_keeps_its_contents() {
        for (region, kept) in [(Region::new(1).unwrap(), 0), (Region::shared(1).unwrap(), 1)] {
            region.touch(0..1);
            region.free(0..1).unwrap();
            // SAFETY: the page is mapped.
            assert_eq!(unsafe { region.at.read_volatile() }, kept);
        }
    }
}
