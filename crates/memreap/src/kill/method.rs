// SPDX-License-Identifier: GPL-2.0-only
//! How the memory of a killed process comes back.

use linux::PidFd;
use linux::cgroup::Cgroup;
use linux::dir::Failure;
use linux::pidfd::{self, Signal};

/// How the memory of a killed process comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The kernel does it, as part of the kill (topic `expedite`).
    Expedite,
    /// Our threads do it, by process_mrelease(2).
    Mrelease,
    /// The dying process does it.
    Plain,
}

impl Method {
    /// The first of expedite, mrelease and plain that this kernel has.
    pub fn best() -> Self {
        [Self::Expedite, Self::Mrelease].into_iter().find(|m| m.supported()).unwrap_or(Self::Plain)
    }

    /// Whether this kernel has it.
    pub fn supported(self) -> bool {
        match self {
            Self::Expedite => pidfd::expedite_supported(),
            Self::Mrelease => pidfd::mrelease_supported(),
            Self::Plain => true,
        }
    }

    /// Its name in options and output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expedite => "expedite",
            Self::Mrelease => "mrelease",
            Self::Plain => "plain",
        }
    }
}

/// Sends SIGKILL; with [`Method::Expedite`] it asks the kernel to free the memory as part of the kill.
/// Returns whether the kernel does.
///
/// # Errors
/// As [`PidFd::send_signal`]; nothing was sent then.
pub(crate) fn send_sigkill(pidfd: &PidFd, method: Method) -> linux::Result<bool> {
    if method == Method::Expedite {
        match pidfd.kill_expedited() {
            Ok(()) => return Ok(true),
            // Switched off since we asked: that the process is killed matters more than how.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            Err(e) => return Err(e),
        }
    }
    pidfd.send_signal(Signal::KILL).map(|()| false)
}

/// Kills all processes of a cgroup and below at once; with [`Method::Expedite`] it asks the kernel to free their memory
/// as part of the kill. Returns whether the kernel does.
///
/// # Errors
/// As [`Cgroup::kill`]; nobody was killed then.
pub(crate) fn kill_cgroup(cgroup: &Cgroup, method: Method) -> Result<bool, Failure> {
    if method == Method::Expedite && cgroup.kill_expedited().is_ok() {
        return Ok(true);
    }
    cgroup.kill().map(|()| false)
}
