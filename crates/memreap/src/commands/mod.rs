//! The commands: `memreap kill`, `pick`, `watch`, `daemon`, `doctor`.

pub mod args;
mod doctor;
mod generate;
mod interrupt;
pub mod kill;
mod pick;
mod watch;

use anyhow::Result;

use crate::daemon;
use crate::exit::Exit;
use args::{Cli, Command};

/// Runs the command that the arguments name.
///
/// # Errors
/// As the command.
pub fn run(cli: Cli) -> Result<Exit> {
    match cli.command {
        Command::Kill(args) => kill::run(&args.resolve()),
        Command::Pick(args) => pick::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Daemon(args) => daemon::run::run(&args),
        Command::Doctor(args) => doctor::run(args.json),
        Command::Generate(args) => generate::run(&args),
    }
}
