// SPDX-License-Identifier: GPL-2.0-only
//! What `memreap kill` is to do.

use std::time::Duration;

use crate::kill::target::Selector;
use crate::kill::{Method, SignalFirst};

/// The arguments, with all defaults applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The processes to kill.
    pub selectors: Vec<Selector>,
    /// A name may fit several processes: kill them all.
    pub all: bool,
    /// Kill protected processes, too.
    pub force: bool,
    /// Kill the other targets when there are problems with some.
    pub keep_going: bool,
    /// A signal before SIGKILL.
    pub signal_first: Option<SignalFirst>,
    /// How long to wait for the exit after SIGKILL.
    pub timeout: Duration,
    /// How to get the memory back; `None` is the best that the kernel has.
    pub method: Option<Method>,
    /// Send no signal.
    pub dry_run: bool,
    /// Measure what comes back by walking the page tables (smaps_rollup).
    pub exact: bool,
    /// What to print.
    pub show: Show,
}

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Lines for people.
    Text,
    /// One JSON object.
    Json,
    /// Errors only.
    Nothing,
}
