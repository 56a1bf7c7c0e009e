// SPDX-License-Identifier: GPL-2.0-only
//! Finds cgroups that have a memory limit, without allocating.

use std::mem::MaybeUninit;

use arrayvec::ArrayVec;
use linux::Dir;

use crate::choice::MAX_CGROUP_PATH_BYTES;

/// How many levels deep limits are searched for: each takes an open directory and room on the stack.
const MAX_DEPTH: usize = 10;
/// How many cgroups are opened, at most.
const MAX_CGROUPS: usize = 2000;

/// Calls `found` with the path ("/a/b") of every cgroup below `root` that has a limit on its memory. What
/// cannot be read, or vanishes meanwhile, is left out.
pub(super) fn find(root: &Dir, mut found: impl FnMut(&[u8])) {
    let mut path = ArrayVec::new();
    let mut left = MAX_CGROUPS;
    descend(root, &mut path, 0, &mut left, &mut found);
}

fn descend(
    dir: &Dir,
    path: &mut ArrayVec<u8, MAX_CGROUP_PATH_BYTES>,
    depth: usize,
    left: &mut usize,
    found: &mut impl FnMut(&[u8]),
) {
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let _ = dir.for_each_entry(&mut buffer, |name, is_dir| {
        if !is_dir || matches!(name.to_bytes(), b"." | b"..") {
            return true;
        }
        if *left == 0 {
            return false;
        }
        *left -= 1;
        let Ok(child) = dir.open_dir(name) else { return true };
        let end = path.len();
        let fits = path.try_push(b'/').is_ok() && path.try_extend_from_slice(name.to_bytes()).is_ok();
        if fits {
            if is_limited(&child) {
                found(path);
            }
            if depth + 1 < MAX_DEPTH {
                descend(&child, path, depth + 1, left, found);
            }
        }
        path.truncate(end);
        true
    });
}

fn is_limited(dir: &Dir) -> bool {
    let mut text = [0; 32];
    dir.read_start(c"memory.max", &mut text).is_ok_and(|text| text.first().is_some_and(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn limits_are_found_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        for (path, limit) in [("a", "max\n"), ("a/b", "4096\n"), ("a/b/c", "max\n"), ("d", "8192\n")] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
            fs::write(dir.path().join(path).join("memory.max"), limit).unwrap();
        }
        fs::create_dir(dir.path().join("no-controller")).unwrap();
        let root = Dir::open(dir.path()).unwrap();
        let mut all = Vec::new();
        find(&root, |path| all.push(String::from_utf8(path.to_vec()).unwrap()));
        all.sort();
        assert_eq!(all, ["/a/b", "/d"]);
    }
}
