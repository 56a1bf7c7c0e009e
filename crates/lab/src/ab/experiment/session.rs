// SPDX-License-Identifier: GPL-2.0-only
//! Boots the guests of a comparison, repeats a boot that failed, and reuses boots of an earlier run.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use protocol::job::DELAY_PARAMETER;
use scenarios::{Guest, Scenario};

use crate::ab::experiment::failure::Failure;
use crate::ab::experiment::order::{Role, delay_us};
use crate::ab::experiment::record::{self, BootRecord};
use crate::ab::experiment::samples;
use crate::ab::experiment::{Booter, Plan};
use crate::ab::results::{RepeatedBoot, Run};
use crate::context::Context;
use crate::progress::{Step, time_left, unpoisoned};
use crate::stolen;
use crate::vm::boot::Boot;
use crate::vm::channel::Outcome;
use crate::vm::job::{Arm, GuestCommand, Job, Mode};
use crate::vm::logs::Logs;

/// How many lines of the log of a failed guest an error shows.
const CONSOLE_TAIL_LINES: usize = 30;

/// A comparison in progress.
pub(super) struct Session<'a> {
    pub(super) ctx: &'a Context,
    pub(super) plan: &'a Plan,
    pub(super) out: &'a Path,
    pub(super) step: Step,
    pub(super) counter: BootCounter,
    /// Whether a note said that boots of an earlier run cannot be reused.
    pub(super) said_stale: AtomicBool,
    /// The key of the first boot of each arm in each guest, by name.
    pub(super) keys: Mutex<BTreeMap<String, String>>,
    pub(super) booter: &'a Booter<'a>,
}

/// A boot that ended well. Its samples are not checked yet.
pub(super) struct Booted {
    name: String,
    logs: PathBuf,
    pub(super) boot: Boot,
    /// The failed first attempt, if there was one.
    pub(super) repeated: Option<RepeatedBoot>,
}

impl Session<'_> {
    /// Boots one guest, or reuses the boot of an earlier run. A boot that fails is repeated once.
    ///
    /// # Errors
    /// [`Failure`] if the guest fails twice; otherwise a problem of the host, or a kernel or another file that is not
    /// what it was at the first of these boots.
    pub(super) fn boot(&self, scenario: &Scenario, guest: &Guest, pair: usize, role: Role) -> Result<Booted> {
        let [base, changed] = &self.plan.arms;
        let (arm, arm_name) = match role {
            Role::Base => (base, base.name.clone()),
            Role::BaseAgain => (base, name_again(base)),
            Role::Changed => (changed, changed.name.clone()),
            Role::ControlKernel(i) => (&self.plan.controls[i], self.plan.controls[i].name.clone()),
        };
        let scenario = scenario.name;
        let delay_us = delay_us(pair, role, self.plan.seed);
        let pair = pair + 1;
        let name = format!("pair {pair}/{}, {arm_name}, {scenario}/{}", self.plan.pairs, guest.name);
        self.step.detail(&format!("{name}{}", self.counter.left()));

        let logs = self
            .out
            .join("boots")
            .join(format!("{scenario}-{}", guest.name))
            .join(format!("{pair:02}-{}", file_name(&arm_name)));
        let job = self.job(scenario, guest);
        let key = (self.booter.key)(arm, &job).with_context(|| name.clone())?;
        let of_guest = format!("{}, {scenario}/{}", arm.name, guest.name);
        ensure!(
            *unpoisoned(&self.keys).entry(of_guest).or_insert_with(|| key.clone()) == key,
            "{name}: the kernel or a file of the guest has changed since the comparison began; start it again"
        );
        let repeated = record::earlier_failure(&logs, &key)?;
        if let Some(BootRecord { release, samples, series, stolen, .. }) = self.recorded(&name, &logs, &key)? {
            self.counter.taken.fetch_add(1, Ordering::Relaxed);
            let begun = Boot::with_logs(&Logs::in_folder(&logs));
            let boot = Boot { outcome: Outcome::Exit(0), samples, series, release, stolen, ..begun };
            return Ok(Booted { boot, name, logs, repeated });
        }
        // Not part of the key: it is another sample of the same.
        let cmdline = format!("{} {DELAY_PARAMETER}={delay_us}", job.cmdline);
        let delayed = Job { cmdline: cmdline.trim_start().to_owned(), ..job };
        let attempt = |name| self.attempt(arm, &delayed, name, &logs);
        let booted = match attempt(name.clone())? {
            Ok(booted) => Booted { repeated, ..booted },
            Err(failure) => {
                let repeated = self.set_aside(&failure, &key)?;
                let booted = attempt(format!("{name}, second attempt"))??;
                Booted { name, repeated: Some(repeated), ..booted }
            }
        };
        let Boot { release, samples, series, stolen, .. } = booted.boot.clone();
        BootRecord { key, release, samples, series, stolen }.write(&booted.logs)?;
        Ok(booted)
    }

    fn job(&self, scenario: &str, guest: &Guest) -> Job {
        let job = match &self.plan.workload {
            Some(workload) => workload.job(),
            None => {
                let case = self.plan.case.iter().map(|case| format!("case={case}"));
                let args = [guest.name.to_owned()].into_iter().chain(case).collect();
                Job::new(GuestCommand::Scenario { name: scenario.to_owned(), args })
            }
        };
        Job {
            cpus: guest.cpus,
            mem_mib: guest.mem_mib,
            mode: guest.mode,
            timeout: guest.timeout,
            cmdline: guest.cmdline.to_owned(),
            ..job
        }
    }

    /// Returns the record of this boot from an earlier run if it has the same key; removes any other.
    fn recorded(&self, name: &str, logs: &Path, key: &str) -> Result<Option<BootRecord>> {
        match BootRecord::read(logs) {
            Some(record) if record.key != key => {
                if !self.said_stale.fetch_or(true, Ordering::Relaxed) {
                    let what = "is of another kernel, guest or QEMU; all such boots are repeated";
                    self.ctx.progress.note(&format!("{name}: the earlier boot {what}"));
                }
                record::forget(logs)?;
                Ok(None)
            }
            record => Ok(record),
        }
    }

    fn attempt(&self, arm: &Arm, job: &Job, name: String, logs: &Path) -> Result<Result<Booted, Failure>> {
        fs::create_dir_all(logs).with_context(|| format!("{}: cannot create", logs.display()))?;
        let boot = || (self.booter.boot)(arm, job, logs).with_context(|| name.clone());
        let boot = match job.mode {
            // Its clock counts instructions.
            Mode::Icount => boot()?,
            // Logs are those of the last attempt.
            Mode::Multi => stolen::run_undisturbed(
                boot,
                |boot| (boot.outcome == Outcome::Exit(0)).then_some(boot.stolen?),
                |note| self.ctx.progress.note(&format!("{name}: {note}")),
            )?,
        };
        self.counter.made.fetch_add(1, Ordering::Relaxed);
        let booted = Booted { name, logs: logs.to_owned(), boot, repeated: None };
        Ok(match booted.boot.outcome {
            Outcome::Exit(0) => Ok(booted),
            _ => Err(booted.failure()),
        })
    }

    /// Keeps the logs of a failed attempt and warns that the boot is repeated.
    fn set_aside(&self, failure: &Failure, key: &str) -> Result<RepeatedBoot> {
        let to = record::failed_folder(&failure.logs);
        let repeated = RepeatedBoot {
            boot: failure.boot.clone(),
            what: failure.cause.clone(),
            logs: to.strip_prefix(self.out).unwrap_or(&to).display().to_string(),
            exit_code: failure.exit_code,
        };
        record::set_aside(&failure.logs, key, &repeated)?;
        let RepeatedBoot { boot, what, .. } = &repeated;
        self.ctx.progress.warn(&format!("{boot}: {what}; repeating the boot; logs: {}", to.display()));
        Ok(repeated)
    }
}

impl Booted {
    /// Adds the samples to those of the guest, on an arm or one of these control kernels, and returns the kernel's release.
    ///
    /// # Errors
    /// [`Failure`] if the metrics are not those of the other boots.
    pub(super) fn deliver_to(self, run: &mut Run, controls: &[String], role: Role) -> Result<Option<String>> {
        match samples::add(run, controls, role, &self.boot.samples) {
            Ok(()) => {
                samples::keep_first(run, role, self.boot.series);
                Ok(self.boot.release)
            }
            Err(what) => {
                record::forget(&self.logs)?;
                Err(Failure { cause: what, ..self.failure() }.into())
            }
        }
    }

    fn failure(&self) -> Failure {
        Failure { logs: self.logs.clone(), ..Failure::new(&self.name, &self.boot, CONSOLE_TAIL_LINES) }
    }
}

/// Counts boots and estimates how long the remaining ones take.
pub(super) struct BootCounter {
    began: Instant,
    made: AtomicUsize,
    /// How many are of an earlier run.
    taken: AtomicUsize,
    all: usize,
}

impl BootCounter {
    pub(super) fn new(all: usize) -> Self {
        Self { began: Instant::now(), made: AtomicUsize::new(0), taken: AtomicUsize::new(0), all }
    }

    fn left(&self) -> String {
        let made = self.made.load(Ordering::Relaxed);
        time_left(self.began, made, self.all.saturating_sub(made + self.taken.load(Ordering::Relaxed)))
    }
}

impl fmt::Display for BootCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} boots", self.all)?;
        match self.taken.load(Ordering::Relaxed) {
            0 => Ok(()),
            taken => write!(f, ", {taken} of them from an earlier run"),
        }
    }
}

/// Returns the name of the base arm's second boot in a pair.
pub(super) fn name_again(base: &Arm) -> String {
    format!("{}2", base.name)
}

/// Makes the arm's name safe for a path: it comes from the command line.
pub(super) fn file_name(arm: &str) -> String {
    arm.chars().map(|c| if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' }).collect()
}
