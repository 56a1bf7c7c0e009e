//! Lifting a victim out of its CPU limits: what of its memory nobody else can free comes back only
//! as fast as it runs.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::os::fd::OwnedFd;

use arrayvec::{ArrayString, ArrayVec};
use linux::Pid;

use super::threads::{Policy, Threads};
use crate::daemon::files;

/// SCHED_BATCH and SCHED_IDLE.
const MEEK: [u32; 2] = [3, 5];

type Text = ArrayString<{ crate::choice::CGROUP + 32 }>;

/// Lets all threads of a process that was killed run before those that are not real-time, if its
/// niceness, its policy or the quota of its cgroup would hold it up. A process whose cgroup has used
/// its quota up does not run, and so not exit, before the next period; real-time threads have no
/// quota.
///
/// Needs CAP_SYS_NICE; without it nothing happens. The victim is not moved to another cgroup: that takes
/// a lock for which forks wait.
pub fn lift(proc: &OwnedFd, cgroups: Option<&OwnedFd>, pid: Pid, cgroup: &[u8]) {
    let meek = files::stat(proc, pid).is_some_and(|s| s.nice > 0 || MEEK.contains(&s.policy));
    if !(meek || cgroups.is_some_and(|root| has_quota(root, cgroup))) {
        return;
    }
    if let Some(threads) = Threads::open(proc, pid) {
        threads.change(None, Policy::RealTime);
    }
}

/// Whether the cgroup "/a/b" or one above it has a limit on CPU time.
fn has_quota(root: &OwnedFd, cgroup: &[u8]) -> bool {
    let Ok(cgroup) = std::str::from_utf8(cgroup) else { return false };
    let mut ends: ArrayVec<usize, 32> = cgroup.match_indices('/').map(|(i, _)| i).skip(1).take(31).collect();
    ends.push(cgroup.len());
    ends.iter().any(|end| {
        let mut path = Text::new();
        let mut buffer = [0; 64];
        write!(path, ".{}/cpu.max\0", &cgroup[..*end]).is_ok()
            && read(root, &path, &mut buffer).is_some_and(|text| !text.starts_with(b"max"))
    })
}

/// The text of a file below `dir`; `path` ends with a NUL.
fn read<'a>(dir: &OwnedFd, path: &Text, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    files::read(dir, CStr::from_bytes_with_nul(path.as_bytes()).ok()?, buffer)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use rustix::fs::{CWD, Mode, OFlags};

    use super::*;

    fn open(path: impl AsRef<Path>) -> OwnedFd {
        rustix::fs::openat(CWD, path.as_ref(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn a_nice_victim_is_lifted_and_others_are_left_alone() {
        // The most there is, whatever the niceness of whoever runs the tests.
        let mut child = Command::new("nice").args(["-n", "39", "sleep", "60"]).spawn().unwrap();
        let pid = Pid::new(child.id().cast_signed()).unwrap();
        let proc = open("/proc");
        let plain = Pid::own();
        let policy = |pid| files::stat(&proc, pid).unwrap().policy;
        let mut tries = 0;
        while files::stat(&proc, pid).unwrap().nice != 19 {
            tries += 1;
            assert!(tries < 1000, "nice(1) does not work");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // Tests that run at low priority are lifted, and rightly so.
        if files::stat(&proc, plain).unwrap().nice <= 0 {
            let before = policy(plain);
            lift(&proc, None, plain, b"");
            assert_eq!(policy(plain), before);
        }
        lift(&proc, None, pid, b"");
        let lifted = policy(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        // Without the capability nothing can happen.
        let may = may_be_real_time();
        assert_eq!(lifted == libc::SCHED_RR.unsigned_abs(), may);
    }

    fn may_be_real_time() -> bool {
        let root = linux::Root::system();
        let own = linux::Process::open(&root, Pid::own()).unwrap().status().unwrap();
        // CAP_SYS_NICE.
        own.cap_effective & (1 << 23) != 0
    }

    #[test]
    fn a_quota_above_counts() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
        let root = open(dir.path());
        for (at, text) in [("a", "max 100000\n"), ("a/b/c", "max 100000\n")] {
            fs::write(dir.path().join(at).join("cpu.max"), text).unwrap();
        }
        assert!(!has_quota(&root, b"/a/b/c"));
        fs::write(dir.path().join("a/b/cpu.max"), "5000 100000\n").unwrap();
        assert!(has_quota(&root, b"/a/b/c"));
        assert!(!has_quota(&root, b"/a"));
        assert!(!has_quota(&root, b""));
    }
}
