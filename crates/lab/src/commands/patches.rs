// SPDX-License-Identifier: GPL-2.0-only
//! `lab patches`.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use lab::context::Context;
use lab::kernel::patches;

/// Export the topics as patches for git am
#[derive(Args)]
pub struct PatchesArgs {
    /// The folder for the patches
    #[arg(long, value_name = "FOLDER", default_value = "patches")]
    pub out: PathBuf,
    /// Apply the patches with git am and build a kernel after each
    #[arg(long)]
    pub check: bool,
}

/// Exports the patches, and returns the exit code.
pub fn run(ctx: &Context, args: &PatchesArgs) -> Result<u8> {
    // git runs in other folders, so the path must be absolute.
    let out = std::path::absolute(&args.out).with_context(|| args.out.display().to_string())?;
    let exported = patches::export(ctx, &out)?;
    for patch in &exported {
        println!("{}", patch.display());
    }
    if args.check {
        patches::check(ctx, &exported)?;
    }
    Ok(0)
}
