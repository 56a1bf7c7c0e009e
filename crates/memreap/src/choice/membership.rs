// SPDX-License-Identifier: GPL-2.0-only
//! Which processes are in which cgroup.

use std::time::{Duration, Instant};

use linux::Pid;

use super::examine::Examiner;
use super::groups::Groups;
use super::table::Table;

/// How old the list of cgroups may be.
const MAX_LIST_AGE: Duration = Duration::from_millis(500);

/// The cgroups, and the members of those that were listed last.
pub(super) struct Membership {
    /// `None` without the memory controller.
    pub(super) groups: Option<Groups>,
    /// When the cgroups were found.
    walked: Option<Instant>,
    /// Processes in one cgroup, or in it and below, in order.
    pub(super) members: Vec<Pid>,
    /// How many processes are in the leaf that was listed last, also when they are too many.
    pub(super) leaf_processes: u32,
}

impl Membership {
    pub(super) fn new(groups: Option<Groups>, max_processes: usize) -> Self {
        Self { groups, walked: None, members: Vec::with_capacity(max_processes), leaf_processes: 0 }
    }

    /// Finds the cgroups, unless that was done a short time ago.
    pub(super) fn find_cgroups(&mut self, examiner: &mut Examiner) {
        if let Some(groups) = &mut self.groups
            && self.walked.is_none_or(|walked| walked.elapsed() > MAX_LIST_AGE)
        {
            groups.walk(b"", &mut examiner.names);
            self.walked = Some(Instant::now());
        }
    }

    /// Finds a cgroup and those below it.
    pub(super) fn find_below(&mut self, path: &[u8], examiner: &mut Examiner) {
        if let Some(groups) = &mut self.groups {
            groups.walk(path, &mut examiner.names);
            // Only these cgroups are known now.
            self.walked = None;
        }
    }

    /// Lists the processes in the cgroups that were found, and adds them to the table.
    pub(super) fn list_found(&mut self, examiner: &mut Examiner, table: &mut Table) {
        self.members.clear();
        let Some(groups) = &self.groups else { return };
        let members = &mut self.members;
        groups.all_members(&mut examiner.buffer, |pid| {
            if members.len() < members.capacity() {
                members.extend(pid);
            }
        });
        members.sort_unstable();
        for pid in members {
            table.add(*pid);
        }
    }

    /// Lists the processes in a leaf; false when they cannot be read, or are too many.
    pub(super) fn list_leaf(&mut self, leaf: usize, examiner: &mut Examiner) -> bool {
        self.members.clear();
        let Some(groups) = &self.groups else { return false };
        let (members, processes) = (&mut self.members, &mut self.leaf_processes);
        *processes = 0;
        let mut all = true;
        let read = groups.members(leaf, &mut examiner.buffer, |pid| {
            *processes += 1;
            all &= pid.is_some() && members.len() < members.capacity();
            if all {
                members.extend(pid);
            }
        });
        members.sort_unstable();
        read && all
    }
}
