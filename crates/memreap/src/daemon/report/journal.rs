// SPDX-License-Identifier: GPL-2.0-only
//! The journal, or standard error: one line per event, and fields for programs where there is a journal.
//!
//! A process chooses its own name. A name with a line end must not look like another line or another
//! field, so lines have names escaped, and fields that are more than one printable line are sent in the
//! journal's binary form, with their length before them.

use std::env;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::stdio::stderr;

use super::record::KillRecord;
use super::text::Text;
use super::warning::Warning;
use crate::daemon::decide::reason::Ending;

/// The socket on which journald listens.
const JOURNALD_SOCKET: &str = "/run/systemd/journal/socket";
/// The longest line.
const MAX_LINE_BYTES: usize = 1024;
/// The longest entry: a line and all fields of a kill.
const MAX_ENTRY_BYTES: usize = 4096;

/// What an entry is about. Each kind has a MESSAGE_ID of its own, by which it is found:
/// `journalctl MESSAGE_ID=f4a5f7d8584640148ff8858503eb3a84` lists all kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// The daemon has started, or is about to end.
    Started,
    /// A victim was killed, or would have been.
    Killed,
    /// A victim will be killed if it goes on like this.
    Warned,
    /// The configuration was read again, with or without success.
    Reloaded,
    /// An error.
    Trouble,
}

impl EntryKind {
    fn id(self) -> &'static str {
        match self {
            Self::Started => "21e4adfa310a458fb535cd748dd02f1b",
            Self::Killed => "f4a5f7d8584640148ff8858503eb3a84",
            Self::Warned => "6b3213e9a2d6412aa1f833ed4a91d9ee",
            Self::Reloaded => "9f1ef61f6f6e472ea3c45e2e39c4fee8",
            Self::Trouble => "180710dc77fa45de91e3de9423d0b88e",
        }
    }
}

/// The priority of an entry, with the numbers of syslog(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A part of the daemon does not work.
    Error = 3,
    /// A process was killed, or something is unexpected.
    Warning = 4,
    /// Normal, but significant.
    Notice = 5,
    /// Normal.
    Info = 6,
}

/// Where entries go. No call waits: an entry that cannot be written at once is dropped and counted.
#[derive(Debug)]
pub struct Journal {
    output: Output,
    lost: u64,
}

#[derive(Debug)]
enum Output {
    /// Native protocol.
    Journald(UnixDatagram),
    /// Lines. With `prefix` each begins with its priority, as journald parses it (sd-daemon(3)).
    Lines { fd: OwnedFd, socket: bool, prefix: bool },
}

impl Journal {
    /// Opens the journal if standard error goes there, else standard error.
    ///
    /// # Errors
    /// When there is no standard error.
    pub fn open() -> io::Result<Self> {
        let is_journal = stderr_is_journal(env::var("JOURNAL_STREAM").ok().as_deref());
        if is_journal && let Ok(socket) = connect(Path::new(JOURNALD_SOCKET)) {
            return Ok(Self { output: Output::Journald(socket), lost: 0 });
        }
        Ok(Self { output: lines(is_journal)?, lost: 0 })
    }

    /// Opens a journal that nobody reads.
    ///
    /// # Errors
    /// When there is no /dev/null.
    pub fn null() -> io::Result<Self> {
        let fd = File::options().write(true).open("/dev/null")?.into();
        Ok(Self { output: Output::Lines { fd, socket: false, prefix: false }, lost: 0 })
    }

    /// Returns how many entries were dropped.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes an entry without fields of its own.
    pub fn log(&mut self, kind: EntryKind, priority: Priority, message: fmt::Arguments<'_>) {
        self.write(kind, priority, &Text::of(message), |_| {});
    }

    /// Writes an entry about a kill.
    pub fn killed(&mut self, kill: &KillRecord) {
        let priority = match kill.ending {
            Ending::Back | Ending::Gone | Ending::Exited => Priority::Warning,
            Ending::DryRun | Ending::Averted => Priority::Notice,
            Ending::Late | Ending::Refused(_) => Priority::Error,
        };
        self.write(EntryKind::Killed, priority, &Text::of(kill), |entry| {
            entry.field("MEMREAP_PID", kill.pid);
            entry.bytes("MEMREAP_COMM", kill.comm.as_bytes());
            entry.field("MEMREAP_UID", kill.uid);
            entry.bytes("MEMREAP_CGROUP", &kill.cgroup);
            for (name, value) in kill.texts(&kill.workload()).iter().filter(|(_, value)| !value.is_empty()) {
                entry.bytes(name, value);
            }
            if let Some(parent) = kill.parent {
                entry.field("MEMREAP_PARENT", parent.pid);
            }
            entry.field("MEMREAP_PROCESSES", kill.processes);
            entry.field("MEMREAP_BYTES", kill.expected);
            if let Some(freed) = kill.freed {
                entry.field("MEMREAP_FREED", freed);
            }
            entry.field("MEMREAP_EXACT", u8::from(kill.exact));
            entry.field("MEMREAP_REASON", kill.reason.name());
            entry.bytes("MEMREAP_BECAUSE", kill.because.as_bytes());
            entry.bytes("MEMREAP_RULE", kill.rule.as_bytes());
            entry.field("MEMREAP_BEFORE", kill.before.name());
            entry.field("MEMREAP_METHOD", kill.method.name());
            entry.field("MEMREAP_ENDING", kill.ending.name());
            entry.field("MEMREAP_AVAILABLE_BEFORE", kill.available[0]);
            entry.field("MEMREAP_AVAILABLE_AFTER", kill.available[1]);
            entry.field("MEMREAP_TOOK_US", kill.took.as_micros());
            entry.field("MEMREAP_CHOICE_US", kill.choice_took.as_micros());
        });
    }

    /// Writes an entry about a warning.
    pub fn warned(&mut self, warning: &Warning<'_>) {
        self.write(EntryKind::Warned, Priority::Notice, &Text::of(warning), |entry| {
            entry.field("MEMREAP_PID", warning.pid);
            entry.bytes("MEMREAP_COMM", warning.comm.as_bytes());
            entry.field("MEMREAP_UID", warning.uid);
            entry.bytes("MEMREAP_CGROUP", warning.cgroup);
            entry.field("MEMREAP_BYTES", warning.bytes);
            entry.bytes("MEMREAP_BECAUSE", warning.because.as_bytes());
        });
    }

    fn write(
        &mut self,
        kind: EntryKind,
        priority: Priority,
        line: &Text<MAX_LINE_BYTES>,
        fields: impl FnOnce(&mut Entry),
    ) {
        let sent = match &self.output {
            Output::Journald(socket) => {
                let mut entry = Entry(Text::new());
                // First, because what does not fit at the end is left out.
                entry.bytes("MESSAGE", line.as_bytes());
                entry.field("PRIORITY", priority as u8);
                entry.field("MESSAGE_ID", kind.id());
                entry.field("SYSLOG_IDENTIFIER", "memreap");
                fields(&mut entry);
                socket.send(entry.0.as_bytes()).is_ok()
            }
            Output::Lines { fd, socket, prefix } => {
                let mut text = Text::<{ MAX_LINE_BYTES + 16 }>::new();
                if *prefix {
                    text.show(format_args!("<{}>", priority as u8));
                }
                text.show("memreap: ");
                // A line end here would begin a line with a priority of its own.
                line.as_bytes().split(|b| *b == b'\n').enumerate().for_each(|(index, part)| {
                    text.push(if index > 0 { b" " } else { b"" });
                    text.push(part);
                });
                text.truncate(MAX_LINE_BYTES + 15);
                text.push(b"\n");
                write_nonblocking(fd, *socket, text.as_bytes())
            }
        };
        self.lost += u64::from(!sent);
    }
}

/// An entry in the journal's native format.
struct Entry(Text<MAX_ENTRY_BYTES>);

impl Entry {
    fn field(&mut self, name: &str, value: impl fmt::Display) {
        self.bytes(name, Text::<64>::of(value).as_bytes());
    }

    /// A field, or nothing if it does not fit: half a field would make the entry invalid.
    fn bytes(&mut self, name: &str, value: &[u8]) {
        let before = self.0.as_bytes().len();
        self.0.push(name.as_bytes());
        if value.iter().any(u8::is_ascii_control) {
            self.0.push(b"\n");
            self.0.push(&(value.len() as u64).to_le_bytes());
        } else {
            self.0.push(b"=");
        }
        self.0.push(value);
        self.0.push(b"\n");
        if self.0.is_cut() {
            self.0.truncate(before);
        }
    }
}

fn connect(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect(path)?;
    Ok(socket)
}

/// Whether JOURNAL_STREAM ("DEVICE:INODE") is this process's standard error, which may have been redirected
/// since.
fn stderr_is_journal(stream: Option<&str>) -> bool {
    let Some((device, inode)) = stream.and_then(|stream| stream.split_once(':')) else { return false };
    rustix::fs::fstat(stderr()).is_ok_and(|stat| device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino))
}

fn lines(prefix: bool) -> io::Result<Output> {
    let stat = rustix::fs::fstat(stderr())?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    // O_NONBLOCK is shared by all processes that have this standard error, so it is opened again. That fails
    // for sockets, and for a terminal of another user. A file makes nobody wait, and is not opened again: at
    // an offset of its own one overwrites what others write there.
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let reopened = match kind {
        FileType::RegularFile => None,
        _ => rustix::fs::open("/proc/self/fd/2", flags, Mode::empty()).ok(),
    };
    let fd = reopened.map_or_else(|| stderr().try_clone_to_owned(), Ok)?;
    Ok(Output::Lines { fd, socket: kind == FileType::Socket, prefix })
}

/// Writes without waiting. Returns false when that is not possible.
fn write_nonblocking(fd: &OwnedFd, socket: bool, line: &[u8]) -> bool {
    if socket {
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        return rustix::net::send(fd, line, flags).is_ok();
    }
    // For the descriptor that could not be opened again.
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::OUT)];
    let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    ready == Ok(1) && rustix::io::write(fd, line).is_ok()
}

#[cfg(test)]
mod tests;
