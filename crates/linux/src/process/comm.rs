// SPDX-License-Identifier: GPL-2.0-only
//! /proc/PID/comm: a process's name.

use std::fmt;
use std::path::Path;

use crate::{Error, Result, escape};

/// The name of a process: bytes of its own choice (but NUL), usually at most 15. Displayed with
/// what is not printable escaped.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Comm {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl Comm {
    /// The most the kernel shows, in bytes: names of kernel threads.
    pub const MAX: usize = 64;

    /// `None` when it is too long for a name.
    pub fn new(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { len: u8::try_from(name.len()).ok()?, bytes })
    }

    /// The name in /proc/PID/status, where the kernel has written a line end as "\n" and a backslash as "\\".
    pub(crate) fn unescaped(shown: &[u8]) -> Option<Self> {
        // Escaped, each byte may take two.
        let mut name = [0; Self::MAX];
        let mut len = 0;
        let mut bytes = shown.iter();
        while let Some(&byte) = bytes.next() {
            let byte = match byte {
                b'\\' => match bytes.next() {
                    Some(b'n') => b'\n',
                    Some(b'\\') => b'\\',
                    _ => return None,
                },
                byte => byte,
            };
            *name.get_mut(len)? = byte;
            len += 1;
        }
        Self::new(&name[..len])
    }

    /// The name as it is.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Parses /proc/PID/comm.
    ///
    /// # Errors
    /// When it has no end, or is too long.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        // The name itself may have line ends.
        let name = bytes.strip_suffix(b"\n").ok_or_else(|| Error::parse(path, 1, "the line is cut off", bytes))?;
        Self::new(name).ok_or_else(|| Error::parse(path, 1, "too long for a name", bytes))
    }
}

impl fmt::Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escape(self.as_bytes()).fmt(f)
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(bytes: &[u8]) -> Result<Comm> {
        Comm::parse(Path::new("/proc/1/comm"), bytes)
    }

    #[test]
    fn a_name_may_be_all_there_is() {
        assert_eq!(parse(b"\n").unwrap().as_bytes(), b"");
        assert_eq!(parse(b"a\nb\n\n").unwrap().as_bytes(), b"a\nb\n");
        assert_eq!(parse(&[&[b'x'; 64][..], b"\n"].concat()).unwrap().as_bytes(), [b'x'; 64]);
        assert!(parse(&[&[b'x'; 65][..], b"\n"].concat()).is_err());
        assert!(parse(b"x").is_err());
        assert!(parse(b"").is_err());
    }

    #[test]
    fn an_escape_is_whole_and_a_name_not_too_long() {
        assert!(Comm::unescaped(&[b'x'; Comm::MAX]).is_some());
        for wrong in [&b"a\\"[..], b"a\\t", &[b'x'; Comm::MAX + 1]] {
            assert_eq!(Comm::unescaped(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn what_is_shown_cannot_move_the_cursor_or_turn_the_text() {
        let comm = Comm::new("\x1b]0;x\x07\r\u{202e}\u{9b}ä".as_bytes()).unwrap();
        assert_eq!(comm.to_string(), r"\u{1b}]0;x\u{7}\r\u{202e}\u{9b}ä");
        assert_eq!(format!("{:?}", Comm::new(b"a b").unwrap()), "\"a b\"");
    }

    proptest! {
        #[test]
        fn any_name_survives_and_is_printable(name in prop::collection::vec(1u8.., 0..=15)) {
            let comm = parse(&[&name[..], b"\n"].concat()).unwrap();
            prop_assert_eq!(comm.as_bytes(), &name[..]);
            prop_assert!(!comm.to_string().contains(char::is_control));
        }

        #[test]
        fn any_name_survives_its_escapes(name in prop::collection::vec(1u8.., 0..=15)) {
            let mut shown = Vec::new();
            for &byte in &name {
                match byte {
                    b'\n' => shown.extend(b"\\n"),
                    b'\\' => shown.extend(b"\\\\"),
                    byte => shown.push(byte),
                }
            }
            let comm = Comm::unescaped(&shown).unwrap();
            prop_assert_eq!(comm.as_bytes(), &name[..]);
        }
    }
}
