//! The kill itself, and getting the memory back.
//!
//! Everything is armed before it is needed: [`Armed::new`] starts the threads, lets them make
//! their system call once in vain and locks the program's memory. From then until the signals
//! are sent nothing is allocated and no file is opened, since either can wait for memory, and
//! reading a victim's files can wait for the victim.
//!
//! **The race.** process_mrelease(2) fails with EINVAL until the process is killed, and with
//! ESRCH once it has passed exit_mm(), some ten microseconds after it learns of the signal, and
//! long before its memory is free. Two kinds of threads try to be in between, because each fails
//! where the other does not: a *striker* sends the signal and calls at once, which fails if the
//! victim wakes up on the striker's CPU and pushes it aside; a *spinner* has been calling since
//! before the signal on another CPU, which fails if there is no idle CPU.
//!
//! Signals go through the pidfd only.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use linux::PidFd;
use linux::pidfd::{self, Release, Signal, SignalFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::MlockAllFlags;

/// Victims with less memory than this are gone before a second thread could help.
pub(crate) const WORTH: u64 = 1 << 20;
/// Memory per spinner, where several threads can free one address space together.
const PER_REAPER: u64 = 64 << 20;
/// The most threads on one victim.
const MAX_REAPERS: u64 = 8;
/// The most victims whose memory is freed at the same time.
const MAX_STRIKERS: usize = 64;
/// No victim waits longer than this for its signal because threads are busy with others.
pub(crate) const SIGNAL_ALL_WITHIN: Duration = Duration::from_millis(20);
/// How long spinners are given to begin.
pub(crate) const SPIN_UP: Duration = Duration::from_millis(2);
/// How long a spinner waits for the signal: it burns a CPU meanwhile.
const SPIN_LIMIT: Duration = Duration::from_millis(50);
/// Pause after EAGAIN, doubled up to [`LONG_PAUSE`].
pub(crate) const PAUSE: Duration = Duration::from_micros(50);
const LONG_PAUSE: Duration = Duration::from_millis(2);
/// What threads are given to note their last result after the victims are gone.
const SETTLE: Duration = Duration::from_millis(10);
/// The time of what has not happened.
const NEVER: u64 = u64::MAX;
/// Room for a system call and a few frames around it.
pub(crate) const STACK: usize = 128 << 10;

/// How memory is got back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The kernel does it, as part of the kill (topic `expedite`).
    Expedite,
    /// Our threads do it, by process_mrelease(2).
    Mrelease,
    /// The dying process does it.
    Plain,
}

impl Method {
    /// The best that this kernel has.
    pub fn best() -> Self {
        [Self::Expedite, Self::Mrelease].into_iter().find(|m| m.supported()).unwrap_or(Self::Plain)
    }

    /// Whether this kernel has it.
    pub fn supported(self) -> bool {
        match self {
            Self::Expedite => pidfd::expedite_supported(),
            Self::Mrelease => pidfd::mrelease_supported(),
            Self::Plain => true,
        }
    }

    /// The word for it in options and output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expedite => "expedite",
            Self::Mrelease => "mrelease",
            Self::Plain => "plain",
        }
    }
}

/// Sends SIGKILL, with the kernel's help if that is how the memory shall come back. Says whether it helps.
///
/// # Errors
/// As [`PidFd::send_signal`]; nothing was sent then.
pub(crate) fn kill(pidfd: &PidFd, means: Method) -> linux::Result<bool> {
    if means == Method::Expedite {
        match pidfd.send_signal(Signal::KILL, SignalFlags::EXPEDITE) {
            Ok(()) => return Ok(true),
            // Switched off since we asked: the kill matters more than how.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            Err(e) => return Err(e),
        }
    }
    pidfd.send_signal(Signal::KILL, SignalFlags::empty()).map(|()| false)
}

/// What the kernel does that decides how many threads of ours are worth their start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel {
    /// Several threads can free one address space at the same time (topic `reap`).
    pub together: bool,
    /// Its workers leave a share of their CPU to others (`vm.expedite_cpu_percent`). Somebody waits for
    /// our kill and wants no such thing: our threads free memory beside them.
    pub paced: bool,
}

/// A victim to be.
#[derive(Debug)]
pub struct Held {
    /// The handle on it.
    pub pidfd: PidFd,
    /// How much memory is expected to come back, in bytes.
    pub bytes: u64,
    /// The size of its address space in bytes: the same for victims that share one.
    pub vm_size: u64,
    /// It is dumping its core: the kernel's answers say nothing about sharers then.
    pub core_dumping: bool,
}

/// What became of one victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Dead of SIGKILL, memory back.
    Killed,
    /// Ended by itself after the first signal.
    Exited,
    /// Was gone before any signal reached it.
    Gone,
    /// Dead of SIGKILL, but another process uses the same memory and lives.
    Shared,
    /// Killed, and not gone when we stopped waiting.
    Dying,
    /// No SIGKILL was sent, because we were interrupted before.
    Spared,
    /// The kernel refused the signal with this error number.
    Refused(i32),
}

/// The story of one victim. Times count from the SIGKILL; where none was sent, from the first
/// signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub fate: Fate,
    /// How its memory came back. [`Method::Plain`] where process_mrelease came too late.
    pub means: Method,
    /// The signal from which times count, after that to the first victim.
    pub started: Duration,
    /// When its private memory was back: when process_mrelease(2) had freed it, or when the
    /// process had exited, whichever was first.
    pub back: Option<Duration>,
    /// When the process had exited.
    pub exited: Option<Duration>,
    /// Calls of process_mrelease(2) after the kill.
    pub calls: u32,
    /// How many of them said "try again".
    pub again: u32,
    /// All of them came too late, the victim was past exit_mm(), and nobody else helped.
    pub race_lost: bool,
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// All victims have exited.
    AllExited,
    /// The time was up.
    TimeUp,
    /// Ctrl-C.
    Interrupted,
}

/// Several victims, and threads that wait for the word.
pub struct Armed {
    shared: Arc<Shared>,
    /// Threads that free memory.
    threads: usize,
}

struct Shared {
    method: Method,
    /// Largest first.
    slots: Vec<Slot>,
    /// How many of them are worth a thread; those are in front.
    worth: usize,
    epoch: Epoch,
    phase: Mutex<Phase>,
    turn: Condvar,
    /// The next victim for a striker.
    next: AtomicUsize,
    spinning: AtomicUsize,
    /// Threads that have not ended.
    busy: AtomicUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Armed,
    Spin,
    Strike,
    Abandoned,
}

/// A victim and what happened to it. All times are in nanoseconds after the epoch.
pub(crate) struct Slot {
    pidfd: PidFd,
    core_dumping: bool,
    /// Another victim may share its memory.
    kin: bool,
    /// Where the victim was in the caller's list.
    index: usize,
    first: AtomicU64,
    sent: AtomicU64,
    freed: AtomicU64,
    exited: AtomicU64,
    expedited: AtomicBool,
    refused: AtomicI32,
    calls: AtomicU32,
    again: AtomicU32,
    late: AtomicBool,
    shared: AtomicBool,
}

impl Armed {
    /// Gets ready to kill `victims`.
    ///
    /// Gives the calling thread a higher priority and locks this program's memory, as far as the
    /// caller's privileges go.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub fn new(victims: Vec<Held>, method: Method, kernel: Kernel) -> io::Result<Self> {
        let mut order: Vec<_> = victims.into_iter().enumerate().collect();
        order.sort_by_key(|(_, victim)| std::cmp::Reverse(victim.bytes));
        let worth = order.iter().filter(|(_, victim)| victim.bytes >= WORTH).count();
        let largest = order.first().map_or(0, |(_, victim)| victim.bytes);
        let mut sizes: Vec<_> = order.iter().map(|(_, victim)| victim.vm_size).collect();
        sizes.sort_unstable();
        let several = |size| sizes.partition_point(|s| *s <= size) - sizes.partition_point(|s| *s < size) > 1;
        let slots = order
            .into_iter()
            .map(|(index, victim)| {
                let kin = several(victim.vm_size);
                Slot::new(victim, index, kin)
            })
            .collect();
        let shared = Arc::new(Shared {
            method,
            slots,
            worth,
            epoch: Epoch::now(),
            phase: Mutex::new(Phase::Armed),
            turn: Condvar::new(),
            next: AtomicUsize::new(0),
            spinning: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
        });
        let _ = prefer_this_thread();
        let mut armed = Self { shared, threads: 0 };
        let helps = method == Method::Mrelease || method == Method::Expedite && kernel.paced;
        if helps && worth > 0 {
            let cpus = thread::available_parallelism().map_or(1, |n| n.get() as u64);
            let reapers = if kernel.together { (largest / PER_REAPER).clamp(2, MAX_REAPERS) } else { 2 };
            let spinners = reapers.min(cpus).saturating_sub(1);
            for _ in 0..spinners {
                armed.start(Shared::spinner)?;
            }
            for _ in 0..worth.min(MAX_STRIKERS) {
                armed.start(Shared::striker)?;
            }
            armed.shared.wait_until(|s| s.busy.load(Ordering::Acquire) == armed.threads);
        }
        // Not in reach of everybody (RLIMIT_MEMLOCK), and only of use when memory is short. Not what
        // will be mapped later: where there is a limit, that would fail at it.
        let _ = rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT);
        Ok(armed)
    }

    fn start(&mut self, life: fn(&Shared)) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        // Not joined: a thread may be in the kernel for as long as a victim's memory map is
        // locked, and a program that was told to end by then must not wait for that.
        thread::Builder::new().name("reaper".into()).stack_size(STACK).spawn(move || {
            let _ = prefer_this_thread();
            life(&shared);
            shared.busy.fetch_sub(1, Ordering::AcqRel);
        })?;
        self.threads += 1;
        Ok(())
    }

    /// How many threads free memory.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Sends a signal that asks to end to all victims.
    pub fn ask(&self, signal: Signal) {
        for slot in &self.shared.slots {
            let at = self.shared.now();
            match slot.pidfd.send_signal(signal, SignalFlags::empty()) {
                Ok(()) => note(&slot.first, at),
                Err(e) => slot.note_refusal(&e),
            }
        }
    }

    /// Kills all victims that have not exited, and begins to free their memory.
    pub fn fire(&self) {
        let shared = &*self.shared;
        // A signal to a zombie does not fail, and would count as a kill.
        for slot in shared.slots.iter().filter(|slot| slot.pidfd.has_exited().unwrap_or(false)) {
            note(&slot.exited, shared.now());
        }
        if self.threads > 0 {
            shared.enter(Phase::Spin);
            let began = Instant::now();
            let spinners = self.threads - shared.worth.min(MAX_STRIKERS);
            while shared.spinning.load(Ordering::Acquire) < spinners && began.elapsed() < SPIN_UP {
                thread::yield_now();
            }
            shared.enter(Phase::Strike);
            let began = Instant::now();
            // The small ones, for which there is no thread.
            shared.slots[shared.worth..].iter().for_each(|slot| shared.send(slot));
            while shared.slots.iter().any(Slot::waits_for_signal) && began.elapsed() < SIGNAL_ALL_WITHIN {
                thread::sleep(PAUSE);
            }
        }
        for slot in shared.slots.iter().filter(|slot| slot.waits_for_signal()) {
            shared.send(slot);
        }
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
    ) -> io::Result<Wait> {
        let slots = &self.shared.slots;
        let mut fds = Vec::with_capacity(slots.len() + 1);
        loop {
            let waited_for: Vec<&Slot> = slots.iter().filter(|slot| slot.is_waited_for()).collect();
            if waited_for.is_empty() {
                return Ok(Wait::AllExited);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            fds.clear();
            fds.push(PollFd::from_borrowed_fd(interrupt, PollFlags::IN));
            fds.extend(
                waited_for.iter().map(|slot| PollFd::from_borrowed_fd(slot.pidfd.as_fd(), PollFlags::IN)),
            );
            let nap = left.min(interval);
            let timeout =
                Timespec { tv_sec: nap.as_secs().cast_signed(), tv_nsec: nap.subsec_nanos().into() };
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) if left.is_zero() => return Ok(Wait::TimeUp),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => {
                    let now = self.shared.now();
                    for (slot, _) in
                        waited_for.iter().zip(&fds[1..]).filter(|(_, fd)| !fd.revents().is_empty())
                    {
                        note(&slot.exited, now);
                    }
                    if !fds[0].revents().is_empty() {
                        return Ok(Wait::Interrupted);
                    }
                }
                Err(e) => return Err(e.into()),
            }
            tick();
        }
    }

    /// What became of the victims, in the order in which they were given.
    pub fn outcomes(self) -> Vec<Outcome> {
        let shared = &*self.shared;
        // Threads that never got the word do nothing any more.
        shared.enter(Phase::Abandoned);
        if shared.slots.iter().all(|slot| !slot.is_waited_for()) {
            let began = Instant::now();
            while shared.busy.load(Ordering::Acquire) > 0 && began.elapsed() < SETTLE {
                thread::sleep(PAUSE);
            }
        }
        let origin = shared.slots.iter().filter_map(Slot::start).min().unwrap_or(0);
        let mut outcomes: Vec<_> =
            shared.slots.iter().map(|slot| (slot.index, slot.outcome(origin))).collect();
        outcomes.sort_by_key(|(index, _)| *index);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        self.shared.enter(Phase::Abandoned);
    }
}

/// What times count from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch(Instant);

impl Epoch {
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds since.
    fn elapsed(self) -> u64 {
        // 2^64 ns are 584 years.
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(NEVER)
    }
}

impl Shared {
    fn now(&self) -> u64 {
        self.epoch.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: Phase) {
        let mut current = self.lock();
        *current = phase.max(*current);
        self.turn.notify_all();
    }

    /// Waits for a phase, and gives the one that it was when the wait ended.
    fn await_phase(&self, phase: Phase) -> Phase {
        let mut current = self.lock();
        while *current < phase {
            current = self.turn.wait(current).unwrap_or_else(PoisonError::into_inner);
        }
        *current
    }

    /// Waits for threads that are getting ready.
    fn wait_until(&self, ready: impl Fn(&Self) -> bool) {
        while !ready(self) {
            thread::sleep(PAUSE);
        }
    }

    /// Has the code of the call mapped and warm.
    fn warm_up(&self, slot: &Slot) {
        // In vain: the victim has not been killed. If somebody else has killed it just now, it
        // helps already.
        let _ = slot.pidfd.release_memory();
        self.busy.fetch_add(1, Ordering::AcqRel);
    }

    /// Sends signals and frees memory, victim by victim.
    fn striker(&self) {
        self.warm_up(&self.slots[0]);
        if self.await_phase(Phase::Strike) != Phase::Strike {
            return;
        }
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = self.slots[..self.worth].get(i) else { return };
            if slot.is_waited_for() {
                self.send(slot);
                self.free(slot);
            }
        }
    }

    /// Tries to free the memory of the largest victim from before it is killed.
    fn spinner(&self) {
        let slot = &self.slots[0];
        self.warm_up(slot);
        if self.await_phase(Phase::Spin) == Phase::Abandoned {
            return;
        }
        self.spinning.fetch_add(1, Ordering::AcqRel);
        if slot.is_waited_for() {
            self.free(slot);
        }
    }

    fn send(&self, slot: &Slot) {
        slot.send(self.epoch, self.method);
    }

    fn free(&self, slot: &Slot) {
        // Somebody who lives and shares the memory may be a victim that has not had its signal.
        let kin = || slot.kin && self.slots.iter().any(Slot::waits_for_signal);
        slot.free(self.epoch, kin, || *self.lock() == Phase::Abandoned);
    }
}

impl Slot {
    pub(crate) fn new(victim: Held, index: usize, kin: bool) -> Self {
        Self {
            pidfd: victim.pidfd,
            core_dumping: victim.core_dumping,
            kin,
            index,
            first: AtomicU64::new(NEVER),
            sent: AtomicU64::new(NEVER),
            freed: AtomicU64::new(NEVER),
            exited: AtomicU64::new(NEVER),
            expedited: AtomicBool::new(false),
            refused: AtomicI32::new(0),
            calls: AtomicU32::new(0),
            again: AtomicU32::new(0),
            late: AtomicBool::new(false),
            shared: AtomicBool::new(false),
        }
    }

    /// Sends SIGKILL.
    pub(crate) fn send(&self, epoch: Epoch, means: Method) {
        let at = epoch.elapsed();
        match kill(&self.pidfd, means) {
            Ok(expedited) => {
                self.expedited.store(expedited, Ordering::Release);
                note(&self.sent, at);
            }
            Err(e) => self.note_refusal(&e),
        }
    }

    /// Calls process_mrelease(2) until it has worked or cannot any more. `kin` says whether somebody
    /// who shares the memory is about to be killed, too.
    pub(crate) fn free(&self, epoch: Epoch, kin: impl Fn() -> bool, abandoned: impl Fn() -> bool) {
        let began = Instant::now();
        let mut pause = PAUSE;
        // The last call, made after the kill, found that somebody who lives uses this memory.
        let mut in_use = false;
        loop {
            let killed = noted(&self.sent).is_some();
            // Before the call: whoever is killed during it may still have been alive for it.
            let kin = kin();
            let answer = self.pidfd.release_memory();
            if killed {
                self.calls.fetch_add(1, Ordering::Relaxed);
            }
            match answer {
                Ok(Release::Done) => {
                    note(&self.freed, epoch.elapsed());
                    return;
                }
                Ok(Release::Gone) => {
                    let verdict = if in_use { &self.shared } else { &self.late };
                    verdict.store(true, Ordering::Release);
                    return;
                }
                Ok(Release::Again) => {
                    self.again.fetch_add(1, Ordering::Relaxed);
                    in_use = false;
                }
                Ok(Release::NotDying) if !killed => {
                    if self.refused.load(Ordering::Acquire) != 0 || began.elapsed() > SPIN_LIMIT {
                        return;
                    }
                    // No pause: this is the race.
                    continue;
                }
                Ok(Release::NotDying) => in_use = !self.core_dumping && !kin,
                Ok(Release::Interrupted | Release::Unsupported | Release::Denied) | Err(_) => return,
            }
            if abandoned() {
                return;
            }
            thread::sleep(pause);
            pause = (2 * pause).min(LONG_PAUSE);
        }
    }

    fn note_refusal(&self, error: &linux::Error) {
        let errno = if error.is_gone() { libc::ESRCH } else { error.raw_os_error().unwrap_or(libc::EIO) };
        self.refused.store(errno, Ordering::Release);
    }

    /// Neither gone nor out of our reach.
    pub(crate) fn is_waited_for(&self) -> bool {
        noted(&self.exited).is_none()
            && (noted(&self.sent).is_some() || self.refused.load(Ordering::Acquire) == 0)
    }

    /// Looks whether it has exited, and notes it.
    pub(crate) fn look(&self, epoch: Epoch) -> bool {
        if noted(&self.exited).is_none() && self.pidfd.has_exited().unwrap_or(false) {
            note(&self.exited, epoch.elapsed());
        }
        noted(&self.exited).is_some()
    }

    pub(crate) fn waits_for_signal(&self) -> bool {
        self.is_waited_for() && noted(&self.sent).is_none()
    }

    /// When it was sent the signal from which its times count.
    fn start(&self) -> Option<u64> {
        noted(&self.sent).or(noted(&self.first))
    }

    /// What became of it; `origin` is when the first victim was signalled.
    pub(crate) fn outcome(&self, origin: u64) -> Outcome {
        let (first, sent) = (noted(&self.first), noted(&self.sent));
        let (freed, exited) = (noted(&self.freed), noted(&self.exited));
        let start = self.start();
        let since = |end: u64| Duration::from_nanos(end.saturating_sub(start.unwrap_or(end)));
        let shared = freed.is_none() && self.shared.load(Ordering::Acquire);
        let refused = self.refused.load(Ordering::Acquire);
        let fate = match (first, sent, exited) {
            (_, Some(_), Some(_)) if shared => Fate::Shared,
            (_, Some(_), Some(_)) => Fate::Killed,
            (_, Some(_), None) => Fate::Dying,
            (Some(_), None, _) if exited.is_some() || refused == libc::ESRCH => Fate::Exited,
            (None, None, _) if exited.is_some() || refused == libc::ESRCH => Fate::Gone,
            (_, None, _) if refused != 0 => Fate::Refused(refused),
            (_, None, _) => Fate::Spared,
        };
        let back = match fate {
            Fate::Killed | Fate::Dying | Fate::Exited => freed.into_iter().chain(exited).min(),
            _ => None,
        };
        let expedited = self.expedited.load(Ordering::Acquire);
        let means = if expedited {
            Method::Expedite
        } else if freed.is_some() && freed == back {
            Method::Mrelease
        } else {
            Method::Plain
        };
        Outcome {
            fate,
            means,
            started: Duration::from_nanos(start.unwrap_or(origin).saturating_sub(origin)),
            back: back.map(since),
            exited: exited.map(since),
            calls: self.calls.load(Ordering::Relaxed),
            again: self.again.load(Ordering::Relaxed),
            // The kernel's workers are never late.
            race_lost: !expedited && freed.is_none() && !shared && self.late.load(Ordering::Acquire),
        }
    }
}

/// When something happened, if it has.
fn noted(time: &AtomicU64) -> Option<u64> {
    Some(time.load(Ordering::Acquire)).filter(|at| *at != NEVER)
}

/// Notes that something happened; the first time counts, whatever the order of the notes.
fn note(time: &AtomicU64, at: u64) {
    time.fetch_min(at, Ordering::AcqRel);
}

/// Lets the calling thread, and those it starts, run before others. Not in reach of everybody
/// (CAP_SYS_NICE); without it the memory comes back at the speed of the share of a CPU that is left on
/// a busy machine, and the race is lost more often.
///
/// # Errors
/// Why it does not run in real time.
pub fn prefer_this_thread() -> Result<(), Errno> {
    // The lowest of real time: it is enough against all that has none. A niceness would not be,
    // where sessions or groups are scheduled each with its own share.
    linux::sched::set_policy(0, libc::SCHED_FIFO, 1).inspect_err(|_| {
        // Real time may be what the group lacks.
        let _ = rustix::process::setpriority_process(None, -20);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::Pid;

    const NS: Duration = Duration::from_nanos(1);

    /// The victim has freed its memory before a thread of ours did.
    fn too_late() -> Slot {
        let slot = slot();
        note(&slot.sent, 100);
        note(&slot.exited, 130);
        slot.late.store(true, Ordering::Release);
        slot
    }

    fn slot() -> Slot {
        let pidfd = PidFd::open(Pid::own()).unwrap();
        Slot::new(Held { pidfd, bytes: 0, vm_size: 0, core_dumping: false }, 0, false)
    }

    #[test]
    fn the_first_of_two_times_counts() {
        let slot = slot();
        note(&slot.sent, 500);
        note(&slot.sent, 300);
        note(&slot.sent, 900);
        assert_eq!(noted(&slot.sent), Some(300));
        assert_eq!(noted(&slot.exited), None);
    }

    #[test]
    fn times_count_from_the_kill_and_memory_is_back_at_the_first_of_two_ends() {
        let slot = slot();
        note(&slot.first, 10);
        note(&slot.sent, 100);
        note(&slot.freed, 140);
        note(&slot.exited, 160);
        let outcome = slot.outcome(10);
        assert_eq!((outcome.fate, outcome.means), (Fate::Killed, Method::Mrelease));
        assert_eq!((outcome.started, outcome.back, outcome.exited), (90 * NS, Some(40 * NS), Some(60 * NS)));
    }

    #[test]
    fn memory_that_the_process_freed_before_a_thread_did_came_by_plain() {
        let slot = too_late();
        let outcome = slot.outcome(100);
        assert_eq!((outcome.means, outcome.back, outcome.race_lost), (Method::Plain, Some(30 * NS), true));
        // Of two threads one was in time.
        note(&slot.freed, 120);
        let outcome = slot.outcome(100);
        assert_eq!(
            (outcome.means, outcome.back, outcome.race_lost),
            (Method::Mrelease, Some(20 * NS), false)
        );
    }

    #[test]
    fn what_the_kernel_helps_with_is_never_late() {
        let slot = too_late();
        slot.expedited.store(true, Ordering::Release);
        let outcome = slot.outcome(100);
        assert_eq!((outcome.means, outcome.race_lost), (Method::Expedite, false));
    }

    #[test]
    fn fates() {
        let fate = |set: &dyn Fn(&Slot)| {
            let slot = slot();
            set(&slot);
            slot.outcome(0).fate
        };
        let at = |time: &AtomicU64| note(time, 7);
        assert_eq!(fate(&|_| {}), Fate::Spared);
        assert_eq!(fate(&|s| at(&s.first)), Fate::Spared);
        assert_eq!(fate(&|s| at(&s.exited)), Fate::Gone);
        assert_eq!(fate(&|s| s.refused.store(libc::ESRCH, Ordering::Release)), Fate::Gone);
        assert_eq!(fate(&|s| s.refused.store(libc::EPERM, Ordering::Release)), Fate::Refused(libc::EPERM));
        assert_eq!(fate(&|s| (at(&s.first), at(&s.exited)).0), Fate::Exited);
        assert_eq!(fate(&|s| at(&s.sent)), Fate::Dying);
        let dead = |s: &Slot| (at(&s.sent), at(&s.exited)).0;
        assert_eq!(fate(&dead), Fate::Killed);
        // A second signal that found nobody does not make a kill undone.
        assert_eq!(fate(&|s| (dead(s), s.refused.store(libc::ESRCH, Ordering::Release)).0), Fate::Killed);
        let shared = |s: &Slot| s.shared.store(true, Ordering::Release);
        assert_eq!(fate(&|s| (dead(s), shared(s)).0), Fate::Shared);
        assert_eq!(fate(&|s| (dead(s), shared(s), at(&s.freed)).0), Fate::Killed, "the sharer died in time");
    }
}
