// SPDX-License-Identifier: GPL-2.0-only
//! A process of the face-off: this binary with a workload, as a user's process in a cgroup of its own.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;
use std::{fs, io, ptr};

use anyhow::{Context as _, Result, ensure};
use linux::{Pid, PidFd};

use protocol::faceoff::Who;
use protocol::load::Step;

use super::shared_page::SharedPage;
use super::workload::Workload;
use crate::system::cgroup::Cgroup;
use crate::system::clock;

/// The user that all processes belong to but root's.
pub const USER_ID: u32 = 1000;
/// The oom_score_adj that a user's service manager sets for programs that set none themselves.
pub const OOM_SCORE_ADJ: i32 = 200;
/// How many frames are kept: five minutes of them.
const MAX_FRAMES: usize = 30_000;
/// How long a process may take to be prepared, under emulation and with a file to read from the disk.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What a process is, before it is started.
pub struct Spec<'a> {
    pub who: Who,
    /// Its command name.
    pub name: &'a str,
    pub cgroup: &'a Cgroup,
    pub oom_score_adj: i32,
    /// Whether it stays root's.
    pub root: bool,
    pub seed: u64,
    pub workload: Workload,
}

/// A process with its workload.
pub struct Process {
    pub who: Who,
    pub cgroup: Cgroup,
    pub shared: SharedPage,
    pub pidfd: PidFd,
    /// Its PID, and those of the processes that it started.
    pub pids: Vec<i32>,
}

impl Process {
    /// Starts a process and waits until its workload is prepared. It is killed when the calling thread
    /// ends.
    ///
    /// # Errors
    /// When the process cannot be started, or is not prepared in time.
    pub fn start(spec: &Spec<'_>) -> Result<Self> {
        let Spec { name, cgroup, .. } = spec;
        let draws = spec.workload.prepare.contains(&Step::Draw {});
        let (shared, fd) = SharedPage::create(if draws { MAX_FRAMES } else { 0 })?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(name).arg("faceoff-workload").arg(name).arg(spec.seed.to_string());
        command.arg(serde_json::to_string(&spec.workload)?);
        command.env_clear().current_dir("/").stdin(fd);
        let (procs, oom_score_adj) = (cgroup.file("cgroup.procs"), spec.oom_score_adj.to_string());
        let root = spec.root;
        // The order matters: the user may not do the first two.
        let enter = move || {
            fs::write(&procs, "0")?;
            fs::write("/proc/self/oom_score_adj", &oom_score_adj)?;
            if root {
                return Ok(());
            }
            // SAFETY: these take numbers, and no memory but an empty list.
            let ret = unsafe { [libc::setgroups(0, ptr::null()), libc::setgid(USER_ID), libc::setuid(USER_ID)] };
            if ret == [0; 3] { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        // SAFETY: this process has no other thread when it starts processes, so the child may use
        // everything the parent may.
        unsafe { command.pre_exec(enter) };
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        let pid = i32::try_from(child.id())?;
        let pidfd = open_pidfd(pid)?;
        let is_ready = || {
            ensure!(shared.ready().is_set() || !has_ended(&pidfd), "{name} ended early; the console says why");
            Ok(shared.ready().is_set())
        };
        let ready = clock::within(READY_TIMEOUT, READY_POLL_INTERVAL, is_ready)?;
        ensure!(ready, "{name} was not ready within {READY_TIMEOUT:?}");
        let pids = [pid].into_iter().chain(shared.children()).collect();
        Ok(Self { who: spec.who, cgroup: Cgroup::clone(cgroup), shared, pidfd, pids })
    }
}

/// Opens a pidfd.
///
/// # Errors
/// Those of pidfd_open(2).
pub fn open_pidfd(pid: i32) -> Result<PidFd> {
    Ok(PidFd::open(Pid::new(pid).context("0 is no PID")?)?)
}

/// Whether a process has ended, reaped or not.
pub fn has_ended(pidfd: &PidFd) -> bool {
    pidfd.has_exited().unwrap_or(false)
}
