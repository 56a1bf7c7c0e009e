// SPDX-License-Identifier: GPL-2.0-only
//! Forked children, and numbers in memory that they share with their parent.

use std::ffi::{c_int, c_void};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{ptr, slice, thread};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::mm::MapFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, waitid};

use crate::memory::mapping::Mapping;

/// How often a state that is waited for is checked.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// A child process. Killed and reaped when dropped, if not waited for.
pub struct Child {
    pid: Pid,
    reaped: bool,
}

impl Child {
    /// Forks a child, which runs `life` and exits; a failure goes to the console. The caller must be
    /// single-threaded.
    ///
    /// # Errors
    /// When fork(2) fails.
    pub fn fork(life: impl FnOnce() -> Result<()>) -> Result<Self> {
        let Some(child) = Self::split()? else {
            let lived = die_with_parent().and_then(|()| life());
            if let Err(e) = &lived {
                eprintln!("guest: a child: {e:#}");
            }
            exit(lived.is_err())
        };
        Ok(child)
    }

    /// Forks a child, which runs `prepare` with a pipe to the parent for its reports, closes the pipe, runs `then` and
    /// exits; a failure is reported. The caller must be single-threaded.
    ///
    /// # Errors
    /// When pipe(2) or fork(2) fails.
    pub fn fork_reporting(
        prepare: impl FnOnce(&mut Reports) -> Result<()>,
        then: impl FnOnce(),
    ) -> Result<(Self, Reports)> {
        let (reader, writer) = rustix::pipe::pipe().context("pipe")?;
        let Some(child) = Self::split()? else {
            drop(reader);
            let mut reports = Reports(File::from(writer));
            if let Err(e) = die_with_parent().and_then(|()| prepare(&mut reports)) {
                // If this fails, the parent finds the pipe closed.
                let _ = reports.0.write_all(format!("{e:#}").as_bytes());
                exit(true)
            }
            drop(reports);
            then();
            exit(false)
        };
        Ok((child, Reports(File::from(reader))))
    }

    /// Forks. Returns `None` in the child, which must not return to its caller.
    fn split() -> Result<Option<Self>> {
        // SAFETY: the process is single-threaded, so the child may use everything the parent may.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).context("fork"),
            0 => Ok(None),
            pid => Ok(Some(Self { pid: Pid::from_raw(pid).context("fork returned no PID")?, reaped: false })),
        }
    }

    /// Returns the process ID of a child that the caller reaps.
    pub fn into_pid(mut self) -> Pid {
        self.reaped = true;
        self.pid
    }

    /// The process ID.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits until `ready` returns true, which the child must bring about while it lives.
    ///
    /// # Errors
    /// When the child ends before that.
    pub fn wait_until(&self, mut ready: impl FnMut() -> bool) -> Result<()> {
        while !ready() {
            if self.has_ended()? && !ready() {
                bail!("a child ended too early; the console says why");
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Whether the child has ended, in any way.
    ///
    /// # Errors
    /// Those of waitid(2).
    pub fn has_ended(&self) -> Result<bool> {
        Ok(self.end()?.is_some())
    }

    /// Whether somebody has killed the child.
    ///
    /// # Errors
    /// Those of waitid(2), and when it has ended by itself.
    pub fn was_killed(&self) -> Result<bool> {
        match self.end()? {
            Some(status) if status.exited() => bail!("a child ended by itself ({status:?}); the console says why"),
            ended => Ok(ended.is_some()),
        }
    }

    /// How the child has ended, if it has; it stays to be waited for.
    fn end(&self) -> Result<Option<WaitIdStatus>> {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        waitid(WaitId::Pid(self.pid), how).context("waitid")
    }

    /// Waits until the child has done its work.
    ///
    /// # Errors
    /// When it failed.
    pub fn join(self) -> Result<()> {
        let status = self.wait()?;
        match status.exit_status() {
            Some(0) => Ok(()),
            _ => bail!("a child failed ({status:?}); the console says why"),
        }
    }

    /// Waits for the child's end and returns its status.
    ///
    /// # Errors
    /// Those of waitid(2).
    pub fn wait(mut self) -> Result<WaitIdStatus> {
        let status = waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED).context("waitid")?;
        self.reaped = true;
        status.context("waitid returned no status")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            // A failure cannot be handled; PID 1 reaps what is left.
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
            let _ = waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED);
        }
    }
}

fn die_with_parent() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("prctl")
}

fn exit(failed: bool) -> ! {
    // SAFETY: _exit takes no memory and ends the process without the parent's handlers.
    unsafe { libc::_exit(failed.into()) }
}

/// An end of the pipe by which a child reports to its parent.
pub struct Reports(File);

impl Reports {
    /// What a report begins with, before a number. A failure is only a text.
    const DONE: u8 = b'.';

    /// Reports a number.
    ///
    /// # Errors
    /// When the parent is gone.
    pub fn send(&mut self, number: u64) -> Result<()> {
        let mut report = [Self::DONE; 9];
        report[1..].copy_from_slice(&number.to_ne_bytes());
        self.0.write_all(&report).context("pipe")
    }

    /// Waits for the child's next number.
    ///
    /// # Errors
    /// When it has failed, or died.
    pub fn receive(&mut self) -> Result<u64> {
        let mut text = [0; 1024];
        let length = self.0.read(&mut text).context("pipe from a process")?;
        ensure!(length > 0, "died before it was ready (is the guest large enough?)");
        let number = text[..length].strip_prefix(&[Self::DONE]).and_then(|number| number.try_into().ok());
        number.map(u64::from_ne_bytes).with_context(|| String::from_utf8_lossy(&text[..length]).into_owned())
    }
}

/// A number in a cache line of its own.
#[repr(align(128))]
struct Cell(AtomicU64);

/// Numbers in memory that children share with their parent. All are 0 at first.
pub struct Board {
    mapping: Mapping,
    count: usize,
}

impl Board {
    /// Allocates `count` numbers, for the children that are forked from now on.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(count: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let mapping = Mapping::anonymous(count.max(1) * size_of::<Cell>(), flags).context("mmap")?;
        Ok(Self { mapping, count })
    }

    fn cells(&self) -> &[Cell] {
        // SAFETY: the mapping is long and aligned enough, all zeroes are a valid number, and it is unmapped
        // only when the board is dropped.
        unsafe { slice::from_raw_parts(self.mapping.at().cast(), self.count) }
    }

    /// Returns one of the numbers.
    pub fn get(&self, i: usize) -> u64 {
        self.cells()[i].0.load(Ordering::Acquire)
    }

    /// Replaces one of the numbers.
    pub fn set(&self, i: usize, value: u64) {
        self.cells()[i].0.store(value, Ordering::Release);
    }

    /// Adds to one of the numbers.
    pub fn add(&self, i: usize, value: u64) {
        self.cells()[i].0.fetch_add(value, Ordering::AcqRel);
    }

    /// Replaces one of the numbers if it is smaller than this one.
    pub fn raise(&self, i: usize, value: u64) {
        self.cells()[i].0.fetch_max(value, Ordering::AcqRel);
    }

    /// Returns one of the numbers, which is 0 then.
    pub fn take(&self, i: usize) -> u64 {
        self.cells()[i].0.swap(0, Ordering::AcqRel)
    }

    /// Returns all numbers, in order.
    pub fn all(&self) -> impl Iterator<Item = u64> {
        self.cells().iter().map(|cell| cell.0.load(Ordering::Acquire))
    }
}

/// Sets the name of the process. The kernel cuts it after 15 characters.
///
/// # Errors
/// When it contains a NUL.
pub fn set_name(name: &str) -> Result<()> {
    let name = std::ffi::CString::new(name)?;
    rustix::thread::set_name(&name).context("set the name")
}

/// Sleeps until this process is killed.
pub fn sleep_for_ever() -> ! {
    loop {
        // SAFETY: pause(2) takes no arguments.
        unsafe { libc::pause() };
    }
}

/// Starts a process that shares this one's memory (CLONE_VM), and sleeps until it is killed. Its parent reaps it.
///
/// # Safety
/// Nothing else may use `stack`, which must not go away, as long as that process lives.
///
/// # Errors
/// Those of clone(2).
pub unsafe fn share_memory(stack: *mut [u128]) -> io::Result<Pid> {
    // pause(2) returns only after a signal, of which this gets none but SIGKILL: so errno, which is shared with the
    // parent, is not written.
    extern "C" fn life(_: *mut c_void) -> c_int {
        sleep_for_ever()
    }
    // SAFETY: within the stack, or at its end.
    let top = unsafe { stack.cast::<u128>().add(stack.len()) };
    // SAFETY: the stack is the process's own, by the contract, its top is aligned, and `life` uses nothing else.
    let pid = unsafe { libc::clone(life, top.cast(), libc::CLONE_VM | libc::SIGCHLD, ptr::null_mut()) };
    Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error)
}

/// Starts a second thread in this process, and waits until it sleeps, which it does for ever.
///
/// # Errors
/// When the thread cannot be started.
pub fn start_sleeper() -> Result<()> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let sleep = move || {
        // This fails if the process gave up meanwhile.
        let _ = sender.send(rustix::thread::gettid());
        loop {
            thread::park();
        }
    };
    thread::Builder::new().spawn(sleep).context("start a thread")?;
    let path = format!("/proc/self/task/{}/stat", receiver.recv().context("a thread died")?);
    // Until it sleeps it may touch new pages.
    loop {
        let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
        if stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S')) {
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_shares_the_board_and_nothing_else() {
        let board = Board::new(2).unwrap();
        let mut own = 1;
        let child = Child::fork(|| {
            own += 1;
            board.set(1, own);
            board.add(1, 40);
            Ok(())
        })
        .unwrap();
        child.join().unwrap();
        assert_eq!((own, board.all().collect::<Vec<_>>()), (1, vec![0, 42]));
    }

    #[test]
    fn waiting_fails_when_the_child_ends_early() {
        let fails = || Child::fork(|| bail!("on purpose")).unwrap();
        assert!(fails().join().is_err());
        assert!(fails().wait_until(|| false).is_err());
        assert_eq!(fails().wait().unwrap().exit_status(), Some(1));
        let child = Child::fork(|| {
            loop {
                thread::park();
            }
        })
        .unwrap();
        let mut polls = 0;
        let third = || {
            polls += 1;
            polls == 3
        };
        child.wait_until(third).unwrap();
    }

    #[test]
    fn a_sleeper_sleeps_when_it_is_started() {
        let board = Board::new(2).unwrap();
        let child = Child::fork(|| {
            start_sleeper()?;
            for task in fs::read_dir("/proc/self/task")? {
                let stat = fs::read_to_string(task?.path().join("stat"))?;
                board.add(if stat.contains(") S ") { 1 } else { 0 }, 1);
            }
            Ok(())
        });
        child.unwrap().join().unwrap();
        assert_eq!(board.all().collect::<Vec<_>>(), [1, 1]);
    }
}
