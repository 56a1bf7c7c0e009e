// SPDX-License-Identifier: GPL-2.0-only
//! The `memreap` command; all of its work is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    memreap::main()
}
