// SPDX-License-Identifier: GPL-2.0-only
//! Parses the text of a configuration.

use std::fs;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::section::{
    Problems, Section, boolean, duration, integer, level, list, number, one_or_more, percent, string, unless_false,
};
use super::settings::{Act, BUILT_IN, BUILT_IN_NAME, Config, ConfigError, Kill, Record, Warn, WholeCgroup};
use crate::daemon::report::warn::MAX_COMMAND_BYTES;
use crate::kill::{FirstSignal, SignalFirst};
use crate::policy::{Effect, Pattern, Policy, Rule};
use crate::units::parse_size;
use crate::users;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// The factors of `protect = true` and `prefer = true`.
const DEFAULT_PROTECT: f64 = 0.1;
const DEFAULT_PREFER: f64 = 10.0;
/// (uid_t) -1, which the kernel gives to no process.
const NOBODY: u32 = u32::MAX;
/// The largest factor, and the inverse of the smallest: beyond them a weight would be a veto.
const MAX_FACTOR: f64 = 1e6;

pub(super) fn config(file: &str, text: &str) -> Result<Config, ConfigError> {
    let mut problems = Problems::new(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = error.span().map_or(text.len(), |span| span.start);
        problems.add(at, format!("this is no TOML: {}", error.message()));
    }
    // What could be read of something else need not be what was meant.
    if !problems.is_empty() {
        return Err(ConfigError(problems.into_lines(file)));
    }

    let mut top = Section::top(table.get_ref(), &mut problems);
    let act = act(top.section("act"));
    let (kill, first) = kill(top.section("kill"));
    let warn = warn(top.section("warn"));
    let record = record(top.section("record"));
    let defaults = defaults(top.section("policy"));
    let mut rules = Vec::new();
    top.sections("rule", |mut section| {
        if rules.len() == Policy::MAX_RULES {
            section.reject_all(&format!("more than {} rules; a rule can have lists", Policy::MAX_RULES));
        } else {
            rules.extend(rule(section, first));
        }
    });
    top.finish();
    if !problems.is_empty() {
        return Err(ConfigError(problems.into_lines(file)));
    }
    if defaults {
        rules.extend(built_in_rules(first)?);
    }
    Ok(Config { path: None, act, kill, policy: Policy::new(rules), warn, record, unmet: problems.unmet(file) })
}

fn act(mut section: Section<'_, '_>) -> Act {
    let mut act = Act::default();
    section.set("low", &mut act.low, level);
    section.set("critical", &mut act.critical, level);
    section.set("stall", &mut act.stall, |v| percent(v, 1.0..100.0));
    section.set("cgroups", &mut act.cgroups, boolean);
    section.set("polite", &mut act.polite, |v| unless_false(v, level));
    section.set("polite_interval", &mut act.polite_interval, |v| duration(v, SECOND..10 * MINUTE));
    if !section.has("low") {
        act.low.most = act.low.most.max(act.critical.most);
    }
    // On a machine of any size.
    if act.critical.share >= act.low.share || act.critical.most > act.low.most {
        let (key, text) = if section.has("critical") {
            ("critical", format!("{} is not less than act.low, {}", act.critical, act.low))
        } else {
            ("low", format!("{} is not more than act.critical, {}", act.low, act.critical))
        };
        section.reject(key, &format!("{text}; below `low` memory is short, below `critical` it is gone"));
    }
    if let Some(polite) =
        act.polite.filter(|polite| polite.share <= act.critical.share || polite.most < act.critical.most)
    {
        let text = format!("{polite} is not more than act.critical, {}; below that there is no time", act.critical);
        section.reject("polite", &text);
    }
    section.finish();
    act
}

fn kill(mut section: Section<'_, '_>) -> (Kill, First) {
    let (first, signal_first) = signal_first(&mut section, (None, 2 * SECOND));
    let polite = SignalFirst { signal: first.0.unwrap_or(FirstSignal::TERM), grace: first.1 };
    let mut kill = Kill { signal_first, polite, ..Kill::default() };
    section.set("deadline", &mut kill.deadline, |v| duration(v, 100 * MS..10 * MINUTE));
    section.set("by_cgroup", &mut kill.by_cgroup, boolean);
    section.set("whole_cgroup", &mut kill.whole_cgroup, |v| match string(v)? {
        "auto" => Ok(WholeCgroup::Auto),
        "oom-group" => Ok(WholeCgroup::OomGroup),
        "always" => Ok(WholeCgroup::Always),
        "never" => Ok(WholeCgroup::Never),
        other => Err(format!("\"{other}\" is none of \"auto\", \"oom-group\", \"always\", \"never\"")),
    });
    section.set("before", &mut kill.before, command);
    section.set("before_limit", &mut kill.before_limit, |v| duration(v, 10 * MS..SECOND));
    section.set("before_when_critical", &mut kill.before_when_critical, boolean);
    section.finish();
    (kill, first)
}

/// `signal_first` and `grace`: one can be there without the other.
type First = (Option<FirstSignal>, Duration);

/// What the section says about the first signal; the rest as in `first`.
fn signal_first(section: &mut Section<'_, '_>, (mut signal, mut grace): First) -> (First, Option<SignalFirst>) {
    section.set("signal_first", &mut signal, |v| unless_false(v, |v| string(v)?.parse()));
    section.set("grace", &mut grace, |v| duration(v, 10 * MS..MINUTE));
    ((signal, grace), signal.map(|signal| SignalFirst { signal, grace }))
}

fn warn(mut section: Section<'_, '_>) -> Warn {
    let mut warn = Warn::default();
    section.set("desktop", &mut warn.desktop, boolean);
    section.set("command", &mut warn.command, command);
    section.set("time_limit", &mut warn.time_limit, |v| duration(v, 100 * MS..MINUTE));
    section.finish();
    warn
}

/// A program with its arguments; none when the list is empty.
fn command(value: &DeValue<'_>) -> Result<Option<Vec<String>>, String> {
    let command = list(value, |v| string(v).map(str::to_owned))?;
    match command.first() {
        None => Ok(None),
        // It is run without a shell, and with whatever PATH the daemon has.
        Some(program) if Path::new(program).is_absolute() => match command.iter().map(|word| word.len() + 1).sum() {
            0..=MAX_COMMAND_BYTES => Ok(Some(command)),
            bytes => Err(format!("has {bytes} bytes, of {MAX_COMMAND_BYTES} at most; write a script")),
        },
        Some(program) => Err(format!("\"{program}\" is no absolute path; write it in full")),
    }
}

fn record(mut section: Section<'_, '_>) -> Record {
    let mut record = Record::default();
    section.set("history", &mut record.history, |v| {
        unless_false(v, |v| match PathBuf::from(string(v)?) {
            path if path.is_absolute() => Ok(path),
            path => Err(format!("\"{}\" is no absolute path; write it in full", path.display())),
        })
    });
    section.set("metrics", &mut record.metrics, |v| {
        unless_false(v, |v| {
            let text = string(v)?;
            if text.parse::<SocketAddr>().is_ok() || Path::new(text).is_absolute() {
                Ok(text.to_owned())
            } else {
                Err(format!(
                    "\"{text}\" is neither the absolute path of a Unix socket nor an address with a \
                     port, such as \"127.0.0.1:9105\""
                ))
            }
        })
    });
    section.finish();
    record
}

fn defaults(mut section: Section<'_, '_>) -> bool {
    let mut defaults = true;
    section.set("defaults", &mut defaults, boolean);
    section.finish();
    defaults
}

/// The rules of the built-in configuration.
fn built_in_rules(first: First) -> Result<Vec<Rule>, ConfigError> {
    let mut problems = Problems::new(BUILT_IN);
    let (table, _) = DeTable::parse_recoverable(BUILT_IN);
    let mut rules = Vec::new();
    Section::top(table.get_ref(), &mut problems).sections("rule", |section| rules.extend(rule(section, first)));
    if problems.is_empty() { Ok(rules) } else { Err(ConfigError(problems.into_lines(BUILT_IN_NAME))) }
}

fn rule(mut section: Section<'_, '_>, first: First) -> Option<Rule> {
    let label = section.get("label", |v| string(v).map(str::to_owned));
    let names = section.get("name", |v| one_or_more(v, |v| Pattern::name(string(v)?)));
    let command_lines = section.get("command_line", |v| one_or_more(v, |v| Pattern::command_line(string(v)?)));
    let mut unmet = Vec::new();
    let exes = section.get("exe", |v| one_or_more(v, |v| exe(v, &mut unmet)));
    unmet.drain(..).for_each(|text: String| section.unmet("exe", &text));
    let users = section.get("user", |v| one_or_more(v, |v| user(v, &mut unmet)));
    unmet.drain(..).for_each(|text| section.unmet("user", &text));
    let cgroups = section.get("cgroup", |v| one_or_more(v, |v| Pattern::cgroup(string(v)?)));
    let oom_score_adj = section.get("oom_score_adj", adj_range);
    let effect = effect(&mut section);
    let up_to = section.get("up_to", |v| parse_size(string(v)?));
    if up_to.is_some() && matches!(effect, Some(Effect::Never)) {
        section.reject("up_to", "is for a factor, and this rule says never");
    }
    for key in ["signal_first", "grace"] {
        if section.has(key) && matches!(effect, Some(Effect::Never)) {
            section.reject(key, "is for a victim, and this rule says never");
        }
    }
    let (_, signal_first) = signal_first(&mut section, first);
    let described = section.describe(&["name", "command_line", "exe", "user", "cgroup", "oom_score_adj"]);
    if described.is_empty() {
        section.reject_all("fits all processes; say which: name, command_line, exe, user, cgroup, oom_score_adj");
    }
    section.finish();
    let effect = effect?;
    Some(Rule {
        label: label.unwrap_or_else(|| match effect {
            Effect::Never => format!("never {described}"),
            Effect::Weight(factor) => format!("{factor} x {described}"),
        }),
        names: names.unwrap_or_default(),
        command_lines: command_lines.unwrap_or_default(),
        exes: exes.unwrap_or_default(),
        users: users.unwrap_or_default(),
        cgroups: cgroups.unwrap_or_default(),
        oom_score_adj,
        effect,
        up_to,
        signal_first,
    })
}

/// What a rule does: exactly one key says it.
fn effect(section: &mut Section<'_, '_>) -> Option<Effect> {
    const KEYS: [&str; 4] = ["never", "protect", "prefer", "weight"];
    let given = KEYS.iter().filter(|key| section.has(key)).count();
    let never = section.get("never", |v| match boolean(v)? {
        true => Ok(Effect::Never),
        false => Err("is false; to let no later rule decide, write weight = 1".to_owned()),
    });
    let protect = section.get("protect", |v| factor(v, DEFAULT_PROTECT, 1.0 / MAX_FACTOR..=1.0));
    let prefer = section.get("prefer", |v| factor(v, DEFAULT_PREFER, 1.0..=MAX_FACTOR));
    let weight = section.get("weight", |v| factor(v, 1.0, 1.0 / MAX_FACTOR..=MAX_FACTOR));
    if given != 1 {
        let text = if given == 0 { "says not what to do" } else { "says more than one thing to do" };
        section.reject_all(&format!("{text}; give one of {}", KEYS.join(", ")));
    }
    never.or(protect).or(prefer).or(weight)
}

fn factor(value: &DeValue<'_>, usual: f64, range: RangeInclusive<f64>) -> Result<Effect, String> {
    let factor = match value {
        DeValue::Boolean(true) => usual,
        DeValue::Boolean(false) => return Err("is false; leave it out".to_owned()),
        other => number(other)?,
    };
    if range.contains(&factor) {
        return Ok(Effect::Weight(factor));
    }
    Err(format!("{factor} is out of range; give {} to {}", range.start(), range.end()))
}

/// The path of an executable. The kernel tells it without links in it, so where there is one it is followed.
fn exe(value: &DeValue<'_>, unmet: &mut Vec<String>) -> Result<Pattern, String> {
    let text = string(value)?;
    // What is wrong with it whatever this system has.
    let pattern = Pattern::exe(text)?;
    // Up to the first component with a wildcard.
    let literal = text.find(['*', '?']).map_or(text, |wildcard| &text[..text[..wildcard].rfind('/').unwrap_or(0)]);
    let rest = &text[literal.len()..];
    match fs::canonicalize(literal) {
        Ok(path) if path.as_os_str() != literal => {
            let real = format!("{}{rest}", path.display());
            unmet.push(format!("\"{literal}\" is \"{}\" to the kernel; write \"{real}\"", path.display()));
            Pattern::exe(&real)
        }
        Ok(path) if rest.is_empty() && path.is_dir() => {
            unmet.push(format!("\"{text}\" is a folder; write \"{}/**\" for all in it", text.trim_end_matches('/')));
            Ok(pattern)
        }
        _ => Ok(pattern),
    }
}

/// The number of a user. One who is not there has no processes, and the rule fits none for his sake.
fn user(value: &DeValue<'_>, unmet: &mut Vec<String>) -> Result<u32, String> {
    if let DeValue::String(name) = value {
        return Ok(users::id(name).unwrap_or_else(|| {
            unmet.push(format!("there is no user \"{name}\" in /etc/passwd; give the number, or remove the rule"));
            NOBODY
        }));
    }
    let id = u32::try_from(integer(value)?).ok().filter(|id| *id != NOBODY);
    id.ok_or_else(|| "is no user's number; those have 32 bits".to_owned())
}

/// A number, or a comparison such as "<= -900".
fn adj_range(value: &DeValue<'_>) -> Result<RangeInclusive<i16>, String> {
    let (comparison, value) = match value {
        DeValue::String(text) => {
            let digits = text.find(|c: char| c == '-' || c.is_ascii_digit()).unwrap_or(text.len());
            let (comparison, number) = text.split_at(digits);
            (comparison.trim(), number.trim().parse().ok())
        }
        other => ("=", i16::try_from(integer(other)?).ok()),
    };
    let value = value.filter(|v| (-1000..=1000).contains(v));
    let range = match (comparison, value) {
        ("<=", Some(v)) => -1000..=v,
        ("<", Some(v)) => -1000..=v - 1,
        (">=", Some(v)) => v..=1000,
        (">", Some(v)) => v + 1..=1000,
        ("=" | "==", Some(v)) => v..=v,
        _ => {
            return Err("is no range; give a number from -1000 to 1000 or a comparison such as \"<= -900\"".into());
        }
    };
    if range.is_empty() { Err("fits nothing: it is between -1000 and 1000".into()) } else { Ok(range) }
}
