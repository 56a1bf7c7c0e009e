// SPDX-License-Identifier: GPL-2.0-only
//! The parts of QEMU's command line that all guests of the lab share.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::arch::Arch;
use crate::vm::job::Mode;
use crate::vm::probe::Accel;

/// The CPU under TCG. `max` has ERMS, so the kernel clears pages by `rep stosb`, which TCG emulates byte by
/// byte: populating 512 MiB takes 1.1 s with it and 0.5 s without.
const TCG_CPU: &str = "max,-erms";
/// A server's CPU with atomic instructions and pages of 4, 16 and 64 KiB. `max` has pointer authentication, too, whose
/// emulation costs more than what is measured.
const ARM64_TCG_CPU: &str = "neoverse-n1";
/// With `-icount`, the TSC ticks once per nanosecond of guest time.
const ICOUNT_TSC_KHZ: u64 = 1_000_000;

/// Returns the `shift` of `-icount`: an instruction takes 2^shift nanoseconds of guest time. It is 0 (one
/// nanosecond) unless there are many CPUs. While one CPU waits for time to pass, QEMU runs all others, so
/// with one nanosecond the 100 ms of the kernel's timer calibration would take minutes. With much more than
/// four nanoseconds, the timer interrupts of 64 CPUs would use up all guest time.
fn icount_shift(cpus: u32) -> u32 {
    if cpus <= 8 { 0 } else { 2 }
}

/// Returns the QEMU to run: `$LAB_QEMU`, else the one in `PATH`.
pub(crate) fn program(arch: Arch) -> Command {
    Command::new(std::env::var_os("LAB_QEMU").unwrap_or_else(|| arch.qemu().into()))
}

/// Returns a command for a machine of this kind (`-M`) without devices, which ends instead of rebooting.
pub(crate) fn machine(arch: Arch, kind: &str, cpus: u32, mem_mib: u32) -> Command {
    let mut qemu = program(arch);
    qemu.args(["-M", kind, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    qemu.args(["-m", &mem_mib.to_string(), "-smp", &cpus.to_string()]);
    qemu
}

/// Sets the accelerator and the CPU, and appends the kernel parameters about the clock to `params`. `kvm_cpu`
/// is the CPU model under KVM, `host_tsc_khz` the frequency of the host's TSC.
#[expect(clippy::too_many_arguments, reason = "each is a part of the machine, and named where it is known")]
pub(crate) fn accelerate(
    qemu: &mut Command,
    arch: Arch,
    accel: Accel,
    mode: Mode,
    cpus: u32,
    kvm_cpu: &str,
    host_tsc_khz: u64,
    params: &mut String,
) {
    let icount = format!("shift={},sleep=off", icount_shift(cpus));
    let (args, khz): (&[&str], u64) = match (accel, mode) {
        (Accel::Kvm, Mode::Multi) => {
            qemu.args(["-accel", "kvm", "-cpu", kvm_cpu]);
            return;
        }
        (Accel::Tcg, Mode::Multi) => (&["-accel", "tcg,thread=multi"], host_tsc_khz),
        (_, Mode::Icount) => (&["-accel", "tcg", "-icount", &icount], ICOUNT_TSC_KHZ),
    };
    qemu.args(args);
    if !arch.is_x86() {
        // Its kernels read the clock's frequency from the CPU.
        qemu.args(["-cpu", ARM64_TCG_CPU]);
        return;
    }
    qemu.args(["-cpu", TCG_CPU]);
    // microvm has no timer to calibrate the TSC against, and on a loaded host any calibration fails, so the
    // frequency is a parameter. idle=halt because TCG emulates MWAIT as a busy loop.
    let _ = write!(params, " tsc=reliable tsc_early_khz={khz} idle=halt");
}

/// Adds a virtio-serial port that the guest sees as `name`, connected to the character device `chardev` with
/// the id `id`. The machine needs a virtio-serial controller before its first port.
pub(crate) fn serial_port(qemu: &mut Command, id: &str, chardev: &str, name: &str) {
    qemu.args(["-chardev", chardev, "-device", &format!("virtserialport,chardev={id},name={name}")]);
}

/// Returns a path as the value of a QEMU option, with commas doubled.
///
/// # Errors
/// When the path is not UTF-8.
pub(crate) fn option_path(path: &Path) -> Result<String> {
    let Some(text) = path.to_str() else { bail!("{}: QEMU needs paths in UTF-8", path.display()) };
    Ok(text.replace(',', ",,"))
}

/// Returns the frequency of the host's time stamp counter in kHz, which is also the guest's under TCG. It is
/// measured once, over 50 ms.
pub(crate) fn host_tsc_khz() -> u64 {
    static KHZ: OnceLock<u64> = OnceLock::new();
    *KHZ.get_or_init(|| {
        let (began, first) = (Instant::now(), tsc());
        thread::sleep(Duration::from_millis(50));
        let (last, elapsed) = (tsc(), began.elapsed());
        let ticks = u128::from(last.wrapping_sub(first));
        u64::try_from(ticks * 1_000_000 / elapsed.as_nanos().max(1)).unwrap_or(ICOUNT_TSC_KHZ)
    })
}

#[cfg(target_arch = "x86_64")]
fn tsc() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 CPU and has no side effects; Linux allows it to
    // user programs.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// On hosts without a known counter, TCG's RDTSC returns the virtual clock in nanoseconds.
#[cfg(not(target_arch = "x86_64"))]
fn tsc() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    u64::try_from(BEGAN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_clock_is_plausible() {
        assert!((500_000..10_000_000).contains(&host_tsc_khz()), "{}", host_tsc_khz());
    }

    #[test]
    fn a_comma_in_a_path_does_not_end_the_option() {
        assert_eq!(option_path(Path::new("/a,b/c")).unwrap(), "/a,,b/c");
    }
}
