// SPDX-License-Identifier: GPL-2.0-only
//! Finds cgroups that are close to their memory limit, without allocating.

use std::mem::MaybeUninit;

use arrayvec::ArrayVec;
use linux::{Dir, scan};

use crate::choice::MAX_CGROUP_PATH_BYTES;

/// How many levels deep limits are searched for: each takes an open directory and room on the stack.
const MAX_DEPTH: usize = 10;
/// How many cgroups are opened below each of the root's children, at most: services can make any number.
const MAX_CGROUPS: usize = 2000;

/// Calls `found` with the path ("/a/b") of every cgroup below `root` that is charged for all but `relief` bytes of
/// its limit, which is passed to `relief`; not all of that need be in use. What cannot be read, or vanishes
/// meanwhile, is left out. So is what is below a cgroup that `owner` does not own: with 0, the limits that users set,
/// who could have any number watched. The limit of a cgroup that was delegated to a user is still root's to set.
pub(super) fn find(root: &Dir, owner: u32, relief: impl Fn(u64) -> u64, mut found: impl FnMut(&[u8])) {
    let mut path = ArrayVec::new();
    descend(root, owner, &mut path, 0, &mut 0, &mut |dir, path| {
        if is_close(dir, &relief) {
            found(path);
        }
    });
}

fn descend(
    dir: &Dir,
    owner: u32,
    path: &mut ArrayVec<u8, MAX_CGROUP_PATH_BYTES>,
    depth: usize,
    left: &mut usize,
    each: &mut impl FnMut(&Dir, &[u8]),
) {
    if dir.owner() != Some(owner) {
        return;
    }
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let _ = dir.for_each_entry(&mut buffer, |name, is_dir| {
        if !is_dir {
            return true;
        }
        if depth == 0 {
            *left = MAX_CGROUPS;
        }
        if *left == 0 {
            return false;
        }
        *left -= 1;
        let Ok(child) = dir.open_dir(name) else { return true };
        let end = path.len();
        let fits = path.try_push(b'/').is_ok() && path.try_extend_from_slice(name.to_bytes()).is_ok();
        if fits {
            each(&child, path);
            if depth + 1 < MAX_DEPTH && !child.is_leaf() {
                descend(&child, owner, path, depth + 1, left, each);
            }
        }
        path.truncate(end);
        true
    });
}

fn is_close(dir: &Dir, relief: impl Fn(u64) -> u64) -> bool {
    let mut text = [0; 32];
    let mut bytes = |name| scan::size(dir.read(name, &mut text).ok()?);
    // `u64::MAX` is "max", no limit.
    let limit = bytes(c"memory.max").filter(|limit| *limit != u64::MAX);
    let charged = bytes(c"memory.current");
    limit.zip(charged).is_some_and(|(limit, charged)| limit.saturating_sub(charged) < relief(limit))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    use super::*;

    #[test]
    fn cgroups_close_to_their_limits_are_found_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        let all = [("a", "max"), ("a/b", "4000"), ("a/b/c", "max"), ("d", "3601"), ("e", "4500"), ("f", "1000")];
        for (path, limit) in all {
            let path = dir.path().join(path);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("memory.max"), format!("{limit}\n")).unwrap();
            fs::write(path.join("memory.current"), "3600\n").unwrap();
        }
        fs::create_dir(dir.path().join("no-controller")).unwrap();
        let root = Dir::open(dir.path()).unwrap();
        let mut all = Vec::new();
        let relief = |limit| limit / 5;
        find(&root, owner(dir.path()), relief, |path| all.push(String::from_utf8(path.to_vec()).unwrap()));
        all.sort();
        assert_eq!(all, ["/a/b", "/d", "/f"]);
        find(&root, owner(dir.path()) + 1, relief, |path| panic!("a user's: {path:?}"));
    }

    fn owner(path: &Path) -> u32 {
        fs::metadata(path).unwrap().uid()
    }

    #[test]
    fn users_with_many_cgroups_hide_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let per_child = MAX_CGROUPS / 2 + 1;
        for path in (0..2 * per_child).map(|i| format!("{}/{i}", i % 2)) {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let mut count = 0;
        let (root, owner) = (Dir::open(dir.path()).unwrap(), owner(dir.path()));
        descend(&root, owner, &mut ArrayVec::new(), 0, &mut 0, &mut |_, _| count += 1);
        assert_eq!(count, 2 + 2 * per_child);
    }
}
