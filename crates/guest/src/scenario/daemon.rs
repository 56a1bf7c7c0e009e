//! `memreap daemon` with a whole guest to defend: memory runs out, and it must kill the right one, once,
//! and before the kernel does. Measures nothing; `crates/lab/tests/daemon.rs` runs it on both kernels.

use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::process::{self, Command, Stdio};
use std::time::{Duration, Instant};
use std::{hint, thread};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal};
use serde::Deserialize;

use super::Scenario;
use crate::memory::swap;
use crate::process::child::{Board, Child, set_name};
use crate::rng::Rng;
use crate::system::cgroup::TemporaryCgroup;
use crate::system::counters;
use init::report::Reporter;

const CONFIG: &str = "/run/memreap.toml";
const HISTORY: &str = "/run/history.jsonl";
const SAID: &str = "/run/said";
const MANAGER: &str = "/run/manager";
/// The name of who must be spared.
const INNOCENT: &str = "innocent";

/// zram, in which nothing of this can be compressed.
const SWAP: u64 = 256 << 20;
/// For whatever must happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it must leave all others alone once it has killed.
const AFTERWARDS: Duration = Duration::from_secs(3);
/// Somebody who grows does it by so much at a time, and so often at most.
const BITE: usize = 1 << 20;
const TICK: Duration = Duration::from_millis(10);
/// Processes of the hog that is many. Together they grow as fast as one.
const MANY: u32 = 16;

/// `daemon one|many MEANS`: the hog is one process, or a cgroup of many; how its memory must be got back.
pub struct Daemon;

impl Scenario for Daemon {
    fn name(&self) -> &'static str {
        "daemon"
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (innocent, hogs, means) = match args[..] {
            ["one", means] => (240 << 20, 1, means),
            // Larger than each of them.
            ["many", means] => (96 << 20, MANY, means),
            _ => bail!("daemon: one|many expedite|mrelease, not {args:?}"),
        };
        swap::on(SWAP)?;
        let ran = defend(innocent, hogs, means, out);
        // What it said is the reason for what it did.
        out.out(&fs::read_to_string(SAID).unwrap_or_default());
        ran
    }
}

fn defend(innocent: usize, hogs: u32, means: &str, out: &mut Reporter) -> Result<()> {
    let killed_by_kernel = oom_kills()?;
    let board = Board::new(1)?;
    let spared = Child::fork(|| {
        play(INNOCENT, 1, innocent, Duration::ZERO)?;
        board.set(0, 1);
        loop {
            thread::park();
        }
    })?;
    spared.wait_until(|| board.get(0) == 1)?;
    let group = TemporaryCgroup::new("app", "memory")?;
    // Those who are many are to die as one.
    group.set("memory.oom.group", if hogs > 1 { "1" } else { "0" })?;
    let daemon = Running::start()?;

    out.progress("memory runs out");
    let mut growing = Vec::new();
    for seed in 0..hogs {
        let name = format!("hog{seed}");
        growing.push(Child::fork(|| {
            group.join()?;
            play(&name, u64::from(seed) + 2, usize::MAX, TICK * hogs)
        })?);
    }
    let pids: Vec<Pid> = growing.iter().map(Child::pid).collect();
    let began = Instant::now();
    for hog in growing {
        while !hog.has_ended()? {
            ensure!(began.elapsed() < PATIENCE, "nobody killed the hog");
            thread::sleep(TICK);
        }
        let status = hog.wait()?;
        ensure!(status.terminating_signal() == Some(libc::SIGKILL), "the hog ended by itself: {status:?}");
    }
    let over = Instant::now();
    spared.wait_until(|| over.elapsed() >= AFTERWARDS).context(INNOCENT)?;
    daemon.end()?;

    let by_kernel = oom_kills()? - killed_by_kernel;
    ensure!(by_kernel == 0, "the kernel's OOM killer was faster, {by_kernel} times");
    let text = fs::read_to_string(HISTORY).context(HISTORY)?;
    out.note(text.trim_end());
    let kills = text.lines().map(serde_json::from_str).collect::<Result<Vec<Kill>, _>>().context(HISTORY)?;
    let [kill] = &kills[..] else { bail!("one kill was enough, but there were {}", kills.len()) };
    ensure!(pids.iter().any(|pid| pid.as_raw_pid() == kill.pid), "{} is no hog", kill.pid);
    ensure!(kill.processes == hogs, "{} processes were killed, not {hogs}", kill.processes);
    ensure!(kill.ending == "back", "it ended as \"{}\"", kill.ending);
    let said = fs::read_to_string(SAID).context(SAID)?;
    ensure!(said.contains(&format!("killing by {means}")), "it does not kill by {means}");
    // process_mrelease(2) finds nothing to free when a small victim is faster.
    let too_late = means == "mrelease" && kill.means == "plain";
    ensure!(kill.means == means || too_late, "the memory came back by {}, not {means}", kill.means);
    let [before, after] = kill.available;
    ensure!(after > before + kill.bytes / 2, "{before} bytes were available and then {after}: {text}");
    Ok(())
}

/// The part of the daemon's history that is checked.
#[derive(Deserialize)]
struct Kill {
    pid: i32,
    processes: u32,
    bytes: u64,
    means: String,
    ending: String,
    available: [u64; 2],
}

/// A daemon that is ready.
struct Running(process::Child);

impl Running {
    fn start() -> Result<Self> {
        // By itself it would take the largest.
        let spare = format!("[[rule]]\nname = \"{INNOCENT}\"\nnever = true\n");
        fs::write(CONFIG, format!("record = {{ history = \"{HISTORY}\" }}\n{spare}")).context(CONFIG)?;
        let manager = UnixDatagram::bind(MANAGER).context(MANAGER)?;
        manager.set_read_timeout(Some(PATIENCE))?;
        let child = Command::new("/bin/memreap")
            .args(["daemon", "--config", CONFIG])
            .env("NOTIFY_SOCKET", MANAGER)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(SAID).context(SAID)?)
            .spawn()
            .context("/bin/memreap")?;
        let daemon = Self(child);
        let mut message = [0; 4096];
        loop {
            let len = manager.recv(&mut message).context("the daemon does not get ready")?;
            if &message[..len] == b"READY=1" {
                return Ok(daemon);
            }
        }
    }

    /// Has it end, as a service manager does.
    fn end(mut self) -> Result<()> {
        let pid = Pid::from_child(&self.0);
        rustix::process::kill_process(pid, Signal::TERM).context("the daemon is gone")?;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(status) = self.0.try_wait()? {
                ensure!(status.success(), "the daemon ended with {status}");
                return Ok(());
            }
            thread::sleep(TICK);
        }
        bail!("the daemon does not end")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, or the guest ends soon.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes so many bytes that cannot be compressed, under this name, with a pause after each bite.
fn play(name: &str, seed: u64, bytes: usize, pause: Duration) -> Result<()> {
    set_name(name)?;
    let mut rng = Rng(seed);
    let mut taken = 0;
    while taken < bytes {
        let bite: Vec<u64> = (0..BITE / size_of::<u64>()).map(|_| rng.bits()).collect();
        // Until the process ends; the compiler must not find out that nobody reads it.
        std::mem::forget(hint::black_box(bite));
        taken += BITE;
        thread::sleep(pause);
    }
    Ok(())
}

/// How often the kernel's own OOM killer has killed.
fn oom_kills() -> Result<u64> {
    counters::value(&counters::vmstat()?, "oom_kill ").context("no oom_kill in /proc/vmstat")
}
