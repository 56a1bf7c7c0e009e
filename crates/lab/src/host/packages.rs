// SPDX-License-Identifier: GPL-2.0-only
//! The Debian packages that the lab needs, and their installation.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::process::{output, run_step};
use crate::arch::Arch;
use crate::context::Context;
use crate::progress::Step;

/// A Debian package, and how to detect its content, which may also have been installed in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pkg {
    /// The package's name for apt.
    pub name: &'static str,
    /// How to detect its content.
    pub probe: Probe,
}

/// How to detect a package's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A program in `PATH`.
    Tool(&'static str),
    /// A file or folder, by its absolute path.
    File(&'static str),
}

impl Pkg {
    /// A package that is present if `tool` is in `PATH`.
    pub const fn tool(name: &'static str, tool: &'static str) -> Self {
        Self { name, probe: Probe::Tool(tool) }
    }

    /// Whether the package's content is present.
    pub fn is_present(&self) -> bool {
        match self.probe {
            Probe::Tool(tool) => find_tool(tool).is_some(),
            Probe::File(path) => Path::new(path).exists(),
        }
    }
}

/// The packages for building a kernel.
pub const KERNEL_BUILD_PACKAGES: &[Pkg] = &[
    Pkg::tool("gcc", "gcc"),
    Pkg { name: "libc6-dev", probe: Probe::File("/usr/include/stdio.h") },
    Pkg::tool("binutils", "ld"),
    Pkg::tool("make", "make"),
    Pkg::tool("flex", "flex"),
    Pkg::tool("bison", "bison"),
    Pkg::tool("bc", "bc"),
    Pkg { name: "libelf-dev", probe: Probe::File("/usr/include/libelf.h") },
    Pkg { name: "libssl-dev", probe: Probe::File("/usr/include/openssl/ssl.h") },
    Pkg::tool("kmod", "depmod"),
    Pkg::tool("cpio", "cpio"),
    Pkg::tool("xz-utils", "xz"),
    Pkg::tool("ccache", "ccache"),
    Pkg::tool("patch", "patch"),
];

/// What the kernel's `bindeb-pkg` needs besides.
pub const KERNEL_DEB_PACKAGES: &[Pkg] = &[
    Pkg::tool("dpkg-dev", "dpkg-buildpackage"),
    Pkg::tool("debhelper", "dh_builddeb"),
    Pkg::tool("rsync", "rsync"),
    // The key that signs modules.
    Pkg::tool("openssl", "openssl"),
    Pkg::tool("python3", "python3"),
];

/// The packages for unpacking the kernel's source, besides apt.
pub const SOURCE_PACKAGES: &[Pkg] =
    &[Pkg::tool("xz-utils", "xz"), Pkg::tool("tar", "tar"), Pkg::tool("dpkg", "dpkg-deb")];

/// The packages for applying topics and exporting them as a series.
pub const SERIES_PACKAGES: &[Pkg] = &[Pkg::tool("git", "git"), Pkg::tool("patch", "patch")];

/// Returns the packages for booting guests.
pub fn guest_packages(arch: Arch) -> &'static [Pkg] {
    const BUSYBOX: Pkg = Pkg::tool("busybox-static", "busybox");
    const X86: &[Pkg] = &[Pkg::tool("qemu-system-x86", "qemu-system-x86_64"), BUSYBOX];
    const ARM: &[Pkg] = &[Pkg::tool("qemu-system-arm", "qemu-system-aarch64"), BUSYBOX];
    if arch.is_x86() { X86 } else { ARM }
}

/// Returns the packages for compiling kernels and programs of another architecture; none for the host's own.
pub fn cross_packages(arch: Arch) -> &'static [Pkg] {
    const ARM: &[Pkg] = &[
        Pkg::tool("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc"),
        Pkg { name: "libc6-dev-arm64-cross", probe: Probe::File("/usr/aarch64-linux-gnu/lib/libc.a") },
    ];
    if arch.is_native() { &[] } else { ARM }
}

/// The packages for the kernel code's tests on the host.
pub const HOSTED_TEST_PACKAGES: &[Pkg] = &[
    Pkg::tool("clang-19", "clang-19"),
    Pkg { name: "libclang-rt-19-dev", probe: Probe::File("/usr/lib/llvm-19/lib/clang/19/lib/linux") },
];

/// The packages for static checks of the kernel code.
pub const LINT_PACKAGES: &[Pkg] = &[Pkg::tool("sparse", "sparse")];

/// Returns the path of `tool`, searched in `PATH` and in the folders for root's tools, which are often
/// missing from a user's `PATH`; `None` if it is not found.
pub fn find_tool(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .map(|folder| folder.join(tool))
        .find(|file| file.is_file())
}

/// Installs the missing ones of `packages`, as root or through sudo.
///
/// # Errors
/// When packages are missing and the lab is neither root nor can use sudo (the message has the command to
/// run), or when apt fails (the message has the end of its log).
pub fn ensure_packages(ctx: &Context, packages: &[Pkg]) -> Result<()> {
    let missing = || packages.iter().filter(|p| !p.is_present()).map(|p| p.name).collect::<Vec<_>>();
    let names = missing();
    if names.is_empty() {
        return Ok(());
    }
    let shown = names.join(" ");
    if apt().is_none() {
        bail!("missing Debian packages; run: sudo apt-get install --no-install-recommends {shown}");
    }
    let step = ctx.progress.step(&format!("installing {shown}"));
    let log = ctx.out.join("logs/apt.log");
    let install = [&["install", "--no-install-recommends", "-y"], &names[..]].concat();
    // An update takes long, so it is done only if apt's lists are missing or out of date.
    if let Err(first) = run_apt(&step, &log, &install) {
        step.detail("apt-get update");
        run_apt(&step, &log, &["update"]).map_err(|e| e.context(first))?;
        run_apt(&step, &log, &install)?;
    }
    let still = missing();
    if !still.is_empty() {
        bail!("apt-get reports success but these are still missing: {}", still.join(" "));
    }
    step.done("installed");
    Ok(())
}

/// Refreshes apt's lists. Returns `Ok(false)` if that is not permitted.
///
/// # Errors
/// When apt-get fails.
pub fn refresh_apt_lists(ctx: &Context) -> Result<bool> {
    if apt().is_none() {
        return Ok(false);
    }
    let step = ctx.progress.step("apt-get update");
    run_apt(&step, &ctx.out.join("logs/apt-update.log"), &["update"])?;
    step.done("");
    Ok(true)
}

fn run_apt(step: &Step, log: &Path, args: &[&str]) -> Result<()> {
    let mut apt = apt().context("no apt-get here, or no right to use it")?;
    run_step(step, apt.args(args), log)
}

/// Returns an apt-get command with root's rights; `None` if there is no apt or sudo asks for a password.
fn apt() -> Option<Command> {
    find_tool("apt-get")?;
    let mut apt = as_root("env").ok()?;
    // Waits for another apt instead of failing at once.
    apt.args(["DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "apt-get", "-q", "-o", "DPkg::Lock::Timeout=120"]);
    Some(apt)
}

/// Returns a command with root's rights, through sudo if necessary.
///
/// # Errors
/// When the program is not installed, or sudo asks for a password.
pub fn as_root(program: &str) -> Result<Command> {
    let path = find_tool(program).with_context(|| format!("{program} is not installed"))?;
    if rustix::process::geteuid().is_root() {
        return Ok(Command::new(path));
    }
    if output(Command::new("sudo").args(["-n", "true"])).is_err() {
        bail!("{program} needs root's rights; run it once as root, or set up sudo");
    }
    let mut command = Command::new("sudo");
    command.arg("-n").arg(path);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_packages_need_no_apt() {
        let dir = tempfile::tempdir().unwrap();
        ensure_packages(&Context::below(dir.path()), &[Pkg::tool("coreutils", "cp")]).unwrap();
    }
}
