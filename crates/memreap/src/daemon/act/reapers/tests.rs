// SPDX-License-Identifier: GPL-2.0-only

use std::process::{Child, Command};

use linux::Pid;
use rustix::process::getpriority_process;
use rustix::thread::CapabilitySet;

use super::*;
use crate::kill::Fate;

fn sleeper() -> (Child, Victim) {
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    let pidfd = PidFd::open(Pid::new(child.id().cast_signed()).unwrap()).unwrap();
    (child, Victim { pidfd, bytes: MIN_THREADED_VICTIM_BYTES, vm_size: 0, core_dumping: false })
}

#[test]
fn victims_die_one_after_the_other_and_slots_are_used_again() {
    type Kill = fn(&Reapers, Victim) -> Result<Slot, PidFd>;
    const KILLS: [Kill; 2] = [Reapers::kill, Reapers::kill_additional];
    for (method, kill) in [Method::best(), Method::Plain].into_iter().flat_map(|m| KILLS.map(|k| (m, k))) {
        let reapers = Reapers::new(method, false).unwrap();
        for _ in 0..2 * MAX_VICTIMS {
            let (mut child, victim) = sleeper();
            let slot = kill(&reapers, victim).unwrap();
            child.wait().unwrap();
            let outcome = reapers.outcome(&slot).unwrap();
            assert_eq!(outcome.fate, Fate::Killed, "{method:?}");
            assert!(outcome.back.unwrap() <= Duration::from_secs(10));
        }
    }
}

#[test]
fn a_later_victim_is_not_taken_for_an_earlier_one() {
    let reapers = Reapers::new(Method::Plain, false).unwrap();
    let (mut child, victim) = sleeper();
    let first = reapers.kill(victim).unwrap();
    child.wait().unwrap();
    let (mut child, victim) = sleeper();
    child.kill().unwrap();
    child.wait().unwrap();
    let second = reapers.kill_additional(victim).unwrap();
    assert_eq!(reapers.outcome(&first).unwrap().fate, Fate::Killed);
    assert_eq!(reapers.outcome(&second).unwrap().fate, Fate::Gone);
}

fn wait_until(done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(1));
    }
}

/// Calls `test` with the ID of a thread while that is busy with a victim.
fn with_busy_thread<T>(test: impl FnOnce(&Reapers, i32) -> T) -> (Reapers, T) {
    let reapers = Reapers::new(Method::Mrelease, false).unwrap();
    let (mut child, victim) = sleeper();
    let slot = reapers.shared.take_slot(victim).unwrap();
    // The thread waits for this, and is busy meanwhile.
    let locked = reapers.shared.slots[slot].0.write().unwrap();
    reapers.shared.post(Order::Kill(slot));
    let tid = || reapers.shared.busy_tids[0].load(Ordering::Acquire);
    wait_until(|| tid() != 0);
    let result = test(&reapers, tid());
    drop(locked);
    child.wait().unwrap();
    (reapers, result)
}

#[test]
fn a_thread_is_real_time_again_before_the_next_kill() {
    let policy = |tid| sched::policy(tid).unwrap();
    // They live on until the test is over.
    let (_reapers, (tid, before)) = with_busy_thread(|reapers, tid| {
        let before = policy(tid);
        reapers.lower_priority(10);
        assert_eq!(policy(tid), libc::SCHED_OTHER);
        (tid, before)
    });
    wait_until(|| policy(tid) == before);
}

#[test]
fn a_thread_that_cannot_be_real_time_is_not_made_nice() {
    let test = || {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::SYS_NICE);
        rustix::thread::set_capabilities(None, sets).unwrap();
        if raise_priority().is_ok() {
            testing::skipped("RLIMIT_RTPRIO permits real time");
            return;
        }
        with_busy_thread(|reapers, tid| {
            let nice = || getpriority_process(rustix::process::Pid::from_raw(tid)).unwrap();
            let before = nice();
            reapers.lower_priority(10);
            assert_eq!(nice(), before);
        });
    };
    // In a thread that ends: the capability does not come back to it.
    thread::spawn(test).join().unwrap();
}

#[test]
fn a_victim_that_is_gone_is_told_so() {
    let reapers = Reapers::new(Method::best(), true).unwrap();
    let (mut child, victim) = sleeper();
    child.kill().unwrap();
    child.wait().unwrap();
    let slot = reapers.kill(victim).unwrap();
    assert_eq!(reapers.outcome(&slot).unwrap().fate, Fate::Gone);
    slot.if_killed(|_| panic!("the signal was refused"));
}
