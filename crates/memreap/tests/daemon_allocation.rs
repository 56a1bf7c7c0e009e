// SPDX-License-Identifier: GPL-2.0-only
//! What the daemon reports when it kills allocates nothing: it would have to wait for the memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use arrayvec::{ArrayString, ArrayVec};
use linux::Pid;
use linux::process::Comm;
use memreap::choice::Parent;
use memreap::config;
use memreap::daemon::decide::reason::{Before, Ending, Reason};
use memreap::daemon::report::history::{self, History};
use memreap::daemon::report::hook::Hook;
use memreap::daemon::report::journal::{EntryKind, Journal, Priority};
use memreap::daemon::report::metrics::{Metrics, Server};
use memreap::daemon::report::record::KillRecord;
use memreap::daemon::report::service::Service;
use memreap::daemon::report::warn::Warner;
use memreap::daemon::report::warning::Warning;
use memreap::kill::Method;

/// Counts what each thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all is done by the system's allocator; counting in a thread-local without a destructor allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(what: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    what();
    ALLOCATIONS.get() - before
}

fn kill() -> KillRecord {
    let mut cgroup = ArrayVec::new();
    cgroup.try_extend_from_slice(b"/user.slice/\x1b").unwrap();
    KillRecord {
        unix_ms: 1_700_000_000_123,
        pid: Pid::new(4711).unwrap(),
        comm: Comm::new(b"a\nb").unwrap(),
        uid: 1000,
        cgroup,
        parent: Some(Parent { pid: Pid::new(17).unwrap(), comm: Comm::new(b"a\nb").unwrap() }),
        command_line: b"hog".iter().copied().collect(),
        processes: 2,
        sharers: 0,
        whole: false,
        expected: 1 << 30,
        freed: Some(1 << 30),
        exact: true,
        reason: Reason::Stall,
        because: ArrayString::from("80 MiB of 2.0 GiB were available").unwrap(),
        rule: ArrayString::from("rule").unwrap(),
        before: Before::Passed,
        method: Method::Mrelease,
        ending: Ending::Back,
        available: [80 << 20, 1300 << 20],
        took: Duration::from_millis(41),
        choice_took: Duration::from_millis(3),
    }
}

#[test]
fn telling_of_a_kill_allocates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    let mut warner = Warner::start().unwrap();
    let mut hook = Hook::start(&config::Kill::default()).unwrap();
    let service = Service::from_env().unwrap();
    let mut journal = Journal::open().unwrap();
    let mut history = History::open(&path).unwrap();
    let socket = dir.path().join("metrics");
    let mut server = Server::listen(socket.to_str().unwrap()).unwrap();
    let mut client = UnixStream::connect(&socket).unwrap();
    client.write_all(b"GET /\n\n").unwrap();
    let mut metrics = Metrics::default();
    let kill = kill();
    assert!(allocations(|| drop(Box::new(1))) > 0, "the count counts");

    let count = allocations(|| {
        for ending in [Ending::Back, Ending::Gone, Ending::Late, Ending::DryRun, Ending::Refused(1)] {
            let kill = KillRecord { ending, ..kill.clone() };
            journal.killed(&kill);
            history.append(&kill).unwrap();
            metrics.count(&kill);
            warner.killed(&kill);
        }
        let warning = Warning {
            pid: kill.pid,
            comm: kill.comm,
            uid: kill.uid,
            cgroup: &kill.cgroup,
            bytes: kill.expected,
            because: &kill.because,
        };
        journal.warned(&warning);
        warner.warn(&warning);
        let ticket = hook.ask(&kill, Duration::from_secs(20)).unwrap();
        while hook.answer(ticket).is_none() {}
        journal.log(EntryKind::Trouble, Priority::Error, format_args!("{} {:?}", 1.5, kill.took));
        service.watchdog().unwrap();
        service.status(format_args!("calm, {} available", 1)).unwrap();
        for _ in 0..4 {
            server.serve(&metrics);
        }
    });
    assert_eq!(count, 0);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("memreap_kills_late_total 1"));
    assert_eq!(history::read(&path, 9).unwrap().len(), 5);
}
