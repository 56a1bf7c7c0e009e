// SPDX-License-Identifier: GPL-2.0-only
//! `lab static`.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use lab::context::Context;
use lab::host;
use lab::kernel::{self, Tree, Variant};

/// Check the topics' code: checkpatch, sparse, W=1
#[derive(Args)]
pub struct StaticArgs {
    /// Also compile it in rare configurations (SMP=n, MMU=n, SWAP=n, ...)
    #[arg(long)]
    pub configs: bool,
}

/// Runs the checks, and returns the exit code.
pub fn run(ctx: &Context, args: &StaticArgs) -> Result<u8> {
    host::ensure_packages(ctx, host::LINT_PACKAGES)?;
    let kernel = kernel::build(ctx, Tree::Memreap, Variant::Slim)?;
    let target = ctx.cache.join("static");
    let _lock = host::lock(ctx, &target)?;
    let step = ctx.progress.step("static checks");
    let log = ctx.out.join("logs/static.log");
    let mut script = Command::new(ctx.in_repo("kernel/checks/static.sh"));
    script.args((!args.configs).then_some("--quick")).arg(&kernel.source_dir).arg(&target);
    let status = host::run_logged(&mut script, &log, |line| {
        step.detail(line);
        ctx.progress.suspend(|| println!("{line}"));
    })?;
    step.done(&format!("{status}, log in {}", log.display()));
    Ok(super::finding_unless(status.success()))
}
