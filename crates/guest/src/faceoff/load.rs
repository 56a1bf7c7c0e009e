// SPDX-License-Identifier: GPL-2.0-only
//! The loads of all variants: which processes take part, and when the load is over.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use anyhow::Result;

use protocol::faceoff::{Variant, Who};

use super::desktop::{APP_FILE, app_cgroup, nested_app_cgroup};
use super::levels::RECOVERED_FOR_NS;
use super::process::{OOM_SCORE_ADJ, Process, has_ended, open_pidfd};
use super::recorder::LimitedCgroup;
use super::workload::{MIB_PAGES, Workload};
use crate::memory::PAGE_BYTES;
use crate::system::cgroup::Cgroup;

/// A page of random bytes, which does not compress.
const INCOMPRESSIBLE_PERMILLE: usize = 1000;
/// A third of each page is random: it compresses 3:1.
const COMPRESSIBLE_PERMILLE: usize = 333;
/// The leak's memory compresses 1.3:1.
const LEAK_PERMILLE: usize = 770;
const LEAK_MB_PER_S: usize = 50;
const FORKS: usize = 200;
const FORK_MIB: usize = 24;
/// What the limited cgroup may have in memory and in swap.
const LIMIT_MIB: u64 = 512;
const LIMIT_SWAP_MIB: u64 = 256;
/// What the innocent process shares with another one, and what it has of its own.
const INNOCENT_SHARED_MIB: usize = 600;
const INNOCENT_OWN_MIB: usize = 100;
const APPS: usize = 15;
const APP_MIB: usize = 70;
/// Apps compress 4:3, so that all of them and the camera do not fit.
const APP_PERMILLE: usize = 750;
/// What a phone sets for apps in the background.
const APP_OOM_SCORE_ADJ: i32 = 900;
const CAMERA_MIB: usize = 800;
/// How long the recording continues after the camera has its memory.
const CAMERA_CONTINUE_NS: u64 = 3 * RECOVERED_FOR_NS;

/// The processes of a load, ready to begin.
pub struct Load {
    variant: Variant,
    /// The last one is the leader: the process that begins.
    pub processes: Vec<Process>,
    /// The processes that the leader started, in order.
    children: Vec<OwnedFd>,
    /// The cgroup that limits the load, if one does.
    pub limited: Option<LimitedCgroup>,
}

impl Load {
    /// Starts all processes. They are killed when the calling thread ends.
    ///
    /// # Errors
    /// When a process does not get its memory, or a cgroup cannot be set up.
    pub fn prepare(variant: Variant, seed: u64) -> Result<Self> {
        let seed = |n: u64| seed.wrapping_mul(1000) + n;
        let start_hog = |workload: &Workload| {
            Process::start(Who::Hog, "hog", &app_cgroup("hog")?, OOM_SCORE_ADJ, seed(0), workload)
        };
        let hog =
            |random_permille, mb_per_s| start_hog(&Workload::Grow { mib: 0, random_permille, mb_per_s });
        let mut limited = None;
        let processes = match variant {
            Variant::Hog => vec![hog(INCOMPRESSIBLE_PERMILLE, 0)?],
            Variant::Compressible => vec![hog(COMPRESSIBLE_PERMILLE, 0)?],
            Variant::Leak => vec![hog(LEAK_PERMILLE, LEAK_MB_PER_S)?],
            Variant::Forks => vec![start_hog(&Workload::Fork { count: FORKS, mib: FORK_MIB })?],
            Variant::Limit => {
                let cgroup = nested_app_cgroup("box", "boxapp")?;
                let parent = cgroup.parent();
                parent.set("memory.max", &(LIMIT_MIB << 20).to_string())?;
                parent.set("memory.swap.max", &(LIMIT_SWAP_MIB << 20).to_string())?;
                limited = Some(LimitedCgroup::open(&parent, LIMIT_MIB << 10)?);
                let app = Workload::Frames { mib: 120, file: APP_FILE.into() };
                let hog = Workload::Grow { mib: 0, random_permille: INCOMPRESSIBLE_PERMILLE, mb_per_s: 0 };
                let adj = OOM_SCORE_ADJ;
                vec![
                    Process::start(Who::Foreground, "boxapp", &cgroup, adj, seed(1), &app)?,
                    Process::start(Who::Hog, "hog", &nested_app_cgroup("box", "hog")?, adj, seed(0), &hog)?,
                ]
            }
            Variant::Innocent => {
                let workload = Workload::Share { shared_mib: INNOCENT_SHARED_MIB, mib: INNOCENT_OWN_MIB };
                let cgroup = app_cgroup("innocent")?;
                let innocent =
                    Process::start(Who::Innocent, "innocent", &cgroup, OOM_SCORE_ADJ, seed(1), &workload)?;
                vec![innocent, hog(INCOMPRESSIBLE_PERMILLE, 0)?]
            }
            Variant::Apps => {
                let mut processes =
                    (1..=APPS).map(|n| start_app(n, seed(n as u64))).collect::<Result<Vec<_>>>()?;
                let workload =
                    Workload::Grow { mib: CAMERA_MIB, random_permille: INCOMPRESSIBLE_PERMILLE, mb_per_s: 0 };
                let cgroup = app_cgroup("camera")?;
                processes.push(Process::start(Who::Camera, "camera", &cgroup, 0, seed(0), &workload)?);
                processes
            }
            Variant::Idle => Vec::new(),
        };
        let children = match variant {
            Variant::Forks => processes[0].shared.children().map(open_pidfd).collect::<Result<_>>()?,
            _ => Vec::new(),
        };
        Ok(Self { variant, processes, children, limited })
    }

    fn leader(&self) -> Option<&Process> {
        self.processes.last()
    }

    /// Lets the leader begin.
    pub fn start(&self) {
        if let Some(leader) = self.leader() {
            leader.shared.start();
        }
    }

    /// Whether no process allocates any more: hogs are dead or have grown to their size, the camera is dead
    /// or has its memory.
    pub fn is_over(&self) -> bool {
        let Some(leader) = self.leader() else { return true };
        match self.variant {
            Variant::Forks => self
                .children
                .iter()
                .enumerate()
                .all(|(i, pidfd)| leader.shared.is_grown(i) || has_ended(pidfd)),
            _ => leader.shared.allocated().is_some() || has_ended(&leader.pidfd),
        }
    }

    /// For how many nanoseconds the recording continues when the load is over; `None` if until memory has
    /// recovered, which it need not do when the camera keeps what it has.
    pub fn continue_ns(&self) -> Option<u64> {
        (self.variant == Variant::Apps).then_some(CAMERA_CONTINUE_NS)
    }

    /// The foreground app, if the load has its own.
    pub fn foreground(&self) -> Option<&Process> {
        self.processes.iter().find(|process| process.who == Who::Foreground)
    }

    /// The app that waits for its memory, if there is one.
    pub fn camera(&self) -> Option<&Process> {
        self.processes.iter().find(|process| process.who == Who::Camera)
    }

    /// How many kills are needed, where that is known: one for one hog.
    pub fn needed_kills(&self) -> Option<u64> {
        (!matches!(self.variant, Variant::Forks | Variant::Apps | Variant::Idle)).then_some(1)
    }

    /// Kills all processes that are left, so that there is memory for what follows.
    ///
    /// # Errors
    /// When a cgroup refuses that.
    pub fn clean_up(&self) -> Result<()> {
        self.processes.iter().try_for_each(|process| process.cgroup.set("cgroup.kill", "1"))
    }
}

/// Starts an app that was used once and has been swapped out since.
fn start_app(n: usize, seed: u64) -> Result<Process> {
    let name = format!("bgapp{n}");
    let cgroup = app_cgroup(&name)?;
    let workload = Workload::Keep { mib: APP_MIB, random_permille: APP_PERMILLE, touched_pages: 0 };
    let process = Process::start(Who::Background, &name, &cgroup, APP_OOM_SCORE_ADJ, seed, &workload)?;
    swap_out(&cgroup)?;
    Ok(process)
}

/// Has the kernel reclaim what it can of an app's memory. That is never all of it: a living process needs
/// some.
fn swap_out(cgroup: &Cgroup) -> Result<()> {
    const TRIES: usize = 5;
    const RETRY_INTERVAL: Duration = Duration::from_millis(10);
    for _ in 0..TRIES {
        if cgroup.reclaim(APP_MIB * MIB_PAGES * PAGE_BYTES)? {
            break;
        }
        thread::sleep(RETRY_INTERVAL);
    }
    Ok(())
}
