// SPDX-License-Identifier: GPL-2.0-only
//! Kills one or several processes at once and gets their memory back.
//!
//! Everything is prepared before it is needed: [`Armed::new`] starts the threads, has each make its system
//! call once without effect and locks the program's memory. From then until the signals are sent nothing is
//! allocated and no file is opened, because either can wait for memory, and reading a victim's files can wait
//! for the victim.
//!
//! **The race.** process_mrelease(2) fails with EINVAL until the process is killed, and with ESRCH once it
//! has passed exit_mm(), some ten microseconds after it has received the signal and long before its memory is
//! free. Two kinds of threads try to call it in between, because each fails where the other does not. A
//! *killer* sends the signal and calls at once; it fails if the victim wakes up on the killer's CPU and
//! preempts it. A *spinner* has been calling since before the signal on another CPU; it fails if no CPU is
//! idle.
//!
//! Signals are sent through the pidfd only.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use linux::Root;
use linux::cgroup::Cgroup;
use linux::features::{self, Topic};
use linux::pidfd::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::MlockAllFlags;

use super::method::{Method, kill_cgroup};
use super::prestarted::{STACK_BYTES, raise_priority, warm_up};
use super::victim::{Epoch, MIN_RETRY_PAUSE, Outcome, TrackedVictim, Victim};

/// A victim with less memory than this is gone before a thread could help.
pub(crate) const MIN_THREADED_VICTIM_BYTES: u64 = 1 << 20;
/// Memory per spinner, where several threads can free one address space (`parallel_reap`).
const BYTES_PER_SPINNER: u64 = 64 << 20;
/// Killer and spinners on one victim, at most.
const MAX_THREADS_PER_VICTIM: u64 = 8;
/// Victims whose memory is freed at the same time, at most; each has a killer thread.
const MAX_KILLERS: usize = 64;
/// No victim waits longer than this for its signal because threads are running with others.
pub(crate) const MAX_SIGNAL_DELAY: Duration = Duration::from_millis(20);
/// How long to wait for spinners to begin before the signal is sent.
pub(crate) const SPINNER_START_TIMEOUT: Duration = Duration::from_millis(2);
/// How long to wait for threads to record their last result once all victims are gone.
const LAST_RESULT_TIMEOUT: Duration = Duration::from_millis(10);

/// What the kernel does that decides how many threads of ours are worth starting.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelFeatures {
    /// Several threads can free one address space at the same time (topic `reap`).
    pub parallel_reap: bool,
    /// Its workers leave a share of their CPU to other processes (`vm.expedite_cpu_percent`). A user waits
    /// for this kill, so threads of ours free memory beside them.
    pub paced_workers: bool,
}

impl KernelFeatures {
    /// Reads what the running kernel does. What cannot be read counts as missing.
    pub fn read(root: &Root) -> Self {
        let cpu_percent = features::expedite_cpu_percent(root);
        Self {
            parallel_reap: matches!(Topic::Reap.is_on(root), Ok(Some(true))),
            paced_workers: matches!(cpu_percent, Ok(Some(percent)) if percent < 100),
        }
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// All victims have exited.
    AllExited,
    /// The time was up.
    TimeUp,
    /// Ctrl-C.
    Interrupted,
}

/// A cgroup that is killed as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Whole<'a> {
    /// All that are in it die.
    pub cgroup: &'a Cgroup,
    /// Those of the victims that are in it: where they were in the list for [`Armed::new`], ascending.
    pub victims: &'a [usize],
}

/// Victims, and threads that wait for [`Armed::kill`].
pub struct Armed {
    shared: Arc<Shared>,
    /// Threads that free memory.
    threads: usize,
    /// How many of them are spinners.
    spinners: usize,
}

struct Shared {
    method: Method,
    /// Largest first.
    victims: Vec<TrackedVictim>,
    /// How many of them are large enough for a thread; those come first.
    threaded: usize,
    epoch: Epoch,
    phase: Mutex<Phase>,
    phase_changed: Condvar,
    /// The next victim for a killer.
    next: AtomicUsize,
    spinning: AtomicUsize,
    /// Threads that have started and not ended.
    running: AtomicUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Armed,
    Spin,
    Kill,
    Abandoned,
}

impl Armed {
    /// Prepares to kill `victims`.
    ///
    /// Raises the calling thread's priority and locks this program's memory, as far as the caller's
    /// privileges allow. `method` is how the memory is to come back. Where threads cannot be started
    /// (RLIMIT_NPROC), there are fewer.
    pub fn new(victims: Vec<Victim>, method: Method, kernel: KernelFeatures) -> Self {
        let mut order: Vec<_> = victims.into_iter().enumerate().collect();
        order.sort_by_key(|(_, victim)| std::cmp::Reverse(victim.bytes));
        let threaded = order.iter().filter(|(_, victim)| victim.bytes >= MIN_THREADED_VICTIM_BYTES).count();
        let largest = order.first().map_or(0, |(_, victim)| victim.bytes);
        let mut sizes: Vec<_> = order.iter().map(|(_, victim)| victim.vm_size).collect();
        sizes.sort_unstable();
        let is_shared_size = |size| sizes.partition_point(|s| *s <= size) - sizes.partition_point(|s| *s < size) > 1;
        let victims = order
            .into_iter()
            .map(|(position, victim)| {
                let may_share_memory = is_shared_size(victim.vm_size);
                TrackedVictim::new(victim, position, may_share_memory)
            })
            .collect();
        let shared = Arc::new(Shared {
            method,
            victims,
            threaded,
            epoch: Epoch::now(),
            phase: Mutex::new(Phase::Armed),
            phase_changed: Condvar::new(),
            next: AtomicUsize::new(0),
            spinning: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
        });
        let _ = raise_priority();
        let mut armed = Self { shared, threads: 0, spinners: 0 };
        let uses_threads = method == Method::Mrelease || method == Method::Expedite && kernel.paced_workers;
        if uses_threads && threaded > 0 {
            let cpus = thread::available_parallelism().map_or(1, |n| n.get() as u64);
            let threads_on_largest =
                if kernel.parallel_reap { (largest / BYTES_PER_SPINNER).clamp(2, MAX_THREADS_PER_VICTIM) } else { 2 };
            let spinners = threads_on_largest.min(cpus).saturating_sub(1);
            armed.spinners = (0..spinners).take_while(|_| armed.start(Shared::spinner).is_ok()).count();
            let _ = (0..threaded.min(MAX_KILLERS)).try_for_each(|_| armed.start(Shared::killer));
            while armed.shared.running.load(Ordering::Acquire) != armed.threads {
                thread::sleep(MIN_RETRY_PAUSE);
            }
        }
        // May fail (RLIMIT_MEMLOCK); it is of use only when memory is short. Without MCL_FUTURE: where there
        // is a limit, later mappings would fail at it.
        let _ = rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT);
        armed
    }

    fn start(&mut self, work: fn(&Shared)) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        // Not joined: a thread may be in the kernel for as long as a victim's memory map is
        // locked, and a program that was told to end by then must not wait for that.
        thread::Builder::new().name("reaper".into()).stack_size(STACK_BYTES).spawn(move || {
            let _ = raise_priority();
            work(&shared);
            shared.running.fetch_sub(1, Ordering::AcqRel);
        })?;
        self.threads += 1;
        Ok(())
    }

    /// Returns the number of threads that free memory.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Sends all victims a signal that asks them to end.
    pub fn send_first_signal(&self, signal: Signal) {
        for victim in &self.shared.victims {
            victim.send_first_signal(self.shared.epoch, signal);
        }
    }

    /// Kills all victims that have not exited, and begins to free their memory.
    pub fn kill(&self) {
        self.kill_with(&[]);
    }

    /// As [`Armed::kill`]; the kernel kills those of these cgroups all at once. Where it does not, they are killed one
    /// by one. Returns for each cgroup whether it did.
    pub fn kill_with(&self, cgroups: &[Whole<'_>]) -> Vec<bool> {
        let shared = &*self.shared;
        // A signal to a zombie does not fail, and would count as a kill.
        for victim in shared.victims.iter().filter(|victim| victim.pidfd.has_exited().unwrap_or(false)) {
            victim.record_exit(shared.now_ns());
        }
        // Before the first is killed, as nothing is allocated from then on.
        let mut killed = Vec::with_capacity(cgroups.len());
        if self.threads > 0 {
            shared.enter(Phase::Spin);
            let began = Instant::now();
            while shared.spinning.load(Ordering::Acquire) < self.spinners && began.elapsed() < SPINNER_START_TIMEOUT {
                thread::yield_now();
            }
        }
        killed.extend(cgroups.iter().map(|whole| shared.send_to_all(whole)));
        if self.threads > 0 {
            shared.enter(Phase::Kill);
            let began = Instant::now();
            // The small ones, for which there is no thread.
            let small = shared.victims[shared.threaded..].iter();
            small.filter(|victim| victim.awaits_sigkill()).for_each(|victim| shared.send(victim));
            while shared.victims.iter().any(TrackedVictim::awaits_sigkill) && began.elapsed() < MAX_SIGNAL_DELAY {
                thread::sleep(MIN_RETRY_PAUSE);
            }
        }
        for victim in shared.victims.iter().filter(|victim| victim.awaits_sigkill()) {
            shared.send(victim);
        }
        killed
    }

    /// Waits until all victims have exited, or `deadline`, or `interrupt` is readable. Calls
    /// `tick` about every `interval`.
    ///
    /// # Errors
    /// When the kernel cannot wait.
    pub fn wait(
        &self,
        deadline: Instant,
        interrupt: BorrowedFd<'_>,
        interval: Duration,
        mut tick: impl FnMut(),
    ) -> io::Result<WaitEnd> {
        let victims = &self.shared.victims;
        let mut fds = Vec::with_capacity(victims.len() + 1);
        loop {
            let pending: Vec<&TrackedVictim> = victims.iter().filter(|victim| victim.is_pending()).collect();
            if pending.is_empty() {
                return Ok(WaitEnd::AllExited);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            fds.clear();
            fds.push(PollFd::from_borrowed_fd(interrupt, PollFlags::IN));
            fds.extend(pending.iter().map(|victim| PollFd::from_borrowed_fd(victim.pidfd.as_fd(), PollFlags::IN)));
            let pause = left.min(interval);
            let timeout = Timespec { tv_sec: pause.as_secs().cast_signed(), tv_nsec: pause.subsec_nanos().into() };
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) if left.is_zero() => return Ok(WaitEnd::TimeUp),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => {
                    let now = self.shared.now_ns();
                    for (victim, _) in pending.iter().zip(&fds[1..]).filter(|(_, fd)| !fd.revents().is_empty()) {
                        victim.record_exit(now);
                    }
                    if !fds[0].revents().is_empty() {
                        return Ok(WaitEnd::Interrupted);
                    }
                }
                Err(e) => return Err(e.into()),
            }
            tick();
        }
    }

    /// Returns what became of the victims, in the order in which they were passed to [`Armed::new`].
    pub fn outcomes(self) -> Vec<Outcome> {
        let shared = &*self.shared;
        // Threads that still wait for a phase end without doing anything.
        shared.enter(Phase::Abandoned);
        if shared.victims.iter().all(|victim| !victim.is_pending()) {
            let began = Instant::now();
            while shared.running.load(Ordering::Acquire) > 0 && began.elapsed() < LAST_RESULT_TIMEOUT {
                thread::sleep(MIN_RETRY_PAUSE);
            }
        }
        let origin_ns = shared.victims.iter().filter_map(TrackedVictim::start_ns).min().unwrap_or(0);
        let mut outcomes: Vec<_> =
            shared.victims.iter().map(|victim| (victim.position, victim.outcome(origin_ns))).collect();
        outcomes.sort_by_key(|(position, _)| *position);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        self.shared.enter(Phase::Abandoned);
    }
}

impl Shared {
    fn now_ns(&self) -> u64 {
        self.epoch.elapsed_ns()
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: Phase) {
        let mut current = self.lock();
        *current = phase.max(*current);
        self.phase_changed.notify_all();
    }

    /// Waits for a phase, and returns the one at which the wait ended.
    fn await_phase(&self, phase: Phase) -> Phase {
        let mut current = self.lock();
        while *current < phase {
            current = self.phase_changed.wait(current).unwrap_or_else(PoisonError::into_inner);
        }
        *current
    }

    /// What a thread does first.
    fn get_ready(&self) {
        warm_up();
        self.running.fetch_add(1, Ordering::AcqRel);
    }

    /// Sends signals and frees memory, victim by victim.
    fn killer(&self) {
        self.get_ready();
        if self.await_phase(Phase::Kill) != Phase::Kill {
            return;
        }
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(victim) = self.victims[..self.threaded].get(i) else { return };
            if victim.awaits_sigkill() {
                self.send(victim);
            }
            if victim.is_pending() {
                self.free(victim);
            }
        }
    }

    /// Tries to free the memory of the largest victim, beginning before it is killed.
    fn spinner(&self) {
        let victim = &self.victims[0];
        self.get_ready();
        if self.await_phase(Phase::Spin) == Phase::Abandoned {
            return;
        }
        self.spinning.fetch_add(1, Ordering::AcqRel);
        if victim.is_pending() {
            self.free(victim);
        }
    }

    /// Has the kernel kill all of a cgroup, and returns whether it did.
    fn send_to_all(&self, whole: &Whole<'_>) -> bool {
        let at_ns = self.now_ns();
        let Ok(is_expedited) = kill_cgroup(whole.cgroup, self.method) else { return false };
        let is_in = |victim: &&TrackedVictim| whole.victims.binary_search(&victim.position).is_ok();
        let victims = self.victims.iter().filter(is_in).filter(|victim| victim.awaits_sigkill());
        victims.for_each(|victim| victim.record_sigkill(at_ns, is_expedited));
        true
    }

    fn send(&self, victim: &TrackedVictim) {
        victim.send_sigkill(self.epoch, self.method);
    }

    fn free(&self, victim: &TrackedVictim) {
        // A process that lives and shares the memory may be a victim that has not been sent its signal yet.
        let sharer_dies_too = || victim.may_share_memory && self.victims.iter().any(TrackedVictim::awaits_sigkill);
        victim.free_memory(self.epoch, sharer_dies_too, || *self.lock() == Phase::Abandoned);
    }
}
