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
/// Connections accepted and clients read from at once, at most, ...
const MAX_EVENTS_PER_ROUND: usize = 8;
/// ... and so often in one call: that many connections wait to be accepted at most.
const MAX_ROUNDS_PER_CALL: u16 = 64;
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
    /// Kills that the command before them averted.
    kills_averted: u64,
    /// Victims that ended when they were asked to.
    exits: u64,
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
            Ending::Averted => self.kills_averted += 1,
            Ending::Exited => self.exits += 1,
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
            ("kills_averted", "Kills that the command before them averted.", self.kills_averted),
            ("exits", "Victims that ended when they were asked to.", self.exits),
            ("back_bytes", "Bytes that kills gave back.", self.bytes_back),
            ("wake_ups", "Times that the daemon woke up.", self.wake_ups),
            ("warnings", "Warnings before kills.", self.warnings),
            ("messages_lost", "Messages that the journal or the helper process did not receive.", self.messages_lost),
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
        // Again: to change how many can wait.
        rustix::net::listen(&listener, MAX_ROUNDS_PER_CALL.into())?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER_TOKEN), epoll::EventFlags::IN)?;
        let clients = [const { None }; MAX_CLIENTS];
        Ok(Self { epoll, listener, clients, turn: 0, answer: Box::new(Text::new()) })
    }

    /// Accepts and answers clients, a limited number of them, without waiting.
    #[inline(never)] // What it has on the stack is not the event loop's.
    pub fn serve(&mut self, metrics: &Metrics) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        for _ in 0..MAX_ROUNDS_PER_CALL {
            let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; MAX_EVENTS_PER_ROUND];
            let Ok((ready, _)) = epoll::wait(&self.epoll, &mut space, Some(&now)) else { return };
            if ready.is_empty() {
                return;
            }
            for event in ready {
                match event.data.u64() {
                    LISTENER_TOKEN => self.accept(),
                    index => self.read(usize::try_from(index).unwrap_or(MAX_CLIENTS), metrics),
                }
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
    let address: SocketAddr = address
        .parse()
        .map_err(|_| io::Error::other("neither the path of a socket nor an address such as 127.0.0.1:9105"))?;
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
mod tests;
