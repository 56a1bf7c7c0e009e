// SPDX-License-Identifier: GPL-2.0-only
//! `memreap history`: prints what the daemon has killed.

mod lines;
mod time;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;
use linux::escape;
use serde::Serialize;
use serde_json::{Value, json};

use super::args::HistoryArgs;
use crate::config::Config;
use crate::daemon::report::history::{self, Entry, printable};
use crate::exit::Exit;
use crate::say;
use crate::{units, users};
use lines::Kill;

pub use time::Since;

/// The version of the JSON. Fields may be added without a new one.
const VERSION: u32 = 1;
/// Kills are at most a minute apart while a shortage goes on.
const SHORTAGE_MS: u64 = 90_000;

/// Runs the command.
///
/// # Errors
/// When the output cannot be written. A file that cannot be read is told, with the exit code for that.
pub fn run(args: &HistoryArgs) -> Result<Exit> {
    let config = match Config::load(args.config.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            say(format_args!("memreap: {error}"));
            return Ok(Exit::Usage);
        }
    };
    let Some(path) = &config.record.history else {
        say("memreap: the configuration keeps no history (record.history = false)");
        return Ok(Exit::Usage);
    };
    let (mut all, mut errors) = (Vec::new(), Vec::new());
    for file in [history::rotated(path), path.clone()] {
        if let Err(error) = lines::read(&file, &mut all, &mut errors) {
            let denied = error.kind() == io::ErrorKind::PermissionDenied;
            let remedy = if denied { ": run as root" } else { "" };
            say(format_args!("memreap: {} cannot be read: {error}{remedy}", escape(&file)));
            return Ok(if denied { Exit::NotPermitted } else { Exit::Internal });
        }
    }
    // The clock may have been set; a kill that was decided first may have been written later.
    all.sort_by_key(|kill| kill.entry.unix_ms);
    let shown: Vec<Shown> =
        (0..all.len()).filter(|i| wanted(args, &all[*i].entry)).map(|i| Shown::new(&all, i)).collect();
    let mut out = io::stdout().lock();
    for bad in &errors {
        say(format_args!("memreap: {bad}"));
    }
    if args.json {
        let kills = shown.iter().map(Shown::json).collect::<Result<Vec<_>, _>>()?;
        let report = json!({ "version": VERSION, "command": "history", "kills": kills, "errors": errors });
        writeln!(out, "{report}")?;
    } else {
        shown.iter().try_for_each(|kill| kill.write(&mut out))?;
        write_summary(&mut out, &shown)?;
    }
    Ok(Exit::Done)
}

fn wanted(args: &HistoryArgs, entry: &Entry) -> bool {
    args.since.is_none_or(|since| entry.unix_ms >= since.0)
        // A name without its ending is a service's, as for `kill --unit`. The file has it escaped.
        && args.unit.as_ref().is_none_or(|unit| {
            let unit = escape(unit).to_string();
            entry.unit == unit || entry.unit.strip_suffix(".service") == Some(&unit)
        })
        && args.reason.as_ref().is_none_or(|reason| entry.reason == *reason)
}

fn is_dry_run(entry: &Entry) -> bool {
    entry.ending == "dry-run"
}

/// A kill that is shown.
struct Shown<'a> {
    kill: &'a Kill,
    /// The kills before it in the same shortage, latest first.
    tried: Vec<Tried<'a>>,
}

#[derive(Serialize)]
struct Tried<'a> {
    unix_ms: u64,
    pid: i32,
    comm: &'a str,
    ending: &'a str,
}

impl<'a> Shown<'a> {
    fn new(all: &'a [Kill], index: usize) -> Self {
        let kill = &all[index];
        let earlier = all[..index].iter().rev().map(|kill| &kill.entry);
        let tried = earlier
            .take_while(|entry| kill.entry.unix_ms - entry.unix_ms <= SHORTAGE_MS)
            .filter(|entry| !is_dry_run(entry))
            .map(|e| Tried { unix_ms: e.unix_ms, pid: e.pid, comm: &e.comm, ending: &e.ending })
            .collect();
        Self { kill, tried }
    }

    /// What the daemon has written, also fields that are not known here.
    fn json(&self) -> serde_json::Result<Value> {
        let mut fields = self.kill.fields.clone();
        fields.insert("tried".to_owned(), serde_json::to_value(&self.tried)?);
        Ok(Value::Object(fields))
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let entry = &self.kill.entry;
        let unit = if entry.unit.is_empty() { "-" } else { &entry.unit };
        let (at, reason) = (time::local(entry.unix_ms), printable(&entry.reason));
        writeln!(out, "{at}  {reason:<8}  {}  {}", unit_name(unit), victim(entry))?;
        let mut known = Vec::new();
        if !entry.because.is_empty() {
            known.push(printable(&entry.because));
        }
        if !entry.rule.is_empty() {
            known.push(format!("rule \"{}\"", printable(&entry.rule)));
        }
        if let Some(parent) = entry.parent {
            known.push(format!("parent {parent} ({})", printable(&entry.parent_comm)));
        }
        if !entry.command_line.is_empty() {
            known.push(format!("command line \"{}\"", printable(&entry.command_line)));
        }
        if !known.is_empty() {
            writeln!(out, "    {}", known.join("; "))?;
        }
        let tried = self.tried();
        if tried.is_empty() { Ok(()) } else { writeln!(out, "    tried before: {}", tried.join("; ")) }
    }

    fn tried(&self) -> Vec<String> {
        let entry = &self.kill.entry;
        let mut tried: Vec<_> = self
            .tried
            .iter()
            .map(|earlier| {
                let before = Duration::from_millis(entry.unix_ms - earlier.unix_ms);
                let (comm, ending) = (printable(earlier.comm), printable(earlier.ending));
                format!("{} ({comm}) {} earlier: {ending}", earlier.pid, units::time(before))
            })
            .collect();
        // Text for what the command before a kill has done.
        if let Some(Value::String(text)) = self.kill.fields.get("before")
            && !text.is_empty()
        {
            tried.push(format!("the command before it: {}", printable(text)));
        }
        tried
    }
}

/// The name of a unit as systemd's commands take it: it has backslashes of its own, each of which is escaped.
fn unit_name(escaped: &str) -> String {
    printable(escaped).replace(r"\\", r"\")
}

/// Who it was, and what came of it.
fn victim(entry: &Entry) -> String {
    let processes = if entry.processes > 1 { format!(", {} processes", entry.processes) } else { String::new() };
    let who = format!("{} ({}), user {}{processes}", entry.pid, printable(&entry.comm), users::name(entry.uid));
    let about = if entry.exact { "" } else { "about " };
    let (size, took) = (units::bytes(entry.bytes), units::time(Duration::from_micros(entry.took_us)));
    match entry.ending.as_str() {
        "back" => {
            let (back, method) = (units::bytes(entry.back()), printable(&entry.method));
            format!("killed {who}: {about}{back} back in {took} by {method}")
        }
        "late" => format!("killed {who}: {about}{size} not back after {took}"),
        "exited" => format!("asked {who}, to end, and it did: it held {about}{size}"),
        "gone" => format!("{who}, was gone before the signal"),
        "dry-run" => format!("would kill {who}: {about}{size} would come back"),
        "refused" => format!("could not kill {who}: {about}{size}"),
        other => format!("{who}: {}", printable(other)),
    }
}

/// How many there were, by reason and by unit.
fn write_summary(out: &mut impl Write, shown: &[Shown<'_>]) -> io::Result<()> {
    /// More units than this are not listed.
    const MAX_UNITS: usize = 8;
    let (dry, shown): (Vec<_>, Vec<_>) = shown.iter().partition(|kill| is_dry_run(&kill.kill.entry));
    let dry = match dry.len() {
        0 => String::new(),
        dry => format!("; {dry} in dry runs"),
    };
    if shown.is_empty() {
        return writeln!(out, "no kills{dry}");
    }
    let counts = |field: fn(&Entry) -> &str, limit: usize| {
        let mut counts = BTreeMap::<&str, usize>::new();
        for kill in &shown {
            *counts.entry(field(&kill.kill.entry)).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let name = |name: &str| if name.is_empty() { "none".to_owned() } else { unit_name(name) };
        let mut text: Vec<_> = counts.iter().take(limit).map(|(key, n)| format!("{} {n}", name(key))).collect();
        if counts.len() > limit {
            text.push(format!("{} others", counts.len() - limit));
        }
        text.join(", ")
    };
    let plural = if shown.len() == 1 { "kill" } else { "kills" };
    let (reasons, units) = (counts(|entry| &entry.reason, MAX_UNITS), counts(|entry| &entry.unit, MAX_UNITS));
    writeln!(out, "{} {plural}; by reason: {reasons}; by unit: {units}{dry}", shown.len())
}
