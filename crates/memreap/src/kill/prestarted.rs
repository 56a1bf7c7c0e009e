// SPDX-License-Identifier: GPL-2.0-only
//! Threads that are started before they are needed, and how they are scheduled: for work that must be done
//! when no memory is left.

use std::io;
use std::sync::{Arc, Barrier};
use std::thread::Builder;

use linux::{Pid, PidFd};
use rustix::io::Errno;

/// Room for a system call and a few frames around it.
pub(crate) const STACK_BYTES: usize = 128 << 10;

/// Starts a thread, and returns when it runs. A thread allocates memory before it reaches its own code, so
/// one that first runs when no memory is left would wait for the victim that it is to help with.
///
/// It is not joined: it may be in the kernel for as long as a process's memory map is locked.
///
/// # Errors
/// When there is no memory for it, or there are too many.
pub(crate) fn start(name: &str, stack_bytes: usize, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let runs = Arc::new(Barrier::new(2));
    let here = Arc::clone(&runs);
    Builder::new().name(name.into()).stack_size(stack_bytes).spawn(move || {
        runs.wait();
        work();
    })?;
    here.wait();
    Ok(())
}

/// Has the calling thread, and those it starts, run before others: SCHED_FIFO, else nice -20. Without
/// CAP_SYS_NICE neither is possible; then, on a busy machine, memory comes back at the speed of the victim's
/// share of a CPU, and the race ([`engine`](super::engine)) is lost more often.
///
/// # Errors
/// Why it does not run in real time.
pub fn raise_priority() -> Result<(), Errno> {
    // The lowest real-time priority: it is enough against all threads that are not real-time. A niceness
    // would not be, where sessions or groups are scheduled each with its own share.
    linux::sched::set_policy(0, libc::SCHED_FIFO, 1).inspect_err(|_| {
        // The group may lack a real-time budget.
        let _ = linux::sched::set_nice(0, -20);
    })
}

/// Calls process_mrelease(2) once without effect, so that its code is mapped and in the cache.
pub(crate) fn warm_up() {
    let _ = PidFd::open(Pid::own()).and_then(|own| own.release_memory());
}
