// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `reap`: a process with much memory is killed. How fast does the memory come back, what does that
//! cost, and for which locks do the dying process and its reapers contend? On one CPU, where nothing contends, only
//! the cost is measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};

use super::arguments::Arguments;
use super::metrics::{Metric, each_case, median, metric_name, report_medians};
use crate::measure::free_memory::{self, Reading, ShortFreeLists};
use crate::memory::PAGE_BYTES;
use crate::process;
use crate::process::victim::{Layout, Released, Victim};
use crate::system::cgroup::TemporaryCgroup;
use crate::system::counters::value;
use crate::system::{clock, sched};
use crate::trace::locks::{Kind, LockTrace, Recording};
use crate::trace::tracefs::{Lost, until_complete};
use init::report::Reporter;

/// Name and number of VMAs.
const CASES: [(&str, usize); 3] = [("100-vmas", 100), ("1000-vmas", 1000), ("1-vma", 1)];
/// The case of a victim that a CPU limit throttles.
const THROTTLED: &str = "throttled";
/// Its limit (cpu.max): 1 ms in each second.
const THROTTLED_CPU_MAX: &str = "1000 1000000";
/// How long it is waited for the limit to take effect: its period is a second.
const THROTTLE_TIMEOUT: Duration = Duration::from_secs(20);
/// A process that spins uses up its millisecond in this time.
const USE_UP_TIME: Duration = Duration::from_millis(20);
/// The metrics of that case, with one thread and with two.
const THROTTLED_METRICS: [&str; 2] = ["mrelease-back", "mrelease2-back"];
/// The victim's MiB, and those under icount: there instructions per page do not depend on the size.
const MIB: [u64; 2] = [512, 128];
/// Rounds, those under icount, where they hardly differ, and rounds in which locks are watched.
const ROUNDS: u32 = 3;
const ICOUNT_ROUNDS: u32 = 1;
const TRACE_ROUNDS: u32 = 2;
/// The metrics of locks: how often they were contended, and how long threads waited for them.
const LOCKS: [(Kind, &str, Option<&str>); 3] = [
    (Kind::Pte, "pte-lock-contended", Some("pte-lock-wait")),
    (Kind::Lru, "lru-lock-contended", Some("lru-lock-wait")),
    (Kind::Zone, "zone-lock-contended", None),
];
/// The share of the memory whose return is timed: the last pages stay in per-CPU lists.
const TIMED_SHARE: f64 = 0.9;
/// If a smaller share of the victim's memory comes back, something else was measured.
const MIN_SHARE: f64 = 0.95;
/// How often a round is tried. It is repeated when an event was lost, or when a reaper came too late, which
/// happens often on a busy host.
const TRIES: u32 = 30;
/// Room for the victim's page tables and for the guest itself.
const HEADROOM_BYTES: u64 = 64 << 20;
/// How often threads check whether others are ready.
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// No spin lock in these paths is held for so long, even under emulation: the longest is held while one page
/// table is zapped, for less than 300 us. A longer wait means that the host took a CPU away.
const INTERRUPTED_WAIT: Duration = Duration::from_millis(2);
/// How long free memory is recorded after the victim's end.
const LINGER: Duration = Duration::from_millis(5);

pub fn run(args: &Arguments, out: &mut Reporter) -> Result<()> {
    let icount = args.icount();
    // The killer is on the first CPU, the victim on the last.
    let cpus = thread::available_parallelism().context("number of CPUs")?.get();
    sched::pin(0)?;
    ensure!(icount || cpus > 1, "needs two CPUs");
    let mib = MIB[usize::from(icount)];
    let free = free_memory::free();
    ensure!(
        free >= (mib << 20) + HEADROOM_BYTES,
        "{} MiB free are too few for a victim of {mib} MiB; give the guest more memory",
        free >> 20
    );
    let layout = |vmas| Layout { pages: (mib << 20) as usize / PAGE_BYTES, vmas };
    each_case(CASES, out, |case, vmas, out| {
        let run = Run { case, cpus, layout: layout(vmas) };
        if icount { run.instructions(out) } else { run.times(out).and_then(|()| run.contention(out)) }
    })?;
    let rounds = if icount { ICOUNT_ROUNDS } else { ROUNDS };
    each_case([(THROTTLED, layout(100))], out, |_, layout, out| throttled(layout, rounds, cpus, out))
}

/// Measures the milliseconds from the kill until process_mrelease(2) has returned in all threads, with one
/// thread and with two, while the victim is throttled.
fn throttled(layout: Layout, rounds: u32, cpus: usize, out: &mut Reporter) -> Result<()> {
    // With one CPU only one thread can release its memory.
    let metrics = THROTTLED_METRICS.map(|name| metric_name(THROTTLED, name));
    let metrics: Vec<String> = metrics.into_iter().filter(|name| out.expects(name)).collect();
    let mut took = vec![Vec::new(); metrics.len()];
    for round in 1..=rounds {
        for (helpers, took) in took.iter_mut().enumerate() {
            out.progress(&format!("{THROTTLED}: {} threads, round {round}", helpers + 1));
            took.push(until_complete(THROTTLED, TRIES, out, |_| release_throttled(layout, cpus, helpers))?);
        }
    }
    for (name, took) in metrics.iter().zip(took) {
        out.sample(name, median(took.into_iter()));
    }
    Ok(())
}

/// One round of [`throttled`], in milliseconds; [`Lost`] if the victim was not throttled.
fn release_throttled(layout: Layout, cpus: usize, helpers: usize) -> Result<f64> {
    let group = TemporaryCgroup::new("reap", "cpu")?;
    // It uses up its CPU time until it is killed, or it would have some left to begin its exit with.
    let victim = Victim::spawn_to(layout, 0..cpus, || {
        loop {
            std::hint::spin_loop();
        }
    })?;
    group.set("cpu.max", THROTTLED_CPU_MAX)?;
    group.add(victim.pid())?;
    let count = || value(&group.get("cpu.stat")?, "nr_throttled ").context("cpu.stat: no nr_throttled");
    // The kernel counts a period in which the victim was throttled when the next one begins, with CPU time for it.
    // When it has used that up, it has none for most of a second.
    let wait_throttled = || {
        let before = count()?;
        let limited = clock::within(THROTTLE_TIMEOUT, POLL_INTERVAL, || Ok(count()? != before))?;
        ensure!(limited, "cpu.max does not limit anything");
        thread::sleep(USE_UP_TIME);
        Ok(())
    };

    let go = AtomicBool::new(false);
    let release = || victim.mrelease()?.context("a killed victim is not dying");
    let (took, released) = thread::scope(|scope| {
        let helpers: Vec<_> = (0..helpers)
            .map(|_| {
                scope.spawn(|| {
                    sched::pin(cpus - 1)?;
                    while !go.load(Ordering::Acquire) {
                        thread::sleep(POLL_INTERVAL);
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
    // A dying process has counters as long as it has not begun to exit.
    let left = process::resident_bytes(victim.pid())?;
    group.set("cpu.max", "max")?;
    let too_late = released.iter().any(|r| r.too_late);
    ensure!(!too_late, Lost("the victim ran and began to exit".to_owned()));
    ensure!(
        left as f64 <= layout.bytes() as f64 * (1.0 - MIN_SHARE),
        "process_mrelease returned with {} MiB of {} left",
        left >> 20,
        layout.bytes() >> 20
    );
    victim.wait_until_dead().context("wait for the victim")?;
    victim.reap().context("reap the victim")?;
    Ok(took)
}

/// How a victim is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// SIGKILL alone.
    Kill,
    /// SIGKILL, then process_mrelease at once.
    Mrelease,
    /// The same, with a second thread on the victim's CPU.
    Mrelease2,
}

/// The methods, their names, and the metrics of their times.
const METHODS: [(Method, &str, [Metric<Timed>; 2]); 3] = [
    (Method::Kill, "kill", [("kill-90", |timed| timed.back), ("kill-cpu", |timed| timed.cpu)]),
    (Method::Mrelease, "mrelease", [("mrelease-90", |timed| timed.back), ("mrelease-cpu", |timed| timed.cpu)]),
    (Method::Mrelease2, "mrelease2", [("mrelease2-90", |timed| timed.back), ("mrelease2-cpu", |timed| timed.cpu)]),
];

/// One kill, from the signal to the victim's end.
struct Kill {
    /// When the signal was sent, in nanoseconds on the monotonic clock.
    start: u64,
    /// The results of the threads in process_mrelease.
    released: Vec<Released>,
}

/// What a kill cost.
struct Cost {
    kill: Kill,
    /// CPU time of the reapers, and of the victim after the kill, in nanoseconds.
    cpu: u64,
    /// Free memory before the kill and after everything had come back, in bytes.
    free: (u64, u64),
}

/// What one timed round measured.
struct Timed {
    /// Milliseconds until [`TIMED_SHARE`] of the memory was back.
    back: f64,
    /// CPU time in milliseconds.
    cpu: f64,
}

/// One case.
struct Run {
    case: &'static str,
    cpus: usize,
    layout: Layout,
}

impl Run {
    /// Measures times and CPU times of all methods.
    fn times(&self, out: &mut Reporter) -> Result<()> {
        let _short = ShortFreeLists::set()?;
        let mut rounds: [Vec<Timed>; 3] = Default::default();
        for round in 1..=ROUNDS {
            for ((method, name, _), rounds) in METHODS.into_iter().zip(&mut rounds) {
                out.progress(&format!("{}: {name}, round {round}", self.case));
                rounds.push(self.in_time(out, name, || self.timed(method))?);
            }
        }
        for ((.., metrics), rounds) in METHODS.iter().zip(&rounds) {
            report_medians(out, self.case, metrics, rounds);
        }
        Ok(())
    }

    /// Counts contended locks and measures the order of freeing, for a kill with one reaper.
    fn contention(&self, out: &mut Reporter) -> Result<()> {
        let trace = LockTrace::new()?;
        let mut rounds = Vec::new();
        for round in 1..=TRACE_ROUNDS {
            out.progress(&format!("{}: locks, round {round}", self.case));
            let round = || self.cost(Method::Mrelease, |work| trace.record(work));
            rounds.push(self.in_time(out, "mrelease", round)?);
        }
        for (kind, contended, wait) in LOCKS {
            let of = |f: fn((usize, u64)) -> f64| median(rounds.iter().map(|r: &Recording| f(r.contended(kind))));
            self.sample(out, contended, of(|(n, _)| n as f64));
            if let Some(wait) = wait {
                self.sample(out, wait, of(|(_, us)| us as f64));
            }
        }
        let tid = rustix::thread::gettid().as_raw_pid();
        let descending = median(rounds.iter().map(|r| r.descending(tid)));
        self.sample(out, "freed-descending", descending);
        for (kind, what) in [(Kind::Lru, "LRU"), (Kind::Other, "other")] {
            note_callers(out, self.case, what, &rounds, kind);
        }
        let longest = rounds.iter().flat_map(|r| &r.acquisitions).map(|a| a.wait).max().unwrap_or(0);
        if u128::from(longest) > INTERRUPTED_WAIT.as_micros() {
            out.note(&format!(
                "{}: a thread waited {} ms for a spin lock: the host is busy and took a CPU away meanwhile; \
                 CPUs that do not run at the same time do not contend, so too little was counted",
                self.case,
                longest / 1000
            ));
        }
        Ok(())
    }

    /// Measures CPU time with `icount`, where a nanosecond is an instruction.
    fn instructions(&self, out: &mut Reporter) -> Result<()> {
        let counted =
            [(Method::Kill, "kill", "kill-instructions"), (Method::Mrelease, "mrelease", "mrelease-instructions")];
        for (method, name, metric) in counted {
            out.progress(&format!("{}: {name}", self.case));
            let round = || {
                let (cost, ()) = self.cost(method, |work| Ok((work()?, ())))?;
                let cpu = cost.cpu as f64;
                Ok((cost, cpu))
            };
            let instructions = self.in_time(out, name, round)?;
            self.sample(out, metric, instructions);
        }
        Ok(())
    }

    fn sample(&self, out: &mut Reporter, name: &str, value: f64) {
        out.sample(&metric_name(self.case, name), value);
    }

    /// Repeats a round until no reaper came too late and no event was lost.
    fn in_time<T>(&self, out: &mut Reporter, method: &str, round: impl Fn() -> Result<(Cost, T)>) -> Result<T> {
        let what = metric_name(self.case, method);
        let tried = until_complete(&what, TRIES, out, |out| {
            let (Cost { kill, .. }, result) = round()?;
            let again: u32 = kill.released.iter().map(|r| r.again).sum();
            if again > 0 {
                out.note(&format!("{what}: process_mrelease returned EAGAIN {again} times"));
            }
            let too_late = kill.released.iter().any(|r| r.too_late);
            ensure!(!too_late, Lost("a reaper found the victim past exit_mm (ESRCH)".to_owned()));
            Ok(result)
        });
        tried.with_context(|| format!("method {method}"))
    }

    /// One timed round.
    fn timed(&self, method: Method) -> Result<(Cost, Timed)> {
        let mut recorder = free_memory::recorder(free_memory::READ_INTERVAL);
        let (cost, readings) = self.cost(method, |kill| {
            recorder.record_while(
                || Ok(Reading::now()),
                |_| {
                    let done = kill();
                    // The last pages come back after the victim is dead.
                    thread::sleep(LINGER);
                    done
                },
            )
        })?;
        let (before, after) = cost.free;
        let freed = after.saturating_sub(before);
        ensure!(
            freed as f64 >= self.layout.bytes() as f64 * MIN_SHARE,
            "only {} MiB of {} MiB came back",
            freed >> 20,
            self.layout.bytes() >> 20
        );
        let level = before + ((after - before) as f64 * TIMED_SHARE) as u64;
        let back =
            free_memory::reached(&readings, cost.kill.start, level).context("90 % of the memory did not come back")?;
        let timed = Timed { back: back / 1e6, cpu: cost.cpu as f64 / 1e6 };
        Ok((cost, timed))
    }

    /// Starts a victim, has `observe` kill it, and returns the cost and what was observed.
    fn cost<T>(
        &self,
        method: Method,
        observe: impl FnOnce(&mut dyn FnMut() -> Result<Kill>) -> Result<(Kill, T)>,
    ) -> Result<(Cost, T)> {
        let victim = Victim::spawn(self.layout, 0..self.cpus)?;
        let before = free_memory::settled()?;
        let cpu_before = victim.cpu_time()?;
        let (kill, observed) = observe(&mut || self.kill(&victim, method))?;
        let after = free_memory::settled()?;
        // The zombie has left its CPU, so its CPU time is complete.
        let cpu = victim.cpu_time()? - cpu_before + kill.released.iter().map(|r| r.cpu).sum::<u64>();
        victim.reap().context("reap the victim")?;
        Ok((Cost { kill, cpu, free: (before, after) }, observed))
    }

    /// Kills the victim, releases its memory, and waits until it is dead.
    fn kill(&self, victim: &Victim, method: Method) -> Result<Kill> {
        let (ready, over) = (AtomicBool::new(false), AtomicBool::new(false));
        // A first call is slow, above all under emulation, and the victim would exit meanwhile: so the call
        // is made once before.
        ensure!(victim.mrelease()?.is_none(), "the victim was dying before it was killed");
        thread::scope(|scope| {
            let helper =
                (method == Method::Mrelease2).then(|| scope.spawn(|| self.second_reaper(victim, &ready, &over)));
            while helper.as_ref().is_some_and(|h| !h.is_finished() && !ready.load(Ordering::Acquire)) {
                thread::sleep(POLL_INTERVAL);
            }
            let start = clock::now();
            let mine = victim.kill().context("pidfd_send_signal(SIGKILL)").and_then(|()| {
                let mine = if method == Method::Kill { None } else { victim.mrelease()? };
                ensure!(method == Method::Kill || mine.is_some(), "a killed victim is not dying");
                victim.wait_until_dead().context("wait for the victim")?;
                Ok(mine)
            });
            over.store(true, Ordering::Release);
            let other = match helper {
                Some(helper) => helper.join().map_err(|_| anyhow!("the second reaper died"))??,
                None => None,
            };
            Ok(Kill { start, released: [mine?, other].into_iter().flatten().collect() })
        })
    }

    /// The second thread in process_mrelease, on the victim's CPU. It repeats the call from before the kill
    /// on: once the victim wakes up on this CPU, a thread that is not in the kernel yet comes too late.
    fn second_reaper(&self, victim: &Victim, ready: &AtomicBool, over: &AtomicBool) -> Result<Option<Released>> {
        sched::pin(self.cpus - 1)?;
        while !over.load(Ordering::Acquire) {
            if let Some(released) = victim.mrelease()? {
                return Ok(Some(released));
            }
            ready.store(true, Ordering::Release);
        }
        Ok(None)
    }
}

/// Notes which functions waited for locks of one kind, so that a lock of the wrong kind is noticed.
fn note_callers(out: &mut Reporter, case: &str, what: &str, rounds: &[Recording], kind: Kind) {
    for recording in rounds {
        let mut callers = recording.callers(kind);
        // The usual functions, which need no check.
        callers.retain(|(name, _)| !name.starts_with("folio_lruvec_lock"));
        if callers.is_empty() {
            continue;
        }
        let list: Vec<_> = callers.iter().map(|(name, n)| format!("{name} {n}")).collect();
        out.note(&format!("{case}: functions that waited for {what} locks: {}", list.join(", ")));
    }
}
