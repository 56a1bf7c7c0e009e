//! Scenario `expedite`: how fast does memory come back that a killed process would have to free
//! itself, while it is limited, outnumbered, stopped or one of many? And what does whoever else
//! is running get done meanwhile?
//!
//! Four ways to kill. `kill` is one system call after which nobody waits: SIGKILL through a pidfd,
//! with the flag that frees the memory at once where the kernel has it. `plain` is kill(2), which
//! must stay what it is. `mrelease` adds a thread in process_mrelease(2), `memreap` is the command,
//! from its start: what can be had on any kernel.
//!
//! At last, kills race with exits: how often does it come too late to have the memory freed by
//! somebody else, although it is still there?

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::process::Signal;
use serde::Deserialize;

use super::arguments::{Arguments, Only};
use super::{Better, Scenario, median, metric};
use crate::measure::free_memory::{self, Reading, Recorder, ShortFreeLists};
use crate::process::hogs::Hogs;
use crate::process::victim::{self, Layout, Victim};
use crate::system::cgroup::TemporaryCgroup;
use crate::system::counters::value;
use crate::system::{clock, sched};
use init::report::Reporter;

/// What the victims of a case have to put up with.
struct Case {
    name: &'static str,
    victims: usize,
    /// MiB of all victims together, with two CPUs and on one with `icount`. Where a kill takes
    /// long, little must do.
    mib: [usize; 2],
    /// Processes at nice 0 that never sleep, with two CPUs and with `icount`.
    hogs: [usize; 2],
    /// How long after a kill the hogs' work counts, with two CPUs and with `icount`: longer than any
    /// way takes, so that what frees the memory early does not look as if it cost more.
    window: [Duration; 2],
    /// The victims' nice value.
    nice: i32,
    /// Whether the victims are in a cgroup limited to a tenth of a CPU.
    limited: bool,
    /// Whether the victims are stopped when they are killed.
    stopped: bool,
    /// Rounds, unless told otherwise, with two CPUs and with `icount`.
    rounds: [u32; 2],
    /// How often free memory is read. Where CPU time is shared out, not often: the kernel does not
    /// account for what a task still does in the kernel between a wake-up and the switch to who
    /// woke up. With 400 us that was a third of the victim's time.
    step: Duration,
}

/// The case in which there is nothing to gain.
const FREE: Case = Case {
    name: "free",
    victims: 1,
    mib: [128, 128],
    hogs: [0, 0],
    window: [Duration::ZERO; 2],
    nice: 0,
    limited: false,
    stopped: false,
    rounds: [3, 1],
    step: free_memory::STEP,
};
const CASES: [Case; 6] = [
    FREE,
    // Many periods, so that it matters little in which part of the first the kill comes; and the
    // rounds are spread over the period.
    Case { name: "cpu-10", limited: true, mib: [128, 256], rounds: [3, 2], step: SELDOM, ..FREE },
    Case {
        name: "hogs",
        hogs: [4, 4],
        mib: [128, 256],
        window: [Duration::from_millis(500), Duration::from_millis(500)],
        step: SELDOM,
        ..FREE
    },
    // Gets some 1 % of a CPU. One hog for each.
    Case {
        name: "nice-19",
        hogs: [2, 1],
        nice: 19,
        mib: [16, 32],
        window: [Duration::from_millis(600), Duration::from_millis(900)],
        step: Duration::from_millis(1),
        ..FREE
    },
    Case { name: "stopped", stopped: true, ..FREE },
    Case { name: "many", victims: 15, mib: [240, 120], ..FREE },
];

/// A step for kills that take long.
const SELDOM: Duration = Duration::from_millis(4);
/// VMAs of a victim.
const VMAS: usize = 100;
/// The share of the memory whose return is timed: the last pages hide in per-CPU lists.
const SHARE: f64 = 0.9;
/// Less of the victims' memory back than this, but for what a counter and the per-CPU lists hide,
/// and something else was measured.
const PLAUSIBLE: f64 = 0.95;
const HIDDEN: u64 = 512 << 10;
/// The victims' page tables and what the guest itself needs.
const HEADROOM: u64 = 96 << 20;
/// How often a round is tried in which process_mrelease came too late.
const TRIES: u32 = 30;
/// How long a helper thread is given between looks whether it is ready.
const MOMENT: Duration = Duration::from_micros(100);
/// How long the hogs work before a kill.
const WARM_UP: Duration = Duration::from_millis(20);
/// When memory that is not back has been forgotten.
const FORGOTTEN: Duration = Duration::from_secs(5);
/// How long free memory is watched after all is back, and how often it is looked at before.
const LINGER: Duration = Duration::from_millis(5);
/// The command, in the guest.
const MEMREAP: &str = "/bin/memreap";

/// The period and the CPU time in it that a limited victim has.
const PERIOD: Duration = Duration::from_millis(100);
const QUOTA: Duration = Duration::from_millis(10);

/// A victim that races has four times as much as is too little to free early.
const RACER: Layout = Layout { pages: 1024, vmas: 1 };
/// With so many pages still mapped a kill was not too late, except that nobody but the victim frees
/// them: a MiB, and what the counter may be off.
const THERE: u64 = 256 + 128;
/// How long before the kill a racing victim begins to exit by itself; up to so long after it.
const EARLY: Duration = Duration::from_millis(2);
const LATE: Duration = Duration::from_micros(500);
/// The case in which kills race with exits, and what is reported of it.
const RACE: &str = "race";
const LOST: &str = "lost";
/// The slowest of all cases, and the ways for which it is reported.
const WORST: &str = "worst";
const WORST_OF: [Way; 2] = [Way::Kill, Way::Memreap];

/// `expedite [icount] [case=NAME|race] [rounds=N] [race=KILLS]`
pub struct Expedite;

impl Case {
    /// Where there are none, there is no time in which their work counts.
    fn has_hogs(&self, icount: bool) -> bool {
        !self.window[usize::from(icount)].is_zero()
    }
}

impl Scenario for Expedite {
    fn name(&self) -> &'static str {
        "expedite"
    }

    fn metrics(&self, args: &[String], _cpus: usize) -> Result<Vec<String>> {
        let options = Options::parse(args)?;
        let mut metrics = Vec::new();
        for case in CASES.iter().filter(|case| options.case.wants(case.name)) {
            for way in Way::all(options.icount) {
                metrics.push(way.rate(case.name));
                metrics.extend(case.has_hogs(options.icount).then(|| way.foreground(case.name)));
            }
        }
        if options.case.is_all() {
            metrics.extend(WORST_OF.map(|way| way.rate(WORST)));
        }
        if options.races() {
            metrics.push(metric(RACE, LOST));
        }
        Ok(metrics)
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let options = Options::parse(args)?;
        let cpus = thread::available_parallelism().context("number of CPUs")?.get();
        let short = ShortFreeLists::set()?;
        let expedites = victim::expedites();
        let known = if expedites { "knows" } else { "does not know" };
        out.note(&format!("the kernel {known} PIDFD_SIGNAL_EXPEDITE"));
        let mut rates: Vec<(Way, f64)> = Vec::new();
        for case in CASES.iter().filter(|case| options.case.wants(case.name)) {
            let run =
                Run::new(case, cpus, expedites, &options).with_context(|| format!("case {}", case.name))?;
            rates.extend(run.all(out).with_context(|| format!("case {}", case.name))?);
        }
        if options.case.is_all() {
            for way in WORST_OF {
                let worst = rates.iter().filter(|(w, _)| *w == way).map(|&(_, rate)| rate);
                out.sample(&way.rate(WORST), "MB/s", Better::Higher, worst.fold(f64::INFINITY, f64::min));
            }
        }
        if options.races() {
            race(options.race, cpus, expedites, out).context("race")?;
        }
        drop(short);
        Ok(())
    }
}

struct Options {
    icount: bool,
    case: Only,
    rounds: Option<u32>,
    /// Kills that race with exits.
    race: u32,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let args = Arguments::new(args, &["icount"], &["case", "rounds", "race"])?;
        let case = args.case(CASES.iter().map(|case| case.name).chain([RACE]))?;
        let (icount, rounds) = (args.has("icount"), args.rounds()?);
        let race = args.get("race", if icount { 0 } else { 250 })?;
        ensure!(race <= 100_000, "race={race} is more than 100,000");
        ensure!(case.is_all() || !case.wants(RACE) || race > 0, "a race without kills: give race=N");
        Ok(Self { icount, case, rounds, race })
    }

    fn races(&self) -> bool {
        self.case.wants(RACE) && self.race > 0
    }
}

/// How victims are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// SIGKILL through a pidfd, expedited where the kernel can.
    Kill,
    /// kill(2).
    Plain,
    /// SIGKILL, then process_mrelease in the same thread.
    Mrelease,
    /// The command, with all victims at once.
    Memreap,
}

impl Way {
    /// The ways that are measured. What is there to compare with is known well enough from `icount`.
    fn all(icount: bool) -> &'static [Self] {
        match icount {
            false => &[Self::Kill, Self::Plain, Self::Memreap],
            true => &[Self::Kill, Self::Plain, Self::Memreap, Self::Mrelease],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Plain => "plain",
            Self::Mrelease => "mrelease",
            Self::Memreap => "memreap",
        }
    }

    fn rate(self, case: &str) -> String {
        metric(case, &format!("{}-rate", self.name()))
    }

    fn foreground(self, case: &str) -> String {
        metric(case, &format!("{}-foreground", self.name()))
    }
}

/// What a round says.
struct Round {
    /// Megabytes per second, until [`SHARE`] of the memory was back.
    rate: f64,
    /// The hogs' work per millisecond.
    foreground: f64,
}

/// One kill of all victims, up to their deaths.
struct Strike {
    /// When it began, in nanoseconds on the monotonic clock.
    start: u64,
    /// The hogs' work per millisecond.
    foreground: f64,
    /// Whether process_mrelease came after the victim had given its memory up.
    too_late: bool,
}

/// One case.
struct Run<'a> {
    case: &'static Case,
    cpus: usize,
    expedites: bool,
    options: &'a Options,
    hogs: Hogs,
    limit: Option<Limit>,
}

impl<'a> Run<'a> {
    fn new(case: &'static Case, cpus: usize, expedites: bool, options: &'a Options) -> Result<Self> {
        let hogs = Hogs::start(case.hogs[usize::from(options.icount)])?;
        let limit = case.limited.then(Limit::new).transpose()?;
        let run = Self { case, cpus, expedites, options, hogs, limit };
        let free = free_memory::free();
        ensure!(
            free >= run.bytes() + HEADROOM,
            "{} MiB free are too few for {} MiB of victims; give the guest more memory",
            free >> 20,
            run.mib()
        );
        Ok(run)
    }

    fn mib(&self) -> usize {
        self.case.mib[usize::from(self.options.icount)]
    }

    fn has_hogs(&self) -> bool {
        self.case.has_hogs(self.options.icount)
    }

    /// What all victims have together.
    fn bytes(&self) -> u64 {
        (self.mib() as u64) << 20
    }

    /// What must come back at least.
    fn plausible(&self) -> u64 {
        (self.bytes() as f64 * PLAUSIBLE) as u64 - HIDDEN
    }

    fn layout(&self) -> Layout {
        Layout { pages: (self.mib() << 8) / self.case.victims, vmas: VMAS }
    }

    /// All rounds of all ways; gives the rates.
    fn all(&self, out: &mut Reporter) -> Result<Vec<(Way, f64)>> {
        let default = self.case.rounds[usize::from(self.options.icount)];
        let count = self.options.rounds.unwrap_or(default);
        let ways = Way::all(self.options.icount);
        let mut rounds: Vec<Vec<Round>> = ways.iter().map(|_| Vec::new()).collect();
        for round in 0..count {
            for (&way, rounds) in ways.iter().zip(&mut rounds) {
                out.progress(&format!("{}: {}, round {}", self.case.name, way.name(), round + 1));
                let round = self.in_time(way, phase(round, count), out);
                rounds.push(round.with_context(|| format!("way {}", way.name()))?);
            }
        }
        let mut rates = Vec::new();
        for (&way, rounds) in ways.iter().zip(&rounds) {
            let rate = median(rounds.iter().map(|r| r.rate));
            out.sample(&way.rate(self.case.name), "MB/s", Better::Higher, rate);
            if self.has_hogs() {
                let work = median(rounds.iter().map(|r| r.foreground));
                out.sample(&way.foreground(self.case.name), "loops/ms", Better::Higher, work);
            }
            rates.push((way, rate));
        }
        Ok(rates)
    }

    /// Repeats a round until process_mrelease did not come too late.
    fn in_time(&self, way: Way, phase: Duration, out: &mut Reporter) -> Result<Round> {
        for _ in 0..TRIES {
            let (round, too_late) = self.round(way, phase, out)?;
            if !too_late {
                return Ok(round);
            }
            out.note(&format!(
                "{}/{}: process_mrelease found a victim past exit_mm (ESRCH); round repeated",
                self.case.name,
                way.name()
            ));
        }
        bail!("not one good round in {TRIES}; the notes say why")
    }

    /// Makes the victims, kills them, and watches their memory come back. Says whether
    /// process_mrelease came too late.
    fn round(&self, way: Way, phase: Duration, out: &mut Reporter) -> Result<(Round, bool)> {
        let victims = (0..self.case.victims)
            .map(|_| self.victim(way))
            .collect::<Result<Vec<_>>>()
            .context("victims")?;
        let before = free_memory::settled()?;
        if self.has_hogs() {
            self.hogs.work(true);
            thread::sleep(WARM_UP);
        }
        let mut recorder = Recorder::new(self.case.step);
        let (running, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let (strike, readings) = thread::scope(|scope| {
            let recorder = scope.spawn(|| recorder.record(&running, &stop).map(<[_]>::to_vec));
            while !running.load(Ordering::Acquire) && !recorder.is_finished() {
                thread::sleep(MOMENT);
            }
            let done = match &self.limit {
                Some(limit) => limit.wait_for(phase),
                None => Ok(()),
            };
            let done = done.and_then(|()| self.strike(&victims, way, out)).inspect(|_| {
                // What frees the memory may still be at it when the victim is dead.
                let due = clock::now() + FORGOTTEN.as_nanos() as u64;
                while free_memory::free() < before + self.plausible()
                    && clock::now() < due
                    && !recorder.is_finished()
                {
                    thread::sleep(LINGER);
                }
                thread::sleep(LINGER);
            });
            stop.store(true, Ordering::Release);
            let readings = recorder.join().map_err(|_| anyhow!("the reader died"))?;
            anyhow::Ok((done?, readings?))
        })?;
        self.hogs.work(false);
        let after = free_memory::settled()?;
        for victim in victims {
            victim.reap().context("reap a victim")?;
        }
        let took = self.back(&strike, before, after, &readings)?;
        if self.has_hogs() && took > self.window().as_nanos() as f64 {
            out.note(&format!(
                "{}/{}: took {:.0} ms, longer than the hogs' work was counted",
                self.case.name,
                way.name(),
                took / 1e6
            ));
        }
        // Bytes per nanosecond are gigabytes per second.
        let rate = (after - before) as f64 * SHARE / took * 1e3;
        Ok((Round { rate, foreground: strike.foreground }, strike.too_late))
    }

    /// Nanoseconds until [`SHARE`] of the memory was back.
    fn back(&self, strike: &Strike, before: u64, after: u64, readings: &[Reading]) -> Result<f64> {
        let freed = after.saturating_sub(before);
        ensure!(
            freed >= self.plausible(),
            "only {:.1} MiB of {} MiB came back",
            freed as f64 / f64::from(1 << 20),
            self.mib()
        );
        took(readings, strike.start, before, after).context("90 % of the memory was never seen to be back")
    }

    /// A victim as the case wants it.
    fn victim(&self, way: Way) -> Result<Victim> {
        let victim = Victim::spawn(self.layout(), 0..self.cpus)?;
        if way != Way::Mrelease {
            victim.set_free(self.cpus)?;
        }
        if let Some(limit) = &self.limit {
            limit.group.add(victim.pid())?;
        }
        if self.case.nice != 0 {
            rustix::process::setpriority_process(Some(victim.pid()), self.case.nice)
                .context("setpriority")?;
        }
        if self.case.stopped {
            victim.stop().context("stop the victim")?;
        }
        Ok(victim)
    }

    fn window(&self) -> Duration {
        self.case.window[usize::from(self.options.icount)]
    }

    /// Kills, and waits until all victims are dead.
    fn strike(&self, victims: &[Victim], way: Way, out: &mut Reporter) -> Result<Strike> {
        if way == Way::Mrelease {
            // What runs for the first time is slow, above all under emulation, and the victim does
            // not wait: the call is made once in vain.
            ensure!(mrelease(&victims[0])? == Released::NotDying, "the victim was dying before the kill");
        }
        let mut too_late = false;
        let mut command = None;
        let work = self.hogs.done();
        let start = clock::now();
        match way {
            Way::Kill if self.expedites => {
                victims.iter().try_for_each(Victim::kill_expedited).context("expedited kill")?;
            }
            Way::Kill => victims.iter().try_for_each(Victim::kill).context("kill")?,
            Way::Plain => victims
                .iter()
                .try_for_each(|v| rustix::process::kill_process(v.pid(), Signal::KILL))
                .context("kill(2)")?,
            Way::Mrelease => {
                for victim in victims {
                    victim.kill().context("kill")?;
                    too_late |= mrelease(victim)? == Released::TooLate;
                }
            }
            Way::Memreap => command = Some(memreap(victims)?),
        }
        let foreground = if self.has_hogs() { self.foreground(start, work)? } else { 0.0 };
        if let Some(command) = command {
            self.check(command, out)?;
        }
        victims.iter().try_for_each(Victim::wait_until_dead).context("wait for the victims")?;
        Ok(Strike { start, foreground, too_late })
    }

    /// The hogs' work per millisecond since `start`, when it was `before`, until the window's end.
    fn foreground(&self, start: u64, before: u64) -> Result<f64> {
        // On time although the hogs leave no CPU idle.
        sched::set_policy(libc::SCHED_FIFO, 1).context("SCHED_FIFO to look at the hogs")?;
        clock::sleep_until(start + self.window().as_nanos() as u64)?;
        let (done, now) = (self.hogs.done(), clock::now());
        sched::set_policy(libc::SCHED_OTHER, 0).context("SCHED_OTHER")?;
        Ok((done - before) as f64 / ((now - start) as f64 / 1e6))
    }

    /// The command must have done what it was told; says by which means.
    fn check(&self, command: Child, out: &mut Reporter) -> Result<()> {
        let output = command.wait_with_output().context("wait for memreap")?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "memreap kill: {}: {said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let said: Said = serde_json::from_str(&said).with_context(|| format!("memreap kill said {said}"))?;
        let mut means: Vec<&str> = said.victims.iter().map(|v| v.means.as_str()).collect();
        let all = means.len();
        means.sort_unstable();
        means.dedup();
        out.note(&format!("{}/memreap: {all} killed by {}", self.case.name, means.join(", ")));
        Ok(())
    }
}

/// Nanoseconds from `start`, when free memory was `before`, until [`SHARE`] of what was to come back
/// was there. `after`: free memory at the end.
fn took(readings: &[Reading], start: u64, before: u64, after: u64) -> Option<f64> {
    let level = before + ((after - before) as f64 * SHARE) as u64;
    // Nothing comes back before the kill, which may take less than the time between two readings.
    let first = Reading { at: start, free: before };
    let later = readings.iter().copied().filter(|r| r.at > start);
    let readings: Vec<Reading> = [first].into_iter().chain(later).collect();
    free_memory::reached(&readings, start, level)
}

/// A cgroup with a tenth of a CPU.
struct Limit {
    group: TemporaryCgroup,
    /// The beginning of one of its periods, in nanoseconds on the monotonic clock.
    origin: u64,
}

impl Limit {
    fn new() -> Result<Self> {
        let group = TemporaryCgroup::new("expedite", "cpu")?;
        group.set("cpu.max", &format!("{} {}", QUOTA.as_micros(), PERIOD.as_micros()))?;
        // The kernel lets a group's periods begin at a random time and then keeps to it. In the
        // group, whoever does not sleep is stopped until the next period.
        group.join()?;
        let began = clock::now();
        let mut last = began;
        let origin = loop {
            let now = clock::now();
            if u128::from(now - last) > PERIOD.as_nanos() / 2 {
                break now;
            }
            ensure!(u128::from(now - began) < 10 * PERIOD.as_nanos(), "cpu.max does not limit anything");
            last = now;
        };
        group.leave()?;
        Ok(Self { group, origin })
    }

    /// Sleeps until one of the next periods is so old.
    fn wait_for(&self, phase: Duration) -> Result<()> {
        clock::sleep_until(next(self.origin, clock::now(), phase))
    }
}

/// When a period that begins after `now`, but not the very next, will be so old. In nanoseconds.
/// All of the CPU time is there when a period has gone by in which nobody used any.
fn next(origin: u64, now: u64, phase: Duration) -> u64 {
    let period = PERIOD.as_nanos() as u64;
    origin + ((now - origin) / period + 2) * period + phase.as_nanos() as u64
}

/// When in the period a round's kill comes: all rounds are spread evenly over it.
fn phase(round: u32, rounds: u32) -> Duration {
    PERIOD * (2 * round + 1) / (2 * rounds)
}

/// What process_mrelease made of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Released {
    NotDying,
    TooLate,
    Done,
}

fn mrelease(victim: &Victim) -> Result<Released> {
    Ok(match victim::mrelease(victim.pidfd()).context("process_mrelease")? {
        None => Released::NotDying,
        Some(released) if released.too_late => Released::TooLate,
        Some(_) => Released::Done,
    })
}

/// Starts the command on all victims.
fn memreap(victims: &[Victim]) -> Result<Child> {
    Command::new(MEMREAP)
        .args(["kill", "--json"])
        .args(victims.iter().map(|v| v.pid().as_raw_pid().to_string()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context(MEMREAP)
}

/// What the command says, as far as it is of interest here.
#[derive(Deserialize)]
struct Said {
    victims: Vec<SaidVictim>,
}

#[derive(Deserialize)]
struct SaidVictim {
    means: String,
}

/// What became of the memory of one victim that raced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Raced {
    /// Somebody else freed it.
    Freed,
    /// It was back already, or nearly.
    Over,
    /// It was still there, and nobody freed it but the victim itself.
    Lost,
}

/// Kills victims, of which every other begins to exit by itself at about that time.
fn race(kills: u32, cpus: usize, expedites: bool, out: &mut Reporter) -> Result<()> {
    let mut counts = [[0u32; 3]; 2];
    for i in 0..kills {
        if i % 50 == 0 {
            out.progress(&format!("race: {i} of {kills}"));
        }
        let exits = i % 2 == 1;
        let raced = race_once(exits.then(|| lead(i / 2)), cpus, expedites)?;
        counts[usize::from(exits)][raced as usize] += 1;
    }
    for (who, [freed, over, lost]) in ["just killed", "exiting by themselves"].into_iter().zip(counts) {
        out.note(&format!(
            "race: victims {who}: {freed} freed by others, {over} already gone, {lost} not freed although \
             their memory was there"
        ));
    }
    let lost = counts.iter().map(|c| c[Raced::Lost as usize]).sum::<u32>();
    out.sample(&metric(RACE, LOST), "count", Better::Lower, f64::from(lost));
    Ok(())
}

/// How long before the kill the `i`th racing victim begins to exit, in nanoseconds: spread evenly,
/// in no order. The second number is how long after it.
fn lead(i: u32) -> i64 {
    const STEPS: u32 = 1000;
    let (early, late) = (EARLY.as_nanos() as i64, LATE.as_nanos() as i64);
    // Prime to the number of steps, and about its golden section.
    let share = i64::from(i % STEPS * 617 % STEPS);
    early - (early + late) * share / i64::from(STEPS)
}

/// One kill; the victim begins to exit so many nanoseconds before it, if at all.
fn race_once(lead: Option<i64>, cpus: usize, expedites: bool) -> Result<Raced> {
    // Enough to get from here to the kill.
    const AHEAD: Duration = Duration::from_millis(3);
    let (reader, writer) = rustix::pipe::pipe().context("pipe")?;
    let mut order = File::from(writer);
    let victim = Victim::spawn_to(RACER, 0..cpus, || {
        let mut at = [0; 8];
        // Whoever cannot read or sleep exits at once, and the race is over when it is looked at.
        if File::from(reader).read_exact(&mut at).is_ok() {
            let _ = clock::sleep_until(u64::from_ne_bytes(at));
        }
    })?;
    victim.set_free(cpus)?;
    ensure!(mrelease(&victim)? == Released::NotDying, "a victim was dying before the kill");
    let mut vmstat = Vmstat::open()?;
    let before = vmstat.read()?;
    let at = clock::now() + AHEAD.as_nanos() as u64;
    if let Some(lead) = lead {
        order.write_all(&at.saturating_add_signed(-lead).to_ne_bytes()).context("pipe to a victim")?;
    }
    clock::sleep_until(at)?;
    let freed = match expedites {
        true => victim.kill_expedited().context("expedited kill").map(|()| None)?,
        false => {
            victim.kill().context("kill")?;
            Some(mrelease(&victim)? == Released::Done)
        }
    };
    let after = vmstat.read()?;
    victim.wait_until_dead().context("wait for a victim")?;
    victim.reap().context("reap a victim")?;
    let left = (after.anon + RACER.pages as u64).saturating_sub(before.anon);
    Ok(judge(freed.unwrap_or(after.taken > before.taken), left))
}

/// `freed`: by others; `left`: the victim's pages that were still mapped right after the kill.
fn judge(freed: bool, left: u64) -> Raced {
    match freed {
        true => Raced::Freed,
        false if left < THERE => Raced::Over,
        false => Raced::Lost,
    }
}

/// Counters of /proc/vmstat, read without a detour: what they count does not wait.
struct Vmstat {
    file: File,
    text: Vec<u8>,
}

/// What is of interest among them.
struct Counts {
    /// Anonymous pages that are mapped, in all.
    anon: u64,
    /// Victims whose memory the kernel has begun to free for them. `None` if it never does.
    taken: Option<u64>,
}

impl Vmstat {
    const PATH: &str = "/proc/vmstat";

    fn open() -> Result<Self> {
        let file = File::open(Self::PATH).context(Self::PATH)?;
        Ok(Self { file, text: Vec::with_capacity(1 << 16) })
    }

    fn read(&mut self) -> Result<Counts> {
        self.text.clear();
        self.file.rewind().and_then(|()| self.file.read_to_end(&mut self.text)).context(Self::PATH)?;
        Counts::parse(&String::from_utf8_lossy(&self.text))
            .with_context(|| format!("no counters in {}", Self::PATH))
    }
}

impl Counts {
    fn parse(text: &str) -> Option<Self> {
        Some(Self { anon: value(text, "nr_anon_pages ")?, taken: value(text, "expedite_kill ") })
    }
}

#[cfg(test)]
mod tests {
    use super::super::arguments::words;
    use super::*;

    fn parse(args: &[&str]) -> Result<Options> {
        Options::parse(&words(args))
    }

    #[test]
    fn arguments_have_defaults_and_bounds() {
        let options = parse(&[]).unwrap();
        assert_eq!((options.icount, options.rounds, options.race), (false, None, 250));
        assert!(options.case.wants("free") && options.case.wants("race"));
        let options = parse(&["icount", "case=nice-19", "rounds=4"]).unwrap();
        assert_eq!((options.icount, options.rounds, options.race), (true, Some(4), 0));
        assert!(options.case.wants("nice-19") && !options.case.wants("race") && !options.case.wants("free"));
        assert_eq!(parse(&["icount", "case=race", "race=2000"]).unwrap().race, 2000);
        for bad in ["case=nice-20", "rounds=0", "rounds=x", "race=-1", "race=100001", "round=2", "fast"] {
            assert!(parse(&[bad]).is_err(), "{bad}");
        }
        assert!(parse(&["icount", "case=race"]).is_err());
    }

    #[test]
    fn cases_make_sense() {
        for case in &CASES {
            for (mib, (hogs, window)) in case.mib.iter().zip(case.hogs.iter().zip(&case.window)) {
                assert_eq!(mib % case.victims, 0, "{}", case.name);
                // Larger than what the kernel does not take on, with some pages for each VMA.
                assert!(mib / case.victims >= 8, "{}", case.name);
                assert_eq!(*hogs == 0, window.is_zero(), "{}", case.name);
            }
        }
        assert_eq!(CASES.iter().filter(|case| case.limited).count(), 1);
        assert_eq!(CASES.iter().filter(|case| case.name == "free").count(), 1);
    }

    #[test]
    fn kills_are_spread_over_a_period_that_began_with_all_its_time() {
        let ms = Duration::from_millis;
        assert_eq!([phase(0, 2), phase(1, 2)], [ms(25), ms(75)]);
        assert_eq!(phase(0, 1), ms(50));
        let (origin, period) = (1_000, PERIOD.as_nanos() as u64);
        for now in [origin, origin + 1, origin + period - 1, origin + 7 * period, origin + 8 * period - 1] {
            let next = next(origin, now, ms(25));
            assert_eq!((next - origin) % period, 25_000_000);
            assert!(next >= now + period && next < now + 3 * period, "{now}");
        }
    }

    #[test]
    fn exits_are_spread_over_all_the_time_around_the_kill() {
        let (early, late) = (EARLY.as_nanos() as i64, LATE.as_nanos() as i64);
        let mut leads: Vec<i64> = (0..1000).map(lead).collect();
        assert!(leads.iter().all(|&l| l <= early && l > -late));
        // Also those of one boot, which are fewer.
        let before = leads[..125].iter().filter(|&&l| l > 0).count();
        assert!((90..=110).contains(&before), "{before}");
        leads.sort_unstable();
        let step = (early + late) / 1000;
        assert!(leads.windows(2).all(|w| w[1] - w[0] == step));
    }

    #[test]
    fn a_kill_takes_time_even_between_two_readings() {
        let readings = [(900, 10), (1400, 10), (1800, 110)].map(|(at, free)| Reading { at, free });
        assert_eq!(took(&readings, 1000, 10, 110), Some(760.0));
        assert_eq!(took(&readings, 1500, 10, 110), Some(270.0));
        assert_eq!(took(&readings, 1790, 10, 110), Some(9.0));
        assert_eq!(took(&readings, 1000, 10, 210), None);
    }

    #[test]
    fn memory_that_is_there_and_not_freed_is_lost() {
        assert_eq!(judge(true, 1024), Raced::Freed);
        assert_eq!(judge(true, 0), Raced::Freed);
        assert_eq!(judge(false, 1024), Raced::Lost);
        assert_eq!(judge(false, 500), Raced::Lost);
        // Less than the kernel takes on.
        assert_eq!(judge(false, 256), Raced::Over);
        assert_eq!(judge(false, 0), Raced::Over);
    }

    #[test]
    fn counters_are_found_by_their_whole_names() {
        let text =
            "nr_free_pages 12\nnr_anon_pages 900\nexpedite_kill_x 1\nexpedite_kill 34\nexpedite_pages 56\n";
        let counts = Counts::parse(text).unwrap();
        assert_eq!((counts.anon, counts.taken), (900, Some(34)));
        assert_eq!(Counts::parse("nr_anon_pages 900\nexpedite_pages 1\n").unwrap().taken, None);
        assert!(Counts::parse("").is_none());
        assert!(Vmstat::open().unwrap().read().unwrap().anon > 0);
    }
}
