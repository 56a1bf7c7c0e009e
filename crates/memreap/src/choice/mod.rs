// SPDX-License-Identifier: GPL-2.0-only
//! Chooses the victim: exactly, at little cost.
//!
//! What counts is what comes back when a process dies: its private memory without pages of files, and its
//! share of swap. Only a walk of its page tables says how much that is (smaps_rollup), which is expensive: of large
//! processes a sample of the pages says it (`page_sample`).
//! What /proc/PID/status says (`RssAnon`, `RssShmem` and `VmSwap`) is cheap, and an upper bound once it is
//! known how far its counters can be off. So all processes are ranked by their upper bounds, and read exactly
//! from the top down until the next bound cannot beat the best exact score: the same victim as if all had
//! been read (`search`).
//!
//! With thousands of processes even the cheap readings take too long at the time of the choice. They are made
//! beforehand ([`Chooser::refresh`]), a part at a time, and stay upper bounds because the system's own
//! counters say how much can have been allocated since (`table`). Only processes whose bound could still
//! beat the best are read again.
//!
//! Of memory that several processes share by fork(2) none of them gives back anything alone. Where that is far more
//! than what the best process gives back, all of them are the victim together (`pool`).
//!
//! (A bound grows by all that the system allocates, because it could have been this process. When that is
//! more than the best process has, every process is a candidate again, and only a reading excludes it, in
//! whatever order. So refreshes must be more frequent than the time in which the system allocates as much as
//! the largest process holds.)

mod cgroup_path;
mod choose;
mod chooser;
mod examine;
mod groups;
mod holder;
mod leaf;
mod membership;
mod page_sample;
mod pool;
mod population;
mod readers;
mod result;
mod search;
mod selection;
mod standing;
mod table;
#[cfg(test)]
mod tests;
mod thread;

pub use cgroup_path::{CgroupPath, MAX_CGROUP_PATH_BYTES, is_below};
pub use chooser::Chooser;
pub use holder::Holder;
pub use leaf::Leaf;
pub use result::{Choice, CommandLine, Considered, Cost, Group, Grouping, MAX_POOL, Parent, Pool, Precision, Scope};
pub use standing::Standing;
pub use thread::{ChooserThread, Danger, NoVictim};
