// SPDX-License-Identifier: GPL-2.0-only
//! A process ID that is used again never makes a stranger die.
//!
//! The tests run in a PID namespace of their own, where they can have a certain ID used again at
//! once (ns_last_pid), and where there are no processes but theirs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod common;

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use common::{in_a_namespace, kill_all, memreap, unique, wait_until};
use fastrand::Rng;
use linux::{Pid, Root};
use memreap::kill::target::{Rules, Selector, Target, select};
use memreap::kill::{Armed, Fate, KernelFeatures, Method, Victim, raise_priority};

/// The ID that is used again and again: far above what else there is.
const CONTESTED: i32 = 20_000;
const RULES: Rules = Rules { all: true, force: false };
/// Longer than is needed.
const LONG: Duration = Duration::from_secs(30);
/// How long a victim may take to die.
const DEATH: Duration = Duration::from_secs(5);
/// How long the hunt goes on.
const HUNT: Duration = Duration::from_secs(4);
/// On a busy machine it takes longer until so many were killed and so many strangers were there.
const ENOUGH: (u32, u32) = (20, 100);
const TOO_LONG: Duration = Duration::from_secs(60);
/// What a process of ours exits with when it is not killed.
const NATURAL: i32 = 7;

#[test]
fn a_process_that_was_chosen_and_replaced_is_not_hit() {
    in_a_namespace("replaced", "true");
}

#[test]
fn no_stranger_dies_while_ids_are_recycled() {
    in_a_namespace("hunted", "true");
}

/// A child with a certain ID that exits by itself after a while.
struct Child(i32);

impl Child {
    /// `None` when another process got the ID.
    fn new(pid: i32, name: &CString, life: Duration) -> Option<Self> {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let life = libc::timespec { tv_sec: life.as_secs().cast_signed(), tv_nsec: life.subsec_nanos().into() };
        // SAFETY: the child only makes system calls and never returns.
        let got = unsafe {
            match libc::fork() {
                0 => {
                    libc::prctl(libc::PR_SET_NAME, name.as_ptr());
                    libc::nanosleep(&life, std::ptr::null_mut());
                    libc::_exit(NATURAL)
                }
                got => got,
            }
        };
        assert!(got > 0, "fork: {}", std::io::Error::last_os_error());
        let child = Self(got);
        if got != pid {
            child.end();
            return None;
        }
        Some(child)
    }

    /// Asks it to end, and returns the signal it died of.
    fn stop(self) -> Option<i32> {
        // SAFETY: no pointers; our own child has this ID until we wait.
        unsafe { libc::kill(self.0, libc::SIGTERM) };
        self.end()
    }

    /// Waits, and returns the signal it died of, if any.
    fn end(self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: `status` is where the status goes.
        assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
        if libc::WIFSIGNALED(status) {
            return Some(libc::WTERMSIG(status));
        }
        assert_eq!(libc::WEXITSTATUS(status), NATURAL);
        None
    }
}

fn victims(targets: Vec<Target>) -> Vec<Victim> {
    let victim = |t: Target| Victim {
        pidfd: t.pidfd,
        bytes: t.facts.bytes,
        vm_size: t.facts.vm_size,
        core_dumping: t.facts.core_dumping,
    };
    targets.into_iter().map(victim).collect()
}

/// On the host this would take IDs that may be others'.
#[track_caller]
fn inside() -> bool {
    let inside = Pid::own().get() == 1;
    if !inside {
        testing::skipped("only for a PID namespace of its own");
    }
    inside
}

#[test]
#[ignore = "run in a PID namespace by another test"]
fn replaced() {
    if !inside() {
        return;
    }
    for method in [Method::Plain, Method::Mrelease, Method::Expedite] {
        if !method.supported() {
            continue;
        }
        let name = CString::new(unique()).unwrap();
        let game = Child::new(CONTESTED, &name, LONG).expect("no other process is here");
        let by_pid = Selector::Pid(Pid::new(CONTESTED).unwrap());
        wait_until("it has its name", || {
            fs::read(format!("/proc/{CONTESTED}/comm")).unwrap().trim_ascii_end() == name.as_bytes()
        });
        let by_name = Selector::Name(name.to_str().unwrap().into());
        let chosen = |selector| select(&Root::system(), &[selector], RULES).targets;
        let (first, second) = (chosen(by_pid), chosen(by_name));
        assert_eq!((first.len(), second.len()), (1, 1));
        // One is armed while its victim lives, the other one when it is a stranger already.
        let armed = Armed::new(victims(first), method, KernelFeatures::default());
        assert_eq!(game.stop(), Some(libc::SIGTERM));
        let stranger = Child::new(CONTESTED, &name, LONG).expect("the ID is free again");
        let mut outcomes = kill_all(armed, DEATH);
        outcomes.extend(kill_all(Armed::new(victims(second), method, KernelFeatures::default()), DEATH));
        assert!(outcomes.iter().all(|outcome| outcome.fate == Fate::Gone), "{outcomes:?}");
        assert_eq!(stranger.stop(), Some(libc::SIGTERM), "{method:?}: the stranger was hit");
    }
}

#[test]
#[ignore = "run in a PID namespace by another test"]
fn hunted() {
    if !inside() {
        return;
    }
    let name = unique();
    let game = CString::new(name.clone()).unwrap();
    let stranger = CString::new(unique()).unwrap();
    let over = AtomicBool::new(false);
    let shots = AtomicU32::new(0);
    let (mut killed, mut strangers) = (0, 0);
    thread::scope(|scope| {
        // The library in this process, with a pause in which what was chosen may be replaced.
        for seed in 0..2 {
            let selector = [Selector::Name(name.clone().into())];
            let (over, shots) = (&over, &shots);
            scope.spawn(move || {
                let mut random = Rng::with_seed(seed);
                while !over.load(Ordering::Relaxed) {
                    let targets = select(&Root::system(), &selector, RULES).targets;
                    if targets.is_empty() {
                        thread::sleep(Duration::from_micros(random.u64(..200)));
                        continue;
                    }
                    thread::sleep(Duration::from_micros(random.u64(..2000)));
                    let method = if random.u8(..4) == 0 { Method::best() } else { Method::Plain };
                    shots.fetch_add(1, Ordering::Relaxed);
                    kill_all(Armed::new(victims(targets), method, KernelFeatures::default()), DEATH);
                }
            });
        }
        // The command as it is.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let output = memreap().args(["kill", "--all", &name]).output().unwrap();
                assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
            }
        });
        // As the threads that kill do: they must not keep this one from having IDs recycled.
        let _ = raise_priority();
        let mut random = Rng::with_seed(42);
        let began = Instant::now();
        while began.elapsed() < HUNT || (killed < ENOUGH.0 || strangers < ENOUGH.1) {
            if began.elapsed() >= TOO_LONG {
                break;
            }
            let is_game = random.bool();
            let life = Duration::from_micros(random.u64(..3000));
            let Some(child) = Child::new(CONTESTED, if is_game { &game } else { &stranger }, life) else {
                continue;
            };
            let died_of = child.end();
            if is_game {
                killed += u32::from(died_of.is_some());
            } else {
                strangers += 1;
                if died_of.is_some() {
                    over.store(true, Ordering::Relaxed);
                    panic!("stranger {strangers} died of signal {died_of:?}");
                }
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    eprintln!("{killed} killed of those meant, {strangers} strangers unharmed, {shots:?} shots");
    assert!(killed >= ENOUGH.0 && strangers >= ENOUGH.1, "not much of a hunt");
}
