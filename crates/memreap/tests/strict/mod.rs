//! An allocator that ends the program when something is allocated that must not be.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

/// From now on memory must be enough as it is, in all threads.
pub static ARMED: AtomicBool = AtomicBool::new(false);

struct Strict;

fn check() {
    if ARMED.load(Ordering::SeqCst) {
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
