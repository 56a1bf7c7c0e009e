// SPDX-License-Identifier: GPL-2.0-only
//! Signals, waiting and getting memory back, with real processes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod common;

use std::time::{Duration, Instant};

use common::{Child, PATIENCE, as_nobody};
use linux::pidfd::{Release, Signal, expedite_supported, mrelease_supported, supported};
use linux::{Error, Pid, PidFd};

#[test]
fn a_signal_kills_and_the_handle_tells() {
    let child = Child::sleeping();
    let fd = child.pidfd();
    fd.check_permission().unwrap();
    assert!(fd.is_alive().unwrap() && !fd.has_exited().unwrap());
    let start = Instant::now();
    assert!(!fd.wait_exit(Duration::from_millis(30)).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(30));
    fd.send_signal(Signal::KILL).unwrap();
    assert!(fd.wait_exit(Duration::MAX).unwrap());
    assert!(fd.has_exited().unwrap() && !fd.is_alive().unwrap());
    // A zombie still has its ID.
    assert_eq!((fd.opened_as(), fd.pid().unwrap()), (child.pid, Some(child.pid)));
    child.reap();
    assert_eq!(fd.pid().unwrap(), None);
    let error = fd.send_signal(Signal::KILL).unwrap_err();
    assert!(error.is_gone(), "{error:?}");
    assert!(fd.check_permission().unwrap_err().is_gone());
    assert!(fd.has_exited().unwrap());
}

#[test]
fn a_handle_on_a_reused_id_does_not_reach_the_stranger() {
    for _ in 0..5 {
        let child = Child::sleeping();
        let (pid, fd) = (child.pid, child.pidfd());
        child.reap();
        let Some(stranger) = Child::with_pid(pid) else {
            continue;
        };
        assert!(fd.send_signal(Signal::KILL).unwrap_err().is_gone());
        assert_eq!(fd.release_memory().unwrap(), Release::Gone);
        assert_eq!(fd.pid().unwrap(), None);
        assert!(!stranger.pidfd().wait_exit(Duration::from_millis(50)).unwrap());
        return;
    }
    testing::skipped("cannot choose the ID of a process here");
}

#[test]
fn no_process_no_handle() {
    let child = Child::sleeping();
    let pid = child.pid;
    child.reap();
    assert!(PidFd::open(pid).unwrap_err().is_gone());
    let thread = std::thread::spawn(|| PidFd::open(rustix::thread::gettid().into()).map(|fd| fd.opened_as()));
    let error = thread.join().unwrap().unwrap_err();
    assert!(matches!(error, Error::Call { call: "pidfd_open", .. }), "{error:?}");
}

#[test]
fn others_processes_may_not_be_signalled() {
    let child = Child::sleeping();
    as_nobody(|| {
        let fd = child.pidfd();
        for error in [fd.check_permission().unwrap_err(), fd.send_signal(Signal::KILL).unwrap_err()] {
            assert!(error.is_denied() && !error.is_gone(), "{error:?}");
        }
    });
    assert!(child.pidfd().is_alive().unwrap());
}

#[test]
fn an_expedited_kill_works_where_the_probe_says_so() {
    let child = Child::with_memory(8 << 20);
    let fd = child.pidfd();
    let sent = fd.kill_expedited();
    if expedite_supported() {
        sent.unwrap();
        assert!(fd.wait_exit(PATIENCE).unwrap());
    } else {
        assert_eq!(sent.unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert!(!fd.wait_exit(Duration::from_millis(30)).unwrap());
    }
}

#[test]
fn memory_is_released_only_by_the_dying() {
    assert!(supported());
    let child = Child::with_memory(32 << 20);
    let fd = child.pidfd();
    if !mrelease_supported() {
        assert!(fd.release_memory().is_err());
        return;
    }
    assert_eq!(fd.release_memory().unwrap(), Release::NotDying);
    assert!(child.process().status().unwrap().rss_anon >= 32 << 20);
    fd.send_signal(Signal::KILL).unwrap();
    // Which it is depends on who was first.
    let release = fd.release_memory().unwrap();
    assert!(matches!(release, Release::Done | Release::Gone | Release::Again), "{release:?}");
    assert!(fd.wait_exit(PATIENCE).unwrap());
    assert_eq!(fd.release_memory().unwrap(), Release::Gone);
}

#[test]
fn memory_of_a_stopped_victim_is_released_by_the_caller() {
    if !mrelease_supported() {
        testing::skipped("no process_mrelease");
        return;
    }
    // A victim that is held at its exit by a tracer stays dying for as long as the test likes.
    let child = Child::with_memory(32 << 20);
    let fd = child.pidfd();
    // SAFETY: takes numbers only.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, child.pid.get(), 0, libc::PTRACE_O_TRACEEXIT) };
    if seized != 0 {
        testing::skipped(format_args!("cannot trace here: {}", std::io::Error::last_os_error()));
        return;
    }
    fd.send_signal(Signal::KILL).unwrap();
    let mut status = 0;
    // SAFETY: `status` is there to be written to.
    let waited = unsafe { libc::waitpid(child.pid.get(), &raw mut status, libc::__WALL) };
    assert_eq!(waited, child.pid.get());
    assert!(libc::WIFSTOPPED(status) && status >> 16 == libc::PTRACE_EVENT_EXIT, "{status:#x}");

    assert!(child.process().status().unwrap().rss_anon >= 32 << 20);
    assert!(fd.is_alive().unwrap());
    assert_eq!(fd.release_memory().unwrap(), Release::Done);
    let left = child.process().status().unwrap().rss_anon;
    assert!(left < 4 << 20, "{left} bytes are left");
    assert!(fd.is_alive().unwrap());

    // SAFETY: takes numbers only; the child is stopped.
    unsafe { libc::ptrace(libc::PTRACE_CONT, child.pid.get(), 0, 0) };
    assert!(fd.wait_exit(PATIENCE).unwrap());
}

#[test]
fn the_pid_is_that_of_the_caller() {
    let own = PidFd::open(Pid::own()).unwrap();
    assert_eq!(own.pid().unwrap(), Some(Pid::own()));
    assert!(own.is_alive().unwrap());
}
