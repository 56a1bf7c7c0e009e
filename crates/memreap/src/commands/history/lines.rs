// SPDX-License-Identifier: GPL-2.0-only
//! The lines of a history, of which each counts on its own.

use std::fmt;
use std::io;
use std::path::Path;

use linux::escape;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::daemon::report::history::{self, Entry};

/// A larger file is not read. The daemon begins another one long before.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// The most of a bad line that is repeated, in bytes.
const MAX_EXCERPT_BYTES: usize = 60;
/// What each line begins with: the first field of [`Entry`].
const BEGINNING: &[u8] = b"{\"unix_ms\":";

/// A kill, and all fields of its line.
pub struct Kill {
    /// The fields that are known.
    pub entry: Entry,
    /// All of them.
    pub fields: Map<String, Value>,
}

/// A line that is no kill, or only its end is.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct BadLine {
    file: String,
    line: usize,
    message: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// Adds the kills of a file, and the lines that are none. Nothing if there is no file.
///
/// # Errors
/// When the file cannot be read.
pub fn read(path: &Path, kills: &mut Vec<Kill>, bad: &mut Vec<BadLine>) -> io::Result<()> {
    let Some(bytes) = history::read_whole(path, MAX_FILE_BYTES)? else { return Ok(()) };
    for (index, line) in bytes.split(|b| *b == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        let error = match parse(line) {
            Ok(kill) => {
                kills.push(kill);
                continue;
            }
            Err(error) => error,
        };
        // The next kill may follow what was cut off by a power failure.
        let whole =
            (1..line.len()).filter(|at| line[*at..].starts_with(BEGINNING)).find_map(|at| parse(&line[at..]).ok());
        let what = if whole.is_some() { "what precedes a kill is none" } else { "no kill" };
        let excerpt = &line[..line.len().min(MAX_EXCERPT_BYTES)];
        let more = if excerpt.len() < line.len() { "..." } else { "" };
        let message = format!("{what}: {error}: \"{}{more}\"", escape(excerpt));
        bad.push(BadLine { file: escape(path).to_string(), line: index + 1, message });
        kills.extend(whole);
    }
    Ok(())
}

fn parse(line: &[u8]) -> serde_json::Result<Kill> {
    let fields: Map<String, Value> = serde_json::from_slice(line)?;
    let entry = serde_json::from_value(Value::Object(fields.clone()))?;
    Ok(Kill { entry, fields })
}
