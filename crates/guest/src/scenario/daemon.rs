// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `daemon`: `memreap daemon` defends a whole guest. Memory runs out, and the daemon must kill the
//! right process, once, and before the kernel's OOM killer does. Measures nothing;
//! `crates/lab/tests/daemon.rs` runs it on both kernels.

use std::time::{Duration, Instant};
use std::{fs, hint, thread};

use anyhow::{Context as _, Result, bail, ensure};
use linux::Root;
use linux::meminfo::MemInfo;
use rustix::process::Pid;

use super::interface::Scenario;
use crate::memory::swap;
use crate::process::child::{Board, Child, set_name};
use crate::process::daemon::{Daemon, HISTORY, LOG};
use crate::rng::Rng;
use crate::system::cgroup::TemporaryCgroup;
use crate::system::counters;
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

/// `daemon one|many METHOD`: the hog is one process, or a cgroup of many; the method by which its memory must
/// come back.
pub struct DaemonKills;

impl Scenario for DaemonKills {
    fn name(&self) -> &'static str {
        "daemon"
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (innocent_bytes, hogs, method) = match args[..] {
            ["one", method] => (240 << 20, 1, method),
            // Larger than each process of the hog.
            ["many", method] => (96 << 20, MANY_PROCESSES, method),
            _ => bail!("daemon: one|many expedite|mrelease, not {args:?}"),
        };
        swap::on(SWAP_BYTES)?;
        let ran = defend(innocent_bytes, hogs, method, out);
        // They explain what the daemon did.
        for path in [LOG, HISTORY] {
            out.out(&fs::read_to_string(path).unwrap_or_default());
        }
        ran
    }
}

fn defend(innocent_bytes: usize, hogs: u32, method: &str, out: &mut Reporter) -> Result<()> {
    let killed_by_kernel = counters::oom_kills()?;
    let board = Board::new(1)?;
    let spared = Child::fork(|| {
        grow(INNOCENT, 1, innocent_bytes, || Ok(()))?;
        board.set(0, 1);
        loop {
            thread::park();
        }
    })?;
    spared.wait_until(|| board.get(0) == 1)?;
    let group = TemporaryCgroup::new("app", "memory")?;
    // Many processes are to be killed as one.
    group.set("memory.oom.group", if hogs > 1 { "1" } else { "0" })?;
    let daemon = Daemon::start(&[INNOCENT])?;
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
    let began = Instant::now();
    for hog in growing {
        while !hog.has_ended()? {
            ensure!(began.elapsed() < TIMEOUT, "the hog was not killed");
            thread::sleep(CHECK_INTERVAL);
        }
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
    ensure!(
        fetched <= MAX_FETCHED_PAGES,
        "the daemon waited for {fetched} pages of its own before it had killed"
    );
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
