// SPDX-License-Identifier: GPL-2.0-only
//! The job of PID 1: the file [`PATH`] in the guest's initramfs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The path of the file with the [`Job`].
pub const PATH: &str = "/job.json";

/// The folder whose content is copied to the disk, for a job that runs there.
pub const OVERLAY: &str = "/overlay";

/// The kernel parameter with the time for which PID 1 sleeps before the job, in microseconds. It gets it in its
/// environment, as it does each parameter that the kernel does not know.
pub const DELAY_PARAMETER: &str = "lab_delay_us";

/// The job of one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The command to run.
    pub command: Command,
    /// Whether it runs in the file system of the guest's disk, with the files of [`OVERLAY`] in it.
    pub has_root: bool,
}

/// The command of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Command {
    /// A scenario of `/bin/guest`.
    Scenario {
        /// Its name.
        name: String,
        /// Its arguments, usually `KEY=VALUE`.
        args: Vec<String>,
    },
    /// A program with its arguments. Its output and exit status are sent to the lab.
    Exec(Vec<String>),
    /// An interactive shell on the serial console.
    Shell,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scenario { name, args } if args.is_empty() => f.write_str(name),
            Self::Scenario { name, args } => write!(f, "{name} {}", args.join(" ")),
            Self::Exec(argv) => f.write_str(&argv.join(" ")),
            Self::Shell => f.write_str("shell"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_read_as_it_was_written() {
        for (command, text) in [
            (
                Command::Scenario { name: "reap".into(), args: vec!["rounds=1".into()] },
                r#"{"command":{"scenario":{"name":"reap","args":["rounds=1"]}},"has_root":false}"#,
            ),
            (Command::Exec(vec!["/bin/true".into()]), r#"{"command":{"exec":["/bin/true"]},"has_root":false}"#),
            (Command::Shell, r#"{"command":"shell","has_root":false}"#),
        ] {
            let job = Job { command, has_root: false };
            assert_eq!(serde_json::to_string(&job).unwrap(), text);
            assert_eq!(serde_json::from_str::<Job>(text).unwrap(), job);
        }
    }

    #[test]
    fn unknown_fields_and_commands_are_refused() {
        for bad in [
            r#"{"command":"shell","has_root":false,"cpus":2}"#,
            r#"{"command":{"scenario":{"name":"reap","args":[],"rounds":1}},"has_root":false}"#,
            r#"{"command":"reboot","has_root":false}"#,
            r#"{"command":"shell"}"#,
            "{}",
        ] {
            assert!(serde_json::from_str::<Job>(bad).is_err(), "{bad}");
        }
    }
}
