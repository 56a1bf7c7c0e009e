// SPDX-License-Identifier: GPL-2.0-only
//! What can be configured.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::choice::Grouping;
use crate::kill::{FirstSignal, SignalFirst};
use crate::policy::Policy;
use crate::units::Size;

/// The built-in configuration.
pub const BUILT_IN: &str = include_str!("../../../../packaging/memreap.toml");

/// The name of the built-in configuration in messages.
pub(crate) const BUILT_IN_NAME: &str = "built-in configuration";

/// Where the configuration is read when no file is named.
pub const DEFAULT_PATH: &str = "/etc/memreap.toml";

/// All that can be configured, with defaults applied.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it was read; `None` for the built-in one.
    pub path: Option<PathBuf>,
    /// When to act.
    pub act: Act,
    /// How to kill.
    pub kill: Kill,
    /// Which processes, and how their memory counts.
    pub policy: Policy,
    /// What to do when a kill may come, and after each.
    pub warn: Warn,
    /// What is recorded.
    pub record: Record,
    /// What it names and this system does not have, each with file, line, key and remedy.
    pub unmet: Vec<String>,
}

/// An amount of memory: a share of all, but no more than a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// In percent of all.
    pub share: f64,
    /// In bytes; `u64::MAX` for any.
    pub most: u64,
}

impl Level {
    /// Returns it in bytes, of `total` bytes.
    pub fn of(&self, total: u64) -> u64 {
        ((total as f64 * self.share / 100.0) as u64).min(self.most)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.share)?;
        if self.most < u64::MAX { write!(f, " and at most {}", Size(self.most)) } else { Ok(()) }
    }
}

/// When to act.
#[derive(Clone, Debug, PartialEq)]
pub struct Act {
    /// Memory is short when less than this is available.
    pub low: Level,
    /// Act when less than this and 5 % of swap is left of memory and swap together, and it shrinks.
    pub critical: Level,
    /// Act when some task stalled for this share of the last 0.5 s, in percent, all did for a quarter of it, and
    /// less than `critical` is available, with `early_reclaim` three times as much, and has not grown by `critical`.
    pub stall: f64,
    /// The kernel reclaims early (vm.watermark_scale_factor), so that stalls mean more. Not a setting.
    pub early_reclaim: bool,
    /// Watch cgroups' own limits, too.
    pub cgroups: bool,
    /// Ask the next victim to end when less than this is left of memory and swap together, and it shrinks.
    pub polite: Option<Level>,
    /// The time between two such requests, at least.
    pub polite_interval: Duration,
}

/// From this vm.watermark_scale_factor on, in 1/10,000 of memory, the kernel reclaims early; the package sets it.
pub const EARLY_WATERMARK_SCALE_FACTOR: u64 = 100;
/// With more than this times `low` available there is no shortage.
const RELIEF_FACTOR: u64 = 2;

impl Act {
    /// Returns from how many available bytes on there is no shortage, of `total` bytes.
    pub fn relief(&self, total: u64) -> u64 {
        self.low.of(total).saturating_mul(RELIEF_FACTOR)
    }
}

impl Default for Act {
    fn default() -> Self {
        Self {
            low: Level { share: 10.0, most: 8 << 30 },
            critical: Level { share: 1.0, most: 256 << 20 },
            stall: 99.3,
            early_reclaim: false,
            cgroups: true,
            polite: None,
            polite_interval: Duration::from_secs(10),
        }
    }
}

/// When a cgroup is killed as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WholeCgroup {
    /// As [`Self::OomGroup`], or when its largest process alone would not be enough.
    Auto,
    /// When memory.oom.group asks for it, or its processes share most of what it holds and cannot be told from others.
    #[default]
    OomGroup,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How to kill.
#[derive(Clone, Debug, PartialEq)]
pub struct Kill {
    /// A signal before SIGKILL, and the time it has; `None` kills at once.
    pub signal_first: Option<SignalFirst>,
    /// The same for who is asked at `act.polite`: SIGTERM without `signal_first`.
    pub polite: SignalFirst,
    /// How long to wait for a victim's memory before the next victim is taken.
    pub deadline: Duration,
    /// Choose the cgroup that holds most first, then a victim in it.
    pub by_cgroup: bool,
    /// When to kill a whole cgroup.
    pub whole_cgroup: WholeCgroup,
    /// A command to run before a kill, with its arguments, which can avert it.
    pub before: Option<Vec<String>>,
    /// How long it may take; then the kill goes on.
    pub before_limit: Duration,
    /// Run it also when memory and swap are used up.
    pub before_when_critical: bool,
}

impl Default for Kill {
    fn default() -> Self {
        Self {
            signal_first: None,
            polite: SignalFirst { signal: FirstSignal::TERM, grace: Duration::from_secs(2) },
            deadline: Duration::from_secs(3),
            by_cgroup: true,
            whole_cgroup: WholeCgroup::OomGroup,
            before: None,
            before_limit: Duration::from_millis(200),
            before_when_critical: true,
        }
    }
}

impl Kill {
    /// Returns what cgroups are to a choice.
    pub fn grouping(&self) -> Grouping {
        Grouping { by_cgroup: self.by_cgroup, whole: self.whole_cgroup != WholeCgroup::Never }
    }
}

/// What to do when a kill may come, and after each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warn {
    /// Desktop notifications.
    pub desktop: bool,
    /// A command to run when a kill may come, and after each, with its arguments.
    pub command: Option<Vec<String>>,
    /// How long it may take; then it is killed.
    pub time_limit: Duration,
}

impl Default for Warn {
    fn default() -> Self {
        Self { desktop: false, command: None, time_limit: Duration::from_secs(2) }
    }
}

/// What is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The file in which kills are recorded; `None` for none.
    pub history: Option<PathBuf>,
    /// The Unix socket (a path) or address on which metrics are served; `None` for none.
    pub metrics: Option<String>,
}

impl Default for Record {
    fn default() -> Self {
        Self { history: Some("/var/lib/memreap/history.jsonl".into()), metrics: None }
    }
}

/// What is wrong with a configuration: each with file, line and key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigError(pub Vec<String>);
