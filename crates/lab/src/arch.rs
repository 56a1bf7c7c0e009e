// SPDX-License-Identifier: GPL-2.0-only
//! The architecture that kernels are built for and guests have. Those of another than the host's are cross-compiled,
//! and emulated.

use std::fmt;
use std::path::PathBuf;

use crate::format;

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
        f.pad(&format::name_of(self))
    }
}

impl Arch {
    /// Returns the host's.
    pub const fn of_host() -> Self {
        if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::X86_64 }
    }

    /// Whether the host can run its programs.
    pub fn is_native(self) -> bool {
        self.is_x86() == Self::of_host().is_x86()
    }

    pub(crate) fn is_x86(self) -> bool {
        self == Self::X86_64
    }

    /// Returns what tells folders and files of it from those of the host: empty for that.
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

    /// Returns Debian's name for it.
    pub(crate) fn debian_name(self) -> &'static str {
        if self.is_x86() { "amd64" } else { "arm64" }
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
}
