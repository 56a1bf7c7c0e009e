// SPDX-License-Identifier: GPL-2.0-only
//! Signals that ask a process to end, by name.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rustix::process::Signal;

/// Standard signals in the order of their numbers on most architectures.
const NAMES: [(&str, Signal); 31] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ILL", Signal::ILL),
    ("TRAP", Signal::TRAP),
    ("ABRT", Signal::ABORT),
    ("BUS", Signal::BUS),
    ("FPE", Signal::FPE),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("SEGV", Signal::SEGV),
    ("USR2", Signal::USR2),
    ("PIPE", Signal::PIPE),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("STKFLT", Signal::STKFLT),
    ("CHLD", Signal::CHILD),
    ("CONT", Signal::CONT),
    ("STOP", Signal::STOP),
    ("TSTP", Signal::TSTP),
    ("TTIN", Signal::TTIN),
    ("TTOU", Signal::TTOU),
    ("URG", Signal::URG),
    ("XCPU", Signal::XCPU),
    ("XFSZ", Signal::XFSZ),
    ("VTALRM", Signal::VTALARM),
    ("PROF", Signal::PROF),
    ("WINCH", Signal::WINCH),
    ("IO", Signal::IO),
    ("PWR", Signal::POWER),
    ("SYS", Signal::SYS),
];

/// A signal that asks a process to end, before SIGKILL makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstSignal(Signal);

impl FirstSignal {
    /// What asks a process to end.
    pub const TERM: Self = Self(Signal::TERM);

    /// The signal.
    pub fn signal(self) -> Signal {
        self.0
    }
}

/// A signal before SIGKILL, and how long to wait for its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalFirst {
    /// The signal.
    pub signal: FirstSignal,
    /// The time between it and SIGKILL.
    pub grace: Duration,
}

impl FromStr for FirstSignal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let found = NAMES.iter().find(|(known, signal)| *known == name || signal.as_raw().to_string() == name);
        match found {
            // KILL is what follows anyway; a stopped process cannot end by itself.
            Some((name @ ("KILL" | "STOP"), _)) => {
                Err(format!("SIG{name} does not ask a process to end; leave the option out, or use SIGTERM"))
            }
            Some((_, signal)) => Ok(Self(*signal)),
            None => Err("no such signal; use for example SIGTERM, TERM or 15".to_owned()),
        }
    }
}

impl fmt::Display for FirstSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, signal)| *signal == self.0) {
            Some((name, _)) => write!(f, "SIG{name}"),
            None => write!(f, "signal {}", self.0.as_raw()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for text in ["SIGTERM", "TERM", "sigterm", "15"] {
            let first: FirstSignal = text.parse().unwrap();
            assert_eq!(first.signal(), Signal::TERM, "{text}");
            assert_eq!(first.to_string(), "SIGTERM");
        }
        for bad in ["", "SIG", "SIGNOPE", "0", "-15", "015", "99", "KILL", "9", "SIGSTOP"] {
            assert!(bad.parse::<FirstSignal>().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_number_is_there_once() {
        let mut numbers: Vec<_> = NAMES.iter().map(|(_, signal)| signal.as_raw()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=31).collect::<Vec<_>>());
    }
}
