// SPDX-License-Identifier: GPL-2.0-only
//! The table of processes: what was read of each, and how much it can hold by now at most.

use std::path::Path;
use std::time::{Duration, Instant};

use linux::Pid;
use linux::process::Comm;
use linux::release::Release;
use linux::scan::{Failure, Scan};
use linux::{Root, vmstat};

use super::page_sample::{SampledProcess, Sizes};
use crate::policy::Verdict;

/// Shared memory that a page fault maps, at most: the pages around it, too ("fault-around").
const MAPPED_BYTES_PER_FAULT: u64 = 64 << 10;
/// The same, where huge pages map it.
const MAPPED_BYTES_PER_HUGE_FAULT: u64 = 2 << 20;
/// How far a counter of the system's memory may be off per CPU and node.
const SYSTEM_COUNTER_ERROR_PAGES: u64 = 125;
/// How far a counter of a process's memory may be off per thread, before Linux 6.2.
const THREAD_COUNTER_ERROR_PAGES: u64 = 64;

/// How long a process that was sent SIGKILL is no victim. One that has memory after that waits for what may never
/// come: a file system, or a debugger of the user's own. Its memory can be had all the same, by process_mrelease(2).
pub(super) const DYING_TIME: Duration = Duration::from_secs(2);
/// The same for one whose memory was tried to be had.
const TRIED_DYING_TIME: Duration = Duration::from_secs(60);

/// The system's counters, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counters {
    /// Bytes that have been allocated since the system was started.
    pub(super) allocated_bytes: u64,
    /// Page faults since then.
    pub(super) faults: u64,
    /// Bytes of shared memory that are mapped by any process; at least as much as there are.
    pub(super) mapped_bytes: u64,
    /// Bytes of shared memory that a page fault maps at most.
    pub(super) mapped_bytes_per_fault: u64,
}

impl Counters {
    /// Stands for counters that cannot be read: a reading with them is bounded by itself only, and has no
    /// bound once the counters can be read.
    pub(super) const UNKNOWN: Self =
        Self { allocated_bytes: 0, faults: 0, mapped_bytes: u64::MAX, mapped_bytes_per_fault: 1 };

    /// Reads them from /proc/vmstat.
    pub(super) fn read(scan: &Scan, constants: &SystemConstants, buffer: &mut [u8]) -> Result<Self, Failure> {
        Self::parse(scan.system(c"vmstat", buffer)?, constants).ok_or(Failure::Malformed)
    }

    fn parse(bytes: &[u8], constants: &SystemConstants) -> Option<Self> {
        let values = vmstat::parse(
            Path::new(""),
            bytes,
            [
                "nr_mapped",
                "nr_shmem",
                "pgfault",
                "nr_shmem_pmdmapped",
                "pgalloc_normal",
                "pgalloc_dma32",
                "pgalloc_dma",
                "pgalloc_high",
                "pgalloc_movable",
                "pgalloc_device",
            ],
        )
        .ok()?;
        let [mapped, shmem, faults, shmem_huge, zones @ ..] = values;
        let pages = zones.iter().flatten().try_fold(0_u64, |sum, zone| sum.checked_add(*zone))?;
        let huge = shmem_huge.unwrap_or(0) > 0;
        // `mapped` has files in it, and `shmem` has what is not mapped.
        let most = mapped?.min(shmem?);
        Some(Self {
            allocated_bytes: pages.checked_mul(constants.page_bytes)?,
            faults: faults?,
            mapped_bytes: most.saturating_add(constants.system_error_pages).saturating_mul(constants.page_bytes),
            mapped_bytes_per_fault: if huge { MAPPED_BYTES_PER_HUGE_FAULT } else { MAPPED_BYTES_PER_FAULT },
        })
    }
}

/// What does not change while the system runs: sizes, and how far counters may be off.
#[derive(Clone, Copy, Debug)]
pub(super) struct SystemConstants {
    /// The size of a page in bytes.
    pub(super) page_bytes: u64,
    /// How far a counter of a process's memory may be off, in pages.
    process_error_pages: u64,
    /// The counter may be off by so much per thread, too.
    error_pages_per_thread: u64,
    /// How far a counter of the system's memory may be off, in pages.
    system_error_pages: u64,
    /// IDs of processes are below this.
    pub(super) pid_max: u64,
    /// Programs have their memory at addresses of their own (kernel.randomize_va_space).
    pub(super) random_addresses: bool,
    /// It can be read what a process shares with others.
    pub(super) tells_shared: bool,
}

impl SystemConstants {
    /// Reads them from /proc and /sys.
    pub(super) fn find(root: &Root) -> Self {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        // "0-3,8": CPUs or nodes there can be.
        let possible = |text: String| {
            text.trim_end().rsplit([',', '-']).next().and_then(|n| n.parse::<u64>().ok()).map_or(1, |n| n + 1)
        };
        let cpus = possible(read(&root.sys().join("devices/system/cpu/possible")));
        let nodes = possible(read(&root.sys().join("devices/system/node/possible")));
        // Since 6.2 a counter's parts per CPU are added up when they reach the batch, and read without
        // adding them up; later kernels do that when status is read, but which ones is not to be seen.
        let lazy = Release::read(root).is_ok_and(|release| release.is_at_least(6, 2));
        Self {
            page_bytes: rustix::param::page_size() as u64,
            process_error_pages: cpus * (2 * cpus).max(32),
            error_pages_per_thread: if lazy { 0 } else { THREAD_COUNTER_ERROR_PAGES },
            system_error_pages: cpus * nodes * SYSTEM_COUNTER_ERROR_PAGES,
            pid_max: read(&root.proc().join("sys/kernel/pid_max")).trim_end().parse().unwrap_or(32768),
            random_addresses: read(&root.proc().join("sys/kernel/randomize_va_space")).trim_end() != "0",
            tells_shared: linux::features::tells_shared(root),
        }
    }

    /// Returns how far a counter of a process with so many threads may be off, in bytes.
    pub(super) fn counter_error(&self, threads: u32) -> u64 {
        self.process_error_pages
            .saturating_add(self.error_pages_per_thread.saturating_mul(threads.into()))
            .saturating_mul(self.page_bytes)
    }
}

/// A process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Its ID.
    pub(super) pid: Pid,
    /// What was read; `None` until then.
    pub(super) reading: Option<Reading>,
    /// It has exited, and is to be removed.
    pub(super) gone: bool,
    /// The refresh or choice in which it was last read.
    pub(super) last_round: u32,
}

/// What was read of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reading {
    /// Its name.
    pub(super) comm: Comm,
    /// Its real user.
    pub(super) uid: u32,
    /// The ID by which its memory is read: its own, or that of a thread when the first one has exited.
    pub(super) memory_tid: Pid,
    /// Whether it has any: not so for kernel threads and zombies.
    pub(super) has_memory: bool,
    /// It has been sent SIGKILL, and until then its memory is expected to come back without another kill.
    pub(super) dying_until: Option<Instant>,
    /// The size of its address space.
    pub(super) vm_size: u64,
    /// It dumps core, and keeps its memory for that.
    pub(super) core_dumping: bool,
    /// Its memory.
    pub(super) sizes: Sizes,
    /// How far each of them may be off, in bytes.
    pub(super) counter_error: u64,
    /// The system's counters before this was read.
    pub(super) counters: Counters,
    /// What the policy says.
    pub(super) verdict: Verdict,
    /// A hash of what the policy was asked about.
    pub(super) judged_hash: u64,
    /// Whether the command line was among that.
    pub(super) command_line_known: bool,
    /// Whether the executable was.
    pub(super) exe_known: bool,
    /// A hash of its cgroup's path.
    pub(super) cgroup_hash: u64,
}

impl Reading {
    /// One of so much memory, for tests.
    #[cfg(test)]
    pub(super) fn with(anon: u64, mapped: u64, counters: Counters) -> Self {
        Self {
            comm: Comm::new(b"x").expect("short enough"),
            uid: 0,
            memory_tid: Pid::own(),
            has_memory: true,
            dying_until: None,
            vm_size: 0,
            core_dumping: false,
            sizes: Sizes { anon, shared: mapped, swap: 0 },
            counter_error: 0,
            counters,
            verdict: Verdict::PLAIN,
            judged_hash: 0,
            command_line_known: false,
            exe_known: false,
            cgroup_hash: 0,
        }
    }

    /// Returns how many bytes can come back at most when the process dies.
    ///
    /// That is its share of anonymous and shared memory at most, and the counters have both in full. Since it
    /// was read, it can have got no more anonymous memory than the whole system has allocated (what fork
    /// copies has other owners), and mapped no more of shared memory than all page faults did, or than is
    /// mapped at all. Neither pages of files nor what drivers map by themselves come back.
    pub(super) fn upper_bound(&self, now: &Counters) -> u64 {
        let grown = now.allocated_bytes.saturating_sub(self.counters.allocated_bytes);
        let faults = now.faults.saturating_sub(self.counters.faults);
        let mapped = faults.saturating_mul(now.mapped_bytes_per_fault).saturating_add(self.sizes.shared);
        self.estimate()
            .saturating_add(self.counter_error)
            .saturating_add(grown)
            .saturating_add(mapped.saturating_add(self.counter_error).min(now.mapped_bytes))
    }

    /// Returns a guess of what comes back, in bytes: with memory that it shares with other processes, without
    /// what it maps.
    pub(super) fn estimate(&self) -> u64 {
        self.sizes.anon.saturating_add(self.sizes.swap)
    }

    /// How its pages are looked up, for an estimate with this standard error, as a part of its size.
    pub(super) fn sampled(&self, error: f64) -> SampledProcess {
        SampledProcess { pid: self.memory_tid, sizes: self.sizes, vm_size: self.vm_size, error }
    }

    /// Whether it has memory that is not coming back already.
    pub(super) fn holds_memory(&self) -> bool {
        self.has_memory && self.dying_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Whether it may be killed, and has memory that is not coming back already.
    pub(super) fn eligible(&self) -> bool {
        self.holds_memory() && !self.verdict.never
    }
}

/// All processes, by ID.
pub(super) struct Table {
    entries: Vec<Entry>,
    capacity: usize,
    /// How many there was no room for.
    pub(super) not_stored: u32,
    /// Counts refreshes and choices.
    pub(super) round: u32,
}

impl Table {
    pub(super) fn new(capacity: usize) -> Self {
        Self { entries: Vec::with_capacity(capacity), capacity, not_stored: 0, round: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn get(&mut self, index: usize) -> &mut Entry {
        &mut self.entries[index]
    }

    pub(super) fn find(&self, pid: Pid) -> Option<usize> {
        self.entries.binary_search_by_key(&pid, |entry| entry.pid).ok()
    }

    /// Notes that a process was killed for its memory.
    pub(super) fn note_kill(&mut self, pid: Pid) {
        if let Some(index) = self.find(pid)
            && let Some(reading) = &mut self.entries[index].reading
        {
            reading.dying_until = Some(Instant::now() + TRIED_DYING_TIME);
        }
    }

    /// Adds a process that is not known yet, without a reading.
    pub(super) fn add(&mut self, pid: Pid) {
        if let Err(at) = self.entries.binary_search_by_key(&pid, |entry| entry.pid) {
            if self.entries.len() == self.capacity {
                self.not_stored += 1;
            } else {
                let entry = Entry { pid, reading: None, gone: false, last_round: 0 };
                self.entries.insert(at, entry);
            }
        }
    }

    /// Forgets the readings of processes whose ID may be another process's by now.
    pub(super) fn invalidate(&mut self, may_be_reused: impl Fn(i32) -> bool) {
        for entry in self.entries.iter_mut().filter(|entry| may_be_reused(entry.pid.get())) {
            entry.reading = None;
        }
    }

    /// Removes those that are gone. All indices change.
    pub(super) fn remove_gone(&mut self) {
        self.entries.retain(|entry| !entry.gone);
    }
}

#[cfg(test)]
mod tests;
