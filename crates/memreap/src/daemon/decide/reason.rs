// SPDX-License-Identifier: GPL-2.0-only
//! Why the daemon kills, and how a kill ends.

/// Why a victim is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// At the present rate memory will run out within the horizon.
    Forecast,
    /// Hardly any memory is available.
    Critical,
    /// All tasks stall.
    Stall,
}

impl Reason {
    /// Its name in output and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forecast => "forecast",
            Self::Critical => "critical",
            Self::Stall => "stall",
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
    /// The deadline passed before the memory was back.
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
