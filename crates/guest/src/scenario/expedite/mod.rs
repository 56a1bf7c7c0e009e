// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `expedite`: how fast does the memory of a killed process come back when the process can hardly
//! free it, because it is throttled, outnumbered, stopped or one of many? And how much work do other
//! processes get done meanwhile?
//!
//! There are these methods of killing. `kill` is a single system call: SIGKILL through a pidfd, with the flag
//! that frees the memory at once where the kernel has it. `plain` is kill(2), whose behaviour must not
//! change. `mrelease` adds a call of process_mrelease(2) in the same thread. `memreap` is the command,
//! measured from its start: what is possible on any kernel. Of the kernel's other two ways to ask for the
//! same, `cgroup` writes to cgroup.kill, and `size` is kill(2) with a sysctl by which large victims are freed
//! at once; they are measured where it matters most. `unpaced` is `kill` with a sysctl by which the
//! kernel's workers leave nothing of a CPU to others; it is measured by how long a process that never sleeps
//! has to wait.
//!
//! Then kills race with exits: how often does a kill come too late to have another process free the memory,
//! although the memory is still there?
//!
//! Finally, a user whose processes are limited to a twentieth of a CPU kills all the time: the same victims
//! again and again, new ones, or some that share memory with their killer. How much work do others get done
//! beside that?

mod hostile;
mod kills;
mod race;

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::arguments::{Arguments, Cases};
use super::interface::Scenario;
use super::metrics::metric_name;
use crate::measure::free_memory::ShortFreeLists;
use crate::process::hogs::Hogs;
use crate::process::victim::{self, Victim};
use crate::system::{clock, sched};
use hostile::Attack;
use init::report::{Better, Reporter};
use kills::{CASES, Method, Run};

/// How long the hogs work before a kill.
const WARM_UP: Duration = Duration::from_millis(20);
/// How long it is waited for memory to come back.
const RETURN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long free memory is recorded after all is back, and how often that is checked before.
const RETURN_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The period of CPU limits.
const PERIOD: Duration = Duration::from_millis(100);
/// The case in which kills race with exits, and its metric.
const RACE: &str = "race";
const LOST: &str = "lost";
/// The case in which a user kills all the time.
const HOSTILE: &str = "hostile";
/// Stands for the slowest of all cases, and the methods of killing for which that is reported.
const WORST: &str = "worst";
const WORST_OF: [Method; 2] = [Method::Kill, Method::Memreap];

/// `expedite [icount] [case=NAME|race|hostile]`
pub struct Expedite;

impl Scenario for Expedite {
    fn name(&self) -> &'static str {
        "expedite"
    }

    fn metrics(&self, args: &[String], _cpus: usize) -> Result<Vec<String>> {
        let options = Options::parse(args)?;
        let mut metrics = Vec::new();
        for case in CASES.iter().filter(|case| options.cases.has(case.name)) {
            for method in case.methods(options.icount) {
                metrics.push(method.rate(case.name));
                metrics.extend(case.has_hogs(options.icount).then(|| method.foreground(case.name)));
                metrics.extend(case.waits.then(|| method.wait(case.name)));
            }
        }
        if options.cases.is_all() {
            metrics.extend(WORST_OF.map(|method| method.rate(WORST)));
        }
        if options.races() {
            metrics.push(metric_name(RACE, LOST));
        }
        if options.cases.has(HOSTILE) {
            metrics.extend(Attack::ALL.map(hostile_metric));
        }
        Ok(metrics)
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let options = Options::parse(args)?;
        let cpus = thread::available_parallelism().context("number of CPUs")?.get();
        let short = ShortFreeLists::set()?;
        let expedites = victim::expedites();
        let supports = if expedites { "supports" } else { "does not support" };
        out.note(&format!("the kernel {supports} PIDFD_SIGNAL_EXPEDITE"));
        let mut rates: Vec<(Method, f64)> = Vec::new();
        for case in CASES.iter().filter(|case| options.cases.has(case.name)) {
            let run =
                Run::new(case, cpus, expedites, &options).with_context(|| format!("case {}", case.name))?;
            rates.extend(run.all(out).with_context(|| format!("case {}", case.name))?);
        }
        if options.cases.is_all() {
            for method in WORST_OF {
                let worst = rates.iter().filter(|(w, _)| *w == method).map(|&(_, rate)| rate);
                out.sample(&method.rate(WORST), "MB/s", Better::Higher, worst.fold(f64::INFINITY, f64::min));
            }
        }
        if options.races() {
            let lost = race::lost(cpus, expedites, out).context("race")?;
            out.sample(&metric_name(RACE, LOST), "count", Better::Lower, f64::from(lost));
        }
        if options.cases.has(HOSTILE) {
            for attack in Attack::ALL {
                let rate = hostile::rate(cpus, expedites, attack, out).context(HOSTILE)?;
                out.sample(&hostile_metric(attack), "loops/ms", Better::Higher, rate);
            }
        }
        drop(short);
        Ok(())
    }
}

fn hostile_metric(attack: Attack) -> String {
    metric_name(HOSTILE, &format!("{}-foreground", attack.name()))
}

struct Options {
    icount: bool,
    cases: Cases,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let args = Arguments::new(args, &["icount"], &["case"])?;
        let cases = args.case(CASES.iter().map(|case| case.name).chain([RACE, HOSTILE]))?;
        let icount = args.has("icount");
        ensure!(cases.is_all() || !cases.has(RACE) || !icount, "there is no race under icount");
        Ok(Self { icount, cases })
    }

    fn races(&self) -> bool {
        self.cases.has(RACE) && !self.icount
    }
}

/// Returns the hogs' work per millisecond from `start`, when it was `before`, until the window's end.
fn foreground(hogs: &Hogs, start: u64, before: u64, window: Duration) -> Result<f64> {
    // So that this is on time although the hogs leave no CPU idle.
    sched::set_policy(libc::SCHED_FIFO, 1).context("SCHED_FIFO to count the hogs' work")?;
    clock::sleep_until(start + window.as_nanos() as u64)?;
    let (done, now) = (hogs.done(), clock::now());
    sched::set_policy(libc::SCHED_OTHER, 0).context("SCHED_OTHER")?;
    Ok((done - before) as f64 / ((now - start) as f64 / 1e6))
}

/// The outcome of process_mrelease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Released {
    NotDying,
    TooLate,
    Done,
}

fn mrelease(victim: &Victim) -> Result<Released> {
    Ok(match victim::mrelease(victim.pidfd()).context("process_mrelease")? {
        None => Released::NotDying,
        Some(released) if released.too_late => Released::TooLate,
        Some(_) => Released::Done,
    })
}

#[cfg(test)]
mod tests {
    use super::super::arguments::{assert_refused, words};
    use super::*;

    #[test]
    fn arguments_have_defaults_and_bounds() {
        let options = Options::parse(&[]).unwrap();
        assert!(!options.icount && options.races() && options.cases.has("free"));
        let options = Options::parse(&words(&["icount", "case=nice-19"])).unwrap();
        assert!(options.icount && options.cases.has("nice-19") && !options.cases.has("free"));
        assert!(!options.races() && Options::parse(&words(&["case=race"])).unwrap().races());
        assert_refused(Options::parse, &["case=nice-20", "round=2", "fast"], &[]);
        assert_refused(Options::parse, &["case=race"], &["icount"]);
    }
}
