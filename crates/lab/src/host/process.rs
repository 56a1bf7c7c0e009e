// SPDX-License-Identifier: GPL-2.0-only
//! Runs commands, and keeps their logs.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{self, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use fs_err::{self as fs, File};
use rustix::process::{Pid, Signal};

use super::interrupt::cleanup;
use crate::progress::Step;

/// How long a killed child may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A child process that cannot outlive the lab. If it is dropped while it runs, it is killed with its group.
pub struct Child {
    inner: process::Child,
    group: Pid,
    reaped: bool,
}

/// Starts `command` in its own process group. It is killed when the lab ends for any reason, and also when
/// the *thread* that started it ends; so wait for it in that thread.
///
/// # Errors
/// When the program cannot be started; the message names it.
pub fn spawn(command: &mut Command) -> Result<Child> {
    let parent = rustix::process::getpid();
    command.process_group(0);
    // SAFETY: between fork and exec the closure only makes system calls.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the line above took effect.
            if rustix::process::getppid() != Some(parent) {
                return Err(ErrorKind::Interrupted.into());
            }
            Ok(())
        });
    }
    let mut cleanup = cleanup();
    let inner = command.spawn().map_err(|e| {
        let program = command.get_program().to_string_lossy().into_owned();
        match e.kind() {
            ErrorKind::NotFound => anyhow!("{program}: not found; `lab doctor` says what to install"),
            _ => anyhow!(e).context(format!("cannot start {program}")),
        }
    })?;
    let group = Pid::from_child(&inner);
    cleanup.groups.push(group);
    Ok(Child { inner, group, reaped: false })
}

impl Child {
    /// Returns the process ID of the child, which is also that of its group.
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// Returns the process, for access to its pipes.
    pub fn pipes(&mut self) -> &mut process::Child {
        &mut self.inner
    }

    /// Waits until the child ends and returns its status.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let status = self.inner.wait().context("waiting for a child")?;
        self.forget();
        Ok(status)
    }

    /// Returns the status if the child has ended.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.inner.try_wait().context("waiting for a child")?;
        if status.is_some() {
            self.forget();
        }
        Ok(status)
    }

    /// Kills the child and all of its group.
    pub fn kill(&self) {
        if !self.reaped {
            // Errors are ignored: the group may be gone already.
            let _ = rustix::process::kill_process_group(self.group, Signal::KILL);
        }
    }

    /// Kills the child and all of its group, and waits until the child has ended. One that is stuck inside the kernel,
    /// as QEMU can be in KVM, is given up after a while.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn kill_and_wait(&mut self) -> Result<()> {
        self.kill();
        let deadline = Instant::now() + KILL_TIMEOUT;
        while self.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                // Dropping it would wait for it for ever.
                self.forget();
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn forget(&mut self) {
        if !self.reaped {
            self.reaped = true;
            cleanup().groups.retain(|&g| g != self.group);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            let _ = self.inner.wait();
            self.forget();
        }
    }
}

/// The environment variables that [`tool`] passes on, besides [`PROXY_ENVIRONMENT`]: what a program needs to run.
/// None of them changes the behaviour of compilers, linkers, ccache or makefiles, or the language of
/// messages.
const PASSED_ENVIRONMENT: &[&str] = &["PATH", "HOME", "TMPDIR", "USER", "LOGNAME"];

/// The variables that say how to reach the network; sudo drops them.
const PROXY_ENVIRONMENT: &[&str] =
    &["http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

/// Returns the number of CPUs that the lab may use; 1 if it is unknown.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns a command for a program whose result must depend only on its inputs, because the result is cached
/// under their content key. Of the user's environment it gets [`PASSED_ENVIRONMENT`] and [`proxies`]. Make uses every
/// environment variable as one of its own, and a kernel developer's shell may have `LLVM`, `KCFLAGS` or `W`
/// set. A list of variables to remove would never be complete.
pub fn tool(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(set_of(PASSED_ENVIRONMENT)).envs(proxies()).env("LC_ALL", "C");
    command
}

/// Returns the user's settings of [`PROXY_ENVIRONMENT`].
pub(super) fn proxies() -> impl Iterator<Item = (&'static str, OsString)> {
    set_of(PROXY_ENVIRONMENT)
}

fn set_of(names: &'static [&'static str]) -> impl Iterator<Item = (&'static str, OsString)> {
    names.iter().filter_map(|&name| Some((name, std::env::var_os(name)?)))
}

/// Runs `command` with nothing on stdin and returns its stdout.
///
/// # Errors
/// When it cannot be started or fails. The message has the command and its stderr.
pub fn output(command: &mut Command) -> Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(command)?;
    let stderr = child.inner.stderr.take().map(|mut pipe| {
        thread::spawn(move || {
            let mut text = Vec::new();
            // The text is only for messages, so a read error is ignored.
            let _ = pipe.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    });
    let mut stdout = Vec::new();
    if let Some(mut pipe) = child.inner.stdout.take() {
        pipe.read_to_end(&mut stdout).context("reading a child's output")?;
    }
    let status = child.wait()?;
    let stderr = stderr.and_then(|t| t.join().ok()).unwrap_or_default();
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    if !status.success() {
        let said = if stderr.trim().is_empty() { &stdout } else { &stderr };
        bail!("`{}` failed ({status}): {}", command_text(command), said.trim());
    }
    Ok(stdout)
}

/// Runs `command` and returns its status; a status other than 0 is no error. Stdout and stderr are written in
/// order to the file `log` and passed line by line to `on_line`.
///
/// # Errors
/// When the log cannot be written or the command cannot be started.
pub fn run_logged(command: &mut Command, log: &Path, mut on_line: impl FnMut(&str)) -> Result<ExitStatus> {
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = File::create(log)?;
    writeln!(file, "$ {}", command_text(command))?;
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let second: OwnedFd = writer.try_clone()?;
    command.stdin(Stdio::null()).stdout(writer).stderr(second);
    let mut child = spawn(command)?;
    // `command` holds writing ends of the pipe. While it does, the reader does not see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut lines = BufReader::new(std::fs::File::from(reader));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        file.write_all(&line)?;
        on_line(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    child.wait()
}

/// Like [`run_logged`], but shows each line as the step's detail.
///
/// # Errors
/// As [`run_logged`], and when the command fails. The message has the end of the log and its path.
pub fn run_step(step: &Step, command: &mut Command, log: &Path) -> Result<()> {
    let status = run_logged(command, log, |line| step.detail(line))?;
    if !status.success() {
        bail!("`{}` failed ({status}); the end of {}:\n{}", command_text(command), log.display(), tail(log, 15));
    }
    Ok(())
}

/// Returns the last `lines` lines of a text file, indented; empty if it cannot be read.
pub fn tail(log: &Path, lines: usize) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines);
    all[from..].iter().map(|l| format!("  {l}")).collect::<Vec<_>>().join("\n")
}

/// Returns the command line, quoted for a shell.
pub fn command_text(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| shell_quoted(&word.to_string_lossy()))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns a word of a command line, in single quotes if a shell would not take it literally.
pub fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_returns_stdout_and_quotes_stderr_on_failure() {
        assert_eq!(output(Command::new("echo").arg("hello")).unwrap(), "hello\n");
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("`sh -c 'echo why >&2; exit 3'` failed") && text.contains("why"), "{text}");
        let error = output(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(error.to_string().starts_with("no-such-program-here: not found"), "{error}");
    }

    #[test]
    fn a_logged_run_keeps_both_streams_and_the_status() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("logs/x.log");
        let mut seen = Vec::new();
        let status = run_logged(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 7"]), &log, |line| {
            seen.push(line.to_owned())
        })
        .unwrap();
        assert_eq!(status.code(), Some(7));
        assert_eq!(seen, ["one", "two"]);
        assert_eq!(tail(&log, 2), "  one\n  two");
    }

    #[test]
    fn a_dropped_child_dies_with_its_group() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(Stdio::piped());
        let mut child = spawn(&mut command).unwrap();
        let mut line = String::new();
        let pipe = child.pipes().stdout.take().unwrap();
        BufReader::new(pipe).read_line(&mut line).unwrap();
        drop(child);
        let proc = Path::new("/proc").join(line.trim()).join("stat");
        // Without an init that reaps orphans the killed grandchild stays as a zombie.
        let gone = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(10));
            fs::read_to_string(&proc).map_or(true, |stat| stat.contains(") Z "))
        });
        assert!(gone, "the grandchild lives on");
    }
}
