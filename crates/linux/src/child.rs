// SPDX-License-Identifier: GPL-2.0-only
//! Forked children.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use crate::Pid;

/// Forks. The child runs `work` and exits with the status that it returns, without running the parent's exit
/// handlers or flushing its buffers; it never returns from here.
///
/// # Errors
/// When there is no room for another process.
///
/// # Safety
/// `work` may do what a child of this process may: anything if this process has one thread, and otherwise
/// only what is safe in a signal handler, since another thread may have held any lock at the time of the
/// fork.
pub unsafe fn fork(work: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: the child does what the caller promises, and then exits.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = work();
            // SAFETY: takes a number, and ends the process.
            unsafe { libc::_exit(status) }
        }
        pid => Pid::new(pid).ok_or_else(|| io::Error::other("fork(2) returned no process ID")),
    }
}

/// Closes all descriptors but the standard streams and `keep`. By the system call: not all C libraries have a
/// function.
///
/// # Safety
/// Nothing in this process uses another descriptor from here on.
pub unsafe fn close_fds_except(keep: BorrowedFd<'_>) {
    let keep = keep.as_raw_fd().cast_unsigned();
    // SAFETY: takes numbers; the caller promises that the descriptors are not used.
    unsafe {
        if keep > 3 {
            libc::syscall(libc::SYS_close_range, 3, keep - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, keep + 1, u32::MAX, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_child_has_what_it_keeps_and_exits_with_its_status() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // SAFETY: the child makes system calls only, and uses no other descriptor afterwards.
        let child = unsafe {
            fork(|| {
                close_fds_except(writer.as_fd());
                let kept = rustix::io::write(&writer, b".").is_ok();
                let closed = rustix::io::read(&reader, &mut [0]) == Err(rustix::io::Errno::BADF);
                if kept && closed { 7 } else { 1 }
            })
        }
        .unwrap();
        let status = rustix::process::waitpid(Some(child.into()), rustix::process::WaitOptions::empty());
        assert_eq!(status.unwrap().unwrap().1.exit_status(), Some(7));
    }
}
