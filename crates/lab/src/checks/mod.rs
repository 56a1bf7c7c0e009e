// SPDX-License-Identifier: GPL-2.0-only
//! `lab test` ([`suite`]) and the checks that run in guests: [`kunit`], [`selftests`], [`stress`], [`soak`].

pub mod kunit;
mod passes;
pub mod selftests;
mod skips;
pub mod soak;
pub mod stress;
pub mod suite;
mod tap;
mod times;

use fs_err as fs;
use std::path::Path;

use anyhow::{Result, bail};
use protocol::results::Message;

use crate::ab::experiment::Failure;
use crate::context::Context;
use crate::vm::boot::{Boot, boot_with};
use crate::vm::channel::Outcome;
use crate::vm::job::{Arm, Job};
use crate::vm::probe::Accel;

/// Boots a guest and returns what its command printed, and if that failed, the guest's notes, which say why if it could
/// not be run. The text is also written to `output.log` in the boot's log folder.
///
/// # Errors
/// When QEMU fails, as a [`Failure`] of the boot called `name`, or the host does. A guest that fails is in the
/// boot's outcome.
fn boot_and_collect(
    ctx: &Context,
    accel: Accel,
    arm: &Arm,
    job: &Job,
    log_folder: &Path,
    name: &str,
) -> Result<(Boot, String)> {
    let mut text = String::new();
    let boot = boot_with(ctx, accel, arm, job, log_folder, &mut |message| {
        if let Message::Out(piece) | Message::Err(piece) = message {
            text.push_str(piece);
        }
    })?;
    if !boot.outcome.is_success() {
        text.extend(boot.notes.iter().map(|note| format!("# the guest says: {note}\n")));
    }
    let logs = boot.logs().to_path_buf();
    fs::write(logs.join("output.log"), &text)?;
    if let Outcome::Qemu(_) = boot.outcome {
        bail!(Failure::new(name, &boot, 20));
    }
    Ok((boot, text))
}
