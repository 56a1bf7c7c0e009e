// SPDX-License-Identifier: GPL-2.0-only
//! What the control loop sees and does: the system, or a simulation in the tests.

use std::time::Duration;

use linux::pidfd::Signal;

use super::governor::Governor;
use super::reason::{Ending, Reason};
use super::sample::Sample;
use crate::choice::{Danger, NoVictim};
use crate::kill::SignalFirst;

/// The state of a victim that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It still has its memory.
    Dying,
    /// The kill is over.
    Ended(Ending),
}

/// What the control loop sees and does. Nothing here may allocate, or wait for memory. `memory` is the index of
/// one of the memories that are watched; 0 is the machine's, or in a container its limit.
pub trait World {
    /// A process, or a cgroup, that was chosen, with a pidfd on it.
    type Victim;

    /// Returns the time.
    fn now(&self) -> Duration;

    /// Reads how a memory stands; `None` when it does not exist any more.
    fn sample(&mut self, memory: usize) -> Option<Sample>;

    /// Has up to `budget` spent on updating what is known of candidates, and from time to time a victim chosen in
    /// advance: how often depends on `danger`.
    fn prepare(&mut self, budget: Duration, danger: Danger);

    /// Returns how long the victim that was chosen in advance would have from the first signal to SIGKILL, by its rule;
    /// without one, what `all` have. Does not wait.
    fn grace_ahead(&self, memory: usize, all: Option<SignalFirst>) -> Duration;

    /// Chooses the victim whose death gives most of this memory back: a process, or the best one of a cgroup that
    /// holds more. That process, or that cgroup, gives back [`Sample::min_victim_bytes`] at least.
    ///
    /// # Errors
    /// Why there is none.
    fn choose(&mut self, memory: usize) -> Result<Self::Victim, NoVictim>;

    /// Returns how many bytes come back when this victim is killed.
    fn bytes_back(&self, victim: &Self::Victim, governor: &Governor) -> u64;

    /// Returns how many processes there are in the victim's cgroup, and how many bytes they hold together.
    fn group_size(&self, victim: &Self::Victim) -> (u32, u64);

    /// Warns that a kill may come soon, and returns true; false when it is not known yet whom it would hit.
    fn warn(&mut self, memory: usize, governor: &Governor) -> bool;

    /// Reports why there is no victim, or, with `None`, that kills did not help. Called once per shortage.
    fn no_kill_helps(&mut self, memory: usize, reason: Reason, why: Option<NoVictim>, governor: &Governor);

    /// Returns what this victim is sent before SIGKILL: what its rule says, or what `all` are.
    fn signal_first(&self, victim: &Self::Victim, all: Option<SignalFirst>) -> Option<SignalFirst>;

    /// Sends the victim a signal that asks it to end.
    fn send_first_signal(&mut self, memory: usize, victim: &Self::Victim, signal: Signal);

    /// Returns what is known now of a victim that was sent the first signal; `None` if it may not be killed any more.
    fn recheck(&mut self, victim: Self::Victim) -> Option<Self::Victim>;

    /// Kills the victim and begins to get its memory back.
    fn kill(&mut self, memory: usize, victim: Self::Victim, reason: Reason, governor: &Governor);

    /// Kills the next best process in the cgroup of the victim that was last killed for this memory, and
    /// returns how many bytes come back; `None` when there is none.
    fn kill_another(&mut self, memory: usize) -> Option<u64>;

    /// Returns the state of the victim that was last killed for this memory.
    fn progress(&mut self, memory: usize) -> Progress;

    /// Whether a victim that was sent the first signal has exited.
    fn has_exited(&mut self, victim: &Self::Victim) -> bool;

    /// The end of a kill, or of the wait for it.
    fn finish(&mut self, memory: usize, ending: Ending);
}
