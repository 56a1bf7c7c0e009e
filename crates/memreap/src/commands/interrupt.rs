// SPDX-License-Identifier: GPL-2.0-only
//! Ctrl-C as a file descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use linux::signal::{self, Signal, SignalFd, SignalMask};

/// Keeps SIGINT from ending the program; it becomes readable here instead.
///
/// Must be made before any thread is started: a thread that does not block the signal is ended by it, and
/// with it the program.
pub struct Interrupt {
    fd: SignalFd,
    before: SignalMask,
}

impl Interrupt {
    /// Blocks SIGINT.
    ///
    /// # Errors
    /// When there is no room for another descriptor.
    pub fn catch() -> io::Result<Self> {
        let fd = SignalFd::open(&[Signal::INT])?;
        let before = signal::block(&[Signal::INT])?;
        Ok(Self { fd, before })
    }

    /// Whether Ctrl-C was pressed since this was last called.
    pub fn take(&self) -> bool {
        self.fd.take().is_some()
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // Fails only for a wrong argument.
        let _ = self.before.restore();
    }
}
