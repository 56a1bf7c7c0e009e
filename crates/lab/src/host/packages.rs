// SPDX-License-Identifier: GPL-2.0-only
//! The Debian packages that the lab needs, and their installation.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::process::{output, proxies, run_step};
use crate::arch::Arch;
use crate::context::Context;
use crate::progress::Step;

/// How long to wait for another apt, and how often to look.
const APT_LOCK_TIMEOUT: Duration = Duration::from_secs(120);
const APT_LOCK_PAUSE: Duration = Duration::from_secs(1);

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
    /// A program in `PATH` that needs no shared libraries, so that it runs in a guest.
    StaticTool(&'static str),
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
            Probe::StaticTool(tool) => {
                find_tool(tool).is_some_and(|file| shared_libraries(&file).is_ok_and(|needed| needed.is_empty()))
            }
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
    // Reads what KUnit prints.
    Pkg::tool("python3", "python3"),
];

/// What the kernel's `bindeb-pkg` needs besides.
pub const KERNEL_DEB_PACKAGES: &[Pkg] = &[
    Pkg::tool("dpkg-dev", "dpkg-buildpackage"),
    Pkg::tool("debhelper", "dh_builddeb"),
    Pkg::tool("rsync", "rsync"),
    // The key that signs modules.
    Pkg::tool("openssl", "openssl"),
];

/// The packages for unpacking the kernel's source, besides apt.
pub const SOURCE_PACKAGES: &[Pkg] =
    &[Pkg::tool("xz-utils", "xz"), Pkg::tool("tar", "tar"), Pkg::tool("dpkg", "dpkg-deb")];

/// The packages for applying topics and exporting them as a series.
pub const SERIES_PACKAGES: &[Pkg] = &[Pkg::tool("git", "git"), Pkg::tool("patch", "patch")];

/// Returns the packages for booting guests.
pub fn guest_packages(arch: Arch) -> &'static [Pkg] {
    // Debian's package busybox, which most machines have, is not static. apt replaces it by this one.
    const BUSYBOX: Pkg = Pkg { name: "busybox-static", probe: Probe::StaticTool("busybox") };
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

/// Returns the shared libraries that a program of this machine needs, by their paths; none if it is static.
///
/// # Errors
/// When one of them is missing.
pub fn shared_libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let Ok(listing) = output(Command::new("ldd").arg(program)) else {
        // ldd fails for static executables ("not a dynamic executable").
        return Ok(Vec::new());
    };
    let mut libraries = Vec::new();
    for line in listing.lines().map(str::trim) {
        ensure!(!line.ends_with("not found"), "{}: a library is missing: {line}", program.display());
        // `libc.so.6 => /lib/libc.so.6 (0x7f..)`, `/lib64/ld-linux-x86-64.so.2 (0x7f..)`.
        let path = line.split(" => ").last().and_then(|p| p.split(" (").next()).unwrap_or(line);
        if path.starts_with('/') {
            libraries.push(PathBuf::from(path));
        }
    }
    Ok(libraries)
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
    unlocked(step, || run_step(step, apt().context("no apt-get here, or no right to use it")?.args(args), log))
}

/// Waits for another apt, such as that of apt-daily.service after a boot, instead of failing at once. apt's own
/// `DPkg::Lock::Timeout` is not for the lock of its lists.
fn unlocked(step: &Step, apt: impl Fn() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + APT_LOCK_TIMEOUT;
    loop {
        match apt() {
            Err(e) if Instant::now() < deadline && e.to_string().contains("Could not get lock") => {
                step.detail("waiting for another apt");
                thread::sleep(APT_LOCK_PAUSE);
            }
            result => return result,
        }
    }
}

/// Returns an apt-get command with root's rights; `None` if there is no apt or sudo asks for a password.
fn apt() -> Option<Command> {
    find_tool("apt-get")?;
    let mut apt = as_root("env").ok()?;
    apt.args(["DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "apt-get", "-q"]);
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
    Ok(sudo(&path, proxies()))
}

/// Returns a command that runs a program by sudo, with these variables.
fn sudo(program: &Path, variables: impl Iterator<Item = (&'static str, OsString)>) -> Command {
    let mut command = Command::new("sudo");
    command.args(["-n", "env"]);
    for (name, value) in variables {
        let mut setting = OsString::from(format!("{name}="));
        setting.push(value);
        command.arg(setting);
    }
    command.arg(program);
    command
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn present_packages_need_no_apt() {
        let dir = tempfile::tempdir().unwrap();
        ensure_packages(&Context::below(dir.path()), &[Pkg::tool("coreutils", "cp")]).unwrap();
    }

    #[test]
    fn sudo_keeps_proxies() {
        let command = sudo(Path::new("/usr/sbin/debootstrap"), [("http_proxy", "http://p:3128".into())].into_iter());
        let text = crate::host::command_text(&command);
        assert_eq!(text, "sudo -n env http_proxy=http://p:3128 /usr/sbin/debootstrap");
    }

    #[test]
    fn another_apt_is_waited_for() {
        let step = Context::below(Path::new("/nowhere")).progress.step("test");
        let held = Cell::new(1);
        let apt = || {
            ensure!(held.replace(held.get() - 1) != 1, "E: Could not get lock /var/lib/apt/lists/lock");
            bail!("E: no such package")
        };
        assert_eq!(unlocked(&step, apt).unwrap_err().to_string(), "E: no such package");
        assert_eq!(held.get(), -1);
    }

    #[test]
    fn a_program_that_needs_libraries_is_not_for_guests() {
        let dynamic = Pkg { name: "coreutils", probe: Probe::StaticTool("cp") };
        assert!(Pkg::tool("coreutils", "cp").is_present() && !dynamic.is_present());
    }
}
