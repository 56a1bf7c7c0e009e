// SPDX-License-Identifier: GPL-2.0-only
//! Escapes bytes that another process has chosen, for output.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Shows bytes, such as a process's name, without letting them act on a terminal or a log: what
/// is not printable (control characters, line ends, the marks that reverse the direction of
/// writing, bytes that are not UTF-8) and backslashes are escaped as in a Rust literal.
///
/// ```
/// assert_eq!(linux::escape(b"a\x1b[2J\xff\\ \xc3\xa4").to_string(), r"a\u{1b}[2J\xff\\ ä");
/// ```
pub fn escape<T: Bytes + ?Sized>(bytes: &T) -> Escaped<'_> {
    Escaped(bytes.bytes())
}

/// Displays bytes printably; see [`escape`].
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    // No need to escape these outside of a literal.
                    '\'' | '"' => f.write_char(c)?,
                    c => write!(f, "{}", c.escape_debug())?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// What [`escape`] can show.
pub trait Bytes {
    /// The bytes as they are.
    fn bytes(&self) -> &[u8];
}

impl Bytes for [u8] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl<const N: usize> Bytes for [u8; N] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

macro_rules! bytes_of_os_str {
    ($($type:ty)*) => {$(
        impl Bytes for $type {
            fn bytes(&self) -> &[u8] {
                AsRef::<OsStr>::as_ref(self).as_bytes()
            }
        }
    )*};
}

bytes_of_os_str!(OsStr OsString Path PathBuf str String);
