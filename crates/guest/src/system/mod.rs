// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's interfaces that several scenarios use. Nothing here depends on the rest of the crate.

pub mod cgroup;
pub mod clock;
pub mod counters;
pub mod sched;
