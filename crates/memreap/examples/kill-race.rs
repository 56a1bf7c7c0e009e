// SPDX-License-Identifier: GPL-2.0-only
//! How much sooner a process's memory is back by `memreap kill` than by kill(1), seen from
//! outside of both.
//!
//! ```text
//! cargo build --release -p memreap
//! cargo run --release -p memreap --example kill-race -- --mib 2048 --runs 20
//! cargo run --release -p memreap --example kill-race -- --mib 4000 --processes 200 --runs 20
//! ```
//!
//! A run is: a process gets its memory; the clock starts; the command is started (as a shell
//! does, by its file); the clock stops when 90 % of the process's memory are free. Free is what
//! /proc/zoneinfo says: free pages and those in per-CPU lists, where MemFree does not count them.
//! The commands take turns, in the order ABBA.
//!
//! With several processes the memory is shared out among them, and they are in a cgroup (as root).
//! Then there is a third command: a shell that writes to cgroup.kill, which is what `systemctl kill`
//! has systemd do; and memreap is given the cgroup.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use linux::Root;
use linux::cgroup::Hierarchy;
use rustix::process::Signal;

const STEP: Duration = Duration::from_micros(500);
const LIMIT: Duration = Duration::from_secs(30);
/// What else the machine needs while the victim lives.
const HEADROOM: u64 = 256 << 20;
/// How long the machine is given to come to rest before each run.
const REST: Duration = Duration::from_millis(300);

/// Compares the time until a process's memory is back: kill(1) against memreap kill.
#[derive(Parser)]
struct Args {
    /// The victims' memory in MiB, all together
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u64).range(16..))]
    mib: u64,
    /// Among so many processes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    processes: u64,
    /// Runs of each command
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// The memreap to measure [default: beside this program's folder]
    #[arg(long)]
    memreap: Option<PathBuf>,
    /// The kill(1) to measure
    #[arg(long, default_value = "/bin/kill")]
    kill: PathBuf,
    /// Options for memreap kill
    #[arg(last = true)]
    options: Vec<String>,
    /// Be a victim
    #[arg(long, hide = true)]
    victim: bool,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if args.victim {
        return victim(args.mib);
    }
    let memreap = match &args.memreap {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.parent().and_then(|p| p.parent()).context("no folder")?.join("memreap"),
    };
    ensure!(memreap.exists(), "no {}; make it with: cargo build --release -p memreap", memreap.display());
    ensure!(args.mib / args.processes >= 16, "less than 16 MiB for each process; try a greater --mib");
    ensure!(
        free()? > (args.mib << 20) + HEADROOM,
        "not enough free memory for victims of {} MiB; try a smaller --mib",
        args.mib
    );
    let cgroup = if args.processes > 1 { Some(Group::new()?) } else { None };
    let mut ours = Command::new(&memreap);
    ours.args(["kill", "--quiet"]).args(&args.options);
    let mut plain = Command::new(&args.kill);
    plain.arg("-KILL");
    let mut commands = vec![("kill", plain, true), ("memreap", ours, cgroup.is_none())];
    if let Some(Group(dir)) = &cgroup {
        let path = Path::new("/").join(dir.file_name().context("no name")?);
        commands[1].1.arg("--cgroup").arg(path);
        let mut echo = Command::new("/bin/sh");
        echo.arg("-c").arg(format!("echo 1 >{}/cgroup.kill", dir.display()));
        commands.insert(1, ("cgroup.kill", echo, false));
    }
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); commands.len()];
    for run in 0..args.runs {
        let mut order: Vec<_> = (0..commands.len()).collect();
        if run % 2 == 1 {
            order.reverse();
        }
        for turn in order {
            let (_, command, takes_pids) = &commands[turn];
            times[turn].push(run_once(&args, cgroup.as_ref(), command, *takes_pids)?);
        }
        print!("{:>3}:", run + 1);
        for ((name, ..), times) in commands.iter().zip(&times) {
            print!(" {name} {:7.1} ms  ", times[times.len() - 1]);
        }
        println!();
    }
    println!("medians until 90 % of {} MiB in {} processes are back:", args.mib, args.processes);
    let ours = times.last().context("no times")?.clone();
    for ((name, ..), times) in commands.iter().zip(times) {
        let slower = times.iter().zip(&ours).filter(|(theirs, ours)| ours > theirs).count();
        let (theirs, median_ours) = (median(times), median(ours.clone()));
        println!("  {name} {theirs:.1} ms: {:.2}x; memreap slower in {slower} of {}", theirs / median_ours, args.runs);
    }
    Ok(ExitCode::SUCCESS)
}

/// Milliseconds from the start of a command until the memory of the processes it kills is back.
fn run_once(args: &Args, cgroup: Option<&Group>, command: &Command, takes_pids: bool) -> Result<f64> {
    thread::sleep(REST);
    let mib = args.mib / args.processes;
    let mut victims = Vec::new();
    for _ in 0..args.processes {
        let victim = Victim::new(mib)?;
        if let Some(Group(dir)) = cgroup {
            fs::write(dir.join("cgroup.procs"), victim.0.id().to_string())?;
        }
        victims.push(victim);
    }
    thread::sleep(REST);
    let mut now = Command::new(command.get_program());
    now.args(command.get_args()).stdin(Stdio::null());
    if takes_pids {
        now.args(victims.iter().map(|victim| victim.0.id().to_string()));
    }
    let goal = free()? + (mib << 20) * args.processes / 10 * 9;
    let began = Instant::now();
    let mut killer = now.spawn().with_context(|| format!("cannot start {now:?}"))?;
    let back = loop {
        thread::sleep(STEP);
        if free()? >= goal {
            break began.elapsed();
        }
        ensure!(began.elapsed() < LIMIT, "the memory is not back after {LIMIT:?}: is the machine busy?");
    };
    let status = killer.wait()?;
    ensure!(status.success(), "{now:?}: {status}");
    for mut victim in victims {
        victim.0.wait()?;
    }
    Ok(back.as_secs_f64() * 1e3)
}

/// A cgroup, removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new() -> Result<Self> {
        let hierarchy = Hierarchy::find(&Root::system())?.context("no cgroups v2")?;
        let dir = hierarchy.path.join(format!("kill-race-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("{}: needs root", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Fails when a victim is in it that is dropped later.
        let _ = fs::remove_dir(&self.0);
    }
}

/// A child that holds its memory, killed when dropped.
struct Victim(Child);

impl Victim {
    fn new(mib: u64) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--victim", "--mib", &mib.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let pipe = child.stdout.take().context("no pipe")?;
        let victim = Self(child);
        BufReader::new(pipe).read_line(&mut line)?;
        if line != "ready\n" {
            bail!("the victim did not get its memory");
        }
        Ok(victim)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Fails when it was waited for already, as it should be.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn victim(mib: u64) -> Result<ExitCode> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let memory = vec![1_u8; usize::try_from(mib << 20)?];
    std::io::stdout().write_all(b"ready\n")?;
    thread::sleep(Duration::from_secs(3600));
    drop(std::hint::black_box(memory));
    Ok(ExitCode::FAILURE)
}

/// Free memory in bytes, with what is in per-CPU lists.
fn free() -> Result<u64> {
    let text = fs::read_to_string("/proc/zoneinfo").context("/proc/zoneinfo")?;
    let mut pages = 0;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("pages"), Some("free"), Some(n)) | (Some("count:"), Some(n), None) => pages += n.parse::<u64>()?,
            _ => {}
        }
    }
    Ok(pages * rustix::param::page_size() as u64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len().is_multiple_of(2) { f64::midpoint(values[half - 1], values[half]) } else { values[half] }
}
