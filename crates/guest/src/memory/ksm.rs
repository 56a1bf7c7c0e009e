//! Pages that KSM merged, in an address space of many VMAs: the layout, ksmd on order, moves
//! between nodes, and what /proc says about single pages.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;
use std::{io, ptr, thread};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::PAGE_BYTES;
use crate::system::clock;

const SYSFS: &str = "/sys/kernel/mm/ksm";
/// Every wake-up of ksmd is one full scan, and between two there is time to stop it: that way a
/// merge is always the same number of scans. smart_scan would pass over pages now and then; the
/// rest is what the kernel comes with.
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
/// How often ksmd is looked at while it scans, and for how long at most.
const LOOK: Duration = Duration::from_millis(2);
const MERGE_LIMIT: u64 = 30_000_000_000;

/// ksmd, stopped but when told to merge.
pub struct Ksm {
    /// Where its CPU time is found.
    schedstat: String,
}

/// What a merge took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Full scans.
    pub scans: u64,
    /// CPU time of ksmd in nanoseconds.
    pub cpu: u64,
}

impl Ksm {
    /// Finds ksmd and sets it up.
    ///
    /// # Errors
    /// When the kernel has no KSM, or pages are merged already, which pins some settings.
    pub fn set_up() -> Result<Self> {
        for (name, value) in SETTINGS {
            let path = format!("{SYSFS}/{name}");
            fs::write(&path, value).with_context(|| format!("write {value} to {path} (CONFIG_KSM)"))?;
        }
        for entry in fs::read_dir("/proc").context("/proc")? {
            let path = entry?.path();
            if fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm == "ksmd\n") {
                return Ok(Self { schedstat: path.join("schedstat").display().to_string() });
            }
        }
        bail!("there is no ksmd in /proc")
    }

    /// Runs ksmd for full scans until `done`, and stops it again.
    ///
    /// # Errors
    /// When it takes too long.
    pub fn merge(&self, done: impl Fn() -> Result<bool>) -> Result<Merged> {
        let (cpu, scans) = (self.cpu()?, number("full_scans")?);
        let began = clock::now();
        set("run", "1")?;
        let merged = loop {
            let seen = number("full_scans")?;
            match done() {
                Ok(false) if clock::now() - began < MERGE_LIMIT => {}
                Ok(false) => break Err(anyhow::anyhow!("not merged after {} scans", seen - scans)),
                other => break other,
            }
            while number("full_scans")? == seen && clock::now() - began < MERGE_LIMIT {
                thread::sleep(LOOK);
            }
        };
        // Waits for the scan to end.
        set("run", "0")?;
        merged.context("ksmd")?;
        // From there ksmd goes to sleep, and only then is its CPU time complete.
        thread::sleep(LOOK);
        Ok(Merged { scans: number("full_scans")? - scans, cpu: self.cpu()? - cpu })
    }

    fn cpu(&self) -> Result<u64> {
        let text = fs::read_to_string(&self.schedstat).with_context(|| self.schedstat.clone())?;
        let ns = text.split_whitespace().next().and_then(|n| n.parse().ok());
        ns.with_context(|| format!("{}: no CPU time in {text:?} (CONFIG_SCHED_INFO)", self.schedstat))
    }
}

/// Distinct merged pages, and further mappings of them.
///
/// # Errors
/// When the kernel has no KSM.
pub fn shared() -> Result<(u64, u64)> {
    Ok((number("pages_shared")?, number("pages_sharing")?))
}

fn number(name: &str) -> Result<u64> {
    let path = format!("{SYSFS}/{name}");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    text.trim_end().parse().with_context(|| format!("{path}: {text:?}"))
}

fn set(name: &str, value: &str) -> Result<()> {
    let path = format!("{SYSFS}/{name}");
    fs::write(&path, value).with_context(|| format!("write {value} to {path}"))
}

/// Private anonymous memory at an address of the kernel's choice, unmapped when dropped. One
/// page before and one behind it cannot be accessed, so that no neighbour shares its anon_vma.
pub struct Area {
    base: usize,
    pages: usize,
}

impl Area {
    /// Maps the memory, writable. Nothing is behind it yet.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn new(pages: usize) -> Result<Self> {
        let (span, none) = ((pages + 2) * PAGE_BYTES, ProtFlags::empty());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), span, none, MapFlags::PRIVATE) };
        let base = at.context("mmap")?.expose_provenance() + PAGE_BYTES;
        let area = Self { base, pages };
        area.map(0, pages)?;
        Ok(area)
    }

    /// Maps fresh memory over some of the pages, as all of them were at first.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn map(&self, first: usize, pages: usize) -> Result<()> {
        let (read_write, fixed) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        let at = self.pointer(first);
        // SAFETY: replaces pages of the area, into which no reference points.
        unsafe { rustix::mm::mmap_anonymous(at.cast(), pages * PAGE_BYTES, read_write, fixed) }
            .context("mmap over pages of the area")?;
        Ok(())
    }

    /// Lets ksmd merge some of the pages.
    ///
    /// # Errors
    /// What madvise(2) says.
    pub fn mergeable(&self, first: usize, pages: usize) -> Result<()> {
        let at = self.pointer(first);
        // SAFETY: pages of the area; merging does not change what they hold.
        unsafe { rustix::mm::madvise(at.cast(), pages * PAGE_BYTES, Advice::LinuxMergeable) }
            .context("madvise(MADV_MERGEABLE), which needs CONFIG_KSM")
    }

    /// Where a page is.
    pub fn address(&self, page: usize) -> usize {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        self.base + page * PAGE_BYTES
    }

    fn pointer(&self, page: usize) -> *mut u64 {
        ptr::with_exposed_provenance_mut(self.address(page))
    }

    /// Fills a page with what only this `content` has.
    pub fn fill(&self, page: usize, content: u64) {
        let at = self.pointer(page);
        for word in 0..PAGE_BYTES / size_of::<u64>() {
            // SAFETY: a word of a page of the area, which is writable until it is split.
            unsafe { at.add(word).write_volatile(word_of(content, word)) };
        }
    }

    /// Whether the page holds what [`fill`](Self::fill) put there.
    pub fn holds(&self, page: usize, content: u64) -> bool {
        let at = self.pointer(page);
        // SAFETY: a word of a page of the area, which is always readable.
        (0..PAGE_BYTES / size_of::<u64>())
            .all(|word| unsafe { at.add(word).read_volatile() } == word_of(content, word))
    }

    /// Reads from a page.
    pub fn read(&self, page: usize) {
        // SAFETY: the first word of a page of the area, which is always readable.
        unsafe { self.pointer(page).read_volatile() };
    }

    /// Writes to a page that was not split off as read-only.
    pub fn write(&self, page: usize) {
        // SAFETY: the first word of a page that `split` leaves writable.
        unsafe { self.pointer(page).write_volatile(1) };
    }

    /// Makes each page a VMA of its own: those of odd numbers are read-only from here on.
    ///
    /// # Errors
    /// What mprotect(2) says; ENOMEM when vm.max_map_count is too low.
    pub fn split(&self) -> Result<()> {
        for page in (1..self.pages).step_by(2) {
            // SAFETY: a page of the area, to which nobody writes any more.
            unsafe { rustix::mm::mprotect(self.pointer(page).cast(), PAGE_BYTES, MprotectFlags::READ) }
                .with_context(|| format!("mprotect of page {page}"))?;
        }
        Ok(())
    }

    /// Number of VMAs in the area.
    ///
    /// # Errors
    /// When /proc/self/maps cannot be read.
    pub fn vmas(&self) -> Result<usize> {
        const MAPS: &str = "/proc/self/maps";
        let maps = fs::read_to_string(MAPS).context(MAPS)?;
        let range = self.base..self.base + self.pages * PAGE_BYTES;
        let starts = maps.lines().map(|l| usize::from_str_radix(l.split_once('-')?.0, 16).ok());
        let starts: Option<Vec<usize>> = starts.collect();
        let starts = starts.with_context(|| format!("{MAPS}: cannot parse"))?;
        Ok(starts.iter().filter(|start| range.contains(start)).count())
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        let at = ptr::with_exposed_provenance_mut(self.base - PAGE_BYTES);
        // SAFETY: the mapping made in `new`, with its margins; nothing points into it any more.
        // A failure leaves it mapped.
        let _ = unsafe { rustix::mm::munmap(at, (self.pages + 2) * PAGE_BYTES) };
    }
}

/// Words that differ from content to content and, so that a compressor has something to do,
/// within a page.
fn word_of(content: u64, word: usize) -> u64 {
    (content << 16 | word as u64 | 1 << 63).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// How a crowd of VMAs is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// VMAs, of one page each.
    pub vmas: usize,
    /// Pages that KSM merges.
    pub pages: usize,
    /// Places at which each of them is mapped.
    pub maps: usize,
}

impl Shape {
    /// The VMA in which a page is mapped for the `map`th time. A page's places are spread over
    /// all VMAs, and no two pages share one.
    pub fn place(self, page: usize, map: usize) -> usize {
        (map * self.pages + page) * self.vmas / (self.maps * self.pages)
    }

    /// The VMAs in which a page is mapped.
    pub fn places(self, page: usize) -> impl Iterator<Item = usize> {
        (0..self.maps).map(move |map| self.place(page, map))
    }

    /// `count` VMAs that are writable and empty, spread over all.
    fn empty(self, count: usize) -> Vec<usize> {
        let mut taken = vec![false; self.vmas];
        (0..self.pages).flat_map(|page| self.places(page)).for_each(|vma| taken[vma] = true);
        let free: Vec<usize> = (0..self.vmas).step_by(2).filter(|&vma| !taken[vma]).collect();
        (0..count.min(free.len())).map(|i| free[i * free.len() / count]).collect()
    }
}

/// Many VMAs with one anon_vma, and among them pages that KSM merged.
pub struct Crowd {
    /// The layout.
    pub shape: Shape,
    area: Area,
    /// What the first page holds.
    content: u64,
}

impl Crowd {
    /// Maps the VMAs, has ksmd merge the pages and checks both. No two crowds of one boot
    /// should have the same `content`.
    ///
    /// # Errors
    /// When the kernel does not make of it what it should be.
    pub fn new(shape: Shape, ksm: &Ksm, content: u64) -> Result<Self> {
        const MAX_MAP_COUNT: &str = "/proc/sys/vm/max_map_count";
        // The program itself needs a few.
        fs::write(MAX_MAP_COUNT, (shape.vmas + 1000).to_string()).context(MAX_MAP_COUNT)?;
        let crowd = Self { shape, area: Area::new(shape.vmas)?, content };
        crowd.area.mergeable(0, shape.vmas)?;
        // The first write makes the anon_vma, which the VMAs split off share.
        for page in 0..shape.pages {
            shape.places(page).for_each(|vma| crowd.area.fill(vma, content + page as u64));
        }
        crowd.area.split()?;
        crowd.check_vmas()?;
        ksm.merge(|| Ok(crowd.unmerged()?.is_none())).or_else(|e| match crowd.unmerged()? {
            None => Err(e),
            Some((page, map)) => Err(e.context(format!("page {page} at its place {map}"))),
        })?;
        crowd.check_pages()?;
        Ok(crowd)
    }

    /// One address of each page.
    pub fn addresses(&self) -> Vec<usize> {
        (0..self.shape.pages).map(|page| self.address(page, 0)).collect()
    }

    /// Where a page is mapped for the `map`th time.
    pub fn address(&self, page: usize, map: usize) -> usize {
        self.area.address(self.shape.place(page, map))
    }

    /// Reads a page where it is mapped for the `map`th time.
    pub fn read(&self, page: usize, map: usize) {
        self.area.read(self.shape.place(page, map));
    }

    /// Replaces `count` empty VMAs by fresh ones, which have no anon_vma until they are first
    /// written to. Then they get that of their neighbours, from which they differ in nothing
    /// but the access rights.
    ///
    /// # Errors
    /// What mmap(2) says, or when it changes the number of VMAs.
    pub fn freshen(&self, count: usize) -> Result<Vec<usize>> {
        let fresh = self.shape.empty(count);
        ensure!(fresh.len() == count, "only {} VMAs of {count} are empty", fresh.len());
        for &vma in &fresh {
            self.area.map(vma, 1)?;
            // As its neighbours are: what differs in more than access rights shares no anon_vma.
            self.area.mergeable(vma, 1)?;
        }
        self.check_vmas()?;
        Ok(fresh)
    }

    /// Writes to a VMA.
    pub fn write(&self, vma: usize) {
        self.area.write(vma);
    }

    /// Whether every place holds what was put there.
    ///
    /// # Errors
    /// When one does not.
    pub fn check_contents(&self) -> Result<()> {
        for page in 0..self.shape.pages {
            let bad = self.shape.places(page).find(|&vma| !self.area.holds(vma, self.content + page as u64));
            ensure!(bad.is_none(), "page {page} was corrupted in VMA {bad:?}");
        }
        Ok(())
    }

    /// Whether every page is swapped out at all its places.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn swapped(&self) -> Result<bool> {
        let pagemap = Pagemap::open()?;
        for page in 0..self.shape.pages {
            for map in 0..self.shape.maps {
                if !pagemap.entry(self.address(page, map))?.swapped() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn check_vmas(&self) -> Result<()> {
        let vmas = self.area.vmas()?;
        ensure!(vmas == self.shape.vmas, "/proc/self/maps: {vmas} VMAs, not {}", self.shape.vmas);
        Ok(())
    }

    /// A page and one of its places that is not on the page frame of the first.
    fn unmerged(&self) -> Result<Option<(usize, usize)>> {
        let pagemap = Pagemap::open()?;
        for page in 0..self.shape.pages {
            let first = pagemap.entry(self.address(page, 0))?;
            for map in 0..self.shape.maps {
                let entry = pagemap.entry(self.address(page, map))?;
                if !entry.present() || entry.frame() != first.frame() {
                    return Ok(Some((page, map)));
                }
            }
        }
        Ok(None)
    }

    fn check_pages(&self) -> Result<()> {
        let pagemap = Pagemap::open()?;
        for page in 0..self.shape.pages {
            let frame = pagemap.entry(self.address(page, 0))?.frame();
            ensure!(is_ksm(frame)?, "page {page}, frame {frame:#x}, is not KSM's");
        }
        Ok(())
    }
}

/// /proc/self/pagemap.
struct Pagemap(File);

impl Pagemap {
    fn open() -> Result<Self> {
        Ok(Self(File::open("/proc/self/pagemap").context("/proc/self/pagemap")?))
    }

    fn entry(&self, address: usize) -> Result<Entry> {
        Ok(Entry(read_u64(&self.0, address / PAGE_BYTES).context("/proc/self/pagemap")?))
    }
}

/// What /proc/PID/pagemap says of one page.
#[derive(Clone, Copy)]
struct Entry(u64);

impl Entry {
    fn present(self) -> bool {
        self.0 >> 63 & 1 == 1
    }

    fn swapped(self) -> bool {
        self.0 >> 62 & 1 == 1
    }

    fn frame(self) -> u64 {
        self.0 & ((1 << 55) - 1)
    }
}

/// What /proc/kpageflags says of a page frame.
fn is_ksm(frame: u64) -> Result<bool> {
    const KPF_KSM: u32 = 21;
    let flags = File::open("/proc/kpageflags").context("/proc/kpageflags (CONFIG_PROC_PAGE_MONITOR)")?;
    let flags = read_u64(&flags, usize::try_from(frame)?).context("/proc/kpageflags")?;
    Ok(flags >> KPF_KSM & 1 == 1)
}

fn read_u64(file: &File, index: usize) -> io::Result<u64> {
    let mut word = [0; size_of::<u64>()];
    file.read_exact_at(&mut word, (index * size_of::<u64>()) as u64)?;
    Ok(u64::from_ne_bytes(word))
}

/// Moves pages to a node wherever they are mapped, and checks that they came there.
///
/// # Errors
/// When one page did not; that is also what a walk that misses a mapping leads to.
pub fn move_to(node: i32, addresses: &[usize]) -> Result<()> {
    let status = move_pages(addresses, node)?;
    match status.iter().position(|&at| at != node) {
        None => Ok(()),
        Some(i) => bail!("page {i} did not move to node {node}: {}", shown(status[i])),
    }
}

fn shown(status: i32) -> String {
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
    // A positive result is a number of pages that did not move; their status says why.
    ensure!(ret >= 0, "move_pages: {}", io::Error::last_os_error());
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_apart_and_spread() {
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

    #[test]
    fn pagemap_entries_are_told_apart() {
        let there = Entry(1 << 63 | 0x1234);
        assert!(there.present() && !there.swapped() && there.frame() == 0x1234);
        assert!(Entry(1 << 62).swapped() && !Entry(1 << 62).present());
    }
}
