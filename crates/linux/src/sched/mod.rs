// SPDX-License-Identifier: GPL-2.0-only
//! How a thread is scheduled: sched_setscheduler(2), sched_getscheduler(2) and setpriority(2); and on how many
//! CPUs.
//!
//! The calls themselves, not the C library's functions: those of musl return ENOSYS without asking the
//! kernel, because POSIX means processes where Linux means threads.

mod threads;

use std::{fs, io};

use rustix::io::Errno;

pub use threads::Threads;

use crate::Root;

/// The number of CPUs that are online, also those that this process may not use; `None` where sysfs does not
/// tell.
///
/// Not what `available_parallelism()` returns: that respects the affinity and the CPU limit of the caller.
pub fn online_cpus(root: &Root) -> Option<usize> {
    count(&fs::read_to_string(root.sys().join("devices/system/cpu/online")).ok()?)
}

/// Counts the numbers in a list of ranges, such as `0-3,6`.
fn count(list: &str) -> Option<usize> {
    let size = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        (last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)?).checked_add(1)
    };
    list.trim_end().split(',').map(size).sum()
}

/// Returns the policy of a thread, or of the calling one if `tid` is 0, with `SCHED_RESET_ON_FORK` if it has
/// that.
///
/// # Errors
/// ESRCH when there is no such thread.
pub fn policy(tid: i32) -> Result<i32, Errno> {
    // SAFETY: takes a number.
    answer(unsafe { libc::syscall(libc::SYS_sched_getscheduler, tid) })
}

/// Sets the policy of a thread, or of the calling one if `tid` is 0; `priority` is 0 except for real-time
/// policies. Can be called after a fork.
///
/// # Errors
/// EPERM without CAP_SYS_NICE, for most policies; ESRCH; EINVAL for an unknown policy or priority.
pub fn set_policy(tid: i32, policy: i32, priority: i32) -> Result<(), Errno> {
    // SAFETY: the kernel's struct sched_param is this one number, a live local.
    answer(unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, &raw const priority) }).map(drop)
}

/// Sets the niceness of a thread, or of the calling one if `tid` is 0: -20 (most CPU time) to 19. The kernel
/// takes a thread here, whatever POSIX says.
///
/// # Errors
/// EACCES or EPERM without CAP_SYS_NICE, ESRCH.
pub fn set_nice(tid: i32, nice: i32) -> Result<(), Errno> {
    rustix::process::setpriority_process(rustix::process::Pid::from_raw(tid), nice)
}

fn answer(ret: libc::c_long) -> Result<i32, Errno> {
    match ret {
        -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        policy => i32::try_from(policy).map_err(|_| Errno::RANGE),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn cpus_are_counted_that_this_process_may_not_use() {
        assert_eq!(["0", "0-3\n", "0,2-3,7-8\n"].map(count), [Some(1), Some(4), Some(5)]);
        assert_eq!(["", "\n", "3-1", "a", "0-", "0-18446744073709551615"].map(count), [None; 6]);
        let all = online_cpus(&Root::system()).unwrap();
        assert!(all >= thread::available_parallelism().unwrap().get());
        let mut one = rustix::thread::CpuSet::new();
        one.set(rustix::thread::sched_getcpu());
        let pinned = move || rustix::thread::sched_setaffinity(None, &one).map(|()| online_cpus(&Root::system()));
        assert_eq!(thread::spawn(pinned).join().unwrap(), Ok(Some(all)));
    }

    /// The policy as /proc/thread-self/stat has it, its field 41.
    fn in_proc() -> i32 {
        let text = fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, behind_name) = text.rsplit_once(") ").unwrap();
        behind_name.split(' ').nth(41 - 3).unwrap().parse().unwrap()
    }

    #[test]
    fn the_kernel_does_what_was_asked() {
        // In a thread that ends: not all of it can be undone without CAP_SYS_NICE.
        let asked = || {
            for (asked, priority) in
                [(libc::SCHED_FIFO, 1), (libc::SCHED_OTHER, 0), (libc::SCHED_BATCH, 0), (libc::SCHED_IDLE, 0)]
            {
                match set_policy(0, asked, priority) {
                    Ok(()) => assert_eq!((policy(0).unwrap(), in_proc()), (asked, asked)),
                    // To be idle is in reach of everybody.
                    Err(e) => assert!(e == Errno::PERM && asked != libc::SCHED_IDLE, "{asked}: {e}"),
                }
            }
        };
        thread::spawn(asked).join().unwrap();
        assert_eq!(set_policy(0, libc::SCHED_FIFO, 1000), Err(Errno::INVAL));
        assert_eq!(policy(i32::MAX), Err(Errno::SRCH));
    }
}
