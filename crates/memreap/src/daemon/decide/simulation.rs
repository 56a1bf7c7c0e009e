// SPDX-License-Identifier: GPL-2.0-only
//! The control loop in a simulated machine: days of hostile events in a second, the same every time.

use std::time::Duration;

use fastrand::Rng;
use linux::pidfd::Signal;

use super::control_loop::{ControlLoop, Next};
use super::governor::{Advice, Governor};
use super::reason::{Ending, Obstacle, Reason};
use super::sample::Sample;
use super::world::{Gain, Gone, Kills, Observes, Progress, Reports};
use crate::choice::{Danger, NoVictim};
use crate::config::{Act, Config, Level};
use crate::kill::SignalFirst;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TOTAL_BYTES: u64 = 2048 * MIB;
const SWAP_BYTES: u64 = 1024 * MIB;
/// Limited cgroups that are watched, at most.
const MAX_LIMITS: usize = 4;
/// The time step of the simulation.
const MOMENT: Duration = Duration::from_millis(5);
/// How often it steps where the kernel does not tell of pressure.
const BLIND: Duration = Duration::from_millis(250);
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
    /// How fast it grew; who did not is an innocent.
    rate: u64,
    headroom: u64,
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
        }
    }

    fn spawn(&mut self, bytes: u64, rate: u64, cap: u64) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let exit = Some(Duration::from_millis(20 + bytes / (20 * MIB)));
        let pid = (1..).find(|pid| self.procs.iter().all(|p| p.pid != *pid)).unwrap();
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
            let limit =
                limits.iter().find(|(id, _)| p.group == Some(*id)).map_or(u64::MAX, |(_, room)| *room);
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
        if self.late > 0 {
            self.late -= 1;
            return Err(NoVictim::Late);
        }
        let may = |p: &&Proc| {
            p.dying.is_none() && Some(p.id) != self.spared && (group.is_none() || p.group == *group)
        };
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

    fn signal_first(&self, _victim: &Handle, all: Option<SignalFirst>) -> Option<SignalFirst> {
        self.signal_first.or(all)
    }

    fn recheck(&mut self, victim: Handle) -> Option<Handle> {
        Some(victim).filter(|victim| Some(victim.id) != self.spared)
    }

    fn has_exited(&self, victim: &Handle) -> bool {
        self.find(*victim).is_none()
    }
}

impl Kills for Sim {
    /// `None` if it was gone before.
    type Dying = Option<Handle>;

    fn send_first_signal(&mut self, victim: &Handle, signal: Signal) {
        self.asked.push((victim.id, signal));
        if !self.deaf {
            self.end(*victim);
        }
    }

    fn kill(&mut self, victim: Handle, _reason: Reason, governor: &Governor) -> Option<Handle> {
        let killed = self.end(victim).then_some(victim);
        if let Some(&Proc { id, rate, .. }) = self.find(victim) {
            self.kills.push(Made { id, at: self.now, rate, headroom: governor.outlook().headroom });
        }
        killed
    }

    fn kill_another(&mut self, dying: &mut Option<Handle>) -> Option<u64> {
        dying.filter(|_| self.together)?;
        let headroom = self.kills.last()?.headroom;
        let total = Sample { total: self.total, ..Sample::default() };
        let victim = self.choose(&None, total.min_victim_bytes()).ok()?;
        self.end(victim);
        let rate = self.find(victim)?.rate;
        self.kills.push(Made { id: victim.id, at: self.now, rate, headroom });
        Some(victim.bytes)
    }

    fn progress(&mut self, dying: &mut Option<Handle>, _last: &Sample) -> Progress {
        match *dying {
            None => Progress::Ended(Ending::Gone),
            Some(handle) if self.find(handle).is_some_and(|p| p.dying.is_none()) => {
                Progress::Ended(Ending::Late)
            }
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

    fn no_kill_helps(
        &mut self,
        _memory: &Option<u64>,
        _reason: Reason,
        _obstacle: Obstacle,
        _governor: &Governor,
    ) {
        self.complaints += 1;
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
        while self.sim.now < end {
            self.sim.tick();
            assert!(
                self.sim.starved < TOO_LATE,
                "a kill was missed at {:?}: {:?}",
                self.sim.now,
                self.sim.procs
            );
            // PSI reports once in half a second.
            let pressure =
                self.sim.psi && self.sim.reclaimed && self.sim.now - self.told >= Duration::from_millis(500);
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
            Next::Rest => (!self.sim.psi).then_some(self.sim.now + BLIND),
            Next::After(pause) => Some(self.sim.now + pause),
        };
        // The next kill may come at once.
        let has_just_killed = self.sim.kills.last().is_some_and(|kill| self.sim.now - kill.at < S);
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

const S: Duration = Duration::from_secs(1);

#[test]
fn a_hog_is_killed_once_and_soon() {
    // From what cannot be compressed to what can be well.
    for saves in [0.0, 0.3, 0.67] {
        for rate in [50, 200, 1000, 4000] {
            let mut run = Run::new(saves, &Config::default());
            run.sim.spawn(300 * MIB, 0, 0);
            let hog = run.sim.spawn(10 * MIB, rate * MIB, u64::MAX);
            run.pass(120 * S);
            assert_eq!(run.killed(), [hog], "{saves} {rate}");
            assert_eq!(run.sim.endings, [Ending::Back]);
            assert!(run.sim.stalled < 2 * S, "{saves} {rate}: stalled {:?}", run.sim.stalled);
        }
    }
}

#[test]
fn a_hog_is_killed_long_before_swap_that_frees_nothing_is_full() {
    let mut run = Run::new(0.0, &Config::default());
    run.sim.spawn(10 * MIB, 400 * MIB, u64::MAX);
    run.pass(60 * S);
    assert!(run.sim.kills[0].headroom > SWAP_BYTES / 4, "{:?}", run.sim.kills);
}

/// A process takes all but a fiftieth of what is available, keeps it and gives it back.
fn peak(run: &mut Run, seconds_to_take: f64) {
    let size = run.sim.available() / 50 * 49;
    let id = run.sim.spawn(MIB, (size as f64 / seconds_to_take) as u64, size);
    run.pass(Duration::from_secs_f64(2.0 * seconds_to_take) + 4 * S);
    assert_eq!(run.sim.get(id).map(|p| p.bytes), Some(size), "{size}: {:?}", run.sim.kills);
    run.sim.procs.retain(|p| p.id != id);
    run.pass(2 * S);
}

#[test]
fn a_peak_that_fits_costs_no_life() {
    for total in SIZES {
        for (psi, swap, saves) in [
            (true, 0, 0.0),
            (false, 0, 0.0),
            (true, total / 2, 0.0),
            (true, total / 2, 0.6),
            (true, total, 1.0),
        ] {
            for seconds in [0.5, 9.0, 60.0] {
                let mut run = sized(total, psi, swap, saves);
                peak(&mut run, seconds);
                assert_eq!(run.killed(), [0; 0], "{total} {psi} {swap} {saves} {seconds}");
            }
        }
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

const SIZES: [u64; 4] = [512 * MIB, 2 * GIB, 64 * GIB, 1024 * GIB];

/// Processes come, take memory at any rate up to what there is, and go: nobody has to die. More days by
/// `MEMREAP_SIMULATED_DAYS=200 cargo test --release -p memreap benign`.
#[test]
fn benign_days() {
    let days = std::env::var("MEMREAP_SIMULATED_DAYS").map_or(1, |text| text.parse().unwrap());
    for total in SIZES {
        let mut rng = Rng::with_seed(total);
        let psi = rng.u8(..4) != 0;
        let mut run = sized(total, psi, total / 2 * rng.u64(..2), 0.5);
        while run.sim.now < days * 24 * 3600 * S {
            run.step();
            let available = run.sim.available();
            for _ in 0..rng.u64(0..=3) {
                let cap = rng.u64(available / 100..=available / 5);
                run.sim.spawn(cap / 10, cap / rng.u64(1..=40), cap);
                run.pass(Duration::from_millis(rng.u64(0..=10_000)));
            }
            // The last one takes nearly all that the others leave.
            let taken: u64 = run.sim.procs.iter().map(|p| p.cap).sum();
            let cap = available - available / rng.u64(5..=50) - taken;
            run.sim.spawn(cap / 10, cap / rng.u64(1..=40), cap);
            run.pass(45 * S);
            if rng.u8(..4) == 0 && run.sim.available() > total / 20 {
                // A balloon driver takes part of what is left, and returns it.
                let taken = run.sim.available() / 3;
                run.sim.total -= taken;
                run.pass(10 * S);
                run.sim.total += taken;
            }
            run.sim.procs.clear();
            // Nothing happens, and time is not simulated.
            run.pass(5 * S);
            run.sim.now += Duration::from_secs(rng.u64(0..=3600));
            assert_eq!(run.killed(), [0; 0], "{total} at {:?}", run.sim.now);
        }
    }
}

/// A machine of 512 GiB, of which many innocents leave 35 GiB: less than 7 %.
fn large(config: &Config) -> Run {
    const INNOCENTS: u64 = 40;
    let mut run = Run::new(0.5, config);
    run.sim.total = 512 * GIB;
    run.sim.swap_bytes = 0;
    for _ in 0..INNOCENTS {
        run.sim.spawn((run.sim.total - run.sim.base - 35 * GIB) / INNOCENTS, 0, 0);
    }
    run
}

#[test]
fn much_that_wavers_is_no_shortage() {
    let shares = Config::parse("c", "act = { low = 10, critical = 1 }").unwrap();
    for config in [Config::default(), shares] {
        let mut run = large(&config);
        for wave in (0..100).flat_map(|_| [16, 32, 48, 32, 16, 0]) {
            let busy = run.sim.spawn(wave * MIB, 0, 0);
            run.step();
            run.pass(S / 10);
            run.sim.procs.retain(|p| p.id != busy);
        }
        assert_eq!((run.killed(), run.sim.stalled), (vec![], Duration::ZERO), "{:?}", run.sim.kills);
    }
}

/// What the governor says to samples that come every 0.1 s: the headroom in MiB, and in percent the time
/// stalled. Returns when it advises a kill first.
fn first_kill(total: u64, seconds: u64, at: impl Fn(u64) -> (u64, u64)) -> Option<(Duration, Reason)> {
    let mut sample = Sample { total, stalled: Some([Duration::ZERO; 2]), ..Sample::default() };
    let samples = (0..seconds * 10).map(|tick| {
        let (available, stalled_percent) = at(tick);
        sample.at += S / 10;
        sample.available = available * MIB;
        sample.stalled =
            sample.stalled.map(|sums| sums.map(|sum| sum + Duration::from_millis(stalled_percent)));
        sample
    });
    first_kill_in(samples, &Act::default())
}

/// Returns when the governor advises a kill first.
fn first_kill_in(samples: impl Iterator<Item = Sample>, act: &Act) -> Option<(Duration, Reason)> {
    first_kill_by(Governor::new(act.clone()), samples)
}

fn first_kill_by(
    mut governor: Governor,
    mut samples: impl Iterator<Item = Sample>,
) -> Option<(Duration, Reason)> {
    samples.find_map(|sample| match governor.observe(sample) {
        Advice::Kill(reason) => Some((sample.at, reason)),
        _ => None,
    })
}

#[test]
fn a_loss_counts_by_what_is_left() {
    let acts = |total: u64, left: u64, per_second: u64| {
        first_kill(total * GIB, 1, |tick| (left + (9 - tick.min(9)) * per_second / 10, 0)).is_some()
    };
    assert!(acts(2, 19, 20) && !acts(2, 19, 0) && !acts(2, 40, 100));
    for total in [64, 512] {
        assert!(acts(total, 250, 20) && !acts(total, 250, 0) && !acts(total, 300, 1000));
    }
}

#[test]
fn what_stalls_without_a_break_while_no_memory_is_available_does_not_fit() {
    // So many MiB of 2 GiB are available and free, and half of the swap; in percent the time that some tasks stalled,
    // and that all did.
    let first_with = |act: &Act, available: u64, free: u64, some: f64, all: f64| {
        let samples = (0..120).map(|tick| {
            let at = S / 10 * tick;
            Sample {
                at,
                total: 2 * GIB,
                available: available * MIB,
                free: free * MIB,
                swap_total: GIB,
                swap_free: GIB / 2,
                stalled: Some([at.mul_f64(some / 100.0), at.mul_f64(all / 100.0)]),
                ..Sample::default()
            }
        });
        first_kill_in(samples, act)
    };
    let (usual, early) = (Act::default(), Act { early_reclaim: true, ..Act::default() });
    let first = |available, free, some, all| first_with(&usual, available, free, some, all);
    let (at, reason) = first(8, 24, 100.0, 80.0).unwrap();
    assert!(reason == Reason::Stall && at >= S / 2 && at <= S * 6 / 10, "{at:?}");
    // In the face-off's peak-zram some task stalled for 81 % of 0.3 s while as much was available.
    assert_eq!(first(8, 24, 90.0, 80.0), None);
    // And in its peak for three seconds without a break, but 40 MiB were available.
    assert_eq!(first(40, 60, 100.0, 80.0), None);
    // Where the kernel reclaims early, that is a hog; what fits stalls for 90 % of half a second at most.
    assert!(first_with(&early, 41, 58, 100.0, 80.0).is_some());
    assert_eq!(first_with(&early, 41, 58, 90.0, 80.0), None);
    // Beside a process that computes on one of two CPUs, not all tasks can stall for more than half of the time.
    assert!(first(8, 24, 100.0, 40.0).is_some() && first(8, 24, 100.0, 20.0).is_none());
    // Without any memory swap is of no use. What is below high watermarks is not available, but there.
    assert!(matches!(first(10, 8, 50.0, 12.0), Some((at, Reason::Critical)) if at < S));
    assert_eq!((first(10, 8, 50.0, 8.0), first(10, 30, 50.0, 12.0)), (None, None));
    // In the face-off's peak-zram as much was free when the kernel began to reclaim.
    assert_eq!(first(7, 18, 90.0, 45.0), None);
    // Samples are far apart when nothing happens: a stall just before the last of them is no long one.
    let mut governor = Governor::new(Act::default());
    for (at, stalled) in [(0, 0), (10_000, 0), (10_100, 100)] {
        let (at, stalled) = (Duration::from_millis(at), Some([Duration::from_millis(stalled); 2]));
        let (total, available, free, swap) = (2 * GIB, 8 * MIB, 24 * MIB, GIB);
        let sample = Sample {
            at,
            total,
            available,
            free,
            swap_total: swap,
            swap_free: swap,
            stalled,
            ..Sample::default()
        };
        assert!(!matches!(governor.observe(sample), Advice::Kill(_)), "at {at:?}");
    }
    // Thrashing that lets tasks run for a third of the time, but without end.
    let thrashing = |available| first_kill(2 * GIB, 60, |tick| (available, [90, 20][tick as usize / 8 % 2]));
    let (at, reason) = thrashing(60).unwrap();
    assert!(reason == Reason::Stall && at > 15 * S, "{at:?}");
    assert_eq!(thrashing(300), None);
    // Most of a second without a break, seen from its beginning on.
    assert_eq!(first_kill(2 * GIB, 12, |tick| (60, if tick < 10 { 100 } else { 50 })), None);
    // What a process that fits causes, again and again.
    assert_eq!(first_kill(2 * GIB, 60, |tick| (60, if tick % 40 < 8 { 100 } else { 25 })), None);
}

#[test]
fn who_is_throttled_by_a_cgroup_makes_no_shortage() {
    // A user's memory.high stalls all tasks that run, while 8 % of memory are available; the kernel scans so many pages
    // every so many samples.
    let first = |pages: u64, every: u64| {
        let samples = (0..600).map(|tick| {
            let at = S / 10 * tick;
            let (total, available, stalled) = (2 * GIB, 160 * MIB, Some([at; 2]));
            let scanned = Some(7 + u64::from(tick) / every * pages);
            Sample { at, total, available, free: 50 * MIB, stalled, scanned, ..Sample::default() }
        });
        first_kill_in(samples, &Act::default())
    };
    assert_eq!(first(0, 1), None);
    // It needs a page now and then anyway.
    assert_eq!(first(32, 250), None);
    // Where the machine thrashes, it scans all the time; on a slow disk with breaks.
    for every in [1, 50] {
        let kill = first(1, every);
        assert!(matches!(kill, Some((at, Reason::Stall)) if at < 20 * S), "{every}: {kill:?}");
    }
}

/// 2 GiB of which 8 MiB and swap are left, all tasks stalling, sampled every so often.
fn stalling(every: Duration, available: u64) -> impl Iterator<Item = Sample> {
    (0..5 * S.as_millis() as u32 / every.as_millis() as u32).map(move |tick| {
        let at = every * tick;
        let (available, free, stalled) = (available * MIB, 24 * MIB, Some([at; 2]));
        let (total, swap_total, swap_free) = (2 * GIB, GIB, GIB / 2);
        Sample { at, total, available, free, swap_total, swap_free, stalled, ..Sample::default() }
    })
}

#[test]
fn the_kernel_does_not_reclaim_early_at_the_limit_of_a_cgroup() {
    let governor = Governor::new(Act { early_reclaim: true, ..Act::default() });
    assert!(first_kill_by(governor.clone(), stalling(S / 10, 41)).is_some());
    let at_limit = |available| stalling(S / 10, available).map(|sample| Sample { is_limit: true, ..sample });
    assert_eq!(first_kill_by(governor.clone(), at_limit(41)), None);
    assert!(first_kill_by(governor, at_limit(8)).is_some());
}

#[test]
fn stalls_are_not_seen_where_only_the_reading_was_late() {
    // Tasks stall for 90 % of the time. After one sample in ten, the hypervisor took the CPU away for 60 ms before PSI
    // was read: that is from later than it seems, and the next sample from sooner after it.
    let first = |percent: f64| {
        let mut governor = Governor::new(Act::default());
        governor.pressure_reported(Duration::ZERO);
        let late = |tick| Duration::from_millis(if tick % 10 == 5 { 60 } else { 0 });
        let samples = stalling(S / 10, 8).zip(0..).map(|(sample, tick)| {
            let stalled = Some([(sample.at + late(tick)).mul_f64(percent / 100.0); 2]);
            Sample { stalled, stalled_within: late(tick), ..sample }
        });
        first_kill_by(governor, samples)
    };
    assert_eq!(first(90.0), None);
    assert!(first(100.0).is_some());
}

#[test]
fn stalls_are_seen_however_often_memory_is_sampled() {
    // Each request for metrics is a reason to sample.
    for every in [100, 10, 2, 1].map(Duration::from_millis) {
        let mut governor = Governor::new(Act::default());
        governor.pressure_reported(Duration::ZERO);
        let first = first_kill_by(governor, stalling(every, 8));
        assert!(matches!(first, Some((at, Reason::Stall)) if at <= S * 6 / 10), "{every:?}: {first:?}");
    }
}

#[test]
fn the_last_of_swap_is_not_waited_for() {
    // MiB of 512 that are available, and of 512 of swap that are free.
    let first = |available: u64, swap: u64, act: &Act| {
        let samples = (0..20).map(|tick| {
            let (at, swap) = (S / 10 * tick, (swap + u64::from(19 - tick)) * MIB);
            let (total, available) = (512 * MIB, available * MIB);
            Sample {
                at,
                total,
                available,
                free: available,
                swap_total: total,
                swap_free: swap,
                stalled: Some([at; 2]),
                ..Sample::default()
            }
        });
        first_kill_in(samples, act)
    };
    let act = Act { stall: 101.0, ..Act::default() };
    // 1 % of memory and 5 % of swap are 30 MiB together.
    assert!(matches!(first(10, 15, &act), Some((_, Reason::Critical))));
    assert_eq!(first(10, 25, &act), None);
    // What the face-off's peak-zram left of memory and swap, 9 % of both together.
    assert_eq!(first(10, 84, &act), None);
}

#[test]
fn memory_that_comes_back_by_itself_is_no_reason_to_kill() {
    // MiB of 2 GiB that were available every 50 ms in a run of the face-off's peak-zram, which fits: the daemon killed
    // after the last of them. For half a second some task had stalled without a break, and all for 95 % of it.
    let recovering = [5, 6, 11, 15, 17, 21, 26, 31, 36, 40, 45, 50, 55, 59, 63];
    let kills = |available: &dyn Fn(usize) -> u64| {
        let samples = (0..recovering.len()).map(|tick| {
            let at = S / 20 * tick as u32;
            Sample {
                at,
                total: 2 * GIB,
                available: available(tick) * MIB,
                free: (available(tick) + 17) * MIB,
                swap_total: GIB,
                swap_free: GIB * 2 / 3,
                stalled: Some([at, at.mul_f64(0.95)]),
                ..Sample::default()
            }
        });
        first_kill_in(samples, &Act { early_reclaim: true, ..Act::default() }).is_some()
    };
    assert!(!kills(&|tick| recovering[tick]));
    // Where a kill was right, it grew by 11 MiB at most.
    assert!(kills(&|tick| 36 + tick as u64) && kills(&|_| 15));
}

#[test]
fn a_hog_is_killed_on_a_large_machine() {
    for rate in [100 * MIB, GIB, 8 * GIB] {
        let mut run = large(&Config::default());
        let hog = run.sim.spawn(10 * MIB, rate, u64::MAX);
        run.pass(600 * S);
        assert_eq!(run.killed(), [hog], "{rate}: {:?}", run.sim.kills);
    }
}

#[test]
fn what_fits_is_left_alone() {
    for saves in [0.0, 0.5] {
        for (rate, cap) in [(4000, 1100), (1000, 1200), (50, 1250)] {
            let mut run = Run::new(saves, &Config::default());
            run.sim.spawn(10 * MIB, rate * MIB, cap * MIB);
            run.pass(60 * S);
            assert_eq!(run.killed(), [0; 0], "{saves} {rate} {cap}: {:?}", run.sim.kills);
        }
    }
}

#[test]
fn a_victim_that_does_not_die_is_left_behind_at_the_deadline() {
    let config = Config::default();
    let mut run = Run::new(0.3, &config);
    let stuck = run.sim.spawn(400 * MIB, 600 * MIB, u64::MAX);
    run.sim.get(stuck).unwrap().exit = None;
    let second = run.sim.spawn(390 * MIB, 100 * MIB, u64::MAX);
    run.pass(30 * S);
    assert_eq!(run.killed(), [stuck, second]);
    assert_eq!(run.sim.endings, [Ending::Late, Ending::Back]);
    assert!(run.sim.kills[1].at - run.sim.kills[0].at >= config.kill.deadline);
}

#[test]
fn who_is_asked_first_has_the_time_that_there_is() {
    let first = |name: &str| SignalFirst { signal: name.parse().unwrap(), grace: 2 * S };
    let (all, of_rule) = (first("SIGTERM"), first("SIGHUP"));
    let mut config = Config::default();
    // Without PSI only the level of memory is a reason to kill.
    for psi in [true, false] {
        for (all, deaf, rule) in [
            (Some(all), false, None),
            (Some(all), true, None),
            (Some(all), true, Some(of_rule)),
            (None, true, Some(of_rule)),
        ] {
            config.kill.signal_first = all;
            let mut run = Run::new(0.5, &config);
            (run.sim.psi, run.sim.deaf, run.sim.signal_first) = (psi, deaf, rule);
            run.step();
            let hog = run.sim.spawn(10 * MIB, 60 * MIB, u64::MAX);
            run.pass(120 * S);
            assert_eq!(run.sim.asked, [(hog, rule.or(all).unwrap().signal.signal())], "{psi} {all:?}");
            assert_eq!(run.killed().len(), usize::from(deaf));
        }
    }
}

#[test]
fn who_is_asked_is_asked_once() {
    let mut config = Config::default();
    config.kill.signal_first = Some(SignalFirst { signal: "SIGTERM".parse().unwrap(), grace: 2 * S });
    let mut run = Run::new(0.5, &config);
    (run.sim.psi, run.sim.deaf, run.sim.swap_bytes) = (false, true, 0);
    run.step();
    // What it takes within two seconds is more than is left when memory is not yet low.
    let hog = run.sim.spawn(10 * MIB, 400 * MIB, u64::MAX);
    run.pass(10 * S);
    assert_eq!((run.sim.asked.len(), run.killed()), (1, vec![hog]));
}

/// A machine, and a process that takes so much per second and was asked in vain, with the time `grace` left.
fn asked_in_vain(rate: u64, grace: Duration) -> (Run, u64) {
    let mut config = Config::default();
    config.kill.signal_first = Some(SignalFirst { signal: "SIGTERM".parse().unwrap(), grace });
    let mut run = Run::new(0.5, &config);
    run.sim.deaf = true;
    let hog = run.sim.spawn(10 * MIB, rate, u64::MAX);
    while run.sim.asked.is_empty() {
        run.pass(S / 10);
    }
    (run, hog)
}

#[test]
fn who_was_asked_is_spared_when_memory_is_back() {
    let (mut run, hog) = asked_in_vain(20 * MIB, 60 * S);
    let hog = run.sim.procs.iter_mut().find(|p| p.id == hog).unwrap();
    (hog.bytes, hog.rate) = (MIB, 0);
    run.pass(120 * S);
    assert_eq!((run.sim.asked.len(), run.killed()), (1, vec![]));
}

#[test]
fn who_was_asked_is_spared_when_exempt_by_then() {
    let (mut run, hog) = asked_in_vain(60 * MIB, 2 * S);
    run.sim.procs.iter_mut().find(|p| p.id == hog).unwrap().rate = 0;
    run.sim.spared = Some(hog);
    run.pass(120 * S);
    assert_eq!((run.sim.asked.len(), run.killed()), (1, vec![]));
}

/// A machine whose memory no kill frees, but for 10 MiB, and this many processes of this size; where the
/// kernel reports pressure or not.
fn crowded(psi: bool, count: u64, bytes: u64) -> Run {
    let mut run = Run::new(0.0, &Config::default());
    run.sim.psi = psi;
    run.sim.swap_bytes = 0;
    run.sim.unfreeable = TOTAL_BYTES - run.sim.base - count * bytes - 10 * MIB;
    for _ in 0..count {
        run.sim.spawn(bytes, 0, 0);
    }
    run.step();
    run
}

/// How many were killed in each of so many minutes.
fn kills_per_minute(run: &mut Run, minutes: usize) -> Vec<usize> {
    let each = |_| {
        let before = run.sim.kills.len();
        run.pass(60 * S);
        run.sim.kills.len() - before
    };
    (0..minutes).map(each).collect()
}

#[test]
fn no_process_is_killed_for_next_to_nothing() {
    for psi in [true, false] {
        let mut run = crowded(psi, 200, MIB);
        assert_eq!(kills_per_minute(&mut run, 3), [0; 3], "PSI: {psi}");
        assert_eq!(run.sim.complaints, 1, "PSI: {psi}");
        // But a process that has memory is, and soon.
        let hog = run.sim.spawn(MIB, 400 * MIB, u64::MAX);
        run.pass(S);
        assert_eq!(run.killed(), [hog], "PSI: {psi}");
    }
}

#[test]
fn many_that_are_too_small_are_killed_together() {
    let mut run = crowded(true, 200, MIB);
    run.sim.together = true;
    run.pass(3 * S);
    assert!(!run.killed().is_empty());
    assert!(run.sim.available() > TOTAL_BYTES / 100, "{} MiB", run.sim.available() / MIB);
    assert_eq!(run.sim.complaints, 0);
}

#[test]
fn a_late_choice_is_asked_for_again_at_once() {
    let mut run = crowded(true, 20, MIB);
    let hog = run.sim.spawn(100 * MIB, 0, 0);
    run.sim.late = 5;
    run.pass(2 * S);
    assert_eq!((run.killed(), run.sim.late), (vec![hog], 0));
}

#[test]
fn a_choice_that_stays_late_is_told_once() {
    let mut run = crowded(true, 20, MIB);
    let hog = run.sim.spawn(100 * MIB, 0, 0);
    run.sim.late = u32::MAX;
    run.pass(S);
    assert_eq!(run.sim.complaints, 0);
    run.pass(20 * S);
    assert_eq!(run.sim.complaints, 1);
    run.sim.late = 0;
    run.pass(S);
    assert_eq!(run.killed(), [hog]);
}

#[test]
fn kills_that_do_not_help_become_rare() {
    // Each comes back as soon as it is dead, in a cgroup with the others or not, or does not have enough for
    // all who die to matter.
    let cases = [(true, 6), (false, 3)];
    for (psi, (restarts, bytes), together) in
        [true, false].into_iter().flat_map(|psi| cases.map(|case| (psi, case, case.0 && !psi)))
    {
        let mut run = crowded(psi, 40, bytes * MIB);
        run.sim.restarts = restarts;
        run.sim.together = together;
        let kills = kills_per_minute(&mut run, 5);
        // The first time some of many die together.
        let most = if together { 12 } else { 6 };
        assert!(kills[0] > 0 && kills[0] <= most, "{psi} {restarts}: {kills:?}");
        assert!(kills[2..].iter().all(|minute| *minute <= 1), "{psi} {restarts}: {kills:?}");
        assert_eq!(run.sim.complaints, u32::from(kills[0] > 1), "{psi} {restarts}");
        // A process that is much larger does not wait for that.
        let hog = run.sim.spawn(MIB, 400 * MIB, u64::MAX);
        let before = run.sim.kills.len();
        run.pass(2 * S);
        let made: Vec<u64> = run.killed().split_off(before);
        assert!(made.contains(&hog), "{psi} {restarts}: {made:?}");
    }
}

#[test]
fn all_that_share_a_memory_are_killed_one_soon_after_the_other() {
    for psi in [true, false] {
        let mut run = Run::new(0.0, &Config::default());
        (run.sim.psi, run.sim.sharers) = (psi, 10);
        let hog = run.sim.spawn(MIB, 400 * MIB, u64::MAX);
        run.step();
        run.pass(10 * S);
        assert_eq!((run.sim.sharers, run.sim.complaints), (0, 0), "PSI: {psi}");
        assert!(run.sim.get(hog).is_none(), "PSI: {psi}");
    }
}

#[test]
fn those_whose_memory_comes_back_are_killed_one_soon_after_the_other() {
    for psi in [true, false] {
        let mut run = Run::new(0.25, &Config::default());
        run.sim.psi = psi;
        run.sim.swap_bytes = 0;
        for _ in 0..15 {
            run.sim.spawn(70 * MIB, 0, 0);
        }
        run.step();
        let camera = run.sim.spawn(10 * MIB, 800 * MIB, 800 * MIB);
        run.sim.spared = Some(camera);
        run.pass(30 * S);
        assert_eq!(run.sim.get(camera).unwrap().bytes, 800 * MIB);
        let pauses: Vec<Duration> = run.sim.kills.windows(2).map(|k| k[1].at - k[0].at).collect();
        assert!(pauses.len() > 1 && pauses.iter().all(|pause| *pause < S / 3), "{psi}: {pauses:?}");
    }
}

#[test]
fn of_many_that_hold_the_memory_together_as_many_die_as_are_missing() {
    // The others take what one gives back, until enough of them are dead.
    for rate in [30, 75, 300, 1200] {
        let mut run = Run::new(0.0, &Config::default());
        run.sim.together = true;
        for _ in 0..300 {
            run.sim.spawn(MIB, rate * MIB / 300, 12 * MIB);
        }
        run.pass(150 * S);
        let killed = run.sim.kills.len();
        assert!(run.sim.available() > TOTAL_BYTES / 100, "{rate}: {killed} killed");
        assert_eq!(run.sim.complaints, 0, "{rate}");
        // No more than necessary: a tenth of memory is to be free, and some of them are killed while others grow.
        let left = (300 - killed as u64) * 12 * MIB;
        assert!(left + run.sim.base > TOTAL_BYTES * 3 / 4, "{rate}: {killed} killed");
    }
}

#[test]
fn a_victim_is_chosen_in_advance_for_the_machine_only() {
    let danger = |grow: &dyn Fn(&mut Sim)| {
        let mut run = Run::new(0.5, &Config::default());
        grow(&mut run.sim);
        run.pass(30 * S);
        assert_eq!(run.sim.kills.len(), 1);
        run.sim.danger
    };
    assert_eq!(danger(&|sim| _ = sim.spawn_group(256 * MIB, 200 * MIB)), Danger::None);
    assert_eq!(danger(&|sim| _ = sim.spawn(10 * MIB, 400 * MIB, u64::MAX)), Danger::Imminent);
}

#[test]
fn a_kill_whose_cgroup_is_removed_is_told() {
    let mut run = Run::new(0.5, &Config::default());
    let [_, hog] = run.sim.spawn_group(256 * MIB, 200 * MIB);
    run.pass_until_a_kill();
    assert!(run.sim.endings.is_empty());
    run.sim.remove_groups();
    run.pass(60 * S);
    assert_eq!((run.killed(), &run.sim.endings[..]), (vec![hog], &[Ending::Back][..]));
}

#[test]
fn a_kill_for_a_cgroup_that_is_no_longer_watched_is_told() {
    let mut run = Run::new(0.5, &Config::default());
    let [_, hog] = run.sim.spawn_group(256 * MIB, 200 * MIB);
    run.pass_until_a_kill();
    let mut config = Config::default();
    config.act.cgroups = false;
    run.control_loop.reconfigure(&config, &mut run.sim);
    assert_eq!((run.killed(), &run.sim.endings[..]), (vec![hog], &[Ending::Late][..]));
}

#[test]
fn a_kill_at_the_end_of_the_daemon_is_told() {
    let mut run = Run::new(0.5, &Config::default());
    let hog = run.sim.spawn(10 * MIB, 400 * MIB, u64::MAX);
    run.pass_until_a_kill();
    run.control_loop.stop(&mut run.sim);
    assert_eq!((run.killed(), &run.sim.endings[..]), (vec![hog], &[Ending::Late][..]));
}

#[test]
fn memory_that_comes_and_goes_disables_nothing() {
    // A balloon driver returns memory and takes it again all the time.
    for (rate, cap) in [(50, u64::MAX), (400, u64::MAX), (400, 1000 * MIB)] {
        let mut run = Run::new(0.3, &Config::default());
        run.sim.spawn(200 * MIB, 0, 0);
        let id = run.sim.spawn(10 * MIB, rate * MIB, cap);
        for moment in 0..12_000 {
            run.sim.total = TOTAL_BYTES - moment % 16 * MIB;
            run.pass(MOMENT);
        }
        let expected = if cap == u64::MAX { vec![id] } else { vec![] };
        assert_eq!(run.killed(), expected, "{rate}: {:?}", run.sim.kills);
        assert!(run.sim.stalled < 2 * S, "{rate}: stalled {:?}", run.sim.stalled);
    }
}

#[test]
fn memory_that_is_taken_away_at_once_is_no_hog() {
    let mut run = Run::new(0.3, &Config::default());
    run.sim.spawn(1150 * MIB, 0, 0);
    run.sim.spawn(10 * MIB, MIB, 20 * MIB);
    run.step();
    run.pass(2 * S);
    run.sim.total -= 340 * MIB;
    run.pass(5 * S);
    assert_eq!(run.killed(), [0; 0], "{:?}", run.sim.kills);
    // Below `low`, so that a forecast would have been acted on.
    let share = run.sim.available() * 100 / run.sim.total;
    assert!(share < 10, "{share}");
}

#[test]
fn memory_is_not_sampled_without_pressure() {
    let mut run = Run::new(0.5, &Config::default());
    run.sim.spawn(600 * MIB, 0, 0);
    run.step();
    run.pass(3600 * S);
    assert!(run.steps < 30, "{} steps", run.steps);
}

#[test]
fn little_memory_that_stays_is_not_sampled() {
    let mut run = Run::new(0.5, &Config::default());
    run.sim.spawn(TOTAL_BYTES - run.sim.base - TOTAL_BYTES / 16, 0, 0);
    run.step();
    run.pass(3600 * S);
    assert!(run.steps < 30 && run.killed().is_empty(), "{} steps, {:?}", run.steps, run.sim.kills);
}

#[test]
fn a_day_of_hostile_events() {
    let day = 24 * 3600 * S;
    for seed in 0..2 {
        let mut rng = Rng::with_seed(seed);
        let config = Config::default();
        let mut run = Run::new(0.4, &config);
        run.sim.spawn(300 * MIB, 0, 0);
        while run.sim.now < day {
            let before = run.sim.kills.len();
            // The watchdog causes a sample.
            run.step();
            run.sim.saves = rng.u64(0..=70) as f64 / 100.0;
            let rate = [20, 50, 150, 500, 2000][rng.usize(0..=4)] * MIB;
            let event = rng.u64(0..=10);
            let expected = match event {
                0 => {
                    run.sim.spawn(5 * MIB, rate, u64::MAX);
                    1
                }
                1 => {
                    // Comes, stays and goes by itself.
                    let id = run.sim.spawn(5 * MIB, rate, rng.u64(100..=900) * MIB);
                    run.pass(30 * S);
                    run.sim.procs.retain(|p| p.id != id);
                    0
                }
                2 => {
                    // Stuck for a time that is longer than the deadline.
                    let id = run.sim.spawn(5 * MIB, rate, u64::MAX);
                    run.sim.get(id).unwrap().exit = Some(2 * config.kill.deadline);
                    1
                }
                3 => {
                    // The daemon does not run for a while, and a hog starts meanwhile.
                    run.sleep(Duration::from_millis(rng.u64(10..=3000)));
                    run.sim.spawn(5 * MIB, rate, u64::MAX);
                    1
                }
                4 => {
                    // Other thresholds while it is on its way.
                    run.sim.spawn(5 * MIB, rate, u64::MAX);
                    run.pass(S / 2);
                    let low = Level { share: rng.u64(6..=15) as f64, most: u64::MAX };
                    let config = Config { act: Act { low, ..Act::default() }, ..Config::default() };
                    run.control_loop.reconfigure(&config, &mut run.sim);
                    1
                }
                5 => {
                    // Exits by itself just before or after it is chosen.
                    let id = run.sim.spawn(5 * MIB, rate, u64::MAX);
                    while run.sim.kills.len() == before && run.sim.available() > TOTAL_BYTES / 8 {
                        run.pass(MOMENT);
                    }
                    run.sim.procs.retain(|p| p.id != id);
                    0
                }
                6 => {
                    // Ends when it has been chosen and is not yet killed, and its PID is another's.
                    run.sim.spawn(5 * MIB, rate, u64::MAX);
                    run.sim.slips = true;
                    0
                }
                7 => {
                    // Every file that is read takes its time.
                    run.sim.slow = Duration::from_millis(rng.u64(5..=100));
                    run.sim.spawn(5 * MIB, rate.min(150 * MIB), u64::MAX);
                    run.pass(60 * S);
                    run.sim.slow = Duration::ZERO;
                    1
                }
                8 => {
                    // In a cgroup with a limit.
                    run.sim.spawn_group(rng.u64(64..=512) * MIB, rate);
                    1
                }
                9 => {
                    // The same, and it is removed while it is watched.
                    run.sim.spawn_group(rng.u64(64..=512) * MIB, rate);
                    while run.control_loop.limits().next().is_none() && run.sim.kills.len() == before {
                        run.pass(MOMENT);
                    }
                    run.sim.remove_groups();
                    0
                }
                _ => 0,
            };
            run.pass(Duration::from_secs(rng.u64(200..=600)));
            // A victim that is stuck does not block the next kill, which may be of an innocent process: that is
            // what the deadline means. None of the harmless ones is ever the greatest here.
            for kill in &run.sim.kills[before..] {
                assert!(kill.rate > 0, "an innocent died at {:?}: {:?}", kill.at, run.sim.kills);
            }
            let made = &run.sim.kills[before..];
            assert_eq!(made.len(), expected, "event {event} at {:?}: {made:?}", run.sim.now);
            run.sim.procs.retain(|p| p.id == 1);
            run.sim.remove_groups();
        }
    }
}
