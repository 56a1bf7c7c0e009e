//! `memreap watch`: the live picture.

mod show;
mod trend;

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use linux::Root;
use linux::psi::{Pressure, Resource};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::choice::{Choice, Chooser, Scope};
use crate::commands::args::WatchArgs;
use crate::commands::interrupt::Interrupt;
use crate::config::Config;
use crate::daemon::decide::governor::Sample;
use crate::daemon::report::history::{self, Entry};
use crate::daemon::run::sampler::{self, Machine, Memory};
use crate::exit::Exit;
use show::Picture;
use trend::{Forecast, Trend};

/// The shortest pause between two looks: each of them goes through all processes.
const SHORTEST: Duration = Duration::from_millis(100);
/// The most processes among which a victim is chosen.
const PROCESSES: usize = 32_768;
/// For how long figures are brought up to date before each choice.
const REFRESH: Duration = Duration::from_millis(50);
/// How many kills are shown.
const KILLS: usize = 5;

/// What was seen at one time.
struct Look {
    at: SystemTime,
    sample: Sample,
    forecast: Forecast,
    /// `None` when the kernel does without PSI.
    pressure: Option<Pressure>,
    next: Option<Next>,
    /// Latest last; or why there are none to show.
    kills: Result<Vec<Entry>, String>,
}

/// The next victim.
struct Next {
    choice: Choice,
    /// The rule that weighed it; empty for none.
    rule: String,
}

/// Shows the picture until Ctrl-C, or as often as told.
///
/// # Errors
/// When /proc cannot be read, or the output cannot be written. A wrong configuration is told, and
/// is wrong usage.
pub fn run(args: &WatchArgs) -> Result<Exit> {
    let config = match Config::load(args.config.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            writeln!(io::stderr(), "{error}")?;
            return Ok(Exit::Usage);
        }
    };
    // Before threads are started.
    let interrupt = Interrupt::catch().context("cannot catch Ctrl-C")?;
    let mut watcher = Watcher::new(config)?;
    let mut picture = (io::stdout().is_terminal() && !args.json).then(Picture::default);
    let interval = args.interval.max(SHORTEST);
    let mut looks = 0;
    loop {
        let next = Instant::now() + interval;
        let look = watcher.look()?;
        let mut out = io::stdout().lock();
        match &mut picture {
            Some(picture) => picture.draw(&mut out, show::terminal_size(), &show::lines(&look))?,
            None if args.json => writeln!(out, "{}", show::json(&look)?)?,
            None => writeln!(out, "{}", show::line(&look))?,
        }
        out.flush()?;
        drop(out);
        looks += 1;
        if args.count.is_some_and(|count| looks >= count) || interrupted(&interrupt, next)? {
            return Ok(Exit::Done);
        }
    }
}

/// Waits until `end` or Ctrl-C, and says whether it was Ctrl-C.
fn interrupted(interrupt: &Interrupt, end: Instant) -> io::Result<bool> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let fd = interrupt.as_fd();
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(interrupt.take()),
            // Stopped and continued.
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
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
        Ok(Self {
            memory: Memory::Machine(Machine::open(&root)?),
            buffer: sampler::buffer(),
            chooser: Chooser::new(&root, PROCESSES).context("cannot look at processes")?,
            trend: Trend::new(config.act.clone()),
            began: Instant::now(),
            config,
            root,
        })
    }

    fn look(&mut self) -> Result<Look> {
        let policy = &self.config.policy;
        self.chooser.refresh(policy, REFRESH, false);
        let choice = self.chooser.choose(policy, Scope::All { by_cgroup: self.config.kill.by_cgroup });
        let next = choice.map(|choice| {
            let rule = choice.rule.map_or(String::new(), |rule| policy.rule(rule).to_owned());
            Next { choice, rule }
        });
        let kills = match &self.config.record.history {
            Some(path) => {
                history::read(path, KILLS).map_err(|e| format!("{} cannot be read: {e}", linux::escape(path)))
            }
            None => Ok(Vec::new()),
        };
        let sample = self.memory.sample(self.began.elapsed(), &mut self.buffer[..])?;
        let pressure = match Pressure::read(&self.root, Resource::Memory) {
            Ok(pressure) => Some(pressure),
            Err(e) if e.is_unsupported() => None,
            Err(e) => return Err(e.into()),
        };
        let forecast = self.trend.observe(sample);
        Ok(Look { at: SystemTime::now(), sample, forecast, pressure, next, kills })
    }
}
