// SPDX-License-Identifier: GPL-2.0-only
//! `lab stress`.

use anyhow::Result;
use clap::Args;

use crate::WrongUsage;
use crate::checks::stress::{self, StressOptions, Verdict};
use crate::context::Context;

use super::exit;

/// Run stress-ng in guests, with the stock and the changed kernel
///
/// Each class of stressors gets a guest per kernel. Finding (exit code 1): a failure that stock does not
/// have, or a class that did nothing.
#[derive(Args)]
#[command(after_help = "Examples:
  lab stress                              all classes in both debug kernels
  lab stress oom swap --seconds 300       two classes, longer
  lab stress --variant slim --seconds 10  a quick run")]
pub struct StressArgs {
    #[command(flatten)]
    pub options: StressOptions,
    /// Only list the classes
    #[arg(long)]
    pub list: bool,
}

/// Runs or lists the classes, and returns the exit code.
pub fn run(ctx: &Context, args: &StressArgs) -> Result<u8> {
    if args.list {
        for (name, about, stressors) in stress::classes() {
            println!("{name:<12} {about} ({stressors})");
        }
        return Ok(0);
    }
    if !ctx.arch.is_native() {
        return Err(WrongUsage(format!("--arch {}: the host's stress-ng does not run there", ctx.arch)).into());
    }
    Ok(match stress::run(ctx, &args.options)? {
        Verdict::Ok => 0,
        Verdict::Finding => exit::FINDING,
        Verdict::Guest => exit::GUEST,
    })
}
