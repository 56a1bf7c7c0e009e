// SPDX-License-Identifier: GPL-2.0-only
//! What the processes of the face-off do. Each is this binary with its steps as arguments, so that it has a
//! name and a command line of its own, as programs have.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU64;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, slice, thread};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{Advice, MemfdFlags, fadvise};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use protocol::load::{Meminfo, Size, Step};

use super::shared_page::SharedPage;
use super::{APP_FILE, DATA_FOLDER, TMPFS_FOLDER, login};
use crate::memory::PAGE_BYTES;
use crate::memory::mapping::{Mapping, READ_WRITE};
use crate::memory::region::Region;
use crate::process::child::{set_name, sleep_for_ever};
use crate::rng::Rng;
use crate::system::{clock, counters};

/// How long a frame may take: a hundred per second.
const FRAME_NS: u64 = 10_000_000;
/// Pages of a MiB.
pub const MIB_PAGES: usize = 256;
const PAGE_KIB: usize = PAGE_BYTES / 1024;

/// Pages that each frame touches: of the app's own memory, of its file, and new ones. All of its own memory
/// is touched within 150 ms, and a frame takes some milliseconds under emulation.
const FRAME_PAGES: usize = 8 * MIB_PAGES;
const FRAME_FILE_PAGES: usize = MIB_PAGES;
const FRAME_FRESH_PAGES: usize = MIB_PAGES;
/// How often [`Step::Keep`] touches pages: ten times per second.
const KEEP_INTERVAL_NS: u64 = 100_000_000;
/// How often memory is taken, when the rate is limited: a hundred times per second.
const TAKE_INTERVAL_NS: u64 = 10_000_000;
/// Random pages from which all content is copied: generating it would cost more than the page fault.
const POOL_PAGES: usize = 64;
/// What "without end" is: more memory than a guest has.
const UNLIMITED_PAGES: usize = (64 << 30) / PAGE_BYTES;
/// How much is read from a file or written to one at once.
const CHUNK_PAGES: usize = 64;

/// What a process does: before the load begins, and from then on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// As in [`protocol::load::Process`].
    pub prepare: Vec<Step>,
    /// As in [`protocol::load::Process`].
    pub run: Vec<Step>,
}

/// Runs the workload that the arguments describe: the process's name, the seed, and the workload as JSON.
///
/// # Errors
/// When there is no such workload, or no memory for it.
pub fn run(args: &[String]) -> Result<()> {
    let [name, seed, workload] = args else { anyhow::bail!("the arguments are NAME SEED WORKLOAD") };
    set_name(name)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("prctl")?;
    // As standard input it is inherited across the exec.
    let shared = SharedPage::open(&File::from(std::io::stdin().as_fd().try_clone_to_owned()?))?;
    let workload: Workload = serde_json::from_str(workload).context("workload")?;
    let mut worker = Worker::new(&shared, name, seed.parse().context("seed")?);
    worker.make_files(&workload.prepare)?;
    worker.make_files(&workload.run)?;
    for step in &workload.prepare {
        worker.perform(step)?;
    }
    shared.ready().set();
    if !workload.run.is_empty() {
        shared.wait_for_start();
        worker.perform_all(&workload.run)?;
        shared.done().set();
    } else if worker.children > 0 {
        while rustix::process::wait(WaitOptions::empty()).is_ok() {}
        return Ok(());
    }
    sleep_for_ever()
}

/// Page contents that compress equally well and are all different.
struct Contents {
    pool: Vec<u8>,
}

impl Contents {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let pool = (0..POOL_PAGES * PAGE_BYTES / 8).flat_map(|_| rng.bits().to_ne_bytes()).collect();
        Self { pool }
    }

    /// Writes content number `n` to a page that is all zeroes. So many percent of it are random.
    fn fill(&self, page: &mut [u8], n: usize, random: usize) {
        let from = n % POOL_PAGES * PAGE_BYTES;
        let bytes = PAGE_BYTES * random.min(100) / 100;
        page[..bytes].copy_from_slice(&self.pool[from..from + bytes]);
        // No two pages are equal, so nothing can be merged.
        page[..8].copy_from_slice(&(n as u64 + 1).to_ne_bytes());
    }
}

/// Sleeps so that pages are used at a limited rate.
struct Pace {
    pages_per_interval: usize,
    next: u64,
}

impl Pace {
    fn new(mb_per_s: Option<usize>) -> Self {
        let pages = mb_per_s.map_or(0, |rate| (rate * 1_000_000 / 100 / PAGE_BYTES).max(1));
        Self { pages_per_interval: pages, next: clock::now() }
    }

    /// Waits after page number `n` if that is due.
    fn after(&mut self, n: usize) -> Result<()> {
        let every = self.pages_per_interval;
        if every > 0 && n % every == every - 1 {
            // What a stall took is not made up for: that would be no limit.
            self.next = (self.next + TAKE_INTERVAL_NS).max(clock::now());
            clock::sleep_until(self.next)?;
        }
        Ok(())
    }
}

/// Maps anonymous memory. No page is allocated yet.
fn map_anonymous(pages: usize) -> Result<&'static mut [u8]> {
    let mapping = Mapping::anonymous(pages.max(1) * PAGE_BYTES, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: the mapping is that long, all zeroes and referenced from nowhere else; whoever unmaps it gives
    // this reference up.
    Ok(unsafe { slice::from_raw_parts_mut(mapping.context("mmap")?.leak(), pages * PAGE_BYTES) })
}

/// Writes to one byte of each of `pages` pages from number `at` on, wrapping around at the end. Returns the
/// number of the page after them.
fn touch(memory: &mut [u8], at: usize, pages: usize) -> usize {
    let all = memory.len() / PAGE_BYTES;
    for n in at..at + pages {
        let byte = &mut memory[n % all * PAGE_BYTES + PAGE_BYTES / 2];
        *byte = std::hint::black_box(byte.wrapping_add(1));
    }
    (at + pages) % all.max(1)
}

/// Maps a file for reading, until the process ends.
fn map_file(path: &Path) -> Result<&'static [u8]> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let size = usize::try_from(file.metadata()?.len())?;
    ensure!(size >= PAGE_BYTES, "{}: too small", path.display());
    let mapping = Mapping::of_file(&file, 0, size, ProtFlags::READ, MapFlags::SHARED);
    let at = mapping.with_context(|| format!("map {}", path.display()))?.leak();
    // SAFETY: the mapping is that long and never unmapped; the file is neither written to nor truncated.
    Ok(unsafe { slice::from_raw_parts(at, size) })
}

/// Returns the number of pages of a size at this moment.
fn pages(size: Size) -> Result<usize> {
    let now = Meminfo {
        total: counters::meminfo("MemTotal:")?,
        available: counters::meminfo("MemAvailable:")?,
        swap_total: counters::meminfo("SwapTotal:")?,
        swap_free: counters::meminfo("SwapFree:")?,
    };
    Ok(match size.kib(now) {
        Some(kib) => usize::try_from(kib)? / PAGE_KIB,
        None => UNLIMITED_PAGES,
    })
}

/// A process that does steps.
struct Worker<'a> {
    shared: &'a SharedPage,
    /// The file that is its own.
    file: PathBuf,
    /// The file in memory that is its own.
    tmpfs_file: PathBuf,
    contents: Contents,
    rng: Rng,
    /// What it has taken and not given back.
    memory: Vec<&'static mut [u8]>,
    /// The number of the next page's content.
    next_content: usize,
    /// The page to touch next in what it took last.
    at: usize,
    /// How many children it has started.
    children: usize,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a SharedPage, name: &str, seed: u64) -> Self {
        Self {
            shared,
            file: Path::new(DATA_FOLDER).join(name),
            tmpfs_file: Path::new(TMPFS_FOLDER).join(name),
            contents: Contents::new(seed),
            rng: Rng(seed),
            memory: Vec::new(),
            next_content: 0,
            at: 0,
            children: 0,
        }
    }

    fn perform_all(&mut self, steps: &[Step]) -> Result<()> {
        steps.iter().try_for_each(|step| self.perform(step))
    }

    fn perform(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Take { size, random, mb_per_s } => self.take(pages(*size)?, *random, *mb_per_s),
            Step::Keep { seconds, touch_mib_per_s } => self.keep(*seconds, *touch_mib_per_s),
            Step::GiveBack {} => self.give_back(),
            Step::Draw {} => self.draw(),
            Step::Login {} => login::serve(|| self.shared.ready().set()),
            Step::Share { size } => self.share(pages(*size)?),
            Step::Read { seconds, .. } => self.read(*seconds),
            Step::Map { seconds, .. } => self.touch_file(*seconds),
            Step::Tmpfs { size, mb_per_s } => self.write_tmpfs(pages(*size)?, *mb_per_s),
            Step::Write { file, text } => fs::write(file, text).with_context(|| format!("{file}: {text}")),
            Step::Fork { count, run } => self.fork(*count, run),
            Step::Repeat { times, run } => (0..*times).try_for_each(|_| self.perform_all(run)),
        }
    }

    /// Makes the file that these steps read.
    fn make_files(&self, steps: &[Step]) -> Result<()> {
        for step in steps {
            match step {
                Step::Read { size, .. } | Step::Map { size, .. } => {
                    let pages = pages(*size)?;
                    let context = || self.file.display().to_string();
                    let mut file = File::create(&self.file).with_context(context)?;
                    self.write(&mut file, pages, None).with_context(context)?;
                    // Dirty pages could not be dropped.
                    file.sync_all().with_context(context)?;
                    fadvise(&file, 0, None, Advice::DontNeed).with_context(context)?;
                }
                Step::Fork { run, .. } | Step::Repeat { run, .. } => self.make_files(run)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn write(&self, file: &mut File, pages: usize, mb_per_s: Option<usize>) -> Result<()> {
        let mut pace = Pace::new(mb_per_s);
        let mut page = vec![0; PAGE_BYTES];
        for n in 0..pages {
            self.contents.fill(&mut page, n, 100);
            file.write_all(&page)?;
            pace.after(n)?;
        }
        Ok(())
    }

    fn take(&mut self, pages: usize, random: usize, mb_per_s: Option<usize>) -> Result<()> {
        let memory = map_anonymous(pages)?;
        let mut pace = Pace::new(mb_per_s);
        for (n, page) in memory.chunks_exact_mut(PAGE_BYTES).enumerate() {
            self.contents.fill(page, self.next_content + n, random);
            pace.after(n)?;
        }
        self.next_content += pages;
        self.memory.push(memory);
        self.at = 0;
        Ok(())
    }

    fn give_back(&mut self) -> Result<()> {
        for memory in self.memory.drain(..) {
            let (at, len) = (memory.as_mut_ptr(), memory.len());
            if len > 0 {
                // SAFETY: a mapping of map_anonymous(), whose only reference ends here.
                unsafe { rustix::mm::munmap(at.cast(), len) }.context("munmap")?;
            }
        }
        Ok(())
    }

    fn keep(&mut self, seconds: Option<f64>, touch_mib_per_s: f64) -> Result<()> {
        let pages = (touch_mib_per_s * MIB_PAGES as f64 / 10.0).ceil() as usize;
        let begun = clock::now();
        let end = seconds.map_or(u64::MAX, |seconds| begun + (seconds * 1e9) as u64);
        let touched = if pages > 0 { self.memory.last_mut() } else { None };
        if seconds.is_none() {
            self.shared.ready().set();
        }
        let Some(memory) = touched.filter(|memory| !memory.is_empty()) else {
            if seconds.is_none() {
                sleep_for_ever()
            }
            return clock::sleep_until(end);
        };
        let mut next = begun;
        while next < end {
            next = (next + KEEP_INTERVAL_NS).max(clock::now()).min(end);
            clock::sleep_until(next)?;
            self.at = touch(memory, self.at, pages);
        }
        Ok(())
    }

    /// Draws frames. Each frame touches a part of the memory and of the file, and allocates and frees a MiB.
    fn draw(&mut self) -> Result<()> {
        let text = map_file(Path::new(APP_FILE))?;
        let own = self.memory.last_mut().context("it took no memory that it could draw with")?;
        let fresh = Region::new(FRAME_FRESH_PAGES)?;
        let (mut at, mut text_at, text_pages) = (0, 0, text.len() / PAGE_BYTES);
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("timer slack")?;
        self.shared.ready().set();
        let mut due = clock::now() + FRAME_NS;
        self.shared.begin_frame(due);
        loop {
            at = touch(own, at, FRAME_PAGES.min(own.len() / PAGE_BYTES));
            for n in text_at..text_at + FRAME_FILE_PAGES {
                std::hint::black_box(text[n % text_pages * PAGE_BYTES]);
            }
            text_at = (text_at + FRAME_FILE_PAGES) % text_pages;
            fresh.touch(0..FRAME_FRESH_PAGES);
            fresh.free(0..FRAME_FRESH_PAGES)?;
            let ended = clock::now();
            self.shared.end_frame(ended);
            // A frame that was late does not make the next one late.
            due = due.max(ended) + FRAME_NS;
            // An app that is killed while it waits owes this frame.
            self.shared.begin_frame(due);
            clock::sleep_until(due - FRAME_NS)?;
        }
    }

    /// Fills memory that a second process maps as well.
    fn share(&mut self, pages: usize) -> Result<()> {
        let fd = rustix::fs::memfd_create("pictures", MemfdFlags::CLOEXEC).context("memfd_create")?;
        let size = pages * PAGE_BYTES;
        rustix::fs::ftruncate(&fd, size as u64).context("size of the memfd")?;
        let mapping = Mapping::of_file(&fd, 0, size, READ_WRITE, MapFlags::SHARED).context("map the memfd")?;
        // SAFETY: the mapping is that long and never unmapped; the second process only reads it.
        let pictures = unsafe { slice::from_raw_parts_mut(mapping.leak(), size) };
        let chunks = pictures.chunks_exact_mut(PAGE_BYTES).enumerate();
        chunks.for_each(|(n, page)| self.contents.fill(page, n, 100));
        self.next_content += pages;
        let child = self.children;
        self.start_child(|_| {
            set_name("sibling")?;
            // Only pages that are in the page tables of both count as shared.
            let sum: u64 = pictures.iter().step_by(PAGE_BYTES).map(|&byte| u64::from(byte)).sum();
            std::hint::black_box(sum);
            Ok(())
        })?;
        while !self.shared.grown(child).is_set() {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Starts children, which wait for the start of the load.
    fn fork(&mut self, count: usize, run: &[Step]) -> Result<()> {
        for _ in 0..count {
            self.start_child(|worker| {
                worker.shared.wait_for_start();
                // Different pages in each.
                worker.next_content += worker.children * UNLIMITED_PAGES;
                worker.perform_all(run)
            })?;
        }
        Ok(())
    }

    /// Starts a child that does `work` and then sleeps.
    fn start_child(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let child = self.children;
        // SAFETY: the process is single-threaded, so the child may use everything the parent may;
        // it never leaves the match's arm.
        match unsafe { libc::fork() } {
            -1 => return Err(std::io::Error::last_os_error()).context("fork"),
            0 => {
                if let Err(e) = work(self) {
                    eprintln!("guest: child {child}: {e:#}");
                }
                self.shared.grown(child).set();
                sleep_for_ever()
            }
            pid => self.shared.set_child(child, pid),
        }
        self.children += 1;
        Ok(())
    }

    fn read(&self, seconds: f64) -> Result<()> {
        let context = || self.file.display().to_string();
        let end = clock::now() + (seconds * 1e9) as u64;
        let mut chunk = vec![0; CHUNK_PAGES * PAGE_BYTES];
        while clock::now() < end {
            let mut file = File::open(&self.file).with_context(context)?;
            while clock::now() < end && file.read(&mut chunk).with_context(context)? > 0 {}
        }
        Ok(())
    }

    fn touch_file(&mut self, seconds: f64) -> Result<()> {
        let end = clock::now() + (seconds * 1e9) as u64;
        let data = map_file(&self.file)?;
        // SAFETY: the advice changes nothing but what is read ahead in this mapping.
        unsafe { rustix::mm::madvise(data.as_ptr().cast_mut().cast(), data.len(), rustix::mm::Advice::Random) }
            .context("madvise")?;
        while clock::now() < end {
            std::hint::black_box(data[self.rng.below(data.len() / PAGE_BYTES) * PAGE_BYTES]);
        }
        Ok(())
    }

    fn write_tmpfs(&self, pages: usize, mb_per_s: Option<usize>) -> Result<()> {
        let context = || self.tmpfs_file.display().to_string();
        let mut file = File::create(&self.tmpfs_file).with_context(context)?;
        self.write(&mut file, pages, mb_per_s).with_context(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_as_random_as_asked_and_all_differ() {
        let contents = Contents::new(7);
        let pages: Vec<Vec<u8>> = (0..POOL_PAGES + 1)
            .map(|n| {
                let mut page = vec![0; PAGE_BYTES];
                contents.fill(&mut page, n, 33);
                page
            })
            .collect();
        assert_ne!(pages[0], pages[POOL_PAGES]);
        for page in &pages {
            let zeroes = page.iter().filter(|&&byte| byte == 0).count();
            assert!((2700..2780).contains(&zeroes), "{zeroes}");
        }
        let again = Contents::new(7);
        assert_eq!(contents.pool, again.pool);
        assert_ne!(contents.pool, Contents::new(8).pool);
    }

    #[test]
    fn touching_wraps_around_at_the_end() {
        let own = map_anonymous(4).unwrap();
        assert_eq!(touch(own, 3, 2), 1);
        let touched: Vec<u8> = own.chunks(PAGE_BYTES).map(|page| page[PAGE_BYTES / 2]).collect();
        assert_eq!(touched, [1, 0, 0, 1]);
    }

    #[test]
    fn a_stall_is_not_made_up_for() {
        // Two pages per interval.
        let mut pace = Pace::new(Some(1));
        pace.next = 0;
        let begun = clock::now();
        (0..6).for_each(|n| pace.after(n).unwrap());
        assert!(clock::now() - begun >= 2 * TAKE_INTERVAL_NS);
    }

    #[test]
    fn steps_take_and_keep_as_long_as_they_say_and_give_all_back() {
        let (shared, _fd) = SharedPage::create(0).unwrap();
        let mut worker = Worker::new(&shared, "x", 1);
        let begun = clock::now();
        let take = Step::Take { size: Size::Mib(4.0), random: 100, mb_per_s: Some(100) };
        let keep = Step::Keep { seconds: Some(0.02), touch_mib_per_s: 1.0 };
        worker.perform(&Step::Repeat { times: 2, run: vec![take, keep] }).unwrap();
        // Twice 4 MiB at 100 MB/s are 84 ms.
        assert!(clock::now() - begun > 110_000_000);
        assert_eq!(worker.memory.iter().map(|memory| memory.len()).sum::<usize>(), 8 << 20);
        assert_ne!(worker.memory[0][..8], worker.memory[1][..8], "all pages differ");
        worker.perform(&Step::GiveBack {}).unwrap();
        assert!(worker.memory.is_empty());
    }
}
