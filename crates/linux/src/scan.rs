// SPDX-License-Identifier: GPL-2.0-only
//! Reads files of all processes again and again, without allocating: for a program that has to decide when
//! memory is short.
//!
//! Everything is read into the caller's buffers and parsed in place. What cannot be read or is malformed
//! is a [`Failure`], without a text. For other uses there is [`Process`](crate::Process).

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::dir::Dir;
pub use crate::dir::Failure;
use crate::pagemap::Pagemap;
use crate::process::{Stat, Statm};
use crate::text::number;
use crate::{Pid, Root, read};

/// Room for the path of a file of a process, relative to /proc, in bytes.
const MAX_PATH_BYTES: usize = 48;

/// /proc, open.
#[derive(Debug)]
pub struct Scan {
    proc: Dir,
}

/// Files of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// Names, users and memory: [`Status`](crate::process::Status).
    Status,
    /// The path in each hierarchy of cgroups: [`process::cgroup`](crate::process::cgroup).
    Cgroup,
    /// -1000 to 1000: [`adjustment`].
    OomScoreAdj,
    /// Memory, exactly: [`Rollup`](crate::process::Rollup). Waits for the lock of its memory map.
    SmapsRollup,
    /// The arguments, each followed by a NUL. Waits for the lock of its memory map.
    Cmdline,
    /// Scheduling and times: [`Stat`].
    Stat,
    /// Memory, roughly: [`Statm`].
    Statm,
    /// What the kernel told the program when it was executed, with addresses that are random for each execution.
    Auxv,
    /// Mappings, one per line: [`Mapping`](crate::maps::Mapping). Waits for the lock of its memory map.
    Maps,
    /// What is at each page: [`Pagemap`]. Waits for the lock of its memory map.
    Pagemap,
}

impl File {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Status => b"status",
            Self::Cgroup => b"cgroup",
            Self::OomScoreAdj => b"oom_score_adj",
            Self::SmapsRollup => b"smaps_rollup",
            Self::Cmdline => b"cmdline",
            Self::Stat => b"stat",
            Self::Statm => b"statm",
            Self::Auxv => b"auxv",
            Self::Maps => b"maps",
            Self::Pagemap => b"pagemap",
        }
    }
}

impl Scan {
    /// Opens /proc.
    ///
    /// # Errors
    /// When that fails.
    pub fn open(root: &Root) -> crate::Result<Self> {
        Ok(Self { proc: Dir::open(root.proc())? })
    }

    /// Reads all of a file of the process or thread that has this ID now.
    ///
    /// # Errors
    /// When it cannot be read or does not fit into `buffer`; of a command line, as much as fits is returned.
    pub fn process<'b>(&self, pid: Pid, file: File, buffer: &'b mut [u8]) -> Result<&'b [u8], Failure> {
        with_path(pid, file.name(), |path| match file {
            File::Cmdline => self.proc.read_start(path, buffer),
            _ => self.proc.read(path, buffer),
        })
    }

    /// Reads the path of the program that the process or thread runs that has this ID now: as its mount namespace has
    /// it, and with " (deleted)" at the end if that file was removed. Waits for no lock of the process.
    ///
    /// # Errors
    /// When it cannot be read, as without the right to trace the process, or does not fit into `buffer`.
    pub fn exe<'b>(&self, pid: Pid, buffer: &'b mut [u8]) -> Result<&'b [u8], Failure> {
        with_path(pid, b"exe", |path| self.proc.read_link(path, buffer))
    }

    /// Opens a file of the process or thread that has this ID now.
    ///
    /// # Errors
    /// When that fails.
    pub fn open_file(&self, pid: Pid, file: File) -> Result<OwnedFd, Failure> {
        with_path(pid, file.name(), |path| Ok(read::open_at(&self.proc, path)?))
    }

    /// Opens /proc/PID/pagemap of the process or thread that has this ID now.
    ///
    /// # Errors
    /// When that fails.
    pub fn pagemap(&self, pid: Pid) -> Result<Pagemap, Failure> {
        self.open_file(pid, File::Pagemap).map(Pagemap::new)
    }

    /// Calls `each` with the lines of a file of the process or thread that has this ID now, without their ends, until
    /// it returns false, and up to one that does not fit into `buffer`.
    ///
    /// # Errors
    /// When the file cannot be read up to there.
    pub fn for_each_line(
        &self,
        pid: Pid,
        file: File,
        buffer: &mut [u8],
        each: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Failure> {
        with_path(pid, file.name(), |path| self.proc.for_each_line(path, buffer, each))
    }

    /// Calls `each` with the files that a process has open, until it returns false: what is known of each, without
    /// asking a server that may not answer. `buffer` is for their numbers.
    ///
    /// # Errors
    /// When they cannot be listed to their end.
    pub fn for_each_open_file(
        &self,
        pid: Pid,
        buffer: &mut [MaybeUninit<u8>],
        mut each: impl FnMut(&rustix::fs::Statx) -> bool,
    ) -> Result<(), Failure> {
        let dir = with_path(pid, b"fd", |path| self.proc.open_dir(path))?;
        // One that cannot be read has been closed.
        dir.for_each_entry(buffer, |name, _| dir.stat(name).map_or(true, |stat| each(&stat)))
    }

    /// Parses /proc/PID/stat of the process or thread that has this ID now.
    ///
    /// # Errors
    /// When it cannot be read or is malformed.
    pub fn stat(&self, pid: Pid) -> Result<Stat, Failure> {
        let mut buffer = [0; 1024];
        let text = self.process(pid, File::Stat, &mut buffer)?;
        Stat::parse(Path::new("stat"), text).map_err(|_| Failure::Malformed)
    }

    /// Parses /proc/PID/statm. All of it is 0 once the process has left its memory.
    ///
    /// # Errors
    /// When it cannot be read or is malformed.
    pub fn statm(&self, pid: Pid) -> Result<Statm, Failure> {
        let mut buffer = [0; 256];
        let text = self.process(pid, File::Statm, &mut buffer)?;
        Statm::parse(Path::new("statm"), text).map_err(|_| Failure::Malformed)
    }

    /// Opens the directory of a process's threads.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn tasks(&self, pid: Pid) -> Result<Dir, Failure> {
        with_path(pid, b"task", |path| self.proc.open_dir(path))
    }

    /// Reads all of a file of the system's, such as "vmstat".
    ///
    /// # Errors
    /// When it cannot be read or does not fit into `buffer`.
    pub fn system<'b>(&self, name: &CStr, buffer: &'b mut [u8]) -> Result<&'b [u8], Failure> {
        self.proc.read(name, buffer)
    }

    /// How many processes and threads have been started since the system was, in all namespaces.
    ///
    /// # Errors
    /// When /proc/stat cannot be read or does not tell.
    pub fn forks(&self, buffer: &mut [u8]) -> Result<u64, Failure> {
        const KEY: &[u8] = b"\nprocesses ";
        let fd = read::open_at(&self.proc, c"stat")?;
        // The line before it has a number per interrupt, of any length.
        let mut kept = 0;
        loop {
            let got = read::some(&fd, buffer.get_mut(kept..).filter(|b| !b.is_empty()).ok_or(Failure::Malformed)?)?;
            let text = &buffer[..kept + got];
            if let Some(at) = text.windows(KEY.len()).position(|w| w == KEY) {
                let rest = &text[at + KEY.len()..];
                if let Some(end) = rest.iter().position(|&b| b == b'\n') {
                    return number(&rest[..end]).ok_or(Failure::Malformed);
                }
                // The number is cut off.
                buffer.copy_within(at..kept + got, 0);
                kept = kept + got - at;
            } else {
                let keep = (KEY.len() - 1).min(text.len());
                let start = text.len() - keep;
                buffer.copy_within(start..start + keep, 0);
                kept = keep;
            }
            if got == 0 {
                return Err(Failure::Malformed);
            }
        }
    }

    /// The ID that was given away last in our PID namespace, to a process or a thread.
    ///
    /// # Errors
    /// When /proc/loadavg cannot be read or does not tell.
    pub fn last_pid(&self) -> Result<i32, Failure> {
        let mut buffer = [0; 128];
        last_pid(self.system(c"loadavg", &mut buffer)?).ok_or(Failure::Malformed)
    }

    /// Calls `found` with the ID of each process, ascending, until it returns false. `buffer` is best some 32
    /// KiB.
    ///
    /// # Errors
    /// When /proc cannot be read to its end.
    pub fn pids(&self, buffer: &mut [MaybeUninit<u8>], found: impl FnMut(Pid) -> bool) -> Result<(), Failure> {
        list(&self.proc, buffer, found)
    }

    /// As [`Scan::pids`], with the threads of a process.
    ///
    /// # Errors
    /// When they cannot be read to their end.
    pub fn threads(
        &self,
        pid: Pid,
        buffer: &mut [MaybeUninit<u8>],
        found: impl FnMut(Pid) -> bool,
    ) -> Result<(), Failure> {
        list(&self.tasks(pid)?, buffer, found)
    }
}

/// A file of one number from -1000 to 1000.
pub fn adjustment(bytes: &[u8]) -> Option<i16> {
    number(bytes.strip_suffix(b"\n")?).filter(|n| (-1000..=1000).contains(n))
}

/// A file of one size in bytes; "max" is the greatest there is.
pub fn size(bytes: &[u8]) -> Option<u64> {
    match bytes.strip_suffix(b"\n")? {
        b"max" => Some(u64::MAX),
        digits => number(digits),
    }
}

/// The number behind a name and a space, in a file of such lines.
pub fn keyed(bytes: &[u8], name: &[u8]) -> Option<u64> {
    bytes
        .split_inclusive(|&b| b == b'\n')
        .find_map(|line| number(line.strip_suffix(b"\n")?.strip_prefix(name)?.strip_prefix(b" ")?))
}

/// The last number in /proc/loadavg.
pub fn last_pid(bytes: &[u8]) -> Option<i32> {
    let line = bytes.strip_suffix(b"\n")?;
    number(line.rsplit(|&b| b == b' ').next()?).filter(|pid| *pid >= 0)
}

/// Process IDs, one per line, as in cgroup.procs. Those outside of our PID namespace are 0 there.
pub fn ids(bytes: &[u8]) -> impl Iterator<Item = Option<Pid>> {
    bytes.split_inclusive(|&b| b == b'\n').map(|line| Pid::new(number(line.strip_suffix(b"\n")?)?))
}

/// Calls `f` with "PID/name".
fn with_path<T>(pid: Pid, name: &[u8], f: impl FnOnce(&CStr) -> Result<T, Failure>) -> Result<T, Failure> {
    use io::Write as _;
    let mut path = [0; MAX_PATH_BYTES];
    let mut rest = &mut path[..];
    // Zeros follow, unless it fills all.
    let written = write!(rest, "{pid}/").and_then(|()| rest.write_all(name));
    let path = written.ok().and_then(|()| CStr::from_bytes_until_nul(&path).ok());
    f(path.ok_or(Failure::Malformed)?)
}

/// Calls `found` with each name in a directory that is an ID, until it returns false.
fn list(dir: &Dir, buffer: &mut [MaybeUninit<u8>], mut found: impl FnMut(Pid) -> bool) -> Result<(), Failure> {
    dir.for_each_entry(buffer, |name, _| {
        match std::str::from_utf8(name.to_bytes()).ok().and_then(|name| name.parse().ok()) {
            Some(pid) => found(pid),
            None => true,
        }
    })
}

#[cfg(test)]
mod tests;
