// SPDX-License-Identifier: GPL-2.0-only
//! The `lab` command. Only its arguments and exit codes are here; the rest is in the library.

mod commands;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::main()
}
