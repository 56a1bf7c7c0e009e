// SPDX-License-Identifier: GPL-2.0-only
//! A comparison that ended because of a guest.

use std::fmt;
use std::path::PathBuf;

use crate::vm::channel::Outcome;

/// A comparison that ended because of a guest. Reaches the caller through
/// [`anyhow::Error::downcast_ref`].
#[derive(Debug)]
pub struct Failure {
    /// Which boot: `pair 3/8, memreap, reap/multi`.
    pub boot: String,
    /// What went wrong.
    pub cause: Cause,
    /// The boot's folder with all its logs.
    pub logs: PathBuf,
    /// The evidence: the ends of the logs that matter; see [`Boot::tail`].
    pub tail: String,
}

/// What was wrong with a boot.
#[derive(Debug)]
pub enum Cause {
    /// The guest did not end as it should.
    Outcome(Outcome),
    /// The guest ended well, but what it delivered is not what the other boots deliver.
    Metrics(String),
}

impl Failure {
    /// The exit code for it: 3 when the host's QEMU is at fault, 4 when the guest is.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.cause {
            Cause::Outcome(Outcome::Qemu { .. }) => 3,
            _ => 4,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outcome(outcome) => write!(f, "{outcome}"),
            Self::Metrics(what) => f.write_str(what),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n{}\n", self.boot, self.cause, self.tail.trim_end())?;
        write!(f, "all logs of this boot: {}", self.logs.display())
    }
}

impl std::error::Error for Failure {}
