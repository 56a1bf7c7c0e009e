// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `soak`: many processes with all kinds of memory are killed at random moments, half of them so that
//! the kernel frees their memory at once where it can, while several threads release their memory and they
//! exit, or the OOM killer kills them. Meanwhile CPUs go offline and
//! online, memory is paged out and in, swap space is switched off and on, and now and then real-time tasks
//! have all CPUs to themselves. Measures nothing: a run fails by the kernel's warnings, or by memory or swap
//! space that does not come back.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};
use std::{fs, hint, io, ptr, thread};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, pidfd_send_signal,
    test_kill_process_group, waitid,
};

use super::arguments::Arguments;
use super::interface::Scenario;
use crate::memory::PAGE_BYTES;
use crate::memory::swap;
use crate::process::victim::{expedites, kill_expedited, mrelease};
use crate::rng::Rng;
use crate::system::counters;
use crate::system::sched::set_policy;
use init::report::Reporter;

const MIB_BYTES: usize = 1 << 20;
/// About the most memory of a victim.
const VICTIM_BYTES: usize = 40 * MIB_BYTES;
/// How long a victim may take to die until it counts as stuck. Debug kernels are slow.
const DEATH_TIMEOUT: Duration = Duration::from_secs(60);
/// Memory that may be missing at the end: caches, per-CPU lists, KASAN's quarantine.
const MAX_LOST_BYTES: usize = 96 * MIB_BYTES;
/// Size of each of the two swap devices: together less than there is to page out.
const SWAP_BYTES: u64 = 48 << 20;
/// The swap device that is always on.
const FIRST_SWAP: &str = "zram0";
/// Flags of swapon(2) for the second device: it has a higher priority, so it is used first.
const SWAPON_PREFERRED: libc::c_int = 0x8000 | 10;
/// The longest time for which real-time tasks keep all others from running: longer than swap entries may
/// wait, and short enough for tasks that run only in between.
const MAX_HOG_MICROS: usize = 300_000;
/// After so many rounds each disturbance must have happened. A debug kernel on a busy host does a handful of
/// rounds in a minute.
const MIN_ROUNDS_TO_JUDGE: u64 = 50;
const CPUS: &str = "/sys/devices/system/cpu";
const RECLAIM: &str = "/sys/fs/cgroup/memory.reclaim";
/// The size from which on the kernel frees the memory of killed processes at once, and how its workers share
/// a CPU.
const EXPEDITE_MIN_KBYTES: &str = "/proc/sys/vm/expedite_min_kbytes";
const EXPEDITE_CPU_PERCENT: &str = "/proc/sys/vm/expedite_cpu_percent";

/// `soak [seconds=60] [seed=1]`
pub struct Soak;

impl Scenario for Soak {
    fn name(&self) -> &'static str {
        "soak"
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let args = Arguments::new(args, &[], &["seconds", "seed"])?;
        let length = Duration::from_secs(args.get("seconds", 60)?);
        let seed = args.get("seed", 1)?;
        let mut rng = Rng(seed);
        // Huge pages on request; this fails in a kernel without them.
        let _ = fs::write("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
        fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory").context("memory cgroups")?;

        swap::on(SWAP_BYTES)?;
        let second = second_swap()?;
        remove_realtime_limits()?;

        let expedites = expedites();
        let before = available()?;
        let switcher = switcher(Rng(rng.bits()))?;
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
            ensure!(
                queued > 0 || counts.rounds < MIN_ROUNDS_TO_JUDGE,
                "no swap entry ever waited for a worker"
            );
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
            counts.add(mrelease(victim.pidfd.as_fd())?);
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
    let group = format!("/sys/fs/cgroup/soak-{}", counts.rounds);
    fs::create_dir(&group).with_context(|| group.clone())?;
    let set = |file: &str, value: String| {
        fs::write(format!("{group}/{file}"), value).with_context(|| format!("{group}/{file}"))
    };
    set("memory.max", ((8 + rng.below(16)) * MIB_BYTES).to_string())?;
    // None or a little: it has to run out.
    set("memory.swap.max", (rng.below(3) * 2 * MIB_BYTES).to_string())?;
    set("memory.oom.group", rng.below(2).to_string())?;
    let (procs, mut own) = (format!("{group}/cgroup.procs"), Rng(rng.bits()));
    let victim = Victim::fork(move || {
        if fs::write(&procs, "0").is_err() {
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
    let events = fs::read_to_string(format!("{group}/memory.events")).context("memory.events")?;
    let kills = counters::value(&events, "oom_kill ");
    ensure!(kills.unwrap_or_default() > 0, "{group}: over its limit and not OOM-killed: {events}");
    counts.oom_kills += kills.unwrap_or_default();
    // The exit of the last task may not be over yet.
    within(DEATH_TIMEOUT, || fs::remove_dir(&group).is_ok()).with_context(|| format!("rmdir {group}"))
}

/// A kill by this process.
struct Kill {
    delay: Duration,
    /// Whether the kernel frees the memory at once.
    expedited: bool,
}

/// A child with a process group of its own, to be killed.
struct Victim {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Victim {
    /// Forks a child, which runs `life` and then sleeps until it is killed.
    fn fork(life: impl FnOnce()) -> Result<Self> {
        // SAFETY: this process has one thread here (all others were joined), so the child may do
        // whatever the parent may; it never returns from the match's arm.
        let pid = match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()).context("fork"),
            0 => {
                let death = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                if death.is_ok() && rustix::process::setpgid(None, None).is_ok() {
                    life();
                }
                loop {
                    // SAFETY: pause(2) takes no arguments.
                    unsafe { libc::pause() };
                }
            }
            pid => Pid::from_raw(pid).context("fork gave a pid that is none")?,
        };
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
        Ok(Self { pid, pidfd })
    }

    /// Releases the victim's memory in one thread per delay, each of which retries until the victim is dying.
    /// Kills it, or leaves that to the OOM killer.
    fn release(&self, delays: &[Duration], kill: Option<Kill>, counts: &mut Counts) -> Result<()> {
        // When the OOM killer kills is not known. A victim that this process has killed, and that still
        // cannot be released soon, shares its memory with a process that lives on.
        let (timeout, pause) = match kill {
            Some(_) => (Duration::from_millis(200), Duration::ZERO),
            None => (DEATH_TIMEOUT, Duration::from_millis(1)),
        };
        thread::scope(|scope| {
            let threads: Vec<_> = delays
                .iter()
                .map(|&delay| {
                    scope.spawn(move || {
                        thread::sleep(delay);
                        let began = Instant::now();
                        loop {
                            let done = mrelease(self.pidfd.as_fd())?;
                            if done.is_some() || began.elapsed() > timeout {
                                return io::Result::Ok(done);
                            }
                            if pause.is_zero() { thread::yield_now() } else { thread::sleep(pause) }
                        }
                    })
                })
                .collect();
            if let Some(Kill { delay, expedited }) = kill {
                thread::sleep(delay);
                match expedited {
                    true => kill_expedited(self.pidfd.as_fd()).context("expedited kill")?,
                    false => pidfd_send_signal(&self.pidfd, Signal::KILL).context("kill")?,
                }
            }
            // Joined one by one: the scope may end before its threads are gone, and the next fork needs a
            // single-threaded process.
            for thread in threads {
                let done = thread.join().map_err(|_| anyhow!("a releasing thread died"))?;
                counts.add(done.context("process_mrelease")?);
            }
            Ok(())
        })
    }

    /// Waits for the end of the victim, and then of everything that it started.
    fn end(self) -> Result<()> {
        let pid = self.pid;
        let dead =
            || waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        within(DEATH_TIMEOUT, || !matches!(dead(), Ok(None)))
            .with_context(|| format!("victim {pid} does not die"))?;
        within(DEATH_TIMEOUT, || {
            // Processes that share the memory or were forked outlive the victim; PID 1 reaps them.
            let _ = kill_process_group(pid, Signal::KILL);
            test_kill_process_group(pid) == Err(Errno::SRCH)
        })
        .with_context(|| format!("process group {pid} does not die"))
    }
}

/// A process that disturbs all victims, again and again.
struct Disturbance {
    process: Victim,
    /// An eventfd that counts its successes.
    successes: OwnedFd,
}

impl Disturbance {
    /// Forks a process that calls `disturb` until it is killed, and counts how often that returns true.
    fn fork(mut disturb: impl FnMut() -> bool) -> Result<Self> {
        let successes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd")?;
        let process = Victim::fork(|| {
            loop {
                if disturb() {
                    // The counter never overflows.
                    let _ = rustix::io::write(&successes, &1u64.to_ne_bytes());
                }
            }
        })?;
        Ok(Self { process, successes })
    }

    /// Kills the process, and returns the number of its successes.
    fn end(self) -> Result<u64> {
        pidfd_send_signal(&self.process.pidfd, Signal::KILL).context("kill")?;
        self.process.end()?;
        let mut number = [0; 8];
        match rustix::io::read(&self.successes, &mut number) {
            Ok(_) => Ok(u64::from_ne_bytes(number)),
            Err(Errno::AGAIN) => Ok(0),
            Err(e) => Err(e).context("eventfd"),
        }
    }
}

/// Takes CPUs offline and brings them back; `None` where that cannot be done.
fn switcher(mut rng: Rng) -> Result<Option<Disturbance>> {
    let cpus = other_cpus()?;
    if cpus.is_empty() {
        return Ok(None);
    }
    Disturbance::fork(move || {
        thread::sleep(micros(&mut rng, 200_000));
        let online = if rng.one_in(2) { "1" } else { "0" };
        // Fails if the CPU is in that state already.
        fs::write(online_file(cpus[rng.below(cpus.len())]), online).is_ok()
    })
    .map(Some)
}

/// Returns the CPUs that can be taken offline; CPU 0 never can.
fn other_cpus() -> Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for entry in fs::read_dir(CPUS).context(CPUS)? {
        let name = entry.context(CPUS)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
        cpus.extend(number.filter(|&cpu| cpu != 0 && fs::exists(online_file(cpu)).unwrap_or(false)));
    }
    cpus.sort_unstable();
    Ok(cpus)
}

fn online_file(cpu: usize) -> String {
    format!("{CPUS}/cpu{cpu}/online")
}

/// Has memory of all victims paged out, by a process that owns none of it.
fn reclaimer(mut rng: Rng) -> Result<Disturbance> {
    Disturbance::fork(move || {
        thread::sleep(micros(&mut rng, 100_000));
        let bytes = (1 + rng.below(12)) * MIB_BYTES;
        match fs::write(RECLAIM, bytes.to_string()) {
            Ok(()) => true,
            // Less than that was reclaimed.
            Err(e) => e.raw_os_error() == Some(libc::EAGAIN),
        }
    })
}

/// Creates a second swap device of the same size, not switched on yet, and returns its name.
fn second_swap() -> Result<String> {
    const ADD: &str = "/sys/class/zram-control/hot_add";
    // Reading creates a device.
    let number = fs::read_to_string(ADD).with_context(|| format!("{ADD} (CONFIG_ZRAM)"))?;
    let name = format!("zram{}", number.trim_end());
    let size = format!("/sys/block/{name}/disksize");
    fs::write(&size, SWAP_BYTES.to_string()).context(size)?;
    // A device of the same size has the same swap header.
    let mut header = vec![0; PAGE_BYTES];
    let (from, to) = (format!("/dev/{FIRST_SWAP}"), format!("/dev/{name}"));
    File::open(&from).and_then(|file| file.read_exact_at(&mut header, 0)).context(from)?;
    File::options().write(true).open(&to).and_then(|file| file.write_all_at(&header, 0)).context(to)?;
    Ok(name)
}

fn device_path(name: &str) -> Result<CString> {
    Ok(CString::new(format!("/dev/{name}"))?)
}

/// Switches a swap device off. Returns whether it was on and is off now.
fn swap_off(path: &CString) -> bool {
    // SAFETY: the path is a C string that outlives the call.
    unsafe { libc::swapoff(path.as_ptr()) == 0 }
}

/// Switches a swap device on and off again.
fn swapper(mut rng: Rng, device: &str) -> Result<Disturbance> {
    let path = device_path(device)?;
    Disturbance::fork(move || {
        thread::sleep(micros(&mut rng, 50_000));
        // It is still on if there was no room elsewhere for what is in it.
        // SAFETY: the path is a C string that outlives the call.
        unsafe { libc::swapon(path.as_ptr(), SWAPON_PREFERRED) };
        thread::sleep(micros(&mut rng, 200_000));
        swap_off(&path)
    })
}

/// Lets real-time tasks use all CPU time from now on.
fn remove_realtime_limits() -> Result<()> {
    const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";
    fs::write(RUNTIME, "-1").context(RUNTIME)?;
    // Since 6.12, ordinary tasks are guaranteed some time on each CPU.
    const SERVERS: &str = "/sys/kernel/debug/sched/fair_server";
    let Ok(servers) = fs::read_dir(SERVERS) else { return Ok(()) };
    for server in servers {
        let path = server.context(SERVERS)?.path().join("runtime");
        fs::write(&path, "0").with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Keeps all ordinary tasks from running for a while: kernel workers, daemons, and this process.
fn hogs(mut rng: Rng) -> Result<Disturbance> {
    let cpus = other_cpus()?.len() + 1;
    Disturbance::fork(move || {
        thread::sleep(Duration::from_millis(500) + micros(&mut rng, 1_000_000));
        // A little later, so that all threads exist before the first one keeps the others from running.
        let begin = Instant::now() + Duration::from_millis(20);
        let end = begin + micros(&mut rng, MAX_HOG_MICROS);
        let hogs: Vec<_> = (0..cpus).map(|_| thread::spawn(move || hog(begin, end))).collect();
        // All are joined, also after one that failed.
        let failed = hogs.into_iter().filter_map(|hog| (!matches!(hog.join(), Ok(Ok(())))).then_some(()));
        failed.count() == 0
    })
}

fn hog(begin: Instant, end: Instant) -> Result<()> {
    thread::sleep(begin.saturating_duration_since(Instant::now()));
    set_policy(libc::SCHED_FIFO, 1).context("SCHED_FIFO for a hog")?;
    while Instant::now() < end {
        hint::spin_loop();
    }
    Ok(())
}

/// Checks that no swap entry waits to be released, and that all that ever did have been released. Returns how
/// many that were and a note with all counters; `None` for a kernel in which none wait.
fn check_swap_is_released() -> Result<Option<(u64, String)>> {
    let read = || {
        let text = counters::vmstat()?;
        let counters_text: Vec<_> =
            text.lines().filter_map(|line| line.strip_prefix("swap_defer_")).collect();
        Ok::<_, anyhow::Error>(
            counters::value(&text, "swap_defer_waiting ")
                .zip(counters::value(&text, "swap_defer_queued "))
                .zip(counters::value(&text, "swap_defer_released "))
                .map(|((waiting, queued), released)| (waiting, queued, released, counters_text.join(", "))),
        )
    };
    if read()?.is_none() {
        return Ok(None);
    }
    let mut last = None;
    let done = within(DEATH_TIMEOUT, || {
        last = read().ok().flatten();
        matches!(last, Some((0, queued, released, _)) if queued == released)
    });
    let (_, queued, _, text) = last.context("the counters of swap-defer are gone")?;
    done.with_context(|| format!("swap entries are not released: {text}"))?;
    Ok(Some((queued, format!("swap entries: {text}"))))
}

/// Switches all swap off. That never ends if a slot leaked to which nothing refers.
fn check_swap_comes_back(devices: &[&str]) -> Result<()> {
    const SWAPS: &str = "/proc/swaps";
    let paths = devices.iter().map(|name| device_path(name)).collect::<Result<Vec<_>>>()?;
    // In another process, which can be given up on.
    let switcher = Disturbance::fork(move || {
        thread::sleep(Duration::from_millis(10));
        paths.iter().filter(|path| swap_off(path)).count() > 0
    })?;
    let used = || fs::read_to_string(SWAPS).context(SWAPS);
    within(DEATH_TIMEOUT, || used().is_ok_and(|text| text.lines().count() == 1))
        .with_context(|| format!("swap space leaked: {}", used().unwrap_or_default()))?;
    switcher.end()?;
    for name in devices {
        let number = |file: &str, line: usize, field: usize| {
            let path = format!("/sys/block/{name}/{file}");
            let text = fs::read_to_string(&path).with_context(|| path.clone())?;
            let word = text.lines().nth(line).and_then(|line| line.split_whitespace().nth(field));
            word.and_then(|word| word.parse::<u64>().ok()).with_context(|| format!("{path}: {text}"))
        };
        // The header stays, and pages that were being read or written when their slots were freed.
        let (left, missed) = (number("mm_stat", 0, 0)?, number("debug_stat", 1, 1)?);
        ensure!(
            left <= (1 + missed) * PAGE_BYTES as u64,
            "{name}: {left} bytes are stored in no slot ({missed} could not be freed in time)"
        );
    }
    Ok(())
}

/// Moves the calling thread to a random CPU.
fn hop(rng: &mut Rng) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(rng.below(8));
    // Fails if there is no such CPU now.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

impl Counts {
    fn add(&mut self, done: Option<crate::process::victim::Released>) {
        match done {
            None => self.refused += 1,
            Some(done) => {
                self.again += u64::from(done.again);
                if done.too_late { self.too_late += 1 } else { self.released += 1 }
            }
        }
    }
}

/// Polls until `done` returns true.
///
/// # Errors
/// When the time is up.
fn within(limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let began = Instant::now();
    while !done() {
        if began.elapsed() > limit {
            bail!("not within {} s", limit.as_secs());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// What a victim does: it allocates memory of all kinds, then maps and unmaps until its end.
fn grow(mut rng: Rng) {
    let mut left = VICTIM_BYTES;
    while left > 0 {
        let size = (16 + rng.below(2048)) * PAGE_BYTES;
        left = left.saturating_sub(size);
        // A failure (no memory, no huge page) does not matter: the next attempt may succeed.
        let _ = map(&mut rng, size);
        if rng.one_in(8) {
            start_companion(&mut rng);
        }
    }
    loop {
        let size = (1 + rng.below(64)) * PAGE_BYTES;
        hop(&mut rng);
        if let Ok(area) = Area::anonymous(size, MapFlags::PRIVATE) {
            area.touch();
            if rng.one_in(4) {
                area.page_out();
                area.read(1);
            }
            area.unmap();
        }
        thread::sleep(micros(&mut rng, 500));
    }
}

/// Starts something that works on the same memory: a thread, a process that shares it, or a fork.
fn start_companion(rng: &mut Rng) {
    let mut own = Rng(rng.bits());
    match rng.below(3) {
        0 => drop(thread::spawn(move || {
            loop {
                let size = (1 + own.below(256)) * PAGE_BYTES;
                hop(&mut own);
                if let Ok(area) = Area::anonymous(size, MapFlags::PRIVATE) {
                    area.touch();
                    // The memory may be freed on another CPU than it was allocated on.
                    hop(&mut own);
                    if own.one_in(2) {
                        area.unmap();
                    } else {
                        // It stays mapped, so that the address space keeps changing, within limits.
                        thread::sleep(Duration::from_millis(5));
                    }
                }
                thread::sleep(micros(&mut own, 300));
            }
        })),
        1 => share_memory(),
        _ => {
            // SAFETY: after this fork from a process that may have threads, the child only makes
            // system calls and writes to memory that it has: nothing that takes a lock.
            if unsafe { libc::fork() } == 0 {
                loop {
                    // SAFETY: usleep takes a number.
                    unsafe { libc::usleep(200) };
                    if let Ok(area) = Area::anonymous(16 * PAGE_BYTES, MapFlags::PRIVATE) {
                        area.touch();
                        area.unmap();
                    }
                }
            }
        }
    }
}

/// Starts a process that shares this one's memory (CLONE_VM) and outlives it for a moment.
fn share_memory() {
    extern "C" fn wait(_: *mut libc::c_void) -> libc::c_int {
        loop {
            // SAFETY: pause(2) takes no arguments and returns only after a signal, of which
            // this process gets none but SIGKILL; so errno, shared with the parent, is not
            // written.
            unsafe { libc::pause() };
        }
    }
    let size = 16 * PAGE_BYTES;
    let Ok(stack) = Area::anonymous(size, MapFlags::PRIVATE) else { return };
    // SAFETY: the stack is a mapping of its own that is never unmapped, its top is aligned, and
    // `wait` neither returns nor touches anything else.
    unsafe {
        libc::clone(wait, stack.at.add(size).cast(), libc::CLONE_VM | libc::SIGCHLD, ptr::null_mut());
    }
}

/// A mapping. It stays until [`Area::unmap`].
struct Area {
    at: *mut u8,
    size: usize,
}

impl Area {
    fn anonymous(size: usize, flags: MapFlags) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                flags | MapFlags::NORESERVE,
            )
        }?;
        Ok(Self { at: at.cast(), size })
    }

    /// Writes to every page.
    fn touch(&self) {
        for offset in (0..self.size).step_by(PAGE_BYTES) {
            // SAFETY: inside a writable mapping that only this function accesses.
            unsafe { self.at.add(offset).write_volatile(1) };
        }
    }

    /// Reads every `step`th page.
    fn read(&self, step: usize) {
        for offset in (0..self.size).step_by(step * PAGE_BYTES) {
            // SAFETY: inside a readable mapping.
            let _ = unsafe { self.at.add(offset).read_volatile() };
        }
    }

    /// Pages out what can be paged out.
    fn page_out(&self) {
        // SAFETY: advice on a mapping that is ours; its contents stay.
        let _ = unsafe { rustix::mm::madvise(self.at.cast(), self.size, Advice::LinuxPageOut) };
    }

    fn unmap(self) {
        // SAFETY: the mapping is ours alone, and `self` ends here.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.size) };
    }
}

/// Maps and fills one area of a random kind, which stays mapped.
fn map(rng: &mut Rng, size: usize) -> Result<(), Errno> {
    match rng.below(6) {
        0 => Area::anonymous(size, MapFlags::PRIVATE)?.touch(),
        1 => Area::anonymous(size, MapFlags::SHARED)?.touch(),
        2 => {
            // A private mapping of a file: some pages are read, some copied on write.
            let file = rustix::fs::memfd_create("soak", rustix::fs::MemfdFlags::CLOEXEC)?;
            rustix::fs::ftruncate(&file, size as u64)?;
            // SAFETY: a new mapping at an address of the kernel's choice, of a file of that
            // length to which there is no other reference.
            let at = unsafe {
                rustix::mm::mmap(
                    ptr::null_mut(),
                    size,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE,
                    &file,
                    0,
                )
            }?;
            let area = Area { at: at.cast(), size };
            area.read(1);
            Area { size: size / 2, ..area }.touch();
        }
        3 => {
            // Two huge pages fit wherever the mapping starts; one of them is split then.
            let size = 6 * MIB_BYTES;
            let area = Area::anonymous(size, MapFlags::PRIVATE)?;
            // SAFETY: advice on a mapping that is ours; the contents do not matter.
            unsafe { rustix::mm::madvise(area.at.cast(), size, Advice::LinuxHugepage) }?;
            area.touch();
            if rng.one_in(2) {
                let page = rng.below(size / PAGE_BYTES) * PAGE_BYTES;
                // SAFETY: one page inside the mapping, whose contents do not matter.
                unsafe { rustix::mm::madvise(area.at.add(page).cast(), PAGE_BYTES, Advice::LinuxDontNeed) }?;
            }
        }
        4 => {
            let area = Area::anonymous(size, MapFlags::PRIVATE)?;
            // SAFETY: locking a mapping that is ours changes nothing in it.
            unsafe { rustix::mm::mlock(area.at.cast(), size / 2) }?;
            area.touch();
        }
        _ => {
            // Many VMAs: every other page is read-only.
            let area = Area::anonymous(size, MapFlags::PRIVATE)?;
            area.touch();
            for offset in (0..size).step_by(2 * PAGE_BYTES) {
                // SAFETY: one page inside the mapping, which is not written to any more.
                unsafe { rustix::mm::mprotect(area.at.add(offset).cast(), PAGE_BYTES, MprotectFlags::READ) }?;
            }
        }
    }
    Ok(())
}

/// Allocates some memory and keeps it.
fn allocate_some(rng: &mut Rng) {
    let flags = if rng.one_in(32) { MapFlags::SHARED } else { MapFlags::PRIVATE };
    if let Ok(area) = Area::anonymous((1 + rng.below(256)) * PAGE_BYTES, flags) {
        area.touch();
    }
}

/// Returns MemAvailable in bytes.
fn available() -> Result<usize> {
    Ok(usize::try_from(counters::meminfo("MemAvailable:")?)? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_memory_can_be_mapped() {
        let mut rng = Rng(3);
        for _ in 0..24 {
            // Locking may exceed a limit here; nothing else may fail.
            match map(&mut rng, 16 * PAGE_BYTES) {
                Ok(()) | Err(Errno::NOMEM | Errno::PERM | Errno::INVAL) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }
}
