//! Which policy the threads of another process are scheduled by.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use arrayvec::ArrayString;
use linux::{Pid, sched};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};

/// The most threads of a process that are looked at.
const THREADS: usize = 1024;

/// How a thread is scheduled, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// As most are: `SCHED_OTHER`.
    Other,
    /// Only when no other thread wants to run: `SCHED_IDLE`. Its niceness is kept for when it is `Other`
    /// again.
    Idle,
    /// Before all that are not real-time: `SCHED_RR`, at the lowest priority.
    RealTime,
}

/// The threads of a process: of the one that had this ID when they were opened, whoever has it now.
pub struct Threads(OwnedFd);

impl Threads {
    /// Opens the list of them below `proc`.
    pub fn open(proc: &OwnedFd, pid: Pid) -> Option<Self> {
        let mut path = ArrayString::<32>::new();
        write!(path, "{pid}/task\0").ok()?;
        open(proc, CStr::from_bytes_with_nul(path.as_bytes()).ok()?).map(Self)
    }

    /// Whether all are scheduled by this policy.
    pub fn are_all(&self, policy: Policy) -> bool {
        let mut all = true;
        self.each(|tid, _| all &= scheduled(tid).is_some_and(|(its, _)| its == policy.number())).is_some()
            && all
    }

    /// Has those be scheduled by another policy that now are by the first, or all. Says how many. Needs
    /// CAP_SYS_NICE, except for [`Policy::Idle`].
    pub fn change(&self, from: Option<Policy>, to: Policy) -> usize {
        let mut changed = 0;
        let _ = self.each(|tid, name| {
            let Some((before, flags)) = scheduled(tid) else { return };
            if from.is_some_and(|from| from.number() != before) || !schedule(tid.get(), to, flags) {
                return;
            }
            // A thread that has exited meanwhile may have left its ID to somebody else.
            if rustix::fs::statat(&self.0, name, AtFlags::empty()).is_err() {
                let before = if before == libc::SCHED_IDLE { Policy::Idle } else { Policy::Other };
                schedule(tid.get(), before, flags);
                return;
            }
            changed += 1;
        });
        changed
    }

    fn each(&self, mut each: impl FnMut(Pid, &CStr)) -> Option<()> {
        // A directory is read to its end once.
        let tasks = open(&self.0, c".")?;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(&tasks, &mut buffer);
        let mut left = THREADS;
        while let Some(entry) = entries.next() {
            let entry = entry.ok()?;
            let name = entry.file_name();
            let Some(tid) = name.to_str().ok().and_then(|name| name.parse::<Pid>().ok()) else { continue };
            left = left.checked_sub(1)?;
            each(tid, name);
        }
        Some(())
    }
}

impl Policy {
    fn number(self) -> i32 {
        match self {
            Self::Other => libc::SCHED_OTHER,
            Self::Idle => libc::SCHED_IDLE,
            Self::RealTime => libc::SCHED_RR,
        }
    }
}

fn open(dir: &OwnedFd, name: &CStr) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).ok()
}

/// Policy and flags.
fn scheduled(tid: Pid) -> Option<(i32, i32)> {
    let policy = sched::policy(tid.get()).ok()?;
    let flags = policy & libc::SCHED_RESET_ON_FORK;
    Some((policy - flags, flags))
}

/// Has a thread be scheduled by this policy; `flags` as sched_setscheduler(2) knows them. Says whether it is.
pub fn schedule(tid: i32, policy: Policy, flags: i32) -> bool {
    sched::set_policy(tid, policy.number() | flags, i32::from(policy == Policy::RealTime)).is_ok()
}
