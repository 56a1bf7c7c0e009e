// SPDX-License-Identifier: GPL-2.0-only
//! The guest's end of the result channel: sends the messages of [`protocol::results`].

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::{thread, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};

use protocol::line;
use protocol::results::{Message, PORT, Sample};
use scenarios::Reported;

use crate::port;

/// The port appears a moment after PID 1 starts: how often it is looked up, and how long after the last time.
const PORT_TRIES: u32 = 200;
const PORT_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// A handle may become a child's standard input: so a scenario inherits the channel.
impl From<Reporter> for std::process::Stdio {
    fn from(reporter: Reporter) -> Self {
        reporter.port.into()
    }
}

/// Sends messages to the host. Each is one `write` of one whole line, so several processes
/// that share the port (PID 1, the scenario, what it forks) cannot mix their lines.
pub struct Reporter {
    port: File,
    /// The metrics that are still to be reported.
    expected: Vec<Reported>,
}

impl Reporter {
    /// Finds the port by its name and opens it.
    ///
    /// # Errors
    /// When no such port appears within two seconds, or it cannot be opened.
    pub fn open() -> Result<Self> {
        for _ in 0..PORT_TRIES {
            if let Some(dev) = port::find(PORT)? {
                let port = File::options()
                    .write(true)
                    .open(&dev)
                    .with_context(|| format!("cannot open the result channel {}", dev.display()))?;
                return Ok(Self { port, expected: Vec::new() });
            }
            thread::sleep(PORT_RETRY_INTERVAL);
        }
        bail!("no virtio port named {PORT} under {}", port::FOLDER)
    }

    /// Takes over the channel that PID 1 passed on as standard input.
    ///
    /// # Errors
    /// When standard input is not open.
    pub fn from_stdin() -> io::Result<Self> {
        let port = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        Ok(Self { port, expected: Vec::new() })
    }

    /// A second handle on the same channel.
    ///
    /// # Errors
    /// When the descriptor cannot be duplicated.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { port: self.port.try_clone()?, expected: self.expected.clone() })
    }

    /// Sets the metrics that are to be reported, each once.
    pub fn expect(&mut self, metrics: Vec<Reported>) {
        self.expected = metrics;
    }

    /// Whether this metric is still to be reported.
    #[must_use]
    pub fn expects(&self, metric: &str) -> bool {
        self.expected.iter().any(|expected| expected.name == metric)
    }

    /// Whether a metric of this case is still to be reported.
    #[must_use]
    pub fn expects_case(&self, case: &str) -> bool {
        self.expected.iter().any(|expected| expected.case() == case)
    }

    /// Sends the value of one metric for this boot. `metric` begins with its case, for example
    /// `100-vmas/mrelease-90`. For a value that is no finite number a note is sent instead, so that the metric
    /// is missing ([`Reporter::check_complete`]) instead of wrong.
    ///
    /// # Panics
    /// When the metric is not declared for this guest (crates/scenarios), or was reported before.
    pub fn sample(&mut self, metric: &str, value: f64) {
        let expected = self.expected.iter().position(|expected| expected.name == metric);
        let index = expected.unwrap_or_else(|| panic!("{metric} is not one of the metrics that are to be reported"));
        if value.is_finite() {
            let Reported { name, metric } = self.expected.swap_remove(index);
            let sample = Sample { metric: name, unit: metric.unit.to_owned(), better: metric.better, value };
            self.send(&Message::Sample(sample));
        } else {
            self.note(&format!("{metric}: not a finite number ({value}), not reported"));
        }
    }

    /// Checks that all expected metrics have been reported: one that is missing in every boot would not be missed.
    ///
    /// # Errors
    /// Names those that have not.
    pub fn check_complete(&self) -> Result<()> {
        let missing: Vec<&str> = self.expected.iter().map(|expected| expected.name.as_str()).collect();
        ensure!(missing.is_empty(), "not reported: {}", missing.join(", "));
        Ok(())
    }

    /// Sends a remark for the reader of the results.
    pub fn note(&mut self, text: &str) {
        self.send(&Message::Note(text.to_owned()));
    }

    /// Sends what is being done now. It is shown live, and not kept in the results.
    pub fn progress(&mut self, text: &str) {
        self.send(&Message::Progress(text.to_owned()));
    }

    /// Sends any message. Up to a thousand points of a series fit into one write to the port, which is 32 KiB at most.
    pub fn send(&mut self, message: &Message) {
        match line::encode(message) {
            Ok(line) => self.raw(&line),
            Err(e) => eprintln!("guest: cannot encode {message:?}: {e}"),
        }
    }

    /// Writes bytes as they are: for the scenario that tests how the host handles garbage. If the channel breaks, the
    /// error goes to the console, and the host finds that the exit line is missing.
    pub fn raw(&mut self, bytes: &[u8]) {
        if let Err(e) = self.port.write_all(bytes) {
            eprintln!("guest: cannot write to the result channel: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reporter for one case of `memcg-exit` in its guest `icount`.
    fn of_case() -> Reporter {
        let port = File::options().write(true).open("/dev/null").unwrap();
        let expected = scenarios::find("memcg-exit").unwrap().reported("icount", Some("oom"));
        Reporter { port, expected }
    }

    #[test]
    #[should_panic(expected = "oom/gone is not one of the metrics")]
    fn what_is_not_declared_is_not_reported() {
        of_case().sample("oom/gone", 1.0);
    }

    #[test]
    #[should_panic(expected = "oom/gone-ms is not one of the metrics")]
    fn a_metric_is_reported_once() {
        let mut out = of_case();
        out.sample("oom/gone-ms", 1.0);
        out.sample("oom/gone-ms", 1.0);
    }

    #[test]
    fn a_metric_that_is_not_reported_is_missed() {
        let mut out = of_case();
        assert!(out.expects_case("oom") && !out.expects_case("killed") && out.expects("oom/oom-calls"));
        out.sample("oom/gone-ms", 1.0);
        out.sample("oom/oom-calls", 0.0);
        out.sample("oom/memory-95-ms", f64::NAN);
        assert_eq!(out.check_complete().unwrap_err().to_string(), "not reported: oom/memory-95-ms");
        out.sample("oom/memory-95-ms", 2.0);
        assert!(out.check_complete().is_ok() && !out.expects_case("oom"));
    }
}
