// SPDX-License-Identifier: GPL-2.0-only
//! The host: runs commands and keeps their logs, installs Debian packages, and cleans up after an interrupt.
//!
//! Every child process has its own process group and dies with the lab. Files and folders are built under a
//! temporary name ([`Staging`]). An interrupt kills the children and removes the stagings, so a later run
//! finds either a complete result or none.

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

/// How long children have after SIGTERM to clean up before they are killed.
const TERM_GRACE: Duration = Duration::from_secs(3);

/// What is killed and removed when the lab is interrupted.
struct CleanupList {
    groups: Vec<Pid>,
    stagings: Vec<PathBuf>,
}

static CLEANUP: Mutex<CleanupList> = Mutex::new(CleanupList { groups: Vec::new(), stagings: Vec::new() });

fn cleanup() -> MutexGuard<'static, CleanupList> {
    unpoisoned(&CLEANUP)
}

/// Makes SIGINT, SIGTERM and SIGHUP end the lab cleanly: kill the children, remove stagings, exit with 130.
/// Call it first in `main`, before any thread exists.
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
        // Blocked in this and all later threads. spawn() unblocks them for children.
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

/// Lets this process have more open files than the usual 1,024: the log folder of every boot stays locked until it
/// ends, and a comparison may have 2,000.
pub fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    const ENOUGH: u64 = 16_384;
    let mut limit = getrlimit(Resource::Nofile);
    let enough = limit.maximum.map_or(ENOUGH, |most| most.min(ENOUGH));
    if limit.current.is_some_and(|now| now < enough) {
        limit.current = Some(enough);
        // If it fails, the limit is as before.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

fn interrupted() -> ! {
    // Locked until exit, so that no child is started and no staging is made or renamed any more.
    let cleanup = cleanup();
    // SIGTERM first: a child may be a lab with its own cleanup. Errors are ignored: the group may be gone
    // already.
    let signal = |signal| {
        for &group in &cleanup.groups {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    };
    signal(Signal::TERM);
    let deadline = Instant::now() + TERM_GRACE;
    let alive = || cleanup.groups.iter().any(|&g| rustix::process::test_kill_process_group(g).is_ok());
    while alive() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(Signal::KILL);
    for path in &cleanup.stagings {
        // Other threads may still be writing there for a moment, so this may need several attempts.
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

/// Removes a file, or a folder with its content. A path that does not exist is no error.
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
    // SAFETY: between fork and exec the closure only makes system calls; sigset_t is plain
    // memory that sigemptyset initialises.
    unsafe {
        command.pre_exec(move || {
            // The child inherits the signal mask, in which exit_cleanly_on_interrupt() blocks signals.
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

/// The environment variables that [`tool`] passes on: what a program needs to run and to reach the network.
/// None of them changes the behaviour of compilers, linkers, ccache or makefiles, or the language of
/// messages.
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

/// Returns the number of CPUs that the lab may use; 1 if it is unknown.
#[must_use]
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns a command for a program whose result must depend only on its inputs, because the result is cached
/// under their content key. It gets only [`PASSED_ENVIRONMENT`] of the user's environment. Make uses every
/// environment variable as one of its own, and a kernel developer's shell may have `LLVM`, `KCFLAGS` or `W`
/// set. A list of variables to remove would never be complete.
pub fn tool(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    let passed = PASSED_ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    command.env_clear().envs(passed).env("LC_ALL", "C");
    command
}

/// Runs `command` with nothing on stdin and returns its stdout.
///
/// # Errors
/// When it cannot be started or fails. The message has the command and its stderr.
pub fn output(command: &mut Command) -> Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(command)?;
    let stderr = child.inner.stderr.take().map(|mut pipe| {
        std::thread::spawn(move || {
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
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let cannot_write = || format!("cannot write {}", log.display());
    let mut file = File::create(log).with_context(cannot_write)?;
    writeln!(file, "$ {}", command_text(command)).with_context(cannot_write)?;
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let second: OwnedFd = writer.try_clone()?;
    command.stdin(Stdio::null()).stdout(writer).stderr(second);
    let mut child = spawn(command)?;
    // `command` holds writing ends of the pipe. While it does, the reader does not see the end.
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

/// Like [`run_logged`], but shows each line as the step's detail.
///
/// # Errors
/// As [`run_logged`], and when the command fails. The message has the end of the log and its path.
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
#[must_use]
pub fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A file or folder that is being built under a temporary name. Unless it is published
/// ([`Staging::publish`]), it is removed on drop and on an interrupt. A staging that a killed run left is
/// removed by the next one with the same target.
pub struct Staging {
    path: PathBuf,
}

impl Staging {
    /// Reserves the path `<target>.partial`, which does not exist afterwards. The caller must hold a lock on
    /// `target`.
    ///
    /// # Errors
    /// When a leftover cannot be removed or the parent folder cannot be made.
    pub fn begin(target: &Path) -> Result<Self> {
        let mut name = target.as_os_str().to_owned();
        name.push(".partial");
        let path = PathBuf::from(name);
        remove_any(&path).map_err(|e| {
            let shown = path.display();
            let remedy = match e.kind() {
                // As of a debootstrap that was interrupted.
                ErrorKind::PermissionDenied => format!("; run: sudo rm -rf --one-file-system {shown}"),
                _ => String::new(),
            };
            anyhow!(e).context(format!("cannot remove the leftover {shown}{remedy}"))
        })?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        cleanup().stagings.push(path.clone());
        Ok(Self { path })
    }

    /// Returns the temporary path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the staging to `target` atomically and replaces a file or folder there.
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
        // After publish() the path does not exist. Errors are ignored: leftovers are never used, only
        // published names are.
        let _ = remove_any(&self.path);
        cleanup().stagings.retain(|p| *p != self.path);
    }
}

/// Replaces the content of `path` by `text` atomically, so that no reader sees an incomplete file. Creates
/// the folder if necessary.
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

/// Takes the exclusive lock `<target>.lock` and returns the file that holds it; dropping it releases the
/// lock. Waits while another lab holds the lock.
///
/// # Errors
/// When the lock file cannot be created or locked.
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

/// A Debian package, and how to detect its content, which may also have been installed in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pkg {
    /// The package's name for apt.
    pub name: &'static str,
    /// How to detect its content.
    pub probe: Probe,
}

/// How to detect a package's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A program in `PATH`.
    Tool(&'static str),
    /// A file, by its absolute path.
    File(&'static str),
    /// The package's status in dpkg's database.
    Dpkg,
}

impl Pkg {
    /// A package that is present if `tool` is in `PATH`.
    pub const fn tool(name: &'static str, tool: &'static str) -> Self {
        Self { name, probe: Probe::Tool(tool) }
    }

    /// A package that is present if dpkg has it installed.
    pub const fn dpkg(name: &'static str) -> Self {
        Self { name, probe: Probe::Dpkg }
    }

    /// Whether the package's content is present.
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

/// The packages for building a kernel.
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

/// The packages for unpacking the kernel's source, besides apt.
pub const SOURCE_PACKAGES: &[Pkg] =
    &[Pkg::tool("xz-utils", "xz"), Pkg::tool("tar", "tar"), Pkg::tool("dpkg", "dpkg-deb")];

/// The packages for applying topics and exporting them as a series.
pub const SERIES_PACKAGES: &[Pkg] = &[Pkg::tool("git", "git"), Pkg::tool("patch", "patch")];

/// The packages for booting guests.
pub const GUEST_PACKAGES: &[Pkg] =
    &[Pkg::tool("qemu-system-x86", "qemu-system-x86_64"), Pkg::tool("busybox-static", "busybox")];

/// The packages for booting guests with arm64.
pub const ARM64_GUEST_PACKAGES: &[Pkg] =
    &[Pkg::tool("qemu-system-arm", "qemu-system-aarch64"), Pkg::tool("busybox-static", "busybox")];

/// The packages for the kernel code's tests on the host.
pub const HOSTED_TEST_PACKAGES: &[Pkg] =
    &[Pkg::tool("clang-19", "clang-19"), Pkg::dpkg("libclang-rt-19-dev")];

/// The packages for static checks of the kernel code.
pub const LINT_PACKAGES: &[Pkg] = &[Pkg::tool("sparse", "sparse")];

/// Returns the path of `tool`, searched in `PATH` and in the folders for root's tools, which are often
/// missing from a user's `PATH`; `None` if it is not found.
pub fn find_tool(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .map(|folder| folder.join(tool))
        .find(|file| file.is_file())
}

/// Installs the missing ones of `packages`, as root or through sudo.
///
/// # Errors
/// When packages are missing and the lab is neither root nor can use sudo (the message has the command to
/// run), or when apt fails (the message has the end of its log).
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
    // An update takes long, so it is done only if apt's lists are missing or out of date.
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

/// Refreshes apt's lists. Returns `Ok(false)` if that is not permitted.
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

/// Returns a function that makes an apt-get command with root's rights, through sudo if necessary; `None` if
/// there is no apt or sudo asks for a password.
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
        // Waits for another apt instead of failing at once.
        command.args(settings).args(["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120"]);
        command
    })
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

        // A leftover of a killed run is removed.
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
        let ctx = Context::below(dir.path());
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
        ensure_packages(&Context::below(dir.path()), &[Pkg::tool("coreutils", "cp")]).unwrap();
    }
}
