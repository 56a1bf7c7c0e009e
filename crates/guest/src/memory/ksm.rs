// SPDX-License-Identifier: GPL-2.0-only
//! Pages that KSM merged, in an address space of many VMAs: their layout, running ksmd on request, moving
//! pages between NUMA nodes, and what /proc shows of single pages.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context as _, Result, bail, ensure};
use linux::pagemap::{Page, Pagemap};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::mapping::{Mapping, READ_WRITE};
use super::{PAGE_BYTES, page_at};
use crate::system::clock;
use crate::system::counters::{cpu_time, number_in};

const SYSFS: &str = "/sys/kernel/mm/ksm";
/// Every wake-up of ksmd is one full scan, and there is time to stop it between two scans: so a merge always
/// takes the same number of scans. smart_scan would skip pages in some scans. The other settings are the
/// kernel's defaults.
const SETTINGS: [(&str, &str); 8] = [
    ("run", "0"),
    ("advisor_mode", "none"),
    ("pages_to_scan", "1048576"),
    ("sleep_millisecs", "20"),
    ("smart_scan", "0"),
    ("use_zero_pages", "0"),
    ("max_page_sharing", "256"),
    ("merge_across_nodes", "1"),
];
/// How often it is checked whether ksmd has ended a scan.
const SCAN_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The longest that a merge may take: 30 s.
const MERGE_TIMEOUT_NS: u64 = 30_000_000_000;

/// ksmd, which runs only during [`Ksm::merge`].
pub struct Ksm {
    /// The file with its CPU time.
    schedstat: String,
}

/// The cost of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeCost {
    /// Full scans.
    pub scans: u64,
    /// CPU time of ksmd in nanoseconds.
    pub cpu: u64,
}

impl Ksm {
    /// Finds ksmd and changes its settings.
    ///
    /// # Errors
    /// When the kernel has no KSM, or pages are merged already, which makes some settings immutable.
    pub fn set_up() -> Result<Self> {
        SETTINGS.into_iter().try_for_each(|(name, value)| set(name, value))?;
        for entry in fs::read_dir("/proc").context("/proc")? {
            let path = entry?.path();
            if fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm == "ksmd\n") {
                return Ok(Self { schedstat: path.join("schedstat").display().to_string() });
            }
        }
        bail!("there is no ksmd in /proc")
    }

    /// Has ksmd leave pages out of some scans that it has not been able to merge, as it does by default.
    ///
    /// # Errors
    /// When the kernel has no such setting.
    pub fn smart_scan(&self, on: bool) -> Result<()> {
        set("smart_scan", if on { "1" } else { "0" })
    }

    /// Runs ksmd for full scans until `done` returns true, and stops it.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn merge(&self, done: impl Fn() -> Result<bool>) -> Result<MergeCost> {
        let (cpu, scans) = (self.cpu()?, number("full_scans")?);
        let began = clock::now();
        set("run", "1")?;
        let merged = loop {
            let seen = number("full_scans")?;
            match done() {
                Ok(false) if clock::now() - began < MERGE_TIMEOUT_NS => {}
                Ok(false) => break Err(anyhow::anyhow!("not merged after {} scans", seen - scans)),
                other => break other,
            }
            while number("full_scans")? == seen && clock::now() - began < MERGE_TIMEOUT_NS {
                thread::sleep(SCAN_POLL_INTERVAL);
            }
        };
        // The write waits for the end of the scan.
        set("run", "0")?;
        merged.context("ksmd")?;
        // Only when ksmd sleeps, a moment later, is its CPU time complete.
        thread::sleep(SCAN_POLL_INTERVAL);
        Ok(MergeCost { scans: number("full_scans")? - scans, cpu: self.cpu()? - cpu })
    }

    fn cpu(&self) -> Result<u64> {
        let text = fs::read_to_string(&self.schedstat).with_context(|| self.schedstat.clone())?;
        cpu_time(&text).with_context(|| format!("{}: no CPU time (CONFIG_SCHED_INFO)", self.schedstat))
    }
}

/// Returns the number of distinct merged pages, and that of further mappings of them.
///
/// # Errors
/// When the kernel has no KSM.
pub fn shared() -> Result<(u64, u64)> {
    Ok((number("pages_shared")?, number("pages_sharing")?))
}

fn number(name: &str) -> Result<u64> {
    number_in(&format!("{SYSFS}/{name}"))
}

fn set(name: &str, value: &str) -> Result<()> {
    let path = format!("{SYSFS}/{name}");
    fs::write(&path, value).with_context(|| format!("write {value} to {path} (CONFIG_KSM)"))
}

/// Private anonymous memory, unmapped when dropped. The pages before and after it are inaccessible, so that
/// no neighbour shares its anon_vma.
pub struct Area {
    mapping: Mapping,
    pages: usize,
}

impl Area {
    /// Maps the memory, writable. No page is allocated yet.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(pages: usize) -> Result<Self> {
        let mapping = Mapping::protected((pages + 2) * PAGE_BYTES, ProtFlags::empty(), MapFlags::PRIVATE);
        let area = Self { mapping: mapping.context("mmap")?, pages };
        area.map(0, pages)?;
        Ok(area)
    }

    /// Maps new memory over some of the pages.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn map(&self, first: usize, pages: usize) -> Result<()> {
        let (at, fixed) = (self.pointer(first).cast(), MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: replaces pages of the area, into which no reference points.
        unsafe { rustix::mm::mmap_anonymous(at, pages * PAGE_BYTES, READ_WRITE, fixed) }
            .context("mmap over pages of the area")?;
        Ok(())
    }

    /// Lets ksmd merge some of the pages.
    ///
    /// # Errors
    /// Those of madvise(2).
    pub fn mergeable(&self, first: usize, pages: usize) -> Result<()> {
        let at = self.pointer(first);
        // SAFETY: pages of the area; merging does not change what they hold.
        unsafe { rustix::mm::madvise(at.cast(), pages * PAGE_BYTES, Advice::LinuxMergeable) }
            .context("madvise(MADV_MERGEABLE), which needs CONFIG_KSM")
    }

    /// The address of a page.
    pub fn address(&self, page: usize) -> usize {
        self.pointer(page).addr()
    }

    fn pointer(&self, page: usize) -> *mut u64 {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        self.mapping.at().wrapping_add((1 + page) * PAGE_BYTES).cast()
    }

    /// Fills a page with a content that depends on the number `content`.
    pub fn fill(&self, page: usize, content: u64) {
        let at = self.pointer(page);
        for word in 0..PAGE_BYTES / size_of::<u64>() {
            // SAFETY: a word of a page of the area, which is writable until it is split.
            unsafe { at.add(word).write_volatile(word_of(content, word)) };
        }
    }

    /// Whether a page has the content that [`fill`](Self::fill) wrote.
    pub fn holds(&self, page: usize, content: u64) -> bool {
        let at = self.pointer(page);
        // SAFETY: a word of a page of the area, which is always readable.
        (0..PAGE_BYTES / size_of::<u64>()).all(|word| unsafe { at.add(word).read_volatile() } == word_of(content, word))
    }

    /// Reads from a page.
    pub fn read(&self, page: usize) {
        // SAFETY: the first word of a page of the area, which is always readable.
        unsafe { self.pointer(page).read_volatile() };
    }

    /// Writes to a page that [`split`](Self::split) leaves writable.
    pub fn write(&self, page: usize) {
        // SAFETY: the first word of a page that `split` leaves writable.
        unsafe { self.pointer(page).write_volatile(1) };
    }

    /// Makes each page a VMA of its own: pages with odd numbers become read-only.
    ///
    /// # Errors
    /// Those of mprotect(2); ENOMEM when vm.max_map_count is too low.
    pub fn split(&self) -> Result<()> {
        for page in (1..self.pages).step_by(2) {
            // SAFETY: a page of the area, which is not written to any more.
            unsafe { rustix::mm::mprotect(self.pointer(page).cast(), PAGE_BYTES, MprotectFlags::READ) }
                .with_context(|| format!("mprotect of page {page}"))?;
        }
        Ok(())
    }

    /// Returns the number of VMAs in the area.
    ///
    /// # Errors
    /// When /proc/self/maps cannot be read.
    pub fn vmas(&self) -> Result<usize> {
        let base = self.address(0);
        Ok(super::vmas_in("/proc/self/maps", base..base + self.pages * PAGE_BYTES)?.0)
    }
}

/// Returns a word of a page's content. Words differ between contents and, so that a compressor has work to
/// do, within a page.
fn word_of(content: u64, word: usize) -> u64 {
    (content << 16 | word as u64 | 1 << 63).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The layout of merged pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// VMAs, of one page each.
    pub vmas: usize,
    /// Pages that KSM merges.
    pub pages: usize,
    /// How often each of them is mapped.
    pub maps: usize,
}

impl Shape {
    /// The VMA in which a page is mapped for the `map`th time. A page's mappings are spread over all VMAs,
    /// and no two pages share a VMA.
    pub fn place(self, page: usize, map: usize) -> usize {
        (map * self.pages + page) * self.vmas / (self.maps * self.pages)
    }

    /// The VMAs in which a page is mapped.
    pub fn places(self, page: usize) -> impl Iterator<Item = usize> {
        (0..self.maps).map(move |map| self.place(page, map))
    }

    /// `count` VMAs that are writable and empty, spread over all VMAs.
    fn empty(self, count: usize) -> Vec<usize> {
        let mut taken = vec![false; self.vmas];
        (0..self.pages).flat_map(|page| self.places(page)).for_each(|vma| taken[vma] = true);
        let free: Vec<usize> = (0..self.vmas).step_by(2).filter(|&vma| !taken[vma]).collect();
        (0..count.min(free.len())).map(|i| free[i * free.len() / count]).collect()
    }
}

/// Many VMAs with one anon_vma, some of which map pages that KSM merged.
pub struct MergedPages {
    /// The layout.
    pub shape: Shape,
    area: Area,
    /// The number of the first page's content; those of the others follow.
    content: u64,
}

impl MergedPages {
    /// Maps the VMAs, has ksmd merge the pages, and checks both. `content` is the number of the first page's
    /// content; no two of one boot should have contents in common.
    ///
    /// # Errors
    /// When the VMAs or the merged pages are not as they should be.
    pub fn new(shape: Shape, ksm: &Ksm, content: u64) -> Result<Self> {
        const MAX_MAP_COUNT: &str = "/proc/sys/vm/max_map_count";
        // The program itself needs a few.
        fs::write(MAX_MAP_COUNT, (shape.vmas + 1000).to_string()).context(MAX_MAP_COUNT)?;
        let merged = Self { shape, area: Area::new(shape.vmas)?, content };
        merged.area.mergeable(0, shape.vmas)?;
        // The first write creates the anon_vma, which the VMAs share after the split.
        for page in 0..shape.pages {
            shape.places(page).for_each(|vma| merged.area.fill(vma, content + page as u64));
        }
        merged.area.split()?;
        merged.check_vmas()?;
        ksm.merge(|| Ok(merged.unmerged()?.is_none())).or_else(|e| match merged.unmerged()? {
            None => Err(e),
            Some((page, map)) => Err(e.context(format!("page {page} at its mapping {map}"))),
        })?;
        merged.check_pages()?;
        Ok(merged)
    }

    /// The address at which a page is mapped for the `map`th time.
    pub fn address(&self, page: usize, map: usize) -> usize {
        self.area.address(self.shape.place(page, map))
    }

    /// Reads a page where it is mapped for the `map`th time.
    pub fn read(&self, page: usize, map: usize) {
        self.area.read(self.shape.place(page, map));
    }

    /// Replaces `count` empty VMAs by new ones, and returns them. They have no anon_vma until the first write
    /// to them; then they join that of their neighbours, from which they differ only in the access rights.
    ///
    /// # Errors
    /// Those of mmap(2), or when the number of VMAs changes.
    pub fn replace_empty(&self, count: usize) -> Result<Vec<usize>> {
        let fresh = self.shape.empty(count);
        ensure!(fresh.len() == count, "only {} VMAs of {count} are empty", fresh.len());
        for &vma in &fresh {
            self.area.map(vma, 1)?;
            // As its neighbours are: a VMA that differs in more than access rights shares no anon_vma.
            self.area.mergeable(vma, 1)?;
        }
        self.check_vmas()?;
        Ok(fresh)
    }

    /// Writes to a VMA.
    pub fn write(&self, vma: usize) {
        self.area.write(vma);
    }

    /// Checks the contents of all pages at all their mappings.
    ///
    /// # Errors
    /// When one was corrupted.
    pub fn check_contents(&self) -> Result<()> {
        for page in 0..self.shape.pages {
            let bad = self.shape.places(page).find(|&vma| !self.area.holds(vma, self.content + page as u64));
            ensure!(bad.is_none(), "page {page} was corrupted in VMA {bad:?}");
        }
        Ok(())
    }

    /// Whether every page is swapped out at all its mappings.
    ///
    /// # Errors
    /// When /proc/self/pagemap cannot be read.
    pub fn swapped(&self) -> Result<bool> {
        Ok(self.find(|entry, _| !entry.is_swapped())?.is_none())
    }

    /// Returns a page and one of its mappings of which this is true, by what is there and at its first mapping.
    fn find(&self, is: impl Fn(Page, Page) -> bool) -> Result<Option<(usize, usize)>> {
        let pagemap = Pagemap::own()?;
        for page in 0..self.shape.pages {
            let first = page_at(&pagemap, self.address(page, 0))?;
            for map in 0..self.shape.maps {
                if is(page_at(&pagemap, self.address(page, map))?, first) {
                    return Ok(Some((page, map)));
                }
            }
        }
        Ok(None)
    }

    fn check_vmas(&self) -> Result<()> {
        let vmas = self.area.vmas()?;
        ensure!(vmas == self.shape.vmas, "/proc/self/maps: {vmas} VMAs, not {}", self.shape.vmas);
        Ok(())
    }

    /// Returns a page and one of its mappings that has another page frame than its first mapping.
    fn unmerged(&self) -> Result<Option<(usize, usize)>> {
        self.find(|entry, first| !entry.is_present() || entry.frame() != first.frame())
    }

    fn check_pages(&self) -> Result<()> {
        let pagemap = Pagemap::own()?;
        for page in 0..self.shape.pages {
            let frame = page_at(&pagemap, self.address(page, 0))?.frame();
            ensure!(is_ksm(frame)?, "page {page}, frame {frame:#x}, is not KSM's");
        }
        Ok(())
    }
}

/// Whether a page frame belongs to KSM, by /proc/kpageflags.
fn is_ksm(frame: u64) -> Result<bool> {
    const KPF_KSM: u32 = 21;
    let mut flags = [0; size_of::<u64>()];
    let file = File::open("/proc/kpageflags").context("/proc/kpageflags (CONFIG_PROC_PAGE_MONITOR)")?;
    file.read_exact_at(&mut flags, frame * size_of::<u64>() as u64).context("/proc/kpageflags")?;
    Ok(u64::from_ne_bytes(flags) >> KPF_KSM & 1 == 1)
}

/// Moves pages to a NUMA node at all their mappings, and checks that they are there.
///
/// # Errors
/// When a page did not move, for example because the kernel missed one of its mappings.
pub fn move_to(node: i32, addresses: &[usize]) -> Result<()> {
    let status = move_pages(addresses, node)?;
    match status.iter().position(|&at| at != node) {
        None => Ok(()),
        Some(i) => bail!("page {i} did not move to node {node}: {}", describe(status[i])),
    }
}

fn describe(status: i32) -> String {
    match status {
        node @ 0.. => format!("it is on node {node}"),
        error => io::Error::from_raw_os_error(-error).to_string(),
    }
}

fn move_pages(addresses: &[usize], node: i32) -> Result<Vec<i32>> {
    const MPOL_MF_MOVE_ALL: i32 = 1 << 2;
    let count = addresses.len();
    let nodes = vec![node; count];
    let mut status = vec![-libc::EINVAL; count];
    // SAFETY: the three arrays have `count` elements each; the addresses are not accessed.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            count,
            addresses.as_ptr(),
            nodes.as_ptr(),
            status.as_mut_ptr(),
            MPOL_MF_MOVE_ALL,
        )
    };
    // A positive result is the number of pages that did not move; their status has the reason.
    ensure!(ret >= 0, "move_pages: {}", io::Error::last_os_error());
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_distinct_and_spread() {
        for (vmas, pages, maps) in [(2000, 8, 2), (20_000, 8, 200), (2000, 8, 200), (20_000, 1, 200)] {
            let shape = Shape { vmas, pages, maps };
            let mut all: Vec<usize> = (0..pages).flat_map(|page| shape.places(page)).collect();
            all.sort_unstable();
            assert!(all.windows(2).all(|w| w[0] < w[1]), "{shape:?}");
            assert!(all[0] == 0 && all[all.len() - 1] < vmas);
            for page in 0..pages {
                let (first, last) = (shape.place(page, 0), shape.place(page, maps - 1));
                assert!(last - first >= vmas / 2 - vmas / (pages * maps), "{shape:?}: {first} to {last}");
            }
        }
    }

    #[test]
    fn empty_vmas_are_writable_and_hold_no_page() {
        let shape = Shape { vmas: 2000, pages: 8, maps: 100 };
        let empty = shape.empty(300);
        assert_eq!(empty.len(), 300);
        assert!(empty.windows(2).all(|w| w[0] < w[1]) && empty.iter().all(|vma| vma % 2 == 0));
        assert!((0..8).flat_map(|page| shape.places(page)).all(|vma| !empty.contains(&vma)));
        assert!(shape.empty(2000).len() < 2000);
    }

    #[test]
    fn contents_differ_and_are_kept() {
        let area = Area::new(8).unwrap();
        (0..8).for_each(|page| area.fill(page, 100 + page as u64));
        assert_eq!(area.vmas().unwrap(), 1);
        area.split().unwrap();
        assert_eq!(area.vmas().unwrap(), 8);
        for page in 0..8 {
            for content in 0..8 {
                assert_eq!(area.holds(page, 100 + content as u64), page == content);
            }
        }
        area.map(4, 1).unwrap();
        assert_eq!(area.vmas().unwrap(), 8);
        area.write(4);
        assert!(!area.holds(4, 104));
    }
}
