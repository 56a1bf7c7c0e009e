//! What the processes of the face-off do. Each is this binary with a role for arguments, so that
//! it has a name and a command line of its own, as programs have.

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

use super::shared_page::{HANDS, Sheet};
use crate::measure::free_memory;
use crate::memory::region::{PAGE, Region};
use crate::process::child::set_name;
use crate::rng::Dice;

/// How long a frame may take.
pub const FRAME: u64 = 10_000_000;
/// Pages of a MiB.
pub const MIB: usize = 256;

/// Pages of a frames role that each frame touches: of its own, of its file, and new ones. All of its
/// own are touched within 150 ms, and a frame takes some milliseconds under emulation.
const FRAME_PAGES: usize = 8 * MIB;
const FRAME_FILE_PAGES: usize = MIB;
const FRAME_FRESH_PAGES: usize = MIB;
/// How often those who touch their memory slowly do.
const SLOW_TICK: Duration = Duration::from_millis(100);
/// How often somebody who grows at a given rate does.
const GROW_TICK: u64 = 10_000_000;
/// Random pages that all content is copied from: making it anew costs more than the page fault.
const POOL_PAGES: usize = 64;
/// More than a guest has.
const NO_END: usize = 16 << 30;

/// A role's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Draws frames; has a file of its own.
    Frames {
        /// Anonymous memory, in MiB.
        mib: usize,
        /// What it maps.
        file: PathBuf,
    },
    /// Has memory.
    Keep {
        /// How much, in MiB.
        mib: usize,
        /// How much of each page is random, in thousandths.
        random: usize,
        /// Pages that it touches ten times a second.
        touched: usize,
    },
    /// Grows, once it is told to.
    Grow {
        /// How far, in MiB; 0 is without end.
        mib: usize,
        /// How much of each page is random, in thousandths.
        random: usize,
        /// MB per second; 0 is as fast as it can.
        rate: usize,
    },
    /// Has others grow, once it is told to.
    Fork {
        /// How many.
        count: usize,
        /// How far each, in MiB.
        mib: usize,
    },
    /// Shares memory with a process that has nothing else.
    Share {
        /// What is shared, in MiB.
        shared: usize,
        /// Its own, in MiB.
        mib: usize,
    },
}

impl Role {
    /// As arguments.
    pub fn args(&self) -> Vec<String> {
        match self {
            Self::Frames { mib, file } => {
                vec!["frames".to_owned(), mib.to_string(), file.display().to_string()]
            }
            Self::Keep { mib, random, touched } => words("keep", &[*mib, *random, *touched]),
            Self::Grow { mib, random, rate } => words("grow", &[*mib, *random, *rate]),
            Self::Fork { count, mib } => words("fork", &[*count, *mib]),
            Self::Share { shared, mib } => words("share", &[*shared, *mib]),
        }
    }

    fn parse(args: &[String]) -> Result<Self> {
        let Some((kind, rest)) = args.split_first() else { bail!("no role") };
        if let ("frames", [mib, file]) = (kind.as_str(), rest) {
            return Ok(Self::Frames { mib: mib.parse()?, file: file.into() });
        }
        let numbers = rest.iter().map(|word| word.parse()).collect::<Result<Vec<usize>, _>>()?;
        Ok(match (kind.as_str(), numbers[..].as_ref()) {
            ("keep", &[mib, random, touched]) => Self::Keep { mib, random, touched },
            ("grow", &[mib, random, rate]) => Self::Grow { mib, random, rate },
            ("fork", &[count, mib]) if count <= HANDS => Self::Fork { count, mib },
            ("share", &[shared, mib]) => Self::Share { shared, mib },
            _ => bail!("there is no role '{}'", args.join(" ")),
        })
    }
}

fn words(kind: &str, numbers: &[usize]) -> Vec<String> {
    std::iter::once(kind.to_owned()).chain(numbers.iter().map(usize::to_string)).collect()
}

/// Plays the role that the arguments say: name, seed, role.
///
/// # Errors
/// When there is no such role, or no memory for it.
pub fn play(args: &[String]) -> Result<()> {
    let [name, seed, role @ ..] = args else { bail!("a role is NAME SEED KIND NUMBERS...") };
    set_name(name)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("prctl")?;
    // Standard input, because that is what a process can be given.
    let sheet = Sheet::open(&File::from(std::io::stdin().as_fd().try_clone_to_owned()?))?;
    let seed: u64 = seed.parse().context("seed")?;
    match Role::parse(role)? {
        Role::Frames { mib, file } => draw(&sheet, seed, mib, &file),
        Role::Keep { mib, random, touched } => keep(&sheet, seed, mib, random, touched),
        Role::Grow { mib, random, rate } => {
            let pool = Pool::new(seed, random);
            sheet.set_ready();
            sheet.wait_for_go();
            grow(&pool, mib, rate)?;
            sheet.set_served(free_memory::now());
            rest()
        }
        Role::Fork { count, mib } => fork_hands(&sheet, seed, count, mib),
        Role::Share { shared, mib } => share(&sheet, seed, shared, mib),
    }
}

fn rest() -> ! {
    loop {
        thread::park();
    }
}

/// Page contents that compress alike, of which any two differ.
struct Pool {
    words: Vec<u8>,
    /// Bytes of a page that are random; the others are zero.
    random: usize,
    pages: usize,
}

impl Pool {
    fn new(seed: u64, thousandths: usize) -> Self {
        let mut dice = Dice(seed);
        let words = (0..POOL_PAGES * PAGE / 8).flat_map(|_| dice.roll().to_ne_bytes()).collect();
        Self { words, random: PAGE * thousandths.min(1000) / 1000, pages: POOL_PAGES }
    }

    /// Writes content number `n` to a page that is zero.
    fn fill(&self, page: &mut [u8], n: usize) {
        let from = n % self.pages * PAGE;
        page[..self.random].copy_from_slice(&self.words[from..from + self.random]);
        // No two pages are the same, so nothing can be merged.
        page[..8].copy_from_slice(&(n as u64 + 1).to_ne_bytes());
    }
}

/// Anonymous memory until the process ends, none of which is there yet.
fn memory(pages: usize) -> Result<&'static mut [u8]> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            pages * PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }
    .context("mmap")?;
    // SAFETY: the mapping is that long, all zeroes, and nobody else's; it is never unmapped.
    Ok(unsafe { slice::from_raw_parts_mut(at.cast(), pages * PAGE) })
}

/// Writes to one byte of each of these pages, from `at` on and around the end; gives where to go on.
fn touch(memory: &mut [u8], at: usize, pages: usize) -> usize {
    let all = memory.len() / PAGE;
    for n in at..at + pages {
        let byte = &mut memory[n % all * PAGE + PAGE / 2];
        *byte = std::hint::black_box(byte.wrapping_add(1));
    }
    (at + pages) % all.max(1)
}

/// Memory of that size and compressibility, all there.
fn filled(seed: u64, mib: usize, random: usize) -> Result<&'static mut [u8]> {
    let pool = Pool::new(seed, random);
    let memory = memory(mib * MIB)?;
    memory.chunks_exact_mut(PAGE).enumerate().for_each(|(n, page)| pool.fill(page, n));
    Ok(memory)
}

/// An app at work: every frame touches a part of its memory and of its file, and takes and gives
/// back a MiB.
fn draw(sheet: &Sheet, seed: u64, mib: usize, file: &Path) -> Result<()> {
    // Half of it random: an app's memory compresses about 2:1.
    let own = filled(seed, mib, 500)?;
    let text = map_file(file)?;
    let fresh = Region::new(FRAME_FRESH_PAGES)?;
    let (mut at, mut text_at, text_pages) = (0, 0, text.len() / PAGE);
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("timer slack")?;
    sheet.set_ready();
    let mut due = free_memory::now() + FRAME;
    loop {
        sheet.begin_frame(due);
        at = touch(own, at, FRAME_PAGES.min(own.len() / PAGE));
        for n in text_at..text_at + FRAME_FILE_PAGES {
            std::hint::black_box(text[n % text_pages * PAGE]);
        }
        text_at = (text_at + FRAME_FILE_PAGES) % text_pages;
        fresh.touch(0..FRAME_FRESH_PAGES);
        fresh.free(0..FRAME_FRESH_PAGES)?;
        let ended = free_memory::now();
        sheet.end_frame(ended);
        if ended < due {
            free_memory::sleep_until(due)?;
        }
        // A frame that was late does not make the next one late.
        due = due.max(ended) + FRAME;
    }
}

/// A file's pages, for reading, until the process ends.
fn map_file(path: &Path) -> Result<&'static [u8]> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let size = usize::try_from(file.metadata()?.len())?;
    ensure!(size >= PAGE, "{}: too small", path.display());
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { rustix::mm::mmap(ptr::null_mut(), size, ProtFlags::READ, MapFlags::SHARED, &file, 0) }
        .with_context(|| format!("map {}", path.display()))?;
    // SAFETY: the mapping is that long and never unmapped; nobody changes or cuts the file.
    Ok(unsafe { slice::from_raw_parts(at.cast(), size) })
}

fn keep(sheet: &Sheet, seed: u64, mib: usize, random: usize, touched: usize) -> Result<()> {
    let own = filled(seed, mib, random)?;
    sheet.set_ready();
    if touched == 0 || own.is_empty() {
        rest()
    }
    let mut at = 0;
    loop {
        thread::sleep(SLOW_TICK);
        at = touch(own, at, touched);
    }
}

/// Takes memory page by page, up to so many MiB or without end, so many MB per second or as fast as
/// it can.
fn grow(pool: &Pool, mib: usize, rate: usize) -> Result<()> {
    let pages = if mib == 0 { NO_END / PAGE } else { mib * MIB };
    let per_tick = rate * 1_000_000 / 100 / PAGE;
    let mut next = free_memory::now();
    for (n, page) in memory(pages)?.chunks_exact_mut(PAGE).enumerate() {
        pool.fill(page, n);
        if per_tick > 0 && n % per_tick == per_tick - 1 {
            next += GROW_TICK;
            free_memory::sleep_until(next)?;
        }
    }
    Ok(())
}

/// Forks others, which begin together, and waits for their ends.
fn fork_hands(sheet: &Sheet, seed: u64, count: usize, mib: usize) -> Result<()> {
    let pool = Pool::new(seed, 1000);
    for i in 0..count {
        // SAFETY: the process is single-threaded, so the child may use everything the parent may;
        // it never leaves the match's arm.
        match unsafe { libc::fork() } {
            -1 => return Err(std::io::Error::last_os_error()).context("fork"),
            0 => {
                sheet.wait_for_go();
                if grow(&pool, mib, 0).is_ok() {
                    sheet.set_grown(i);
                }
                rest()
            }
            pid => sheet.set_hand(i, pid),
        }
    }
    sheet.set_ready();
    while rustix::process::wait(rustix::process::WaitOptions::empty()).is_ok() {}
    Ok(())
}

/// Fills memory that a second process has as well, and hardly ever looks at it again.
fn share(sheet: &Sheet, seed: u64, shared: usize, mib: usize) -> Result<()> {
    const LOOK: Duration = Duration::from_secs(5);
    const LOOK_PAGES: usize = 16;
    let fd = rustix::fs::memfd_create("pictures", MemfdFlags::CLOEXEC).context("memfd_create")?;
    let size = shared * MIB * PAGE;
    rustix::fs::ftruncate(&fd, size as u64).context("size of the memfd")?;
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { rustix::mm::mmap(ptr::null_mut(), size, flags, MapFlags::SHARED, &fd, 0) }
        .context("map the memfd")?;
    // SAFETY: the mapping is that long and never unmapped; the second process only reads it.
    let pictures = unsafe { slice::from_raw_parts_mut(at.cast::<u8>(), size) };
    let pool = Pool::new(seed, 1000);
    pictures.chunks_exact_mut(PAGE).enumerate().for_each(|(n, page)| pool.fill(page, n));
    // SAFETY: as in `fork_hands`.
    match unsafe { libc::fork() } {
        -1 => return Err(std::io::Error::last_os_error()).context("fork"),
        0 => {
            set_name("sibling")?;
            // Only what both have in their page tables is shared.
            let sum: u64 = pictures.iter().step_by(PAGE).map(|&byte| u64::from(byte)).sum();
            std::hint::black_box(sum);
            sheet.set_grown(0);
            rest()
        }
        pid => sheet.set_hand(0, pid),
    }
    while !sheet.is_grown(0) {
        thread::sleep(Duration::from_millis(1));
    }
    let own = filled(seed + 1, mib, 1000)?;
    sheet.set_ready();
    let mut at = 0;
    loop {
        thread::sleep(LOOK);
        at = touch(own, at, LOOK_PAGES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_say_the_role() {
        for role in [
            Role::Frames { mib: 120, file: "/tmp/a file".into() },
            Role::Keep { mib: 1, random: 2, touched: 3 },
            Role::Grow { mib: 1, random: 2, rate: 3 },
            Role::Fork { count: 200, mib: 24 },
            Role::Share { shared: 600, mib: 100 },
        ] {
            assert_eq!(Role::parse(&role.args()).unwrap(), role);
        }
        for bad in ["", "dance", "keep 1 2", "keep 1 2 x", "fork 257 1"] {
            let args: Vec<String> = bad.split(' ').map(str::to_owned).collect();
            assert!(Role::parse(&args).is_err(), "{bad}");
        }
    }

    #[test]
    fn pages_are_as_random_as_asked_and_all_differ() {
        let pool = Pool::new(7, 333);
        let pages: Vec<Vec<u8>> = (0..POOL_PAGES + 1)
            .map(|n| {
                let mut page = vec![0; PAGE];
                pool.fill(&mut page, n);
                page
            })
            .collect();
        assert_ne!(pages[0], pages[POOL_PAGES]);
        for page in &pages {
            let zeroes = page.iter().filter(|&&byte| byte == 0).count();
            assert!((2700..2780).contains(&zeroes), "{zeroes}");
        }
        let again = Pool::new(7, 333);
        assert_eq!(pool.words, again.words);
        assert_ne!(pool.words, Pool::new(8, 333).words);
    }

    #[test]
    fn touching_goes_around_the_end() {
        let own = memory(4).unwrap();
        assert_eq!(touch(own, 3, 2), 1);
        let touched: Vec<u8> = own.chunks(PAGE).map(|page| page[PAGE / 2]).collect();
        assert_eq!(touched, [1, 0, 0, 1]);
    }

    #[test]
    fn growing_at_a_rate_takes_its_time() {
        let pool = Pool::new(1, 1000);
        let begun = free_memory::now();
        grow(&pool, 4, 100).unwrap();
        // 4 MiB at 100 MB/s are 42 ms.
        assert!(free_memory::now() - begun > 35_000_000);
    }
}
