// SPDX-License-Identifier: GPL-2.0-only
//! Process IDs.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use rustix::process::Pid as RawPid;

/// The ID of one process: 1 to [`i32::MAX`]. Never 0 or negative, which kill(2) and others take
/// for groups of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(NonZeroU32);

impl Pid {
    /// `None` when no process can have this ID.
    pub fn new(pid: i32) -> Option<Self> {
        NonZeroU32::new(u32::try_from(pid).ok()?).map(Self)
    }

    /// The calling process's own ID.
    pub fn own() -> Self {
        rustix::process::getpid().into()
    }

    /// The number.
    pub fn get(self) -> i32 {
        self.0.get().cast_signed()
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<RawPid> for Pid {
    fn from(pid: RawPid) -> Self {
        // Both hold the positive numbers of an i32 and nothing else.
        Self(pid.as_raw_nonzero().unsigned_abs())
    }
}

impl From<Pid> for RawPid {
    fn from(pid: Pid) -> Self {
        // SAFETY: a `Pid` is above 0.
        unsafe { RawPid::from_raw_unchecked(pid.get()) }
    }
}

/// Why a text is not a [`Pid`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPid {
    /// There is nothing.
    #[error("a process ID is missing")]
    Empty,
    /// A sign, a space, a letter.
    #[error("a process ID is digits only")]
    NotDigits,
    /// 0, or a number with zeros in front.
    #[error("a process ID does not start with 0")]
    LeadingZero,
    /// Above what Linux can ever have.
    #[error("a process ID is at most {}", i32::MAX)]
    TooLarge,
}

impl FromStr for Pid {
    type Err = InvalidPid;

    fn from_str(s: &str) -> Result<Self, InvalidPid> {
        match s.as_bytes() {
            [] => Err(InvalidPid::Empty),
            // Before the zeros: "0x1" is no number with a zero in front.
            digits if !digits.iter().all(u8::is_ascii_digit) => Err(InvalidPid::NotDigits),
            [b'0', ..] => Err(InvalidPid::LeadingZero),
            _ => s.parse().ok().and_then(Self::new).ok_or(InvalidPid::TooLarge),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_positive_numbers_are_ids() {
        for (text, why) in [
            ("", InvalidPid::Empty),
            ("+1", InvalidPid::NotDigits),
            ("-1", InvalidPid::NotDigits),
            (" 1", InvalidPid::NotDigits),
            ("1\n", InvalidPid::NotDigits),
            ("0x1", InvalidPid::NotDigits),
            ("١", InvalidPid::NotDigits),
            ("0", InvalidPid::LeadingZero),
            ("01", InvalidPid::LeadingZero),
            ("2147483648", InvalidPid::TooLarge),
            ("4294967297", InvalidPid::TooLarge),
            ("99999999999999999999999", InvalidPid::TooLarge),
        ] {
            assert_eq!(text.parse::<Pid>(), Err(why), "{text:?}");
        }
        assert_eq!("2147483647".parse::<Pid>().map(Pid::get), Ok(i32::MAX));
        assert_eq!(Pid::new(0), None);
        assert_eq!(Pid::new(-1), None);
    }

    #[test]
    fn own_is_the_calling_process() {
        assert_eq!(Pid::own().get().unsigned_abs(), std::process::id());
    }

    proptest! {
        #[test]
        fn text_and_back(raw in 1..=i32::MAX) {
            let pid = Pid::new(raw).unwrap();
            prop_assert_eq!(pid.to_string().parse(), Ok(pid));
            prop_assert_eq!(Pid::from(RawPid::from(pid)), pid);
        }
    }
}
