// SPDX-License-Identifier: GPL-2.0-only
//! `lab static`.

use anyhow::Result;
use clap::Args;

use crate::context::Context;
use crate::kernel::lint;

use super::exit;

/// Check the topics' code: checkpatch, sparse, W=1
#[derive(Args)]
pub struct StaticArgs {
    /// Also compile it in rare configurations (SMP=n, MMU=n, SWAP=n, ...)
    #[arg(long)]
    pub configs: bool,
}

/// Runs the checks, and returns the exit code.
pub fn run(ctx: &Context, args: &StaticArgs) -> Result<u8> {
    Ok(exit::finding_unless(lint::run(ctx, args.configs)?))
}
