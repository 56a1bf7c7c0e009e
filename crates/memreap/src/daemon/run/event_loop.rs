//! Starts the daemon, and waits for events.
//!
//! What is opened, allocated, started and locked is so before memory is sampled for the first time; afterwards nothing
//! is, except to read a new configuration.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use linux::Root;
use linux::cgroup::Hierarchy;
use linux::perf::FaultAlarm;
use linux::psi::{Resource, Stall, Trigger};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::footprint;
use super::sampler::{self, Limited, Machine, Memory};
use super::sandbox::{self, Access};
use super::signals::{Event as SignalEvent, Signals};
use super::system::{MEMORIES, System};
use crate::choice::{Choice, Chooser};
use crate::commands::args::DaemonArgs;
use crate::config::{self, Config};
use crate::daemon::act::probe::Probe;
use crate::daemon::act::reapers::Reapers;
use crate::daemon::decide::control_loop::{Keeper, Next, World as _};
use crate::daemon::decide::governor::Governor;
use crate::daemon::report::notify::Voice;
use crate::exit::Exit;
use crate::kill::{KernelFeatures, Method, raise_priority};

/// Processes that are looked at, at most.
const PROCESSES: usize = 32 << 10;
/// How long some task must have stalled for memory...
const STALLED: Duration = Duration::from_millis(5);
/// ...within this time, to be told of it.
const WINDOW: Duration = Duration::from_millis(500);
/// The window that the unprivileged may have.
const PLAIN_WINDOW: Duration = Duration::from_secs(2);
/// How often memory is looked at where there is no PSI.
const BLIND: Duration = Duration::from_millis(250);
/// How often the history is kept short, and new swap is looked for.
const TEND: Duration = Duration::from_secs(300);
/// Page faults on a CPU below which nobody needs to wake up.
const FAULTS: u64 = 256;
/// When less than this part of what can be used up is gone, the alarm was for nothing.
const CHURN: u64 = 8;
/// What the daemon itself may have, in bytes: many times what it needs, so that a leak ends it and not
/// the machine.
const OWN_LIMIT: u64 = 64 << 20;

const PRESSURE: u64 = 0;
const SIGNAL: u64 = 1;
const METRICS: u64 = 2;

/// Runs the daemon until it is told to end.
///
/// # Errors
/// When it cannot start; the text says what is missing.
pub fn run(args: &DaemonArgs) -> Result<Exit> {
    let path = args.config.as_deref();
    if args.check_config {
        return config::check(path);
    }
    let config = match Config::load(path) {
        Ok(config) => config,
        Err(e) => {
            eprintln!("{e}");
            return Ok(Exit::Usage);
        }
    };
    let mut daemon = Daemon::start(config, args.dry_run)?;
    daemon.run()
}

/// The daemon, ready.
struct Daemon {
    root: Root,
    hierarchy: Option<Hierarchy>,
    signals: Signals,
    trigger: Option<Trigger>,
    alarm: Option<FaultAlarm>,
    armed: bool,
    /// The last alarm was for nothing: what was touched had been given back.
    churning: bool,
    /// What a page fault takes at most, in bytes.
    page: u64,
    keeper: Keeper<Choice>,
    system: System,
}

impl Daemon {
    /// Opens, starts and locks all that there will be. The order matters: what forks comes before what
    /// starts threads, and the sandbox after all of that, as none of it can be done in it.
    fn start(mut config: Config, dry_run: bool) -> Result<Self> {
        footprint::keep_large_apart();
        let root = Root::system();
        // Before threads are started, which inherit what is blocked.
        let signals = Signals::catch().context("cannot catch signals")?;
        let mut voice = Voice::open(&config)?;
        // Not in reach of everybody, and the unit sets it, too.
        let _ = sandbox::exempt_from_oom();
        let hierarchy = Hierarchy::find(&root)?;
        if let Some(hierarchy) = &hierarchy {
            let outside = hierarchy.processes_outside(&root)?;
            voice.figures.outside = outside;
            if outside > 0 {
                voice.warning(format_args!(
                    "{outside} processes are in cgroups that are not below {}: no rule with a cgroup, no group \
                     and no limit counts for them (run in the host's cgroup namespace, or mount its \
                     /sys/fs/cgroup there)",
                    linux::escape(&hierarchy.path)
                ));
            }
        }
        let first = first_memory(&root, hierarchy.as_ref())?;
        fit(&mut config, &first);
        let trigger = trigger(&root, hierarchy.as_ref(), &first);
        let proc = open_dir(root.proc()).context("cannot open /proc")?;
        let cgroups = hierarchy.as_ref().and_then(|h| open_dir(&h.path).ok());
        let chooser = Chooser::new(&root, PROCESSES).context("cannot look at processes")?;
        let probe = Probe::new(&proc).context("cannot start a thread")?;
        let reapers = Reapers::new(Method::best(), KernelFeatures::read(&root).parallel_reap)
            .context("cannot start threads")?;
        if trigger.is_none() {
            voice.note(format_args!(
                "this kernel does not tell of pressure (PSI): looking every {} ms instead",
                BLIND.as_millis()
            ));
        }
        // It counts what all of the machine does.
        let alarm = match first {
            Memory::Machine(_) => match FaultAlarm::open(&root) {
                Ok(alarm) => Some(alarm),
                Err(e) => {
                    voice.note(format_args!(
                        "page faults cannot be counted, so the first sign is that tasks stall: {:#} \
                         (CAP_PERFMON)",
                        anyhow::Error::from(e)
                    ));
                    None
                }
            },
            Memory::Limited(_) => None,
        };
        let keeper = Keeper::new(&config, MEMORIES);
        let access = Access::new(
            config.path.as_deref(),
            config.record.history.as_deref(),
            hierarchy.as_ref().map(|h| h.path.as_path()),
        );
        let mut system = System::new(first, chooser, probe, reapers, config, dry_run, proc, cgroups, voice);
        if let Err(e) = raise_priority() {
            system.voice.note(format_args!(
                "not scheduled in real time, so on a busy machine memory comes back later: {e} (CAP_SYS_NICE)"
            ));
        }
        if let Err(e) = sandbox::limit_memory(OWN_LIMIT) {
            system.voice.trouble(format_args!("cannot limit own memory: {e}"));
        }
        for missing in sandbox::enter(&access) {
            system.voice.note(format_args!("{missing}"));
        }
        // What is needed from now on is what the rehearsal needs. In the sandbox: it shows that it
        // leaves us what a choice takes.
        footprint::drop_code();
        if let Err(e) = sandbox::lock_memory() {
            system.voice.note(format_args!("memory is not locked, and may be swapped out: {e}"));
        }
        system.rehearse();
        let mode = if dry_run { ", without killing anybody (--dry-run)" } else { "" };
        let means = system.reapers.method().name();
        let what = match system.memories[0].cgroup() {
            Some(_) => "this container's memory",
            None => "the machine's memory",
        };
        system.voice.ready(format_args!("watching over {what}, killing by {means}{mode}"));
        let page = page_of(&root);
        Ok(Self {
            root,
            hierarchy,
            signals,
            trigger,
            alarm,
            armed: false,
            churning: false,
            page,
            keeper,
            system,
        })
    }

    fn run(&mut self) -> Result<Exit> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &self.signals, EventData::new_u64(SIGNAL), EventFlags::IN)?;
        if let Some(trigger) = &self.trigger {
            epoll::add(&epoll, trigger, EventData::new_u64(PRESSURE), EventFlags::PRI)?;
        }
        if let Some(fd) = self.system.voice.metrics_fd() {
            epoll::add(&epoll, fd, EventData::new_u64(METRICS), EventFlags::IN)?;
        }
        let watchdog = self.system.voice.watchdog_interval();
        let (mut alive, mut tended) = (Instant::now(), Instant::now());
        let mut next = Next::After(Duration::ZERO);
        loop {
            let mut timeout = match next {
                Next::After(pause) => Some(pause),
                Next::Rest if self.trigger.is_none() => Some(BLIND),
                Next::Rest => None,
            };
            if let Some(watchdog) = watchdog {
                let due = watchdog.saturating_sub(alive.elapsed());
                timeout = Some(timeout.map_or(due, |t| t.min(due)));
            }
            let timeout = timeout
                .map(|t| Timespec { tv_sec: t.as_secs().cast_signed(), tv_nsec: t.subsec_nanos().into() });
            let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 8];
            let count = match epoll::wait(&epoll, &mut events[..], timeout.as_ref()) {
                Ok(count) => count,
                Err(Errno::INTR) => 0,
                Err(e) => return Err(e).context("cannot wait"),
            };
            self.system.voice.figures.wake_ups += 1;
            let calm = next == Next::Rest;
            let (mut asked, mut touched, mut others) = (false, false, count > 1);
            for event in &events[..count] {
                match event.data.u64() {
                    PRESSURE => {
                        self.keeper.alarm(self.system.now());
                        self.churning = false;
                        self.find_limits();
                    }
                    SIGNAL => {
                        while let Some(signal) = self.signals.take() {
                            match signal {
                                SignalEvent::Reload => {
                                    others = true;
                                    self.reload();
                                }
                                SignalEvent::Faults => touched = true,
                                SignalEvent::End => {
                                    self.keeper.end(&mut self.system);
                                    self.system.let_all_go();
                                    self.system.voice.stopping();
                                    return Ok(Exit::Done);
                                }
                            }
                        }
                    }
                    // After the next look, so that they are of now.
                    METRICS => asked = true,
                    _ => {}
                }
            }
            if watchdog.is_some_and(|every| alive.elapsed() >= every) {
                alive = Instant::now();
                self.system.voice.alive();
                if calm && tended.elapsed() >= TEND {
                    tended = Instant::now();
                    self.system.voice.tidy();
                    self.system.renew(&self.root);
                }
            }
            if touched {
                if calm && !others && self.is_churn() {
                    continue;
                }
                self.disarm();
            }
            next = self.keeper.step(&mut self.system);
            if let Some(governor) = self.keeper.governor(0) {
                self.system.voice.outlook(governor.outlook());
            }
            if asked {
                self.system.voice.serve();
            }
            match next {
                Next::Rest => self.arm(),
                Next::After(_) => self.disarm(),
            }
            while let Some(memory) = self.system.vanished.pop() {
                self.keeper.swap_remove(memory, &mut self.system);
                self.system.forget(memory);
            }
        }
    }

    /// Has the kernel wake us up when half of what can be used up before there is a need to look may have
    /// been used: so nobody looks as long as nobody touches new memory.
    fn arm(&mut self) {
        let Some(alarm) = self.alarm.as_ref().filter(|_| !self.armed) else { return };
        let Some(slack) = self.keeper.governor(0).and_then(Governor::slack) else { return };
        // All of it where most of what is touched is given back again.
        let part = if self.churning { slack } else { slack / 2 };
        let faults = part / self.page / alarm.cpus().max(1) as u64;
        self.armed = true;
        if let Err(e) = alarm.arm(faults.max(FAULTS)) {
            self.system.voice.failed(&e);
        }
    }

    /// The alarm has gone off: whether that was for nothing, as what was touched has been given back. Most
    /// programs do so all the time, and a look at everything for each such alarm would add up.
    fn is_churn(&mut self) -> bool {
        let used = self.system.used_since(self.keeper.governor(0).and_then(Governor::last));
        let slack = self.keeper.governor(0).and_then(Governor::slack);
        let before = self.churning;
        self.churning = used.zip(slack).is_some_and(|(used, slack)| used < slack / CHURN);
        if self.churning && !before {
            // It takes more from now on.
            self.disarm();
            self.arm();
        }
        self.churning
    }

    /// We look by ourselves, or have to set the alarm anew.
    fn disarm(&mut self) {
        if let Some(alarm) = self.alarm.as_ref().filter(|_| self.armed)
            && let Err(e) = alarm.disarm()
        {
            self.system.voice.failed(&e);
        }
        self.armed = false;
    }

    /// Watches over cgroups that have a limit. They come and go at any time; what matters is to know
    /// them when there is pressure, and a cgroup's counts for the whole system's, too.
    fn find_limits(&mut self) {
        if let Some(hierarchy) = &self.hierarchy {
            self.system.find_limits(hierarchy);
            self.keeper.resize(self.system.memories.len());
        }
    }

    /// Takes a new configuration, or keeps the old one when the new one is wrong.
    fn reload(&mut self) {
        self.system.voice.reloading();
        let path = self.system.config().path.clone();
        match Config::load(path.as_deref()) {
            Ok(mut config) => {
                fit(&mut config, &self.system.memories[0]);
                self.keeper.set(&config);
                self.system.voice.reloaded(Ok(&config));
                self.system.set(config);
            }
            Err(e) => self.system.voice.reloaded(Err(&e.to_string())),
        }
        self.system.renew(&self.root);
    }
}

/// The machine's memory, or in a container what its limit leaves.
fn first_memory(root: &Root, hierarchy: Option<&Hierarchy>) -> Result<Memory> {
    let machine = Memory::Machine(Machine::open(root)?);
    let mut buffer = sampler::buffer();
    let total = machine.sample(Duration::ZERO, &mut buffer[..])?.total;
    if let Some(hierarchy) = hierarchy
        && let Some(limited) = Limited::open(hierarchy, Path::new("/"), total, &mut buffer[..])?
    {
        return Ok(Memory::Limited(limited));
    }
    Ok(machine)
}

/// What an oom_score_adj is a share of is what the container may have, if it has a limit.
fn fit(config: &mut Config, memory: &Memory) {
    if let Memory::Limited(_) = memory {
        let mut buffer = sampler::buffer();
        if let Ok(sample) = memory.sample(Duration::ZERO, &mut buffer[..]) {
            config.policy.set_total(sample.total);
        }
    }
}

/// What tells of pressure; `None` when this kernel does not.
fn trigger(root: &Root, hierarchy: Option<&Hierarchy>, memory: &Memory) -> Option<Trigger> {
    [(STALLED, WINDOW), (STALLED, PLAIN_WINDOW)].into_iter().find_map(|(threshold, window)| {
        match (memory, hierarchy) {
            (Memory::Limited(_), Some(h)) => {
                Trigger::on_cgroup(&h.path, Resource::Memory, Stall::Some, threshold, window)
            }
            _ => Trigger::new(root, Resource::Memory, Stall::Some, threshold, window),
        }
        .ok()
    })
}

/// What one page fault can take, in bytes: a huge page where programs get them without asking.
fn page_of(root: &Root) -> u64 {
    let path = root.sys().join("kernel/mm/transparent_hugepage/enabled");
    let always = std::fs::read_to_string(path).is_ok_and(|text| text.contains("[always]"));
    if always { 2 << 20 } else { rustix::param::page_size() as u64 }
}

fn open_dir(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}
