//! One guest: a kernel, an initramfs with a job, a console and a result channel; boots it,
//! watches it live and says how it ended.
//!
//! QEMU writes the console and the channel straight into files in the boot's log folder and
//! the lab follows them, so nothing is lost when a guest dies, and every boot leaves
//! `console.log`, `channel.jsonl`, `qemu.log` and `qemu.cmd` (the exact command to repeat it).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;

use crate::content::Content;
use crate::context::Context;
use crate::host;
use crate::progress::unpoisoned;
use crate::vm::accel::Accel;
use crate::vm::channel::{self, Decoder, Message, Outcome, Sample};
use crate::vm::console::{self, Watch};
use crate::vm::image;

/// How often the console, the channel and QEMU are looked at.
const POLL: Duration = Duration::from_millis(10);
/// What a guest gets after a panic or its exit line to end by itself.
const END_GRACE: Duration = Duration::from_secs(10);
/// What a guest gets after its first splat, so that the log shows what else happens. It has
/// failed already; there is no use in waiting for a long job to end.
const SPLAT_GRACE: Duration = Duration::from_secs(20);

/// The CPU under TCG. `max` offers `rep stosb` as the fast way to clear a page, but TCG
/// emulates it byte by byte: populating 512 MiB takes 1.1 s with it and 0.5 s without.
pub(crate) const TCG_CPU: &str = "max,-erms";
/// With `-icount` the TSC ticks once in a nanosecond of guest time.
const ICOUNT_TSC_KHZ: u64 = 1_000_000;

/// An instruction takes 2^shift nanoseconds of guest time under `-icount`: one, unless there are
/// many CPUs. Then whoever waits for time to pass makes all of them take their turn, and the 100 ms
/// for which the kernel measures its timer would take minutes. With much more than four, 64 CPUs'
/// timer interrupts take all the time that there is.
fn icount_shift(cpus: u32) -> u32 {
    if cpus <= 8 { 0 } else { 2 }
}

/// One side of a comparison: a kernel and its boot parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    /// What the tables call it.
    pub name: String,
    /// The kernel's bzImage.
    pub bzimage: PathBuf,
    /// Kernel parameters, appended after the lab's own, so they win.
    pub cmdline: String,
}

/// How guest time passes under TCG; KVM knows only its own, real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One host thread per CPU: real concurrency, real noise.
    Multi,
    /// Time is the number of instructions executed by all CPUs together: repeats closely,
    /// shows cost, not parallelism. Always TCG.
    Icount,
}

/// What PID 1 shall do, and the machine to do it on.
#[derive(Clone, Debug)]
pub struct Job {
    /// The work.
    pub command: GuestCommand,
    /// What progress calls it, if the command itself says little.
    pub name: Option<String>,
    /// Number of CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub mem_mib: u32,
    /// The kind of guest time.
    pub mode: Mode,
    /// Kernel parameters that the job needs, before those of the arm.
    pub cmdline: String,
    /// The whole boot's limit; then the guest counts as hung and is killed.
    pub timeout: Duration,
    /// Files or folders of the host that the guest finds at the given absolute paths. With an
    /// executable come the shared libraries it needs.
    pub overlay: Vec<(PathBuf, String)>,
    /// Whether the guest's console is the lab's terminal.
    pub interactive: bool,
    /// Regular expressions for console lines that would fail the boot but are expected here;
    /// say why where you set one. Empty for all but tests that provoke complaints.
    pub allow: Vec<String>,
    /// Whether the guest has `/bin/memreap`. Without it, what boots does not change with memreap.
    pub memreap: bool,
}

impl Job {
    /// A job on two CPUs with 1 GiB, real concurrency and a limit of three minutes.
    pub fn new(command: GuestCommand) -> Self {
        Self {
            command,
            name: None,
            cpus: 2,
            mem_mib: 1024,
            mode: Mode::Multi,
            cmdline: String::new(),
            timeout: Duration::from_secs(180),
            overlay: Vec::new(),
            interactive: false,
            allow: Vec::new(),
            memreap: true,
        }
    }
}

impl Default for Job {
    fn default() -> Self {
        Self::new(GuestCommand::Exec(Vec::new()))
    }
}

/// The work; the guest reads it as JSON (`crates/init/src/boot.rs` is the other end).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GuestCommand {
    /// One of the guest's own workloads.
    Scenario {
        /// Its name.
        name: String,
        /// Its arguments, usually `KEY=VALUE`.
        args: Vec<String>,
    },
    /// A program with its arguments.
    Exec(Vec<String>),
    /// An interactive shell.
    Shell,
}

impl std::fmt::Display for GuestCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scenario { name, args } if args.is_empty() => f.write_str(name),
            Self::Scenario { name, args } => write!(f, "{name} {}", args.join(" ")),
            Self::Exec(argv) => f.write_str(&argv.join(" ")),
            Self::Shell => f.write_str("shell"),
        }
    }
}

/// What one boot gave.
#[derive(Clone, Debug)]
pub struct Boot {
    /// How it ended. Samples of a boot that did not end well are not to be used.
    pub outcome: Outcome,
    /// The metrics' numbers.
    pub samples: Vec<Sample>,
    /// Remarks of the guest.
    pub notes: Vec<String>,
    /// The kernel's release, once the guest has said it.
    pub release: Option<String>,
    /// What the serial console showed.
    pub console_log: PathBuf,
    /// What came over the result channel.
    pub channel_log: PathBuf,
    /// From QEMU's start to its end.
    pub elapsed: Duration,
}

impl Boot {
    /// The folder with all logs of this boot.
    pub fn logs(&self) -> &Path {
        self.console_log.parent().unwrap_or(&self.console_log)
    }

    /// The evidence for the outcome, in at most about `lines` lines: the console from the
    /// complaint on, or the ends of the console, of the channel and of QEMU's own output.
    pub fn tail(&self, lines: usize) -> String {
        let mut text = String::new();
        let mut show = |path: &Path, from: Option<&str>, lines: usize| {
            let bytes = fs::read(path).unwrap_or_default();
            let log = String::from_utf8_lossy(&bytes);
            let all: Vec<&str> = log.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
            let end = all.len().saturating_sub(lines);
            let start = from.and_then(|f| all.iter().position(|l| l.contains(f)));
            let start = start.map_or(end, |s| s.saturating_sub(2).min(end.max(s)));
            if start < all.len() {
                // A String takes every write.
                let _ = writeln!(text, "--- {}", path.display());
            }
            for line in all.iter().skip(start).take(lines + 2) {
                let _ = writeln!(text, "  {line}");
            }
        };
        match &self.outcome {
            Outcome::Qemu { .. } => {
                show(&self.logs().join("qemu.cmd"), None, lines);
                show(&self.logs().join("qemu.log"), None, lines);
            }
            Outcome::Panic { line } => show(&self.console_log, Some(line), lines),
            Outcome::Splat { line, .. } => show(&self.console_log, Some(line), lines),
            Outcome::Garbage { .. } => show(&self.channel_log, None, lines),
            Outcome::Hang { .. } | Outcome::NoResult | Outcome::Exit(_) => {
                show(&self.console_log, None, lines);
                show(&self.channel_log, None, lines / 2);
            }
        }
        text
    }
}

/// Boots `arm`, lets it do `job`, and prints what a command prints, live, on the lab's own
/// stdout and stderr. The logs go into `log_dir`, or into `<log_dir>.2` and so on while another
/// lab is using it; [`Boot`] says which.
///
/// # Errors
/// Only for trouble of the lab on the host: logs that cannot be written, an overlay file that
/// is missing, no terminal for an interactive job. Whatever happens to QEMU or in the guest is
/// an [`Outcome`].
pub fn boot(ctx: &Context, accel: Accel, arm: &Arm, job: &Job, log_dir: &Path) -> Result<Boot> {
    boot_with(ctx, accel, arm, job, log_dir, &mut |message| match message {
        Message::Out(text) => ctx.progress.suspend(|| {
            print!("{text}");
            // Whoever closed our stdout does not want it.
            let _ = std::io::stdout().flush();
        }),
        Message::Err(text) => ctx.progress.suspend(|| eprint!("{text}")),
        _ => {}
    })
}

/// Like [`boot`], with every message of the guest going to `sink` as it comes.
///
/// # Errors
/// As [`boot`].
pub fn boot_with(
    ctx: &Context,
    accel: Accel,
    arm: &Arm,
    job: &Job,
    log_dir: &Path,
    sink: &mut dyn FnMut(&Message),
) -> Result<Boot> {
    if job.interactive {
        let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        ensure!(terminal, "a shell in a guest needs a terminal; to run one command: lab boot -- CMD");
    }
    let logs = Logs::in_folder(&claim(log_dir)?);
    let initrd = image::build(ctx, job)?;
    let mut qemu = command(accel, arm, job, &initrd, &logs, host_tsc_khz())?;
    let shown = quoted(&qemu);
    fs::write(&logs.command, format!("{shown}\n")).with_context(|| logs.command.display().to_string())?;
    // QEMU makes these two, if it comes that far; what an earlier boot left must not be read.
    for log in [&logs.console, &logs.channel] {
        File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    }
    let qemu_log = File::create(&logs.qemu).with_context(|| logs.qemu.display().to_string())?;
    qemu.stderr(qemu_log);
    if job.interactive {
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped());
    } else {
        qemu.stdin(Stdio::null()).stdout(Stdio::null());
    }

    // Nothing else may draw on a terminal that belongs to the guest.
    let name = job.name.clone().unwrap_or_else(|| job.command.to_string());
    let step = (!job.interactive).then(|| ctx.progress.step(&format!("{}: {name}", arm.name)));
    let mut run = Run {
        console: Follower::new(&logs.console)?,
        channel: Follower::new(&logs.channel)?,
        watch: Watch::new(&job.allow)?,
        decoder: Decoder::default(),
        samples: Vec::new(),
        notes: Vec::new(),
        release: None,
        progress: None,
    };
    let began = Instant::now();
    let ended = match host::spawn(&mut qemu) {
        Err(e) => End::Died(format!("{e:#}")),
        Ok(mut child) => {
            let _terminal = if job.interactive { Some(Terminal::join(&mut child)?) } else { None };
            let mut limits = Limits::new(began, job);
            loop {
                // Looked at before the logs, so that the logs are complete once QEMU is gone.
                let status = child.try_wait()?;
                run.read(sink)?;
                if let Some(step) = &step {
                    step.detail(run.progress.as_deref().unwrap_or(run.watch.last()));
                }
                if let Some(status) = status {
                    break End::of(status, &logs.qemu);
                }
                if let Some(end) = limits.check(&run) {
                    child.kill();
                    child.wait()?;
                    run.read(sink)?;
                    break end;
                }
                thread::sleep(POLL);
            }
        }
    };
    let elapsed = began.elapsed();
    let outcome = run.judge(ended, elapsed);
    if let Some(step) = step {
        step.done(&outcome.to_string());
    }
    Ok(Boot {
        outcome,
        samples: run.samples,
        notes: run.notes,
        release: run.release,
        console_log: logs.console,
        channel_log: logs.channel,
        elapsed,
    })
}

/// What a boot's outcome depends on, as 64 hexadecimal digits: the contents of the kernel and of the
/// initramfs, QEMU's version and its arguments, what the console may not say. Not the speed of the
/// host, nor where files are.
///
/// # Errors
/// When the initramfs cannot be built, the kernel cannot be read, or QEMU does not tell its version.
pub fn content_key(ctx: &Context, accel: Accel, arm: &Arm, job: &Job) -> Result<String> {
    let initrd = image::build(ctx, job)?;
    let version = host::output(qemu().arg("--version"))?;
    let named = Arm { bzimage: "bzImage".into(), ..arm.clone() };
    let logs = Logs::in_folder(Path::new("logs"));
    let command = command(accel, &named, job, Path::new("initrd"), &logs, 0)?;
    let mut content = Content::default();
    content.add(version);
    content.add(quoted(&command));
    for (kind, pattern) in console::DENY {
        content.add(kind);
        content.add(pattern);
    }
    for allowed in &job.allow {
        content.add(allowed);
    }
    for file in [&arm.bzimage, &initrd] {
        content.add_file(file)?;
    }
    Ok(content.key())
}

/// How QEMU came to its end.
#[derive(Debug)]
enum End {
    /// By itself: the guest ended the machine.
    Guest,
    /// By itself, in error, or it never began.
    Died(String),
    /// Killed: the guest did not end in time.
    TimeOut,
    /// Killed: the guest's console had said enough.
    Enough,
}

impl End {
    fn of(status: ExitStatus, log: &Path) -> Self {
        if status.success() {
            return Self::Guest;
        }
        let words = host::tail(log, 3);
        let words = if words.is_empty() { "no message".into() } else { words.trim().to_owned() };
        Self::Died(format!("{status}: {words}"))
    }
}

/// The points in time at which a guest is not waited for any longer.
struct Limits {
    hang: Instant,
    enough: Option<Instant>,
    interactive: bool,
    exited: bool,
}

impl Limits {
    fn new(began: Instant, job: &Job) -> Self {
        Self { hang: began + job.timeout, enough: None, interactive: job.interactive, exited: false }
    }

    fn check(&mut self, run: &Run) -> Option<End> {
        let now = Instant::now();
        if self.interactive {
            // Somebody is sitting in front of it and has Ctrl-] to end it.
            return None;
        }
        if self.enough.is_none() {
            if run.watch.panic().is_some() {
                self.enough = Some(now + END_GRACE);
            } else if run.watch.splat().is_some() {
                self.enough = Some(now + SPLAT_GRACE);
            }
        }
        if run.decoder.exit().is_some() && !self.exited {
            self.exited = true;
            self.hang = self.hang.min(now + END_GRACE);
        }
        if self.enough.is_some_and(|at| now >= at) {
            Some(End::Enough)
        } else if now >= self.hang {
            Some(End::TimeOut)
        } else {
            None
        }
    }
}

/// What is known about a running guest.
struct Run {
    console: Follower,
    channel: Follower,
    watch: Watch,
    decoder: Decoder,
    samples: Vec<Sample>,
    notes: Vec<String>,
    release: Option<String>,
    /// What the guest said last about what it is doing.
    progress: Option<String>,
}

impl Run {
    fn read(&mut self, sink: &mut dyn FnMut(&Message)) -> Result<()> {
        self.watch.feed(&self.console.read()?);
        for message in self.decoder.feed(&self.channel.read()?) {
            sink(&message);
            match message {
                Message::Hello { release, .. } => self.release = Some(release),
                Message::Sample(sample) => self.samples.push(sample),
                Message::Note(text) => self.notes.push(text),
                Message::Progress(text) => self.progress = Some(text),
                Message::Out(text) | Message::Err(text) => {
                    if let Some(line) = text.lines().rfind(|line| !line.trim().is_empty()) {
                        self.progress = Some(line.to_owned());
                    }
                }
                Message::Exit(_) => {}
            }
        }
        Ok(())
    }

    /// The outcome, in the order of precedence that [`Outcome`] documents.
    fn judge(&mut self, end: End, elapsed: Duration) -> Outcome {
        self.watch.finish();
        if matches!(end, End::Guest) {
            self.decoder.finish();
        }
        if let End::Died(error) = end {
            Outcome::Qemu { error }
        } else if let Some(line) = self.watch.panic() {
            Outcome::Panic { line: line.to_owned() }
        } else if let Some((kind, line)) = self.watch.splat() {
            Outcome::Splat { kind, line: line.to_owned() }
        } else if let Some(line) = self.decoder.garbage() {
            Outcome::Garbage { line: line.to_owned() }
        } else if matches!(end, End::TimeOut) {
            Outcome::Hang { after: elapsed }
        } else {
            self.decoder.exit().map_or(Outcome::NoResult, Outcome::Exit)
        }
    }
}

/// Reads a file that somebody else appends to.
pub(crate) struct Follower(File);

impl Follower {
    pub(crate) fn new(path: &Path) -> Result<Self> {
        Ok(Self(File::open(path).with_context(|| format!("cannot read {}", path.display()))?))
    }

    pub(crate) fn read(&mut self) -> Result<Vec<u8>> {
        let mut new = Vec::new();
        self.0.read_to_end(&mut new).context("reading a guest's log")?;
        Ok(new)
    }
}

/// Makes a log folder this process's own until it ends, so that two labs in one checkout do not
/// write into each other's logs, nor read each other's results: the second gets `<folder>.2`.
fn claim(folder: &Path) -> Result<PathBuf> {
    static CLAIMED: Mutex<BTreeMap<PathBuf, (PathBuf, File)>> = Mutex::new(BTreeMap::new());
    const MOST: u32 = 100;
    let mut claimed = unpoisoned(&CLAIMED);
    if let Some((ours, _)) = claimed.get(folder) {
        return Ok(ours.clone());
    }
    for n in 1..=MOST {
        let mut name = folder.as_os_str().to_owned();
        if n > 1 {
            name.push(format!(".{n}"));
        }
        let ours = PathBuf::from(name);
        fs::create_dir_all(&ours).with_context(|| format!("cannot make {}", ours.display()))?;
        let path = ours.join("lock");
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok() {
            claimed.insert(folder.to_owned(), (ours.clone(), file));
            return Ok(ours);
        }
    }
    bail!("{}: {MOST} other labs are writing here", folder.display())
}

/// The files one boot leaves.
struct Logs {
    console: PathBuf,
    channel: PathBuf,
    qemu: PathBuf,
    command: PathBuf,
}

impl Logs {
    fn in_folder(dir: &Path) -> Self {
        Self {
            console: dir.join("console.log"),
            channel: dir.join("channel.jsonl"),
            qemu: dir.join("qemu.log"),
            command: dir.join("qemu.cmd"),
        }
    }
}

/// The QEMU to run: `$LAB_QEMU`, else the one in PATH.
pub(crate) fn qemu() -> Command {
    Command::new(std::env::var_os("LAB_QEMU").unwrap_or_else(|| "qemu-system-x86_64".into()))
}

/// A path as the value of a QEMU option, where a comma ends the value unless doubled.
pub(crate) fn option_path(path: &Path) -> Result<String> {
    let Some(text) = path.to_str() else { bail!("{}: QEMU needs paths in UTF-8", path.display()) };
    Ok(text.replace(',', ",,"))
}

fn command(
    accel: Accel,
    arm: &Arm,
    job: &Job,
    initrd: &Path,
    logs: &Logs,
    host_tsc_khz: u64,
) -> Result<Command> {
    let mut params = String::from("console=ttyS0 panic=-1 reboot=t printk.time=1 transparent_hugepage=never");
    let mut qemu = qemu();
    // microvm boots in a second because it has next to nothing to probe.
    qemu.args(["-M", "microvm", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    qemu.args(["-m", &job.mem_mib.to_string(), "-smp", &job.cpus.to_string()]);
    let icount = format!("shift={},sleep=off", icount_shift(job.cpus));
    match (accel, job.mode) {
        (Accel::Kvm, Mode::Multi) => {
            qemu.args(["-accel", "kvm", "-cpu", "host"]);
        }
        (_, mode) => {
            let (args, khz): (&[&str], u64) = match mode {
                Mode::Multi => (&["-accel", "tcg,thread=multi"], host_tsc_khz),
                Mode::Icount => (&["-accel", "tcg", "-icount", &icount], ICOUNT_TSC_KHZ),
            };
            qemu.args(args).args(["-cpu", TCG_CPU]);
            // microvm has no timer to calibrate the TSC against, and on a loaded host any
            // calibration fails, so the guest is told; idle=halt because MWAIT is emulated as
            // a busy loop.
            let _ = write!(params, " tsc=reliable tsc_early_khz={khz} idle=halt");
        }
    }
    for own in [&job.cmdline, &arm.cmdline].into_iter().filter(|own| !own.is_empty()) {
        let _ = write!(params, " {own}");
    }
    let console = option_path(&logs.console)?;
    let console = if job.interactive {
        // The lab passes the terminal through a pipe: see [`Terminal`].
        format!("stdio,id=console,signal=off,logfile={console}")
    } else {
        format!("file,id=console,path={console}")
    };
    qemu.arg("-kernel").arg(&arm.bzimage).arg("-initrd").arg(initrd).args(["-append", &params]);
    qemu.args(["-chardev", &console, "-serial", "chardev:console"]);
    qemu.args(["-device", "virtio-serial-device"]);
    let channel = format!("file,id=results,path={}", option_path(&logs.channel)?);
    let port = format!("virtserialport,chardev=results,name={}", channel::PORT);
    qemu.args(["-chardev", &channel, "-device", &port]);
    Ok(qemu)
}

/// The rate of the host's time stamp counter in kHz, which is also the guest's under TCG.
/// Measured over 50 ms, once.
pub(crate) fn host_tsc_khz() -> u64 {
    static KHZ: OnceLock<u64> = OnceLock::new();
    *KHZ.get_or_init(|| {
        let (began, first) = (Instant::now(), tsc());
        thread::sleep(Duration::from_millis(50));
        let (last, elapsed) = (tsc(), began.elapsed());
        let ticks = u128::from(last.wrapping_sub(first));
        u64::try_from(ticks * 1_000_000 / elapsed.as_nanos().max(1)).unwrap_or(ICOUNT_TSC_KHZ)
    })
}

#[cfg(target_arch = "x86_64")]
fn tsc() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 CPU and has no side effects; Linux allows it to
    // user programs.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// TCG serves the guest's RDTSC from the virtual clock in ns where it knows no host counter.
#[cfg(not(target_arch = "x86_64"))]
fn tsc() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    u64::try_from(BEGAN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or_default()
}

/// A command for a shell, to be copied.
fn quoted(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| {
            let word = word.to_string_lossy();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+".contains(c);
            if !word.is_empty() && word.chars().all(plain) {
                word.into_owned()
            } else {
                format!("'{}'", word.replace('\'', r"'\''"))
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// The lab's terminal, connected to the guest's console and in raw mode until dropped.
///
/// QEMU does not get the terminal itself: it runs in a process group of its own, which may not
/// read from the terminal, and if it were killed the terminal would stay raw.
struct Terminal {
    before: rustix::termios::Termios,
}

impl Terminal {
    /// Ctrl-] ends the guest, as in telnet.
    const ESCAPE: u8 = 0x1d;

    fn join(qemu: &mut host::Child) -> Result<Self> {
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
        // Both threads end with the console; the first at the latest with the lab, for a read
        // from the terminal cannot be called off.
        thread::spawn(move || {
            let mut keys = [0; 256];
            while let Ok(n @ 1..) = std::io::stdin().read(&mut keys) {
                if keys[..n].contains(&Self::ESCAPE) {
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
        // There is no more that could be done about a terminal that does not take it.
        let _ =
            rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm() -> Arm {
        Arm { name: "stock".into(), bzimage: "/k/bzImage".into(), cmdline: "a=b".into() }
    }

    fn shown(accel: Accel, mode: Mode, dir: &str) -> String {
        let job = Job { mode, ..Job::default() };
        let logs = Logs::in_folder(Path::new(dir));
        quoted(&command(accel, &arm(), &job, Path::new("/i.cpio"), &logs, 2_000_000).unwrap())
    }

    #[test]
    fn each_mode_has_its_clock() {
        let multi = shown(Accel::Tcg, Mode::Multi, "/l");
        assert!(multi.contains("-accel tcg,thread=multi") && multi.contains("tsc_early_khz="), "{multi}");
        let icount = shown(Accel::Tcg, Mode::Icount, "/l");
        assert!(icount.contains("-icount shift=0,sleep=off"), "{icount}");
        assert!(icount.contains("tsc_early_khz=1000000 idle=halt a=b'"), "{icount}");
        let kvm = shown(Accel::Kvm, Mode::Multi, "/l");
        assert!(kvm.contains("-accel kvm -cpu host") && !kvm.contains("tsc"), "{kvm}");
        // Instruction counting is TCG's, whatever the host has.
        assert_eq!(shown(Accel::Kvm, Mode::Icount, "/l"), icount);
    }

    #[test]
    fn time_passes_faster_for_many_cpus() {
        let logs = Logs::in_folder(Path::new("/l"));
        let icount = |cpus| {
            let job = Job { mode: Mode::Icount, cpus, ..Job::default() };
            quoted(&command(Accel::Tcg, &arm(), &job, Path::new("/i.cpio"), &logs, 2_000_000).unwrap())
        };
        for (cpus, option) in [(1, "shift=0,"), (2, "shift=0,"), (16, "shift=2,"), (64, "shift=2,")] {
            assert!(icount(cpus).contains(option), "{cpus}");
            assert!(icount(cpus).contains("tsc_early_khz=1000000 "), "{cpus}");
        }
    }

    #[test]
    fn the_arms_parameters_come_last_and_win() {
        let job = Job { cmdline: "a=job numa=fake=2".into(), ..Job::default() };
        let logs = Logs::in_folder(Path::new("/l"));
        let text =
            quoted(&command(Accel::Tcg, &arm(), &job, Path::new("/i.cpio"), &logs, 2_000_000).unwrap());
        assert!(text.contains(" a=job numa=fake=2 a=b'"), "{text}");
    }

    #[test]
    fn a_comma_in_a_path_stays_in_the_path() {
        let text = shown(Accel::Tcg, Mode::Multi, "/a,b");
        assert!(text.contains("path=/a,,b/console.log"), "{text}");
    }

    #[test]
    fn the_host_clock_is_plausible() {
        assert!((500_000..10_000_000).contains(&host_tsc_khz()), "{}", host_tsc_khz());
    }

    #[test]
    fn a_log_folder_belongs_to_one_lab() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("boot");
        fs::create_dir(&logs).unwrap();
        let other = File::create(logs.join("lock")).unwrap();
        rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let second = dir.path().join("boot.2");
        assert_eq!(claim(&logs).unwrap(), second);
        // And stays ours.
        assert_eq!(claim(&logs).unwrap(), second);
        assert_eq!(claim(&dir.path().join("free")).unwrap(), dir.path().join("free"));
    }

    fn judge(console: &str, channel: &str, end: End) -> Outcome {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::in_folder(dir.path());
        fs::write(&logs.console, console).unwrap();
        fs::write(&logs.channel, channel).unwrap();
        let mut run = Run {
            console: Follower::new(&logs.console).unwrap(),
            channel: Follower::new(&logs.channel).unwrap(),
            watch: Watch::new(&[]).unwrap(),
            decoder: Decoder::default(),
            samples: Vec::new(),
            notes: Vec::new(),
            release: None,
            progress: None,
        };
        run.read(&mut |_| {}).unwrap();
        run.judge(end, Duration::from_secs(9))
    }

    #[test]
    fn the_worst_news_wins() {
        const PANIC: &str = "[    1.000000] Kernel panic - not syncing: x\n";
        const WARN: &str = "[    0.900000] WARNING: CPU: 0\n";
        let bad = "nonsense\n";
        let good = "{\"exit\":0}\n";
        let both = format!("{WARN}{PANIC}");
        assert!(matches!(judge(&both, bad, End::Died("gone".into())), Outcome::Qemu { .. }));
        assert!(matches!(judge(&both, bad, End::TimeOut), Outcome::Panic { .. }));
        assert!(matches!(judge(WARN, bad, End::TimeOut), Outcome::Splat { kind: "WARN", .. }));
        assert!(matches!(judge(WARN, good, End::Guest), Outcome::Splat { .. }));
        assert!(matches!(judge("", bad, End::TimeOut), Outcome::Garbage { .. }));
        assert!(matches!(judge("", "{\"ex", End::Guest), Outcome::Garbage { .. }));
        assert!(matches!(judge("", "{\"ex", End::TimeOut), Outcome::Hang { .. }));
        assert!(matches!(judge("", good, End::TimeOut), Outcome::Hang { .. }));
        assert_eq!(judge("", "", End::Guest), Outcome::NoResult);
        assert_eq!(judge("", good, End::Guest), Outcome::Exit(0));
    }
}
