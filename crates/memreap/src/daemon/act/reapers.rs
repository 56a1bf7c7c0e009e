// SPDX-License-Identifier: GPL-2.0-only
//! Threads that wait for a victim during all of the daemon's life, so that none must be started when there is
//! no memory to start one with.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use linux::{PidFd, sched};

use crate::kill::engine::{MAX_SIGNAL_DELAY, MIN_THREADED_VICTIM_BYTES, SPINNER_START_TIMEOUT};
use crate::kill::prestarted::{STACK_BYTES, raise_priority, warm_up};
use crate::kill::victim::{Epoch, MIN_RETRY_PAUSE, TrackedVictim};
use crate::kill::{Method, Outcome, Victim};

/// Victims that can be dying at the same time: more than one only when one does not die in time, or when
/// several of a cgroup are killed together.
pub const MAX_VICTIMS: usize = 32;
/// Two on a victim, and two for the next one when those are stuck in the kernel.
const THREADS: usize = 4;
/// How often a thread checks whether another thread still frees the victim's memory.
const HANDOVER_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// How long a thread tries to free the memory of one victim.
const MAX_FREEING_TIME: Duration = Duration::from_secs(30);

/// The prestarted threads and their victims.
pub struct Reapers {
    shared: Arc<Shared>,
    method: Method,
    /// Whether a thread tries to free a victim's memory from before the kill: only with several CPUs.
    uses_spinner: bool,
}

/// The place of a victim, which gets no other one as long as the caller keeps this.
#[derive(Clone, Default)]
pub struct Slot(Arc<RwLock<Option<TrackedVictim>>>);

struct Shared {
    epoch: Epoch,
    slots: [Slot; MAX_VICTIMS],
    orders: Mutex<ArrayVec<Order, { 2 * MAX_VICTIMS }>>,
    order_posted: Condvar,
    /// The IDs of threads that work on a victim; 0 is none.
    busy_tids: [AtomicI32; THREADS],
    spinning: AtomicUsize,
    /// The slot of the victim that a thread tries to free from before it is killed; [`MAX_VICTIMS`] is none.
    spinner_slot: AtomicUsize,
    /// Several threads can free one address space at the same time (topic `reap`).
    parallel_reap: bool,
    /// A thread has got real time, and so can get it again.
    real_time: AtomicBool,
    ready: AtomicUsize,
}

/// What a thread does with the victim in a slot.
#[derive(Clone, Copy)]
enum Order {
    /// Tries to free its memory, beginning before it is killed.
    Spin(usize),
    /// Kills it, then frees its memory.
    Kill(usize),
}

impl Reapers {
    /// Starts the threads, and has each make its system call once without effect. With `parallel_reap`
    /// several threads can free one address space at the same time (topic `reap`).
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn new(method: Method, parallel_reap: bool) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: Epoch::now(),
            slots: Default::default(),
            orders: Mutex::new(ArrayVec::new()),
            order_posted: Condvar::new(),
            busy_tids: Default::default(),
            spinning: AtomicUsize::new(0),
            spinner_slot: AtomicUsize::new(MAX_VICTIMS),
            parallel_reap,
            real_time: AtomicBool::new(false),
            ready: AtomicUsize::new(0),
        });
        let threads = if method == Method::Mrelease { THREADS } else { 0 };
        for _ in 0..threads {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("reaper".into()).stack_size(STACK_BYTES).spawn(move || shared.work())?;
        }
        while shared.ready.load(Ordering::Acquire) < threads {
            thread::sleep(MIN_RETRY_PAUSE);
        }
        let uses_spinner = thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
        Ok(Self { shared, method, uses_spinner })
    }

    /// Returns how memory comes back.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Kills a victim and begins to free its memory. Returns the slot by which [`Self::outcome`] is asked for
    /// it.
    ///
    /// # Errors
    /// The victim's pidfd when all slots are taken by victims that do not die; nothing was sent then.
    pub fn kill(&self, victim: Victim) -> Result<Slot, PidFd> {
        let large = victim.bytes >= MIN_THREADED_VICTIM_BYTES;
        let slot = self.shared.take_slot(victim)?;
        if self.method == Method::Mrelease && large {
            self.hand_to_threads(slot);
        }
        self.send_sigkill(slot);
        Ok(self.shared.slots[slot].clone())
    }

    /// As [`Self::kill`], for one more victim of the same cgroup: it is sent its signal at once, and its
    /// memory is freed when a thread has time for it.
    ///
    /// # Errors
    /// As [`Self::kill`].
    pub fn kill_additional(&self, victim: Victim) -> Result<Slot, PidFd> {
        let slot = self.shared.take_slot(victim)?;
        self.send_sigkill(slot);
        if self.method == Method::Mrelease {
            self.shared.post(Order::Kill(slot));
        }
        Ok(self.shared.slots[slot].clone())
    }

    fn send_sigkill(&self, slot: usize) {
        self.shared.with(slot, |victim| {
            if victim.awaits_sigkill() {
                victim.send_sigkill(self.shared.epoch, self.method);
            }
        });
    }

    /// Has threads kill the victim and free its memory, and waits until one has sent the signal, or for
    /// [`MAX_SIGNAL_DELAY`].
    fn hand_to_threads(&self, slot: usize) {
        let shared = &*self.shared;
        if self.uses_spinner {
            shared.spinning.store(0, Ordering::Release);
            shared.spinner_slot.store(slot, Ordering::Release);
            shared.post(Order::Spin(slot));
            let began = Instant::now();
            while shared.spinning.load(Ordering::Acquire) == 0 && began.elapsed() < SPINNER_START_TIMEOUT {
                thread::yield_now();
            }
        }
        shared.post(Order::Kill(slot));
        let began = Instant::now();
        let waits = || shared.with(slot, TrackedVictim::awaits_sigkill).unwrap_or(false);
        while waits() && began.elapsed() < MAX_SIGNAL_DELAY {
            thread::sleep(MIN_RETRY_PAUSE);
        }
    }

    /// Takes the threads that are freeing memory out of real time, and sets their niceness. A large victim
    /// takes most of a second on a slow machine, during which other threads on that CPU would not run; real
    /// time was needed only to call process_mrelease(2) before the victim passes exit_mm().
    pub fn lower_priority(&self, nice: i32) {
        if !self.shared.real_time.load(Ordering::Acquire) {
            // Without CAP_SYS_NICE a niceness can be given up, and never taken back.
            return;
        }
        for busy in &self.shared.busy_tids {
            let tid = busy.load(Ordering::Acquire);
            if tid != 0 {
                // A thread of ours, which does not end.
                let _ = sched::set_policy(tid, libc::SCHED_OTHER, 0);
                let _ = sched::set_nice(tid, nice);
            }
        }
    }

    /// Returns what has happened to the victim in a slot so far; `None` if there never was one.
    pub fn outcome(&self, slot: &Slot) -> Option<Outcome> {
        slot.with(|victim| {
            victim.check_exited(self.shared.epoch);
            victim.outcome(0)
        })
    }
}

impl Slot {
    fn with<T>(&self, f: impl FnOnce(&TrackedVictim) -> T) -> Option<T> {
        let victim = self.0.read().unwrap_or_else(PoisonError::into_inner);
        victim.as_ref().map(f)
    }

    /// Calls `f` with the victim's pidfd, if it was sent SIGKILL.
    pub fn if_killed(&self, f: impl FnOnce(&PidFd)) {
        self.with(|victim| victim.was_killed().then(|| f(&victim.pidfd)));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ArrayVec<Order, { 2 * MAX_VICTIMS }>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, slot: usize, f: impl FnOnce(&TrackedVictim) -> T) -> Option<T> {
        self.slots.get(slot)?.with(f)
    }

    /// Puts a victim into a free slot.
    fn take_slot(&self, victim: Victim) -> Result<usize, PidFd> {
        let Some(slot) = self.free_slot() else { return Err(victim.pidfd) };
        match self.slots[slot].0.try_write() {
            Ok(mut tracked) => *tracked = Some(TrackedVictim::new(victim, 0, false)),
            Err(_) => return Err(victim.pidfd),
        }
        Ok(slot)
    }

    /// Returns a slot whose victim is gone, or has been dying for so long that no thread tries any more, and which
    /// neither a thread nor a caller uses.
    fn free_slot(&self) -> Option<usize> {
        self.slots.iter().position(|slot| match slot.0.try_write() {
            Ok(victim) if Arc::strong_count(&slot.0) == 1 => {
                let is_over = |v: &TrackedVictim| {
                    v.check_exited(self.epoch) || !v.is_pending() || v.age(self.epoch) > MAX_FREEING_TIME
                };
                victim.as_ref().is_none_or(is_over)
            }
            _ => false,
        })
    }

    fn post(&self, order: Order) {
        // When there is no room the threads are all stuck; the signal is sent without them.
        if self.lock().try_push(order).is_ok() {
            self.order_posted.notify_one();
        }
    }

    /// What a thread does: one order after the other.
    fn work(&self) {
        self.real_time.fetch_or(raise_priority().is_ok(), Ordering::AcqRel);
        let tid = rustix::thread::gettid();
        warm_up();
        self.ready.fetch_add(1, Ordering::AcqRel);
        loop {
            let mut orders = self.lock();
            let order = loop {
                match orders.pop_at(0) {
                    Some(order) => break order,
                    None => orders = self.order_posted.wait(orders).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(orders);
            let _ = raise_priority();
            let busy = self
                .busy_tids
                .iter()
                .find(|busy| busy.compare_exchange(0, tid.as_raw_pid(), Ordering::AcqRel, Ordering::Relaxed).is_ok());
            let began = Instant::now();
            let abandoned = || began.elapsed() > MAX_FREEING_TIME;
            match order {
                Order::Spin(slot) => {
                    let done = self.with(slot, |victim| {
                        self.spinning.fetch_add(1, Ordering::AcqRel);
                        victim.free_memory(self.epoch, || false, abandoned);
                    });
                    let _ = self.spinner_slot.compare_exchange(slot, MAX_VICTIMS, Ordering::AcqRel, Ordering::Relaxed);
                    done
                }
                Order::Kill(slot) => self.with(slot, |victim| {
                    if victim.awaits_sigkill() {
                        victim.send_sigkill(self.epoch, Method::Plain);
                    }
                    // Where the kernel does not let two threads free one address space together, they only
                    // contend for it, and on a machine with two CPUs leave none for the threads that wait for
                    // the memory. So this one begins only when the spinner has failed.
                    while !self.parallel_reap && self.spinner_slot.load(Ordering::Acquire) == slot && !abandoned() {
                        thread::sleep(HANDOVER_CHECK_INTERVAL);
                    }
                    victim.free_memory(self.epoch, || false, abandoned);
                }),
            };
            if let Some(busy) = busy {
                busy.store(0, Ordering::Release);
            }
            // One that is still nice would wait for a CPU when the next victim is killed.
            let _ = raise_priority();
        }
    }
}

#[cfg(test)]
mod tests;
