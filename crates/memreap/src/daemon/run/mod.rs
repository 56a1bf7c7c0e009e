//! The running daemon: its start, its event loop, and what it reads of the system.

mod event_loop;
mod footprint;
mod limits;
pub mod sampler;
pub mod sandbox;
mod signals;
pub mod system;

pub use event_loop::run;
