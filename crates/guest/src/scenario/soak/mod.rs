// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `soak`: many processes with all kinds of memory are killed at random moments, half of them so that
//! the kernel frees their memory at once where it can, while several threads release their memory and they
//! exit, or the OOM killer kills them. Meanwhile CPUs go offline and online, memory is paged out and in, swap
//! space is switched off and on, and now and then real-time tasks have all CPUs to themselves. Measures
//! nothing: a run fails by the kernel's warnings, or by memory or swap space that does not come back.

mod disturbance;
mod memory;
mod swap_space;
mod victim;

use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};

use super::arguments::Arguments;
use crate::memory::swap;
use crate::process::victim::{Released, mrelease};
use crate::rng::Rng;
use crate::system::cgroup::Cgroup;
use crate::system::counters;
use disturbance::{Disturbance, RECLAIM, hogs, online_file, other_cpus, reclaimer};
use init::report::Reporter;
use memory::{allocate_some, grow};
use swap_space::{FIRST_SWAP, SWAP_BYTES, check_swap_comes_back, check_swap_is_released, second_swap, swapper};
use victim::{DEATH_TIMEOUT, Kill, Victim, within};

const MIB_BYTES: usize = 1 << 20;
/// Memory that may be missing at the end: caches, per-CPU lists, KASAN's quarantine.
const MAX_LOST_BYTES: usize = 96 * MIB_BYTES;
/// After so many rounds each disturbance must have happened. A debug kernel on a busy host does a handful of
/// rounds in a minute.
const MIN_ROUNDS_TO_JUDGE: u64 = 50;
/// The size from which on the kernel frees the memory of killed processes at once, and how its workers share
/// a CPU.
const EXPEDITE_MIN_KBYTES: &str = "/proc/sys/vm/expedite_min_kbytes";
const EXPEDITE_CPU_PERCENT: &str = "/proc/sys/vm/expedite_cpu_percent";

/// `soak [seconds=60] [seed=1]`
pub fn run(args: &Arguments, out: &mut Reporter) -> Result<()> {
    let length = Duration::from_secs(args.number("seconds")?.unwrap_or(60));
    let seed = args.number("seed")?.unwrap_or(1);
    let mut rng = Rng(seed);
    // Huge pages on request; this fails in a kernel without them.
    let _ = fs::write("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory").context("memory cgroups")?;

    swap::on(SWAP_BYTES)?;
    let second = second_swap()?;
    disturbance::remove_realtime_limits()?;

    let expedites = linux::pidfd::expedite_supported();
    let before = available()?;
    let switcher = disturbance::switcher(Rng(rng.bits()))?;
    let reclaimer = reclaimer(Rng(rng.bits()))?;
    let swapper = swapper(Rng(rng.bits()), &second)?;
    let hogs = hogs(Rng(rng.bits()))?;
    let (began, mut counts) = (Instant::now(), Counts::default());
    let mut reported = began;
    while began.elapsed() < length {
        if rng.one_in(4) {
            oom(&mut rng, &mut counts)?;
        } else {
            storm(&mut rng, expedites, &mut counts)?;
        }
        counts.rounds += 1;
        if reported.elapsed() > Duration::from_secs(1) {
            reported = Instant::now();
            out.progress(&format!("{} s, {}", began.elapsed().as_secs(), counts.text()));
        }
    }
    let hogs = hogs.end()?;
    let swapoffs = swapper.end()?;
    let switches = switcher.map_or(Ok(0), Disturbance::end)?;
    for cpu in other_cpus()? {
        // It may be online already.
        let _ = fs::write(online_file(cpu), "1");
    }
    let reclaims = reclaimer.end()?;
    out.note(&format!(
        "seed {seed}, {} s: {}; {switches} times a CPU went offline or online, {reclaims} times memory was \
         reclaimed, {swapoffs} times swap was switched off, {hogs} times hogs had all CPUs",
        length.as_secs(),
        counts.text()
    ));
    let released = check_swap_is_released()?;
    check_swap_comes_back(&[FIRST_SWAP, &second])?;
    if let Some((queued, text)) = released {
        out.note(&text);
        ensure!(queued > 0 || counts.rounds < MIN_ROUNDS_TO_JUDGE, "no swap entry ever waited for a worker");
    }
    if counts.rounds >= MIN_ROUNDS_TO_JUDGE {
        ensure!(reclaims > 0, "{RECLAIM}: nothing was ever reclaimed");
        ensure!(switches > 0 || other_cpus()?.is_empty(), "no CPU ever went offline");
        ensure!(swapoffs > 0, "{second}: was never switched off");
        ensure!(hogs > 0, "no hog ever had a CPU to itself");
    }
    if expedites {
        let text = counters::vmstat()?;
        let taken: Vec<_> = text.lines().filter(|line| line.starts_with("expedite_")).collect();
        out.note(&taken.join(", "));
        ensure!(
            counters::value(&text, "expedite_kill ").is_some_and(|kills| kills > 0)
                || counts.rounds < MIN_ROUNDS_TO_JUDGE,
            "no kill was ever expedited"
        );
    }
    let lost = before.saturating_sub(available()?);
    ensure!(lost <= MAX_LOST_BYTES, "{} MiB of memory did not come back", lost / MIB_BYTES);
    Ok(())
}

/// How often things happened.
#[derive(Default)]
struct Counts {
    rounds: u64,
    victims: u64,
    oom_kills: u64,
    released: u64,
    too_late: u64,
    again: u64,
    refused: u64,
}

impl Counts {
    fn text(&self) -> String {
        format!(
            "{} rounds, {} victims, {} OOM kills; process_mrelease: {} done, {} too late, \
             {} tried again, {} refused",
            self.rounds, self.victims, self.oom_kills, self.released, self.too_late, self.again, self.refused
        )
    }

    fn add(&mut self, done: Option<Released>) {
        match done {
            None => self.refused += 1,
            Some(done) => {
                self.again += u64::from(done.again);
                if done.too_late { self.too_late += 1 } else { self.released += 1 }
            }
        }
    }
}

/// Returns a random time below `end` microseconds.
fn micros(rng: &mut Rng, end: usize) -> Duration {
    Duration::from_micros(rng.below(end) as u64)
}

/// Kills a few victims at once, while they grow or after that. Up to four threads release the memory of each.
fn storm(rng: &mut Rng, expedites: bool, counts: &mut Counts) -> Result<()> {
    if expedites {
        // Any process that is killed, or only those whose killer asks for it.
        let min = if rng.one_in(4) { "1" } else { "0" };
        fs::write(EXPEDITE_MIN_KBYTES, min).context(EXPEDITE_MIN_KBYTES)?;
        let percent = if rng.one_in(2) { "50" } else { "100" };
        fs::write(EXPEDITE_CPU_PERCENT, percent).context(EXPEDITE_CPU_PERCENT)?;
    }
    let mut victims = Vec::new();
    for _ in 0..=rng.below(4) {
        let own = Rng(rng.bits());
        victims.push(Victim::fork(|| grow(own))?);
    }
    let longest = if rng.one_in(2) { 20_000 } else { 400_000 };
    thread::sleep(micros(rng, longest));
    for victim in victims {
        // Sometimes before the kill: that must be refused, and do no harm.
        if rng.one_in(8) {
            counts.add(mrelease(&victim.pidfd)?);
        }
        let delays: Vec<_> = (0..rng.below(5)).map(|_| micros(rng, 2_000)).collect();
        let kill = Kill { delay: micros(rng, 2_000), expedited: expedites && rng.one_in(2) };
        victim.release(&delays, Some(kill), counts)?;
        victim.end()?;
        counts.victims += 1;
    }
    Ok(())
}

/// Has a victim outgrow its cgroup, so that the OOM reaper and this process release its memory together.
fn oom(rng: &mut Rng, counts: &mut Counts) -> Result<()> {
    let group = Cgroup::create_all(&format!("soak-{}", counts.rounds), "memory")?;
    group.set("memory.max", &((8 + rng.below(16)) * MIB_BYTES).to_string())?;
    // None or a little: it has to run out.
    group.set("memory.swap.max", &(rng.below(3) * 2 * MIB_BYTES).to_string())?;
    group.set("memory.oom.group", &rng.below(2).to_string())?;
    let mut own = Rng(rng.bits());
    let victim = Victim::fork(|| {
        if group.join().is_err() {
            return;
        }
        for _ in 0..own.below(3) {
            let mut own = Rng(own.bits());
            thread::spawn(move || {
                loop {
                    allocate_some(&mut own);
                }
            });
        }
        loop {
            allocate_some(&mut own);
        }
    })?;
    let delays: Vec<_> = (0..rng.below(5)).map(|_| micros(rng, 3_000)).collect();
    victim.release(&delays, None, counts)?;
    victim.end()?;
    counts.victims += 1;
    let events = group.get("memory.events")?;
    let kills = counters::value(&events, "oom_kill ").unwrap_or_default();
    ensure!(kills > 0, "over its limit and not OOM-killed: {events}");
    counts.oom_kills += kills;
    // The exit of the last task may not be over yet.
    within(DEATH_TIMEOUT, || fs::remove_dir(group.file("")).is_ok()).context("remove the cgroup")
}

/// Returns MemAvailable in bytes.
fn available() -> Result<usize> {
    Ok(usize::try_from(counters::meminfo("MemAvailable:")?)? << 10)
}
