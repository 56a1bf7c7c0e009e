// SPDX-License-Identifier: GPL-2.0-only
//! The face-off's guest. It is booted once; when it reports that it is warmed up, its state is saved, and
//! every run starts from that state.
//!
//! The state is saved by QEMU's migration to a file. The guest's events go to a file that the lab follows.
//! Its jobs come through a FIFO that the lab opens before QEMU starts, because a port without a connected
//! host is closed in the guest.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{CWD, FileType, Mode as FileMode};
use serde_json::{Value, json};

use protocol::faceoff::{EVENT_PORT, Event, JOB_PORT, Job};
use protocol::line::{self, Lines};

use super::record;
use super::rootfs::Image;
use crate::content::Content;
use crate::context::Context;
use crate::host::{self, Child, Staging};
use crate::kernel::Kernel;
use crate::progress::Step;
use crate::vm::accel::Accel;
use crate::vm::job::Mode;
use crate::vm::logs::{Logs, Output, append_excerpt};
use crate::vm::qemu::{self, host_tsc_khz, option_path};

/// The guest's virtual CPUs.
pub const GUEST_CPUS: u32 = 2;
/// The guest's memory in MiB.
pub const GUEST_MEMORY_MIB: u32 = 2048;
/// The size of the payload disk. It is fixed because a snapshot is only valid for disks of the same size.
pub const PAYLOAD_DISK_BYTES: u64 = 64 << 20;

/// Part of every snapshot's key. Increment it when the machine or the boot changes.
const RECIPE_VERSION: &str = "3";
/// The disk's changes since the image.
const OVERLAY_FILE: &str = "overlay.qcow2";
/// QEMU's state.
const STATE_FILE: &str = "machine";
/// Written last, so a folder that has it is a complete snapshot.
const MARKER_FILE: &str = "snapshot.json";
/// How many snapshots stay in the cache. Each takes about 800 MiB.
const MAX_CACHED_SNAPSHOTS: usize = 6;

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
#[derive(Debug)]
pub struct GuestFailure(pub String);

impl std::fmt::Display for GuestFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GuestFailure {}

/// The saved state of a warmed-up guest.
#[derive(Clone, Debug)]
pub struct Snapshot {
    accel: Accel,
    folder: PathBuf,
    kernel: PathBuf,
    /// The content key of kernel, image, guest program and machine: 64 hexadecimal digits.
    pub key: String,
}

/// Returns the snapshot of `image` on `kernel` with the guest program at `guest`, from the cache or made now.
/// `payload` is the payload disk for making it.
///
/// # Errors
/// When QEMU cannot be run; a [`GuestFailure`] when the guest does not boot.
pub fn make(
    ctx: &Context,
    accel: Accel,
    kernel: &Kernel,
    image: &Image,
    guest: &Path,
    payload: &Path,
) -> Result<Snapshot> {
    let key = key(accel, kernel, image, guest)?;
    let parent = ctx.cache.join("faceoff/snapshots");
    let folder = parent.join(&key[..16]);
    let snapshot = Snapshot { accel, folder: folder.clone(), kernel: kernel.bzimage.clone(), key };
    if snapshot.is_finished() {
        return Ok(snapshot);
    }
    let _lock = host::lock(ctx, &folder)?;
    if snapshot.is_finished() {
        return Ok(snapshot);
    }
    prune(&parent);
    let step = ctx.progress.step(&format!("booting {} for a snapshot", kernel.release));
    let staging = Staging::begin(&folder)?;
    let work = staging.path();
    fs::create_dir_all(work).with_context(|| format!("cannot make {}", work.display()))?;
    let backing = option_path(&image.disk)?;
    let mut overlay = Command::new("qemu-img");
    overlay.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &backing]).arg(work.join(OVERLAY_FILE));
    host::output(&mut overlay)?;

    let logs = ctx.out.join("logs/faceoff-snapshot").join(&kernel.release);
    let mut machine = Machine::start(accel, &snapshot.kernel, work, payload, &logs, false)?;
    machine.follow(&step, BOOT_TIMEOUT, &mut |event| matches!(event, Event::Ready))?;
    step.detail("saving the state");
    machine.monitor.execute("stop", json!({}))?;
    machine.monitor.execute("migrate-set-parameters", json!({ "max-bandwidth": 1_u64 << 40 }))?;
    // The path is relative to the working folder, so that it needs no quoting for the shell.
    machine.monitor.execute("migrate", json!({ "uri": format!("exec:cat >{STATE_FILE}") }))?;
    let began = Instant::now();
    loop {
        let state = machine.monitor.execute("query-migrate", json!({}))?;
        match state["status"].as_str() {
            Some("completed") => break,
            Some("failed" | "cancelled") => bail!("QEMU could not write its state: {state}"),
            _ if began.elapsed() > QMP_TIMEOUT => bail!("QEMU takes too long to write its state: {state}"),
            _ => thread::sleep(POLL_INTERVAL),
        }
    }
    machine.monitor.execute("quit", json!({}))?;
    machine.child.wait()?;
    drop(machine);
    let marker = work.join(MARKER_FILE);
    fs::write(&marker, json!({ "key": snapshot.key, "kernel": kernel.release }).to_string())
        .with_context(|| format!("cannot write {}", marker.display()))?;
    staging.publish(&folder)?;
    step.done("saved");
    Ok(snapshot)
}

impl Snapshot {
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
    pub fn run(
        &self,
        payload: &Path,
        job: &Job,
        logs: &Path,
        limit: Duration,
        step: &Step,
        sink: &mut dyn FnMut(Event),
    ) -> Result<()> {
        let mut machine = Machine::start(self.accel, &self.kernel, &self.folder, payload, logs, true)?;
        machine.monitor.execute("migrate-incoming", json!({ "uri": format!("exec:cat {STATE_FILE}") }))?;
        let began = Instant::now();
        loop {
            let state = machine.monitor.execute("query-status", json!({}))?;
            match state["status"].as_str() {
                Some("inmigrate") if began.elapsed() < QMP_TIMEOUT => thread::sleep(POLL_INTERVAL),
                Some("paused" | "running") => break,
                _ => bail!("QEMU could not read its state: {state}\n{}", machine.evidence(10)),
            }
        }
        machine.monitor.execute("cont", json!({}))?;
        machine.job.write_all(&line::encode(job)?).context("sending the guest its job")?;
        machine.follow(step, limit, &mut |event| {
            let over = matches!(event, Event::End);
            sink(event);
            over
        })
    }
}

fn key(accel: Accel, kernel: &Kernel, image: &Image, guest: &Path) -> Result<String> {
    let mut content = Content::default();
    content.add(RECIPE_VERSION);
    content.add(accel.to_string());
    content.add(&kernel.key);
    content.add(&image.key);
    content.add(host::output(qemu::program().arg("--version"))?);
    content.add_file(guest)?;
    Ok(content.key())
}

/// Removes all but the most recently used snapshots.
fn prune(parent: &Path) {
    let used = |path: &Path| fs::metadata(path.join(MARKER_FILE)).and_then(|meta| meta.modified());
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut all: Vec<_> =
        entries.filter_map(|entry| Some((used(&entry.path()).ok()?, entry.path()))).collect();
    all.sort();
    // One less than the limit, because another is about to be made. Errors are ignored: what remains only
    // takes space.
    for (_, path) in all.iter().rev().skip(MAX_CACHED_SNAPSHOTS - 1) {
        let _ = host::remove_any(path);
    }
}

/// A running guest of the face-off.
struct Machine {
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

impl Machine {
    /// Starts QEMU in `folder`, which has the overlay. With `incoming`, it waits for its state, and writes to
    /// the disk are discarded.
    fn start(
        accel: Accel,
        kernel: &Path,
        folder: &Path,
        payload: &Path,
        log_folder: &Path,
        incoming: bool,
    ) -> Result<Self> {
        host::remove_any(log_folder).with_context(|| format!("cannot remove {}", log_folder.display()))?;
        fs::create_dir_all(log_folder).with_context(|| format!("cannot make {}", log_folder.display()))?;
        // The guest does not write to the second one.
        for fifo in fifos(log_folder) {
            rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, FileMode::from_raw_mode(0o600), 0)
                .with_context(|| format!("cannot make {}", fifo.display()))?;
        }
        let job = File::options().read(true).write(true).open(&fifos(log_folder)[0])?;
        let logs = Logs::in_folder(log_folder);
        let mut qemu = command(accel, kernel, payload, &logs, &log_folder.join(JOB_PIPE), incoming)?;
        qemu.current_dir(folder);
        logs.begin(&mut qemu)?;
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = host::spawn(&mut qemu)?;
        let pipes = child.pipes();
        let (Some(stdin), Some(stdout)) = (pipes.stdin.take(), pipes.stdout.take()) else {
            bail!("QEMU has no pipes");
        };
        let allowed: Vec<String> = ALLOWED_CONSOLE_LINES.iter().map(|&a| a.to_owned()).collect();
        let mut machine = Self {
            child,
            monitor: Monitor::new(stdin, stdout),
            job,
            output: Output::follow(&logs, &allowed)?,
            events: Lines::default(),
            logs,
            folder: log_folder.to_owned(),
        };
        if let Err(e) = machine.monitor.greet() {
            bail!("{e:#}\n{}", machine.evidence(10));
        }
        Ok(machine)
    }

    /// Passes the guest's events to `is_last` until it returns true. Fails if the guest does.
    fn follow(&mut self, step: &Step, limit: Duration, is_last: &mut dyn FnMut(Event) -> bool) -> Result<()> {
        let began = Instant::now();
        loop {
            // Checked before the logs are read, so that they are complete once QEMU has ended.
            let ended = self.child.try_wait()?;
            let bytes = self.output.read()?;
            for line in self.events.feed(&bytes) {
                match serde_json::from_slice(&line) {
                    Ok(Event::Error { text }) => {
                        return Err(self.failure(&format!("the guest reports: {text}")));
                    }
                    Ok(event) => {
                        if let Some(said) = record::progress(&event) {
                            step.detail(&said);
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
            if let Some(line) = self.output.watch.panic() {
                return Err(self.failure(&format!("the guest panicked: {line}")));
            }
            if let Some((kind, line)) = self.output.watch.splat() {
                return Err(self.failure(&format!("the guest's kernel complains ({kind}): {line}")));
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

impl Drop for Machine {
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

fn command(
    accel: Accel,
    kernel: &Path,
    payload: &Path,
    logs: &Logs,
    job: &Path,
    incoming: bool,
) -> Result<Command> {
    // Warnings (level 4) must be on the console, which is watched. Messages without a level get one that is
    // not printed there: the stack and the list of zones in each report of a memory shortage, some KB, would
    // delay the kill whose time is measured.
    let mut params = String::from(
        "console=ttyS0 root=/dev/vda rw rootfstype=ext4 panic=-1 reboot=t printk.time=1 loglevel=5 \
         sysctl.kernel.printk=\"5 6\" \
         transparent_hugepage=never net.ifnames=0 fsck.mode=skip systemd.gpt_auto=0",
    );
    // microvm would boot faster but does not support migration.
    let mut qemu = qemu::machine("pc", GUEST_CPUS, GUEST_MEMORY_MIB);
    qemu::accelerate(
        &mut qemu,
        accel,
        Mode::Multi,
        GUEST_CPUS,
        "host,migratable=on",
        host_tsc_khz(),
        &mut params,
    );
    qemu.arg("-kernel").arg(kernel).args(["-append", &params]);
    let throwaway = if incoming { "on" } else { "off" };
    qemu.args([
        "-drive",
        &format!("file={OVERLAY_FILE},format=qcow2,if=none,id=root,cache=unsafe,snapshot={throwaway}"),
    ]);
    qemu.args(["-device", "virtio-blk-pci,drive=root"]);
    let payload = option_path(payload)?;
    qemu.args(["-drive", &format!("file={payload},format=raw,if=none,id=payload,readonly=on")]);
    qemu.args(["-device", "virtio-blk-pci,drive=payload"]);
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
        let line = json!({ "execute": command, "arguments": arguments });
        writeln!(self.to, "{line}").with_context(|| format!("QEMU does not accept '{command}'"))?;
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
    let file = File::options().write(true).open(disk).with_context(|| disk.display().to_string())?;
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
        let (kernel, payload, job) = (Path::new("/kernel"), Path::new("/payload"), Path::new("/job"));
        let logs = Logs::in_folder(Path::new("/logs"));
        for accel in [Accel::Kvm, Accel::Tcg] {
            let qemu = command(accel, kernel, payload, &logs, job, false).unwrap();
            let parameters = qemu.get_args().skip_while(|&a| a != "-append").nth(1).unwrap();
            let parameters = parameters.to_str().unwrap();
            let at_boot = parameters.split(' ').find_map(|p| p.strip_prefix("loglevel=")).unwrap();
            assert!(at_boot.parse::<u32>().unwrap() > KERN_WARNING, "{parameters}");
            let (_, later) = parameters.split_once(" sysctl.kernel.printk=\"").unwrap();
            let later: Vec<u32> =
                later.split('"').next().unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
            assert!(later[0] > KERN_WARNING, "{parameters}");
            // Messages without a level are not printed.
            assert!(later[1] >= later[0], "{parameters}");
        }
    }

    #[test]
    fn only_the_oldest_snapshots_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let now = std::time::SystemTime::now();
        for age in 0..8_u64 {
            let folder = dir.path().join(age.to_string());
            fs::create_dir(&folder).unwrap();
            let marker = File::create(folder.join(MARKER_FILE)).unwrap();
            marker.set_modified(now - Duration::from_secs(age * 100)).unwrap();
        }
        fs::create_dir(dir.path().join("at-work.partial")).unwrap();
        prune(dir.path());
        let mut left: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["0", "1", "2", "3", "4", "at-work.partial"]);
    }
}
