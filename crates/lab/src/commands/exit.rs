// SPDX-License-Identifier: GPL-2.0-only
//! The exit codes; the help of `lab` explains them.

use crate::WrongUsage;
use crate::ab::experiment::Failure;
use crate::faceoff::snapshot::GuestFailure;

pub const FINDING: u8 = 1;
pub const USAGE: u8 = 2;
pub const HOST: u8 = 3;
pub const GUEST: u8 = 4;
/// What `git bisect run` takes for a commit that cannot be tested.
pub const SKIP: u8 = 125;
/// What ends `git bisect run`. It takes [`USAGE`] for a bad commit.
pub const ABORT: u8 = 128;

/// Returns the exit code of a check.
pub fn finding_unless(good: bool) -> u8 {
    if good { 0 } else { FINDING }
}

/// Returns the exit code for an error.
pub fn error_code(error: &anyhow::Error) -> u8 {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        failure.exit_code
    } else if error.is::<WrongUsage>() {
        USAGE
    } else if error.is::<GuestFailure>() {
        GUEST
    } else {
        HOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_map_to_exit_codes() {
        assert_eq!(error_code(&WrongUsage("x".into()).into()), 2);
        assert_eq!(error_code(&anyhow::anyhow!("apt")), 3);
        let failure = Failure { boot: "b".into(), cause: "c".into(), exit_code: 4, logs: "l".into(), tail: "t".into() };
        assert_eq!(error_code(&anyhow::Error::from(failure).context("more")), 4);
    }
}
