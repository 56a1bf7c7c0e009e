// SPDX-License-Identifier: GPL-2.0-only

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
    let (interrupt, _keep): (OwnedFd, OwnedFd) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
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
    refused(rustix::process::kill_process(other_pid, rustix::process::Signal::TERM).map_err(io::Error::from));
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
