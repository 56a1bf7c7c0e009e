//! memreap gets memory back, fast and predictably: the command.
//!
//! What a user types is in [`args`], what it means in the types that the commands take
//! ([`kill::Plan`]). A process that the user names is found and held by [`target`], and killed by [`strike`].
//!
//! The [`daemon`] finds its victims by itself: [`choice`] looks for the process, or the cgroup, that gives
//! most memory back, by the [`policy`] that [`config`] reads from a file.

pub mod args;
pub mod choice;
pub mod config;
pub mod daemon;
pub mod doctor;
pub mod exit;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod generate;
mod interrupt;
pub mod kill;
mod pick;
pub mod policy;
mod progress;
pub mod report;
pub mod signal;
mod standing;
pub mod strike;
pub mod target;
pub mod units;
mod users;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;

use args::{Cli, Command};
use exit::Exit;

/// The program.
pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(exit) => exit.into(),
        Err(e) => {
            eprintln!("memreap: {e:#}");
            // Whoever reads our output and stops early, such as head(1), wants no more of it.
            let broken_pipe = e
                .downcast_ref::<std::io::Error>()
                .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe);
            if broken_pipe { Exit::Done } else { Exit::Internal }.into()
        }
    }
}

fn run(cli: Cli) -> Result<Exit> {
    match cli.command {
        Command::Kill(args) => kill::run(&args.resolve()),
        Command::Pick(args) => pick::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Daemon(args) => daemon::run(&args),
        Command::Doctor(args) => doctor::run(args.json),
        Command::Generate(args) => generate::run(&args),
    }
}
