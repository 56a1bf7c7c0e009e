// SPDX-License-Identifier: GPL-2.0-only
//! PID 1: sets the guest up, does its one job, reports, and ends the machine.

use std::{env, fs, thread, time::Duration};

use anyhow::{Context as _, Result};
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};

use protocol::job::{self, Command, Job};
use protocol::results::Message;

use crate::exec;
use crate::leaks;
use crate::report::Reporter;
use crate::root;
use crate::{PANIC_STATUS, report_panics};

/// Does the job and ends the machine. Without a result channel the error goes to the console, and the host
/// finds that there is no result.
pub fn run() -> ! {
    // Before anything else: when PID 1 dies the kernel panics, and the host would report a kernel panic for
    // an error of this program.
    std::panic::set_hook(Box::new(|info| {
        eprintln!("guest: {info}");
        power_off();
    }));
    let booted = set_up();
    let mut out = match Reporter::open() {
        Ok(out) => out,
        Err(e) => {
            eprintln!("guest: {e:#}");
            power_off();
        }
    };
    report_panics(&out, |out| {
        out.send(&Message::Exit(PANIC_STATUS.into()));
        power_off();
    });
    let mut status = match booted.and_then(|()| hello(&mut out)).and_then(|()| work(&mut out)) {
        Ok(status) => status,
        Err(e) => {
            out.note(&format!("guest: {e:#}"));
            1
        }
    };
    // Nothing may be written after the exit line, so all processes that the job left are killed.
    exec::kill_all();
    for checked in [leaks::check(), tainted().map(|why| out.send(&Message::Tainted(why)))] {
        if let Err(e) = checked {
            out.note(&format!("guest: {e:#}"));
            status = status.max(1);
        }
    }
    out.send(&Message::Exit(status));
    power_off();
}

/// Returns why the kernel is tainted: with the parameter `quiet`, say, its warnings are not on the console.
fn tainted() -> Result<u64> {
    const TAINTED: &str = "/proc/sys/kernel/tainted";
    fs::read_to_string(TAINTED).context(TAINTED)?.trim_end().parse().context(TAINTED)
}

/// Reads the job and does it; returns the exit status for the lab.
fn work(out: &mut Reporter) -> Result<i32> {
    let text = fs::read_to_string(job::PATH).with_context(|| format!("cannot read {}", job::PATH))?;
    let job: Job = serde_json::from_str(&text).context(job::PATH)?;
    if job.has_root {
        root::enter()?;
    }
    if let Ok(delay_us) = env::var(job::DELAY_PARAMETER) {
        let delay_us = delay_us.parse().with_context(|| format!("{}={delay_us}", job::DELAY_PARAMETER))?;
        thread::sleep(Duration::from_micros(delay_us));
    }
    match job.command {
        Command::Scenario { name, args } => exec::scenario(&name, &args, out),
        Command::Exec(argv) => exec::command(&argv, out),
        Command::Shell => exec::shell(),
    }
}

fn hello(out: &mut Reporter) -> Result<()> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").context("osrelease")?;
    let cpus = u32::try_from(thread::available_parallelism()?.get())?;
    out.send(&Message::Hello { release: release.trim_end().to_owned(), cpus });
    Ok(())
}

/// Mounts file systems, sets sysctls, and brings loopback up. Only what every job needs is required. The rest
/// is tried; a scenario that needs it reports itself that it is missing.
fn set_up() -> Result<()> {
    // The kernel mounts no devtmpfs over an initramfs. Until then /dev has only the console node of the
    // image.
    for (kind, at) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mount_at(kind, at, "")?;
    }
    for (kind, at, options) in [
        ("tmpfs", "/tmp", "mode=1777"),
        ("tmpfs", "/run", "mode=755"),
        ("tmpfs", "/dev/shm", "mode=1777"),
        ("devpts", "/dev/pts", ""),
        ("cgroup2", "/sys/fs/cgroup", ""),
        ("debugfs", "/sys/kernel/debug", ""),
        ("tracefs", "/sys/kernel/tracing", ""),
    ] {
        if let Err(e) = mount_at(kind, at, options) {
            eprintln!("guest: {e:#}");
        }
    }
    // Victims must be able to map more memory than the guest has.
    const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";
    fs::write(OVERCOMMIT, "1").with_context(|| format!("cannot write 1 to {OVERCOMMIT}"))?;
    if let Err(e) = loopback_up() {
        eprintln!("guest: cannot bring up loopback: {e}");
    }
    Ok(())
}

fn mount_at(kind: &str, at: &str, options: &str) -> Result<()> {
    let options = std::ffi::CString::new(options).context("mount options")?;
    fs::create_dir_all(at)
        .map_err(anyhow::Error::from)
        .and_then(|()| Ok(mount(kind, at, kind, MountFlags::empty(), options.as_c_str())?))
        .with_context(|| format!("cannot mount {kind} at {at}"))
}

/// Sets IFF_UP on `lo`, through a Unix socket, because the kernel may have no IPv4.
fn loopback_up() -> std::io::Result<()> {
    use std::os::fd::AsRawFd as _;
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    // SAFETY: ifreq is plain data, for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo\0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq, which outlives the call; the socket is open.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Ends QEMU: it runs with `-no-reboot`, so that a restart ends it, on every machine type.
pub fn power_off() -> ! {
    rustix::fs::sync();
    if let Err(e) = reboot(RebootCommand::Restart) {
        eprintln!("guest: cannot restart the machine: {e}");
    }
    // If PID 1 returned, the kernel would panic. The host's time limit ends this loop.
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}
