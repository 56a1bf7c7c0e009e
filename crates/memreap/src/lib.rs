// SPDX-License-Identifier: GPL-2.0-only
//! memreap gets memory back, fast and predictably: the command.
//!
//! `commands` has what a user can type and what each command does. [`kill`] finds the processes that a user
//! names, kills them and gets their memory back.
//!
//! The [`daemon`] finds its victims itself: [`choice`] finds the process, or the cgroup, that gives most
//! memory back, by the [`policy`] that [`config`] reads from a file.

pub mod choice;
mod commands;
pub mod config;
pub mod daemon;
pub mod exit;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod kill;
pub mod policy;
pub mod units;
mod users;

use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use commands::Cli;
use exit::Exit;

/// The program.
pub fn main() -> ExitCode {
    // A reader of the output that stops early is no error, of whatever command.
    match commands::run(Cli::parse()).or_else(|e| Exit::Done.after(Err(e))) {
        Ok(exit) => exit.into(),
        Err(e) => {
            say(format_args!("memreap: {e:#}"));
            Exit::Internal.into()
        }
    }
}

/// Writes a line to stderr. It is lost where nobody can read it: that fails nothing.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
