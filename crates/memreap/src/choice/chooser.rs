// SPDX-License-Identifier: GPL-2.0-only
//! The chooser: what it knows, and how that is kept up to date between choices.

use std::collections::BinaryHeap;
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::cgroup::{Hierarchy, OomPreference};
use linux::scan::Scan;
use linux::{Pid, Root};

use super::examine::Examiner;
use super::groups::{Groups, MAX_NODES};
use super::membership::Membership;
use super::population::Population;
use super::readers::Readers;
use super::result::{Choice, CommandLine, Considered, Cost, Parent};
use super::search::Candidate;
use super::selection::READING_TIMEOUT;
use crate::kill::target;
use crate::policy::{Policy, Subject};
use crate::units::Size;

/// How many considered processes are kept for [`Chooser::explain`] and [`Chooser::another`].
pub(super) const MAX_CONSIDERED: usize = 32;

/// What the threads may take to read this process's own memory.
const REHEARSAL_TIME: Duration = Duration::from_secs(1);

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

    /// Goes through all that a choice may need, so that it is in memory then. From now on the child `dummy` of
    /// this process may be chosen, and no other one.
    pub fn rehearse(&mut self, policy: &Policy, dummy: Pid) {
        self.examiner.dummy = Some(dummy);
        self.examiner.readers.rehearse(Instant::now() + REHEARSAL_TIME);
        self.rehearse_group(policy, dummy);
        // To go through all rules.
        black_box(policy.judge(&Subject {
            pid: dummy,
            comm: b"-",
            command_line: Some(b"-"),
            uid: u32::MAX,
            cgroup: b"/-.slice/-.slice/-.scope/-",
            oom_score_adj: 0,
            preference: OomPreference::None,
        }));
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
