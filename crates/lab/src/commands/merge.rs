// SPDX-License-Identifier: GPL-2.0-only
//! `lab merge`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::ab::experiment;
use crate::ab::results::Results;
use crate::context::Context;
use crate::{WrongUsage, host};

use super::ab;

/// Put the shards of a comparison together
///
/// Writes results.json and report.html as `lab ab` does.
#[derive(Args)]
#[command(after_help = "Example, on two machines and then on one of them:
  lab ab reap --shard 1/2
  lab ab reap --shard 2/2
  lab merge one/results.json two/results.json")]
pub struct MergeArgs {
    /// The results.json of each shard
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Print results.json on stdout instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Puts the shards together, and returns the exit code.
pub fn run(ctx: &Context, args: MergeArgs) -> Result<u8> {
    let read = |path: PathBuf| Results::read(&path).map(|results| (path, results));
    let shards = args.files.into_iter().map(read).collect::<Result<_>>()?;
    let results = experiment::merge(shards).map_err(|e| WrongUsage(format!("{e:#}")))?;
    let turn = host::lock(ctx, &ctx.out)?;
    experiment::write(&results, &ctx.out)?;
    drop(turn);
    ab::show(&results, args.json)?;
    Ok(ab::exit_code(&results, !results.anything_worse()))
}
