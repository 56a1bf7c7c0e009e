// SPDX-License-Identifier: GPL-2.0-only
//! pidfds: descriptors that refer to the same process even when its ID is reused; and what can be done with
//! them: signals, waiting, swapping pages out, and getting the memory of a dying process back.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

pub use rustix::process::Signal;

use crate::poll::poll;
use crate::{Error, Pid, Result, read, text};

/// The flag of pidfd_send_signal(2) for [`PidFd::kill_expedited`].
const EXPEDITE: u32 = 1 << 31;

/// What process_mrelease(2) did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The memory that can be freed while the process still exits is free. What is left is
    /// freed by the process itself: page tables, locked and shared memory.
    Done,
    /// EAGAIN: some of the memory could not be freed at this time. Try again.
    Again,
    /// ESRCH: the process is already past the point where it leaves its memory, and frees it
    /// itself.
    Gone,
    /// EINVAL: the process has not been killed, or another process that lives shares its memory.
    NotDying,
}

/// A handle on one process.
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
    pid: Pid,
}

impl PidFd {
    /// A handle on the process that has this ID now. Anything read from /proc by that ID before
    /// can be about an earlier process.
    ///
    /// # Errors
    /// [`Error::Gone`] when there is no such process; EINVAL (or ENOENT since Linux 6.15) when
    /// it is the ID of a thread that is not its process's first.
    pub fn open(pid: Pid) -> Result<Self> {
        // O_CLOEXEC is always set on a pidfd.
        let fd = pidfd_open(pid.into(), PidfdFlags::empty()).map_err(|errno| Error::call("pidfd_open", pid, errno))?;
        Ok(Self { fd, pid })
    }

    /// Another handle on the same process.
    ///
    /// # Errors
    /// When there is no room for another descriptor.
    pub fn try_clone(&self) -> Result<Self> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(|e| Error::call("dup", self.pid, e))?;
        Ok(Self { fd, pid: self.pid })
    }

    /// The ID the handle was opened by. Another process may have it by now; see [`PidFd::pid`].
    pub fn opened_as(&self) -> Pid {
        self.pid
    }

    /// The process's ID according to the kernel, or `None` when the process has exited and was
    /// waited for, so that its ID is free for another.
    ///
    /// # Errors
    /// When /proc is not there or is another PID namespace's, in which the process is not.
    pub fn pid(&self) -> Result<Option<Pid>> {
        let path = PathBuf::from(format!("/proc/self/fdinfo/{}", self.fd.as_raw_fd()));
        let bytes = read::file(&path, read::SMALL_FILE_BYTES)?;
        for line in text::lines(&path, &bytes) {
            let line = line?;
            if let Some((b"Pid", value)) = line.key_value() {
                return match line.number(value)? {
                    -1 => Ok(None),
                    pid => Pid::new(pid)
                        .map(Some)
                        .ok_or_else(|| line.error("the process is not in the PID namespace of this /proc")),
                };
            }
        }
        Err(text::missing(&path, &bytes, "Pid: is missing"))
    }

    /// Sends a signal. Allocates nothing when it succeeds.
    ///
    /// # Errors
    /// [`Error::Gone`] when the process has exited; EPERM ([`Error::is_denied`]). Nothing is sent then.
    pub fn send_signal(&self, signal: Signal) -> Result<()> {
        self.send(signal.as_raw(), 0)
    }

    /// Sends SIGKILL, at which the kernel frees the memory at once, in workers of its own. Needs the kernel topic
    /// `expedite`; see [`expedite_supported`].
    ///
    /// # Errors
    /// As [`PidFd::send_signal`]; EINVAL without the topic.
    pub fn kill_expedited(&self) -> Result<()> {
        self.send(Signal::KILL.as_raw(), EXPEDITE)
    }

    /// Whether the caller may send signals to the process; none is sent.
    ///
    /// # Errors
    /// As [`PidFd::send_signal`].
    pub fn check_permission(&self) -> Result<()> {
        self.send(0, 0)
    }

    fn send(&self, signal: i32, flags: u32) -> Result<()> {
        send_signal(self.fd.as_raw_fd(), signal, flags)
            .map_err(|errno| Error::call("pidfd_send_signal", self.pid, errno))
    }

    /// Frees the memory of a process that was killed and has not yet got to it, in the calling
    /// thread (process_mrelease(2)). Allocates nothing when it succeeds. May take seconds for a
    /// large process, or when its memory map is locked.
    ///
    /// # Errors
    /// When the kernel answers something that [`Release`] does not have: ENOSYS without the call, EPERM or EACCES
    /// when a security policy forbids it, EINTR when the caller was killed itself.
    pub fn release_memory(&self) -> Result<Release> {
        match process_mrelease(self.fd.as_raw_fd()) {
            Ok(()) => Ok(Release::Done),
            Err(Errno::AGAIN) => Ok(Release::Again),
            Err(Errno::SRCH) => Ok(Release::Gone),
            Err(Errno::INVAL) => Ok(Release::NotDying),
            Err(errno) => Err(Error::call("process_mrelease", self.pid, errno)),
        }
    }

    /// Waits until all threads of the process have exited, and says whether they have. Then its
    /// memory is free, unless another process shares it. Signal handlers do not end the wait.
    ///
    /// # Errors
    /// When the kernel is short of memory.
    pub fn wait_exit(&self, timeout: Duration) -> Result<bool> {
        poll(&self.fd, PollFlags::IN, timeout)
            .map(|events| !events.is_empty())
            .map_err(|errno| Error::call("poll", self.pid, errno))
    }

    /// Whether all threads of the process have exited; it may still be a zombie.
    ///
    /// # Errors
    /// As [`PidFd::wait_exit`].
    pub fn has_exited(&self) -> Result<bool> {
        self.wait_exit(Duration::ZERO)
    }

    /// Whether a thread of the process has not exited yet.
    ///
    /// # Errors
    /// As [`PidFd::wait_exit`].
    pub fn is_alive(&self) -> Result<bool> {
        self.has_exited().map(|exited| !exited)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether the kernel has pidfds, and the caller may use them.
pub fn supported() -> bool {
    PidFd::open(Pid::own()).is_ok_and(|own| own.check_permission().is_ok())
}

/// Whether the kernel has process_mrelease(2), and the caller may use it.
pub fn mrelease_supported() -> bool {
    // A kernel that has the call checks the descriptor first.
    process_mrelease(NO_FD) == Err(Errno::BADF)
}

/// Whether the kernel has the topic `expedite`, switched on: [`PidFd::kill_expedited`] works.
pub fn expedite_supported() -> bool {
    // Flags are checked before the file is looked for: EINVAL where this one is not known.
    send_signal(NO_FD, Signal::KILL.as_raw(), EXPEDITE) == Err(Errno::BADF)
}

/// Never an open file.
const NO_FD: RawFd = -1;

fn send_signal(fd: RawFd, signal: i32, flags: u32) -> std::result::Result<(), Errno> {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the call takes any numbers for file, signal and flags, and no siginfo.
    answer(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, info, flags) })
}

fn process_mrelease(fd: RawFd) -> std::result::Result<(), Errno> {
    // SAFETY: the call takes any number for the file; it touches another process's memory only
    // when that process can no longer run.
    answer(unsafe { libc::syscall(libc::SYS_process_mrelease, fd, 0) })
}

fn answer(ret: libc::c_long) -> std::result::Result<(), Errno> {
    match ret {
        -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}
