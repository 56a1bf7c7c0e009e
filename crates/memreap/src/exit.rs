// SPDX-License-Identifier: GPL-2.0-only
//! Exit codes.

use std::io::{Error, ErrorKind};
use std::process::ExitCode;

/// How a command ended.
///
/// Ordered by importance: when several apply to one run, the greatest one is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exit {
    /// Everything asked for was done.
    Done,
    /// Wrong usage: a method that this kernel does not have, or a wrong configuration. Wrong arguments end
    /// the program before there is an `Exit`.
    Usage,
    /// `doctor`: memreap cannot work here.
    Unfit,
    /// There is no such process.
    NotFound,
    /// A name fits several processes, or the process is protected.
    Refused,
    /// The caller may not kill the process, or not read it.
    NotPermitted,
    /// The process is dead, but its memory is held by another one that lives.
    Shared,
    /// The process had not exited when the time was up.
    StillDying,
    /// Ctrl-C.
    Interrupted,
    /// An internal error.
    Internal,
}

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Unfit | Self::NotFound => 1,
            Self::Usage => 2,
            Self::NotPermitted => 3,
            Self::Refused => 4,
            Self::StillDying => 5,
            Self::Shared => 6,
            Self::Internal => 70,
            Self::Interrupted => 130,
        }
    }

    /// Returns the exit when the output was `written`. Who does not read it to its end, as head(1), may want to know
    /// what the exit code says.
    pub(crate) fn after(self, written: anyhow::Result<()>) -> anyhow::Result<Self> {
        match written {
            Err(e) if e.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe) => Ok(self),
            written => written.map(|()| self),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_important_one_wins() {
        let all = [Exit::NotFound, Exit::StillDying, Exit::Done, Exit::NotPermitted];
        assert_eq!(all.into_iter().max(), Some(Exit::StillDying));
        assert!(Exit::Interrupted > Exit::StillDying && Exit::NotPermitted > Exit::Refused);
    }

    #[test]
    fn codes_of_kill_are_distinct() {
        use Exit::*;
        let all = [Done, Usage, NotFound, Refused, NotPermitted, Shared, StillDying, Interrupted, Internal];
        let mut codes: Vec<_> = all.map(Exit::code).to_vec();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 70, 130]);
    }
}
