//! Scenario `reap`: a process with much memory is killed. How fast does the memory come back,
//! what does it cost, and which locks do the dying process and its reapers fight over?
//!
//! The victim and whoever kills it are on different CPUs. Three ways to kill: SIGKILL alone;
//! SIGKILL, then process_mrelease(2) in one thread; the same in two threads at once, of which
//! the second shares the victim's CPU. Times and contention are measured in separate rounds,
//! since tracing costs time. On one CPU, where nothing contends, only the cost is measured.
//!
//! Last, a victim that cannot help, as it may hardly use a CPU: how much faster are two threads in
//! process_mrelease(2) than one?

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::arguments::{Arguments, Only};
use super::{Better, Figure, Scenario, median, metric};
use crate::measure::free_memory::{self, Recorder, ShortFreeLists};
use crate::process;
use crate::process::victim::{self, Layout, Released, Victim};
use crate::system::cgroup::TemporaryCgroup;
use crate::system::counters::value;
use crate::system::{clock, sched};
use crate::trace::locks::{Kind, LockTrace, Lost, Recording};
use init::report::Reporter;

/// Name and number of VMAs.
const CASES: [(&str, usize); 3] = [("100-vmas", 100), ("1000-vmas", 1000), ("1-vma", 1)];
/// The case of a victim that may hardly use a CPU, and what its cgroup may: 1 ms in each second.
const HELD_BACK: &str = "held-back";
const HARDLY_ANY_CPU: &str = "1000 1000000";
/// When a cgroup that is not limited has been waited for long enough: its period is a second.
const LIMITED: Duration = Duration::from_secs(20);
/// What is reported of it, with one thread and with two.
const RETURNS: [&str; 2] = ["mrelease-back", "mrelease2-back"];
/// What is reported of the kills of each way.
const TIMES: [Figure<Timed>; 2] = [("90", |t| t.back), ("cpu", |t| t.cpu)];
/// The ways whose cost is counted under `icount`, and as what.
const COUNTED: [Way; 2] = [Way::Kill, Way::Mrelease];
const INSTRUCTIONS: &str = "instructions";
/// What is reported of locks: how often they were contended, and how long they were waited for.
const LOCKS: [(Kind, &str, Option<&str>); 3] = [
    (Kind::Pte, "pte-lock-contended", Some("pte-lock-wait")),
    (Kind::Lru, "lru-lock-contended", Some("lru-lock-wait")),
    (Kind::Zone, "zone-lock-contended", None),
];
const DESCENDING: &str = "freed-descending";
/// The share of the memory whose return is timed: the last pages hide in per-CPU lists.
const SHARE: f64 = 0.9;
/// Less of the victim's memory back than this, and something else was measured.
const PLAUSIBLE: f64 = 0.95;
/// How often a round is tried in which a reaper came too late, as it does again and again on a busy
/// host, or an event was lost.
const TRIES: u32 = 30;
/// The victim's pages, its page tables and what the guest itself needs.
const HEADROOM: u64 = 64 << 20;
/// How long a helper thread is given between looks whether it is ready.
const MOMENT: Duration = Duration::from_micros(100);
/// No spin lock in these paths is held for so long, even under emulation: the longest hold is
/// the zapping of one page table, well below 300 us.
const INTERRUPTED: Duration = Duration::from_millis(2);
/// How long free memory is watched after the victim's end.
const LINGER: Duration = Duration::from_millis(5);

/// `reap [icount] [case=NAME] [mib=512] [rounds=3] [trace-rounds=2]`
pub struct Reap;

impl Scenario for Reap {
    fn name(&self) -> &'static str {
        "reap"
    }

    fn metrics(&self, args: &[String], _cpus: usize) -> Result<Vec<String>> {
        let options = Options::parse(args)?;
        let whats: Vec<String> = if options.icount {
            COUNTED.iter().map(|way| way.metric(INSTRUCTIONS)).collect()
        } else {
            let times = Way::ALL.iter().flat_map(|way| TIMES.map(|(what, _)| way.metric(what)));
            let locks = LOCKS.iter().flat_map(|&(_, contended, wait)| [Some(contended), wait]);
            times.chain(locks.flatten().chain([DESCENDING]).map(str::to_owned)).collect()
        };
        let cases = CASES.iter().filter(|(case, _)| options.case.wants(case));
        let mut all: Vec<String> =
            cases.flat_map(|(case, _)| whats.iter().map(move |what| metric(case, what))).collect();
        if options.case.wants(HELD_BACK) {
            all.extend(options.returns().iter().map(|what| metric(HELD_BACK, what)));
        }
        Ok(all)
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let options = Options::parse(args)?;
        let cpus = Cpus::pin()?;
        ensure!(
            options.icount || cpus.killer != cpus.victim,
            "needs two CPUs (or the argument 'icount' for what can be measured on one)"
        );
        let free = free_memory::free();
        ensure!(
            free >= options.bytes() + HEADROOM,
            "{} MiB free are too few for a victim of {} MiB; give the guest more memory",
            free >> 20,
            options.mib
        );
        let _short = ShortFreeLists::set()?;
        for (case, vmas) in CASES {
            if !options.case.wants(case) {
                continue;
            }
            let run = Run { case, cpus, layout: options.layout(vmas), options: &options };
            if options.icount {
                run.instructions(out)
            } else {
                run.times(out).and_then(|()| run.contention(out))
            }
            .with_context(|| format!("case {case}"))?;
        }
        if options.case.wants(HELD_BACK) {
            held_back(&options, cpus, out).with_context(|| format!("case {HELD_BACK}"))?;
        }
        Ok(())
    }
}

/// Milliseconds from the kill until process_mrelease(2) has returned in all threads, of which there
/// are one and two, while the victim is kept from running.
fn held_back(options: &Options, cpus: Cpus, out: &mut Reporter) -> Result<()> {
    let returns = options.returns();
    let mut rounds = vec![Vec::new(); returns.len()];
    for round in 1..=options.rounds {
        for (helpers, rounds) in rounds.iter_mut().enumerate() {
            out.progress(&format!("{HELD_BACK}: {} threads, round {round}", helpers + 1));
            let tried = (0..TRIES).find_map(|_| {
                let took = release_held_back(options.layout(100), cpus, helpers).transpose();
                if took.is_none() {
                    out.note(&format!(
                        "{HELD_BACK}: the victim got to run and began to exit; round repeated"
                    ));
                }
                took
            });
            rounds.push(tried.with_context(|| format!("not one good round in {TRIES}"))??);
        }
    }
    for (what, rounds) in returns.iter().zip(&rounds) {
        out.sample(&metric(HELD_BACK, what), "ms", Better::Lower, median(rounds.iter().copied()));
    }
    Ok(())
}

/// One round of [`held_back`], in milliseconds; `None` if the victim was not held back.
fn release_held_back(layout: Layout, cpus: Cpus, helpers: usize) -> Result<Option<f64>> {
    let group = TemporaryCgroup::new("reap", "cpu")?;
    // It has to want the CPU when it is killed, or it would have some left to begin its exit with.
    let victim = Victim::spawn_to(layout, cpus.killer..cpus.victim + 1, || {
        loop {
            std::hint::spin_loop();
        }
    })?;
    group.set("cpu.max", HARDLY_ANY_CPU)?;
    group.add(victim.pid())?;
    let throttled = || value(&group.get("cpu.stat")?, "nr_throttled ").context("cpu.stat: no nr_throttled");
    // Just out of CPU time, it has none for most of a second.
    let wait_throttled = || {
        let (began, before) = (clock::now(), throttled()?);
        while throttled()? == before {
            ensure!(u128::from(clock::now() - began) < LIMITED.as_nanos(), "cpu.max does not limit anything");
            thread::sleep(MOMENT);
        }
        Ok(())
    };

    let go = AtomicBool::new(false);
    let release = || mrelease(&victim)?.context("a killed victim is not dying");
    let (took, released) = thread::scope(|scope| {
        let helpers: Vec<_> = (0..helpers)
            .map(|_| {
                scope.spawn(|| {
                    sched::pin(cpus.victim)?;
                    while !go.load(Ordering::Acquire) {
                        thread::sleep(MOMENT);
                    }
                    release()
                })
            })
            .collect();
        let throttled = wait_throttled();
        let start = clock::now();
        let killed = victim.kill().context("pidfd_send_signal(SIGKILL)");
        go.store(true, Ordering::Release);
        let mut released = vec![throttled.and(killed).and_then(|()| release())];
        for helper in helpers {
            released.push(helper.join().map_err(|_| anyhow!("the second reaper died"))?);
        }
        let took = (clock::now() - start) as f64 / 1e6;
        anyhow::Ok((took, released.into_iter().collect::<Result<Vec<_>>>()?))
    })?;
    // Of the dying, as long as they have not begun to exit.
    let left = process::resident_bytes(victim.pid())?;
    group.set("cpu.max", "max")?;
    if released.iter().any(|r| r.too_late) {
        return Ok(None);
    }
    ensure!(
        left as f64 <= layout.bytes() as f64 * (1.0 - PLAUSIBLE),
        "process_mrelease returned with {} MiB of {} left",
        left >> 20,
        layout.bytes() >> 20
    );
    victim.wait_until_dead().context("wait for the victim")?;
    victim.reap().context("reap the victim")?;
    Ok(Some(took))
}

struct Options {
    icount: bool,
    case: Only,
    mib: u64,
    rounds: u32,
    trace_rounds: u32,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let args = Arguments::new(args, &["icount"], &["case", "mib", "rounds", "trace-rounds"])?;
        let icount = args.has("icount");
        let options = Self {
            icount,
            case: args.case(CASES.map(|(name, _)| name).into_iter().chain([HELD_BACK]))?,
            mib: args.get("mib", 512)?,
            // With -icount the rounds hardly differ.
            rounds: args.get("rounds", if icount { 2 } else { 3 })?,
            trace_rounds: args.get("trace-rounds", 2)?,
        };
        // Every VMA has a page; the upper bound keeps the arithmetic away from its limits.
        ensure!((4..=1 << 20).contains(&options.mib), "mib={} is not 4 to 2^20", options.mib);
        ensure!(options.rounds > 0 && options.trace_rounds > 0, "no rounds, no figures");
        Ok(options)
    }

    fn bytes(&self) -> u64 {
        self.mib << 20
    }

    /// What is reported of the victim that is held back: with one CPU only one thread can be at it.
    fn returns(&self) -> &'static [&'static str] {
        &RETURNS[..if self.icount { 1 } else { 2 }]
    }

    fn layout(&self, vmas: usize) -> Layout {
        Layout { pages: (self.mib << 8) as usize, vmas }
    }
}

/// Who runs where.
#[derive(Clone, Copy)]
struct Cpus {
    killer: usize,
    victim: usize,
}

impl Cpus {
    /// The first CPU kills, the last one dies. Pins the caller to the first.
    fn pin() -> Result<Self> {
        let last = thread::available_parallelism().context("number of CPUs")?.get() - 1;
        sched::pin(0)?;
        Ok(Self { killer: 0, victim: last })
    }
}

/// How a victim is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// SIGKILL alone.
    Kill,
    /// SIGKILL, then process_mrelease at once.
    Mrelease,
    /// The same, with a second thread on the victim's CPU.
    Mrelease2,
}

impl Way {
    const ALL: [Self; 3] = [Self::Kill, Self::Mrelease, Self::Mrelease2];

    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Mrelease => "mrelease",
            Self::Mrelease2 => "mrelease2",
        }
    }

    fn metric(self, what: &str) -> String {
        format!("{}-{what}", self.name())
    }
}

/// One kill, from the signal to the victim's end.
struct Strike {
    /// When the signal was sent, in nanoseconds on the monotonic clock.
    start: u64,
    /// What the threads in process_mrelease report.
    released: Vec<Released>,
}

impl Strike {
    fn too_late(&self) -> bool {
        self.released.iter().any(|r| r.too_late)
    }

    fn again(&self) -> u32 {
        self.released.iter().map(|r| r.again).sum()
    }

    /// CPU time of the reaping threads in nanoseconds.
    fn cpu(&self) -> u64 {
        self.released.iter().map(|r| r.cpu).sum()
    }
}

/// What a kill cost.
struct Cost {
    strike: Strike,
    /// CPU time in nanoseconds of the victim after the kill and of the reapers.
    cpu: u64,
    /// Free memory in bytes before the kill and after everything had come back.
    free: (u64, u64),
}

/// What one timed round says.
struct Timed {
    /// Milliseconds until [`SHARE`] of the memory was back.
    back: f64,
    /// CPU time in milliseconds.
    cpu: f64,
}

/// One case.
struct Run<'a> {
    case: &'static str,
    cpus: Cpus,
    layout: Layout,
    options: &'a Options,
}

impl Run<'_> {
    /// Times and CPU times, all ways.
    fn times(&self, out: &mut Reporter) -> Result<()> {
        let mut rounds: [Vec<Timed>; 3] = Default::default();
        for round in 1..=self.options.rounds {
            for (way, rounds) in Way::ALL.into_iter().zip(&mut rounds) {
                out.progress(&format!("{}: {}, round {round}", self.case, way.name()));
                rounds.push(self.in_time(out, way, || self.timed(way))?);
            }
        }
        for (way, rounds) in Way::ALL.into_iter().zip(&rounds) {
            for (what, of) in TIMES {
                self.sample(out, &way.metric(what), "ms", median(rounds.iter().map(of)));
            }
        }
        Ok(())
    }

    /// Contended locks and the order of freeing, for a kill with one reaper.
    fn contention(&self, out: &mut Reporter) -> Result<()> {
        let trace = LockTrace::new()?;
        let mut rounds = Vec::new();
        for round in 1..=self.options.trace_rounds {
            out.progress(&format!("{}: locks, round {round}", self.case));
            let round = || self.cost(Way::Mrelease, |work| trace.record(work));
            rounds.push(self.in_time(out, Way::Mrelease, round)?);
        }
        for (kind, contended, wait) in LOCKS {
            let of =
                |f: fn((usize, u64)) -> f64| median(rounds.iter().map(|r: &Recording| f(r.contended(kind))));
            self.sample(out, contended, "count", of(|(n, _)| n as f64));
            if let Some(wait) = wait {
                self.sample(out, wait, "us", of(|(_, us)| us as f64));
            }
        }
        let tid = rustix::thread::gettid().as_raw_pid();
        let descending = median(rounds.iter().map(|r| r.descending(tid)));
        out.sample(&metric(self.case, DESCENDING), "percent", Better::Higher, descending);
        for (kind, what) in [(Kind::Lru, "LRU"), (Kind::Other, "other")] {
            note_callers(out, self.case, what, &rounds, kind);
        }
        let longest = rounds.iter().flat_map(|r| &r.acquisitions).map(|a| a.wait).max().unwrap_or(0);
        if u128::from(longest) > INTERRUPTED.as_micros() {
            out.note(&format!(
                "{}: one spin lock took {} ms to get: the host is busy and took a CPU away meanwhile; \
                 CPUs that do not run at the same time do not contend, so too little was counted",
                self.case,
                longest / 1000
            ));
        }
        Ok(())
    }

    /// CPU time where one nanosecond is one instruction.
    fn instructions(&self, out: &mut Reporter) -> Result<()> {
        for way in COUNTED {
            let mut rounds = Vec::new();
            for round in 1..=self.options.rounds {
                out.progress(&format!("{}: {}, round {round}", self.case, way.name()));
                let round = || {
                    let (cost, ()) = self.cost(way, |work| Ok((work()?, ())))?;
                    let cpu = cost.cpu as f64;
                    Ok((cost, cpu))
                };
                rounds.push(self.in_time(out, way, round)?);
            }
            self.sample(out, &way.metric(INSTRUCTIONS), "instructions", median(rounds.into_iter()));
        }
        Ok(())
    }

    fn sample(&self, out: &mut Reporter, name: &str, unit: &str, value: f64) {
        out.sample(&metric(self.case, name), unit, Better::Lower, value);
    }

    /// Repeats a round until no reaper came too late in it and no event was lost.
    fn in_time<T>(&self, out: &mut Reporter, way: Way, round: impl Fn() -> Result<(Cost, T)>) -> Result<T> {
        for _ in 0..TRIES {
            let (cost, result) = match round() {
                Ok(done) => done,
                Err(e) if e.is::<Lost>() => {
                    out.note(&format!("{}/{}: {e}; round repeated", self.case, way.name()));
                    continue;
                }
                Err(e) => return Err(e.context(format!("way {}", way.name()))),
            };
            if cost.strike.again() > 0 {
                out.note(&format!(
                    "{}/{}: process_mrelease said EAGAIN {} times",
                    self.case,
                    way.name(),
                    cost.strike.again()
                ));
            }
            if !cost.strike.too_late() {
                return Ok(result);
            }
            out.note(&format!(
                "{}/{}: a reaper found the victim past exit_mm (ESRCH); round repeated",
                self.case,
                way.name()
            ));
        }
        bail!("way {}: not one good round in {TRIES}; the notes say why", way.name())
    }

    /// One round against the clock.
    fn timed(&self, way: Way) -> Result<(Cost, Timed)> {
        let mut recorder = Recorder::new(free_memory::STEP);
        let (cost, readings) = self.cost(way, |work| {
            let (running, stop) = (AtomicBool::new(false), AtomicBool::new(false));
            thread::scope(|scope| {
                let recorder = scope.spawn(|| recorder.record(&running, &stop).map(<[_]>::to_vec));
                while !running.load(Ordering::Acquire) && !recorder.is_finished() {
                    thread::sleep(MOMENT);
                }
                let done = work();
                // A few readings more: the last pages come back after the victim is dead.
                thread::sleep(LINGER);
                stop.store(true, Ordering::Release);
                let readings = recorder.join().map_err(|_| anyhow!("the reader died"))??;
                Ok((done?, readings))
            })
        })?;
        let (before, after) = cost.free;
        let level = before + ((after - before) as f64 * SHARE) as u64;
        let back = free_memory::reached(&readings, cost.strike.start, level)
            .context("90 % of the memory was never seen to be back")?;
        let timed = Timed { back: back / 1e6, cpu: cost.cpu as f64 / 1e6 };
        Ok((cost, timed))
    }

    /// Makes a victim, kills it under `observe`, and says what it cost.
    fn cost<T>(
        &self,
        way: Way,
        observe: impl FnOnce(&mut dyn FnMut() -> Result<Strike>) -> Result<(Strike, T)>,
    ) -> Result<(Cost, T)> {
        let victim = Victim::spawn(self.layout, self.cpus.killer..self.cpus.victim + 1)?;
        let before = free_memory::settled()?;
        let cpu_before = victim.cpu_time()?;
        let (strike, observed) = observe(&mut || self.strike(&victim, way))?;
        let after = free_memory::settled()?;
        // The zombie has left its CPU by now, so its CPU time is complete.
        let cpu = victim.cpu_time()? - cpu_before + strike.cpu();
        victim.reap().context("reap the victim")?;
        let freed = after.saturating_sub(before);
        ensure!(
            freed as f64 >= self.options.bytes() as f64 * PLAUSIBLE,
            "only {} MiB of {} MiB came back",
            freed >> 20,
            self.options.mib
        );
        Ok((Cost { strike, cpu, free: (before, after) }, observed))
    }

    /// Kills, releases, and waits until the victim is dead.
    fn strike(&self, victim: &Victim, way: Way) -> Result<Strike> {
        let (ready, over) = (AtomicBool::new(false), AtomicBool::new(false));
        // What runs for the first time is slow, above all under emulation, and the victim does
        // not wait: the call is made once in vain.
        ensure!(mrelease(victim)?.is_none(), "the victim was dying before it was killed");
        thread::scope(|scope| {
            let helper =
                (way == Way::Mrelease2).then(|| scope.spawn(|| self.second_reaper(victim, &ready, &over)));
            while helper.as_ref().is_some_and(|h| !h.is_finished() && !ready.load(Ordering::Acquire)) {
                thread::sleep(MOMENT);
            }
            let start = clock::now();
            let mine = victim.kill().context("pidfd_send_signal(SIGKILL)").and_then(|()| {
                let mine = if way == Way::Kill { None } else { mrelease(victim)? };
                ensure!(way == Way::Kill || mine.is_some(), "a killed victim is not dying");
                victim.wait_until_dead().context("wait for the victim")?;
                Ok(mine)
            });
            over.store(true, Ordering::Release);
            let other = match helper {
                Some(helper) => helper.join().map_err(|_| anyhow!("the second reaper died"))??,
                None => None,
            };
            Ok(Strike { start, released: [mine?, other].into_iter().flatten().collect() })
        })
    }

    /// The second thread in process_mrelease, on the victim's CPU. Asks over and over from
    /// before the kill: once the victim wakes up on this CPU, a thread not yet in the kernel
    /// comes too late.
    fn second_reaper(
        &self,
        victim: &Victim,
        ready: &AtomicBool,
        over: &AtomicBool,
    ) -> Result<Option<Released>> {
        sched::pin(self.cpus.victim)?;
        while !over.load(Ordering::Acquire) {
            if let Some(released) = mrelease(victim)? {
                return Ok(Some(released));
            }
            ready.store(true, Ordering::Release);
        }
        Ok(None)
    }
}

fn mrelease(victim: &Victim) -> Result<Option<Released>> {
    victim::mrelease(victim.pidfd()).context("process_mrelease")
}

/// Says who wanted the locks of one kind, so that no contention hides behind a wrong name.
fn note_callers(out: &mut Reporter, case: &str, what: &str, rounds: &[Recording], kind: Kind) {
    for recording in rounds {
        let mut callers = recording.callers(kind);
        // The usual way, which no reader needs to check.
        callers.retain(|(name, _)| !name.starts_with("folio_lruvec_lock"));
        if callers.is_empty() {
            continue;
        }
        let list: Vec<_> = callers.iter().map(|(name, n)| format!("{name} {n}")).collect();
        out.note(&format!("{case}: contended {what} locks wanted by: {}", list.join(", ")));
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
        assert_eq!((options.icount, options.mib, options.rounds, options.trace_rounds), (false, 512, 3, 2));
        let options = parse(&["icount", "case=1-vma", "mib=64", "rounds=1"]).unwrap();
        assert_eq!((options.icount, options.bytes(), options.rounds), (true, 64 << 20, 1));
        assert!(options.case.wants("1-vma") && !options.case.is_all());
        for bad in ["case=2-vmas", "rounds=0", "rounds=x", "mib=1", "round=2", "fast"] {
            assert!(parse(&[bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }
}
