// SPDX-License-Identifier: GPL-2.0-only
//! Metrics for Prometheus, on a Unix socket or a TCP port.
//!
//! Any process on this machine can be a client, and may send nothing, or never read. Nothing here waits for a
//! client, and only a few are served at a time: the oldest is disconnected for a new one.

use std::fmt::{self, Write as _};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags};

use super::record::KillRecord;
use super::text::Text;
use super::workload::Workload;
use crate::choice::CgroupPath;
use crate::daemon::decide::reason::{Ending, Reason};
use crate::kill::Method;

/// The longest response.
const MAX_RESPONSE_BYTES: usize = 8 << 10;
/// The longest request; a longer one is not answered.
const MAX_REQUEST_BYTES: usize = 4 << 10;
/// Clients at a time; for the next one the oldest is disconnected.
const MAX_CLIENTS: usize = 4;
/// Connections accepted and clients read from in one call, at most.
const MAX_EVENTS_PER_CALL: usize = 8;
/// What epoll returns for the listener; for clients it is their index.
const LISTENER_TOKEN: u64 = u64::MAX;

const REASONS: [Reason; 2] = [Reason::Critical, Reason::Stall];
const METHODS: [Method; 3] = [Method::Expedite, Method::Mrelease, Method::Plain];

/// What is counted and measured. Counters never go down.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Victims killed, by reason and method in the order of the two constants.
    kills: [[u64; METHODS.len()]; REASONS.len()],
    /// Kills whose memory was not back in time.
    kills_late: u64,
    /// Kills that the kernel refused.
    kills_refused: u64,
    /// Bytes that kills gave back.
    bytes_back: u64,
    /// From the signal of the last kill until its memory was back.
    last_kill: Option<Duration>,
    /// When the last victim died, in milliseconds since 1970, and its cgroup.
    last_victim: Option<(u64, CgroupPath)>,
    /// Times that the daemon woke up.
    pub wake_ups: u64,
    /// MemAvailable in bytes, or what is left of the limit.
    pub available: u64,
    /// Bytes that can be used before memory and swap are full.
    pub headroom: u64,
    /// When memory will run out at the present rate; `None` when it will not.
    pub forecast: Option<Duration>,
    /// Times that the configuration was read again.
    pub reloads: u64,
    /// Times that it was wrong, and the old one was kept.
    pub reloads_failed: u64,
    /// Warnings before kills.
    pub warnings: u64,
    /// Messages that the journal or the helper process did not receive.
    pub messages_lost: u64,
    /// Processes whose cgroups were not visible at the start.
    pub outside: usize,
}

impl Metrics {
    /// Counts a kill.
    pub fn count(&mut self, kill: &KillRecord) {
        match kill.ending {
            Ending::Back => {
                self.bytes_back += kill.back();
                self.last_kill = Some(kill.took);
            }
            Ending::Late => self.kills_late += 1,
            Ending::Refused(_) => self.kills_refused += 1,
            Ending::Gone | Ending::DryRun => {}
        }
        if matches!(kill.ending, Ending::Back | Ending::Late) {
            let reason = REASONS.iter().position(|r| *r == kill.reason).unwrap_or(0);
            let method = METHODS.iter().position(|m| *m == kill.method).unwrap_or(0);
            self.kills[reason][method] += 1;
            self.last_victim = Some((kill.unix_ms, kill.cgroup.clone()));
        }
    }
}

/// The text exposition format.
impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        head(f, "memreap_build_info", "gauge", "The version that runs.")?;
        writeln!(f, "memreap_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))?;
        head(f, "memreap_kills_total", "counter", "Victims killed.")?;
        for (reason, kills) in REASONS.iter().zip(&self.kills) {
            for (method, kills) in METHODS.iter().zip(kills) {
                let (reason, method) = (reason.name(), method.name());
                writeln!(f, "memreap_kills_total{{reason=\"{reason}\",method=\"{method}\"}} {kills}")?;
            }
        }
        let counters = [
            ("kills_late", "Kills whose memory was not back in time.", self.kills_late),
            ("kills_refused", "Kills that the kernel refused.", self.kills_refused),
            ("back_bytes", "Bytes that kills gave back.", self.bytes_back),
            ("wake_ups", "Times that the daemon woke up.", self.wake_ups),
            ("warnings", "Warnings before kills.", self.warnings),
            (
                "messages_lost",
                "Messages that the journal or the helper process did not receive.",
                self.messages_lost,
            ),
        ];
        for (name, help, value) in counters {
            head(f, format_args!("memreap_{name}_total"), "counter", help)?;
            writeln!(f, "memreap_{name}_total {value}")?;
        }
        head(f, "memreap_reloads_total", "counter", "Times that the configuration was read again.")?;
        writeln!(f, "memreap_reloads_total{{result=\"ok\"}} {}", self.reloads)?;
        writeln!(f, "memreap_reloads_total{{result=\"failed\"}} {}", self.reloads_failed)?;
        let last_kill = self.last_kill.map_or(f64::NAN, |time| time.as_secs_f64());
        let forecast = self.forecast.map_or(f64::INFINITY, |time| time.as_secs_f64());
        let gauges: [(_, _, &dyn fmt::Display); 5] = [
            ("available_bytes", "Memory that is available.", &self.available),
            ("headroom_bytes", "Memory and swap that can still be used.", &self.headroom),
            ("forecast_seconds", "When memory runs out at the present rate.", &Number(forecast)),
            ("last_kill_seconds", "From signal to memory back, last kill.", &Number(last_kill)),
            ("processes_outside", "Processes whose cgroups were not visible at the start.", &self.outside),
        ];
        for (name, help, value) in gauges {
            head(f, format_args!("memreap_{name}"), "gauge", help)?;
            writeln!(f, "memreap_{name} {value}")?;
        }
        if let Some((unix_ms, cgroup)) = &self.last_victim {
            let Workload { unit, pod, container } = Workload::of(cgroup);
            // Of the last one only, so that series do not pile up.
            head(f, "memreap_last_kill_timestamp_seconds", "gauge", "When the last victim died.")?;
            writeln!(
                f,
                "memreap_last_kill_timestamp_seconds{{unit=\"{}\",pod=\"{pod}\",container=\"{}\"}} {}.{:03}",
                Label(unit),
                Label(container),
                unix_ms / 1000,
                unix_ms % 1000
            )?;
        }
        Ok(())
    }
}

/// The value of a label. The name of a cgroup may be any user's choice.
struct Label<'a>(&'a [u8]);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| match byte {
            b'\\' | b'"' => write!(f, "\\{}", char::from(*byte)),
            b' '..=b'~' => f.write_char(char::from(*byte)),
            _ => f.write_char('?'),
        })
    }
}

fn head(f: &mut fmt::Formatter<'_>, name: impl fmt::Display, kind: &str, help: &str) -> fmt::Result {
    writeln!(f, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

/// A number as the format writes it: infinity is "+Inf".
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == f64::INFINITY { f.write_str("+Inf") } else { self.0.fmt(f) }
    }
}

/// Answers requests for the metrics. Readable (it is an epoll of its own) when there is something to do.
#[derive(Debug)]
pub struct Server {
    epoll: OwnedFd,
    listener: OwnedFd,
    clients: [Option<Client>; MAX_CLIENTS],
    /// Counts clients, to find the oldest.
    turn: u64,
    answer: Box<Text<MAX_RESPONSE_BYTES>>,
}

#[derive(Debug)]
struct Client {
    stream: OwnedFd,
    turn: u64,
    /// Bytes of the request that have been read.
    read: usize,
    /// How many line ends it ends with.
    ends: u8,
}

impl Server {
    /// Listens at `address`: the path of a Unix socket, or an address with a port
    /// (`127.0.0.1:9105`, `[::1]:9105`). A socket that an earlier daemon left behind is replaced.
    ///
    /// # Errors
    /// When that is not possible, or another process listens there.
    pub fn listen(address: &str) -> io::Result<Self> {
        let listener = if address.starts_with('/') {
            OwnedFd::from(listen_unix(Path::new(address))?)
        } else {
            listen_tcp(address)?.into()
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER_TOKEN), epoll::EventFlags::IN)?;
        let clients = [const { None }; MAX_CLIENTS];
        Ok(Self { epoll, listener, clients, turn: 0, answer: Box::new(Text::new()) })
    }

    /// Accepts and answers clients, a limited number of them, without waiting.
    pub fn serve(&mut self, metrics: &Metrics) {
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; MAX_EVENTS_PER_CALL];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut space, Some(&now)) else { return };
        for event in ready {
            match event.data.u64() {
                LISTENER_TOKEN => self.accept(),
                index => self.read(usize::try_from(index).unwrap_or(MAX_CLIENTS), metrics),
            }
        }
    }

    fn accept(&mut self) {
        // One per event: with more waiting, the listener stays readable.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let Ok(stream) = rustix::net::accept_with(&self.listener, flags) else { return };
        let oldest = (0..MAX_CLIENTS).min_by_key(|index| self.clients[*index].as_ref().map_or(0, |c| c.turn));
        let index = oldest.unwrap_or(0);
        // Closes the old one, which also removes it from the epoll.
        self.clients[index] = None;
        let data = epoll::EventData::new_u64(index as u64);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if epoll::add(&self.epoll, &stream, data, flags).is_ok() {
            self.turn += 1;
            self.clients[index] = Some(Client { stream, turn: self.turn, read: 0, ends: 0 });
        }
    }

    fn read(&mut self, index: usize, metrics: &Metrics) {
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        let mut buffer = [0; MAX_REQUEST_BYTES];
        let asked = match rustix::net::recv(&client.stream, &mut buffer[..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            // Closed, without an end to what it asked.
            Ok((_, 0)) | Err(_) => false,
            Ok((_, len)) => {
                client.read += len;
                let asked = buffer[..len].iter().any(|byte| client.ends_with(*byte));
                if !asked && client.read < MAX_REQUEST_BYTES {
                    return;
                }
                asked
            }
        };
        if asked {
            self.answer.clear();
            self.answer.show("HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n");
            self.answer.show(metrics);
            // The socket's buffer is empty and larger than this. What does not fit is lost.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&client.stream, self.answer.as_bytes(), flags);
            let _ = rustix::net::shutdown(&client.stream, Shutdown::Write);
        }
        self.clients[index] = None;
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Client {
    /// Whether the request ends with this byte: the end of an empty line.
    fn ends_with(&mut self, byte: u8) -> bool {
        self.ends = match byte {
            b'\n' => self.ends + 1,
            b'\r' => self.ends,
            _ => 0,
        };
        self.ends == 2
    }
}

fn listen_tcp(address: &str) -> io::Result<TcpListener> {
    let address: SocketAddr = address.parse().map_err(|_| {
        io::Error::other("neither the path of a socket nor an address such as 127.0.0.1:9105")
    })?;
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
            fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        other => other?,
    };
    listener.set_nonblocking(true)?;
    // Metrics say no more than what all users can read in /proc.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Whether it is a socket on which no process listens.
fn is_stale(path: &Path) -> bool {
    let socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    socket && UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::thread;
    use std::time::Instant;

    use super::super::record::tests::kill;
    use super::*;

    fn server() -> (Server, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::listen(dir.path().join("metrics").to_str().unwrap()).unwrap();
        (server, dir)
    }

    fn connect(dir: &tempfile::TempDir) -> UnixStream {
        let stream = UnixStream::connect(dir.path().join("metrics")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    fn metrics() -> Metrics {
        let mut metrics = Metrics::default();
        metrics.count(&kill("hog"));
        let mut late = kill("late");
        (late.ending, late.reason) = (Ending::Late, Reason::Critical);
        metrics.count(&late);
        metrics.available = 12345;
        metrics
    }

    #[test]
    fn metrics_are_in_the_text_format() {
        let text = metrics().to_string();
        for line in [
            "memreap_kills_total{reason=\"stall\",method=\"mrelease\"} 1",
            "memreap_kills_total{reason=\"critical\",method=\"mrelease\"} 1",
            "memreap_kills_total{reason=\"critical\",method=\"plain\"} 0",
            "memreap_kills_late_total 1",
            "memreap_back_bytes_total 1288490188",
            "memreap_last_kill_seconds 0.041",
            "memreap_last_kill_timestamp_seconds{unit=\"a.scope\",pod=\"\",container=\"\"} 1700000000.123",
            "memreap_available_bytes 12345",
            "memreap_forecast_seconds +Inf",
        ] {
            assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
        }
        // Each metric has its type before it, once.
        let mut known = std::collections::HashSet::new();
        for line in text.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["#", "HELP", ..] => {}
                ["#", "TYPE", name, "counter" | "gauge"] => assert!(known.insert(name), "{name} twice"),
                [sample, value] => {
                    let name = sample.split('{').next().unwrap();
                    assert!(known.contains(name), "{line}");
                    assert!(value.trim_start_matches('+').to_lowercase().parse::<f64>().is_ok(), "{line}");
                }
                _ => panic!("{line}"),
            }
        }
        assert!(text.lines().all(|line| !line.contains("NaN") || line.contains("last_kill")));
    }

    #[test]
    fn the_largest_numbers_fit() {
        let mut metrics = metrics();
        metrics.kills = [[u64::MAX; METHODS.len()]; REASONS.len()];
        let mut answer = Text::<MAX_RESPONSE_BYTES>::of(&metrics);
        answer.push(&[0; MAX_RESPONSE_BYTES / 4]);
        assert!(!answer.is_cut());
    }

    #[test]
    fn a_client_is_answered_and_disconnected() {
        let (mut server, dir) = server();
        let mut client = connect(&dir);
        server.serve(&metrics());
        // A request can come in pieces.
        for piece in ["GET /metr", "ics HTTP/1.1\r\nHost: x\r", "\n\r\n"] {
            client.write_all(piece.as_bytes()).unwrap();
            server.serve(&metrics());
        }
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
        assert_eq!(body, metrics().to_string());
        assert!(server.clients.iter().all(Option::is_none));
    }

    #[test]
    fn a_hostile_name_stays_within_its_label() {
        assert_eq!(Label(b"a\"} 1\nb\\\xff").to_string(), r#"a\"} 1?b\\?"#);
    }

    #[test]
    fn clients_on_a_port_are_answered_too() {
        let mut server = Server::listen("127.0.0.1:0").unwrap();
        let listener = TcpListener::from(server.listener.try_clone().unwrap());
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let began = Instant::now();
        while server.turn == 0 || server.clients.iter().any(Option::is_some) {
            server.serve(&Metrics::default());
            thread::sleep(Duration::from_millis(1));
            assert!(began.elapsed() < Duration::from_secs(10));
        }
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with(&Metrics::default().to_string()));
        for bad in ["192.0.2.1:1", "localhost", "9105", ""] {
            assert!(Server::listen(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn stuck_clients_neither_block_nor_pile_up() {
        let (mut server, dir) = server();
        let began = Instant::now();
        let mut stuck = Vec::new();
        for round in 0..20 {
            let mut client = connect(&dir);
            // Some say nothing, some do not end, some do not read.
            match round % 3 {
                0 => {}
                1 => client.write_all(b"GET / HTTP/1.0\r\n").unwrap(),
                _ => client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap(),
            }
            stuck.push(client);
            server.serve(&metrics());
            server.serve(&metrics());
        }
        assert!(server.clients.iter().flatten().count() <= MAX_CLIENTS);
        let mut good = connect(&dir);
        good.write_all(b"GET / HTTP/1.0\n\n").unwrap();
        server.serve(&metrics());
        server.serve(&metrics());
        let mut answer = String::new();
        good.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("memreap_kills_total"));
        assert!(began.elapsed() < Duration::from_secs(5));

        // Without end: hung up on.
        let mut endless = connect(&dir);
        endless.set_nonblocking(true).unwrap();
        server.serve(&metrics());
        let mut hung_up = false;
        for _ in 0..100 {
            hung_up |= endless.write_all(&[b'x'; 512]).is_err();
            server.serve(&metrics());
        }
        assert!(hung_up);
        // And those who left are forgotten.
        drop((stuck, endless));
        // At once, but for a process that another test has just forked, and that has them for a moment.
        while server.clients.iter().any(Option::is_some) {
            server.serve(&metrics());
            assert!(began.elapsed() < Duration::from_secs(20));
        }
    }

    #[test]
    fn a_socket_left_behind_is_replaced_but_nothing_else() {
        let (server, dir) = server();
        let path = dir.path().join("metrics");
        let path = path.to_str().unwrap();
        assert!(Server::listen(path).is_err(), "another process listens there");
        drop(server);
        Server::listen(path).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert!(Server::listen(file.to_str().unwrap()).is_err());
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }
}
