// SPDX-License-Identifier: GPL-2.0-only
//! `lab boot`.

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::context::Context;
use crate::host;
use crate::kernel::Variant;
use crate::vm::boot;
use crate::vm::job::{GuestCommand, Job, Mode};
use crate::vm::probe;
use crate::vm::root::{self, RootSource};

use super::arms::{ArmSpec, CopySpec, arm, variant_or_default};

/// The time limit of a shell: it ends when its user ends it.
const SHELL_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Boot one guest with a shell or a command
///
/// Exit code: the command's own (128+n after signal n) when the guest was healthy; 3 when QEMU
/// failed; 120 panic, 121 splat, 122 hang, 123 no result, 124 garbage.
#[derive(Args)]
#[command(after_help = "Examples:
  lab boot                                     a shell in the changed kernel
  lab boot --arm stock -- uname -r
  lab boot --variant debug --copy ./prog:/prog -- /prog --flag
  lab boot --root debian:stress-ng -- stress-ng --vm 2 --timeout 10")]
pub struct BootArgs {
    /// The kernel
    #[arg(long, value_name = ArmSpec::FORM, default_value = "memreap")]
    pub arm: ArmSpec,
    /// The kernel's configuration [default: slim, with --root faceoff]
    #[arg(long, value_enum)]
    pub variant: Option<Variant>,
    /// The root file system: a small Debian with these packages, a folder, or an ext4 image [default: busybox]
    #[arg(long, value_name = RootSource::FORM)]
    pub root: Option<RootSource>,
    /// Number of CPUs
    #[arg(long, default_value_t = 2)]
    pub cpus: u32,
    /// Memory in MiB
    #[arg(long, default_value_t = 1024)]
    pub mem: u32,
    /// How guest time passes: multi or icount
    #[arg(long, default_value_t = Mode::Multi)]
    pub mode: Mode,
    /// Time limit of a command in seconds; a guest that takes longer counts as hung
    #[arg(long, default_value_t = 180)]
    pub timeout: u64,
    /// Additional kernel parameters
    #[arg(long, value_name = "PARAMETERS", default_value = "", allow_hyphen_values = true)]
    pub cmdline: String,
    /// Copy a file or folder to the guest (repeatable)
    #[arg(long, value_name = "HOST:GUEST")]
    pub copy: Vec<CopySpec>,
    /// The command and its arguments [default: a shell]
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// Boots the guest, and returns the exit code.
pub fn run(ctx: &Context, args: BootArgs) -> Result<u8> {
    host::ensure_packages(ctx, host::guest_packages(ctx.arch))?;
    let variant = variant_or_default(args.variant, args.root.as_ref());
    let (mut arm, ..) = arm(ctx, args.arm, variant, "", None)?;
    arm.cmdline = format!("{} {}", arm.cmdline, args.cmdline).trim().to_owned();
    let (accel, _) = probe::accelerator(ctx, &arm.bzimage)?;
    let interactive = args.command.is_empty();
    let job = Job {
        cpus: args.cpus,
        mem_mib: args.mem,
        mode: args.mode,
        timeout: if interactive { SHELL_TIMEOUT } else { Duration::from_secs(args.timeout) },
        overlay: args.copy.into_iter().map(|CopySpec(host, guest)| (host, guest)).collect(),
        root: args.root.as_ref().map(|source| root::make(ctx, source)).transpose()?,
        interactive,
        ..Job::new(if interactive { GuestCommand::Shell } else { GuestCommand::Exec(args.command) })
    };
    let boot = boot::boot(ctx, accel, &arm, &job, &ctx.out.join("logs/boot"))?;
    for note in &boot.notes {
        eprintln!("lab: the guest says: {note}");
    }
    if !boot.outcome.is_healthy() {
        eprintln!("lab: {}\n{}", boot.outcome, boot.tail(30));
    }
    Ok(boot.outcome.exit_code())
}
