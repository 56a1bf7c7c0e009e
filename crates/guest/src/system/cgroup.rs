//! Control groups: made, filled, limited, and removed when no longer needed.

use std::{fs, process};

use anyhow::{Context as _, Result};
use rustix::process::Pid;

const ROOT: &str = "/sys/fs/cgroup";

/// A cgroup below the root, until dropped.
pub struct Cgroup {
    path: String,
}

impl Cgroup {
    /// An empty group with one controller, such as `memory`.
    ///
    /// # Errors
    /// When cgroup v2 or the controller is missing, or there is such a group.
    pub fn new(name: &str, controller: &str) -> Result<Self> {
        let control = format!("{ROOT}/cgroup.subtree_control");
        fs::write(&control, format!("+{controller}"))
            .with_context(|| format!("{control}: +{controller} (CONFIG_MEMCG, CONFIG_CFS_BANDWIDTH)"))?;
        let path = format!("{ROOT}/{name}");
        fs::create_dir(&path).with_context(|| path.clone())?;
        Ok(Self { path })
    }

    /// Writes to one of the group's files.
    ///
    /// # Errors
    /// When there is no such file, or the kernel refuses the value.
    pub fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = format!("{}/{file}", self.path);
        fs::write(&path, value).with_context(|| format!("{path}: {value}"))
    }

    /// The number in one of the group's files.
    ///
    /// # Errors
    /// When there is no such file, or something else in it.
    pub fn number(&self, file: &str) -> Result<u64> {
        let text = self.get(file)?;
        text.trim_end().parse().with_context(|| format!("{}/{file}: {text}", self.path))
    }

    /// Reads one of the group's files.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn get(&self, file: &str) -> Result<String> {
        let path = format!("{}/{file}", self.path);
        fs::read_to_string(&path).context(path)
    }

    /// Moves a process into the group.
    ///
    /// # Errors
    /// When the kernel refuses that.
    pub fn add(&self, pid: Pid) -> Result<()> {
        self.set("cgroup.procs", &pid.as_raw_pid().to_string())
    }

    /// Moves this process into the group.
    ///
    /// # Errors
    /// When the kernel refuses that.
    pub fn join(&self) -> Result<()> {
        self.add(rustix::process::getpid())
    }

    /// Moves this process back to the root.
    ///
    /// # Errors
    /// When the kernel refuses that.
    pub fn leave(&self) -> Result<()> {
        let procs = format!("{ROOT}/cgroup.procs");
        fs::write(&procs, process::id().to_string()).context(procs)
    }

    /// Has the kernel try to reclaim so many bytes of the group's memory.
    ///
    /// # Errors
    /// What memory.reclaim says, but for "not as much as that".
    pub fn reclaim(&self, bytes: usize) -> Result<()> {
        let path = format!("{}/memory.reclaim", self.path);
        match fs::write(&path, bytes.to_string()) {
            Err(e) if e.raw_os_error() != Some(libc::EAGAIN) => Err(e).context(path),
            _ => Ok(()),
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // An empty group that stays costs nothing.
        let _ = self.leave();
        let _ = fs::remove_dir(&self.path);
    }
}
