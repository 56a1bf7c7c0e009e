// SPDX-License-Identifier: GPL-2.0-only
//! QEMU's accelerators, and the choice of one.
//!
//! That `/dev/kvm` exists is not enough: on nested or sandboxed hosts KVM may hang or fail as soon as a guest runs. So
//! a kernel that is to be booted anyway is tried under it, with a time limit. What was found counts until the host
//! restarts.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use fs_err as fs;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::format;
use crate::host;
use crate::vm::boot::boot_with;
use crate::vm::job::{Arm, GuestCommand, Job};

/// The limit of a kernel under KVM, which takes 1.5 s even under TCG.
const KVM_TIMEOUT: Duration = Duration::from_secs(10);
/// The limit of a kernel under TCG. One with all debug checks takes several times as long as others.
const TCG_TIMEOUT: Duration = Duration::from_secs(60);

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// The host's processor.
    Kvm,
    /// QEMU's emulator.
    Tcg,
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format::name_of(self))
    }
}

/// What was found, and the boot of the host that it is valid for.
#[derive(Serialize, Deserialize)]
struct Finding {
    /// Since when the host runs, and which QEMU that was.
    host: String,
    accel: Accel,
    why: String,
}

/// Returns the accelerator and the reason in one line: KVM if this kernel boots under it, else TCG. A kernel
/// that does not boot under TCG either says nothing about the host, so that is not kept.
///
/// # Errors
/// As [`known`], and for problems of the host while booting.
pub fn accelerator(ctx: &Context, kernel: &Path) -> Result<(Accel, String)> {
    if let Some(known) = known(ctx)? {
        return Ok(known);
    }
    let arm = Arm { name: "probe".to_owned(), bzimage: kernel.to_owned(), cmdline: String::new() };
    let boot = |accel: Accel, timeout| {
        let command = GuestCommand::Exec(vec!["/bin/true".into()]);
        let job = Job { timeout, memreap: false, name: Some(format!("trying {accel}")), ..Job::new(command) };
        boot_with(ctx, accel, &arm, &job, &ctx.out.join(format!("logs/{accel}")), &mut |_| {})
    };
    let under_kvm = boot(Accel::Kvm, KVM_TIMEOUT)?;
    // A splat is not a problem of KVM. The next boot of the kernel will report it.
    let (accel, why) = if under_kvm.release.is_some() {
        (Accel::Kvm, "KVM boots a kernel".to_owned())
    } else if boot(Accel::Tcg, TCG_TIMEOUT)?.release.is_none() {
        // Where KVM hangs, it would not even show why.
        return Ok((Accel::Tcg, "this kernel boots neither under KVM nor without".to_owned()));
    } else {
        (Accel::Tcg, format!("KVM boots no kernel: {}", under_kvm.outcome))
    };
    if let Some(host) = host(ctx) {
        let finding = Finding { host, accel, why: why.clone() };
        host::write_atomically(&ctx.cache.join("accel.json"), &serde_json::to_string(&finding)?)?;
    }
    Ok((accel, why))
}

/// Returns the accelerator and the reason if that is known without a boot: `LAB_ACCEL=kvm` or `tcg` says it, KVM cannot
/// be opened or is of another architecture, or a kernel was tried since the host's start.
///
/// # Errors
/// When `LAB_ACCEL` has another value.
pub fn known(ctx: &Context) -> Result<Option<(Accel, String)>> {
    if let Some(value) = std::env::var_os("LAB_ACCEL") {
        let accel = value.to_str().and_then(|name| Accel::from_str(name, false).ok());
        let accel = accel.with_context(|| format!("LAB_ACCEL={}: must be kvm or tcg", value.display()))?;
        return Ok(Some((accel, "set by LAB_ACCEL".to_owned())));
    }
    if !ctx.arch.is_native() {
        return Ok(Some((Accel::Tcg, format!("{} is emulated here", ctx.arch))));
    }
    // Not kept: it may change, for example by the user's groups.
    if let Err(why) = kvm_opens() {
        return Ok(Some((Accel::Tcg, why)));
    }
    let finding = fs::read_to_string(ctx.cache.join("accel.json")).ok();
    let finding = finding.and_then(|text| serde_json::from_str::<Finding>(&text).ok());
    let finding = finding.filter(|finding| host(ctx).is_some_and(|now| now == finding.host));
    Ok(finding.map(|finding| (finding.accel, finding.why)))
}

fn host(ctx: &Context) -> Option<String> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("{} {}", boot_id.trim(), host::find_tool(ctx.arch.qemu())?.display()))
}

fn kvm_opens() -> Result<(), String> {
    match std::fs::File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => Err("no /dev/kvm here".into()),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            Err("/dev/kvm may not be opened; is this user in the group kvm?".into())
        }
        Err(e) => Err(format!("/dev/kvm: {e}")),
    }
}
