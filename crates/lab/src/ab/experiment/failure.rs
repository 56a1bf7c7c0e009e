// SPDX-License-Identifier: GPL-2.0-only
//! The error of a run that ended because of a guest.

use std::path::PathBuf;

use crate::vm::boot::Boot;
use crate::vm::channel::Outcome;

/// The error of a run that ended because of a guest. Callers get it by [`anyhow::Error::downcast_ref`].
#[derive(Debug, thiserror::Error)]
#[error("{boot}: {cause}\n{}\nall logs of this boot: {}", .tail.trim_end(), .logs.display())]
pub struct Failure {
    /// The boot's name, for example `pair 3/8, memreap, reap/multi`.
    pub boot: String,
    /// The boot's outcome, or how its metrics are not those of the other boots.
    pub cause: String,
    /// The lab's: 3 if QEMU failed, 4 if the guest failed.
    pub exit_code: u8,
    /// The folder with all logs of the boot.
    pub logs: PathBuf,
    /// The relevant parts of the logs; see [`Boot::tail`].
    pub tail: String,
}

impl Failure {
    /// The failure of a guest, with so many lines of its logs.
    pub fn new(name: &str, boot: &Boot, lines: usize) -> Self {
        Self {
            boot: name.to_owned(),
            cause: boot.outcome.to_string(),
            exit_code: if matches!(boot.outcome, Outcome::Qemu(_)) { 3 } else { 4 },
            logs: boot.logs().to_owned(),
            tail: boot.tail(lines),
        }
    }
}
