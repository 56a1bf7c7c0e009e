// SPDX-License-Identifier: GPL-2.0-only
//! The daemon's control loop: samples every memory that is watched, and acts.
//!
//! All that it sees and does goes through [`World`], so that the same code runs on the system and in a
//! simulation of many days.

use std::iter;
use std::time::Duration;

use super::governor::Governor;
#[cfg(any(test, feature = "simulation"))]
use super::governor::Thresholds;
use super::reason::Ending;
use super::watch::{Common, SAME_SHORTAGE_WINDOW, Watch};
use super::world::{Gone, World};
use crate::choice::Danger;
use crate::config::Config;

/// The time until the next sample divided by this is spent on updating what is known of candidates.
const PREPARE_DIVISOR: u32 = 50;

/// Keeps memories from running out.
pub struct ControlLoop<W: World + ?Sized> {
    /// All memory that the daemon can see: the machine's, or in a container its limit.
    whole: Box<Watch<W>>,
    /// Cgroups that are close to their limits.
    limits: Vec<Watch<W>>,
    common: Common,
}

/// When [`ControlLoop::step`] is to be called next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When the kernel reports pressure.
    Rest,
    /// After this time.
    After(Duration),
}

impl<W: World + ?Sized> ControlLoop<W> {
    /// A control loop for all memory, and for at most `max_limits` cgroups.
    pub fn new(config: &Config, whole: W::Memory, max_limits: usize) -> Self {
        Self {
            whole: Box::new(Watch::new(whole, Governor::new(config.act.clone()))),
            limits: Vec::with_capacity(max_limits),
            common: Common::new(config),
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Watch<W>> {
        iter::once(&mut *self.whole).chain(&mut self.limits)
    }

    /// Decides by other numbers.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn try_out(&mut self, thresholds: Thresholds) {
        self.whole.governor = self.whole.governor.clone().with(thresholds);
    }

    /// Takes another configuration. Kills that have begun go on.
    pub fn reconfigure(&mut self, config: &Config, world: &mut W) {
        (self.common.settings, self.common.polite_interval) = (config.kill.clone(), config.act.polite_interval);
        self.all().for_each(|watch| watch.reconfigure(&config.act));
        if !config.act.cgroups {
            self.limits.drain(..).for_each(|mut watch| watch.give_up(Ending::Late, world));
        }
    }

    /// Returns all memory that the daemon can see.
    pub fn whole(&self) -> &W::Memory {
        &self.whole.memory
    }

    /// Ends the control loop, and returns all memory that the daemon can see.
    pub fn into_whole(self) -> W::Memory {
        self.whole.memory
    }

    /// Returns the governor of all memory.
    pub fn governor(&self) -> &Governor {
        &self.whole.governor
    }

    /// Returns the cgroups that are watched.
    pub fn limits(&self) -> impl Iterator<Item = &W::Memory> {
        self.limits.iter().map(|watch| &watch.memory)
    }

    /// Whether one more cgroup can be watched.
    pub fn has_room(&self) -> bool {
        self.limits.len() < self.limits.capacity()
    }

    /// Watches a cgroup, if there is room.
    pub fn watch(&mut self, limit: W::Memory) {
        if self.has_room() {
            self.limits.push(Watch::new(limit, self.whole.governor.for_another()));
        }
    }

    /// Stops watching cgroups that are no longer close to their limits.
    pub fn forget_relieved(&mut self) {
        self.limits.retain(|watch| !watch.has_enough());
    }

    /// The daemon stops, and waits for no victim.
    pub fn stop(&mut self, world: &mut W) {
        self.all().for_each(|watch| watch.give_up(Ending::Late, world));
    }

    /// Whether there is time for what may wait for memory: for all memory no kill is imminent, and none was just now.
    /// At a limit it can be so for ever.
    pub fn may_wait(&self, now: Duration) -> bool {
        self.governor().danger() != Danger::Imminent
            && self.whole.last_kill.is_none_or(|at| now.saturating_sub(at) >= SAME_SHORTAGE_WINDOW)
    }

    /// The kernel has reported pressure.
    pub fn pressure_reported(&mut self, now: Duration) {
        self.all().for_each(|watch| watch.governor.pressure_reported(now));
    }

    /// Samples all memories once, and acts.
    pub fn step(&mut self, world: &mut W) -> Next {
        let common = &mut self.common;
        let from_others = self.limits.iter().map(|other| other.gives_to(&self.whole.memory, world)).sum();
        // What cannot be read now may be the next time.
        let mut next = self.whole.step(from_others, common, world).ok().flatten();
        let mut i = 0;
        while let Some(watch) = self.limits.get(i) {
            let (before, after) = (&self.limits[..i], &self.limits[i + 1..]);
            let others = iter::once(&*self.whole).chain(before).chain(after);
            let from_others = others.map(|other| other.gives_to(&watch.memory, world)).sum();
            match self.limits[i].step(from_others, common, world) {
                Ok(pause) => {
                    next = [next, pause].into_iter().flatten().min();
                    i += 1;
                }
                Err(Gone(dying)) => self.limits.remove(i).give_up(dying, world),
            }
        }
        let Some(pause) = next else { return Next::Rest };
        // A victim that is chosen in advance is one for all memory.
        let min_bytes = self.whole.last.min_victim_bytes();
        world.prepare(pause / PREPARE_DIVISOR, self.governor().danger(), min_bytes);
        Next::After(pause)
    }
}
