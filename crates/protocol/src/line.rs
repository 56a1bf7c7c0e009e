// SPDX-License-Identifier: GPL-2.0-only
//! The framing of all channels: one JSON value per line.

use serde::Serialize;

/// Returns a value as one line, with its line end. If it is written in one call, lines of several writers do
/// not mix.
///
/// # Errors
/// When the value cannot be expressed in JSON.
pub fn encode<T: Serialize>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

/// Splits a stream of bytes into lines, independently of the pieces in which it arrives.
#[derive(Debug, Default)]
pub struct Lines {
    /// The beginning of a line that is not complete yet.
    partial: Vec<u8>,
}

impl Lines {
    /// Takes the next bytes of the stream and returns the lines that are now complete, without line ends.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            self.partial.extend_from_slice(&rest[..end]);
            lines.push(std::mem::take(&mut self.partial));
            rest = &rest[end + 1..];
        }
        self.partial.extend_from_slice(rest);
        lines
    }

    /// Ends the stream and returns the data after the last line end, if there is any.
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.partial)).filter(|rest| !rest.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_depend_on_how_they_arrive() {
        let stream = b"one\n\nthree\nrest";
        let expected: [&[u8]; 3] = [b"one", b"", b"three"];
        for size in 1..=stream.len() {
            let mut lines = Lines::default();
            let found: Vec<Vec<u8>> = stream.chunks(size).flat_map(|piece| lines.feed(piece)).collect();
            assert_eq!(found, expected, "in pieces of {size}");
            assert_eq!((lines.finish(), lines.finish()), (Some(b"rest".to_vec()), None));
        }
    }

    #[test]
    fn a_value_is_one_line() {
        assert_eq!(encode(&"a\nb").unwrap(), b"\"a\\nb\"\n");
    }
}
