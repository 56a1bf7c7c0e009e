// SPDX-License-Identifier: GPL-2.0-only
//! Signals to this process, as a file descriptor: signalfd(2) and the signal mask.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr;

pub use rustix::process::Signal;

/// A descriptor that is readable when one of some signals is pending. The signals must be blocked
/// ([`block`]), or they have their usual effect instead.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Opens a descriptor for these signals.
    ///
    /// # Errors
    /// When there is no room for another descriptor.
    pub fn open(signals: &[Signal]) -> io::Result<Self> {
        let set = set(signals);
        // SAFETY: `set` is a live local; the kernel makes a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, and nothing else knows of it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Takes the next pending signal, if there is one: its number. Does not wait or allocate.
    pub fn take(&self) -> Option<i32> {
        let mut info = mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = mem::size_of_val(&info);
        // SAFETY: the kernel writes at most `size` bytes, for which `info` has room.
        let got = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if usize::try_from(got) != Ok(size) {
            return None;
        }
        // SAFETY: the kernel has filled all of it.
        Some(unsafe { info.assume_init() }.ssi_signo.cast_signed())
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The signal mask of a thread at some time.
pub struct SignalMask(libc::sigset_t);

/// Blocks signals in the calling thread and those that it starts from then on. Returns the mask as it was
/// before.
///
/// To be called before other threads are started: a thread that does not block a signal is ended by it, and
/// with it the program.
///
/// # Errors
/// What pthread_sigmask(3) returns.
pub fn block(signals: &[Signal]) -> io::Result<SignalMask> {
    change(libc::SIG_BLOCK, &set(signals))
}

/// As [`block`], all signals that can be.
///
/// # Errors
/// As [`block`].
pub fn block_all() -> io::Result<SignalMask> {
    let mut all = set(&[]);
    // SAFETY: the pointer is to a live local.
    unsafe { libc::sigfillset(&raw mut all) };
    change(libc::SIG_BLOCK, &all)
}

/// Unblocks all signals in the calling thread.
///
/// # Errors
/// As [`block`].
pub fn unblock_all() -> io::Result<()> {
    change(libc::SIG_SETMASK, &set(&[])).map(drop)
}

impl SignalMask {
    /// Restores this mask for the calling thread.
    ///
    /// # Errors
    /// As [`block`].
    pub fn restore(&self) -> io::Result<()> {
        change(libc::SIG_SETMASK, &self.0).map(drop)
    }
}

fn set(signals: &[Signal]) -> libc::sigset_t {
    // SAFETY: a set is plain data, filled by sigemptyset before it is used; the pointers are to a live local.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, signal.as_raw());
        }
        set
    }
}

fn change(how: i32, set: &libc::sigset_t) -> io::Result<SignalMask> {
    // SAFETY: a set is plain data, filled by pthread_sigmask; both pointers are to live memory.
    let (error, before) = unsafe {
        let mut before: libc::sigset_t = mem::zeroed();
        (libc::pthread_sigmask(how, ptr::from_ref(set), &raw mut before), before)
    };
    if error == 0 { Ok(SignalMask(before)) } else { Err(io::Error::from_raw_os_error(error)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_taken_and_the_mask_comes_back() {
        // In a thread that ends: other tests keep their masks.
        let test = || {
            let fd = SignalFd::open(&[Signal::USR1]).unwrap();
            let before = block(&[Signal::USR1]).unwrap();
            assert_eq!(fd.take(), None);
            // SAFETY: takes numbers only.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
            assert_eq!(fd.take(), Some(libc::SIGUSR1));
            assert_eq!(fd.take(), None);
            before.restore().unwrap();
            let restored = block(&[]).unwrap();
            // SAFETY: a live set.
            assert_eq!(unsafe { libc::sigismember(&raw const restored.0, libc::SIGUSR1) }, 0);
        };
        std::thread::spawn(test).join().unwrap();
    }
}
