// SPDX-License-Identifier: GPL-2.0-only
//! Processes that PID 1 starts. PID 1 waits for their ends, and reaps every orphan meanwhile.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::{thread, time::Duration};

use anyhow::{Context as _, Result, bail};
use protocol::results::Message;
use rustix::io::Errno;
use rustix::process::{WaitOptions, WaitStatus, wait};

use crate::report::Reporter;

/// The environment of jobs.
const ENV: [(&str, &str); 4] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/root"),
    ("TERM", "linux"),
    ("LANG", "C.UTF-8"),
];

/// The program that contains the scenarios; the host adds it for a job that names one.
const SCENARIO_PROGRAM: &str = "/bin/guest";

/// The exit statuses of a shell for a command that is missing or cannot be run.
const NOT_FOUND: i32 = 127;
const NOT_RUNNABLE: i32 = 126;

/// Output is sent in pieces of at most this many bytes. Even a piece that JSON escapes sixfold fits into one
/// write of the virtio port (32 KiB), so lines of several writers are never mixed.
const PIECE_BYTES: usize = 4096;

/// How long output is still read after the command has ended, in case it left a process in the background
/// that has the pipe open.
const LINGER: Duration = Duration::from_secs(1);

/// Runs a scenario in a process of its own, and returns its exit status.
///
/// # Errors
/// When the process cannot be started or waited for.
pub fn scenario(name: &str, args: &[String], out: &mut Reporter) -> Result<i32> {
    let mut worker = Command::new(SCENARIO_PROGRAM);
    worker.arg("scenario").arg(name).args(args).env_clear().envs(ENV);
    let child = worker.stdin(out.try_clone()?).spawn().context("cannot start the scenario")?;
    let status = wait_for(child.id())?;
    if let Some(signal) = status.terminating_signal() {
        out.note(&format!("scenario {name} was killed by signal {signal}"));
    }
    Ok(code(status))
}

/// Runs a program, sends its output as it comes, and returns its exit status. That is 127 or 126 for a
/// program that cannot be started, as in a shell.
///
/// # Errors
/// When the command line is empty or the program cannot be waited for.
pub fn command(argv: &[String], out: &mut Reporter) -> Result<i32> {
    let Some((program, args)) = argv.split_first() else { bail!("no command given") };
    let spawned = Command::new(program)
        .args(args)
        .env_clear()
        .envs(ENV)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(e) => {
            out.send(&Message::Err(format!("{program}: {e}\n")));
            let missing = e.kind() == std::io::ErrorKind::NotFound;
            return Ok(if missing { NOT_FOUND } else { NOT_RUNNABLE });
        }
    };
    let (done, all_done) = mpsc::channel();
    if let Some(pipe) = child.stdout.take() {
        forward(pipe, out.try_clone()?, Message::Out, done.clone());
    }
    if let Some(pipe) = child.stderr.take() {
        forward(pipe, out.try_clone()?, Message::Err, done.clone());
    }
    drop(done);
    let status = wait_for(child.id())?;
    // This returns an error when both readers have ended, or when the time is up.
    while all_done.recv_timeout(LINGER).is_ok() {}
    Ok(code(status))
}

/// Runs an interactive shell on the serial console, as a session leader so that Ctrl-C and job control work.
///
/// # Errors
/// When the console cannot be opened or the shell cannot be started.
pub fn shell() -> Result<i32> {
    const CONSOLE: &str = if cfg!(target_arch = "aarch64") { "/dev/ttyAMA0" } else { "/dev/ttyS0" };
    let tty = File::options().read(true).write(true).open(CONSOLE).context(CONSOLE)?;
    let mut shell = Command::new("setsid");
    shell.args(["-c", "/bin/sh", "-l"]).env_clear().envs(ENV).current_dir("/");
    shell.stdin(tty.try_clone()?).stdout(tty.try_clone()?).stderr(tty);
    let child = shell.spawn().context("cannot start setsid and /bin/sh")?;
    Ok(code(wait_for(child.id())?))
}

/// Kills every process but PID 1 and waits until all are gone.
pub fn kill_all() {
    // SAFETY: a system call without pointers. From PID 1, -1 stands for all other processes.
    unsafe { libc::kill(-1, libc::SIGKILL) };
    while wait(WaitOptions::empty()).is_ok() {}
}

/// Waits for `pid`, and reaps every orphan that ends before it, as PID 1 must.
fn wait_for(pid: u32) -> Result<WaitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended.as_raw_nonzero().get().unsigned_abs() == pid => {
                return Ok(status);
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e).with_context(|| format!("cannot wait for process {pid}")),
        }
    }
}

/// Returns the exit status as a shell does: 128 + n for death by signal n.
fn code(status: WaitStatus) -> i32 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => code,
        (None, signal) => 128 + signal.unwrap_or_default(),
    }
}

/// Reads `pipe` in a thread of its own, and sends the text as it comes.
fn forward(
    mut pipe: impl Read + Send + 'static,
    mut out: Reporter,
    message: fn(String) -> Message,
    done: mpsc::Sender<()>,
) {
    thread::spawn(move || {
        let mut pending = Vec::new();
        let mut piece = [0; PIECE_BYTES];
        while let Ok(n @ 1..) = pipe.read(&mut piece) {
            pending.extend_from_slice(&piece[..n]);
            let text = take_text(&mut pending);
            if !text.is_empty() {
                out.send(&message(text));
            }
        }
        if !pending.is_empty() {
            out.send(&message(String::from_utf8_lossy(&pending).into_owned()));
        }
        // The receiver waits until all senders are gone.
        drop(done);
    });
}

/// Takes the text out of `bytes`, except for an incomplete character at its end. Invalid UTF-8 becomes
/// U+FFFD.
fn take_text(bytes: &mut Vec<u8>) -> String {
    // A character has at most four bytes. If one begins in the last three bytes and is incomplete, it stays
    // for the next piece.
    let cut = (1..=bytes.len().min(3))
        .map(|back| bytes.len() - back)
        .find(|&at| matches!(std::str::from_utf8(&bytes[at..]), Err(e) if e.valid_up_to() == 0 && e.error_len().is_none()))
        .unwrap_or(bytes.len());
    let rest = bytes.split_off(cut);
    let text = String::from_utf8_lossy(bytes).into_owned();
    *bytes = rest;
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_is_cut_in_two_is_not_lost() {
        let mut pending = b"gr\xc3".to_vec();
        assert_eq!(take_text(&mut pending), "gr");
        pending.extend_from_slice(b"\xbcn \xe2\x82");
        assert_eq!(take_text(&mut pending), "\u{fc}n ");
        pending.extend_from_slice(b"\xac!");
        assert_eq!(take_text(&mut pending), "\u{20ac}!");
        assert!(pending.is_empty());
    }

    #[test]
    fn invalid_utf8_does_not_end_the_stream() {
        let mut pending = b"a\xff\xfeb".to_vec();
        assert_eq!(take_text(&mut pending), "a\u{fffd}\u{fffd}b");
        assert!(pending.is_empty());
    }
}
