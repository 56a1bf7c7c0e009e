// SPDX-License-Identifier: GPL-2.0-only
//! `memreap watch`: shows pressure, memory, the next victim and recent kills, live.

mod show;
mod trend;

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use linux::cgroup::Hierarchy;
use linux::psi::Pressure;
use linux::{Root, poll};
use rustix::event::PollFlags;

use super::args::WatchArgs;
use super::interrupt::Interrupt;
use crate::choice::{Chooser, Scope};
use crate::config::Config;
use crate::daemon::report::history;
use crate::daemon::run::sampler::{self, Memory};
use crate::daemon::run::system::MAX_PROCESSES;
use crate::exit::Exit;
use crate::say;
use show::{Next, Picture, View};
use trend::Trend;

/// The shortest time between two views: each of them reads all processes.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// How long processes are read before each choice.
const REFRESH_BUDGET: Duration = Duration::from_millis(50);
/// How many kills are shown.
const SHOWN_KILLS: usize = 5;

/// Shows views until Ctrl-C, or as many as the arguments say.
///
/// # Errors
/// When /proc cannot be read, or the output cannot be written. A wrong configuration is printed, and is wrong
/// usage.
pub fn run(args: &WatchArgs) -> Result<Exit> {
    let config = match Config::load(args.config.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            say(error);
            return Ok(Exit::Usage);
        }
    };
    // Before threads are started.
    let interrupt = Interrupt::catch().context("cannot catch Ctrl-C")?;
    let mut watcher = Watcher::new(config)?;
    let mut picture = (io::stdout().is_terminal() && !args.json).then(Picture::default);
    let interval = args.interval.max(MIN_INTERVAL);
    let mut views = 0;
    loop {
        let next = Instant::now() + interval;
        let view = watcher.view()?;
        let mut out = io::stdout().lock();
        match &mut picture {
            Some(picture) => picture.draw(&mut out, show::terminal_size(), &show::lines(&view))?,
            None if args.json => writeln!(out, "{}", show::json(&view)?)?,
            None => writeln!(out, "{}", show::line(&view))?,
        }
        out.flush()?;
        drop(out);
        views += 1;
        if args.count.is_some_and(|count| views >= count) || interrupted(&interrupt, next)? {
            return Ok(Exit::Done);
        }
    }
}

/// Waits until `end` or Ctrl-C, and returns whether it was Ctrl-C.
fn interrupted(interrupt: &Interrupt, end: Instant) -> io::Result<bool> {
    let left = end.saturating_duration_since(Instant::now());
    let events = poll::poll(interrupt, PollFlags::IN, left)?;
    Ok(!events.is_empty() && interrupt.take())
}

struct Watcher {
    config: Config,
    root: Root,
    memory: Memory,
    buffer: sampler::Buffer,
    chooser: Chooser,
    trend: Trend,
    began: Instant,
}

impl Watcher {
    fn new(config: Config) -> Result<Self> {
        let root = Root::system();
        let mut chooser = Chooser::new(&root, MAX_PROCESSES as usize).context("cannot read processes")?;
        chooser.set_grouping(config.kill.grouping());
        Ok(Self {
            memory: Memory::open(&root, Hierarchy::find(&root).ok().flatten().as_ref())?,
            buffer: sampler::buffer(),
            chooser,
            trend: Trend::default(),
            began: Instant::now(),
            config,
            root,
        })
    }

    fn view(&mut self) -> Result<View> {
        let policy = &self.config.policy;
        self.chooser.refresh(policy, REFRESH_BUDGET);
        let sample = self.memory.sample(self.began, &mut self.buffer[..])?;
        self.chooser.set_min_bytes(sample.min_victim_bytes());
        let choice = self.chooser.choose(policy, Scope::All);
        let next = choice.map(|choice| {
            let rule = choice.rule.map_or(String::new(), |rule| policy.rule(rule).to_owned());
            Next { choice, rule }
        });
        let kills = match &self.config.record.history {
            Some(path) => {
                history::read(path, SHOWN_KILLS).map_err(|e| format!("{} cannot be read: {e}", linux::escape(path)))
            }
            None => Ok(Vec::new()),
        };
        let pressure = match Pressure::read(&self.root) {
            Ok(pressure) => Some(pressure),
            Err(e) if e.is_unsupported() => None,
            Err(e) => return Err(e.into()),
        };
        let forecast = self.trend.observe(sample);
        Ok(View { at: SystemTime::now(), sample, forecast, pressure, next, kills })
    }
}
