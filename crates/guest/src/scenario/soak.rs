//! Kill storms: many processes with all kinds of memory, killed at any moment, while several
//! threads release their memory and they exit, or the OOM killer takes them. Meanwhile CPUs go
//! and come back, memory is paged out and in, swap space is turned off and on, and now and then
//! real-time tasks have all CPUs to themselves. Measures nothing; the kernel's complaints are the
//! result, and so is memory or swap space that does not come back.

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

use super::Scenario;
use super::arguments::Arguments;
use crate::memory::PAGE_BYTES;
use crate::memory::swap;
use crate::process::victim::mrelease;
use crate::rng::Rng;
use crate::system::counters;
use crate::system::sched::set_policy;
use init::report::Reporter;

const MIB: usize = 1 << 20;
/// What one victim takes at most, about.
const VICTIM: usize = 40 * MIB;
/// How long a victim may take to die before that counts as stuck. Debug kernels are slow.
const DEATH: Duration = Duration::from_secs(60);
/// What may stay away at the end: caches, per-CPU lists, KASAN's quarantine.
const LOST: usize = 96 * MIB;
/// Swap space: less than there is to page out, also while there is as much of it again.
const SWAP: u64 = 48 << 20;
/// The device that is always there.
const FIRST_SWAP: &str = "zram0";
/// The second one, which comes and goes, is used first.
const PREFERRED: libc::c_int = 0x8000 | 10;
/// The longest time for which real-time tasks keep all others from running, microseconds: longer
/// than swap entries may wait, and short enough for those who get on only in between.
const HOGS_US: usize = 300_000;
/// Rounds from which on a soak without any CPU switched or memory reclaimed did not do its work: a
/// debug kernel on a busy host does a handful in a minute.
const SETTLED: u64 = 50;
const CPUS: &str = "/sys/devices/system/cpu";
const RECLAIM: &str = "/sys/fs/cgroup/memory.reclaim";

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
        // Huge pages on request; a kernel without them has nothing to request.
        let _ = fs::write("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
        fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory").context("memory cgroups")?;

        swap::on(SWAP)?;
        let second = second_swap()?;
        lift_limits()?;

        let before = available()?;
        let switcher = switcher(Rng(rng.bits()))?;
        let reclaimer = reclaimer(Rng(rng.bits()))?;
        let swapper = swapper(Rng(rng.bits()), &second)?;
        let hogs = hogs(Rng(rng.bits()))?;
        let (began, mut counts) = (Instant::now(), Counts::default());
        let mut told = began;
        while began.elapsed() < length {
            if rng.one_in(4) {
                oom(&mut rng, &mut counts)?;
            } else {
                storm(&mut rng, &mut counts)?;
            }
            counts.rounds += 1;
            if told.elapsed() > Duration::from_secs(1) {
                told = Instant::now();
                out.progress(&format!("{} s, {}", began.elapsed().as_secs(), counts.text()));
            }
        }
        let hogs = hogs.end()?;
        let swapoffs = swapper.end()?;
        let switches = switcher.map_or(Ok(0), Pest::end)?;
        for cpu in other_cpus()? {
            // It may be online already.
            let _ = fs::write(online_file(cpu), "1");
        }
        let reclaims = reclaimer.end()?;
        out.note(&format!(
            "seed {seed}, {} s: {}; {switches} times a CPU went or came, {reclaims} times memory was reclaimed, \
             {swapoffs} times swap was turned off, {hogs} times hogs had all CPUs",
            length.as_secs(),
            counts.text()
        ));
        let released = swap_is_released()?;
        swap_comes_back(&[FIRST_SWAP, &second])?;
        if let Some((queued, told)) = released {
            out.note(&told);
            ensure!(queued > 0 || counts.rounds < SETTLED, "no swap entry ever waited for a worker");
        }
        if counts.rounds >= SETTLED {
            ensure!(reclaims > 0, "{RECLAIM}: nothing was ever reclaimed");
            ensure!(switches > 0 || other_cpus()?.is_empty(), "no CPU ever went offline");
            ensure!(swapoffs > 0, "{second}: was never turned off");
            ensure!(hogs > 0, "no hog ever had a CPU to itself");
        }
        let lost = before.saturating_sub(available()?);
        ensure!(lost <= LOST, "{} MiB of memory did not come back", lost / MIB);
        Ok(())
    }
}

/// What was done.
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

/// A random time, shorter than so many microseconds.
fn micros(rng: &mut Rng, end: usize) -> Duration {
    Duration::from_micros(rng.below(end) as u64)
}

/// A few victims at once, killed while they grow or after, each beset by up to four threads.
fn storm(rng: &mut Rng, counts: &mut Counts) -> Result<()> {
    let mut victims = Vec::new();
    for _ in 0..=rng.below(4) {
        let own = Rng(rng.bits());
        victims.push(Doomed::fork(|| grow(own))?);
    }
    let longest = if rng.one_in(2) { 20_000 } else { 400_000 };
    thread::sleep(micros(rng, longest));
    for victim in victims {
        // Now and then before the kill: refused, and no harm done.
        if rng.one_in(8) {
            counts.take(mrelease(victim.pidfd.as_fd())?);
        }
        let delays: Vec<_> = (0..rng.below(5)).map(|_| micros(rng, 2_000)).collect();
        let kill = micros(rng, 2_000);
        victim.release(&delays, Some(kill), counts)?;
        victim.end()?;
        counts.victims += 1;
    }
    Ok(())
}

/// A victim that outgrows its cgroup, so that the OOM reaper and we are after it together.
fn oom(rng: &mut Rng, counts: &mut Counts) -> Result<()> {
    let group = format!("/sys/fs/cgroup/soak-{}", counts.rounds);
    fs::create_dir(&group).with_context(|| group.clone())?;
    let set = |file: &str, value: String| {
        fs::write(format!("{group}/{file}"), value).with_context(|| format!("{group}/{file}"))
    };
    set("memory.max", ((8 + rng.below(16)) * MIB).to_string())?;
    // None or a little: what there is has to run out.
    set("memory.swap.max", (rng.below(3) * 2 * MIB).to_string())?;
    set("memory.oom.group", rng.below(2).to_string())?;
    let (procs, mut own) = (format!("{group}/cgroup.procs"), Rng(rng.bits()));
    let victim = Doomed::fork(move || {
        if fs::write(&procs, "0").is_err() {
            return;
        }
        for _ in 0..own.below(3) {
            let mut own = Rng(own.bits());
            thread::spawn(move || {
                loop {
                    gobble(&mut own);
                }
            });
        }
        loop {
            gobble(&mut own);
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
    // The last task's exit may not be over yet.
    within(DEATH, || fs::remove_dir(&group).is_ok()).with_context(|| format!("rmdir {group}"))
}

/// A child with a process group of its own, made to die.
struct Doomed {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Doomed {
    /// Forks; the child does `life` and then sleeps until it is killed.
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

    /// Releases the victim's memory from one thread per delay, each of which keeps trying until
    /// the victim is dying; kills it after `kill`, or leaves that to others.
    fn release(&self, delays: &[Duration], kill: Option<Duration>, counts: &mut Counts) -> Result<()> {
        // The OOM killer comes when it comes; a victim killed by us that still cannot be released
        // soon shares its memory with a process that lives on.
        let (patience, pause) = match kill {
            Some(_) => (Duration::from_millis(200), Duration::ZERO),
            None => (DEATH, Duration::from_millis(1)),
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
                            if done.is_some() || began.elapsed() > patience {
                                return io::Result::Ok(done);
                            }
                            if pause.is_zero() { thread::yield_now() } else { thread::sleep(pause) }
                        }
                    })
                })
                .collect();
            if let Some(delay) = kill {
                thread::sleep(delay);
                pidfd_send_signal(&self.pidfd, Signal::KILL).context("kill")?;
            }
            // Joined one by one: the scope's own end may come before a thread is gone, and the
            // next fork wants to be alone.
            for thread in threads {
                let done = thread.join().map_err(|_| anyhow!("a releasing thread died"))?;
                counts.take(done.context("process_mrelease")?);
            }
            Ok(())
        })
    }

    /// Waits for the victim's end, then for that of everything it started.
    fn end(self) -> Result<()> {
        let pid = self.pid;
        let dead =
            || waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        within(DEATH, || !matches!(dead(), Ok(None)))
            .with_context(|| format!("victim {pid} does not die"))?;
        within(DEATH, || {
            // What shares the memory or was forked outlives the victim; PID 1 reaps it.
            let _ = kill_process_group(pid, Signal::KILL);
            test_kill_process_group(pid) == Err(Errno::SRCH)
        })
        .with_context(|| format!("process group {pid} does not die"))
    }
}

/// Somebody who disturbs all victims, again and again.
struct Pest {
    process: Doomed,
    /// An eventfd: how often that went well.
    done: OwnedFd,
}

impl Pest {
    fn fork(mut disturb: impl FnMut() -> bool) -> Result<Self> {
        let done = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd")?;
        let process = Doomed::fork(|| {
            loop {
                if disturb() {
                    // It is never full.
                    let _ = rustix::io::write(&done, &1u64.to_ne_bytes());
                }
            }
        })?;
        Ok(Self { process, done })
    }

    /// Gives how often it went well.
    fn end(self) -> Result<u64> {
        pidfd_send_signal(&self.process.pidfd, Signal::KILL).context("kill")?;
        self.process.end()?;
        let mut number = [0; 8];
        match rustix::io::read(&self.done, &mut number) {
            Ok(_) => Ok(u64::from_ne_bytes(number)),
            Err(Errno::AGAIN) => Ok(0),
            Err(e) => Err(e).context("eventfd"),
        }
    }
}

/// Takes CPUs offline and brings them back; `None` where that cannot be done.
fn switcher(mut rng: Rng) -> Result<Option<Pest>> {
    let cpus = other_cpus()?;
    if cpus.is_empty() {
        return Ok(None);
    }
    Pest::fork(move || {
        thread::sleep(micros(&mut rng, 200_000));
        let online = if rng.one_in(2) { "1" } else { "0" };
        // Refused if it is that already.
        fs::write(online_file(cpus[rng.below(cpus.len())]), online).is_ok()
    })
    .map(Some)
}

/// The CPUs that can be taken offline, which CPU 0 never can.
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

/// Has memory of all victims paged out, by a process to which none of it belongs.
fn reclaimer(mut rng: Rng) -> Result<Pest> {
    Pest::fork(move || {
        thread::sleep(micros(&mut rng, 100_000));
        let bytes = (1 + rng.below(12)) * MIB;
        match fs::write(RECLAIM, bytes.to_string()) {
            Ok(()) => true,
            // Less than that could be had.
            Err(e) => e.raw_os_error() == Some(libc::EAGAIN),
        }
    })
}

/// A second device for swap, of the first one's size, not turned on yet. Gives its name.
fn second_swap() -> Result<String> {
    const ADD: &str = "/sys/class/zram-control/hot_add";
    // To read is to make one.
    let number = fs::read_to_string(ADD).with_context(|| format!("{ADD} (CONFIG_ZRAM)"))?;
    let name = format!("zram{}", number.trim_end());
    let size = format!("/sys/block/{name}/disksize");
    fs::write(&size, SWAP.to_string()).context(size)?;
    // Being of the same size, it has the same header.
    let mut header = vec![0; PAGE_BYTES];
    let (from, to) = (format!("/dev/{FIRST_SWAP}"), format!("/dev/{name}"));
    File::open(&from).and_then(|file| file.read_exact_at(&mut header, 0)).context(from)?;
    File::options().write(true).open(&to).and_then(|file| file.write_all_at(&header, 0)).context(to)?;
    Ok(name)
}

fn device_path(name: &str) -> Result<CString> {
    Ok(CString::new(format!("/dev/{name}"))?)
}

/// Gives whether it is off now, and was on.
fn swap_off(path: &CString) -> bool {
    // SAFETY: the path is a C string that outlives the call.
    unsafe { libc::swapoff(path.as_ptr()) == 0 }
}

/// Turns a device for swap on and off again.
fn swapper(mut rng: Rng, device: &str) -> Result<Pest> {
    let path = device_path(device)?;
    Pest::fork(move || {
        thread::sleep(micros(&mut rng, 50_000));
        // It is on already if what is in it found no room elsewhere.
        // SAFETY: the path is a C string that outlives the call.
        unsafe { libc::swapon(path.as_ptr(), PREFERRED) };
        thread::sleep(micros(&mut rng, 200_000));
        swap_off(&path)
    })
}

/// Real-time tasks may have all CPUs to themselves from now on, for as long as they want.
fn lift_limits() -> Result<()> {
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

/// Keeps all ordinary tasks from running, for a while: no worker gets to run, no daemon, nor we.
fn hogs(mut rng: Rng) -> Result<Pest> {
    let cpus = other_cpus()?.len() + 1;
    Pest::fork(move || {
        thread::sleep(Duration::from_millis(500) + micros(&mut rng, 1_000_000));
        // Later, so that all of them are there before the first one keeps the others away.
        let begin = Instant::now() + Duration::from_millis(20);
        let end = begin + micros(&mut rng, HOGS_US);
        let hogs: Vec<_> = (0..cpus).map(|_| thread::spawn(move || hog(begin, end))).collect();
        // Each of them, also after one that failed.
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

/// Nothing waits, and all that ever did has been released. Gives how many swap entries that were,
/// and what there is to say of them; `None` in a kernel where none wait.
fn swap_is_released() -> Result<Option<(u64, String)>> {
    let read = || {
        let text = counters::vmstat()?;
        let told: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("swap_release_")).collect();
        Ok::<_, anyhow::Error>(
            counters::value(&text, "swap_release_waiting ")
                .zip(counters::value(&text, "swap_release_queued "))
                .zip(counters::value(&text, "swap_release_released "))
                .map(|((waiting, queued), released)| (waiting, queued, released, told.join(", "))),
        )
    };
    if read()?.is_none() {
        return Ok(None);
    }
    let mut last = None;
    let done = within(DEATH, || {
        last = read().ok().flatten();
        matches!(last, Some((0, queued, released, _)) if queued == released)
    });
    let (_, queued, _, told) = last.context("the counters of swap_release are gone")?;
    done.with_context(|| format!("swap entries are not released: {told}"))?;
    Ok(Some((queued, format!("swap entries: {told}"))))
}

/// Turns all swap off. That does not come to an end if a slot was lost that nothing refers to.
fn swap_comes_back(devices: &[&str]) -> Result<()> {
    const SWAPS: &str = "/proc/swaps";
    let paths = devices.iter().map(|name| device_path(name)).collect::<Result<Vec<_>>>()?;
    // By somebody else, who can be given up on.
    let pest = Pest::fork(move || {
        thread::sleep(Duration::from_millis(10));
        paths.iter().filter(|path| swap_off(path)).count() > 0
    })?;
    let used = || fs::read_to_string(SWAPS).context(SWAPS);
    within(DEATH, || used().is_ok_and(|text| text.lines().count() == 1))
        .with_context(|| format!("swap space leaked: {}", used().unwrap_or_default()))?;
    pest.end()?;
    for name in devices {
        let number = |file: &str, line: usize, field: usize| {
            let path = format!("/sys/block/{name}/{file}");
            let text = fs::read_to_string(&path).with_context(|| path.clone())?;
            let word = text.lines().nth(line).and_then(|line| line.split_whitespace().nth(field));
            word.and_then(|word| word.parse::<u64>().ok()).with_context(|| format!("{path}: {text}"))
        };
        // The header stays, and what was being read or written when its slot was freed.
        let (left, missed) = (number("mm_stat", 0, 0)?, number("debug_stat", 1, 1)?);
        ensure!(
            left <= (1 + missed) * PAGE_BYTES as u64,
            "{name}: {left} bytes are stored in no slot ({missed} could not be freed in time)"
        );
    }
    Ok(())
}

/// The calling thread goes on on any CPU that is there, now and then.
fn hop(rng: &mut Rng) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(rng.below(8));
    // Refused if there is no such CPU now.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

impl Counts {
    fn take(&mut self, done: Option<crate::process::victim::Released>) {
        match done {
            None => self.refused += 1,
            Some(done) => {
                self.again += u64::from(done.again);
                if done.too_late { self.too_late += 1 } else { self.released += 1 }
            }
        }
    }
}

/// Polls until `done`, or fails when the time is up.
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

/// A victim's life: memory of all kinds, then unrest until the end.
fn grow(mut rng: Rng) {
    let mut left = VICTIM;
    while left > 0 {
        let size = (16 + rng.below(2048)) * PAGE_BYTES;
        left = left.saturating_sub(size);
        // What the kernel refuses (no memory, no huge page) is no loss: the next one may do.
        let _ = map(&mut rng, size);
        if rng.one_in(8) {
            company(&mut rng);
        }
    }
    loop {
        let size = (1 + rng.below(64)) * PAGE_BYTES;
        hop(&mut rng);
        if let Ok(area) = Area::anonymous(size, MapFlags::PRIVATE) {
            area.touch();
            if rng.one_in(4) {
                area.page_out();
                area.look(1);
            }
            area.unmap();
        }
        thread::sleep(micros(&mut rng, 500));
    }
}

/// Somebody who works on the same memory: a thread, a process that shares it, a fork.
fn company(rng: &mut Rng) {
    let mut own = Rng(rng.bits());
    match rng.below(3) {
        0 => drop(thread::spawn(move || {
            loop {
                let size = (1 + own.below(256)) * PAGE_BYTES;
                hop(&mut own);
                if let Ok(area) = Area::anonymous(size, MapFlags::PRIVATE) {
                    area.touch();
                    // It may go where it did not come from.
                    hop(&mut own);
                    if own.one_in(2) {
                        area.unmap();
                    } else {
                        // Stays: the address space keeps changing, within limits.
                        thread::sleep(Duration::from_millis(5));
                    }
                }
                thread::sleep(micros(&mut own, 300));
            }
        })),
        1 => share(),
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
fn share() {
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

/// A mapping, left alone unless [`Area::unmap`]ped.
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
    fn look(&self, step: usize) {
        for offset in (0..self.size).step_by(step * PAGE_BYTES) {
            // SAFETY: inside a readable mapping.
            let _ = unsafe { self.at.add(offset).read_volatile() };
        }
    }

    /// Sends what can be to swap.
    fn page_out(&self) {
        // SAFETY: advice on a mapping that is ours; its contents stay.
        let _ = unsafe { rustix::mm::madvise(self.at.cast(), self.size, Advice::LinuxPageOut) };
    }

    fn unmap(self) {
        // SAFETY: the mapping is ours alone, and `self` ends here.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.size) };
    }
}

/// Maps and fills one area of a random kind, which stays.
fn map(rng: &mut Rng, size: usize) -> Result<(), Errno> {
    match rng.below(6) {
        0 => Area::anonymous(size, MapFlags::PRIVATE)?.touch(),
        1 => Area::anonymous(size, MapFlags::SHARED)?.touch(),
        2 => {
            // A file, private: some pages read, some copied on write.
            let file = rustix::fs::memfd_create("soak", rustix::fs::MemfdFlags::CLOEXEC)?;
            rustix::fs::ftruncate(&file, size as u64)?;
            // SAFETY: a new mapping at an address of the kernel's choice, of a file that nobody
            // else has and that is as long.
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
            area.look(1);
            Area { size: size / 2, ..area }.touch();
        }
        3 => {
            // Two huge pages fit wherever the mapping starts; then one is broken up.
            let size = 6 * MIB;
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
            // Many VMAs: pages that may be written between pages that may not.
            let area = Area::anonymous(size, MapFlags::PRIVATE)?;
            area.touch();
            for offset in (0..size).step_by(2 * PAGE_BYTES) {
                // SAFETY: one page inside the mapping; nobody writes to it any more.
                unsafe { rustix::mm::mprotect(area.at.add(offset).cast(), PAGE_BYTES, MprotectFlags::READ) }?;
            }
        }
    }
    Ok(())
}

/// Takes memory and keeps it.
fn gobble(rng: &mut Rng) {
    let flags = if rng.one_in(32) { MapFlags::SHARED } else { MapFlags::PRIVATE };
    if let Ok(area) = Area::anonymous((1 + rng.below(256)) * PAGE_BYTES, flags) {
        area.touch();
    }
}

/// MemAvailable in bytes.
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
            // Locking may be beyond the limit here; nothing else may fail.
            match map(&mut rng, 16 * PAGE_BYTES) {
                Ok(()) | Err(Errno::NOMEM | Errno::PERM | Errno::INVAL) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }
}
