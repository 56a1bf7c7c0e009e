// SPDX-License-Identifier: GPL-2.0-only
//! `memreap kill --tree, --cgroup, --unit, --user` on real processes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{OnTerm, Ran, Setup, Victim, kill, memreap, unique, wait_until};
use linux::cgroup::Hierarchy;
use linux::process::{State, pids};
use linux::{Pid, Process, Root};
use memreap::kill::SetName;
use memreap::kill::target::{Rules, Selector, select};

const KILLED: Option<i32> = Some(libc::SIGKILL);
/// No user of this host's, nor is the next number.
const STRANGER: u32 = 3_141_592;

/// The processes with this name that have not exited.
fn living(name: &str) -> Vec<Pid> {
    let lives = |pid: &Pid| {
        let stat = Process::open(&Root::system(), *pid).and_then(|process| process.stat());
        // X: its parent is waiting for it at this moment.
        let is_dead = |state| matches!(state, State::Zombie | State::Other(b'X'));
        stat.is_ok_and(|stat| stat.comm.as_bytes() == name.as_bytes() && !is_dead(stat.state))
    };
    pids(&Root::system()).unwrap().filter(lives).collect()
}

fn state(pid: Pid) -> State {
    Process::open(&Root::system(), pid).unwrap().stat().unwrap().state
}

/// A process that starts one after the other, as fast as it can, and so do three of its children. All have its name.
struct Forking {
    name: String,
    first: Victim,
}

impl Forking {
    fn new(uid: Option<u32>) -> Self {
        let name = unique();
        let setup = Setup { name: name.clone().into(), mib: 1, forks: 3, forking: true, uid, ..Setup::default() };
        let forking = Self { first: Victim::new(&setup), name };
        wait_until("it has started many", || living(&forking.name).len() > 50);
        forking
    }
}

impl Drop for Forking {
    fn drop(&mut self) {
        // Those that a broken command has left.
        while !living(&self.name).is_empty() {
            let _ = memreap().args(["kill", "--all", "--quiet", &self.name]).output();
        }
    }
}

/// Cgroups of this test's, removed with all that is in them.
struct Groups(PathBuf);

impl Groups {
    /// Makes one with this ending; the test is skipped where that is not allowed.
    #[track_caller]
    fn new(ending: &str) -> Option<Self> {
        let mounted = Hierarchy::find(&Root::system()).unwrap().map(|hierarchy| hierarchy.path);
        let dir = mounted.map(|path| path.join(format!("memreap-{}{ending}", unique())));
        let made = dir.filter(|dir| fs::create_dir(dir).is_ok() && dir.join("cgroup.kill").exists());
        if made.is_none() {
            testing::skipped("cgroups cannot be made here");
        }
        made.map(Self)
    }

    fn make(&self, path: &str) -> PathBuf {
        let dir = self.0.join(path);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// The path in the hierarchy.
    fn path(&self) -> String {
        format!("/{}", self.0.file_name().unwrap().to_str().unwrap())
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        fn remove(dir: &Path) -> bool {
            let below = fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
            let _ = below.filter(|path| path.is_dir()).filter(|path| !remove(path)).count();
            !dir.exists() || fs::remove_dir(dir).is_ok()
        }
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        wait_until("the cgroups are removed", || remove(&self.0));
    }
}

fn put(dir: &Path, victim: &Victim) {
    fs::write(dir.join("cgroup.procs"), victim.pid()).unwrap();
}

fn outcomes(ran: &Ran) -> Vec<String> {
    let json = ran.json();
    json["victims"].as_array().unwrap().iter().map(|v| v["outcome"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_tree_that_forks_while_it_dies_is_killed_as_a_whole() {
    let bystander = Victim::of(1);
    for _ in 0..3 {
        let forking = Forking::new(None);
        let ran = kill(&["--json", "--tree", &forking.first.pid()]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert_eq!(living(&forking.name), []);
        let json = ran.json();
        assert!(json["victims"].as_array().unwrap().len() > 50, "{json}");
        assert_eq!((&json["sets"][0]["kind"], &json["sets"][0]["at_once"]), (&"tree".into(), &false.into()));
        assert_eq!(json["victims"][0]["set"], 0);
    }
    assert!(bystander.is_alive());
}

#[test]
fn a_dry_run_neither_stops_nor_kills_a_tree() {
    let victim = Victim::new(&Setup { forks: 2, ..Setup::default() });
    let ran = kill(&["--dry-run", "--json", "--tree", &victim.pid()]);
    assert_eq!((ran.code, outcomes(&ran)), (Some(0), vec!["would_kill".to_owned(); 3]), "{ran:?}");
    let forks = victim.forks();
    assert!(forks.iter().all(|fork| fork.is_alive().unwrap()));
    // As fast as nobody sends SIGCONT.
    assert!(forks.iter().map(|fork| fork.opened_as()).chain([victim.pid]).all(|pid| state(pid) == State::Other(b'S')));
    assert_eq!(kill(&["--tree", &victim.pid()]).code, Some(0));
    assert!(forks.iter().all(|fork| fork.wait_exit(Duration::from_secs(10)).unwrap()));
}

#[test]
fn what_is_held_and_spared_goes_on() {
    let victim = Victim::new(&Setup { forks: 2, ..Setup::default() });
    let forks = victim.forks();
    // Somebody else has stopped this one.
    forks[0].send_signal(linux::pidfd::Signal::STOP).unwrap();
    wait_until("it is stopped", || state(forks[0].opened_as()) == State::Other(b'T'));
    let root = Root::system();
    let rules = Rules { all: false, force: false };
    let mut selection = select(&root, &[Selector::Set(SetName::Tree(victim.pid))], rules);
    assert_eq!((selection.targets.len(), selection.problems.len()), (3, 0));
    assert_eq!(selection.hold(&root), []);
    let all = [victim.pid, forks[0].opened_as(), forks[1].opened_as()];
    assert_eq!(all.map(state), [State::Other(b'T'); 3]);
    selection.release();
    wait_until("they go on", || [all[0], all[2]].map(state) == [State::Other(b'S'); 2]);
    assert_eq!(state(all[1]), State::Other(b'T'));
    for fork in forks {
        fork.send_signal(linux::pidfd::Signal::KILL).unwrap();
    }
}

#[test]
fn a_tree_with_an_ancestor_is_refused() {
    let line = "sleep 60 & $M kill --tree $$ --keep-going; echo $?; kill -0 $! && echo lives; kill $!";
    let ran =
        Ran::from(Command::new("sh").args(["-c", line]).env("M", env!("CARGO_BIN_EXE_memreap")).output().unwrap());
    assert_eq!(ran.out, "4\nlives\n", "{ran:?}");
    assert!(ran.err.contains("an ancestor of memreap") && ran.err.contains("--force"), "{ran:?}");
    assert_eq!(kill(&["--tree", "1"]).code, Some(4));
    assert_eq!(kill(&["--tree", &i32::MAX.to_string()]).code, Some(1));
}

#[test]
fn a_cgroup_is_killed_at_once_with_those_below() {
    let Some(groups) = Groups::new("") else { return };
    let (inner, beside) = (groups.make("a/b"), groups.make("beside"));
    let (other, bystander) = (Victim::of(2), Victim::of(2));
    put(&groups.make("a"), &other);
    put(&beside, &bystander);
    // It goes on to start others while it is killed.
    let line = format!(
        "echo 0 >{}/cgroup.procs; i=0; while [ $i -lt 500 ]; do sleep 120 & i=$((i + 1)); done; wait",
        inner.display()
    );
    let mut forking = Command::new("sh").args(["-c", &line]).spawn().unwrap();
    let members = || fs::read_to_string(inner.join("cgroup.procs")).unwrap().lines().count();
    wait_until("it has started some", || members() > 10);
    let path = format!("{}/a", groups.path());
    let dry = kill(&["-n", "--json", "--cgroup", &path]);
    assert_eq!((dry.code, &dry.json()["sets"][0]["at_once"]), (Some(0), &true.into()), "{dry:?}");
    assert!(other.is_alive() && forking.try_wait().unwrap().is_none());
    let ran = kill(&["--json", "--cgroup", groups.make("a").to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let json = ran.json();
    assert_eq!((&json["sets"][0]["at_once"], &json["sets"][0]["cgroup"]), (&true.into(), &path.clone().into()));
    assert!(outcomes(&ran).iter().all(|outcome| outcome == "killed" || outcome == "gone"), "{ran:?}");
    assert_eq!((other.died_of(), members(), forking.wait().unwrap().signal()), (KILLED, 0, KILLED));
    assert!(bystander.is_alive());
    let ran = kill(&["--cgroup", &path]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("there are no processes"), "{ran:?}");
    for (path, code) in
        [("/there/is/none", 1), ("/", 4), (".", 4), ("/./", 4), (groups.0.parent().unwrap().to_str().unwrap(), 4)]
    {
        assert_eq!(kill(&["--cgroup", path, "--force"]).code, Some(code), "{path}");
    }
    assert_eq!(kill(&["--cgroup", &format!("{path}/../beside")]).code, Some(1));
    assert!(bystander.is_alive());
}

#[test]
fn memreap_itself_is_spared_in_the_cgroup_that_it_kills() {
    let Some(groups) = Groups::new("") else { return };
    let victims = [Victim::of(2), Victim::of(2)];
    for victim in &victims {
        put(&groups.0, victim);
    }
    let line = format!("echo 0 >{}/cgroup.procs && exec $M kill --json --cgroup {}", groups.0.display(), groups.path());
    let ran =
        Ran::from(Command::new("sh").args(["-c", &line]).env("M", env!("CARGO_BIN_EXE_memreap")).output().unwrap());
    assert_eq!((ran.code, outcomes(&ran)), (Some(0), vec!["killed".to_owned(); 2]), "{ran:?}");
    assert_eq!(ran.json()["sets"][0]["at_once"], false);
    assert_eq!(victims.map(Victim::died_of), [KILLED; 2]);
}

#[test]
fn an_ancestor_in_a_nested_cgroup_is_seen_where_descriptors_are_short() {
    let Some(groups) = Groups::new("") else { return };
    let victim = Victim::of(2);
    put(&groups.0, &victim);
    for i in 0..60 {
        groups.make(&format!("c{i}"));
    }
    // The limit is memreap's alone, which is outside: what kills is cgroup.kill.
    let line = format!(
        "echo 0 >{0}/c0/cgroup.procs; (echo 0 >{1}/cgroup.procs; ulimit -n 40; $M kill --cgroup {2}); echo $?",
        groups.0.display(),
        groups.0.parent().unwrap().display(),
        groups.path()
    );
    let ran =
        Ran::from(Command::new("sh").args(["-c", &line]).env("M", env!("CARGO_BIN_EXE_memreap")).output().unwrap());
    assert_eq!(ran.out, "70\n", "{ran:?}");
    assert!(ran.err.contains("cannot be listed: Too many open files"), "{ran:?}");
    assert!(victim.is_alive());
}

#[test]
fn kernel_threads_in_a_cgroup_do_not_keep_it_alive() {
    let Some(groups) = Groups::new("") else { return };
    let root = Root::system();
    // It does nothing that must be done now, and may be moved.
    let is_ksmd = |pid: &Pid| {
        let stat = Process::open(&root, *pid).and_then(|process| process.stat());
        stat.is_ok_and(|stat| stat.comm.as_bytes() == b"ksmd" && stat.is_kernel_thread())
    };
    let Some(thread) = pids(&root).unwrap().find(is_ksmd) else { return testing::skipped("no ksmd") };
    let victim = Victim::of(2);
    put(&groups.0, &victim);
    fs::write(groups.0.join("cgroup.procs"), thread.to_string()).unwrap();
    let ran = kill(&["--json", "--cgroup", &groups.path()]);
    let back = fs::write(groups.0.parent().unwrap().join("cgroup.procs"), thread.to_string());
    back.unwrap();
    assert_eq!((ran.code, outcomes(&ran)), (Some(0), vec!["killed".to_owned()]), "{ran:?}");
    assert_eq!(ran.json()["sets"][0]["at_once"], true);
    assert_eq!(victim.died_of(), KILLED);
}

#[test]
fn what_a_tree_gives_back_together_is_told() {
    // Much more than what this program has besides, which they share as well.
    let victim = Victim::new(&Setup { mib: 600, forks: 3, ..Setup::default() });
    let dry = kill(&["--dry-run", "--exact", "--tree", &victim.pid()]);
    let total = dry.out.lines().last().unwrap();
    // Each for itself gives back hardly anything.
    assert!(total.starts_with("4 processes: ") && total.contains(" KiB to 6"), "{dry:?}");
    assert!(total.ends_with(" MiB would come back"), "{dry:?}");
    let ran = kill(&["--tree", &victim.pid()]);
    let total = ran.out.lines().find(|line| line.starts_with("4 processes: ")).unwrap();
    // All 2.4 GiB only if others on this machine have given back as much meanwhile.
    assert!(total.contains(" of at most 2") || total.contains(": 2"), "{ran:?}");
}

#[test]
fn a_unit_is_found_in_its_slice_only() {
    if !rustix::process::geteuid().is_root() {
        testing::skipped("needs root");
        return;
    }
    let Some(groups) = Groups::new(".slice") else { return };
    let name = unique();
    // A service or container can name cgroups as it likes.
    let decoy = Victim::of(2);
    put(&groups.make(&format!("other.service/{name}.service")), &decoy);
    let ran = kill(&["--unit", &name]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains(&format!("is called {name}.service")), "{ran:?}");
    let victim = Victim::of(2);
    put(&groups.make(&format!("{}-a.slice/{name}.service/worker", &groups.path()[1..])), &victim);
    let ran = kill(&["--unit", &name]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.starts_with(&format!("unit {name}: 1 of 1 processes killed, all at once\n")), "{ran:?}");
    assert_eq!(victim.died_of(), KILLED);
    assert!(decoy.is_alive());
    // The manager puts a '_' before a name that could be a file of the kernel's.
    let victim = Victim::of(2);
    put(&groups.make(&format!("_cpu.{name}.service")), &victim);
    assert_eq!(kill(&["--unit", &format!("cpu.{name}")]).code, Some(0));
    assert_eq!(victim.died_of(), KILLED);
}

#[test]
fn a_users_processes_are_killed_and_no_others() {
    if !rustix::process::geteuid().is_root() {
        testing::skipped("needs root");
        return;
    }
    let (forking, bystander) = (Forking::new(Some(STRANGER)), Victim::of(1));
    let ran = kill(&["--json", "--user", &STRANGER.to_string()]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(living(&forking.name), []);
    assert!(ran.json()["victims"].as_array().unwrap().iter().all(|victim| victim["uid"] == STRANGER));
    assert!(bystander.is_alive());
    for (user, code) in [((STRANGER + 1).to_string(), 1), ("nobody-of-this-name".to_owned(), 1), ("root".to_owned(), 4)]
    {
        let ran = kill(&["--force", "--user", &user]);
        assert_eq!(ran.code, Some(code), "{ran:?}");
    }
}

#[test]
fn what_is_started_in_the_grace_time_dies_too() {
    let Some(groups) = Groups::new("") else { return };
    let start = || Victim::new(&Setup { on_term: OnTerm::ForkAndExit, ..Setup::default() });
    let (grouped, single) = (start(), start());
    put(&groups.0, &grouped);
    let ran = kill(&["--json", "-s", "TERM", "-g", "20s", "--cgroup", &groups.path()]);
    assert_eq!((ran.code, outcomes(&ran)), (Some(0), vec!["exited".to_owned(), "killed".to_owned()]), "{ran:?}");
    assert_eq!(grouped.died_of(), None);
    assert_eq!(fs::read_to_string(groups.0.join("cgroup.procs")).unwrap(), "");
    // Nothing says that its child was in the tree: its parent is gone.
    let ran = kill(&["--json", "-s", "TERM", "-g", "20s", "--tree", &single.pid()]);
    assert_eq!((ran.code, outcomes(&ran)), (Some(0), vec!["exited".to_owned()]), "{ran:?}");
}

#[test]
fn sets_are_told_in_the_help_and_have_the_documented_fields() {
    let victim = Victim::of(1);
    let json = kill(&["--json", "--tree", &victim.pid()]).json();
    let keys: Vec<_> = json["sets"][0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["at_once", "cgroup", "kind", "target"]);
    let help = kill(&["--help"]).out;
    for word in ["--tree", "--cgroup", "--unit", "--user", "at_once", "not_empty"] {
        assert!(help.contains(word), "{word}");
    }
}
