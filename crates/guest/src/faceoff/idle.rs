// SPDX-License-Identifier: GPL-2.0-only
//! The cost of a contestant while nothing happens.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result};

use protocol::faceoff::Idle;

use super::contestant;
use crate::system::counters::value;

/// Measures the processes of a unit for `time`. Without a unit all costs are 0.
///
/// # Errors
/// When the unit does not run, or one of the kernel's files cannot be read or parsed.
pub fn measure(unit: Option<&str>, time: Duration) -> Result<Idle> {
    let Some(unit) = unit else {
        thread::sleep(time);
        return Ok(Idle { seconds: time.as_secs_f64(), pss_kib: 0.0, cpu_ms: 0.0, wakeups: 0 });
    };
    let group = Path::new("/sys/fs/cgroup").join(contestant::cgroup(unit)?);
    let (cpu, switches) = (cpu_us(&group)?, switches(&group)?);
    thread::sleep(time);
    let wakeups = self::switches(&group)?.saturating_sub(switches);
    let cpu_ms = (cpu_us(&group)? - cpu) as f64 / 1e3;
    // Last, because reading it walks the page tables of the processes.
    Ok(Idle { seconds: time.as_secs_f64(), pss_kib: pss_kib(&group)?, cpu_ms, wakeups })
}

fn cpu_us(group: &Path) -> Result<u64> {
    let path = group.join("cpu.stat");
    let text = read(&path)?;
    value(&text, "usage_usec ").with_context(|| format!("{}: no usage_usec", path.display()))
}

fn switches(group: &Path) -> Result<u64> {
    let mut sum = 0;
    for pid in pids(group)? {
        let tasks = PathBuf::from(format!("/proc/{pid}/task"));
        for task in fs::read_dir(&tasks).with_context(|| tasks.display().to_string())? {
            let path = task?.path().join("status");
            let count = |text: &str| {
                Some(value(text, "voluntary_ctxt_switches:")? + value(text, "nonvoluntary_ctxt_switches:")?)
            };
            sum += count(&read(&path)?).with_context(|| format!("{}: no switches", path.display()))?;
        }
    }
    Ok(sum)
}

fn pss_kib(group: &Path) -> Result<f64> {
    let mut sum = 0;
    for pid in pids(group)? {
        let path = PathBuf::from(format!("/proc/{pid}/smaps_rollup"));
        sum += value(&read(&path)?, "Pss:").with_context(|| format!("{}: no Pss", path.display()))?;
    }
    Ok(sum as f64)
}

/// Returns the PIDs of a cgroup and of those below it.
fn pids(group: &Path) -> Result<Vec<u32>> {
    let mut pids = Vec::new();
    for line in read(&group.join("cgroup.procs"))?.lines() {
        pids.push(line.parse().with_context(|| format!("{}: {line}", group.display()))?);
    }
    for entry in fs::read_dir(group).with_context(|| group.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            pids.extend(self::pids(&entry.path())?);
        }
    }
    Ok(pids)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_the_processes_of_all_below() {
        let group = std::env::temp_dir().join(format!("faceoff-idle-{}", std::process::id()));
        fs::create_dir_all(group.join("below")).unwrap();
        fs::write(group.join("cgroup.procs"), "1\n22\n").unwrap();
        fs::write(group.join("below/cgroup.procs"), "333\n").unwrap();
        fs::write(group.join("cpu.stat"), "usage_usec 1234\nuser_usec 1\n").unwrap();
        assert_eq!(pids(&group).unwrap(), [1, 22, 333]);
        assert_eq!(cpu_us(&group).unwrap(), 1234);
        fs::remove_dir_all(&group).unwrap();
    }
}
