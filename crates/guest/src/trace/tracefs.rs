// SPDX-License-Identifier: GPL-2.0-only
//! Kprobe events in a trace instance of their own: create, record or count them, and check for losses.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use init::report::Reporter;

const TRACEFS: &str = "/sys/kernel/tracing";
/// The group of all our events.
const GROUP: &str = "memreap";
/// Default buffer of each CPU: room for some forty thousand events.
const BUFFER_KIB: &str = "4096";

/// The error that something should have been recorded and was not, and why. The same work can be tried again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Lost(pub String);

/// Repeats a round, `tries` times at most, until nothing is lost. `what` is it, for notes.
///
/// # Errors
/// Other errors of the round, and when something was lost each time.
pub fn until_complete<T>(
    what: &str,
    tries: u32,
    out: &mut Reporter,
    mut round: impl FnMut(&mut Reporter) -> Result<T>,
) -> Result<T> {
    for _ in 0..tries {
        match round(out) {
            Err(e) if e.is::<Lost>() => out.note(&format!("{what}: {e}; round repeated")),
            other => return other,
        }
    }
    bail!("not one good round in {tries}; the notes say why")
}

/// The clock of an instance's time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The monotonic clock, which the trace shows in microseconds.
    Mono,
    /// The CPU's time stamp counter, in ticks, which are finer than a microsecond; in kernels without such a clock
    /// (all but x86) the monotonic one.
    Finest,
}

impl Clock {
    fn name(self) -> &'static str {
        match self {
            Self::Mono => "mono",
            Self::Finest if cfg!(target_arch = "x86_64") => "x86-tsc",
            Self::Finest => "mono",
        }
    }
}

/// The definition of a kprobe event.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The event's name.
    pub name: &'static str,
    /// `p` for a function's entry, `r` for its return, `rN` for a return with at most N calls at a time.
    pub kind: &'static str,
    /// The function, and the fields to record: `up_read sem=$arg1:x64`.
    pub what: String,
}

/// Some probes and a trace instance; both are removed when this is dropped.
pub struct Trace {
    instance: PathBuf,
    /// The probes' events.
    events: Vec<&'static str>,
    /// Static events of the kernel that are recorded with them, `system/event`.
    others: Vec<&'static str>,
}

/// Whether the kernel has this static event, `system/event`.
pub fn has_event(event: &str) -> bool {
    Path::new(TRACEFS).join("events").join(event).is_dir()
}

impl Trace {
    /// Creates the probes and the instance called `name`, all disabled. Probes are enabled in the given
    /// order. The probe of a return has to precede that of its entry, so that no recorded entry lacks its
    /// return; a return without an entry can be dropped.
    ///
    /// # Errors
    /// When tracefs is not mounted, or the kernel lacks what the probes need; the message says which.
    pub fn new(name: &str, clock: Clock, probes: &[Probe]) -> Result<Self> {
        let definitions = Path::new(TRACEFS).join("kprobe_events");
        ensure!(
            definitions.exists(),
            "{}: missing; mount tracefs there, with CONFIG_KPROBE_EVENTS in the kernel",
            definitions.display()
        );
        let instance = Path::new(TRACEFS).join("instances").join(name);
        let this = Self { instance, events: probes.iter().map(|p| p.name).collect(), others: Vec::new() };
        // Something may be left of an earlier run.
        this.remove();
        for Probe { name, kind, what } in probes {
            let probe = format!("{kind}:{GROUP}/{name} {what}");
            append(&definitions, &probe)
                .with_context(|| format!("probe '{probe}': does the kernel have that symbol, and can it be probed?"))?;
        }
        fs::create_dir(&this.instance).with_context(|| this.instance.display().to_string())?;
        this.set("tracing_on", "0")?;
        this.set("trace_clock", clock.name())?;
        this.set("buffer_size_kb", BUFFER_KIB)?;
        Ok(this)
    }

    /// Sets the buffer size of each CPU, where the default is too much for all CPUs together.
    ///
    /// # Errors
    /// When the kernel refuses the size.
    pub fn set_buffer_size(&self, kib: u32) -> Result<()> {
        self.set("buffer_size_kb", &kib.to_string())
    }

    /// Also records a static event of the kernel ([`has_event`]).
    pub fn add_event(&mut self, event: &'static str) {
        self.others.push(event);
    }

    /// Records only events of the thread `tid`.
    ///
    /// # Errors
    /// When the kernel refuses the filter.
    pub fn filter_thread(&self, tid: i32) -> Result<()> {
        let filter = format!("common_pid == {tid}");
        self.events.iter().try_for_each(|event| self.set(&format!("events/{GROUP}/{event}/filter"), &filter))
    }

    /// Records while `work` runs. Returns also the trace's text.
    ///
    /// # Errors
    /// When `work` fails, or an event was lost ([`Lost`]).
    pub fn record<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, String)> {
        let missed_before = missed(&profile()?);
        let done = self.record_outermost(work)?;
        self.check_no_miss(missed_before)?;
        Ok(done)
    }

    /// Like [`Trace::record`], but a hit that was missed because the CPU was handling another hit is no
    /// error: for functions that the handling of a hit may call itself.
    ///
    /// # Errors
    /// When `work` fails, or the buffer was too small ([`Lost`]).
    pub fn record_outermost<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, String)> {
        self.set("trace", "")?;
        let done = self.enable().and_then(|()| {
            self.set("tracing_on", "1")?;
            let done = work();
            self.set("tracing_on", "0")?;
            done
        });
        self.disable();
        let done = done?;
        self.check_nothing_lost()?;
        let path = self.file();
        let trace = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok((done, trace))
    }

    /// Counts how often each probe is hit while `work` runs, by all threads on all CPUs, and records nothing:
    /// for millions of events.
    ///
    /// # Errors
    /// When `work` fails, or a hit was missed ([`Lost`]).
    pub fn count<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, HashMap<&'static str, u64>)> {
        let before = profile()?;
        let done = self.enable().and_then(|()| work());
        self.disable();
        let done = done?;
        let after = profile()?;
        self.check_no_miss(missed(&before))?;
        self.check_nothing_lost()?;
        let hits = |profile: &Profile, event| profile.get(event).map_or(0, |&(hits, _)| hits);
        let count = |&event: &&'static str| (event, hits(&after, event) - hits(&before, event));
        Ok((done, self.events.iter().map(count).collect()))
    }

    /// The file of the recording, for messages.
    pub fn file(&self) -> PathBuf {
        self.instance.join("trace")
    }

    fn enable(&self) -> Result<()> {
        self.switches().try_for_each(|switch| self.set(&switch, "1"))
    }

    fn disable(&self) {
        for switch in self.switches() {
            // An event that stays enabled costs time but does no harm: tracing itself is off.
            let _ = self.set(&switch, "0");
        }
    }

    fn switches(&self) -> impl Iterator<Item = String> {
        let own = self.events.iter().map(|event| format!("events/{GROUP}/{event}/enable"));
        own.chain(self.others.iter().map(|event| format!("events/{event}/enable")))
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.instance.join(file);
        fs::write(&path, value).with_context(|| format!("write '{value}' to {}", path.display()))
    }

    /// Checks that no hit was missed: a probe that is hit while the same CPU handles another hit does not
    /// run.
    fn check_no_miss(&self, missed_before: u64) -> Result<()> {
        let missed = missed(&profile()?) - missed_before;
        ensure!(missed == 0, Lost(format!("{missed} probe hits were missed (kprobe_profile)")));
        Ok(())
    }

    /// Checks that the buffers lost no event, which would look like one that did not happen.
    fn check_nothing_lost(&self) -> Result<()> {
        let per_cpu = self.instance.join("per_cpu");
        for cpu in fs::read_dir(&per_cpu).with_context(|| per_cpu.display().to_string())? {
            let path = cpu?.path().join("stats");
            let stats = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let lost = lost(&stats).with_context(|| format!("{}: parse", path.display()))?;
            ensure!(lost == 0, Lost(format!("{}: {lost} events lost, buffer too small", path.display())));
        }
        Ok(())
    }

    /// Removes the instance and the probes that exist.
    fn remove(&self) {
        let _ = fs::remove_dir(&self.instance);
        for event in &self.events {
            let _ = append(&Path::new(TRACEFS).join("kprobe_events"), &format!("-:{GROUP}/{event}"));
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.disable();
        self.remove();
    }
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    // In a single write, which the kernel takes for a whole command.
    File::options().append(true).open(path)?.write_all(format!("{line}\n").as_bytes())
}

/// How often each probe was hit, and how often a hit was missed.
type Profile = HashMap<String, (u64, u64)>;

fn profile() -> Result<Profile> {
    let path = Path::new(TRACEFS).join("kprobe_profile");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    parse_profile(&text).with_context(|| format!("{}: cannot parse", path.display()))
}

fn parse_profile(text: &str) -> Option<Profile> {
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), (words.next()?.parse().ok()?, words.next()?.parse().ok()?)))
    };
    text.lines().map(entry).collect()
}

fn missed(profile: &Profile) -> u64 {
    profile.values().map(|&(_, missed)| missed).sum()
}

/// Returns how many events a CPU's ring buffer dropped.
fn lost(stats: &str) -> Option<u64> {
    let mut lost = 0;
    let mut found = false;
    for line in stats.lines() {
        let (key, value) = line.split_once(": ")?;
        if matches!(key, "overrun" | "commit overrun" | "dropped events") {
            lost += value.trim().parse::<u64>().ok()?;
            found = true;
        }
    }
    found.then_some(lost)
}

/// One line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    pub cpu: u32,
    /// The command name and the ID of the thread.
    pub task: &'a str,
    pub tid: i32,
    /// In the unit of the clock, see [`Clock`].
    pub at: u64,
    /// The event's name.
    pub name: &'a str,
    /// The text after the event's name.
    pub fields: &'a str,
}

/// Returns the events of a trace with their line numbers, from 1.
///
/// # Errors
/// For each line that is neither a comment nor an event, for example one that reports a loss.
pub fn events(trace: &str) -> impl Iterator<Item = Result<(usize, Event<'_>)>> {
    trace.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(i, line)| {
        let event = event(line).with_context(|| format!("line {}: '{line}'", i + 1))?;
        Ok((i + 1, event))
    })
}

/// Parses `comm-tid [cpu] flags time: name: fields`. The comm may contain anything.
fn event(line: &str) -> Option<Event<'_>> {
    let (task, rest) = line.split_once(" [")?;
    let (cpu, rest) = rest.split_once("] ")?;
    let (_flags, rest) = rest.split_once(' ')?;
    let (time, rest) = rest.trim_start().split_once(": ")?;
    let (name, fields) = rest.split_once(": ")?;
    let (task, tid) = task.trim().rsplit_once('-')?;
    Some(Event { cpu: cpu.parse().ok()?, task, tid: tid.parse().ok()?, at: self::time(time)?, name, fields })
}

/// Parses `seconds.microseconds`, into microseconds, or ticks.
fn time(text: &str) -> Option<u64> {
    let Some((seconds, micros)) = text.split_once('.') else { return text.parse().ok() };
    let whole = seconds.parse::<u64>().ok()? * 1_000_000;
    (micros.len() == 6).then(|| Some(whole + micros.parse::<u64>().ok()?))?
}

/// Returns the value of `key=0x...` among a probe's fields.
pub fn field(fields: &str, key: &str) -> Option<u64> {
    u64::from_str_radix(text_field(fields, key)?.strip_prefix("0x")?, 16).ok()
}

/// Returns the text of `key=...` among a probe's fields.
pub fn text_field<'a>(fields: &'a str, key: &str) -> Option<&'a str> {
    fields.split(' ').find_map(|f| f.strip_prefix(key)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_clocks_are_read() {
        let micros = "             exe-40      [000] d....     4.557102: lock_enter: (f+0x0/0x280) lock=0xff68";
        let event = |line| events(line).next().unwrap().unwrap().1;
        let read = event(micros);
        assert_eq!((read.cpu, read.tid, read.at, read.name), (0, 40, 4_557_102, "lock_enter"));
        assert_eq!(field(read.fields, "lock"), Some(0xff68));
        let ticks = " a b-[1]-7 [001] ..... 123456789012: leave: (f <- g) one=try_to_migrate_one+0x0/0x10";
        let read = event(ticks);
        assert_eq!((read.cpu, read.task, read.tid, read.at), (1, "a b-[1]", 7, 123_456_789_012));
        assert_eq!(text_field(read.fields, "one"), Some("try_to_migrate_one+0x0/0x10"));
        assert_eq!(field(read.fields, "one"), None);
        for bad in ["CPU:0 [LOST 12 EVENTS]", &micros.replace("4.557102", "4.557")] {
            let error = events(bad).next().unwrap().unwrap_err().to_string();
            assert!(error.starts_with("line 1: '"), "{error}");
        }
        assert_eq!(events("# tracer: nop\n\n").count(), 0);
    }

    #[test]
    fn losses_are_found() {
        let text = "  lock_leave      1597      0\n  lock_enter      1598      2\n";
        let profile = parse_profile(text).unwrap();
        assert_eq!((profile["lock_enter"], missed(&profile)), ((1598, 2), 2));
        assert_eq!(parse_profile("").map(|p| missed(&p)), Some(0));
        assert_eq!(parse_profile("nonsense"), None);
        let stats = "entries: 10\noverrun: 3\ncommit overrun: 0\nbytes: 9\noldest event ts:  1.2\n\
                     now ts:  1.3\ndropped events: 4\nread events: 0\n";
        assert_eq!(lost(stats), Some(7));
        assert_eq!(lost("entries: 10\n"), None);
    }
}
