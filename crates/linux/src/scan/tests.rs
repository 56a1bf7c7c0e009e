// SPDX-License-Identifier: GPL-2.0-only

use std::fs;

use proptest::prelude::*;

use super::*;
use crate::Process;
use crate::process::Status;

#[test]
fn the_real_proc_is_understood() {
    let scan = Scan::open(&Root::system()).unwrap();
    let mut names = [MaybeUninit::uninit(); 4096];
    let (mut seen, mut last) = (0, 0);
    let mut own = false;
    scan.pids(&mut names, |pid| {
        assert!(pid.get() > last, "ascending");
        last = pid.get();
        own |= pid == Pid::own();
        seen += 1;
        true
    })
    .unwrap();
    assert!(own && seen > 1);
    let mut buffer = vec![0; 64 << 10];
    let status = Status::parse(scan.process(Pid::own(), File::Status, &mut buffer).unwrap()).unwrap();
    let stat = Process::open(&Root::system(), Pid::own()).unwrap().stat().unwrap();
    assert_eq!((status.comm, status.tgid, status.ppid), (stat.comm, Pid::own(), stat.ppid));
    assert!(status.vm_size > 0 && !status.killed);
    adjustment(scan.process(Pid::own(), File::OomScoreAdj, &mut buffer).unwrap()).unwrap();
    let mut threads = 0;
    scan.threads(Pid::own(), &mut names, |_| {
        threads += 1;
        true
    })
    .unwrap();
    assert!(threads >= 1);
    let none = Pid::new(i32::MAX).unwrap();
    assert_eq!(scan.process(none, File::Status, &mut buffer), Err(Failure::Gone));
    // Too small a buffer is no shorter file.
    assert_eq!(scan.process(Pid::own(), File::Status, &mut [0; 100]), Err(Failure::Malformed));
}

#[test]
fn a_fork_is_counted_and_has_the_last_id() {
    let scan = Scan::open(&Root::system()).unwrap();
    let before = scan.forks(&mut [0; 64]).unwrap();
    let child = std::process::Command::new("true").spawn().unwrap().wait();
    assert!(child.unwrap().success());
    for size in [24, 100, 16 << 10] {
        assert!(scan.forks(&mut vec![0; size]).unwrap() > before, "{size}");
    }
    assert!(scan.last_pid().unwrap() > 1);
}

#[test]
fn a_process_has_memory_until_it_is_dead() {
    let scan = Scan::open(&Root::system()).unwrap();
    assert!(scan.statm(Pid::own()).unwrap().resident > 0);
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let pid = Pid::new(child.id().cast_signed()).unwrap();
    child.kill().unwrap();
    while scan.statm(pid).unwrap().resident > 0 {
        std::thread::yield_now();
    }
    assert_eq!(scan.stat(pid).unwrap().ppid, Some(Pid::own()));
    child.wait().unwrap();
    assert_eq!(scan.statm(pid), Err(Failure::Gone));
}

#[test]
fn forks_are_found_across_the_ends_of_readings() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("proc")).unwrap();
    let scan = Scan::open(&Root::at(dir.path())).unwrap();
    for interrupts in 0..64 {
        let text = format!("intr{}\nxprocesses 1\nprocesses 23456\nmore 1\n", " 0".repeat(interrupts));
        fs::write(dir.path().join("proc/stat"), text).unwrap();
        assert_eq!(scan.forks(&mut [0; 32]), Ok(23456), "{interrupts}");
    }
    for wrong in ["", "processes 1\n", "a\nprocesses -1\n", "a\nprocesses 1"] {
        fs::write(dir.path().join("proc/stat"), wrong).unwrap();
        assert_eq!(scan.forks(&mut [0; 32]), Err(Failure::Malformed), "{wrong:?}");
    }
}

#[test]
fn small_files_are_taken_whole_or_not() {
    assert_eq!(adjustment(b"-1000\n"), Some(-1000));
    for wrong in [&b"-1001\n"[..], b"1001\n", b"1", b"\n", b"+1\n", b"1\n\n"] {
        assert_eq!(adjustment(wrong), None, "{wrong:?}");
    }
    assert_eq!((size(b"max\n"), size(b"12\n"), size(b"12")), (Some(u64::MAX), Some(12), None));
    assert_eq!(keyed(b"anon_thp 1\nanon 22\nfile 3\n", b"anon"), Some(22));
    assert_eq!(keyed(b"anon 22", b"anon"), None);
    assert_eq!(last_pid(b"0.00 0.01 0.05 1/95 4711\n"), Some(4711));
    assert_eq!(last_pid(b"0.00 -1\n"), None);
    let pids: Vec<_> = ids(b"1\n0\nx\n22\n3").map(|id| id.map(Pid::get)).collect();
    assert_eq!(pids, [Some(1), None, None, Some(22), None]);
}

proptest! {
    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        crate::fuzzing::scan(&bytes);
    }
}
