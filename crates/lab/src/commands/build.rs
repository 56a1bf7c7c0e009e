// SPDX-License-Identifier: GPL-2.0-only
//! `lab build`.

use anyhow::Result;
use clap::Args;

use crate::context::Context;
use crate::kernel::{Tree, Variant};

use super::arms;

/// Build kernels, unless the cache has them, and print the paths of the bzImages
#[derive(Args)]
pub struct BuildArgs {
    /// A tree: stock, memreap or a control kernel; repeatable [default: all]
    #[arg(long, value_name = "TREE")]
    pub arm: Vec<Tree>,
    /// The configuration
    #[arg(long, value_enum, default_value_t = Variant::Slim)]
    pub variant: Variant,
}

/// Builds the kernels, and returns the exit code.
pub fn run(ctx: &Context, args: &BuildArgs) -> Result<u8> {
    let trees = if args.arm.is_empty() { Tree::of_series(ctx).collect() } else { args.arm.clone() };
    for tree in trees {
        let (arm, _) = arms::built(ctx, tree, args.variant, "")?;
        println!("{}", arm.bzimage.display());
    }
    Ok(0)
}
