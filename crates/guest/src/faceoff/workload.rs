// SPDX-License-Identifier: GPL-2.0-only
//! What the processes of the face-off do. Each is this binary with a workload as arguments, so that it has a
//! name and a command line of its own, as programs have.

use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{ptr, slice, thread};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Signal;

use super::shared_page::{MAX_CHILDREN, SharedPage};
use crate::memory::PAGE_BYTES;
use crate::memory::region::Region;
use crate::process::child::set_name;
use crate::rng::Rng;
use crate::system::clock;

/// How long a frame may take: a hundred per second.
const FRAME_NS: u64 = 10_000_000;
/// Pages of a MiB.
pub const MIB_PAGES: usize = 256;

/// Pages that each frame touches: of the app's own memory, of its file, and new ones. All of its own memory
/// is touched within 150 ms, and a frame takes some milliseconds under emulation.
const FRAME_PAGES: usize = 8 * MIB_PAGES;
const FRAME_FILE_PAGES: usize = MIB_PAGES;
const FRAME_FRESH_PAGES: usize = MIB_PAGES;
/// How often [`Workload::Keep`] touches pages.
const KEEP_INTERVAL: Duration = Duration::from_millis(100);
/// How often [`Workload::Grow`] grows, when its rate is limited: a hundred times per second.
const GROW_INTERVAL_NS: u64 = 10_000_000;
/// Random pages from which all content is copied: generating it would cost more than the page fault.
const POOL_PAGES: usize = 64;
/// What "without end" is: more memory than a guest has.
const UNLIMITED_BYTES: usize = 16 << 30;

/// What a process does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Draws frames.
    Frames {
        /// Anonymous memory, in MiB.
        mib: usize,
        /// The file that it maps.
        file: PathBuf,
    },
    /// Keeps memory.
    Keep {
        /// How much, in MiB.
        mib: usize,
        /// How much of each page is random, in thousandths.
        random_permille: usize,
        /// Pages that it touches ten times per second.
        touched_pages: usize,
    },
    /// Grows, once it is started.
    Grow {
        /// Up to how many MiB; 0 is without end.
        mib: usize,
        /// How much of each page is random, in thousandths.
        random_permille: usize,
        /// 0 is as fast as it can.
        mb_per_s: usize,
    },
    /// Forks processes that grow, once they are started.
    Fork {
        /// How many.
        count: usize,
        /// Up to how many MiB each.
        mib: usize,
    },
    /// Shares memory with a process that has no other memory.
    Share {
        /// Shared memory, in MiB.
        shared_mib: usize,
        /// Its own memory, in MiB.
        mib: usize,
    },
}

impl Workload {
    /// The arguments that [`run`] parses.
    pub fn args(&self) -> Vec<String> {
        match self {
            Self::Frames { mib, file } => {
                vec!["frames".to_owned(), mib.to_string(), file.display().to_string()]
            }
            Self::Keep { mib, random_permille, touched_pages } => {
                words("keep", &[*mib, *random_permille, *touched_pages])
            }
            Self::Grow { mib, random_permille, mb_per_s } => {
                words("grow", &[*mib, *random_permille, *mb_per_s])
            }
            Self::Fork { count, mib } => words("fork", &[*count, *mib]),
            Self::Share { shared_mib, mib } => words("share", &[*shared_mib, *mib]),
        }
    }

    fn parse(args: &[String]) -> Result<Self> {
        let Some((kind, rest)) = args.split_first() else { bail!("no workload") };
        if let ("frames", [mib, file]) = (kind.as_str(), rest) {
            return Ok(Self::Frames { mib: mib.parse()?, file: file.into() });
        }
        let numbers = rest.iter().map(|word| word.parse()).collect::<Result<Vec<usize>, _>>()?;
        Ok(match (kind.as_str(), numbers[..].as_ref()) {
            ("keep", &[mib, random_permille, touched_pages]) => {
                Self::Keep { mib, random_permille, touched_pages }
            }
            ("grow", &[mib, random_permille, mb_per_s]) => Self::Grow { mib, random_permille, mb_per_s },
            ("fork", &[count, mib]) if count <= MAX_CHILDREN => Self::Fork { count, mib },
            ("share", &[shared_mib, mib]) => Self::Share { shared_mib, mib },
            _ => bail!("there is no workload '{}'", args.join(" ")),
        })
    }
}

fn words(kind: &str, numbers: &[usize]) -> Vec<String> {
    std::iter::once(kind.to_owned()).chain(numbers.iter().map(usize::to_string)).collect()
}

/// Runs the workload that the arguments describe: the process's name, the seed, and the workload.
///
/// # Errors
/// When there is no such workload, or no memory for it.
pub fn run(args: &[String]) -> Result<()> {
    let [name, seed, workload @ ..] = args else { bail!("the arguments are NAME SEED KIND NUMBERS...") };
    set_name(name)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("prctl")?;
    // As standard input it is inherited across the exec.
    let shared = SharedPage::open(&File::from(std::io::stdin().as_fd().try_clone_to_owned()?))?;
    let seed: u64 = seed.parse().context("seed")?;
    match Workload::parse(workload)? {
        Workload::Frames { mib, file } => draw(&shared, seed, mib, &file),
        Workload::Keep { mib, random_permille, touched_pages } => {
            keep(&shared, seed, mib, random_permille, touched_pages)
        }
        Workload::Grow { mib, random_permille, mb_per_s } => {
            let contents = Contents::new(seed, random_permille);
            shared.set_ready();
            shared.wait_for_start();
            grow(&contents, mib, mb_per_s)?;
            shared.set_allocated(clock::now());
            sleep_forever()
        }
        Workload::Fork { count, mib } => fork_children(&shared, seed, count, mib),
        Workload::Share { shared_mib, mib } => share(&shared, seed, shared_mib, mib),
    }
}

fn sleep_forever() -> ! {
    loop {
        thread::park();
    }
}

/// Page contents that compress equally well and are all different.
struct Contents {
    pool: Vec<u8>,
    /// Bytes of a page that are random; the others are zero.
    random_bytes: usize,
}

impl Contents {
    fn new(seed: u64, random_permille: usize) -> Self {
        let mut rng = Rng(seed);
        let pool = (0..POOL_PAGES * PAGE_BYTES / 8).flat_map(|_| rng.bits().to_ne_bytes()).collect();
        Self { pool, random_bytes: PAGE_BYTES * random_permille.min(1000) / 1000 }
    }

    /// Writes content number `n` to a page that is all zeroes.
    fn fill(&self, page: &mut [u8], n: usize) {
        let from = n % POOL_PAGES * PAGE_BYTES;
        page[..self.random_bytes].copy_from_slice(&self.pool[from..from + self.random_bytes]);
        // No two pages are equal, so nothing can be merged.
        page[..8].copy_from_slice(&(n as u64 + 1).to_ne_bytes());
    }
}

/// Maps anonymous memory that stays until the process ends. No page is allocated yet.
fn memory(pages: usize) -> Result<&'static mut [u8]> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            pages * PAGE_BYTES,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }
    .context("mmap")?;
    // SAFETY: the mapping is that long, all zeroes, referenced from nowhere else, and never unmapped.
    Ok(unsafe { slice::from_raw_parts_mut(at.cast(), pages * PAGE_BYTES) })
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

/// Allocates and fills memory.
fn filled(seed: u64, mib: usize, random_permille: usize) -> Result<&'static mut [u8]> {
    let contents = Contents::new(seed, random_permille);
    let memory = memory(mib * MIB_PAGES)?;
    memory.chunks_exact_mut(PAGE_BYTES).enumerate().for_each(|(n, page)| contents.fill(page, n));
    Ok(memory)
}

/// Draws frames. Each frame touches a part of the memory and of the file, and allocates and frees a MiB.
fn draw(shared: &SharedPage, seed: u64, mib: usize, file: &Path) -> Result<()> {
    // Half of it random: an app's memory compresses about 2:1.
    let own = filled(seed, mib, 500)?;
    let text = map_file(file)?;
    let fresh = Region::new(FRAME_FRESH_PAGES)?;
    let (mut at, mut text_at, text_pages) = (0, 0, text.len() / PAGE_BYTES);
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("timer slack")?;
    shared.set_ready();
    let mut due = clock::now() + FRAME_NS;
    loop {
        shared.begin_frame(due);
        at = touch(own, at, FRAME_PAGES.min(own.len() / PAGE_BYTES));
        for n in text_at..text_at + FRAME_FILE_PAGES {
            std::hint::black_box(text[n % text_pages * PAGE_BYTES]);
        }
        text_at = (text_at + FRAME_FILE_PAGES) % text_pages;
        fresh.touch(0..FRAME_FRESH_PAGES);
        fresh.free(0..FRAME_FRESH_PAGES)?;
        let ended = clock::now();
        shared.end_frame(ended);
        if ended < due {
            clock::sleep_until(due)?;
        }
        // A frame that was late does not make the next one late.
        due = due.max(ended) + FRAME_NS;
    }
}

/// Maps a file for reading, until the process ends.
fn map_file(path: &Path) -> Result<&'static [u8]> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let size = usize::try_from(file.metadata()?.len())?;
    ensure!(size >= PAGE_BYTES, "{}: too small", path.display());
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { rustix::mm::mmap(ptr::null_mut(), size, ProtFlags::READ, MapFlags::SHARED, &file, 0) }
        .with_context(|| format!("map {}", path.display()))?;
    // SAFETY: the mapping is that long and never unmapped; the file is neither written to nor truncated.
    Ok(unsafe { slice::from_raw_parts(at.cast(), size) })
}

fn keep(
    shared: &SharedPage,
    seed: u64,
    mib: usize,
    random_permille: usize,
    touched_pages: usize,
) -> Result<()> {
    let own = filled(seed, mib, random_permille)?;
    shared.set_ready();
    if touched_pages == 0 || own.is_empty() {
        sleep_forever()
    }
    let mut at = 0;
    loop {
        thread::sleep(KEEP_INTERVAL);
        at = touch(own, at, touched_pages);
    }
}

/// Allocates memory page by page; see [`Workload::Grow`].
fn grow(contents: &Contents, mib: usize, mb_per_s: usize) -> Result<()> {
    let pages = if mib == 0 { UNLIMITED_BYTES / PAGE_BYTES } else { mib * MIB_PAGES };
    let per_interval = mb_per_s * 1_000_000 / 100 / PAGE_BYTES;
    let mut next = clock::now();
    for (n, page) in memory(pages)?.chunks_exact_mut(PAGE_BYTES).enumerate() {
        contents.fill(page, n);
        if per_interval > 0 && n % per_interval == per_interval - 1 {
            next += GROW_INTERVAL_NS;
            clock::sleep_until(next)?;
        }
    }
    Ok(())
}

/// Forks processes, which begin to grow together, and waits until all have ended.
fn fork_children(shared: &SharedPage, seed: u64, count: usize, mib: usize) -> Result<()> {
    let contents = Contents::new(seed, 1000);
    for i in 0..count {
        // SAFETY: the process is single-threaded, so the child may use everything the parent may;
        // it never leaves the match's arm.
        match unsafe { libc::fork() } {
            -1 => return Err(std::io::Error::last_os_error()).context("fork"),
            0 => {
                shared.wait_for_start();
                if grow(&contents, mib, 0).is_ok() {
                    shared.set_grown(i);
                }
                sleep_forever()
            }
            pid => shared.set_child(i, pid),
        }
    }
    shared.set_ready();
    while rustix::process::wait(rustix::process::WaitOptions::empty()).is_ok() {}
    Ok(())
}

/// Fills memory that a second process maps as well, and from then on touches only some of its own.
fn share(shared: &SharedPage, seed: u64, shared_mib: usize, mib: usize) -> Result<()> {
    const TOUCH_INTERVAL: Duration = Duration::from_secs(5);
    const TOUCH_PAGES: usize = 16;
    let fd = rustix::fs::memfd_create("pictures", MemfdFlags::CLOEXEC).context("memfd_create")?;
    let size = shared_mib * MIB_PAGES * PAGE_BYTES;
    rustix::fs::ftruncate(&fd, size as u64).context("size of the memfd")?;
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { rustix::mm::mmap(ptr::null_mut(), size, flags, MapFlags::SHARED, &fd, 0) }
        .context("map the memfd")?;
    // SAFETY: the mapping is that long and never unmapped; the second process only reads it.
    let pictures = unsafe { slice::from_raw_parts_mut(at.cast::<u8>(), size) };
    let contents = Contents::new(seed, 1000);
    pictures.chunks_exact_mut(PAGE_BYTES).enumerate().for_each(|(n, page)| contents.fill(page, n));
    // SAFETY: as in `fork_children`.
    match unsafe { libc::fork() } {
        -1 => return Err(std::io::Error::last_os_error()).context("fork"),
        0 => {
            set_name("sibling")?;
            // Only pages that are in the page tables of both count as shared.
            let sum: u64 = pictures.iter().step_by(PAGE_BYTES).map(|&byte| u64::from(byte)).sum();
            std::hint::black_box(sum);
            shared.set_grown(0);
            sleep_forever()
        }
        pid => shared.set_child(0, pid),
    }
    while !shared.is_grown(0) {
        thread::sleep(Duration::from_millis(1));
    }
    let own = filled(seed + 1, mib, 1000)?;
    shared.set_ready();
    let mut at = 0;
    loop {
        thread::sleep(TOUCH_INTERVAL);
        at = touch(own, at, TOUCH_PAGES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed_back() {
        for workload in [
            Workload::Frames { mib: 120, file: "/tmp/a file".into() },
            Workload::Keep { mib: 1, random_permille: 2, touched_pages: 3 },
            Workload::Grow { mib: 1, random_permille: 2, mb_per_s: 3 },
            Workload::Fork { count: 200, mib: 24 },
            Workload::Share { shared_mib: 600, mib: 100 },
        ] {
            assert_eq!(Workload::parse(&workload.args()).unwrap(), workload);
        }
        for bad in ["", "dance", "keep 1 2", "keep 1 2 x", "fork 257 1"] {
            let args: Vec<String> = bad.split(' ').map(str::to_owned).collect();
            assert!(Workload::parse(&args).is_err(), "{bad}");
        }
    }

    #[test]
    fn pages_are_as_random_as_asked_and_all_differ() {
        let contents = Contents::new(7, 333);
        let pages: Vec<Vec<u8>> = (0..POOL_PAGES + 1)
            .map(|n| {
                let mut page = vec![0; PAGE_BYTES];
                contents.fill(&mut page, n);
                page
            })
            .collect();
        assert_ne!(pages[0], pages[POOL_PAGES]);
        for page in &pages {
            let zeroes = page.iter().filter(|&&byte| byte == 0).count();
            assert!((2700..2780).contains(&zeroes), "{zeroes}");
        }
        let again = Contents::new(7, 333);
        assert_eq!(contents.pool, again.pool);
        assert_ne!(contents.pool, Contents::new(8, 333).pool);
    }

    #[test]
    fn touching_wraps_around_at_the_end() {
        let own = memory(4).unwrap();
        assert_eq!(touch(own, 3, 2), 1);
        let touched: Vec<u8> = own.chunks(PAGE_BYTES).map(|page| page[PAGE_BYTES / 2]).collect();
        assert_eq!(touched, [1, 0, 0, 1]);
    }

    #[test]
    fn growing_at_a_rate_takes_its_time() {
        let contents = Contents::new(1, 1000);
        let begun = clock::now();
        grow(&contents, 4, 100).unwrap();
        // 4 MiB at 100 MB/s are 42 ms.
        assert!(clock::now() - begun > 35_000_000);
    }
}
