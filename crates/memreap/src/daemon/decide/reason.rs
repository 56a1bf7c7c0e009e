// SPDX-License-Identifier: GPL-2.0-only
//! Why the daemon kills or cannot, and how a kill ends.

use crate::choice::NoVictim;

/// Why a victim is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Hardly any memory and swap are left.
    Critical,
    /// Tasks have stalled for too long.
    Stall,
}

impl Reason {
    /// Its name in output and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Stall => "stall",
        }
    }
}

/// Why no kill ends a shortage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// There is nobody to kill, or nobody is known.
    NoVictim(NoVictim),
    /// The kills so far did not help.
    KillsFail,
}

/// How a kill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The memory is back.
    Back,
    /// It was gone before a signal reached it.
    Gone,
    /// The deadline passed before the memory was back, or another process keeps it.
    Late,
    /// No signal was sent: a dry run.
    DryRun,
    /// The kernel refused the signal with this error number.
    Refused(i32),
}

impl Ending {
    /// Its name in output and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Back => "back",
            Self::Gone => "gone",
            Self::Late => "late",
            Self::DryRun => "dry-run",
            Self::Refused(_) => "refused",
        }
    }
}
