// SPDX-License-Identifier: GPL-2.0-only
//! Children to look at and to kill.

#![allow(dead_code, reason = "each test file uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::ptr;
use std::time::Duration;

use linux::{Pid, PidFd, Process, Root};

/// Long enough for a child on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A child of the test. Killed and waited for when dropped.
pub struct Child {
    pub pid: Pid,
    reaped: bool,
}

impl Child {
    /// Forks a child that runs `body` and then sleeps until it is killed; returns when the
    /// child has run `body`. As the test has several threads, `body` may make system calls and
    /// touch memory, and nothing else: no allocation, no locks.
    pub fn new(body: impl FnOnce()) -> Self {
        let (ready, tell) = rustix::pipe::pipe().unwrap();
        // SAFETY: the child only makes system calls, and never returns from here.
        let child = match unsafe { libc::fork() } {
            0 => {
                die_with_parent();
                body();
                let _ = rustix::io::write(&tell, b".");
                sleep_forever()
            }
            pid => Self { pid: Pid::new(pid).expect("fork"), reaped: false },
        };
        drop(tell);
        assert_eq!(rustix::io::read(&ready, &mut [0]).unwrap(), 1, "the child has died early");
        child
    }

    /// A child that sleeps.
    pub fn sleeping() -> Self {
        Self::new(|| ())
    }

    /// A child with this name.
    pub fn named(name: &[u8]) -> Self {
        let mut text = [0; 16];
        text[..name.len()].copy_from_slice(name);
        Self::new(|| {
            // SAFETY: 16 bytes with a NUL at the end.
            unsafe { libc::prctl(libc::PR_SET_NAME, text.as_ptr()) };
        })
    }

    /// A child with so much private anonymous memory, all of it there.
    pub fn with_memory(bytes: usize) -> Self {
        Self::new(|| {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping, written within its bounds.
            unsafe {
                let start = libc::mmap(ptr::null_mut(), bytes, prot, flags, -1, 0);
                if start == libc::MAP_FAILED {
                    libc::_exit(1);
                }
                for offset in (0..bytes).step_by(4096) {
                    start.cast::<u8>().add(offset).write_volatile(1);
                }
            }
        })
    }

    /// A child that has exited and was not waited for.
    pub fn zombie() -> Self {
        let child = Self::sleeping();
        let fd = child.pidfd();
        fd.send_signal(linux::pidfd::Signal::KILL).unwrap();
        assert!(fd.wait_exit(PATIENCE).unwrap());
        child
    }

    /// A sleeping child with this very ID, or `None` when another process has it or the caller
    /// may not choose.
    pub fn with_pid(pid: Pid) -> Option<Self> {
        let wanted = pid.get();
        // SAFETY: all zeros are valid arguments.
        let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
        args.exit_signal = libc::SIGCHLD as u64;
        args.set_tid = &raw const wanted as u64;
        args.set_tid_size = 1;
        // SAFETY: valid arguments without a stack or shared memory, so it is a fork; the child
        // only makes system calls, and never returns from here.
        match unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) } {
            -1 => {
                println!("no child with ID {pid}: {}", std::io::Error::last_os_error());
                None
            }
            0 => {
                die_with_parent();
                sleep_forever()
            }
            got => {
                assert_eq!(got, i64::from(wanted));
                Some(Self { pid, reaped: false })
            }
        }
    }

    pub fn process(&self) -> Process {
        Process::open(&Root::system(), self.pid).unwrap()
    }

    pub fn pidfd(&self) -> PidFd {
        PidFd::open(self.pid).unwrap()
    }

    /// Kills it and waits for it, so that its ID is free.
    pub fn reap(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if !self.reaped {
            // SAFETY: as it was not waited for, the ID is still this child's. One that this test
            // traces and has stopped at its exit is let go.
            unsafe {
                libc::kill(self.pid.get(), libc::SIGKILL);
                libc::ptrace(libc::PTRACE_CONT, self.pid.get(), 0, 0);
                let mut status = 0;
                while libc::waitpid(self.pid.get(), &raw mut status, 0) != -1 && libc::WIFSTOPPED(status) {
                    libc::ptrace(libc::PTRACE_CONT, self.pid.get(), 0, 0);
                }
            }
            self.reaped = true;
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

fn die_with_parent() {
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

fn sleep_forever() -> ! {
    loop {
        // SAFETY: takes nothing.
        unsafe { libc::pause() };
    }
}

/// Runs `test` in a thread that has no rights but those of nobody.
#[track_caller]
pub fn as_nobody(test: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        testing::skipped("only root can give up its rights");
        return;
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            drop_rights();
            test();
        });
        // The panic's message was printed already.
        assert!(thread.join().is_ok(), "failed as nobody");
    });
}

/// Gives up the calling thread's rights, not the process's as the C library's wrapper would.
pub fn drop_rights() {
    // SAFETY: takes numbers only.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setresgid, 65534, 65534, 65534), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0);
    }
}
