// SPDX-License-Identifier: GPL-2.0-only
//! The description of a load of the face-off, as in `faceoff/loads/*.toml`: the lab reads it, the guest does
//! what it says.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::faceoff::Who;

/// The most children of one process, and the most copies of it.
pub const MAX_CHILDREN: usize = 256;

/// A load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// What it is, for people.
    pub about: String,
    /// Its position among the others.
    pub order: u32,
    /// The machines that it runs on.
    pub machines: Vec<String>,
    /// How many hogs have to die, so that every further one is a needless kill; absent where that is not
    /// defined.
    #[serde(default)]
    pub needed_kills: Option<u64>,
    /// The time limit in seconds; absent for that of the command line.
    #[serde(default)]
    pub limit_s: Option<u64>,
    /// For how long the recording continues when the load is over, in seconds; absent for until memory has
    /// recovered, which it need not do where somebody keeps it.
    #[serde(default)]
    pub continue_s: Option<u64>,
    /// Instead of a load, measures for so many seconds what the contestant itself costs.
    #[serde(default)]
    pub idle_s: Option<u64>,
    /// Memory that the host takes away and gives back, in this order.
    #[serde(default)]
    pub balloon: Vec<Balloon>,
    /// Control groups that several processes share, by name.
    #[serde(default)]
    pub group: BTreeMap<String, Group>,
    /// Its processes.
    #[serde(default)]
    pub process: Vec<Process>,
}

/// A step of the host's memory balloon.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balloon {
    /// When, in seconds since the contestant has settled.
    pub at_s: u64,
    /// How much of the machine's memory is left to the guest, in percent.
    pub percent: u32,
}

/// A control group that processes share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Where it is, "/a.slice/b.slice"; absent for one of the user's slices.
    #[serde(default)]
    pub path: Option<String>,
    /// memory.max, in MiB; absent for no limit.
    #[serde(default)]
    pub memory_mib: Option<u64>,
    /// memory.swap.max, in MiB; absent for no limit.
    #[serde(default)]
    pub swap_mib: Option<u64>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its command name.
    pub name: String,
    /// By which a victim is right or wrong.
    pub who: Who,
    /// How many there are of it, numbered from 1.
    #[serde(default = "one")]
    pub count: usize,
    /// The control group in which it has its own; absent for that of all apps.
    #[serde(default)]
    pub group: Option<String>,
    /// Its oom_score_adj; absent for what a user's service manager sets.
    #[serde(default)]
    pub oom_score_adj: Option<i32>,
    /// memory.oom.group of its cgroup, as kubelets set it for a container: who kills one of the processes in it
    /// should kill all.
    #[serde(default)]
    pub oom_group: bool,
    /// Whether it is root's and not the user's.
    #[serde(default)]
    pub root: bool,
    /// What it does before the load begins. Only the last step may be without end.
    #[serde(default)]
    pub prepare: Vec<Step>,
    /// What it does once the load has begun. The load is over when all such processes have ended or have done
    /// that, and so have all children.
    #[serde(default)]
    pub run: Vec<Step>,
}

/// A thing that a process does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Step {
    /// Takes anonymous memory and fills it.
    Take {
        /// How much.
        size: Size,
        /// How much of each page is random, in percent: 100 does not compress, 33 compresses 3:1.
        #[serde(default = "hundred")]
        random: usize,
        /// At most so fast; absent for as fast as it can.
        #[serde(default)]
        mb_per_s: Option<usize>,
    },
    /// Keeps what it has.
    Keep {
        /// For how long; absent for ever.
        #[serde(default)]
        seconds: Option<f64>,
        /// How much of the memory that it took last it touches in a second, in MiB, in ten portions.
        #[serde(default)]
        touch_mib_per_s: f64,
    },
    /// Gives all anonymous memory back that it took.
    GiveBack {},
    /// Draws a frame every 10 ms, for ever: each touches the memory that it took last.
    Draw {},
    /// Answers logins, for ever: starts a shell for each connection.
    Login {},
    /// Fills memory that a second process maps as well, which does nothing else.
    Share {
        /// How much.
        size: Size,
    },
    /// Reads a file of its own from the disk again and again, through the page cache.
    Read {
        /// The size of the file.
        size: Size,
        /// For how long.
        seconds: f64,
    },
    /// Maps a file of its own on the disk and touches pages of it at random: each that is not there is read
    /// with nothing around it.
    Map {
        /// The size of the file.
        size: Size,
        /// For how long.
        seconds: f64,
    },
    /// Writes a file into a file system in memory. It stays when the process ends.
    Tmpfs {
        /// How much.
        size: Size,
        /// At most so fast; absent for as fast as it can.
        #[serde(default)]
        mb_per_s: Option<usize>,
    },
    /// Writes to one of the kernel's files.
    Write {
        /// Its path.
        file: String,
        /// What is written.
        text: String,
    },
    /// Starts children, which do this once the load has begun, all together.
    Fork {
        /// How many.
        count: usize,
        /// What each does.
        run: Vec<Step>,
    },
    /// Does this several times.
    Repeat {
        /// How often.
        times: usize,
        /// What.
        run: Vec<Step>,
    },
}

fn one() -> usize {
    1
}

fn hundred() -> usize {
    100
}

impl Step {
    /// Whether it never ends by itself.
    #[must_use]
    pub fn is_endless(&self) -> bool {
        matches!(self, Self::Keep { seconds: None, .. } | Self::Draw {} | Self::Login {})
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Fork { count, run } => {
                if !(1..=MAX_CHILDREN).contains(count) {
                    return Err(format!("fork: count: {count} is not between 1 and {MAX_CHILDREN}"));
                }
                check_steps(run)
            }
            Self::Repeat { run, .. } if run.iter().any(Self::is_endless) => {
                Err("repeat: a step without end is never repeated".to_owned())
            }
            Self::Repeat { run, .. } => check_steps(run),
            Self::Take { random, .. } if *random > 100 => {
                Err(format!("take: random: {random} is more than 100 percent"))
            }
            _ => Ok(()),
        }
    }
}

fn check_steps(steps: &[Step]) -> Result<(), String> {
    if let Some((_, all_but_last)) = steps.split_last()
        && let Some(endless) = all_but_last.iter().find(|step| step.is_endless())
    {
        return Err(format!("{endless:?} has no end, so nothing can follow it"));
    }
    steps.iter().try_for_each(Step::check)
}

impl Load {
    /// Checks what the types do not.
    ///
    /// # Errors
    /// When there is nothing to do, or something that never begins. The message names the key.
    pub fn check(&self) -> Result<(), String> {
        if self.machines.is_empty() {
            return Err("machines: there must be one".to_owned());
        }
        if self.idle_s.is_some() {
            return match self.process.is_empty() {
                true => Ok(()),
                false => Err("idle_s: an idle machine has no process".to_owned()),
            };
        }
        if self.balloon.iter().any(|step| !(1..=100).contains(&step.percent)) {
            return Err("balloon: percent: must be between 1 and 100".to_owned());
        }
        if !self.process.iter().any(Process::begins) {
            return Err("process: none does anything once the load has begun (run)".to_owned());
        }
        for process in &self.process {
            let check = || {
                if !(1..=MAX_CHILDREN).contains(&process.count) {
                    return Err(format!("count: {} is not between 1 and {MAX_CHILDREN}", process.count));
                }
                if let Some(group) = process.group.as_ref().filter(|name| !self.group.contains_key(*name)) {
                    return Err(format!("group: there is no [group.{group}]"));
                }
                if !process.run.is_empty() && process.prepare.last().is_some_and(Step::is_endless) {
                    return Err("run: its preparation has no end".to_owned());
                }
                check_steps(&process.prepare)?;
                check_steps(&process.run)
            };
            check().map_err(|what| format!("process {}: {what}", process.name))?;
        }
        Ok(())
    }
}

impl Process {
    /// Whether it, or children of it, do something once the load has begun.
    #[must_use]
    pub fn begins(&self) -> bool {
        !self.run.is_empty() || self.prepare.iter().any(|step| matches!(step, Step::Fork { .. }))
    }
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Size {
    /// `120 MiB`
    Mib(f64),
    /// `7 % of memory`: of all memory.
    OfMemory(f64),
    /// `98 % of available`: of the memory that is available at that moment.
    OfAvailable(f64),
    /// `to 90 % of memory and swap`: so much that this share of both is in use.
    ToOfMemoryAndSwap(f64),
    /// `everything`: without end.
    Everything,
}

/// Memory of a machine, in KiB, as in /proc/meminfo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meminfo {
    /// MemTotal
    pub total: u64,
    /// MemAvailable
    pub available: u64,
    /// SwapTotal
    pub swap_total: u64,
    /// SwapFree
    pub swap_free: u64,
}

impl Size {
    /// Returns the amount in KiB; `None` for [`Size::Everything`].
    #[must_use]
    pub fn kib(self, now: Meminfo) -> Option<u64> {
        let kib = match self {
            Self::Mib(mib) => mib * 1024.0,
            Self::OfMemory(percent) => now.total as f64 * percent / 100.0,
            Self::OfAvailable(percent) => now.available as f64 * percent / 100.0,
            Self::ToOfMemoryAndSwap(percent) => {
                let left = (now.total + now.swap_total) as f64 * (100.0 - percent) / 100.0;
                (now.available + now.swap_free) as f64 - left
            }
            Self::Everything => return None,
        };
        Some(kib.max(0.0) as u64)
    }
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        // What is before and after a number.
        let forms = [
            ("", "MiB", Self::Mib as fn(f64) -> Self),
            ("to ", "% of memory and swap", Self::ToOfMemoryAndSwap),
            ("", "% of memory", Self::OfMemory),
            ("", "% of available", Self::OfAvailable),
        ];
        let found = forms.into_iter().find_map(|(before, after, size)| {
            let number = text.strip_prefix(before)?.strip_suffix(after)?.trim().parse::<f64>().ok()?;
            ((0.0..1e9).contains(&number) && (after == "MiB" || number <= 100.0)).then(|| size(number))
        });
        found.or((text == "everything").then_some(Self::Everything)).ok_or_else(|| {
            format!(
                "'{text}' is no size; those are: \"120 MiB\", \"7 % of memory\", \"98 % of available\", \
                 \"to 90 % of memory and swap\", \"everything\""
            )
        })
    }
}

impl From<Size> for String {
    fn from(size: Size) -> Self {
        match size {
            Size::Mib(mib) => format!("{mib} MiB"),
            Size::OfMemory(percent) => format!("{percent} % of memory"),
            Size::OfAvailable(percent) => format!("{percent} % of available"),
            Size::ToOfMemoryAndSwap(percent) => format!("to {percent} % of memory and swap"),
            Size::Everything => "everything".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Meminfo = Meminfo { total: 2000, available: 1000, swap_total: 1000, swap_free: 900 };

    #[test]
    fn sizes_are_read_and_written() {
        for (text, kib) in [
            ("120 MiB", Some(122_880)),
            ("0.5 MiB", Some(512)),
            ("7 % of memory", Some(140)),
            ("98 % of available", Some(980)),
            ("to 90 % of memory and swap", Some(1600)),
            ("to 10 % of memory and swap", Some(0)),
            ("everything", None),
        ] {
            let size = Size::try_from(text.to_owned()).unwrap();
            assert_eq!((String::from(size).as_str(), size.kib(NOW)), (text, kib));
        }
        for bad in ["", "all", "120", "-1 MiB", "NaN MiB", "101 % of memory", "to x % of memory and swap"] {
            assert!(Size::try_from(bad.to_owned()).unwrap_err().contains("is no size"), "{bad}");
        }
    }

    fn load(process: Process) -> Load {
        Load {
            about: String::new(),
            order: 1,
            machines: vec!["m".into()],
            needed_kills: None,
            limit_s: None,
            continue_s: None,
            idle_s: None,
            balloon: Vec::new(),
            group: BTreeMap::new(),
            process: vec![process],
        }
    }

    fn process(prepare: Vec<Step>, run: Vec<Step>) -> Process {
        Process {
            name: "p".into(),
            who: Who::Hog,
            count: 1,
            group: None,
            oom_score_adj: None,
            oom_group: false,
            root: false,
            prepare,
            run,
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_place() {
        let take = || Step::Take { size: Size::Everything, random: 100, mb_per_s: None };
        let keep = || Step::Keep { seconds: None, touch_mib_per_s: 0.0 };
        let fork = |count, run| Step::Fork { count, run };
        let good = process(vec![take()], vec![take(), keep()]);
        load(good.clone()).check().unwrap();
        load(process(vec![fork(2, vec![take()])], Vec::new())).check().unwrap();
        for (bad, needle) in [
            (process(vec![take()], Vec::new()), "none does anything"),
            (process(vec![keep(), take()], vec![take()]), "has no end"),
            (process(vec![keep()], vec![take()]), "run: its preparation"),
            (process(vec![fork(257, vec![take()])], Vec::new()), "fork: count: 257"),
            (process(vec![fork(1, vec![keep(), take()])], Vec::new()), "has no end"),
            (process(Vec::new(), vec![Step::Repeat { times: 2, run: vec![keep()] }]), "never repeated"),
            (Process { count: 0, ..good.clone() }, "process p: count: 0"),
            (Process { group: Some("g".into()), ..good.clone() }, "no [group.g]"),
        ] {
            let error = load(bad.clone()).check().unwrap_err();
            assert!(error.contains(needle), "{bad:?}: {error}");
        }
        assert!(Load { idle_s: Some(1), ..load(good.clone()) }.check().is_err());
        assert!(Load { machines: Vec::new(), ..load(good) }.check().is_err());
    }
}
