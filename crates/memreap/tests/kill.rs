// SPDX-License-Identifier: GPL-2.0-only
//! `memreap kill` on real processes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use std::{fs, thread};

use linux::PidFd;
use linux::pidfd::Signal;
use linux::process::State;
use memreap::kill::{Armed, Fate, KernelFeatures, Method};
use rustix::process::{Resource, Rlimit, setrlimit};

use common::{
    Mapping, OnTerm, Ran, Setup, Victim, copy_of, interrupt, kill, kill_all, memreap, start, unique, wait_until, waits,
};

const KILLED: Option<i32> = Some(libc::SIGKILL);

fn named(name: &str) -> Victim {
    Victim::new(&Setup { name: name.into(), ..Setup::default() })
}

#[test]
fn a_killed_process_is_gone_and_its_memory_back() {
    let victim = Victim::of(48);
    let ran = kill(&["--json", &victim.pid()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // The exit code says that the memory is back, so the process has exited by now.
    assert!(!victim.is_alive());
    assert_eq!(victim.died_of(), KILLED);
    let json = ran.json();
    let told = &json["victims"][0];
    assert_eq!(told["outcome"], "killed");
    let bytes = told["bytes"].as_u64().unwrap();
    assert!((48 << 20..96 << 20).contains(&bytes), "{bytes}");
    let (back, exited) = (told["seconds"].as_f64().unwrap(), told["exited_seconds"].as_f64().unwrap());
    assert!(0.0 < back && back <= exited && exited < 10.0, "{ran:?}");
}

#[test]
fn the_text_says_what_came_back() {
    let victim = Victim::of(48);
    let ran = kill(&[&victim.pid()]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.out.starts_with(&format!("killed {} (mr", victim.pid)), "{ran:?}");
    assert!(ran.out.contains(" MiB back in "), "{ran:?}");
    let quiet = Victim::of(1);
    let ran = kill(&["--quiet", &quiet.pid()]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(0), "", ""));
    assert_eq!(quiet.died_of(), KILLED);
}

#[test]
fn the_json_has_the_documented_fields() {
    let victim = Victim::of(4);
    let json = kill(&["--json", "-s", "TERM", "-g", "1s", &victim.pid()]).json();
    let keys = |value: &serde_json::Value| {
        let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys.join(" ")
    };
    assert_eq!(
        keys(&json),
        "after before command dry_run errors exit_code freed interrupted method sets signal_first \
         threads timeout_seconds version victims"
    );
    assert_eq!(
        keys(&json["victims"][0]),
        "bytes bytes_per_second comm exact exited_seconds method mrelease outcome pid ppid rss_anon seconds \
         set start_time swap uid"
    );
    assert_eq!(keys(&json["before"]), "anon available free swap_free");
    assert_eq!(keys(&json["signal_first"]), "grace_seconds signal");
    assert_eq!((&json["version"], &json["command"]), (&2.into(), &"kill".into()));
}

#[test]
fn every_method_kills() {
    for method in ["plain", "mrelease", "expedite"] {
        let victim = Victim::of(16);
        let ran = kill(&["--json", "--method", method, &victim.pid()]);
        let supported = match method {
            "mrelease" => linux::pidfd::mrelease_supported(),
            "expedite" => linux::pidfd::expedite_supported(),
            _ => true,
        };
        if !supported {
            assert_eq!(ran.code, Some(2), "{ran:?}");
            assert!(ran.err.contains("memreap doctor"), "{ran:?}");
            assert!(victim.is_alive());
            continue;
        }
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(ran.json()["method"], method);
        if method != "mrelease" {
            assert_eq!(ran.json()["victims"][0]["method"], method);
            assert!(ran.json()["victims"][0]["mrelease"].is_null(), "{ran:?}");
        }
        assert_eq!(victim.died_of(), KILLED);
    }
}

#[test]
fn a_name_must_fit_as_a_whole() {
    let name = unique();
    let victim = named(&name);
    for wrong in [&name[1..], &name[..name.len() - 1], &format!("{name}x"), &name.to_uppercase()] {
        let ran = kill(&[wrong]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains("no process is called"), "{ran:?}");
    }
    assert!(victim.is_alive());
    assert_eq!(kill(&[&name]).code, Some(0));
    assert_eq!(victim.died_of(), KILLED);
}

#[test]
fn a_name_that_fits_several_kills_none_but_with_all() {
    let name = unique();
    let victims = [named(&name), named(&name), named(&name)];
    let ran = kill(&[&name]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(4), ""), "{ran:?}");
    assert!(ran.err.contains("--all"), "{ran:?}");
    for victim in &victims {
        assert!(ran.err.contains(&format!(" {} ", victim.pid)), "{ran:?}");
        assert!(victim.is_alive());
    }
    let ran = kill(&["--all", "--json", &name]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["victims"].as_array().unwrap().len(), 3);
    for victim in victims {
        assert_eq!(victim.died_of(), KILLED);
    }
}

/// A sleeping program under another file name or argv[0], killed at the end.
struct Sleeper(Child);

impl Sleeper {
    fn new(program: &Path, arg0: Option<&str>) -> Self {
        let mut command = Command::new(program);
        command.arg("120");
        if let Some(arg0) = arg0 {
            command.arg0(arg0);
        }
        // SAFETY: prctl is safe after a fork.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        Self(command.spawn().unwrap())
    }

    fn dies(mut self) -> bool {
        self.0.wait().unwrap().code().is_none()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_name_too_long_for_comm_is_found_by_the_program_or_argv0() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("{}-a-long-name-of-a-program", unique());
    let program = copy_of("/bin/sleep", dir.path().join(&name));
    let sleeper = Sleeper::new(&program, Some("something-else"));
    assert_eq!(kill(&[&name[..15]]).code, Some(0), "comm");
    assert!(sleeper.dies());
    let sleeper = Sleeper::new(&program, Some("something-else"));
    assert_eq!(kill(&[&name]).code, Some(0), "exe");
    assert!(sleeper.dies());
    let name = format!("{}-a-long-argv0", unique());
    let sleeper = Sleeper::new(&program, Some(&format!("/some/where/{name}")));
    assert_eq!(kill(&[&name]).code, Some(0), "argv[0]");
    assert!(sleeper.dies());
    let ran = kill(&[program.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("without its folder"), "{ran:?}");
}

#[test]
fn a_name_of_digits_needs_the_option() {
    let name = format!("9{}", std::process::id());
    let victim = named(&name);
    let ran = kill(&["--name", &name, "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["victims"][0]["pid"], victim.pid.get());
    assert_eq!(victim.died_of(), KILLED);
}

#[test]
fn a_target_given_twice_is_killed_once() {
    let name = unique();
    let victim = named(&name);
    let ran = kill(&["--json", &victim.pid(), &name, "--pid", &victim.pid()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["victims"].as_array().unwrap().len(), 1, "{ran:?}");
    assert_eq!(victim.died_of(), KILLED);
}

#[test]
fn one_bad_target_spares_the_others_but_with_keep_going() {
    let victim = Victim::of(2);
    // Above what a PID can be.
    let no_pid = i32::MAX.to_string();
    let ran = kill(&[&victim.pid(), &no_pid]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains(&format!("no process has the ID {no_pid}")), "{ran:?}");
    assert!(ran.out.contains("not killed"), "{ran:?}");
    assert!(victim.is_alive());
    let ran = kill(&["--keep-going", &victim.pid(), &no_pid]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(victim.died_of(), KILLED);
}

#[test]
fn a_thread_is_no_target() {
    let victim = Victim::new(&Setup { headless: true, ..Setup::default() });
    let tids: Vec<_> = fs::read_dir(format!("/proc/{}/task", victim.pid))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|tid| *tid != victim.pid())
        .collect();
    assert_eq!(tids.len(), 1);
    let ran = kill(&[&tids[0]]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains(&format!("is a thread of process {}", victim.pid)), "{ran:?}");
    assert!(victim.is_alive());
}

#[test]
fn a_process_whose_first_thread_has_ended_is_no_zombie() {
    let victim = Victim::new(&Setup { headless: true, mib: 32, ..Setup::default() });
    let ran = kill(&["--json", &victim.pid()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = &ran.json()["victims"][0];
    assert_eq!(told["outcome"], "killed");
    assert!(told["bytes"].as_u64().unwrap() >= 32 << 20, "{ran:?}");
    assert_eq!(victim.died_of(), KILLED);
}

#[test]
fn a_zombie_does_not_make_a_name_ambiguous() {
    let name = unique();
    let (zombie, victim) = (named(&name), named(&name));
    zombie.pidfd.send_signal(Signal::KILL).unwrap();
    wait_until("it is a zombie", || zombie.pidfd.has_exited().unwrap());
    let ran = kill(&[&name]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(victim.died_of(), KILLED);
}

#[test]
fn a_zombie_has_nothing_to_give() {
    let victim = Victim::of(1);
    assert_eq!(kill(&[&victim.pid()]).code, Some(0));
    // Not waited for yet.
    let ran = kill(&[&victim.pid()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("zombie") && ran.out.contains(&std::process::id().to_string()), "{ran:?}");
    assert_eq!(kill(&["--json", &victim.pid()]).json()["victims"][0]["outcome"], "zombie");
}

/// Runs a shell line in which `$M` is the command; returns what it printed.
fn shell(line: &str) -> Ran {
    Ran::from(Command::new("sh").args(["-c", line]).env("M", env!("CARGO_BIN_EXE_memreap")).output().unwrap())
}

#[test]
fn ancestors_and_itself_are_protected() {
    let victim = Victim::of(1);
    // The shell must not exec the command: it is to be the parent.
    let ran = shell(&format!("$M kill $$ {}; echo $?", victim.pid));
    assert_eq!((ran.code, ran.out.lines().last()), (Some(0), Some("4")), "{ran:?}");
    assert!(ran.err.contains("an ancestor of memreap") && ran.err.contains("--force"), "{ran:?}");
    let ran = shell("(sh -c '$M kill $0; echo $?' $$); exit 0");
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "4\n"), "grandparent: {ran:?}");
    let ran = shell("exec $M kill $$");
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.err.contains("memreap itself"), "{ran:?}");
    assert!(victim.is_alive());
    // Its own name is not a target.
    let name = unique();
    let dir = tempfile::tempdir().unwrap();
    let program = copy_of(env!("CARGO_BIN_EXE_memreap"), dir.path().join(&name));
    let ran = Ran::from(Command::new(program).args(["kill", &name]).output().unwrap());
    assert_eq!(ran.code, Some(1), "{ran:?}");
}

#[test]
fn force_kills_an_ancestor() {
    use std::os::unix::process::ExitStatusExt as _;
    let status = Command::new("sh")
        .args(["-c", "$M kill --force $$; echo alive"])
        .env("M", env!("CARGO_BIN_EXE_memreap"))
        .output()
        .unwrap()
        .status;
    assert_eq!(status.signal(), KILLED);
}

#[test]
fn init_and_kernel_threads_are_refused() {
    let victim = Victim::of(1);
    let ran = kill(&["--dry-run", &victim.pid(), "1"]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.err.contains("the init process"), "{ran:?}");
    let kthreadd = fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n");
    if kthreadd {
        let ran = kill(&["--force", "2", &victim.pid()]);
        assert_eq!(ran.code, Some(4), "{ran:?}");
        assert!(ran.err.contains("kernel thread, which cannot be killed"), "{ran:?}");
    } else {
        testing::skipped("no kernel thread to be seen here");
    }
    assert!(victim.is_alive());
}

/// The command where everybody may execute it.
fn for_everybody(dir: &Path) -> PathBuf {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    copy_of(env!("CARGO_BIN_EXE_memreap"), dir.join("memreap"))
}

#[test]
fn another_users_process_is_not_permitted() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        testing::skipped("needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = for_everybody(dir.path());
    let theirs = Victim::of(2);
    let own = Victim::new(&Setup { uid: Some(NOBODY), ..Setup::default() });
    let as_nobody = |args: &[&str]| {
        Ran::from(Command::new(&program).arg("kill").args(args).uid(NOBODY).gid(NOBODY).output().unwrap())
    };
    let ran = as_nobody(&[&theirs.pid(), &own.pid()]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.err.contains("user root's: run as root or with CAP_KILL"), "{ran:?}");
    assert!(theirs.is_alive() && own.is_alive());
    // An unprivileged caller can do without all that needs privileges.
    let ran = as_nobody(&["--keep-going", &theirs.pid(), &own.pid()]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(theirs.is_alive());
    assert_eq!(own.died_of(), KILLED);
}

#[test]
fn without_threads_the_signals_are_sent_all_the_same() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        testing::skipped("needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let victim = Victim::new(&Setup { uid: Some(NOBODY), ..Setup::default() });
    let mut command = Command::new(for_everybody(dir.path()));
    command.args(["kill", "--json", &victim.pid()]).uid(NOBODY).gid(NOBODY);
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    // SAFETY: setrlimit is safe after a fork.
    unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nproc, none)?)) };
    let ran = Ran::from(command.output().unwrap());
    assert_eq!((ran.code, &ran.json()["threads"]), (Some(0), &0.into()), "{ran:?}");
    assert_eq!(victim.died_of(), KILLED);
}

#[test]
fn a_dry_run_kills_no_process() {
    let victim = Victim::of(24);
    let ran = kill(&["--dry-run", "--json", "-s", "TERM", &victim.pid()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = &ran.json()["victims"][0];
    assert_eq!((&told["outcome"], &told["exact"]), (&"would_kill".into(), &true.into()), "{ran:?}");
    let bytes = told["bytes"].as_u64().unwrap();
    assert!((24 << 20..=told["rss_anon"].as_u64().unwrap() + (8 << 20)).contains(&bytes), "{ran:?}");
    let ran = kill(&["-n", &victim.pid()]);
    assert!(ran.out.starts_with("would kill ") && !ran.out.contains("at most"), "{ran:?}");
    thread::sleep(Duration::from_millis(20));
    assert!(victim.is_alive());
}

#[test]
fn a_process_that_ends_after_the_first_signal_is_not_killed() {
    let victim = Victim::new(&Setup { on_term: OnTerm::Exit, ..Setup::default() });
    let ran = kill(&["--json", "--signal-first", "SIGTERM", "--grace", "20s", &victim.pid()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["victims"][0]["outcome"], "exited", "{ran:?}");
    assert_eq!(victim.died_of(), None, "it exited by itself");
}

#[test]
fn a_process_that_ignores_the_first_signal_is_killed_after_the_grace_time() {
    let victim = Victim::new(&Setup { on_term: OnTerm::Ignore, ..Setup::default() });
    let obedient = Victim::new(&Setup { on_term: OnTerm::Exit, ..Setup::default() });
    let began = Instant::now();
    let ran = kill(&["--json", "-s", "TERM", "-g", "300ms", &victim.pid(), &obedient.pid()]);
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let json = ran.json();
    assert_eq!(json["victims"][0]["outcome"], "killed", "{ran:?}");
    assert_eq!(json["victims"][1]["outcome"], "exited", "{ran:?}");
    assert_eq!((victim.died_of(), obedient.died_of()), (KILLED, None));
}

/// A victim that stops on its way out, with its memory, until released by the calling thread.
struct Parked(Victim);

impl Parked {
    fn new(mib: usize) -> Self {
        Self::with(Victim::of(mib))
    }

    fn with(victim: Victim) -> Self {
        let options = libc::PTRACE_O_TRACEEXIT as libc::c_long;
        // SAFETY: neither address nor data point anywhere.
        let ret = unsafe { libc::ptrace(libc::PTRACE_SEIZE, victim.pid.get(), 0, options) };
        assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
        Self(victim)
    }

    fn is_stopped(&self) -> bool {
        let process = linux::Process::open(&linux::Root::system(), self.0.pid).unwrap();
        process.stat().unwrap().state == State::Other(b't')
    }

    /// Lets it go; `then` is run before it is waited for.
    fn release(self, then: impl FnOnce()) -> Option<i32> {
        let mut status = 0;
        // SAFETY: `status` is where the status goes; ptrace gets no pointers.
        unsafe {
            assert_eq!(libc::waitpid(self.0.pid.get(), &mut status, libc::__WALL), self.0.pid.get());
            assert!(libc::WIFSTOPPED(status), "{status:#x}");
            libc::ptrace(libc::PTRACE_DETACH, self.0.pid.get(), 0, 0);
        }
        then();
        self.0.died_of()
    }
}

#[test]
fn what_does_not_die_in_time_is_told() {
    let parked = Parked::new(32);
    let began = Instant::now();
    let ran = kill(&["--json", "--timeout", "3s", &parked.0.pid()]);
    assert!(began.elapsed() >= Duration::from_secs(3));
    assert_eq!(ran.code, Some(5), "{ran:?}");
    let told = &ran.json()["victims"][0];
    assert_eq!(told["outcome"], "dying");
    assert!(told["exited_seconds"].is_null());
    if linux::pidfd::mrelease_supported() {
        // It cannot run, and its memory is back all the same.
        assert!(told["seconds"].is_f64(), "{ran:?}");
        let status = linux::Process::open(&linux::Root::system(), parked.0.pid).unwrap().status().unwrap();
        assert!(status.rss_anon < 4 << 20, "{status:?}");
    }
    assert!(parked.0.is_alive());
    assert_eq!(parked.release(|| {}), KILLED);
}

#[test]
fn a_victim_that_is_dying_is_not_waited_for_before_the_signal() {
    // The call that frees its memory waits as long as its memory map is locked, so none is made to prepare.
    let parked = Parked::new(32);
    parked.0.pidfd.send_signal(Signal::KILL).unwrap();
    wait_until("the victim has stopped on its way out", || parked.is_stopped());
    let pidfd = PidFd::open(parked.0.pid).unwrap();
    let victim = memreap::kill::Victim { pidfd, bytes: 32 << 20, vm_size: 1, core_dumping: false };
    let armed = Armed::new(vec![victim], Method::Mrelease, KernelFeatures::default());
    let status = linux::Process::open(&linux::Root::system(), parked.0.pid).unwrap().status().unwrap();
    assert!(status.rss_anon >= 32 << 20, "{status:?}");
    drop(armed);
    assert_eq!(parked.release(|| {}), KILLED);
}

#[test]
fn on_one_cpu_the_thread_that_signals_frees_the_memory() {
    if !linux::pidfd::mrelease_supported() {
        testing::skipped("no process_mrelease");
        return;
    }
    let parked = Parked::new(32);
    let mut command = memreap();
    command.args(["kill", "--json", "--method", "mrelease", "--timeout", "3s", &parked.0.pid()]);
    // SAFETY: sched_setaffinity is safe after a fork; the set is a local.
    unsafe {
        command.pre_exec(|| {
            let mut all = rustix::thread::sched_getaffinity(None)?;
            let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| all.is_set(*cpu)).unwrap_or(0);
            all.clear();
            all.set(first);
            Ok(rustix::thread::sched_setaffinity(None, &all)?)
        });
    }
    let ran = Ran::from(command.output().unwrap());
    let json = ran.json();
    assert_eq!((&json["threads"], &json["victims"][0]["method"]), (&1.into(), &"mrelease".into()), "{ran:?}");
    assert!(json["victims"][0]["seconds"].is_f64(), "{ran:?}");
    assert_eq!(parked.release(|| {}), KILLED);
}

#[test]
fn threads_help_workers_that_leave_cpus_to_others() {
    if !linux::pidfd::mrelease_supported() {
        testing::skipped("no process_mrelease");
        return;
    }
    let outcome = |paced_workers, limit| {
        let parked = Parked::new(32);
        let pidfd = PidFd::open(parked.0.pid).unwrap();
        let victim = memreap::kill::Victim { pidfd, bytes: 32 << 20, vm_size: 1, core_dumping: false };
        let kernel = KernelFeatures { parallel_reap: false, paced_workers };
        let armed = Armed::new(vec![victim], Method::Expedite, kernel);
        let threads = armed.threads();
        let outcome = kill_all(armed, limit).remove(0);
        assert_eq!(parked.release(|| {}), KILLED);
        (threads, outcome)
    };
    let (threads, helped) = outcome(true, Duration::from_secs(3));
    assert!(threads > 0);
    assert!(helped.calls > 0 && helped.back.is_some(), "{helped:?}");
    let (threads, alone) = outcome(false, Duration::from_millis(300));
    assert_eq!((threads, alone.calls), (0, 0));
    // Where there are no such workers the signal goes out all the same.
    assert_eq!((helped.fate, alone.fate), (Fate::Dying, Fate::Dying));
}

#[test]
fn a_plain_kill_gets_nothing_back_from_a_process_that_cannot_run() {
    let parked = Parked::new(32);
    let ran = kill(&["--timeout", "100ms", "--method", "plain", &parked.0.pid()]);
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(ran.out.contains("still dying after 0.10 s; it may hold "), "{ran:?}");
    assert_eq!(parked.release(|| {}), KILLED);
}

#[test]
fn memory_that_another_process_shares_does_not_come_back() {
    if !linux::pidfd::mrelease_supported() {
        testing::skipped("without process_mrelease the sharer is not noticed");
        return;
    }
    // Kept on its way out, so that there is time to notice.
    let parked = Parked::with(Victim::new(&Setup { sharer: true, mib: 16, ..Setup::default() }));
    let child = start(&["--json", "--method", "mrelease", &parked.0.pid()]);
    wait_until("the victim has stopped on its way out", || parked.is_stopped());
    // Its threads wait after each call of process_mrelease(2), which cannot succeed.
    let calls = || waits(child.id()).iter().skip(1).sum::<u64>();
    let before = calls();
    wait_until("it has called several times", || calls() >= before + 10);
    let sharer = PidFd::open(parked.0.sharer.as_ref().unwrap().opened_as()).unwrap();
    let released = parked.release(|| {
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(6), "{ran:?}");
        let told = &ran.json()["victims"][0];
        assert_eq!((&told["outcome"], &told["seconds"]), (&"shared".into(), &serde_json::Value::Null));
        assert!(sharer.is_alive().unwrap());
    });
    assert_eq!(released, KILLED);
}

#[test]
fn shared_memory_comes_back_when_its_process_exits() {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    let maps = Some(Mapping { mib: 100, protection, flags, fd: -1 });
    let victim = Victim::new(&Setup { maps, ..Setup::default() });
    for how in ["--dry-run", "--exact"] {
        let ran = kill(&["--method", "mrelease", "--json", how, &victim.pid()]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let told = &ran.json()["victims"][0];
        assert!((100 << 20..200 << 20).contains(&told["bytes"].as_u64().unwrap()), "{ran:?}");
        assert_eq!(told["method"], "plain", "{ran:?}");
        assert_eq!(told["seconds"], told["exited_seconds"], "{ran:?}");
    }
    let victim = Victim::new(&Setup { maps, ..Setup::default() });
    let ran = kill(&["--exact", &victim.pid()]);
    assert!(!ran.out.contains("note: "), "{ran:?}");
}

#[test]
fn memory_that_does_not_come_back_is_noticed_by_what_the_system_has() {
    // Large beside what other tests get and give back meanwhile.
    let victim = Victim::new(&Setup { sharer: true, mib: 256, ..Setup::default() });
    let ran = kill(&["--method", "plain", &victim.pid()]);
    assert!(ran.out.contains("note: the system uses only "), "{ran:?}");
}

#[test]
fn both_sharers_of_memory_can_be_killed() {
    let victim = Victim::new(&Setup { sharer: true, mib: 16, ..Setup::default() });
    let sharer = victim.sharer.as_ref().unwrap().opened_as();
    let would = kill(&["--dry-run", &victim.pid(), &sharer.to_string()]);
    let total = would.out.lines().last().unwrap();
    assert!(total.starts_with("2 processes: 1") && total.ends_with(" MiB would come back"), "counted once: {would:?}");
    let ran = kill(&["--json", &victim.pid(), &sharer.to_string()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(victim.died_of(), KILLED);
}

#[test]
fn an_interrupt_ends_the_wait_not_the_kill() {
    let parked = Parked::new(2);
    let child = start(&["--json", "--timeout", "60s", &parked.0.pid()]);
    wait_until("the victim has stopped on its way out", || parked.is_stopped());
    // The signal may have been sent before the wait began.
    thread::sleep(Duration::from_millis(100));
    interrupt(&child);
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    let json = ran.json();
    assert_eq!((&json["interrupted"], &json["exit_code"]), (&true.into(), &130.into()));
    assert_eq!(json["victims"][0]["outcome"], "dying");
    assert_eq!(parked.release(|| {}), KILLED);
}

#[test]
fn an_interrupt_in_the_grace_time_spares() {
    let victim = Victim::new(&Setup { on_term: OnTerm::Ignore, ..Setup::default() });
    let child = start(&["-s", "TERM", "-g", "60s", &victim.pid()]);
    // SigIgn'd signals leave no trace; the threads are started before the signal is sent.
    let tasks = format!("/proc/{}/task", child.id());
    let armed = || fs::read_dir(&tasks).is_ok_and(|tasks| tasks.count() > 1);
    if linux::pidfd::mrelease_supported() {
        wait_until("the command is armed", armed);
    }
    thread::sleep(Duration::from_millis(200));
    interrupt(&child);
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.out.contains("not killed"), "{ran:?}");
    assert!(victim.is_alive());
}

#[test]
fn what_nobody_reads_changes_no_exit_code() {
    let victim = Victim::of(1);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = memreap();
    command.args(["kill", "--keep-going", &victim.pid(), &unique()]).stdout(writer);
    let ran = Ran::from(command.output().unwrap());
    assert_eq!((ran.code, ran.err.lines().count()), (Some(1), 1), "{ran:?}");
    assert_eq!(victim.died_of(), KILLED);
}

#[test]
fn what_cannot_be_written_changes_no_exit_code() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    // PID 1 is protected.
    let kill = |victim: &Victim, how: fn(&mut Command, fs::File) -> &mut Command| {
        let mut command = memreap();
        command.args(["kill", "--keep-going", "1", &victim.pid()]).stdout(full());
        Ran::from(how(&mut command, full()).output().unwrap())
    };
    let victim = Victim::of(1);
    let ran = kill(&victim, |command, _| command);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    let told = "memreap: the result cannot be written: No space left on device (os error 28)\n";
    assert!(ran.err.ends_with(told), "{ran:?}");
    assert_eq!(victim.died_of(), KILLED);
    let victim = Victim::of(1);
    assert_eq!(kill(&victim, |command, full| command.stderr(full)).code, Some(4));
    assert_eq!(victim.died_of(), KILLED);
}

#[test]
fn a_hostile_name_does_not_reach_the_terminal() {
    let hostile = format!("\x1b[2J) (\n{}", std::process::id() % 10_000);
    let victim = Victim::new(&Setup { name: hostile.clone().into_bytes(), ..Setup::default() });
    let ran = kill(&["-n", &hostile]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.out.contains('\x1b') && ran.out.contains(r"\u{1b}[2J) (\n"), "{ran:?}");
    let ran = kill(&[&format!("{hostile}x")]);
    assert!(ran.code == Some(1) && !ran.err.contains('\x1b'), "{ran:?}");
    let ran = kill(&["--json", &victim.pid()]);
    assert_eq!(ran.json()["victims"][0]["outcome"], "killed", "{ran:?}");
    assert_eq!(victim.died_of(), KILLED);
}

#[test]
fn many_at_once() {
    let name = unique();
    let victims: Vec<_> = (0..20).map(|_| named(&name)).collect();
    let with_files = |limit: Rlimit| {
        let mut command = memreap();
        command.args(["kill", "--all", "--json", &name]);
        // SAFETY: setrlimit is safe after a fork.
        unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nofile, limit)?)) };
        Ran::from(command.output().unwrap())
    };
    // It is found out while one is looked for, or while it is opened.
    for files in [30, 31] {
        let ran = with_files(Rlimit { current: Some(files), maximum: Some(files) });
        assert_eq!((ran.code, ran.err.contains("os error 24")), (Some(70), true), "{ran:?}");
    }
    assert!(victims.iter().all(Victim::is_alive));
    let ran = with_files(Rlimit { current: Some(30), maximum: Some(200) });
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let json = ran.json();
    // In the order in which they were found, whatever order they are killed in.
    let pids: Vec<_> = json["victims"].as_array().unwrap().iter().map(|v| v["pid"].as_i64().unwrap()).collect();
    let mut sorted = pids.clone();
    sorted.sort_unstable();
    assert_eq!((pids.len(), &pids), (20, &sorted));
    assert!(victims.into_iter().all(|victim| victim.died_of() == KILLED));
}

#[test]
fn man_pages_completions_and_the_built_in_configuration_are_generated() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("share/man1");
    assert!(memreap().args(["generate", "man"]).arg(&folder).status().unwrap().success());
    let page = fs::read_to_string(folder.join("memreap-kill.1")).unwrap();
    for text in ["signal\\-first", "still dying", "130"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let ran = Ran::from(memreap().args(["generate", "completions", shell]).output().unwrap());
        assert!(ran.code == Some(0) && ran.out.contains("signal-first"), "{shell}");
    }
    let config = Ran::from(memreap().args(["generate", "config"]).output().unwrap());
    assert!(config.code == Some(0) && config.out.contains("[[rule]]"), "{config:?}");
}
