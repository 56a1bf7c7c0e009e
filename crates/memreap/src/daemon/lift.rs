//! Lifting a victim out of its CPU limits: what of its memory nobody else can free comes back only
//! as fast as it runs.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use arrayvec::{ArrayString, ArrayVec};
use linux::Pid;
use linux::process::Stat;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};

use super::files;

/// The most threads of a victim that are lifted; the memory goes with the last that exits, but those
/// that wait for a CPU are few.
const THREADS: usize = 1024;
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
    let meek = stat(proc, pid).is_some_and(|s| s.nice > 0 || MEEK.contains(&s.policy));
    if !(meek || cgroups.is_some_and(|root| has_quota(root, cgroup))) {
        return;
    }
    let mut path = Text::new();
    let _ = write!(path, "{pid}/task\0");
    let Ok(name) = CStr::from_bytes_with_nul(path.as_bytes()) else { return };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(tasks) = rustix::fs::openat(proc, name, flags, Mode::empty()) else { return };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&tasks, &mut buffer);
    let mut left = THREADS;
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        let Some(tid) = name.to_str().ok().and_then(|name| name.parse::<Pid>().ok()) else { continue };
        schedule(tid, libc::SCHED_RR, 1);
        // A thread that has exited meanwhile may have left its ID to somebody else.
        if rustix::fs::statat(&tasks, name, AtFlags::empty()).is_err() {
            schedule(tid, libc::SCHED_OTHER, 0);
        }
        left -= 1;
        if left == 0 {
            break;
        }
    }
}

fn schedule(tid: Pid, policy: i32, priority: i32) {
    // SAFETY: all zeros is a valid value.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = priority;
    // SAFETY: `param` is a live local; a thread that is gone is an error, which changes nothing.
    let _ = unsafe { libc::sched_setscheduler(tid.get(), policy, &param) };
}

fn stat(proc: &OwnedFd, pid: Pid) -> Option<Stat> {
    let mut path = Text::new();
    write!(path, "{pid}/stat\0").ok()?;
    let mut buffer = [0; 1024];
    let text = read(proc, &path, &mut buffer)?;
    Stat::parse(Path::new("stat"), text).ok()
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
    use std::process::Command;

    use rustix::fs::CWD;

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
        let policy = |pid| stat(&proc, pid).unwrap().policy;
        let mut tries = 0;
        while stat(&proc, pid).unwrap().nice != 19 {
            tries += 1;
            assert!(tries < 1000, "nice(1) does not work");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // Tests that run at low priority are lifted, and rightly so.
        if stat(&proc, plain).unwrap().nice <= 0 {
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
