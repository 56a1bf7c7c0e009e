//! Memory for a daemon that waits: what only start-up needed is given back.

use std::fs;

/// What of the code a page fault may map, in bytes.
const PIECE: usize = 4 << 10;
/// Room for the frames of the calls that drop the rest of the stack, in bytes.
const CALLS: usize = 16 << 10;

/// Has large allocations made in mappings of their own for ever, of which only what is used is in
/// memory. The C library would make them in the heap once a larger one was freed, and clear them all.
pub fn keep_large_apart() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no arguments that could be wrong; no other thread allocates yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10);
        // What is free already would be used first.
        libc::malloc_trim(0);
    };
}

/// Drops the program's code from this process's memory: what runs from now on comes back from the page
/// cache, and the rest, such as the parsers of arguments and configuration, stays out. To be called
/// before memory is locked.
pub fn drop_code() {
    // What cannot be read costs some memory and nothing else.
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return };
    for line in maps.lines() {
        if let Some((start, end)) = code(line) {
            divide(start, end);
            // SAFETY: the range is a file's, mapped and never written to: its pages are read from the
            // file again when they are touched.
            let _ = unsafe {
                rustix::mm::madvise(start as *mut _, end - start, rustix::mm::Advice::LinuxDontNeed)
            };
        }
    }
    #[cfg(target_env = "gnu")]
    // SAFETY: no arguments that could be wrong.
    unsafe {
        libc::malloc_trim(0)
    };
    drop_stack(&maps);
}

/// Makes small mappings of a large one, by a difference that means nothing to us. A page fault maps the
/// pages around it, too, as far as the mapping goes: 64 KiB for a function of a hundred bytes.
fn divide(start: usize, end: usize) {
    for piece in (start..end).step_by(2 * PIECE) {
        let len = PIECE.min(end - piece);
        // SAFETY: that it is left out of core dumps changes nothing about the memory.
        let _ = unsafe { rustix::mm::madvise(piece as *mut _, len, rustix::mm::Advice::LinuxDontDump) };
    }
}

/// Drops what of the first thread's stack was used by deeper calls than this one.
fn drop_stack(maps: &str) {
    let here = std::ptr::from_ref(&maps) as usize;
    let stack = maps.lines().filter_map(range).find(|(start, end)| (*start..*end).contains(&here));
    let page = rustix::param::page_size();
    let end = here.saturating_sub(CALLS) / page * page;
    if let Some((start, _)) = stack
        && start < end
    {
        // SAFETY: calls from here on reach less than `CALLS` below `here`, and what is deeper was left by
        // calls that are over.
        let _ =
            unsafe { rustix::mm::madvise(start as *mut _, end - start, rustix::mm::Advice::LinuxDontNeed) };
    }
}

/// The range of a line of /proc/PID/maps, if it is code of a file. Not what is only readable: the
/// dynamic linker has written there before it was made so.
fn code(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (_range, mode) = (fields.next()?, fields.next()?);
    let (offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?);
    // The first part of a program, in front of its code: symbols, constants, no addresses.
    let constant = mode == "r--p" && offset.bytes().all(|b| b == b'0');
    if inode == "0" || !(mode == "r-xp" || constant) {
        return None;
    }
    self::range(line)
}

/// The range of a line of /proc/PID/maps.
fn range(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_and_constants_of_files_are_dropped() {
        let line = |mode, offset, inode| format!("1000-3000 {mode} {offset} fe:00 {inode}   /usr/sbin/x");
        assert_eq!(code(&line("r-xp", "00002000", 7)), Some((0x1000, 0x3000)));
        assert_eq!(code(&line("r--p", "00000000", 7)), Some((0x1000, 0x3000)));
        for (mode, offset, inode) in [
            ("r--p", "00005000", 7),
            ("rw-p", "00000000", 7),
            ("r-xp", "00000000", 0),
            ("rwxp", "00001000", 7),
        ] {
            assert_eq!(code(&line(mode, offset, inode)), None);
        }
        assert_eq!(code(""), None);
        assert_eq!(code("x-y r-xp 0 0 1"), None);
    }

    #[test]
    fn the_program_goes_on_without_its_code() {
        drop_code();
        assert_eq!(code("nothing"), None);
    }
}
