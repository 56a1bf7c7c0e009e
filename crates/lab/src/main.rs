// SPDX-License-Identifier: GPL-2.0-only
//! The `lab` command; all of it is in the library.

use std::panic;
use std::process::{self, ExitCode};

/// As a shell says it of a program that SIGPIPE has ended.
const NOBODY_READS: i32 = 141;

fn main() -> ExitCode {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |what| {
        // What println! says of `lab test --list | head`, and eprintln! of a terminal that was closed.
        let text = what.to_string();
        let is_gone = text.contains("Broken pipe") || text.contains("Input/output error");
        if text.contains("failed printing to std") && is_gone {
            lab::end_children();
            process::exit(NOBODY_READS);
        }
        report(what);
    }));
    lab::main()
}
