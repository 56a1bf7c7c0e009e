// SPDX-License-Identifier: GPL-2.0-only
//! The host: commands run for the lab, their logs, Debian packages, and what Ctrl-C leaves.
//!
//! Every child runs in its own process group and dies with the lab. Whatever is being made is
//! made under a [`Staging`] name; an interrupt kills the children and removes the stagings, so
//! a later run finds either a finished thing or nothing.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, IsTerminal as _, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::{Pid, Signal};

use crate::context::Context;
use crate::progress::{Step, unpoisoned};

/// What has to go when the run is interrupted.
struct CleanupList {
    groups: Vec<Pid>,
    stagings: Vec<PathBuf>,
}

static CLEANUP: Mutex<CleanupList> = Mutex::new(CleanupList { groups: Vec::new(), stagings: Vec::new() });

fn cleanup() -> MutexGuard<'static, CleanupList> {
    unpoisoned(&CLEANUP)
}

/// From here on SIGINT, SIGTERM and SIGHUP end the run cleanly: children killed, half-built
/// things removed, exit code 130. Call it first in `main`, before any thread exists.
///
/// # Errors
/// When the thread that waits for the signals cannot be started.
pub fn exit_cleanly_on_interrupt() -> Result<()> {
    // SAFETY: an all-zero sigset_t is valid memory for sigemptyset, which initialises it; the
    // other calls get that set and no other pointer.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        // Blocked here and in all later threads; spawn() opens the mask again for children.
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        set
    };
    std::thread::Builder::new()
        .name("interrupt".into())
        .spawn(move || {
            let mut signal = 0;
            // SAFETY: both pointers are to live locals of the right type.
            unsafe { libc::sigwait(&raw const set, &raw mut signal) };
            interrupted()
        })
        .context("cannot start the thread that waits for Ctrl-C")?;
    Ok(())
}

fn interrupted() -> ! {
    // Locked until exit: from now on no child starts and no staging is made or renamed.
    let cleanup = cleanup();
    // First politely: a child may be a lab itself, with things of its own to remove. A group
    // that is gone already is what we want, so errors do not matter.
    let signal = |signal| {
        for &group in &cleanup.groups {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    };
    signal(Signal::TERM);
    let deadline = Instant::now() + Duration::from_secs(3);
    let alive = || cleanup.groups.iter().any(|&g| rustix::process::test_kill_process_group(g).is_ok());
    while alive() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(Signal::KILL);
    for path in &cleanup.stagings {
        // Our own threads may still be writing there for a moment: try again.
        for _ in 0..50 {
            if remove_any(path).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    if std::io::stderr().is_terminal() {
        // A spinner may have hidden the cursor.
        eprintln!("\x1b[?25h");
    }
    eprintln!("interrupted");
    process::exit(130)
}

/// Removes a file or a folder with all in it; gone already is fine.
///
/// # Errors
/// When something remains that cannot be removed.
pub fn remove_any(path: &Path) -> std::io::Result<()> {
    let result = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match result {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A child that cannot outlive the lab. Dropped while it runs, it is killed with its group.
pub struct Child {
    inner: process::Child,
    group: Pid,
    reaped: bool,
}

/// Starts `command` in its own process group, to be killed when the lab ends, however that is.
/// The child also dies with the *thread* that started it: wait for it there.
///
/// # Errors
/// When the program cannot be started; the message names it.
pub fn spawn(command: &mut Command) -> Result<Child> {
    let parent = rustix::process::getpid();
    command.process_group(0);
    // SAFETY: between fork and exec the closure only makes system calls; sigset_t is plain
    // memory that sigemptyset initialises.
    unsafe {
        command.pre_exec(move || {
            // std leaves the mask alone, and ours keeps the signals that end a program blocked.
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
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
    /// The child's process id, also its group's.
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// The pipes, as [`std::process::Child`] has them.
    pub fn pipes(&mut self) -> &mut process::Child {
        &mut self.inner
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let status = self.inner.wait().context("waiting for a child")?;
        self.forget();
        Ok(status)
    }

    /// The status if the child has ended.
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
            // Gone already is what we want.
            let _ = rustix::process::kill_process_group(self.group, Signal::KILL);
        }
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

/// What a program needs of the user's environment to run at all and to reach the network. Nothing
/// by which a compiler, a linker, ccache or a kernel's makefile can be told to work differently,
/// and nothing that changes the language of messages.
const PASSED_ENVIRONMENT: &[&str] = &[
    "PATH",
    "HOME",
    "TMPDIR",
    "USER",
    "LOGNAME",
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

/// How many CPUs the lab may use; 1 where the system does not say.
#[must_use]
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A program of whose result the lab believes that its inputs alone decide, as a build that is
/// found again by their contents: it sees little of the user's environment. Make takes every
/// variable that it finds there for one of its own, and a shell that works on kernels may well
/// have `LLVM`, `KCFLAGS` or `W` set. A list of those to keep out would never be complete, so
/// this is a list of those to let in.
pub fn tool(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    let passed = PASSED_ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    command.env_clear().envs(passed).env("LC_ALL", "C");
    command
}

/// Runs `command` with nothing on stdin and returns its stdout.
///
/// # Errors
/// When it cannot be started or fails; the message carries the command and its stderr.
pub fn output(command: &mut Command) -> Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(command)?;
    let stderr = child.inner.stderr.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            // What cannot be read cannot be quoted; the exit status still decides.
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

/// Runs `command` with stdout and stderr going, in order, to the file `log` and line by line to
/// `on_line`. A non-zero exit is no error: the status is returned.
///
/// # Errors
/// When the log cannot be written or the command cannot be started.
pub fn run_logged(command: &mut Command, log: &Path, mut on_line: impl FnMut(&str)) -> Result<ExitStatus> {
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let cannot_write = || format!("cannot write {}", log.display());
    let mut file = File::create(log).with_context(cannot_write)?;
    writeln!(file, "$ {}", command_text(command)).with_context(cannot_write)?;
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let second: OwnedFd = writer.try_clone()?;
    command.stdin(Stdio::null()).stdout(writer).stderr(second);
    let mut child = spawn(command)?;
    // The command holds the pipe's writing ends; without this the reader never sees the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut lines = BufReader::new(File::from(reader));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        file.write_all(&line).with_context(cannot_write)?;
        on_line(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    child.wait()
}

/// Like [`run_logged`], showing each line as the step's detail.
///
/// # Errors
/// As [`run_logged`], and when the command fails: the message holds the log's end and path.
pub fn run_step(step: &Step, command: &mut Command, log: &Path) -> Result<()> {
    let status = run_logged(command, log, |line| step.detail(line))?;
    if !status.success() {
        bail!(
            "`{}` failed ({status}); the end of {}:\n{}",
            command_text(command),
            log.display(),
            tail(log, 15)
        );
    }
    Ok(())
}

/// The last `lines` lines of a text file, indented; empty if it cannot be read.
pub fn tail(log: &Path, lines: usize) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines);
    all[from..].iter().map(|l| format!("  {l}")).collect::<Vec<_>>().join("\n")
}

/// A command as one would type it, for messages.
pub fn command_text(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// One word of a command line, in single quotes where a shell would read it as anything else.
#[must_use]
pub fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A file or folder in the making. Unless [`Staging::publish`]ed it is removed again: on drop,
/// and by an interrupt. A staging that a killed run left is removed when its successor begins.
pub struct Staging {
    path: PathBuf,
}

impl Staging {
    /// Reserves `<target>.partial`, empty. The caller holds a lock that makes it the only one
    /// to work on `target`.
    ///
    /// # Errors
    /// When leftovers cannot be removed or the parent folder cannot be made.
    pub fn begin(target: &Path) -> Result<Self> {
        let mut name = target.as_os_str().to_owned();
        name.push(".partial");
        let path = PathBuf::from(name);
        remove_any(&path).with_context(|| format!("cannot remove the leftover {}", path.display()))?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        cleanup().stagings.push(path.clone());
        Ok(Self { path })
    }

    /// Where to write.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the finished thing its name in one atomic step, replacing what had it before.
    ///
    /// # Errors
    /// When the rename fails.
    pub fn publish(self, target: &Path) -> Result<()> {
        if target.is_dir() {
            remove_any(target).with_context(|| format!("cannot replace {}", target.display()))?;
        }
        let mut cleanup = cleanup();
        fs::rename(&self.path, target)
            .with_context(|| format!("cannot rename {} to {}", self.path.display(), target.display()))?;
        cleanup.stagings.retain(|p| *p != self.path);
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After publish() there is nothing at this path any more. What cannot be removed is
        // never trusted either: only published names are.
        let _ = remove_any(&self.path);
        cleanup().stagings.retain(|p| *p != self.path);
    }
}

/// Replaces `path` by `text` in one step, so no reader ever sees half a file.
///
/// # Errors
/// When the folder cannot be created or written.
pub fn write_atomically(path: &Path, text: &str) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let failed = || format!("{}: cannot write", path.display());
    fs::create_dir_all(dir).with_context(failed)?;
    let mut file = tempfile::Builder::new()
        .prefix(".writing-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(dir)
        .with_context(failed)?;
    file.write_all(text.as_bytes()).with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(())
}

/// Takes the exclusive lock `<target>.lock`, waiting for another lab that holds it. Released
/// when the returned file is dropped.
///
/// # Errors
/// When the lock file cannot be made.
pub fn lock(ctx: &Context, target: &Path) -> Result<File> {
    use rustix::fs::FlockOperation::{LockExclusive, NonBlockingLockExclusive};
    let mut name = target.as_os_str().to_owned();
    name.push(".lock");
    let path = PathBuf::from(name);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    if rustix::fs::flock(&file, NonBlockingLockExclusive).is_err() {
        ctx.progress.note(&format!("waiting for another lab that works on {}", target.display()));
        rustix::fs::flock(&file, LockExclusive).with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

/// A Debian package, and what shows that its content is there, by whatever means it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pkg {
    /// The name to give to apt.
    pub name: &'static str,
    /// How to see that it is there.
    pub probe: Probe,
}

/// What shows that a package's content is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A program in `PATH`.
    Tool(&'static str),
    /// A file, by its absolute path.
    File(&'static str),
    /// Nothing simpler than dpkg's own record.
    Dpkg,
}

impl Pkg {
    /// A package that is there when `tool` is in `PATH`.
    pub const fn tool(name: &'static str, tool: &'static str) -> Self {
        Self { name, probe: Probe::Tool(tool) }
    }

    /// A package that is there when dpkg has it installed.
    pub const fn dpkg(name: &'static str) -> Self {
        Self { name, probe: Probe::Dpkg }
    }

    /// Whether the package's content is there.
    pub fn is_present(&self) -> bool {
        match self.probe {
            Probe::Tool(tool) => find_tool(tool).is_some(),
            Probe::File(path) => Path::new(path).exists(),
            Probe::Dpkg => {
                let mut query = Command::new("dpkg-query");
                query.args(["-W", "-f=${db:Status-Status}", self.name]);
                output(&mut query).is_ok_and(|status| status.split_whitespace().any(|s| s == "installed"))
            }
        }
    }
}

/// What building a kernel takes.
pub const KERNEL_BUILD_PACKAGES: &[Pkg] = &[
    Pkg::tool("gcc", "gcc"),
    Pkg { name: "libc6-dev", probe: Probe::File("/usr/include/stdio.h") },
    Pkg::tool("binutils", "ld"),
    Pkg::tool("make", "make"),
    Pkg::tool("flex", "flex"),
    Pkg::tool("bison", "bison"),
    Pkg::tool("bc", "bc"),
    Pkg { name: "libelf-dev", probe: Probe::File("/usr/include/libelf.h") },
    Pkg { name: "libssl-dev", probe: Probe::File("/usr/include/openssl/ssl.h") },
    Pkg::tool("kmod", "depmod"),
    Pkg::tool("cpio", "cpio"),
    Pkg::tool("xz-utils", "xz"),
    Pkg::tool("ccache", "ccache"),
    Pkg::tool("patch", "patch"),
];

/// What getting the kernel's source takes, beyond apt itself.
pub const SOURCE_PACKAGES: &[Pkg] =
    &[Pkg::tool("xz-utils", "xz"), Pkg::tool("tar", "tar"), Pkg::tool("dpkg", "dpkg-deb")];

/// What exporting the topics as a series takes.
pub const SERIES_PACKAGES: &[Pkg] = &[Pkg::tool("git", "git"), Pkg::tool("patch", "patch")];

/// What booting guests takes.
pub const GUEST_PACKAGES: &[Pkg] =
    &[Pkg::tool("qemu-system-x86", "qemu-system-x86_64"), Pkg::tool("busybox-static", "busybox")];

/// What the hosted kernel tests take.
pub const HOSTED_TEST_PACKAGES: &[Pkg] =
    &[Pkg::tool("clang-19", "clang-19"), Pkg::dpkg("libclang-rt-19-dev")];

/// What checking the kernel code takes.
pub const LINT_PACKAGES: &[Pkg] = &[Pkg::tool("sparse", "sparse")];

/// Where `tool` is in `PATH`. The system's own folders are looked at as well, because root's
/// tools are often missing from a user's `PATH`.
pub fn find_tool(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .map(|folder| folder.join(tool))
        .find(|file| file.is_file())
}

/// Installs those of `packages` that are missing, as root or through sudo.
///
/// # Errors
/// When something is missing and neither way is open (one line with the command to run), or
/// when apt fails (the end of its log).
pub fn ensure_packages(ctx: &Context, packages: &[Pkg]) -> Result<()> {
    let missing: Vec<&str> = packages.iter().filter(|p| !p.is_present()).map(|p| p.name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    let Some(apt) = apt_as_root() else {
        bail!("missing Debian packages; run: sudo apt-get install --no-install-recommends {names}");
    };
    let step = ctx.progress.step(&format!("installing {names}"));
    let log = ctx.out.join("logs/apt.log");
    let install = || {
        let mut command = apt();
        command.args(["install", "--no-install-recommends", "-y"]).args(&missing);
        run_step(&step, &mut command, &log)
    };
    // An update takes long, so it comes only when apt's lists are missing or out of date.
    if let Err(first) = install() {
        step.detail("apt-get update");
        apt_update(&step, &log, &apt).map_err(|e| e.context(first))?;
        install()?;
    }
    let still: Vec<&str> = packages.iter().filter(|p| !p.is_present()).map(|p| p.name).collect();
    if !still.is_empty() {
        bail!("apt-get reports success but these are still missing: {}", still.join(" "));
    }
    step.done("installed");
    Ok(())
}

/// Refreshes apt's lists if that is permitted; `Ok(false)` if it is not.
///
/// # Errors
/// When apt-get fails.
pub fn refresh_apt_lists(ctx: &Context) -> Result<bool> {
    let Some(apt) = apt_as_root() else { return Ok(false) };
    let step = ctx.progress.step("apt-get update");
    apt_update(&step, &ctx.out.join("logs/apt-update.log"), &apt)?;
    step.done("");
    Ok(true)
}

fn apt_update(step: &Step, log: &Path, apt: &impl Fn() -> Command) -> Result<()> {
    let mut command = apt();
    command.arg("update");
    run_step(step, &mut command, log)
}

/// How to start an apt-get that may change the system: as root, or through a sudo that asks
/// nothing.
fn apt_as_root() -> Option<impl Fn() -> Command> {
    find_tool("apt-get")?;
    let sudo = !rustix::process::geteuid().is_root();
    if sudo {
        let mut probe = Command::new("sudo");
        output(probe.args(["-n", "true"])).ok()?;
    }
    Some(move || {
        let settings = ["DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"];
        let mut command = Command::new(if sudo { "sudo" } else { "env" });
        if sudo {
            command.args(["-n", "env"]);
        }
        // Wait for another apt instead of failing at once.
        command.args(settings).args(["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120"]);
        command
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Progress;

    fn context(root: &Path) -> Context {
        Context {
            repo: root.to_path_buf(),
            cache: root.join("cache"),
            out: root.join("out"),
            kernel: None,
            progress: Progress::quiet(),
        }
    }

    #[test]
    fn output_returns_stdout_and_quotes_stderr_on_failure() {
        assert_eq!(output(Command::new("echo").arg("hello")).unwrap(), "hello\n");
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
        let error = output(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(error.to_string().starts_with("no-such-program-here: not found"), "{error}");
    }

    #[test]
    fn a_logged_run_keeps_both_streams_and_the_status() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("logs/x.log");
        let mut seen = Vec::new();
        let status =
            run_logged(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 7"]), &log, |line| {
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
            std::thread::sleep(Duration::from_millis(10));
            fs::read_to_string(&proc).map_or(true, |stat| stat.contains(") Z "))
        });
        assert!(gone, "the grandchild lives on");
    }

    #[test]
    fn a_staging_is_published_whole_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("thing");
        let staging = Staging::begin(&target).unwrap();
        fs::create_dir(staging.path()).unwrap();
        fs::write(staging.path().join("a"), "half").unwrap();
        drop(staging);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        // What a killed run left is not trusted.
        fs::create_dir(dir.path().join("thing.partial")).unwrap();
        fs::write(dir.path().join("thing.partial/old"), "").unwrap();
        let staging = Staging::begin(&target).unwrap();
        assert!(!staging.path().exists());
        fs::create_dir(staging.path()).unwrap();
        fs::write(staging.path().join("a"), "whole").unwrap();
        staging.publish(&target).unwrap();
        assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "whole");
        assert!(!target.join("old").exists());
    }

    #[test]
    fn a_lock_keeps_the_second_out() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = context(dir.path());
        let target = dir.path().join("k");
        let first = lock(&ctx, &target).unwrap();
        let other = File::create(dir.path().join("k.lock")).unwrap();
        let try_lock = || rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        assert!(try_lock().is_err());
        drop(first);
        assert!(try_lock().is_ok());
    }

    #[test]
    fn present_packages_need_no_apt() {
        let dir = tempfile::tempdir().unwrap();
        ensure_packages(&context(dir.path()), &[Pkg::tool("coreutils", "cp")]).unwrap();
    }
}
