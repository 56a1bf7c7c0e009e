// SPDX-License-Identifier: GPL-2.0-only
//! What a boot leaves beside its logs for whoever continues the comparison: `boot.json` if it ended
//! well, and for an attempt that did not a folder of its own, `<logs>.failed`, with `failed.json`.
//! Both hold the boot's content key ([`crate::vm::boot::content_key`]): with another kernel, guest or
//! QEMU they mean nothing.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ab::results::RepeatedBoot;
use crate::host::write_atomically;
use crate::host::{self, Staging};
use protocol::results::Sample;

/// A boot that ended well.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct BootRecord {
    /// The boot's content key.
    pub key: String,
    /// The release of its kernel.
    pub release: Option<String>,
    /// What it measured.
    pub samples: Vec<Sample>,
}

impl BootRecord {
    /// What is kept beside these logs; nothing also if it is not of this form.
    pub fn read(logs: &Path) -> Option<Self> {
        read(&file(logs))
    }

    /// Writes it beside the logs.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn write(&self, logs: &Path) -> Result<()> {
        write_atomically(&file(logs), &serde_json::to_string(self)?)
    }
}

/// Sees to it that the boot with these logs is made again.
///
/// # Errors
/// When what is kept cannot be removed.
pub fn forget(logs: &Path) -> Result<()> {
    let file = file(logs);
    host::remove_any(&file).with_context(|| format!("cannot remove {}", file.display()))
}

fn file(logs: &Path) -> PathBuf {
    logs.join("boot.json")
}

/// An attempt that failed.
#[derive(Serialize, Deserialize)]
struct Failed {
    key: String,
    repeated: RepeatedBoot,
}

/// Where the logs of an attempt go that failed.
pub fn failed_folder(logs: &Path) -> PathBuf {
    let mut name = logs.as_os_str().to_owned();
    name.push(".failed");
    name.into()
}

/// Moves the logs of an attempt that failed out of the way of the next one, in place of those of
/// any attempt before. Does not return if the attempt failed because the lab was interrupted.
///
/// # Errors
/// When the folder cannot be moved or written.
pub fn set_aside(logs: &Path, key: &str, repeated: &RepeatedBoot) -> Result<()> {
    let target = failed_folder(logs);
    let failed = Failed { key: key.to_owned(), repeated: repeated.clone() };
    let staging = Staging::begin(&target)?;
    fs::rename(logs, staging.path()).with_context(|| format!("cannot move {}", logs.display()))?;
    write_atomically(&staging.path().join("failed.json"), &serde_json::to_string(&failed)?)?;
    staging.publish(&target)
}

/// What became of an earlier attempt at the boot with these logs, if it was the same by its key.
/// One that was not is removed.
///
/// # Errors
/// When it cannot be removed.
pub fn earlier_failure(logs: &Path, key: &str) -> Result<Option<RepeatedBoot>> {
    let folder = failed_folder(logs);
    match read::<Failed>(&folder.join("failed.json")) {
        Some(failed) if failed.key == key => Ok(Some(failed.repeated)),
        _ => {
            host::remove_any(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
            Ok(None)
        }
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}
