//! Signals to the daemon, as a file descriptor.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// What the daemon is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// SIGHUP: read the configuration anew.
    Reload,
    /// SIGTERM, SIGINT: end.
    End,
    /// Much memory was touched for the first time ([`linux::perf::FaultAlarm`]).
    Faults,
}

/// SIGHUP, SIGTERM, SIGINT and SIGIO, kept from doing what they do.
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Begins to catch. Must be done before any thread is started: a thread that does not block the
    /// signals would die of them, and with it the program.
    ///
    /// # Errors
    /// When there is no room for another descriptor.
    pub fn catch() -> io::Result<Self> {
        // SAFETY: the set is plain data, filled by sigemptyset before use; all pointers are to live
        // locals.
        unsafe {
            let mut set: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGINT, libc::SIGIO] {
                libc::sigaddset(&mut set, signal);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self { fd: OwnedFd::from_raw_fd(fd) })
        }
    }

    /// The next one that has come, if there is one.
    pub fn take(&self) -> Option<Event> {
        let mut info = mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = mem::size_of_val(&info);
        // SAFETY: the kernel writes at most `size` bytes, which is what `info` has room for.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if usize::try_from(got) != Ok(size) {
            return None;
        }
        // SAFETY: the kernel has filled all of it.
        let info = unsafe { info.assume_init() };
        Some(match info.ssi_signo.cast_signed() {
            libc::SIGHUP => Event::Reload,
            libc::SIGIO => Event::Faults,
            _ => Event::End,
        })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
