// SPDX-License-Identifier: GPL-2.0-only
//! Checks whether a job has leaked the kernel's memory, if the host requests that by `kmemleak=on`
//! (CONFIG_DEBUG_KMEMLEAK). It is off by default because it makes allocations much slower.
//!
//! kmemleak reports memory to which no pointer exists, but only if a second scan finds it unchanged, and only
//! if it was allocated some seconds before: a pointer may just be moved. So there is a scan when the job is
//! over, and another one when the job's last allocations are old enough.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::time::{Duration, Instant};
use std::{iter, thread};

use anyhow::{Context as _, Result};

const KMEMLEAK: &str = "/sys/kernel/debug/kmemleak";
/// The kernel parameter that requests the check.
const PARAMETER: &str = "kmemleak=on";
const KMSG: &str = "/dev/kmsg";
/// MSECS_MIN_AGE of mm/kmemleak.c, and a little more, because both ends of it are rounded to ticks.
const MIN_AGE: Duration = Duration::from_millis(5_100);
/// How many lines of the report are logged. A leak takes one or two dozen lines, and the first leaks are
/// enough to find the error.
const MAX_LINES: usize = 300;

/// Looks for leaks, if that is requested, and logs them as the kernel does, so that the host fails the boot.
/// No process of the job may run any more.
///
/// # Errors
/// When this kernel has no kmemleak, kmemleak has turned itself off, or its report cannot be read or logged.
pub fn check() -> Result<()> {
    let cmdline = fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?;
    if !cmdline.split_whitespace().any(|word| word == PARAMETER) {
        return Ok(());
    }
    let over = Instant::now();
    scan()?;
    thread::sleep(MIN_AGE.saturating_sub(over.elapsed()));
    scan()?;
    let report = fs::read_to_string(KMEMLEAK).context(KMEMLEAK)?;
    if report.is_empty() {
        return Ok(());
    }
    // By default the kernel accepts ten lines of a program and drops the others. It requires the newline.
    fs::write("/proc/sys/kernel/printk_devkmsg", "on\n").context("printk_devkmsg")?;
    let mut kmsg = File::options().write(true).open(KMSG).context(KMSG)?;
    for line in lines(&report) {
        // A line is one write. <3> is the level of errors.
        kmsg.write_all(format!("<3>kmemleak: {line}").as_bytes()).context(KMSG)?;
    }
    Ok(())
}

fn scan() -> Result<()> {
    // Without O_CREAT, for which debugfs returns the same error as kmemleak when it is off: a kernel without
    // kmemleak has to be distinguished from one whose kmemleak is off.
    let scan = File::options().write(true).open(KMEMLEAK).and_then(|mut f| f.write_all(b"scan"));
    match scan {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            Err(e).context("kmemleak has turned itself off, so leaks of the job are not known")
        }
        other => other.with_context(|| format!("{KMEMLEAK} (CONFIG_DEBUG_KMEMLEAK)")),
    }
}

/// Returns the lines of a report that are logged.
fn lines(report: &str) -> impl Iterator<Item = String> {
    let left_out = report.lines().count().saturating_sub(MAX_LINES);
    let rest = (left_out > 0).then(|| format!("{left_out} more lines"));
    report.lines().take(MAX_LINES).map(String::from).chain(iter::once(rest).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_report_is_cut_and_says_so() {
        assert_eq!(lines("a\n  b\n").collect::<Vec<_>>(), ["a", "  b"]);
        let most: Vec<String> = lines(&"x\n".repeat(MAX_LINES)).collect();
        assert_eq!((most.len(), most[MAX_LINES - 1].as_str()), (MAX_LINES, "x"));
        let long: Vec<String> = lines(&"x\n".repeat(MAX_LINES + 7)).collect();
        assert_eq!((long.len(), long[MAX_LINES].as_str()), (MAX_LINES + 1, "7 more lines"));
    }
}
