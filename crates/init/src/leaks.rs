//! What a job has leaked of the kernel's memory, if the host asks by `kmemleak=on`
//! (CONFIG_DEBUG_KMEMLEAK). It is not on by itself, for allocating takes much longer with it.
//!
//! kmemleak reports what nobody points to, but only in a second scan that finds it as the first one
//! did, and only if it was allocated some seconds before: a pointer may be on its way from here to
//! there. So there is a scan when the job is over, and one when the last that it can have allocated
//! is old enough.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::time::{Duration, Instant};
use std::{iter, thread};

use anyhow::{Context as _, Result};

const KMEMLEAK: &str = "/sys/kernel/debug/kmemleak";
/// The kernel parameter that turns it on.
const ASKED: &str = "kmemleak=on";
const KMSG: &str = "/dev/kmsg";
/// MSECS_MIN_AGE of mm/kmemleak.c, and a bit, for both ends of it are rounded to ticks.
const OLD_ENOUGH: Duration = Duration::from_millis(5_100);
/// How much of the report goes to the console. A leak takes a dozen lines or two, and the first few
/// say what is wrong.
const LINES: usize = 300;

/// Looks for leaks, if it is to, and logs them as the kernel does, which makes the host fail the
/// boot. Nobody may be at work any more.
///
/// # Errors
/// When this kernel cannot tell, kmemleak has turned itself off, or its report cannot be read or logged.
pub fn look() -> Result<()> {
    let cmdline = fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?;
    if !cmdline.split_whitespace().any(|word| word == ASKED) {
        return Ok(());
    }
    let over = Instant::now();
    scan()?;
    thread::sleep(OLD_ENOUGH.saturating_sub(over.elapsed()));
    scan()?;
    let report = fs::read_to_string(KMEMLEAK).context(KMEMLEAK)?;
    if report.is_empty() {
        return Ok(());
    }
    // Else the kernel takes ten lines of a program, and leaves out the rest. It insists on the newline.
    fs::write("/proc/sys/kernel/printk_devkmsg", "on\n").context("printk_devkmsg")?;
    let mut kmsg = File::options().write(true).open(KMSG).context(KMSG)?;
    for line in lines(&report) {
        // One line is one write. By its level it is an error.
        kmsg.write_all(format!("<3>kmemleak: {line}").as_bytes()).context(KMSG)?;
    }
    Ok(())
}

fn scan() -> Result<()> {
    // Without O_CREAT, which debugfs refuses as kmemleak refuses what it is off for: a kernel that has
    // none is to be told from one whose kmemleak is off.
    let scan = File::options().write(true).open(KMEMLEAK).and_then(|mut f| f.write_all(b"scan"));
    match scan {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            Err(e).context("kmemleak has turned itself off, so nobody knows what the job has leaked")
        }
        other => other.with_context(|| format!("{KMEMLEAK} (CONFIG_DEBUG_KMEMLEAK)")),
    }
}

/// What is logged of a report.
fn lines(report: &str) -> impl Iterator<Item = String> {
    let left_out = report.lines().count().saturating_sub(LINES);
    let rest = (left_out > 0).then(|| format!("{left_out} more lines"));
    report.lines().take(LINES).map(String::from).chain(iter::once(rest).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_report_ends_with_what_is_missing() {
        assert_eq!(lines("a\n  b\n").collect::<Vec<_>>(), ["a", "  b"]);
        let most: Vec<String> = lines(&"x\n".repeat(LINES)).collect();
        assert_eq!((most.len(), most[LINES - 1].as_str()), (LINES, "x"));
        let long: Vec<String> = lines(&"x\n".repeat(LINES + 7)).collect();
        assert_eq!((long.len(), long[LINES].as_str()), (LINES + 1, "7 more lines"));
    }
}
