// SPDX-License-Identifier: GPL-2.0-only
//! A cgroup that may be killed as a whole, and whether the same processes are still in it.

use linux::cgroup::Cgroup;
use linux::dir::OpenFile;
use linux::{Pid, scan};

use super::groups;

/// How many processes there may be for it to be known whether they are the same.
const MAX_KNOWN: usize = 512;
/// What cgroup.procs has at most: a process ID of seven digits and a newline for each of them, and one to see its end.
const MAX_PROCS_BYTES: usize = 8 * MAX_KNOWN + 1;

/// A leaf cgroup of which all processes may be killed.
#[derive(Debug)]
pub struct Leaf {
    cgroup: Cgroup,
    /// Its cgroup.procs, open, and a hash of who was in it; `None` when there are too many, or some below it as well.
    procs: Option<(OpenFile, u64)>,
}

impl Leaf {
    /// `members` are the processes in it, of which each may be killed.
    pub fn new(cgroup: Cgroup, members: &[Pid]) -> Self {
        let procs = cgroup.dir().open_file(c"cgroup.procs").ok();
        let mut leaf = Self { cgroup, procs: procs.map(|file| (file, hash(members.iter().copied().map(Some)))) };
        // That also has the kernel allocate what later readings need.
        if !leaf.is_unchanged() {
            leaf.procs = None;
        }
        leaf
    }

    /// Whether the processes in it are those that it was made with, and no cgroup is below it. The kernel allocates
    /// nothing for that, so it does not wait when memory is short.
    pub fn is_unchanged(&self) -> bool {
        let Some((file, before)) = &self.procs else { return false };
        let is_same = |text: &[u8]| hash(scan::ids(text)) == *before;
        file.read(&mut [0; MAX_PROCS_BYTES]).is_ok_and(is_same) && self.cgroup.dir().is_leaf()
    }

    /// Returns the cgroup.
    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// Returns the cgroup, and closes the rest.
    pub fn into_cgroup(self) -> Cgroup {
        self.cgroup
    }
}

/// Returns a hash of processes in any order; `None` for one that is outside of our PID namespace.
fn hash(pids: impl Iterator<Item = Option<Pid>>) -> u64 {
    pids.fold(0, |sum, pid| sum.wrapping_add(groups::hash(&pid.map_or(0, Pid::get).to_ne_bytes())))
}
