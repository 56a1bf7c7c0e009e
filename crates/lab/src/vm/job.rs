// SPDX-License-Identifier: GPL-2.0-only
//! What a boot is asked for: a kernel, a machine and a job for PID 1.

use std::path::PathBuf;
use std::time::Duration;

pub use protocol::job::Command as GuestCommand;

/// One side of a comparison: a kernel and its boot parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    /// What the tables call it.
    pub name: String,
    /// The kernel's bzImage.
    pub bzimage: PathBuf,
    /// Kernel parameters, appended after the lab's own, so they win.
    pub cmdline: String,
}

/// How guest time passes under TCG; KVM knows only its own, real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One host thread per CPU: real concurrency, real noise.
    Multi,
    /// Time is the number of instructions executed by all CPUs together: repeats closely,
    /// shows cost, not parallelism. Always TCG.
    Icount,
}

/// What PID 1 runs, and the machine to run it on.
#[derive(Clone, Debug)]
pub struct Job {
    /// What to run.
    pub command: GuestCommand,
    /// What progress calls it, if the command itself says little.
    pub name: Option<String>,
    /// Number of CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub mem_mib: u32,
    /// The kind of guest time.
    pub mode: Mode,
    /// Kernel parameters that the job needs, before those of the arm.
    pub cmdline: String,
    /// The whole boot's limit; then the guest counts as hung and is killed.
    pub timeout: Duration,
    /// Files or folders of the host that the guest finds at the given absolute paths. With an
    /// executable come the shared libraries it needs.
    pub overlay: Vec<(PathBuf, String)>,
    /// Whether the guest's console is the lab's terminal.
    pub interactive: bool,
    /// Regular expressions for console lines that would fail the boot but are expected here;
    /// say why where you set one. Empty for all but tests that provoke complaints.
    pub allow: Vec<String>,
    /// Whether the guest has `/bin/memreap`. Without it, what boots does not change with memreap.
    pub memreap: bool,
}

impl Job {
    /// A job on two CPUs with 1 GiB, real concurrency and a limit of three minutes.
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
            memreap: true,
        }
    }
}

impl Default for Job {
    fn default() -> Self {
        Self::new(GuestCommand::Exec(Vec::new()))
    }
}
