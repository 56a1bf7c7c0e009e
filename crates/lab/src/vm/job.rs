// SPDX-License-Identifier: GPL-2.0-only
//! The input of a boot: a kernel, a machine and a job for PID 1.

use std::path::PathBuf;
use std::time::Duration;

pub use protocol::job::Command as GuestCommand;
pub use scenarios::Mode;

use crate::vm::root::RootDisk;

/// An arm of a comparison: a kernel and its boot parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Its name in tables.
    pub name: String,
    /// The kernel's bzImage.
    pub bzimage: PathBuf,
    /// Kernel parameters. They come after the lab's own and override them.
    pub cmdline: String,
}

/// What PID 1 runs, and the machine to run it on.
#[derive(Clone, Debug)]
pub struct Job {
    /// The command that PID 1 runs.
    pub command: GuestCommand,
    /// A name to show instead of the command.
    pub name: Option<String>,
    /// Number of CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub mem_mib: u32,
    /// How guest time passes.
    pub mode: Mode,
    /// Kernel parameters of the job. Those of the arm come later.
    pub cmdline: String,
    /// The time limit of the boot. A guest that takes longer counts as hung and is killed.
    pub timeout: Duration,
    /// Files and folders of the host and their absolute paths in the guest. The shared libraries of
    /// executables are added.
    pub overlay: Vec<(PathBuf, String)>,
    /// Whether the guest's console is the lab's terminal.
    pub interactive: bool,
    /// Regular expressions of console lines that would fail the boot but are expected. Only for tests that
    /// provoke such lines and for known bugs; document the reason where it is set.
    pub allow: Vec<String>,
    /// The disk whose file system the command runs in; `None` for the initramfs. The kernel needs
    /// CONFIG_VIRTIO_BLK and CONFIG_EXT4_FS.
    pub root: Option<RootDisk>,
    /// Whether the guest has `/bin/memreap`. Without it, the boot's key does not depend on memreap.
    pub memreap: bool,
}

impl Job {
    /// A job with two CPUs, 1 GiB, real time and a limit of three minutes.
    pub fn new(command: GuestCommand) -> Self {
        Self {
            command,
            name: None,
            cpus: 2,
            mem_mib: 1024,
            mode: Mode::Multi,
            cmdline: String::new(),
            timeout: Duration::from_secs(180),
            overlay: Vec::new(),
            interactive: false,
            allow: Vec::new(),
            root: None,
            memreap: true,
        }
    }
}

impl Default for Job {
    fn default() -> Self {
        Self::new(GuestCommand::Exec(Vec::new()))
    }
}
