// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `daemon`: `memreap daemon` defends a whole guest. Memory runs out, and the daemon must kill the
//! right process, once, and before the kernel's OOM killer does. And it kills a victim that hardly gets CPU time
//! but has to free shared memory itself. `crates/lab/tests/daemon.rs` runs it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, hint, thread};

use anyhow::{Context as _, Result, bail, ensure};
use linux::Root;
use linux::meminfo::MemInfo;
use protocol::results::Message;
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::arguments::Arguments;
use crate::memory::region::Region;
use crate::memory::{PAGE_BYTES, swap};
use crate::process::child::{Board, Child, set_name, sleep_for_ever};
use crate::process::daemon::{Daemon, HISTORY, LOG};
use crate::process::hogs::Hogs;
use crate::rng::Rng;
use crate::system::cgroup::TemporaryCgroup;
use crate::system::{clock, counters};
use init::report::Reporter;

/// The name of the process that must not be killed.
const INNOCENT: &str = "innocent";

/// Swap space on zram, which cannot compress anything here.
const SWAP_BYTES: u64 = 256 << 20;
/// When what must happen counts as missing.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How long the daemon must not kill again after its kill.
const QUIET_TIME: Duration = Duration::from_secs(3);
/// A hog grows by this much at a time, with this pause in between, ...
const STEP_BYTES: usize = 1 << 20;
const STEP_INTERVAL: Duration = Duration::from_millis(10);
/// ... and with this one when less than this is left of memory and swap. There, 1 % is what the daemon leaves, and
/// swapping out uses as much as it frees: at full speed 0.1 s from enough to nothing, for which a guest may have to
/// wait for a CPU. Who is faster is for the face-off to say, with many runs.
const LAST_STEP_INTERVAL: Duration = Duration::from_millis(400);
const LAST_BYTES: u64 = 48 << 20;
/// How often the end of a process is looked for.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Processes of the hog that has many. Together they grow as fast as one.
const MANY_PROCESSES: u32 = 16;
/// What the daemon needs of its own when memory is short is in memory: without its rehearsal at the start 31 to
/// 44 pages are not. One or two belong to what it does when the kernel is late.
const MAX_FETCHED_PAGES: u64 = 3;

/// What a process has that fits, and how much of it may be in memory.
const FITTING_BYTES: usize = 220 << 20;
const FITTING_LIMIT_BYTES: u64 = 128 << 20;

/// What a victim holds that hardly gets CPU time, in shared memory; with hogs, of which each second takes the emulator
/// many, less.
const SHARED_BYTES: usize = 256 << 20;
const SHARED_BYTES_WITH_HOGS: usize = 64 << 20;
/// The daemon's configuration there, in percent: it kills while there is enough memory for all others to go on, ...
const EARLY: &str = "critical = 8, low = 12";
/// ... and what is left for them. Hogs begin to work before it kills.
const SPARE_BYTES: u64 = 20 << 20;
const HOGS_WORK_BYTES: u64 = 44 << 20;
/// What makes tasks stall, which wakes the daemon up: a process that grows above its `memory.high`.
const STALLING_HIGH: &str = "4M";
/// The period of `cpu.max`.
const PERIOD_MS: u64 = 100;
/// So many periods may the victim take to exit. Without the boost it takes 49 and 138.
const MAX_PERIODS: u64 = 4;

/// `daemon one|many METHOD`: the hog is one process, or a cgroup of many; the method by which its memory must
/// come back. `daemon fits`: a process swaps at the limit of its cgroup, and must not be killed. `daemon
/// cpu-1|nice-19`: the victim has a percent of the time of a CPU, or is at nice 19 beside two busy processes.
/// `daemon cpu-10-alone`: it has 10 %, and the daemon may not change that.
pub fn run(args: &Arguments, out: &mut Reporter) -> Result<()> {
    let ran = match args.words[..] {
        ["cpu-1"] => exit_in_time(Slow { cpu_max: "1000 100000", nice: 0, boosted: true }, out),
        ["cpu-10-alone"] => exit_in_time(Slow { cpu_max: "10000 100000", nice: 0, boosted: false }, out),
        ["nice-19"] => exit_in_time(Slow { cpu_max: "max", nice: 19, boosted: true }, out),
        ["one", method] => defend(240 << 20, 1, method, out),
        // Larger than each process of the hog.
        ["many", method] => defend(96 << 20, MANY_PROCESSES, method, out),
        ["fits"] => spare_what_fits(out),
        _ => bail!("daemon: one|many expedite|mrelease, or fits|cpu-1|cpu-10-alone|nice-19, not {:?}", args.words),
    };
    // They explain what the daemon did.
    for path in [LOG, HISTORY] {
        out.send(&Message::Out(fs::read_to_string(path).unwrap_or_default()));
    }
    ran
}

fn defend(innocent_bytes: usize, hogs: u32, method: &str, out: &mut Reporter) -> Result<()> {
    swap::on(SWAP_BYTES)?;
    let killed_by_kernel = counters::oom_kills()?;
    let board = Board::new(1)?;
    let spared = Child::fork(|| {
        grow(INNOCENT, 1, innocent_bytes, || Ok(()))?;
        board.set(0, 1);
        sleep_for_ever()
    })?;
    spared.wait_until(|| board.get(0) == 1)?;
    let group = TemporaryCgroup::new("app", "memory")?;
    // Many processes are to be killed as one.
    group.set("memory.oom.group", if hogs > 1 { "1" } else { "0" })?;
    let daemon = Daemon::start(&[INNOCENT], "")?;
    let fetched = daemon.major_faults()?;

    out.progress("memory runs out");
    let mut growing = Vec::new();
    for seed in 0..hogs {
        let name = format!("hog{seed}");
        growing.push(Child::fork(|| {
            group.join()?;
            grow(&name, u64::from(seed) + 2, usize::MAX, || {
                let left = MemInfo::read(&Root::system())?;
                let is_last = left.available + left.swap_free < LAST_BYTES;
                thread::sleep(if is_last { LAST_STEP_INTERVAL } else { STEP_INTERVAL } * hogs);
                Ok(())
            })
        })?);
    }
    let pids: Vec<Pid> = growing.iter().map(Child::pid).collect();
    for hog in growing {
        ensure!(clock::within(TIMEOUT, CHECK_INTERVAL, || hog.has_ended())?, "the hog was not killed");
        let status = hog.wait()?;
        ensure!(status.terminating_signal() == Some(libc::SIGKILL), "the hog ended by itself: {status:?}");
    }
    let fetched = daemon.major_faults()? - fetched;
    let over = Instant::now();
    spared.wait_until(|| over.elapsed() >= QUIET_TIME).context(INNOCENT)?;
    let left = MemInfo::read(&Root::system())?.available;
    let kills = daemon.end()?;

    let by_kernel = counters::oom_kills()? - killed_by_kernel;
    ensure!(by_kernel == 0, "the kernel's OOM killer was faster, {by_kernel} times");
    // Here from swap, elsewhere from a disk that is busy.
    ensure!(fetched <= MAX_FETCHED_PAGES, "the daemon waited for {fetched} pages of its own before it had killed");
    let [kill] = &kills[..] else { bail!("one kill was enough, but there were {}", kills.len()) };
    ensure!(pids.iter().any(|pid| pid.as_raw_pid() == kill.pid), "{} is no hog", kill.pid);
    ensure!(kill.processes == hogs, "{} processes were killed, not {hogs}", kill.processes);
    ensure!(kill.ending == "back", "it ended as \"{}\"", kill.ending);
    let log = fs::read_to_string(LOG).context(LOG)?;
    ensure!(log.contains(&format!("killing by {method}")), "the daemon does not kill by {method}");
    // process_mrelease(2) finds nothing to free when a small victim exits faster.
    let too_late = method == "mrelease" && kill.method == "plain";
    ensure!(kill.method == method || too_late, "the memory came back by {}, not {method}", kill.method);
    let [before, after] = kill.available;
    ensure!(after > before, "{before} bytes were available and then {after}");
    // What it had in swap may come back a moment after the rest.
    ensure!(left > before + kill.bytes / 2, "{before} bytes were available and {left} in the end");
    Ok(())
}

/// A process has more memory than its cgroup may have, and swap enough for the rest: the cgroup is at its limit all of
/// the time, and nobody has to die.
fn spare_what_fits(out: &mut Reporter) -> Result<()> {
    swap::on(SWAP_BYTES)?;
    let killed_by_kernel = counters::oom_kills()?;
    let group = TemporaryCgroup::new("app", "memory")?;
    group.set("memory.max", &FITTING_LIMIT_BYTES.to_string())?;
    let daemon = Daemon::start(&[INNOCENT], "")?;
    out.progress("a process swaps at its limit");
    let fits = Child::fork(|| {
        group.join()?;
        grow("fits", 2, FITTING_BYTES, || {
            thread::sleep(STEP_INTERVAL);
            Ok(())
        })?;
        thread::sleep(QUIET_TIME);
        Ok(())
    })?;
    ensure!(clock::within(TIMEOUT, CHECK_INTERVAL, || fits.has_ended())?, "it does not end");
    let status = fits.wait()?;
    let kills = daemon.end()?;
    ensure!(status.exit_status() == Some(0) && kills.is_empty(), "{status:?}, {} kills", kills.len());
    ensure!(counters::oom_kills()? == killed_by_kernel, "the kernel's OOM killer killed");
    Ok(())
}

/// A victim that hardly gets CPU time.
struct Slow {
    cpu_max: &'static str,
    nice: i32,
    /// Whether the daemon may have it run before others.
    boosted: bool,
}

/// Has the daemon kill a process that holds shared memory and wants more CPU time than it gets, and looks how long it
/// takes to exit: only then is the memory free.
fn exit_in_time(Slow { cpu_max, nice, boosted }: Slow, out: &mut Reporter) -> Result<()> {
    let board = Board::new(3)?;
    let hogs = Hogs::start(if nice > 0 { 2 } else { 0 })?;
    let group = TemporaryCgroup::new("app", "cpu")?;
    group.set("cpu.max", cpu_max)?;
    let victim = Child::fork(|| {
        set_name("victim")?;
        let bytes = if nice > 0 { SHARED_BYTES_WITH_HOGS } else { SHARED_BYTES };
        let pages = bytes / PAGE_BYTES;
        let shared = Region::shared(pages)?;
        shared.touch(0..pages);
        if nice > 0 {
            // Not in a cgroup of its own, which would have a third of the time.
            linux::sched::set_nice(0, nice)?;
            board.set(0, 1);
            sleep_for_ever();
        }
        group.join()?;
        board.set(0, 1);
        // Uses up its time.
        loop {
            hint::spin_loop();
        }
    })?;
    victim.wait_until(|| board.get(0) == 1)?;
    let high = TemporaryCgroup::new("high", "memory")?;
    high.set("memory.high", STALLING_HIGH)?;
    if !boosted {
        // Of programs that are executed from now on.
        remove_capability_from_bounding_set(CapabilitySet::SYS_NICE)?;
    }
    let daemon = Daemon::start(&[INNOCENT], EARLY)?;
    let _stalling = Child::fork(|| {
        high.join()?;
        grow(INNOCENT, 1, SPARE_BYTES as usize / 2, || Ok(()))?;
        sleep_for_ever()
    })?;
    let _growing = Child::fork(|| {
        // Above the hogs.
        linux::sched::set_nice(0, -10)?;
        grow(INNOCENT, 2, usize::MAX, || {
            let left = || Ok::<_, anyhow::Error>(MemInfo::read(&Root::system())?.available);
            let now = left()?;
            board.set(1, u64::from(now < HOGS_WORK_BYTES));
            // At the end long enough for the daemon to see it coming.
            thread::sleep(if now > 2 * HOGS_WORK_BYTES { STEP_INTERVAL / 5 } else { STEP_INTERVAL * 5 });
            // What comes back stays free, or somebody else would have to die.
            while left()? < SPARE_BYTES || board.get(2) == 1 {
                thread::sleep(STEP_INTERVAL);
            }
            Ok(())
        })
    })?;
    let has_exited = || {
        hogs.work(board.get(1) == 1);
        victim.has_ended()
    };
    let exited = clock::within(TIMEOUT, CHECK_INTERVAL / 5, has_exited)?;
    ensure!(exited, "the victim was not killed, or does not exit");
    let ended = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    board.set(2, 1);
    hogs.work(false);
    thread::sleep(QUIET_TIME);
    let kills = daemon.end()?;
    let [kill] = &kills[..] else { bail!("one kill was enough, but there were {}", kills.len()) };
    ensure!(kill.pid == victim.pid().as_raw_pid(), "{} is not the victim", kill.pid);
    let took = u64::try_from(ended)?.saturating_sub(kill.unix_ms);
    let back = kill.took_us / 1000;
    out.note(&format!("exited {took} ms after the decision, memory said to be back after {back} ms"));
    let in_time = took <= MAX_PERIODS * PERIOD_MS;
    ensure!(in_time == boosted, "the victim took {took} ms to exit");
    ensure!(back + PERIOD_MS >= took, "nothing was back after {back} ms: the victim had not exited");
    Ok(())
}

/// Renames the process, and allocates so many bytes that cannot be compressed, with a pause after each step.
fn grow(name: &str, seed: u64, bytes: usize, pause: impl Fn() -> Result<()>) -> Result<()> {
    set_name(name)?;
    let mut rng = Rng(seed);
    let mut allocated = 0;
    while allocated < bytes {
        let step: Vec<u64> = (0..STEP_BYTES / size_of::<u64>()).map(|_| rng.bits()).collect();
        // Kept until the process ends. The compiler must not find out that it is never read.
        std::mem::forget(hint::black_box(step));
        allocated += STEP_BYTES;
        pause()?;
    }
    Ok(())
}
