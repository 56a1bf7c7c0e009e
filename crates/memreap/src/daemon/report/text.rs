// SPDX-License-Identifier: GPL-2.0-only
//! Text in a fixed buffer: messages are put together without allocating.

use std::fmt;

use arrayvec::ArrayVec;

/// Text of at most `N` bytes; what does not fit is cut off.
#[derive(Clone, Debug, Default)]
pub struct Text<const N: usize> {
    bytes: ArrayVec<u8, N>,
    cut: bool,
}

impl<const N: usize> Text<N> {
    /// Empty text.
    pub const fn new() -> Self {
        Self { bytes: ArrayVec::new_const(), cut: false }
    }

    /// Makes text of what `what` displays.
    pub fn of(what: impl fmt::Display) -> Self {
        let mut text = Self::new();
        text.show(what);
        text
    }

    /// Adds what `what` displays.
    pub fn show(&mut self, what: impl fmt::Display) {
        // Fails only if `what` itself does, and then the text ends there.
        let _ = fmt::Write::write_fmt(self, format_args!("{what}"));
    }

    /// Adds bytes, as many as fit.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = self.bytes.remaining_capacity().min(bytes.len());
        self.cut |= room < bytes.len();
        let _ = self.bytes.try_extend_from_slice(&bytes[..room]);
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.cut = false;
    }

    /// Shortens it to `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
        self.cut = false;
    }

    /// Whether something did not fit.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Nothing after the first cut: a shorter piece that fits again would make it misleading.
        if self.cut {
            return Ok(());
        }
        let mut room = self.bytes.remaining_capacity().min(text.len());
        while !text.is_char_boundary(room) {
            room -= 1;
        }
        self.push(&text.as_bytes()[..room]);
        self.cut = room < text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_cut_off_at_a_character() {
        let mut text = Text::<8>::of(format_args!("{}{}", "sieben", 'ß'));
        assert_eq!((text.as_bytes(), text.is_cut()), ("siebenß".as_bytes(), false));
        text.show("");
        assert!(!text.is_cut());

        let mut text = Text::<7>::of("siebenß");
        text.show("!");
        assert_eq!((text.as_bytes(), text.is_cut()), (&b"sieben"[..], true));

        text.clear();
        text.push(b"123456789");
        assert_eq!((text.as_bytes(), text.is_cut()), (&b"1234567"[..], true));
    }
}
