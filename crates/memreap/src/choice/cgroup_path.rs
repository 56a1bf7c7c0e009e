// SPDX-License-Identifier: GPL-2.0-only
//! Paths of cgroups, of a bounded length.

use arrayvec::ArrayVec;

/// The longest path of a cgroup that is stored; a longer one is cut off.
pub const MAX_CGROUP_PATH_BYTES: usize = 256;

/// The path of a cgroup ("/a/b"), or its beginning.
pub type CgroupPath = ArrayVec<u8, MAX_CGROUP_PATH_BYTES>;

/// Whether `path` is `above` or below it.
pub fn is_below(path: &[u8], above: &[u8]) -> bool {
    let above = above.strip_suffix(b"/").unwrap_or(above);
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// As much of a path as is stored.
pub(super) fn cut(path: &[u8]) -> CgroupPath {
    path.iter().copied().take(MAX_CGROUP_PATH_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_is_by_components() {
        assert!(is_below(b"/a/b", b"/a") && is_below(b"/a", b"/a") && is_below(b"/a/b", b"/a/"));
        assert!(is_below(b"/a", b"/") && is_below(b"/", b"/"));
        assert!(!is_below(b"/ab", b"/a") && !is_below(b"/", b"/a") && !is_below(b"", b"/a"));
    }
}
