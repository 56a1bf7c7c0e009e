// SPDX-License-Identifier: GPL-2.0-only
//! Control groups (v2): create, fill, limit and remove them.

use std::fs::{self, File};
use std::ops::Deref;
use std::time::Duration;
use std::{io, process, thread};

use anyhow::{Context as _, Result};
use rustix::process::Pid;

use super::counters::number_in;

const ROOT: &str = "/sys/fs/cgroup";

/// A cgroup. It stays when this is dropped.
#[derive(Clone)]
pub struct Cgroup {
    path: String,
}

impl Cgroup {
    /// Creates a cgroup and those above it, where they are missing, each with one controller, such as
    /// `memory`. `path` is relative to the root.
    ///
    /// # Errors
    /// When cgroup v2 or the controller is missing.
    pub fn create_all(path: &str, controller: &str) -> Result<Self> {
        let mut at = ROOT.to_owned();
        for name in path.split('/') {
            enable(&at, controller)?;
            at = format!("{at}/{name}");
            match fs::create_dir(&at) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e).context(at),
                _ => {}
            }
        }
        Ok(Self { path: at })
    }

    /// The cgroup above.
    pub fn parent(&self) -> Self {
        Self { path: self.path.rsplit_once('/').map_or("", |(above, _)| above).to_owned() }
    }

    /// The path of one of the cgroup's files.
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Has the cgroup and its siblings use one more controller.
    ///
    /// # Errors
    /// When the kernel does not have it.
    pub fn control(&self, controller: &str) -> Result<()> {
        enable(&self.parent().path, controller)
    }

    /// Writes to one of the cgroup's files.
    ///
    /// # Errors
    /// When there is no such file, or the kernel refuses the value.
    pub fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.file(file);
        fs::write(&path, value).with_context(|| format!("{path}: {value}"))
    }

    /// Reads one of the cgroup's files.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn get(&self, file: &str) -> Result<String> {
        let path = self.file(file);
        fs::read_to_string(&path).context(path)
    }

    /// Reads the number in one of the cgroup's files.
    ///
    /// # Errors
    /// When there is no such file, or it holds something else.
    pub fn number(&self, file: &str) -> Result<u64> {
        number_in(&self.file(file))
    }

    /// Opens one of the cgroup's files for reading.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn open(&self, file: &str) -> Result<File> {
        let path = self.file(file);
        File::open(&path).context(path)
    }

    /// Moves a process into the cgroup.
    ///
    /// # Errors
    /// When the kernel refuses that.
    pub fn add(&self, pid: Pid) -> Result<()> {
        self.set("cgroup.procs", &pid.as_raw_pid().to_string())
    }

    /// Moves this process into the cgroup.
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

    /// Has `start` fork processes that are in the cgroup; afterwards this one is in the root, also if that fails.
    ///
    /// # Errors
    /// When the kernel refuses to move this process, and those of `start`.
    pub fn within<T>(&self, start: impl FnOnce() -> Result<T>) -> Result<T> {
        self.join()?;
        let started = start();
        self.leave()?;
        started
    }

    /// Asks the kernel to reclaim all of the cgroup's memory, so often until it has. That is never all of a
    /// living process: it needs some.
    ///
    /// # Errors
    /// Those of [`Cgroup::reclaim`], and when memory.current cannot be read.
    pub fn reclaim_all(&self, tries: usize) -> Result<()> {
        const RETRY_INTERVAL: Duration = Duration::from_millis(10);
        for _ in 0..tries {
            if self.reclaim(usize::try_from(self.number("memory.current")?)?)? {
                break;
            }
            thread::sleep(RETRY_INTERVAL);
        }
        Ok(())
    }

    /// Asks the kernel to reclaim so many bytes of the cgroup's memory. Returns whether it reclaimed all
    /// of them.
    ///
    /// # Errors
    /// Those of memory.reclaim, except for "less than that" (EAGAIN).
    pub fn reclaim(&self, bytes: usize) -> Result<bool> {
        let path = self.file("memory.reclaim");
        match fs::write(&path, bytes.to_string()) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
            Err(e) => Err(e).context(path),
        }
    }
}

/// Lets the cgroups directly below `path` use a controller.
fn enable(path: &str, controller: &str) -> Result<()> {
    let control = format!("{path}/cgroup.subtree_control");
    fs::write(&control, format!("+{controller}"))
        .with_context(|| format!("{control}: +{controller} (CONFIG_MEMCG, CONFIG_CFS_BANDWIDTH)"))
}

/// A cgroup. When this is dropped, this process leaves it and it is removed.
pub struct TemporaryCgroup(Cgroup);

impl TemporaryCgroup {
    /// Creates an empty cgroup with one controller, such as `memory`. `path` is relative to the root; the cgroup
    /// above exists and has no processes.
    ///
    /// # Errors
    /// When cgroup v2 or the controller is missing, or there already is such a cgroup.
    pub fn new(path: &str, controller: &str) -> Result<Self> {
        let cgroup = Cgroup { path: format!("{ROOT}/{path}") };
        cgroup.control(controller)?;
        fs::create_dir(&cgroup.path).with_context(|| cgroup.path.clone())?;
        Ok(Self(cgroup))
    }
}

impl Deref for TemporaryCgroup {
    type Target = Cgroup;

    fn deref(&self) -> &Cgroup {
        &self.0
    }
}

impl Drop for TemporaryCgroup {
    fn drop(&mut self) {
        // An empty cgroup that stays costs nothing.
        let _ = self.leave();
        let _ = fs::remove_dir(&self.path);
    }
}
