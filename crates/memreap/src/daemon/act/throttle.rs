// SPDX-License-Identifier: GPL-2.0-only
//! Throttles the process that would be killed next, while memory is short and getting shorter: it runs only
//! when no other process wants to (`SCHED_IDLE`). Usually it is the process that takes the memory, and so
//! takes it more slowly; and the processes that wait for memory have a CPU for their page faults.
//!
//! Nothing else about it changes. It is unthrottled as soon as memory is no longer short, when it is asked to
//! end, or when another process would be killed.

use std::thread;

use arrayvec::ArrayVec;
use linux::cgroup::Cgroup;
use linux::scan::Scan;
use linux::sched::{Policy, Threads};
use linux::{Dir, Pid, PidFd};
use rustix::time::{ClockId, clock_gettime};

use crate::choice::MAX_CGROUP_PATH_BYTES;
use crate::kill::prestarted::STACK_BYTES;

/// How often threads and processes are listed again, for those that were started meanwhile by others that had
/// not been changed yet.
const PASSES: usize = 4;

/// The path of a cgroup: "/a/b".
type Path = ArrayVec<u8, MAX_CGROUP_PATH_BYTES>;

/// A process that is throttled.
pub struct Throttle {
    process: PidFd,
    /// Where the processes that it starts begin; they inherit how it is scheduled.
    cgroup: Path,
    /// When it was throttled, in clock ticks since boot.
    since_ticks: u64,
}

impl Throttle {
    /// Throttles a process. `None` if that could not be undone: when some of its threads are not
    /// `SCHED_OTHER`, or its cgroup is not known.
    pub fn apply(scan: &Scan, process: PidFd, cgroup: Path) -> Option<Self> {
        let threads = Threads::open(scan, process.opened_as()).ok()?;
        // As the process has not exited, the threads are its own.
        let exited = process.has_exited().ok()?;
        if cgroup.is_empty() || exited || !threads.all_have(Policy::Other).ok()? {
            return None;
        }
        let since_ticks = ticks_since_boot();
        for _ in 0..PASSES {
            if threads.change(Some(Policy::Other), Policy::Idle) == 0 {
                break;
            }
        }
        Some(Self { process, cgroup, since_ticks })
    }

    /// Whether it is this process.
    pub fn is_of(&self, pid: Pid) -> bool {
        self.process.opened_as() == pid && !self.has_exited()
    }

    /// Returns its cgroup at the time when it was chosen.
    pub fn cgroup(&self) -> &[u8] {
        &self.cgroup
    }

    /// Whether it has exited.
    pub fn has_exited(&self) -> bool {
        self.process.has_exited().unwrap_or(true)
    }

    /// Schedules it as before, and all processes in its cgroup that were started since and have inherited it.
    pub fn undo(&self, scan: &Scan, cgroups: Option<&Dir>) {
        if let Ok(threads) = Threads::open(scan, self.process.opened_as())
            && !self.has_exited()
        {
            unthrottle(&threads);
        }
        let Some(cgroup) = cgroups.and_then(|root| Cgroup::open(root, &self.cgroup).ok()) else { return };
        for _ in 0..PASSES {
            let mut changed = 0;
            let _ = cgroup.for_each_process(|pid| {
                // Opened first: what is read then is of the same process, or of none.
                if let Ok(threads) = Threads::open(scan, pid)
                    && scan.stat(pid).is_ok_and(|stat| stat.start_time >= self.since_ticks)
                {
                    changed += unthrottle(&threads);
                }
            });
            if changed == 0 {
                break;
            }
        }
    }
}

/// Whether a throttled process can be scheduled as before, which takes CAP_SYS_NICE where it counts: not in a
/// user namespace. Tries it.
pub fn can_be_undone() -> bool {
    let try_it = || [Policy::Idle, Policy::Other].into_iter().all(|policy| policy.apply(0).is_ok());
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(try_it);
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

fn unthrottle(threads: &Threads) -> usize {
    (0..PASSES)
        .map(|_| threads.change(Some(Policy::Idle), Policy::Other))
        .take_while(|changed| *changed > 0)
        .sum()
}

fn ticks_since_boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let ticks = rustix::param::clock_ticks_per_second();
    now.tv_sec.cast_unsigned() * ticks + now.tv_nsec.cast_unsigned() * ticks / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Child, Command, Stdio};

    use linux::Root;

    use super::*;

    fn pid(child: &Child) -> Pid {
        Pid::new(child.id().cast_signed()).unwrap()
    }

    fn is(pid: Pid, policy: Policy) -> bool {
        Threads::open(&Scan::open(&Root::system()).unwrap(), pid).unwrap().all_have(policy).unwrap()
    }

    #[test]
    fn a_process_is_unthrottled_with_those_that_it_started() {
        let (scan, dir) = (Scan::open(&Root::system()).unwrap(), tempfile::tempdir().unwrap());
        // Idle by its own choice.
        let mut idle = Command::new("chrt").args(["--idle", "0", "sleep", "60"]).spawn().unwrap();
        let script = "read x; sleep 60 & echo $!; read x; kill $!";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        while !is(pid(&idle), Policy::Idle) {
            thread::sleep(std::time::Duration::from_millis(1));
        }
        // A start is known to a clock tick.
        thread::sleep(std::time::Duration::from_millis(50));
        let mut cgroup = Path::new();
        assert!(Throttle::apply(&scan, PidFd::open(pid(&shell)).unwrap(), cgroup.clone()).is_none());
        cgroup.try_extend_from_slice(b"/a").unwrap();
        assert!(Throttle::apply(&scan, PidFd::open(pid(&idle)).unwrap(), cgroup.clone()).is_none());
        let throttle = Throttle::apply(&scan, PidFd::open(pid(&shell)).unwrap(), cgroup).unwrap();
        assert!(throttle.is_of(pid(&shell)) && !throttle.is_of(pid(&idle)));
        assert!(is(pid(&shell), Policy::Idle));
        shell.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let child: Pid = line.trim().parse().unwrap();
        assert!(is(child, Policy::Idle));
        fs::create_dir(dir.path().join("a")).unwrap();
        let members = format!("{}\n{}\n{child}\n", idle.id(), shell.id());
        fs::write(dir.path().join("a/cgroup.procs"), members).unwrap();
        throttle.undo(&scan, Some(&Dir::open(dir.path()).unwrap()));
        if can_be_undone() {
            assert!(is(pid(&shell), Policy::Other) && is(child, Policy::Other));
        }
        assert!(is(pid(&idle), Policy::Idle));
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(throttle.has_exited());
        idle.kill().unwrap();
        idle.wait().unwrap();
    }
}
