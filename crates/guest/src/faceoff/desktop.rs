// SPDX-License-Identifier: GPL-2.0-only
//! The guest as a desktop: a user's session in control groups, with apps in it, and swap.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use protocol::faceoff::Who;

use super::command::run;
use super::process::{OOM_SCORE_ADJ, Process, USER_ID};
use super::workload::Workload;
use crate::memory::PAGE_BYTES;
use crate::memory::swap;
use crate::rng::Rng;
use crate::system::cgroup::Cgroup;

/// The user's service manager, below which all programs of the session are.
const MANAGER: &str = "user@1000.service";
const MANAGER_CGROUP: &str = "user.slice/user-1000.slice/user@1000.service";
const SESSION_CGROUP: &str = "user.slice/user-1000.slice/session-2.scope";
const SWAP_BYTES: u64 = 1 << 30;
/// The file that the foreground app maps.
pub const APP_FILE: &str = "/var/lib/faceoff/app.data";
const APP_FILE_MIB: usize = 40;
/// How long the foreground app draws before anything is measured.
const WARM_UP: Duration = Duration::from_secs(3);

/// The processes that run before a load begins.
pub struct Desktop {
    /// The first one is the foreground app.
    pub processes: Vec<Process>,
}

impl Desktop {
    /// Sets everything up, and lets the foreground app run for a while.
    ///
    /// # Errors
    /// When the guest lacks something that is needed.
    pub fn set_up(seed: u64) -> Result<Self> {
        set_up_swap()?;
        if Path::new("/run/systemd/system").exists() {
            start_manager()?;
        }
        make_app_file(seed)?;
        let foreground = Workload::Frames { mib: 120, file: APP_FILE.into() };
        let editor = Workload::Keep { mib: 150, random_permille: 500, touched_pages: 64 };
        let shell = Workload::Keep { mib: 4, random_permille: 500, touched_pages: 0 };
        let session = Cgroup::create_all(SESSION_CGROUP, "memory")?;
        let adj = OOM_SCORE_ADJ;
        let processes = vec![
            Process::start(
                Who::Foreground,
                "foreground",
                &app_cgroup("foreground")?,
                adj,
                seed,
                &foreground,
            )?,
            Process::start(Who::Innocent, "editor", &app_cgroup("editor")?, adj, seed + 1, &editor)?,
            Process::start(Who::Innocent, "shell", &session, 0, seed + 2, &shell)?,
        ];
        thread::sleep(WARM_UP);
        ensure!(processes[0].shared.frame_count() > 0, "the foreground app draws nothing");
        Ok(Self { processes })
    }
}

/// Creates the cgroup of one of the session's apps.
///
/// # Errors
/// When the cgroup cannot be created.
pub fn app_cgroup(name: &str) -> Result<Cgroup> {
    Cgroup::create_all(&format!("{MANAGER_CGROUP}/app.slice/app-{name}.scope"), "memory")
}

/// Creates the cgroup of an app below one that several apps share.
///
/// # Errors
/// When the cgroup cannot be created.
pub fn nested_app_cgroup(slice: &str, name: &str) -> Result<Cgroup> {
    let path = format!("{MANAGER_CGROUP}/app.slice/app-{slice}.slice/app-{name}.scope");
    Cgroup::create_all(&path, "memory")
}

fn set_up_swap() -> Result<()> {
    let swaps = fs::read_to_string("/proc/swaps").context("/proc/swaps")?;
    if swaps.lines().count() < 2 {
        // It stays until the guest ends.
        std::mem::forget(swap::Area::zram(SWAP_BYTES, Some("lz4"))?);
    }
    Ok(())
}

/// Has systemd start the user's service manager, so that contestants that look at units find its service.
fn start_manager() -> Result<()> {
    let users = fs::read_to_string("/etc/passwd").context("/etc/passwd")?;
    let id = USER_ID.to_string();
    if !users.lines().any(|line| line.split(':').nth(2) == Some(&id)) {
        run("useradd", &["--uid", &id, "--create-home", "--user-group", "desktop"])?;
    }
    run("systemctl", &["start", MANAGER])
}

/// Creates a file on the disk that the foreground app maps, as apps map programs and libraries.
fn make_app_file(seed: u64) -> Result<()> {
    let path = Path::new(APP_FILE);
    let context = || path.display().to_string();
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(context)?;
        fs::set_permissions(folder, Permissions::from_mode(0o755)).with_context(context)?;
    }
    let mut file = File::create(path).with_context(context)?;
    let mut rng = Rng(seed);
    for _ in 0..APP_FILE_MIB * (1 << 20) / PAGE_BYTES {
        let page: Vec<u8> = (0..PAGE_BYTES / 8).flat_map(|_| rng.bits().to_ne_bytes()).collect();
        file.write_all(&page).with_context(context)?;
    }
    // Dirty pages could not be dropped under pressure, as a program's pages can.
    file.sync_all().with_context(context)?;
    chown(path, Some(USER_ID), Some(USER_ID)).with_context(context)
}
