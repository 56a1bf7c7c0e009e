// SPDX-License-Identifier: GPL-2.0-only
//! The error with which others read a process's RSS.
//!
//! The stock kernel collects counts on each CPU until they are a batch, and a fast read ignores what is
//! collected. So the worst case is a process that has run on many CPUs and left almost a batch on each. The
//! usual case is a process that moves between CPUs and allocates and frees memory.

use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;
use std::{iter, thread};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal};

use crate::memory::PAGE_BYTES;
use crate::memory::region::{Region, TABLE_PAGES};
use crate::process;
use crate::process::child::{self, Board, Child};
use crate::scenario::metrics::{Metric, median, metric_name};
use crate::system::cgroup::{Cgroup, TemporaryCgroup};
use crate::system::{clock, sched};
use init::report::Reporter;

/// How many processes hop between CPUs, each in its own way.
const HOPPERS: u64 = 4;
/// The most pages that such a process allocates.
const HOPPER_MAX_PAGES: usize = 4096;
/// Other pages that a process may get beside those of its plan: its stack, its page of the board, code.
const OTHER_PAGES: u64 = 64;
/// How much more memory than they have the processes' cgroup may have until the OOM killer comes.
const HEADROOM_BYTES: usize = 4 << 20;
/// More than that.
const EXCESS_BYTES: usize = 4 * HEADROOM_BYTES;
/// The kernel's log.
const KMSG: &str = "/dev/kmsg";
/// How often a process checks whether it may continue.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// The metrics of processes without and with a second thread: of what /proc/PID/stat says, and of the OOM killer's list.
const METRICS: [(bool, [Metric<Errors>; 2], &str); 2] = [
    (false, [("stat", |e| e.stat as f64), ("oom", |e| e.oom as f64)], "stat-read"),
    (true, [("threaded-stat", |e| e.stat as f64), ("threaded-oom", |e| e.oom as f64)], "threaded-stat-read"),
];
/// How often /proc/PID/stat is read to time that, of the processes that have run on all CPUs.
const READS: usize = 200;

/// Measures and reports everything.
pub fn measure(out: &mut Reporter) -> Result<()> {
    let mut cases = cases(sched::online_cpus()?);
    cases.retain(|case| out.expects_case(case.name));
    if cases.is_empty() {
        return Ok(());
    }
    let group = TemporaryCgroup::new("rss-counters", "memory")?;
    let mut kinds = Vec::new();
    // All memory of the processes is charged to the cgroup.
    group.join()?;
    for case in &cases {
        for (threaded, metrics, read) in METRICS {
            out.progress(&metric_name(case.name, metrics[0].0));
            let processes: Result<Vec<_>> = case.plans.iter().map(|p| Process::start(p, threaded)).collect();
            kinds.push((processes.with_context(|| case.name)?, case.name, metrics, read));
        }
    }
    group.leave()?;
    for (processes, case, _, read) in &kinds {
        let metric = metric_name(case, read);
        if out.expects(&metric) {
            let times = (0..READS).map(|_| {
                let began = clock::now();
                stat(processes[0].child.pid())?;
                Ok((clock::now() - began) as f64 / 1e3)
            });
            let times = times.collect::<Result<Vec<_>>>()?;
            out.sample(&metric, median(times.into_iter()));
        }
    }
    let seen = oom(&group)?;
    for (processes, case, metrics, _) in &kinds {
        let errors: Result<Vec<Errors>> = processes.iter().map(|p| p.errors(&seen)).collect();
        let errors = errors.with_context(|| *case)?;
        for (metric, error) in metrics {
            let bytes = errors.iter().map(error).sum::<f64>() * PAGE_BYTES as f64;
            out.sample(&metric_name(case, metric), bytes / errors.len() as f64 / 1e6);
        }
    }
    Ok(())
}

/// Some processes, each with a plan of its own.
struct Case {
    name: &'static str,
    plans: Vec<Plan>,
}

/// Everything that one process does, in order.
type Plan = Vec<Step>;

/// Pages of its region that a process touches or frees on a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    cpu: usize,
    free: bool,
    pages: Range<usize>,
}

fn cases(cpus: usize) -> Vec<Case> {
    let batch = batch(cpus);
    let spread = |name, cpus| Case { name, plans: vec![spread(cpus, batch)] };
    vec![
        spread("error-1", 1),
        spread("error-4", 4),
        spread("error-all", cpus),
        Case { name: "error-hopping", plans: (1..=HOPPERS).map(|seed| hop(cpus, batch, seed)).collect() },
    ]
}

/// How many pages the stock kernel adds to the common counter at once, instead of collecting them on a CPU.
fn batch(cpus: usize) -> usize {
    (2 * cpus).max(32)
}

/// Returns a plan that leaves as many pages as possible collected on each of the first `cpus` CPUs.
fn spread(cpus: usize, batch: usize) -> Plan {
    let touch = |cpu| {
        let pages = cpu * (batch - 1)..(cpu + 1) * (batch - 1);
        Step { cpu, free: false, pages }
    };
    (0..cpus).map(touch).collect()
}

/// Returns a plan that hops from CPU to CPU, and allocates or frees up to a batch on each.
fn hop(cpus: usize, batch: usize, seed: u64) -> Plan {
    let mut rng = XorShift::new(seed);
    let mut have = 0;
    let hops = 64 + 4 * cpus;
    let hop = || {
        let (cpu, pages) = (rng.below(cpus), 1 + rng.below(batch));
        // Somewhat more often it allocates.
        let up = rng.below(5) < 3;
        Some(if have < pages || (up && have + pages <= HOPPER_MAX_PAGES) {
            have += pages;
            Step { cpu, free: false, pages: have - pages..have }
        } else {
            have -= pages;
            Step { cpu, free: true, pages: have..have + pages }
        })
    };
    iter::from_fn(hop).take(hops).collect()
}

/// Returns how many pages of its region a process has after a plan.
fn resident_after(plan: &[Step]) -> usize {
    plan.iter().fold(0, |pages, step| match step.free {
        false => pages + step.pages.len(),
        true => pages - step.pages.len(),
    })
}

/// A random number generator (xorshift64*); the same seed generates the same numbers. Results depend on its
/// numbers, so it is not replaced by [`crate::rng::Rng`].
struct XorShift(u64);

impl XorShift {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize) % limit
    }
}

/// Adds what is collected on the CPU to the common counters.
fn settle() -> Result<()> {
    for region in [Region::new(TABLE_PAGES)?, Region::shared(TABLE_PAGES)?] {
        region.touch(0..TABLE_PAGES);
        // So many pages at once are not collected.
        region.free(0..TABLE_PAGES)?;
    }
    Ok(())
}

/// A process that has done what a plan says, and sleeps.
struct Process {
    child: Child,
}

/// By how many pages others misread its RSS.
struct Errors {
    stat: u64,
    oom: u64,
}

impl Process {
    /// Starts a process, and returns when it has done everything.
    fn start(plan: &Plan, threaded: bool) -> Result<Self> {
        const READY: u64 = 1;
        const GO: u64 = 2;
        const DONE: u64 = 3;
        let state = Board::new(1)?;
        let child = Child::fork(|| {
            let region = Region::new(plan.iter().map(|step| step.pages.end).max().unwrap_or(0))?;
            if threaded {
                child::start_sleeper()?;
            }
            sched::pin(0)?;
            // Code that runs for the first time takes pages as well.
            state.set(0, 0);
            thread::sleep(POLL_INTERVAL);
            settle()?;
            settle()?;
            state.set(0, READY);
            while state.get(0) != GO {
                thread::sleep(POLL_INTERVAL);
            }
            for step in plan {
                sched::pin(step.cpu)?;
                match step.free {
                    false => region.touch(step.pages.clone()),
                    true => region.free(step.pages.clone())?,
                }
            }
            state.set(0, DONE);
            child::sleep_for_ever()
        })?;
        child.wait_until(|| state.get(0) == READY)?;
        let before = walked(child.pid())?;
        state.set(0, GO);
        child.wait_until(|| state.get(0) == DONE)?;
        let (after, added) = (walked(child.pid())?, resident_after(plan) as u64);
        ensure!(
            (before + added..=before + added + OTHER_PAGES).contains(&after),
            "touched {added} pages, and has {after} instead of {before}"
        );
        Ok(Self { child })
    }

    /// `seen` has the RSS of all processes as the OOM killer reads it.
    fn errors(&self, seen: &[(Pid, u64)]) -> Result<Errors> {
        let pid = self.child.pid();
        let (truth, walked, stat) = (statm(pid)?, walked(pid)?, stat(pid)?);
        // The reference itself is right.
        ensure!(truth == walked, "process {pid}: {walked} pages, but {truth} in statm");
        let oom = seen.iter().find(|(seen, _)| *seen == pid);
        let (_, oom) = oom.with_context(|| format!("the OOM killer did not list process {pid}"))?;
        Ok(Errors { stat: stat.abs_diff(truth), oom: oom.abs_diff(truth) })
    }
}

/// Provokes the OOM killer in a cgroup, and returns the RSS of all processes there as it logs them, in pages.
fn oom(group: &Cgroup) -> Result<Vec<(Pid, u64)>> {
    fs::write("/proc/sys/vm/oom_dump_tasks", "1").context("vm.oom_dump_tasks")?;
    let mut log = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(KMSG).context(KMSG)?;
    log.seek(SeekFrom::End(0)).context(KMSG)?;
    let state = Board::new(1)?;
    // It is killed first, by its oom_score_adj.
    let hog = Child::fork(|| {
        fs::write("/proc/self/oom_score_adj", "1000").context("oom_score_adj")?;
        let region = Region::new(EXCESS_BYTES / PAGE_BYTES)?;
        while state.get(0) == 0 {
            thread::sleep(POLL_INTERVAL);
        }
        region.touch(0..EXCESS_BYTES / PAGE_BYTES);
        Ok(())
    })?;
    group.add(hog.pid())?;
    group.set("memory.max", &(group.number("memory.current")? + HEADROOM_BYTES as u64).to_string())?;
    state.set(0, 1);
    let status = hog.wait()?;
    ensure!(
        status.terminating_signal() == Some(Signal::KILL.as_raw()),
        "a process that exceeded memory.max was not killed: {status:?}"
    );
    let lines = messages(log)?;
    parse_tasks(&lines).with_context(|| format!("no list of tasks in the kernel's log:\n{}", lines.join("\n")))
}

/// Returns what the kernel has logged, without the prefixes `PRIORITY,NUMBER,TIME,FLAGS;` and the properties.
fn messages(mut log: impl Read) -> Result<Vec<String>> {
    let mut messages = Vec::new();
    // The most bytes that one read returns.
    let mut record = vec![0; 8192];
    loop {
        match log.read(&mut record) {
            Ok(n @ 1..) => {
                let record = String::from_utf8_lossy(&record[..n]);
                messages.extend(record.lines().next().and_then(|line| Some(line.split_once(';')?.1.to_owned())));
            }
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e).context("/dev/kmsg: lines were lost"),
            _ => return Ok(messages),
        }
    }
}

/// Parses the list of tasks that the OOM killer logs; returns their RSS in pages.
fn parse_tasks(lines: &[String]) -> Option<Vec<(Pid, u64)>> {
    // `[  pid  ]   uid  tgid total_vm      rss ...`, and lines of values below.
    let cells = |line: &str| {
        let (pid, rest) = line.strip_prefix('[')?.split_once(']')?;
        Some((pid.trim().to_owned(), rest.split_whitespace().map(str::to_owned).collect::<Vec<_>>()))
    };
    let header = lines.iter().position(|line| cells(line).is_some_and(|(pid, _)| pid == "pid"))?;
    let (_, names) = cells(&lines[header])?;
    let rss = names.iter().position(|name| name == "rss")?;
    let tasks = lines[header + 1..].iter().map_while(|line| {
        let (pid, values) = cells(line)?;
        Some((Pid::from_raw(pid.parse().ok()?)?, values.get(rss)?.parse().ok()?))
    });
    Some(tasks.collect())
}

/// A process's exact RSS in pages, as the kernel counts it.
fn statm(pid: Pid) -> Result<u64> {
    Ok(process::resident_bytes(pid)? / PAGE_BYTES as u64)
}

/// The same, as a fast read returns it.
fn stat(pid: Pid) -> Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    // The name may contain anything; the fields from the third on follow it.
    let rss = text.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(24 - 3)?.parse().ok());
    rss.with_context(|| format!("{path}: {text}"))
}

/// The same, from the page tables.
fn walked(pid: Pid) -> Result<u64> {
    Ok(linux::Process::open(&linux::Root::system(), pid.into())?.smaps_rollup()?.rss / PAGE_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_grows_with_the_number_of_cpus() {
        assert_eq!([batch(1), batch(16), batch(17), batch(64)], [32, 32, 34, 128]);
    }

    #[test]
    fn a_spread_leaves_a_page_less_than_a_batch_on_each_cpu() {
        let plan = spread(3, 32);
        let step = |cpu, free, pages| Step { cpu, free, pages };
        let touched = [step(0, false, 0..31), step(1, false, 31..62), step(2, false, 62..93)];
        assert_eq!(plan, touched);
        assert_eq!(resident_after(&plan), 93);
    }

    #[test]
    fn hops_are_on_all_cpus_and_free_only_touched_pages() {
        for (cpus, seed) in [(2, 1), (16, 2), (64, 3), (64, 4)] {
            let plan = hop(cpus, batch(cpus), seed);
            assert_eq!(plan, hop(cpus, batch(cpus), seed));
            assert_ne!(plan, hop(cpus, batch(cpus), seed + 10));
            let mut touched = vec![false; HOPPER_MAX_PAGES];
            let mut seen = vec![0; cpus];
            let mut freed = 0;
            for step in &plan {
                seen[step.cpu] += 1;
                freed += usize::from(step.free);
                assert!((1..=batch(cpus)).contains(&step.pages.len()));
                step.pages.clone().for_each(|page| {
                    assert_eq!(touched[page], step.free);
                    touched[page] = !step.free;
                });
            }
            assert_eq!(touched.iter().filter(|&&t| t).count(), resident_after(&plan));
            let visited = seen.iter().filter(|&&n| n > 0).count();
            assert!(visited * 10 > cpus * 9, "{visited} of {cpus}");
            assert!(freed * 5 > plan.len() && freed * 2 < plan.len(), "{freed} of {}", plan.len());
        }
    }

    #[test]
    fn a_message_follows_the_semicolon() {
        let record = &b"6,339,5140900,-;a: b; c\n SUBSYSTEM=acpi\n"[..];
        assert_eq!(messages(record).unwrap(), ["a: b; c"]);
    }

    #[test]
    fn the_list_of_tasks_is_read_by_the_names_of_its_columns() {
        let log = "memory: usage 8192kB, limit 8192kB, failcnt 26\n\
                   Tasks state (memory values in pages):\n\
                   [  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name\n\
                   [     45]     0    45     9284     1234      567       41        0   110592        0             0 init\n\
                   [   1046]     0  1046     9284       77       70        7        0   110592        0          1000 a] [7\n\
                   oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/\n\
                   [   1047]     0  1047     9284       77       70        7        0   110592        0          1000 late";
        let lines: Vec<String> = log.lines().map(str::to_owned).collect();
        let pid = |n| Pid::from_raw(n).unwrap();
        assert_eq!(parse_tasks(&lines), Some(vec![(pid(45), 1234), (pid(1046), 77)]));
        assert_eq!(parse_tasks(&lines[..2]), None);
        assert_eq!(parse_tasks(&lines[..3]), Some(vec![]));
    }

    #[test]
    fn all_ways_to_read_agree_for_a_process_that_stays_on_one_cpu() {
        let process = Process::start(&spread(1, batch(sched::online_cpus().unwrap())), true).unwrap();
        let pid = process.child.pid();
        assert_eq!(statm(pid).unwrap(), walked(pid).unwrap());
        // Off by less than a batch for each of the kinds of pages.
        assert!(stat(pid).unwrap().abs_diff(statm(pid).unwrap()) < 3 * batch(sched::online_cpus().unwrap()) as u64);
        assert!(process.errors(&[]).is_err());
        let errors = process.errors(&[(pid, statm(pid).unwrap() + 5)]).unwrap();
        assert_eq!(errors.oom, 5);
    }
}
