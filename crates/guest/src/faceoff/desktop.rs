//! The machine as a desktop has it: control groups, processes in them, and swap.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{io, ptr, thread};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use protocol::faceoff::Who;

use super::shared_page::Sheet;
use super::workload::Role;
use crate::memory::region::PAGE;
use crate::memory::swap;
use crate::rng::Dice;

const CGROUP: &str = "/sys/fs/cgroup";
/// The user's own manager, whose service all of the session's programs are under.
const MANAGER: &str = "user@1000.service";
const MANAGER_GROUP: &str = "user.slice/user-1000.slice/user@1000.service";
const SESSION_GROUP: &str = "user.slice/user-1000.slice/session-2.scope";
const USER: u32 = 1000;
const SWAP: u64 = 1 << 30;
/// What the foreground app maps.
pub const APP_FILE: &str = "/var/lib/faceoff/app.data";
const APP_FILE_MIB: usize = 40;
/// How long frames are kept: five minutes.
const FRAMES: usize = 30_000;
/// How long a process may take to be prepared, under emulation and with the disk to read from.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);
/// What the manager of a user's session gives all programs that say nothing else.
pub const ADJ: i32 = 200;
/// How long the foreground draws before anything is measured.
const WARM_UP: Duration = Duration::from_secs(3);

/// A control group by its path below the root; made if it is not there.
#[derive(Clone)]
pub struct Scope(String);

impl Scope {
    /// An app of the session.
    ///
    /// # Errors
    /// When the group cannot be made.
    pub fn app(name: &str) -> Result<Self> {
        Self::make(&format!("{MANAGER_GROUP}/app.slice/app-{name}.scope"))
    }

    /// An app below a group that is limited.
    ///
    /// # Errors
    /// When the group cannot be made.
    pub fn boxed(slice: &str, name: &str) -> Result<Self> {
        Self::make(&format!("{MANAGER_GROUP}/app.slice/app-{slice}.slice/app-{name}.scope"))
    }

    /// The group above.
    pub fn parent(&self) -> Self {
        Self(self.0.rsplit_once('/').map_or("", |(above, _)| above).to_owned())
    }

    /// Makes the group and those above it, with memory accounted for in all of them.
    fn make(path: &str) -> Result<Self> {
        let mut at = CGROUP.to_owned();
        for name in path.split('/') {
            let control = format!("{at}/cgroup.subtree_control");
            fs::write(&control, "+memory").with_context(|| format!("{control}: +memory"))?;
            at = format!("{at}/{name}");
            match fs::create_dir(&at) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e).context(at),
                _ => {}
            }
        }
        Ok(Self(path.to_owned()))
    }

    fn file(&self, name: &str) -> String {
        format!("{CGROUP}/{}/{name}", self.0)
    }

    /// Writes to one of the group's files.
    ///
    /// # Errors
    /// When the kernel refuses that.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let path = self.file(name);
        fs::write(&path, value).with_context(|| format!("{path}: {value}"))
    }

    /// Opens one of the group's files for reading.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn open(&self, name: &str) -> Result<File> {
        let path = self.file(name);
        File::open(&path).context(path)
    }
}

/// A process that plays a role.
pub struct Actor {
    pub who: Who,
    pub scope: Scope,
    pub sheet: Sheet,
    pub pidfd: OwnedFd,
    /// Itself, and the processes that it started.
    pub pids: Vec<i32>,
}

impl Actor {
    /// Starts one, and waits until it is prepared. The thread that calls this must live as long as
    /// the actor shall.
    ///
    /// # Errors
    /// When there is no process for it, or it is not prepared in time.
    pub fn start(who: Who, name: &str, scope: &Scope, adj: i32, seed: u64, role: &Role) -> Result<Self> {
        let actor = Self::begin(who, name, scope, adj, seed, role)?;
        let begun = Instant::now();
        while !actor.sheet.is_ready() {
            ensure!(begun.elapsed() < PATIENCE, "{name} was not ready within {PATIENCE:?}");
            ensure!(!super::recorder::has_ended(&actor.pidfd), "{name} ended early; the console says why");
            thread::sleep(LOOK);
        }
        let pids = actor.pids.iter().copied().chain(actor.sheet.hands()).collect();
        Ok(Self { pids, ..actor })
    }

    fn begin(who: Who, name: &str, scope: &Scope, adj: i32, seed: u64, role: &Role) -> Result<Self> {
        let draws = matches!(role, Role::Frames { .. });
        let (sheet, fd) = Sheet::create(if draws { FRAMES } else { 0 })?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(name).arg("faceoff-role").arg(name).arg(seed.to_string()).args(role.args());
        command.env_clear().current_dir("/").stdin(fd);
        let (procs, adj) = (scope.file("cgroup.procs"), adj.to_string());
        // The order matters: the user may not do the first two.
        let enter = move || {
            fs::write(&procs, "0")?;
            fs::write("/proc/self/oom_score_adj", &adj)?;
            // SAFETY: take numbers, no memory but an empty list.
            let ret = unsafe { [libc::setgroups(0, ptr::null()), libc::setgid(USER), libc::setuid(USER)] };
            if ret == [0; 3] { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        // SAFETY: the process has no other thread when it starts actors, so the child may use
        // everything the parent may.
        unsafe { command.pre_exec(enter) };
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        let pid = i32::try_from(child.id())?;
        let raw = Pid::from_raw(pid).context("a pid that is none")?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).context("pidfd_open")?;
        Ok(Self { who, scope: scope.clone(), sheet, pidfd, pids: vec![pid] })
    }
}

/// Who is on the stage from the beginning.
pub struct Stage {
    /// The first one is the foreground app.
    pub actors: Vec<Actor>,
}

impl Stage {
    /// Sets everything up, and lets the foreground app run for a while.
    ///
    /// # Errors
    /// When the machine lacks what it takes.
    pub fn set(seed: u64) -> Result<Self> {
        give_swap()?;
        if Path::new("/run/systemd/system").exists() {
            start_manager()?;
        }
        make_app_file(seed)?;
        let foreground = Role::Frames { mib: 120, file: APP_FILE.into() };
        let editor = Role::Keep { mib: 150, random: 500, touched: 64 };
        let shell = Role::Keep { mib: 4, random: 500, touched: 0 };
        let session = Scope::make(SESSION_GROUP)?;
        let actors = vec![
            Actor::start(Who::Foreground, "foreground", &Scope::app("foreground")?, ADJ, seed, &foreground)?,
            Actor::start(Who::Innocent, "editor", &Scope::app("editor")?, ADJ, seed + 1, &editor)?,
            Actor::start(Who::Innocent, "shell", &session, 0, seed + 2, &shell)?,
        ];
        thread::sleep(WARM_UP);
        ensure!(actors[0].sheet.frame_count() > 0, "the foreground app draws nothing");
        Ok(Self { actors })
    }
}

/// Who all processes are that are known.
pub fn cast<'a>(actors: impl Iterator<Item = &'a Actor>) -> BTreeMap<i32, Who> {
    actors.flat_map(|actor| actor.pids.iter().map(|&pid| (pid, actor.who))).collect()
}

fn give_swap() -> Result<()> {
    let swaps = fs::read_to_string("/proc/swaps").context("/proc/swaps")?;
    if swaps.lines().count() < 2 {
        // Nobody takes it down.
        std::mem::forget(swap::Area::zram(SWAP, Some("lz4"))?);
    }
    Ok(())
}

/// Has systemd start the user's manager, so that its service exists for those who look at units.
fn start_manager() -> Result<()> {
    let users = fs::read_to_string("/etc/passwd").context("/etc/passwd")?;
    let id = USER.to_string();
    if !users.lines().any(|line| line.split(':').nth(2) == Some(&id)) {
        run("useradd", &["--uid", &id, "--create-home", "--user-group", "desktop"])?;
    }
    run("systemctl", &["start", MANAGER])
}

/// Runs a program to its end.
///
/// # Errors
/// When it fails, with what it printed.
pub fn run(program: &str, args: &[&str]) -> Result<()> {
    output(program, args).map(drop)
}

/// Runs a program to its end; gives what it printed.
///
/// # Errors
/// When it fails, with what it printed.
pub fn output(program: &str, args: &[&str]) -> Result<String> {
    let line = || format!("{program} {}", args.join(" "));
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().with_context(line)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{}: {}: {text}{}", line(), output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

/// A file on the disk that the foreground app maps, as programs and libraries are.
fn make_app_file(seed: u64) -> Result<()> {
    let path = Path::new(APP_FILE);
    let context = || path.display().to_string();
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(context)?;
        fs::set_permissions(folder, Permissions::from_mode(0o755)).with_context(context)?;
    }
    let mut file = File::create(path).with_context(context)?;
    let mut dice = Dice(seed);
    for _ in 0..APP_FILE_MIB * (1 << 20) / PAGE {
        let page: Vec<u8> = (0..PAGE / 8).flat_map(|_| dice.roll().to_ne_bytes()).collect();
        file.write_all(&page).with_context(context)?;
    }
    // What is dirty cannot be dropped under pressure, as a program's pages can.
    file.sync_all().with_context(context)?;
    chown(path, Some(USER), Some(USER)).with_context(context)
}
