// SPDX-License-Identifier: GPL-2.0-only
//! `memreap daemon` as a process: what a service manager, an administrator and a monitor see of it.
//!
//! It runs with `--dry-run`, and is never let near a process that is not the test's: all others are
//! under a veto, and where it really kills, it is in a PID namespace of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod common;

use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{
    FakeMemory, Mounted, NO_VICTIM, Node, OnTerm, Ran, Setup, Victim, copy_of, in_a_namespace, in_a_shortage,
    interrupt, memreap, unique, wait_until, waits,
};
use linux::pidfd::Signal;
use linux::{Pid, PidFd, Root};
use memreap::daemon::report::history;
use rustix::process::{Resource, Rlimit, setrlimit};
use tempfile::TempDir;

/// For whatever takes a moment.
const LONG: Duration = Duration::from_secs(20);
/// A service manager that waits so long hears of the daemon once in half of it.
const PATIENT: Duration = Duration::from_secs(120);

/// A daemon, its service manager, and all the files it has.
struct Daemon {
    child: Child,
    pidfd: PidFd,
    manager: UnixDatagram,
    files: Files,
}

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("state")).unwrap();
        for folder in [dir.path(), &dir.path().join("state")] {
            // For a daemon of another user.
            fs::set_permissions(folder, Permissions::from_mode(0o777)).unwrap();
        }
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Puts a configuration in the place of the old one as editors do. Its first line says where history
    /// and metrics are.
    fn configure(&self, text: &str) {
        let (history, metrics) = (self.path("state/history"), self.path("metrics"));
        let record = format!("record = {{ history = {history:?}, metrics = {metrics:?} }}\n");
        fs::write(self.path("new"), record + text).unwrap();
        fs::rename(self.path("new"), self.path("config")).unwrap();
    }

    fn said(&self) -> String {
        fs::read_to_string(self.path("said")).unwrap()
    }
}

impl Daemon {
    /// Starts one with this configuration, and waits until it is ready.
    fn start(config: &str) -> Self {
        Self::start_as(config, PATIENT, |command| command.arg("--dry-run"))
    }

    fn start_as(config: &str, watchdog: Duration, how: impl Fn(&mut Command) -> &mut Command) -> Self {
        let files = Files::new();
        files.configure(config);
        let manager = UnixDatagram::bind(files.path("manager")).unwrap();
        fs::set_permissions(files.path("manager"), Permissions::from_mode(0o777)).unwrap();
        manager.set_read_timeout(Some(LONG)).unwrap();
        // Another user may not be let into the folder that it was built in.
        let mut command = Command::new(copy_of(env!("CARGO_BIN_EXE_memreap"), files.path("memreap")));
        command.arg("daemon").arg("--config").arg(files.path("config"));
        command.env("NOTIFY_SOCKET", files.path("manager"));
        command.env("WATCHDOG_USEC", watchdog.as_micros().to_string()).env_remove("WATCHDOG_PID");
        command.stdin(Stdio::null()).stdout(File::create(files.path("out")).unwrap());
        command.stderr(File::create(files.path("said")).unwrap());
        fs::set_permissions(files.path("said"), Permissions::from_mode(0o666)).unwrap();
        let child = how(&mut command).spawn().unwrap();
        let pidfd = PidFd::open(Pid::new(child.id().cast_signed()).unwrap()).unwrap();
        let daemon = Self { child, pidfd, manager, files };
        daemon.hears("READY=1");
        daemon
    }

    /// Waits for a message to the service manager, and returns those before it.
    fn hears(&self, wanted: &str) -> Vec<String> {
        let began = Instant::now();
        let mut before = Vec::new();
        loop {
            let mut buffer = [0; 4096];
            // With a timeout it is not restarted after a pause of this process, of which no signal handler tells.
            let got = loop {
                match self.manager.recv(&mut buffer) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    got => break got,
                }
            };
            let len = got.unwrap_or_else(|e| panic!("no {wanted}: {e}; {}", self.files.said()));
            let message = String::from_utf8(buffer[..len].to_vec()).unwrap();
            if message == wanted {
                return before;
            }
            before.push(message);
            assert!(began.elapsed() < LONG, "no {wanted} but {before:?}");
        }
    }

    fn signal(&self, signal: Signal) {
        self.pidfd.send_signal(signal).unwrap();
    }

    /// Lets it read its configuration again, and returns what it prints about it.
    fn reload(&self) -> String {
        let before = self.files.said().len();
        self.signal(Signal::HUP);
        let messages = self.hears("READY=1");
        assert!(messages.iter().any(|m| m.starts_with("RELOADING=1\nMONOTONIC_USEC=")), "{messages:?}");
        self.files.said().split_off(before)
    }

    /// The answer to who asks for metrics.
    fn metrics(&self) -> String {
        let mut stream = UnixStream::connect(self.files.path("metrics")).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// One of the metrics.
    fn metric(&self, name: &str) -> f64 {
        let answer = self.metrics();
        let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {answer}")).parse().unwrap()
    }

    /// Ends it, and returns all that it has printed.
    fn end(mut self) -> String {
        self.signal(Signal::TERM);
        self.hears("STOPPING=1");
        assert!(self.pidfd.wait_exit(LONG).unwrap(), "it does not end");
        let code = self.child.wait().unwrap().code();
        let said = self.files.said();
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(fs::read_to_string(self.files.path("out")).unwrap(), "");
        said
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines that are no notes about what this kernel, or its user, does not have.
fn without_notes(said: &str) -> Vec<&str> {
    const NOTES: [&str; 11] = [
        "works without cgroups, so no rule with a cgroup applies",
        "not exempt from the kernel's OOM killer",
        "not scheduled in real time",
        "other users' processes cannot be killed",
        "what other users' processes would give back is a guess",
        "which of other users' processes share their memory is not known",
        "sampling memory every",
        "this kernel does not offer Landlock",
        "Landlock: ",
        "seccomp: ",
        "memory is not locked",
    ];
    let is_note = |line: &str| NOTES.iter().any(|note| line.starts_with(&format!("memreap: {note}")));
    said.lines().filter(|line| !is_note(line)).collect()
}

#[test]
fn it_starts_works_and_ends_without_another_word() {
    let daemon = Daemon::start(NO_VICTIM);
    assert_eq!(fs::read_to_string(daemon.files.path("state/history")).unwrap(), "");
    let answer = daemon.metrics();
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    assert!(answer.contains("memreap_kills_total{reason=\"stall\",method=\"plain\"} 0\n"), "{answer}");
    assert!(daemon.metric("memreap_available_bytes") > 0.0);
    assert_eq!(daemon.metric("memreap_messages_lost_total"), 0.0);
    let said = daemon.end();
    let lines = without_notes(&said);
    let ([first, second], _) = lines.split_at(2) else { panic!("{said}") };
    assert!(first.starts_with("memreap: watching "), "{said}");
    assert!(first.ends_with(", without sending signals (--dry-run)"), "{said}");
    assert_eq!((*second, lines.len()), ("memreap: stopping", 2), "{said}");
}

#[test]
fn what_others_write_to_its_standard_error_stays() {
    // As with `{ echo begin; memreap daemon; echo end; } 2>log`: all of them share the offset.
    let mut log = tempfile::tempfile().unwrap();
    writeln!(log, "begin").unwrap();
    let daemon =
        Daemon::start_as(NO_VICTIM, PATIENT, |command| command.arg("--dry-run").stderr(log.try_clone().unwrap()));
    daemon.end();
    writeln!(log, "end").unwrap();
    log.rewind().unwrap();
    let text = std::io::read_to_string(log).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines[0], lines[lines.len() - 1]), ("begin", "end"), "{text}");
    assert!(lines[1..lines.len() - 1].iter().all(|line| line.contains("memreap: ")), "{text}");
    assert!(text.contains("memreap: stopping\n"), "{text}");
}

#[test]
fn the_watchdog_is_fed_even_after_a_pause() {
    let watchdog = Duration::from_millis(400);
    let began = Instant::now();
    let daemon = Daemon::start_as(NO_VICTIM, watchdog, |command| command.arg("--dry-run"));
    let fed = |times: u32| {
        for _ in 0..times {
            assert_eq!(daemon.hears("WATCHDOG=1"), [""; 0]);
        }
    };
    fed(5);
    let took = began.elapsed();
    // Twice as often as it must be, and not more often, however late this test reads it.
    assert!(took >= 5 * watchdog / 2, "5 times within {took:?}");
    daemon.signal(Signal::STOP);
    wait_until("it is stopped", || state(&daemon) == "T");
    thread::sleep(2 * watchdog);
    daemon.signal(Signal::CONT);
    fed(3);
    assert!(daemon.metric("memreap_wake_ups_total") >= 8.0);
    daemon.end();
}

/// What the daemon's first thread does: "S" for nothing.
fn state(daemon: &Daemon) -> String {
    let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.child.id())).unwrap();
    stat.rsplit(") ").next().unwrap()[..1].to_owned()
}

#[test]
fn a_wrong_configuration_does_not_replace_the_right_one() {
    let daemon = Daemon::start(NO_VICTIM);
    daemon.files.configure("[act]\ncritical = \"1%\"\nlow = \"0%\"\nhigh = 1\n");
    let said = daemon.reload();
    let config = daemon.files.path("config").display().to_string();
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].starts_with(&format!("memreap: {config}:3: act.critical: 1 % ")), "{said}");
    assert!(lines[1].starts_with(&format!("memreap: {config}:5: act.high: there is no such key")), "{said}");
    assert_eq!(lines[2..], ["memreap: the old configuration stays in force"]);
    fs::remove_file(daemon.files.path("config")).unwrap();
    assert!(daemon.reload().contains(": there is no such file"));
    daemon.files.configure("[[rule]]\nuser = \"mistyped\"\nnever = true\n");
    let said = daemon.reload();
    assert!(said.contains("there is no user \"mistyped\"") && said.contains("the old configuration stays"), "{said}");
    daemon.files.configure(NO_VICTIM);
    assert_eq!(daemon.reload(), "memreap: the new configuration is in force\n");
    assert_eq!(daemon.metric("memreap_reloads_total{result=\"ok\"}"), 1.0);
    assert_eq!(daemon.metric("memreap_reloads_total{result=\"failed\"}"), 3.0);
    daemon.end();
}

#[test]
fn what_it_started_with_does_not_keep_it_from_a_reload() {
    let rule = format!("{NO_VICTIM}[[rule]]\nuser = \"removed\"\nnever = true\n");
    let daemon = Daemon::start(&rule);
    daemon.files.configure(&format!("[kill]\ndeadline = \"9s\"\n{rule}"));
    assert!(daemon.reload().ends_with("memreap: the new configuration is in force\n"));
    daemon.files.configure(&format!("{rule}[[rule]]\nuser = \"mistyped\"\nnever = true\n"));
    assert!(daemon.reload().ends_with("memreap: the old configuration stays in force\n"));
    daemon.end();
}

#[test]
fn what_it_cannot_start_with_is_told() {
    let files = Files::new();
    let run = |args: &[&str]| {
        Ran::from(memreap().arg("daemon").args(args).arg("--config").arg(files.path("config")).output().unwrap())
    };
    files.configure("[act]\nlow = 0\n");
    let wrong = format!("{}:3: act.low: 0 % is not more than act.critical", files.path("config").display());
    for args in [&["--check-config"][..], &["--dry-run"]] {
        let ran = run(args);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{ran:?}");
        assert!(ran.err.starts_with(&wrong), "{ran:?}");
    }
    files.configure(NO_VICTIM);
    let ran = run(&["--check-config"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    assert_eq!(ran.out, format!("{}: ok\n", files.path("config").display()));
    // Neither keeps the daemon from its work.
    files.configure("warn.desktop = true\n");
    fs::remove_dir(files.path("state")).unwrap();
    let ran = run(&["--check-config"]);
    let name = files.path("config").display().to_string();
    assert_eq!((ran.code, ran.out), (Some(0), format!("{name}: ok\n")));
    let folder = files.path("state");
    let no_folder = format!("{name}: warning: record.history: there is no folder {}: make it\n", folder.display());
    assert!(ran.err.contains(&no_folder), "{}", ran.err);
    let installed = ["/usr/local/bin", "/usr/bin", "/bin"].map(|dir| Path::new(dir).join("notify-send").exists());
    let told = format!("{name}: warning: warn.desktop: notify-send cannot be found: install libnotify-bin\n");
    assert_eq!(ran.err.contains(&told), installed == [false; 3], "{}", ran.err);
}

#[test]
fn metrics_that_cannot_be_served_are_told() {
    let daemon = Daemon::start_as(NO_VICTIM, PATIENT, |command| {
        let config = PathBuf::from(command.get_args().last().unwrap());
        fs::write(config.with_file_name("metrics"), "").unwrap();
        command.arg("--dry-run")
    });
    let told = format!("memreap: metrics are not served: {}: ", daemon.files.path("metrics").display());
    let said = daemon.end();
    assert!(said.contains(&told), "{said}");
}

#[test]
fn clients_do_not_keep_it_busy() {
    let daemon = Daemon::start(NO_VICTIM);
    let before = daemon.metric("memreap_wake_ups_total");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        drop(UnixStream::connect(daemon.files.path("metrics")).unwrap());
    }
    let after = daemon.metric("memreap_wake_ups_total");
    // Each 50 ms a request, and the end of the wait for the next one; and whatever else there was.
    let most = began.elapsed().as_secs_f64() / 0.05 * 2.0 + 20.0;
    assert!(after - before < most, "{} times in {:?}", after - before, began.elapsed());
}

#[test]
fn a_second_daemon_is_told_of_the_first() {
    in_a_namespace("two_daemons", "true");
}

#[test]
#[ignore = "runs in a namespace"]
fn two_daemons() {
    let told = "another daemon runs, ";
    let rehearsing = Daemon::start(NO_VICTIM);
    let first = Daemon::start_as(NO_VICTIM, PATIENT, |command| command);
    let beside = Daemon::start(NO_VICTIM);
    let second = Daemon::start_as(NO_VICTIM, PATIENT, |command| command);
    let pid = first.child.id();
    for daemon in [rehearsing, first, beside] {
        let said = daemon.end();
        assert!(!said.contains(told), "{said}");
    }
    let said = second.end();
    assert!(said.contains(&format!("memreap: {told}process {pid}: ")), "{said}");
}

#[test]
fn a_history_in_a_folder_that_is_not_there_is_told() {
    let daemon = Daemon::start_as(NO_VICTIM, PATIENT, |command| {
        let config = PathBuf::from(command.get_args().last().unwrap());
        fs::remove_dir(config.with_file_name("state")).unwrap();
        command.arg("--dry-run")
    });
    let folder = daemon.files.path("state");
    assert!(!folder.exists());
    let said = daemon.end();
    let told =
        format!("memreap: kills are not recorded: {0}/history: there is no folder {0}: make it\n", folder.display());
    assert!(said.contains(&told), "{said}");
}

#[test]
fn a_dry_run_makes_no_folder() {
    in_a_namespace("state_folder", "mount -t tmpfs none /var/lib");
}

#[test]
#[ignore = "runs in a namespace"]
fn state_folder() {
    let files = Files::new();
    fs::write(files.path("config"), NO_VICTIM).unwrap();
    for (args, made) in [(&["--dry-run"][..], false), (&[], true)] {
        let mut command = memreap();
        command.arg("daemon").args(args).arg("--config").arg(files.path("config"));
        let mut daemon = command.stderr(File::create(files.path("said")).unwrap()).spawn().unwrap();
        wait_until("it has started", || files.said().contains("memreap: watching "));
        interrupt(&daemon);
        assert_eq!(daemon.wait().unwrap().code(), Some(0), "{}", files.said());
        assert_eq!(Path::new("/var/lib/memreap").exists(), made, "{}", files.said());
    }
}

/// Has it run as a user without rights.
fn unprivileged(command: &mut Command) -> &mut Command {
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    // SAFETY: these are system calls, and nothing allocates.
    unsafe {
        command.pre_exec(|| {
            // By which others than root may be scheduled in real time, too.
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            setrlimit(Resource::Rtprio, none)?;
            Ok(setrlimit(Resource::Nice, none)?)
        });
    }
    command.arg("--dry-run")
}

#[test]
fn when_nothing_happens_it_sleeps() {
    let daemon = Daemon::start_as(NO_VICTIM, PATIENT, unprivileged);
    if !daemon.files.said().contains("does not report pressure") {
        let calm = || {
            let before = waits(daemon.child.id());
            thread::sleep(Duration::from_secs(2));
            let after = waits(daemon.child.id());
            assert!(after.len() > 4, "all threads are there from the start on: {after:?}");
            let woken: Vec<_> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
            eprintln!("woken: {woken:?}");
            woken[0] <= 1 && woken[1..].iter().all(|count| *count == 0)
        };
        // Other programs may be short of memory meanwhile.
        wait_until("it is calm", calm);
    } else {
        testing::skipped("no PSI here");
    }
    daemon.end();
}

#[test]
fn cgroups_that_cannot_be_seen_are_told_at_the_start() {
    let Some(node) = Node::new() else { return };
    for mounted in [Mounted::Host, Mounted::Own] {
        let daemon = Daemon::start_as(NO_VICTIM, PATIENT, |command| node.contain(command.arg("--dry-run"), mounted));
        let outside = daemon.metric("memreap_processes_outside");
        let said = daemon.end();
        let told = format!("memreap: {outside} processes are in cgroups that are not below /");
        assert_eq!(said.matches("processes are in cgroups").count(), said.matches(&told).count(), "{said}");
        assert_eq!((outside > 0.0, said.contains(&told)), (mounted == Mounted::Own, mounted == Mounted::Own));
    }
}

#[test]
fn it_works_without_cgroups_that_cannot_be_read() {
    let found = linux::cgroup::Hierarchy::find(&Root::system()).unwrap();
    let Some(hierarchy) = found else {
        testing::skipped("there is no hierarchy of cgroups");
        return;
    };
    let path = hierarchy.path.display();
    in_a_namespace("without_cgroups", &format!("mount -t tmpfs none {path}"));
    in_a_namespace("without_mounted_cgroups", "umount -l -a -t cgroup2");
}

#[test]
#[ignore = "runs in a namespace"]
fn without_cgroups() {
    let said = Daemon::start(NO_VICTIM).end();
    let told: Vec<_> = said.lines().filter(|line| line.contains("/cgroup.controllers: ")).collect();
    assert!(matches!(told[..], [line] if line.starts_with("memreap: works without cgroups: ")), "{said}");
}

#[test]
#[ignore = "runs in a namespace"]
fn without_mounted_cgroups() {
    let said = Daemon::start(NO_VICTIM).end();
    assert_eq!(said.matches("memreap: works without cgroups, so no rule with a cgroup applies: ").count(), 1, "{said}");
}

#[test]
fn why_pressure_is_not_reported_is_told() {
    const READ_ONLY: &str = "mount --bind /proc/pressure/memory /proc/pressure/memory && \
                             mount -o remount,bind,ro /proc/pressure/memory";
    if Path::new("/proc/pressure/memory").exists() {
        in_a_namespace("read_only_pressure", READ_ONLY);
    } else {
        testing::skipped("no PSI here");
    }
}

#[test]
#[ignore = "runs in a namespace"]
fn read_only_pressure() {
    let said = Daemon::start(NO_VICTIM).end();
    assert!(said.contains(&not_reported("Read-only file system (os error 30)")), "{said}");
}

/// What the daemon prints where the kernel does not report pressure.
fn not_reported(error: &str) -> String {
    format!(
        "memreap: sampling memory every 250 ms, because the kernel does not report pressure (PSI): \
         /proc/pressure/memory: {error}\n"
    )
}

#[test]
fn it_runs_with_no_rights_at_all() {
    let daemon = Daemon::start_as(NO_VICTIM, PATIENT, unprivileged);
    assert!(daemon.metric("memreap_available_bytes") > 0.0);
    daemon.files.configure(NO_VICTIM);
    assert_eq!(daemon.reload(), "memreap: the new configuration is in force\n");
    let said = daemon.end();
    // What it has to do without is noted, and no trouble.
    assert_eq!(without_notes(&said).len(), 3, "{said}");
    for lacks in ["CAP_SYS_NICE", "CAP_KILL", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYS_RESOURCE"] {
        assert_eq!(said.matches(&format!(" ({lacks})\n")).count(), 1, "{lacks}: {said}");
    }
}

/// A configuration with which there is a shortage in [`in_a_shortage`], and `name` is the only one who may be killed.
fn only(name: &str) -> String {
    format!(
        "act = {{ low = 100, critical = 99.9 }}\n[[rule]]\nlabel = \"the one\"\nname = \"{name}\"\nweight = 1\n\
         {NO_VICTIM}"
    )
}

#[test]
fn without_psi_it_says_so_and_decides_all_the_same() {
    in_a_shortage("dry_run");
}

#[test]
#[ignore = "runs in a namespace"]
fn dry_run() {
    let name = unique();
    let victim = Victim::new(&Setup { name: name.clone().into(), mib: 32, ..Setup::default() });
    let daemon = Daemon::start(NO_VICTIM);
    let told = not_reported("No such file or directory (os error 2)");
    assert!(daemon.files.said().contains(&told), "{}", daemon.files.said());
    let looks = daemon.metric("memreap_wake_ups_total");
    thread::sleep(Duration::from_secs(1));
    // One is for who asks.
    assert!(daemon.metric("memreap_wake_ups_total") >= looks + 3.0);
    // The new configuration counts at once.
    daemon.files.configure(&only(&name));
    daemon.reload();
    let line = format!("memreap: would kill {} ({name}), user ", victim.pid);
    wait_until("it has decided", || daemon.files.said().contains(&line));
    assert!(daemon.files.said().contains("; rule \"the one\""), "{}", daemon.files.said());
    let path = daemon.files.path("state/history");
    wait_until("it is in the history", || history::read(&path, 1).is_ok_and(|kills| !kills.is_empty()));
    let entries = history::read(&path, 9).unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!((entries[0].pid, entries[0].ending.as_str()), (victim.pid.get(), "dry-run"));
    assert!(victim.is_alive());
    daemon.end();
}

#[test]
fn it_kills_the_process_that_it_may_and_no_other() {
    in_a_shortage("kill_one");
}

#[test]
#[ignore = "runs in a namespace"]
fn kill_one() {
    let name = unique();
    let innocent = Victim::of(64);
    let victim = Victim::new(&Setup { name: name.clone().into(), mib: 32, ..Setup::default() });
    let daemon = Daemon::start_as(&only(&name), PATIENT, |command| command);
    let pid = victim.pid.get();
    assert_eq!(victim.died_of(), Some(libc::SIGKILL));
    let history = daemon.files.path("state/history");
    wait_until("it is noted", || !history::read(&history, 9).unwrap().is_empty());
    let entries = history::read(&history, 9).unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    let entry = &entries[0];
    assert_eq!((entry.pid, entry.ending.as_str(), entry.rule.as_str()), (pid, "back", "the one"));
    assert!((32 << 20..64 << 20).contains(&entry.bytes), "{entry:?}");
    let no_victim = "memreap: no process may be killed whose memory would help (critical): ";
    wait_until("it wants another victim", || daemon.files.said().contains(no_victim));
    assert!(innocent.is_alive());
    let kills: f64 = ["expedite", "mrelease", "plain"]
        .map(|method| daemon.metric(&format!("memreap_kills_total{{reason=\"critical\",method=\"{method}\"}}")))
        .iter()
        .sum();
    assert_eq!(kills, 1.0);
    // As seen in meminfo, which may be a file here that does not change.
    let back = entry.freed.unwrap().min(entry.bytes) as f64;
    assert_eq!(daemon.metric("memreap_back_bytes_total"), back);
    let said = daemon.end();
    let line = format!("memreap: killed {pid} ({name}), user ");
    assert_eq!((said.matches(&line).count(), said.matches(no_victim).count()), (1, 1), "{said}");
}

#[test]
fn who_is_asked_while_there_is_time_saves_its_data() {
    FakeMemory::in_a_namespace("leak_beside_a_database", 60_000);
}

#[test]
#[ignore = "runs in a namespace"]
fn leak_beside_a_database() {
    const LEAK_MIB_PER_SECOND: f64 = 100.0;
    // 1 % is 655 MiB, of which 256 count; a tenth is more than a minute before that.
    for (polite, begins_at_mib) in [("act.polite = \"10%\"\n", 6_700), ("", 600)] {
        let memory = FakeMemory::new("/proc/meminfo".into(), 60_000);
        let name = unique();
        let mut data = tempfile::tempfile().unwrap();
        let on_term = OnTerm::Flush(data.as_raw_fd());
        let database = Victim::new(&Setup { name: name.clone().into(), mib: 64, on_term, ..Setup::default() });
        let config = format!("{polite}[[rule]]\nname = \"{name}\"\nweight = 1\n{NO_VICTIM}");
        let daemon = Daemon::start_as(&config, PATIENT, |command| command);
        let began = Instant::now();
        while database.is_alive() {
            let leaked = (began.elapsed().as_secs_f64() * LEAK_MIB_PER_SECOND) as u64;
            memory.set(begins_at_mib.max(leaked) - leaked);
            thread::sleep(Duration::from_millis(10));
        }
        let asked = format!("memreap: asked {} ({name}) to end, by signal 15\n", database.pid);
        let died_of = database.died_of();
        memory.set(60_000);
        let mut saved = String::new();
        data.rewind().unwrap();
        data.read_to_string(&mut saved).unwrap();
        let history = daemon.files.path("state/history");
        wait_until("it is noted", || !history::read(&history, 9).unwrap().is_empty());
        let entry = history::read(&history, 9).unwrap().remove(0);
        let expected = if polite.is_empty() { ("critical", "back") } else { ("polite", "exited") };
        assert_eq!((entry.reason.as_str(), entry.ending.as_str()), expected, "{entry:?}");
        assert_eq!(daemon.metric("memreap_exits_total"), f64::from(u8::from(!polite.is_empty())));
        let said = daemon.end();
        if polite.is_empty() {
            assert_eq!((died_of, saved.as_str()), (Some(libc::SIGKILL), ""), "{said}");
        } else {
            assert_eq!((died_of, saved.as_str()), (None, "all"), "{said}");
        }
        assert_eq!(said.matches(&asked).count(), usize::from(!polite.is_empty()), "{said}");
    }
}

#[test]
fn a_command_runs_before_the_kill() {
    in_a_shortage("hook_and_kill");
}

#[test]
#[ignore = "runs in a namespace"]
fn hook_and_kill() {
    for (body, expected) in
        [("exit 0", "passed"), ("exit 10", "freed"), ("exit 3", "failed"), ("sleep 60", "timed-out")]
    {
        let name = unique();
        let victim = Victim::new(&Setup { name: name.clone().into(), mib: 32, ..Setup::default() });
        let dir = tempfile::tempdir().unwrap();
        let (script, env) = (dir.path().join("hook"), dir.path().join("env"));
        // That the victim still lives is read by the command, too.
        let text =
            format!("env > {0}.new; cat /proc/$MEMREAP_PID/comm >> {0}.new; mv {0}.new {0}; {body}", env.display());
        fs::write(&script, text).unwrap();
        let limit = if expected == "timed-out" { "500ms" } else { "1s" };
        let hook = format!("kill = {{ before = [\"/bin/sh\", {script:?}], before_limit = \"{limit}\" }}\n");
        let daemon = Daemon::start_as(&(hook + &only(&name)), PATIENT, |command| command);
        let pid = victim.pid.get();
        assert_eq!(victim.died_of(), Some(libc::SIGKILL));
        let history = daemon.files.path("state/history");
        wait_until("it is noted", || !history::read(&history, 9).unwrap().is_empty());
        let entry = history::read(&history, 9).unwrap().remove(0);
        assert_eq!((entry.pid, entry.ending.as_str()), (pid, "back"), "{entry:?}");
        // On a machine that is busy a shell may need more than a second to start.
        let in_time = entry.before == expected;
        assert!(in_time || entry.before == "timed-out", "{entry:?}");
        if in_time && expected != "timed-out" {
            let env = fs::read_to_string(&env).unwrap();
            let lines = [format!("MEMREAP_PID={pid}"), format!("MEMREAP_COMM={name}"), "MEMREAP_RULE=the one".into()];
            assert!(lines.iter().all(|line| env.lines().any(|l| l == line)), "{env}");
            assert!(env.lines().any(|line| line == name), "it was dead before: {env}");
        }
        let said = daemon.end();
        assert!(said.contains(&format!("; the command before it: {}\n", entry.before)), "{said}");
    }
}

#[test]
fn a_command_that_frees_memory_averts_the_kill() {
    FakeMemory::in_a_namespace("hook_averts", 100);
}

#[test]
#[ignore = "runs in a namespace"]
fn hook_averts() {
    // On a machine that is busy a shell may need more than a second to start; then the kill goes on.
    assert!((0..10).any(|_| averts_in_time()), "no shell could be started in time");
}

/// Whether the command was there in time, and has averted the kill.
fn averts_in_time() -> bool {
    FakeMemory::new("/proc/meminfo".into(), 100);
    let name = unique();
    let victim = Victim::new(&Setup { name: name.clone().into(), mib: 64, ..Setup::default() });
    let dir = tempfile::tempdir().unwrap();
    let [script, cache, plenty] = ["hook", "cache", "plenty"].map(|name| dir.path().join(name));
    fs::write(&cache, "").unwrap();
    fs::write(&plenty, FakeMemory::text(60_000)).unwrap();
    let text = format!(
        "rm {} || exit 0; dd if={} of=/proc/meminfo conv=notrunc status=none; exit 10",
        cache.display(),
        plenty.display()
    );
    fs::write(&script, text).unwrap();
    // Memory is critical from the beginning, and for as long as the cache is there.
    let config = format!(
        "kill = {{ before = [\"/bin/sh\", {script:?}], before_limit = \"1s\" }}\n[[rule]]\nname = \"{name}\"\n\
         weight = 1\n{NO_VICTIM}"
    );
    let daemon = Daemon::start_as(&config, PATIENT, |command| command);
    let history = daemon.files.path("state/history");
    wait_until("it is noted", || !history::read(&history, 9).unwrap().is_empty());
    let entry = history::read(&history, 9).unwrap().remove(0);
    if entry.before == "timed-out" {
        return false;
    }
    assert_eq!((entry.ending.as_str(), entry.before.as_str()), ("averted", "freed"), "{entry:?}");
    assert_eq!(daemon.metric("memreap_kills_averted_total"), 1.0);
    thread::sleep(Duration::from_secs(1));
    assert!(victim.is_alive() && !cache.exists());
    let said = daemon.end();
    assert!(said.contains(&format!("memreap: spared {} ({name}), user ", victim.pid)), "{said}");
    true
}

#[test]
fn the_command_does_not_run_in_a_dry_run() {
    in_a_shortage("hook_of_a_dry_run");
}

#[test]
#[ignore = "runs in a namespace"]
fn hook_of_a_dry_run() {
    let name = unique();
    let victim = Victim::new(&Setup { name: name.clone().into(), mib: 32, ..Setup::default() });
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let hook = format!("kill.before = [\"/usr/bin/touch\", {ran:?}]\n");
    let daemon = Daemon::start(&(hook + &only(&name)));
    let line = format!("memreap: would kill {} ({name}), user ", victim.pid);
    wait_until("it has decided", || daemon.files.said().contains(&line));
    assert!(!ran.exists() && victim.is_alive());
    daemon.end();
}

#[test]
fn every_victim_of_a_shortage_has_a_command_line_and_a_parent() {
    in_a_shortage("kill_several");
}

#[test]
#[ignore = "runs in a namespace"]
fn kill_several() {
    let name = unique();
    let named = |mib| Victim::new(&Setup { name: name.clone().into(), mib, ..Setup::default() });
    let victims = [32, 48, 64].map(named);
    let daemon = Daemon::start_as(&only(&name), PATIENT, |command| command);
    for victim in victims {
        assert_eq!(victim.died_of(), Some(libc::SIGKILL));
    }
    let history = daemon.files.path("state/history");
    wait_until("all are noted", || history::read(&history, 9).unwrap().len() == 3);
    let (own, comm) = (std::process::id().cast_signed(), fs::read_to_string("/proc/self/comm").unwrap());
    for entry in history::read(&history, 9).unwrap() {
        assert!(entry.command_line.contains("kill_several"), "{entry:?}");
        assert_eq!((entry.parent, entry.parent_comm.as_str()), (Some(own), comm.trim()), "{entry:?}");
    }
    let said = daemon.end();
    assert_eq!(said.matches(&format!("; parent {own} ({}); command line ", comm.trim())).count(), 3, "{said}");
}

#[test]
fn it_kills_together_what_shares_a_memory() {
    in_a_shortage("kill_pool");
}

#[test]
#[ignore = "runs in a namespace"]
fn kill_pool() {
    let name = unique();
    let victim = Victim::new(&Setup { name: name.clone().into(), mib: 96, forks: 3, ..Setup::default() });
    let forks = victim.forks();
    // It gives back more than each of them.
    let small = Victim::new(&Setup { name: name.clone().into(), mib: 16, ..Setup::default() });
    let daemon = Daemon::start_as(&only(&name), PATIENT, |command| command);
    assert_eq!(victim.died_of(), Some(libc::SIGKILL));
    for fork in &forks {
        assert!(fork.wait_exit(Duration::from_secs(20)).unwrap(), "{fork:?} lives");
    }
    let history = daemon.files.path("state/history");
    wait_until("it is noted", || !history::read(&history, 9).unwrap().is_empty());
    let entry = history::read(&history, 9).unwrap().remove(0);
    assert_eq!((entry.processes, entry.ending.as_str()), (4, "back"), "{entry:?}");
    assert!((96 << 20..128 << 20).contains(&entry.bytes), "{entry:?}");
    drop(small);
    let said = daemon.end();
    assert!(said.contains(", and 3 more that share its memory: "), "{said}");
}
