// SPDX-License-Identifier: GPL-2.0-only
//! The chooser: what it knows, and how that is kept up to date between choices.

use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::cgroup::Hierarchy;
use linux::scan::Scan;
use linux::{Pid, Root};

use super::examine::Examiner;
use super::groups::{Groups, MAX_NODES};
use super::holder::Holder;
use super::membership::Membership;
use super::population::Population;
use super::readers::{Answer, Readers};
use super::result::{Choice, CommandLine, Considered, Cost, Grouping, Parent};
use super::search::Candidate;
use crate::kill::target;
use crate::policy::Policy;
use crate::units::Size;

/// How many considered processes are kept for [`Chooser::explain`] and [`Chooser::another`].
pub(super) const MAX_CONSIDERED: usize = 32;

/// How long a choice may read processes: a user can give each of them 65,536 supplementary groups, with which that
/// takes some 30 ms. From then on candidates are compared by [`Reading::estimate`] of what was read before.
const READING_TIMEOUT: Duration = Duration::from_secs(1);
/// How long it may take to look at what one process holds by descriptors: it can have a million descriptors.
const HOLDER_TIMEOUT: Duration = Duration::from_millis(10);

/// What a chooser and its caller need at most, in bytes: for each process, and besides.
const BYTES_PER_PROCESS: usize = 320;
const OTHER_BYTES: usize = 4 << 20;

/// Checks that there is room for what is allocated at the start; what fails later ends the program.
fn check_memory(max_processes: usize) -> io::Result<()> {
    let bytes = max_processes.saturating_mul(BYTES_PER_PROCESS).saturating_add(OTHER_BYTES);
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| {
        let needed = Size(bytes as u64);
        io::Error::other(format!(
            "{needed} of memory cannot be had: raise RLIMIT_DATA (ulimit -d, LimitDATA=) or RLIMIT_AS (ulimit -v)"
        ))
    })
}

/// Chooses victims. All memory that it needs is allocated when it is made.
pub struct Chooser {
    pub(super) population: Population,
    pub(super) membership: Membership,
    pub(super) examiner: Examiner,
    /// Candidates, during a choice.
    pub(super) heap: BinaryHeap<Candidate>,
    /// A process that would give back less is not chosen, in bytes.
    pub(super) min_bytes: u64,
    pub(super) considered: Vec<Considered>,
    /// How long a choice may read processes.
    pub(super) reading_timeout: Duration,
    pub(super) grouping: Grouping,
}

impl Chooser {
    /// Prepares for at most `max_processes` processes; when there are more, the rest is not considered and
    /// [`Cost::processes`] says how many there are.
    ///
    /// # Errors
    /// When /proc cannot be opened or is not this PID namespace's, when memory is too little, or threads cannot be started.
    pub fn new(root: &Root, max_processes: usize) -> io::Result<Self> {
        target::check_proc()?;
        check_memory(max_processes)?;
        let scan = Arc::new(Scan::open(root).map_err(io::Error::other)?);
        let readers = Readers::new(&scan)?;
        let hierarchy = Hierarchy::find(root).ok().flatten();
        let controlled = hierarchy.as_ref().filter(|h| h.controls_memory);
        let groups = controlled.and_then(|h| Groups::open(&h.path));
        Ok(Self {
            population: Population::new(max_processes),
            membership: Membership::new(groups, max_processes),
            examiner: Examiner::new(root, scan, readers, hierarchy),
            heap: BinaryHeap::with_capacity(max_processes.max(MAX_NODES) + 1),
            min_bytes: 0,
            considered: Vec::with_capacity(MAX_CONSIDERED),
            reading_timeout: READING_TIMEOUT,
            grouping: Grouping { by_cgroup: false, whole: true },
        })
    }

    /// Updates what is known for at most `budget`, so that a choice will be fast. New processes come first,
    /// then one after the other. It takes some milliseconds longer when all processes have to be listed: the
    /// first time, after many new ones, and each time all have been read once.
    pub fn refresh(&mut self, policy: &Policy, budget: Duration) {
        let deadline = Instant::now() + budget;
        let now = self.population.begin_round(&mut self.examiner);
        self.population.catch_up(policy, &now, deadline, &mut self.examiner);
    }

    /// Returns the parent of a process that was chosen, and its command line: empty when the process is gone, or keeps
    /// its memory map locked for longer than 20 ms.
    pub fn describe(&mut self, choice: &Choice) -> (Option<Parent>, CommandLine) {
        let scan = &self.examiner.scan;
        let parent = scan.stat(choice.pid).ok().and_then(|stat| stat.ppid);
        let parent = parent.and_then(|pid| Some(Parent { pid, comm: scan.stat(pid).ok()?.comm }));
        let text = self.examiner.command_line(choice.pid);
        // If it is gone, that was another process's.
        if choice.pidfd.is_alive().unwrap_or(false) { (parent, text) } else { (None, CommandLine::new()) }
    }

    /// Returns the process that holds most memory by descriptors, among those that can be looked at within `timeout`.
    pub fn largest_holder(&mut self, timeout: Duration) -> Option<Holder> {
        let until = Instant::now() + timeout;
        let mut largest: Option<Holder> = None;
        for entry in self.population.table.entries() {
            let now = Instant::now();
            if now >= until {
                break;
            }
            let Some(reading) = entry.reading.filter(|reading| reading.has_memory && !entry.gone) else {
                continue;
            };
            let answer = self.examiner.readers.held(entry.pid, until.min(now + HOLDER_TIMEOUT));
            if let Answer::Read(bytes) = answer
                && bytes > largest.map_or(0, |holder| holder.bytes)
            {
                largest = Some(Holder { pid: entry.pid, comm: reading.comm, bytes });
            }
        }
        largest
    }

    /// Forgets what was read of the processes. To be called when the policy has changed.
    pub fn forget(&mut self) {
        self.population.table.invalidate(|_| true);
    }

    /// Notes that a process was killed for its memory: what it does not give back makes it no victim for a minute.
    pub fn note_kill(&mut self, pid: Pid) {
        self.population.table.note_kill(pid);
    }

    /// Chooses no process from now on, by whatever weight, whose death gives back fewer bytes. In a group
    /// that gives back more, each process may give less.
    pub fn set_min_bytes(&mut self, bytes: u64) {
        self.min_bytes = bytes;
    }

    /// Says whether all of a cgroup is chosen where its processes share its memory.
    pub fn set_grouping(&mut self, grouping: Grouping) {
        self.grouping = grouping;
    }

    /// Returns the processes that were considered in the last choice, by falling score: all that were read
    /// exactly, and the next ones. No process after the last of them could have been chosen.
    pub fn explain(&self) -> impl Iterator<Item = &Considered> {
        self.considered.iter()
    }

    /// Returns what the last choice cost, also when no process could be chosen.
    pub fn cost(&self) -> Cost {
        self.examiner.cost
    }
}
