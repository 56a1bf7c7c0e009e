//! Processes for the OOM killer to choose among. Much resident memory costs next to nothing here:
//! all of them map the same file, and each counts what it has mapped.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::{fs, ptr, thread};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::memory::PAGE_BYTES;
use crate::rng::Rng;
use crate::system::counters::value;
use crate::system::sched::pin;

/// Where a process stays once it has its memory.
pub const HOME: usize = 0;
/// Pages of its own that every process has: what its death gives back.
const OWN: usize = 16;
/// Room for a thread that sleeps.
const STACK: usize = 32 << 10;

/// The file that all map: its pages are there, and belong to nobody's cgroup but its maker's.
pub struct Pool {
    file: OwnedFd,
    pages: usize,
}

impl Pool {
    /// A file of so many pages.
    ///
    /// # Errors
    /// When there is not so much memory.
    pub fn new(pages: usize) -> Result<Self> {
        use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
        let file = memfd_create("pool", MemfdFlags::CLOEXEC).context("memfd_create")?;
        let bytes = (pages * PAGE_BYTES) as u64;
        ftruncate(&file, bytes).context("ftruncate")?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes).with_context(|| format!("{pages} pages"))?;
        Ok(Self { file, pages })
    }

    /// Maps `pages` pages from the one numbered `from` on, all of them present.
    fn map(&self, from: usize, pages: usize) -> Result<Area> {
        ensure!(from + pages <= self.pages, "the pool has {} pages, not {}", self.pages, from + pages);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let (length, offset) = (pages * PAGE_BYTES, (from * PAGE_BYTES) as u64);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            rustix::mm::mmap(ptr::null_mut(), length, ProtFlags::READ, flags, self.file.as_fd(), offset)
        };
        Ok(Area { at: at.context("mmap")?.expose_provenance(), length })
    }
}

/// A mapping; it stays until [`Area::unmap`].
struct Area {
    at: usize,
    length: usize,
}

impl Area {
    /// New pages of one's own, all of them present.
    fn own(pages: usize) -> Result<Self> {
        let (length, prot) = (pages * PAGE_BYTES, ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), length, prot, flags) };
        Ok(Self { at: at.context("mmap")?.expose_provenance(), length })
    }

    fn unmap(self) -> Result<()> {
        // SAFETY: nothing points into the mapping.
        unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(self.at), self.length) }
            .context("munmap")
    }
}

/// What a process looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pages of the common file that it has mapped.
    pub shared: usize,
    /// Whether it has a second thread, which sleeps.
    pub threaded: bool,
    /// The CPUs on which it got its memory, as much on each.
    pub cpus: Vec<usize>,
}

impl Shape {
    /// One of so many pages; half of all have two threads, and a third has been on up to eight of
    /// the `cpus` CPUs.
    pub fn new(shared: usize, cpus: usize, rng: &mut Rng) -> Self {
        let threaded = rng.one_in(2);
        let stops = if rng.one_in(3) { 1 + rng.below(8) } else { 0 };
        let stops = (0..stops).map(|_| rng.below(cpus));
        Self { shared, threaded, cpus: stops.chain([HOME]).collect() }
    }

    /// Takes this shape on: the calling process gets the memory and the thread.
    fn take(&self, pool: &Pool) -> Result<()> {
        if self.threaded {
            thread::Builder::new().stack_size(STACK).spawn(sleep).context("second thread")?;
        }
        for (i, &cpu) in self.cpus.iter().enumerate() {
            pin(cpu)?;
            let part = |i| i * self.shared / self.cpus.len();
            if part(i + 1) > part(i) {
                pool.map(part(i), part(i + 1) - part(i))?;
            }
        }
        Area::own(OWN)?;
        Ok(())
    }
}

/// Makes a process of the shape and waits until it is. It sleeps until it is killed; the caller, who
/// must be single-threaded, has to reap it.
///
/// # Errors
/// When the process cannot be made, or not have the memory.
pub fn spawn(shape: &Shape, pool: &Pool) -> Result<Pid> {
    let (pid, mut reply) = fork(|said| {
        shape.take(pool)?;
        said.write_all(READY).context("pipe")
    })?;
    first_ready(pid, &mut reply).with_context(|| format!("a process of {} pages", shape.shared))?;
    Ok(pid)
}

/// A process that changes its memory when told to.
pub struct Contender {
    /// To know it by.
    pub pid: Pid,
    order: File,
    reply: File,
}

/// How contenders change.
#[derive(Clone, Copy)]
pub struct Changes {
    /// CPUs there are.
    pub cpus: usize,
    /// Pages that every contender has of the common file.
    pub base: usize,
    /// Up to so many more, which it gets on one CPU.
    pub spread: usize,
    /// Up to so many more on each of the CPUs that it visits.
    pub residue: usize,
}

impl Contender {
    /// Makes a contender and waits until it has its base. Otherwise as [`spawn`].
    ///
    /// # Errors
    /// As [`spawn`].
    pub fn spawn(changes: Changes, threaded: bool, pool: &Pool) -> Result<Self> {
        let (orders, order) = rustix::pipe::pipe().context("pipe")?;
        let shape = Shape { shared: changes.base, threaded, cpus: vec![HOME] };
        let mut orders = File::from(orders);
        let (pid, mut reply) = fork(|said| {
            shape.take(pool)?;
            let mut areas = Vec::new();
            let mut seed = [0; 8];
            loop {
                said.write_all(READY).context("pipe")?;
                orders.read_exact(&mut seed).context("pipe")?;
                change(&mut areas, changes, &mut Rng(u64::from_ne_bytes(seed)), pool)?;
            }
        })?;
        first_ready(pid, &mut reply).context("a contender")?;
        Ok(Self { pid, order: File::from(order), reply })
    }

    /// Has it take on another size, drawn from this seed, and waits until it has it.
    ///
    /// # Errors
    /// When it cannot.
    pub fn change(&mut self, seed: u64) -> Result<()> {
        self.order.write_all(&seed.to_ne_bytes()).context("pipe to a contender")?;
        await_ready(&mut self.reply).context("a contender")
    }
}

/// Gives up all `areas` and makes new ones: a random size, and on random CPUs random amounts that
/// are too small for a CPU to hand them on to the common count.
fn change(areas: &mut Vec<Area>, changes: Changes, rng: &mut Rng, pool: &Pool) -> Result<()> {
    pin(rng.below(changes.cpus))?;
    areas.drain(..).try_for_each(Area::unmap)?;
    areas.push(pool.map(0, 1 + rng.below(changes.spread))?);
    let mut cpus: Vec<usize> = (0..changes.cpus).collect();
    for _ in 0..rng.below(changes.cpus + 1) {
        pin(cpus.swap_remove(rng.below(cpus.len())))?;
        let pages = 1 + rng.below(changes.residue);
        areas.push(if rng.one_in(4) { Area::own(pages)? } else { pool.map(0, pages)? });
    }
    pin(HOME)
}

/// Pages that count for the OOM killer, by precise sums: resident, in swap, and page tables.
///
/// # Errors
/// When there is no such process, or /proc shows something else.
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

/// What a process says when it has done what it was told.
const READY: &[u8] = b".";

/// Forks a process that lives `life`, then sleeps; gives what it says. One that fails says why and
/// exits.
fn fork(life: impl FnOnce(&mut File) -> Result<()>) -> Result<(Pid, File)> {
    let (reader, writer) = rustix::pipe::pipe().context("pipe")?;
    // SAFETY: the process is single-threaded, so the child may use everything the parent may; it
    // never returns from here.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context("fork"),
        0 => {
            drop(reader);
            let mut said = File::from(writer);
            let lived = rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
                .context("prctl")
                .and_then(|()| life(&mut said));
            if let Err(e) = lived {
                // Whoever does not hear it finds the pipe closed.
                let _ = said.write_all(format!("{e:#}").as_bytes());
                // SAFETY: ends the process without the parent's handlers.
                unsafe { libc::_exit(1) }
            }
            drop(said);
            sleep()
        }
        pid => Ok((Pid::from_raw(pid).context("fork gave a pid that is none")?, File::from(reader))),
    }
}

/// As [`await_ready`], for a process that nobody knows yet: one that failed is reaped.
fn first_ready(pid: Pid, reply: &mut File) -> Result<()> {
    await_ready(reply).inspect_err(|_| {
        // What it said is the error to report.
        let _ = kill_process(pid, Signal::KILL);
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
    })
}

fn await_ready(reply: &mut File) -> Result<()> {
    let mut said = [0; 256];
    let length = reply.read(&mut said).context("pipe from a process")?;
    match &said[..length] {
        READY => Ok(()),
        b"" => bail!("died before it was ready (is the guest large enough?)"),
        why => bail!("{}", String::from_utf8_lossy(why)),
    }
}

fn sleep() -> ! {
    loop {
        // SAFETY: pause(2) takes no arguments.
        unsafe { libc::pause() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(pid: Pid) {
        kill_process(pid, Signal::KILL).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).unwrap();
    }

    #[test]
    fn a_process_has_the_size_asked_for() {
        let pool = Pool::new(8000).unwrap();
        let size = |shared, cpus: &[usize]| {
            let shape = Shape { shared, threaded: false, cpus: cpus.to_vec() };
            let pid = spawn(&shape, &pool).unwrap();
            let size = badness(pid).unwrap();
            end(pid);
            size
        };
        let (small, large) = (size(10, &[0]), size(8000, &[0, 0, 0]));
        // And page tables; and this process, which the others are copies of, may have grown.
        assert!((7600..=8400).contains(&(large - small)), "{small} {large}");
    }

    #[test]
    fn a_contender_changes_and_says_why_it_cannot() {
        let pool = Pool::new(1000).unwrap();
        let changes = Changes { cpus: 1, base: 300, spread: 500, residue: 30 };
        let mut contender = Contender::spawn(changes, true, &pool).unwrap();
        let sizes: Vec<u64> = (0..4)
            .map(|seed| {
                contender.change(seed).unwrap();
                badness(contender.pid).unwrap()
            })
            .collect();
        // More than was asked for, as it is a copy of this process, in which other tests have memory.
        let (smallest, largest) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(*smallest >= 300 && largest - smallest < 1000, "{sizes:?}");
        assert!(sizes.windows(2).any(|two| two[0] != two[1]), "{sizes:?}");
        end(contender.pid);

        let too_large = Shape { shared: 1001, threaded: false, cpus: vec![0] };
        let error = format!("{:#}", spawn(&too_large, &pool).unwrap_err());
        assert!(error.contains("the pool has 1000 pages, not 1001"), "{error}");
    }

    #[test]
    fn all_that_counts_is_added_up() {
        let status = "Name:\tx\nVmPTE:\t      48 kB\nVmSwap:\t       8 kB\n";
        assert_eq!(unmapped_pages(status), Some(12 + 2));
        assert_eq!(unmapped_pages("Name:\tx\nVmSwap:\t8 kB\n"), None);
    }

    #[test]
    fn shapes_repeat_and_end_at_home() {
        let shapes = |seed| {
            let mut rng = Rng(seed);
            (0..300).map(|_| Shape::new(9, 64, &mut rng)).collect::<Vec<_>>()
        };
        let all = shapes(1);
        assert_eq!(all, shapes(1));
        assert!(all.iter().all(|s| s.cpus.last() == Some(&HOME) && s.cpus.len() <= 9));
        let threaded = all.iter().filter(|s| s.threaded).count();
        let moved = all.iter().filter(|s| s.cpus.len() > 1).count();
        assert!((120..180).contains(&threaded) && (70..130).contains(&moved), "{threaded} {moved}");
    }
}
