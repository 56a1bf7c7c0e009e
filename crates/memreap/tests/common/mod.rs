// SPDX-License-Identifier: GPL-2.0-only
//! Processes to kill, and running the command on them.
//!
//! Tests find victims by names that no other process has, so that no other process is ever hit, and
//! every victim dies with the test's thread.
#![allow(dead_code, reason = "each test program uses its part")]

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use linux::pidfd::Signal;
use linux::{Pid, PidFd};
use memreap::kill::{Armed, Outcome};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde_json::Value;

/// A name that no other process has, short enough for comm. No part of one is another one.
pub fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("mr{}x{}e", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// What a victim does with SIGTERM.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OnTerm {
    Die,
    Exit,
    Ignore,
    /// Starts a process that outlives it, and exits.
    ForkAndExit,
    /// Takes a second, then writes to this descriptor, and exits.
    Flush(i32),
}

/// What a victim is like.
pub struct Setup {
    pub name: Vec<u8>,
    pub mib: usize,
    pub on_term: OnTerm,
    /// What it maps besides, all of it there.
    pub maps: Option<Mapping>,
    /// A process that shares the victim's memory, and outlives it.
    pub sharer: bool,
    /// So many processes that it has forked, and that outlive it.
    pub forks: usize,
    /// It and those go on to fork such that do not, up to [`MAX_FORKED`] each.
    pub forking: bool,
    /// The first thread ends, another one goes on.
    pub headless: bool,
    /// Whose process it is, if not ours.
    pub uid: Option<u32>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            name: unique().into_bytes(),
            mib: 8,
            on_term: OnTerm::Die,
            maps: None,
            sharer: false,
            forks: 0,
            forking: false,
            headless: false,
            uid: None,
        }
    }
}

/// Arguments of mmap(2).
#[derive(Clone, Copy)]
pub struct Mapping {
    pub mib: usize,
    pub protection: i32,
    pub flags: i32,
    pub fd: i32,
}

/// A child of this test, killed and waited for at the end.
pub struct Victim {
    pub pid: Pid,
    pub pidfd: PidFd,
    pub sharer: Option<PidFd>,
    waited: bool,
}

/// A rule by which nobody may be killed whom no rule before it fits.
pub const NO_VICTIM: &str = "[[rule]]\noom_score_adj = \">= -1000\"\nnever = true\n";
/// Longer than any test takes: a victim that was forgotten ends by itself.
const LIFE: u32 = 120;
/// A machine has more room than for so many from each of a few.
const MAX_FORKED: u32 = 500;
/// So that it goes on for a while.
const FORK_STEP_US: u32 = 200;

extern "C" fn fork_and_exit(_: i32) {
    // SAFETY: both may be called in a signal handler.
    match unsafe { libc::fork() } {
        0 => drop(wait_for_ever(std::ptr::null_mut())),
        // SAFETY: as above.
        _ => unsafe { libc::_exit(0) },
    }
}

/// Forks, again and again.
extern "C" fn fork_for_ever() -> ! {
    // SAFETY: these take numbers.
    unsafe { libc::alarm(LIFE) };
    for _ in 0..MAX_FORKED {
        // SAFETY: the child only waits.
        if unsafe { libc::fork() } == 0 {
            break;
        }
        // SAFETY: takes a number.
        unsafe { libc::usleep(FORK_STEP_US) };
    }
    wait_for_ever(std::ptr::null_mut());
    // SAFETY: never reached; takes a number.
    unsafe { libc::_exit(0) }
}

extern "C" fn exit_0(_: i32) {
    // SAFETY: _exit may be called in a signal handler.
    unsafe { libc::_exit(0) }
}

/// Where [`flush`] writes to.
static FLUSH_TO: AtomicI32 = AtomicI32::new(-1);

extern "C" fn flush(_: i32) {
    let second = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    // SAFETY: these may be called in a signal handler; the time and the text are there.
    unsafe {
        libc::nanosleep(&second, std::ptr::null_mut());
        libc::write(FLUSH_TO.load(Ordering::Relaxed), c"all".as_ptr().cast(), 3);
        libc::_exit(0)
    }
}

extern "C" fn wait_for_ever(_: *mut libc::c_void) -> i32 {
    // SAFETY: alarm takes a number.
    unsafe { libc::alarm(LIFE) };
    loop {
        // SAFETY: pause takes no arguments.
        unsafe { libc::pause() };
    }
}

impl Victim {
    /// A victim of `mib` MiB.
    pub fn of(mib: usize) -> Self {
        Self::new(&Setup { mib, ..Setup::default() })
    }

    /// Starts one, and waits until all of its memory is there.
    pub fn new(setup: &Setup) -> Self {
        let name = CString::new(setup.name.clone()).unwrap();
        let mut pipe = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        // SAFETY: the child only makes system calls that are safe after a fork of a program with
        // threads (nothing allocates), and never returns.
        let pid = unsafe {
            match libc::fork() {
                0 => live(setup, &name, pipe[1]),
                pid => pid,
            }
        };
        let pid = Pid::new(pid).expect("fork");
        let pidfd = PidFd::open(pid).unwrap();
        let mut victim = Self { pid, pidfd, sharer: None, waited: false };
        // SAFETY: both descriptors were made above and belong to nothing else.
        let (mut reader, writer) = unsafe { (File::from_raw_fd(pipe[0]), File::from_raw_fd(pipe[1])) };
        drop(writer);
        let mut said = [0; 4];
        reader.read_exact(&mut said).expect("the victim died before it was ready");
        if setup.sharer {
            victim.sharer = Some(PidFd::open(Pid::new(i32::from_ne_bytes(said)).unwrap()).unwrap());
        }
        if setup.headless {
            let headless = || {
                let process = linux::Process::open(&linux::Root::system(), pid).unwrap();
                process.stat().unwrap().state == linux::process::State::Zombie
            };
            wait_until("its first thread has ended", headless);
        }
        victim
    }

    pub fn is_alive(&self) -> bool {
        self.pidfd.is_alive().unwrap()
    }

    /// The processes that it has forked.
    pub fn forks(&self) -> Vec<PidFd> {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid)).unwrap();
        children.split_whitespace().map(|pid| PidFd::open(pid.parse().unwrap()).unwrap()).collect()
    }

    pub fn pid(&self) -> String {
        self.pid.to_string()
    }

    /// The wait status of the dead victim: `None` if it exited by itself, else the signal.
    pub fn died_of(mut self) -> Option<i32> {
        assert!(self.pidfd.wait_exit(Duration::from_secs(20)).unwrap(), "{} does not die", self.pid);
        self.wait()
    }

    fn wait(&mut self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: `status` is where the status goes.
        let got = unsafe { libc::waitpid(self.pid.get(), &mut status, libc::__WALL) };
        assert_eq!(got, self.pid.get());
        self.waited = true;
        libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        for pidfd in self.sharer.iter().chain([&self.pidfd]) {
            let _ = pidfd.send_signal(Signal::KILL);
        }
        if !self.waited {
            let _ = self.pidfd.wait_exit(Duration::from_secs(5));
            // SAFETY: no status is asked for. Only our own child has this ID until we wait.
            unsafe { libc::waitpid(self.pid.get(), std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
        }
    }
}

/// The life of a victim. Only system calls.
unsafe fn live(setup: &Setup, name: &CString, pipe: i32) -> ! {
    // SAFETY: see the caller.
    unsafe {
        match setup.on_term {
            OnTerm::Die => libc::signal(libc::SIGTERM, libc::SIG_DFL),
            OnTerm::Exit => libc::signal(libc::SIGTERM, exit_0 as extern "C" fn(i32) as libc::sighandler_t),
            OnTerm::Ignore => libc::signal(libc::SIGTERM, libc::SIG_IGN),
            OnTerm::ForkAndExit => {
                libc::signal(libc::SIGTERM, fork_and_exit as extern "C" fn(i32) as libc::sighandler_t)
            }
            OnTerm::Flush(to) => {
                FLUSH_TO.store(to, Ordering::Relaxed);
                libc::signal(libc::SIGTERM, flush as extern "C" fn(i32) as libc::sighandler_t)
            }
        };
        if let Some(uid) = setup.uid
            && libc::syscall(libc::SYS_setuid, uid) != 0
        {
            libc::_exit(3);
        }
        // After setuid, which makes the kernel forget it, and leave what /proc has of it to root until it executes a
        // program.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_DUMPABLE, 1);
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let memory = libc::mmap(std::ptr::null_mut(), setup.mib << 20, protection, flags, -1, 0);
        let stack = libc::mmap(std::ptr::null_mut(), 64 << 10, protection, flags, -1, 0);
        if memory == libc::MAP_FAILED || stack == libc::MAP_FAILED {
            libc::_exit(2);
        }
        if let Some(Mapping { mib, protection, flags, fd }) = setup.maps {
            let flags = flags | libc::MAP_POPULATE;
            let mapped = libc::mmap(std::ptr::null_mut(), mib << 20, protection, flags, fd, 0);
            if mapped == libc::MAP_FAILED {
                libc::_exit(2);
            }
        }
        let top = stack.byte_add(64 << 10);
        let mut said: i32 = 0;
        if setup.sharer {
            said = libc::clone(wait_for_ever, top, libc::CLONE_VM | libc::SIGCHLD, std::ptr::null_mut());
        }
        for _ in 0..setup.forks {
            match libc::fork() {
                0 if setup.forking => fork_for_ever(),
                0 => wait_for_ever(std::ptr::null_mut()),
                -1 => libc::_exit(5),
                _ => 0,
            };
        }
        if setup.headless {
            let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
            said = libc::clone(wait_for_ever, top, thread, std::ptr::null_mut());
        }
        if said < 0 || libc::write(pipe, (&raw const said).cast(), 4) != 4 {
            libc::_exit(4);
        }
        if setup.headless {
            // This thread only.
            libc::syscall(libc::SYS_exit, 0);
        }
        if setup.forking {
            fork_for_ever();
        }
        wait_for_ever(std::ptr::null_mut());
        libc::_exit(0)
    }
}

/// The command.
pub fn memreap() -> Command {
    Command::new(env!("CARGO_BIN_EXE_memreap"))
}

/// Copies a program. Not in this process: a victim forked meanwhile would keep the copy open for
/// writing, and nobody could execute it.
pub fn copy_of(program: &str, to: PathBuf) -> PathBuf {
    assert!(Command::new("cp").arg(program).arg(&to).status().unwrap().success());
    to
}

/// Runs `memreap kill`; returns its exit code, stdout and stderr.
pub fn kill(args: &[&str]) -> Ran {
    Ran::from(memreap().arg("kill").args(args).output().unwrap())
}

/// What a command said.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// Kills, and waits for the end for at most `limit`.
pub fn kill_all(armed: Armed, limit: Duration) -> Vec<Outcome> {
    armed.kill();
    // Any file that does not become readable.
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    armed.wait(Instant::now() + limit, reader.as_fd(), Duration::from_secs(1), || {}).unwrap();
    armed.outcomes()
}

/// Waits for something that takes a moment.
pub fn wait_until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(20), "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs an ignored test of this program in a PID namespace of its own, so that it sees no process but its
/// own; `prepare` is what a shell does there before. Skips it where that is not to be had.
#[track_caller]
pub fn in_a_namespace(test: &str, prepare: &str) {
    let enter = || {
        let mut unshare = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            unshare.args(["--user", "--map-root-user"]);
        }
        unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
        unshare.arg(format!("{prepare} && exec \"$@\"")).arg("sh");
        unshare
    };
    match enter().arg("true").output() {
        Ok(output) if output.status.success() => {}
        other => {
            testing::skipped(format_args!("no such namespace to be had: {other:?}"));
            return;
        }
    }
    let output = enter()
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "--test-threads=1", test])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let _ = writeln!(std::io::stderr(), "{text}");
    assert!(output.status.success() && text.contains("1 passed"), "in the namespace: {}", output.status);
}

/// A shell's command, after which no pressure is reported.
const HIDE_PRESSURE: &str = "{ test ! -e /proc/pressure || mount -t tmpfs none /proc/pressure; }";

/// As [`in_a_namespace`], where less than 99.9 % of memory and swap is left and no pressure is reported: then
/// that is acted on at whatever rate memory goes.
#[track_caller]
pub fn in_a_shortage(test: &str) {
    let mut prepare = HIDE_PRESSURE.to_owned();
    let mut meminfo = tempfile::NamedTempFile::new().unwrap();
    let info = linux::meminfo::MemInfo::read(&linux::Root::system()).unwrap();
    if (info.available + info.swap_free) as f64 / info.total as f64 >= 0.998 {
        // As on most machines with swap. What is read there instead never changes, a kill or not.
        let text = "MemTotal: 4194304 kB\nMemFree: 2097152 kB\nMemAvailable: 2097152 kB\n\
                    SwapTotal: 0 kB\nSwapFree: 0 kB\n";
        meminfo.write_all(text.as_bytes()).unwrap();
        prepare += &format!(" && mount --bind '{}' /proc/meminfo", meminfo.path().display());
    }
    in_a_namespace(test, &prepare);
}

/// /proc/meminfo in a namespace: a file that says what a test wants.
pub struct FakeMemory(PathBuf);

impl FakeMemory {
    /// As [`in_a_namespace`], where it is in place, with so much available, and no pressure is reported.
    #[track_caller]
    pub fn in_a_namespace(test: &str, available_mib: u64) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), Self::text(available_mib)).unwrap();
        in_a_namespace(test, &format!("{HIDE_PRESSURE} && mount --bind '{}' /proc/meminfo", file.path().display()));
    }

    /// The one that is at `path`, with so much available, in MiB, of 64 GiB.
    pub fn new(path: PathBuf, available_mib: u64) -> Self {
        let memory = Self(path);
        memory.set(available_mib);
        memory
    }

    /// Changes it in place, so that it is never empty.
    pub fn set(&self, available_mib: u64) {
        let file = File::options().write(true).open(&self.0).unwrap();
        file.write_all_at(Self::text(available_mib).as_bytes(), 0).unwrap();
    }

    /// The file's text, always of the same length.
    pub fn text(available_mib: u64) -> String {
        let kib = available_mib << 10;
        format!(
            "MemTotal: {:9} kB\nMemFree: {kib:9} kB\nMemAvailable: {kib:9} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
            64 << 20
        )
    }
}

/// What a container sees of the cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// The host's are mounted.
    Host,
    /// Its own are mounted in their place.
    Own,
}

/// Two cgroups beside each other, "ctr" and "other", two levels below the root. Removed at the end.
pub struct Node {
    /// The path of what is above both.
    pub name: String,
    mounted: PathBuf,
}

impl Node {
    /// `None`, and the test is skipped, where that is not allowed.
    #[track_caller]
    pub fn new() -> Option<Self> {
        let hierarchy = linux::cgroup::Hierarchy::find(&linux::Root::system()).unwrap();
        let node = hierarchy.map(|h| Self { name: format!("/memreap-{}", unique()), mounted: h.path });
        let node = node.filter(|n| ["", "ctr", "other"].iter().all(|g| fs::create_dir(n.dir(g)).is_ok()));
        if node.is_none() {
            testing::skipped("cgroups cannot be made here");
        }
        node
    }

    fn dir(&self, group: &str) -> PathBuf {
        self.mounted.join(&self.name[1..]).join(group)
    }

    /// Puts a process beside the container.
    pub fn put_beside(&self, victim: &Victim) {
        fs::write(self.dir("other").join("cgroup.procs"), victim.pid()).unwrap();
    }

    /// Has the command run in the container, with a cgroup namespace of its own.
    pub fn contain<'c>(&self, command: &'c mut Command, mounted: Mounted) -> &'c mut Command {
        let (procs, place) = (self.dir("ctr").join("cgroup.procs"), self.mounted.clone());
        let enter = move || {
            // Itself.
            fs::write(&procs, "0")?;
            // SAFETY: no file descriptors are unshared.
            unsafe { unshare_unsafe(UnshareFlags::NEWCGROUP | UnshareFlags::NEWNS)? };
            if mounted == Mounted::Own {
                mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
                unmount(&place, UnmountFlags::DETACH)?;
                mount(c"none", &place, c"cgroup2", MountFlags::empty(), None)?;
            }
            Ok(())
        };
        // SAFETY: these are system calls; paths this short are not allocated.
        unsafe { command.pre_exec(enter) }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Those in it may not be gone yet.
        wait_until("the cgroups are empty", || {
            ["ctr", "other", ""].iter().all(|g| !self.dir(g).exists() || fs::remove_dir(self.dir(g)).is_ok())
        });
    }
}

/// How often the threads of a process have waited, the first thread's count first.
pub fn waits(pid: u32) -> Vec<u64> {
    let mut tasks: Vec<u32> = fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    tasks.sort_by_key(|task| (*task != pid, *task));
    let count = |task| {
        // It may have ended since.
        let status = fs::read_to_string(format!("/proc/{pid}/task/{task}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Some(line.unwrap().trim().parse().unwrap())
    };
    tasks.into_iter().filter_map(count).collect()
}

/// Starts the command with its output piped, to send it signals.
pub fn start(args: &[&str]) -> std::process::Child {
    memreap().arg("kill").args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Sends SIGINT to a child of ours.
pub fn interrupt(child: &std::process::Child) {
    let pid = Pid::new(child.id().cast_signed()).unwrap();
    PidFd::open(pid).unwrap().send_signal(Signal::INT).unwrap();
}
