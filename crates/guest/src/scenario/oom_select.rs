//! Scenario `oom-select`: the OOM killer has to choose one of many processes. How long does that
//! take, how many of them does it look at closely, and is the one that it kills the largest?
//!
//! Sizes are lognormal, as on real machines, or nearly equal, the worst case for whoever wants to
//! rule processes out early. The victim is looked for where a kernel that goes by approximate
//! counts must err: some contenders at the top, each with amounts on many CPUs that are just too
//! small for these CPUs to have handed them on.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, wait, waitid};

use super::arguments::{Arguments, Only};
use super::{Better, Scenario, median, metric};
use crate::memory::PAGE_BYTES;
use crate::process::population::{self, Changes, Contender, HOME, Pool, Shape};
use crate::rng::Rng;
use crate::system::cgroup::TemporaryCgroup;
use crate::system::counters::value;
use crate::system::sched;
use crate::trace::tracefs::{self, Clock, Probe, Trace, events, text_field};
use init::report::Reporter;

/// Pages of the common file that a process of median size has mapped.
const MEDIAN: f64 = 1024.0;
/// The deviation of the sizes' logarithms.
const SIGMA: f64 = 1.0;
/// The most that a process has, and what a contender has at least.
const LARGEST: usize = 16 << 10;
/// Nearly equal sizes differ from the median by so many pages at most: 1 %.
const NEARLY: usize = 10;
/// Processes that compete for being the largest, and up to how many pages they differ by besides
/// what CPUs hold back.
const CONTENDERS: usize = 24;
const SPREAD: usize = 1024;
/// Seeds the populations whose selection is timed: the same in every boot.
const SEED: u64 = 1;
/// How often a limit is set until somebody is killed.
const TRIES: u32 = 40;
/// How long the kernel is given at first to find that there is nothing to reclaim.
const PATIENCE: Duration = Duration::from_millis(10);
/// Trace buffer for each CPU, in KiB: for a hit per process and counter.
const ROOM: u32 = 1024;
/// Counters of a process that are summed for its size.
const COUNTERS: f64 = 4.0;
/// What the changed kernel says of a selection.
const SELECTED: &str = "memreap_oom/memreap_oom_select";

/// `oom-select [case=NAME|victim] [selections=3] [rounds=13] [seed=N]`
pub struct OomSelect;

/// A population.
struct Case {
    name: &'static str,
    processes: usize,
    /// Pages of the common file for one process.
    size: fn(&mut Rng) -> usize,
    /// Whether the same processes stay, and the next case adds to them.
    grows: bool,
    /// Whether a selection among all processes of the system is timed, too.
    global: bool,
}

const CASES: [Case; 3] = [
    Case { name: "lognormal-200", processes: 200, size: lognormal, grows: true, global: false },
    Case { name: "lognormal-2000", processes: 2000, size: lognormal, grows: true, global: true },
    Case { name: "near-equal-2000", processes: 2000, size: nearly_equal, grows: false, global: false },
];
/// What is timed.
const KINDS: [(Shortage, &str); 2] = [(Shortage::Memcg, "select-us"), (Shortage::Global, "select-global-us")];
const PRECISE_SHARE: &str = "precise-share";
/// What is reported of the case that is not timed.
const MISSES: &str = "misses";
const SHORT: &str = "short-mb";
/// The name of the case that is not timed, and the population for it.
const VICTIM: &str = "victim";
const VICTIM_AMONG: &str = "lognormal-2000";

fn lognormal(rng: &mut Rng) -> usize {
    loop {
        let pages = MEDIAN * (SIGMA * rng.normal()).exp();
        if pages < LARGEST as f64 {
            return pages as usize;
        }
    }
}

fn nearly_equal(rng: &mut Rng) -> usize {
    MEDIAN as usize - NEARLY + rng.below(2 * NEARLY + 1)
}

impl Case {
    fn kinds(&self) -> impl Iterator<Item = (Shortage, &'static str)> {
        KINDS.into_iter().filter(|&(shortage, _)| shortage == Shortage::Memcg || self.global)
    }
}

impl Scenario for OomSelect {
    fn name(&self) -> &'static str {
        "oom-select"
    }

    fn metrics(&self, args: &[String], _cpus: usize) -> Result<Vec<String>> {
        let options = Options::parse(args)?;
        let mut metrics = Vec::new();
        for case in CASES.iter().filter(|case| options.case.wants(case.name)) {
            let whats = case.kinds().map(|(_, what)| what).chain([PRECISE_SHARE]);
            metrics.extend(whats.map(|what| metric(case.name, what)));
        }
        if options.case.wants(VICTIM) {
            metrics.extend([MISSES, SHORT].map(|what| metric(VICTIM, what)));
        }
        Ok(metrics)
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let options = Options::parse(args)?;
        sched::pin(HOME)?;
        fs::write("/proc/sys/vm/oom_dump_tasks", "0").context("vm.oom_dump_tasks")?;
        alarm::install()?;
        let mut arena = Arena::new()?;
        for case in CASES.iter().filter(|case| options.prepares(case)) {
            arena.populate(case, out).with_context(|| format!("case {}", case.name))?;
            if options.case.wants(case.name) {
                arena.select(case, options.selections, out).with_context(|| format!("case {}", case.name))?;
            }
            if case.name == VICTIM_AMONG && options.case.wants(VICTIM) {
                let seed = options.seed.map_or_else(random, Ok)?;
                out.note(&format!("{VICTIM}: seed {seed}"));
                arena.victims(options.rounds, &mut Rng(seed), out).context("case victim")?;
            }
        }
        arena.clear()
    }
}

struct Options {
    case: Only,
    /// Timed selections of each kind; the median counts.
    selections: u32,
    /// Random populations from which the right victim must be taken.
    rounds: u32,
    /// Seeds these.
    seed: Option<u64>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let args = Arguments::new(args, &[], &["case", "selections", "rounds", "seed"])?;
        let options = Self {
            case: args.case(CASES.iter().map(|case| case.name).chain([VICTIM]))?,
            selections: args.get("selections", 3)?,
            rounds: args.get("rounds", 13)?,
            seed: args.find("seed")?,
        };
        // Each selection takes one of the processes away.
        ensure!((1..=20).contains(&options.selections), "selections={} is not 1 to 20", options.selections);
        ensure!((1..=10_000).contains(&options.rounds), "rounds={} is not 1 to 10,000", options.rounds);
        Ok(options)
    }

    /// Whether the case's processes are needed.
    fn prepares(&self, case: &Case) -> bool {
        self.case.wants(case.name) || case.name == VICTIM_AMONG && self.case.wants(VICTIM)
    }
}

/// A seed that no other boot has.
fn random() -> Result<u64> {
    let mut seed = [0; 4];
    let mut source = File::open("/dev/urandom").context("/dev/urandom")?;
    source.read_exact(&mut seed).context("/dev/urandom")?;
    Ok(u32::from_ne_bytes(seed).into())
}

/// How the kernel is made to choose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shortage {
    /// The cgroup's limit is below what its processes use.
    Memcg,
    /// By SysRq, among all processes of the system.
    Global,
}

/// The cgroup that the processes live in.
struct Arena {
    group: TemporaryCgroup,
    pool: Pool,
    cpus: usize,
    population: Vec<Pid>,
    rng: Rng,
    patience: Duration,
}

impl Arena {
    fn new() -> Result<Self> {
        Ok(Self {
            group: TemporaryCgroup::new("oom", "memory")?,
            pool: Pool::new(LARGEST)?,
            cpus: sched::online_cpus()?,
            population: Vec::new(),
            rng: Rng(SEED),
            patience: PATIENCE,
        })
    }

    /// Makes the processes of a case.
    fn populate(&mut self, case: &Case, out: &mut Reporter) -> Result<()> {
        if !case.grows {
            self.clear()?;
        }
        // A process is born into its parent's cgroup, which is quicker than to be moved there.
        self.group.join()?;
        while self.population.len() < case.processes {
            let made = self.population.len();
            if made.is_multiple_of(100) {
                out.progress(&format!("{}: {made} processes", case.name));
            }
            let shape = Shape::new((case.size)(&mut self.rng), self.cpus, &mut self.rng);
            self.population.push(population::spawn(&shape, &self.pool)?);
        }
        self.group.leave()
    }

    /// Ends all processes.
    fn clear(&mut self) -> Result<()> {
        self.group.set("cgroup.kill", "1")?;
        for pid in self.population.drain(..) {
            waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).context("reap a process")?;
        }
        Ok(())
    }

    /// Times selections, and counts the precise sums that they take.
    fn select(&mut self, case: &Case, selections: u32, out: &mut Reporter) -> Result<()> {
        out.progress(&format!("{}: selections", case.name));
        let lower = Better::Lower;
        for (shortage, what) in case.kinds() {
            let trace = selection_trace(&[])?;
            let rounds = (0..selections)
                .map(|_| {
                    let (_, text) = trace.record(|| self.provoke(shortage))?;
                    Ok(Selection::parse(&text)?.micros as f64)
                })
                .collect::<Result<Vec<f64>>>()
                .with_context(|| what.to_owned())?;
            out.sample(&metric(case.name, what), "us", lower, median(rounds.into_iter()));
        }
        let share = self.precise_share(case, out)?;
        out.sample(&metric(case.name, PRECISE_SHARE), "percent", lower, 100.0 * share);
        Ok(())
    }

    /// How many precise sums a selection takes for each process.
    fn precise_share(&mut self, case: &Case, out: &mut Reporter) -> Result<f64> {
        // What sums a counter of stock's up cannot be probed, but the lock that it takes can. The
        // changed kernel has other counters, and says itself.
        let what = "_raw_spin_lock_irqsave by=$stack0:symbol".to_owned();
        let sums = Probe { name: "oom_lock", kind: "p", what };
        let tells = tracefs::has_event(SELECTED);
        let mut trace = selection_trace(if tells { &[] } else { std::slice::from_ref(&sums) })?;
        if tells {
            trace.add_event(SELECTED);
        }
        let among = self.population.len() as f64;
        let (_, text) = trace.record_outermost(|| self.provoke(Shortage::Memcg))?;
        let selection = Selection::parse(&text)?;
        if !tells {
            return Ok(selection.sums as f64 / COUNTERS / among);
        }
        let said = selection.said.with_context(|| format!("no {SELECTED} in the selection"))?;
        out.note(&format!("{}: {said}", case.name));
        let number = |key| text_field(&said, key)?.parse::<f64>().ok();
        let (precise, tasks) = number("precise").zip(number("tasks")).context("no precise= and tasks=")?;
        ensure!(tasks >= among, "{tasks} tasks seen, but there are {among}");
        Ok(precise / tasks)
    }

    /// Lets the kernel choose among contenders whose approximate order is wrong.
    fn victims(&mut self, rounds: u32, rng: &mut Rng, out: &mut Reporter) -> Result<()> {
        let changes = Changes {
            cpus: self.cpus,
            base: LARGEST,
            spread: SPREAD,
            // A CPU of stock's keeps less than a batch of max(32, 2 x CPUs) to itself.
            residue: (2 * self.cpus).max(32) - 1,
        };
        let mut sizes = HashMap::new();
        for &pid in &self.population {
            sizes.insert(pid, population::badness(pid)?);
        }
        let mut contenders: Vec<Contender> = Vec::new();
        let (mut misses, mut short) = (0, 0);
        for round in 0..rounds {
            out.progress(&format!("{VICTIM}: round {} of {rounds}", round + 1));
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
            let killed = self.provoke(Shortage::Memcg)?;
            let best = sizes.values().copied().max().unwrap_or_default();
            let size = sizes.remove(&killed).context("the victim was none of the processes")?;
            misses += u32::from(size < best);
            short += best - size;
            contenders.retain(|c| c.pid != killed);
        }
        let mean = short as f64 * PAGE_BYTES as f64 / 1e6 / f64::from(rounds);
        out.sample(&metric(VICTIM, MISSES), "count", Better::Lower, misses.into());
        out.sample(&metric(VICTIM, SHORT), "MB", Better::Lower, mean);
        // They end with the others.
        Ok(())
    }

    /// Has the kernel kill one process, and gives which.
    fn provoke(&mut self, shortage: Shortage) -> Result<Pid> {
        let before = self.kills()?;
        match shortage {
            Shortage::Memcg => self.exceed(before)?,
            Shortage::Global => fs::write("/proc/sysrq-trigger", "f").context("/proc/sysrq-trigger")?,
        }
        let ended = wait(WaitOptions::empty()).context("wait for the victim")?;
        let (killed, _) = ended.context("nobody to wait for")?;
        ensure!(self.kills()? == before + 1, "not one process was killed but {}", self.kills()? - before);
        self.population.retain(|&pid| pid != killed);
        Ok(killed)
    }

    /// Sets a limit below what the group uses until a process is killed.
    ///
    /// The kernel goes on to kill until usage is within the limit, or the writer of the limit has a
    /// signal to see to. All processes stay on this CPU, and cannot run while this process, which
    /// goes before them, is in the kernel: the first victim keeps its memory until the signal is
    /// there, and no second one is chosen.
    fn exceed(&mut self, before: u64) -> Result<()> {
        for _ in 0..TRIES {
            let usage = self.group.number("memory.current")?;
            let limit = usage.saturating_sub(PAGE_BYTES as u64);
            sched::set_policy(libc::SCHED_FIFO, 1).context("SCHED_FIFO")?;
            alarm::set(self.patience)?;
            let written = self.group.set("memory.max", &limit.to_string());
            alarm::set(Duration::ZERO)?;
            self.group.set("memory.max", "max")?;
            sched::set_policy(libc::SCHED_OTHER, 0).context("SCHED_OTHER")?;
            written?;
            if self.kills()? > before {
                return Ok(());
            }
            if self.group.number("memory.current")? > limit {
                // It was the signal that came first.
                self.patience *= 2;
            }
        }
        bail!("nobody was killed after {TRIES} limits below what is used")
    }

    /// How many of the group's processes the OOM killer has killed.
    fn kills(&self) -> Result<u64> {
        value(&self.group.get("memory.events")?, "oom_kill ").context("no oom_kill in memory.events")
    }
}

/// Records where the choice begins and where it is made, and what else is given.
fn selection_trace(more: &[Probe]) -> Result<Trace> {
    let probe = |name, function: &str| Probe { name, kind: "p", what: function.to_owned() };
    let probes = [probe("oom_kill", "oom_kill_process"), probe("oom_enter", "out_of_memory")];
    let trace = Trace::new("oom_select", Clock::Mono, &[&probes, more].concat())?;
    trace.set_buffer_size(ROOM)?;
    Ok(trace)
}

/// What was recorded of the first choice.
#[derive(Debug, PartialEq, Eq)]
struct Selection {
    /// How long it took, in microseconds.
    micros: u64,
    /// Counters summed up.
    sums: u64,
    /// What the kernel itself says about it.
    said: Option<String>,
}

impl Selection {
    fn parse(trace: &str) -> Result<Self> {
        let (mut entered, mut sums, mut said) = (None, 0, None);
        for event in events(trace) {
            let (_, event) = event?;
            match event.name {
                "oom_enter" => (entered, sums, said) = (Some(event.at), 0, None),
                "oom_lock" => {
                    let by = text_field(event.fields, "by").and_then(|by| by.split('+').next());
                    sums += u64::from(by == Some("__percpu_counter_sum"));
                }
                "memreap_oom_select" => said = Some(event.fields.to_owned()),
                "oom_kill" => {
                    let entered = entered.context("a kill without a choice")?;
                    return Ok(Self { micros: event.at - entered, sums, said });
                }
                _ => {}
            }
        }
        bail!("no choice was recorded")
    }
}

/// A signal that only interrupts.
mod alarm {
    use super::*;

    extern "C" fn nothing(_: libc::c_int) {}

    /// Makes SIGALRM harmless.
    pub fn install() -> Result<()> {
        // SAFETY: sigaction is plain data, for which all zeroes is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler does nothing, so it may run at any time; both pointers are valid or null.
        let ret = unsafe { libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) };
        ensure!(ret == 0, "sigaction: {}", io::Error::last_os_error());
        Ok(())
    }

    /// Sends it to this process after some time; never, if that is zero.
    pub fn set(after: Duration) -> Result<()> {
        let value =
            libc::timeval { tv_sec: after.as_secs().try_into()?, tv_usec: after.subsec_micros().into() };
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
    use super::super::arguments::words;
    use super::*;

    fn parse(args: &[&str]) -> Result<Options> {
        Options::parse(&words(args))
    }

    #[test]
    fn arguments_have_defaults_and_bounds() {
        let options = parse(&[]).unwrap();
        assert_eq!((options.selections, options.rounds, options.seed), (3, 13, None));
        assert!(CASES.iter().all(|case| options.case.wants(case.name)) && options.case.wants(VICTIM));
        let options = parse(&["case=victim", "rounds=100", "seed=0"]).unwrap();
        assert_eq!((options.rounds, options.seed), (100, Some(0)));
        let prepared: Vec<&str> =
            CASES.iter().filter(|case| options.prepares(case)).map(|case| case.name).collect();
        assert_eq!(prepared, [VICTIM_AMONG]);
        assert!(!options.case.wants(VICTIM_AMONG));
        for bad in ["case=lognormal", "selections=0", "rounds=0", "rounds=x", "seed=x", "seeds=1", "fast"] {
            assert!(parse(&[bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_what_they_are_called() {
        let mut rng = Rng(SEED);
        let mut sizes: Vec<usize> = (0..2000).map(|_| lognormal(&mut rng)).collect();
        sizes.sort_unstable();
        assert!((900..1150).contains(&sizes[1000]), "{}", sizes[1000]);
        // A sixth is beyond one deviation.
        let beyond = sizes.iter().filter(|&&s| s as f64 > MEDIAN * SIGMA.exp()).count();
        assert!((260..380).contains(&beyond), "{beyond}");
        assert!(sizes[1999] < LARGEST);
        let sizes: Vec<usize> = (0..2000).map(|_| nearly_equal(&mut rng)).collect();
        assert_eq!((sizes.iter().min(), sizes.iter().max()), (Some(&1014), Some(&1034)));
    }

    #[test]
    fn the_choice_that_led_to_a_kill_counts() {
        let trace = "\
            exe-40 [000] d.... 4.000000: oom_enter: (out_of_memory+0x0/0x280)\n\
            exe-40 [000] d.... 4.000001: oom_lock: (_raw_spin_lock_irqsave+0x0/0x30) by=__percpu_counter_sum+0x1d/0x80\n\
            exe-40 [000] d.... 4.000010: oom_enter: (out_of_memory+0x0/0x280)\n\
            exe-40 [000] d.... 4.000020: oom_lock: (_raw_spin_lock_irqsave+0x0/0x30) by=__percpu_counter_sum+0x1d/0x80\n\
            exe-40 [000] d.... 4.000030: oom_lock: (_raw_spin_lock_irqsave+0x0/0x30) by=__percpu_counter_sum+0x1d/0x80\n\
            exe-40 [000] d.... 4.000035: oom_lock: (_raw_spin_lock_irqsave+0x0/0x30) by=down_trylock+0x10/0x40\n\
            exe-40 [000] d.... 4.000040: memreap_oom_select: tasks=200 ranged=9 precise=3\n\
            exe-40 [000] d.... 4.000052: oom_kill: (oom_kill_process+0x0/0x280)\n\
            exe-40 [000] d.... 4.000060: oom_enter: (out_of_memory+0x0/0x280)\n\
            exe-40 [000] d.... 4.000090: oom_lock: (_raw_spin_lock_irqsave+0x0/0x30) by=__percpu_counter_sum+0x1d/0x80\n";
        let said = Some("tasks=200 ranged=9 precise=3".to_owned());
        assert_eq!(Selection::parse(trace).unwrap(), Selection { micros: 42, sums: 2, said });
        let nothing = trace.replace("oom_kill:", "other:");
        assert!(Selection::parse(&nothing).unwrap_err().to_string().contains("no choice"));
        let headless = trace.replace("oom_enter:", "other:");
        assert!(Selection::parse(&headless).unwrap_err().to_string().contains("without a choice"));
    }
}
