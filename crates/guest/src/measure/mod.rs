//! Free memory over time, and when what a killed process had was back.

pub mod free_memory;
pub mod recovery;
