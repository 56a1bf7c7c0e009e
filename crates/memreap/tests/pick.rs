// SPDX-License-Identifier: GPL-2.0-only
//! `memreap pick` on real processes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod common;

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use common::{Mapping, Mounted, NO_VICTIM, Node, Ran, Setup, Victim, in_a_namespace, memreap};
use linux::{Pid, Process, Root};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::Value;

fn pick(args: &[&str]) -> Ran {
    Ran::from(memreap().arg("pick").args(args).output().unwrap())
}

fn keys(value: &Value) -> Vec<&str> {
    // In the order of the alphabet.
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn a_large_process_is_a_candidate_and_lives() {
    let victim = Victim::of(200);
    let ran = pick(&["--json"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    let json = ran.json();
    // Others on this machine may be larger.
    let candidates = json["candidates"].as_array().unwrap();
    let ours = candidates.iter().find(|c| c["pid"] == victim.pid.get()).unwrap();
    assert!(ours["bound_bytes"].as_u64().unwrap() >= 200 << 20, "{ours}");
    assert!(ours["score"].as_u64().unwrap() >= 200 << 20, "{ours}");
    assert!(ours["name"].as_str().unwrap().starts_with("mr"), "{ours}");
    // None of them beats the one that was chosen.
    let chosen = candidates.iter().find(|c| c["pid"] == json["victim"]["pid"]).unwrap();
    assert_eq!(chosen["bytes"], json["victim"]["bytes"]);
    let score = |c: &Value| c["score"].as_u64().unwrap();
    assert!(candidates.windows(2).all(|pair| score(&pair[0]) >= score(&pair[1])), "{json}");
    assert!(candidates.iter().all(|c| score(c) <= score(&candidates[0])));
    let cost = |key: &str| json["cost"][key].as_u64().unwrap();
    // A large process elsewhere on this machine is sampled.
    assert!(cost("exact_readings") + cost("samples") + cost("late_readings") >= 1, "{json}");
    assert!(cost("cheap_readings") >= cost("processes"), "{json}");
    assert!(victim.is_alive());
}

#[test]
fn the_json_has_the_documented_fields() {
    let victim = Victim::of(50);
    let json = pick(&["--json"]).json();
    assert_eq!(keys(&json), ["candidates", "command", "cost", "version", "victim"]);
    assert_eq!((&json["version"], &json["command"]), (&1.into(), &"pick".into()));
    let of_victim = [
        "bytes",
        "cgroup",
        "error_bytes",
        "exact",
        "group",
        "name",
        "pid",
        "rule",
        "sharers",
        "uid",
        "user",
        "vm_bytes",
    ];
    assert_eq!(keys(&json["victim"]), of_victim);
    let of_candidate =
        ["bound_bytes", "bytes", "cgroup", "error_bytes", "exact", "name", "pid", "rule", "score", "uid", "user"];
    assert_eq!(keys(&json["candidates"][0]), of_candidate);
    let of_cost = ["cheap_readings", "exact_readings", "late_readings", "processes", "samples", "seconds"];
    assert_eq!(keys(&json["cost"]), of_cost);
    let help = pick(&["--help"]).out;
    let (_, documented) = help.split_once("JSON, one object").unwrap();
    let words: Vec<_> = documented.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    for key in of_victim.iter().chain(&of_candidate).chain(&of_cost) {
        assert!(words.contains(key), "{key} is not documented");
    }
    assert!(victim.is_alive());
}

#[test]
fn the_text_says_who_and_what_it_cost() {
    let victim = Victim::new(&Setup { name: b"mr\x1b[2Jx".to_vec(), mib: 200, ..Setup::default() });
    let ran = pick(&["--explain"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.out.contains(" would be killed: "), "{ran:?}");
    assert!(ran.out.contains(r"mr\u{1b}[2Jx"), "{ran:?}");
    // A user is also told that root may kill more.
    assert!(ran.out.lines().rev().take(2).any(|line| line.contains(" cheap readings, ")), "{ran:?}");
    assert!(pick(&[]).out.lines().count() <= 6);
    assert!(victim.is_alive());
}

#[test]
fn a_configuration_that_is_not_there_is_wrong_usage() {
    let ran = pick(&["--config", "/there/is/none.toml"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{ran:?}");
}

#[test]
fn what_is_shared_by_fork_is_no_reason_to_be_chosen() {
    in_a_namespace("forked_pair", "true");
}

#[test]
#[ignore = "runs in a namespace"]
fn forked_pair() {
    // Of a size of which pages are looked up.
    let pair = Victim::new(&Setup { mib: 600, forks: 1, ..Setup::default() });
    let hog = Victim::of(200);
    // On a busy machine a reading may be late, and the choice a guess.
    let mut in_time = (0..200).map(|_| pick(&["--json"]).json()).filter(|json| json["cost"]["late_readings"] == 0);
    for _ in 0..20 {
        let json = in_time.next().expect("a choice in time");
        assert_eq!(json["victim"]["pid"], hog.pid.get(), "{json}");
        let sampled = json["candidates"].as_array().unwrap().iter().find(|c| c["pid"] == pair.pid.get()).unwrap();
        assert!(sampled["bytes"].as_u64().unwrap() < 100 << 20, "{sampled}");
    }
    assert!((0..200).any(|_| pick(&["--explain"]).out.contains(" +- ")));
}

#[test]
fn pages_of_files_do_not_come_back() {
    in_a_namespace("mapped", "true");
}

#[test]
#[ignore = "runs in a namespace"]
fn mapped() {
    const READ: i32 = libc::PROT_READ;
    const WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
    const MIB: usize = 200;
    let maps = |protection, flags, fd| {
        let maps = Some(Mapping { mib: MIB, protection, flags, fd });
        Victim::new(&Setup { mib: 1, maps, ..Setup::default() })
    };
    let rollup = |pid: Pid| Process::open(&Root::system(), pid).unwrap().smaps_rollup().unwrap();
    let chosen = || pick(&["--json"]).json()["victim"]["pid"].clone();
    let files: Vec<_> = [(READ, libc::MAP_PRIVATE), (READ, libc::MAP_SHARED), (WRITE, libc::MAP_SHARED)]
        .into_iter()
        .map(|(protection, flags)| {
            // On a disk, where /tmp may be none.
            let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            file.set_len((MIB << 20) as u64).unwrap();
            let victim = maps(protection, flags, file.as_raw_fd());
            // A busy machine takes some of it back.
            assert!(
                rollup(victim.pid).pss_file >= (MIB << 20) as u64 / 4 * 3,
                "more of the file is there than the others have"
            );
            victim
        })
        .collect();
    let anonymous = Victim::of(127);
    assert_eq!(chosen(), anonymous.pid.get(), "{:?}", pick(&["--explain"]));
    assert!(files.iter().all(Victim::is_alive));
    // Shared memory that no other process maps does.
    let shared = maps(WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
    assert_eq!(chosen(), shared.pid.get(), "{:?}", pick(&["--explain"]));
}

#[test]
fn rules_know_the_hosts_cgroups_in_a_private_namespace() {
    let Some(node) = Node::new() else { return };
    let victim = Victim::of(32);
    node.put_beside(&victim);
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config");
    let group = format!("{}/other", node.name);
    let rules =
        format!("policy.defaults = false\n[[rule]]\nlabel = \"here\"\ncgroup = \"{group}\"\nweight = 1\n{NO_VICTIM}");
    fs::write(&config, rules).unwrap();
    let mut command = memreap();
    command.args(["pick", "--json", "--config"]).arg(&config);
    let ran = Ran::from(node.contain(&mut command, Mounted::Host).output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let json = ran.json();
    for found in [&json["victim"], &json["candidates"][0]] {
        assert_eq!((&found["pid"], &found["rule"]), (&victim.pid.get().into(), &"here".into()), "{json}");
        assert_eq!(found["cgroup"], group, "{json}");
    }
}

/// What the unit has of root's capabilities, as `setpriv --bounding-set` takes them.
fn capabilities_of_the_unit() -> String {
    let unit = include_str!("../../../packaging/memreap.service");
    let sets = unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = sets.flat_map(str::split_whitespace).map(|name| name.strip_prefix("CAP_").unwrap().to_lowercase());
    names.fold("-all".to_owned(), |all, name| format!("{all},+{name}"))
}

#[test]
fn with_the_units_capabilities_other_users_shared_memory_is_known() {
    if !rustix::process::geteuid().is_root() {
        return testing::skipped("needs root");
    }
    let of_a_user = |mib, forks| {
        let setup = Setup { mib, forks, uid: Some(1000), ..Setup::default() };
        let victim = Victim::new(&setup);
        (victim, String::from_utf8(setup.name).unwrap())
    };
    let ((pool, pool_name), (hog, hog_name)) = (of_a_user(200, 3), of_a_user(20, 0));
    let config = tempfile::NamedTempFile::new().unwrap();
    let rules =
        format!("policy.defaults = false\n[[rule]]\nname = [\"{pool_name}\", \"{hog_name}\"]\nweight = 1\n{NO_VICTIM}");
    fs::write(config.path(), rules).unwrap();
    let mut command = Command::new("setpriv");
    command.args([&format!("--bounding-set={}", capabilities_of_the_unit()), "--inh-caps=-all"]);
    command.arg(env!("CARGO_BIN_EXE_memreap")).args(["pick", "--json", "--config"]).arg(config.path());
    // On a busy machine a reading may be late.
    let known = (0..10).any(|_| {
        let victim = Ran::from(command.output().unwrap()).json()["victim"].clone();
        victim["sharers"].as_array().is_some_and(|sharers| sharers.len() == 3)
    });
    assert!(known, "{:?}", Ran::from(command.output().unwrap()));
    assert!(pool.is_alive() && hog.is_alive());
}

#[test]
fn as_for_the_daemon_a_small_process_is_no_victim() {
    let config = tempfile::NamedTempFile::new().unwrap();
    let (small, large) = (Victim::of(1), Victim::of(48));
    let rule = |victim: &Victim, weight| {
        let name = Process::open(&Root::system(), victim.pid).unwrap().comm().unwrap();
        format!("[[rule]]\nname = \"{name}\"\nweight = {weight}\n")
    };
    let rules = format!("policy.defaults = false\n{}{}{NO_VICTIM}", rule(&small, 100), rule(&large, 1));
    fs::write(config.path(), &rules).unwrap();
    let args = ["--json", "--config", config.path().to_str().unwrap()];
    assert_eq!(pick(&args).json()["victim"]["pid"], large.pid.get());
    drop(large);
    let ran = pick(&args[1..]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.out.contains("none that may be killed would give back"), "{ran:?}");
    assert!(small.is_alive());
}

#[test]
fn too_little_memory_for_itself_is_told() {
    // On a machine with few processes there may be no other one.
    let _victim = Victim::of(32);
    let config = tempfile::NamedTempFile::new().unwrap();
    fs::write(config.path(), "record.history = false\n").unwrap();
    for args in [&["pick"][..], &["watch", "-n", "1"], &["daemon", "--dry-run"]] {
        // As `ulimit -d` says it; the least that a Rust program of this size starts with is less.
        for kib in [1000, 2000, 4000, 8000] {
            let mut command = memreap();
            command.args(args).arg("--config").arg(config.path());
            let limit = move || {
                let most = Some(kib << 10);
                Ok(setrlimit(Resource::Data, Rlimit { current: most, maximum: most })?)
            };
            // SAFETY: this is a system call, and nothing allocates.
            let ran = Ran::from(unsafe { command.pre_exec(limit) }.output().unwrap());
            // `pick` needs less where there are few processes.
            let works = args[0] == "pick" && kib > 1000 && ran.code == Some(0);
            let told = ran.err.contains(" of memory cannot be had: raise RLIMIT_DATA (ulimit -d, LimitDATA=)");
            assert!(works || ran.code == Some(70) && told, "{args:?} {kib}: {ran:?}");
        }
    }
}

/// Asks for a process where only those with a name may be killed, and this many rules come first.
fn why_not(pid: &str, rules: &str, args: &[&str]) -> Ran {
    let config = tempfile::NamedTempFile::new().unwrap();
    fs::write(config.path(), rules).unwrap();
    pick(&[&["--why-not", pid, "--config", config.path().to_str().unwrap()], args].concat())
}

#[test]
fn why_a_process_is_spared_is_told() {
    let name = common::unique();
    let [large, small] =
        [200, 50].map(|mib| Victim::new(&Setup { name: name.clone().into(), mib, ..Setup::default() }));
    let tiny = Victim::new(&Setup { name: name.clone().into(), mib: 1, ..Setup::default() });
    // Of all processes only these may be killed.
    let user = rustix::process::getuid().as_raw();
    let ours = format!("[[rule]]\nlabel = \"ours\"\nname = \"{name}\"\nuser = {user}\nweight = 0.5\n");
    let others = "[[rule]]\nlabel = \"others\"\noom_score_adj = \">= -1000\"\nnever = true\n";
    let policy = format!("policy.defaults = false\nkill.by_cgroup = false\n{ours}{others}");
    let json = |pid: &str| why_not(pid, &policy, &["--json"]).json()["why_not"].clone();
    let text = |pid: &str| why_not(pid, &policy, &[]).out;
    let (first, second) = (large.pid(), small.pid());
    assert_eq!((&json(&first)["reason"], &json(&first)["rule"]), (&"victim".into(), &"ours".into()));
    assert_eq!(text(&first), format!("{first} ({name}) would be killed\n"));
    let told = json(&second);
    assert_eq!(told["reason"], "less");
    let number = |key: &str| told[key].as_u64().unwrap();
    assert!((50 << 20..60 << 20).contains(&number("bytes")) && number("score") == number("bytes") / 2, "{told}");
    assert!((100 << 20..120 << 20).contains(&number("victim_score")), "{told}");
    let said = text(&second);
    assert!(said.starts_with(&format!("{first} ({name}), user ")), "{said}");
    assert!(said.contains(", would be killed instead: it counts for "), "{said}");
    assert!(said.contains(&format!(", {second} ({name}) for ")) && said.contains(" less\n"), "{said}");
    assert!(said.contains("; weighed by 0.5") && said.contains("; rule \"ours\"\n"), "{said}");
    // Of another name.
    let other = Victim::of(200);
    assert_eq!((&json(&other.pid())["reason"], &json(&other.pid())["rule"]), (&"never".into(), &"others".into()));
    assert!(text(&other.pid()).ends_with(" is never killed: others\n"));
    assert!(text("1").ends_with(" is never killed: PID 1\n"));
    let total = linux::meminfo::MemInfo::read(&Root::system()).unwrap().total;
    if total >= 8 << 30 {
        assert_eq!(json(&tiny.pid())["reason"], "too_small");
        assert!(text(&tiny.pid()).contains(" MiB, less than the smallest victim, "));
    }
    let keys = keys(&told).join(" ");
    assert_eq!(keys, "bytes exact name pid reason rule score smallest_bytes uid user victim_score");
    let help = pick(&["--help"]).out;
    assert!(keys.split(' ').all(|key| help.contains(key)), "{help}");
    assert!(large.is_alive() && small.is_alive());
}

#[test]
fn what_is_no_candidate_is_told_by_its_reason() {
    let dead = Victim::of(1);
    dead.pidfd.send_signal(linux::pidfd::Signal::KILL).unwrap();
    assert!(dead.pidfd.wait_exit(std::time::Duration::from_secs(10)).unwrap());
    let reason = |pid: &str| why_not(pid, "", &["--json"]).json()["why_not"]["reason"].clone();
    assert_eq!(reason(&dead.pid()), "no_memory");
    if fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n") {
        assert_eq!(reason("2"), "no_memory");
    } else {
        testing::skipped("no kernel thread to be seen here");
    }
    let ran = why_not(&i32::MAX.to_string(), "", &[]);
    assert!(ran.code == Some(1) && ran.err.contains("no process has the ID"), "{ran:?}");
    let headless = Victim::new(&Setup { headless: true, ..Setup::default() });
    let thread = fs::read_dir(format!("/proc/{}/task", headless.pid()))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .find(|tid| *tid != headless.pid())
        .unwrap();
    let ran = why_not(&thread, "", &[]);
    assert!(ran.code == Some(1) && ran.err.contains(&format!("is a thread of process {}", headless.pid())), "{ran:?}");
}
