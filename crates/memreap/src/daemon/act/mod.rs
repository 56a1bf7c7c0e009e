//! What the daemon does to processes.

pub mod boost;
pub mod cgroup_kill;
pub mod probe;
pub mod reapers;
mod threads;
pub mod throttle;
