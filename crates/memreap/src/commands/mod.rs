// SPDX-License-Identifier: GPL-2.0-only
//! What a user can type, and what each command does.

mod args;
mod daemon;
mod doctor;
mod generate;
mod history;
mod interrupt;
mod kill;
mod pick;
mod watch;

use anyhow::Result;

use crate::exit::Exit;
use args::Command;

pub use args::Cli;

/// Runs the command that the arguments name.
///
/// # Errors
/// As the command.
pub fn run(cli: Cli) -> Result<Exit> {
    match cli.command {
        Command::Kill(args) => kill::run(&args.resolve()),
        Command::Pick(args) => pick::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::History(args) => history::run(&args),
        Command::Daemon(args) => daemon::run(&args),
        Command::Doctor(args) => doctor::run(args.json),
        Command::Generate(args) => generate::run(&args),
    }
}
