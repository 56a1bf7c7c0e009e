// SPDX-License-Identifier: GPL-2.0-only
//! Scenarios `swap-batch` and `swap-defer`: processes whose memory is mostly in swap are killed, all at once. How long
//! until they are gone, until their memory and their swap space are free, and what does that cost? For how long is a
//! page table locked, how much swap space waits to be released, and how much slower do other processes get?
//!
//! What comes back is watched in rounds of their own, page table locks and the others' work in others: each of these
//! would change the rest. Both scenarios are the same; kernel parameters make the difference.

use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};

use super::arguments::Arguments;
use super::metrics::{Metric, each_case, median, metric_name, report_medians};
use crate::measure::free_memory::{self, ShortFreeLists};
use crate::measure::recovery::{self, Sample, Sampler};
use crate::memory::PAGE_BYTES;
use crate::memory::swap::Area;
use crate::process::foreground::{Steps, Work, Worker};
use crate::process::swapped::{Layout, Victims};
use crate::system::counters;
use crate::system::{clock, sched};
use crate::trace::pte_lock;
use crate::trace::tracefs;
use init::report::Reporter;

/// Where a case's swap space is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    /// zram, with this compression or the kernel's default.
    Zram(Option<&'static str>),
    Loop,
    /// Above a loop device that is not written to.
    Zswap,
}

/// Victims, and what is measured when they are killed.
struct Case {
    name: &'static str,
    victims: usize,
    layout: Layout,
    on: On,
    /// Rounds in which the return of memory is recorded, with two CPUs and with `icount`.
    rounds: [u32; 2],
}

const PLAIN: Case = Case {
    name: "8x64-65",
    victims: 8,
    layout: Layout { share: 65, scattered: false },
    on: On::Zram(None),
    rounds: [1, 1],
};
const CASES: [Case; 10] = [
    Case { rounds: [2, 1], ..PLAIN },
    Case { name: "1x64-65", victims: 1, rounds: [3, 3], ..PLAIN },
    Case { name: "4x64-65", victims: 4, ..PLAIN },
    Case { name: "15x64-65", victims: 15, ..PLAIN },
    Case { name: "1x64-95", victims: 1, layout: MOST_IN_SWAP, rounds: [3, 3], ..PLAIN },
    Case { name: "8x64-95", layout: MOST_IN_SWAP, ..PLAIN },
    Case { name: "8x64-65-scattered", layout: Layout { scattered: true, ..PLAIN.layout }, ..PLAIN },
    Case { name: "8x64-65-lz4", on: On::Zram(Some("lz4")), ..PLAIN },
    Case { name: "8x64-65-loop", on: On::Loop, ..PLAIN },
    Case { name: "8x64-65-zswap", on: On::Zswap, ..PLAIN },
];
const MOST_IN_SWAP: Layout = Layout { share: 95, scattered: false };

/// The share of memory and swap space whose return is timed.
const TIMED_SHARE: f64 = 0.98;
/// If a smaller share comes back, something else was measured.
const MIN_SHARE: f64 = 0.95;
/// Memory that counters and per-CPU lists may hide.
const HIDDEN_BYTES: u64 = 1 << 20;
/// Swap slots that each CPU may keep for its next use: 64 when they are freed, and as many when they are
/// allocated.
const SLOTS_PER_CPU: usize = 128;
/// Swap space for all victims, and more.
const SWAP_BYTES: u64 = 1 << 30;
/// How long it is waited for swap space to come back.
const RETURN_TIMEOUT: Duration = Duration::from_secs(8);
/// How often that is checked.
const RETURN_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long the recording continues after swap space is back: zram and RCU may take a little longer.
const LINGER: Duration = Duration::from_millis(25);
/// How long the other processes work before a kill.
const WARM_UP: Duration = Duration::from_millis(30);
/// How often a round is tried; it is repeated when events were lost.
const TRIES: u32 = 5;
/// Rounds in which other processes work, with two CPUs and with `icount`.
const FOREGROUND_ROUNDS: [u32; 2] = [3, 5];
/// For how long after the kill their steps count, with two CPUs and with `icount`: longer than any kernel
/// takes to release everything, so that all kernels have about the same number of steps.
const FOREGROUND_WINDOW: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(400)];

/// The metrics of a round.
const METRICS: [Metric<Round>; 7] = [
    ("gone-ms", |r| r.gone / 1e6),
    ("ram-98-ms", |r| r.ram / 1e6),
    ("swap-98-ms", |r| r.swap / 1e6),
    ("zram-98-ms", |r| r.zram.map_or(f64::NAN, |ns| ns / 1e6)),
    ("mem-98-ms", |r| r.free / 1e6),
    ("cpu-ms", |r| r.cpu / 1e6),
    ("backlog-mb", |r| r.backlog / 1e6),
];
/// What other processes do meanwhile, and the metrics of their steps.
const WORKS: [(Work, [Metric<Steps>; 3]); 2] = [
    (Work::Allocate, [("fg-alloc-p50-us", |s| s.p50), ("fg-alloc-p99-us", |s| s.p99), ("fg-alloc-max-us", |s| s.max)]),
    (
        Work::Compute,
        [("fg-compute-p50-us", |s| s.p50), ("fg-compute-p99-us", |s| s.p99), ("fg-compute-max-us", |s| s.max)],
    ),
];

/// The topics' module parameters, where the kernel has them.
const PARAMETERS: [&str; 3] = [
    "/sys/module/memreap/parameters/swap_batch",
    "/sys/module/memreap/parameters/swap_defer",
    "/sys/module/memreap/parameters/swap_last",
];

pub fn run(args: &Arguments, out: &mut Reporter) -> Result<()> {
    let short = ShortFreeLists::set()?;
    // Pages are read back one by one.
    fs::write("/proc/sys/vm/page-cluster", "0").context("vm.page-cluster")?;
    for path in PARAMETERS {
        let value = fs::read_to_string(path).unwrap_or_else(|_| "none".to_owned());
        out.note(&format!("{path}: {}", value.trim_end()));
    }
    let mode = usize::from(args.icount());
    each_case(CASES.iter().map(|case| (case.name, case)), out, |_, case, out| Run::new(case, mode)?.all(out))?;
    drop(short);
    Ok(())
}

/// What one round measured: times in nanoseconds.
struct Round {
    gone: f64,
    ram: f64,
    swap: f64,
    /// `None` where swap is on another device.
    zram: Option<f64>,
    free: f64,
    cpu: f64,
    /// Swap space of the victims that is in use when the last of them is dead, in bytes.
    backlog: f64,
}

/// When a kill began and when the last victim was dead, in nanoseconds on the monotonic clock.
struct Kill {
    start: u64,
    gone: u64,
}

/// One case.
struct Run {
    case: &'static Case,
    /// Index of what differs: 0 with two CPUs, 1 with `icount`.
    mode: usize,
    cpus: usize,
    area: Area,
}

impl Run {
    fn new(case: &'static Case, mode: usize) -> Result<Self> {
        let area = match case.on {
            On::Zram(algorithm) => Area::zram(SWAP_BYTES, algorithm)?,
            On::Loop => Area::on_loop(SWAP_BYTES)?,
            On::Zswap => Area::on_zswap(SWAP_BYTES)?,
        };
        let cpus = thread::available_parallelism().context("number of CPUs")?.get();
        Ok(Self { case, mode, cpus, area })
    }

    fn all(&self, out: &mut Reporter) -> Result<()> {
        let name = self.case.name;
        let rounds = (0..self.case.rounds[self.mode])
            .map(|i| {
                out.progress(&format!("{name}: round {}", i + 1));
                self.round(out)
            })
            .collect::<Result<Vec<Round>>>()?;
        let of_case = METRICS.into_iter().filter(|(metric, _)| out.expects(&metric_name(name, metric)));
        report_medians(out, name, &of_case.collect::<Vec<_>>(), &rounds);
        let lock = metric_name(name, "pte-lock-max-us");
        if out.expects(&lock) {
            out.progress(&format!("{name}: locks"));
            let longest = self.longest_lock(out)?;
            out.sample(&lock, longest as f64);
        }
        if out.expects_case(name) {
            let mut rounds = Vec::new();
            for i in 0..FOREGROUND_ROUNDS[self.mode] {
                out.progress(&format!("{name}: work of other processes, round {}", i + 1));
                rounds.push(self.foreground(FOREGROUND_WINDOW[self.mode], out)?);
            }
            for (i, (_, metrics)) in WORKS.iter().enumerate() {
                for (metric, value) in metrics {
                    out.sample(&metric_name(name, metric), median(rounds.iter().map(|r| value(&r[i]))));
                }
            }
        }
        Ok(())
    }

    fn victims(&self) -> Result<Victims> {
        let victims = Victims::start(self.case.victims, self.case.layout).context("victims")?;
        self.area.check_zswap()?;
        Ok(victims)
    }

    /// Kills victims, and records what comes back.
    fn round(&self, out: &mut Reporter) -> Result<Round> {
        let sampler = || Sampler::new(self.area.zram_name());
        let idle = sampler()?.sample()?;
        let victims = self.victims()?;
        free_memory::settled()?;
        // Two threads would wait for each other at one open file.
        let (waiting, recording) = (sampler()?, sampler()?);
        let (before, cpu) = (sampler()?.sample()?, Cpu::read(&victims.pids())?);
        let mut recorder = recovery::recorder();
        let (kill, samples) = recorder.record_while(
            || recording.sample(),
            |_| {
                let kill = kill(&victims)?;
                self.wait_for_swap(&waiting, before.swap + victims.swap_bytes(), idle.zram)?;
                Ok(kill)
            },
        )?;
        let cpu = Cpu::read(&victims.pids())?.since(&cpu);
        let after = *samples.last().context("no samples")?;
        let at_end = samples.iter().find(|sample| sample.at >= kill.gone).unwrap_or(&after);
        let used = before.zram.saturating_sub(idle.zram);
        out.note(&format!(
            "{}: CPU time: victims {:.1} ms, all others {:.1} ms; zram used {} MiB for {} MiB; \
             RAM {:.1} MiB",
            self.case.name,
            cpu.victims as f64 / 1e6,
            cpu.others as f64 / 1e6,
            used >> 20,
            victims.swap_bytes() >> 20,
            victims.ram_bytes() as f64 / f64::from(1 << 20),
        ));
        let reached = |what: fn(&Sample) -> u64, returned: u64| {
            let amount = (returned as f64 * TIMED_SHARE) as u64;
            recovery::reached(&samples, kill.start, what, what(&before), amount)
        };
        // It is known exactly how much must return, but counters may hide a little.
        let returned = |what: fn(&Sample) -> u64, all: u64| -> Result<u64> {
            let returned = what(&after).saturating_sub(what(&before));
            let least = ((all as f64 * MIN_SHARE) as u64).saturating_sub(HIDDEN_BYTES);
            ensure!(returned >= least, "only {} of {} KiB came back", returned >> 10, all >> 10);
            Ok(returned.min(all))
        };
        let ram = returned(Sample::ram, victims.ram_bytes()).context("RAM")?;
        let swap = returned(|s| s.swap, victims.swap_bytes()).context("swap")?;
        // With RAM, this is all that becomes free.
        returned(Sample::outside_zram, used).context("zram")?;
        let free = after.free.saturating_sub(before.free);
        let zram = before.zram.saturating_sub(after.zram);
        Ok(Round {
            gone: (kill.gone - kill.start) as f64,
            ram: reached(Sample::ram, ram).context("RAM did not come back")?,
            swap: reached(|s| s.swap, swap).context("swap did not come back")?,
            zram: match self.area.zram_name() {
                None => None,
                Some(_) => Some(reached(Sample::outside_zram, zram).context("zram did not shrink")?),
            },
            free: reached(|s| s.free, free).context("memory did not come back")?,
            cpu: (cpu.victims + cpu.others) as f64,
            backlog: victims.swap_bytes().saturating_sub(at_end.swap.saturating_sub(before.swap)) as f64,
        })
    }

    /// Sleeps until `all` bytes of swap are free, except for what the CPUs keep, and zram uses no more than `zram`, or
    /// until the timeout: a slot may be free before what is in it.
    fn wait_for_swap(&self, sampler: &Sampler, all: u64, zram: u64) -> Result<()> {
        let kept = (SLOTS_PER_CPU * self.cpus * PAGE_BYTES) as u64;
        let is_back = |now: Sample| now.swap + kept >= all && now.zram <= zram + kept;
        clock::within(RETURN_TIMEOUT, RETURN_POLL_INTERVAL, || Ok(is_back(sampler.sample()?)))?;
        thread::sleep(LINGER);
        Ok(())
    }

    /// Returns the longest time for which a page table's lock was held while victims died, in microseconds.
    fn longest_lock(&self, out: &mut Reporter) -> Result<u64> {
        tracefs::until_complete(self.case.name, TRIES, out, |_| {
            let victims = self.victims()?;
            free_memory::settled()?;
            pte_lock::longest(&victims.pids(), || kill(&victims).map(drop))
        })
    }

    /// Kills victims while other processes work, and returns how long their steps took.
    fn foreground(&self, window: Duration, out: &mut Reporter) -> Result<Vec<Steps>> {
        let victims = self.victims()?;
        free_memory::settled()?;
        let workers = WORKS.iter().map(|(work, _)| Worker::start(*work)).collect::<Result<Vec<_>>>()?;
        thread::sleep(WARM_UP);
        let kill = kill(&victims)?;
        let end = kill.start + window.as_nanos() as u64;
        if kill.gone > end {
            out.note(&format!("{}: victims died when the work of others no longer counted", self.case.name));
        }
        clock::sleep_until(end)?;
        // The current steps have to end.
        thread::sleep(WARM_UP * 10);
        workers.into_iter().map(|w| Steps::of(w.end(kill.start, end)?)).collect()
    }
}

/// Kills all victims, and waits until they are dead, as a real-time task: with one CPU none of them runs
/// before the last one is killed, and their end is noticed at once.
fn kill(victims: &Victims) -> Result<Kill> {
    sched::set_policy(libc::SCHED_FIFO, 2).context("SCHED_FIFO")?;
    let start = clock::now();
    let done = victims.kill().and_then(|()| victims.wait_until_dead());
    let gone = clock::now();
    sched::set_policy(libc::SCHED_OTHER, 0).context("SCHED_OTHER")?;
    done.map(|()| Kill { start, gone })
}

/// CPU time of all tasks except this process, in nanoseconds; exact for tasks that do not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cpu {
    victims: u64,
    /// Mostly kernel threads.
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
            let ns = counters::cpu_time(&text)
                .with_context(|| format!("schedstat of {pid}: {text:?} (CONFIG_SCHED_INFO)"))?;
            *if victims.contains(&pid) { &mut cpu.victims } else { &mut cpu.others } += ns;
        }
        Ok(cpu)
    }

    fn since(self, before: &Self) -> Self {
        Self {
            victims: self.victims.saturating_sub(before.victims),
            // A task may be gone.
            others: self.others.saturating_sub(before.others),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                On::Zswap => "-zswap",
            };
            assert_eq!(case.name, name);
            assert!(((case.victims * share) << 20) * 64 / 100 < SWAP_BYTES as usize);
        }
    }

    #[test]
    fn cpu_time_of_others_counts() {
        let own = rustix::process::getpid().as_raw_pid();
        let all = Cpu::read(&[]).unwrap();
        // The CPU time of this process is never read.
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
