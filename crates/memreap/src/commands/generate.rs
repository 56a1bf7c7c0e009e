// SPDX-License-Identifier: GPL-2.0-only
//! Prints man pages, shell completions and the built-in configuration.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;

use super::args::{Cli, Generate, GenerateArgs};
use crate::config::BUILT_IN;
use crate::exit::Exit;

/// Writes what was asked for.
pub fn run(args: &GenerateArgs) -> Result<Exit> {
    match &args.what {
        Generate::Man { folder } => {
            std::fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
                .with_context(|| format!("cannot write man pages to {}", linux::escape(folder)))?;
        }
        Generate::Completions { shell } => {
            let mut out = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "memreap", &mut out);
            std::io::stdout().write_all(&out)?;
        }
        Generate::Config => std::io::stdout().write_all(BUILT_IN.as_bytes())?,
    }
    Ok(Exit::Done)
}
