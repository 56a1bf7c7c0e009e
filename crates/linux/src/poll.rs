// SPDX-License-Identifier: GPL-2.0-only
//! Waits for one file: poll(2).

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

/// What is true of the file within `timeout`; empty when the time was up. Signal handlers do not
/// end the wait.
///
/// # Errors
/// When the kernel is short of memory.
pub fn poll(fd: impl AsFd, events: PollFlags, timeout: Duration) -> Result<PollFlags, Errno> {
    // Without a deadline when it is too far away to be told.
    let deadline = Instant::now().checked_add(timeout);
    let mut left = deadline.map(|_| timeout);
    loop {
        let time = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::new(&fd, events)];
        match rustix::event::poll(&mut fds, time.as_ref()) {
            Ok(_) => return Ok(fds[0].revents()),
            Err(Errno::INTR) => left = deadline.map(|d| d.saturating_duration_since(Instant::now())),
            Err(errno) => return Err(errno),
        }
    }
}
