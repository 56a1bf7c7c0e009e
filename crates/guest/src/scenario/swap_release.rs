//! Scenario `swap-release`: processes whose memory is mostly in swap are killed, all at once. When
//! are they gone, when is the memory back that they had, when the swap space, and what does it cost?
//! How long is a page table locked, how much waits to be released, and what do others feel who go on
//! with their work meanwhile?
//!
//! All victims are 64 MiB large; see [`swapped`](crate::process::swapped) for what is in them and how it gets
//! to swap. What comes back is watched in rounds of their own, page table locks and the others' work
//! in others: each of these would change the rest.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::arguments::{Arguments, Only};
use super::{Better, Figure, Scenario, median, metric};
use crate::measure::free_memory::{self, ShortFreeLists};
use crate::measure::recovery::{self, Gauge, Moment, Recorder};
use crate::memory::PAGE_BYTES;
use crate::memory::swap::{self, Area};
use crate::process::foreground::{self, Steps, Worker};
use crate::process::swapped::{Flock, Layout};
use crate::system::counters;
use crate::system::{clock, sched};
use crate::trace::pte_lock;
use crate::trace::tracefs::Lost;
use init::report::Reporter;

/// `swap-release [icount] [case=NAME] [rounds=N]`
pub struct SwapRelease;

/// Where a case's swap space is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    /// zram, with this compression or the kernel's default.
    Zram(Option<&'static str>),
    Loop,
}

/// Victims, and what is measured when they are killed.
struct Case {
    name: &'static str,
    victims: usize,
    layout: Layout,
    on: On,
    /// Whether a round is for the locks of page tables, under `icount`.
    locks: bool,
    /// Whether others work beside it.
    foreground: bool,
    /// Rounds for what comes back, with two CPUs and with `icount`.
    rounds: [u32; 2],
}

const PLAIN: Case = Case {
    name: "8x64-65",
    victims: 8,
    layout: Layout { share: 65, scattered: false },
    on: On::Zram(None),
    locks: false,
    foreground: false,
    rounds: [1, 1],
};
const CASES: [Case; 9] = [
    Case { locks: true, foreground: true, rounds: [2, 1], ..PLAIN },
    Case { name: "1x64-65", victims: 1, locks: true, rounds: [3, 3], ..PLAIN },
    Case { name: "4x64-65", victims: 4, ..PLAIN },
    Case { name: "15x64-65", victims: 15, ..PLAIN },
    Case { name: "1x64-95", victims: 1, layout: MOSTLY, rounds: [3, 3], ..PLAIN },
    Case { name: "8x64-95", layout: MOSTLY, ..PLAIN },
    Case { name: "8x64-65-scattered", layout: Layout { scattered: true, ..PLAIN.layout }, ..PLAIN },
    Case { name: "8x64-65-lz4", on: On::Zram(Some("lz4")), ..PLAIN },
    Case { name: "8x64-65-loop", on: On::Loop, ..PLAIN },
];
const MOSTLY: Layout = Layout { share: 95, scattered: false };

/// The share of it whose return is timed.
const SHARE: f64 = 0.98;
/// Less of it back than this, and something else was measured.
const PLAUSIBLE: f64 = 0.95;
/// Memory that counters and per-CPU lists may hide.
const HIDDEN: u64 = 1 << 20;
/// Slots that each CPU may keep for its next use when they are freed, and as many when they are used.
const SLOTS_KEPT: usize = 128;
/// Swap space for all victims, with something to spare.
const SWAP: u64 = 1 << 30;
/// When what is not back has been forgotten.
const FORGOTTEN: Duration = Duration::from_secs(8);
/// How often it is looked at before.
const LOOK: Duration = Duration::from_millis(5);
/// For how long all is watched after the swap is back: zram and RCU may take a little longer.
const LINGER: Duration = Duration::from_millis(25);
/// How long a helper thread is given between looks whether it is ready.
const MOMENT: Duration = Duration::from_micros(100);
/// How long the others work before a kill.
const WARM_UP: Duration = Duration::from_millis(30);
/// How often a round is tried whose events were lost.
const TRIES: u32 = 5;
/// Rounds in which others work, with two CPUs and with `icount`.
const FOREGROUND_ROUNDS: [u32; 2] = [3, 5];
/// For how long their steps count from the kill on, with two CPUs and with `icount`: longer than
/// anything takes, so that all kernels' steps are about as many.
const WINDOW: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(400)];

/// What is reported of a round, and the unit: a million nanoseconds or bytes.
const BACK: [(Figure<Round>, &str); 7] = [
    (("gone-ms", |r| r.gone), "ms"),
    (("ram-98-ms", |r| r.ram), "ms"),
    (("swap-98-ms", |r| r.swap), "ms"),
    ((ZRAM, |r| r.zram.unwrap_or(f64::NAN)), "ms"),
    (("mem-98-ms", |r| r.free), "ms"),
    (("cpu-ms", |r| r.cpu), "ms"),
    (("backlog-mb", |r| r.backlog), "MB"),
];
/// Reported only where swap is on zram.
const ZRAM: &str = "zram-98-ms";
const LOCK: &str = "pte-lock-max-us";
/// What is reported of each kind of work's steps.
const STEPS: [Figure<Steps>; 3] = [("p50", |s| s.p50), ("p99", |s| s.p99), ("max", |s| s.max)];

/// The topic's switch, where the kernel has it.
const KNOB: &str = "/sys/module/memreap/parameters/swap_release";

impl Case {
    /// What is reported of its rounds.
    fn back(&self) -> impl Iterator<Item = (Figure<Round>, &'static str)> {
        let on_zram = self.on != On::Loop;
        BACK.into_iter().filter(move |&((what, _), _)| on_zram || what != ZRAM)
    }

    fn metrics(&self, icount: bool) -> Vec<String> {
        let mut metrics: Vec<String> = self.back().map(|((what, _), _)| metric(self.name, what)).collect();
        if self.locks && icount {
            metrics.push(metric(self.name, LOCK));
        }
        if self.foreground {
            let works = foreground::Work::ALL.into_iter();
            metrics.extend(works.flat_map(|work| STEPS.map(|(what, _)| self.step_metric(work, what))));
        }
        metrics
    }

    fn step_metric(&self, work: foreground::Work, what: &str) -> String {
        metric(self.name, &format!("{}-{what}-us", work.name()))
    }
}

impl Scenario for SwapRelease {
    fn name(&self) -> &'static str {
        "swap-release"
    }

    fn metrics(&self, args: &[String], _cpus: usize) -> Result<Vec<String>> {
        let options = Options::parse(args)?;
        let cases = CASES.iter().filter(|case| options.case.wants(case.name));
        Ok(cases.flat_map(|case| case.metrics(options.icount)).collect())
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let options = Options::parse(args)?;
        let short = ShortFreeLists::set()?;
        // What is read back is looked at page by page.
        fs::write("/proc/sys/vm/page-cluster", "0").context("vm.page-cluster")?;
        let mode = fs::read_to_string(KNOB).unwrap_or_else(|_| "not known".to_owned());
        out.note(&format!("swap_release: {}", mode.trim_end()));
        let algorithms = swap::algorithms()?;
        for case in CASES.iter().filter(|case| options.case.wants(case.name)) {
            let has = |name: &str| algorithms.iter().any(|a| a == name);
            if let On::Zram(Some(name)) = case.on
                && !has(name)
            {
                out.note(&format!("{}: left out, this kernel's zram does not have {name}", case.name));
                continue;
            }
            Run::new(case, &options)?.all(out).with_context(|| format!("case {}", case.name))?;
        }
        drop(short);
        Ok(())
    }
}

struct Options {
    icount: bool,
    case: Only,
    rounds: Option<u32>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let args = Arguments::new(args, &["icount"], &["case", "rounds"])?;
        let case = args.case(CASES.each_ref().map(|case| case.name))?;
        Ok(Self { icount: args.has("icount"), case, rounds: args.rounds()? })
    }
}

/// What a round says: times in nanoseconds.
struct Round {
    gone: f64,
    ram: f64,
    swap: f64,
    /// Where swap is on zram.
    zram: Option<f64>,
    free: f64,
    cpu: f64,
    /// Bytes.
    backlog: f64,
}

/// When a kill began and when the last victim was dead, in nanoseconds on the monotonic clock.
struct Strike {
    start: u64,
    gone: u64,
}

/// One case.
struct Run<'a> {
    case: &'static Case,
    options: &'a Options,
    cpus: usize,
    area: Area,
}

impl<'a> Run<'a> {
    fn new(case: &'static Case, options: &'a Options) -> Result<Self> {
        let area = match case.on {
            On::Zram(algorithm) => Area::zram(SWAP, algorithm)?,
            On::Loop => Area::on_loop(SWAP)?,
        };
        let cpus = thread::available_parallelism().context("number of CPUs")?.get();
        Ok(Self { case, options, cpus, area })
    }

    fn all(&self, out: &mut Reporter) -> Result<()> {
        let mode = usize::from(self.options.icount);
        let rounds = self.options.rounds.unwrap_or(self.case.rounds[mode]);
        let rounds = (0..rounds)
            .map(|i| {
                out.progress(&format!("{}: round {}", self.case.name, i + 1));
                self.round(out)
            })
            .collect::<Result<Vec<Round>>>()?;
        for ((what, of), unit) in self.case.back() {
            let value = median(rounds.iter().map(of)) / 1e6;
            out.sample(&metric(self.case.name, what), unit, Better::Lower, value);
        }
        if self.case.locks && self.options.icount {
            out.progress(&format!("{}: locks", self.case.name));
            let longest = self.longest_lock(out)?;
            out.sample(&metric(self.case.name, LOCK), "us", Better::Lower, longest as f64);
        }
        if self.case.foreground {
            let count = self.options.rounds.unwrap_or(FOREGROUND_ROUNDS[mode]);
            let mut rounds = Vec::new();
            for i in 0..count {
                out.progress(&format!("{}: others' work, round {}", self.case.name, i + 1));
                rounds.push(self.foreground(WINDOW[mode], out)?);
            }
            for (i, work) in foreground::Work::ALL.into_iter().enumerate() {
                for (what, of) in STEPS {
                    let value = median(rounds.iter().map(|r| of(&r[i])));
                    out.sample(&self.case.step_metric(work, what), "us", Better::Lower, value);
                }
            }
        }
        Ok(())
    }

    fn victims(&self) -> Result<Flock> {
        Flock::new(self.case.victims, self.case.layout).context("victims")
    }

    /// Kills victims, and watches what comes back.
    fn round(&self, out: &mut Reporter) -> Result<Round> {
        let gauge = || Gauge::new(self.area.zram_name());
        let idle = gauge()?.read()?;
        let flock = self.victims()?;
        reset_backlog()?;
        free_memory::settled()?;
        let (own, before, cpu) = (gauge()?, gauge()?.read()?, Cpu::read(&flock.pids())?);
        let mut recorder = Recorder::new(gauge()?);
        let (running, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let (strike, moments) = thread::scope(|scope| {
            let recorder = scope.spawn(|| recorder.record(&running, &stop).map(<[_]>::to_vec));
            while !running.load(Ordering::Acquire) && !recorder.is_finished() {
                thread::sleep(MOMENT);
            }
            let done = strike(&flock).and_then(|strike| {
                self.wait_for_swap(&own, before.swap + flock.swap())?;
                Ok(strike)
            });
            stop.store(true, Ordering::Release);
            let moments = recorder.join().map_err(|_| anyhow!("the reader died"))?;
            anyhow::Ok((done?, moments?))
        })?;
        let cpu = Cpu::read(&flock.pids())?.since(&cpu);
        let after = *moments.last().context("no readings")?;
        out.note(&format!(
            "{}: CPU time: victims {:.1} ms, all others {:.1} ms; zram took {} MiB for {} MiB; \
             RAM {:.1} MiB",
            self.case.name,
            cpu.victims as f64 / 1e6,
            cpu.others as f64 / 1e6,
            (before.zram - idle.zram.min(before.zram)) >> 20,
            flock.swap() >> 20,
            flock.ram() as f64 / f64::from(1 << 20),
        ));
        let reached = |what: fn(&Moment) -> u64, came: u64| {
            let amount = (came as f64 * SHARE) as u64;
            recovery::reached(&moments, strike.start, what, what(&before), amount)
        };
        // All of it is known by number, but a little may hide, and is not waited for.
        let came = |what: fn(&Moment) -> u64, had: u64| -> Result<u64> {
            let came = what(&after).saturating_sub(what(&before));
            let least = ((had as f64 * PLAUSIBLE) as u64).saturating_sub(HIDDEN);
            ensure!(came >= least, "only {} of {} KiB came back", came >> 10, had >> 10);
            Ok(came.min(had))
        };
        let ram = came(Moment::ram, flock.ram()).context("RAM")?;
        let swap = came(|m| m.swap, flock.swap()).context("swap")?;
        let free = after.free.saturating_sub(before.free);
        let zram = before.zram.saturating_sub(after.zram);
        Ok(Round {
            gone: (strike.gone - strike.start) as f64,
            ram: reached(Moment::ram, ram).context("RAM was never seen to be back")?,
            swap: reached(|m| m.swap, swap).context("swap was never seen to be back")?,
            zram: match self.area.zram_name() {
                None => None,
                Some(_) => {
                    Some(reached(Moment::outside_zram, zram).context("zram was never seen to have shrunk")?)
                }
            },
            free: reached(|m| m.free, free).context("memory was never seen to be back")?,
            cpu: (cpu.victims + cpu.others) as f64,
            backlog: backlog()? as f64,
        })
    }

    /// Sleeps until so much swap is free, but for what the CPUs keep.
    fn wait_for_swap(&self, gauge: &Gauge, all: u64) -> Result<()> {
        let kept = (SLOTS_KEPT * self.cpus * PAGE_BYTES) as u64;
        let due = clock::now() + FORGOTTEN.as_nanos() as u64;
        while gauge.read()?.swap + kept < all && clock::now() < due {
            thread::sleep(LOOK);
        }
        thread::sleep(LINGER);
        Ok(())
    }

    /// The longest hold of a page table's lock while victims die, in microseconds.
    fn longest_lock(&self, out: &mut Reporter) -> Result<u64> {
        for _ in 0..TRIES {
            let flock = self.victims()?;
            free_memory::settled()?;
            match pte_lock::longest(&flock.pids(), || strike(&flock).map(drop)) {
                Err(e) if e.is::<Lost>() => out.note(&format!("{}: {e}; round repeated", self.case.name)),
                longest => return longest,
            }
        }
        bail!("not one good round in {TRIES}; the notes say why")
    }

    /// Kills victims while others work; gives how long their steps took.
    fn foreground(&self, window: Duration, out: &mut Reporter) -> Result<Vec<Steps>> {
        let flock = self.victims()?;
        free_memory::settled()?;
        let workers = foreground::Work::ALL.into_iter().map(Worker::start).collect::<Result<Vec<_>>>()?;
        thread::sleep(WARM_UP);
        let strike = strike(&flock)?;
        let end = strike.start + window.as_nanos() as u64;
        if strike.gone > end {
            out.note(&format!("{}: victims died when the others' work no longer counted", self.case.name));
        }
        clock::sleep_until(end)?;
        // The steps under way have to end.
        thread::sleep(WARM_UP * 10);
        workers.into_iter().map(|w| Steps::of(w.end(strike.start, end)?)).collect()
    }
}

/// Kills all, and waits until they are dead, as a real-time task: neither does any of them run before
/// the last one is killed (with one CPU), nor is the end seen late.
fn strike(flock: &Flock) -> Result<Strike> {
    sched::set_policy(libc::SCHED_FIFO, 2).context("SCHED_FIFO")?;
    let start = clock::now();
    let done = flock.kill().and_then(|()| flock.wait_until_dead());
    let gone = clock::now();
    sched::set_policy(libc::SCHED_OTHER, 0).context("SCHED_OTHER")?;
    done.map(|()| Strike { start, gone })
}

/// CPU time of all tasks but our own, in nanoseconds: exact for those that do not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cpu {
    victims: u64,
    /// Kernel threads, above all.
    others: u64,
}

impl Cpu {
    fn read(victims: &[i32]) -> Result<Self> {
        let own = rustix::process::getpid().as_raw_pid();
        let mut cpu = Self { victims: 0, others: 0 };
        for entry in fs::read_dir("/proc").context("/proc")? {
            let entry = entry.context("/proc")?;
            let pid = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
            let Some(pid) = pid.filter(|&pid| pid != own) else { continue };
            // A task may end meanwhile, but none of those that matter.
            let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else { continue };
            let ns = text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok());
            let ns = ns.with_context(|| format!("schedstat of {pid}: {text:?} (CONFIG_SCHED_INFO)"))?;
            *if victims.contains(&pid) { &mut cpu.victims } else { &mut cpu.others } += ns;
        }
        Ok(cpu)
    }

    fn since(self, before: &Self) -> Self {
        Self {
            victims: self.victims.saturating_sub(before.victims),
            // Somebody may be gone.
            others: self.others.saturating_sub(before.others),
        }
    }
}

/// Has the kernel forget the longest backlog so far.
fn reset_backlog() -> Result<()> {
    match fs::read_to_string(KNOB) {
        // Written again, whatever it is.
        Ok(mode) => fs::write(KNOB, mode.trim_end()).context(KNOB),
        Err(_) => Ok(()),
    }
}

/// Bytes of swap that waited to be released, at most; 0 where none ever does.
fn backlog() -> Result<u64> {
    let pages = counters::value(&counters::vmstat()?, "swap_release_waiting_max ");
    Ok(pages.unwrap_or_default() * PAGE_BYTES as u64)
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
        assert!(
            !options.icount && options.rounds.is_none() && CASES.iter().all(|c| options.case.wants(c.name))
        );
        let options = parse(&["icount", "case=8x64-95", "rounds=4"]).unwrap();
        assert!(options.icount && options.case.wants("8x64-95") && !options.case.wants("8x64-65"));
        assert_eq!(options.rounds, Some(4));
        for bad in ["case=8x64", "rounds=0", "rounds=x", "round=2", "fast"] {
            assert!(parse(&[bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_say_what_the_cases_are() {
        for case in &CASES {
            let Layout { share, scattered } = case.layout;
            let mut name = format!("{}x64-{share}", case.victims);
            name += if scattered { "-scattered" } else { "" };
            name += match case.on {
                On::Zram(None) => "",
                On::Zram(Some("lz4")) => "-lz4",
                On::Zram(Some(other)) => panic!("{other}"),
                On::Loop => "-loop",
            };
            assert_eq!(case.name, name);
            assert!(((case.victims * share) << 20) * 64 / 100 < SWAP as usize);
        }
    }

    #[test]
    fn cpu_time_of_others_counts() {
        let own = rustix::process::getpid().as_raw_pid();
        let all = Cpu::read(&[]).unwrap();
        // Of our own no time is read, not even if asked for.
        assert_eq!(Cpu::read(&[own]).unwrap().victims, 0);
        let child = crate::process::child::Child::fork(|| {
            loop {
                std::hint::black_box(());
            }
        })
        .unwrap();
        thread::sleep(Duration::from_millis(50));
        let pid = child.pid().as_raw_pid();
        assert!(Cpu::read(&[pid]).unwrap().victims > 0);
        assert!(all.since(&all) == Cpu { victims: 0, others: 0 });
    }
}
