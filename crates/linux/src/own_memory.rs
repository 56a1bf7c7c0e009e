// SPDX-License-Identifier: GPL-2.0-only
//! This process's own memory: releases what only the start has needed.

use std::fs;

use rustix::mm::{Advice, madvise};

use crate::maps::Mapping;

/// What of the code a page fault may map, in bytes.
const CODE_PIECE_BYTES: usize = 4 << 10;
/// Room for the frames of the calls that release the rest of the stack, in bytes.
const CALL_FRAMES_BYTES: usize = 16 << 10;
/// Allocations from this size on get a mapping of their own.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD_BYTES: i32 = 8 << 10;

/// Has large allocations made in mappings of their own, of which only what is used is in memory: the C library
/// would make them in the heap once a larger one was freed, and clear them all. And has all threads share one
/// heap, as each takes two pages and these threads hardly allocate. Does nothing with other C libraries than
/// glibc.
pub fn keep_heap_small() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no arguments that could be wrong.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
        libc::mallopt(libc::M_ARENA_MAX, 1);
        // What is free already would be used first.
        libc::malloc_trim(0);
    };
}

/// Releases the program's code, the stack of the calling thread below the caller and the free part of the
/// heap. Code that runs afterwards is read from the page cache again, and the rest, such as the parsers of
/// arguments and configuration, stays out. To be called before memory is locked, by the first thread. What
/// cannot be read is left.
pub fn release_unused() {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return };
    for mapping in maps.lines().filter_map(|line| Mapping::parse(line.as_bytes())).filter(is_code) {
        split(mapping.start, mapping.end);
        // SAFETY: the range is a file's, mapped and never written to: its pages are read from the file again
        // when they are touched.
        let _ = unsafe { madvise(mapping.start as *mut _, mapping.end - mapping.start, Advice::LinuxDontNeed) };
    }
    release_stack(&maps);
    // The last that the start has allocated.
    drop(maps);
    #[cfg(target_env = "gnu")]
    // SAFETY: no arguments that could be wrong.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Splits a large mapping into small ones, by an attribute without effect here. A page fault also maps the
/// pages around it, as far as the mapping goes: 64 KiB for a function of a hundred bytes.
fn split(start: usize, end: usize) {
    for piece in (start..end).step_by(2 * CODE_PIECE_BYTES) {
        let len = CODE_PIECE_BYTES.min(end - piece);
        // SAFETY: that it is left out of core dumps does not change the memory.
        let _ = unsafe { madvise(piece as *mut _, len, Advice::LinuxDontDump) };
    }
}

/// Releases what deeper calls than this one have used of the calling thread's stack.
fn release_stack(maps: &str) {
    let here = std::ptr::from_ref(&maps) as usize;
    let mut mappings = maps.lines().filter_map(|line| Mapping::parse(line.as_bytes()));
    let stack = mappings.find(|mapping| (mapping.start..mapping.end).contains(&here));
    let page = rustix::param::page_size();
    let end = here.saturating_sub(CALL_FRAMES_BYTES) / page * page;
    if let Some(Mapping { start, .. }) = stack
        && start < end
    {
        // SAFETY: calls from here on reach less than `CALL_FRAMES_BYTES` below `here`, and what is deeper was
        // left by calls that have returned.
        let _ = unsafe { madvise(start as *mut _, end - start, Advice::LinuxDontNeed) };
    }
}

/// Whether it is code of a file, or the constants before it. Not what is only readable further on: the
/// dynamic linker has written there before it was made so.
fn is_code(mapping: &Mapping<'_>) -> bool {
    // The first part of a program, before its code: symbols, constants, no addresses.
    let constants = mapping.mode == "r--p" && mapping.offset == 0;
    mapping.inode != 0 && (mapping.mode == "r-xp" || constants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_and_constants_of_files_are_released() {
        let is_code = |mode: &str, offset: &str, inode: u64| {
            let line = format!("1000-3000 {mode} {offset} fe:00 {inode}   /usr/sbin/x");
            is_code(&Mapping::parse(line.as_bytes()).unwrap())
        };
        assert!(is_code("r-xp", "00002000", 7) && is_code("r--p", "00000000", 7));
        for (mode, offset, inode) in
            [("r--p", "00005000", 7), ("rw-p", "00000000", 7), ("r-xp", "00000000", 0), ("rwxp", "00001000", 7)]
        {
            assert!(!is_code(mode, offset, inode), "{mode} {offset} {inode}");
        }
    }

    #[test]
    fn the_program_goes_on_without_its_code() {
        release_unused();
        assert_eq!(Mapping::parse(b"nothing"), None);
    }
}
