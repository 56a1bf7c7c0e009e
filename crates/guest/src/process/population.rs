// SPDX-License-Identifier: GPL-2.0-only
//! Processes among which the OOM killer chooses. Their resident memory costs almost nothing: all of them map
//! the same file, and the kernel counts the mapped pages for each of them.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Pid;

use crate::memory::PAGE_BYTES;
use crate::memory::mapping::Mapping;
use crate::process::child::{self, Child, Reports};
use crate::rng::Rng;
use crate::system::counters::value;
use crate::system::sched::pin;

/// The CPU on which a process stays once it has its memory.
pub const HOME_CPU: usize = 0;
/// Pages of its own that every process has, which its death frees.
const OWN_PAGES: usize = 16;
/// Stack of a thread that only sleeps.
const STACK_BYTES: usize = 32 << 10;

/// The file that all processes map. Its pages are allocated, and charged to the cgroup of the process that
/// created it.
pub struct Pool {
    file: OwnedFd,
    pages: usize,
}

impl Pool {
    /// Creates a file of `pages` pages.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn new(pages: usize) -> Result<Self> {
        use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
        let file = memfd_create("pool", MemfdFlags::CLOEXEC).context("memfd_create")?;
        let bytes = (pages * PAGE_BYTES) as u64;
        ftruncate(&file, bytes).context("ftruncate")?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes).with_context(|| format!("{pages} pages"))?;
        Ok(Self { file, pages })
    }

    /// Maps `pages` pages from number `from` on, and makes all of them present.
    fn map(&self, from: usize, pages: usize) -> Result<Mapping> {
        ensure!(from + pages <= self.pages, "the pool has {} pages, not {}", self.pages, from + pages);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        Mapping::of_file(&self.file, from * PAGE_BYTES, pages * PAGE_BYTES, ProtFlags::READ, flags).context("mmap")
    }
}

/// Maps anonymous pages, and makes all of them present.
fn map_own(pages: usize) -> Result<Mapping> {
    Mapping::anonymous(pages * PAGE_BYTES, MapFlags::PRIVATE | MapFlags::POPULATE).context("mmap")
}

/// The memory and threads of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pages of the shared file that it has mapped.
    pub shared_pages: usize,
    /// Whether it has a second thread, which sleeps.
    pub threaded: bool,
    /// The CPUs on which it maps its memory, in equal parts.
    pub cpus: Vec<usize>,
}

impl Shape {
    /// Draws the shape of a process of `shared_pages` pages: half of all processes have two threads, and a
    /// third has been on up to eight of the `cpus` CPUs.
    pub fn new(shared_pages: usize, cpus: usize, rng: &mut Rng) -> Self {
        let threaded = rng.one_in(2);
        let visits = if rng.one_in(3) { 1 + rng.below(8) } else { 0 };
        let visits = (0..visits).map(|_| rng.below(cpus));
        Self { shared_pages, threaded, cpus: visits.chain([HOME_CPU]).collect() }
    }

    /// Gives the calling process this memory and thread.
    fn take_on(&self, pool: &Pool) -> Result<()> {
        if self.threaded {
            thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn(|| child::sleep_for_ever())
                .context("second thread")?;
        }
        for (i, &cpu) in self.cpus.iter().enumerate() {
            pin(cpu)?;
            let part = |i| i * self.shared_pages / self.cpus.len();
            if part(i + 1) > part(i) {
                pool.map(part(i), part(i + 1) - part(i))?.leak();
            }
        }
        map_own(OWN_PAGES)?.leak();
        Ok(())
    }
}

/// Starts a process of this shape and waits until it is ready. It sleeps until it is killed; the caller has
/// to reap it, and must be single-threaded.
///
/// # Errors
/// When fork(2) fails, or the process cannot get its memory.
pub fn spawn(shape: &Shape, pool: &Pool) -> Result<Pid> {
    let prepare = |reports: &mut Reports| {
        shape.take_on(pool)?;
        reports.send(0)
    };
    let (child, mut reports) = Child::fork_reporting(prepare, || child::sleep_for_ever())?;
    reports.receive().with_context(|| format!("a process of {} pages", shape.shared_pages))?;
    Ok(child.into_pid())
}

/// A process that changes its memory on request.
pub struct Contender {
    pub pid: Pid,
    request: File,
    reports: Reports,
}

/// The bounds of a contender's memory.
#[derive(Clone, Copy)]
pub struct Changes {
    /// Number of CPUs.
    pub cpus: usize,
    /// Pages that every contender has of the shared file.
    pub base_pages: usize,
    /// Up to so many more pages, which it maps on one CPU.
    pub spread_pages: usize,
    /// Up to so many more pages on each of the CPUs that it visits.
    pub residue_pages: usize,
}

impl Contender {
    /// Starts a contender and waits until it has its base. Otherwise like [`spawn`].
    ///
    /// # Errors
    /// Those of [`spawn`].
    pub fn spawn(changes: Changes, threaded: bool, pool: &Pool) -> Result<Self> {
        let (requests, request) = rustix::pipe::pipe().context("pipe")?;
        let shape = Shape { shared_pages: changes.base_pages, threaded, cpus: vec![HOME_CPU] };
        let mut requests = File::from(requests);
        let live = |reports: &mut Reports| {
            shape.take_on(pool)?;
            let mut areas = Vec::new();
            let mut seed = [0; 8];
            loop {
                reports.send(0)?;
                requests.read_exact(&mut seed).context("pipe")?;
                change(&mut areas, changes, &mut Rng(u64::from_ne_bytes(seed)), pool)?;
            }
        };
        let (child, mut reports) = Child::fork_reporting(live, || ())?;
        reports.receive().context("a contender")?;
        Ok(Self { pid: child.into_pid(), request: File::from(request), reports })
    }

    /// Has it change to another size, drawn from this seed, and waits until it has.
    ///
    /// # Errors
    /// When it fails.
    pub fn change(&mut self, seed: u64) -> Result<()> {
        self.request.write_all(&seed.to_ne_bytes()).context("pipe to a contender")?;
        self.reports.receive().context("a contender")?;
        Ok(())
    }
}

/// Unmaps all `areas` and maps new ones: a random size, and on random CPUs random numbers of pages that are
/// too few for a CPU to add them to the common counter.
fn change(areas: &mut Vec<Mapping>, changes: Changes, rng: &mut Rng, pool: &Pool) -> Result<()> {
    pin(rng.below(changes.cpus))?;
    areas.clear();
    areas.push(pool.map(0, 1 + rng.below(changes.spread_pages))?);
    let mut cpus: Vec<usize> = (0..changes.cpus).collect();
    for _ in 0..rng.below(changes.cpus + 1) {
        pin(cpus.swap_remove(rng.below(cpus.len())))?;
        let pages = 1 + rng.below(changes.residue_pages);
        areas.push(if rng.one_in(4) { map_own(pages)? } else { pool.map(0, pages)? });
    }
    pin(HOME_CPU)
}

/// Returns the pages that the OOM killer counts, by precise sums: resident, in swap, and page tables.
///
/// # Errors
/// When there is no such process, or its files in /proc cannot be parsed.
pub fn badness(pid: Pid) -> Result<u64> {
    let resident = super::resident_bytes(pid)? / PAGE_BYTES as u64;
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| path.clone())?;
    Ok(resident + unmapped_pages(&status).with_context(|| format!("{path}: cannot parse"))?)
}

/// Pages of page tables and in swap, from /proc/PID/status.
fn unmapped_pages(status: &str) -> Option<u64> {
    Some((value(status, "VmPTE:")? + value(status, "VmSwap:")?) / (PAGE_BYTES as u64 >> 10))
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, WaitId, WaitIdOptions, kill_process, waitid};

    use super::*;

    fn end(pid: Pid) {
        kill_process(pid, Signal::KILL).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).unwrap();
    }

    #[test]
    fn a_process_has_its_size() {
        let pool = Pool::new(8000).unwrap();
        let size = |shared_pages, cpus: &[usize]| {
            let shape = Shape { shared_pages, threaded: false, cpus: cpus.to_vec() };
            let pid = spawn(&shape, &pool).unwrap();
            let size = badness(pid).unwrap();
            end(pid);
            size
        };
        let (small, large) = (size(10, &[0]), size(8000, &[0, 0, 0]));
        // There are also page tables, and this process, of which the others are copies, may have grown.
        assert!((7600..=8400).contains(&(large - small)), "{small} {large}");
    }

    #[test]
    fn a_contender_changes_and_reports_errors() {
        let pool = Pool::new(1000).unwrap();
        let changes = Changes { cpus: 1, base_pages: 300, spread_pages: 500, residue_pages: 30 };
        let mut contender = Contender::spawn(changes, true, &pool).unwrap();
        let sizes: Vec<u64> = (0..4)
            .map(|seed| {
                contender.change(seed).unwrap();
                badness(contender.pid).unwrap()
            })
            .collect();
        // It is larger than requested, as it is a copy of this process, in which other tests have memory.
        let (smallest, largest) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(*smallest >= 300 && largest - smallest < 1000, "{sizes:?}");
        assert!(sizes.windows(2).any(|two| two[0] != two[1]), "{sizes:?}");
        end(contender.pid);

        let too_large = Shape { shared_pages: 1001, threaded: false, cpus: vec![0] };
        let error = format!("{:#}", spawn(&too_large, &pool).unwrap_err());
        assert!(error.contains("the pool has 1000 pages, not 1001"), "{error}");
    }

    #[test]
    fn page_tables_and_swap_are_added_up() {
        let status = "Name:\tx\nVmPTE:\t      48 kB\nVmSwap:\t       8 kB\n";
        assert_eq!(unmapped_pages(status), Some(12 + 2));
        assert_eq!(unmapped_pages("Name:\tx\nVmSwap:\t8 kB\n"), None);
    }

    #[test]
    fn shapes_repeat_and_end_on_the_home_cpu() {
        let shapes = |seed| {
            let mut rng = Rng(seed);
            (0..300).map(|_| Shape::new(9, 64, &mut rng)).collect::<Vec<_>>()
        };
        let all = shapes(1);
        assert_eq!(all, shapes(1));
        assert!(all.iter().all(|s| s.cpus.last() == Some(&HOME_CPU) && s.cpus.len() <= 9));
        let threaded = all.iter().filter(|s| s.threaded).count();
        let moved = all.iter().filter(|s| s.cpus.len() > 1).count();
        assert!((120..180).contains(&threaded) && (70..130).contains(&moved), "{threaded} {moved}");
    }
}
