// SPDX-License-Identifier: GPL-2.0-only
//! What the control loop sees, does and reports: on the system, or in a simulation in the tests.
//!
//! Nothing here may allocate, or wait for memory.

use std::time::Duration;

use linux::pidfd::Signal;

use super::governor::Governor;
use super::reason::{Before, Ending, Obstacle, Reason};
use super::sample::Sample;
use crate::choice::{Danger, NoVictim};
use crate::kill::SignalFirst;

/// A memory does not exist any more. A victim that seems to be dying for it still has ended like this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone(pub Ending);

/// What is to be had from a victim. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gain {
    /// What comes back: of the victim, or of its cgroup if that is to be killed as a whole.
    pub bytes: u64,
    /// The processes in its cgroup, itself included.
    pub group_processes: u32,
    /// What they hold together.
    pub group_bytes: u64,
}

/// The state of a victim that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It still has its memory.
    Dying,
    /// The kill is over.
    Ended(Ending),
}

/// What the control loop reads, and whom it chooses.
pub trait Observes {
    /// A memory that can run out: all that the daemon can see, or that of a cgroup with a limit.
    type Memory;
    /// A process, or a cgroup, that was chosen, with a pidfd on it.
    type Victim;

    /// Returns the time.
    fn now(&self) -> Duration;

    /// Reads how a memory stands.
    ///
    /// # Errors
    /// When it cannot be read.
    fn sample(&mut self, memory: &Self::Memory) -> Result<Sample, Gone>;

    /// Has up to `budget` spent on updating what is known of candidates, and from time to time a victim chosen in
    /// advance that gives back `min_bytes` of all memory at least: how often depends on `danger`.
    fn prepare(&mut self, budget: Duration, danger: Danger, min_bytes: u64);

    /// Returns how long the victim that was chosen in advance would have from the first signal to SIGKILL, by its rule;
    /// without one, what `all` have. Does not wait.
    fn grace_ahead(&self, memory: &Self::Memory, all: Option<SignalFirst>) -> Duration;

    /// Chooses the victim whose death gives most of this memory back: a process, or the best one of a cgroup that
    /// holds more. That process, or that cgroup, gives back `min_bytes` at least.
    ///
    /// # Errors
    /// Why there is none.
    fn choose(&mut self, memory: &Self::Memory, min_bytes: u64) -> Result<Self::Victim, NoVictim>;

    /// Returns what is to be had from a victim when `missing` bytes must come back for the shortage to end.
    fn gain(&self, victim: &Self::Victim, missing: u64) -> Gain;

    /// Returns what this victim is sent before SIGKILL: what its rule says, or what `all` are.
    fn signal_first(&self, victim: &Self::Victim, all: Option<SignalFirst>) -> Option<SignalFirst>;

    /// Returns how much of this memory comes back if a victim dies that was chosen for another one, in which `missing`
    /// bytes must come back, in bytes.
    fn gain_for(&self, victim: &Self::Victim, memory: &Self::Memory, missing: u64) -> u64;

    /// Whether its own exit gives its memory back, as no other process shares it.
    fn gives_back_alone(&self, victim: &Self::Victim) -> bool;

    /// Returns what is known now of a victim that was chosen so long ago; `None` if it may not be killed any more.
    fn recheck(&mut self, victim: Self::Victim, age: Duration) -> Option<Self::Victim>;

    /// Whether a victim that was sent the first signal has exited.
    fn has_exited(&self, victim: &Self::Victim) -> bool;
}

/// What the control loop does to victims.
pub trait Kills: Observes {
    /// A victim that was killed, and those that were killed with it, until their memory is back.
    type Dying;

    /// Has the command run that runs before a kill, for `limit` at most, and returns a ticket for [`Self::answer`].
    ///
    /// # Errors
    /// What takes the place of an answer.
    fn ask_before(
        &mut self,
        victim: &Self::Victim,
        reason: Reason,
        governor: &Governor,
        limit: Duration,
    ) -> Result<u32, Before>;

    /// Returns what came of that command, once; `None` as long as it runs.
    fn answer(&mut self, ticket: u32) -> Option<Before>;

    /// Sends the victim a signal that asks it to end.
    fn send_first_signal(&mut self, victim: &Self::Victim, signal: Signal);

    /// Kills the victim and begins to get its memory back. `before` is what came of the command that runs before.
    fn kill(&mut self, victim: Self::Victim, reason: Reason, before: Before, governor: &Governor) -> Self::Dying;

    /// Kills the next best process in the same cgroup as well, and returns how many bytes come back; `None` when there
    /// is none.
    fn kill_another(&mut self, dying: &mut Self::Dying) -> Option<u64>;

    /// Returns how much of this memory comes back when a victim that was killed for another one is dead, in bytes.
    fn comes_back(&self, dying: &Self::Dying, memory: &Self::Memory) -> u64;

    /// Returns the state of the victim, by the last sample of the memory that it was killed for.
    fn progress(&mut self, dying: &mut Self::Dying, last: &Sample) -> Progress;
}

/// What the control loop tells people and programs.
pub trait Reports: Kills {
    /// Warns that a kill may come soon, and returns true; false when it is not known yet whom it would hit.
    fn warn(&mut self, memory: &Self::Memory, governor: &Governor) -> bool;

    /// Reports why no kill ends a shortage. Called once per shortage.
    fn no_kill_helps(&mut self, memory: &Self::Memory, reason: Reason, obstacle: Obstacle, governor: &Governor);

    /// A victim is not sent SIGKILL: it is spared, or has ended when it was asked to.
    fn not_killed(&mut self, victim: Self::Victim, reason: Reason, before: Before, ending: Ending, governor: &Governor);

    /// The end of a kill, or of the wait for it. `last` is the last sample of the memory that it was for.
    fn killed(&mut self, memory: &Self::Memory, dying: Self::Dying, ending: Ending, last: &Sample);
}

/// All of that.
pub trait World: Reports {}
impl<T: Reports> World for T {}
