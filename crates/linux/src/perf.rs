// SPDX-License-Identifier: GPL-2.0-only
//! An alarm that goes off after a number of page faults on a CPU, of any process: a software event counter of
//! the kernel (perf_event_open(2)), which counts as part of the fault and costs nothing while no new memory
//! is touched.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;

use rustix::io::Errno;

use crate::text::Line;
use crate::{Error, Result, Root, read, text};

/// The most CPUs that are counted on.
const MAX_CPUS: usize = 4096;

/// `struct perf_event_attr` as of its first version, 64 bytes; every kernel takes that.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_PAGE_FAULTS: u64 = 2;
const ATTR_DISABLED: u64 = 1 << 0;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
/// `_IO('$', 0)`, `_IO('$', 1)` and `_IOW('$', 4, u64)`.
const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
const PERF_EVENT_IOC_DISABLE: libc::c_ulong = 0x2401;
const PERF_EVENT_IOC_PERIOD: libc::c_ulong = 0x4008_2404;

/// Counts page faults on every CPU that is online.
#[derive(Debug)]
pub struct FaultAlarm {
    cpus: Vec<OwnedFd>,
}

impl FaultAlarm {
    /// Makes the counters; none counts before [`FaultAlarm::arm`]. When one has counted enough, this
    /// process gets SIGIO, which must be blocked and read with signalfd(2), or handled.
    ///
    /// # Errors
    /// EACCES or EPERM ([`Error::is_denied`]) without `CAP_PERFMON`; [`Error::is_unsupported`] when the
    /// kernel has no such counters.
    pub fn open(root: &Root) -> Result<Self> {
        let path = root.sys().join("devices/system/cpu/online");
        let online = cpus(&path, &read::file(&path, read::SMALL_FILE_BYTES)?)?;
        let mut cpus = Vec::with_capacity(online.len());
        for cpu in online {
            match counter(cpu) {
                Ok(fd) => cpus.push(fd),
                // Went offline just now.
                Err(Errno::NODEV) => {}
                Err(errno) => return Err(Error::io(Path::new("perf_event_open"), errno)),
            }
        }
        Ok(Self { cpus })
    }

    /// How many CPUs are counted on.
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// From now on each CPU's counter goes off after so many faults, again and again. Allocates nothing
    /// unless it fails.
    ///
    /// # Errors
    /// When the kernel does not take the number: 0, or above 2^63.
    pub fn arm(&self, faults: u64) -> Result<()> {
        self.cpus.iter().try_for_each(|fd| {
            // SAFETY: the kernel reads a u64 from a live local.
            let set = unsafe { libc::ioctl(fd.as_raw_fd(), PERF_EVENT_IOC_PERIOD as _, &raw const faults) };
            if set != 0 {
                return Err(Error::io(Path::new("perf_event_open"), last_errno()));
            }
            switch(fd, PERF_EVENT_IOC_ENABLE)
        })
    }

    /// Nothing is counted from now on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn disarm(&self) -> Result<()> {
        self.cpus.iter().try_for_each(|fd| switch(fd, PERF_EVENT_IOC_DISABLE))
    }
}

fn switch(fd: &OwnedFd, request: libc::c_ulong) -> Result<()> {
    // SAFETY: these requests take no address.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request as _, 0) } {
        0 => Ok(()),
        _ => Err(Error::io(Path::new("perf_event_open"), last_errno())),
    }
}

fn counter(cpu: u32) -> std::result::Result<OwnedFd, Errno> {
    let attr = Attr {
        kind: PERF_TYPE_SOFTWARE,
        size: size_of::<Attr>() as u32,
        config: PERF_COUNT_SW_PAGE_FAULTS,
        // Set when it is armed; it only has to be one that samples.
        sample_period: 1 << 32,
        flags: ATTR_DISABLED,
        ..Attr::default()
    };
    // SAFETY: `attr` is a live local of the size that it names; the other arguments are numbers.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC)
    };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel has just made it, and nothing else knows of it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let own = std::process::id().cast_signed();
    for (command, value) in [(libc::F_SETOWN, own), (libc::F_SETFL, libc::O_ASYNC)] {
        // SAFETY: these commands take numbers.
        if unsafe { libc::fcntl(fd.as_raw_fd(), command, value) } != 0 {
            return Err(last_errno());
        }
    }
    Ok(fd)
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Parses a list such as "0-3,8".
fn cpus(path: &Path, bytes: &[u8]) -> Result<Vec<u32>> {
    let line = text::single(path, bytes)?;
    let mut cpus = Vec::new();
    for part in line.bytes.split(|b| *b == b',') {
        let (first, last) = match part.iter().position(|b| *b == b'-') {
            Some(dash) => (number(line, &part[..dash])?, number(line, &part[dash + 1..])?),
            None => (number(line, part)?, number(line, part)?),
        };
        if first > last || cpus.len() + (last - first) as usize >= MAX_CPUS {
            return Err(line.error("not a list of CPUs"));
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

fn number(line: Line<'_>, field: &[u8]) -> Result<u32> {
    line.number(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        let list = |text: &str| cpus(Path::new("online"), text.as_bytes());
        assert_eq!(list("0\n").unwrap(), [0]);
        assert_eq!(list("0-2,8,10-11\n").unwrap(), [0, 1, 2, 8, 10, 11]);
        for wrong in ["\n", "0-\n", "3-1\n", "0-4294967295\n", "a\n", "0,,1\n", "0-1"] {
            assert!(list(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!(size_of::<Attr>(), 64);
    }
}
