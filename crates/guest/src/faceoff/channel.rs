// SPDX-License-Identifier: GPL-2.0-only
//! The guest's end of the face-off's two virtio-serial ports.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use protocol::faceoff::{EVENT_PORT, Event, JOB_PORT, Job};
use protocol::line::{self, Lines};

/// How often the port is polled for a job: no lab has it open while the guest is kept in a file.
const JOB_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The connection to the lab.
pub struct Channel(File);

impl Channel {
    /// Opens the port for events.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn open() -> Result<Self> {
        let path = port(EVENT_PORT)?;
        let file = File::options().write(true).open(&path).with_context(|| path.display().to_string())?;
        Ok(Self(file))
    }

    /// Sends one event.
    ///
    /// # Errors
    /// When the port is broken.
    pub fn send(&mut self, event: &Event) -> Result<()> {
        self.0.write_all(&line::encode(event)?).context(EVENT_PORT)
    }
}

/// Waits for the lab's job, without a time limit.
///
/// # Errors
/// When there is no such port, or it does not receive a valid job.
pub fn wait_for_job() -> Result<Job> {
    let path = port(JOB_PORT)?;
    let mut file = File::open(&path).with_context(|| path.display().to_string())?;
    let mut lines = Lines::default();
    let mut piece = [0; 4096];
    loop {
        match file.read(&mut piece).context(JOB_PORT)? {
            // The other end is not open.
            0 => thread::sleep(JOB_POLL_INTERVAL),
            n => {
                if let Some(line) = lines.feed(&piece[..n]).first() {
                    return serde_json::from_slice(line)
                        .with_context(|| format!("the job '{}'", String::from_utf8_lossy(line)));
                }
            }
        }
    }
}

fn port(name: &str) -> Result<PathBuf> {
    let found = init::port::find(name)?;
    found.with_context(|| format!("no virtio port named {name} under {}", init::port::FOLDER))
}
