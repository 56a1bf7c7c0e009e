// SPDX-License-Identifier: GPL-2.0-only
//! Leaf cgroups, and what each of them holds.
//!
//! **When a group counts.** A group counts for what comes back when all of it is killed, and only when all of
//! it may be: no member is never killed, or all but protected from it. Otherwise it counts for nothing, and its
//! members for themselves. A process counts for what its own death gives back. The greater of the best group and the best process wins.
//! So a service of a hundred small processes comes after one larger process elsewhere, many processes of one
//! job that take memory come before a large process that does not, and memory that the members of a group
//! share counts once.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem::MaybeUninit;
use std::path::Path;

use linux::cgroup::Cgroup;
use linux::{Dir, Pid, scan};

use super::cgroup_path::{CgroupPath, is_below};
use super::table::{Entry, Reading};
use crate::policy::Verdict;

/// The most cgroups that are known.
pub(super) const MAX_NODES: usize = 4000;
/// A group with a member whose memory counts by less than this is not killed. A shell counts for more: it is in
/// every group that a user has started.
const MIN_EXPENDABLE_FACTOR: f64 = 0.1;
/// The index of no cgroup.
const NO_INDEX: u16 = u16::MAX;

/// Returns a hash of a path.
pub(super) fn hash(path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

/// The v2 hierarchy, with the memory controller.
pub(super) struct Groups {
    root: Dir,
    /// The cgroups, each after the one above it.
    nodes: Vec<Node>,
    /// The hashes of their paths, in order.
    index: Vec<(u64, u16)>,
}

struct Node {
    path: CgroupPath,
    above: u16,
    /// It has memory.current.
    memory: bool,
    /// One below it has.
    memory_below: bool,
    tally: Tally,
}

/// What is known of the members of a cgroup.
#[derive(Clone, Copy)]
pub(super) struct Tally {
    /// Members that have memory.
    pub(super) processes: u32,
    /// One of them must not be killed, or is all but protected from it by its weight, as a session is.
    pub(super) protected: bool,
    /// What the policy says about the member that it would rather kill than any other: no group counts for more.
    pub(super) verdict: Verdict,
    /// What the members have, in bytes, and what that counts.
    bytes: u64,
    counts: u64,
    /// What comes back of them at most.
    most: u64,
}

impl Tally {
    pub(super) const EMPTY: Self = Self {
        processes: 0,
        protected: false,
        verdict: Verdict { factor: 0.0, ..Verdict::PLAIN },
        bytes: 0,
        counts: 0,
        most: 0,
    };

    /// Counts a member. One that has no memory, or is dying, does not count.
    pub(super) fn count(&mut self, reading: &Reading) {
        if !reading.has_memory || reading.dying_until.is_some() {
            return;
        }
        self.processes += 1;
        self.protected |= reading.verdict.never || reading.verdict.factor < MIN_EXPENDABLE_FACTOR;
        let rank = |verdict: &Verdict| (verdict.factor, verdict.offset);
        if rank(&reading.verdict) > rank(&self.verdict) {
            self.verdict = reading.verdict;
        }
        self.bytes = self.bytes.saturating_add(reading.estimate());
        self.counts = self.counts.saturating_add(reading.verdict.score(reading.estimate()));
        self.most = self.most.saturating_add(reading.upper_bound(&reading.counters));
    }

    /// Returns what comes back of a cgroup that is charged for so much. What its members do not hold does not: files on
    /// a tmpfs, also in swap, and memory of processes that were moved elsewhere.
    pub(super) fn comes_back(&self, charged: u64) -> u64 {
        charged.min(self.most)
    }

    /// Returns what counts in the choice, of a group that gives back so much: as much of each byte as of the members'
    /// on average. A small one that is preferred, or protected, decides about its own.
    pub(super) fn score(&self, bytes: u64) -> u64 {
        let counts = u128::from(bytes) * u128::from(self.counts) / u128::from(self.bytes.max(1));
        // 0 is for a process that must not be killed.
        u64::try_from(counts).unwrap_or(u64::MAX).min(self.verdict.score(bytes)).max(1)
    }

    /// All of them may be killed.
    pub(super) fn expendable(&self) -> bool {
        self.processes > 0 && !self.protected
    }
}

impl Groups {
    pub(super) fn open(path: &Path) -> Option<Self> {
        let root = Dir::open(path).ok()?;
        let (nodes, index) = (Vec::with_capacity(MAX_NODES), Vec::with_capacity(MAX_NODES));
        Some(Self { root, nodes, index })
    }

    /// Finds the cgroups at `start` and below again. What vanishes meanwhile is left out.
    pub(super) fn walk(&mut self, start: &[u8], names: &mut [MaybeUninit<u8>]) {
        self.nodes.clear();
        self.index.clear();
        let mut path = CgroupPath::new();
        if path.try_extend_from_slice(start.strip_suffix(b"/").unwrap_or(start)).is_ok() {
            self.nodes.push(Node::new(path, NO_INDEX));
        }
        let mut next = 0;
        while next < self.nodes.len() {
            let above = u16::try_from(next).unwrap_or(NO_INDEX);
            let cgroup = self.cgroup(&self.nodes[next].path);
            let dir = cgroup.as_ref().map(Cgroup::dir);
            self.nodes[next].memory = dir.is_some_and(|dir| dir.has(c"memory.current"));
            // A cgroup has some sixty files: listing one takes several times as long as asking.
            if let Some(dir) = dir.filter(|dir| !dir.is_leaf()) {
                // When it cannot be listed to its end, the rest is left out.
                let _ = dir.for_each_entry(names, |name, directory| {
                    let name = name.to_bytes();
                    if directory {
                        let mut path = self.nodes[next].path.clone();
                        let fits = path.try_push(b'/').is_ok() && path.try_extend_from_slice(name).is_ok();
                        if fits && self.nodes.len() < MAX_NODES {
                            self.nodes.push(Node::new(path, above));
                        } else {
                            // Not a leaf, though what is below is not known.
                            self.nodes[next].memory_below = true;
                        }
                    }
                    true
                });
            }
            let node = &self.nodes[next];
            if node.memory && node.above != NO_INDEX {
                let above = usize::from(node.above);
                self.nodes[above].memory_below = true;
            }
            next += 1;
        }
        for (i, node) in self.nodes.iter().enumerate() {
            self.index.push((hash(node.full()), u16::try_from(i).unwrap_or(NO_INDEX)));
        }
        self.index.sort_unstable();
    }

    /// Returns the leaf that counts the memory of the processes in a cgroup, which is given by its hash.
    pub(super) fn leaf(&self, cgroup: u64) -> Option<usize> {
        let at = self.index.binary_search_by_key(&cgroup, |(hash, _)| *hash).ok()?;
        let mut index = self.index[at].1;
        loop {
            let node = self.nodes.get(usize::from(index))?;
            if node.memory {
                // Not the root: that is no group.
                let leaf = !node.memory_below && !node.path.is_empty();
                return leaf.then_some(usize::from(index));
            }
            index = node.above;
        }
    }

    /// Counts all processes as members of their leaves.
    pub(super) fn tally(&mut self, entries: &[Entry]) {
        for node in &mut self.nodes {
            node.tally = Tally::EMPTY;
        }
        for entry in entries.iter().filter(|entry| !entry.gone) {
            if let Some(reading) = &entry.reading
                && let Some(leaf) = self.leaf(reading.cgroup_hash)
            {
                self.nodes[leaf].tally.count(reading);
            }
        }
    }

    /// Calls `each` with the groups that may be killed, an upper bound of what they hold in bytes, and what
    /// the policy says.
    pub(super) fn expendable(&self, mut each: impl FnMut(usize, u64, &Verdict)) {
        for (i, node) in self.nodes.iter().enumerate() {
            if node.tally.expendable()
                && let Some(bytes) = self.bound(i)
            {
                each(i, bytes, &node.tally.verdict);
            }
        }
    }

    /// All memory that it is charged for, and its swap.
    fn bound(&self, index: usize) -> Option<u64> {
        let cgroup = self.cgroup(&self.nodes[index].path)?;
        let dir = cgroup.dir();
        let mut buffer = [0; 32];
        let charged = scan::size(dir.read(c"memory.current", &mut buffer).ok()?)?;
        Some(charged.saturating_add(swap(dir)))
    }

    /// Returns anonymous memory and swap in bytes, and whether memory.oom.group is set.
    pub(super) fn bytes(&self, index: usize, buffer: &mut [u8]) -> Option<(u64, bool)> {
        let cgroup = self.cgroup(&self.nodes[index].path)?;
        let dir = cgroup.dir();
        let anon = scan::keyed(dir.read(c"memory.stat", buffer).ok()?, b"anon")?;
        let together = dir.read(c"memory.oom.group", buffer).ok() == Some(b"1\n");
        Some((anon.saturating_add(swap(dir)), together))
    }

    /// Calls `each` with every process in the cgroup and those below; `None` for one that is outside of
    /// our PID namespace. False when not all of them could be told.
    pub(super) fn members(&self, index: usize, buffer: &mut [u8], mut each: impl FnMut(Option<Pid>)) -> bool {
        let path = &self.nodes[index].path;
        self.nodes.iter().filter(|node| is_below(&node.path, path)).all(|node| {
            let Some(cgroup) = self.cgroup(&node.path) else { return false };
            match cgroup.dir().read(c"cgroup.procs", buffer) {
                Ok(text) => {
                    scan::ids(text).for_each(&mut each);
                    true
                }
                Err(_) => false,
            }
        })
    }

    /// Calls `each` with every process that is in one of the cgroups that were found; `None` for one that is
    /// outside of our PID namespace.
    pub(super) fn all_members(&self, buffer: &mut [u8], mut each: impl FnMut(Option<Pid>)) {
        for node in &self.nodes {
            // One that vanishes has no processes.
            if let Some(cgroup) = self.cgroup(&node.path)
                && let Ok(text) = cgroup.dir().read(c"cgroup.procs", buffer)
            {
                scan::ids(text).for_each(&mut each);
            }
        }
    }

    /// Opens the leaf that counts the memory of the processes in a cgroup.
    pub(super) fn open_leaf(&self, cgroup: u64) -> Option<Cgroup> {
        self.cgroup(&self.nodes[self.leaf(cgroup)?].path)
    }

    /// Opens the cgroup with this path.
    pub(super) fn cgroup(&self, path: &[u8]) -> Option<Cgroup> {
        Cgroup::open(&self.root, path).ok()
    }
}

impl Node {
    fn new(path: CgroupPath, above: u16) -> Self {
        Self { path, above, memory: false, memory_below: false, tally: Tally::EMPTY }
    }

    /// Its path as in /proc/PID/cgroup.
    fn full(&self) -> &[u8] {
        if self.path.is_empty() { b"/" } else { &self.path }
    }
}

/// What it has in swap, in bytes; 0 when swap is not counted.
fn swap(dir: &Dir) -> u64 {
    let mut buffer = [0; 32];
    dir.read(c"memory.swap.current", &mut buffer).ok().and_then(scan::size).unwrap_or(0)
}

#[cfg(test)]
mod tests;
