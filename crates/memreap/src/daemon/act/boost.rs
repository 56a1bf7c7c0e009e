// SPDX-License-Identifier: GPL-2.0-only
//! Boosts a killed process out of its CPU limits: memory that only the process itself can free comes back
//! only as fast as it runs.

use std::ffi::CStr;
use std::fmt::Write as _;

use arrayvec::ArrayString;
use linux::scan::Scan;
use linux::sched::Threads;
use linux::{Dir, PidFd};

use crate::choice::MAX_CGROUP_PATH_BYTES;

/// Policies with which a thread hardly runs on a busy machine.
const BACKGROUND_POLICIES: [i32; 2] = [libc::SCHED_BATCH, libc::SCHED_IDLE];

/// The path of a file in a cgroup.
type FilePath = ArrayString<{ MAX_CGROUP_PATH_BYTES + 32 }>;

/// Has all threads of a process that was killed run before those that are not real-time, if its niceness, its
/// policy or the quota of its cgroup would delay it. A process whose cgroup has used up its quota does not
/// run, and so does not exit, before the next period; real-time threads have no quota.
///
/// Needs CAP_SYS_NICE; without it nothing happens. The victim is not moved to another cgroup: that takes a
/// lock for which forks wait.
pub fn boost(scan: &Scan, cgroups: Option<&Dir>, victim: &PidFd, cgroup: &[u8]) {
    let pid = victim.opened_as();
    let in_background =
        scan.stat(pid).is_ok_and(|s| s.nice > 0 || BACKGROUND_POLICIES.contains(&s.policy.cast_signed()));
    if !(in_background || cgroups.is_some_and(|root| has_quota(root, cgroup))) {
        return;
    }
    // The look-ups can wait for memory, and another process can have the ID by now. None has it, and what was opened is
    // the victim's, as long as that has not exited.
    if let Ok(threads) = Threads::open(scan, pid)
        && victim.is_alive().unwrap_or(false)
    {
        threads.make_real_time();
    }
}

/// Whether the cgroup "/a/b" or one above it has a limit on CPU time.
fn has_quota(root: &Dir, cgroup: &[u8]) -> bool {
    let Ok(cgroup) = std::str::from_utf8(cgroup) else { return false };
    let mut ends = cgroup.match_indices('/').map(|(i, _)| i).skip(1).chain([cgroup.len()]);
    ends.any(|end| {
        let mut path = FilePath::new();
        let mut buffer = [0; 64];
        write!(path, ".{}/cpu.max\0", &cgroup[..end]).is_ok()
            && CStr::from_bytes_with_nul(path.as_bytes())
                .is_ok_and(|path| root.read_start(path, &mut buffer).is_ok_and(|text| !text.starts_with(b"max")))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use linux::{Pid, Root, sched};

    use super::*;

    #[test]
    fn a_nice_victim_is_boosted_and_others_are_left_alone() {
        // The most there is, whatever the niceness of the test.
        let mut child = Command::new("nice").args(["-n", "39", "sleep", "60"]).spawn().unwrap();
        let pid = Pid::new(child.id().cast_signed()).unwrap();
        let scan = Scan::open(&Root::system()).unwrap();
        let plain = Pid::own();
        let policy = |pid| scan.stat(pid).unwrap().policy;
        let mut tries = 0;
        while scan.stat(pid).unwrap().nice != 19 {
            tries += 1;
            assert!(tries < 1000, "nice(1) does not work");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // A test that runs at low priority is boosted, and rightly so.
        if scan.stat(plain).unwrap().nice <= 0 {
            let before = policy(plain);
            boost(&scan, None, &PidFd::open(plain).unwrap(), b"");
            assert_eq!(policy(plain), before);
        }
        boost(&scan, None, &PidFd::open(pid).unwrap(), b"");
        let boosted = policy(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        // Without the capability nothing can happen.
        let may = may_be_real_time();
        assert_eq!(boosted == libc::SCHED_RR.unsigned_abs(), may);
    }

    #[test]
    fn a_process_that_has_got_the_id_of_the_victim_is_left_alone() {
        let sleeper = || Command::new("sleep").arg("60").spawn().unwrap();
        let (mut victim, mut other) = (sleeper(), sleeper());
        let pidfd = PidFd::open(Pid::new(victim.id().cast_signed()).unwrap()).unwrap();
        // A /proc in which the victim's ID is another process's.
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("proc")).unwrap();
        let own = dir.path().join(format!("proc/{}", victim.id()));
        std::os::unix::fs::symlink(format!("/proc/{}", other.id()), own).unwrap();
        fs::create_dir(dir.path().join("quota")).unwrap();
        fs::write(dir.path().join("quota/cpu.max"), "5000 100000\n").unwrap();
        let scan = Scan::open(&Root::at(dir.path())).unwrap();
        let cgroups = Dir::open(dir.path()).unwrap();
        let before = sched::policy(other.id().cast_signed()).unwrap();
        victim.kill().unwrap();
        victim.wait().unwrap();
        boost(&scan, Some(&cgroups), &pidfd, b"/quota");
        let after = sched::policy(other.id().cast_signed()).unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(after, before);
    }

    fn may_be_real_time() -> bool {
        let own = rustix::thread::capabilities(None).unwrap().effective;
        own.contains(rustix::thread::CapabilitySet::SYS_NICE)
    }

    #[test]
    fn a_quota_above_counts() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
        let root = Dir::open(dir.path()).unwrap();
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
