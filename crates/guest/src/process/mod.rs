//! Processes that a scenario starts: to kill them, to load the CPUs, or to see what they suffer.

pub mod child;
pub mod foreground;
pub mod hogs;
pub mod population;
pub mod swapped;
pub mod victim;
