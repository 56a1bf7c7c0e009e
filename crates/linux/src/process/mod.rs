// SPDX-License-Identifier: GPL-2.0-only
//! /proc/PID: the files of one process.

mod cgroup;
mod comm;
mod smaps_rollup;
mod stat;
mod statm;
mod status;

use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

pub use cgroup::cgroup;
pub use comm::Comm;
pub use smaps_rollup::Rollup;
pub use stat::{Stat, State};
pub use statm::Statm;
pub use status::Status;

use crate::{Error, Pid, Result, Root, read};

/// How much of a command line is read, in bytes.
const MAX_CMDLINE_BYTES: usize = 64 << 10;

/// Whether two processes have one address space, as after clone(CLONE_VM). False where the caller may not trace both,
/// or the kernel does not compare (CONFIG_KCMP).
pub fn share_memory(one: Pid, other: Pid) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: all arguments are numbers, and it changes nothing.
    unsafe { libc::syscall(libc::SYS_kcmp, one.get(), other.get(), KCMP_VM, 0, 0) == 0 }
}

/// The processes, in the order in which the kernel lists them (ascending). Without those that are
/// hidden from the caller (hidepid), and without threads. One that appears or exits meanwhile
/// may or may not be among them.
///
/// # Errors
/// When /proc cannot be read.
pub fn pids(root: &Root) -> Result<impl Iterator<Item = Pid>> {
    // All of them before the first is read: so an error can be returned, and what is read is as recent as
    // possible.
    let mut pids = Vec::new();
    let error = |e| Error::io(root.proc(), e);
    for entry in fs::read_dir(root.proc()).map_err(error)? {
        let name = entry.map_err(error)?.file_name();
        pids.extend(name.to_str().and_then(|name| name.parse::<Pid>().ok()));
    }
    Ok(pids.into_iter())
}

/// One process, held by its directory in /proc: all that is read is about one and the same
/// process. When another process has its ID by now, this one is gone ([`Error::Gone`]).
///
/// Each call reads the file again. [`cmdline`](Process::cmdline),
/// [`smaps_rollup`](Process::smaps_rollup) and, on some kernels, [`exe`](Process::exe) take the
/// lock of the process's memory map and may have to wait for it, which can take long just when
/// memory is short. The others do not wait for the process.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    dir: OwnedFd,
    path: PathBuf,
}

impl Process {
    /// The process that has this ID now.
    ///
    /// The ID of a thread works, too, as it does in /proc: then [`Status::tgid`] is another.
    ///
    /// # Errors
    /// [`Error::Gone`] when there is none. When it is hidden from the caller (hidepid=2), that may
    /// also be the answer to the first question only.
    pub fn open(root: &Root, pid: Pid) -> Result<Self> {
        let path = root.proc().join(pid.to_string());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat(CWD, &path, flags, Mode::empty()) {
            Ok(dir) => Ok(Self { pid, dir, path }),
            Err(Errno::NOENT | Errno::SRCH) => Err(Error::Gone { pid }),
            Err(errno) => Err(Error::io(&path, errno)),
        }
    }

    /// The ID it was opened by.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// /proc/PID/stat: what a scheduler and a parent want to know.
    ///
    /// # Errors
    /// [`Error::Gone`], and what is wrong with the file.
    pub fn stat(&self) -> Result<Stat> {
        self.parse(c"stat", Stat::parse)
    }

    /// /proc/PID/status: name, users, memory.
    ///
    /// # Errors
    /// [`Error::Gone`], and when the file does not make sense.
    pub fn status(&self) -> Result<Status> {
        self.parse(c"status", |path, bytes| {
            Status::parse(bytes).ok_or_else(|| Error::parse(path, 1, "not the status of a process", bytes))
        })
    }

    /// /proc/PID/statm: memory, from counters that may each lag behind by some pages.
    ///
    /// # Errors
    /// [`Error::Gone`], and what is wrong with the file.
    pub fn statm(&self) -> Result<Statm> {
        self.parse(c"statm", Statm::parse)
    }

    /// /proc/PID/smaps_rollup: memory, exactly. Walks all page tables of the process, which takes
    /// some 100 ms per GiB, with the lock of its memory map held for reading.
    ///
    /// # Errors
    /// [`Error::Gone`]; ESRCH for a zombie or kernel thread, which has no memory; EACCES or EPERM
    /// ([`Error::is_denied`]) when the caller may not trace the process; what is wrong with
    /// the file.
    pub fn smaps_rollup(&self) -> Result<Rollup> {
        self.parse(c"smaps_rollup", Rollup::parse)
    }

    /// /proc/PID/cmdline: the arguments, as the process has them now: it may have changed them
    /// at will. None for a kernel thread or a zombie. Only the first 64 KiB; the last argument
    /// may be cut off there.
    ///
    /// # Errors
    /// [`Error::Gone`], and what the kernel says.
    pub fn cmdline(&self) -> Result<Vec<OsString>> {
        let mut bytes = self.read(c"cmdline", MAX_CMDLINE_BYTES)?;
        // Each argument ends with a NUL, but for one that the process has overwritten.
        if bytes.last() == Some(&0) {
            bytes.pop();
        } else if bytes.is_empty() {
            return Ok(Vec::new());
        }
        Ok(bytes.split(|&b| b == 0).map(|arg| OsString::from_vec(arg.to_owned())).collect())
    }

    /// /proc/PID/comm: the name, at most 15 bytes of the process's own choice; a kernel thread's
    /// may be longer.
    ///
    /// # Errors
    /// [`Error::Gone`], and what is wrong with the file.
    pub fn comm(&self) -> Result<Comm> {
        self.parse(c"comm", Comm::parse)
    }

    /// Its cgroup in the v2 hierarchy, from the root of the caller's cgroup namespace: "/a/b",
    /// or "/../a" when it is not below that root. A removed cgroup's ends in " (deleted)".
    /// `None` without a v2 hierarchy.
    ///
    /// # Errors
    /// [`Error::Gone`], and what the kernel says.
    pub fn cgroup(&self) -> Result<Option<PathBuf>> {
        self.parse(c"cgroup", |_, bytes| {
            let path = cgroup(bytes);
            Ok((!path.is_empty()).then(|| OsStr::from_bytes(path).into()))
        })
    }

    /// The program it runs, or `None` when it has none: a kernel thread or a zombie. A removed
    /// program's ends in " (deleted)".
    ///
    /// # Errors
    /// [`Error::Gone`]; EACCES or EPERM ([`Error::is_denied`]) when the caller may not trace the
    /// process.
    pub fn exe(&self) -> Result<Option<PathBuf>> {
        match rustix::fs::readlinkat(&self.dir, c"exe", Vec::new()) {
            Ok(target) => Ok(Some(OsString::from_vec(target.into_bytes()).into())),
            Err(Errno::NOENT | Errno::SRCH) if self.is_there() => Ok(None),
            Err(errno) => Err(self.error(c"exe", errno)),
        }
    }

    /// Whether it has not been waited for yet. A zombie is there, and so is a process whose
    /// files the caller may not see.
    fn is_there(&self) -> bool {
        !matches!(rustix::fs::statat(&self.dir, c"stat", AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT | Errno::SRCH))
    }

    fn parse<T>(&self, name: &CStr, parse: impl Fn(&Path, &[u8]) -> Result<T>) -> Result<T> {
        let limit = read::LARGE_FILE_BYTES;
        let bytes = self.read(name, limit + 1)?;
        if bytes.len() > limit {
            return Err(self.error(name, Errno::FBIG));
        }
        parse(&self.path_of(name), &bytes)
    }

    /// At most `limit` bytes of a file.
    fn read(&self, name: &CStr, limit: usize) -> Result<Vec<u8>> {
        read::up_to_at(&self.dir, name, limit).map_err(|errno| self.error(name, errno))
    }

    fn error(&self, name: &CStr, errno: Errno) -> Error {
        // ENOENT can also mean that this kernel does not have the file, and ESRCH that the
        // process has no memory.
        match errno {
            Errno::NOENT | Errno::SRCH if !self.is_there() => Error::Gone { pid: self.pid },
            errno => Error::io(&self.path_of(name), errno),
        }
    }

    fn path_of(&self, name: &CStr) -> PathBuf {
        self.path.join(name.to_str().unwrap_or_default())
    }
}
