// SPDX-License-Identifier: GPL-2.0-only
//! Memory that a process holds by a descriptor and need not map: memfd_create(2), and files on a tmpfs without a name.
//!
//! No counter of a process has it. To find it, all open files of all processes are looked at, which takes some 50 us
//! per process: too long for a choice, but not for saying why no kill helps.

use std::io;
use std::mem::MaybeUninit;
use std::time::Instant;

use arrayvec::ArrayVec;
use linux::Pid;
use linux::process::Comm;
use linux::scan::{Failure, Scan};
use rustix::fs::{MemfdFlags, fstat, makedev, memfd_create};

/// Files of one process that are told apart; descriptors of the others may be counted twice.
const MAX_FILES: usize = 64;
/// The unit of `stx_blocks`.
const BLOCK_BYTES: u64 = 512;

/// A process that holds memory by descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its ID.
    pub pid: Pid,
    /// Its name.
    pub comm: Comm,
    /// How much it holds, in bytes.
    pub bytes: u64,
}

/// Returns the device of memfds.
///
/// # Errors
/// When none can be made.
pub(super) fn memfd_device() -> io::Result<u64> {
    Ok(fstat(memfd_create(c"memreap", MemfdFlags::CLOEXEC)?)?.st_dev)
}

/// Returns how much memory a process holds by descriptors of memfds, in bytes.
///
/// # Errors
/// When its descriptors cannot be listed.
pub(super) fn held(scan: &Scan, pid: Pid, device: u64, deadline: Instant) -> Result<u64, Failure> {
    let (mut files, mut bytes) = (ArrayVec::<u64, MAX_FILES>::new(), 0_u64);
    scan.for_each_open_file(pid, &mut [MaybeUninit::uninit(); 2048], |file| {
        if makedev(file.stx_dev_major, file.stx_dev_minor) == device && !files.contains(&file.stx_ino) {
            let _ = files.try_push(file.stx_ino);
            bytes = bytes.saturating_add(file.stx_blocks.saturating_mul(BLOCK_BYTES));
        }
        Instant::now() < deadline
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use linux::Root;
    use rustix::fs::{FallocateFlags, fallocate};

    use super::super::Chooser;
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_not_mapped_is_held_by_a_descriptor() {
        let scan = Scan::open(&Root::system()).unwrap();
        let soon = || Instant::now() + Duration::from_secs(10);
        let held = || held(&scan, Pid::own(), memfd_device().unwrap(), soon()).unwrap();
        let before = held();
        let file = memfd_create(c"held", MemfdFlags::CLOEXEC).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 8 * MIB).unwrap();
        // Once, however many descriptors there are.
        let _again = file.try_clone().unwrap();
        assert_eq!(held() - before, 8 * MIB);
        let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
        chooser.refresh(&crate::policy::Policy::default(), Duration::from_secs(10));
        let holder = chooser.largest_holder(Duration::from_secs(10)).unwrap();
        assert!(holder.bytes >= 8 * MIB, "{holder:?}");
    }
}
