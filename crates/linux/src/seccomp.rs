// SPDX-License-Identifier: GPL-2.0-only
//! seccomp(2): filters of system calls.

use std::io;

/// Loads a filter for all threads of this process (`SECCOMP_FILTER_FLAG_TSYNC`); calls that it refuses are
/// logged by the kernel. The thread must have no new privileges, or CAP_SYS_ADMIN.
///
/// # Errors
/// When the program is too long, the kernel refuses it, or a thread has filters that the others do not have.
pub fn load_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_ptr().cast_mut(),
    };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_LOG;
    // SAFETY: the kernel reads `filter`, and as many instructions as it says there are; both live.
    match unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) } {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} has filters of its own"))),
    }
}
