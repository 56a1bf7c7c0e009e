// SPDX-License-Identifier: GPL-2.0-only
//! `lab soak`: kill storms in the changed kernel, for as long as wanted, while CPUs go and come
//! back, memory is paged out, swap space comes and goes and real-time tasks take all CPUs. The
//! guest's scenario `soak` makes the mess; what is looked for is the kernel's complaints, which
//! fail any boot, and memory or swap space that does not come back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};

use crate::ab::experiment::{Cause, Failure};
use crate::context::Context;
use crate::kernel::{self, Tree, Variant};
use crate::vm::accel::Accel;
use crate::vm::boot::boot;
use crate::vm::job::{Arm, GuestCommand, Job};

/// What the guest gets for its boot and for its last round beyond the time asked for.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(180);
/// One that stays and several that go and come back.
const GUEST_CPUS: u32 = 4;
/// The scheduler's server for ordinary tasks counts as a task of its CPU, and its timer can put it
/// there when a CPU has just been found empty. 6.12 warns of that before it stops the server, and
/// goes on; on a busy host it is no rarity.
const STOCK_WARNING: &str = r"WARNING: .* sched_cpu_dying\+";
/// The most that is asked of one boot.
const MAX_MINUTES: u64 = 7 * 24 * 60;

/// What to do.
pub struct SoakOptions {
    /// For how long.
    pub minutes: u64,
    /// The kernel's build.
    pub variant: Variant,
    /// Where the guest's dice start; `None`: anywhere. The seed is printed either way.
    pub seed: Option<u64>,
}

/// Runs the storms and prints what was done; gives whether the scenario was content too.
///
/// # Errors
/// When the kernel does not build, or the guest fails: any splat ends the soak.
pub fn run(ctx: &Context, accel: Accel, options: &SoakOptions) -> Result<bool> {
    let minutes = options.minutes;
    ensure!((1..=MAX_MINUTES).contains(&minutes), "a soak takes 1 to {MAX_MINUTES} minutes, not {minutes}");
    let seed = options.seed.unwrap_or_else(|| {
        // Any number will do, as long as it differs from run to run.
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
    let boot = boot(ctx, accel, &arm, &job, &ctx.out.join("logs/soak"))?;
    for note in &boot.notes {
        println!("{note}");
    }
    if !boot.outcome.is_healthy() {
        let name = format!("soak, seed {seed}");
        let cause = Cause::Outcome(boot.outcome.clone());
        let logs = boot.logs().to_path_buf();
        return Err(Failure { boot: name, cause, tail: boot.tail(60), logs }.into());
    }
    Ok(boot.outcome.is_success())
}
