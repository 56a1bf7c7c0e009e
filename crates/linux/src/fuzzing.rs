// SPDX-License-Identifier: GPL-2.0-only
//! Entries for fuzzing, called by the targets in fuzz/ and by the test below. Each takes any bytes,
//! runs a parser on them and panics when what it says cannot be true: a number that is not in the
//! text (it has wrapped, or is another's), or a text that could act on a terminal. Says whether the
//! parser took the bytes.

use std::fmt::Display;
use std::path::Path;

use crate::process::{self, Comm, Rollup, Stat, Statm, Status};
use crate::{Result, escape, meminfo, mountinfo, psi, release, scan, swaps, vmstat, zram};

/// The path that errors name.
const PATH: &str = "/proc/fuzz";

/// All of the entries.
pub fn all(bytes: &[u8]) {
    stat(bytes);
    statm(bytes);
    smaps_rollup(bytes);
    comm(bytes);
    scan(bytes);
    mountinfo(bytes);
    psi(bytes);
    meminfo(bytes);
    vmstat(bytes);
    swaps(bytes);
    zram(bytes);
    release(bytes);
    printable(escape(bytes));
}

/// /proc/PID/stat.
pub fn stat(bytes: &[u8]) -> bool {
    let Some(stat) = check(Stat::parse(Path::new(PATH), bytes)) else {
        return false;
    };
    printable(stat.comm);
    assert!(occurs(stat.comm.as_bytes(), bytes));
    numbers(&[stat.majflt, stat.start_time, stat.flags.into(), stat.policy.into()], bytes);
    true
}

/// /proc/PID/statm.
pub fn statm(bytes: &[u8]) -> bool {
    let Some(statm) = check(Statm::parse(Path::new(PATH), bytes)) else {
        return false;
    };
    numbers(&[statm.resident / rustix::param::page_size() as u64], bytes);
    true
}

/// /proc/PID/smaps_rollup.
pub fn smaps_rollup(bytes: &[u8]) -> bool {
    let Some(r) = check(Rollup::parse(Path::new(PATH), bytes)) else {
        return false;
    };
    sizes(&[r.rss, r.private_clean, r.private_dirty, r.swap_pss, r.anonymous], bytes);
    sizes(&[r.pss_anon, r.pss_file, r.pss_shmem], bytes);
    assert!(r.comes_back() >= r.swap_pss);
    true
}

/// /proc/PID/comm.
pub fn comm(bytes: &[u8]) -> bool {
    let Some(comm) = check(Comm::parse(Path::new(PATH), bytes)) else {
        return false;
    };
    printable(comm);
    assert_eq!([comm.as_bytes(), b"\n"].concat(), bytes);
    true
}

/// What a scan parses in place.
pub fn scan(bytes: &[u8]) -> bool {
    let cgroup = process::cgroup(bytes);
    assert!(cgroup.is_empty() || (cgroup.starts_with(b"/") && occurs(cgroup, bytes)));
    scan::ids(bytes).flatten().for_each(|pid| assert!(occurs(pid.to_string().as_bytes(), bytes)));
    let found =
        [scan::size(bytes), scan::keyed(bytes, b"anon"), scan::last_pid(bytes).map(i32::cast_unsigned).map(u64::from)];
    numbers(&found.map(|n| n.filter(|n| *n != u64::MAX).unwrap_or_default()), bytes);
    if let Some(adjustment) = scan::adjustment(bytes) {
        assert!((-1000..=1000).contains(&adjustment));
    }
    let Some(status) = Status::parse(bytes) else {
        return false;
    };
    printable(status.comm);
    numbers(&[status.uid.into(), status.effective_uid.into(), status.threads.into()], bytes);
    sizes(&[status.vm_size, status.rss_anon, status.rss_shmem, status.swap], bytes);
    true
}

/// /proc/PID/mountinfo.
pub fn mountinfo(bytes: &[u8]) -> bool {
    let Some(mounts) = check(mountinfo::parse(Path::new(PATH), bytes)) else {
        return false;
    };
    assert_eq!(mounts.len(), lines(bytes));
    true
}

/// /proc/pressure/*.
pub fn psi(bytes: &[u8]) -> bool {
    let Some(pressure) = check(psi::Pressure::parse(Path::new(PATH), bytes)) else {
        return false;
    };
    for line in [Some(pressure.some), pressure.full].into_iter().flatten() {
        assert!(line.avg10.is_finite() && line.avg10 >= 0.0, "{line:?}");
        let micros = line.total.as_micros().to_string();
        assert!(occurs(micros.as_bytes(), bytes), "{micros}");
    }
    true
}

/// /proc/meminfo.
pub fn meminfo(bytes: &[u8]) -> bool {
    let Some(m) = check(meminfo::MemInfo::parse(Path::new(PATH), bytes)) else {
        return false;
    };
    sizes(&[m.total, m.free, m.available, m.swap_total, m.swap_free, m.cached, m.shmem], bytes);
    true
}

/// /proc/vmstat.
pub fn vmstat(bytes: &[u8]) -> bool {
    let Some(values) = check(vmstat::parse(Path::new(PATH), bytes, ["a", "nr_free_pages"])) else {
        return false;
    };
    numbers(&values.map(Option::unwrap_or_default), bytes);
    true
}

/// /proc/swaps.
pub fn swaps(bytes: &[u8]) -> bool {
    check(swaps::free(Path::new(PATH), bytes)).is_some()
}

/// /sys/block/zram*/mm_stat.
pub fn zram(bytes: &[u8]) -> bool {
    let Some(usage) = check(zram::Usage::parse(Path::new(PATH), bytes)) else {
        return false;
    };
    numbers(&[usage.original, usage.used], bytes);
    true
}

/// /proc/sys/kernel/osrelease.
pub fn release(bytes: &[u8]) -> bool {
    let Some(release) = check(release::Release::parse(Path::new(PATH), bytes)) else {
        return false;
    };
    printable(release.text);
    numbers(&[release.major.into(), release.minor.into()], bytes);
    true
}

/// What the parser gave; its error must be fit to be shown.
fn check<T>(result: Result<T>) -> Option<T> {
    result
        .map_err(|error| {
            let text = printable(&error);
            assert!(text.starts_with(PATH) && text.len() < 1000, "{text}");
        })
        .ok()
}

fn printable(shown: impl Display) -> String {
    let text = shown.to_string();
    assert!(!text.contains(char::is_control), "{text:?}");
    text
}

/// Numbers are in the text as they are; 0 also stands for none.
fn numbers(numbers: &[u64], bytes: &[u8]) {
    for number in numbers {
        assert!(*number == 0 || occurs(number.to_string().as_bytes(), bytes), "{number}");
    }
}

/// Sizes in bytes are in the text in KiB.
fn sizes(sizes: &[u64], bytes: &[u8]) {
    for size in sizes {
        assert_eq!(size % 1024, 0);
        numbers(&[size / 1024], bytes);
    }
}

fn occurs(part: &[u8], bytes: &[u8]) -> bool {
    part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
}

fn lines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&b| b == b'\n').count()
}

#[cfg(test)]
mod tests;
