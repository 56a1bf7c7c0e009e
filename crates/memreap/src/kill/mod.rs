//! Finding a process, killing it and getting its memory back.

pub mod engine;
pub(crate) mod prestarted;
pub mod signal;
pub mod target;
