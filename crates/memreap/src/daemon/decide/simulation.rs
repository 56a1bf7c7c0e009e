// SPDX-License-Identifier: GPL-2.0-only
//! A simulated machine for the control loop: days of hostile events in a second, the same every time.

// What only the tests do is not dead.
#![cfg_attr(not(test), allow(dead_code))]

#[cfg(test)]
mod tests;

use std::time::Duration;

use linux::pidfd::Signal;

use super::control_loop::{ControlLoop, Next};
use super::governor::{BLIND_INTERVAL, Governor, REPORT_WINDOW, Thresholds};
use super::reason::{Before, Ending, Obstacle, Reason};
use super::sample::Sample;
use super::world::{Gain, Gone, Kills, Observes, Progress, Reports};
use crate::choice::{Danger, NoVictim};
use crate::config::{Act, Config};
use crate::kill::SignalFirst;

const S: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TOTAL_BYTES: u64 = 2048 * MIB;
const SWAP_BYTES: u64 = 1024 * MIB;
/// Machines of these sizes are simulated.
const SIZES: [u64; 4] = [512 * MIB, 2 * GIB, 64 * GIB, 1024 * GIB];
/// Limited cgroups that are watched, at most.
const MAX_LIMITS: usize = 4;
/// The time step of the simulation.
const MOMENT: Duration = Duration::from_millis(5);
/// Time at no memory at all after which the kernel's own OOM killer would have acted.
const TOO_LATE: Duration = Duration::from_secs(5);

/// A process as by a pidfd: by an ID that is never reused, unlike its PID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handle {
    pid: usize,
    id: u64,
    /// What it had when it was chosen.
    bytes: u64,
}

#[derive(Clone, Debug)]
struct Proc {
    /// The lowest that is free: one that ends leaves its own to the next.
    pid: usize,
    id: u64,
    /// The limited cgroup that it is in.
    group: Option<u64>,
    bytes: u64,
    /// Bytes per second, until `cap`.
    rate: u64,
    cap: u64,
    /// The time it needs to exit once it is killed; `None` is for ever (D state).
    exit: Option<Duration>,
    /// When its exit ends.
    dying: Option<Option<Duration>>,
}

#[derive(Debug)]
struct Made {
    id: u64,
    at: Duration,
    /// It was in a limited cgroup.
    is_limited: bool,
    /// How fast it grew; who did not is an innocent.
    rate: u64,
    headroom: u64,
    before: Before,
}

/// What the command before a kill does.
#[derive(Clone, Copy, Debug)]
struct Hook {
    /// How long it takes.
    takes: Duration,
    says: Before,
    /// What it has its cache give back each time, in bytes.
    frees: u64,
}

/// A cgroup with a limit.
#[derive(Debug)]
struct Group {
    id: u64,
    limit: u64,
    stalled: Duration,
    starved: Duration,
}

struct Sim {
    now: Duration,
    /// All memory of the machine.
    total: u64,
    /// What the kernel, its caches and processes that never change take.
    base: u64,
    /// What of it no kill frees: tmpfs, huge pages, the kernel's.
    unfreeable: u64,
    /// The kernel reports pressure.
    psi: bool,
    /// A process that ends is started again.
    restarts: bool,
    /// All processes are in one cgroup, which has no limit.
    together: bool,
    /// So many processes that are killed leave their memory to another one, which is like them.
    sharers: u32,
    /// Who must not be killed.
    spared: Option<u64>,
    procs: Vec<Proc>,
    groups: Vec<Group>,
    /// How long everything that is read of /proc takes.
    slow: Duration,
    /// How many of the next choices are late.
    late: u32,
    /// While the next victim is chosen, this one exits.
    leaves: Option<u64>,
    /// The process that is chosen next exits at that moment, and a harmless one gets its PID.
    slips: bool,
    /// How much of a page compression saves; 1 is swap on a disk.
    saves: f64,
    swap_bytes: u64,
    swapped: u64,
    stalled: Duration,
    starved: Duration,
    reclaimed: bool,
    next_id: u64,
    kills: Vec<Made>,
    endings: Vec<Ending>,
    warnings: u32,
    /// The greatest for which a victim was to be chosen in advance.
    danger: Danger,
    /// How often it was told that no kill helps.
    complaints: u32,
    searches: u32,
    asked: Vec<(u64, Signal)>,
    /// What the rule of each victim has it sent first.
    signal_first: Option<SignalFirst>,
    deaf: bool,
    /// The command before a kill.
    hook: Option<Hook>,
    /// When each of its runs began.
    hooked: Vec<Duration>,
    /// What came of the kills that were averted.
    averted: Vec<Before>,
    /// The longest time between two samples while it ran.
    longest_pause: Duration,
    sampled: Duration,
}

impl Sim {
    fn new(saves: f64) -> Self {
        Self {
            now: Duration::ZERO,
            total: TOTAL_BYTES,
            base: TOTAL_BYTES / 4,
            unfreeable: 0,
            psi: true,
            restarts: false,
            together: false,
            sharers: 0,
            spared: None,
            procs: Vec::new(),
            groups: Vec::new(),
            slow: Duration::ZERO,
            late: 0,
            leaves: None,
            slips: false,
            saves,
            swap_bytes: SWAP_BYTES,
            swapped: 0,
            stalled: Duration::ZERO,
            starved: Duration::ZERO,
            reclaimed: false,
            next_id: 1,
            kills: Vec::new(),
            endings: Vec::new(),
            warnings: 0,
            danger: Danger::None,
            complaints: 0,
            searches: 0,
            asked: Vec::new(),
            signal_first: None,
            deaf: false,
            hook: None,
            hooked: Vec::new(),
            averted: Vec::new(),
            longest_pause: Duration::ZERO,
            sampled: Duration::ZERO,
        }
    }

    fn spawn(&mut self, bytes: u64, rate: u64, cap: u64) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let exit = Some(Duration::from_millis(20 + bytes / (20 * MIB)));
        let pid =
            (1..).find(|pid| self.procs.iter().all(|p| p.pid != *pid)).expect("there are fewer processes than numbers");
        self.procs.push(Proc { pid, id, group: None, bytes, rate, cap, exit, dying: None });
        id
    }

    /// A cgroup with a limit, and in it a harmless process and one that grows.
    fn spawn_group(&mut self, limit: u64, rate: u64) -> [u64; 2] {
        let group = self.next_id;
        let zero = Duration::ZERO;
        self.groups.push(Group { id: group, limit, stalled: zero, starved: zero });
        let members = [self.spawn(limit / 8, 0, 0), self.spawn(MIB, rate, u64::MAX)];
        for p in self.procs.iter_mut().filter(|p| members.contains(&p.id)) {
            p.group = Some(group);
        }
        members
    }

    /// All cgroups are removed, with all who are in them.
    fn remove_groups(&mut self) {
        self.procs.retain(|p| p.group.is_none());
        self.groups.clear();
    }

    /// What is left of a cgroup's limit.
    fn room(&self, group: &Group) -> u64 {
        let used: u64 = self.procs.iter().filter(|p| p.group == Some(group.id)).map(|p| p.bytes).sum();
        group.limit.saturating_sub(used)
    }

    /// Time passes while files are read.
    fn read(&mut self) {
        let end = self.now + self.slow;
        while self.now < end {
            self.tick();
        }
    }

    fn find(&self, handle: Handle) -> Option<&Proc> {
        self.procs.iter().find(|p| (p.pid, p.id) == (handle.pid, handle.id))
    }

    /// Kills the process behind a pidfd.
    fn end(&mut self, handle: Handle) -> bool {
        let now = self.now;
        let Some(p) = self.procs.iter_mut().find(|p| (p.pid, p.id) == (handle.pid, handle.id)) else {
            return false;
        };
        if self.sharers > 0 {
            self.sharers -= 1;
        } else {
            p.dying = Some(p.exit.map(|time| now + time));
        }
        true
    }

    fn get(&mut self, id: u64) -> Option<&mut Proc> {
        self.procs.iter_mut().find(|p| p.id == id)
    }

    fn used(&self) -> u64 {
        self.base + self.unfreeable + self.procs.iter().map(|p| p.bytes).sum::<u64>()
    }

    fn available(&self) -> u64 {
        let compressed = (self.swapped as f64 * (1.0 - self.saves)) as u64;
        self.total.saturating_sub(self.used() - self.swapped.min(self.used()) + compressed)
    }

    /// One moment passes.
    fn tick(&mut self) {
        self.now += MOMENT;
        let now = self.now;
        let ended = |p: &Proc| matches!(p.dying, Some(Some(end)) if end <= now);
        let ends: Vec<u64> = self.procs.iter().filter(|p| ended(p)).map(|p| p.bytes).collect();
        self.procs.retain(|p| !ended(p));
        if self.restarts {
            for bytes in ends {
                self.spawn(bytes, 0, 0);
            }
        }
        let room = self.available();
        let grows = move |p: &Proc| p.dying.is_none() && p.rate > 0 && p.bytes < p.cap;
        let wanted: u64 = self
            .procs
            .iter()
            .filter(|p| grows(p))
            .map(|p| (p.rate as f64 * MOMENT.as_secs_f64()) as u64)
            .map(|grow| grow.min(self.total))
            .sum();
        self.reclaimed = room < self.total / 20;
        if self.reclaimed && wanted > 0 && self.swapped < self.swap_bytes {
            // Reclaim swaps out as much as gains what is asked for, if that is possible.
            let out = (wanted as f64 / if self.saves < 0.1 { 1.0 } else { self.saves }) as u64;
            self.swapped = (self.swapped + out).min(self.swap_bytes).min(self.used());
        }
        let room = self.available();
        let limits: Vec<(u64, u64)> = self.groups.iter().map(|g| (g.id, self.room(g))).collect();
        for p in self.procs.iter_mut().filter(|p| p.dying.is_none()) {
            let limit = limits.iter().find(|(id, _)| p.group == Some(*id)).map_or(u64::MAX, |(_, room)| *room);
            let grow = ((p.rate as f64 * MOMENT.as_secs_f64()) as u64).min(room / 4).min(limit / 4);
            p.bytes = (p.bytes + grow).min(p.cap.max(p.bytes));
        }
        self.swapped = self.swapped.min(self.used() - self.base - self.unfreeable);
        // Tasks that do not allocate stall only when code is read from disk again and again.
        if room < (self.total / 50).min(GIB) {
            // Who allocates slowly hardly waits.
            let reclaimable = self.total as f64 / 80.0 * MOMENT.as_secs_f64();
            let share = if self.unfreeable > 0 { 1.0 } else { (wanted as f64 / reclaimable).min(1.0) };
            self.stalled += MOMENT.mul_f64(share);
        }
        let hopeless = room < (self.total / 200).min(128 * MIB) && self.procs.iter().any(grows);
        self.starved = if hopeless { self.starved + MOMENT } else { Duration::ZERO };
        for group in &mut self.groups {
            let room = limits.iter().find(|(id, _)| *id == group.id).map_or(0, |(_, room)| *room);
            let grows = |p: &Proc| p.group == Some(group.id) && grows(p);
            let short = room < group.limit / 50 && self.procs.iter().any(grows);
            if short {
                group.stalled += MOMENT;
            }
            self.reclaimed |= short;
            group.starved = if short { group.starved + MOMENT } else { Duration::ZERO };
            self.starved = self.starved.max(group.starved);
        }
    }
}

impl Observes for Sim {
    /// The cgroup whose limit it is; `None` for the machine's.
    type Memory = Option<u64>;
    type Victim = Handle;

    fn now(&self) -> Duration {
        self.now
    }

    fn sample(&mut self, memory: &Option<u64>) -> Result<Sample, Gone> {
        self.read();
        if self.hooked.last().is_some_and(|began| self.sampled >= *began) && self.kills.is_empty() {
            self.longest_pause = self.longest_pause.max(self.now - self.sampled);
        }
        self.sampled = self.now;
        if let Some(id) = *memory {
            let group = self.groups.iter().find(|group| group.id == id).ok_or(Gone(Ending::Back))?;
            return Ok(Sample {
                at: self.now,
                total: group.limit,
                is_limit: true,
                available: self.room(group),
                stalled: Some([group.stalled; 2]),
                ..Sample::default()
            });
        }
        Ok(Sample {
            at: self.now,
            total: self.total,
            available: self.available(),
            free: 0,
            swap_total: self.swap_bytes,
            swap_free: self.swap_bytes - self.swapped,
            stalled: self.psi.then_some([self.stalled; 2]),
            ..Sample::default()
        })
    }

    fn prepare(&mut self, _budget: Duration, danger: Danger, _min_bytes: u64) {
        self.danger = self.danger.max(danger);
    }

    fn grace_ahead(&self, _memory: &Option<u64>, all: Option<SignalFirst>) -> Duration {
        self.signal_first.or(all).map_or(Duration::ZERO, |first| first.grace)
    }

    fn choose(&mut self, group: &Option<u64>, min_bytes: u64) -> Result<Handle, NoVictim> {
        self.searches += 1;
        self.read();
        if let Some(id) = self.leaves.take() {
            self.procs.retain(|p| p.id != id);
        }
        if self.late > 0 {
            self.late -= 1;
            return Err(NoVictim::Late);
        }
        let may = |p: &&Proc| p.dying.is_none() && Some(p.id) != self.spared && (group.is_none() || p.group == *group);
        // As much must come back, of a group all together.
        let all: u64 = if self.together { self.procs.iter().filter(may).map(|p| p.bytes).sum() } else { 0 };
        let chosen = self
            .procs
            .iter()
            .filter(may)
            .max_by_key(|p| (p.bytes, p.id))
            .filter(|p| p.bytes.max(all) >= min_bytes)
            .ok_or(NoVictim::None)?;
        let handle = Handle { pid: chosen.pid, id: chosen.id, bytes: chosen.bytes };
        if std::mem::take(&mut self.slips) {
            self.procs.retain(|p| p.id != handle.id);
            self.spawn(5 * MIB, 0, 0);
            assert_eq!(self.procs.last().map(|p| p.pid), Some(handle.pid));
        }
        Ok(handle)
    }

    fn gain(&self, victim: &Handle, _missing: u64) -> Gain {
        let bytes = victim.bytes;
        if !self.together {
            return Gain { bytes, group_processes: 1, group_bytes: bytes };
        }
        let all = || self.procs.iter().filter(|p| p.dying.is_none());
        let group_bytes = all().map(|p| p.bytes).sum();
        Gain { bytes, group_processes: all().count() as u32, group_bytes }
    }

    fn gain_for(&self, victim: &Handle, memory: &Option<u64>, _missing: u64) -> u64 {
        self.find(*victim).filter(|p| memory.is_none() || p.group == *memory).map_or(0, |p| p.bytes)
    }

    fn signal_first(&self, _victim: &Handle, all: Option<SignalFirst>) -> Option<SignalFirst> {
        self.signal_first.or(all)
    }

    fn gives_back_alone(&self, _victim: &Handle) -> bool {
        true
    }

    fn recheck(&mut self, victim: Handle, _age: Duration) -> Option<Handle> {
        Some(victim).filter(|victim| Some(victim.id) != self.spared)
    }

    fn has_exited(&self, victim: &Handle) -> bool {
        self.find(*victim).is_none()
    }
}

impl Kills for Sim {
    /// `None` if it was gone before.
    type Dying = Option<Handle>;

    fn ask_before(&mut self, _: &Handle, _: Reason, _: &Governor, _limit: Duration) -> Result<u32, Before> {
        self.hook.ok_or(Before::None)?;
        self.hooked.push(self.now);
        Ok(self.hooked.len() as u32)
    }

    fn answer(&mut self, ticket: u32) -> Option<Before> {
        let hook = self.hook?;
        let began = *self.hooked.get(ticket as usize - 1)?;
        (self.now - began >= hook.takes).then(|| {
            self.base -= hook.frees.min(self.base);
            hook.says
        })
    }

    fn send_first_signal(&mut self, victim: &Handle, signal: Signal) {
        self.asked.push((victim.id, signal));
        if !self.deaf {
            self.end(*victim);
        }
    }

    fn kill(&mut self, victim: Handle, _reason: Reason, before: Before, governor: &Governor) -> Option<Handle> {
        let killed = self.end(victim).then_some(victim);
        if let Some(&Proc { id, rate, group, .. }) = self.find(victim) {
            let is_limited = group.is_some();
            self.kills.push(Made { id, at: self.now, is_limited, rate, headroom: governor.outlook().headroom, before });
        }
        killed
    }

    fn kill_another(&mut self, dying: &mut Option<Handle>) -> Option<u64> {
        dying.filter(|_| self.together)?;
        let headroom = self.kills.last()?.headroom;
        let total = Sample { total: self.total, ..Sample::default() };
        let victim = self.choose(&None, total.min_victim_bytes()).ok()?;
        self.end(victim);
        let &Proc { rate, group, .. } = self.find(victim)?;
        let is_limited = group.is_some();
        self.kills.push(Made { id: victim.id, at: self.now, is_limited, rate, headroom, before: Before::None });
        Some(victim.bytes)
    }

    fn comes_back(&self, dying: &Option<Handle>, memory: &Option<u64>) -> u64 {
        dying.map_or(0, |handle| self.gain_for(&handle, memory, 0))
    }

    fn progress(&mut self, dying: &mut Option<Handle>, _last: &Sample) -> Progress {
        match *dying {
            None => Progress::Ended(Ending::Gone),
            Some(handle) if self.find(handle).is_some_and(|p| p.dying.is_none()) => Progress::Ended(Ending::Late),
            Some(handle) if self.find(handle).is_some() => Progress::Dying,
            Some(_) => Progress::Ended(Ending::Back),
        }
    }
}

impl Reports for Sim {
    fn warn(&mut self, _memory: &Option<u64>, _governor: &Governor) -> bool {
        self.warnings += 1;
        true
    }

    fn no_kill_helps(&mut self, _memory: &Option<u64>, _reason: Reason, _obstacle: Obstacle, _governor: &Governor) {
        self.complaints += 1;
    }

    fn not_killed(&mut self, _victim: Handle, _reason: Reason, before: Before, ending: Ending, _governor: &Governor) {
        match ending {
            Ending::Averted => self.averted.push(before),
            ending => self.endings.push(ending),
        }
    }

    fn killed(&mut self, _memory: &Option<u64>, _dying: Option<Handle>, ending: Ending, _last: &Sample) {
        self.endings.push(ending);
    }
}

/// A world with its control loop.
struct Run {
    sim: Sim,
    control_loop: ControlLoop<Sim>,
    wake: Option<Duration>,
    /// When the kernel last told of pressure.
    told: Duration,
    steps: u64,
}

impl Run {
    fn new(saves: f64, config: &Config) -> Self {
        let control_loop = ControlLoop::new(config, None, MAX_LIMITS);
        Self { sim: Sim::new(saves), control_loop, wake: None, told: Duration::ZERO, steps: 0 }
    }

    /// The world goes on for a time, and the daemon with it.
    fn pass(&mut self, time: Duration) {
        let end = self.sim.now + time;
        self.go_on(|sim| sim.now >= end);
        assert!(self.sim.starved < TOO_LATE, "a kill was missed at {:?}: {:?}", self.sim.now, self.sim.procs);
    }

    /// The same until something is so, or a kill is missed.
    fn go_on(&mut self, until: impl Fn(&Sim) -> bool) {
        while !until(&self.sim) && self.sim.starved < TOO_LATE {
            self.sim.tick();
            // PSI reports once in half a second.
            let pressure = self.sim.psi && self.sim.reclaimed && self.sim.now - self.told >= REPORT_WINDOW;
            if pressure {
                self.told = self.sim.now;
                self.control_loop.pressure_reported(self.sim.now);
                for limit in self.sim.groups.iter().map(|group| Some(group.id)) {
                    if !self.control_loop.limits().any(|watched| *watched == limit) {
                        self.control_loop.watch(limit);
                    }
                }
            }
            if pressure || self.wake.is_some_and(|at| at <= self.sim.now) {
                self.step();
            }
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        self.wake = match self.control_loop.step(&mut self.sim) {
            Next::Rest if !self.sim.psi => Some(self.sim.now + BLIND_INTERVAL),
            Next::Rest => self.control_loop.governor().longest_rest().map(|rest| self.sim.now + rest),
            Next::After(pause) => Some(self.sim.now.saturating_add(pause)),
        };
        // The next kill may come at once.
        let has_just_killed = self.sim.kills.last().is_some_and(|kill| !kill.is_limited && self.sim.now - kill.at < S);
        assert!(!has_just_killed || !self.control_loop.may_wait(self.sim.now));
    }

    fn pass_until_a_kill(&mut self) {
        while self.sim.kills.is_empty() {
            self.pass(MOMENT);
        }
    }

    /// The daemon is stopped and continued: the world goes on alone.
    fn sleep(&mut self, time: Duration) {
        let end = self.sim.now + time;
        while self.sim.now < end {
            self.sim.tick();
        }
        self.sim.starved = Duration::ZERO;
        self.step();
    }

    fn killed(&self) -> Vec<u64> {
        self.sim.kills.iter().map(|k| k.id).collect()
    }
}

/// A machine of another size.
fn sized(total: u64, psi: bool, swap_bytes: u64, saves: f64) -> Run {
    let mut run = Run::new(saves, &Config::default());
    run.sim.total = total;
    run.sim.base = total / 4;
    run.sim.psi = psi;
    run.sim.swap_bytes = swap_bytes;
    run.step();
    run
}

/// What happened in a simulated load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated {
    /// Nobody has to die.
    pub fits: bool,
    /// When the first process was killed; `None` if none was.
    pub killed_after: Option<Duration>,
    /// When it was over, or the kernel would have killed.
    pub until: Duration,
}

/// Simulates a governor with other settings and numbers on machines of 512 MiB to 1 TiB, with and without PSI, without
/// swap, with swap on a disk and in zram: a process that takes memory at various speeds, all but a fiftieth of what is
/// available, and gives it back; and one that takes all of it. Returns what happened in each load, in the same order each
/// time.
pub fn try_out(act: &Act, thresholds: Thresholds) -> Vec<Simulated> {
    let config = Config { act: act.clone(), ..Config::default() };
    let mut all = Vec::new();
    for total in SIZES {
        let swaps = [(0, 0.0), (total / 2, 0.0), (total / 2, 0.6), (total, 1.0)];
        let machines = swaps.iter().flat_map(|swap| [true, false].map(|psi| (psi, *swap)));
        for (psi, (swap_bytes, saves)) in machines {
            for (fits, seconds) in [true, false].into_iter().flat_map(|fits| [0.5, 9.0, 60.0].map(|s| (fits, s))) {
                let mut run = sized(total, psi, swap_bytes, saves);
                run.control_loop.reconfigure(&config, &mut run.sim);
                run.control_loop.try_out(thresholds);
                let size = run.sim.available() / 50 * 49;
                let id = run.sim.spawn(MIB, (size as f64 / seconds) as u64, if fits { size } else { u64::MAX });
                // Swap doubles what there is to take, and none is slower than a peak that waits for memory.
                let [took, gone] = [2.0, 6.0].map(|times| Duration::from_secs_f64(times * seconds) + 4 * S);
                run.go_on(|sim| !sim.kills.is_empty() || sim.now >= if fits { took } else { gone });
                if fits {
                    run.sim.procs.retain(|p| p.id != id);
                    let end = run.sim.now + 2 * S;
                    run.go_on(|sim| !sim.kills.is_empty() || sim.now >= end);
                }
                let killed_after = run.sim.kills.first().map(|kill| kill.at);
                all.push(Simulated { fits, killed_after, until: run.sim.now });
            }
        }
    }
    all
}
