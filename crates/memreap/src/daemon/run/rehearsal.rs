// SPDX-License-Identifier: GPL-2.0-only
//! The rehearsal: the daemon goes once through a shortage and a kill when it starts, with a child of its own as
//! the victim.
//!
//! Its memory is locked page by page, as it is used. Code that has never run would be read from a disk, or
//! wait for reclaim, exactly when there is no memory: some forty pages, a second in all, before the first
//! kill. It also shows that the sandbox permits all that a kill needs.

use std::ffi::CStr;
use std::fs;
use std::hint::black_box;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use linux::cgroup::Cgroup;
use linux::pidfd::{PidFd, Signal};
use linux::process::Comm;
use linux::{Dir, Pid, child};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitOptions, waitpid};

use super::sampler::Memory;
use super::system::{LiveWorld, System};
use crate::choice::{Choice, CommandLine, Cost, Danger, Group, Leaf, NoVictim, Pool, Precision};
use crate::daemon::act::dying::Dying;
use crate::daemon::decide::control_loop::ControlLoop;
use crate::daemon::decide::governor::Governor;
use crate::daemon::decide::reason::{Before, Ending, Obstacle, Reason};
use crate::daemon::decide::sample::{MAX_MIN_VICTIM_BYTES, Sample};
use crate::daemon::decide::world::{Gain, Gone, Kills, Observes, Progress, Reports};
use crate::daemon::report::notify::Notifier;
use crate::kill::SignalFirst;

/// The time between two samples, as the control loop sees it, and the time that is waited.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
const STEP_PAUSE: Duration = Duration::from_millis(1);
/// The time before the shortage begins, as the control loop sees it.
const CALM_TIME: Duration = Duration::from_millis(200);
/// Not "memreap", which is never chosen.
const DUMMY_NAME: &CStr = c"mr-dummy";
/// What may be spent on preparing for a choice.
const PREPARATION_TIME: Duration = Duration::from_millis(20);
/// The child is gone after a few; but it may have to wait for a CPU.
const MAX_STEPS: u32 = 1000;

/// A child that does nothing until it is killed, or until this is dropped.
pub(super) struct Dummy {
    pid: Pid,
    /// Closed when this process ends, however it does.
    pipe: OwnedFd,
}

impl Dummy {
    /// Forks. To be called before threads are started.
    ///
    /// # Errors
    /// When there is no room for another process.
    pub(super) fn fork() -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut writer = Some(writer);
        let work = || {
            drop(writer.take());
            // Else it could not be chosen.
            let _ = rustix::thread::set_name(DUMMY_NAME);
            let _ = fs::write("/proc/self/oom_score_adj", "1000");
            // Returns when the parent's end is closed.
            let _ = rustix::io::read(&reader, &mut [0]);
            0
        };
        // SAFETY: there are no other threads (see above), so the child may do all that a process may.
        let pid = unsafe { child::fork(work) }?;
        let pipe = writer.ok_or_else(|| io::Error::other("the pipe is gone"))?;
        Ok(Self { pid, pipe })
    }

    /// Returns the dummy as a victim; `None` when the kernel has no pidfds.
    fn choice(&self) -> Option<Choice> {
        Some(Choice {
            pidfd: PidFd::open(self.pid).ok()?,
            oom_score_adj: None,
            pid: self.pid,
            comm: Comm::new(DUMMY_NAME.to_bytes())?,
            uid: 0,
            // There is none with that name.
            cgroup: b"/memreap/dummy".iter().copied().collect(),
            bytes: MAX_MIN_VICTIM_BYTES,
            precision: Precision::Guess,
            pool: Pool::new(),
            vm_size: 0,
            core_dumping: false,
            group: Some(Group {
                bytes: MAX_MIN_VICTIM_BYTES,
                processes: 2,
                expendable: true,
                oom_group: true,
                shares: false,
            }),
            // A directory without the files of a cgroup.
            leaf: Cgroup::open(&Dir::open(Path::new("/proc")).ok()?, b"/sys").ok().map(|cgroup| Leaf::new(cgroup, &[])),
            parent: None,
            command_line: CommandLine::new(),
            rule: None,
            cost: Cost::default(),
        })
    }

    /// Has it end, if it was not killed, and waits for that.
    fn end(self) {
        drop(self.pipe);
        // It was this process's child, and nobody else waits for it.
        let _ = waitpid(Some(self.pid.into()), WaitOptions::empty());
    }
}

/// Goes through a shortage and the kill of the dummy. Nobody is told. Returns the memory, which is all memory that the
/// daemon can see.
#[inline(never)] // Its stack would be the daemon's for ever.
pub(super) fn rehearse(system: &mut System, memory: Memory, dummy: Dummy, silent: Notifier) -> Memory {
    let notifier = std::mem::replace(&mut system.notifier, silent);
    let mut control_loop = ControlLoop::<LiveWorld<'_>>::new(system.config(), memory, 1);
    system.rehearse(dummy.pid);
    // The compiler must not make copies of the system's functions, of which only the copies would be in
    // memory.
    let world: &mut LiveWorld<'_> = black_box(system);
    let mut stage =
        Stage { victim: dummy.choice(), at: Duration::ZERO, is_over: false, real: Sample::default(), world };
    // Parked, not asleep, to go through the end of a wait as it is elsewhere in the daemon. What is begun in
    // advance the first time is taken the second time.
    for _ in 0..2 {
        // Even the dummy is large enough, which has hardly any memory.
        stage.prepare(PREPARATION_TIME, Danger::Imminent, 0);
        thread::park_timeout(PREPARATION_TIME);
    }
    stage.warn(control_loop.whole(), control_loop.governor());
    for _ in 0..MAX_STEPS {
        if stage.victim.is_some() {
            control_loop.pressure_reported(stage.at);
        }
        control_loop.step(&mut stage);
        if stage.is_over {
            break;
        }
        thread::park_timeout(STEP_PAUSE);
    }
    control_loop.stop(&mut stage);
    let memory = control_loop.into_whole();
    system.notifier.write_history();
    system.notifier = notifier;
    dummy.end();
    memory
}

/// The system, but for a shortage that is not there, and for the choice of the victim.
struct Stage<'a> {
    world: &'a mut LiveWorld<'a>,
    victim: Option<Choice>,
    at: Duration,
    /// The last sample of the memory as it is.
    real: Sample,
    is_over: bool,
}

impl Observes for Stage<'_> {
    type Memory = Memory;
    type Victim = Choice;

    fn now(&self) -> Duration {
        self.at
    }

    fn sample(&mut self, memory: &Memory) -> Result<Sample, Gone> {
        self.real = self.world.sample(memory)?;
        self.at += SAMPLE_INTERVAL;
        let calm = Sample { at: self.at, stalled: Some([self.at; 2]), ..self.real };
        let short = Sample { available: 0, free: 0, swap_free: 0, ..calm };
        Ok(if self.at > CALM_TIME { short } else { calm })
    }

    fn prepare(&mut self, budget: Duration, danger: Danger, min_bytes: u64) {
        self.world.prepare(budget, danger, min_bytes);
    }

    fn grace_ahead(&self, memory: &Memory, all: Option<SignalFirst>) -> Duration {
        self.world.grace_ahead(memory, all)
    }

    fn choose(&mut self, memory: &Memory, min_bytes: u64) -> Result<Choice, NoVictim> {
        // The real one is let go.
        let _ = self.world.choose(memory, min_bytes);
        self.victim.take().ok_or(NoVictim::None)
    }

    fn gain(&self, victim: &Choice, missing: u64) -> Gain {
        self.world.gain(victim, missing)
    }

    fn gain_for(&self, victim: &Choice, memory: &Memory, missing: u64) -> u64 {
        self.world.gain_for(victim, memory, missing)
    }

    fn signal_first(&self, _victim: &Choice, _all: Option<SignalFirst>) -> Option<SignalFirst> {
        None
    }

    fn gives_back_alone(&self, victim: &Choice) -> bool {
        self.world.gives_back_alone(victim)
    }

    fn recheck(&mut self, victim: Choice, _age: Duration) -> Option<Choice> {
        Some(victim)
    }

    fn has_exited(&self, victim: &Choice) -> bool {
        self.world.has_exited(victim)
    }
}

impl Kills for Stage<'_> {
    type Dying = Dying;

    fn ask_before(
        &mut self,
        victim: &Choice,
        reason: Reason,
        governor: &Governor,
        _limit: Duration,
    ) -> Result<u32, Before> {
        // The helper answers that there was no time, and runs nothing.
        self.world.ask_before(victim, reason, governor, Duration::ZERO)
    }

    fn answer(&mut self, ticket: u32) -> Option<Before> {
        self.world.answer(ticket)
    }

    fn send_first_signal(&mut self, _victim: &Choice, _signal: Signal) {}

    fn kill(&mut self, victim: Choice, reason: Reason, before: Before, governor: &Governor) -> Dying {
        self.world.kill(victim, reason, before, governor)
    }

    fn kill_another(&mut self, _dying: &mut Dying) -> Option<u64> {
        None
    }

    fn comes_back(&self, dying: &Dying, memory: &Memory) -> u64 {
        self.world.comes_back(dying, memory)
    }

    fn progress(&mut self, dying: &mut Dying, _last: &Sample) -> Progress {
        self.world.progress(dying, &self.real)
    }
}

impl Reports for Stage<'_> {
    fn warn(&mut self, memory: &Memory, governor: &Governor) -> bool {
        self.world.warn(memory, governor)
    }

    fn no_kill_helps(&mut self, _memory: &Memory, _reason: Reason, _obstacle: Obstacle, _governor: &Governor) {
        self.is_over = true;
    }

    fn not_killed(&mut self, victim: Choice, reason: Reason, before: Before, ending: Ending, governor: &Governor) {
        self.is_over = true;
        self.world.not_killed(victim, reason, before, ending, governor);
    }

    fn killed(&mut self, memory: &Memory, dying: Dying, ending: Ending, last: &Sample) {
        self.is_over = true;
        self.world.killed(memory, dying, ending, last);
    }
}
