// SPDX-License-Identifier: GPL-2.0-only
//! The history of kills, in a file: one JSON object per line.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize, Serializer};

use super::record::{self, KillRecord};
use super::text::Text;
use super::workload::Workload;

/// From this size on a file is rotated.
const ROTATE_AT_BYTES: u64 = 1 << 20;
/// The most that is read of a file.
const MAX_READ_BYTES: u64 = 2 * ROTATE_AT_BYTES;
/// The longest line: all texts of a kill, each byte of them escaped twice, and the numbers.
const MAX_LINE_BYTES: usize = 12 << 10;

/// The file that is written.
#[derive(Debug)]
pub struct History {
    dir: File,
    name: PathBuf,
    rotated: PathBuf,
    file: File,
}

impl History {
    /// Opens the file at `path`, or makes it, but not its folder: the path may be mistyped.
    ///
    /// # Errors
    /// When that is not possible, or it is not a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::other("not the path of a file"));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let dir = File::open(parent).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                io::Error::other(format!("there is no folder {}: make it", linux::escape(parent)))
            }
            _ => e,
        })?;
        let mut rotated = name.to_owned();
        rotated.push(".1");
        let file = open(&dir, Path::new(name))?;
        Ok(Self { dir, name: name.into(), rotated: rotated.into(), file })
    }

    /// Opens a history that keeps nothing.
    ///
    /// # Errors
    /// When there is no /dev/null.
    pub fn null() -> io::Result<Self> {
        let (dir, file) = (File::open("/dev")?, File::options().write(true).open("/dev/null")?);
        Ok(Self { dir, name: "null".into(), rotated: "null".into(), file })
    }

    /// Adds a kill. Does not wait until it is on the disk, but perhaps for those who use that.
    ///
    /// # Errors
    /// When it could not be written, or a large file could not be renamed.
    pub fn append(&mut self, kill: &KillRecord) -> io::Result<()> {
        self.prepare()?;
        let mut line = Buffer(Text::new());
        serde_json::to_writer(&mut line, &Entry::new(kill, &kill.workload()))?;
        line.write_all(b"\n")?;
        // A single write(2), so that two daemons cannot mix their lines.
        let bytes = line.0.as_bytes();
        match (&self.file).write(bytes)? {
            all if all == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    /// Opens the file anew when it was removed or renamed, as by another daemon that writes to it. Renames it when it
    /// has grown large, in place of the one that was renamed before, so that there are never more than two; ends a line
    /// that was cut off.
    fn prepare(&mut self) -> io::Result<()> {
        let named = rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        let ours = rustix::fs::fstat(&self.file)?;
        if !named.is_ok_and(|named| (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)) {
            self.file = open(&self.dir, &self.name)?;
        }
        let len = self.file.metadata()?.len();
        if len >= ROTATE_AT_BYTES {
            rustix::fs::renameat(&self.dir, &self.name, &self.dir, &self.rotated)?;
            self.file = open(&self.dir, &self.name)?;
            return Ok(());
        }
        let mut last = [b'\n'];
        if len > 0 {
            self.file.read_exact_at(&mut last, len - 1)?;
        }
        if last != [b'\n'] {
            (&self.file).write_all(b"\n")?;
        }
        Ok(())
    }
}

fn open(dir: &File, name: &Path) -> io::Result<File> {
    // Another user may have put anything there: does not follow a link, and does not wait for the reader of a
    // pipe.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o640))?);
    length(&file)?;
    Ok(file)
}

/// Returns the length of a regular file; another kind of file is an error.
fn length(file: &File) -> io::Result<u64> {
    let meta = file.metadata()?;
    if meta.is_file() { Ok(meta.len()) } else { Err(io::Error::other("not a regular file")) }
}

/// A kill as a line of the file. `E` is text in which what is not printable is escaped, `T` other text: both are owned
/// when they are read, and borrowed when they are written, as nothing may be allocated then.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Entry<E = String, T = String> {
    /// When it was decided, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The victim's ID.
    pub pid: i32,
    /// Its name.
    pub comm: E,
    /// Its user.
    pub uid: u32,
    /// Its cgroup; empty without one.
    pub cgroup: E,
    /// Its unit; empty without one.
    #[serde(default)]
    pub unit: E,
    /// The UID of its pod; empty without one.
    #[serde(default)]
    pub pod: E,
    /// The ID of its container; empty without one.
    #[serde(default)]
    pub container: E,
    /// The ID of its parent, if that is known.
    #[serde(default)]
    pub parent: Option<i32>,
    /// The name of its parent; empty if it is not known.
    #[serde(default)]
    pub parent_comm: E,
    /// The beginning of its command line; empty if it is not known.
    #[serde(default)]
    pub command_line: E,
    /// How many processes were killed.
    pub processes: u32,
    /// What was expected to come back, in bytes.
    pub bytes: u64,
    /// By how much what is free has grown meanwhile, memory and swap, in bytes, if that is known.
    #[serde(default)]
    pub freed: Option<u64>,
    /// `bytes` is exact.
    pub exact: bool,
    /// Why, in one word.
    pub reason: T,
    /// Why, for people.
    pub because: T,
    /// The rule that weighed the victim; empty for none.
    pub rule: T,
    /// What came of the command before the kill; empty without one.
    #[serde(default)]
    pub before: T,
    /// How the memory came back.
    pub method: T,
    /// How it ended: "back", "gone", "late", "dry-run", "refused" or "averted".
    pub ending: T,
    /// Bytes available before and after.
    pub available: [u64; 2],
    /// From the signal until the memory was back, in microseconds.
    pub took_us: u64,
    /// How long the choice took, in microseconds.
    pub choice_us: u64,
}

impl Entry {
    /// How much came back, in bytes: what was expected, or what was seen if that is less.
    pub fn back(&self) -> u64 {
        record::back(self.bytes, self.freed)
    }
}

/// The last `last_n` kills in the file at `path` and the one that was rotated, oldest first. A line that
/// is none, such as one that was cut off by a power failure, is passed over. None when there is no file.
///
/// # Errors
/// When a file cannot be read.
pub fn read(path: &Path, last_n: usize) -> io::Result<Vec<Entry>> {
    let mut newest_first = Vec::new();
    read_one(path, last_n, &mut newest_first)?;
    read_one(&rotated(path), last_n, &mut newest_first)?;
    newest_first.reverse();
    Ok(newest_first)
}

/// Returns all of the file at `path`; `None` when there is none.
///
/// # Errors
/// When it cannot be read, or has more than `limit` bytes.
pub fn read_whole(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    match open_if_there(path)? {
        None => Ok(None),
        Some((_, len)) if len > limit => Err(io::ErrorKind::FileTooLarge.into()),
        Some((file, len)) => read_end(file, len, limit).map(Some),
    }
}

/// Opens a regular file for reading, and returns its length, too; `None` when there is none.
fn open_if_there(path: &Path) -> io::Result<Option<(File, u64)>> {
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    match File::options().read(true).custom_flags(nonblock).open(path) {
        Ok(file) => {
            let len = length(&file)?;
            Ok(Some((file, len)))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Reads at most so many bytes at the end of a file.
fn read_end(mut file: File, len: u64, limit: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(len.saturating_sub(limit)))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The path of the file that was rotated last.
pub fn rotated(path: &Path) -> PathBuf {
    let mut rotated = path.as_os_str().to_owned();
    rotated.push(".1");
    rotated.into()
}

/// Adds the last kills in a file, latest first, until there are `last_n`.
fn read_one(path: &Path, last_n: usize, entries: &mut Vec<Entry>) -> io::Result<()> {
    if entries.len() >= last_n {
        return Ok(());
    }
    let Some((file, len)) = open_if_there(path)? else { return Ok(()) };
    let bytes = read_end(file, len, MAX_READ_BYTES)?;
    let lines = bytes.rsplit(|b| *b == b'\n');
    let wanted = last_n - entries.len();
    entries.extend(lines.filter_map(|line| serde_json::from_slice(line).ok()).take(wanted));
    Ok(())
}

impl<'a> Entry<Escaped<'a>, &'a str> {
    fn new(kill: &'a KillRecord, workload: &'a Workload<'a>) -> Self {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self {
            unix_ms: kill.unix_ms,
            pid: kill.pid.get(),
            comm: Escaped(kill.comm.as_bytes()),
            uid: kill.uid,
            cgroup: Escaped(&kill.cgroup),
            unit: Escaped(workload.unit),
            pod: Escaped(workload.pod.as_bytes()),
            container: Escaped(workload.container),
            parent: kill.parent.map(|parent| parent.pid.get()),
            parent_comm: Escaped(kill.parent.as_ref().map_or(b"", |parent| parent.comm.as_bytes())),
            command_line: Escaped(&kill.command_line),
            processes: kill.processes,
            bytes: kill.expected,
            freed: kill.freed,
            exact: kill.exact,
            reason: kill.reason.name(),
            because: &kill.because,
            rule: &kill.rule,
            before: kill.before.name(),
            method: kill.method.name(),
            ending: kill.ending.name(),
            available: kill.available,
            took_us: micros(kill.took),
            choice_us: micros(kill.choice_took),
        }
    }
}

/// Bytes that are written as text, with what is not printable escaped.
struct Escaped<'a>(&'a [u8]);

impl Serialize for Escaped<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&linux::escape(self.0) as &dyn fmt::Display)
    }
}

/// A fixed buffer to write into.
struct Buffer(Text<MAX_LINE_BYTES>);

impl io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(bytes);
        if self.0.is_cut() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Escapes text that should be escaped already: the file may have been written by another program.
pub fn printable(text: &str) -> String {
    linux::escape(text).to_string().replace(r"\\", r"\")
}

#[cfg(test)]
mod tests;
