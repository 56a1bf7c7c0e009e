// SPDX-License-Identifier: GPL-2.0-only
//! Notifies the service manager: sd_notify(3), without waiting and without allocating.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
use std::{env, fmt, process};

use super::monotonic;
use super::text::Text;

/// The longest message: a status line.
const MAX_MESSAGE_BYTES: usize = 512;

/// The service manager that has started the daemon, if one has and wants notifications.
#[derive(Debug, Default)]
pub struct Service {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
}

impl Service {
    /// Connects to the one that the environment names (NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID). The
    /// sandbox does not permit that later.
    ///
    /// # Errors
    /// When there is one that cannot be reached.
    pub fn from_env() -> io::Result<Self> {
        let socket = env::var_os("NOTIFY_SOCKET").map(|address| connect(&address)).transpose()?;
        let value = |name| env::var(name).ok();
        let watchdog = socket
            .is_some()
            .then(|| watchdog(value("WATCHDOG_USEC").as_deref(), value("WATCHDOG_PID").as_deref()))
            .flatten();
        Ok(Self { socket, watchdog })
    }

    /// Returns how often [`Service::watchdog`] must be called: half of what the manager waits. `None` when it
    /// does not wait.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|limit| limit / 2)
    }

    /// The start, or a reload, is over.
    ///
    /// # Errors
    /// When the message could not be sent: at the start the manager will then end the daemon.
    pub fn ready(&self) -> io::Result<()> {
        self.send(format_args!("READY=1"))
    }

    /// A reload begins. [`Service::ready`] must follow, whether it succeeds or not.
    ///
    /// # Errors
    /// When the message could not be sent.
    pub fn reloading(&self) -> io::Result<()> {
        self.send(format_args!("RELOADING=1\nMONOTONIC_USEC={}", monotonic().as_micros()))
    }

    /// The daemon is about to end.
    ///
    /// # Errors
    /// When the message could not be sent.
    pub fn stopping(&self) -> io::Result<()> {
        self.send(format_args!("STOPPING=1"))
    }

    /// The daemon is alive.
    ///
    /// # Errors
    /// When the message could not be sent. The next one is still in time.
    pub fn watchdog(&self) -> io::Result<()> {
        self.send(format_args!("WATCHDOG=1"))
    }

    /// What the daemon is doing, for people. Only the first line counts, and not more than fits.
    ///
    /// # Errors
    /// When the message could not be sent.
    pub fn status(&self, status: impl fmt::Display) -> io::Result<()> {
        let text = Text::<{ MAX_MESSAGE_BYTES - 7 }>::of(status);
        // Another line would be another message.
        let line = text.as_bytes().split(|b| *b == b'\n').next().unwrap_or_default();
        self.send(format_args!("STATUS={}", linux::escape(line)))
    }

    fn send(&self, message: fmt::Arguments<'_>) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        socket.send(Text::<MAX_MESSAGE_BYTES>::of(message).as_bytes()).map(drop)
    }
}

/// `address` is a path, or a name in the abstract namespace after an `@`.
fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(address)?,
        _ => return Err(io::Error::other("NOTIFY_SOCKET is neither a path nor abstract")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

/// Returns how long the manager waits for the watchdog message of this process.
fn watchdog(usec: Option<&str>, pid: Option<&str>) -> Option<Duration> {
    let ours = pid.is_none_or(|pid| pid.parse() == Ok(process::id()));
    let limit = Duration::from_micros(usec?.parse().ok()?);
    (ours && !limit.is_zero()).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(socket: UnixDatagram) -> Service {
        Service { socket: Some(socket), watchdog: None }
    }

    fn received(manager: &UnixDatagram) -> String {
        let mut buffer = [0; 2 * MAX_MESSAGE_BYTES];
        let len = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    #[test]
    fn messages_reach_a_manager_at_a_path_and_at_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let at_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("memreap-test-{}", process::id());
        let at_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (manager, address) in [(at_path, path.into_os_string()), (at_name, format!("@{name}").into())] {
            manager.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let service = service(connect(&address).unwrap());
            service.ready().unwrap();
            service.status("calm\nSTOPPING=1").unwrap();
            service.reloading().unwrap();
            service.watchdog().unwrap();
            service.stopping().unwrap();
            assert_eq!(received(&manager), "READY=1");
            assert_eq!(received(&manager), "STATUS=calm");
            let reloading = received(&manager);
            let usec = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            assert!(usec.parse::<u64>().unwrap() > 0);
            assert_eq!(received(&manager), "WATCHDOG=1");
            assert_eq!(received(&manager), "STOPPING=1");
        }
    }

    #[test]
    fn a_manager_that_does_not_read_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let _deaf = UnixDatagram::bind(&path).unwrap();
        let service = service(connect(path.as_os_str()).unwrap());
        let error = (0..100_000).find_map(|_| service.watchdog().err()).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        let service = Service { socket: None, watchdog: None };
        service.ready().unwrap();
        assert_eq!(service.watchdog_interval(), None);
        assert!(connect(OsStr::new("vsock:2:1234")).is_err());
    }

    #[test]
    fn the_watchdog_is_for_whom_it_names() {
        let me = process::id().to_string();
        assert_eq!(watchdog(Some("30000000"), Some(&me)), Some(Duration::from_secs(30)));
        assert_eq!(watchdog(Some("30000000"), None), Some(Duration::from_secs(30)));
        assert_eq!(watchdog(Some("30000000"), Some("1")), None);
        assert_eq!(watchdog(Some("0"), None), None);
        assert_eq!(watchdog(Some("soon"), None), None);
        let service = Service { socket: None, watchdog: Some(Duration::from_secs(30)) };
        assert_eq!(service.watchdog_interval(), Some(Duration::from_secs(15)));
    }
}
