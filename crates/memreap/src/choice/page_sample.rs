// SPDX-License-Identifier: GPL-2.0-only
//! How much of a process's memory comes back, by a sample of its pages.
//!
//! To read smaps_rollup takes as long as the process is large: some 10 ms per GiB, with its memory map locked. Here
//! pages at random places are looked up in /proc/PID/pagemap, which says of each whether others map it, too; what
//! /proc/PID/status says of the sizes is then multiplied by the exclusive part. That takes a millisecond for a
//! process of any size, and the error is known.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use fastrand::Rng;
use linux::Pid;
use linux::maps::Mapping;
use linux::pagemap::{Page, Pagemap};
use linux::process::Rollup;
use linux::scan::{Failure, File, Scan};

/// From this size on, in bytes, to look up pages is faster than to read smaps_rollup.
pub(super) const SAMPLED_FROM_BYTES: u64 = 256 << 20;
/// The standard error that the first sample of a process is to have, as a part of the process's size.
pub(super) const FIRST_ERROR: f64 = 0.02;
/// The same of a second sample, of two processes of which either may be the larger.
pub(super) const SECOND_ERROR: f64 = 0.005;
/// Pages that are looked up at a time, and in all for one sample: some 0.3 and 3 ms.
const PAGES_PER_ROUND: u32 = 256;
const MAX_PAGES: u32 = 2048;
/// So many pages of those looked up must be there to judge by: a share that none of them contradicts has an error of
/// 3 % then.
const MIN_PRESENT: u32 = 32;
/// A process's mappings are listed for no longer than this: there can be 65,530, for which it takes 50 ms.
const LISTING_TIME: Duration = Duration::from_millis(3);
/// Stretches of memory that are kept of one process: the largest.
const MAX_STRETCHES: usize = 160;
/// Room for an auxiliary vector: two numbers for each of some 25 entries.
const MAX_AUXV_BYTES: usize = 1024;
/// Where a counter is above or below an estimate by so many standard errors, that is no chance.
const SIGNIFICANT_ERRORS: f64 = 4.0;
/// From this average on, a process maps its shared memory several times: then no page of it is exclusive.
const SEVERAL_TIMES: f64 = 1.5;
/// It is the process's own where this part of what it maps is its share: half is a second process's that does so.
const MIN_OWN_PART: f64 = 0.6;
/// Shared memory of less than this part of the rest is not looked at that way.
const SHARED_DIVISOR: u64 = 8;
/// The standard error of a share of which nothing is known.
const UNKNOWN_ERROR: f64 = 0.5;

/// The sizes of a process, in bytes, as /proc/PID/status has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Anonymous memory.
    pub(super) anon: u64,
    /// Shared memory that it maps.
    pub(super) shared: u64,
    /// What is in swap.
    pub(super) swap: u64,
}

/// An estimate, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Estimate {
    /// What comes back when this process dies.
    pub(super) bytes: u64,
    /// The standard error of that.
    pub(super) error: u64,
}

/// What was found at the pages that were looked up. Those of two samples of a process can be added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    /// Pages there are, present or not, in the mappings that were listed.
    pages: u64,
    /// The part of all pages that is in other mappings: 0 to 1.
    unlisted: f64,
    /// Pages that were looked up.
    looked_up: u32,
    anon: Tally,
    shared: Tally,
    /// How often the process maps its shared memory.
    times: f64,
}

/// Pages of one kind that were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    present: u32,
    /// Those of them that no other process maps.
    exclusive: u32,
}

/// Pages one after the other, all of them in mappings of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    /// The number of the first.
    start: u64,
    pages: u64,
    /// Of a file or of shared memory.
    is_shared: bool,
}

/// Pages of a file in shared memory that are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FilePart {
    device: u64,
    inode: u64,
    /// The first page, and the one after the last.
    start: u64,
    end: u64,
}

/// Where a process may have memory that comes back.
#[derive(Default)]
struct Layout {
    /// Of shared memory; when it is full, there may be more.
    parts: ArrayVec<FilePart, MAX_STRETCHES>,
    /// By address.
    stretches: ArrayVec<Stretch, MAX_STRETCHES>,
    /// Pages of them.
    pages: u64,
    /// Pages of mappings that may hold such memory as well, and were left out.
    left_out: u64,
}

impl Sizes {
    /// All of it.
    pub(super) fn sum(&self) -> u64 {
        self.anon.saturating_add(self.shared).saturating_add(self.swap)
    }
}

impl Tally {
    fn count(&mut self, page: Page) {
        self.present += 1;
        self.exclusive += u32::from(page.is_exclusive());
    }

    /// Returns the exclusive part, and its standard error.
    fn share(self) -> (f64, f64) {
        if self.present == 0 {
            return (1.0, UNKNOWN_ERROR);
        }
        let (present, exclusive) = (f64::from(self.present), f64::from(self.exclusive));
        (exclusive / present, standard_error(exclusive, present))
    }
}

/// The standard error of the part that `hits` are of `all` draws. Not 0 where they are none or all of them (Laplace's
/// rule of succession).
fn standard_error(hits: f64, all: f64) -> f64 {
    let part = (hits + 1.0) / (all + 2.0);
    (part * (1.0 - part) / all).sqrt()
}

impl Counts {
    /// Adds what another sample of the same process has found.
    pub(super) fn add(&mut self, other: &Self) {
        for (tally, other) in [(&mut self.anon, other.anon), (&mut self.shared, other.shared)] {
            tally.present += other.present;
            tally.exclusive += other.exclusive;
        }
        self.looked_up += other.looked_up;
        (self.pages, self.unlisted, self.times) = (other.pages, other.unlisted, other.times);
    }

    /// Whether enough pages were there to judge by.
    pub(super) fn is_enough(&self) -> bool {
        self.anon.present + self.shared.present >= MIN_PRESENT
    }

    /// Estimates what comes back of a process of these sizes. `page_bytes` is the size of a page.
    ///
    /// Of what is in swap nothing says whose it is: as much of it is taken to come back as of what is in memory.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded, and never negative")]
    pub(super) fn estimate(&self, sizes: &Sizes, page_bytes: u64) -> Estimate {
        let (mut anon, mut anon_error) = self.anon.share();
        // What was read and never written is mapped to one page of zeroes, which is in no counter, and not
        // exclusive. Where more is there than the counter says, the exclusive part is one of all pages instead.
        let counted = sizes.anon as f64 / page_bytes as f64;
        let (pages, looked_up) = (self.pages as f64, f64::from(self.looked_up).max(1.0));
        let found = |hits: u32| pages * f64::from(hits) / looked_up;
        let found_error = |hits: u32| pages * standard_error(f64::from(hits), looked_up);
        let present = self.anon.present;
        if counted > 0.0 && found(present) - counted > SIGNIFICANT_ERRORS * found_error(present) {
            let exclusive = self.anon.exclusive;
            anon = (found(exclusive) / counted).min(1.0);
            anon_error = found_error(exclusive) / counted;
        }
        let (shared, shared_error) = match self.shared {
            // Not exclusive, whoever else maps it. Hardly any other process does as often.
            _ if self.times >= SEVERAL_TIMES => (1.0 / self.times, UNKNOWN_ERROR / self.times),
            // Of what was not seen nothing is taken to come back.
            Tally { present: 0, .. } => (0.0, UNKNOWN_ERROR),
            tally => tally.share(),
        };
        let own = sizes.anon.saturating_add(sizes.swap) as f64;
        let unlisted = UNKNOWN_ERROR * self.unlisted;
        let errors = [(anon_error + unlisted) * own, (shared_error + unlisted) * sizes.shared as f64];
        // Not by hypot() and round(): they are in a library that nothing else needs.
        Estimate {
            bytes: (anon * own + shared * sizes.shared as f64 + 0.5) as u64,
            error: (errors[0] * errors[0] + errors[1] * errors[1]).sqrt() as u64,
        }
    }
}

/// A process, and how closely it is to be looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampledProcess {
    /// The process, or a thread of it that still has its memory.
    pub(super) pid: Pid,
    pub(super) sizes: Sizes,
    /// The size of the address space in bytes.
    pub(super) vm_size: u64,
    /// The standard error to reach, as a part of the size.
    pub(super) error: f64,
}

impl SampledProcess {
    /// This process, for going through all that a sample needs.
    pub(super) fn rehearsal() -> Self {
        let sizes = Sizes { anon: SAMPLED_FROM_BYTES, shared: 1, swap: 0 };
        Self { pid: Pid::own(), sizes, vm_size: 0, error: 0.5 }
    }
}

/// Returns the part of the anonymous memory of `process` that others map, and `other` has at the same addresses, as
/// processes have it that come of one by fork(2): 0 to 1; `None` when too little of it was seen.
///
/// It is not compared whether that is the same memory: the kernel says so only to programs that may do anything
/// (CAP_SYS_ADMIN). But both must have the same auxiliary vector, and the addresses in it are random for each program
/// that is executed, unless the kernel was told to leave that.
///
/// # Errors
/// When the files of one of them cannot be read.
pub(super) fn common_part(
    scan: &Scan,
    process: &SampledProcess,
    other: Pid,
    random: &mut Rng,
    buffer: &mut [u8],
) -> Result<Option<f64>, Failure> {
    let page_bytes = rustix::param::page_size() as u64;
    let (mut our_auxv, mut their_auxv) = ([0; MAX_AUXV_BYTES], [0; MAX_AUXV_BYTES]);
    if scan.process(process.pid, File::Auxv, &mut our_auxv)? != scan.process(other, File::Auxv, &mut their_auxv)? {
        return Ok(Some(0.0));
    }
    let (ours, theirs) = (scan.pagemap(process.pid)?, scan.pagemap(other)?);
    let mut layout = Layout::default();
    layout.list(scan, process, page_bytes, buffer)?;
    let is_common = |page: Page| page.is_present() && !page.is_file_or_shared() && !page.is_exclusive();
    let (mut shared, mut common) = (0, 0);
    for _ in 0..MAX_PAGES / PAGES_PER_ROUND {
        layout.each_place(random, |number, _| {
            if is_common(ours.page(number)?) {
                shared += 1;
                common += u32::from(is_common(theirs.page(number)?));
            }
            Ok(())
        })?;
        if shared >= MIN_PRESENT {
            return Ok(Some(f64::from(common) / f64::from(shared)));
        }
    }
    Ok(None)
}

/// Returns what comes back of a process by its smaps_rollup, in bytes: with shared memory that it maps several times, of
/// which no page is private, if no other process maps it. `buffer` is as for [`sample`].
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(super) fn comes_back(scan: &Scan, pid: Pid, rollup: &Rollup, buffer: &mut [u8]) -> u64 {
    let bytes = rollup.comes_back();
    // All of it for this process itself, in a rehearsal.
    if rollup.pss_shmem <= bytes / SHARED_DIVISOR && pid != Pid::own() {
        return bytes;
    }
    let sizes = Sizes { shared: rollup.pss_shmem, ..Sizes::default() };
    let process = SampledProcess { pid, sizes, vm_size: 0, error: 0.0 };
    let mut layout = Layout::default();
    let is_listed = layout.list(scan, &process, rustix::param::page_size() as u64, buffer).is_ok();
    let times = layout.times_mapped();
    // As it maps it; no less.
    let mapped = rollup.rss.saturating_sub(rollup.anonymous).saturating_sub(rollup.pss_file);
    let is_own = rollup.pss_shmem as f64 * times >= mapped as f64 * MIN_OWN_PART;
    if is_listed && times >= SEVERAL_TIMES && is_own {
        return bytes.saturating_add(rollup.pss_shmem).min(rollup.share());
    }
    bytes
}

/// Looks up pages until the error is small enough, or [`MAX_PAGES`] were, or `deadline` has come. The first
/// lookups wait for the lock of the memory map. `buffer` has room for the longest line of /proc/PID/maps.
///
/// # Errors
/// When the process's mappings or pages cannot be read.
pub(super) fn sample(
    scan: &Scan,
    process: &SampledProcess,
    random: &mut Rng,
    deadline: Instant,
    buffer: &mut [u8],
) -> Result<Counts, Failure> {
    let page_bytes = rustix::param::page_size() as u64;
    let pagemap = scan.pagemap(process.pid)?;
    let mut layout = Layout::default();
    layout.list(scan, process, page_bytes, buffer)?;
    let (pages, unlisted, times) = (layout.pages, layout.unlisted(), layout.times_mapped());
    let mut counts = Counts { pages, unlisted, times, ..Counts::default() };
    while counts.looked_up < MAX_PAGES {
        layout.look_up(&pagemap, random, &mut counts)?;
        let estimate = counts.estimate(&process.sizes, page_bytes);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let is_close = estimate.error as f64 <= process.error * process.sizes.sum() as f64;
        if is_close && counts.is_enough() || Instant::now() >= deadline {
            break;
        }
    }
    Ok(counts)
}

impl Layout {
    /// Lists the mappings of a process.
    fn list(
        &mut self,
        scan: &Scan,
        process: &SampledProcess,
        page_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<(), Failure> {
        let until = Instant::now() + LISTING_TIME;
        let (mut seen, mut is_whole) = (0, true);
        scan.for_each_line(process.pid, File::Maps, buffer, |line| {
            if let Some(mapping) = Mapping::parse(line) {
                let pages = (mapping.end - mapping.start) as u64 / page_bytes;
                seen += pages;
                if let Some(is_shared) = kind(&mapping, &process.sizes) {
                    if is_shared {
                        let _ = self.parts.try_push(FilePart::new(&mapping, pages, page_bytes));
                    }
                    self.add(Stretch { start: mapping.start as u64 / page_bytes, pages, is_shared });
                }
            }
            is_whole = Instant::now() < until;
            is_whole
        })?;
        if !is_whole {
            self.left_out += (process.vm_size / page_bytes).saturating_sub(seen);
        }
        self.stretches.sort_unstable_by_key(|stretch| stretch.start);
        self.pages = self.stretches.iter().map(|stretch| stretch.pages).sum();
        Ok(())
    }

    /// Adds a stretch that comes after the last one. If there is no room, the smaller half is left out.
    fn add(&mut self, new: Stretch) {
        if let Some(last) = self.stretches.last_mut()
            && last.start + last.pages == new.start
            && last.is_shared == new.is_shared
        {
            last.pages += new.pages;
            return;
        }
        if self.stretches.is_full() {
            self.stretches.sort_unstable_by_key(|stretch| std::cmp::Reverse(stretch.pages));
            self.left_out += self.stretches.drain(MAX_STRETCHES / 2..).map(|stretch| stretch.pages).sum::<u64>();
        }
        self.stretches.push(new);
    }

    /// Returns how often a page of shared memory is mapped, on average; 1 if that is not known.
    #[expect(clippy::cast_precision_loss, reason = "an average")]
    fn times_mapped(&mut self) -> f64 {
        if self.parts.is_full() {
            return 1.0;
        }
        self.parts.sort_unstable();
        let (mut all, mut distinct) = (0, 0);
        // A file, and up to where it was seen.
        let mut last = (0, 0, 0);
        for part in &self.parts {
            let seen = if (part.device, part.inode) == (last.0, last.1) { last.2 } else { 0 };
            all += part.end - part.start;
            distinct += part.end.saturating_sub(part.start.max(seen));
            last = (part.device, part.inode, part.end.max(seen));
        }
        all as f64 / distinct.max(1) as f64
    }

    /// The part of the pages that was left out.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn unlisted(&self) -> f64 {
        self.left_out as f64 / (self.left_out + self.pages).max(1) as f64
    }

    /// Looks up [`PAGES_PER_ROUND`] pages.
    fn look_up(&self, pagemap: &Pagemap, random: &mut Rng, counts: &mut Counts) -> Result<(), Failure> {
        counts.looked_up += PAGES_PER_ROUND;
        self.each_place(random, |number, is_shared| {
            let page = pagemap.page(number)?;
            if page.is_present() && page.is_file_or_shared() == is_shared {
                if is_shared { &mut counts.shared } else { &mut counts.anon }.count(page);
            }
            Ok(())
        })
    }

    /// Calls `look` with the numbers of [`PAGES_PER_ROUND`] pages, ascending, and whether each is shared memory's: one
    /// at a random place of each of so many equal parts, so that no large mapping is missed.
    #[expect(clippy::cast_possible_truncation, reason = "a part of `pages`, which is as long")]
    fn each_place(
        &self,
        random: &mut Rng,
        mut look: impl FnMut(u64, bool) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut stretches = self.stretches.iter();
        let Some(mut stretch) = stretches.next() else { return Ok(()) };
        // Pages before the stretch.
        let mut before = 0;
        let parts = u64::from(PAGES_PER_ROUND);
        let at = |part: u64| (u128::from(self.pages) * u128::from(part) / u128::from(parts)) as u64;
        for part in 0..parts {
            let place = at(part) + random.u64(..(at(part + 1) - at(part)).max(1));
            while place >= before + stretch.pages
                && let Some(next) = stretches.next()
            {
                before += stretch.pages;
                stretch = next;
            }
            look(stretch.start + (place - before), stretch.is_shared)?;
        }
        Ok(())
    }
}

impl FilePart {
    /// Of a mapping of so many pages.
    fn new(mapping: &Mapping<'_>, pages: u64, page_bytes: u64) -> Self {
        let device = mapping.device.bytes().fold(0, |all, byte| all << 8 | u64::from(byte));
        let start = mapping.offset / page_bytes;
        Self { device, inode: mapping.inode, start, end: start.saturating_add(pages) }
    }
}

/// Whether a mapping may hold shared memory that comes back (`Some(true)`), or anonymous (`Some(false)`), or neither.
fn kind(mapping: &Mapping<'_>, sizes: &Sizes) -> Option<bool> {
    let is_shared = mapping.mode.ends_with('s');
    let is_readable_only = !mapping.mode.contains('w') && mapping.inode != 0;
    let holds = if is_shared {
        // Shared memory has no disk: its device has the major number 0. Some file systems' have that, too; `sizes`
        // says how much of it is shared memory.
        sizes.shared > 0 && mapping.inode != 0 && mapping.device.starts_with("00:")
    } else {
        !is_readable_only && !mapping.mode.starts_with("---") && !mapping.name.starts_with("[v")
            // Huge pages that are reserved have counters of their own.
            && !mapping.name.starts_with("/anon_hugepage")
    };
    holds.then_some(is_shared)
}

#[cfg(test)]
mod tests;
