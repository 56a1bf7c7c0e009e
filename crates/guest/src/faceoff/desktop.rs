// SPDX-License-Identifier: GPL-2.0-only
//! The guest as a desktop: a user's session in control groups, with apps in it, and swap.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::mount::{MountFlags, mount};

use protocol::faceoff::{Who, ZRAM_PARAMETER};
use protocol::load::{Size, Step};

use super::command::run;
use super::process::{OOM_SCORE_ADJ, Process, Spec, USER_ID};
use super::workload::Workload;
use super::{APP_FILE, DATA_FOLDER, TMPFS_FOLDER};
use crate::memory::PAGE_BYTES;
use crate::memory::swap;
use crate::rng::Rng;
use crate::system::cgroup::Cgroup;

/// The user's service manager, below which all programs of the session are.
const MANAGER: &str = "user@1000.service";
const MANAGER_CGROUP: &str = "user.slice/user-1000.slice/user@1000.service";
const SESSION_CGROUP: &str = "user.slice/user-1000.slice/session-2.scope";
const LOGIN_CGROUP: &str = "system.slice/login.service";
/// That of sshd.
const LOGIN_OOM_SCORE_ADJ: i32 = -1000;
const APP_FILE_MIB: usize = 40;
/// The disk for swap, on machines that have one; the others are the system's and the payload.
const SWAP_DISK: &str = "vdc";
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
        make_files(seed)?;
        let take = |mib, random| Step::Take { size: Size::Mib(mib), random, mb_per_s: None };
        let keep = |touch_mib_per_s| Step::Keep { seconds: None, touch_mib_per_s };
        let start = |who, name, cgroup: &Cgroup, oom_score_adj, seed, prepare| {
            let workload = Workload { prepare, run: Vec::new() };
            Process::start(&Spec { who, name, cgroup, oom_score_adj, root: name == "login", seed, workload })
        };
        let session = Cgroup::create_all(SESSION_CGROUP, "memory")?;
        let service = Cgroup::create_all(LOGIN_CGROUP, "memory")?;
        let (user, app) = (OOM_SCORE_ADJ, Who::Innocent);
        let processes = vec![
            start(
                Who::Foreground,
                "foreground",
                &app_cgroup(None, "foreground")?,
                user,
                seed,
                // An app's memory compresses about 2:1.
                vec![take(120.0, 50), Step::Draw {}],
            )?,
            start(app, "editor", &app_cgroup(None, "editor")?, user, seed + 1, vec![take(150.0, 50), keep(2.5)])?,
            start(app, "shell", &session, 0, seed + 2, vec![take(4.0, 50)])?,
            start(Who::System, "login", &service, LOGIN_OOM_SCORE_ADJ, seed + 3, vec![Step::Login {}])?,
        ];
        thread::sleep(WARM_UP);
        ensure!(processes[0].shared.frame_count() > 0, "the foreground app draws nothing");
        Ok(Self { processes })
    }
}

/// Creates the cgroup of one of the session's apps, below that of a slice if several apps share it.
///
/// # Errors
/// When the cgroup cannot be created.
pub fn app_cgroup(slice: Option<&str>, name: &str) -> Result<Cgroup> {
    let slice = slice.map_or(String::new(), |slice| format!("app-{slice}.slice/"));
    Cgroup::create_all(&format!("{MANAGER_CGROUP}/app.slice/{slice}app-{name}.scope"), "memory")
}

/// Switches the swap on that the machine has: on a disk of its own, and on zram as large as the kernel's
/// command line says.
fn set_up_swap() -> Result<()> {
    let swaps = fs::read_to_string("/proc/swaps").context("/proc/swaps")?;
    if swaps.lines().count() > 1 {
        return Ok(());
    }
    // It all stays until the guest ends.
    if Path::new("/sys/block").join(SWAP_DISK).exists() {
        std::mem::forget(swap::Area::on_disk(SWAP_DISK)?);
    }
    let words = fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?;
    let zram = words.split_whitespace().find_map(|word| word.strip_prefix(ZRAM_PARAMETER));
    let zram_mib = zram.map_or(Ok(0), str::parse::<u64>).context(ZRAM_PARAMETER)?;
    if zram_mib > 0 {
        std::mem::forget(swap::Area::zram(zram_mib << 20, Some("lz4"))?);
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

/// Creates a file on the disk that the foreground app maps, as apps map programs and libraries, and the folders
/// for files of loads.
fn make_files(seed: u64) -> Result<()> {
    let path = Path::new(APP_FILE);
    let context = || path.display().to_string();
    for folder in path.parent().into_iter().chain([Path::new(DATA_FOLDER), Path::new(TMPFS_FOLDER)]) {
        let context = || folder.display().to_string();
        fs::create_dir_all(folder).with_context(context)?;
        fs::set_permissions(folder, Permissions::from_mode(0o755)).with_context(context)?;
    }
    mount("tmpfs", TMPFS_FOLDER, "tmpfs", MountFlags::empty(), c"size=100%").context(TMPFS_FOLDER)?;
    for folder in [DATA_FOLDER, TMPFS_FOLDER] {
        chown(folder, Some(USER_ID), Some(USER_ID)).context(folder)?;
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
