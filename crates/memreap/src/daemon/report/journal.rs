//! What is told to people: one plain line per event, and fields for machines where there is a journal.
//!
//! A process chooses its own name. A name with a line end must not look like another line or another
//! field, so lines have names escaped, and fields that are more than one printable line are sent in the
//! journal's binary form, with their length before them.

use std::env;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::stdio::stderr;

use super::record::{Ending, Kill};
use super::text::Text;
use super::warn::Warning;
use crate::units::{Size, Time};

/// Where journald listens.
const SOCKET: &str = "/run/systemd/journal/socket";
/// The longest line.
const LINE: usize = 1024;
/// The longest entry: a line and all fields of a kill.
const ENTRY: usize = 4096;

/// What an entry is about. Each kind has a MESSAGE_ID of its own, by which it is found:
/// `journalctl MESSAGE_ID=f4a5f7d8584640148ff8858503eb3a84` lists all kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The daemon has started, or is about to end.
    Started,
    /// A victim was killed, or would have been.
    Killed,
    /// A victim will be killed if it goes on like this.
    Warned,
    /// The configuration was read again, with or without success.
    Reloaded,
    /// Something that should work does not.
    Trouble,
}

impl Kind {
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

/// How much it matters, with the numbers of syslog(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A part of us does not work.
    Error = 3,
    /// Somebody was killed, or something is odd.
    Warning = 4,
    /// Normal, but worth to be seen.
    Notice = 5,
    /// Normal.
    Info = 6,
}

/// Where entries go. No call waits: what cannot be told at once is not told, and counted.
#[derive(Debug)]
pub struct Journal {
    out: Out,
    lost: u64,
}

#[derive(Debug)]
enum Out {
    /// Native protocol.
    Journald(UnixDatagram),
    /// Lines. With `prefix` each begins with its priority, as service managers understand it.
    Lines { fd: OwnedFd, socket: bool, prefix: bool },
}

impl Journal {
    /// The journal if standard error goes there, else standard error.
    ///
    /// # Errors
    /// When there is no standard error.
    pub fn open() -> io::Result<Self> {
        if stderr_is_journal(env::var("JOURNAL_STREAM").ok().as_deref())
            && let Ok(socket) = connect(Path::new(SOCKET))
        {
            return Ok(Self { out: Out::Journald(socket), lost: 0 });
        }
        Ok(Self { out: lines()?, lost: 0 })
    }

    /// Entries that could not be told.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Tells something that needs no fields of its own.
    pub fn note(&mut self, kind: Kind, priority: Priority, message: fmt::Arguments<'_>) {
        self.tell(kind, priority, &Text::of(message), |_| {});
    }

    /// Tells of a kill.
    pub fn killed(&mut self, kill: &Kill) {
        let priority = match kill.ending {
            Ending::Back | Ending::Gone => Priority::Warning,
            Ending::DryRun => Priority::Notice,
            Ending::Late | Ending::Refused(_) => Priority::Error,
        };
        self.tell(Kind::Killed, priority, &Text::of(Line(kill)), |entry| {
            entry.field("MEMREAP_PID", kill.pid);
            entry.bytes("MEMREAP_COMM", kill.comm.as_bytes());
            entry.field("MEMREAP_UID", kill.uid);
            entry.bytes("MEMREAP_CGROUP", &kill.cgroup);
            entry.field("MEMREAP_PROCESSES", kill.processes);
            entry.field("MEMREAP_BYTES", kill.expected);
            entry.field("MEMREAP_EXACT", u8::from(kill.exact));
            entry.field("MEMREAP_REASON", kill.reason.name());
            entry.bytes("MEMREAP_BECAUSE", kill.because.as_bytes());
            entry.bytes("MEMREAP_RULE", kill.rule.as_bytes());
            entry.field("MEMREAP_MEANS", kill.means.name());
            entry.field("MEMREAP_ENDING", ending(kill.ending));
            entry.field("MEMREAP_AVAILABLE_BEFORE", kill.available[0]);
            entry.field("MEMREAP_AVAILABLE_AFTER", kill.available[1]);
            entry.field("MEMREAP_TOOK_US", kill.took.as_micros());
            entry.field("MEMREAP_CHOICE_US", kill.cost.took.as_micros());
            entry.field("MEMREAP_EXACT_READS", kill.cost.exact);
        });
    }

    /// Tells that a victim is about to be killed.
    pub fn warned(&mut self, warning: &Warning<'_>) {
        self.tell(Kind::Warned, Priority::Notice, &Text::of(warning), |entry| {
            entry.field("MEMREAP_PID", warning.pid);
            entry.bytes("MEMREAP_COMM", warning.comm.as_bytes());
            entry.field("MEMREAP_UID", warning.uid);
            entry.bytes("MEMREAP_CGROUP", warning.cgroup);
            entry.field("MEMREAP_BYTES", warning.bytes);
            entry.field("MEMREAP_REASON", warning.reason.name());
            entry.bytes("MEMREAP_BECAUSE", warning.because.as_bytes());
        });
    }

    fn tell(&mut self, kind: Kind, priority: Priority, line: &Text<LINE>, fields: impl FnOnce(&mut Entry)) {
        let sent = match &self.out {
            Out::Journald(socket) => {
                let mut entry = Entry(Text::new());
                // First, since what does not fit is left out at the end.
                entry.bytes("MESSAGE", line.as_bytes());
                entry.field("PRIORITY", priority as u8);
                entry.field("MESSAGE_ID", kind.id());
                entry.field("SYSLOG_IDENTIFIER", "memreap");
                fields(&mut entry);
                socket.send(entry.0.as_bytes()).is_ok()
            }
            Out::Lines { fd, socket, prefix } => {
                let mut text = Text::<{ LINE + 16 }>::new();
                if *prefix {
                    text.show(format_args!("<{}>", priority as u8));
                }
                text.show("memreap: ");
                // A line end here would begin a line with a priority of its own.
                line.as_bytes().split(|b| *b == b'\n').enumerate().for_each(|(index, part)| {
                    text.push(if index > 0 { b" " } else { b"" });
                    text.push(part);
                });
                text.truncate(LINE + 15);
                text.push(b"\n");
                put(fd, *socket, text.as_bytes())
            }
        };
        self.lost += u64::from(!sent);
    }
}

/// One plain line about a kill: who, what came back, why.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a>(pub &'a Kill);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kill = self.0;
        let victim = Victim(kill);
        let about = if kill.exact { "" } else { "about " };
        let (size, took) = (Size(kill.expected), Time(kill.took));
        match kill.ending {
            Ending::Back => {
                write!(f, "killed {victim}: {about}{size} back in {took} by {}", kill.means.name())?;
            }
            Ending::Late => write!(f, "killed {victim}: {about}{size} not back after {took}")?,
            Ending::Gone => write!(f, "{victim}, was gone before the signal")?,
            Ending::DryRun => write!(f, "would kill {victim}: {about}{size} would come back")?,
            Ending::Refused(errno) => {
                write!(f, "could not kill {victim}: ")?;
                match errno {
                    libc::EPERM => f.write_str("not permitted (CAP_KILL)")?,
                    errno => write!(f, "error {errno}")?,
                }
            }
        }
        if !kill.because.is_empty() {
            write!(f, "; {}", linux::escape(kill.because.as_bytes()))?;
        }
        if !kill.rule.is_empty() {
            write!(f, "; rule \"{}\"", linux::escape(kill.rule.as_bytes()))?;
        }
        Ok(())
    }
}

struct Victim<'a>(&'a Kill);

impl fmt::Display for Victim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kill = self.0;
        write!(f, "{} ({}), user {}", kill.pid, kill.comm, kill.uid)?;
        let cgroup = linux::escape(&kill.cgroup[..]);
        match kill.processes {
            0 | 1 => Ok(()),
            all if kill.whole => write!(f, ", and all of {cgroup}, {all} processes"),
            some => write!(f, ", and {} more of {cgroup}", some - 1),
        }
    }
}

/// The word for an ending in fields and files.
pub(super) fn ending(ending: Ending) -> &'static str {
    match ending {
        Ending::Back => "back",
        Ending::Gone => "gone",
        Ending::Late => "late",
        Ending::DryRun => "dry-run",
        Ending::Refused(_) => "refused",
    }
}

/// An entry in the journal's native format.
struct Entry(Text<ENTRY>);

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

/// Whether JOURNAL_STREAM ("DEVICE:INODE") is about our standard error, and not about one that was
/// redirected since.
fn stderr_is_journal(stream: Option<&str>) -> bool {
    let Some((device, inode)) = stream.and_then(|stream| stream.split_once(':')) else { return false };
    rustix::fs::fstat(stderr())
        .is_ok_and(|stat| device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino))
}

fn lines() -> io::Result<Out> {
    let stat = rustix::fs::fstat(stderr())?;
    let socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    // O_NONBLOCK is a property that all who have standard error share, so a file of our own is opened. That
    // fails for sockets, and for a terminal of another user.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = match rustix::fs::open("/proc/self/fd/2", flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(_) => stderr().try_clone_to_owned()?,
    };
    let prefix = !rustix::termios::isatty(&fd);
    Ok(Out::Lines { fd, socket, prefix })
}

/// Writes without waiting; false when that was not possible.
fn put(fd: &OwnedFd, socket: bool, line: &[u8]) -> bool {
    if socket {
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        return rustix::net::send(fd, line, flags).is_ok();
    }
    // For the descriptor that could not be opened anew.
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::OUT)];
    let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    ready == Ok(1) && rustix::io::write(fd, line).is_ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::Duration;

    use super::super::record::tests::kill;
    use super::*;

    /// A journal and who reads it.
    fn journald() -> (Journal, UnixDatagram, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let reader = UnixDatagram::bind(&path).unwrap();
        reader.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        (Journal { out: Out::Journald(connect(&path).unwrap()), lost: 0 }, reader, dir)
    }

    /// Reads an entry as journald does.
    fn entry(reader: &UnixDatagram) -> Vec<(String, Vec<u8>)> {
        let mut buffer = vec![0; 2 * ENTRY];
        let len = reader.recv(&mut buffer).unwrap();
        let mut rest = &buffer[..len];
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let end = rest.iter().position(|b| *b == b'\n').expect("a field without an end");
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            if let Some(equals) = line.iter().position(|b| *b == b'=') {
                fields.push((line[..equals].to_vec(), line[equals + 1..].to_vec()));
                rest = after;
            } else {
                let (len, after) = after.split_first_chunk::<8>().unwrap();
                let len = usize::try_from(u64::from_le_bytes(*len)).unwrap();
                fields.push((line.to_vec(), after[..len].to_vec()));
                assert_eq!(after[len], b'\n');
                rest = &after[len + 1..];
            }
        }
        fields.into_iter().map(|(name, value)| (String::from_utf8(name).unwrap(), value)).collect()
    }

    fn value<'a>(entry: &'a [(String, Vec<u8>)], name: &str) -> &'a [u8] {
        let mut found = entry.iter().filter(|(other, _)| other == name);
        let value = &found.next().unwrap_or_else(|| panic!("no {name}")).1;
        assert!(found.next().is_none(), "{name} twice");
        value
    }

    #[test]
    fn one_line_says_who_what_came_back_and_why() {
        let mut kill = kill("hog");
        assert_eq!(
            Line(&kill).to_string(),
            "killed 4711 (hog), user 1000: 1.2 GiB back in 41 ms by mrelease; 80 MiB of 2.0 GiB were available, \
             gone in 0.3 s at 400 MiB/s"
        );
        kill.because.clear();
        kill.rule.push_str("browser");
        kill.exact = false;
        let mut line = |ending| {
            kill.ending = ending;
            Line(&kill).to_string()
        };
        let rule = "; rule \"browser\"";
        assert_eq!(
            line(Ending::Late),
            format!("killed 4711 (hog), user 1000: about 1.2 GiB not back after 41 ms{rule}")
        );
        assert_eq!(line(Ending::Gone), format!("4711 (hog), user 1000, was gone before the signal{rule}"));
        assert_eq!(
            line(Ending::DryRun),
            format!("would kill 4711 (hog), user 1000: about 1.2 GiB would come back{rule}")
        );
        assert_eq!(
            line(Ending::Refused(libc::EPERM)),
            format!("could not kill 4711 (hog), user 1000: not permitted (CAP_KILL){rule}")
        );
        kill.processes = 12;
        kill.ending = Ending::Back;
        for (whole, words) in
            [(false, "11 more of /user.slice/a"), (true, "all of /user.slice/a, 12 processes")]
        {
            kill.whole = whole;
            let text = Line(&kill).to_string();
            assert!(text.starts_with(&format!("killed 4711 (hog), user 1000, and {words}: ")), "{text}");
        }
    }

    #[test]
    fn an_entry_has_fields_for_machines() {
        let (mut journal, reader, _dir) = journald();
        journal.killed(&kill("hog"));
        let entry = entry(&reader);
        assert!(value(&entry, "MESSAGE").starts_with(b"killed 4711 (hog)"));
        assert_eq!(value(&entry, "MESSAGE_ID"), Kind::Killed.id().as_bytes());
        assert_eq!(value(&entry, "PRIORITY"), b"4");
        assert_eq!(value(&entry, "MEMREAP_PID"), b"4711");
        assert_eq!(value(&entry, "MEMREAP_BYTES"), b"1288490188");
        assert_eq!(value(&entry, "MEMREAP_REASON"), b"forecast");
        assert_eq!(value(&entry, "MEMREAP_MEANS"), b"mrelease");
        assert_eq!(value(&entry, "MEMREAP_TOOK_US"), b"41000");
        assert_eq!(journal.lost(), 0);
    }

    #[test]
    fn a_name_cannot_forge_a_field_or_a_line() {
        let (mut journal, reader, _dir) = journald();
        let mut evil = kill("a\nPRIORITY=0\n");
        evil.cgroup.clear();
        evil.cgroup.try_extend_from_slice(b"/x\nMESSAGE=fine\n/y").unwrap();
        evil.processes = 2;
        journal.killed(&evil);
        let entry = entry(&reader);
        assert_eq!(value(&entry, "PRIORITY"), b"4");
        assert_eq!(value(&entry, "MEMREAP_COMM"), b"a\nPRIORITY=0\n");
        assert_eq!(value(&entry, "MEMREAP_CGROUP"), b"/x\nMESSAGE=fine\n/y");
        assert!(!value(&entry, "MESSAGE").contains(&b'\n'));
    }

    #[test]
    fn what_does_not_fit_leaves_the_rest_valid() {
        let (mut journal, reader, _dir) = journald();
        journal.tell(Kind::Trouble, Priority::Error, &Text::of("x"), |entry| {
            entry.bytes("MEMREAP_BIG", &[b'x'; 2 * ENTRY]);
            entry.field("MEMREAP_PID", 1);
        });
        let entry = entry(&reader);
        assert_eq!(value(&entry, "MEMREAP_PID"), b"1");
        assert!(entry.iter().all(|(name, _)| name != "MEMREAP_BIG"));
    }

    #[test]
    fn a_journal_that_does_not_read_cannot_hold_us_up() {
        let (mut journal, _reader, _dir) = journald();
        for _ in 0..10_000 {
            journal.note(Kind::Started, Priority::Info, format_args!("x"));
        }
        assert!(journal.lost() > 0);
    }

    #[test]
    fn lines_have_a_priority_and_one_end() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut journal =
            Journal { out: Out::Lines { fd: writer.into(), socket: false, prefix: true }, lost: 0 };
        journal.note(Kind::Reloaded, Priority::Error, format_args!("wrong\n<0>config"));
        journal.note(Kind::Reloaded, Priority::Error, format_args!("{:2000}", 1));
        // Nobody reads: once the pipe is full, lines are lost.
        for _ in 0..1000 {
            journal.note(Kind::Started, Priority::Info, format_args!("{:900}", 1));
        }
        assert!(journal.lost() > 0);
        drop(journal);
        let mut lines = String::new();
        reader.read_to_string(&mut lines).unwrap();
        let mut lines = lines.lines();
        assert_eq!(lines.next(), Some("<3>memreap: wrong <0>config"));
        assert!(lines.all(|line| line.starts_with("<3>memreap: ") || line.starts_with("<6>memreap: ")));
    }

    #[test]
    fn the_journal_is_used_only_for_our_own_standard_error() {
        assert!(!stderr_is_journal(None));
        assert!(!stderr_is_journal(Some("1:2")));
        assert!(!stderr_is_journal(Some("x")));
        let stat = rustix::fs::fstat(stderr()).unwrap();
        assert!(stderr_is_journal(Some(&format!("{}:{}", stat.st_dev, stat.st_ino))));
    }
}
