// SPDX-License-Identifier: GPL-2.0-only
//! `lab soak`: kill storms in the changed kernel, for a given time, while CPUs go offline and online, memory
//! is paged out, swap space is added and removed, and real-time tasks occupy all CPUs.
//!
//! The guest's scenario `soak` does the work. The soak fails if the kernel reports a problem, as every boot
//! does, or if memory or swap space is not freed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};

use crate::ab::experiment::Failure;
use crate::context::Context;
use crate::host;
use crate::kernel::{self, Tree, Variant};
use crate::vm::boot::boot;
use crate::vm::job::{Arm, GuestCommand, Job};
use crate::vm::probe;

/// The time for the boot and for the last round, in addition to the requested time.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(180);
/// One CPU stays online, the others go offline and online.
const GUEST_CPUS: u32 = 4;
/// A warning of the stock kernel that is allowed. The scheduler's deadline server counts as a task of its
/// CPU, and its timer can start it after the CPU was found to be empty. 6.12 warns about that before it stops
/// the server, and continues. It is not rare on a loaded host.
const STOCK_WARNING: &str = r"WARNING: .* sched_cpu_dying\+";

/// Stress the changed kernel: kill storms, fork races, memory pressure
#[derive(clap::Args)]
pub struct SoakOptions {
    /// Duration in minutes, a week at most
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=7 * 24 * 60))]
    pub minutes: u64,
    /// The kernel's configuration
    #[arg(long, value_enum, default_value_t = Variant::Debug)]
    pub variant: Variant,
    /// Random seed, to repeat an earlier soak; it is printed [default: from the clock]
    #[arg(long)]
    pub seed: Option<u64>,
}

/// Runs the storms, prints the guest's notes and returns whether the scenario succeeded.
///
/// # Errors
/// When the kernel does not build or the guest fails. A splat ends the soak.
pub fn run(ctx: &Context, options: &SoakOptions) -> Result<bool> {
    host::ensure_packages(ctx, host::guest_packages(ctx.arch))?;
    let minutes = options.minutes;
    let seed = options.seed.unwrap_or_else(|| {
        // Any number that differs from run to run.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_secs() ^ u64::from(t.subsec_nanos()))
    });
    let kernel = kernel::build(ctx, Tree::Memreap, options.variant)?;
    let arm = Arm { name: Tree::Memreap.to_string(), bzimage: kernel.bzimage, cmdline: String::new() };
    let mut job = Job::new(GuestCommand::Scenario {
        name: "soak".into(),
        args: vec![format!("seconds={}", minutes * 60), format!("seed={seed}")],
    });
    job.cpus = GUEST_CPUS;
    job.allow = vec![STOCK_WARNING.into()];
    job.timeout = Duration::from_secs(minutes * 60) + TIMEOUT_MARGIN;
    ctx.progress.note(&format!("soak: {minutes} min, {}, seed {seed}", options.variant));
    let (accel, _) = probe::accelerator(ctx, &arm.bzimage)?;
    let boot = boot(ctx, accel, &arm, &job, &ctx.out.join("logs/soak"))?;
    for note in &boot.notes {
        println!("{note}");
    }
    ensure!(boot.outcome.is_healthy(), Failure::new(&format!("soak, seed {seed}"), &boot, 60));
    Ok(boot.outcome.is_success())
}
