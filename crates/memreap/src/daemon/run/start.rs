// SPDX-License-Identifier: GPL-2.0-only
//! Starts the daemon.
//!
//! What is opened, allocated, started and locked is so before memory is sampled for the first time;
//! afterwards nothing is, except to read a new configuration.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use linux::cgroup::Hierarchy;
use linux::psi::Trigger;
use linux::scan::Scan;
use linux::{Dir, Pid, Process, Root, own_memory, process};
use rustix::thread::CapabilitySet;

use super::event_loop::Daemon;
use super::rehearsal::{Dummy, rehearse};
use super::sampler::{Memory, fit_to_machine};
use super::sandbox::{self, Access};
use super::signals::Signals;
use super::system::{MAX_LIMITS, MAX_PROCESSES, System};
use crate::choice::Chooser;
use crate::config::{Config, DEFAULT_PATH};
use crate::daemon::act::reapers::Reapers;
use crate::daemon::decide::control_loop::ControlLoop;
use crate::daemon::decide::governor::{BLIND_INTERVAL, REPORT_WINDOW, reported_stall};
use crate::daemon::report::hook::Hook;
use crate::daemon::report::notify::Notifier;
use crate::exit::Exit;
use crate::kill::{KernelFeatures, Method, raise_priority};

/// Without privileges the kernel reports pressure within this window only.
const UNPRIVILEGED_STALL_WINDOW: Duration = Duration::from_secs(2);
/// The daemon's own memory, at most: many times what it needs, so that a leak ends the daemon and not the
/// machine.
const MAX_OWN_BYTES: u64 = 64 << 20;

/// Runs the daemon until it is told to stop. With `dry_run` it sends no signals.
///
/// # Errors
/// When it cannot start; the text says what is missing.
#[inline(never)] // What other commands have on the stack is not the daemon's.
pub fn run(config: Config, dry_run: bool) -> Result<Exit> {
    let Opened { mut system, whole, dummy, silent, hierarchy, signals, trigger } = open(config, dry_run)?;
    own_memory::release_unused();
    if let Err(e) = sandbox::lock_memory() {
        system.notifier.note(format_args!("memory is not locked, and may be swapped out: {e}"));
    }
    let whole = rehearse(&mut system, whole, dummy, silent);
    let control_loop = ControlLoop::new(system.config(), whole, MAX_LIMITS);
    let mut daemon = Daemon { hierarchy, signals, trigger, control_loop, system };
    daemon.find_limits();
    let mode = if dry_run { ", without sending signals (--dry-run)" } else { "" };
    let method = daemon.system.reapers.method().name();
    let what = match daemon.control_loop.whole() {
        Memory::Limited(_) => "this container's memory",
        Memory::Machine(_) => "the machine's memory",
    };
    daemon.system.notifier.ready(format_args!("watching {what}, killing by {method}{mode}"));
    daemon.run()
}

/// What the daemon uses, before it has used it.
struct Opened {
    system: System,
    whole: Memory,
    dummy: Dummy,
    /// In the place of the system's own in the rehearsal.
    silent: Notifier,
    hierarchy: Option<Hierarchy>,
    signals: Signals,
    trigger: Option<Trigger>,
}

/// Opens and starts all that the daemon will use, and enters the sandbox. The order matters: what forks comes before
/// what starts threads, and the sandbox after all of that, because none of it is possible in the sandbox.
#[inline(never)] // Its stack is released before memory is locked.
fn open(mut config: Config, dry_run: bool) -> Result<Opened> {
    own_memory::keep_heap_small();
    let root = Root::system();
    // Before threads are started, which inherit the signal mask.
    let signals = Signals::catch().context("cannot catch signals")?;
    let dummy = Dummy::fork().context("cannot start the process that the start kills")?;
    // In a dry run nobody is killed, and what the command does is no dry run.
    let hook = config.kill.before.as_ref().filter(|_| !dry_run).map(|_| Hook::start(&config.kill));
    let hook = hook.transpose().context("cannot start the process that runs kill.before")?;
    let silent = Notifier::silent().context("/dev/null")?;
    let mut notifier = Notifier::open(&config, dry_run)?;
    if !dry_run && let Some(other) = another_daemon(&root) {
        notifier.warning(format_args!(
            "another daemon runs, process {other}: both kill for the same shortage, so stop one of them"
        ));
    }
    // The unit does so, too.
    if let Err(e) = sandbox::exempt_from_oom() {
        notifier.note(format_args!("not exempt from the kernel's OOM killer: {e} (CAP_SYS_RESOURCE)"));
    }
    let hierarchy = Hierarchy::find(&root).map_err(anyhow::Error::new);
    match &hierarchy {
        // Something else may be mounted over it.
        Err(e) => notifier.warning(format_args!("works without cgroups: {e:#}")),
        Ok(None) => notifier.warning(format_args!(
            "works without cgroups, so no rule with a cgroup applies: v2 is not mounted (mount -t cgroup2 none \
             /sys/fs/cgroup)"
        )),
        Ok(Some(hierarchy)) => {
            let outside = hierarchy.processes_outside(&root)?;
            notifier.metrics.outside = outside;
            if outside > 0 {
                notifier.warning(format_args!(
                    "{outside} processes are in cgroups that are not below {}: no rule with a cgroup, no group \
                     and no limit applies to them (run in the host's cgroup namespace, or mount its \
                     /sys/fs/cgroup there)",
                    linux::escape(&hierarchy.path)
                ));
            }
        }
    }
    let hierarchy = hierarchy.ok().flatten();
    let whole = Memory::open(&root, hierarchy.as_ref())?;
    fit_to_machine(&mut config, &whole);
    let trigger = psi_trigger(&root, hierarchy.as_ref(), &whole);
    let scan = Scan::open(&root).context("cannot open /proc")?;
    let cgroups = hierarchy.as_ref().and_then(|h| Dir::open(&h.path).ok());
    let chooser = Chooser::new(&root, MAX_PROCESSES as usize).context("cannot read processes")?;
    let reapers =
        Reapers::new(Method::best(), KernelFeatures::read(&root).parallel_reap).context("cannot start threads")?;
    let trigger = trigger
        .inspect_err(|e| {
            notifier.note(format_args!(
                "sampling memory every {} ms, because the kernel does not report pressure (PSI): {e:#}",
                BLIND_INTERVAL.as_millis()
            ));
        })
        .ok();
    let access = Access::new(
        config.path.as_deref().unwrap_or(Path::new(DEFAULT_PATH)),
        config.record.history.as_deref(),
        hierarchy.as_ref().map(|h| h.path.as_path()),
    );
    let mut system =
        System::new(chooser, reapers, config, dry_run, scan, cgroups, notifier).context("cannot start threads")?;
    system.hook = hook;
    if let Err(e) = raise_priority() {
        system.notifier.note(format_args!(
            "not scheduled in real time, so on a busy machine memory comes back later: {e} (CAP_SYS_NICE)"
        ));
    }
    let capabilities = rustix::thread::capabilities(None)?.effective;
    for (capability, lack) in [
        (CapabilitySet::KILL, "other users' processes cannot be killed (CAP_KILL)"),
        (CapabilitySet::SYS_PTRACE, "what other users' processes would give back is a guess (CAP_SYS_PTRACE)"),
        (
            CapabilitySet::DAC_READ_SEARCH,
            "which of other users' processes share their memory is not known (CAP_DAC_READ_SEARCH)",
        ),
    ] {
        if !capabilities.contains(capability) {
            system.notifier.note(format_args!("{lack}"));
        }
    }
    if !linux::features::tells_shared(&root) {
        system.notifier.note(format_args!(
            "what a process would give back is a guess, with what others share: the kernel has no /proc/PID/smaps_rollup \
             (CONFIG_PROC_PAGE_MONITOR)"
        ));
    }
    if let Err(e) = sandbox::limit_memory(MAX_OWN_BYTES) {
        system.notifier.error(format_args!("cannot limit own memory: {e}"));
    }
    for missing in sandbox::enter(&access) {
        system.notifier.note(format_args!("{missing}"));
    }
    Ok(Opened { system, whole, dummy, silent, hierarchy, signals, trigger })
}

/// Finds another daemon that kills. Only root's and the caller's own count: those of others kill nothing that is not
/// theirs, and may keep who reads their command lines waiting.
fn another_daemon(root: &Root) -> Option<Pid> {
    let own = Pid::own();
    let users = [0, rustix::process::geteuid().as_raw()];
    process::pids(root).ok()?.find(|pid| {
        let Ok(process) = Process::open(root, *pid) else { return false };
        let Ok(status) = process.status() else { return false };
        let is_candidate = *status.comm.as_bytes() == *b"memreap" && users.contains(&status.effective_uid);
        // Children of this one, such as the process that warns, have its command line.
        if !is_candidate || *pid == own || status.ppid == Some(own) {
            return false;
        }
        process.cmdline().is_ok_and(|command| {
            let has = |argument: &str| command.iter().any(|given| given == argument);
            command.get(1).is_some_and(|command| command == "daemon") && !has("--dry-run") && !has("--check-config")
        })
    })
}

/// Has the kernel report pressure.
fn psi_trigger(root: &Root, hierarchy: Option<&Hierarchy>, memory: &Memory) -> Result<Trigger> {
    let stall = reported_stall(linux::sched::online_cpus(root).unwrap_or(1));
    let trigger = |window| match (memory, hierarchy) {
        (Memory::Limited(_), Some(h)) => Trigger::on_cgroup(&h.path, stall, window),
        _ => Trigger::new(root, stall, window),
    };
    Ok(trigger(REPORT_WINDOW).or_else(|_| trigger(UNPRIVILEGED_STALL_WINDOW))?)
}
