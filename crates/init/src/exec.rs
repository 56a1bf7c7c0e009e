//! Processes that PID 1 starts, and the duties of PID 1: wait for the one that matters, reap
//! every orphan meanwhile.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::{thread, time::Duration};

use anyhow::{Context as _, Result, bail};
use rustix::io::Errno;
use rustix::process::{WaitOptions, WaitStatus, wait};

use crate::report::Reporter;

/// What jobs find in their environment.
const ENV: [(&str, &str); 4] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/root"),
    ("TERM", "linux"),
    ("LANG", "C.UTF-8"),
];

/// The program that knows the scenarios; the host puts it there for a job that names one.
const SCENARIOS: &str = "/bin/guest";

/// The exit statuses of a shell for a command that is missing or cannot be run.
const NOT_FOUND: i32 = 127;
const NOT_RUNNABLE: i32 = 126;

/// Output is passed on in pieces of at most this many bytes, so that even a piece that JSON
/// escapes sixfold fits into one write of the virtio port (32 KiB): one line, never mixed.
const PIECE: usize = 4096;

/// How long output may still come in after the command itself has ended, in case something
/// it left in the background holds the pipe.
const LINGER: Duration = Duration::from_secs(1);

/// Runs a scenario in a process of its own and gives its exit status.
///
/// # Errors
/// When the process cannot be started or waited for.
pub fn scenario(name: &str, args: &[String], out: &mut Reporter) -> Result<i32> {
    let mut worker = Command::new(SCENARIOS);
    worker.arg("scenario").arg(name).args(args).env_clear().envs(ENV);
    let child = worker.stdin(out.try_clone()?).spawn().context("cannot start the scenario")?;
    let status = wait_for(child.id())?;
    if let Some(signal) = status.terminating_signal() {
        out.note(&format!("scenario {name} was killed by signal {signal}"));
    }
    Ok(code(status))
}

/// Runs a program, passes its output on while it comes, and gives its exit status.
///
/// # Errors
/// When the command line is empty or the program cannot be waited for. A program that cannot
/// be started is status 127 or 126, as in a shell.
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
            out.err(&format!("{program}: {e}\n"));
            let missing = e.kind() == std::io::ErrorKind::NotFound;
            return Ok(if missing { NOT_FOUND } else { NOT_RUNNABLE });
        }
    };
    let (done, all_done) = mpsc::channel();
    if let Some(pipe) = child.stdout.take() {
        pass_on(pipe, out.try_clone()?, Reporter::out, done.clone());
    }
    if let Some(pipe) = child.stderr.take() {
        pass_on(pipe, out.try_clone()?, Reporter::err, done.clone());
    }
    drop(done);
    let status = wait_for(child.id())?;
    // Ends with an error either when both readers are through or when the time is.
    while all_done.recv_timeout(LINGER).is_ok() {}
    Ok(code(status))
}

/// An interactive shell on the serial console, as a session leader so that Ctrl-C and job
/// control work.
///
/// # Errors
/// When the console cannot be opened or the shell cannot be started.
pub fn shell() -> Result<i32> {
    const CONSOLE: &str = "/dev/ttyS0";
    let tty = File::options().read(true).write(true).open(CONSOLE).context(CONSOLE)?;
    let mut shell = Command::new("/bin/busybox");
    shell.args(["setsid", "-c", "/bin/sh", "-l"]).env_clear().envs(ENV).current_dir("/");
    shell.stdin(tty.try_clone()?).stdout(tty.try_clone()?).stderr(tty);
    let child = shell.spawn().context("cannot start /bin/busybox sh")?;
    Ok(code(wait_for(child.id())?))
}

/// Kills every process but PID 1 and waits until all are gone.
pub fn kill_all() {
    // SAFETY: plain system call without pointers; -1 from PID 1 means everybody else.
    unsafe { libc::kill(-1, libc::SIGKILL) };
    while wait(WaitOptions::empty()).is_ok() {}
}

/// Waits for `pid` and, as PID 1 must, for every orphan that ends before it.
fn wait_for(pid: u32) -> Result<WaitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((who, status))) if who.as_raw_nonzero().get().unsigned_abs() == pid => {
                return Ok(status);
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e).with_context(|| format!("cannot wait for process {pid}")),
        }
    }
}

/// A shell's notion of an exit status: 128 + n for death by signal n.
fn code(status: WaitStatus) -> i32 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => code,
        (None, signal) => 128 + signal.unwrap_or_default(),
    }
}

/// Reads `pipe` on a thread and sends what comes, as it comes.
fn pass_on(
    mut pipe: impl Read + Send + 'static,
    mut out: Reporter,
    send: fn(&mut Reporter, &str),
    done: mpsc::Sender<()>,
) {
    thread::spawn(move || {
        let mut held = Vec::new();
        let mut piece = [0; PIECE];
        while let Ok(n @ 1..) = pipe.read(&mut piece) {
            held.extend_from_slice(&piece[..n]);
            let text = take_text(&mut held);
            if !text.is_empty() {
                send(&mut out, &text);
            }
        }
        if !held.is_empty() {
            send(&mut out, &String::from_utf8_lossy(&held));
        }
        // The receiver only cares that all senders are gone.
        drop(done);
    });
}

/// Takes the text out of `bytes`, but leaves a character there that is cut off at the end; what
/// is no UTF-8 becomes U+FFFD.
fn take_text(bytes: &mut Vec<u8>) -> String {
    // A character is at most four bytes: if the last of up to three trailing bytes starts one
    // that is not complete, it stays for the next piece.
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
    fn a_character_cut_in_two_stays_whole() {
        let mut held = b"gr\xc3".to_vec();
        assert_eq!(take_text(&mut held), "gr");
        held.extend_from_slice(b"\xbcn \xe2\x82");
        assert_eq!(take_text(&mut held), "\u{fc}n ");
        held.extend_from_slice(b"\xac!");
        assert_eq!(take_text(&mut held), "\u{20ac}!");
        assert!(held.is_empty());
    }

    #[test]
    fn what_is_no_text_does_not_stop_the_stream() {
        let mut held = b"a\xff\xfeb".to_vec();
        assert_eq!(take_text(&mut held), "a\u{fffd}\u{fffd}b");
        assert!(held.is_empty());
    }
}
