// SPDX-License-Identifier: GPL-2.0-only
//! Logins: a service like sshd that starts a shell for each connection over a local socket, and a thread that
//! logs in once per second and notes how long it takes. Times are nanoseconds on the monotonic clock.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::system::clock;

const SOCKET: &[u8] = b"faceoff-login";
const INTERVAL_NS: u64 = 1_000_000_000;
/// How often the thread looks whether the recording is over.
const READ_TIMEOUT: Duration = Duration::from_millis(20);
/// A login that takes longer than this is late.
const LATE_NS: u64 = 5_000_000_000;

fn address() -> Result<SocketAddr> {
    SocketAddr::from_abstract_name(SOCKET).context("address of the login service")
}

/// Serves logins until the process ends. Calls `ready` when it can.
///
/// # Errors
/// When the socket is in use, or no shell can be started.
pub fn serve(ready: impl FnOnce()) -> Result<()> {
    let listener = UnixListener::bind_addr(&address()?).context("socket of the login service")?;
    ready();
    loop {
        let (connection, _) = listener.accept().context("accept a login")?;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "echo ok"]).stdin(Stdio::null()).stdout(OwnedFd::from(connection));
        let mut shell = match shell.spawn() {
            Ok(shell) => shell,
            // As sshd would: that login fails, the service goes on.
            Err(e) => {
                eprintln!("guest: a login's shell: {e}");
                continue;
            }
        };
        // The service waits for its shell, so that at most one runs: the thread waits as well.
        let _ = shell.wait();
    }
}

/// A login, whether it was answered or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login {
    begun: u64,
    /// When the shell had answered, or when the recording was over.
    ended: u64,
}

/// Room for the logins of a recording.
pub fn room(limit_ns: u64) -> Result<Vec<Login>> {
    Ok(Vec::with_capacity(usize::try_from(limit_ns / INTERVAL_NS)? + 3))
}

/// Logs in again and again until `over`. Allocates nothing. A login that fails is tried again at once, and
/// counts as one.
pub fn repeat(logins: &mut Vec<Login>, over: &AtomicBool) -> Result<()> {
    let address = address()?;
    let mut next = clock::now();
    while !over.load(Ordering::Acquire) && logins.len() < logins.capacity() {
        clock::sleep_until(next)?;
        let begun = clock::now();
        while !over.load(Ordering::Acquire) && !log_in(&address, over) {
            clock::sleep_until(clock::now() + READ_TIMEOUT.as_nanos() as u64)?;
        }
        logins.push(Login { begun, ended: clock::now() });
        next = (next + INTERVAL_NS).max(clock::now());
    }
    Ok(())
}

/// Logs in. Returns false if the shell did not answer.
fn log_in(address: &SocketAddr, over: &AtomicBool) -> bool {
    let Ok(mut connection) = UnixStream::connect_addr(address) else { return false };
    if connection.set_read_timeout(Some(READ_TIMEOUT)).is_err() {
        return false;
    }
    let mut answer = [0; 1];
    loop {
        match connection.read(&mut answer) {
            Ok(n) => return n == 1,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && !over.load(Ordering::Acquire) => {}
            Err(_) => return false,
        }
    }
}

/// Returns the longest time that a login took, in milliseconds, and how many were late.
pub fn summary(logins: &[Login]) -> (f64, u64) {
    let took = || logins.iter().map(|login| login.ended - login.begun);
    (clock::ms(took().max().unwrap_or(0)), took().filter(|&ns| ns > LATE_NS).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_answers() {
        let (send, ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || serve(|| send.send(()).unwrap()));
        ready.recv().unwrap();
        let over = AtomicBool::new(false);
        assert!(log_in(&address().unwrap(), &over));
        let mut logins = Vec::with_capacity(2);
        repeat(&mut logins, &over).unwrap();
        assert_eq!(logins.len(), 2);
        assert!(logins[0].begun < logins[0].ended && logins[0].ended <= logins[1].begun);
    }

    #[test]
    fn late_is_more_than_five_seconds() {
        let login = |ms: u64| Login { begun: 7, ended: 7 + ms * 1_000_000 };
        assert_eq!(summary(&[]), (0.0, 0));
        assert_eq!(summary(&[login(3), login(5000), login(5001)]), (5001.0, 1));
    }
}
