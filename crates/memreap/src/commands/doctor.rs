// SPDX-License-Identifier: GPL-2.0-only
//! `memreap doctor`: prints what this kernel offers, what is missing, and what that costs.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use linux::cgroup::Hierarchy;
use linux::features::{self, Topic};
use linux::meminfo::MemInfo;
use linux::psi::Pressure;
use linux::release::Release;
use linux::{Process, Root, pidfd, process, zram};
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;
use serde::Serialize;

use crate::config::EARLY_WATERMARK_SCALE_FACTOR;
use crate::exit::Exit;
use crate::kill::target;
use crate::units;

/// The version of the JSON. Fields and findings may be added without a new one.
const VERSION: u32 = 2;
/// The oldest kernel that has all that memreap cannot do without.
const MIN_KERNEL: (u32, u32) = (5, 15);
/// How much memory the program and its threads want to lock, at most.
const WANTED_LOCKED_BYTES: u64 = 64 << 20;
/// The kernel's default of vm.expedite_cpu_percent: with more, other processes wait longer than for the victim.
const MAX_EXPEDITE_CPU_PERCENT: u64 = 75;

/// The name of the finding without which memreap does not work.
const PROC: &str = "/proc";
const TOPICS_REMEDY: &str = "a kernel with memreap's topics";
/// How many sysctls of the topics are checked.
const SYSCTLS: usize = 2;

/// The names, also of their units, of other daemons that kill when memory is short.
const OTHER_KILLERS: [&str; 8] =
    ["systemd-oomd", "earlyoom", "nohang", "nohang-desktop", "bustd", "oomd", "lmkd", "low-memory-monitor"];

/// Capabilities that help.
const CAPABILITIES: [(&str, CapabilitySet, &str); 4] = [
    ("CAP_KILL", CapabilitySet::KILL, "kills other users' processes"),
    ("CAP_SYS_PTRACE", CapabilitySet::SYS_PTRACE, "exact sizes (--exact, --dry-run) of other users' processes"),
    ("CAP_DAC_READ_SEARCH", CapabilitySet::DAC_READ_SEARCH, "which of other users' processes share their memory"),
    (
        "CAP_SYS_NICE",
        CapabilitySet::SYS_NICE,
        "the kill comes before other work: without it the race is lost more often on a busy machine",
    ),
];

/// The state of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is there.
    Ok,
    /// It is there, but switched off or not in use.
    Off,
    /// It is not there.
    Missing,
    /// That could not be read.
    Unknown,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked.
    pub thing: &'static str,
    /// Its state.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What it is for, and so what its lack costs.
    #[serde(rename = "for")]
    pub purpose: &'static str,
    /// What to do, where something can be done.
    pub remedy: Option<Cow<'static, str>>,
}

/// What is found out by system calls, not read from files.
#[derive(Clone, Copy, Debug)]
pub struct Probes {
    /// pidfd_open(2) and pidfd_send_signal(2).
    pub pidfd: bool,
    /// /proc is this PID namespace's.
    pub proc: bool,
    /// process_mrelease(2).
    pub mrelease: bool,
    /// The flag of the topic `expedite`.
    pub expedite: bool,
    /// The capabilities that have an effect.
    pub capabilities: CapabilitySet,
    /// RLIMIT_MEMLOCK in bytes; `None` is no limit.
    pub memlock: Option<u64>,
}

impl Probes {
    /// Probes the running system and this process.
    pub fn system() -> Self {
        Self {
            pidfd: pidfd::supported(),
            proc: target::check_proc().is_ok(),
            mrelease: pidfd::mrelease_supported(),
            expedite: pidfd::expedite_supported(),
            capabilities: features::capabilities(&Root::system()),
            memlock: getrlimit(Resource::Memlock).current,
        }
    }
}

/// Runs all checks, and prints the findings.
///
/// # Errors
/// When the output cannot be written.
pub fn run(json: bool) -> Result<Exit> {
    #[derive(Serialize)]
    struct Json<'a> {
        version: u32,
        command: &'static str,
        exit_code: u8,
        findings: &'a [Finding],
    }

    let probes = Probes::system();
    let findings = examine(&Root::system(), &probes);
    let exit = if works(&findings, &probes) { Exit::Done } else { Exit::Unfit };
    let text = if json {
        let all = Json { version: VERSION, command: "doctor", exit_code: exit.code(), findings: &findings };
        serde_json::to_string(&all)? + "\n"
    } else {
        render(&findings, &probes)
    };
    exit.after(std::io::stdout().write_all(text.as_bytes()).map_err(Into::into))
}

/// Runs all checks; returns the findings in the order in which they are printed.
pub fn examine(root: &Root, probes: &Probes) -> Vec<Finding> {
    let mut findings = vec![release(root)];
    findings.push(
        Check::new("pidfd", "memreap kills no process without it: a reused PID could be hit")
            .either(probes.pidfd, "works", "does not work")
            .remedy("a kernel since 5.15; in a container, a seccomp profile that allows pidfd_open"),
    );
    findings.push(
        Check::new("process_mrelease", "memory comes back while the process still exits; otherwise as after kill(1)")
            .either(probes.mrelease, "works", "does not work")
            .remedy("a kernel since 5.15; in a container, a seccomp profile that allows process_mrelease"),
    );
    findings.push(proc(root, probes));
    findings.push(
        Check::new("smaps_rollup", "without it what a victim gives back is a guess, with what others share")
            .either(features::tells_shared(root), "there", "not in this kernel")
            .remedy("CONFIG_PROC_PAGE_MONITOR=y"),
    );
    findings.extend(Topic::ALL.map(|topic| topic_finding(root, probes, topic)));
    findings.push(expedite_min(root));
    findings.push(expedite_cpu(root));
    findings.push(other_killers(root));
    findings.push(pressure(root));
    findings.push(cgroups(root));
    findings.push(swap(root));
    findings.push(zram_finding(root));
    findings.push(watermarks(root));
    for (name, capability, purpose) in CAPABILITIES {
        findings.push(
            Check::new(name, purpose)
                .either(probes.capabilities.contains(capability), "effective", "not effective")
                .remedy("run as the machine's root, or give it to memreap (setcap, systemd's AmbientCapabilities=)"),
        );
    }
    findings.push(memlock(probes));
    findings
}

/// Whether memreap works here, perhaps with less than it could have.
fn works(findings: &[Finding], probes: &Probes) -> bool {
    let lacks_proc = findings.iter().any(|finding| finding.thing == PROC && finding.state == State::Missing);
    probes.pidfd && !lacks_proc
}

/// A check that has no result yet.
struct Check {
    thing: &'static str,
    purpose: &'static str,
}

impl Check {
    fn new(thing: &'static str, purpose: &'static str) -> Self {
        Self { thing, purpose }
    }

    fn is(self, state: State, found: impl Into<String>) -> Finding {
        Finding { thing: self.thing, state, found: found.into(), purpose: self.purpose, remedy: None }
    }

    fn either(self, there: bool, yes: &str, no: &str) -> Finding {
        self.is(if there { State::Ok } else { State::Missing }, if there { yes } else { no })
    }

    fn unknown(self, error: linux::Error) -> Finding {
        self.is(State::Unknown, format!("{:#}", anyhow::Error::from(error)))
    }
}

impl Finding {
    /// Adds what to do, unless the state is ok.
    fn remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        if self.state != State::Ok {
            self.remedy = Some(remedy.into());
        }
        self
    }
}

fn release(root: &Root) -> Finding {
    let check = Check::new("kernel", "older ones lack what memreap is built on");
    match Release::read(root) {
        Ok(release) if release.is_at_least(MIN_KERNEL.0, MIN_KERNEL.1) => check.is(State::Ok, release.text),
        Ok(release) => check
            .is(State::Missing, format!("{}, older than {}.{}", release.text, MIN_KERNEL.0, MIN_KERNEL.1))
            .remedy("a kernel since 5.15"),
        Err(e) => check.unknown(e),
    }
}

fn proc(root: &Root, probes: &Probes) -> Finding {
    let check = Check::new(PROC, "memreap finds processes in it, and reads what they and the system have");
    if !probes.proc {
        return check.is(State::Missing, "missing, or another PID namespace's").remedy("mount -t proc proc /proc");
    }
    match MemInfo::read(root) {
        Err(e) => {
            check.is(State::Missing, format!("{:#}", anyhow::Error::from(e))).remedy("mount it without subset=pid")
        }
        Ok(_) if target::hides_processes(root) => check
            .is(State::Off, "hides processes of other users (hidepid)")
            .remedy("run as root, or mount it without hidepid"),
        Ok(_) => check.is(State::Ok, "shows all processes"),
    }
}

fn topic_finding(root: &Root, probes: &Probes, topic: Topic) -> Finding {
    let (thing, purpose, switch) = match topic {
        Topic::Reap => (
            "topic reap",
            "several threads free one process's memory together",
            "memreap.reap=1 on the kernel's command line",
        ),
        Topic::Expedite => (
            "topic expedite",
            "the kernel frees memory as part of the kill: no race to lose, no threads",
            "memreap.expedite=1 on the kernel's command line",
        ),
    };
    let check = Check::new(thing, purpose);
    match topic.is_on(root) {
        // The system call decides.
        Ok(Some(true)) if topic == Topic::Expedite && !probes.expedite => {
            check.is(State::Unknown, "on, but its flag is refused").remedy("a seccomp filter may be in the way")
        }
        Ok(Some(true)) => check.is(State::Ok, "on"),
        Ok(Some(false)) => check.is(State::Off, "off").remedy(switch),
        Ok(None) => check.is(State::Missing, "not in this kernel").remedy(TOPICS_REMEDY),
        Err(e) => check.unknown(e),
    }
}

fn expedite_min(root: &Root) -> Finding {
    let check = Check::new("vm.expedite_min_kbytes", "kills by others, the OOM killer's too, are expedited");
    match features::expedite_min_kbytes(root) {
        Ok(Some(0)) => check
            .is(State::Off, "0: only kills by memreap are expedited")
            .remedy("sysctl vm.expedite_min_kbytes=65536 for all processes from 64 MiB"),
        Ok(Some(kib)) => check.is(State::Ok, format!("from {}", units::bytes(kib.saturating_mul(1024)))),
        Ok(None) => check.is(State::Missing, "not in this kernel").remedy(TOPICS_REMEDY),
        Err(e) => check.unknown(e),
    }
}

fn expedite_cpu(root: &Root) -> Finding {
    let check = Check::new("vm.expedite_cpu_percent", "other processes go on running while a victim's memory is freed");
    match features::expedite_cpu_percent(root) {
        Ok(Some(percent)) => {
            let found = format!("{percent}: of a CPU that other processes want");
            if percent <= MAX_EXPEDITE_CPU_PERCENT {
                check.is(State::Ok, found)
            } else {
                check.is(State::Off, found).remedy(format!("sysctl vm.expedite_cpu_percent={MAX_EXPEDITE_CPU_PERCENT}"))
            }
        }
        Ok(None) => check.is(State::Missing, "not in this kernel").remedy(TOPICS_REMEDY),
        Err(e) => check.unknown(e),
    }
}

fn other_killers(root: &Root) -> Finding {
    let check = Check::new("other killers", "two of them kill twice for one shortage, and by different rules");
    let pids = match process::pids(root) {
        Ok(pids) => pids,
        Err(e) => return check.unknown(e),
    };
    let names = pids.filter_map(|pid| Process::open(root, pid).ok()?.comm().ok());
    let running: BTreeSet<&str> = names
        // The kernel keeps 15 bytes of a name.
        .filter_map(|name| {
            OTHER_KILLERS.into_iter().find(|other| *name.as_bytes() == other.as_bytes()[..other.len().min(15)])
        })
        .collect();
    let at_boot: BTreeSet<&str> = OTHER_KILLERS.into_iter().filter(|name| starts_at_boot(root, name)).collect();
    let found = match (running.is_empty(), at_boot.is_subset(&running)) {
        (true, true) => return check.is(State::Ok, "none runs"),
        (false, _) => format!("running: {}", Vec::from_iter(running.iter().copied()).join(", ")),
        (true, false) => format!("from the next boot on: {}", Vec::from_iter(at_boot.iter().copied()).join(", ")),
    };
    let names: Vec<&str> = running.union(&at_boot).copied().collect();
    let units = names.join(" ").replace("systemd-oomd", "systemd-oomd.service systemd-oomd.socket");
    check
        .is(State::Off, found)
        // What is only disabled is started by its socket.
        .remedy(format!("keep one: systemctl mask --now {units}"))
}

/// Whether a systemd unit of this name, a service or a socket, is enabled and not masked.
fn starts_at_boot(root: &Root, name: &str) -> bool {
    let units = root.resolve(Path::new("/etc/systemd/system"));
    let folders = std::fs::read_dir(&units).into_iter().flatten().flatten().map(|folder| folder.path());
    let wants: Vec<_> = folders.filter(|path| path.extension().is_some_and(|e| e == "wants")).collect();
    ["service", "socket"].map(|kind| format!("{name}.{kind}")).iter().any(|unit| {
        let masked = std::fs::read_link(units.join(unit)).is_ok_and(|target| target == Path::new("/dev/null"));
        // A link into the unit's own folder, which need not be there under another root.
        !masked && wants.iter().any(|wants| wants.join(unit).is_symlink())
    })
}

fn pressure(root: &Root) -> Finding {
    let check = Check::new("PSI", "tells how much time is lost to memory shortage");
    match Pressure::read(root) {
        Ok(pressure) => check.is(State::Ok, format!("memory, some: {} % in the last 10 s", pressure.some.avg10)),
        Err(e) if e.is_unsupported() => check
            .is(State::Missing, "not in this kernel, or switched off")
            .remedy("psi=1 on the kernel's command line; CONFIG_PSI=y"),
        Err(e) => check.unknown(e),
    }
}

fn cgroups(root: &Root) -> Finding {
    let check = Check::new("cgroup v2", "limits and pressure of groups of processes");
    match Hierarchy::find(root) {
        Ok(Some(hierarchy)) => {
            let place = linux::escape(&hierarchy.path).to_string();
            match hierarchy.processes_outside(root) {
                Err(e) => check.unknown(e),
                Ok(outside @ 1..) => check
                    .is(State::Off, format!("{place}, where the cgroups of {outside} processes are not"))
                    .remedy("run in the host's cgroup namespace, or mount its /sys/fs/cgroup there"),
                Ok(0) if hierarchy.controls_memory => check.is(State::Ok, place),
                Ok(0) => check
                    .is(State::Off, format!("{place}, without the memory controller"))
                    .remedy("boot with systemd.unified_cgroup_hierarchy=1 or cgroup_no_v1=all"),
            }
        }
        Ok(None) => check.is(State::Missing, "not mounted").remedy("mount -t cgroup2 none /sys/fs/cgroup"),
        Err(e) => check.unknown(e),
    }
}

fn swap(root: &Root) -> Finding {
    let check = Check::new("swap", "idle memory can be moved out, and there is more time to choose a victim");
    match MemInfo::read(root) {
        Ok(info) if info.swap_total > 0 => {
            let (total, free) = (units::bytes(info.swap_total), units::bytes(info.swap_free));
            check.is(State::Ok, format!("{total}, {free} free"))
        }
        Ok(_) => check.is(State::Off, "none in use").remedy("zram: zramctl --find --size 4G; mkswap; swapon"),
        Err(e) => check.unknown(e),
    }
}

fn zram_finding(root: &Root) -> Finding {
    let check = Check::new("zram", "swap in memory, compressed: fast, without waiting for a disk");
    match zram::devices(root) {
        Ok(devices) => {
            let set_up: Vec<_> = devices.iter().filter(|device| device.disk_size > 0).collect();
            if set_up.is_empty() {
                return check.is(State::Off, "no device set up").remedy("modprobe zram; zramctl --find --size 4G");
            }
            let [size, held, used] = set_up.iter().fold([0_u64; 3], |[size, held, used], device| {
                let usage = &device.usage;
                [size + device.disk_size, held + usage.original, used + usage.used]
            });
            let sizes = [size, held, used].map(units::bytes);
            check.is(State::Ok, format!("{}, holds {} in {}", sizes[0], sizes[1], sizes[2]))
        }
        Err(e) => check.unknown(e),
    }
}

fn watermarks(root: &Root) -> Finding {
    let check = Check::new("watermarks", "the kernel reclaims before processes that allocate have to do it themselves");
    match features::watermark_scale_factor(root) {
        Ok(Some(factor)) => {
            let found = format!("vm.watermark_scale_factor is {factor}");
            if factor >= EARLY_WATERMARK_SCALE_FACTOR {
                check.is(State::Ok, found)
            } else {
                check
                    .is(State::Off, found)
                    .remedy(format!("sysctl vm.watermark_scale_factor={EARLY_WATERMARK_SCALE_FACTOR}"))
            }
        }
        Ok(None) => check.is(State::Missing, "no vm.watermark_scale_factor").remedy("a kernel since 4.6"),
        Err(e) => check.unknown(e),
    }
}

fn memlock(probes: &Probes) -> Finding {
    let check = Check::new("RLIMIT_MEMLOCK", "memreap stays in memory when there is none left");
    match probes.memlock {
        _ if probes.capabilities.contains(CapabilitySet::IPC_LOCK) => {
            check.is(State::Ok, "does not apply with CAP_IPC_LOCK")
        }
        None => check.is(State::Ok, "no limit"),
        Some(limit) if limit >= WANTED_LOCKED_BYTES => check.is(State::Ok, units::bytes(limit)),
        Some(limit) => check
            .is(State::Missing, format!("{}, which is too little", units::bytes(limit)))
            .remedy("ulimit -l 65536, LimitMEMLOCK=64M, or CAP_IPC_LOCK"),
    }
}

/// The findings for people: a kernel that has none of the topics lacks all of them for one reason.
fn for_people(findings: &[Finding]) -> Cow<'_, [Finding]> {
    let is_topic = |finding: &Finding| finding.remedy.as_deref() == Some(TOPICS_REMEDY);
    let topics = findings.iter().filter(|finding| is_topic(finding)).count();
    match findings.iter().position(is_topic) {
        Some(first) if topics == Topic::ALL.len() + SYSCTLS => {
            let mut shown: Vec<Finding> = findings.iter().filter(|f| !is_topic(f)).cloned().collect();
            let check = Check::new("topics", "the kernel frees a victim's memory itself, and sooner");
            let found = "not in this kernel; memreap works without";
            shown.insert(first, check.is(State::Off, found).remedy(TOPICS_REMEDY));
            shown.into()
        }
        _ => findings.into(),
    }
}

/// As text: a line per thing, with what its lack costs and what to do about it.
fn render(findings: &[Finding], probes: &Probes) -> String {
    let mut text = String::new();
    for finding in for_people(findings).iter() {
        let state = match finding.state {
            State::Ok => "ok",
            State::Off => "off",
            State::Missing => "MISSING",
            State::Unknown => "?",
        };
        let _ = writeln!(text, "{state:<8}{:<24}{}", finding.thing, finding.found);
        if finding.state != State::Ok {
            let _ = writeln!(text, "{:8}  for: {}", "", finding.purpose);
        }
        if let Some(remedy) = &finding.remedy {
            let _ = writeln!(text, "{:8}  -> {remedy}", "");
        }
    }
    let verdict = if !works(findings, probes) {
        "memreap cannot work here"
    } else if probes.expedite {
        "memreap kill works here, by expedite"
    } else if probes.mrelease {
        "memreap kill works here, by mrelease"
    } else {
        "memreap kill works here, by plain kills"
    };
    let _ = writeln!(text, "\n{verdict}");
    text
}

#[cfg(test)]
mod tests;
