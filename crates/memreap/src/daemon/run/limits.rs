//! Finding cgroups that have a limit of their own, without an allocation.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use arrayvec::ArrayVec;
use rustix::fs::{FileType, Mode, OFlags, RawDir};

use crate::choice::CGROUP;
use crate::daemon::files;

/// How deep is looked: every level needs an open directory and room on the stack.
const DEPTH: usize = 10;
/// How many cgroups are looked at, at most.
const CGROUPS: usize = 2000;

/// Calls `found` with the path ("/a/b") of every cgroup below `root` that has a limit on its memory. What
/// cannot be read, or vanishes meanwhile, is left out.
pub fn find(root: &OwnedFd, mut found: impl FnMut(&[u8])) {
    let mut path = ArrayVec::new();
    let mut left = CGROUPS;
    descend(root, &mut path, 0, &mut left, &mut found);
}

fn descend(
    dir: &OwnedFd,
    path: &mut ArrayVec<u8, CGROUP>,
    depth: usize,
    left: &mut usize,
    found: &mut impl FnMut(&[u8]),
) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // `dir` was opened with O_PATH: it cannot be read itself.
    let Ok(readable) = rustix::fs::openat(dir, c".", flags, Mode::empty()) else { return };
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&readable, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        if entry.file_type() != FileType::Directory || matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if *left == 0 {
            return;
        }
        *left -= 1;
        let Ok(child) = rustix::fs::openat(&readable, name, flags, Mode::empty()) else { continue };
        let end = path.len();
        let fits = path.try_push(b'/').is_ok() && path.try_extend_from_slice(name.to_bytes()).is_ok();
        if fits {
            if is_limited(&child) {
                found(path);
            }
            if depth + 1 < DEPTH {
                descend(&child, path, depth + 1, left, found);
            }
        }
        path.truncate(end);
    }
}

fn is_limited(dir: &OwnedFd) -> bool {
    let mut text = [0; 32];
    files::read(dir, c"memory.max", &mut text)
        .is_some_and(|text| text.first().is_some_and(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn limits_are_found_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        for (path, limit) in [("a", "max\n"), ("a/b", "4096\n"), ("a/b/c", "max\n"), ("d", "8192\n")] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
            fs::write(dir.path().join(path).join("memory.max"), limit).unwrap();
        }
        fs::create_dir(dir.path().join("no-controller")).unwrap();
        let root = rustix::fs::openat(CWD, dir.path(), OFlags::PATH, Mode::empty()).unwrap();
        let mut all = Vec::new();
        find(&root, |path| all.push(String::from_utf8(path.to_vec()).unwrap()));
        all.sort();
        assert_eq!(all, ["/a/b", "/d"]);
    }
}
