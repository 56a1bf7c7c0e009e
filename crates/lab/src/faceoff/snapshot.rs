// SPDX-License-Identifier: GPL-2.0-only
//! The face-off's guest. It is booted once; when it reports that it is warmed up, its state is saved, and
//! every run starts from that state.
//!
//! The state is saved by QEMU's migration to a file. The guest's events go to a file that the lab follows.
//! Its jobs come through a FIFO that the lab opens before QEMU starts, because a port without a connected
//! host is closed in the guest.

use fs_err::{self as fs, File};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{CWD, FileType, Mode as FileMode};
use serde_json::{Value, json};

use protocol::faceoff::{EVENT_PORT, Event, JOB_PORT, Job, ZRAM_PARAMETER};
use protocol::line::{self, Lines};
use protocol::load::Balloon;

use super::cell::Machine;
use super::record;
use super::rootfs::Image;
use crate::arch::Arch;
use crate::content::Content;
use crate::context::Context;
use crate::host::{self, Child, Staging};
use crate::kernel::Kernel;
use crate::progress::Step;
use crate::vm::job::Mode;
use crate::vm::logs::{Logs, Output, append_excerpt};
use crate::vm::probe::Accel;
use crate::vm::qemu::{self, host_tsc_khz, option_path};

/// How many snapshots there are of each kernel and machine. A snapshot is one draw of all that differs from boot
/// to boot, so figures of one snapshot alone would have a spread that is too small.
pub const SNAPSHOTS: usize = 3;
/// The size of the payload disk. It is fixed because a snapshot is only valid for disks of the same size.
pub const PAYLOAD_DISK_BYTES: u64 = 64 << 20;

/// Part of every snapshot's key. Increment it when the machine or the boot changes.
const RECIPE_VERSION: &str = "4";
/// The disk's changes since the image.
const OVERLAY_FILE: &str = "overlay.qcow2";
/// The disk for swap, on machines that have one.
const SWAP_FILE: &str = "swap.qcow2";
/// QEMU's state.
const STATE_FILE: &str = "machine";
/// Written last, so a folder that has it is a complete snapshot.
const MARKER_FILE: &str = "snapshot.json";
/// How many snapshots stay in the cache. Each takes about 800 MiB.
const MAX_CACHED_SNAPSHOTS: usize = 24;

/// How often the guest and QEMU are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The limit for booting and warming up, which takes half a minute under TCG.
const BOOT_TIMEOUT: Duration = Duration::from_secs(300);
/// The limit for QEMU to answer a command, and to save or restore its state.
const QMP_TIMEOUT: Duration = Duration::from_secs(60);

/// Console lines that are allowed: a kernel that is short of memory, or runs on a loaded host, may print
/// them.
const ALLOWED_CONSOLE_LINES: &[&str] =
    &[r"INFO: task .* blocked", r"rcu: INFO: rcu_", r"soft lockup", r"page allocation"];

/// The failure of a guest: what happened, and the ends of its logs.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct GuestFailure(pub String);

/// The saved state of a warmed-up guest.
pub struct Snapshot<'a> {
    of: Ingredients<'a>,
    folder: PathBuf,
    /// The content key of kernel, image, guest program, machine and number: 64 hexadecimal digits.
    pub key: String,
}

/// What a snapshot is made of.
pub struct Ingredients<'a> {
    /// How QEMU runs.
    pub accel: Accel,
    pub kernel: &'a Kernel,
    /// The Debian image.
    pub image: &'a Image,
    /// The guest program, which is in the payload as well.
    pub guest: &'a Path,
    /// The payload disk for making it.
    pub payload: &'a Path,
    pub machine: &'a Machine,
    /// Which of [`SNAPSHOTS`] it is, from 0.
    pub number: usize,
}

/// Returns a snapshot, from the cache or made now.
///
/// # Errors
/// When QEMU cannot be run; a [`GuestFailure`] when the guest does not boot.
pub fn make<'a>(ctx: &Context, of: Ingredients<'a>) -> Result<Snapshot<'a>> {
    let Ingredients { kernel, image, machine, number, .. } = of;
    let key = of.key()?;
    let parent = ctx.cache.join("faceoff/snapshots");
    let folder = parent.join(&key[..16]);
    let snapshot = Snapshot { of, folder: folder.clone(), key };
    if snapshot.is_finished() {
        return Ok(snapshot);
    }
    let _lock = host::lock(ctx, &folder)?;
    if snapshot.is_finished() {
        return Ok(snapshot);
    }
    prune(&parent);
    let what = format!("{}, {}, snapshot {}", kernel.release, machine.about, number + 1);
    let step = ctx.progress.step(&format!("booting {what}"));
    let staging = Staging::begin(&folder)?;
    let work = staging.path();
    fs::create_dir_all(work)?;
    let backing = option_path(&image.disk)?;
    let mut overlay = Command::new("qemu-img");
    overlay.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &backing]).arg(work.join(OVERLAY_FILE));
    host::output(&mut overlay)?;
    if machine.swap_disk_mib > 0 {
        let mut swap = Command::new("qemu-img");
        swap.args(["create", "-q", "-f", "qcow2"]).arg(work.join(SWAP_FILE));
        host::output(swap.arg(format!("{}M", machine.swap_disk_mib)))?;
    }

    let logs = ctx.out.join("logs/faceoff-snapshot").join(&kernel.release);
    let mut guest = Guest::start(&snapshot, work, &logs, false)?;
    guest.follow(&step, BOOT_TIMEOUT, &[], &mut |event| matches!(event, Event::Ready))?;
    step.detail("saving the state");
    guest.monitor.execute("stop", json!({}))?;
    guest.monitor.execute("migrate-set-parameters", json!({ "max-bandwidth": 1_u64 << 40 }))?;
    // The path is relative to the working folder, so that it needs no quoting for the shell.
    guest.monitor.execute("migrate", json!({ "uri": format!("exec:cat >{STATE_FILE}") }))?;
    let began = Instant::now();
    loop {
        let state = guest.monitor.execute("query-migrate", json!({}))?;
        match state["status"].as_str() {
            Some("completed") => break,
            Some("failed" | "cancelled") => bail!("QEMU could not write its state: {state}"),
            _ if began.elapsed() > QMP_TIMEOUT => bail!("QEMU takes too long to write its state: {state}"),
            _ => thread::sleep(POLL_INTERVAL),
        }
    }
    guest.monitor.execute("quit", json!({}))?;
    guest.child.wait()?;
    drop(guest);
    let marker = work.join(MARKER_FILE);
    fs::write(&marker, json!({ "key": snapshot.key, "kernel": kernel.release }).to_string())?;
    staging.publish(&folder)?;
    step.done("saved");
    Ok(snapshot)
}

impl Snapshot<'_> {
    fn is_finished(&self) -> bool {
        let marker = fs::read(self.folder.join(MARKER_FILE)).ok();
        let marker = marker.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let sound = marker.is_some_and(|m| m["key"] == self.key.as_str())
            && [OVERLAY_FILE, STATE_FILE].iter().all(|file| self.folder.join(file).is_file());
        if sound {
            // The modification time is the time of last use. Without write access it is pruned earlier.
            let _ = File::options()
                .append(true)
                .open(self.folder.join(MARKER_FILE))
                .and_then(|file| file.set_modified(std::time::SystemTime::now()));
        }
        sound
    }

    /// Restores the guest, sends it `job` and passes its events to `sink` until the last one. The logs go to
    /// the folder `logs`.
    ///
    /// # Errors
    /// When QEMU cannot be run; a [`GuestFailure`] when the guest reports an error, panics, ends too early or
    /// does not finish within `limit`.
    pub fn run(&self, job: &Job, logs: &Path, limit: Duration, step: &Step, sink: &mut dyn FnMut(Event)) -> Result<()> {
        let mut guest = Guest::start(self, &self.folder, logs, true)?;
        guest.monitor.execute("migrate-incoming", json!({ "uri": format!("exec:cat {STATE_FILE}") }))?;
        let began = Instant::now();
        loop {
            let state = guest.monitor.execute("query-status", json!({}))?;
            match state["status"].as_str() {
                Some("inmigrate") if began.elapsed() < QMP_TIMEOUT => thread::sleep(POLL_INTERVAL),
                Some("paused" | "running") => break,
                _ => bail!("QEMU could not read its state: {state}\n{}", guest.evidence(10)),
            }
        }
        guest.monitor.execute("cont", json!({}))?;
        guest.job.write_all(&line::encode(job)?).context("sending the guest its job")?;
        guest.follow(step, limit, &job.load.balloon, &mut |event| {
            let over = matches!(event, Event::End);
            sink(event);
            over
        })
    }
}

impl Ingredients<'_> {
    /// Returns the content key of the snapshot.
    ///
    /// # Errors
    /// When the guest program cannot be read, or QEMU not be run.
    pub fn key(&self) -> Result<String> {
        let mut content = Content::default();
        content.add(RECIPE_VERSION);
        content.add(self.accel.to_string());
        content.add(&self.kernel.key);
        content.add(&self.image.key);
        content.add(host::output(qemu::program(Arch::X86_64).arg("--version"))?);
        content.add_file(self.guest)?;
        content.add(serde_json::to_string(self.machine)?);
        content.add(self.number.to_string());
        Ok(content.key())
    }
}

/// Removes all but the most recently used snapshots.
fn prune(parent: &Path) {
    let used = |path: &Path| fs::metadata(path.join(MARKER_FILE)).and_then(|meta| meta.modified());
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries.filter_map(|entry| Some((used(&entry.path()).ok()?, entry.path()))).collect();
    all.sort();
    // One less than the limit, because another is about to be made. Errors are ignored: what remains only
    // takes space.
    for (_, path) in all.iter().rev().skip(MAX_CACHED_SNAPSHOTS - 1) {
        let _ = host::remove_any(path);
    }
}

/// A running guest of the face-off.
struct Guest {
    memory_mib: u32,
    child: Child,
    monitor: Monitor,
    job: File,
    output: Output,
    events: Lines,
    logs: Logs,
    folder: PathBuf,
}

/// The common name of the two FIFOs of QEMU's `pipe` character device.
const JOB_PIPE: &str = "job";

impl Guest {
    /// Starts QEMU in `folder`, which has the overlay. With `incoming`, it waits for its state, and writes to
    /// the disks are discarded.
    fn start(snapshot: &Snapshot<'_>, folder: &Path, log_folder: &Path, incoming: bool) -> Result<Self> {
        host::remove_any(log_folder)?;
        fs::create_dir_all(log_folder)?;
        // The guest does not write to the second one.
        for fifo in fifos(log_folder) {
            rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, FileMode::from_raw_mode(0o600), 0)?;
        }
        let job = File::options().read(true).write(true).open(&fifos(log_folder)[0])?;
        let logs = Logs::in_folder(log_folder);
        let mut qemu = command(&snapshot.of, &logs, &log_folder.join(JOB_PIPE), incoming)?;
        qemu.current_dir(folder);
        logs.begin(&mut qemu)?;
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = host::spawn(&mut qemu)?;
        let pipes = child.pipes();
        let (Some(stdin), Some(stdout)) = (pipes.stdin.take(), pipes.stdout.take()) else {
            bail!("QEMU has no pipes");
        };
        let allowed: Vec<String> = ALLOWED_CONSOLE_LINES.iter().map(|&a| a.to_owned()).collect();
        let mut guest = Self {
            memory_mib: snapshot.of.machine.memory_mib,
            child,
            monitor: Monitor::new(stdin, stdout),
            job,
            output: Output::follow(&logs, &allowed)?,
            events: Lines::default(),
            logs,
            folder: log_folder.to_owned(),
        };
        if let Err(e) = guest.monitor.greet() {
            bail!("{e:#}\n{}", guest.evidence(10));
        }
        Ok(guest)
    }

    /// Passes the guest's events to `is_last` until it returns true. Fails if the guest does. From when the
    /// contestant runs, `balloon` takes memory away and gives it back.
    fn follow(
        &mut self,
        step: &Step,
        limit: Duration,
        balloon: &[Balloon],
        is_last: &mut dyn FnMut(Event) -> bool,
    ) -> Result<()> {
        let began = Instant::now();
        let mut started = None;
        let mut balloon = balloon.iter().peekable();
        loop {
            // Checked before the logs are read, so that they are complete once QEMU has ended.
            let ended = self.child.try_wait()?;
            let bytes = self.output.read()?;
            // First, as the last event may be there already.
            if let Some(line) = &self.output.watch.panic {
                return Err(self.failure(&format!("the guest panicked: {line}")));
            }
            if let Some((kind, line)) = &self.output.watch.splat {
                return Err(self.failure(&format!("the guest's kernel complains ({kind}): {line}")));
            }
            for line in self.events.feed(&bytes) {
                match serde_json::from_slice(&line) {
                    Ok(Event::Error { text }) => {
                        return Err(self.failure(&format!("the guest reports: {text}")));
                    }
                    Ok(event) => {
                        if let Some(said) = record::progress(&event) {
                            step.detail(&said);
                        }
                        if matches!(event, Event::Started { .. }) {
                            started = Some(Instant::now());
                        }
                        if is_last(event) {
                            return Ok(());
                        }
                    }
                    Err(e) => {
                        let shown: String = String::from_utf8_lossy(&line).chars().take(200).collect();
                        return Err(self.failure(&format!("garbage on the channel: {shown} ({e})")));
                    }
                }
            }
            let is_due = |step: &&Balloon| started.is_some_and(|at| at.elapsed() >= Duration::from_secs(step.at_s));
            if let Some(due) = balloon.next_if(is_due) {
                let bytes = u64::from(self.memory_mib) * (1 << 20) * u64::from(due.percent) / 100;
                self.monitor.execute("balloon", json!({ "value": bytes }))?;
            }
            if let Some(status) = ended {
                return Err(self.failure(&format!("QEMU ended before the guest was done: {status}")));
            }
            if began.elapsed() > limit {
                return Err(self.failure(&format!("not done within {} s", limit.as_secs())));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn failure(&self, what: &str) -> anyhow::Error {
        GuestFailure(format!("{what}\n{}", self.evidence(25))).into()
    }

    fn evidence(&self, lines: usize) -> String {
        let mut text = String::new();
        append_excerpt(&mut text, &self.logs.qemu, None, 5);
        append_excerpt(&mut text, &self.logs.console, None, lines);
        append_excerpt(&mut text, &self.logs.channel, None, 5);
        text
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The FIFOs are not logs.
        for fifo in fifos(&self.folder) {
            let _ = fs::remove_file(fifo);
        }
    }
}

/// Returns the FIFO that QEMU reads from and the one that it writes to.
fn fifos(folder: &Path) -> [PathBuf; 2] {
    ["in", "out"].map(|end| folder.join(format!("{JOB_PIPE}.{end}")))
}

fn command(of: &Ingredients<'_>, logs: &Logs, job: &Path, incoming: bool) -> Result<Command> {
    let &Ingredients { accel, machine, kernel, payload, .. } = of;
    // Warnings (level 4) must be on the console, which is watched. Messages without a level get one that is
    // not printed there: the stack and the list of zones in each report of a memory shortage, some KB, would
    // delay the kill whose time is measured.
    let mut params = String::from(
        "console=ttyS0 root=/dev/vda rw rootfstype=ext4 panic=-1 reboot=t printk.time=1 loglevel=5 \
         sysctl.kernel.printk=\"5 6\" \
         transparent_hugepage=never net.ifnames=0 fsck.mode=skip systemd.gpt_auto=0",
    );
    let _ = write!(params, " {ZRAM_PARAMETER}{} {}", machine.zram_mib, machine.parameters);
    // microvm would boot faster but does not support migration.
    let mut qemu = qemu::machine(Arch::X86_64, "pc", machine.cpus, machine.memory_mib);
    qemu::accelerate(
        &mut qemu,
        Arch::X86_64,
        accel,
        Mode::Multi,
        machine.cpus,
        "host,migratable=on",
        host_tsc_khz(),
        &mut params,
    );
    qemu.arg("-kernel").arg(&kernel.bzimage).args(["-append", &params]);
    let throwaway = if incoming { "on" } else { "off" };
    let mut disk = |id: &str, file: &str, more: &str| {
        qemu.args(["-drive", &format!("file={file},if=none,id={id},{more}")]);
        qemu.args(["-device", &format!("virtio-blk-pci,drive={id}")]);
    };
    let mut speed = String::new();
    if let Some(mb_per_s) = machine.disk_mb_per_s {
        let _ = write!(speed, ",throttling.bps-total={}", u64::from(mb_per_s) * 1_000_000);
    }
    if let Some(iops) = machine.disk_iops {
        let _ = write!(speed, ",throttling.iops-total={iops}");
    }
    let writable = format!("format=qcow2,cache=unsafe,snapshot={throwaway}{speed}");
    disk("root", OVERLAY_FILE, &writable);
    disk("payload", &option_path(payload)?, "format=raw,readonly=on");
    if machine.swap_disk_mib > 0 {
        disk("swap", SWAP_FILE, &writable);
    }
    qemu.args(["-device", "virtio-balloon-pci"]);
    qemu.args(["-chardev", &format!("file,id=console,path={}", option_path(&logs.console)?)]);
    qemu.args(["-serial", "chardev:console"]);
    qemu.args(["-device", "virtio-serial-pci"]);
    let events = format!("file,id=channel,path={}", option_path(&logs.channel)?);
    qemu::serial_port(&mut qemu, "channel", &events, EVENT_PORT);
    qemu::serial_port(&mut qemu, "job", &format!("pipe,id=job,path={}", option_path(job)?), JOB_PORT);
    qemu.args(["-chardev", "stdio,id=qmp,signal=off", "-mon", "chardev=qmp,mode=control"]);
    if incoming {
        qemu.args(["-incoming", "defer"]);
    }
    Ok(qemu)
}

/// QEMU's monitor (QMP): commands and answers, one JSON value per line.
struct Monitor {
    to: ChildStdin,
    from: Receiver<String>,
}

impl Monitor {
    fn new(to: ChildStdin, stdout: std::process::ChildStdout) -> Self {
        let (send, from) = mpsc::channel();
        // Ends when QEMU ends or the receiver is dropped.
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Self { to, from }
    }

    fn greet(&mut self) -> Result<()> {
        let hello = self.next()?;
        ensure!(hello.get("QMP").is_some(), "QEMU's monitor sent {hello} instead of its greeting");
        self.execute("qmp_capabilities", json!({}))?;
        Ok(())
    }

    fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        // In one piece: QEMU acts on the last brace, and after 'quit' it reads no line end.
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        self.to.write_all(line.as_bytes()).with_context(|| format!("QEMU does not accept '{command}'"))?;
        loop {
            let mut answer = self.next().with_context(|| format!("waiting for QEMU's '{command}'"))?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU's '{command}': {error}");
            }
            // Anything else is an event.
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    fn next(&mut self) -> Result<Value> {
        match self.from.recv_timeout(QMP_TIMEOUT) {
            Ok(line) => serde_json::from_str(&line).with_context(|| format!("QEMU's monitor sent {line}")),
            Err(RecvTimeoutError::Timeout) => bail!("QEMU's monitor does not answer"),
            Err(RecvTimeoutError::Disconnected) => bail!("QEMU has ended"),
        }
    }
}

/// Makes the payload disk at `disk`: a padded tar archive of `folder`.
///
/// # Errors
/// When the archive is larger than the disk.
pub fn pack_payload(folder: &Path, disk: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--format=gnu", "--owner=0", "--group=0", "--sort=name", "--mtime=@0", "-cf"]).arg(disk);
    host::output(tar.arg("-C").arg(folder).arg("."))?;
    let file = File::options().write(true).open(disk)?;
    let size = file.metadata()?.len();
    ensure!(size <= PAYLOAD_DISK_BYTES, "{}: {size} bytes do not fit the payload disk", disk.display());
    file.set_len(PAYLOAD_DISK_BYTES)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_the_disk_s_size_and_content() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("in");
        fs::create_dir_all(folder.join("contestants/x")).unwrap();
        fs::write(folder.join("guest"), "program").unwrap();
        let disk = dir.path().join("payload.tar");
        pack_payload(&folder, &disk).unwrap();
        assert_eq!(fs::metadata(&disk).unwrap().len(), PAYLOAD_DISK_BYTES);
        let listing = host::output(Command::new("tar").arg("-tf").arg(&disk)).unwrap();
        assert!(listing.contains("./guest\n") && listing.contains("./contestants/x/\n"), "{listing}");
        let first = fs::read(&disk).unwrap();
        pack_payload(&folder, &disk).unwrap();
        assert!(first == fs::read(&disk).unwrap(), "same content, same disk");
        fs::write(folder.join("large"), vec![1; usize::try_from(PAYLOAD_DISK_BYTES).unwrap()]).unwrap();
        assert!(pack_payload(&folder, &disk).unwrap_err().to_string().contains("do not fit"));
    }

    #[test]
    fn warnings_reach_the_console() {
        // From include/linux/kern_levels.h. A message is printed if its level is lower than that of the
        // console.
        const KERN_WARNING: u32 = 4;
        let [file, job] = ["/file", "/job"].map(Path::new);
        let kernel =
            Kernel { bzimage: file.into(), source_dir: file.into(), release: String::new(), key: String::new() };
        let image = Image { disk: file.into(), key: String::new(), packages: Default::default() };
        let logs = Logs::in_folder(Path::new("/logs"));
        let machine = Machine {
            swap_disk_mib: 1,
            disk_iops: Some(7),
            ..super::super::summary::tests::cells()[0].machine.clone()
        };
        for accel in [Accel::Kvm, Accel::Tcg] {
            let of = Ingredients {
                accel,
                kernel: &kernel,
                image: &image,
                guest: file,
                payload: file,
                machine: &machine,
                number: 0,
            };
            let qemu = command(&of, &logs, job, false).unwrap();
            let arguments = crate::host::command_text(&qemu);
            assert_eq!(arguments.matches("throttling.iops-total=7").count(), 2, "{arguments}");
            let parameters = qemu.get_args().skip_while(|&a| a != "-append").nth(1).unwrap();
            let parameters = parameters.to_str().unwrap();
            let at_boot = parameters.split(' ').find_map(|p| p.strip_prefix("loglevel=")).unwrap();
            assert!(at_boot.parse::<u32>().unwrap() > KERN_WARNING, "{parameters}");
            let (_, later) = parameters.split_once(" sysctl.kernel.printk=\"").unwrap();
            let later: Vec<u32> = later.split('"').next().unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
            assert!(later[0] > KERN_WARNING, "{parameters}");
            // Messages without a level are not printed.
            assert!(later[1] >= later[0], "{parameters}");
        }
    }

    #[test]
    fn only_the_oldest_snapshots_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let now = std::time::SystemTime::now();
        for age in 0..MAX_CACHED_SNAPSHOTS as u64 + 2 {
            let folder = dir.path().join(format!("{age:02}"));
            fs::create_dir(&folder).unwrap();
            let marker = File::create(folder.join(MARKER_FILE)).unwrap();
            marker.set_modified(now - Duration::from_secs(age * 100)).unwrap();
        }
        fs::create_dir(dir.path().join("at-work.partial")).unwrap();
        prune(dir.path());
        let mut left: Vec<String> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        let newest = (0..MAX_CACHED_SNAPSHOTS - 1).map(|age| format!("{age:02}"));
        assert_eq!(left, newest.chain(["at-work.partial".to_owned()]).collect::<Vec<_>>());
    }
}
