// SPDX-License-Identifier: GPL-2.0-only
//! Files of the kernel with a name and a number in each line, such as /proc/meminfo, /proc/vmstat and
//! cpu.stat.

use std::fs;

use anyhow::{Context as _, Result};

/// Returns the number in the line that begins with `key`. `key` includes what ends the name: "MemFree:",
/// "oom_kill ". Allocates nothing.
pub fn value(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the CPU time in nanoseconds in a /proc/PID/schedstat (CONFIG_SCHED_INFO).
pub fn cpu_time(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

/// Reads the only number in a file.
///
/// # Errors
/// When it cannot be read, or holds something else.
pub fn number_in(path: &str) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| path.to_owned())?;
    text.trim_end().parse().with_context(|| format!("{path}: {text:?}"))
}

/// Reads a number in /proc/meminfo, in KiB: "MemFree:".
///
/// # Errors
/// When the file cannot be read, or has no such line.
pub fn meminfo(key: &str) -> Result<u64> {
    const PATH: &str = "/proc/meminfo";
    let text = fs::read_to_string(PATH).context(PATH)?;
    value(&text, key).with_context(|| format!("{PATH}: no {key}"))
}

/// Returns how many processes the kernel's OOM killer has killed since boot.
///
/// # Errors
/// When /proc/vmstat cannot be read, or does not say.
pub fn oom_kills() -> Result<u64> {
    value(&vmstat()?, "oom_kill ").context("no oom_kill in /proc/vmstat")
}

/// Reads /proc/vmstat.
///
/// # Errors
/// When it cannot be read.
pub fn vmstat() -> Result<String> {
    const PATH: &str = "/proc/vmstat";
    fs::read_to_string(PATH).context(PATH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_names() {
        let text = "Pss_Dirty:  7 kB\nPss:    340 kB\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(value(text, "Pss:"), Some(340));
        assert_eq!(value(text, "voluntary_ctxt_switches:"), Some(12));
        assert_eq!(value(text, "nonvoluntary_ctxt_switches:"), Some(3));
        assert_eq!(value(text, "usage_usec "), None);
        let text = "oom_kill_disable 5\noom_kill 2\noom_kill_x many\n";
        assert_eq!(value(text, "oom_kill "), Some(2));
        assert_eq!(value(text, "oom_kill_x "), None);
    }

    #[test]
    fn this_machine_has_memory() {
        let (all, available) = (meminfo("MemTotal:").unwrap(), meminfo("MemAvailable:").unwrap());
        assert!(available > 0 && available <= all);
        assert!(meminfo("MemNone:").unwrap_err().to_string().contains("no MemNone:"));
        assert!(value(&vmstat().unwrap(), "nr_free_pages ").is_some());
    }
}
