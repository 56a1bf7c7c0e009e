// SPDX-License-Identifier: GPL-2.0-only
//! Typed, policy-free access to what Linux offers for killing processes and for memory.
//!
//! One module per source in the kernel. Each has a parser, a pure function over bytes, and a
//! reader that takes a [`Root`], so that tests can read a tree of their own. Works on every
//! kernel since 5.15; what came later is an `Option` or has a probe.
//!
//! Input is not trusted: a process chooses its own name and command line, and a container may
//! mount what it likes over /proc. Nothing here panics on it, reads are bounded, a number that
//! does not fit is an error, and what is displayed has its control characters escaped
//! ([`escape()`]).

mod error;
mod escape;
mod pid;
mod read;
mod root;
mod source;
mod text;

pub mod cgroup;
pub mod child;
pub mod dir;
pub mod features;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod maps;
pub mod meminfo;
pub mod mountinfo;
pub mod own_memory;
pub mod pagemap;
pub mod pidfd;
pub mod poll;
pub mod process;
pub mod psi;
pub mod release;
pub mod scan;
pub mod sched;
pub mod seccomp;
pub mod signal;
pub mod swaps;
pub mod vmstat;
pub mod zram;

pub use dir::Dir;
pub use error::{Error, Result};
pub use escape::{Escaped, escape};
pub use pid::{InvalidPid, Pid};
pub use pidfd::PidFd;
pub use process::Process;
pub use root::Root;
pub use source::Source;
