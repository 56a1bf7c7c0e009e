// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `oom-select`: the OOM killer has to choose one of many processes. How long does that take, for
//! how many of them does it compute a precise size, and is the process that it kills the largest?
//!
//! Nearly equal sizes are the worst case for a kernel that wants to rule processes out early. Whether the victim is the
//! right one is tested where a kernel that uses approximate counts must err.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, wait, waitid};

use super::arguments::Arguments;
use super::metrics::{median, metric_name};
use crate::memory::PAGE_BYTES;
use crate::process::population::{self, Changes, Contender, HOME_CPU, Pool, Shape};
use crate::rng::Rng;
use crate::system::cgroup::TemporaryCgroup;
use crate::system::counters::value;
use crate::system::sched;
use crate::trace::tracefs::{self, Clock, Probe, Trace, events, text_field};
use init::report::Reporter;

/// Pages of the shared file that a process of median size has mapped.
const MEDIAN_PAGES: f64 = 1024.0;
/// The standard deviation of the sizes' logarithms.
const SIGMA: f64 = 1.0;
/// The most pages that a process has, and the fewest that a contender has.
const LARGEST_PAGES: usize = 16 << 10;
/// Nearly equal sizes differ from the median by so many pages at most: 1 %.
const NEARLY_EQUAL_PAGES: usize = 10;
/// Processes that compete for being the largest.
const CONTENDERS: usize = 24;
/// By up to how many pages they differ, beside those that CPUs have not added to the common counter.
const SPREAD_PAGES: usize = 1024;
/// Seeds the populations whose selection is timed. It is the same in every boot.
const SEED: u64 = 1;
/// How often a limit is set until a process is killed.
const TRIES: u32 = 40;
/// How long the kernel has at first to find that there is nothing to reclaim.
const FIRST_TIMEOUT: Duration = Duration::from_millis(10);
/// Trace buffer of each CPU: room for one event per process and counter.
const TRACE_BUFFER_KIB: u32 = 4096;
/// Counters of a process that are summed to get its size.
const COUNTERS_PER_PROCESS: f64 = 4.0;
/// The event after the report, when the victim is about to be killed.
const KILL_EVENT: &str = "oom/mark_victim";
/// The changed kernel's event for a selection.
const SELECT_EVENT: &str = "memreap_oom/memreap_oom_select";

/// A population.
struct Case {
    name: &'static str,
    processes: usize,
    /// Draws the pages of the shared file that one process has; the number is that of the process.
    size: fn(usize, &mut Rng) -> usize,
    /// Whether processes with threads have been on all CPUs, or some of them on up to eight.
    all_cpus: bool,
    /// Whether the processes of the case before stay, and more are added.
    adds: bool,
    /// What is timed besides a selection in a cgroup.
    more: &'static [Timed],
}

const FEW_CPUS: Case = Case { name: "", processes: 2000, size: lognormal, all_cpus: false, adds: false, more: &[] };
const CASES: [Case; 6] = [
    Case { name: "lognormal-200", processes: 200, ..FEW_CPUS },
    Case { name: "lognormal-2000", adds: true, more: &[Timed::Global, Timed::Report], ..FEW_CPUS },
    Case { name: "lognormal-10000", processes: 10_000, adds: true, ..FEW_CPUS },
    Case { name: "near-equal-2000", size: nearly_equal, ..FEW_CPUS },
    Case { name: "all-cpus-2000", size: nearly_equal, all_cpus: true, more: &[Timed::Report], ..FEW_CPUS },
    Case { name: "ascending-2000", size: ascending, all_cpus: true, ..FEW_CPUS },
];
/// So many that a few of them can be spoiled: with 64 emulated CPUs a timer tick falls into one in ten, which
/// then takes three times as long. Each kills one of the processes, and the kernel writes ten reports in an
/// interval (`oom_rs` in mm/oom_kill.c), whatever they contain.
const SELECTIONS: u32 = 9;
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// The name of the case that is not timed, and of the case whose population it uses.
const VICTIM: &str = "victim";
const VICTIM_AMONG: &str = "lognormal-2000";
/// Its rounds, each with other sizes.
const VICTIM_ROUNDS: u32 = 13;

fn lognormal(_: usize, rng: &mut Rng) -> usize {
    loop {
        let pages = MEDIAN_PAGES * (SIGMA * rng.normal()).exp();
        if pages < LARGEST_PAGES as f64 {
            return pages as usize;
        }
    }
}

fn nearly_equal(_: usize, rng: &mut Rng) -> usize {
    MEDIAN_PAGES as usize - NEARLY_EQUAL_PAGES + rng.below(2 * NEARLY_EQUAL_PAGES + 1)
}

/// Each is at least as large as those before it, so that no size rules out a later one.
fn ascending(number: usize, _: &mut Rng) -> usize {
    MEDIAN_PAGES as usize - NEARLY_EQUAL_PAGES + number / 50
}

impl Case {
    fn timed(&self) -> impl Iterator<Item = Timed> {
        [Timed::Memcg].into_iter().chain(self.more.iter().copied())
    }
}

/// `seed=` seeds the case that is not timed.
pub fn run(args: &Arguments, out: &mut Reporter) -> Result<()> {
    sched::pin(HOME_CPU)?;
    dump_tasks(false)?;
    alarm::install()?;
    let mut arena = Arena::new()?;
    for case in &CASES {
        let (timed, victims) = (out.expects_case(case.name), case.name == VICTIM_AMONG && out.expects_case(VICTIM));
        if timed || victims {
            arena.populate(case, out).with_context(|| format!("case {}", case.name))?;
        }
        if timed {
            arena.select(case, out).with_context(|| format!("case {}", case.name))?;
        }
        if victims {
            let seed = args.number("seed")?.map_or_else(random_seed, Ok)?;
            out.note(&format!("{VICTIM}: seed {seed}"));
            arena.victims(&mut Rng(seed), out).context("case victim")?;
        }
    }
    arena.clear()
}

/// Returns a seed that no other boot has.
fn random_seed() -> Result<u64> {
    const SOURCE: &str = "/dev/urandom";
    let mut seed = [0; 4];
    File::open(SOURCE).and_then(|mut source| source.read_exact(&mut seed)).context(SOURCE)?;
    Ok(u32::from_ne_bytes(seed).into())
}

/// What is timed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Timed {
    /// The selection, when the cgroup's limit is below what its processes use.
    Memcg,
    /// The selection among all processes of the system, for SysRq.
    Global,
    /// In the cgroup, the selection and the report of all processes in the kernel's log.
    Report,
}

impl Timed {
    fn metric(self) -> &'static str {
        match self {
            Self::Memcg => "select-us",
            Self::Global => "select-global-us",
            Self::Report => "report-us",
        }
    }
}

/// Whether the OOM killer reports all processes, as it does by default.
fn dump_tasks(on: bool) -> Result<()> {
    fs::write("/proc/sys/vm/oom_dump_tasks", if on { "1" } else { "0" }).context("vm.oom_dump_tasks")
}

/// The cgroup that the processes live in.
struct Arena {
    group: TemporaryCgroup,
    pool: Pool,
    cpus: usize,
    population: Vec<Pid>,
    rng: Rng,
    timeout: Duration,
}

impl Arena {
    fn new() -> Result<Self> {
        Ok(Self {
            group: TemporaryCgroup::new("oom", "memory")?,
            pool: Pool::new(LARGEST_PAGES)?,
            cpus: sched::online_cpus()?,
            population: Vec::new(),
            rng: Rng(SEED),
            timeout: FIRST_TIMEOUT,
        })
    }

    /// Makes the processes of a case.
    fn populate(&mut self, case: &Case, out: &mut Reporter) -> Result<()> {
        if !case.adds {
            self.clear()?;
        }
        // A process starts in its parent's cgroup, which is faster than moving it there.
        self.group.join()?;
        while self.population.len() < case.processes {
            let made = self.population.len();
            if made.is_multiple_of(100) {
                out.progress(&format!("{}: {made} processes", case.name));
            }
            let pages = (case.size)(made, &mut self.rng);
            let mut shape = Shape::new(pages, self.cpus, &mut self.rng);
            if case.all_cpus && shape.threaded {
                shape.cpus = (0..self.cpus).chain([HOME_CPU]).collect();
            }
            self.population.push(population::spawn(&shape, &self.pool)?);
        }
        self.group.leave()
    }

    /// Kills and reaps all processes.
    fn clear(&mut self) -> Result<()> {
        self.group.set("cgroup.kill", "1")?;
        for pid in self.population.drain(..) {
            waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).context("reap a process")?;
        }
        Ok(())
    }

    /// Times selections, and counts the precise sums that they compute.
    fn select(&mut self, case: &Case, out: &mut Reporter) -> Result<()> {
        out.progress(&format!("{}: selections", case.name));
        for timed in case.timed() {
            let trace = selection_trace(&[])?;
            let report = timed == Timed::Report;
            dump_tasks(report)?;
            if report {
                thread::sleep(REPORT_INTERVAL + REPORT_INTERVAL / 10);
            }
            let rounds = (0..SELECTIONS)
                .map(|_| {
                    let (_, text) = trace.record(|| self.provoke(timed))?;
                    let selection = Selection::parse(&text)?;
                    Ok(if report { selection.reported()? } else { selection.micros } as f64)
                })
                .collect::<Result<Vec<f64>>>()
                .with_context(|| timed.metric().to_owned())?;
            out.sample(&metric_name(case.name, timed.metric()), median(rounds.into_iter()));
        }
        dump_tasks(false)?;
        // The lock by which stock's sums are counted is inlined on other architectures.
        if cfg!(target_arch = "x86_64") {
            let share = self.precise_share(case, out)?;
            out.sample(&metric_name(case.name, "precise-share"), 100.0 * share);
        }
        Ok(())
    }

    /// Returns how many precise sums a selection computes per process.
    fn precise_share(&mut self, case: &Case, out: &mut Reporter) -> Result<f64> {
        // The function that sums up a counter of the stock kernel cannot be probed, but the lock that it
        // takes can. The changed kernel has other counters, and an event that says how many it summed up.
        let what = "_raw_spin_lock_irqsave by=$stack0:symbol".to_owned();
        let sums = Probe { name: "oom_lock", kind: "p", what };
        let has_event = tracefs::has_event(SELECT_EVENT);
        let mut trace = selection_trace(if has_event { &[] } else { std::slice::from_ref(&sums) })?;
        if has_event {
            trace.add_event(SELECT_EVENT);
        }
        let processes = self.population.len() as f64;
        let (_, text) = trace.record_outermost(|| self.provoke(Timed::Memcg))?;
        let selection = Selection::parse(&text)?;
        if !has_event {
            return Ok(selection.sums as f64 / COUNTERS_PER_PROCESS / processes);
        }
        let fields = selection.fields.with_context(|| format!("no {SELECT_EVENT} in the selection"))?;
        out.note(&format!("{}: {fields}", case.name));
        let number = |key| text_field(&fields, key)?.parse::<f64>().ok();
        let (summed, tasks) = number("summed").zip(number("tasks")).context("no summed= and tasks=")?;
        ensure!(tasks >= processes, "{tasks} tasks were considered, but there are {processes}");
        Ok(summed / tasks)
    }

    /// Has the kernel choose among contenders whose order by approximate counts is wrong.
    fn victims(&mut self, rng: &mut Rng, out: &mut Reporter) -> Result<()> {
        let changes = Changes {
            cpus: self.cpus,
            base_pages: LARGEST_PAGES,
            spread_pages: SPREAD_PAGES,
            // In the stock kernel a CPU keeps less than a batch of max(32, 2 x CPUs) to itself.
            residue_pages: (2 * self.cpus).max(32) - 1,
        };
        let mut sizes = HashMap::new();
        for &pid in &self.population {
            sizes.insert(pid, population::badness(pid)?);
        }
        let mut contenders: Vec<Contender> = Vec::new();
        let (mut misses, mut short) = (0, 0);
        for round in 0..VICTIM_ROUNDS {
            out.progress(&format!("{VICTIM}: round {} of {VICTIM_ROUNDS}", round + 1));
            self.group.join()?;
            while contenders.len() < CONTENDERS {
                let contender = Contender::spawn(changes, rng.one_in(2), &self.pool)?;
                self.population.push(contender.pid);
                contenders.push(contender);
            }
            self.group.leave()?;
            for contender in &mut contenders {
                contender.change(rng.bits())?;
                sizes.insert(contender.pid, population::badness(contender.pid)?);
            }
            let killed = self.provoke(Timed::Memcg)?;
            let best = sizes.values().copied().max().unwrap_or_default();
            let size = sizes.remove(&killed).context("the victim was none of the processes")?;
            misses += u32::from(size < best);
            short += best - size;
            contenders.retain(|c| c.pid != killed);
        }
        let mean = short as f64 * PAGE_BYTES as f64 / 1e6 / f64::from(VICTIM_ROUNDS);
        out.sample(&metric_name(VICTIM, "misses"), misses.into());
        out.sample(&metric_name(VICTIM, "short-mb"), mean);
        // The contenders are killed with the other processes.
        Ok(())
    }

    /// Has the kernel kill one process, and returns its PID.
    fn provoke(&mut self, timed: Timed) -> Result<Pid> {
        let before = self.kills()?;
        match timed {
            Timed::Memcg | Timed::Report => self.exceed(before)?,
            Timed::Global => fs::write("/proc/sysrq-trigger", "f").context("/proc/sysrq-trigger")?,
        }
        let ended = wait(WaitOptions::empty()).context("wait for the victim")?;
        let (killed, _) = ended.context("no process to wait for")?;
        ensure!(self.kills()? == before + 1, "not one process was killed but {}", self.kills()? - before);
        self.population.retain(|&pid| pid != killed);
        Ok(killed)
    }

    /// Sets a limit below what the group uses until a process is killed.
    ///
    /// The kernel continues to kill until usage is within the limit, or the writer of the limit has a pending
    /// signal. All processes stay on this CPU, and cannot run while this process, which has a higher
    /// priority, is in the kernel: the first victim keeps its memory until the signal comes, and no second
    /// victim is chosen.
    fn exceed(&mut self, before: u64) -> Result<()> {
        for _ in 0..TRIES {
            let usage = self.group.number("memory.current")?;
            let limit = usage.saturating_sub(PAGE_BYTES as u64);
            sched::set_policy(libc::SCHED_FIFO, 1).context("SCHED_FIFO")?;
            alarm::set(self.timeout)?;
            let written = self.group.set("memory.max", &limit.to_string());
            alarm::set(Duration::ZERO)?;
            self.group.set("memory.max", "max")?;
            sched::set_policy(libc::SCHED_OTHER, 0).context("SCHED_OTHER")?;
            written?;
            if self.kills()? > before {
                return Ok(());
            }
            if self.group.number("memory.current")? > limit {
                // The signal came before a kill.
                self.timeout *= 2;
            }
        }
        bail!("no process was killed after {TRIES} limits below the usage")
    }

    /// Returns how many of the cgroup's processes the OOM killer has killed.
    fn kills(&self) -> Result<u64> {
        value(&self.group.get("memory.events")?, "oom_kill ").context("no oom_kill in memory.events")
    }
}

/// Makes a trace that records when a selection begins and ends, and `more`.
fn selection_trace(more: &[Probe]) -> Result<Trace> {
    let probe = |name, function: &str| Probe { name, kind: "p", what: function.to_owned() };
    let probes = [probe("oom_kill", "oom_kill_process"), probe("oom_enter", "out_of_memory")];
    let mut trace = Trace::new("oom_select", Clock::Mono, &[&probes, more].concat())?;
    trace.add_event(KILL_EVENT);
    trace.set_buffer_size(TRACE_BUFFER_KIB)?;
    Ok(trace)
}

/// What was recorded of the first selection.
#[derive(Debug, PartialEq, Eq)]
struct Selection {
    /// How long it took, in microseconds.
    micros: u64,
    /// The same, and all until the kill: the report, unless the kernel left it out.
    until_kill: u64,
    /// How many counters were summed up.
    sums: u64,
    /// The fields of the kernel's own event for it.
    fields: Option<String>,
}

impl Selection {
    fn parse(trace: &str) -> Result<Self> {
        let (mut entered, mut chosen, mut sums, mut fields) = (None, None, 0, None);
        for event in events(trace) {
            let (_, event) = event?;
            match event.name {
                "oom_enter" => (entered, chosen, sums, fields) = (Some(event.at), None, 0, None),
                "oom_lock" => {
                    let by = text_field(event.fields, "by").and_then(|by| by.split('+').next());
                    sums += u64::from(by == Some("__percpu_counter_sum"));
                }
                "memreap_oom_select" => fields = Some(event.fields.to_owned()),
                "oom_kill" => chosen = Some(event.at),
                "mark_victim" => {
                    let (entered, chosen) = entered.zip(chosen).context("a kill without a selection")?;
                    let (micros, until_kill) = (chosen - entered, event.at - entered);
                    return Ok(Self { micros, until_kill, sums, fields });
                }
                _ => {}
            }
        }
        bail!("no selection was recorded")
    }

    /// Returns how long it took with the report of all processes, in microseconds.
    fn reported(&self) -> Result<u64> {
        // A line of text takes far longer than a comparison.
        ensure!(self.until_kill > 2 * self.micros, "the kernel wrote no report: {self:?}");
        Ok(self.until_kill)
    }
}

/// A signal that only interrupts a system call.
mod alarm {
    use super::*;

    extern "C" fn nothing(_: libc::c_int) {}

    /// Installs a handler for SIGALRM that does nothing.
    pub fn install() -> Result<()> {
        // SAFETY: sigaction is plain data, for which all zeroes is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler does nothing, so it may run at any time; both pointers are valid or null.
        let ret = unsafe { libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) };
        ensure!(ret == 0, "sigaction: {}", io::Error::last_os_error());
        Ok(())
    }

    /// Sends SIGALRM to this process after some time; never, if that is zero.
    pub fn set(after: Duration) -> Result<()> {
        let value = libc::timeval { tv_sec: after.as_secs().try_into()?, tv_usec: after.subsec_micros().into() };
        let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let timer = libc::itimerval { it_interval: never, it_value: value };
        // SAFETY: reads one itimerval, which outlives the call.
        let ret = unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
        ensure!(ret == 0, "setitimer: {}", io::Error::last_os_error());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_distribution_of_their_name() {
        let mut rng = Rng(SEED);
        let mut sizes: Vec<usize> = (0..2000).map(|i| lognormal(i, &mut rng)).collect();
        sizes.sort_unstable();
        assert!((900..1150).contains(&sizes[1000]), "{}", sizes[1000]);
        // A sixth is beyond one deviation.
        let beyond = sizes.iter().filter(|&&s| s as f64 > MEDIAN_PAGES * SIGMA.exp()).count();
        assert!((260..380).contains(&beyond), "{beyond}");
        assert!(sizes[1999] < LARGEST_PAGES);
        let sizes: Vec<usize> = (0..2000).map(|i| nearly_equal(i, &mut rng)).collect();
        assert_eq!((sizes.iter().min(), sizes.iter().max()), (Some(&1014), Some(&1034)));
        let sizes: Vec<usize> = (0..2000).map(|i| ascending(i, &mut rng)).collect();
        assert!(sizes.is_sorted());
        assert_eq!((sizes[0], sizes[1999]), (1014, 1053));
    }

    #[test]
    fn the_selection_that_led_to_a_kill_counts() {
        let trace = "\
            exe-40 [000] d.... 4.000000: oom_enter: (out_of_memory+0x0/0x280)\n\
            exe-40 [000] d.... 4.000001: oom_lock: (_raw_spin_lock_irqsave+0x0/0x30) by=__percpu_counter_sum+0x1d/0x80\n\
            exe-40 [000] d.... 4.000010: oom_enter: (out_of_memory+0x0/0x280)\n\
            exe-40 [000] d.... 4.000020: oom_lock: (_raw_spin_lock_irqsave+0x0/0x30) by=__percpu_counter_sum+0x1d/0x80\n\
            exe-40 [000] d.... 4.000030: oom_lock: (_raw_spin_lock_irqsave+0x0/0x30) by=__percpu_counter_sum+0x1d/0x80\n\
            exe-40 [000] d.... 4.000035: oom_lock: (_raw_spin_lock_irqsave+0x0/0x30) by=down_trylock+0x10/0x40\n\
            exe-40 [000] d.... 4.000040: memreap_oom_select: tasks=200 summed=3\n\
            exe-40 [000] d.... 4.000052: oom_kill: (oom_kill_process+0x0/0x280)\n\
            exe-40 [000] d.... 4.000059: mark_victim: pid=41 comm=exe\n\
            exe-40 [000] d.... 4.000060: oom_enter: (out_of_memory+0x0/0x280)\n\
            exe-40 [000] d.... 4.000090: oom_lock: (_raw_spin_lock_irqsave+0x0/0x30) by=__percpu_counter_sum+0x1d/0x80\n";
        let fields = Some("tasks=200 summed=3".to_owned());
        let selection = Selection { micros: 42, until_kill: 49, sums: 2, fields };
        assert_eq!(Selection::parse(trace).unwrap(), selection);
        assert!(selection.reported().unwrap_err().to_string().contains("no report"));
        assert_eq!(Selection { until_kill: 4900, ..selection }.reported().unwrap(), 4900);
        let nothing = trace.replace("mark_victim:", "other:");
        assert!(Selection::parse(&nothing).unwrap_err().to_string().contains("no selection"));
        let headless = trace.replace("oom_enter:", "other:");
        assert!(Selection::parse(&headless).unwrap_err().to_string().contains("without a selection"));
    }
}
