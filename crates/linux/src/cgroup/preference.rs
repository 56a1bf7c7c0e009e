// SPDX-License-Identifier: GPL-2.0-only
//! What systemd's `ManagedOOMPreference=` says about a unit. systemd keeps it in an extended attribute of the unit's
//! cgroup (systemd.resource-control(5)).

use std::ffi::CStr;

use crate::Dir;

/// Longer names cannot be.
const MAX_NAME_BYTES: usize = 255;
/// The attributes, which are "1" when they are set.
const AVOID: &CStr = c"user.oomd_avoid";
const OMIT: &CStr = c"user.oomd_omit";

/// Whether the processes of a unit are to be killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OomPreference {
    /// As all others.
    #[default]
    None,
    /// Only if there are no others.
    Avoid,
    /// Never.
    Omit,
}

/// Returns the strongest preference of a cgroup and of those above it, without `root`; `path` is "/a/b". Only cgroups
/// that `owner` owns count: with 0, users cannot exempt their own, as systemd-oomd has it too. Allocates nothing.
pub fn oom_preference(root: &Dir, path: &[u8], owner: u32) -> OomPreference {
    let mut strongest = OomPreference::None;
    let mut below: Option<Dir> = None;
    for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
        let mut text = [0; MAX_NAME_BYTES + 1];
        let Some(room) = text[..MAX_NAME_BYTES].get_mut(..name.len()) else { break };
        room.copy_from_slice(name);
        let opened = CStr::from_bytes_until_nul(&text).ok().and_then(|name| {
            let above = below.as_ref().unwrap_or(root);
            above.open_dir(name).ok()
        });
        // It was removed.
        let Some(dir) = opened else { break };
        if dir.owner() == Some(owner) {
            let set = |attribute| dir.has_attribute(attribute, b"1");
            let own = match (set(OMIT), set(AVOID)) {
                (true, _) => OomPreference::Omit,
                (_, true) => OomPreference::Avoid,
                _ => OomPreference::None,
            };
            strongest = strongest.max(own);
        }
        below = Some(dir);
    }
    strongest
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use rustix::fs::{XattrFlags, setxattr};

    use super::*;

    #[test]
    fn the_strongest_of_a_unit_and_its_slices_counts() {
        // Not in /tmp, which may be a tmpfs without such attributes.
        let tree = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = tree.path().join("a.slice/b.service/c");
        fs::create_dir_all(&path).unwrap();
        let owner = fs::metadata(&path).unwrap().uid();
        let root = Dir::open(tree.path()).unwrap();
        let of = |path: &str| oom_preference(&root, path.as_bytes(), owner);
        assert_eq!(of("/a.slice/b.service/c"), OomPreference::None);
        let set = |path, attribute, value: &[u8]| {
            setxattr(tree.path().join(path), attribute, value, XattrFlags::empty()).unwrap();
        };
        set("a.slice", AVOID, b"1");
        set("a.slice/b.service", OMIT, b"0");
        assert_eq!(of("/a.slice/b.service/c"), OomPreference::Avoid);
        set("a.slice/b.service", OMIT, b"1");
        assert_eq!(of("/a.slice/b.service/c"), OomPreference::Omit);
        assert_eq!([of("/a.slice"), of("/"), of("")], [OomPreference::Avoid, OomPreference::None, OomPreference::None]);
        // Removed meanwhile, and another user's.
        assert_eq!(of("/a.slice/gone"), OomPreference::Avoid);
        assert_eq!(oom_preference(&root, b"/a.slice/b.service", owner + 1), OomPreference::None);
    }
}
