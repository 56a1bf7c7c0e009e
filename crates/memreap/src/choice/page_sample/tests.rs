// SPDX-License-Identifier: GPL-2.0-only

use std::os::fd::AsRawFd as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use linux::{PidFd, Process, Root};
use proptest::prelude::*;

use super::*;

const MIB: usize = 1 << 20;
const PAGE_BYTES: u64 = 4096;

/// The tests that fork share this process's memory: one at a time.
static MEMORY: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Private memory of the caller, with the first `written` bytes of it there.
struct Memory(*mut libc::c_void, usize);

impl Memory {
    fn new(size: usize, written: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: it is in the mapping.
        unsafe { at.cast::<u8>().write_bytes(1, written) };
        Self(at, size)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping that was made above.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

/// A child of this process that shares its memory until it is dropped.
struct Child(Pid);

impl Child {
    /// It writes to the first bytes of `memory`, so that it has copies of their pages.
    fn start(memory: &Memory, copied: usize) -> Self {
        let mut ready = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ready.as_mut_ptr()) }, 0);
        let work = || {
            // SAFETY: only system calls and writes to memory of the child's own.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                memory.0.cast::<u8>().write_bytes(2, copied);
                libc::write(ready[1], [0_u8].as_ptr().cast(), 1);
                libc::pause()
            }
        };
        // SAFETY: see above.
        let pid = unsafe { linux::child::fork(work) }.unwrap();
        let mut byte = [0_u8];
        // SAFETY: room for the byte; both descriptors were made above.
        unsafe {
            assert_eq!(libc::read(ready[0], byte.as_mut_ptr().cast(), 1), 1);
            libc::close(ready[0]);
            libc::close(ready[1]);
        }
        Self(pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = PidFd::open(self.0).and_then(|pidfd| pidfd.send_signal(linux::pidfd::Signal::KILL));
        let _ = rustix::process::waitpid(Some(self.0.into()), rustix::process::WaitOptions::empty());
    }
}

/// Shared memory that is mapped three times, one mapping behind the other, all of it there.
fn mapped_three_times(size: usize) -> Memory {
    let file = rustix::fs::memfd_create(c"three", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, size as u64).unwrap();
    let memory = Memory::new(3 * size, 0);
    for i in 0..3 {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: in place of a part of the mapping that was just made.
        let at = unsafe { libc::mmap(memory.0.byte_add(i * size), size, prot, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
    }
    // SAFETY: all of it is mapped.
    unsafe { memory.0.cast::<u8>().write_bytes(1, 3 * size) };
    memory
}

#[test]
fn what_a_process_maps_several_times_is_its_own() {
    const SIZE: usize = 96 * MIB;
    let _alone = alone();
    let scan = Scan::open(&Root::system()).unwrap();
    let own = || {
        let rollup = Process::open(&Root::system(), Pid::own()).unwrap().smaps_rollup().unwrap();
        comes_back(&scan, Pid::own(), &rollup, &mut [0; 8192])
    };
    // As above: other tests have memory, too, and fork.
    let soon = |holds: &dyn Fn() -> bool| {
        (0..20).any(|_| {
            holds() || {
                std::thread::sleep(Duration::from_millis(100));
                false
            }
        })
    };
    let (before, size) = (own(), SIZE as u64);
    let memory = mapped_three_times(SIZE);
    assert!(soon(&|| own().saturating_sub(before).abs_diff(size) < size / 3), "{} {before}", own());
    let is_sampled = |(sampled, counts, _): (Estimate, Counts, u64)| counts.times > 2.0 && sampled.bytes > size * 2 / 3;
    assert!(soon(&|| is_sampled(compare(Pid::own()))), "{:?}", compare(Pid::own()));
    // Another process has it, as often.
    let child = Child::start(&memory, 3 * SIZE);
    assert!(soon(&|| own() < before + size / 3), "{} {before}", own());
    drop(child);
}

#[test]
fn parts_of_files_count_once_where_they_overlap() {
    let times = |parts: &[(u64, u64, u64)]| {
        let mut layout = Layout::default();
        layout.parts.extend(parts.iter().map(|&(inode, start, end)| FilePart { device: 1, inode, start, end }));
        layout.times_mapped()
    };
    assert_eq!(times(&[(7, 0, 10), (8, 0, 10), (7, 10, 20)]), 1.0);
    assert_eq!(times(&[(7, 5, 10), (7, 0, 10), (7, 0, 10), (7, 0, 5)]), 3.0);
    assert_eq!(times(&[(7, 0, 30), (7, 10, 20), (7, 20, 40)]), 1.5);
    assert_eq!(times(&[(7, 0, 10); MAX_STRETCHES]), 1.0, "there may be more");
}

/// What a sample says of a process, how many pages it took, and what smaps_rollup says.
fn compare(pid: Pid) -> (Estimate, Counts, u64) {
    let scan = Scan::open(&Root::system()).unwrap();
    let status = linux::process::Status::parse(scan.process(pid, File::Status, &mut [0; 1 << 14]).unwrap()).unwrap();
    let sizes = Sizes { anon: status.rss_anon, shared: status.rss_shmem, swap: status.swap };
    let process = SampledProcess { pid, sizes, vm_size: status.vm_size, error: FIRST_ERROR };
    let later = Instant::now() + Duration::from_secs(60);
    let counts = sample(&scan, &process, &mut Rng::new(), later, &mut [0; 8192]).unwrap();
    let exact = Process::open(&Root::system(), pid).unwrap().smaps_rollup().unwrap().comes_back();
    (counts.estimate(&sizes, rustix::param::page_size() as u64), counts, exact)
}

/// Other tests fork this process, too, and its memory is shared as long as their children live: so several times.
#[track_caller]
fn assert_close(pid: Pid) {
    let is_close = |(estimate, _, exact): &(Estimate, Counts, u64)| {
        // By chance once in 15,000 samples; and this process's other tests have memory, too.
        estimate.bytes.abs_diff(*exact) <= 4 * estimate.error + 16 * MIB as u64
    };
    let mut last = compare(pid);
    for _ in 0..20 {
        if is_close(&last) {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
        last = compare(pid);
    }
    panic!("{last:?}");
}

#[test]
fn what_was_shared_by_fork_does_not_come_back() {
    let _alone = alone();
    let memory = Memory::new(256 * MIB, 256 * MIB);
    let child = Child::start(&memory, 96 * MIB);
    assert_close(child.0);
    assert_close(Pid::own());
    // Neither nothing nor all.
    let (estimate, ..) = compare(child.0);
    assert!((48 * MIB as u64..200 * MIB as u64).contains(&estimate.bytes), "{estimate:?}");
    drop(child);
    assert_close(Pid::own());
}

#[test]
fn memory_is_common_to_what_was_forked() {
    let _alone = alone();
    let memory = Memory::new(256 * MIB, 256 * MIB);
    let child = Child::start(&memory, 0);
    let copies = Child::start(&memory, 256 * MIB);
    let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let scan = Scan::open(&Root::system()).unwrap();
    let process = SampledProcess { pid: Pid::own(), ..SampledProcess::rehearsal() };
    let common = |other| common_part(&scan, &process, other, &mut Rng::new(), &mut [0; 8192]).unwrap().unwrap();
    assert!(common(child.0) > 0.5);
    // What is at its addresses is its own.
    assert!(common(copies.0) < 0.5);
    assert_eq!(common(Pid::new(other.id().cast_signed()).unwrap()), 0.0);
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn zeroes_that_were_only_read_are_not_taken_for_shared_memory() {
    let _alone = alone();
    let memory = Memory::new(512 * MIB, 128 * MIB);
    let page = rustix::param::page_size();
    for at in (128 * MIB..512 * MIB).step_by(page) {
        // SAFETY: it is in the mapping.
        unsafe { memory.0.cast::<u8>().add(at).read_volatile() };
    }
    let child = Child::start(&memory, 128 * MIB);
    assert_close(child.0);
    assert!(compare(child.0).0.bytes > 96 * MIB as u64);
}

#[test]
fn an_address_space_of_a_terabyte_takes_no_longer() {
    let _alone = alone();
    let memory = Memory::new(1 << 40, 64 * MIB);
    let child = Child::start(&memory, 64 * MIB);
    let (_, counts, _) = compare(child.0);
    assert!(counts.looked_up <= MAX_PAGES && !counts.is_enough(), "{counts:?}");
}

#[test]
fn of_more_mappings_than_there_is_room_for_the_smaller_are_left_out() {
    let mut layout = Layout::default();
    let large = Stretch { start: 1 << 20, pages: 1 << 20, is_shared: false };
    for i in 0..3 * MAX_STRETCHES as u64 {
        layout.add(Stretch { start: 10 * i, pages: 1, is_shared: false });
        if i == 5 {
            layout.add(large);
        }
    }
    assert!(layout.stretches.contains(&large));
    let kept: u64 = layout.stretches.iter().map(|stretch| stretch.pages).sum();
    assert_eq!(kept + layout.left_out, large.pages + 3 * MAX_STRETCHES as u64);
    // Neighbours of a kind are one.
    let mut layout = Layout::default();
    for (start, is_shared) in [(0, false), (5, false), (10, true), (15, true), (25, true)] {
        layout.add(Stretch { start, pages: 5, is_shared });
    }
    assert_eq!(layout.stretches.iter().map(|s| (s.start, s.pages)).collect::<Vec<_>>(), [(0, 10), (10, 10), (25, 5)]);
}

#[test]
fn only_mappings_that_give_memory_back_are_looked_at() {
    let sizes = Sizes { anon: 1, shared: 1, swap: 0 };
    for (line, expected) in [
        ("1000-2000 rw-p 0 00:00 0 [heap]", Some(false)),
        ("1000-2000 r--p 0 00:00 0", Some(false)),
        ("1000-2000 ---p 0 00:00 0", None),
        ("1000-2000 r-xp 0 00:00 0 [vdso]", None),
        ("1000-2000 r-xp 0 fe:00 7 /bin/x", None),
        ("1000-2000 rw-p 0 fe:00 7 /bin/x", Some(false)),
        ("1000-2000 rw-p 0 00:0f 7 /anon_hugepage (deleted)", None),
        ("1000-2000 rw-s 0 00:01 7 /memfd:x (deleted)", Some(true)),
        ("1000-2000 rw-s 0 fe:00 7 /var/x", None),
    ] {
        let mapping = Mapping::parse(line.as_bytes()).unwrap();
        assert_eq!(kind(&mapping, &sizes), expected, "{line}");
    }
    let mapping = Mapping::parse(b"1000-2000 rw-s 0 00:01 7 /memfd:x (deleted)").unwrap();
    assert_eq!(kind(&mapping, &Sizes { shared: 0, ..sizes }), None);
}

proptest! {
    /// Pages that are there, and of these those that are exclusive, drawn with the given probabilities.
    #[test]
    fn the_error_is_what_it_says(
        present in 0.05_f64..1.0,
        exclusive in 0.0_f64..1.0,
        zeroes in prop_oneof![Just(0.0), 0.0_f64..0.5],
        seed in 1_u64..,
    ) {
        let mut random = Rng::with_seed(seed);
        let mut chance = |p: f64| random.f64() < p;
        let pages = 1 << 20;
        let mut counts = Counts { pages, ..Counts::default() };
        for _ in 0..MAX_PAGES {
            counts.looked_up += 1;
            if chance(present) {
                counts.anon.present += 1;
                counts.anon.exclusive += u32::from(!chance(zeroes) && chance(exclusive));
            }
        }
        let anon = (present * (1.0 - zeroes) * pages as f64) as u64 * PAGE_BYTES;
        let sizes = Sizes { anon, shared: 0, swap: 0 };
        let estimate = counts.estimate(&sizes, PAGE_BYTES);
        let truth = (anon as f64 * exclusive) as u64;
        // Zeroes that are too few to be noticed are taken for shared memory.
        let unnoticed = SIGNIFICANT_ERRORS * standard_error(f64::from(counts.anon.present), f64::from(MAX_PAGES));
        let allowed = 5 * estimate.error + if zeroes > 0.0 { (unnoticed / present * anon as f64) as u64 } else { 0 };
        prop_assert!(estimate.bytes.abs_diff(truth) <= allowed, "{estimate:?} {truth} {counts:?}");
    }
}
