//! A cgroup by its directory: who is in it, and killing them.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use arrayvec::ArrayVec;
use linux::{Pid, PidFd};
use rustix::fs::{Mode, OFlags};

use crate::daemon::files;
use crate::kill::Method;
use crate::kill::method::send_sigkill;

/// How often the members of a cgroup are looked for that is killed one by one, and how many are held at
/// a time.
const PASSES: usize = 4;
const MEMBERS: usize = 256;
/// The longest path of a file of a cgroup.
const PATH: usize = 512;

/// A cgroup's directory, by its path "/a/b".
pub fn open_below(root: &OwnedFd, path: &[u8]) -> Option<OwnedFd> {
    let mut text = ArrayVec::<u8, PATH>::new();
    text.try_extend_from_slice(b".").ok()?;
    text.try_extend_from_slice(path).ok()?;
    text.try_push(0).ok()?;
    // No "..": a cgroup outside of our namespace is not ours to kill.
    if path.windows(3).any(|part| part == b"/..") {
        return None;
    }
    let path = CStr::from_bytes_with_nul(&text).ok()?;
    rustix::fs::openat(
        root,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
    )
    .ok()
}

/// `Some` if a process is in a cgroup.
pub fn is_member(dir: &OwnedFd, pid: Pid) -> Option<()> {
    let mut found = false;
    members(dir, |member| found |= member == pid)?;
    found.then_some(())
}

/// Kills the processes in a leaf cgroup: all at once where the kernel can (Linux 5.14), with their memory
/// freed by it where it can do that, too. Says whether it did, or whether there were any.
pub fn kill(dir: &OwnedFd, method: Method) -> bool {
    let words: &[&[u8]] = if method == Method::Expedite { &[b"1 expedite", b"1"] } else { &[b"1"] };
    // A user's own cgroups are the user's to write to, and root's with CAP_DAC_OVERRIDE. What the kernel
    // does not know has killed nobody (EINVAL).
    let file = rustix::fs::openat(dir, c"cgroup.kill", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    file.is_ok_and(|file| words.iter().any(|word| rustix::io::write(&file, word).is_ok()))
        || kill_members(dir, method)
}

/// Kills the processes in a cgroup one by one, and those that they have started meanwhile, some times
/// over. Says whether there were any.
fn kill_members(dir: &OwnedFd, method: Method) -> bool {
    let mut killed = false;
    for _ in 0..PASSES {
        let mut held = ArrayVec::<PidFd, MEMBERS>::new();
        let listed = members(dir, |pid| {
            if !held.is_full()
                && let Ok(pidfd) = PidFd::open(pid)
            {
                held.push(pidfd);
            }
        });
        // Whoever is still listed now that it is held is the one that is held: its ID was not used again.
        let mut own = [false; MEMBERS];
        let again = members(dir, |pid| {
            if let Some(place) = held.iter().position(|pidfd| pidfd.opened_as() == pid) {
                own[place] = true;
            }
        });
        if listed.and(again).is_none() {
            break;
        }
        for (pidfd, _) in held.iter().zip(own).filter(|(_, own)| *own) {
            killed |= send_sigkill(pidfd, method).is_ok();
        }
    }
    killed
}

/// Calls `each` with the processes in a cgroup; `None` when they cannot be read.
pub fn members(dir: &OwnedFd, mut each: impl FnMut(Pid)) -> Option<()> {
    files::each_line(dir, c"cgroup.procs", &mut [0; 4096], usize::MAX, |line| {
        if let Some(pid) = std::str::from_utf8(line).ok().and_then(|line| line.parse().ok()) {
            each(pid);
        }
    })
}

/// Whether a cgroup that was killed is empty.
pub fn is_empty(dir: &OwnedFd) -> bool {
    // What cannot be read was removed.
    files::read(dir, c"cgroup.events", &mut [0; 256])
        .is_none_or(|text| text.split(|b| *b == b'\n').any(|line| line == b"populated 0"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn only_who_is_listed_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            rustix::fs::openat(CWD, dir.path(), flags, Mode::empty()).unwrap()
        };
        let mut children: Vec<_> = (0..3).map(|_| Command::new("sleep").arg("60").spawn().unwrap()).collect();
        let text = format!("{}\n{}\n", children[0].id(), children[2].id());
        fs::write(dir.path().join("cgroup.procs"), text).unwrap();
        assert!(kill(&open(), Method::Expedite));
        for gone in [2, 0] {
            assert!(!children.remove(gone).wait().unwrap().success());
        }
        let mut left = children.remove(0);
        assert!(left.try_wait().unwrap().is_none());
        assert_eq!(is_member(&open(), Pid::new(left.id().cast_signed()).unwrap()), None);
        left.kill().unwrap();
        left.wait().unwrap();
        fs::remove_file(dir.path().join("cgroup.procs")).unwrap();
        assert!(!kill(&open(), Method::Plain));
    }

    #[test]
    fn the_kernel_is_asked_for_what_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cgroup.kill");
        for (method, word) in
            [(Method::Plain, "1"), (Method::Mrelease, "1"), (Method::Expedite, "1 expedite")]
        {
            fs::write(&file, "").unwrap();
            let dir = rustix::fs::openat(CWD, dir.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
            assert!(kill(&dir.unwrap(), method));
            assert_eq!(fs::read_to_string(&file).unwrap(), word);
        }
    }
}
