// SPDX-License-Identifier: GPL-2.0-only
//! What the daemon does to processes: kills them, frees their memory, and boosts them.

pub mod boost;
pub mod cgroup_kill;
pub mod dying;
pub mod reapers;
