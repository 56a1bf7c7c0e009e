//! What the kernel says about its own work: events in a trace instance, and its log.

pub mod kmsg;
pub mod locks;
pub mod pte_lock;
pub mod rmap;
pub mod tracefs;
