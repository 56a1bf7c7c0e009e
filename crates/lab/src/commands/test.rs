// SPDX-License-Identifier: GPL-2.0-only
//! `lab test`.

use anyhow::Result;
use clap::Args;

use crate::WrongUsage;
use crate::arch::Arch;
use crate::checks::suite::{self, SuiteOptions};
use crate::context::Context;
use crate::kernel::series::DEFAULT;

use super::exit;

/// Run the project's checks, by tier or by name
///
/// Checks that passed before with the same content are skipped, and the report says which. Passes are
/// remembered in the cache for 30 days.
#[derive(Args)]
#[command(after_help = "Examples:
  lab test                                what `make test` runs
  lab test --tier check                   for every edit; six minutes with warm caches
  lab test kunit selftests-slim --fresh   two checks, even if they passed before")]
pub struct TestArgs {
    #[command(flatten)]
    pub options: SuiteOptions,
    /// Only list the checks
    #[arg(long)]
    pub list: bool,
}

/// Runs or lists the checks, and returns the exit code.
pub fn run(ctx: &Context, args: &TestArgs) -> Result<u8> {
    if args.list {
        println!("{}", suite::list());
        return Ok(0);
    }
    if ctx.arch != Arch::of_host() {
        let what = "--arch is not for `lab test`: its checks are of the host's architecture, or name their own";
        return Err(WrongUsage(what.into()).into());
    }
    if ctx.series.name != DEFAULT && ctx.kernel.is_none() {
        return Err(WrongUsage("--series is not for `lab test`: its checks name their own".into()).into());
    }
    Ok(exit::finding_unless(suite::run(ctx, &args.options)?))
}
