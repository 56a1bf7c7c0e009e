//! Ctrl-C as a file descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::{mem, ptr};

/// Keeps SIGINT from ending the program; it becomes readable here instead.
///
/// Must be made before any thread is started: a thread that does not block the signal would
/// die of it, and with it the program.
pub struct Interrupt {
    fd: OwnedFd,
    before: libc::sigset_t,
}

impl Interrupt {
    /// Begins to catch.
    ///
    /// # Errors
    /// When there is no room for another descriptor.
    pub fn catch() -> io::Result<Self> {
        // SAFETY: both sets are plain data, filled by sigemptyset and sigprocmask before use; all
        // pointers are to live locals.
        unsafe {
            let mut set: libc::sigset_t = mem::zeroed();
            let mut before: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGINT);
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = OwnedFd::from_raw_fd(fd);
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            Ok(Self { fd, before })
        }
    }

    /// Whether Ctrl-C was pressed since the last time this was asked.
    pub fn take(&self) -> bool {
        let mut info = mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = mem::size_of_val(&info);
        // SAFETY: the kernel writes at most `size` bytes, which is what `info` has room for.
        unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) > 0 }
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // SAFETY: `before` was filled by pthread_sigmask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}
