// SPDX-License-Identifier: GPL-2.0-only
//! The architecture that kernels are built for and guests have. Those of another than the host's are cross-compiled,
//! and emulated.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::context::Context;
use crate::host::{self, Pkg};

/// An architecture, and where it has several, a page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arch {
    /// x86-64.
    #[value(name = "x86-64")]
    X86_64,
    /// arm64 with pages of 4 KiB.
    Arm64,
    /// arm64 with pages of 64 KiB.
    #[value(name = "arm64-64k")]
    Arm64Pages64K,
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::X86_64 => "x86-64",
            Self::Arm64 => "arm64",
            Self::Arm64Pages64K => "arm64-64k",
        })
    }
}

/// The packages for another architecture than the host's.
const CROSS_ARM64_PACKAGES: &[Pkg] = &[
    Pkg::tool("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc"),
    Pkg { name: "libc6-dev-arm64-cross", probe: host::Probe::File("/usr/aarch64-linux-gnu/lib/libc.a") },
];

impl Arch {
    /// Returns the host's.
    #[must_use]
    pub const fn of_host() -> Self {
        if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::X86_64 }
    }

    /// Whether the host can run its programs.
    #[must_use]
    pub fn is_native(self) -> bool {
        self.is_x86() == Self::of_host().is_x86()
    }

    pub(crate) fn is_x86(self) -> bool {
        self == Self::X86_64
    }

    /// Returns the packages for compiling kernels and programs.
    #[must_use]
    pub fn compiler_packages(self) -> &'static [Pkg] {
        if self.is_native() { &[] } else { CROSS_ARM64_PACKAGES }
    }

    /// Returns the packages for booting guests.
    #[must_use]
    pub fn guest_packages(self) -> &'static [Pkg] {
        match self {
            Self::X86_64 => host::GUEST_PACKAGES,
            Self::Arm64 | Self::Arm64Pages64K => host::ARM64_GUEST_PACKAGES,
        }
    }

    /// Returns what tells folders and files of it from those of the host: empty for that.
    #[must_use]
    pub fn suffix(self) -> String {
        if self == Self::of_host() { String::new() } else { format!("-{self}") }
    }

    /// Returns the prefix of the names of compilers and binutils; empty for the host's own.
    pub(crate) fn tool_prefix(self) -> &'static str {
        match self {
            _ if self.is_native() => "",
            Self::X86_64 => "x86_64-linux-gnu-",
            Self::Arm64 | Self::Arm64Pages64K => "aarch64-linux-gnu-",
        }
    }

    /// Returns the kernel's name for it, as in `arch/`.
    pub(crate) fn kernel_name(self) -> &'static str {
        if self.is_x86() { "x86" } else { "arm64" }
    }

    /// Returns the makefile target of the bootable image.
    pub(crate) fn image_target(self) -> &'static str {
        if self.is_x86() { "bzImage" } else { "Image" }
    }

    /// Returns where a build folder has the bootable image.
    pub(crate) fn image_file(self) -> PathBuf {
        format!("arch/{}/boot/{}", self.kernel_name(), self.image_target()).into()
    }

    /// Returns the names of the fragments in `kernel/configs` that come after those of the variant.
    pub(crate) fn fragments(self) -> &'static [&'static str] {
        match self {
            Self::X86_64 => &[],
            Self::Arm64 => &["arm64"],
            Self::Arm64Pages64K => &["arm64", "arm64-64k"],
        }
    }

    /// Returns Rust's name for the target of the guest's programs.
    pub(crate) fn rust_target(self) -> &'static str {
        if self.is_x86() { "x86_64-unknown-linux-gnu" } else { "aarch64-unknown-linux-gnu" }
    }

    /// Returns the features of the package `guest`.
    pub(crate) fn guest_features(self) -> &'static [&'static str] {
        if self == Self::Arm64Pages64K { &["--features", "guest/pages-64k"] } else { &[] }
    }

    /// Installs what of Rust is needed for [`Self::rust_target`].
    ///
    /// # Errors
    /// When it is missing and there is no rustup.
    pub(crate) fn ensure_rust_target(self, ctx: &Context) -> Result<()> {
        if self.is_native() {
            return Ok(());
        }
        let target = self.rust_target();
        let sysroot = host::output(host::tool("rustc").args(["--print", "sysroot"]))?;
        if Path::new(sysroot.trim()).join("lib/rustlib").join(target).is_dir() {
            return Ok(());
        }
        ensure!(
            host::find_tool("rustup").is_some(),
            "Rust's libraries for {target} are missing; install them (rustup target add {target}, or the package \
             libstd-rust-dev of that architecture)"
        );
        let step = ctx.progress.step(&format!("installing Rust's libraries for {target}"));
        let log = ctx.out.join("logs/rustup.log");
        host::run_step(&step, host::tool("rustup").args(["target", "add", target]), &log)?;
        step.done("");
        Ok(())
    }

    /// Returns QEMU's program.
    pub(crate) fn qemu(self) -> &'static str {
        if self.is_x86() { "qemu-system-x86_64" } else { "qemu-system-aarch64" }
    }

    /// Returns QEMU's machine without more devices than a guest needs. microvm boots in a second because it has
    /// hardly any to probe; GICv3 is for more than eight CPUs.
    pub(crate) fn machine(self) -> &'static str {
        if self.is_x86() { "microvm" } else { "virt,gic-version=3" }
    }

    /// Returns the device of the serial console.
    pub(crate) fn console(self) -> &'static str {
        if self.is_x86() { "ttyS0" } else { "ttyAMA0" }
    }

    /// Returns a static busybox; for another architecture than the host's from Debian's package, which is kept in
    /// the cache.
    ///
    /// # Errors
    /// When it is not installed, or cannot be downloaded.
    pub(crate) fn busybox(self, ctx: &Context) -> Result<PathBuf> {
        if self.is_native() {
            return host::find_tool("busybox")
                .context("no busybox in PATH; install it with: sudo apt-get install busybox-static");
        }
        let debian = if self.is_x86() { "amd64" } else { "arm64" };
        let home = ctx.cache.join(format!("busybox-{debian}"));
        let busybox = home.join("bin/busybox");
        let _lock = host::lock(ctx, &home)?;
        if busybox.is_file() {
            return Ok(busybox);
        }
        let step = ctx.progress.step(&format!("downloading busybox for {debian}"));
        let staging = host::Staging::begin(&home)?;
        let log = ctx.out.join("logs/busybox.log");
        // apt as on a machine of that architecture, and without this one's state.
        let script = "set -eu; mkdir -p \"$1/apt/lists/partial\" \"$1/apt/archives/partial\"; : >\"$1/apt/status\"; cd \"$1\"
            set -- -qq -o APT::Architecture=\"$2\" -o APT::Architectures=\"$2\" -o Dir::State=\"$PWD/apt\" \
                -o Dir::State::status=\"$PWD/apt/status\" -o Dir::Cache=\"$PWD/apt\"
            apt-get \"$@\" update; apt-get \"$@\" download busybox-static; dpkg-deb -x busybox-static_*.deb .; rm -r apt *.deb";
        let mut shell = host::tool("sh");
        shell.args(["-c", script, "sh"]).arg(staging.path()).arg(debian);
        host::run_step(&step, &mut shell, &log)?;
        staging.publish(&home)?;
        step.done("");
        Ok(busybox)
    }
}
