// SPDX-License-Identifier: GPL-2.0-only
//! Connects the lab's terminal with the console of an interactive guest.

use std::io::{Read as _, Write as _};
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::host;

/// The lab's terminal, connected to the guest's console and in raw mode until dropped.
///
/// QEMU does not use the terminal directly: its process group is in the background and may not read from the
/// terminal, and if QEMU were killed the terminal would stay in raw mode.
pub(super) struct Terminal {
    before: rustix::termios::Termios,
}

impl Terminal {
    /// Ctrl-] ends the guest, as in telnet.
    const ESCAPE_KEY: u8 = 0x1d;

    pub(super) fn join(qemu: &mut host::Child) -> Result<Self> {
        let group = qemu.id();
        let (to, from) = (qemu.pipes().stdin.take(), qemu.pipes().stdout.take());
        let (Some(mut to), Some(mut from)) = (to, from) else { bail!("QEMU has no console pipes") };
        eprintln!("console of the guest; `exit` or Ctrl-] ends it");
        let before = rustix::termios::tcgetattr(std::io::stdin()).context("the terminal's settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Now, &raw)
            .context("cannot make the terminal raw")?;
        let terminal = Self { before };
        // Both threads end with the console. The first may only end with the lab, because a read from the
        // terminal cannot be cancelled.
        thread::spawn(move || {
            let mut keys = [0; 256];
            while let Ok(n @ 1..) = std::io::stdin().read(&mut keys) {
                if keys[..n].contains(&Self::ESCAPE_KEY) {
                    if let Some(pid) = i32::try_from(group).ok().and_then(rustix::process::Pid::from_raw) {
                        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                    }
                    return;
                }
                if to.write_all(&keys[..n]).is_err() {
                    return;
                }
            }
        });
        thread::spawn(move || {
            let mut text = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut text) {
                let mut out = std::io::stdout();
                if out.write_all(&text[..n]).and_then(|()| out.flush()).is_err() {
                    return;
                }
            }
        });
        Ok(terminal)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that refuses it.
        let _ = rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Now, &self.before);
    }
}
