// SPDX-License-Identifier: GPL-2.0-only
//! `memreap pick`: prints which process would be killed now, and why. Sends no signal.

mod why_not;

use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use linux::cgroup::Hierarchy;
use linux::{Process, Root, escape, process};
use serde::Serialize;

use why_not::{Victim, WhyNot};

use super::args::PickArgs;
use crate::choice::{Choice, Chooser, Considered, Scope};
use crate::config::Config;
use crate::daemon::run::sampler::{self, Memory, fit_to_machine};
use crate::exit::Exit;
use crate::policy::Policy;
use crate::say;
use crate::{units, users};

/// The version of the JSON. Fields may be added without a new one.
const VERSION: u32 = 1;
/// How many of the next candidates are printed without --explain.
const SHOWN_NEXT: usize = 3;
/// Room for processes that are started after they were counted.
const SPARE_PROCESSES: usize = 1024;
/// How long reading all command lines may take, where the policy asks for them.
const COMMAND_LINES_BUDGET: Duration = Duration::from_secs(5);

/// All that is printed; the `--help` lists the JSON's fields.
#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    command: &'static str,
    victim: Option<ChoiceReport>,
    candidates: Vec<Candidate>,
    cost: CostReport,
    /// How the process stands that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<WhyNot>,
    #[serde(skip)]
    smallest_bytes: u64,
}

#[derive(Debug, Serialize)]
struct ChoiceReport {
    pid: i32,
    name: String,
    uid: u32,
    user: String,
    cgroup: Option<String>,
    /// What comes back.
    bytes: u64,
    exact: bool,
    /// The standard error of `bytes`, if they are a sample's.
    error_bytes: Option<u64>,
    vm_bytes: u64,
    /// Processes that share its memory, and would be killed with it.
    sharers: Vec<i32>,
    rule: Option<String>,
    group: Option<GroupReport>,
}

#[derive(Debug, Serialize)]
struct GroupReport {
    bytes: u64,
    processes: u32,
    expendable: bool,
    oom_group: bool,
    /// Its processes share what it holds.
    shares: bool,
}

#[derive(Debug, Serialize)]
struct Candidate {
    pid: i32,
    name: String,
    uid: u32,
    user: String,
    cgroup: Option<String>,
    /// What comes back at most.
    bound_bytes: u64,
    /// What comes back; `None` when it was not read closely.
    bytes: Option<u64>,
    exact: bool,
    error_bytes: Option<u64>,
    rule: Option<String>,
    score: u64,
}

#[derive(Debug, Serialize)]
struct CostReport {
    processes: u32,
    cheap_readings: u32,
    exact_readings: u32,
    samples: u32,
    late_readings: u32,
    seconds: f64,
}

/// Runs the command.
///
/// # Errors
/// When processes cannot be read.
#[inline(never)] // Its stack would be that of the daemon, too.
pub fn run(args: &PickArgs) -> Result<Exit> {
    let mut config = match Config::load(args.config.as_deref()) {
        Ok(config) => config,
        Err(e) => {
            say(format_args!("memreap: {e}"));
            return Ok(Exit::Usage);
        }
    };
    config.unmet.iter().for_each(|line| say(format_args!("memreap: warning: {line}")));
    let root = Root::system();
    let hierarchy = Hierarchy::find(&root).ok().flatten();
    let hierarchy = hierarchy.as_ref();
    let memory = Memory::open(&root, hierarchy)?;
    fit_to_machine(&mut config, &memory);
    // What a victim gives back at least.
    let smallest_bytes = memory.sample(Instant::now(), &mut sampler::buffer()[..])?.min_victim_bytes();
    let room = process::pids(&root)?.count() + SPARE_PROCESSES;
    let mut chooser = Chooser::new(&root, room).context("cannot read processes")?;
    if config.policy.needs_command_line() {
        chooser.refresh(&config.policy, COMMAND_LINES_BUDGET);
    }
    chooser.set_grouping(config.kill.grouping());
    chooser.set_min_bytes(smallest_bytes);
    let choice = chooser.choose(&config.policy, Scope::All);
    let mut report = Report::new(&root, hierarchy, &config.policy, &chooser, choice.as_ref(), smallest_bytes);
    if let Some(pid) = args.why_not {
        let victim = choice.as_ref().map(|choice| Victim { choice, score: report.score_of(choice) });
        chooser.set_min_bytes(0);
        match WhyNot::find(&root, &mut chooser, &config.policy, pid, victim, smallest_bytes) {
            Ok(found) => report.why_not = Some(found),
            Err(problem) => {
                say(format_args!("memreap: {problem}"));
                return Ok(Exit::NotFound);
            }
        }
    }
    let exit = if choice.is_some() || args.why_not.is_some() { Exit::Done } else { Exit::NotFound };
    exit.after(report.print(&mut io::stdout().lock(), args))
}

impl Report {
    fn print(&self, out: &mut impl io::Write, args: &PickArgs) -> Result<()> {
        if args.json {
            writeln!(out, "{}", serde_json::to_string(self)?)?;
        } else if let Some(why_not) = &self.why_not {
            why_not.write(out, self.victim.as_ref().map(ChoiceReport::label).as_deref())?;
            if args.explain {
                self.write_table(out)?;
            }
        } else {
            self.write(out, args.explain)?;
        }
        Ok(())
    }

    fn new(
        root: &Root,
        hierarchy: Option<&Hierarchy>,
        policy: &Policy,
        chooser: &Chooser,
        choice: Option<&Choice>,
        smallest_bytes: u64,
    ) -> Self {
        let cost = chooser.cost();
        let candidate = |c| Candidate::new(root, hierarchy, policy, c);
        Self {
            version: VERSION,
            command: "pick",
            victim: choice.map(|choice| ChoiceReport::new(policy, choice)),
            candidates: chooser.explain().map(candidate).collect(),
            cost: CostReport {
                processes: cost.processes,
                cheap_readings: cost.cheap,
                exact_readings: cost.exact,
                samples: cost.sampled,
                late_readings: cost.late,
                seconds: cost.took.as_secs_f64(),
            },
            why_not: None,
            smallest_bytes,
        }
    }

    /// What the victim counts for by itself, and with those that share its memory.
    fn score_of(&self, choice: &Choice) -> u64 {
        self.candidates.iter().find(|c| c.pid == choice.pid.get()).map_or(0, |c| c.score)
    }

    fn write(&self, out: &mut impl Write, explain: bool) -> io::Result<()> {
        match &self.victim {
            Some(victim) => victim.write(out)?,
            None => writeln!(
                out,
                "no process would be killed: none that may be killed would give back {} or more",
                units::bytes(self.smallest_bytes)
            )?,
        }
        if explain {
            self.write_table(out)?;
        } else {
            self.write_next(out)?;
        }
        if !rustix::process::geteuid().is_root() {
            writeln!(
                out,
                "only processes that this user may kill were considered; run as root for the daemon's choice"
            )?;
        }
        Ok(())
    }

    /// The next candidates, in one line.
    fn write_next(&self, out: &mut impl Write) -> io::Result<()> {
        let victim = self.victim.as_ref().map(|victim| victim.pid);
        let next = self.candidates.iter().filter(|c| Some(c.pid) != victim).take(SHOWN_NEXT);
        let next: Vec<String> = next
            .map(|c| match c.bytes {
                Some(bytes) => format!("{} ({}) {}", c.pid, c.name, units::bytes(bytes)),
                None => format!("{} ({}) at most {}", c.pid, c.name, units::bytes(c.bound_bytes)),
            })
            .collect();
        if next.is_empty() { Ok(()) } else { writeln!(out, "next: {}", next.join(", ")) }
    }

    fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "\n{:>7}  {:<15}  {:<10}  {:>8}  {:>16}  {:>8}  {:<16}  cgroup",
            "pid", "name", "user", "at most", "back", "score", "rule"
        )?;
        for c in &self.candidates {
            let back = c.bytes.map_or("-".to_owned(), |bytes| {
                let about = if c.exact || c.error_bytes.is_some() { "" } else { "~" };
                format!("{about}{}{}", units::bytes(bytes), error(c.error_bytes, bytes))
            });
            writeln!(
                out,
                "{:>7}  {:<15}  {:<10}  {:>8}  {:>16}  {:>8}  {:<16}  {}",
                c.pid,
                c.name,
                c.user,
                units::bytes(c.bound_bytes),
                back,
                units::bytes(c.score),
                c.rule.as_deref().unwrap_or("-"),
                c.cgroup.as_deref().unwrap_or("-"),
            )?;
        }
        let cost = &self.cost;
        writeln!(
            out,
            "\n{} processes: {} cheap readings, {} exact, {} samples, {} too late, in {}",
            cost.processes,
            cost.cheap_readings,
            cost.exact_readings,
            cost.samples,
            cost.late_readings,
            units::time(Duration::from_secs_f64(cost.seconds))
        )
    }
}

/// The standard error of `bytes`, as in " +- 5 %", or in bytes where it is greater than they are.
fn error(error_bytes: Option<u64>, bytes: u64) -> String {
    match error_bytes {
        None => String::new(),
        Some(error) if error > bytes => format!(" +- {}", units::bytes(error)),
        Some(error) => format!(" +- {} %", (error * 100).div_ceil(bytes.max(1)).max(1)),
    }
}

impl ChoiceReport {
    fn new(policy: &Policy, choice: &Choice) -> Self {
        Self {
            pid: choice.pid.get(),
            name: choice.comm.to_string(),
            uid: choice.uid,
            user: users::name(choice.uid),
            cgroup: (!choice.cgroup.is_empty()).then(|| escape(&choice.cgroup[..]).to_string()),
            bytes: choice.bytes,
            exact: choice.precision.is_exact(),
            error_bytes: choice.precision.error(),
            vm_bytes: choice.vm_size,
            sharers: choice.pool.iter().map(|member| member.pidfd.opened_as().get()).collect(),
            rule: choice.rule.map(|rule| policy.rule(rule).to_owned()),
            group: choice.group.map(|group| GroupReport {
                bytes: group.bytes,
                processes: group.processes,
                expendable: group.expendable,
                oom_group: group.oom_group,
                shares: group.shares,
            }),
        }
    }

    fn label(&self) -> String {
        format!("{} ({}), user {},", self.pid, self.name, self.user)
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let about = if self.exact || self.error_bytes.is_some() { "" } else { "about " };
        let with = match self.sharers.len() {
            0 if self.group.as_ref().is_some_and(|group| group.shares) => {
                " with all of its cgroup, which shares its memory".to_owned()
            }
            0 => String::new(),
            sharers => format!(" with {sharers} more that share its memory"),
        };
        writeln!(
            out,
            "{} ({}), user {}, would be killed{with}: {about}{}{} would come back",
            self.pid,
            self.name,
            self.user,
            units::bytes(self.bytes),
            error(self.error_bytes, self.bytes)
        )?;
        if let Some(rule) = &self.rule {
            writeln!(out, "rule: {rule}")?;
        }
        if let Some(cgroup) = &self.cgroup {
            writeln!(out, "cgroup: {cgroup}")?;
        }
        if let Some(group) = &self.group {
            let whole = if group.expendable { "may be killed as a whole" } else { "has protected members" };
            let processes = if group.processes == 1 { "process" } else { "processes" };
            writeln!(
                out,
                "its cgroup holds {} in {} {processes}, and {whole}",
                units::bytes(group.bytes),
                group.processes
            )?;
        }
        Ok(())
    }
}

impl Candidate {
    fn new(root: &Root, hierarchy: Option<&Hierarchy>, policy: &Policy, considered: &Considered) -> Self {
        // For display only, so it does not matter if it has gone or moved meanwhile.
        let process = Process::open(root, considered.pid).ok();
        let cgroup = process.zip(hierarchy).and_then(|(process, h)| h.cgroup_of(&process).ok().flatten());
        Self {
            pid: considered.pid.get(),
            name: considered.comm.to_string(),
            uid: considered.uid,
            user: users::name(considered.uid),
            cgroup: cgroup.map(|path| escape(path.as_os_str()).to_string()),
            bound_bytes: considered.bound,
            bytes: considered.bytes,
            exact: considered.precision.is_exact(),
            error_bytes: considered.precision.error(),
            rule: considered.verdict.rule.map(|rule| policy.rule(rule).to_owned()),
            score: considered.score,
        }
    }
}
