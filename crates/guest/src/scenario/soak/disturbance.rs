// SPDX-License-Identifier: GPL-2.0-only
//! What disturbs the victims meanwhile: CPUs that come and go, reclaim, and real-time tasks.

use std::time::{Duration, Instant};
use std::{fs, hint, thread};

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use super::victim::Victim;
use super::{MIB_BYTES, micros};
use crate::process::child::Board;
use crate::rng::Rng;
use crate::system::sched::set_policy;

/// The longest time for which real-time tasks keep all others from running: longer than swap entries may
/// wait, and short enough for tasks that run only in between.
const MAX_HOG_MICROS: usize = 300_000;
const CPUS: &str = "/sys/devices/system/cpu";
pub(super) const RECLAIM: &str = "/sys/fs/cgroup/memory.reclaim";

/// A process that disturbs all victims, again and again.
pub(super) struct Disturbance {
    process: Victim,
    /// The number of its successes.
    successes: Board,
}

impl Disturbance {
    /// Forks a process that calls `disturb` until it is killed, and counts how often that returns true.
    pub(super) fn fork(mut disturb: impl FnMut() -> bool) -> Result<Self> {
        let successes = Board::new(1)?;
        let process = Victim::fork(|| {
            loop {
                if disturb() {
                    successes.add(0, 1);
                }
            }
        })?;
        Ok(Self { process, successes })
    }

    /// Kills the process, and returns the number of its successes.
    pub(super) fn end(self) -> Result<u64> {
        self.process.pidfd.send_signal(Signal::KILL)?;
        self.process.end()?;
        Ok(self.successes.get(0))
    }
}

/// Takes CPUs offline and brings them back; `None` where that cannot be done.
pub(super) fn switcher(mut rng: Rng) -> Result<Option<Disturbance>> {
    let cpus = other_cpus()?;
    if cpus.is_empty() {
        return Ok(None);
    }
    Disturbance::fork(move || {
        thread::sleep(micros(&mut rng, 200_000));
        let online = if rng.one_in(2) { "1" } else { "0" };
        // Fails if the CPU is in that state already.
        fs::write(online_file(cpus[rng.below(cpus.len())]), online).is_ok()
    })
    .map(Some)
}

/// Returns the CPUs that can be taken offline; CPU 0 never can.
pub(super) fn other_cpus() -> Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for entry in fs::read_dir(CPUS).context(CPUS)? {
        let name = entry.context(CPUS)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
        cpus.extend(number.filter(|&cpu| cpu != 0 && fs::exists(online_file(cpu)).unwrap_or(false)));
    }
    cpus.sort_unstable();
    Ok(cpus)
}

pub(super) fn online_file(cpu: usize) -> String {
    format!("{CPUS}/cpu{cpu}/online")
}

/// Has memory of all victims paged out, by a process that owns none of it.
pub(super) fn reclaimer(mut rng: Rng) -> Result<Disturbance> {
    Disturbance::fork(move || {
        thread::sleep(micros(&mut rng, 100_000));
        let bytes = (1 + rng.below(12)) * MIB_BYTES;
        match fs::write(RECLAIM, bytes.to_string()) {
            Ok(()) => true,
            // Less than that was reclaimed.
            Err(e) => e.raw_os_error() == Some(libc::EAGAIN),
        }
    })
}

/// Lets real-time tasks use all CPU time from now on.
pub(super) fn remove_realtime_limits() -> Result<()> {
    const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";
    fs::write(RUNTIME, "-1").context(RUNTIME)?;
    // Since 6.12, ordinary tasks are guaranteed some time on each CPU.
    const SERVERS: &str = "/sys/kernel/debug/sched/fair_server";
    let Ok(servers) = fs::read_dir(SERVERS) else { return Ok(()) };
    for server in servers {
        let path = server.context(SERVERS)?.path().join("runtime");
        fs::write(&path, "0").with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Keeps all ordinary tasks from running for a while: kernel workers, daemons, and this process.
pub(super) fn hogs(mut rng: Rng) -> Result<Disturbance> {
    let cpus = other_cpus()?.len() + 1;
    Disturbance::fork(move || {
        thread::sleep(Duration::from_millis(500) + micros(&mut rng, 1_000_000));
        // A little later, so that all threads exist before the first one keeps the others from running.
        let begin = Instant::now() + Duration::from_millis(20);
        let end = begin + micros(&mut rng, MAX_HOG_MICROS);
        let hogs: Vec<_> = (0..cpus).map(|_| thread::spawn(move || hog(begin, end))).collect();
        // All are joined, also after one that failed.
        let failed = hogs.into_iter().filter_map(|hog| (!matches!(hog.join(), Ok(Ok(())))).then_some(()));
        failed.count() == 0
    })
}

fn hog(begin: Instant, end: Instant) -> Result<()> {
    thread::sleep(begin.saturating_duration_since(Instant::now()));
    set_policy(libc::SCHED_FIFO, 1).context("SCHED_FIFO for a hog")?;
    while Instant::now() < end {
        hint::spin_loop();
    }
    Ok(())
}
