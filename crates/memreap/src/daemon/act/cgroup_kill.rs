// SPDX-License-Identifier: GPL-2.0-only
//! Kills all processes of a cgroup.

use arrayvec::ArrayVec;
use linux::PidFd;
use linux::cgroup::Cgroup;
use linux::dir::Failure;

use crate::kill::Method;
use crate::kill::method::{kill_cgroup, send_sigkill};

/// How often the processes of a cgroup that is killed one by one are listed.
const PASSES: usize = 4;
/// How many of them are opened at a time.
const MAX_OPEN: usize = 256;
/// How many levels below it are looked at: users can make more than there is room for on the stack.
const MAX_LEVELS: usize = 16;

/// Kills the processes in a cgroup and below: all at once where the kernel can (Linux 5.14), and with their memory
/// freed by it where it can do that, too. Returns whether it did, or whether there were any processes to kill
/// one by one.
pub fn kill(cgroup: &Cgroup, method: Method) -> bool {
    kill_cgroup(cgroup, method).is_ok()
        // Several times over, for those that were started meanwhile.
        || (0..PASSES).fold(false, |killed, _| kill_one_by_one(cgroup, method, MAX_LEVELS) || killed)
}

/// Kills the processes in a cgroup and so many levels below it one by one. Returns whether there were any.
fn kill_one_by_one(cgroup: &Cgroup, method: Method, levels: usize) -> bool {
    // One that is threaded cannot say; those above it list its processes.
    let Ok(mut killed) = kill_members(cgroup, method) else { return false };
    if let Some(below) = levels.checked_sub(1) {
        // What cannot be listed or opened is left out.
        let _ = cgroup.for_each_child(|child| {
            killed |= child.is_ok_and(|child| kill_one_by_one(&child, method, below));
        });
    }
    killed
}

/// Kills the processes in a cgroup itself. Not a part of its caller, which is on the stack once per level.
#[inline(never)]
fn kill_members(cgroup: &Cgroup, method: Method) -> Result<bool, Failure> {
    let mut open = ArrayVec::<PidFd, MAX_OPEN>::new();
    let mut killed = false;
    cgroup.for_each_process(|pid| {
        // Those that were killed are listed until they have exited, so the others come in the same pass.
        if open.is_full() {
            killed |= kill_listed(cgroup, method, &open);
            open.clear();
        }
        if let Ok(pidfd) = PidFd::open(pid) {
            open.push(pidfd);
        }
    })?;
    Ok(kill_listed(cgroup, method, &open) || killed)
}

/// Kills those of the processes that are listed in a cgroup.
fn kill_listed(cgroup: &Cgroup, method: Method, open: &[PidFd]) -> bool {
    // A process that is still listed now is the one behind the pidfd: its ID was not reused.
    let mut listed = [false; MAX_OPEN];
    // What cannot be read is left out.
    let _ = cgroup.for_each_process(|pid| {
        if let Some(index) = open.iter().position(|pidfd| pidfd.opened_as() == pid) {
            listed[index] = true;
        }
    });
    let victims = open.iter().zip(listed).filter(|(_, listed)| *listed);
    victims.fold(false, |killed, (pidfd, _)| send_sigkill(pidfd, method).is_ok() || killed)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::time::Duration;

    use linux::{Dir, Pid};

    use super::*;

    #[test]
    fn only_processes_that_are_listed_are_killed() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Cgroup::open(&Dir::open(dir.path()).unwrap(), b"").unwrap();
        let mut children: Vec<_> = (0..3).map(|_| Command::new("sleep").arg("60").spawn().unwrap()).collect();
        let text = format!("{}\n{}\n", children[0].id(), children[2].id());
        fs::write(dir.path().join("cgroup.procs"), text).unwrap();
        assert!(kill(&open(), Method::Expedite));
        for gone in [2, 0] {
            assert!(!children.remove(gone).wait().unwrap().success());
        }
        let mut left = children.remove(0);
        assert!(left.try_wait().unwrap().is_none());
        assert_eq!(open().contains(Pid::new(left.id().cast_signed()).unwrap()), Ok(false));
        left.kill().unwrap();
        left.wait().unwrap();
        fs::remove_file(dir.path().join("cgroup.procs")).unwrap();
        assert!(!kill(&open(), Method::Plain));
    }

    #[test]
    fn those_beyond_what_is_opened_at_a_time_are_killed_while_the_first_are_still_listed() {
        let dir = tempfile::tempdir().unwrap();
        let mut children: Vec<_> = (0..=MAX_OPEN).map(|_| Command::new("sleep").arg("60").spawn().unwrap()).collect();
        let text: String = children.iter().map(|child| format!("{}\n", child.id())).collect();
        fs::write(dir.path().join("cgroup.procs"), text).unwrap();
        let cgroup = Cgroup::open(&Dir::open(dir.path()).unwrap(), b"").unwrap();
        let killed = kill(&cgroup, Method::Plain);
        let last = PidFd::open(Pid::new(children[MAX_OPEN].id().cast_signed()).unwrap()).unwrap();
        let died = last.wait_exit(Duration::from_secs(10)).unwrap();
        for child in &mut children {
            // Without effect on one that is dead.
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!((killed, died), (true, true));
    }

    #[test]
    fn processes_in_child_cgroups_are_killed_one_by_one_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(dir.path().join("cgroup.procs"), "").unwrap();
        fs::write(dir.path().join("a/cgroup.procs"), "").unwrap();
        fs::write(below.join("cgroup.procs"), format!("{}\n", child.id())).unwrap();
        let cgroup = Cgroup::open(&Dir::open(dir.path()).unwrap(), b"").unwrap();
        let killed = kill(&cgroup, Method::Plain);
        // Without effect on one that is dead.
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(killed);
    }

    #[test]
    fn the_kernel_is_asked_for_what_it_can_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cgroup.kill");
        for (method, word) in [(Method::Plain, "1"), (Method::Mrelease, "1"), (Method::Expedite, "1 expedite")] {
            fs::write(&file, "").unwrap();
            let cgroup = Cgroup::open(&Dir::open(dir.path()).unwrap(), b"").unwrap();
            assert!(kill(&cgroup, method));
            assert_eq!(fs::read_to_string(&file).unwrap(), word);
        }
    }
}
