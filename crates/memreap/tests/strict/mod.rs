// SPDX-License-Identifier: GPL-2.0-only
//! An allocator that ends the program when something is allocated that must not be.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI32, Ordering};

/// The thread that must not allocate, with all threads that the test has started; 0 for none.
static STRICT: AtomicI32 = AtomicI32::new(0);

/// Does `work`, for which memory must be enough as it is, in all threads.
///
/// All but the first, unless the work is done there. It is the harness's: where it is slow to be given a CPU,
/// it has not yet gone to sleep when the test has long begun, and allocates what it needs to wait.
pub fn without_allocating<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: no memory is involved.
    STRICT.store(unsafe { libc::gettid() }, Ordering::SeqCst);
    let done = work();
    STRICT.store(0, Ordering::SeqCst);
    done
}

struct Strict;

fn check() {
    let strict = STRICT.load(Ordering::SeqCst);
    if strict == 0 {
        return;
    }
    // SAFETY: no memory is involved.
    let (thread, first) = unsafe { (libc::gettid(), libc::getpid()) };
    if thread == strict || thread != first {
        let text = b"allocated when it must not\n";
        // SAFETY: a live buffer and its length.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        std::process::abort();
    }
}

// SAFETY: does what `System` does, or nothing more at all.
unsafe impl GlobalAlloc for Strict {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        check();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Strict = Strict;
