// SPDX-License-Identifier: GPL-2.0-only
//! Signals to the daemon, as a file descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use linux::signal::{self, Signal, SignalFd};

/// What a signal tells the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGTERM, SIGINT: stop.
    Stop,
}

/// SIGHUP, SIGTERM and SIGINT, without their usual effects.
pub(super) struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals. Must be called before any thread is started: a thread that does not block them is
    /// ended by them, and with it the program.
    ///
    /// # Errors
    /// When there is no room for another descriptor.
    pub(super) fn catch() -> io::Result<Self> {
        let signals = [Signal::HUP, Signal::TERM, Signal::INT];
        signal::block(&signals)?;
        Ok(Self(SignalFd::open(&signals)?))
    }

    /// Takes the next signal that has arrived, if there is one.
    pub(super) fn take(&self) -> Option<Event> {
        self.0.take().map(|signal| match signal {
            libc::SIGHUP => Event::Reload,
            _ => Event::Stop,
        })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
