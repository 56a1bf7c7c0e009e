//! memreap gets memory back, fast and predictably: the command.
//!
//! What a user types is in [`args`], what it means in the types that the commands take
//! ([`kill::Plan`]). A process is chosen and held by [`target`], and killed by [`strike`].

pub mod args;
pub mod doctor;
pub mod exit;
mod generate;
mod interrupt;
pub mod kill;
mod progress;
pub mod report;
pub mod signal;
pub mod strike;
pub mod target;
pub mod units;
mod users;

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
        Command::Doctor(args) => doctor::run(args.json),
        Command::Generate(args) => generate::run(&args),
    }
}
