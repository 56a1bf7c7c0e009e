// SPDX-License-Identifier: GPL-2.0-only
//! Takes values out of TOML, and collects what is wrong with them.

use std::ops::Range;
use std::time::Duration;

use linux::escape;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::Level;
use crate::units::{parse_duration, parse_size, time};

/// How many problems are reported; a file that is not a configuration has one per line.
const MAX_PROBLEMS: usize = 50;

/// What is wrong with a text, and where.
pub(super) struct Problems<'t> {
    text: &'t str,
    found: Vec<(usize, String)>,
    /// What is right, and names what this system does not have: so it can become untrue without a change of the text.
    unmet: Vec<(usize, String)>,
}

impl<'t> Problems<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, found: Vec::new(), unmet: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Adds a problem with what begins at the byte `at`.
    pub(super) fn add(&mut self, at: usize, problem: String) {
        self.found.push((at, problem));
    }

    /// One line per problem, "FILE:LINE: PROBLEM", in the order of the file.
    pub(super) fn into_lines(self, file: &str) -> Vec<String> {
        lines(self.text, self.found, file)
    }

    /// As [`Problems::into_lines`], of what this system does not have.
    pub(super) fn unmet(self, file: &str) -> Vec<String> {
        lines(self.text, self.unmet, file)
    }
}

fn lines(text: &str, mut found: Vec<(usize, String)>, file: &str) -> Vec<String> {
    found.sort();
    let more = found.len().saturating_sub(MAX_PROBLEMS);
    let mut lines: Vec<_> = found
        .iter()
        .take(MAX_PROBLEMS)
        .map(|(at, problem)| {
            let before = text.as_bytes().get(..*at).unwrap_or_default();
            let line = 1 + before.iter().filter(|b| **b == b'\n').count();
            // Keys and values are quoted in it.
            format!("{file}:{line}: {}", escape(problem))
        })
        .collect();
    if more > 0 {
        lines.push(format!("{file}: and {more} more"));
    }
    lines
}

/// A table of the file, of which values are taken one by one.
pub(super) struct Section<'a, 't> {
    name: String,
    /// Where it begins, for what is missing in it.
    at: usize,
    table: Option<&'a DeTable<'t>>,
    known: Vec<&'static str>,
    problems: &'a mut Problems<'t>,
}

impl<'a, 't> Section<'a, 't> {
    /// All of the file.
    pub(super) fn top(table: &'a DeTable<'t>, problems: &'a mut Problems<'t>) -> Self {
        Self { name: String::new(), at: 0, table: Some(table), known: Vec::new(), problems }
    }

    /// The table under `key`; an empty one if there is none.
    pub(super) fn section(&mut self, key: &'static str) -> Section<'_, 't> {
        let found = self.find(key);
        let table = match found.map(|value| (value, value.get_ref())) {
            Some((_, DeValue::Table(table))) => Some(table),
            Some((value, other)) => {
                let text = format!("is {}; write [{key}] on a line of its own", kind(other));
                self.wrong(value.span().start, key, &text);
                None
            }
            None => None,
        };
        let at = found.map_or(self.at, |value| value.span().start);
        let name = self.path(key);
        Section { name, at, table, known: Vec::new(), problems: self.problems }
    }

    /// The tables of the array under `key`.
    pub(super) fn sections(&mut self, key: &'static str, mut each: impl FnMut(Section<'_, 't>)) {
        let Some(found) = self.find(key) else { return };
        let remedy = format!("write [[{key}]] on a line of its own");
        let DeValue::Array(array) = found.get_ref() else {
            self.wrong(found.span().start, key, &format!("is {}; {remedy}", kind(found.get_ref())));
            return;
        };
        for item in array {
            let at = item.span().start;
            match item.get_ref() {
                DeValue::Table(table) => each(Section {
                    name: self.path(key),
                    at,
                    table: Some(table),
                    known: Vec::new(),
                    problems: self.problems,
                }),
                other => self.wrong(at, key, &format!("has {}; {remedy}", kind(other))),
            }
        }
    }

    /// The value under `key` as `read` understands it; `None` when there is none, or it is wrong.
    pub(super) fn get<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'t>) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.find(key)?;
        match read(value.get_ref()) {
            Ok(value) => Some(value),
            Err(text) => {
                self.wrong(value.span().start, key, &text);
                None
            }
        }
    }

    /// As [`Section::get`], into `target`.
    pub(super) fn set<T>(
        &mut self,
        key: &'static str,
        target: &mut T,
        read: impl FnOnce(&DeValue<'t>) -> Result<T, String>,
    ) {
        if let Some(value) = self.get(key, read) {
            *target = value;
        }
    }

    /// Whether there is such a key, with whatever value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Describes those of `keys` that are set, with their values, as text: "user root, name x".
    pub(super) fn describe(&self, keys: &[&str]) -> String {
        let Some(table) = self.table else { return String::new() };
        let all: Vec<_> =
            keys.iter().filter_map(|key| Some(format!("{key} {}", shown(table.get(*key)?.get_ref())))).collect();
        all.join(", ")
    }

    /// Reports what is wrong with the value under `key`, or, when there is none, with all of the section.
    pub(super) fn reject(&mut self, key: &str, text: &str) {
        self.wrong(self.place(key), key, text);
    }

    /// Reports that this system does not have what the value under `key` names.
    pub(super) fn unmet(&mut self, key: &str, text: &str) {
        self.problems.unmet.push((self.place(key), format!("{}: {text}", self.path(key))));
    }

    /// Reports what is wrong with the section itself.
    pub(super) fn reject_all(&mut self, text: &str) {
        self.problems.add(self.at, format!("{}: {text}", self.name));
    }

    /// Reports the keys that were not asked for.
    pub(super) fn finish(self) {
        let Some(table) = self.table else { return };
        for (key, _) in table.iter().filter(|(key, _)| !self.known.contains(&key.get_ref().as_ref())) {
            let text = format!("there is no such key; there are {}", self.known.join(", "));
            let path = self.path(key.get_ref());
            self.problems.add(key.span().start, format!("{path}: {text}"));
        }
    }

    fn find(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'t>>> {
        self.known.push(key);
        self.table?.get(key)
    }

    fn wrong(&mut self, at: usize, key: &str, text: &str) {
        self.problems.add(at, format!("{}: {text}", self.path(key)));
    }

    /// Where the value under `key` begins, or, when there is none, the section.
    fn place(&self, key: &str) -> usize {
        self.table.and_then(|table| table.get(key)).map_or(self.at, |value| value.span().start)
    }

    fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }
}

fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(digits) => digits.to_string(),
        // One is enough to find the rule.
        DeValue::Array(items) => match (items.first(), items.len()) {
            (Some(first), 1) => shown(first.get_ref()),
            (Some(first), _) => shown(first.get_ref()) + "...",
            (None, _) => String::new(),
        },
        other => kind(other).to_owned(),
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// `true` or `false`.
pub(super) fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    match value {
        DeValue::Boolean(value) => Ok(*value),
        other => Err(format!("is {}; give true or false", kind(other))),
    }
}

/// A text in quotes.
pub(super) fn string<'v>(value: &'v DeValue<'_>) -> Result<&'v str, String> {
    match value {
        // No path, argument or name can have one, and it would be cut off there.
        DeValue::String(text) if text.contains('\0') => Err("has a NUL in it".to_owned()),
        DeValue::String(text) => Ok(text),
        other => Err(format!("is {}; give a text in quotes", kind(other))),
    }
}

/// What `false` stands for: nothing. Anything else as `read` understands it.
pub(super) fn unless_false<'t, T>(
    value: &DeValue<'t>,
    read: impl FnOnce(&DeValue<'t>) -> Result<T, String>,
) -> Result<Option<T>, String> {
    match value {
        DeValue::Boolean(false) => Ok(None),
        DeValue::Boolean(true) => Err("is true; give false or a value".to_owned()),
        other => read(other).map(Some),
    }
}

/// One value, or a list of them that is not empty.
pub(super) fn one_or_more<'t, T>(
    value: &DeValue<'t>,
    read: impl FnMut(&DeValue<'t>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    match value {
        DeValue::Array(_) => {
            let all = list(value, read)?;
            if all.is_empty() { Err("is empty; leave it out to fit all".to_owned()) } else { Ok(all) }
        }
        one => std::iter::once(one).map(read).collect(),
    }
}

/// A list.
pub(super) fn list<'t, T>(
    value: &DeValue<'t>,
    read: impl FnMut(&DeValue<'t>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    match value {
        DeValue::Array(items) => items.iter().map(Spanned::get_ref).map(read).collect(),
        other => Err(format!("is {}; give a list: [\"...\", \"...\"]", kind(other))),
    }
}

/// A whole number.
pub(super) fn integer(value: &DeValue<'_>) -> Result<i64, String> {
    match value {
        DeValue::Integer(digits) => {
            i64::from_str_radix(digits.as_str(), digits.radix()).map_err(|_| "has too many digits".to_owned())
        }
        other => Err(format!("is {}; give a whole number", kind(other))),
    }
}

/// A finite number.
pub(super) fn number(value: &DeValue<'_>) -> Result<f64, String> {
    let number = match value {
        DeValue::Integer(_) => integer(value)? as f64,
        DeValue::Float(text) => text.as_str().parse().unwrap_or(f64::NAN),
        other => return Err(format!("is {}; give a number", kind(other))),
    };
    if number.is_finite() { Ok(number) } else { Err("is no finite number".to_owned()) }
}

/// Percent, "10%" or 10, within `range`.
pub(super) fn percent(value: &DeValue<'_>, range: Range<f64>) -> Result<f64, String> {
    let given = match value {
        DeValue::String(text) => text.strip_suffix('%').map(str::trim_end).and_then(|n| n.parse().ok()),
        other => number(other).ok(),
    };
    let (least, most) = (range.start, range.end);
    match given {
        Some(given) if (least..=most).contains(&given) => Ok(given),
        Some(given) => Err(format!("{given} % is out of range; give {least} to {most} %")),
        None => Err(format!("is no share; give one such as \"10%\", {least} to {most}")),
    }
}

/// A share, "10%" or 10, or a share and a size, ["10%", "8 GiB"]: then the smaller one counts.
pub(super) fn level(value: &DeValue<'_>) -> Result<Level, String> {
    let share = |value| percent(value, 0.0..100.0);
    match value {
        DeValue::Array(items) => match items.iter().map(Spanned::get_ref).collect::<Vec<_>>()[..] {
            [first, second] => Ok(Level { share: share(first)?, most: parse_size(string(second)?)? }),
            _ => Err("is not one share and one size; give them as in [\"10%\", \"8 GiB\"]".to_owned()),
        },
        DeValue::String(text) if parse_size(text).is_ok() => {
            Err(format!("is a size alone; give a share, too: [\"10%\", \"{text}\"]"))
        }
        other => Ok(Level { share: share(other)?, most: u64::MAX }),
    }
}

/// A duration, "1s" or a number of seconds, within `range`.
pub(super) fn duration(value: &DeValue<'_>, range: Range<Duration>) -> Result<Duration, String> {
    let given = match value {
        DeValue::String(text) => parse_duration(text),
        DeValue::Integer(_) | DeValue::Float(_) => parse_duration(&number(value)?.to_string()),
        other => Err(format!("is {}; give a duration such as \"500ms\", \"2s\" or \"1m\"", kind(other))),
    }?;
    if (range.start..=range.end).contains(&given) {
        return Ok(given);
    }
    let (given, least, most) = (time(given), time(range.start), time(range.end));
    Err(format!("{given} is out of range; give {least} to {most}"))
}
