//! Threads that wait for a victim all the daemon's life, so that none must be started when there is
//! no memory to start one with.

use std::io;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use linux::{Pid, PidFd};

use super::threads::{Policy, schedule};
use crate::kill::engine::{
    Epoch, Held, Method, Outcome, PAUSE, SIGNAL_ALL_WITHIN, SPIN_UP, STACK, Slot, WORTH, prefer_this_thread,
};

/// Victims that can be dying at the same time. More than one only when one does not die in time, or some of many
/// die together.
pub const VICTIMS: usize = 32;
/// Two on a victim, and two for the next one when those are stuck in the kernel.
const THREADS: usize = 4;
/// How often a thread looks whether the other one still works.
const STEP_IN: Duration = Duration::from_millis(1);
/// How long a thread tries to free the memory of one victim.
const PATIENCE: Duration = Duration::from_secs(30);

/// The standing threads and their victims.
pub struct Reapers {
    shared: Arc<Shared>,
    method: Method,
    spin: bool,
}

struct Shared {
    epoch: Epoch,
    slots: [RwLock<Option<Slot>>; VICTIMS],
    jobs: Mutex<ArrayVec<Job, { 2 * VICTIMS }>>,
    turn: Condvar,
    /// The threads that have a victim; 0 is none.
    busy: [AtomicI32; THREADS],
    spinning: AtomicUsize,
    /// The victim that a thread tries to free from before it is killed; [`VICTIMS`] is none.
    spun: AtomicUsize,
    /// Several threads can free one address space together (topic `reap`).
    together: bool,
    ready: AtomicUsize,
}

#[derive(Clone, Copy)]
enum Job {
    /// Try to free the victim's memory from before it is killed.
    Spin(usize),
    /// Kill it, then free its memory.
    Strike(usize),
}

impl Reapers {
    /// Starts the threads and lets each make its system call once in vain. With `together` several
    /// threads can free one address space at the same time (topic `reap`).
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn new(method: Method, together: bool) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: Epoch::now(),
            slots: Default::default(),
            jobs: Mutex::new(ArrayVec::new()),
            turn: Condvar::new(),
            busy: Default::default(),
            spinning: AtomicUsize::new(0),
            spun: AtomicUsize::new(VICTIMS),
            together,
            ready: AtomicUsize::new(0),
        });
        let threads = if method == Method::Mrelease { THREADS } else { 0 };
        for _ in 0..threads {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("reaper".into()).stack_size(STACK).spawn(move || shared.live())?;
        }
        while shared.ready.load(Ordering::Acquire) < threads {
            thread::sleep(PAUSE);
        }
        let spin = thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
        Ok(Self { shared, method, spin })
    }

    /// How memory is got back.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Kills a victim and begins to free its memory. Gives the number by which to ask for it, or the
    /// victim's handle back when all places are taken by victims that do not die.
    ///
    /// # Errors
    /// The handle; nothing was sent.
    pub fn strike(&self, victim: Held) -> Result<usize, PidFd> {
        let large = victim.bytes >= WORTH;
        let place = self.shared.take_place(victim)?;
        if self.method == Method::Mrelease && large {
            self.let_threads(place);
        }
        self.send(place);
        Ok(place)
    }

    /// The same for one more: it is killed at once, and its memory is freed when a thread has the time.
    ///
    /// # Errors
    /// As [`Self::strike`].
    pub fn strike_too(&self, victim: Held) -> Result<usize, PidFd> {
        let place = self.shared.take_place(victim)?;
        self.send(place);
        if self.method == Method::Mrelease {
            self.shared.post(Job::Strike(place));
        }
        Ok(place)
    }

    fn send(&self, place: usize) {
        self.shared.with(place, |slot| {
            if slot.waits_for_signal() {
                slot.send(self.shared.epoch, self.method);
            }
        });
    }

    fn let_threads(&self, place: usize) {
        let shared = &*self.shared;
        if self.spin {
            shared.spinning.store(0, Ordering::Release);
            shared.spun.store(place, Ordering::Release);
            shared.post(Job::Spin(place));
            let began = Instant::now();
            while shared.spinning.load(Ordering::Acquire) == 0 && began.elapsed() < SPIN_UP {
                thread::yield_now();
            }
        }
        shared.post(Job::Strike(place));
        let began = Instant::now();
        let waits = || shared.with(place, Slot::waits_for_signal).unwrap_or(false);
        while waits() && began.elapsed() < SIGNAL_ALL_WITHIN {
            thread::sleep(PAUSE);
        }
    }

    /// Takes real time away from the threads that free memory, once they are at it, and gives them this
    /// niceness: for a large victim that takes most of a second on a slow machine, and whoever happens to
    /// share the CPU would not run for so long. What they needed it for was to be in time.
    pub fn let_others_run(&self, niceness: i32) {
        for busy in &self.shared.busy {
            let tid = busy.load(Ordering::Acquire);
            if tid != 0 {
                // A thread of ours, which does not end.
                schedule(tid, Policy::Other, 0);
                // SAFETY: takes numbers. The kernel takes a thread here, whatever POSIX says.
                let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid.unsigned_abs(), niceness) };
            }
        }
    }

    /// How it goes with a victim.
    pub fn outcome(&self, place: usize) -> Option<Outcome> {
        self.shared.with(place, |slot| {
            slot.look(self.shared.epoch);
            slot.outcome(0)
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ArrayVec<Job, { 2 * VICTIMS }>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, place: usize, f: impl FnOnce(&Slot) -> T) -> Option<T> {
        let slot = self.slots.get(place)?.read().unwrap_or_else(PoisonError::into_inner);
        slot.as_ref().map(f)
    }

    /// Gives a victim a place.
    fn take_place(&self, victim: Held) -> Result<usize, PidFd> {
        let Some(place) = self.free_place() else { return Err(victim.pidfd) };
        match self.slots[place].try_write() {
            Ok(mut slot) => *slot = Some(Slot::new(victim, 0, false)),
            Err(_) => return Err(victim.pidfd),
        }
        Ok(place)
    }

    /// A place whose victim is gone, and which no thread looks at.
    fn free_place(&self) -> Option<usize> {
        (0..VICTIMS).find(|place| match self.slots[*place].try_write() {
            Ok(slot) => slot.as_ref().is_none_or(|s| s.look(self.epoch) || !s.is_waited_for()),
            Err(_) => false,
        })
    }

    fn post(&self, job: Job) {
        // When there is no room the threads are all stuck; the signal is sent without them.
        if self.lock().try_push(job).is_ok() {
            self.turn.notify_one();
        }
    }

    /// A thread's life.
    fn live(&self) {
        let _ = prefer_this_thread();
        let tid = rustix::thread::gettid();
        // In vain, so that the code is there when it is needed.
        let _ = PidFd::open(Pid::own()).and_then(|own| own.release_memory());
        self.ready.fetch_add(1, Ordering::AcqRel);
        loop {
            let mut jobs = self.lock();
            let job = loop {
                match jobs.pop_at(0) {
                    Some(job) => break job,
                    None => jobs = self.turn.wait(jobs).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(jobs);
            let _ = prefer_this_thread();
            let busy = self.busy.iter().find(|busy| {
                busy.compare_exchange(0, tid.as_raw_pid(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
            });
            let began = Instant::now();
            let abandoned = || began.elapsed() > PATIENCE;
            match job {
                Job::Spin(place) => {
                    let done = self.with(place, |slot| {
                        self.spinning.fetch_add(1, Ordering::AcqRel);
                        slot.free(self.epoch, || false, abandoned);
                    });
                    let _ = self.spun.compare_exchange(place, VICTIMS, Ordering::AcqRel, Ordering::Relaxed);
                    done
                }
                Job::Strike(place) => self.with(place, |slot| {
                    if slot.waits_for_signal() {
                        slot.send(self.epoch, Method::Plain);
                    }
                    // Two threads in one address space only fight, where the kernel does not let them
                    // work together: and on a machine with two CPUs they leave none for those who wait
                    // for the memory. So this one only steps in when the other has failed.
                    while !self.together && self.spun.load(Ordering::Acquire) == place && !abandoned() {
                        thread::sleep(STEP_IN);
                    }
                    slot.free(self.epoch, || false, abandoned);
                }),
            };
            if let Some(busy) = busy {
                busy.store(0, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::kill::engine::Fate;

    fn sleeper() -> (Child, Held) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = PidFd::open(Pid::new(child.id().cast_signed()).unwrap()).unwrap();
        (child, Held { pidfd, bytes: WORTH, vm_size: 0, core_dumping: false })
    }

    #[test]
    fn victims_die_one_after_the_other_and_places_are_used_again() {
        type Strike = fn(&Reapers, Held) -> Result<usize, PidFd>;
        const STRIKES: [Strike; 2] = [Reapers::strike, Reapers::strike_too];
        for (method, strike) in
            [Method::best(), Method::Plain].into_iter().flat_map(|m| STRIKES.map(|s| (m, s)))
        {
            let reapers = Reapers::new(method, false).unwrap();
            for _ in 0..2 * VICTIMS {
                let (mut child, held) = sleeper();
                let place = strike(&reapers, held).unwrap();
                child.wait().unwrap();
                let outcome = reapers.outcome(place).unwrap();
                assert_eq!(outcome.fate, Fate::Killed, "{method:?}");
                assert!(outcome.back.unwrap() <= Duration::from_secs(10));
            }
        }
    }

    #[test]
    fn a_victim_that_is_gone_is_told_so() {
        let reapers = Reapers::new(Method::best(), true).unwrap();
        let (mut child, held) = sleeper();
        child.kill().unwrap();
        child.wait().unwrap();
        let place = reapers.strike(held).unwrap();
        assert_eq!(reapers.outcome(place).unwrap().fate, Fate::Gone);
    }
}
