// SPDX-License-Identifier: GPL-2.0-only
//! Runs several guests at a time: how many the host can take, and the threads that run them.

use fs_err as fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::Result;

use crate::host;
use crate::vm::job::Mode;

/// The memory that QEMU needs in addition to the guest's: for itself and for TCG's translated code.
const QEMU_MIB: u64 = 256;
/// The memory that is left for the host.
const HOST_RESERVE_MIB: u64 = 512;

/// Returns how many guests of `mem_mib` fit into `available_mib` MiB of memory; may be 0.
pub fn guests_that_fit(mem_mib: u32, available_mib: u64) -> usize {
    let room_mib = available_mib.saturating_sub(HOST_RESERVE_MIB);
    usize::try_from(room_mib / (u64::from(mem_mib) + QEMU_MIB)).unwrap_or(usize::MAX)
}

/// Returns how many guests that measure something may run at a time on a host with `cpus` CPUs, if `fit` of
/// them have room; at least one. If time is counted in instructions, other load does not change the values;
/// in all other modes it does.
pub fn measured_guests(mode: Mode, cpus: usize, fit: usize) -> usize {
    match mode {
        Mode::Multi => 1,
        Mode::Icount => cpus.min(fit).max(1),
    }
}

/// Returns how many guests of `mem_mib` run at a time if nothing is measured in them: as many as there are
/// CPUs and room for; at least one.
pub fn unmeasured_guests(mem_mib: u32) -> usize {
    let fit = available_mib().map_or(usize::MAX, |available| guests_that_fit(mem_mib, available));
    host::cpus().min(fit).max(1)
}

/// Returns the host's MemAvailable in MiB; `None` if /proc/meminfo does not have it.
pub fn available_mib() -> Option<u64> {
    mem_available(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib / 1024)
}

/// Calls `work` for all items, for up to `at_a_time` of them concurrently, and returns the results in the
/// order of the items. After the first error no further item is started, so there may be fewer results than
/// items.
pub fn map<T: Sync, R: Send>(at_a_time: usize, items: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Vec<Result<R>> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let worker = || {
        let mut done = Vec::new();
        while !failed.load(Ordering::Relaxed) {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { break };
            let result = work(item);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            done.push((i, result));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        let others: Vec<_> = (1..at_a_time.min(items.len())).map(|_| scope.spawn(worker)).collect();
        let mut done = worker();
        for other in others {
            match other.join() {
                Ok(results) => done.extend(results),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_by_key(|&(i, _)| i);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::bail;

    use super::*;

    #[test]
    fn memory_and_cpus_limit_the_guests() {
        // 2048 MiB and QEMU's 256 each, and the reserve of 512.
        let fit = |available| guests_that_fit(2048, available);
        assert_eq!([0, 512, 2815, 2816, 5119, 5120, 24_000].map(fit), [0, 0, 0, 1, 1, 2, 10]);
        assert_eq!([0, 1, 2, 3, 99].map(|fit| measured_guests(Mode::Icount, 3, fit)), [1, 1, 2, 3, 3]);
        assert_eq!([0, 1, 99].map(|fit| measured_guests(Mode::Multi, 3, fit)), [1, 1, 1]);
        assert!(guests_that_fit(1, u64::MAX) > 1000);
    }

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       24683520 kB\nMemFree:          123 kB\nMemAvailable:    2097152 kB\n";
        assert_eq!(mem_available(text), Some(2048));
        assert_eq!(mem_available("MemTotal: 1 kB\n"), None);
        assert!(available_mib().is_some());
    }

    #[test]
    fn results_keep_the_order_and_an_error_stops_the_rest() {
        let items: Vec<usize> = (0..40).collect();
        for at_a_time in [1, 2, 7, 100] {
            let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let results = map(at_a_time, &items, |&i| {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(Duration::from_micros(100 * (i % 7) as u64));
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(i)
            });
            assert_eq!(results.into_iter().map(Result::unwrap).collect::<Vec<_>>(), items);
            assert!(most.into_inner() <= at_a_time);

            let begun = AtomicUsize::new(0);
            let results = map(at_a_time, &items, |&i| {
                begun.fetch_add(1, Ordering::SeqCst);
                if i == 3 { bail!("no") } else { Ok(i) }
            });
            assert!(results[..3].iter().all(Result::is_ok) && results[3].is_err());
            assert!(at_a_time > 1 || begun.into_inner() == 4);
        }
        assert!(map(2, &[] as &[u8], |_| Ok(())).is_empty());
    }
}
