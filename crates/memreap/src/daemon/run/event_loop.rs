// SPDX-License-Identifier: GPL-2.0-only
//! The daemon's event loop: pressure, signals, requests for metrics, and time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use linux::cgroup::Hierarchy;
use linux::psi::Trigger;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::sampler::fit_to_machine;
use super::signals::{Event as SignalEvent, Signals};
use super::system::{LiveWorld, System};
use crate::config::{Config, ConfigError};
use crate::daemon::decide::control_loop::{ControlLoop, Next};
use crate::daemon::decide::governor::BLIND_INTERVAL;
use crate::daemon::decide::world::Observes as _;
use crate::exit::Exit;

// What epoll returns for each descriptor.
const PRESSURE_TOKEN: u64 = 0;
const SIGNAL_TOKEN: u64 = 1;
const METRICS_TOKEN: u64 = 2;
/// Requests for metrics are served so often at most: anybody may ask, and each wakes a real-time thread.
const METRICS_INTERVAL: Duration = Duration::from_millis(50);
const ONE_REQUEST: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// The daemon, started.
pub(super) struct Daemon {
    pub(super) hierarchy: Option<Hierarchy>,
    pub(super) signals: Signals,
    pub(super) trigger: Option<Trigger>,
    pub(super) control_loop: ControlLoop<LiveWorld<'static>>,
    pub(super) system: System,
}

impl Daemon {
    /// Waits for events and acts on them, until told to stop.
    ///
    /// # Errors
    /// When the kernel cannot wait.
    pub(super) fn run(&mut self) -> Result<Exit> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &self.signals, EventData::new_u64(SIGNAL_TOKEN), EventFlags::IN)?;
        if let Some(trigger) = &self.trigger {
            epoll::add(&epoll, trigger, EventData::new_u64(PRESSURE_TOKEN), EventFlags::PRI)?;
        }
        if let Some(fd) = self.system.notifier.metrics_fd() {
            epoll::add(&epoll, fd, EventData::new_u64(METRICS_TOKEN), ONE_REQUEST)?;
        }
        let watchdog = self.system.notifier.watchdog_interval();
        let mut watchdog_sent = Instant::now();
        let mut next = Next::After(Duration::ZERO);
        // Until then requests for metrics wait.
        let mut deaf_until = None::<Instant>;
        loop {
            let mut timeout = match next {
                Next::After(pause) => Some(pause),
                Next::Rest if self.trigger.is_none() => Some(BLIND_INTERVAL),
                Next::Rest => self.control_loop.governor().longest_rest(),
            };
            if let Some(watchdog) = watchdog {
                let due = watchdog.saturating_sub(watchdog_sent.elapsed());
                timeout = Some(timeout.map_or(due, |t| t.min(due)));
            }
            if let (Some(until), Some(fd)) = (deaf_until, self.system.notifier.metrics_fd()) {
                let due = until.saturating_duration_since(Instant::now());
                timeout = Some(timeout.map_or(due, |t| t.min(due)));
                if due.is_zero() {
                    epoll::modify(&epoll, fd, EventData::new_u64(METRICS_TOKEN), ONE_REQUEST)?;
                    deaf_until = None;
                }
            }
            let timeout =
                timeout.map(|t| Timespec { tv_sec: t.as_secs().cast_signed(), tv_nsec: t.subsec_nanos().into() });
            let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 8];
            let count = match epoll::wait(&epoll, &mut events[..], timeout.as_ref()) {
                Ok(count) => count,
                Err(Errno::INTR) => 0,
                Err(e) => return Err(e).context("cannot wait"),
            };
            self.system.notifier.metrics.wake_ups += 1;
            let (mut pressure, mut metrics_requested) = (false, false);
            for event in &events[..count] {
                match event.data.u64() {
                    // PSI of the container's cgroup was switched off (cgroup.pressure): that is reported for ever.
                    PRESSURE_TOKEN if { event.flags }.contains(EventFlags::ERR) => self.trigger = None,
                    PRESSURE_TOKEN => {
                        self.control_loop.pressure_reported(self.system.now());
                        pressure = true;
                    }
                    SIGNAL_TOKEN => {
                        while let Some(signal) = self.signals.take() {
                            match signal {
                                SignalEvent::Reload => self.reload(),
                                SignalEvent::Stop => {
                                    self.control_loop.stop(&mut self.system);
                                    self.system.notifier.stopping();
                                    return Ok(Exit::Done);
                                }
                            }
                        }
                    }
                    // After the next sample, so that they are current.
                    METRICS_TOKEN => metrics_requested = true,
                    _ => {}
                }
            }
            if watchdog.is_some_and(|every| watchdog_sent.elapsed() >= every) {
                watchdog_sent = Instant::now();
                self.system.notifier.watchdog();
            }
            next = self.control_loop.step(&mut self.system);
            self.system.notifier.set_outlook(self.control_loop.governor().outlook());
            // To write the history may wait for memory, so it has to wait until the last kill for all memory is long
            // ago. But a rest can begin a moment before that, and last until the next pressure: then it is written now.
            let may_wait = next == Next::Rest || self.control_loop.may_wait(self.system.now());
            if may_wait {
                self.system.notifier.write_history();
            }
            if metrics_requested {
                self.system.notifier.serve_metrics();
                deaf_until = Some(Instant::now() + METRICS_INTERVAL);
            }
            // Without a trigger at any time, if stalls can be read: where they cannot, nobody is killed for a limit.
            let reads_stalls = || self.control_loop.governor().last()?.stalled;
            if may_wait && (pressure || self.trigger.is_none() && reads_stalls().is_some()) {
                self.find_limits();
            }
        }
    }

    /// Watches cgroups that are close to their limit, and no longer those that are not. They come and go at any
    /// time, but they matter only under pressure, and a cgroup's pressure is part of the machine's.
    #[inline(never)] // What it has on the stack is not the loop's.
    pub(super) fn find_limits(&mut self) {
        if !self.system.limit_search_is_due() {
            return;
        }
        self.control_loop.forget_relieved();
        if let Some(hierarchy) = &self.hierarchy {
            self.system.find_limits(hierarchy, &mut self.control_loop);
        }
    }

    /// Takes a new configuration, or keeps the old one when the new one is wrong.
    #[inline(never)] // As above.
    fn reload(&mut self) {
        self.system.notifier.reloading();
        let path = self.system.config().path.clone();
        // At the start a rule that fits nobody is better than no killer; here the old configuration is better, unless
        // it has that rule, too, maybe in another line.
        let old = &self.system.config().unmet;
        let is_old = |line: &String| old.iter().any(|old| problem(old) == problem(line));
        let met =
            |config: Config| if config.unmet.iter().all(is_old) { Ok(config) } else { Err(ConfigError(config.unmet)) };
        match Config::load(path.as_deref()).and_then(met) {
            Ok(mut config) => {
                fit_to_machine(&mut config, self.control_loop.whole());
                self.control_loop.reconfigure(&config, &mut self.system);
                self.system.notifier.reloaded(Ok(&config));
                self.system.reconfigure(config);
            }
            Err(e) => self.system.notifier.reloaded(Err(&e.to_string())),
        }
    }
}

/// What a line of [`ConfigError`] says, without file and number.
fn problem(line: &str) -> Option<&str> {
    line.split_once(": ").map(|(_, problem)| problem)
}
