//! Holding back whoever would be killed, while memory is short and gets shorter: it runs only when nobody
//! else wants to. Mostly it is who takes the memory, and so takes it more slowly; and those whom it makes
//! wait have a CPU for their page faults.
//!
//! Nothing else is changed about it, and it is let go as soon as memory is not short any more, it is asked to
//! end, or somebody else would be killed.

use std::os::fd::OwnedFd;
use std::thread;

use arrayvec::ArrayVec;
use linux::{Pid, PidFd};
use rustix::time::{ClockId, clock_gettime};

use super::cgroup_kill;
use super::threads::{Policy, Threads, schedule};
use crate::choice::CGROUP;
use crate::daemon::files;
use crate::kill::prestarted::STACK_BYTES;

/// How often is looked for threads and processes that were started in the meantime by those that were not
/// done with yet.
const PASSES: usize = 4;

/// That of a cgroup: "/a/b".
type Path = ArrayVec<u8, CGROUP>;

/// A process that is held back.
pub struct Hold {
    process: PidFd,
    /// Where those that it starts begin, and inherit how it is scheduled.
    cgroup: Path,
    /// When, in clock ticks since boot.
    since: u64,
}

impl Hold {
    /// Holds this process back. `None` if that cannot be undone: when some of its threads are not scheduled
    /// as most are, or its cgroup is not known.
    pub fn on(proc: &OwnedFd, process: PidFd, cgroup: Path) -> Option<Self> {
        let threads = Threads::open(proc, process.opened_as())?;
        // Now it is known whose they are.
        if cgroup.is_empty() || process.has_exited().ok()? || !threads.are_all(Policy::Other) {
            return None;
        }
        let since = now();
        for _ in 0..PASSES {
            if threads.change(Some(Policy::Other), Policy::Idle) == 0 {
                break;
            }
        }
        Some(Self { process, cgroup, since })
    }

    /// Whether it is this process.
    pub fn is_of(&self, pid: Pid) -> bool {
        self.process.opened_as() == pid && !self.has_ended()
    }

    /// Its cgroup when it was chosen.
    pub fn cgroup(&self) -> &[u8] {
        &self.cgroup
    }

    /// Whether it has exited.
    pub fn has_ended(&self) -> bool {
        self.process.has_exited().unwrap_or(true)
    }

    /// Lets it run as before, and all in its cgroup that were started since and have it from there.
    pub fn release(&self, proc: &OwnedFd, cgroups: Option<&OwnedFd>) {
        if let Some(threads) = Threads::open(proc, self.process.opened_as())
            && !self.has_ended()
        {
            release(&threads);
        }
        let Some(dir) = cgroups.and_then(|root| cgroup_kill::open_below(root, &self.cgroup)) else { return };
        for _ in 0..PASSES {
            let mut released = 0;
            let _ = cgroup_kill::members(&dir, |pid| {
                // Opened first: what is read then is of the same process, or of none.
                if let Some(threads) = Threads::open(proc, pid)
                    && files::stat(proc, pid).is_some_and(|stat| stat.start_time >= self.since)
                {
                    released += release(&threads);
                }
            });
            if released == 0 {
                break;
            }
        }
    }
}

/// Whether somebody who is held back can be let go again, which takes CAP_SYS_NICE where it counts: not in
/// a user namespace. Tries it.
pub fn can_be_undone() -> bool {
    let try_it = || {
        let own = rustix::thread::gettid().as_raw_pid();
        [Policy::Idle, Policy::Other].into_iter().all(|policy| schedule(own, policy, 0))
    };
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(try_it);
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

fn release(threads: &Threads) -> usize {
    (0..PASSES)
        .map(|_| threads.change(Some(Policy::Idle), Policy::Other))
        .take_while(|changed| *changed > 0)
        .sum()
}

/// In clock ticks since boot.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let ticks = rustix::param::clock_ticks_per_second();
    now.tv_sec.cast_unsigned() * ticks + now.tv_nsec.cast_unsigned() * ticks / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Child, Command, Stdio};

    use rustix::fs::{CWD, Mode, OFlags};

    use super::*;

    fn open(path: impl AsRef<std::path::Path>) -> OwnedFd {
        rustix::fs::openat(CWD, path.as_ref(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    fn pid(child: &Child) -> Pid {
        Pid::new(child.id().cast_signed()).unwrap()
    }

    fn is(pid: Pid, policy: Policy) -> bool {
        Threads::open(&open("/proc"), pid).unwrap().are_all(policy)
    }

    #[test]
    fn who_is_held_back_is_let_go_with_those_whom_it_started() {
        let (proc, dir) = (open("/proc"), tempfile::tempdir().unwrap());
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
        assert!(Hold::on(&proc, PidFd::open(pid(&shell)).unwrap(), cgroup.clone()).is_none());
        cgroup.try_extend_from_slice(b"/a").unwrap();
        assert!(Hold::on(&proc, PidFd::open(pid(&idle)).unwrap(), cgroup.clone()).is_none());
        let hold = Hold::on(&proc, PidFd::open(pid(&shell)).unwrap(), cgroup).unwrap();
        assert!(hold.is_of(pid(&shell)) && !hold.is_of(pid(&idle)));
        assert!(is(pid(&shell), Policy::Idle));
        shell.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let child: Pid = line.trim().parse().unwrap();
        assert!(is(child, Policy::Idle));
        fs::create_dir(dir.path().join("a")).unwrap();
        let members = format!("{}\n{}\n{child}\n", idle.id(), shell.id());
        fs::write(dir.path().join("a/cgroup.procs"), members).unwrap();
        hold.release(&proc, Some(&open(dir.path())));
        if can_be_undone() {
            assert!(is(pid(&shell), Policy::Other) && is(child, Policy::Other));
        }
        assert!(is(pid(&idle), Policy::Idle));
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(hold.has_ended());
        idle.kill().unwrap();
        idle.wait().unwrap();
    }
}
