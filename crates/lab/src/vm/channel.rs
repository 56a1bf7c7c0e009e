// SPDX-License-Identifier: GPL-2.0-only
//! Decodes the result channel, and defines the outcome of a boot.
//!
//! The guest writes JSON lines to a virtio-serial port (`crates/init/src/report.rs`; the messages are in
//! `crates/protocol`), and QEMU writes them to `channel.jsonl`. The stream of a healthy guest begins with
//! `hello` and ends with `exit`. Anything else is garbage and fails the boot: values from a guest that also
//! sends garbage are not reliable.

use std::fmt;
use std::time::Duration;

use protocol::line::Lines;
use protocol::results::Message;

/// Splits the stream into messages and checks their order.
#[derive(Debug, Default)]
pub struct Decoder {
    /// What the guest has been given.
    cpus: u32,
    lines: Lines,
    began: bool,
    /// The exit status, once the guest has sent it.
    pub(crate) exit: Option<i32>,
    /// The first line that is not a message or not in the right place, with the reason.
    pub(crate) garbage: Option<String>,
}

impl Decoder {
    /// Begins the stream of a guest with so many CPUs.
    pub fn new(cpus: u32) -> Self {
        Self { cpus, ..Self::default() }
    }

    /// Takes the next bytes of the stream and returns the messages that are now complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Message> {
        let lines = self.lines.feed(bytes);
        lines.iter().filter_map(|line| self.line(line)).collect()
    }

    /// Ends the stream after the guest ended: an incomplete line is garbage.
    pub fn finish(&mut self) {
        if let Some(rest) = self.lines.finish() {
            self.reject(&rest, "the last line has no end");
        }
    }

    fn line(&mut self, line: &[u8]) -> Option<Message> {
        let message = match serde_json::from_slice(line) {
            Ok(message) => message,
            Err(e) => {
                self.reject(line, &e.to_string());
                return None;
            }
        };
        let is_hello = matches!(message, Message::Hello { .. });
        match (&message, self.began, self.exit) {
            (Message::Hello { cpus, .. }, ..) if *cpus != self.cpus => {
                self.reject(line, &format!("is from a guest that has been given {} CPUs", self.cpus));
            }
            (_, _, Some(_)) => self.reject(line, "comes after the exit line"),
            (_, true, _) if is_hello => self.reject(line, "is a second hello"),
            // A guest that fails before it can send `hello` may send notes and exit.
            (Message::Sample(_), false, _) => self.reject(line, "comes before hello"),
            (Message::Exit(status), _, _) => self.exit = Some(*status),
            _ => {}
        }
        self.began |= is_hello;
        Some(message)
    }

    fn reject(&mut self, line: &[u8], why: &str) {
        let text = String::from_utf8_lossy(line);
        self.garbage.get_or_insert_with(|| format!("{text} ({why})"));
    }
}

/// How a boot ended. If several outcomes apply, the first one in this list is reported: messages of the
/// kernel take precedence over those of the guest's programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// QEMU is missing, refused its arguments or died: its message.
    Qemu(String),
    /// The kernel panicked: the line on the console.
    Panic(String),
    /// The kernel printed something from the denylist in [`crate::vm::console`].
    Splat {
        /// The denylist entry, for example `lockdep`.
        kind: &'static str,
        /// The first matching console line.
        line: String,
    },
    /// The channel has a line that is not a valid message: the line and the reason.
    Garbage(String),
    /// The guest did not end in time and was killed after so long.
    Hang(Duration),
    /// The guest ended without an exit status.
    NoResult,
    /// The guest was healthy; its job ended with this status (128 + n for signal n).
    Exit(i32),
}

impl Outcome {
    /// Whether the guest was healthy and its job succeeded.
    pub fn is_success(&self) -> bool {
        *self == Self::Exit(0)
    }

    /// Whether the guest was healthy, whatever its job's status.
    pub fn is_healthy(&self) -> bool {
        matches!(self, Self::Exit(_))
    }

    /// Returns the exit code of `lab boot`: the job's status if the guest was healthy, else 3 if QEMU failed,
    /// 120 panic, 121 splat, 122 hang, 123 no result, 124 garbage.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Qemu(_) => 3,
            Self::Panic(_) => 120,
            Self::Splat { .. } => 121,
            Self::Hang(_) => 122,
            Self::NoResult => 123,
            Self::Garbage(_) => 124,
            // Exit codes have eight bits; any other status must not become 0.
            Self::Exit(status) => u8::try_from(*status).unwrap_or(u8::MAX),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Qemu(error) => write!(f, "QEMU failed: {error}"),
            Self::Panic(line) => write!(f, "the kernel panicked: {line}"),
            Self::Splat { kind, line } => write!(f, "the kernel complained ({kind}): {line}"),
            Self::Garbage(line) => write!(f, "garbage on the result channel: {line}"),
            Self::Hang(after) => write!(f, "the guest hung: killed after {} s", after.as_secs()),
            Self::NoResult => f.write_str("the guest ended without a result"),
            Self::Exit(0) => f.write_str("ok"),
            Self::Exit(status) => write!(f, "exit status {status}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &str = "{\"hello\":{\"release\":\"6.12\",\"cpus\":2}}\n";

    fn decode(text: &str) -> (Vec<Message>, Decoder) {
        let mut decoder = Decoder::new(2);
        let messages = decoder.feed(text.as_bytes());
        (messages, decoder)
    }

    #[test]
    fn a_healthy_stream_in_any_pieces() {
        let text = format!(
            "{HELLO}{}\n{}\n",
            r#"{"sample":{"metric":"a/b","unit":"ms","better":"lower","value":2}}"#, r#"{"exit":3}"#
        );
        let (whole, _) = decode(&text);
        assert_eq!(whole.len(), 3);
        let mut decoder = Decoder::new(2);
        let pieces: Vec<_> = text.as_bytes().chunks(7).flat_map(|c| decoder.feed(c)).collect();
        decoder.finish();
        assert_eq!((pieces, decoder.exit, decoder.garbage), (whole, Some(3), None));
    }

    #[test]
    fn garbage_is_quoted_with_the_reason() {
        for (text, why) in [
            ("nonsense\n".into(), "nonsense (expected"),
            ("\u{0}\u{1}\n".into(), "(expected value"),
            ("{\"exit\": \"zero\"}\n".into(), "invalid type"),
            ("{\"unheard\":1}\n".into(), "unknown variant"),
            (format!("{HELLO}{HELLO}"), "second hello"),
            (HELLO.replace('2', "1"), "has been given 2 CPUs"),
            (format!("{HELLO}{{\"exit\":0}}\n{{\"note\":\"x\"}}\n"), "after the exit"),
            (
                "{\"sample\":{\"metric\":\"a\",\"unit\":\"\",\"better\":\"lower\",\"value\":null}}\n".into(),
                "invalid type: null",
            ),
        ] as [(String, &str); 8]
        {
            let (_, decoder) = decode(&text);
            let garbage = decoder.garbage.unwrap_or_default();
            assert!(garbage.contains(why), "{text:?}: {garbage}");
        }
    }

    #[test]
    fn a_cut_off_last_line_is_garbage_only_when_the_guest_ended() {
        let (_, mut decoder) = decode("{\"exit\":");
        assert_eq!(decoder.garbage, None);
        decoder.finish();
        assert!(decoder.garbage.is_some_and(|g| g.contains("no end")));
    }

    #[test]
    fn exit_codes_cannot_be_mistaken_for_each_other() {
        let codes = [
            Outcome::Qemu(String::new()),
            Outcome::Panic(String::new()),
            Outcome::Splat { kind: "BUG", line: String::new() },
            Outcome::Garbage(String::new()),
            Outcome::Hang(Duration::ZERO),
            Outcome::NoResult,
            Outcome::Exit(7),
        ]
        .map(|outcome| outcome.exit_code());
        assert_eq!(codes, [3, 120, 121, 124, 122, 123, 7]);
        assert_eq!(Outcome::Exit(256).exit_code(), 255);
        assert_eq!(Outcome::Exit(-1).exit_code(), 255);
    }
}
