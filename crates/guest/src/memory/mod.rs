//! Memory in the states that scenarios need: touched, merged by KSM, and space to swap it to.

pub mod ksm;
pub mod region;
pub mod swap;
