// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's events in trace instances.

pub mod locks;
pub mod pte_lock;
pub mod rmap;
pub mod tracefs;
