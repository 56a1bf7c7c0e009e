// SPDX-License-Identifier: GPL-2.0-only
//! The sandbox that the daemon enters once it has started (seccomp, Landlock), and the limits and locks on
//! its own memory.

use std::fs;
use std::io;
use std::path::{self, Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
    path_beneath_rules,
};
use linux::Root;
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;

use super::calls::restrict_calls;

/// The files that are used after the start. What does not exist is left out.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Files that are read, and directories in which files are.
    pub read: Vec<PathBuf>,
    /// Directories in which files are created, written and renamed: the history's.
    pub create: Vec<PathBuf>,
    /// Directories in which existing files are written: the cgroups'.
    pub write: Vec<PathBuf>,
}

impl Access {
    /// What every daemon needs, and its own: the directories of the configuration, of what that links to, and of
    /// the history. The directory of the configuration and not the file, and /etc and not /etc/passwd, as a new
    /// file is put in the place of the old.
    pub fn new(config: &Path, history: Option<&Path>, cgroups: Option<&Path>) -> Self {
        let parent = |path: &Path| path.parent().map(Path::to_owned);
        let system = ["/proc", "/sys", "/etc"].map(PathBuf::from);
        let config = [path::absolute(config), fs::canonicalize(config)];
        Self {
            read: system.into_iter().chain(config.iter().flatten().filter_map(|path| parent(path))).collect(),
            create: history.and_then(parent).into_iter().collect(),
            write: cgroups.map(Path::to_owned).into_iter().collect(),
        }
    }
}

/// Enters the sandbox: no new privileges, no files but `access` (Landlock), no system calls but those that
/// the daemon makes (seccomp). Returns what could not be done; the daemon can work without.
///
/// Landlock applies to the calling thread and those that it starts from then on, and forbids them to trace
/// processes outside. Before Linux 6.14 the kernel counts reading a smaps_rollup as that; since then only
/// without CAP_PERFMON. So threads that read smaps_rollup must have been started before. seccomp applies to
/// these threads, too.
pub fn enter(access: &Access) -> Vec<String> {
    let mut missing = Vec::new();
    if let Err(e) = rustix::thread::set_no_new_privs(true) {
        missing.push(format!("new privileges cannot be ruled out: {e}"));
    }
    match restrict_files(access) {
        Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => {}
        Ok(RulesetStatus::NotEnforced) => missing.push("this kernel does not offer Landlock".to_owned()),
        Err(e) => missing.push(format!("Landlock: {e}")),
    }
    if let Err(e) = restrict_calls() {
        missing.push(format!("seccomp: {e}"));
    }
    missing
}

fn restrict_files(access: &Access) -> Result<RulesetStatus, landlock::RulesetError> {
    // No scopes: signals to others are what the daemon is for. TCP needs Linux 6.7; there is no rule for it,
    // so no port can be bound or connected to any more.
    let all = AccessFs::from_all(ABI::V5);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let create = read | AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile;
    let write = read | AccessFs::WriteFile;
    let status = Ruleset::default()
        .handle_access(all)?
        .handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp)?
        .create()?
        .add_rules(path_beneath_rules(&access.read, read))?
        .add_rules(path_beneath_rules(&access.create, create))?
        .add_rules(path_beneath_rules(&access.write, write))?
        .restrict_self()?;
    Ok(status.ruleset)
}

/// Keeps this program's memory from being swapped out or dropped, now and in the future. Pages are locked
/// from their first use on, so what was never used takes no memory: code that must not wait has to be run
/// once before.
///
/// # Errors
/// When that is not permitted (CAP_IPC_LOCK, RLIMIT_MEMLOCK).
pub fn lock_memory() -> io::Result<()> {
    let mut flags = MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT;
    // Where there is a limit, later mappings would fail at it.
    let unlimited = getrlimit(Resource::Memlock).current.is_none()
        || linux::features::capabilities(&Root::system()).contains(CapabilitySet::IPC_LOCK);
    if unlimited {
        flags |= MlockAllFlags::FUTURE;
    }
    Ok(rustix::mm::mlockall(flags)?)
}

/// Keeps the kernel's OOM killer away from this program. Children inherit that, unless they change it.
///
/// # Errors
/// When that is not permitted (CAP_SYS_RESOURCE) and was not done by the service manager.
pub fn exempt_from_oom() -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", "-1000")
}

/// Limits this program's own memory to `bytes`, so that a leak in the daemon cannot use up the machine's. All
/// private writable memory counts, used or not, with the stacks of threads.
///
/// # Errors
/// When there is a lower limit already.
pub fn limit_memory(bytes: u64) -> io::Result<()> {
    Ok(setrlimit(Resource::Data, Rlimit { current: Some(bytes), maximum: Some(bytes) })?)
}

#[cfg(test)]
mod tests;
