// SPDX-License-Identifier: GPL-2.0-only
//! The `lab` command; all of its work is in the library.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
