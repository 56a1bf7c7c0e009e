//! Threads that are started early, for what they do when there is no memory left.

use std::io;
use std::sync::{Arc, Barrier};
use std::thread::Builder;

/// Starts a thread, and returns when it runs. A thread allocates memory before it comes to its work, so one
/// that is first given a CPU when there is none left would wait for the victim that it is to help with.
///
/// It is not joined: it may be in the kernel for as long as somebody's memory map is locked.
///
/// # Errors
/// When there is no memory for it, or there are too many.
pub(crate) fn start(name: &str, stack: usize, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let runs = Arc::new(Barrier::new(2));
    let here = Arc::clone(&runs);
    Builder::new().name(name.into()).stack_size(stack).spawn(move || {
        runs.wait();
        work();
    })?;
    here.wait();
    Ok(())
}
