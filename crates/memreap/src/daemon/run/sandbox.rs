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
        || rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
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
mod tests {
    use std::env;
    use std::os::fd::{AsFd as _, OwnedFd};
    use std::process::{Command, Stdio};
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use linux::{Pid, PidFd, Process, Root};

    use super::*;
    use crate::daemon::report::history::{self, History};
    use crate::daemon::report::journal::{EntryKind, Journal, Priority};
    use crate::daemon::report::metrics::{Metrics, Server};
    use crate::daemon::report::record::tests::kill;
    use crate::daemon::report::service::Service;
    use crate::daemon::report::warn::Warner;
    use crate::kill::{Armed, Fate, KernelFeatures, Method};

    /// Set for the process in which a test enters the sandbox, which cannot be left.
    const INSIDE: &str = "MEMREAP_TEST_SANDBOX";

    fn in_a_process_of_its_own(test: &str) {
        let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
        let output = Command::new(env::current_exe().unwrap())
            .args(["--exact", &name, "--include-ignored", "--nocapture", "--test-threads=1"])
            .env(INSIDE, "1")
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    /// A process that ends by itself, and has no pipes of this one.
    fn sleeper() -> std::process::Child {
        let null = Stdio::null;
        Command::new("sleep").arg("60").stdin(null()).stdout(null()).stderr(null()).spawn().unwrap()
    }

    fn refused<T: std::fmt::Debug>(result: io::Result<T>) {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn a_kill_works_inside_and_mischief_does_not() {
        in_a_process_of_its_own("inside");
    }

    #[test]
    #[ignore = "enters the sandbox; run by another test in a process of its own"]
    fn inside() {
        if env::var_os(INSIDE).is_none() {
            testing::skipped("only in a process of its own");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state/history.jsonl");
        fs::create_dir(dir.path().join("state")).unwrap();
        let socket = dir.path().join("metrics");
        let precious = dir.path().join("precious");
        fs::write(&precious, "x").unwrap();

        // As a cgroup's directory: files are written, and never made.
        let cgroup = dir.path().join("cgroup");
        fs::create_dir(&cgroup).unwrap();
        fs::write(cgroup.join("cgroup.kill"), "").unwrap();
        let mrelease = Method::Mrelease.supported();

        // In the order of a start.
        let mut warner = Warner::start().unwrap();
        let service = Service::from_env().unwrap();
        let mut journal = Journal::open().unwrap();
        let mut history = History::open(&state).unwrap();
        let mut server = Server::listen(socket.to_str().unwrap()).unwrap();
        let mut other = sleeper();
        let mut victim = sleeper();
        let pid = |child: &std::process::Child| Pid::new(i32::try_from(child.id()).unwrap()).unwrap();
        let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let (interrupt, _keep): (OwnedFd, OwnedFd) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        // A thread from before the sandbox, which reads what needs the right to trace.
        let (ask, asked) = mpsc::channel::<Pid>();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            for pid in asked {
                let rollup = Process::open(&Root::system(), pid).and_then(|p| p.smaps_rollup());
                tell.send((rollup.is_ok(), can_make_sockets())).unwrap();
            }
        });
        let (config, target) = (dir.path().join("config/link"), dir.path().join("target/config"));
        for path in [&config, &target] {
            fs::create_dir(path.parent().unwrap()).unwrap();
        }
        fs::write(&target, "x").unwrap();
        std::os::unix::fs::symlink(&target, &config).unwrap();
        let relative = Access::new(Path::new("config"), None, None);
        assert!(relative.read.contains(&env::current_dir().unwrap()), "{relative:?}");
        let missing = enter(&Access::new(&config, Some(&state), Some(&cgroup)));
        assert!(missing.iter().all(|m| m.contains("offer Landlock")), "{missing:?}");
        let landlocked = missing.is_empty();

        // A kill and what goes with it.
        let root = Root::system();
        linux::meminfo::MemInfo::read(&root).unwrap();
        ask.send(pid(&other)).unwrap();
        let (exact, foreign_socket) = told.recv().unwrap();
        assert!(exact, "the exact reading fails in a thread from before the sandbox");
        assert!(!foreign_socket, "a thread from before is not in the sandbox");
        let process = Process::open(&root, pid(&victim)).unwrap();
        process.statm().unwrap();
        process.status().unwrap();
        process.comm().unwrap();
        let sleeping = crate::kill::Victim {
            pidfd: PidFd::open(pid(&victim)).unwrap(),
            bytes: 8 << 20,
            vm_size: 1,
            core_dumping: false,
        };
        let kernel = KernelFeatures { parallel_reap: true, paced_workers: false };
        let armed = Armed::new(vec![sleeping], Method::best(), kernel);
        armed.kill();
        let deadline = Instant::now() + Duration::from_secs(10);
        armed.wait(deadline, interrupt.as_fd(), Duration::from_millis(100), || {}).unwrap();
        let outcome = armed.outcomes().remove(0);
        assert_eq!(outcome.fate, Fate::Killed, "{outcome:?}");
        victim.wait().unwrap();
        // What a kill can do without, and so would not miss.
        assert_eq!(Method::Mrelease.supported(), mrelease);
        let mut file = fs::OpenOptions::new().write(true).open(cgroup.join("cgroup.kill")).unwrap();
        io::Write::write_all(&mut file, b"1").unwrap();
        let alive = PidFd::open(pid(&other)).unwrap();
        linux::sched::set_policy(0, libc::SCHED_OTHER, 0).unwrap();
        let kill = kill("hog");
        history.append(&kill).unwrap();
        journal.killed(&kill);
        journal.log(EntryKind::Killed, Priority::Info, format_args!("test"));
        warner.killed(&kill);
        assert_eq!(warner.dropped(), 0);
        service.watchdog().unwrap();
        server.serve(&Metrics::default());
        io::Write::write_all(&mut client, b"GET /\n\n").unwrap();
        server.serve(&Metrics::default());
        assert!(io::read_to_string(client).unwrap().contains("memreap_kills_total"));
        assert_eq!(history::read(&state, 9).unwrap().len(), 1);
        // A large history is put aside, which makes and renames files.
        let len = || fs::metadata(&state).unwrap().len();
        while len() < 1 << 20 {
            history.append(&kill).unwrap();
        }
        history.append(&kill).unwrap();
        assert!(len() < 1 << 20);
        assert_eq!(thread::spawn(|| 42).join().unwrap(), 42);

        // Mischief.
        refused(Command::new("true").spawn());
        refused(std::net::UdpSocket::bind("127.0.0.1:0"));
        refused(std::os::unix::net::UnixStream::pair());
        refused(fs::remove_file(&precious));
        let other_pid = rustix::process::Pid::from_raw(pid(&other).get()).unwrap();
        refused(
            rustix::process::kill_process(other_pid, rustix::process::Signal::TERM).map_err(io::Error::from),
        );
        // SAFETY: a fork that fails, as the next line sees; a mapping that is not used.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(0);
            }
            assert_eq!(child, -1);
            let prot = libc::PROT_READ | libc::PROT_EXEC;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            assert_eq!(libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0), libc::MAP_FAILED);
        }
        if landlocked {
            for path in [&precious, Path::new("/etc/passwd")] {
                let error = fs::OpenOptions::new().append(true).open(path).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{}", path.display());
            }
            fs::read("/etc/passwd").unwrap();
            fs::read_dir("/etc").unwrap();
            fs::read(&config).unwrap();
            fs::read(&precious).unwrap_err();
            fs::write(cgroup.join("new"), "").unwrap_err();
        } else {
            testing::skipped(missing.join("; "));
        }
        alive.send_signal(linux::pidfd::Signal::KILL).unwrap();
        other.wait().unwrap();
        // The directory cannot be removed from in here.
        let _ = dir.keep();
    }

    /// Whether a socket can be made.
    fn can_make_sockets() -> bool {
        std::net::UdpSocket::bind("127.0.0.1:0").is_ok()
    }

    #[test]
    fn own_memory_is_limited() {
        in_a_process_of_its_own("limited");
    }

    #[test]
    #[ignore = "limits the process; run by another test in a process of its own"]
    fn limited() {
        if env::var_os(INSIDE).is_none() {
            testing::skipped("only in a process of its own");
            return;
        }
        limit_memory(256 << 20).unwrap();
        assert!(Vec::<u8>::new().try_reserve_exact(1 << 30).is_err());
        if let Err(e) = lock_memory() {
            // Without privileges there is a limit, and no more can be said.
            assert!(!rustix::process::geteuid().is_root(), "{e}");
            testing::skipped(format_args!("memory cannot be locked here: {e}"));
            return;
        }
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let locked = status.lines().find(|line| line.starts_with("VmLck:")).unwrap();
        assert!(!locked.contains(" 0 kB"), "{locked}");
    }
}
