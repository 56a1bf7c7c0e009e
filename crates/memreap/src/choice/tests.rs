// SPDX-License-Identifier: GPL-2.0-only
//! The chooser on real processes, and on a malformed /proc.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use linux::pidfd::Signal;
use linux::{Pid, PidFd, Root};

use super::groups::Groups;
use super::table::DYING_TIME;
use super::{Choice, Chooser, Considered, Group, Grouping, MAX_CGROUP_PATH_BYTES, Precision, Scope};
use crate::kill::target;
use crate::policy::{Effect, Policy, Rule};

/// Perl needs it twice.
const HUGE: usize = 150;

/// A shell that starts a program with much memory: a grandchild, as children of our own are spared.
struct Hog {
    shell: Child,
    pid: Pid,
}

impl Hog {
    fn start(mib: usize) -> Self {
        // Told so, it has a child that shares its memory and ends after it, or rewrites its arguments in place.
        let program = format!(
            "$| = 1; my $x = \"x\" x ({mib} << 20); my $pid = $$;
            $SIG{{USR1}} = sub {{ if (!fork) {{ sleep 1 while getppid == $pid; exit }} }};
            $SIG{{USR2}} = sub {{ $0 = \"renamed\"; open F, \">/proc/$$/comm\"; print F \"perl\"; close F }};
            print \"$$\\n\"; sleep 60; sleep 60"
        );
        Self::run(&program).0
    }

    /// Starts a program that prints its ID; returns the rest of its output, too.
    fn run(program: &str) -> (Self, impl Iterator<Item = String> + use<>) {
        let mut shell = Command::new("sh")
            .args(["-c", &format!("perl -e '{program}' & wait")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines().map(Result::unwrap);
        let pid = lines.next().unwrap().parse().unwrap();
        (Self { shell, pid }, lines)
    }

    /// Has the other tests wait that start pools: as many share memory in one of them as are looked at in all.
    fn pools_alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts one with so many children that share its memory; returns the IDs of all of them, its own first.
    fn pool(children: usize) -> (Self, Vec<Pid>) {
        Self::pool_of(HUGE, children)
    }

    fn pool_of(mib: usize, children: usize) -> (Self, Vec<Pid>) {
        let (parent, lines) = Self::run(&format!(
            "$| = 1; my $x = \"x\" x ({mib} << 20); my $pid = $$; print \"$$\\n\";
            for (1 .. {children}) {{
                if (!(my $child = fork)) {{ sleep 1 while getppid == $pid; exit }} else {{ print \"$child\\n\" }}
            }}
            sleep 60; sleep 60"
        ));
        let mut pids = vec![parent.pid];
        pids.extend(lines.take(children).map(|line| line.parse::<Pid>().unwrap()));
        (parent, pids)
    }

    fn signal(&self, signal: Signal) {
        if let Ok(pidfd) = PidFd::open(self.pid) {
            let _ = pidfd.send_signal(signal);
        }
    }

    /// Has it rewrite its arguments, but not its name, as setproctitle(3) does.
    fn rename(&self) {
        self.signal(Signal::USR2);
        let read = |file| fs::read(format!("/proc/{}/{file}", self.pid)).unwrap();
        while !read("cmdline").starts_with(b"renamed") || read("comm") != b"perl\n" {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.shell.wait();
    }
}

/// The choice, as if there were only `hogs` and smaller processes: others on this machine, as those of tests
/// that run at the same time, are spared one by one.
fn choose(chooser: &mut Chooser, scope: Scope<'_>, hogs: &[Pid]) -> Option<Choice> {
    choose_by(&Policy::default(), chooser, scope, hogs)
}

fn choose_by(policy: &Policy, chooser: &mut Chooser, scope: Scope<'_>, hogs: &[Pid]) -> Option<Choice> {
    choose_sparing(target::ancestry(&Root::system()), policy, chooser, scope, hogs)
}

fn choose_sparing(
    mut spared: Vec<Pid>,
    policy: &Policy,
    chooser: &mut Chooser,
    scope: Scope<'_>,
    hogs: &[Pid],
) -> Option<Choice> {
    let mut policy = policy.clone();
    loop {
        policy.spare(spared.clone());
        let choice = chooser.choose(&policy, scope)?;
        if hogs.contains(&choice.pid) {
            return Some(choice);
        }
        spared.push(choice.pid);
        let index = chooser.population.table.find(choice.pid).unwrap();
        chooser.population.table.get(index).reading = None;
    }
}

const ALL: Scope<'static> = Scope::All;
const BY_PROCESS: Grouping = Grouping { by_cgroup: false, whole: true };
const BY_CGROUP: Grouping = Grouping { by_cgroup: true, whole: true };

/// Who dies, in order of IDs.
fn victims(choice: &Choice) -> Vec<Pid> {
    let mut pids: Vec<Pid> = choice.pool.iter().map(|member| member.pidfd.opened_as()).collect();
    pids.push(choice.pid);
    pids.sort_unstable();
    pids
}

fn policy(rules: &str) -> Policy {
    let text = format!("policy.defaults = false\nrule = [{rules}]");
    crate::config::Config::parse("test", &text).unwrap().policy
}

#[test]
fn the_largest_is_chosen_when_cold_and_when_warm() {
    let hog = Hog::start(HUGE);
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    let mut policy = Policy::default();
    policy.spare(target::ancestry(&Root::system()));
    chooser.choose(&policy, ALL);
    let cold = chooser.cost();
    assert!(cold.cheap >= cold.processes && cold.exact + cold.sampled + cold.late >= 1, "{cold:?}");
    // On a busy machine a reading may be late.
    let known = |_| choose(&mut chooser, ALL, &[hog.pid]).filter(|choice| choice.precision != Precision::Guess);
    let choice = (0..100).find_map(known).unwrap();
    assert_eq!((choice.pid, choice.uid), (hog.pid, rustix::process::getuid().as_raw()));
    assert_eq!(choice.comm.as_bytes(), b"perl");
    let exact = linux::Process::open(&Root::system(), hog.pid).unwrap().smaps_rollup().unwrap().comes_back();
    assert!(choice.bytes.abs_diff(exact) < exact / 16 && choice.vm_size >= exact);
    assert_eq!(chooser.explain().next().unwrap().pid, hog.pid);
    let ours = chooser.explain().find(|c| c.pid == Pid::own());
    assert!(ours.is_none(), "{ours:?}");

    // When it is known what all have, few are read again.
    chooser.refresh(&policy, Duration::from_secs(10));
    let mut entries = chooser.population.table.entries().iter();
    assert!(entries.all(|entry| entry.reading.is_some() || entry.gone));
    choose(&mut chooser, ALL, &[hog.pid]).unwrap();

    // One that is new, and one that is gone.
    let larger = Hog::start(HUGE + 100);
    assert_eq!(choose(&mut chooser, ALL, &[hog.pid, larger.pid]).unwrap().pid, larger.pid);
    drop(larger);
    choose(&mut chooser, ALL, &[hog.pid]).unwrap();
}

#[test]
fn the_next_ones_of_a_cgroup_come_in_order_and_once() {
    let [large, dead, middle, spared, small] = [140, 120, 100, 80, 60].map(Hog::start);
    let pids = [large.pid, dead.pid, middle.pid, spared.pid, small.pid];
    // Only so many are remembered, and others here may be as large.
    let mut policy = policy("{ name = 'perl', weight = 1 }, { name = '*', never = true }");
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    let choice = choose_by(&policy, &mut chooser, ALL, &pids).unwrap();
    assert_eq!(choice.pid, large.pid);
    // As after the command that runs before a kill.
    assert!(chooser.choose(&policy, Scope::One(large.pid)).is_some());
    drop(dead);
    policy.spare(vec![spared.pid]);
    chooser.forget();
    let others = |chooser: &mut Chooser, cgroup: &[u8]| -> Vec<Pid> {
        let all = std::iter::from_fn(|| chooser.another(&policy, cgroup));
        all.filter(|other| pids.contains(&other.pid) && other.bytes >= 60 << 20).map(|other| other.pid).collect()
    };
    assert_eq!(others(&mut chooser, &choice.cgroup), [large.pid, middle.pid, small.pid]);
    assert_eq!(others(&mut chooser, &choice.cgroup), []);
    choose_by(&policy, &mut chooser, ALL, &pids).unwrap();
    assert_eq!(others(&mut chooser, b"/another"), []);
}

#[test]
fn those_that_share_a_memory_are_killed_together_or_not_at_all() {
    let _alone = Hog::pools_alone();
    let (parent, mut pool) = Hog::pool(3);
    let children = [pool[1], pool[2], pool[3]];
    let innocent = Hog::start(20);
    let mut all = pool.clone();
    all.push(innocent.pid);
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    // On a busy machine a reading may be late.
    let choice = (0..100).find_map(|_| {
        choose(&mut chooser, ALL, &all).filter(|choice| choice.pid != innocent.pid && !choice.pool.is_empty())
    });
    let choice = choice.unwrap();
    pool.sort_unstable();
    assert_eq!(victims(&choice), pool);
    let exact = linux::Process::open(&Root::system(), parent.pid).unwrap().smaps_rollup().unwrap();
    assert!(choice.bytes.abs_diff(exact.anonymous) < exact.anonymous / 8, "{choice:?} {exact:?}");
    assert!(!choice.precision.is_exact());

    // One that must not be killed keeps the memory.
    let policy = policy("");
    let mut spared = target::ancestry(&Root::system());
    spared.push(children[1]);
    let chosen = (0..100).find_map(|_| {
        chooser.forget();
        choose_sparing(spared.clone(), &policy, &mut chooser, ALL, &all).filter(|choice| choice.precision.is_exact())
    });
    assert_eq!(chosen.map(|choice| (choice.pid, choice.pool.len())), Some((innocent.pid, 0)));

    // Who gives back more alone comes first.
    let hog = Hog::start(HUGE / 2);
    all.push(hog.pid);
    let chosen =
        (0..100).find_map(|_| choose(&mut chooser, ALL, &all).filter(|choice| choice.precision != Precision::Guess));
    assert_eq!(chosen.map(|choice| (choice.pid, choice.pool.len())), Some((hog.pid, 0)));
}

/// One sample of a process that shares nothing has an error of 0.4 %, two have 0.2 %.
#[test]
fn of_two_that_may_be_the_largest_more_is_read() {
    let hogs = [HUGE, HUGE, HUGE + 60].map(Hog::start);
    let [one, other, larger] = [hogs[0].pid, hogs[1].pid, hogs[2].pid];
    let policy = policy("{ name = 'perl', weight = 1 }, { name = '*', never = true }");
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    // What those that were considered give back and its error, in parts of it. On a busy machine a reading may be late.
    let mut errors = |spared: &[Pid], hogs: &[Pid]| -> Vec<f64> {
        let mut spared = spared.to_vec();
        spared.extend(target::ancestry(&Root::system()));
        let mut tried = (0..100).map(|_| {
            chooser.forget();
            choose_sparing(spared.clone(), &policy, &mut chooser, ALL, hogs);
            let error = |pid: &Pid| chooser.explain().find(|c| c.pid == *pid).and_then(error_part);
            hogs.iter().filter_map(error).collect()
        });
        tried.find(|errors: &Vec<f64>| errors.len() == hogs.len()).unwrap()
    };
    let looked_closer = errors(&[larger], &[one, other]);
    assert!(looked_closer.iter().all(|&error| error < 0.003), "{looked_closer:?}");
    let once = errors(&[], &[larger]);
    assert!(once.iter().all(|&error| error > 0.003), "{once:?}");
}

/// The error of a sample, as a part of what it says.
fn error_part(considered: &Considered) -> Option<f64> {
    match (considered.bytes, considered.precision) {
        (Some(bytes), Precision::Sampled { error }) => Some(error as f64 / bytes as f64),
        _ => None,
    }
}

#[test]
fn a_command_line_protects_also_before_a_refresh() {
    let hog = Hog::start(8);
    let only = |rule: &str| policy(&format!("{rule}, {{ name = 'perl', weight = 1 }}, {{ name = '*', never = true }}"));
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    let protected = only("{ command_line = '*8 << 20*', never = true }");
    assert!(choose_by(&protected, &mut chooser, ALL, &[hog.pid]).is_none());
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    let other = only("{ command_line = '*9 << 20*', never = true }");
    // On a busy machine a reading may be late.
    let chosen = (0..100).find_map(|_| {
        chooser.forget();
        choose_by(&other, &mut chooser, ALL, &[hog.pid])
    });
    assert_eq!(chosen.unwrap().pid, hog.pid);
    // Of one that is too long the rest may be what the rule is for.
    let program = "$| = 1; my $x = \"x\" x (8 << 20); print \"$$\\n\"; sleep 60; #";
    let (long, _) = Hog::run(&(program.to_owned() + &"x".repeat(16 << 10)));
    assert!(choose_by(&other, &mut chooser, ALL, &[long.pid]).is_none());
}

#[test]
fn executables_are_read_of_candidates_only() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let other = dir.join("perl");
    let perl = Command::new("sh").args(["-c", "command -v perl"]).output().unwrap().stdout;
    let perl = fs::canonicalize(String::from_utf8(perl).unwrap().trim()).unwrap();
    assert!(Command::new("cp").arg(&perl).arg(&other).status().unwrap().success());
    let start = |program: &Path, mib: usize| {
        let text = format!(
            "exec {} -e '$| = 1; my $x = \"x\" x ({mib} << 20); print \"$$\\n\"; sleep 60; sleep 60'",
            program.display()
        );
        let mut shell =
            Command::new("sh").args(["-c", &format!("({text}) & wait")]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Hog { pid: line.trim().parse().unwrap(), shell }
    };
    let (large, small) = (start(&other, HUGE), start(&perl, HUGE / 4));
    let pids = [large.pid, small.pid];
    // Others here may be as large, and called the same.
    let choose = |chooser: &mut Chooser, rule: &str| {
        let rules =
            format!("{{ exe = {other:?}, {rule} }}, {{ name = 'perl', weight = 1 }}, {{ name = '*', never = true }}");
        let policy = policy(&rules);
        // On a busy machine a reading may be late.
        let chosen = (0..100).find_map(|_| {
            chooser.forget();
            choose_by(&policy, chooser, ALL, &pids)
        });
        chosen.map(|choice| choice.pid)
    };
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    assert_eq!(choose(&mut chooser, "weight = 1"), Some(large.pid));
    assert_eq!(choose(&mut chooser, "never = true"), Some(small.pid));
    let read = chooser.population.table.entries().iter().filter(|entry| entry.reading.is_some_and(|r| r.exe_known));
    let names: Vec<_> = read.map(|entry| entry.reading.unwrap().comm).collect();
    assert!(!names.is_empty() && names.iter().all(|comm| comm.as_bytes() == b"perl"), "{names:?}");
    assert_eq!(choose(&mut chooser, "protect = 0.01"), Some(small.pid));
    assert_eq!(choose(&mut chooser, "prefer = 2"), Some(large.pid));
    // An update of the package.
    fs::remove_file(&other).unwrap();
    assert_eq!(choose(&mut chooser, "never = true"), Some(small.pid));
    // No rule asks for it.
    chooser.forget();
    choose_by(&policy("{ name = 'perl', weight = 1 }, { name = '*', never = true }"), &mut chooser, ALL, &pids);
    assert!(chooser.population.table.entries().iter().all(|entry| entry.reading.is_none_or(|r| !r.exe_known)));
}

#[test]
fn a_program_that_was_spared_by_its_executable_is_judged_anew() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().canonicalize().unwrap().join("perl");
    // Of the same name.
    let (hog, _) = Hog::run(&format!(
        "$| = 1; $SIG{{USR1}} = sub {{ exec q({}), q(-e), q(sleep 60) }}; print \"$$\\n\"; sleep 60",
        other.display()
    ));
    let perl = fs::read_link(format!("/proc/{}/exe", hog.pid)).unwrap();
    assert!(Command::new("cp").args([&perl, &other]).status().unwrap().success());
    let policy = policy(&format!(
        "{{ exe = {perl:?}, never = true }}, {{ name = 'perl', weight = 1 }}, {{ name = '*', never = true }}"
    ));
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    chooser.set_min_bytes(0);
    let mut choose = || {
        chooser.refresh(&policy, Duration::from_secs(10));
        choose_by(&policy, &mut chooser, ALL, &[hog.pid]).map(|choice| choice.pid)
    };
    assert_eq!(choose(), None);
    hog.signal(Signal::USR1);
    while fs::read_link(format!("/proc/{}/exe", hog.pid)).unwrap() != other {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!((0..100).any(|_| choose() == Some(hog.pid)));
}

#[test]
fn another_program_of_the_same_name_is_judged_anew() {
    let (hog, mut lines) = Hog::run(
        "$| = 1; $SIG{USR1} = sub { exec qw(perl -e), q($| = 1; print qq(\\n); sleep 60), \"wor\".\"ker\" };
        print \"$$\\n\"; sleep 60",
    );
    let policy = policy(
        "{ command_line = '*worker', never = true }, { name = 'perl', weight = 1 }, { name = '*', never = true }",
    );
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    let mut choose = || {
        chooser.refresh(&policy, Duration::from_secs(10));
        choose_by(&policy, &mut chooser, ALL, &[hog.pid]).map(|choice| choice.pid)
    };
    // On a busy machine a reading may be late.
    assert_eq!((0..100).find_map(|_| choose()), Some(hog.pid));
    hog.signal(Signal::USR1);
    assert_eq!(lines.next().as_deref(), Some(""));
    assert_eq!(choose(), None);
}

#[test]
fn who_is_about_to_die_is_judged_by_the_present_command_line() {
    let hog = Hog::start(8);
    let policy = policy(
        "{ command_line = 'renamed*', never = true }, { name = 'perl', weight = 1 },
         { name = '*', never = true }",
    );
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    // On a busy machine a reading may be late.
    let choice = (0..100).find_map(|_| {
        chooser.forget();
        choose_by(&policy, &mut chooser, ALL, &[hog.pid])
    });
    let (choice, considered) = (choice.unwrap(), chooser.considered.clone());
    hog.rename();
    let is_another = |chooser: &mut Chooser| {
        chooser.considered.clone_from(&considered);
        std::iter::from_fn(|| chooser.another(&policy, &choice.cgroup)).any(|other| other.pid == hog.pid)
    };
    assert!((0..100).any(|_| !is_another(&mut chooser)));
    assert!((0..100).any(|_| choose_by(&policy, &mut chooser, ALL, &[hog.pid]).is_none()));
}

#[test]
fn a_command_line_that_cannot_be_read_again_is_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let hog = Hog::start(8);
    let copied = dir.path().join("proc").join(hog.pid.to_string());
    fs::create_dir_all(&copied).unwrap();
    for file in ["status", "smaps_rollup", "oom_score_adj", "cmdline"] {
        fs::write(copied.join(file), fs::read(format!("/proc/{}/{file}", hog.pid)).unwrap()).unwrap();
    }
    fs::write(dir.path().join("proc/vmstat"), "nr_mapped 1\nnr_shmem 1\npgfault 1\npgalloc_normal 1\n").unwrap();
    let policy = policy("{ command_line = 'x', never = true }");
    let mut chooser = Chooser::new(&Root::at(dir.path()), 100).unwrap();
    // On a busy machine a reading may be late.
    assert!((0..100).any(|_| {
        chooser.forget();
        chooser.choose(&policy, ALL).is_some()
    }));
    fs::remove_file(copied.join("cmdline")).unwrap();
    assert!(chooser.choose(&policy, ALL).is_some());
    fs::write(copied.join("cmdline"), "x").unwrap();
    assert!((0..100).any(|_| chooser.choose(&policy, ALL).is_none()));
}

#[test]
fn a_command_line_that_is_held_back_holds_up_no_kill() {
    let dir = tempfile::tempdir().unwrap();
    let hog = Hog::start(8);
    let copy = |pid: Pid, files: &[&str]| {
        let copied = dir.path().join("proc").join(pid.to_string());
        fs::create_dir_all(&copied).unwrap();
        for file in files {
            fs::write(copied.join(file), fs::read(format!("/proc/{pid}/{file}")).unwrap()).unwrap();
        }
        copied
    };
    let copied = copy(hog.pid, &["status", "stat", "smaps_rollup", "oom_score_adj"]);
    fs::write(dir.path().join("proc/vmstat"), "nr_mapped 1\nnr_shmem 1\npgfault 1\npgalloc_normal 1\n").unwrap();
    // Without a writer, who opens it waits.
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, copied.join("cmdline"), fifo, mode, 0).unwrap();
    let mut chooser = Chooser::new(&Root::at(dir.path()), 100).unwrap();
    let choice = chooser.choose(&policy(""), ALL).unwrap();
    // Not before: the folders are not listed in the order of their numbers, as processes are.
    let shell = Pid::new(hog.shell.id().cast_signed()).unwrap();
    copy(shell, &["stat"]);
    let began = Instant::now();
    let (parent, command_line) = chooser.describe(&choice);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!((parent.map(|parent| parent.pid), command_line.as_slice()), (Some(shell), &b""[..]));
}

#[test]
fn as_many_groups_as_there_can_be_protect_nobody() {
    if !rustix::process::geteuid().is_root() {
        testing::skipped("only root may set its groups");
        return;
    }
    let (hog, _) = Hog::run(
        "$| = 1; my $x = \"x\" x (40 << 20); $) = join \" \", 0, map { 1500000000 + $_ } 1 .. 65536;
        print \"$$\\n\"; sleep 60",
    );
    let status = fs::read(format!("/proc/{}/status", hog.pid)).unwrap();
    assert!(status.len() > 65_536 * 11, "{}", status.len());
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    assert_eq!(choose(&mut chooser, ALL, &[hog.pid]).unwrap().pid, hog.pid);
}

#[test]
fn when_reading_takes_too_long_what_is_known_has_to_do() {
    let [large, small] = [Hog::start(40), Hog::start(20)];
    let policy = policy("{ name = 'perl', weight = 1 }, { name = '*', never = true }");
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    chooser.reading_timeout = Duration::ZERO;
    for grouping in [BY_PROCESS, BY_CGROUP] {
        chooser.forget();
        chooser.set_grouping(grouping);
        assert!(chooser.choose(&policy, ALL).is_none(), "nothing is known");
        chooser.refresh(&policy, Duration::from_secs(60));
        let choice = choose_by(&policy, &mut chooser, ALL, &[large.pid, small.pid]).unwrap();
        assert_eq!((choice.pid, choice.precision.is_exact()), (large.pid, false));
        // Hardly more than the one that was chosen was read again.
        assert!(choice.cost.cheap < 10, "{:?}", choice.cost);
    }
}

#[test]
fn no_weight_makes_up_for_too_little() {
    let [large, small] = [Hog::start(40), Hog::start(20)];
    let pids = [large.pid, small.pid];
    fs::write(format!("/proc/{}/oom_score_adj", small.pid), "987").unwrap();
    let preferred = Rule {
        label: String::new(),
        names: Vec::new(),
        command_lines: Vec::new(),
        exes: Vec::new(),
        users: Vec::new(),
        cgroups: Vec::new(),
        oom_score_adj: Some(987..=987),
        effect: Effect::Weight(1000.0),
        up_to: None,
        signal_first: None,
    };
    let policy = Policy::new(vec![preferred]);
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    let choice = choose_by(&policy, &mut chooser, ALL, &pids).unwrap();
    assert_eq!(choice.pid, small.pid);
    chooser.set_min_bytes(choice.bytes + (8 << 20));
    assert_eq!(choose_by(&policy, &mut chooser, ALL, &pids).unwrap().pid, large.pid);
    chooser.set_min_bytes(u64::MAX);
    assert!(choose_by(&policy, &mut chooser, ALL, &pids).is_none());
}

#[test]
fn a_malformed_proc_gets_no_process_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::at(dir.path());
    let write = |name: &str, text: &[u8]| {
        let path = dir.path().join("proc").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("vmstat", b"nr_mapped 1\nnr_shmem 1\npgfault 1\npgalloc_normal 1\n");
    write("loadavg", b"0.00 0.00 0.00 1/1 -5\n");
    let status = fs::read("/proc/self/status").unwrap();
    let rollup = fs::read("/proc/self/smaps_rollup").unwrap();
    let mut policy = Policy::default();
    policy.spare(vec![Pid::own()]);
    // Our own ID, and one that no process can have.
    for (pid, tgid) in [(Pid::own().get(), Pid::own().get()), (i32::MAX, i32::MAX), (77, 78)] {
        let text = String::from_utf8_lossy(&status).replace(&format!("\t{}", Pid::own()), &format!("\t{tgid}"));
        write(&format!("{pid}/status"), text.as_bytes());
        write(&format!("{pid}/oom_score_adj"), b"0\n");
        write(&format!("{pid}/smaps_rollup"), &rollup);
    }
    write("1/status", b"Name:\tx\nVmRSS:\t-1 kB\n");
    write("2/status", &vec![b'x'; 1 << 20]);
    fs::create_dir_all(Path::new(&dir.path().join("proc/3/status"))).unwrap();
    let mut chooser = Chooser::new(&root, 100).unwrap();
    for _ in 0..3 {
        chooser.refresh(&policy, Duration::from_secs(1));
        assert!(chooser.choose(&policy, ALL).is_none());
    }
    // All of it vanishes.
    fs::remove_dir_all(dir.path().join("proc")).unwrap();
    chooser.refresh(&policy, Duration::from_secs(1));
    assert!(chooser.choose(&policy, Scope::Below(b"/x")).is_none());
}

#[test]
fn a_kernel_that_does_not_tell_what_is_shared_has_guesses() {
    let (dir, hog) = (tempfile::tempdir().unwrap(), Hog::start(20));
    let proc = dir.path().join("proc");
    fs::create_dir_all(proc.join(hog.pid.to_string())).unwrap();
    for file in ["vmstat".to_owned(), "loadavg".to_owned()]
        .into_iter()
        .chain(["status", "oom_score_adj", "cmdline", "cgroup"].map(|file| format!("{}/{file}", hog.pid)))
    {
        fs::write(proc.join(&file), fs::read(Path::new("/proc").join(&file)).unwrap()).unwrap();
    }
    let chosen = || Chooser::new(&Root::at(dir.path()), 100).unwrap().choose(&Policy::default(), ALL);
    assert_eq!(chosen().map(|choice| (choice.pid, choice.precision)), Some((hog.pid, Precision::Guess)));
    // One that cannot be read where others can is gone.
    fs::create_dir(proc.join("self")).unwrap();
    fs::write(proc.join("self/smaps_rollup"), "").unwrap();
    assert!(chosen().is_none());
}

#[test]
fn groups_beside_ours_are_known_in_a_private_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    // Not our child, which would be spared.
    let hog = Hog::start(8);
    let (own, pid) = (Pid::own(), hog.pid);
    for file in ["status", "smaps_rollup", "oom_score_adj"] {
        write(&format!("proc/{pid}/{file}"), &fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap());
    }
    write("proc/vmstat", "nr_mapped 1\npgfault 1\npgalloc_normal 1\n");
    write("proc/self/mountinfo", "1 2 0:1 /../.. /cg rw - cgroup2 cgroup2 rw\n");
    write("proc/self/cgroup", "0::/\n");
    write(&format!("proc/{pid}/cgroup"), "0::/../other\n");
    write("cg/cgroup.controllers", "memory\n");
    for (group, member) in [("kube/ctr", own), ("kube/other", pid)] {
        write(&format!("cg/{group}/cgroup.procs"), &format!("{member}\n"));
        write(&format!("cg/{group}/memory.current"), "4096\n");
        write(&format!("cg/{group}/memory.stat"), "anon 4096\n");
    }
    let mut chooser = Chooser::new(&Root::at(dir.path()), 100).unwrap();
    chooser.set_grouping(BY_CGROUP);
    let choice = chooser.choose(&Policy::default(), ALL).unwrap();
    assert_eq!((choice.pid, &choice.cgroup[..]), (pid, &b"/kube/other"[..]));
    assert_eq!(choice.group.map(|group| group.bytes), Some(4096));
    let choice = chooser.choose(&Policy::default(), Scope::Below(b"/kube/other")).unwrap();
    assert_eq!(choice.pid, pid);
    assert!(chooser.choose(&Policy::default(), Scope::Below(b"/kube/ctr")).is_none());
    // It has company: one that is gone, and one that /proc hides (hidepid=2).
    for (other, group) in [(Pid::new(i32::MAX).unwrap(), (1, true)), (own, (2, false))] {
        write("cg/kube/other/cgroup.procs", &format!("{pid}\n{other}\n"));
        let choice = chooser.choose(&Policy::default(), Scope::Below(b"/kube/other")).unwrap();
        assert_eq!(choice.group.map(|group| (group.processes, group.expendable)), Some(group));
    }
    // Too many to say whether all may be killed.
    write("cg/kube/other/cgroup.procs", &format!("{pid}\n").repeat(600));
    let choice = chooser.choose(&Policy::default(), Scope::Below(b"/kube/other")).unwrap();
    assert_eq!(choice.group.map(|group| (group.processes, group.expendable)), Some((600, false)));
    // Its path is longer than what a choice says of it.
    write(&format!("proc/{pid}/cgroup"), &format!("0::/../{}/end\n", "x/".repeat(150)));
    for (rule, chosen) in [("/kube/**", false), ("/kube/**/end", false), ("/kube/**/x", true), ("/init.scope", true)] {
        chooser.forget();
        let rule = policy(&format!("{{ cgroup = '{rule}', never = true }}"));
        let choice = chooser.choose(&rule, ALL);
        let expected = chosen.then_some((MAX_CGROUP_PATH_BYTES, None));
        assert_eq!(choice.map(|choice| (choice.cgroup.len(), choice.group)), expected, "{rule:?}");
    }
    // It is longer than a page: reading it fails as this link does.
    let cgroup = dir.path().join(format!("proc/{pid}/cgroup"));
    fs::remove_file(&cgroup).unwrap();
    symlink("x".repeat(256), &cgroup).unwrap();
    for (rule, chosen) in
        [("", true), ("{ cgroup = '/kube/**', never = true }", true), ("{ name = 'perl', never = true }", false)]
    {
        chooser.forget();
        let choice = chooser.choose(&policy(rule), ALL);
        assert_eq!(choice.map(|choice| (choice.pid, choice.cgroup.len())), chosen.then_some((pid, 0)), "{rule}");
    }
    // Its command line cannot be read.
    for (rule, chosen) in [("never = true", false), ("weight = 2", true)] {
        let policy = policy(&format!("{{ command_line = 'x', {rule} }}"));
        chooser.forget();
        assert_eq!(chooser.choose(&policy, ALL).is_some(), chosen, "{rule}");
    }
}

#[test]
fn what_a_unit_asks_for_counts_at_once() {
    if !rustix::process::geteuid().is_root() {
        testing::skipped("only root's cgroups count");
        return;
    }
    // Not in /tmp, which may be a tmpfs without extended attributes.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let hog = Hog::start(8);
    let proc = dir.path().join("proc");
    let copied = proc.join(hog.pid.to_string());
    let unit = dir.path().join("cg/a.service");
    for path in [&copied, &proc.join("self"), &unit] {
        fs::create_dir_all(path).unwrap();
    }
    for file in ["status", "smaps_rollup", "oom_score_adj"] {
        fs::write(copied.join(file), fs::read(format!("/proc/{}/{file}", hog.pid)).unwrap()).unwrap();
    }
    fs::write(copied.join("cgroup"), "0::/a.service\n").unwrap();
    fs::write(proc.join("self/mountinfo"), "1 2 0:1 / /cg rw - cgroup2 cgroup2 rw\n").unwrap();
    fs::write(dir.path().join("cg/cgroup.controllers"), "\n").unwrap();
    let mut chooser = Chooser::new(&Root::at(dir.path()), 100).unwrap();
    let mut choose = || chooser.choose(&Policy::default(), ALL).map(|choice| choice.pid);
    assert_eq!(choose(), Some(hog.pid));
    let omit = c"user.oomd_omit";
    rustix::fs::setxattr(&unit, omit, b"1", rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(choose(), None);
    rustix::fs::removexattr(&unit, omit).unwrap();
    chooser.refresh(&Policy::default(), Duration::from_secs(10));
    assert_eq!(chooser.choose(&Policy::default(), ALL).map(|choice| choice.pid), Some(hog.pid));
    // However long the unit's path is.
    let path = format!("a.service{}", "/x".repeat(MAX_CGROUP_PATH_BYTES));
    let deep = dir.path().join("cg").join(&path);
    fs::create_dir_all(&deep).unwrap();
    rustix::fs::setxattr(&deep, omit, b"1", rustix::fs::XattrFlags::empty()).unwrap();
    fs::write(copied.join("cgroup"), format!("0::/{path}\n")).unwrap();
    chooser.forget();
    assert!(chooser.choose(&Policy::default(), ALL).is_none());
}

#[test]
fn a_proc_of_another_pid_namespace_is_refused() {
    /// Set for the process in which this test runs in another namespace.
    const INSIDE: &str = "MEMREAP_TEST_PID_NAMESPACE";
    if std::env::var_os(INSIDE).is_some() {
        let error = Chooser::new(&Root::system(), 10).map(drop).unwrap_err().to_string();
        assert!(error.contains("unshare --mount-proc"), "{error}");
        return;
    }
    let run = |args: &[&str]| Command::new("unshare").arg("-pf").args(args).env(INSIDE, "1").output();
    if !run(&["true"]).is_ok_and(|output| output.status.success()) {
        testing::skipped("namespaces cannot be made here");
        return;
    }
    let own = std::env::current_exe().unwrap();
    let test = "choice::tests::a_proc_of_another_pid_namespace_is_refused";
    let output = run(&[own.to_str().unwrap(), "--exact", test]).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn more_processes_than_there_is_room_for_are_counted() {
    let mut chooser = Chooser::new(&Root::system(), 3).unwrap();
    chooser.choose(&Policy::default(), ALL);
    assert!(chooser.cost().processes > 3, "{:?}", chooser.cost());
}

/// A cgroup of the running system, in which processes can be put; removed at the end.
struct RealGroup(std::path::PathBuf);

impl RealGroup {
    /// `None` where that is not allowed.
    fn new(name: &str) -> Option<Self> {
        let path = linux::cgroup::Hierarchy::find(&Root::system()).ok()??.path.join(name);
        fs::create_dir(&path).ok()?;
        Some(Self(path))
    }

    fn put(&self, pid: Pid) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for RealGroup {
    fn drop(&mut self) {
        // Those in it have just been killed, and may not be gone yet.
        for _ in 0..1000 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A hierarchy with one cgroup in it, whose numbers are made up, as not every hierarchy has these files.
struct MadeUpGroup(tempfile::TempDir, std::path::PathBuf);

impl MadeUpGroup {
    /// One that holds so much, with these processes.
    fn new(name: &str, bytes: u64, pids: &[Pid]) -> Self {
        let tree = tempfile::tempdir().unwrap();
        let path = tree.path().join(name);
        fs::create_dir(&path).unwrap();
        let group = Self(tree, path);
        group.write("memory.stat", format!("anon {bytes}\n"));
        group.write("memory.current", format!("{bytes}\n"));
        group.write("memory.oom.group", "0\n".to_owned());
        group.write("cgroup.procs", pids.iter().map(|pid| format!("{pid}\n")).collect());
        group
    }

    fn write(&self, file: &str, text: String) {
        fs::write(self.1.join(file), text).unwrap();
    }

    /// Returns a chooser that sees it.
    fn chooser(&self) -> Chooser {
        let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
        chooser.membership.groups = Groups::open(self.0.path());
        chooser.set_grouping(BY_CGROUP);
        chooser
    }
}

#[test]
fn a_group_is_killed_where_its_memory_is_counted() {
    let name = format!("memreap-test-whole-{}", Pid::own());
    let (Some(_above), Some(real)) = (RealGroup::new(&name), RealGroup::new(&format!("{name}/inner"))) else {
        testing::skipped("cgroups cannot be made here");
        return;
    };
    let hogs = [Hog::start(HUGE), Hog::start(HUGE)];
    hogs.iter().for_each(|hog| real.put(hog.pid));
    // The numbers are made up, as not every hierarchy has these files. The inner one has none.
    let tree = tempfile::tempdir().unwrap();
    let group = tree.path().join(&name);
    fs::create_dir_all(group.join("inner")).unwrap();
    let members = format!("{}\n{}\n", hogs[0].pid, hogs[1].pid);
    let bytes = (2 * HUGE as u64) << 20;
    for (file, text) in [
        ("memory.stat", format!("anon {bytes}\n")),
        ("memory.current", format!("{bytes}\n")),
        ("memory.oom.group", "1\n".to_owned()),
        ("cgroup.procs", String::new()),
        ("inner/cgroup.procs", members),
    ] {
        fs::write(group.join(file), text).unwrap();
    }
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    chooser.membership.groups = Groups::open(tree.path());
    chooser.set_grouping(BY_CGROUP);
    let choice = choose(&mut chooser, ALL, &[hogs[0].pid, hogs[1].pid]).unwrap();
    assert_eq!(choice.cgroup[..], *format!("/{name}/inner").as_bytes());
    assert_eq!(choice.group, Some(Group { bytes, processes: 2, expendable: true, oom_group: true, shares: false }));
    assert!(choice.leaf.unwrap().cgroup().dir().has(c"memory.oom.group"));
}

#[test]
fn below_a_limit_too_the_group_that_holds_most_counts() {
    let name = format!("memreap-test-limit-{}", Pid::own());
    let Some(_above) = RealGroup::new(&name) else {
        testing::skipped("cgroups cannot be made here");
        return;
    };
    let paths = [format!("{name}/many"), format!("{name}/one")];
    let leaves = paths.clone().map(|path| RealGroup::new(&path).unwrap());
    let hogs = [40, 45, 50, 70].map(Hog::start);
    let pids = [0, 1, 2, 3].map(|i: usize| hogs[i].pid);
    let members = [&pids[..3], &pids[3..]];
    let below = format!("/{name}");
    let tree = tempfile::tempdir().unwrap();
    let write = |folder: &str, mib: u64, pids: &[Pid]| {
        let folder = tree.path().join(folder);
        fs::create_dir_all(&folder).unwrap();
        let procs = pids.iter().map(|pid| format!("{pid}\n")).collect();
        for (file, text) in [
            ("memory.stat", format!("anon {}\n", mib << 20)),
            ("memory.current", format!("{}\n", mib << 20)),
            ("memory.oom.group", "0\n".to_owned()),
            ("cgroup.procs", procs),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
    };
    write(&name, 420, &[]);
    for ((path, leaf), (pids, mib)) in paths.iter().zip(&leaves).zip(members.into_iter().zip([280, 140])) {
        pids.iter().for_each(|pid| leaf.put(*pid));
        write(path, mib, pids);
    }
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    chooser.membership.groups = Groups::open(tree.path());
    let scope = Scope::Below(below.as_bytes());
    for (grouping, expected) in [(BY_PROCESS, pids[3]), (BY_CGROUP, pids[2])] {
        chooser.forget();
        chooser.set_grouping(grouping);
        assert_eq!(chooser.choose(&Policy::default(), scope).unwrap().pid, expected, "{grouping:?}");
    }
    // One with a member that must not be killed counts for its members.
    write(&paths[0], 60, &pids[..3]);
    write(&paths[1], 140, &[pids[3], Pid::own()]);
    let mut policy = Policy::default();
    policy.spare(vec![Pid::own()]);
    chooser.forget();
    assert_eq!(chooser.choose(&policy, scope).unwrap().pid, pids[3]);
}

#[test]
fn a_group_counts_when_all_of_it_may_be_killed() {
    let name = format!("memreap-test-{}", Pid::own());
    let Some(real) = RealGroup::new(&name) else {
        testing::skipped("cgroups cannot be made here");
        return;
    };
    let hogs = [Hog::start(HUGE + 150), Hog::start(HUGE + 140), Hog::start(HUGE + 200)];
    real.put(hogs[0].pid);
    real.put(hogs[1].pid);
    let pids = [0, 1, 2].map(|i: usize| hogs[i].pid);
    // Less than both have; Perl has it twice.
    let bytes = (4 * HUGE as u64 + 500) << 20;
    let group = MadeUpGroup::new(&name, bytes, &pids[..2]);
    let write = |file: &str, text: String| group.write(file, text);
    let mut chooser = group.chooser();

    // Together they have more than the one that is larger than each.
    let choice = choose(&mut chooser, ALL, &pids).unwrap();
    assert_eq!(choice.pid, hogs[0].pid);
    assert_eq!(choice.cgroup[..], *format!("/{name}").as_bytes());
    let expected = Group { bytes, processes: 2, expendable: true, oom_group: false, shares: false };
    assert_eq!(choice.group, Some(expected));
    // Also when each of them has too little.
    chooser.set_min_bytes(bytes);
    assert_eq!(choose(&mut chooser, ALL, &pids).unwrap().pid, hogs[0].pid);
    chooser.set_min_bytes(5000 << 20);
    write("memory.current", format!("{}\n", 6000_u64 << 20));
    assert!(choose(&mut chooser, ALL, &pids).is_none(), "its files do not come back");
    chooser.set_min_bytes(0);
    // Not so for who asks for a process.
    chooser.set_grouping(BY_PROCESS);
    let choice = choose(&mut chooser, ALL, &pids).unwrap();
    chooser.set_grouping(BY_CGROUP);
    assert_eq!((choice.pid, choice.group), (hogs[2].pid, None));
    // What it shares with others does not come back with it.
    write("memory.stat", format!("anon {}\n", 100 << 20));
    assert_eq!(choose(&mut chooser, ALL, &pids).unwrap().pid, hogs[2].pid);
    // Nor does what its members do not hold: files in memory that are swapped out.
    write("memory.stat", format!("anon {bytes}\n"));
    write("memory.swap.current", format!("{}\n", 12_u64 << 30));
    write("cgroup.procs", format!("{}\n", hogs[1].pid));
    assert_eq!(choose(&mut chooser, ALL, &pids).unwrap().pid, hogs[2].pid);
    fs::remove_file(group.1.join("memory.swap.current")).unwrap();
    // One that must not be killed is in it.
    write("cgroup.procs", format!("{}\n{}\n{}\n", hogs[0].pid, hogs[1].pid, Pid::own()));
    assert_eq!(choose(&mut chooser, ALL, &pids).unwrap().pid, hogs[2].pid);
    // One whose command line protects it, and is not known yet.
    write("cgroup.procs", format!("{}\n{}\n", hogs[0].pid, hogs[1].pid));
    fs::write(format!("/proc/{}/oom_score_adj", hogs[1].pid), "7").unwrap();
    let command_line = format!("command_line = '*{} << 20*'", HUGE + 140);
    // Not the others, should reading theirs be late.
    let protected = policy(&format!("{{ {command_line}, oom_score_adj = 7, never = true }}"));
    assert_eq!(choose_by(&protected, &mut chooser, ALL, &pids).unwrap().pid, hogs[2].pid);
    // One that has come to be protected by its command line since that was read.
    let protected = policy("{ command_line = 'renamed*', oom_score_adj = 7, never = true }");
    chooser.forget();
    chooser.refresh(&protected, Duration::from_secs(60));
    let mut chosen = || choose_by(&protected, &mut chooser, ALL, &pids).unwrap().pid;
    assert!((0..100).any(|_| chosen() == hogs[0].pid));
    hogs[1].rename();
    assert!((0..100).any(|_| chosen() == hogs[2].pid));
    chooser.forget();
    write("cgroup.procs", format!("{}\n{}\n{}\n", hogs[0].pid, hogs[1].pid, Pid::own()));

    // At its own limit, no other process.
    let choice = choose(&mut chooser, Scope::Below(format!("/{name}").as_bytes()), &pids).unwrap();
    assert_eq!((choice.pid, choice.group.map(|group| group.expendable)), (hogs[0].pid, Some(false)));
    let again = chooser.choose(&Policy::default(), Scope::One(hogs[1].pid)).unwrap();
    assert_eq!((again.pid, again.group.map(|group| group.expendable)), (hogs[1].pid, Some(false)));
    chooser.forget();
    let exempt = chooser.choose(&policy("{ name = 'perl', never = true }"), Scope::One(hogs[1].pid));
    assert!(exempt.is_none(), "{exempt:?}");
    chooser.forget();
    assert!(chooser.choose(&Policy::default(), Scope::Below(b"/none")).is_none());
    // It vanishes.
    fs::remove_dir_all(&group.1).unwrap();
    assert_eq!(choose(&mut chooser, ALL, &pids).unwrap().pid, hogs[2].pid);
}

#[test]
fn a_group_that_shares_its_memory_dies_together_or_not_at_all() {
    let _alone = Hog::pools_alone();
    let name = format!("memreap-test-pool-{}", Pid::own());
    let Some(real) = RealGroup::new(&name) else {
        testing::skipped("cgroups cannot be made here");
        return;
    };
    let (_parent, mut pool) = Hog::pool(3);
    let hog = Hog::start(20);
    pool.iter().for_each(|pid| real.put(*pid));
    let group = MadeUpGroup::new(&name, (3 * HUGE as u64) << 20, &pool);
    let mut all = pool.clone();
    all.push(hog.pid);
    pool.sort_unstable();
    let mut chooser = group.chooser();
    // On a busy machine a reading may be late.
    let mut chosen = |all: &[Pid], expected: &[Pid]| {
        let is_expected = |choice: &Choice| choice.precision != Precision::Guess && victims(choice) == *expected;
        (0..100).find_map(|_| choose(&mut chooser, ALL, all).filter(is_expected)).unwrap()
    };
    let choice = chosen(&all, &pool);
    assert_eq!(choice.group.map(|group| (group.processes, group.expendable)), Some((4, true)));
    // One that gives back more than a quarter of that alone comes first.
    let larger = Hog::start(HUGE);
    all.push(larger.pid);
    chosen(&all, &[larger.pid]);
    // All of it dies with whichever process.
    group.write("memory.oom.group", "1\n".to_owned());
    let choice = (0..100).find_map(|_| choose(&mut chooser, ALL, &all)).unwrap();
    assert!(pool.contains(&choice.pid) && choice.pool.is_empty() && choice.leaf.is_some(), "{choice:?}");
}

#[test]
fn a_memory_that_is_held_back_does_not_hide_another_one() {
    let _alone = Hog::pools_alone();
    let ((_first, larger), (_second, mut smaller)) = (Hog::pool_of(HUGE + 50, 3), Hog::pool(3));
    smaller.sort_unstable();
    let hog = Hog::start(20);
    let mut all = [&larger[..], &smaller[..], &[hog.pid]].concat();
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    // The second is killed with all that share its memory, whichever of the first counts for most.
    for kept in larger {
        all.retain(|pid| *pid != kept);
        let mut spared = target::ancestry(&Root::system());
        spared.push(kept);
        // On a busy machine a reading may be late.
        let found = (0..100).any(|_| {
            chooser.forget();
            let choice = choose_sparing(spared.clone(), &Policy::default(), &mut chooser, ALL, &all);
            choice.is_some_and(|choice| victims(&choice) == smaller)
        });
        assert!(found);
        all.push(kept);
    }
}

#[test]
fn a_group_of_too_many_that_share_its_memory_dies_as_a_whole() {
    let _alone = Hog::pools_alone();
    let name = format!("memreap-test-many-{}", Pid::own());
    let Some(real) = RealGroup::new(&name) else {
        testing::skipped("cgroups cannot be made here");
        return;
    };
    let (_parent, pool) = Hog::pool(super::result::MAX_POOL + 5);
    let hog = Hog::start(20);
    pool.iter().for_each(|pid| real.put(*pid));
    let group = MadeUpGroup::new(&name, (3 * HUGE as u64) << 20, &pool);
    let mut all = pool.clone();
    all.push(hog.pid);
    let mut chooser = group.chooser();
    // On a busy machine a reading may be late.
    let choice = (0..100)
        .find_map(|_| choose(&mut chooser, ALL, &all).filter(|choice| choice.group.is_some_and(|group| group.shares)));
    let choice = choice.unwrap();
    assert!(pool.contains(&choice.pid) && choice.pool.is_empty() && choice.leaf.is_some(), "{choice:?}");
    assert!(choice.group.is_some_and(|group| !group.oom_group), "{choice:?}");
}

/// A debugger that keeps what it debugs in the last moment before it gives its memory back.
struct Debugger(Pid);

impl Debugger {
    fn attach(pid: Pid) -> Self {
        let options = libc::PTRACE_O_TRACEEXIT as usize;
        // SAFETY: no pointers.
        let attached = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid.get(), 0_usize, options) };
        assert_eq!(attached, 0, "{}", std::io::Error::last_os_error());
        Self(pid)
    }

    /// Waits until the process has stopped there.
    fn wait(&self) {
        let mut status = 0;
        // SAFETY: `status` is valid.
        assert_eq!(unsafe { libc::waitpid(self.0.get(), &raw mut status, libc::__WALL) }, self.0.get());
        assert!(libc::WIFSTOPPED(status));
    }
}

impl Drop for Debugger {
    fn drop(&mut self) {
        // SAFETY: no pointers.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0.get(), 0_usize, 0_usize) };
    }
}

#[test]
fn a_process_that_keeps_its_memory_after_sigkill_is_a_victim_once() {
    let hog = Hog::start(HUGE);
    let debugger = Debugger::attach(hog.pid);
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    let is_chosen = |chooser: &mut Chooser| choose(chooser, ALL, &[hog.pid]).is_some();
    assert!(is_chosen(&mut chooser));
    hog.signal(Signal::KILL);
    debugger.wait();
    let began = Instant::now();
    // A choice takes time, as all others are spared one by one: by then it may be a victim again.
    let at_once = is_chosen(&mut chooser);
    assert!(!at_once || began.elapsed() >= DYING_TIME, "its memory comes back as a rule");
    std::thread::sleep(DYING_TIME);
    assert!(is_chosen(&mut chooser), "it does not");
    chooser.note_kill(hog.pid);
    assert!(!is_chosen(&mut chooser));
}

#[test]
fn a_victim_whose_signal_was_refused_is_no_victim_for_a_while() {
    let hog = Hog::start(HUGE);
    let policy = policy("{ name = 'perl', weight = 1 }, { name = '*', never = true }");
    let mut chooser = Chooser::new(&Root::system(), 10_000).unwrap();
    assert!(choose_by(&policy, &mut chooser, ALL, &[hog.pid]).is_some());
    chooser.note_kill(hog.pid);
    // Reads all, and sees no signal.
    chooser.refresh(&policy, Duration::from_secs(10));
    assert!(choose_by(&policy, &mut chooser, ALL, &[hog.pid]).is_none());
}
