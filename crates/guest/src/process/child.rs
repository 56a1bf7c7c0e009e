//! Forked children, and numbers that they and their parent all see.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, io, ptr, slice, thread};

use anyhow::{Context as _, Result, bail};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, waitid};

/// How long somebody who waits for a child sleeps between two looks.
const MOMENT: Duration = Duration::from_micros(500);

/// A child process. Killed and reaped when dropped, if not waited for.
pub struct Child {
    pid: Pid,
    reaped: bool,
}

impl Child {
    /// Forks; the child does `life` and exits, or says on the console why it could not. The caller
    /// must be single-threaded.
    ///
    /// # Errors
    /// When there is no process for it.
    pub fn fork(life: impl FnOnce() -> Result<()>) -> Result<Self> {
        // SAFETY: the process is single-threaded, so the child may use everything the parent may;
        // it never returns from the match's arm.
        let pid = match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()).context("fork"),
            0 => {
                let lived = rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
                    .context("prctl")
                    .and_then(|()| life());
                if let Err(e) = &lived {
                    eprintln!("guest: a child: {e:#}");
                }
                // SAFETY: _exit takes no memory and ends the process without the parent's handlers.
                unsafe { libc::_exit(lived.is_err().into()) }
            }
            pid => Pid::from_raw(pid).context("fork gave a pid that is none")?,
        };
        Ok(Self { pid, reaped: false })
    }

    /// The process ID.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits until `ready`, which the child must make true while it lives.
    ///
    /// # Errors
    /// When the child ends before.
    pub fn wait_until(&self, mut ready: impl FnMut() -> bool) -> Result<()> {
        while !ready() {
            if self.has_ended()? && !ready() {
                bail!("a child ended too early; the console says why");
            }
            thread::sleep(MOMENT);
        }
        Ok(())
    }

    /// Whether the child has ended, however.
    ///
    /// # Errors
    /// What waitid(2) says.
    pub fn has_ended(&self) -> Result<bool> {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        Ok(waitid(WaitId::Pid(self.pid), how).context("waitid")?.is_some())
    }

    /// Waits until the child has done its work.
    ///
    /// # Errors
    /// When it could not.
    pub fn join(self) -> Result<()> {
        let status = self.wait()?;
        match status.exit_status() {
            Some(0) => Ok(()),
            _ => bail!("a child failed ({status:?}); the console says why"),
        }
    }

    /// Waits for the child's end, whatever it is.
    ///
    /// # Errors
    /// What waitid(2) says.
    pub fn wait(mut self) -> Result<WaitIdStatus> {
        let status = waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED).context("waitid")?;
        self.reaped = true;
        status.context("waitid gave no status")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            // Nothing can be done about a failure; PID 1 reaps what is left.
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
            let _ = waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED);
        }
    }
}

/// A number away from the others' cache lines.
#[repr(align(128))]
struct Cell(AtomicU64);

/// Numbers in memory that children share with their parent; 0 at first.
pub struct Board {
    cells: &'static [Cell],
}

impl Board {
    /// So many numbers, for the children that are forked from now on.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn new(count: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                count.max(1) * size_of::<Cell>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
            )
        }
        .context("mmap")?;
        // SAFETY: the mapping is as long and more aligned than that, all zeroes are a valid number,
        // and it is unmapped only when the board is dropped, which alone has the reference.
        let cells = unsafe { slice::from_raw_parts(at.cast::<Cell>(), count) };
        Ok(Self { cells })
    }

    /// One of the numbers.
    pub fn get(&self, i: usize) -> u64 {
        self.cells[i].0.load(Ordering::Acquire)
    }

    /// Replaces one of the numbers.
    pub fn set(&self, i: usize, value: u64) {
        self.cells[i].0.store(value, Ordering::Release);
    }

    /// Adds to one of the numbers.
    pub fn add(&self, i: usize, value: u64) {
        self.cells[i].0.fetch_add(value, Ordering::AcqRel);
    }

    /// All numbers, in order.
    pub fn all(&self) -> impl Iterator<Item = u64> {
        self.cells.iter().map(|cell| cell.0.load(Ordering::Acquire))
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let (at, count) = (self.cells.as_ptr().cast_mut().cast(), self.cells.len());
        self.cells = &[];
        // SAFETY: this mapping was made for the cells, which nobody refers to any more.
        let _ = unsafe { rustix::mm::munmap(at, count.max(1) * size_of::<Cell>()) };
    }
}

/// Gives the process a name of at most 15 characters, as the kernel cuts it there.
///
/// # Errors
/// When there is a NUL in it.
pub fn set_name(name: &str) -> Result<()> {
    let name = std::ffi::CString::new(name)?;
    rustix::thread::set_name(&name).context("set the name")
}

/// Gives the process a second thread, which does nothing any more.
///
/// # Errors
/// When there is no thread for it.
pub fn start_sleeper() -> Result<()> {
    let (tell, told) = std::sync::mpsc::channel();
    let sleep = move || {
        // Nobody listens any more if the process gave up.
        let _ = tell.send(rustix::thread::gettid());
        loop {
            thread::park();
        }
    };
    thread::Builder::new().spawn(sleep).context("start a thread")?;
    let path = format!("/proc/self/task/{}/stat", told.recv().context("a thread died")?);
    // Until it sleeps it may touch pages that it has not touched before.
    loop {
        let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
        if stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S')) {
            return Ok(());
        }
        thread::sleep(MOMENT);
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
    fn who_waits_hears_of_an_early_end() {
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
        let mut looks = 0;
        let third = || {
            looks += 1;
            looks == 3
        };
        child.wait_until(third).unwrap();
    }

    #[test]
    fn a_sleeper_is_asleep_at_once() {
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
