// SPDX-License-Identifier: GPL-2.0-only
//! `lab series`.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use lab::context::Context;
use lab::kernel::series;

/// Export the topics as patches for git am
#[derive(Args)]
pub struct SeriesArgs {
    /// The folder for the patches
    #[arg(long, value_name = "FOLDER", default_value = "series")]
    pub out: PathBuf,
    /// Apply the patches with git am and build a kernel after each
    #[arg(long)]
    pub check: bool,
}

/// Exports the series, and returns the exit code.
pub fn run(ctx: &Context, args: &SeriesArgs) -> Result<u8> {
    // git runs in other folders, so the path must be absolute.
    let out = std::path::absolute(&args.out).with_context(|| args.out.display().to_string())?;
    let patches = series::export(ctx, &out)?;
    for patch in &patches {
        println!("{}", patch.display());
    }
    if args.check {
        series::check(ctx, &patches)?;
    }
    Ok(0)
}
