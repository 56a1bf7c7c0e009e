// SPDX-License-Identifier: GPL-2.0-only
//! What is killed and removed when the lab is interrupted.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use rustix::process::Pid;

use crate::progress::unpoisoned;

/// The process groups of running children, and the paths of what is being built.
pub(super) struct CleanupList {
    pub(super) groups: Vec<Pid>,
    pub(super) stagings: Vec<PathBuf>,
}

/// Returns the list, locked.
pub(super) fn cleanup() -> MutexGuard<'static, CleanupList> {
    static LIST: Mutex<CleanupList> = Mutex::new(CleanupList { groups: Vec::new(), stagings: Vec::new() });
    unpoisoned(&LIST)
}
