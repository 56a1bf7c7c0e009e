// SPDX-License-Identifier: GPL-2.0-only
//! How much sooner a process's memory is back by `memreap kill` than by kill(1), seen from
//! outside of both.
//!
//! ```text
//! cargo build --release -p memreap
//! cargo run --release -p memreap --example kill-race -- --mib 2048 --runs 20
//! ```
//!
//! A run is: a process gets its memory; the clock starts; the command is started (as a shell
//! does, by its file); the clock stops when 90 % of the process's memory are free. Free is what
//! /proc/zoneinfo says: free pages and those in per-CPU lists, where MemFree does not count them.
//! The two commands take turns, in the order ABBA.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
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
    /// The victim's memory in MiB
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u64).range(16..))]
    mib: u64,
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
    ensure!(
        free()? > (args.mib << 20) + HEADROOM,
        "not enough free memory for a victim of {} MiB; try a smaller --mib",
        args.mib
    );
    let options: Vec<&str> = ["kill", "--quiet"].into_iter().chain(args.options.iter().map(String::as_str)).collect();
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    for run in 0..args.runs {
        let mut plain_turn = || run_once(args.mib, Command::new(&args.kill).arg("-KILL")).map(|ms| plain.push(ms));
        let mut our_turn = || run_once(args.mib, Command::new(&memreap).args(&options)).map(|ms| ours.push(ms));
        if run % 2 == 0 {
            plain_turn()?;
            our_turn()?;
        } else {
            our_turn()?;
            plain_turn()?;
        }
        let last = plain.len() - 1;
        println!("{:>3}: kill {:7.1} ms   memreap {:7.1} ms", run + 1, plain[last], ours[last]);
    }
    let slower = plain.iter().zip(&ours).filter(|(plain, ours)| ours > plain).count();
    let (plain, ours) = (median(plain), median(ours));
    println!(
        "medians until 90 % of {} MiB are back: kill {plain:.1} ms, memreap {ours:.1} ms: {:.2}x; slower in {slower} of {}",
        args.mib,
        plain / ours,
        args.runs
    );
    Ok(ExitCode::SUCCESS)
}

/// Milliseconds from the start of a command until the memory of the process it kills is back.
fn run_once(mib: u64, command: &mut Command) -> Result<f64> {
    thread::sleep(REST);
    let mut victim = Victim::new(mib)?;
    thread::sleep(REST);
    command.arg(victim.0.id().to_string()).stdin(Stdio::null());
    let goal = free()? + (mib << 20) / 10 * 9;
    let began = Instant::now();
    let mut killer = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let back = loop {
        thread::sleep(STEP);
        if free()? >= goal {
            break began.elapsed();
        }
        ensure!(began.elapsed() < LIMIT, "the memory is not back after {LIMIT:?}: is the machine busy?");
    };
    let status = killer.wait()?;
    ensure!(status.success(), "{command:?}: {status}");
    victim.0.wait()?;
    Ok(back.as_secs_f64() * 1e3)
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
