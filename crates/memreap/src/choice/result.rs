// SPDX-License-Identifier: GPL-2.0-only
//! What a choice returns, and what it considered.

use std::os::fd::OwnedFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use linux::process::Comm;
use linux::{Pid, PidFd};

use super::cgroup_path::CgroupPath;
use super::leaf::Leaf;
use crate::kill::Victim;
use crate::policy::Verdict;

/// The beginning of a command line, arguments separated by spaces.
pub type CommandLine = ArrayVec<u8, 200>;

/// What a choice cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Processes there are.
    pub processes: u32,
    /// Cheap readings (status), of which the upper bounds are made.
    pub cheap: u32,
    /// Exact readings (smaps_rollup).
    pub exact: u32,
    /// Samples (pagemap).
    pub sampled: u32,
    /// Exact readings and samples that were not done in time.
    pub late: u32,
    /// How long it took.
    pub took: Duration,
}

/// How well it is known what comes back when a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// All of its memory was read.
    Exact,
    /// A sample of its memory was read; with this standard error, in bytes.
    Sampled {
        /// The standard error.
        error: u64,
    },
    /// It is a guess, which shared memory makes too large or too small.
    Guess,
}

impl Precision {
    /// Whether it is exact.
    pub fn is_exact(self) -> bool {
        self == Self::Exact
    }

    /// The standard error in bytes, if it is a sample's.
    pub fn error(self) -> Option<u64> {
        match self {
            Self::Sampled { error } => Some(error),
            Self::Exact | Self::Guess => None,
        }
    }
}

/// Where a victim is searched for.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// Everywhere.
    All,
    /// In this cgroup and those below it.
    Below(&'a [u8]),
    /// This process, if it may still be killed.
    One(Pid),
}

/// A process that was chosen. What is said about it is about the process behind the pidfd.
#[derive(Debug)]
pub struct Choice {
    /// Signals go through this.
    pub pidfd: PidFd,
    /// Its oom_score_adj, open: reading it again allocates nothing in the kernel.
    pub oom_score_adj: Option<OwnedFd>,
    /// Its ID.
    pub pid: Pid,
    /// Its name.
    pub comm: Comm,
    /// Its user.
    pub uid: u32,
    /// Its cgroup in the v2 hierarchy; empty without one.
    pub cgroup: CgroupPath,
    /// What comes back when it dies, and `pool` with it, in bytes.
    pub bytes: u64,
    /// How well `bytes` are known.
    pub precision: Precision,
    /// Other processes without whose death hardly any of that comes back, as they share its memory by fork(2).
    pub pool: Pool,
    /// The size of its address space, in bytes.
    pub vm_size: u64,
    /// It dumps core, and keeps its memory for that.
    pub core_dumping: bool,
    /// Its leaf cgroup; `None` without the memory controller.
    pub group: Option<Group>,
    /// That cgroup, if there are others in it that may be killed with it.
    pub leaf: Option<Leaf>,
    /// Its parent, if that is known.
    pub parent: Option<Parent>,
    /// Its command line; empty if that is not known.
    pub command_line: CommandLine,
    /// The rule that decided about it.
    pub rule: Option<u16>,
    /// What the choice cost.
    pub cost: Cost,
}

/// The parent of a process, if that is in the PID namespace of /proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Its ID.
    pub pid: Pid,
    /// Its name.
    pub comm: Comm,
}

/// Processes that share one memory are killed together if there are no more of them, beside the first.
pub const MAX_POOL: usize = 31;
/// The others, of which nothing more is expected to come back.
pub type Pool = ArrayVec<Victim, MAX_POOL>;

impl Choice {
    /// Whether its own death gives its memory back, as no other process shares it.
    pub fn gives_back_alone(&self) -> bool {
        self.pool.is_empty() && !self.group.is_some_and(|group| group.shares)
    }
}

impl Group {
    /// Whether it is to die as a whole, if it may.
    pub fn dies_together(&self) -> bool {
        self.oom_group || self.shares
    }
}

impl From<Choice> for Victim {
    fn from(choice: Choice) -> Self {
        let Choice { pidfd, bytes, vm_size, core_dumping, .. } = choice;
        Self { pidfd, bytes, vm_size, core_dumping }
    }
}

/// What cgroups are to a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// The cgroup that holds most is chosen first.
    pub by_cgroup: bool,
    /// One may be killed as a whole.
    pub whole: bool,
}

/// A leaf cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Anonymous memory and swap in bytes.
    pub bytes: u64,
    /// Processes in it.
    pub processes: u32,
    /// No rule forbids to kill any of them.
    pub expendable: bool,
    /// memory.oom.group is set.
    pub oom_group: bool,
    /// Its processes share most of that by fork(2): it comes back when all of them die. Said only where it was not found
    /// out in time which of them do, or they are too many for a [`Pool`].
    pub shares: bool,
}

/// A process that was considered in the last choice.
#[derive(Clone, Copy, Debug)]
pub struct Considered {
    /// Its ID.
    pub pid: Pid,
    /// Its name.
    pub comm: Comm,
    /// Its user.
    pub uid: u32,
    /// What comes back at most, in bytes.
    pub bound: u64,
    /// What comes back, or the guess that was used for it, if it was read more closely.
    pub bytes: Option<u64>,
    /// How well `bytes` are known.
    pub precision: Precision,
    /// What the policy says.
    pub verdict: Verdict,
    /// What counts: from `bytes` if there are any, else from `bound`.
    pub score: u64,
}
