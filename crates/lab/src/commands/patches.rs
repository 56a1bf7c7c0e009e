// SPDX-License-Identifier: GPL-2.0-only
//! `lab patches`.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::WrongUsage;
use crate::context::Context;
use crate::kernel::{patches, series, topics};

/// Export the topics as patches for git am
#[derive(Args)]
pub struct PatchesArgs {
    /// Instead of the topics, the patches of kernel/upstream: what stands alone, small enough to be sent to Linux
    #[arg(long)]
    pub upstream: bool,
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
    let topics = if args.upstream { topics::upstream(&ctx.repo)? } else { topics::load(&ctx.repo, &ctx.series)? };
    let newest = series::names(&ctx.repo)?.pop().unwrap_or_default();
    if args.upstream && ctx.series.name != newest {
        return Err(
            WrongUsage(format!("the patches of kernel/upstream are for {newest}: lab --series {newest} ...")).into()
        );
    }
    let cover_letter = args.upstream.then(|| ctx.in_repo("kernel/upstream/cover-letter.txt"));
    let exported = patches::export(ctx, &topics, cover_letter.as_deref(), &out)?;
    for patch in &exported {
        println!("{}", patch.display());
    }
    if args.check {
        patches::check(ctx, &topics, &exported[usize::from(args.upstream)..])?;
    }
    Ok(0)
}
