//! Memory in the states that scenarios need: touched, merged by KSM, and space to swap it to.

pub mod ksm;
pub mod region;
pub mod swap;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
