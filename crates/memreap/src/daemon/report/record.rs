//! What a kill was, as it is told to the journal, the history, the metrics and the hook.

use std::time::Duration;

use arrayvec::{ArrayString, ArrayVec};
use linux::Pid;
use linux::process::Comm;

use crate::choice::{CGROUP, Cost};
use crate::kill::Method;

/// Why a victim was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// At the present rate memory will run out within the horizon.
    Forecast,
    /// Hardly any memory is available.
    Critical,
    /// All tasks stall.
    Stall,
}

impl Reason {
    /// The word for it in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forecast => "forecast",
            Self::Critical => "critical",
            Self::Stall => "stall",
        }
    }
}

/// How a kill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The memory is back.
    Back,
    /// It was gone before a signal reached it.
    Gone,
    /// The deadline was over first.
    Late,
    /// No signal was sent: a dry run.
    DryRun,
    /// The kernel refused the signal with this error number.
    Refused(i32),
}

/// A kill, from the decision to the memory.
#[derive(Clone, Debug)]
pub struct Kill {
    /// When it was decided, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The victim's ID.
    pub pid: Pid,
    /// Its name.
    pub comm: Comm,
    /// Its user.
    pub uid: u32,
    /// Its cgroup; empty without one.
    pub cgroup: ArrayVec<u8, CGROUP>,
    /// How many processes of the cgroup were killed together.
    pub processes: u32,
    /// They are all that were in it.
    pub whole: bool,
    /// What was expected to come back, in bytes.
    pub expected: u64,
    /// `expected` was exact.
    pub exact: bool,
    /// Why.
    pub reason: Reason,
    /// The figures behind the reason, for people: "180 MiB of 2.0 GiB available, gone in 0.4 s at 420 MiB/s".
    pub because: ArrayString<160>,
    /// The rule that weighed the victim, for people; empty for none.
    pub rule: ArrayString<64>,
    /// How the memory came back.
    pub means: Method,
    /// How it ended.
    pub ending: Ending,
    /// MemAvailable (or the limit's rest) before and after, in bytes.
    pub available: [u64; 2],
    /// From the signal until the memory was back.
    pub took: Duration,
    /// What the choice cost.
    pub cost: Cost,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A kill that went well.
    pub(crate) fn kill(comm: &str) -> Kill {
        let mut cgroup = ArrayVec::new();
        cgroup.try_extend_from_slice(b"/user.slice/a").unwrap();
        Kill {
            unix_ms: 1_700_000_000_123,
            pid: Pid::new(4711).unwrap(),
            comm: Comm::new(comm.as_bytes()).unwrap(),
            uid: 1000,
            cgroup,
            processes: 1,
            whole: false,
            expected: 1_288_490_188,
            exact: true,
            reason: Reason::Forecast,
            because: ArrayString::from("80 MiB of 2.0 GiB were available, gone in 0.3 s at 400 MiB/s")
                .unwrap(),
            rule: ArrayString::new(),
            means: Method::Mrelease,
            ending: Ending::Back,
            available: [80 << 20, 1300 << 20],
            took: Duration::from_millis(41),
            cost: Cost { processes: 300, cheap: 300, exact: 2, late: 0, took: Duration::from_millis(3) },
        }
    }
}
