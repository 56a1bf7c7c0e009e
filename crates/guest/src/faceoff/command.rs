// SPDX-License-Identifier: GPL-2.0-only
//! Runs programs of the guest's system to their ends.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Runs a program to its end.
///
/// # Errors
/// When it fails; the message has its output.
pub fn run(program: &str, args: &[&str]) -> Result<()> {
    output(program, args).map(drop)
}

/// Runs a program to its end and returns its standard output.
///
/// # Errors
/// When it fails; the message has its output.
pub fn output(program: &str, args: &[&str]) -> Result<String> {
    let line = || format!("{program} {}", args.join(" "));
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().with_context(line)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{}: {}: {text}{}", line(), output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}
