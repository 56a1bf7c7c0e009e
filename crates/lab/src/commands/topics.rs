// SPDX-License-Identifier: GPL-2.0-only
//! `lab topics`.

use anyhow::Result;
use clap::Args;

use crate::context::Context;
use crate::kernel::topics;

/// List the topics, in order
#[derive(Args)]
pub struct TopicsArgs {
    /// Apply them to the oldest and the newest kernel of the series that apt offers
    #[arg(long)]
    pub check_all: bool,
}

/// Lists or checks the topics, and returns the exit code.
pub fn run(ctx: &Context, args: &TopicsArgs) -> Result<u8> {
    if args.check_all {
        for release in topics::check_all(ctx)? {
            println!("{release}: all topics and control kernels apply");
        }
        return Ok(0);
    }
    for topic in topics::load(&ctx.repo, &ctx.series)? {
        let symbol = topic.kconfig.unwrap_or_default();
        println!("{:<15} CONFIG_{:<25} {}", topic.name, symbol, topic.subject);
    }
    for (name, why) in &ctx.series.without {
        println!("{name:<15} not for {}: {why}", ctx.series.name);
    }
    Ok(0)
}
