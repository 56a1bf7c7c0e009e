// SPDX-License-Identifier: GPL-2.0-only
//! Boots one guest, watches it while it runs, and determines how it ended.
//!
//! A guest has a kernel, an initramfs with a job, a console and a result channel. QEMU writes the console and
//! the channel to files in the boot's log folder, and the lab follows these files. So nothing is lost when a
//! guest dies, and every boot leaves `console.log`, `channel.jsonl`, `qemu.log` and `qemu.cmd`, the command
//! that repeats it.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use protocol::results::{self, Message, Sample, Series};

use crate::arch::Arch;
use crate::content::Content;
use crate::context::Context;
use crate::host;
use crate::stolen;
use crate::vm::channel::{Decoder, Outcome};
use crate::vm::image;
use crate::vm::job::{Arm, Job};
use crate::vm::logs::{Logs, Output, append_excerpt, claim};
use crate::vm::probe::Accel;
use crate::vm::qemu::{self, host_tsc_khz, option_path};
use crate::vm::terminal::Terminal;

/// How often the console, the channel and QEMU are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long a guest has after a panic or its exit message to end by itself.
const END_GRACE: Duration = Duration::from_secs(10);
/// How long a guest may run after its first splat, so that the log shows what follows. The boot has already
/// failed, so it does not have to wait for the end of a long job.
const SPLAT_GRACE: Duration = Duration::from_secs(20);

/// The result of one boot.
#[derive(Clone, Debug)]
pub struct Boot {
    /// How it ended. Samples are only valid if it was a success.
    pub outcome: Outcome,
    /// The values of the metrics.
    pub samples: Vec<Sample>,
    /// How things developed.
    pub series: Vec<Series>,
    /// The guest's notes.
    pub notes: Vec<String>,
    /// The kernel's release, if the guest got far enough to report it.
    pub release: Option<String>,
    /// The log of the serial console.
    pub console_log: PathBuf,
    /// The log of the result channel.
    pub channel_log: PathBuf,
    /// The time from QEMU's start to its end.
    pub elapsed: Duration,
    /// The largest share of the host's CPU time that was stolen meanwhile, 0 to 1; see [`crate::stolen`].
    pub stolen: Option<f64>,
}

impl Boot {
    /// A boot that has not begun.
    pub(crate) fn with_logs(logs: &Logs) -> Self {
        Self {
            outcome: Outcome::NoResult,
            samples: Vec::new(),
            series: Vec::new(),
            notes: Vec::new(),
            release: None,
            console_log: logs.console.clone(),
            channel_log: logs.channel.clone(),
            elapsed: Duration::ZERO,
            stolen: None,
        }
    }

    /// Returns the folder with all logs of this boot.
    pub fn logs(&self) -> &Path {
        self.console_log.parent().unwrap_or(&self.console_log)
    }

    /// Returns about `lines` lines of the logs that explain the outcome: the console from the kernel's
    /// message on, or the ends of the console, the channel and QEMU's output.
    pub fn tail(&self, lines: usize) -> String {
        let mut text = String::new();
        let mut show = |log: &Path, from: Option<&str>, lines| append_excerpt(&mut text, log, from, lines);
        match &self.outcome {
            Outcome::Qemu(_) => {
                show(&self.logs().join("qemu.cmd"), None, lines);
                show(&self.logs().join("qemu.log"), None, lines);
            }
            Outcome::Panic(line) => show(&self.console_log, Some(line), lines),
            Outcome::Splat { line, .. } => show(&self.console_log, Some(line), lines),
            Outcome::Garbage(_) => show(&self.channel_log, None, lines),
            Outcome::Hang(_) | Outcome::NoResult | Outcome::Exit(_) => {
                show(&self.console_log, None, lines);
                show(&self.channel_log, None, lines / 2);
            }
        }
        text
    }
}

/// Boots `arm` with `job` and prints the output of its command as it arrives on the lab's stdout and stderr.
/// The logs go to `log_dir`, or to `<log_dir>.2` and so on while another lab uses it; see [`Boot::logs`].
///
/// # Errors
/// Only for problems of the lab on the host: logs that cannot be written, a missing overlay file, no terminal
/// for an interactive job. Failures of QEMU and of the guest are an [`Outcome`].
pub fn boot(ctx: &Context, accel: Accel, arm: &Arm, job: &Job, log_dir: &Path) -> Result<Boot> {
    boot_with(ctx, accel, arm, job, log_dir, &mut |message| match message {
        Message::Out(text) => ctx.progress.suspend(|| {
            print!("{text}");
            // If stdout is closed, nobody reads it.
            let _ = std::io::stdout().flush();
        }),
        Message::Err(text) => ctx.progress.suspend(|| eprint!("{text}")),
        _ => {}
    })
}

/// Like [`boot`], but passes every message of the guest to `sink` as it arrives.
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
    let mut qemu = command(ctx.arch, accel, arm, job, &initrd, &logs, host_tsc_khz())?;
    logs.begin(&mut qemu)?;
    if job.interactive {
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped());
    } else {
        qemu.stdin(Stdio::null()).stdout(Stdio::null());
    }

    // The terminal of an interactive guest shows only its console.
    let name = job.name.clone().unwrap_or_else(|| job.command.to_string());
    let step = (!job.interactive).then(|| ctx.progress.step(&format!("{}: {name}", arm.name)));
    let mut run = Run::new(&logs, job)?;
    let (began, watch) = (Instant::now(), stolen::Watch::start());
    let ended = match host::spawn(&mut qemu) {
        Err(e) => End::Died(format!("{e:#}")),
        Ok(mut child) => {
            let _terminal = if job.interactive { Some(Terminal::join(&mut child)?) } else { None };
            let mut deadline = began + job.timeout;
            loop {
                // Checked before the logs are read, so that they are complete once QEMU has ended.
                let status = child.try_wait()?;
                run.read(sink)?;
                if let Some(step) = &step {
                    step.detail(run.progress.as_deref().unwrap_or(&run.output.watch.last));
                }
                if let Some(status) = status {
                    break End::of(status, &logs.qemu);
                }
                deadline = run.deadline(deadline);
                // The user ends an interactive guest by Ctrl-].
                if !job.interactive && Instant::now() >= deadline {
                    child.kill_and_wait()?;
                    run.read(sink)?;
                    break End::Killed;
                }
                thread::sleep(POLL_INTERVAL);
            }
        }
    };
    (run.boot.elapsed, run.boot.stolen) = (began.elapsed(), watch.end());
    run.boot.outcome = run.judge(ended);
    if let Some(step) = step {
        step.done(&run.boot.outcome.to_string());
    }
    Ok(run.boot)
}

/// Returns the key of everything that the outcome of a boot depends on, 64 hexadecimal digits: the contents
/// of kernel and initramfs, QEMU's version and arguments, and the code that judges what the guest says. The speed of the
/// host and the paths of files are not part of it.
///
/// # Errors
/// When the initramfs cannot be built, the kernel cannot be read, or QEMU does not print its version.
pub fn content_key(ctx: &Context, accel: Accel, arm: &Arm, job: &Job) -> Result<String> {
    let initrd = image::build(ctx, job)?;
    let version = host::output(qemu::program(ctx.arch).arg("--version"))?;
    let named = Arm { bzimage: "bzImage".into(), ..arm.clone() };
    let logs = Logs::in_folder(Path::new("logs"));
    let mut unnamed = job.clone();
    if let Some(root) = &mut unnamed.root {
        root.image = root.key.clone().into();
    }
    let command = command(ctx.arch, accel, &named, &unnamed, Path::new("initrd"), &logs, 0)?;
    let mut content = Content::default();
    content.add(version);
    content.add(host::command_text(&command));
    for judge in [include_str!("boot.rs"), include_str!("channel.rs"), include_str!("console.rs")] {
        content.add(judge);
    }
    for allowed in &job.allow {
        content.add(allowed);
    }
    for file in [&arm.bzimage, &initrd] {
        content.add_file(file)?;
    }
    Ok(content.key())
}

/// How QEMU ended.
#[derive(Debug)]
enum End {
    /// By itself: the guest shut down.
    Guest,
    /// By itself with an error, or it could not be started.
    Died(String),
    /// Killed: the guest did not end in time.
    Killed,
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

/// The state of a running guest.
struct Run {
    output: Output,
    decoder: Decoder,
    /// What is known of it so far.
    boot: Boot,
    tainted: u64,
    /// The guest's last progress message.
    progress: Option<String>,
}

impl Run {
    fn new(logs: &Logs, job: &Job) -> Result<Self> {
        Ok(Self {
            output: Output::follow(logs, &job.allow)?,
            decoder: Decoder::new(job.cpus),
            boot: Boot::with_logs(logs),
            tainted: 0,
            progress: None,
        })
    }

    fn read(&mut self, sink: &mut dyn FnMut(&Message)) -> Result<()> {
        for message in self.decoder.feed(&self.output.read()?) {
            sink(&message);
            match message {
                Message::Hello { release, .. } => self.boot.release = Some(release),
                Message::Sample(sample) => self.boot.samples.push(sample),
                Message::Series(series) => self.boot.series.push(series),
                Message::Note(text) => self.boot.notes.push(text),
                Message::Progress(text) => self.progress = Some(text),
                Message::Out(text) | Message::Err(text) => {
                    if let Some(line) = text.lines().rfind(|line| !line.trim().is_empty()) {
                        self.progress = Some(line.to_owned());
                    }
                }
                Message::Tainted(why) => self.tainted = why,
                Message::Exit(_) => {}
            }
        }
        Ok(())
    }

    /// Returns when the guest is killed, which was to be at `before`: a grace counts from the first call that sees what
    /// it is for, as later calls can only yield a later time.
    fn deadline(&self, before: Instant) -> Instant {
        let grace = if self.output.watch.panic.is_some() || self.decoder.exit.is_some() {
            END_GRACE
        } else if self.output.watch.splat.is_some() {
            SPLAT_GRACE
        } else {
            return before;
        };
        before.min(Instant::now() + grace)
    }

    /// Returns the outcome, in the order of precedence that [`Outcome`] documents.
    fn judge(&mut self, end: End) -> Outcome {
        self.output.watch.finish();
        if matches!(end, End::Guest) {
            self.decoder.finish();
        }
        if let End::Died(error) = end {
            Outcome::Qemu(error)
        } else if let Some(line) = self.output.watch.panic.take() {
            Outcome::Panic(line)
        } else if let Some((kind, line)) = self.output.watch.splat.take() {
            Outcome::Splat { kind, line }
        } else if let Some(line) = self.output.watch.unseen(self.tainted) {
            Outcome::Splat { kind: "taint", line }
        } else if let Some(line) = self.decoder.garbage.take() {
            Outcome::Garbage(line)
        } else if matches!(end, End::Killed) {
            Outcome::Hang(self.boot.elapsed)
        } else {
            self.decoder.exit.map_or(Outcome::NoResult, Outcome::Exit)
        }
    }
}

/// Returns QEMU's command line for one boot.
fn command(
    arch: Arch,
    accel: Accel,
    arm: &Arm,
    job: &Job,
    initrd: &Path,
    logs: &Logs,
    host_tsc_khz: u64,
) -> Result<Command> {
    // Without proactive compaction: with pages of 64 KiB, it takes 256 MiB of free memory away for 50 ms, half
    // a second after the boot.
    let mut params = format!(
        "console={} panic=-1 reboot=t printk.time=1 transparent_hugepage=never sysctl.vm.compaction_proactiveness=0",
        arch.console()
    );
    let mut qemu = qemu::machine(arch, arch.machine(), job.cpus, job.mem_mib);
    qemu::accelerate(&mut qemu, arch, accel, job.mode, job.cpus, "host", host_tsc_khz, &mut params);
    for own in [&job.cmdline, &arm.cmdline].into_iter().filter(|own| !own.is_empty()) {
        let _ = write!(params, " {own}");
    }
    let console = option_path(&logs.console)?;
    let console = if job.interactive {
        // The lab passes on the terminal's input and output through pipes; see [`Terminal`].
        format!("stdio,id=console,signal=off,logfile={console}")
    } else {
        format!("file,id=console,path={console}")
    };
    qemu.arg("-kernel").arg(&arm.bzimage).arg("-initrd").arg(initrd).args(["-append", &params]);
    qemu.args(["-chardev", &console, "-serial", "chardev:console"]);
    qemu.args(["-device", "virtio-serial-device"]);
    let channel = format!("file,id=results,path={}", option_path(&logs.channel)?);
    qemu::serial_port(&mut qemu, "results", &channel, results::PORT);
    if let Some(root) = &job.root {
        // What the guest writes is in a file that QEMU removes.
        let file = option_path(&root.image)?;
        qemu.args(["-drive", &format!("file={file},if=none,id=root,format=raw,cache=unsafe,snapshot=on")]);
        qemu.args(["-device", "virtio-blk-device,drive=root"]);
    }
    Ok(qemu)
}

#[cfg(test)]
mod tests {
    use fs_err as fs;

    use super::*;
    use crate::vm::job::Mode;

    fn arm() -> Arm {
        Arm { name: "stock".into(), bzimage: "/k/bzImage".into(), cmdline: "a=b".into() }
    }

    fn shown_with(accel: Accel, job: &Job, dir: &str) -> String {
        let logs = Logs::in_folder(Path::new(dir));
        host::command_text(&command(Arch::X86_64, accel, &arm(), job, Path::new("/i.cpio"), &logs, 2_000_000).unwrap())
    }

    fn shown(accel: Accel, mode: Mode, dir: &str) -> String {
        shown_with(accel, &Job { mode, ..Job::default() }, dir)
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
        // Only TCG counts instructions.
        assert_eq!(shown(Accel::Kvm, Mode::Icount, "/l"), icount);
    }

    #[test]
    fn time_passes_faster_for_many_cpus() {
        let icount = |cpus| shown_with(Accel::Tcg, &Job { mode: Mode::Icount, cpus, ..Job::default() }, "/l");
        for (cpus, option) in [(1, "shift=0,"), (2, "shift=0,"), (16, "shift=2,"), (64, "shift=2,")] {
            assert!(icount(cpus).contains(option), "{cpus}");
            assert!(icount(cpus).contains("tsc_early_khz=1000000 "), "{cpus}");
        }
    }

    #[test]
    fn the_arms_parameters_come_last_and_win() {
        let job = Job { cmdline: "a=job numa=fake=2".into(), ..Job::default() };
        let text = shown_with(Accel::Tcg, &job, "/l");
        assert!(text.contains(" a=job numa=fake=2 a=b'"), "{text}");
    }

    #[test]
    fn a_comma_in_a_path_stays_in_the_path() {
        let text = shown(Accel::Tcg, Mode::Multi, "/a,b");
        assert!(text.contains("path=/a,,b/console.log"), "{text}");
    }

    fn judge(console: &str, channel: &str, end: End) -> Outcome {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::in_folder(dir.path());
        fs::write(&logs.console, console).unwrap();
        fs::write(&logs.channel, channel).unwrap();
        let mut run = Run::new(&logs, &Job::default()).unwrap();
        run.read(&mut |_| {}).unwrap();
        run.judge(end)
    }

    #[test]
    fn the_most_severe_problem_is_reported() {
        const PANIC: &str = "[    1.000000] Kernel panic - not syncing: x\n";
        const WARN: &str = "[    0.900000] WARNING: CPU: 0\n";
        let bad = "nonsense\n";
        let good = "{\"exit\":0}\n";
        let both = format!("{WARN}{PANIC}");
        assert!(matches!(judge(&both, bad, End::Died("gone".into())), Outcome::Qemu(_)));
        assert!(matches!(judge(&both, bad, End::Killed), Outcome::Panic(_)));
        assert!(matches!(judge(WARN, bad, End::Killed), Outcome::Splat { kind: "WARN", .. }));
        assert!(matches!(judge(WARN, good, End::Guest), Outcome::Splat { .. }));
        let warned = "{\"tainted\":512}\n{\"exit\":0}\n";
        assert!(matches!(judge("", warned, End::Guest), Outcome::Splat { kind: "taint", .. }));
        assert_eq!(judge("", "{\"tainted\":4096}\n{\"exit\":0}\n", End::Guest), Outcome::Exit(0));
        assert!(matches!(judge("", bad, End::Killed), Outcome::Garbage(_)));
        assert!(matches!(judge("", "{\"ex", End::Guest), Outcome::Garbage(_)));
        assert!(matches!(judge("", "{\"ex", End::Killed), Outcome::Hang(_)));
        assert!(matches!(judge("", good, End::Killed), Outcome::Hang(_)));
        assert_eq!(judge("", "", End::Guest), Outcome::NoResult);
        assert_eq!(judge("", good, End::Guest), Outcome::Exit(0));
    }
}
