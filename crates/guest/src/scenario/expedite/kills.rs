// SPDX-License-Identifier: GPL-2.0-only
//! Kills victims under several conditions, in several ways, and measures how fast their memory comes back.

use std::fs;
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde::Deserialize;

use super::super::metrics::{Metric, median, metric_name, report_medians};
use super::{PERIOD, RETURN_POLL_INTERVAL, RETURN_TIMEOUT, WARM_UP, foreground};
use crate::measure::free_memory::{self, Reading};
use crate::memory::PAGE_BYTES;
use crate::process::hogs::Hogs;
use crate::process::victim::{Layout, Victim};
use crate::system::cgroup::TemporaryCgroup;
use crate::system::clock;
use crate::trace::tracefs::{Lost, until_complete};
use init::report::Reporter;

/// The conditions under which victims are killed.
pub(super) struct Case {
    pub(super) name: &'static str,
    victims: usize,
    /// MiB of all victims together, with two CPUs and on one with `icount`. There are fewer where a kill
    /// takes long.
    mib: [usize; 2],
    /// Processes at nice 0 that never sleep (hogs), with two CPUs and with `icount`.
    hogs: [usize; 2],
    /// How long after a kill the hogs' work is counted, with two CPUs and with `icount`: longer than any
    /// method takes, so that freeing the memory early does not look like a higher cost.
    window: [Duration; 2],
    /// The victims' nice value.
    nice: i32,
    /// Whether the victims are in a cgroup that is limited to a tenth of a CPU.
    limited: bool,
    /// Whether the victims are stopped when they are killed.
    stopped: bool,
    /// Default number of rounds, with two CPUs and with `icount`.
    rounds: [u32; 2],
    /// How often free memory is read. Not often where CPU time is scarce: what a task still does in the
    /// kernel between the wake-up of another task and the switch to it is not accounted for. With 400 us that
    /// was a third of the victim's time.
    read_interval: Duration,
}

/// The case in which nothing keeps the victim from freeing its memory.
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
    read_interval: free_memory::READ_INTERVAL,
};
pub(super) const CASES: [Case; 7] = [
    FREE,
    // A kill takes many periods, so that the part of the period in which it comes matters little. The rounds
    // are also spread over the period.
    Case { name: "cpu-10", limited: true, mib: [128, 256], rounds: [3, 2], read_interval: LONG_READ_INTERVAL, ..FREE },
    Case {
        name: "hogs",
        hogs: [4, 4],
        mib: [128, 256],
        window: [Duration::from_millis(500), Duration::from_millis(500)],
        read_interval: LONG_READ_INTERVAL,
        ..FREE
    },
    // The victim gets about 1 % of a CPU. There is one hog per CPU.
    Case {
        name: "nice-19",
        hogs: [2, 1],
        nice: 19,
        mib: [16, 32],
        window: [Duration::from_secs(2), Duration::from_millis(900)],
        read_interval: Duration::from_millis(1),
        ..FREE
    },
    // One hog per CPU, whose waits the kernel's worker may make longer.
    Case {
        name: "bystander",
        hogs: [2, 1],
        mib: [128, 256],
        window: [Duration::from_millis(300), Duration::from_millis(400)],
        read_interval: LONG_READ_INTERVAL,
        ..FREE
    },
    Case { name: "stopped", stopped: true, ..FREE },
    Case { name: "many", victims: 15, mib: [240, 120], ..FREE },
];

/// For kills that take long.
const LONG_READ_INTERVAL: Duration = Duration::from_millis(4);
/// VMAs of a victim.
const VMAS: usize = 100;
/// The share of the memory whose return is timed: the last pages stay in per-CPU lists.
const TIMED_SHARE: f64 = 0.9;
/// If a smaller share of the victims' memory comes back, something else was measured.
const MIN_SHARE: f64 = 0.95;
/// Memory that a counter and the per-CPU lists may hide.
const HIDDEN_BYTES: u64 = 512 << 10;
/// Room for the victims' page tables and for the guest itself.
const HEADROOM_BYTES: u64 = 96 << 20;
/// How often a round is tried in which process_mrelease came too late.
const TRIES: u32 = 30;
/// The command, in the guest.
const MEMREAP: &str = "/bin/memreap";

/// The CPU time per [`PERIOD`] that limited victims have.
const QUOTA: Duration = Duration::from_millis(10);
/// The sysctl of the method `size`, and a size that all victims have.
const MIN_KBYTES: &str = "/proc/sys/vm/expedite_min_kbytes";
const SMALL_KBYTES: &str = "1024";
/// The sysctl of the method `unpaced`, and its value for that.
const CPU_PERCENT: &str = "/proc/sys/vm/expedite_cpu_percent";
const ALL_PERCENT: &str = "100";

/// How victims are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// SIGKILL through a pidfd, expedited where the kernel supports it.
    Kill,
    /// kill(2).
    Plain,
    /// SIGKILL, then process_mrelease in the same thread.
    Mrelease,
    /// The command, with all victims at once.
    Memreap,
    /// A write to the cgroup's cgroup.kill, expedited where the kernel supports it.
    Cgroup,
    /// kill(2), where the kernel expedites all large victims if it can.
    Size,
    /// As [`Self::Kill`], where the kernel's workers leave nothing of a CPU to others.
    Unpaced,
}

/// The methods in the order in which they are measured, with their names and their metrics, of which a case has the
/// rate and maybe others.
const METHODS: [(Method, &str, &[Metric<Round>]); 7] = [
    (
        Method::Kill,
        "kill",
        &[("kill-rate", |r| r.rate), ("kill-foreground", |r| r.foreground), ("kill-longest-wait", |r| r.wait)],
    ),
    (Method::Plain, "plain", &[("plain-rate", |r| r.rate), ("plain-foreground", |r| r.foreground)]),
    (Method::Memreap, "memreap", &[("memreap-rate", |r| r.rate), ("memreap-foreground", |r| r.foreground)]),
    (Method::Mrelease, "mrelease", &[("mrelease-rate", |r| r.rate), ("mrelease-foreground", |r| r.foreground)]),
    (Method::Cgroup, "cgroup", &[("cgroup-rate", |r| r.rate)]),
    (Method::Size, "size", &[("size-rate", |r| r.rate)]),
    (
        Method::Unpaced,
        "unpaced",
        &[("unpaced-rate", |r| r.rate), ("unpaced-foreground", |r| r.foreground), ("unpaced-longest-wait", |r| r.wait)],
    ),
];

impl Method {
    /// The sysctl that has to be set for it in a kernel that can expedite, and its value. All others have the
    /// default.
    fn sysctl(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Size => Some((MIN_KBYTES, SMALL_KBYTES)),
            Self::Unpaced => Some((CPU_PERCENT, ALL_PERCENT)),
            _ => None,
        }
    }
}

/// What one round measured.
struct Round {
    /// Megabytes per second, until [`TIMED_SHARE`] of the memory was back.
    rate: f64,
    /// The hogs' work per millisecond.
    foreground: f64,
    /// The longest time for which a hog did not run, in milliseconds.
    wait: f64,
}

/// One kill of all victims, up to their deaths.
struct Kill {
    /// When it began, in nanoseconds on the monotonic clock.
    start: u64,
    /// The hogs' work per millisecond.
    foreground: f64,
    /// The longest time for which a hog did not run, in milliseconds.
    wait: f64,
    /// Whether process_mrelease came after the victim had given its memory up.
    too_late: bool,
}

/// One case.
pub(super) struct Run {
    case: &'static Case,
    cpus: usize,
    expedites: bool,
    /// What differs with two CPUs and with `icount`, as in [`Case`].
    mib: usize,
    window: Duration,
    rounds: u32,
    hogs: Hogs,
}

impl Run {
    pub(super) fn new(case: &'static Case, cpus: usize, expedites: bool, icount: bool) -> Result<Self> {
        let mode = usize::from(icount);
        let (mib, window, rounds) = (case.mib[mode], case.window[mode], case.rounds[mode]);
        let hogs = Hogs::start(case.hogs[mode])?;
        let run = Self { case, cpus, expedites, mib, window, rounds, hogs };
        let free = free_memory::free();
        ensure!(
            free >= run.bytes() + HEADROOM_BYTES,
            "{} MiB free are too few for {mib} MiB of victims; give the guest more memory",
            free >> 20
        );
        Ok(run)
    }

    /// Whether there are hogs, whose work is counted.
    fn has_hogs(&self) -> bool {
        !self.window.is_zero()
    }

    /// Memory of all victims together.
    fn bytes(&self) -> u64 {
        (self.mib as u64) << 20
    }

    /// The bytes that must come back at least.
    fn min_freed(&self) -> u64 {
        (self.bytes() as f64 * MIN_SHARE) as u64 - HIDDEN_BYTES
    }

    fn layout(&self) -> Layout {
        Layout { pages: (self.mib << 20) / PAGE_BYTES / self.case.victims, vmas: VMAS }
    }

    /// Runs all rounds of all methods, reports them, and returns the rates.
    pub(super) fn all(&self, out: &mut Reporter) -> Result<Vec<(Method, f64)>> {
        let of_case = |(name, _): &Metric<Round>| metric_name(self.case.name, name);
        let methods = METHODS.iter().filter(|(.., metrics)| out.expects(&of_case(&metrics[0])));
        let mut measured: Vec<_> = methods.map(|method| (method, Vec::new())).collect();
        for round in 0..self.rounds {
            for ((method, name, _), rounds) in &mut measured {
                out.progress(&format!("{}: {name}, round {}", self.case.name, round + 1));
                let (place, phase) = (metric_name(self.case.name, name), phase(round, self.rounds));
                let round = until_complete(&place, TRIES, out, |out| self.round(*method, phase, out));
                rounds.push(round.with_context(|| format!("method {name}"))?);
            }
        }
        let mut rates = Vec::new();
        for (&(method, _, metrics), rounds) in measured {
            let metrics = metrics.iter().copied().filter(|metric| out.expects(&of_case(metric)));
            report_medians(out, self.case.name, &metrics.collect::<Vec<_>>(), &rounds);
            rates.push((method, median(rounds.iter().map(|r| r.rate))));
        }
        Ok(rates)
    }

    /// Starts the victims, kills them, and records how their memory comes back. [`Lost`] if process_mrelease came too
    /// late, or the kill took longer than the hogs' work was counted.
    fn round(&self, method: Method, phase: Duration, out: &mut Reporter) -> Result<Round> {
        // A new one each time: who exits without being throttled, as on 7.3, leaves a debt of CPU time to the next.
        let limit = self.case.limited.then(Limit::new).transpose()?;
        let victims = (0..self.case.victims).map(|_| self.victim(method, limit.as_ref())).collect::<Result<Vec<_>>>();
        let victims = victims.context("victims")?;
        let before = free_memory::settled()?;
        if self.has_hogs() {
            self.hogs.work(true);
            thread::sleep(WARM_UP);
        }
        let mut recorder = free_memory::recorder(self.case.read_interval);
        let read = || Ok(Reading::now());
        let (kill, readings) = recorder.record_while(read, |has_ended| {
            if let Some(limit) = &limit {
                limit.wait_for(phase)?;
            }
            let kill = self.kill(&victims, method, limit.as_ref(), out)?;
            // The memory may not be free yet when the victim is dead.
            let is_back = || Ok(free_memory::free() >= before + self.min_freed() || has_ended());
            clock::within(RETURN_TIMEOUT, RETURN_POLL_INTERVAL, is_back)?;
            thread::sleep(RETURN_POLL_INTERVAL);
            Ok(kill)
        })?;
        self.hogs.work(false);
        let after = free_memory::settled()?;
        for victim in victims {
            victim.reap().context("reap a victim")?;
        }
        let took = self.time_to_return(&kill, before, after, &readings)?;
        let counted = !self.has_hogs() || took <= self.window.as_nanos() as f64;
        ensure!(counted, Lost(format!("took {:.0} ms, longer than the hogs' work was counted", took / 1e6)));
        // Bytes per nanosecond are gigabytes per second.
        let rate = (after - before) as f64 * TIMED_SHARE / took * 1e3;
        ensure!(!kill.too_late, Lost("process_mrelease found a victim past exit_mm (ESRCH)".to_owned()));
        Ok(Round { rate, foreground: kill.foreground, wait: kill.wait })
    }

    /// Returns the nanoseconds until [`TIMED_SHARE`] of the memory was back.
    fn time_to_return(&self, kill: &Kill, before: u64, after: u64, readings: &[Reading]) -> Result<f64> {
        let freed = after.saturating_sub(before);
        ensure!(
            freed >= self.min_freed(),
            "only {:.1} MiB of {} MiB came back",
            freed as f64 / f64::from(1 << 20),
            self.mib
        );
        took(readings, kill.start, before, after).context("90 % of the memory did not come back")
    }

    /// Starts a victim for this case.
    fn victim(&self, method: Method, limit: Option<&Limit>) -> Result<Victim> {
        let victim = Victim::spawn(self.layout(), 0..self.cpus)?;
        if method != Method::Mrelease {
            victim.set_free(self.cpus)?;
        }
        if let Some(limit) = limit {
            limit.group.add(victim.pid())?;
        }
        if self.case.nice != 0 {
            rustix::process::setpriority_process(Some(victim.pid()), self.case.nice).context("setpriority")?;
        }
        if self.case.stopped {
            victim.stop().context("stop the victim")?;
        }
        Ok(victim)
    }

    /// Kills all victims, and waits until they are dead.
    fn kill(&self, victims: &[Victim], method: Method, limit: Option<&Limit>, out: &mut Reporter) -> Result<Kill> {
        let mut before = None;
        if let Some((path, value)) = method.sysctl().filter(|_| self.expedites) {
            before = Some((path, fs::read(path).context(path)?));
            fs::write(path, value).context(path)?;
        }
        if method == Method::Mrelease {
            // A first call is slow, above all under emulation, and the victim would exit meanwhile: so the
            // call is made once before.
            ensure!(victims[0].mrelease()?.is_none(), "the victim was dying before the kill");
        }
        let mut too_late = false;
        let mut command = None;
        self.hogs.take_longest_gap();
        let work = self.hogs.done();
        let start = clock::now();
        match method {
            Method::Kill | Method::Unpaced if self.expedites => {
                victims.iter().try_for_each(|victim| victim.pidfd().kill_expedited())?;
            }
            Method::Kill | Method::Unpaced => victims.iter().try_for_each(Victim::kill).context("kill")?,
            Method::Cgroup => {
                let limit = limit.context("victims without a cgroup")?;
                limit.group.set("cgroup.kill", if self.expedites { "1 expedite" } else { "1" })?;
            }
            Method::Plain | Method::Size => victims
                .iter()
                .try_for_each(|v| rustix::process::kill_process(v.pid(), Signal::KILL))
                .context("kill(2)")?,
            Method::Mrelease => {
                for victim in victims {
                    victim.kill().context("kill")?;
                    too_late |= victim.mrelease()?.is_some_and(|released| released.too_late);
                }
            }
            Method::Memreap => command = Some(memreap(victims)?),
        }
        let foreground = match self.has_hogs() {
            true => foreground(&self.hogs, start, work, self.window)?,
            false => 0.0,
        };
        let wait = clock::ms(self.hogs.take_longest_gap());
        if let Some(command) = command {
            self.check(command, out)?;
        }
        victims.iter().try_for_each(Victim::wait_until_dead).context("wait for the victims")?;
        if let Some((path, default)) = before {
            fs::write(path, default).context(path)?;
        }
        Ok(Kill { start, foreground, wait, too_late })
    }

    /// Checks that the command did what it was asked to, and notes by which methods.
    fn check(&self, command: process::Child, out: &mut Reporter) -> Result<()> {
        let output = command.wait_with_output().context("wait for memreap")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "memreap kill: {}: {text}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let report: KillReport = serde_json::from_str(&text).with_context(|| format!("memreap kill printed {text}"))?;
        let mut methods: Vec<&str> = report.victims.iter().map(|v| v.method.as_str()).collect();
        let count = methods.len();
        methods.sort_unstable();
        methods.dedup();
        out.note(&format!("{}/memreap: {count} killed by {}", self.case.name, methods.join(", ")));
        Ok(())
    }
}

/// Returns the nanoseconds from `start`, when free memory was `before`, until [`TIMED_SHARE`] of the memory
/// that came back was there. `after` is free memory at the end.
fn took(readings: &[Reading], start: u64, before: u64, after: u64) -> Option<f64> {
    let level = before + ((after - before) as f64 * TIMED_SHARE) as u64;
    free_memory::reached_since(Reading { at: start, free: before }, readings.iter().copied(), level)
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
        // The kernel begins a cgroup's first period at a random time, and the others follow without gaps. In
        // the cgroup, a process that does not sleep is stopped until the next period.
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

    /// Sleeps until this phase of one of the next periods.
    fn wait_for(&self, phase: Duration) -> Result<()> {
        clock::sleep_until(next_period(self.origin, clock::now(), phase))
    }
}

/// Returns when a period that begins after `now`, but not the very next, reaches this phase, in nanoseconds.
/// All of the CPU time is available when a whole period has passed in which none was used.
fn next_period(origin: u64, now: u64, phase: Duration) -> u64 {
    let period = PERIOD.as_nanos() as u64;
    origin + ((now - origin) / period + 2) * period + phase.as_nanos() as u64
}

/// Returns when in the period a round's kill comes: all rounds are spread evenly over it.
fn phase(round: u32, rounds: u32) -> Duration {
    PERIOD * (2 * round + 1) / (2 * rounds)
}

/// Starts the command with all victims.
fn memreap(victims: &[Victim]) -> Result<process::Child> {
    Command::new(MEMREAP)
        .args(["kill", "--json"])
        .args(victims.iter().map(|v| v.pid().as_raw_pid().to_string()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context(MEMREAP)
}

/// The part of the command's JSON that is checked.
#[derive(Deserialize)]
struct KillReport {
    victims: Vec<KilledVictim>,
}

#[derive(Deserialize)]
struct KilledVictim {
    method: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_make_sense() {
        for case in &CASES {
            for (mib, (hogs, window)) in case.mib.iter().zip(case.hogs.iter().zip(&case.window)) {
                assert_eq!(mib % case.victims, 0, "{}", case.name);
                // Larger than what the kernel leaves to the victim, with some pages for each VMA.
                assert!(mib / case.victims >= 8, "{}", case.name);
                assert_eq!(*hogs == 0, window.is_zero(), "{}", case.name);
            }
        }
        assert_eq!(CASES.iter().filter(|case| case.limited).count(), 1);
        assert_eq!(CASES.iter().filter(|case| case.name == "free").count(), 1);
    }

    #[test]
    fn kills_are_spread_over_a_period_that_begins_with_its_whole_quota() {
        let ms = Duration::from_millis;
        assert_eq!([phase(0, 2), phase(1, 2)], [ms(25), ms(75)]);
        assert_eq!(phase(0, 1), ms(50));
        let (origin, period) = (1_000, PERIOD.as_nanos() as u64);
        for now in [origin, origin + 1, origin + period - 1, origin + 7 * period, origin + 8 * period - 1] {
            let next = next_period(origin, now, ms(25));
            assert_eq!((next - origin) % period, 25_000_000);
            assert!(next >= now + period && next < now + 3 * period, "{now}");
        }
    }

    #[test]
    fn a_kill_takes_time_even_between_two_readings() {
        let readings = [(900, 10), (1400, 10), (1800, 110)].map(|(at, free)| Reading { at, free });
        assert_eq!(took(&readings, 1000, 10, 110), Some(760.0));
        assert_eq!(took(&readings, 1500, 10, 110), Some(270.0));
        assert_eq!(took(&readings, 1790, 10, 110), Some(9.0));
        assert_eq!(took(&readings, 1000, 10, 210), None);
    }
}
