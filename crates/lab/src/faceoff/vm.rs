//! The guest's machine: booted once and frozen when it says that it is warm, then brought back
//! from there for every run.
//!
//! Freezing is QEMU's migration into a file. The guest's second channel is a file that the lab
//! follows, its jobs come through a FIFO that is open from the start: a port without a listener
//! reads as closed in the guest.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{CWD, FileType, Mode};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::record::{self, Event};
use super::rootfs::Image;
use crate::context::Context;
use crate::host::{self, Child, Staging};
use crate::kernel::Kernel;
use crate::progress::Step;
use crate::vm::accel::Accel;
use crate::vm::boot::{Follower, TCG_CPU, host_tsc_khz, option_path, qemu};
use crate::vm::console::Watch;

/// The machine that the issue's figures are for.
pub const CPUS: u32 = 2;
/// MiB.
pub const MEMORY: u32 = 2048;
/// Of the payload disk: as the snapshot's, it may not change its size.
pub const PAYLOAD_BYTES: u64 = 64 << 20;

/// Part of every snapshot's key: raise it when the machine or the boot changes.
const RECIPE: &str = "2";
const OVERLAY: &str = "overlay.qcow2";
const MACHINE: &str = "machine";
/// Written last into a finished snapshot.
const MARKER: &str = "snapshot.json";
/// How many snapshots stay in the cache; each has about 800 MiB.
const KEPT_SNAPSHOTS: usize = 6;

const POLL: Duration = Duration::from_millis(20);
/// From power on until the guest is warm: half a minute under TCG.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// What QEMU may take to answer a command, and to write or read its state.
const QMP_LIMIT: Duration = Duration::from_secs(60);

/// Lines that a kernel short of memory may print, and a host that is short of CPUs provokes.
const ALLOWED: &[&str] = &[r"INFO: task .* blocked", r"rcu: INFO: rcu_", r"soft lockup", r"page allocation"];

/// A guest that went wrong: what happened and the ends of its logs.
#[derive(Debug)]
pub struct GuestFailure(pub String);

impl std::fmt::Display for GuestFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GuestFailure {}

/// A frozen, warm guest.
#[derive(Clone, Debug)]
pub struct Snapshot {
    accel: Accel,
    folder: PathBuf,
    kernel: PathBuf,
    /// Kernel, image, guest program and machine, 64 hexadecimal digits.
    pub key: String,
}

/// The snapshot of `image` on `kernel` with the guest program at `guest`: from the cache, or
/// made now with `payload` as the payload disk.
///
/// # Errors
/// When QEMU cannot be run, or, as a [`GuestFailure`], when the guest does not come up.
pub fn snapshot(
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
    let there = Snapshot { accel, folder: folder.clone(), kernel: kernel.bzimage.clone(), key };
    if there.is_finished() {
        return Ok(there);
    }
    let _lock = host::lock(ctx, &folder)?;
    if there.is_finished() {
        return Ok(there);
    }
    prune(&parent);
    let step = ctx.progress.step(&format!("booting {} to freeze it", kernel.release));
    let staging = Staging::begin(&folder)?;
    let work = staging.path();
    fs::create_dir_all(work).with_context(|| format!("cannot make {}", work.display()))?;
    let backing = option_path(&image.disk)?;
    let mut overlay = Command::new("qemu-img");
    overlay.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &backing]).arg(work.join(OVERLAY));
    host::output(&mut overlay)?;

    let logs = ctx.out.join("logs/faceoff-snapshot").join(&kernel.release);
    let mut machine = Machine::start(accel, &there.kernel, work, payload, &logs, false)?;
    machine.follow(&step, BOOT_LIMIT, &mut |event| matches!(event, Event::Ready))?;
    step.detail("freezing");
    machine.qmp.execute("stop", json!({}))?;
    machine.qmp.execute("migrate-set-parameters", json!({ "max-bandwidth": 1_u64 << 40 }))?;
    // Relative to the working folder, so that no path needs the shell's quoting.
    machine.qmp.execute("migrate", json!({ "uri": format!("exec:cat >{MACHINE}") }))?;
    let began = Instant::now();
    loop {
        let state = machine.qmp.execute("query-migrate", json!({}))?;
        match state["status"].as_str() {
            Some("completed") => break,
            Some("failed" | "cancelled") => bail!("QEMU could not write its state: {state}"),
            _ if began.elapsed() > QMP_LIMIT => bail!("QEMU takes too long to write its state: {state}"),
            _ => thread::sleep(POLL),
        }
    }
    machine.qmp.execute("quit", json!({}))?;
    machine.child.wait()?;
    drop(machine);
    let marker = work.join(MARKER);
    fs::write(&marker, json!({ "key": there.key, "kernel": kernel.release }).to_string())
        .with_context(|| format!("cannot write {}", marker.display()))?;
    staging.publish(&folder)?;
    step.done("frozen");
    Ok(there)
}

impl Snapshot {
    fn is_finished(&self) -> bool {
        let marker = fs::read(self.folder.join(MARKER)).ok();
        let marker = marker.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let sound = marker.is_some_and(|m| m["key"] == self.key.as_str())
            && [OVERLAY, MACHINE].iter().all(|file| self.folder.join(file).is_file());
        if sound {
            // Its age counts from its last use; without write access it gets pruned earlier.
            let _ = File::options()
                .append(true)
                .open(self.folder.join(MARKER))
                .and_then(|file| file.set_modified(std::time::SystemTime::now()));
        }
        sound
    }

    /// Brings the guest back, gives it `job` and passes its events to `sink`, until it says that
    /// it is done. The logs are in `logs` afterwards.
    ///
    /// # Errors
    /// When QEMU cannot be run, or, as a [`GuestFailure`], when the guest reports trouble,
    /// panics, ends too early or is not done within `limit`.
    pub fn run(
        &self,
        payload: &Path,
        job: &Value,
        logs: &Path,
        limit: Duration,
        step: &Step,
        sink: &mut dyn FnMut(Event),
    ) -> Result<()> {
        let mut machine = Machine::start(self.accel, &self.kernel, &self.folder, payload, logs, true)?;
        machine.qmp.execute("migrate-incoming", json!({ "uri": format!("exec:cat {MACHINE}") }))?;
        let began = Instant::now();
        loop {
            let state = machine.qmp.execute("query-status", json!({}))?;
            match state["status"].as_str() {
                Some("inmigrate") if began.elapsed() < QMP_LIMIT => thread::sleep(POLL),
                Some("paused" | "running") => break,
                _ => bail!("QEMU could not read its state: {state}\n{}", machine.evidence(10)),
            }
        }
        machine.qmp.execute("cont", json!({}))?;
        machine.job.write_all(format!("{job}\n").as_bytes()).context("giving the guest its job")?;
        machine.follow(step, limit, &mut |event| {
            let over = matches!(event, Event::End);
            sink(event);
            over
        })
    }
}

fn key(accel: Accel, kernel: &Kernel, image: &Image, guest: &Path) -> Result<String> {
    let program = fs::read(guest).with_context(|| format!("cannot read {}", guest.display()))?;
    let version = host::output(qemu().arg("--version"))?;
    let mut hash = Sha256::new();
    hash.update(format!("{RECIPE} {accel} {} {} {version}", kernel.key, image.key));
    hash.update(program);
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// Removes the snapshots that were not used for longest.
fn prune(parent: &Path) {
    let used = |path: &Path| fs::metadata(path.join(MARKER)).and_then(|meta| meta.modified());
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut all: Vec<_> =
        entries.filter_map(|entry| Some((used(&entry.path()).ok()?, entry.path()))).collect();
    all.sort();
    // One more is about to come. What cannot be removed costs space and nothing else.
    for (_, path) in all.iter().rev().skip(KEPT_SNAPSHOTS - 1) {
        let _ = host::remove_any(path);
    }
}

/// A running QEMU.
struct Machine {
    child: Child,
    qmp: Qmp,
    job: File,
    channel: Follower,
    console: Follower,
    watch: Watch,
    /// A line of the channel that has not ended yet.
    partial: Vec<u8>,
    logs: PathBuf,
}

impl Machine {
    /// Starts QEMU in the folder that has the overlay. `incoming`: it waits for its state, and
    /// what it writes to the disk is lost in the end.
    fn start(
        accel: Accel,
        kernel: &Path,
        folder: &Path,
        payload: &Path,
        logs: &Path,
        incoming: bool,
    ) -> Result<Self> {
        host::remove_any(logs).with_context(|| format!("cannot remove {}", logs.display()))?;
        fs::create_dir_all(logs).with_context(|| format!("cannot make {}", logs.display()))?;
        for log in ["console.log", "channel.jsonl"] {
            File::create(logs.join(log))
                .with_context(|| format!("cannot write {log} in {}", logs.display()))?;
        }
        // QEMU's pipe is a pair of FIFOs; the guest writes nothing into the second.
        for fifo in ["job.in", "job.out"] {
            rustix::fs::mknodat(CWD, logs.join(fifo), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
                .with_context(|| format!("cannot make {fifo} in {}", logs.display()))?;
        }
        let job = File::options().read(true).write(true).open(logs.join("job.in"))?;
        let mut qemu = command(accel, kernel, payload, logs, incoming)?;
        fs::write(logs.join("qemu.cmd"), format!("cd {}; {}\n", folder.display(), host::shown(&qemu)))?;
        qemu.current_dir(folder).stderr(File::create(logs.join("qemu.log"))?);
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = host::spawn(&mut qemu)?;
        let pipes = child.pipes();
        let (Some(stdin), Some(stdout)) = (pipes.stdin.take(), pipes.stdout.take()) else {
            bail!("QEMU has no pipes");
        };
        let console = Follower::new(&logs.join("console.log"))?;
        let channel = Follower::new(&logs.join("channel.jsonl"))?;
        let allowed: Vec<String> = ALLOWED.iter().map(|&a| a.to_owned()).collect();
        let watch = Watch::new(&allowed)?;
        let logs = logs.to_owned();
        let mut machine = Self {
            child,
            qmp: Qmp::new(stdin, stdout),
            job,
            channel,
            console,
            watch,
            partial: Vec::new(),
            logs,
        };
        if let Err(e) = machine.qmp.greet() {
            bail!("{e:#}\n{}", machine.evidence(10));
        }
        Ok(machine)
    }

    /// Watches the guest until `over` says that an event was the last one.
    fn follow(&mut self, step: &Step, limit: Duration, over: &mut dyn FnMut(Event) -> bool) -> Result<()> {
        let began = Instant::now();
        loop {
            // Looked at before the logs, so that the logs are complete once QEMU is gone.
            let ended = self.child.try_wait()?;
            self.watch.feed(&self.console.read()?);
            self.partial.extend(self.channel.read()?);
            while let Some(end) = self.partial.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = self.partial.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                match record::parse(line.trim()) {
                    Ok(Event::Error { text }) => {
                        return Err(self.failure(&format!("the guest reports: {text}")));
                    }
                    Ok(event) => {
                        if let Some(said) = event.progress() {
                            step.detail(&said);
                        }
                        if over(event) {
                            return Ok(());
                        }
                    }
                    Err(e) => return Err(self.failure(&format!("the guest's channel: {e:#}"))),
                }
            }
            if let Some(line) = self.watch.panic() {
                return Err(self.failure(&format!("the guest panicked: {line}")));
            }
            if let Some((kind, line)) = self.watch.splat() {
                return Err(self.failure(&format!("the guest's kernel complains ({kind}): {line}")));
            }
            if let Some(status) = ended {
                return Err(self.failure(&format!("QEMU ended before the guest was done: {status}")));
            }
            if began.elapsed() > limit {
                return Err(self.failure(&format!("not done within {} s", limit.as_secs())));
            }
            thread::sleep(POLL);
        }
    }

    fn failure(&self, what: &str) -> anyhow::Error {
        GuestFailure(format!("{what}\n{}", self.evidence(25))).into()
    }

    fn evidence(&self, lines: usize) -> String {
        let mut text = String::new();
        for (log, lines) in [("qemu.log", 5), ("console.log", lines), ("channel.jsonl", 5)] {
            let end = host::tail(&self.logs.join(log), lines);
            let short: Vec<String> = end.lines().map(|line| line.chars().take(300).collect()).collect();
            if !short.is_empty() {
                text += &format!("--- {}\n{}\n", self.logs.join(log).display(), short.join("\n"));
            }
        }
        text
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // They would be taken for logs.
        for fifo in ["job.in", "job.out"] {
            let _ = fs::remove_file(self.logs.join(fifo));
        }
    }
}

fn command(accel: Accel, kernel: &Path, payload: &Path, logs: &Path, incoming: bool) -> Result<Command> {
    // Warnings (level 4) must reach the console, where they are watched for. What has no level of its
    // own gets one that does not: the stack and the list of zones in each report of a shortage, some
    // KB, would delay the kill whose time is measured.
    let mut params = String::from(
        "console=ttyS0 root=/dev/vda rw rootfstype=ext4 panic=-1 reboot=t printk.time=1 loglevel=5 \
         sysctl.kernel.printk=\"5 6\" \
         transparent_hugepage=never net.ifnames=0 fsck.mode=skip systemd.gpt_auto=0",
    );
    let mut qemu = qemu();
    // microvm boots faster, but cannot be migrated.
    qemu.args(["-M", "pc", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    qemu.args(["-m", &MEMORY.to_string(), "-smp", &CPUS.to_string()]);
    match accel {
        Accel::Kvm => qemu.args(["-accel", "kvm", "-cpu", "host,migratable=on"]),
        Accel::Tcg => {
            params += &format!(" tsc=reliable tsc_early_khz={} idle=halt", host_tsc_khz());
            qemu.args(["-accel", "tcg,thread=multi", "-cpu", TCG_CPU])
        }
    };
    qemu.arg("-kernel").arg(kernel).args(["-append", &params]);
    let throwaway = if incoming { "on" } else { "off" };
    qemu.args([
        "-drive",
        &format!("file={OVERLAY},format=qcow2,if=none,id=root,cache=unsafe,snapshot={throwaway}"),
    ]);
    qemu.args(["-device", "virtio-blk-pci,drive=root"]);
    let payload = option_path(payload)?;
    qemu.args(["-drive", &format!("file={payload},format=raw,if=none,id=payload,readonly=on")]);
    qemu.args(["-device", "virtio-blk-pci,drive=payload"]);
    qemu.args(["-serial", &format!("file:{}", logs.join("console.log").display())]);
    qemu.args(["-device", "virtio-serial-pci"]);
    let file = |name: &str| option_path(&logs.join(name));
    qemu.args(["-chardev", &format!("file,id=channel,path={}", file("channel.jsonl")?)]);
    qemu.args(["-device", "virtserialport,chardev=channel,name=memreap.channel"]);
    qemu.args(["-chardev", &format!("pipe,id=job,path={}", file("job")?)]);
    qemu.args(["-device", "virtserialport,chardev=job,name=memreap.job"]);
    qemu.args(["-chardev", "stdio,id=qmp,signal=off", "-mon", "chardev=qmp,mode=control"]);
    if incoming {
        qemu.args(["-incoming", "defer"]);
    }
    Ok(qemu)
}

/// QEMU's monitor, a conversation in JSON lines.
struct Qmp {
    to: ChildStdin,
    from: Receiver<String>,
}

impl Qmp {
    fn new(to: ChildStdin, stdout: std::process::ChildStdout) -> Self {
        let (send, from) = mpsc::channel();
        // Ends with QEMU, or with whoever listens.
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
        ensure!(hello.get("QMP").is_some(), "QEMU's monitor says {hello} instead of hello");
        self.execute("qmp_capabilities", json!({}))?;
        Ok(())
    }

    fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments });
        writeln!(self.to, "{line}").with_context(|| format!("QEMU does not take '{command}'"))?;
        loop {
            let mut answer = self.next().with_context(|| format!("waiting for QEMU's '{command}'"))?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU's '{command}': {error}");
            }
            // All else are events.
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    fn next(&mut self) -> Result<Value> {
        match self.from.recv_timeout(QMP_LIMIT) {
            Ok(line) => serde_json::from_str(&line).with_context(|| format!("QEMU's monitor says {line}")),
            Err(RecvTimeoutError::Timeout) => bail!("QEMU's monitor is silent"),
            Err(RecvTimeoutError::Disconnected) => bail!("QEMU is gone"),
        }
    }
}

/// Makes the payload disk at `disk` of what is in `folder`: a tar, padded.
///
/// # Errors
/// When it is larger than the disk.
pub fn payload(folder: &Path, disk: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--format=gnu", "--owner=0", "--group=0", "--sort=name", "--mtime=@0", "-cf"]).arg(disk);
    host::output(tar.arg("-C").arg(folder).arg("."))?;
    let file = File::options().write(true).open(disk).with_context(|| disk.display().to_string())?;
    let size = file.metadata()?.len();
    ensure!(size <= PAYLOAD_BYTES, "{}: {size} bytes do not fit the payload disk", disk.display());
    file.set_len(PAYLOAD_BYTES)?;
    Ok(())
}

/// The payload disk's content, for its key.
pub fn sha256(path: &Path) -> Result<String> {
    let mut content = Vec::new();
    File::open(path)
        .and_then(|mut file| file.read_to_end(&mut content))
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Sha256::digest(&content).iter().map(|b| format!("{b:02x}")).collect())
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
        payload(&folder, &disk).unwrap();
        assert_eq!(fs::metadata(&disk).unwrap().len(), PAYLOAD_BYTES);
        let listing = host::output(Command::new("tar").arg("-tf").arg(&disk)).unwrap();
        assert!(listing.contains("./guest\n") && listing.contains("./contestants/x/\n"), "{listing}");
        let first = sha256(&disk).unwrap();
        payload(&folder, &disk).unwrap();
        assert_eq!(first, sha256(&disk).unwrap(), "same content, same disk");
        fs::write(folder.join("large"), vec![1; usize::try_from(PAYLOAD_BYTES).unwrap()]).unwrap();
        assert!(payload(&folder, &disk).unwrap_err().to_string().contains("do not fit"));
    }

    #[test]
    fn what_is_watched_for_reaches_the_console() {
        // As include/linux/kern_levels.h has it; a message is printed if its level is lower than
        // the console's.
        const KERN_WARNING: u32 = 4;
        let paths = [Path::new("/kernel"), Path::new("/payload"), Path::new("/logs")];
        for accel in [Accel::Kvm, Accel::Tcg] {
            let qemu = command(accel, paths[0], paths[1], paths[2], false).unwrap();
            let parameters = qemu.get_args().skip_while(|&a| a != "-append").nth(1).unwrap();
            let parameters = parameters.to_str().unwrap();
            let at_boot = parameters.split(' ').find_map(|p| p.strip_prefix("loglevel=")).unwrap();
            assert!(at_boot.parse::<u32>().unwrap() > KERN_WARNING, "{parameters}");
            let (_, later) = parameters.split_once(" sysctl.kernel.printk=\"").unwrap();
            let later: Vec<u32> =
                later.split('"').next().unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
            assert!(later[0] > KERN_WARNING, "{parameters}");
            // What has no level of its own is not for the console.
            assert!(later[1] >= later[0], "{parameters}");
        }
    }

    #[test]
    fn only_the_oldest_snapshots_go() {
        let dir = tempfile::tempdir().unwrap();
        let now = std::time::SystemTime::now();
        for age in 0..8_u64 {
            let folder = dir.path().join(age.to_string());
            fs::create_dir(&folder).unwrap();
            let marker = File::create(folder.join(MARKER)).unwrap();
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
