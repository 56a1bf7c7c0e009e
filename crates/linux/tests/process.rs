// SPDX-License-Identifier: GPL-2.0-only
//! Real processes, and trees that pretend to be some.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use common::{Child, as_nobody, drop_rights};
use linux::process::{State, pids};
use linux::{Error, Pid, Process, Root};

fn open(pid: Pid) -> linux::Result<Process> {
    Process::open(&Root::system(), pid)
}

#[test]
fn all_processes_are_listed_in_order_and_threads_are_not() {
    let child = Child::sleeping();
    let listed: Vec<_> = pids(&Root::system()).unwrap().collect();
    assert!(listed.contains(&child.pid) && listed.contains(&Pid::own()));
    assert!(listed.is_sorted());
    let (tid, done) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    let thread = std::thread::spawn(move || {
        tid.0.send(Pid::from(rustix::thread::gettid())).unwrap();
        let _ = done.1.recv();
    });
    let tid = tid.1.recv().unwrap();
    assert!(!pids(&Root::system()).unwrap().any(|pid| pid == tid));
    // It can be opened all the same, and tells whose it is.
    assert_eq!(open(tid).unwrap().status().unwrap().tgid, Pid::own());
    drop(done.0);
    thread.join().unwrap();
}

#[test]
fn a_name_is_the_same_everywhere() {
    for name in
        [&b"plain"[..], b"a) R 1 2 (b", b")", b"(", b"", b" ", b"a\nb\\n\\", b"\xff\xfe\x1b[2J", b"fifteen bytes!!"]
    {
        let child = Child::named(name);
        let process = child.process();
        let (stat, status) = (process.stat().unwrap(), process.status().unwrap());
        assert_eq!(stat.comm.as_bytes(), name);
        assert_eq!(status.comm.as_bytes(), name);
        assert_eq!(process.comm().unwrap().as_bytes(), name);
        assert_eq!(status.tgid, child.pid);
        assert_eq!((stat.ppid, status.ppid), (Some(Pid::own()), Some(Pid::own())));
        assert!(!stat.is_kernel_thread());
        assert_eq!(process.exe().unwrap().unwrap(), std::env::current_exe().unwrap());
    }
}

#[test]
fn private_memory_is_seen_by_all_counters() {
    const SIZE: u64 = 128 << 20;
    let child = Child::with_memory(SIZE as usize);
    let process = child.process();
    // A fork has what the test itself has, too.
    let near = |what: &str, bytes: u64| {
        assert!((SIZE - (1 << 20)..SIZE + (64 << 20)).contains(&bytes), "{what}: {bytes}");
    };
    let status = process.status().unwrap();
    assert!(status.has_memory);
    near("RssAnon + VmSwap", status.rss_anon + status.swap);
    near("statm", process.statm().unwrap().resident + status.swap);
    let rollup = process.smaps_rollup().unwrap();
    near("what comes back", rollup.comes_back());
    assert!(rollup.anonymous >= rollup.private_dirty && rollup.rss >= rollup.pss_anon);
}

#[test]
fn a_zombie_is_there_and_has_no_memory() {
    let child = Child::zombie();
    let process = child.process();
    assert_eq!(process.stat().unwrap().state, State::Zombie);
    let status = process.status().unwrap();
    assert_eq!((status.state, status.has_memory, status.rss_anon), (State::Zombie, false, 0));
    assert_eq!(process.statm().unwrap().resident, 0);
    assert_eq!(process.cmdline().unwrap(), [""; 0]);
    assert_eq!(process.exe().unwrap(), None);
    let error = process.smaps_rollup().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESRCH), "{error:?}");
    assert!(!error.is_gone());
}

#[test]
fn a_kernel_thread_has_no_memory() {
    let Some(process) = Pid::new(2).and_then(|pid| open(pid).ok()) else {
        testing::skipped("kernel threads are not visible here");
        return;
    };
    let stat = process.stat().unwrap();
    if stat.comm.as_bytes() != b"kthreadd" {
        testing::skipped(format_args!("process 2 is {}", stat.comm));
        return;
    }
    assert!(stat.is_kernel_thread());
    assert_eq!(stat.ppid, None);
    assert!(!process.status().unwrap().has_memory);
    assert_eq!(process.cmdline().unwrap(), [""; 0]);
    if !rustix::process::geteuid().is_root() {
        testing::skipped("only root may read the rest of a kernel thread");
        return;
    }
    assert_eq!(process.exe().unwrap(), None);
    assert_eq!(process.smaps_rollup().unwrap_err().raw_os_error(), Some(libc::ESRCH));
}

/// Checks that everything that can be asked of a process says that it is gone.
fn assert_gone(process: &Process) {
    let results = [
        process.stat().err(),
        process.status().err(),
        process.statm().err(),
        process.smaps_rollup().err(),
        process.cmdline().err(),
        process.comm().err(),
        process.cgroup().err(),
        process.exe().err(),
    ];
    for (i, error) in results.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("question {i} was answered"));
        assert!(error.is_gone() && !error.is_denied(), "question {i}: {error:?}");
    }
}

#[test]
fn a_reaped_process_is_gone() {
    let child = Child::sleeping();
    let (pid, process) = (child.pid, child.process());
    child.reap();
    assert_gone(&process);
    assert!(open(pid).is_err_and(|e| e.is_gone()));
}

#[test]
fn a_reused_id_is_not_the_process_it_was() {
    for _ in 0..5 {
        let child = Child::sleeping();
        let (pid, process) = (child.pid, child.process());
        child.reap();
        let Some(stranger) = Child::with_pid(pid) else {
            continue;
        };
        assert_gone(&process);
        assert_eq!(stranger.process().status().unwrap().tgid, pid);
        return;
    }
    testing::skipped("cannot choose the ID of a process here");
}

#[test]
fn what_is_forbidden_is_not_taken_for_gone() {
    let child = Child::sleeping();
    as_nobody(|| {
        let process = child.process();
        assert_eq!(process.stat().unwrap().ppid, Some(Pid::own()));
        for error in [process.smaps_rollup().unwrap_err(), process.exe().unwrap_err()] {
            assert!(error.is_denied() && !error.is_gone(), "{error:?}");
        }
    });
}

#[test]
fn hidden_processes() {
    if !rustix::process::geteuid().is_root() {
        testing::skipped("only root can mount another /proc");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let root = Root::at(dir.path());
    fs::create_dir(root.proc()).unwrap();
    let child = Child::sleeping();
    for hidepid in [c"hidepid=1", c"hidepid=2", c"hidepid=4"] {
        let root = &root;
        let pid = child.pid;
        std::thread::scope(|scope| {
            let mounted = scope.spawn(move || {
                // In a mount namespace of this thread.
                let private = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
                let no_flags = rustix::mount::MountFlags::empty();
                // SAFETY: takes a number; no other thread's namespace is changed.
                if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0
                    || rustix::mount::mount_change("/", private).is_err()
                    || rustix::mount::mount("proc", root.proc(), "proc", no_flags, hidepid).is_err()
                {
                    testing::skipped("cannot mount another /proc here");
                    return;
                }
                drop_rights();
                let process = Process::open(root, pid);
                let listed = pids(root).unwrap().any(|p| p == pid);
                if hidepid == c"hidepid=1" {
                    assert!(listed);
                    let error = process.unwrap().stat().unwrap_err();
                    assert!(error.is_denied() && !error.is_gone(), "{error:?}");
                } else {
                    assert!(!listed);
                    assert!(process.and_then(|p| p.stat()).unwrap_err().is_gone());
                }
            });
            assert!(mounted.join().is_ok(), "failed with {hidepid:?}");
        });
    }
}

/// A tree with one process whose /proc/7/stat is there.
fn tree() -> (tempfile::TempDir, Root, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::at(dir.path());
    let process = root.proc().join("7");
    fs::create_dir_all(&process).unwrap();
    fs::write(process.join("stat"), "").unwrap();
    (dir, root, process)
}

fn seven(root: &Root) -> Process {
    Process::open(root, Pid::new(7).unwrap()).unwrap()
}

#[test]
fn only_numbers_are_processes() {
    let (_dir, root, _) = tree();
    for name in ["8", "0", "09", "-1", "+3", "self", "4294967296", "1x", "sys"] {
        fs::create_dir(root.proc().join(name)).unwrap();
    }
    let mut found: Vec<_> = pids(&root).unwrap().map(Pid::get).collect();
    found.sort_unstable();
    assert_eq!(found, [7, 8]);
    let error = pids(&Root::at("/nonexistent")).err().unwrap();
    assert!(!error.is_gone());
}

#[test]
fn a_file_the_kernel_does_not_have_is_not_a_process_that_is_gone() {
    let (_dir, root, path) = tree();
    let process = seven(&root);
    let error = process.smaps_rollup().unwrap_err();
    assert!(error.is_unsupported() && !error.is_gone(), "{error:?}");
    assert_eq!(error.to_string(), path.join("smaps_rollup").display().to_string());
    fs::remove_file(path.join("stat")).unwrap();
    assert!(process.smaps_rollup().unwrap_err().is_gone());
}

#[test]
fn errors_name_the_file() {
    let (_dir, root, path) = tree();
    fs::write(path.join("stat"), "7 (a) S 1\n").unwrap();
    let process = seven(&root);
    let error = process.stat().unwrap_err().to_string();
    assert_eq!(error, format!("{}:1: fields are missing: \"7 (a) S 1\"", path.join("stat").display()));
}

#[test]
fn a_command_line_is_split_and_bounded() {
    let (_dir, root, path) = tree();
    let process = seven(&root);
    for (text, args) in [
        (&b""[..], &[][..]),
        (b"a\0", &["a"][..]),
        (b"a\0\0b c\0", &["a", "", "b c"]),
        (b"\0", &[""]),
        (b"postgres: writer", &["postgres: writer"]),
        (b"a\0b", &["a", "b"]),
    ] {
        fs::write(path.join("cmdline"), text).unwrap();
        assert_eq!(process.cmdline().unwrap(), args, "{text:?}");
    }
    fs::write(path.join("cmdline"), vec![b'x'; 1 << 20]).unwrap();
    let args = process.cmdline().unwrap();
    assert_eq!((args.len(), args[0].len()), (1, 64 << 10));
}

#[test]
fn a_file_without_end_is_an_error() {
    let (_dir, root, path) = tree();
    let huge = fs::File::create(path.join("status")).unwrap();
    // No memory or disk is used for it.
    huge.set_len(1 << 40).unwrap();
    let error = seven(&root).status().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{error:?}");
    let huge = fs::File::create(root.proc().join("meminfo")).unwrap();
    huge.set_len(1 << 40).unwrap();
    match linux::meminfo::MemInfo::read(&root).unwrap_err() {
        Error::Io { source, .. } => assert_eq!(source.kind(), std::io::ErrorKind::FileTooLarge),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pipe_in_place_of_a_file_does_not_block() {
    let (_dir, root, path) = tree();
    for file in [path.join("comm"), root.proc().join("meminfo")] {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }
    // In a thread of its own, so that the test ends even if the read blocks.
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        tell.send(seven(&root).comm().is_err() && linux::meminfo::MemInfo::read(&root).is_err())
    });
    assert_eq!(told.recv_timeout(common::PATIENCE), Ok(true));
}
