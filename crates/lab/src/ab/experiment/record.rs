// SPDX-License-Identifier: GPL-2.0-only
//! Records of boots, so that an interrupted comparison can be continued.
//!
//! A boot that ended well leaves `boot.json` next to its logs. The logs of a failed attempt are moved to
//! `<logs>.failed` and get a `failed.json`. Both have the boot's content key
//! ([`crate::vm::boot::content_key`]); they are ignored if the kernel, the guest or QEMU has changed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ab::results::RepeatedBoot;
use crate::host::write_atomically;
use crate::host::{self, Staging};
use protocol::results::{Sample, Series};

/// The content of `boot.json`: a boot that ended well.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct BootRecord {
    pub key: String,
    /// The release of its kernel.
    pub release: Option<String>,
    pub samples: Vec<Sample>,
    /// How things developed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
    /// The largest share of the host's CPU time that was stolen meanwhile, as in [`crate::vm::boot::Boot`].
    pub stolen: Option<f64>,
}

impl BootRecord {
    /// Reads the record next to these logs; `None` if there is none or it is not valid.
    pub fn read(logs: &Path) -> Option<Self> {
        read(&file(logs))
    }

    /// Writes the record next to the logs.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn write(&self, logs: &Path) -> Result<()> {
        write_atomically(&file(logs), &serde_json::to_string(self)?)
    }
}

/// Removes the record next to these logs, so that the boot is repeated.
///
/// # Errors
/// When it cannot be removed.
pub fn forget(logs: &Path) -> Result<()> {
    let file = file(logs);
    host::remove_any(&file).with_context(|| format!("cannot remove {}", file.display()))
}

fn file(logs: &Path) -> PathBuf {
    logs.join("boot.json")
}

/// The content of `failed.json`: an attempt that failed.
#[derive(Serialize, Deserialize)]
struct Failed {
    key: String,
    repeated: RepeatedBoot,
}

/// Returns the folder for the logs of a failed attempt.
pub fn failed_folder(logs: &Path) -> PathBuf {
    let mut name = logs.as_os_str().to_owned();
    name.push(".failed");
    name.into()
}

/// Moves the logs of a failed attempt to [`failed_folder`] and replaces those of an earlier one. Does not
/// return if the attempt failed because the lab was interrupted.
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

/// Returns the failed attempt of an earlier run at the boot with these logs if it has the same key; removes
/// any other.
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
