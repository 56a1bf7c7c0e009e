// SPDX-License-Identifier: GPL-2.0-only
//! Runs the daemon: its start, its event loop, its sandbox, and what it reads of the system.

#[cfg(target_pointer_width = "64")]
mod calls;
/// The library that makes the filter knows no 32-bit architecture.
#[cfg(not(target_pointer_width = "64"))]
mod calls {
    use std::io;

    pub(super) fn restrict_calls() -> io::Result<()> {
        Err(io::Error::other("not implemented for 32-bit architectures"))
    }
}
mod event_loop;
mod limits;
mod rehearsal;
pub mod sampler;
mod sandbox;
mod signals;
mod start;
pub mod system;

pub use start::run;
