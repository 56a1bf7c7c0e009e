// SPDX-License-Identifier: GPL-2.0-only
//! A cgroup by its directory: its processes, and killing them.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use crate::Pid;
use crate::dir::{Dir, Failure};

/// The longest path of a cgroup that is opened, in bytes.
const MAX_PATH_BYTES: usize = 512;

/// A cgroup, open. It stays the same cgroup when another one gets its path.
#[derive(Debug)]
pub struct Cgroup(Dir);

impl Cgroup {
    /// Opens the cgroup with this path ("/a/b") in the hierarchy that is mounted at `root`. Allocates
    /// nothing.
    ///
    /// # Errors
    /// When there is none; [`Failure::Malformed`] for a path with ".." in it, which leads out of the caller's
    /// cgroup namespace, or one of more than 512 bytes.
    pub fn open(root: &Dir, path: &[u8]) -> Result<Self, Failure> {
        if path.windows(3).any(|part| part == b"/..") {
            return Err(Failure::Malformed);
        }
        let mut name = [0; MAX_PATH_BYTES];
        name[0] = b'.';
        // The last byte stays 0.
        let room = name.len() - 1;
        name[..room].get_mut(1..=path.len()).ok_or(Failure::Malformed)?.copy_from_slice(path);
        root.open_dir(CStr::from_bytes_until_nul(&name).map_err(|_| Failure::Malformed)?).map(Self)
    }

    /// Returns its directory.
    pub fn dir(&self) -> &Dir {
        &self.0
    }

    /// Calls `each` with the processes in it (cgroup.procs), without those below and those outside of the
    /// caller's PID namespace. Allocates nothing.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn for_each_process(&self, mut each: impl FnMut(Pid)) -> Result<(), Failure> {
        self.for_each_member(|pid| pid.into_iter().for_each(&mut each))
    }

    /// As [`Cgroup::for_each_process`], also with those outside of the caller's PID namespace: `None` for each.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn for_each_member(&self, mut each: impl FnMut(Option<Pid>)) -> Result<(), Failure> {
        self.0.for_each_line(c"cgroup.procs", &mut [0; 4096], |line| {
            each(std::str::from_utf8(line).ok().and_then(|line| line.parse().ok()));
            true
        })
    }

    /// Whether a process is in it.
    ///
    /// # Errors
    /// As [`Cgroup::for_each_process`].
    pub fn contains(&self, pid: Pid) -> Result<bool, Failure> {
        let mut found = false;
        self.for_each_process(|member| found |= member == pid)?;
        Ok(found)
    }

    /// Calls `each` with the cgroups in it, without those below them, or why one of them cannot be opened. Allocates
    /// nothing.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn for_each_child(&self, mut each: impl FnMut(Result<Self, Failure>)) -> Result<(), Failure> {
        self.0.for_each_entry(&mut [MaybeUninit::uninit(); 2048], |name, directory| {
            if directory {
                each(self.0.open_dir(name).map(Self));
            }
            true
        })
    }

    /// Kills all processes in it and below at once (cgroup.kill, Linux 5.14).
    ///
    /// # Errors
    /// When the kernel does not have it, or the caller may not: a user's own cgroups are the user's to write
    /// to, and root's with CAP_DAC_OVERRIDE.
    pub fn kill(&self) -> Result<(), Failure> {
        self.0.write(c"cgroup.kill", b"1")
    }

    /// Whether the caller may kill them so.
    pub fn may_kill(&self) -> bool {
        self.0.may_write(c"cgroup.kill")
    }

    /// As [`Cgroup::kill`]; the kernel frees the memory as part of the kill. Needs the kernel topic
    /// `expedite`.
    ///
    /// # Errors
    /// As [`Cgroup::kill`]; EINVAL without the topic. No process has been killed then.
    pub fn kill_expedited(&self) -> Result<(), Failure> {
        self.0.write(c"cgroup.kill", b"1 expedite")
    }

    /// Whether there is a process in it or below (cgroup.events).
    ///
    /// # Errors
    /// When it cannot be read, as after the cgroup was removed.
    pub fn is_populated(&self) -> Result<bool, Failure> {
        let mut buffer = [0; 256];
        let text = self.0.read_start(c"cgroup.events", &mut buffer)?;
        Ok(text.split(|b| *b == b'\n').all(|line| line != b"populated 0"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_cgroup_is_found_below_its_root_only() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("a/b")).unwrap();
        fs::write(tree.path().join("a/b/cgroup.procs"), "1\n0\n77\n").unwrap();
        fs::write(tree.path().join("a/b/cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
        let root = Dir::open(tree.path()).unwrap();
        let cgroup = Cgroup::open(&root, b"/a/b").unwrap();
        let pid = |pid| Pid::new(pid).unwrap();
        assert_eq!((cgroup.contains(pid(77)), cgroup.contains(pid(7))), (Ok(true), Ok(false)));
        assert_eq!(cgroup.is_populated(), Ok(true));
        fs::write(tree.path().join("a/b/cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
        assert_eq!(cgroup.is_populated(), Ok(false));
        assert_eq!(cgroup.kill(), Err(Failure::Gone));
        for wrong in [&b"/.."[..], b"/a/../a", &[b'/'; 512]] {
            assert_eq!(Cgroup::open(&root, wrong).map(drop), Err(Failure::Malformed));
        }
        assert_eq!(Cgroup::open(&root, b"/none").map(drop), Err(Failure::Gone));
        assert!(Cgroup::open(&root, b"/").is_ok() && Cgroup::open(&root, b"").is_ok());
    }
}
