// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use linux::Pid;

const NS: Duration = Duration::from_nanos(1);

/// The victim has freed its memory before a thread of ours did.
fn too_late() -> TrackedVictim {
    let victim = tracked();
    record_first(&victim.sigkill_ns, 100);
    record_first(&victim.exited_ns, 130);
    victim.mrelease_too_late.store(true, Ordering::Release);
    victim
}

fn tracked() -> TrackedVictim {
    let pidfd = PidFd::open(Pid::own()).unwrap();
    TrackedVictim::new(Victim { pidfd, bytes: 0, vm_size: 0, core_dumping: false }, 0, false)
}

#[test]
fn the_first_of_two_times_counts() {
    let victim = tracked();
    record_first(&victim.sigkill_ns, 500);
    record_first(&victim.sigkill_ns, 300);
    record_first(&victim.sigkill_ns, 900);
    assert_eq!(recorded(&victim.sigkill_ns), Some(300));
    assert_eq!(recorded(&victim.exited_ns), None);
}

#[test]
fn times_count_from_the_kill_and_memory_is_back_at_the_first_of_two_ends() {
    let victim = tracked();
    record_first(&victim.first_signal_ns, 10);
    record_first(&victim.sigkill_ns, 100);
    record_first(&victim.freed_ns, 140);
    record_first(&victim.exited_ns, 160);
    let outcome = victim.outcome(10);
    assert_eq!((outcome.fate, outcome.method), (Fate::Killed, Method::Mrelease));
    assert_eq!((outcome.started, outcome.back, outcome.exited), (90 * NS, Some(40 * NS), Some(60 * NS)));
}

#[test]
fn memory_that_the_process_freed_before_a_thread_did_came_by_plain() {
    let victim = too_late();
    let outcome = victim.outcome(100);
    assert_eq!((outcome.method, outcome.back, outcome.race_lost), (Method::Plain, Some(30 * NS), true));
    // Of two threads one was in time.
    record_first(&victim.freed_ns, 120);
    let outcome = victim.outcome(100);
    assert_eq!((outcome.method, outcome.back, outcome.race_lost), (Method::Mrelease, Some(20 * NS), false));
}

#[test]
fn what_the_kernel_helps_with_is_never_late() {
    let victim = too_late();
    victim.expedited.store(true, Ordering::Release);
    let outcome = victim.outcome(100);
    assert_eq!((outcome.method, outcome.race_lost), (Method::Expedite, false));
}

#[test]
fn fates() {
    let fate = |set: &dyn Fn(&TrackedVictim)| {
        let victim = tracked();
        set(&victim);
        victim.outcome(0).fate
    };
    let at = |time: &AtomicU64| record_first(time, 7);
    assert_eq!(fate(&|_| {}), Fate::Spared);
    assert_eq!(fate(&|s| at(&s.first_signal_ns)), Fate::Spared);
    assert_eq!(fate(&|s| at(&s.exited_ns)), Fate::Gone);
    assert_eq!(fate(&|s| s.refused_errno.store(libc::ESRCH, Ordering::Release)), Fate::Gone);
    assert_eq!(fate(&|s| s.refused_errno.store(libc::EPERM, Ordering::Release)), Fate::Refused(libc::EPERM));
    assert_eq!(fate(&|s| (at(&s.first_signal_ns), at(&s.exited_ns)).0), Fate::Exited);
    assert_eq!(fate(&|s| at(&s.sigkill_ns)), Fate::Dying);
    let dead = |s: &TrackedVictim| (at(&s.sigkill_ns), at(&s.exited_ns)).0;
    assert_eq!(fate(&dead), Fate::Killed);
    // A second signal that found no process does not undo a kill.
    assert_eq!(fate(&|s| (dead(s), s.refused_errno.store(libc::ESRCH, Ordering::Release)).0), Fate::Killed);
    let shared = |s: &TrackedVictim| s.memory_is_shared.store(true, Ordering::Release);
    assert_eq!(fate(&|s| (dead(s), shared(s)).0), Fate::Shared);
    assert_eq!(fate(&|s| (dead(s), shared(s), at(&s.freed_ns)).0), Fate::Killed, "the sharer died in time");
}
