//! When to act, and what to do next.

pub mod control_loop;
pub mod governor;
#[cfg(test)]
mod simulation;
