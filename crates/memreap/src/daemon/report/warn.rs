// SPDX-License-Identifier: GPL-2.0-only
//! Warnings and notices of kills, by a command of the administrator's and on the desktops of users who are
//! logged in.
//!
//! Both start programs, which takes memory and time and can hang. So a helper process does it, forked before
//! the daemon enters its sandbox. It gets messages over a socket for which the daemon never waits: when the
//! helper is behind, messages that do not fit are dropped and counted.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fmt};

use linux::process::Comm;
use linux::{Pid, PidFd, child, escape, sched, signal};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};

use super::application;
use super::hook;
use super::monotonic;
use super::record::KillRecord;
use super::text::Text;
use super::warning::Warning;
use crate::config;
use crate::say;

/// The longest message, and so the longest command with its arguments.
const MAX_MESSAGE_BYTES: usize = 4 << 10;
/// How long a command with its arguments, each with a separator, can be: the rest is the settings beside it.
pub(crate) const MAX_COMMAND_BYTES: usize = MAX_MESSAGE_BYTES - 64;
/// How much may wait for the helper: messages that wait for longer than a few commands take are useless.
const SEND_BUFFER_BYTES: usize = 16 << 10;
/// The first byte of a message.
const CONFIGURE_TAG: u8 = b'C';
const EVENT_TAG: u8 = b'E';
const BEFORE_TAG: u8 = b'B';
/// The directory with a directory per user, by number, in which the session bus is.
const USER_RUNTIME_DIRS: &str = "/run/user";
/// Where programs are searched for, and the one for desktop notifications.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const NOTIFIER: &str = "notify-send";

/// The daemon's end of the connection to the helper process.
#[derive(Debug)]
pub struct Warner {
    pub(super) socket: OwnedFd,
    pid: Pid,
    dropped: u64,
}

impl Warner {
    /// Forks the helper. It ends when this is dropped or the daemon dies.
    ///
    /// To be called before there are threads, which the helper would lack, before the daemon has priority and
    /// locked memory, which the helper must not have, before the sandbox, and before files are opened that
    /// the helper must not have.
    ///
    /// # Errors
    /// When there is no room for another process.
    pub fn start() -> io::Result<Self> {
        Self::start_with(0)
    }

    /// As [`Self::start`], with this niceness where that is permitted.
    pub(super) fn start_with(nice: i32) -> io::Result<Self> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, SEND_BUFFER_BYTES)?;
        let daemon = Pid::own();
        let work = || {
            helper(&theirs, daemon, nice);
            0
        };
        // SAFETY: there are no other threads (see above), so the child may do all that a process may.
        let pid = unsafe { child::fork(work) }?;
        Ok(Self { socket: ours, pid, dropped: 0 })
    }

    /// Sends the helper another configuration.
    ///
    /// # Errors
    /// When the command is too long, or the helper is gone or far behind.
    pub fn configure(&self, config: &config::Warn) -> io::Result<()> {
        let mut message = Text::<MAX_MESSAGE_BYTES>::new();
        message.push(&[CONFIGURE_TAG, b'0' + u8::from(config.desktop)]);
        message.show(config.time_limit.as_millis());
        for argument in config.command.iter().flatten() {
            message.push(b"\0");
            message.push(argument.as_bytes());
        }
        if message.is_cut() {
            return Err(io::Error::other(format!("the command is longer than {MAX_MESSAGE_BYTES} bytes")));
        }
        rustix::net::send(&self.socket, message.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Sends the helper a warning.
    pub fn warn(&mut self, warning: &Warning<'_>) {
        let mut event = Event::new("warn", warning.pid, &warning.comm, warning.uid, warning.bytes);
        event.add("MEMREAP_CGROUP", escape(warning.cgroup));
        event.add("MEMREAP_MESSAGE", warning);
        self.send(&event);
    }

    /// Sends the helper a notice of a kill.
    pub fn killed(&mut self, kill: &KillRecord) {
        let mut event = Event::new("killed", kill.pid, &kill.comm, kill.uid, kill.back());
        event.add_decision(kill);
        event.add("MEMREAP_BEFORE", kill.before.name());
        event.add("MEMREAP_ENDING", kill.ending.name());
        event.add("MEMREAP_TOOK_US", kill.took.as_micros());
        event.add("MEMREAP_MESSAGE", kill);
        self.send(&event);
    }

    /// Returns how many messages were dropped because the helper was behind, or gone.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the helper's process ID.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns whether it was sent.
    pub(super) fn send(&mut self, event: &Event) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = rustix::net::send(&self.socket, event.0.as_bytes(), flags).is_ok();
        self.dropped += u64::from(!sent);
        sent
    }
}

/// An event as a message: variables for the command's environment, separated by NULs.
pub(super) struct Event(Text<MAX_MESSAGE_BYTES>);

impl Event {
    fn new(event: &str, pid: Pid, comm: &Comm, uid: u32, bytes: u64) -> Self {
        Self::with_head(&[EVENT_TAG], event, pid, comm, uid, bytes)
    }

    /// A kill that is due: who it is, with a ticket for the answer, which is of use until a time of
    /// [`monotonic`], in microseconds.
    pub(super) fn before(ticket: u32, until_us: u64, kill: &KillRecord) -> Self {
        let mut head = Text::<13>::new();
        head.push(&[BEFORE_TAG]);
        head.push(&ticket.to_le_bytes());
        head.push(&until_us.to_le_bytes());
        let mut new = Self::with_head(head.as_bytes(), "before", kill.pid, &kill.comm, kill.uid, kill.expected);
        new.add_decision(kill);
        new.add("MEMREAP_MESSAGE", kill);
        new
    }

    fn with_head(head: &[u8], event: &str, pid: Pid, comm: &Comm, uid: u32, bytes: u64) -> Self {
        let mut message = Text::new();
        message.push(head);
        let mut new = Self(message);
        new.add("MEMREAP_EVENT", event);
        new.add("MEMREAP_PID", pid);
        // Escaped: scripts often do not expect line ends.
        new.add("MEMREAP_COMM", comm);
        new.add("MEMREAP_UID", uid);
        new.add("MEMREAP_BYTES", bytes);
        new
    }

    /// Adds what is known of a kill when it is decided.
    fn add_decision(&mut self, kill: &KillRecord) {
        self.add("MEMREAP_EXACT", u8::from(kill.exact));
        self.add("MEMREAP_REASON", kill.reason.name());
        self.add("MEMREAP_BECAUSE", escape(kill.because.as_bytes()));
        self.add("MEMREAP_RULE", escape(kill.rule.as_bytes()));
        self.add("MEMREAP_CGROUP", escape(&kill.cgroup[..]));
        for (name, value) in kill.texts(&kill.workload()) {
            self.add(name, escape(value));
        }
        if let Some(parent) = kill.parent {
            self.add("MEMREAP_PARENT", parent.pid);
        }
        self.add("MEMREAP_PROCESSES", kill.processes);
        self.add("MEMREAP_METHOD", kill.method.name());
        self.add("MEMREAP_AVAILABLE_BEFORE", kill.available[0]);
        self.add("MEMREAP_CHOICE_US", kill.choice_took.as_micros());
    }

    fn add(&mut self, name: &str, value: impl fmt::Display) {
        self.0.show(format_args!("{name}={value}"));
        self.0.push(b"\0");
    }
}

/// What the helper process does.
fn helper(socket: &OwnedFd, daemon: Pid, nice: i32) {
    // The daemon's end of the socket, above all.
    // SAFETY: this process uses no other descriptor from here on, and never returns to code that does.
    unsafe { child::close_fds_except(socket.as_fd()) };
    if drop_privileges(daemon, nice).is_err() {
        return;
    }
    let mut config = config::Warn::default();
    let mut buffer = [0; MAX_MESSAGE_BYTES];
    loop {
        let len = match rustix::net::recv(socket, &mut buffer, RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            // The daemon is gone.
            Ok((_, 0)) | Err(_) => return,
            Ok((_, len)) => len,
        };
        match &buffer[..len] {
            [CONFIGURE_TAG, rest @ ..] => config = configuration(rest).unwrap_or_default(),
            [EVENT_TAG, rest @ ..] => pass_on(&config, rest),
            [BEFORE_TAG, rest @ ..] => {
                if let Some(answer) = run_before(&config, rest) {
                    let _ = rustix::net::send(socket, &answer, SendFlags::NOSIGNAL);
                }
            }
            _ => {}
        }
    }
}

/// Gives up the priority, the exemption from the OOM killer, the signal mask and the ambient capabilities of
/// the daemon: the helper's programs can wait, and can be killed.
fn drop_privileges(daemon: Pid, nice: i32) -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have died before.
    if rustix::process::getppid().map(rustix::process::Pid::as_raw_pid) != Some(daemon.get()) {
        return Err(io::ErrorKind::NotFound.into());
    }
    // Fails without CAP_SYS_NICE; then the daemon has not changed it either.
    let _ = sched::set_policy(0, libc::SCHED_OTHER, 0);
    let _ = signal::unblock_all();
    let _ = sched::set_nice(0, nice);
    // A program that is started must not inherit the daemon's capabilities.
    let _ = rustix::thread::clear_ambient_capability_set();
    // Fails without CAP_SYS_RESOURCE; then the daemon has not changed it either.
    let _ = fs::write("/proc/self/oom_score_adj", "0");
    Ok(())
}

fn configuration(message: &[u8]) -> Option<config::Warn> {
    let mut parts = message.split(|b| *b == 0);
    let (desktop, time_limit) = parts.next()?.split_first()?;
    let time_limit = Duration::from_millis(str::from_utf8(time_limit).ok()?.parse().ok()?);
    let command: Vec<String> = parts.map(|part| String::from_utf8(part.to_vec())).collect::<Result<_, _>>().ok()?;
    Some(config::Warn { desktop: *desktop == b'1', command: (!command.is_empty()).then_some(command), time_limit })
}

/// Runs the command before a kill, and returns what the daemon is answered.
fn run_before(config: &config::Warn, message: &[u8]) -> Option<[u8; hook::ANSWER_BYTES]> {
    let (ticket, rest) = message.split_first_chunk()?;
    let (until_us, rest) = rest.split_first_chunk()?;
    let left = Duration::from_micros(u64::from_le_bytes(*until_us)).saturating_sub(monotonic());
    let message = String::from_utf8_lossy(rest);
    let ran = match command(config, &variables(&message)) {
        // The one before this has taken its time.
        Some(_) if left.is_zero() => Ok(None),
        Some(command) => run(command, left),
        None => Err(io::ErrorKind::NotFound.into()),
    };
    Some(hook::answer(*ticket, &ran))
}

fn variables(message: &str) -> Vec<(&str, &str)> {
    message.split('\0').filter_map(|v| v.split_once('=')).collect()
}

/// The administrator's command, with these variables.
fn command(config: &config::Warn, variables: &[(&str, &str)]) -> Option<Command> {
    let [program, arguments @ ..] = config.command.as_deref()? else { return None };
    let mut command = clean(program);
    command.args(arguments).envs(variables.iter().copied());
    Some(command)
}

fn pass_on(config: &config::Warn, message: &[u8]) {
    let message = String::from_utf8_lossy(message);
    let variables = variables(&message);
    let value = |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    if let Some(command) = command(config, &variables) {
        let _ = run(command, config.time_limit);
    }
    if config.desktop
        && let Some(text) = value("MEMREAP_MESSAGE")
    {
        let is_dead = matches!(value("MEMREAP_ENDING"), Some("back" | "late" | "exited"));
        let title = if is_dead {
            let who = value("MEMREAP_UNIT").and_then(application::name);
            format!("{} was closed: memory ran out", who.as_deref().unwrap_or("A program"))
        } else {
            "Memory is running out".to_owned()
        };
        for user in users() {
            let _ = run(notification(user, &title, text), config.time_limit);
        }
    }
}

/// Whether there is a program for desktop notifications.
pub fn finds_notifier() -> bool {
    PATH.split(':').any(|folder| access(Path::new(folder).join(NOTIFIER), Access::EXEC_OK).is_ok())
}

/// A program without the daemon's environment (NOTIFY_SOCKET and the like).
fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH);
    if let Some(language) = env::var_os("LANG") {
        command.env("LANG", language);
    }
    command.current_dir("/").stdin(Stdio::null());
    command
}

/// A user who is logged in, with the main group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
}

/// The users who are logged in. Whether they have a session bus may not be seen without CAP_DAC_READ_SEARCH.
fn users() -> Vec<User> {
    let Ok(entries) = fs::read_dir(USER_RUNTIME_DIRS) else { return Vec::new() };
    let user = |entry: fs::DirEntry| {
        let uid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let owner = entry.metadata().ok()?;
        (owner.uid() == uid).then_some(User { uid, gid: owner.gid() })
    };
    entries.flatten().filter_map(user).collect()
}

fn notification(user: User, title: &str, text: &str) -> Command {
    let mut command = clean(NOTIFIER);
    command
        .env("DBUS_SESSION_BUS_ADDRESS", format!("unix:path={USER_RUNTIME_DIRS}/{}/bus", user.uid))
        .args(["--app-name=memreap", "--urgency=critical", "--icon=dialog-warning", "--"])
        .args([title, &as_markup(text)])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // As this user, without other groups: the program must not have more rights than the user, and a bus
    // accepts its own user only.
    if rustix::process::getuid().as_raw() != user.uid {
        command.uid(user.uid).gid(user.gid);
    }
    forbid_files(&mut command);
    command
}

/// Notifications have markup, and a process names itself.
fn as_markup(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Lets a program write to no file. Its user can take it over (ptrace(2)), and what is written to a tmpfs is charged to
/// the daemon's cgroup, also after the program's death.
fn forbid_files(command: &mut Command) {
    let forbid = || Ok(setrlimit(Resource::Fsize, Rlimit { current: Some(0), maximum: Some(0) })?);
    // SAFETY: the child makes one system call, and allocates nothing.
    unsafe { command.pre_exec(forbid) };
}

/// Runs a program for at most `limit`, then kills it and what it has started. Returns its exit status, -1 when a signal
/// has ended it; `None` when its time was over.
///
/// # Errors
/// When it cannot be run; that was said, too.
fn run(mut command: Command, limit: Duration) -> io::Result<Option<i32>> {
    command.process_group(0);
    match command.spawn() {
        Ok(mut child) => {
            let in_time = wait(&child, limit);
            if !in_time {
                let program = command.get_program();
                say(format_args!("memreap: {program:?} took longer than {limit:?} and was killed"));
                if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
                    // It has not been waited for, so the number is still its own.
                    let _ = rustix::process::kill_process_group(group, Signal::KILL);
                }
            }
            let status = child.wait()?;
            Ok(in_time.then(|| status.code().unwrap_or(-1)))
        }
        Err(e) => {
            say(format_args!("memreap: cannot run {:?}: {e}", command.get_program()));
            Err(e)
        }
    }
}

/// Whether the child ended within `limit`.
fn wait(child: &Child, limit: Duration) -> bool {
    let pidfd = Pid::new(child.id().cast_signed()).and_then(|pid| PidFd::open(pid).ok());
    pidfd.is_some_and(|pidfd| pidfd.wait_exit(limit).unwrap_or(false))
}

#[cfg(test)]
mod tests;
