// SPDX-License-Identifier: GPL-2.0-only
//! Chooses QEMU's accelerator.
//!
//! That `/dev/kvm` exists is not enough: on nested or sandboxed hosts KVM may hang or fail as soon as a guest
//! runs. So a tiny guest ("stub") is run with a time limit. The result is kept until the host restarts.

use std::fs::{self, File};
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::arch::Arch;
use crate::context::Context;
use crate::host;
use crate::vm::accel::Accel;
use crate::vm::boot::boot_with;
use crate::vm::job::{Arm, GuestCommand, Job};
use crate::vm::qemu;

/// The limit of the tiny guest, which takes 0.1 s under TCG.
const STUB_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit of a kernel, which takes 1.5 s under TCG.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(10);
/// The limit of a kernel under TCG. One with all debug checks takes several times as long as others.
const TCG_KERNEL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for a killed QEMU. One that is stuck inside KVM never ends.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of a probe, and the boot of the host that it is valid for.
#[derive(Serialize, Deserialize)]
struct Finding {
    boot_id: String,
    /// Whether a kernel has booted too, not only the tiny guest.
    kernel: bool,
    accel: Accel,
    why: String,
}

/// Returns the accelerator and the reason in one line: KVM if a tiny guest runs under it, else TCG.
/// `LAB_ACCEL=kvm` or `tcg` decides without a probe.
///
/// # Errors
/// When `LAB_ACCEL` has another value, or the probe's files cannot be written.
pub fn probe(ctx: &Context) -> Result<(Accel, String)> {
    if let Some(forced) = forced()? {
        return Ok(forced);
    }
    if !ctx.arch.is_native() {
        return Ok((Accel::Tcg, format!("{} is emulated here", ctx.arch)));
    }
    if let Some(known) = recall(ctx) {
        return Ok((known.accel, known.why));
    }
    let step = ctx.progress.step("trying KVM with a tiny guest");
    let (accel, why) = try_stub(ctx)?;
    step.done(&why);
    remember(ctx, false, accel, &why)?;
    Ok((accel, why))
}

/// Like [`probe`], but returns KVM only if the kernel of `arm` boots under it: there are hosts on which tiny
/// guests run and kernels hang. A kernel that does not boot under TCG either says nothing about the host.
///
/// # Errors
/// As [`probe`], and for problems of the host while booting.
pub fn probe_with(ctx: &Context, arm: &Arm) -> Result<(Accel, String)> {
    let (accel, why) = probe(ctx)?;
    let confirmed = recall(ctx).is_some_and(|known| known.kernel);
    if accel == Accel::Tcg || confirmed || forced()?.is_some() {
        return Ok((accel, why));
    }
    let boot = |accel: Accel, timeout| {
        let job = Job { timeout, ..Job::new(GuestCommand::Exec(vec!["/bin/true".into()])) };
        boot_with(ctx, accel, arm, &job, &ctx.out.join(format!("logs/{accel}")), &mut |_| {})
    };
    let under_kvm = boot(Accel::Kvm, KERNEL_TIMEOUT)?;
    // A splat is not a problem of KVM. The next boot of the kernel will report it.
    let (accel, why) = if under_kvm.release.is_some() {
        (Accel::Kvm, "KVM boots a kernel".to_owned())
    } else if boot(Accel::Tcg, TCG_KERNEL_TIMEOUT)?.release.is_none() {
        return Ok((accel, why));
    } else {
        (Accel::Tcg, format!("KVM runs a tiny guest but no kernel: {}", under_kvm.outcome))
    };
    remember(ctx, true, accel, &why)?;
    Ok((accel, why))
}

fn forced() -> Result<Option<(Accel, String)>> {
    let Some(value) = std::env::var_os("LAB_ACCEL") else { return Ok(None) };
    let accel = match value.to_str() {
        Some("kvm") => Accel::Kvm,
        Some("tcg") => Accel::Tcg,
        _ => bail!("LAB_ACCEL={}: must be kvm or tcg", value.to_string_lossy()),
    };
    Ok(Some((accel, "set by LAB_ACCEL".to_owned())))
}

fn boot_id() -> Option<String> {
    Some(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned())
}

fn recall(ctx: &Context) -> Option<Finding> {
    let text = fs::read_to_string(ctx.cache.join("accel.json")).ok()?;
    let finding: Finding = serde_json::from_str(&text).ok()?;
    // The user may have lost permission to use KVM.
    let usable = finding.accel == Accel::Tcg || kvm_opens().is_ok();
    (usable && Some(&finding.boot_id) == boot_id().as_ref()).then_some(finding)
}

fn remember(ctx: &Context, kernel: bool, accel: Accel, why: &str) -> Result<()> {
    // That KVM cannot be opened is found out at once and may change, so it is not kept.
    let (Some(boot_id), Ok(())) = (boot_id(), kvm_opens()) else { return Ok(()) };
    let finding = Finding { boot_id, kernel, accel, why: why.to_owned() };
    let path = ctx.cache.join("accel.json");
    let _lock = host::lock(ctx, &path)?;
    let staging = host::Staging::begin(&path)?;
    fs::write(staging.path(), serde_json::to_vec(&finding)?)
        .with_context(|| format!("cannot write {}", staging.path().display()))?;
    staging.publish(&path)
}

fn kvm_opens() -> Result<(), String> {
    match File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err("no /dev/kvm here".into()),
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            Err("/dev/kvm may not be opened; is this user in the group kvm?".into())
        }
        Err(e) => Err(format!("/dev/kvm: {e}")),
    }
}

fn try_stub(ctx: &Context) -> Result<(Accel, String)> {
    if let Err(why) = kvm_opens() {
        return Ok((Accel::Tcg, why));
    }
    if !ctx.arch.is_x86() {
        return Ok((Accel::Kvm, "a kernel tells".into()));
    }
    let (accel, why) = match run_stub(ctx, Accel::Kvm, STUB_TIMEOUT)? {
        Some(status) if status.code() == Some(STUB_EXIT_STATUS) => {
            (Accel::Kvm, "KVM runs a tiny guest".into())
        }
        Some(status) => (Accel::Tcg, format!("KVM fails on a tiny guest ({status})")),
        None => (Accel::Tcg, format!("KVM hangs on a tiny guest ({} s)", STUB_TIMEOUT.as_secs())),
    };
    Ok((accel, why))
}

/// Runs [`STUB`] as the machine's firmware and returns QEMU's status; `None` after the time limit.
fn run_stub(ctx: &Context, accel: Accel, limit: Duration) -> Result<Option<ExitStatus>> {
    let folder = ctx.out.join("logs");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let firmware = folder.join("stub.bin");
    fs::write(&firmware, stub_image()).with_context(|| firmware.display().to_string())?;
    let mut command = qemu::program(Arch::X86_64);
    command
        .args(["-M", "microvm", "-m", "16", "-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-no-reboot", "-accel", &accel.to_string()])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1", "-bios"])
        .arg(&firmware)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(folder.join("stub.log"))?);
    let mut child = host::spawn(&mut command)?;
    let status = wait_at_most(&mut child, limit)?;
    if status.is_none() {
        child.kill();
        if wait_at_most(&mut child, KILL_TIMEOUT)?.is_none() {
            // It is stuck inside KVM. Dropping the child would wait for it forever.
            std::mem::forget(child);
        }
    }
    Ok(status)
}

fn wait_at_most(child: &mut host::Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= end {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// QEMU's exit status after the stub has written 42: `value << 1 | 1`.
const STUB_EXIT_STATUS: i32 = 42 << 1 | 1;

/// A guest of 198 bytes. Like a kernel, it switches from real mode through protected mode to long mode with
/// paging. There it writes to memory for a while and then ends QEMU through the debug exit port.
#[rustfmt::skip]
const STUB: [u8; 198] = [
    // real mode, at F000:0000
    0xfa,                                           //     cli
    0x2e, 0x66, 0x0f, 0x01, 0x16, 0xc0, 0x00,       //     lgdtl %cs:gdtr
    0x0f, 0x20, 0xc0,                               //     movl %cr0, %eax
    0x0c, 0x01,                                     //     orb $1, %al              # PE
    0x0f, 0x22, 0xc0,                               //     movl %eax, %cr0
    0x66, 0xea, 0x18, 0x00, 0x0f, 0x00, 0x08, 0x00, //     ljmpl $8, $0xf0000 + 1f
    // protected mode
    0x66, 0xb8, 0x10, 0x00,                         // 1:  movw $0x10, %ax
    0x8e, 0xd8,                                     //     movw %ax, %ds
    0x8e, 0xc0,                                     //     movw %ax, %es
    0xbf, 0x00, 0x10, 0x00, 0x00,                   //     movl $0x1000, %edi       # page tables:
    0x31, 0xc0,                                     //     xorl %eax, %eax
    0xb9, 0x00, 0x0c, 0x00, 0x00,                   //     movl $0xc00, %ecx
    0xf3, 0xab,                                     //     rep stosl                # three pages,
    0xc7, 0x05, 0x00, 0x10, 0x00, 0x00,             //     movl $0x2003, 0x1000     # the first 2 MiB
    0x03, 0x20, 0x00, 0x00,
    0xc7, 0x05, 0x00, 0x20, 0x00, 0x00,             //     movl $0x3003, 0x2000     # mapped to
    0x03, 0x30, 0x00, 0x00,
    0xc7, 0x05, 0x00, 0x30, 0x00, 0x00,             //     movl $0x83, 0x3000       # themselves
    0x83, 0x00, 0x00, 0x00,
    0x0f, 0x20, 0xe0,                               //     movl %cr4, %eax
    0x83, 0xc8, 0x20,                               //     orl $0x20, %eax          # PAE
    0x0f, 0x22, 0xe0,                               //     movl %eax, %cr4
    0xb8, 0x00, 0x10, 0x00, 0x00,                   //     movl $0x1000, %eax
    0x0f, 0x22, 0xd8,                               //     movl %eax, %cr3
    0xb9, 0x80, 0x00, 0x00, 0xc0,                   //     movl $0xc0000080, %ecx   # EFER
    0x0f, 0x32,                                     //     rdmsr
    0x0d, 0x00, 0x01, 0x00, 0x00,                   //     orl $0x100, %eax         # LME
    0x0f, 0x30,                                     //     wrmsr
    0x0f, 0x20, 0xc0,                               //     movl %cr0, %eax
    0x0d, 0x00, 0x00, 0x00, 0x80,                   //     orl $0x80000000, %eax    # PG
    0x0f, 0x22, 0xc0,                               //     movl %eax, %cr0
    0xea, 0x7d, 0x00, 0x0f, 0x00, 0x18, 0x00,       //     ljmp $0x18, $0xf0000 + 1f
    // long mode
    0xbf, 0x00, 0x40, 0x00, 0x00,                   // 1:  movl $0x4000, %edi
    0xb9, 0x00, 0x00, 0x00, 0x01,                   //     movl $0x1000000, %ecx
    0xff, 0x07,                                     // 2:  incl (%rdi)
    0xe2, 0xfc,                                     //     loop 2b
    0x81, 0x3f, 0x00, 0x00, 0x00, 0x01,             //     cmpl $0x1000000, (%rdi)
    0x75, 0x04,                                     //     jne 3f
    0xb0, 0x2a,                                     //     movb $42, %al
    0xe6, 0xf4,                                     //     outb %al, $0xf4
    0xf4,                                           // 3:  hlt
    0xeb, 0xfd,                                     //     jmp 3b
    0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00,             //     .balign 8
    // gdt: none, 32-bit code, data, 64-bit code
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xff, 0xff, 0x00, 0x00, 0x00, 0x9a, 0xcf, 0x00,
    0xff, 0xff, 0x00, 0x00, 0x00, 0x92, 0xcf, 0x00,
    0xff, 0xff, 0x00, 0x00, 0x00, 0x9a, 0xaf, 0x00,
    // gdtr: limit, address
    0x1f, 0x00, 0xa0, 0x00, 0x0f, 0x00,
];

/// Returns 64 KiB of firmware: the stub, and a jump to it at the reset vector.
fn stub_image() -> Vec<u8> {
    const RESET_VECTOR: usize = 0xfff0;
    let jump = [0xea, 0x00, 0x00, 0x00, 0xf0]; // ljmp $0xf000, $0
    let mut image = vec![0; 0x1_0000];
    image[..STUB.len()].copy_from_slice(&STUB);
    image[RESET_VECTOR..RESET_VECTOR + jump.len()].copy_from_slice(&jump);
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the stub did not work, KVM would be considered unusable on every host without an error.
    #[test]
    fn the_stub_runs_under_tcg() {
        if host::find_tool(Arch::X86_64.qemu()).is_none() {
            testing::skipped("no QEMU here");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let ctx = Context::below(dir.path());
        let status = run_stub(&ctx, Accel::Tcg, Duration::from_secs(30)).unwrap();
        assert_eq!(status.and_then(|s| s.code()), Some(STUB_EXIT_STATUS));
    }
}
