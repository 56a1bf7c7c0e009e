// SPDX-License-Identifier: GPL-2.0-only
//! The error of a run that ended because of a guest.

use std::fmt;
use std::path::PathBuf;

use crate::vm::channel::Outcome;

/// The error of a run that ended because of a guest. Callers get it by [`anyhow::Error::downcast_ref`].
#[derive(Debug)]
pub struct Failure {
    /// The boot's name, for example `pair 3/8, memreap, reap/multi`.
    pub boot: String,
    /// What went wrong.
    pub cause: Cause,
    /// The folder with all logs of the boot.
    pub logs: PathBuf,
    /// The relevant parts of the logs; see [`crate::vm::boot::Boot::tail`].
    pub tail: String,
}

/// What was wrong with a boot.
#[derive(Debug)]
pub enum Cause {
    /// The guest failed.
    Outcome(Outcome),
    /// The guest succeeded but delivered other metrics than the other boots.
    Metrics(String),
}

impl Failure {
    /// Returns the lab's exit code: 3 if QEMU failed, 4 if the guest failed.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.cause {
            Cause::Outcome(Outcome::Qemu(_)) => 3,
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
