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
    /// Little is left: it is only asked to end, while there is time.
    Polite,
}

impl Reason {
    /// Its name in output and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Stall => "stall",
            Self::Polite => "polite",
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

/// What came of the command that runs before a kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Before {
    /// There is none.
    #[default]
    None,
    /// It ended, and the kill went on.
    Passed,
    /// It said that it has freed something.
    Freed,
    /// It could not be run, or failed.
    Failed,
    /// It did not end in time.
    TimedOut,
    /// It was not run, or not waited for, because memory and swap were used up.
    Skipped,
}

impl Before {
    /// Its name in output and files; empty without a command.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Passed => "passed",
            Self::Freed => "freed",
            Self::Failed => "failed",
            Self::TimedOut => "timed-out",
            Self::Skipped => "skipped",
        }
    }
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
    /// No signal was sent: the reason was gone when the command before the kill had ended.
    Averted,
    /// It has exited after the signal that asks for it.
    Exited,
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
            Self::Averted => "averted",
            Self::Exited => "exited",
        }
    }
}
