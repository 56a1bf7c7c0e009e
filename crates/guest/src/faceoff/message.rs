//! What the face-off and its host tell each other: JSON lines on two virtio-serial ports.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::role::Who;

/// From here to the host.
const CHANNEL: &str = "memreap.channel";
/// From the host to here.
const JOB: &str = "memreap.job";
/// How often the host is looked for, which is gone while the guest is in a file.
const LOOK: Duration = Duration::from_millis(20);

/// What happens to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// Memory that does not compress, as fast as it goes.
    Hog,
    /// Memory that compresses 3:1, as fast as it goes.
    Compressible,
    /// 50 MB/s, for ever.
    Leak,
    /// Many that are small.
    Forks,
    /// A hog that only its own control group has to suffer from.
    Limit,
    /// A hog beside a process that is larger and harmless.
    Innocent,
    /// An app in front needs what those in the background have.
    Apps,
    /// Nothing.
    Idle,
}

/// What the host wants done with the warmed-up guest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The contestant's name.
    pub contestant: String,
    /// What is to be started, if anything.
    pub unit: Option<String>,
    /// The folder on the payload that is copied over the root.
    pub files: Option<String>,
    /// The load.
    pub variant: Variant,
    /// What all content is made from.
    pub seed: u64,
    /// The load's longest time; for [`Variant::Idle`] its only one.
    pub limit_s: u64,
    /// How long the contestant has to settle.
    pub settle_s: u64,
    /// For a shell, before the contestant is started.
    #[serde(default)]
    pub setup: Vec<String>,
}

/// One line to the host. Times in milliseconds count from the start of the load.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// Warmed up, and waiting for a job.
    Ready,
    /// The contestant runs.
    Started { pid: Option<u32> },
    /// The machine at one moment: memory in KiB, pressure in microseconds since the boot.
    Sample {
        t: f64,
        avail: u64,
        free: u64,
        swap_free: u64,
        some_us: u64,
        full_us: u64,
        /// The worst delay of a frame since the sample before.
        fg_gap_ms: f64,
    },
    /// Somebody died.
    Death {
        t: f64,
        who: Who,
        name: String,
        pid: i32,
        /// `SIGKILL`, `SIGTERM` or `exit`.
        by: &'static str,
        signal_t: Option<f64>,
        /// Who sent it, by name; whoever was out of memory, if it was the kernel.
        from: Option<String>,
        /// What it had at the signal.
        rss_kib: Option<u64>,
        /// From the signal until that was back.
        back_ms: Option<f64>,
    },
    /// What it all came to.
    Result(Outcome),
    /// What it costs to wait for nothing.
    Idle { seconds: f64, pss_kib: f64, cpu_ms: f64, wakeups: u64 },
    /// For the reader.
    Log { text: String },
    /// What went wrong.
    Error { text: String },
    /// The last line.
    End,
}

/// The figures of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The latest frame's delay.
    pub longest_stall_ms: f64,
    /// All delays above 50 ms.
    pub total_stall_ms: f64,
    /// From less than a twentieth of memory available to a tenth, for good.
    pub low_to_recovered_ms: Option<f64>,
    /// From the first kill's signal until the memory was back.
    pub signal_to_back_ms: Option<f64>,
    /// Who was killed.
    pub kills: Kills,
    /// How many of them by the kernel.
    pub kernel_oom_kills: u64,
    /// The first kill's signal.
    pub first_signal_ms: Option<f64>,
    /// How many kills the load takes, where that is known.
    pub needed_kills: Option<u64>,
    /// Whether the camera has its memory; in other variants, whether the load has ended.
    pub served: bool,
    /// Whether that, and recovery, were not there in time.
    pub timed_out: bool,
    /// How long the camera waited for its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub camera_ms: Option<f64>,
}

/// How many were killed, by who they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kills {
    pub hog: u64,
    pub innocent: u64,
    pub foreground: u64,
    pub system: u64,
    pub background: u64,
    pub camera: u64,
}

impl Kills {
    /// One more.
    pub fn add(&mut self, who: Who) {
        *match who {
            Who::Hog => &mut self.hog,
            Who::Innocent => &mut self.innocent,
            Who::Foreground => &mut self.foreground,
            Who::System => &mut self.system,
            Who::Background => &mut self.background,
            Who::Camera => &mut self.camera,
        } += 1;
    }
}

/// The way to the host.
pub struct Channel(File);

impl Channel {
    /// Opens the port.
    ///
    /// # Errors
    /// When the guest has no such port.
    pub fn open() -> Result<Self> {
        let path = port(CHANNEL)?;
        let file = File::options().write(true).open(&path).with_context(|| path.display().to_string())?;
        Ok(Self(file))
    }

    /// Sends one line.
    ///
    /// # Errors
    /// When the port is broken; there is nobody else to tell.
    pub fn send(&mut self, event: &Event) -> Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.0.write_all(&line).context(CHANNEL)
    }
}

/// Waits for the host's job, for however long it takes.
///
/// # Errors
/// When there is no such port, or the line on it is no job.
pub fn wait_for_job() -> Result<Job> {
    let path = port(JOB)?;
    let mut file = File::open(&path).with_context(|| path.display().to_string())?;
    let mut line = Vec::new();
    let mut piece = [0; 4096];
    while !line.contains(&b'\n') {
        match file.read(&mut piece).context(JOB)? {
            // Nobody is there at the other end.
            0 => thread::sleep(LOOK),
            n => line.extend_from_slice(&piece[..n]),
        }
    }
    let text = String::from_utf8_lossy(&line);
    serde_json::from_str(text.trim()).with_context(|| format!("the job '{}'", text.trim()))
}

fn port(name: &str) -> Result<PathBuf> {
    const PORTS: &str = "/sys/class/virtio-ports";
    for entry in fs::read_dir(PORTS).context(PORTS)?.flatten() {
        let found = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if found.trim_end() == name {
            return Ok(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    bail!("no virtio port named {name} under {PORTS}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_a_line_of_json() {
        let line = r#"{"contestant":"earlyoom","unit":"earlyoom.service","files":null,"variant":"hog","seed":7,"limit_s":40,"settle_s":3}"#;
        let job: Job = serde_json::from_str(line).unwrap();
        assert_eq!(
            (job.variant, job.unit.as_deref(), job.files),
            (Variant::Hog, Some("earlyoom.service"), None)
        );
        assert!(job.setup.is_empty());
        assert!(serde_json::from_str::<Job>(&line.replace("hog", "pig")).is_err());
        assert!(serde_json::from_str::<Job>(&line.replace("seed", "sead")).is_err());
    }

    #[test]
    fn events_are_lines_with_a_name() {
        let json = |event: &Event| serde_json::to_string(event).unwrap();
        assert_eq!(json(&Event::Ready), r#"{"event":"ready"}"#);
        assert_eq!(json(&Event::Started { pid: None }), r#"{"event":"started","pid":null}"#);
        let mut kills = Kills::default();
        kills.add(Who::Hog);
        kills.add(Who::Hog);
        kills.add(Who::Camera);
        let outcome = Outcome {
            longest_stall_ms: 1.5,
            total_stall_ms: 0.0,
            low_to_recovered_ms: None,
            signal_to_back_ms: Some(2.0),
            kills,
            kernel_oom_kills: 1,
            first_signal_ms: Some(3.0),
            needed_kills: Some(1),
            served: true,
            timed_out: false,
            camera_ms: None,
        };
        let line = json(&Event::Result(outcome));
        assert!(line.starts_with(r#"{"event":"result","longest_stall_ms":1.5,"#), "{line}");
        assert!(line.contains(
            r#""kills":{"hog":2,"innocent":0,"foreground":0,"system":0,"background":0,"camera":1}"#
        ));
        assert!(line.ends_with(r#""needed_kills":1,"served":true,"timed_out":false}"#), "{line}");
    }
}
