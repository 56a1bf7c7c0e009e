// SPDX-License-Identifier: GPL-2.0-only
//! Memory in the states that scenarios need: touched or not, merged by KSM, and swap space.

pub mod ksm;
pub mod pagemap;
pub mod region;
pub mod swap;

/// Bytes of a page.
pub const PAGE_BYTES: usize = if cfg!(feature = "pages-64k") { 64 << 10 } else { 4 << 10 };
