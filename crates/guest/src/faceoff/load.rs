// SPDX-License-Identifier: GPL-2.0-only
//! A load in the guest: its processes, and when it is over.

use anyhow::{Context as _, Result};
use linux::PidFd;

use protocol::faceoff::Who;
use protocol::load::{self, Group};

use super::desktop::app_cgroup;
use super::process::{OOM_SCORE_ADJ, Process, Spec, has_ended, open_pidfd};
use super::recorder::LimitedCgroup;
use super::workload::Workload;
use crate::system::cgroup::Cgroup;

/// The processes of a load, ready to begin.
pub struct Load<'a> {
    description: &'a load::Load,
    pub processes: Vec<Process>,
    /// Those of them that do something once the load has begun, with their children.
    beginners: Vec<(usize, Vec<PidFd>)>,
    /// The cgroup that limits the load, if one does.
    pub limited: Option<LimitedCgroup>,
}

impl<'a> Load<'a> {
    /// Starts all processes. They are killed when the calling thread ends.
    ///
    /// # Errors
    /// When a process does not get its memory, or a cgroup cannot be set up.
    pub fn prepare(description: &'a load::Load, seed: u64) -> Result<Self> {
        let mut load = Self { description, processes: Vec::new(), beginners: Vec::new(), limited: None };
        for one in &description.process {
            for number in 1..=one.count {
                let seed = seed.wrapping_mul(1000) + load.processes.len() as u64;
                let process = load.start(one, number, seed).with_context(|| one.name.clone())?;
                if one.begins() {
                    let children = process.shared.children().map(open_pidfd).collect::<Result<_>>()?;
                    load.beginners.push((load.processes.len(), children));
                }
                load.processes.push(process);
            }
        }
        Ok(load)
    }

    fn start(&mut self, one: &load::Process, number: usize, seed: u64) -> Result<Process> {
        let name = if one.count > 1 { format!("{}{number}", one.name) } else { one.name.clone() };
        let cgroup = match &one.group {
            None => app_cgroup(None, &name)?,
            Some(group) => {
                let settings = self.description.group.get(group);
                let cgroup = match settings.and_then(|settings| settings.path.as_ref()) {
                    Some(path) => Cgroup::create_all(&format!("{path}/{name}.scope"), "memory")?,
                    None => app_cgroup(Some(group), &name)?,
                };
                self.limit(&cgroup.parent(), settings)?;
                cgroup
            }
        };
        if one.oom_group {
            cgroup.set("memory.oom.group", "1")?;
        }
        Process::start(&Spec {
            who: one.who,
            name: &name,
            cgroup: &cgroup,
            oom_score_adj: one.oom_score_adj.unwrap_or(OOM_SCORE_ADJ),
            root: one.root,
            seed,
            workload: Workload { prepare: one.prepare.clone(), run: one.run.clone() },
        })
    }

    fn limit(&mut self, cgroup: &Cgroup, group: Option<&Group>) -> Result<()> {
        let Some(group) = group else { return Ok(()) };
        for (file, mib) in [("memory.max", group.memory_mib), ("memory.swap.max", group.swap_mib)] {
            if let Some(mib) = mib {
                cgroup.set(file, &(mib << 20).to_string())?;
            }
        }
        if let (None, Some(mib)) = (&self.limited, group.memory_mib) {
            self.limited = Some(LimitedCgroup::open(cgroup, mib << 10)?);
        }
        Ok(())
    }

    fn beginners(&self) -> impl Iterator<Item = (&Process, &[PidFd])> {
        self.beginners.iter().map(|(i, children)| (&self.processes[*i], children.as_slice()))
    }

    /// Lets all processes begin that have something to do.
    pub fn start_all(&self) {
        self.beginners().for_each(|(process, _)| process.shared.start());
    }

    /// Whether all that began have ended or have done what they had to.
    pub fn is_over(&self) -> bool {
        self.beginners().all(|(process, children)| {
            let child_is_over = |(i, child)| process.shared.grown(i).is_set() || has_ended(child);
            match children {
                [] => process.shared.done().is_set() || has_ended(&process.pidfd),
                _ => children.iter().enumerate().all(child_is_over),
            }
        })
    }

    /// For how many nanoseconds the recording continues when the load is over; `None` if until memory has
    /// recovered.
    pub fn continue_ns(&self) -> Option<u64> {
        self.description.continue_s.map(|s| s * 1_000_000_000)
    }

    /// The foreground app, if the load has its own.
    pub fn foreground(&self) -> Option<&Process> {
        self.processes.iter().find(|process| process.who == Who::Foreground)
    }

    /// Kills all processes that are left, so that there is memory for what follows.
    ///
    /// # Errors
    /// When a cgroup refuses that.
    pub fn clean_up(&self) -> Result<()> {
        self.processes.iter().try_for_each(|process| process.cgroup.set("cgroup.kill", "1"))
    }
}
