// SPDX-License-Identifier: GPL-2.0-only

use std::fs;
use std::path::Path;

use super::*;

const ALL: Probes = Probes {
    pidfd: true,
    proc: true,
    mrelease: true,
    expedite: true,
    capabilities: CapabilitySet::all(),
    memlock: None,
};
const NONE: Probes = Probes {
    pidfd: false,
    proc: false,
    mrelease: false,
    expedite: false,
    capabilities: CapabilitySet::empty(),
    memlock: Some(8 << 20),
};

const MEMINFO: &str = "MemTotal: 4096 kB\nMemFree: 0 kB\nMemAvailable: 0 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n";

fn write(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn state(findings: &[Finding], thing: &str) -> State {
    findings.iter().find(|f| f.thing == thing).unwrap_or_else(|| panic!("{thing}: {findings:?}")).state
}

#[test]
fn a_kernel_with_everything() {
    let dir = tempfile::tempdir().unwrap();
    let pressure = "some avg10=1.50 avg60=0.00 avg300=0.00 total=5\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    let own = std::process::id();
    write(
        dir.path(),
        &[
            ("proc/sys/kernel/osrelease", "6.12.107-memreap\n"),
            ("proc/meminfo", MEMINFO),
            ("proc/1/stat", &fs::read_to_string("/proc/self/stat").unwrap()),
            ("sys/module/memreap/parameters/reap", "Y\n"),
            ("sys/module/memreap/parameters/expedite", "Y\n"),
            ("proc/sys/vm/expedite_min_kbytes", "65536\n"),
            ("proc/sys/vm/expedite_cpu_percent", "75\n"),
            ("proc/sys/vm/watermark_scale_factor", "100\n"),
            ("proc/pressure/memory", pressure),
            ("proc/self/smaps_rollup", ""),
            ("proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
            (&format!("proc/{own}/cgroup"), "0::/a\n"),
        ],
    );
    let findings = examine(&Root::at(dir.path()), &ALL);
    for thing in [
        "kernel",
        "pidfd",
        "process_mrelease",
        "/proc",
        "smaps_rollup",
        "topic reap",
        "topic expedite",
        "vm.expedite_min_kbytes",
        "vm.expedite_cpu_percent",
        "PSI",
        "cgroup v2",
        "watermarks",
        "CAP_KILL",
        "RLIMIT_MEMLOCK",
    ] {
        assert_eq!(state(&findings, thing), State::Ok, "{thing}: {findings:?}");
    }
    assert!(findings.iter().filter(|f| f.state == State::Ok).all(|f| f.remedy.is_none()));
    assert!(render(&findings, &ALL).ends_with("by expedite\n"));
    write(dir.path(), &[("sys/module/memreap/parameters/reap", "N\n")]);
    assert_eq!(state(&examine(&Root::at(dir.path()), &ALL), "topic reap"), State::Off);
}

#[test]
fn a_kernel_with_nothing() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("proc/sys/kernel/osrelease", "5.10.0-39-amd64\n"), ("proc/self/mountinfo", "")]);
    let findings = examine(&Root::at(dir.path()), &NONE);
    for thing in [
        "kernel",
        "pidfd",
        "process_mrelease",
        "/proc",
        "smaps_rollup",
        "topic expedite",
        "PSI",
        "cgroup v2",
        "watermarks",
        "CAP_KILL",
        "RLIMIT_MEMLOCK",
    ] {
        assert_eq!(state(&findings, thing), State::Missing, "{thing}: {findings:?}");
    }
    assert!(findings.iter().filter(|f| f.state == State::Missing).all(|f| f.remedy.is_some()));
    let text = render(&findings, &NONE);
    assert!(text.contains("MISSING pidfd") && text.ends_with("memreap cannot work here\n"), "{text}");
    assert!(text.contains("off     topics") && !text.contains("topic reap"), "{text}");
}

#[test]
fn a_proc_that_hides_processes_is_told() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("proc/meminfo", MEMINFO)]);
    let findings = examine(&Root::at(dir.path()), &ALL);
    assert_eq!((state(&findings, "/proc"), works(&findings, &ALL)), (State::Off, true), "{findings:?}");
}

#[test]
fn another_killer_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let killers = |dir: &Path| {
        let findings = examine(&Root::at(dir), &ALL);
        let finding = findings.into_iter().find(|f| f.thing == "other killers").unwrap();
        (finding.state, finding.found)
    };
    write(dir.path(), &[("proc/1/comm", "systemd\n"), ("proc/2/comm", "earlyoomist\n")]);
    assert_eq!(killers(dir.path()), (State::Ok, "none runs".to_owned()));
    // Stopped by hand, and back at the next boot.
    write(dir.path(), &[("etc/systemd/system/multi-user.target.wants/x.service", "")]);
    let unit = dir.path().join("etc/systemd/system/multi-user.target.wants/nohang.service");
    std::os::unix::fs::symlink("/usr/lib/systemd/system/nohang.service", &unit).unwrap();
    assert_eq!(killers(dir.path()), (State::Off, "from the next boot on: nohang".to_owned()));
    // As the remedy leaves it.
    std::os::unix::fs::symlink("/dev/null", dir.path().join("etc/systemd/system/nohang.service")).unwrap();
    assert_eq!(killers(dir.path()).0, State::Ok);
    write(dir.path(), &[("proc/3/comm", "systemd-oomd\n"), ("proc/4/comm", "earlyoom\n")]);
    assert_eq!(killers(dir.path()), (State::Off, "running: earlyoom, systemd-oomd".to_owned()));
    write(dir.path(), &[("proc/3/comm", "low-memory-moni\n")]);
    assert_eq!(killers(dir.path()), (State::Off, "running: earlyoom, low-memory-monitor".to_owned()));
}

#[test]
fn a_topic_that_is_on_but_refused_is_told() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("sys/module/memreap/parameters/expedite", "Y\n")]);
    let findings = examine(&Root::at(dir.path()), &Probes { expedite: false, ..ALL });
    assert_eq!(state(&findings, "topic expedite"), State::Unknown);
}
