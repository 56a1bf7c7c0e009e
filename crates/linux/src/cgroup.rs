//! The cgroup v2 hierarchy.

use std::path::{Path, PathBuf};

use crate::{Result, Root, mountinfo, read};

/// Where the v2 hierarchy is mounted, and what it controls there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// The directory, as found under the [`Root`].
    pub path: PathBuf,
    /// The controllers it can have, such as "memory". One that a v1 hierarchy has is not among
    /// them.
    pub controllers: Vec<String>,
}

impl Hierarchy {
    /// `None` when it is not mounted.
    ///
    /// # Errors
    /// When the mounts or the controllers cannot be read.
    pub fn find(root: &Root) -> Result<Option<Self>> {
        let Some(mount) = mountinfo::own(root)?.into_iter().find(|m| m.fs_type == "cgroup2") else {
            return Ok(None);
        };
        let path = root.resolve(&mount.mount_point);
        let bytes = read::file(&path.join("cgroup.controllers"), read::SMALL)?;
        let controllers = String::from_utf8_lossy(&bytes).split_ascii_whitespace().map(Into::into).collect();
        Ok(Some(Self { path, controllers }))
    }

    /// Whether it can control this, such as "memory".
    pub fn controls(&self, controller: &str) -> bool {
        self.controllers.iter().any(|c| c == controller)
    }

    /// The directory of a cgroup that [`Process::cgroup`](crate::Process::cgroup) names.
    pub fn dir(&self, cgroup: &Path) -> PathBuf {
        self.path.join(cgroup.strip_prefix("/").unwrap_or(cgroup))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn found_where_it_is_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        let mountinfo = dir.path().join("proc/self/mountinfo");
        fs::write(&mountinfo, "1 2 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n").unwrap();
        assert_eq!(Hierarchy::find(&root).unwrap(), None);

        fs::write(&mountinfo, "1 2 0:1 / /my\\040cgroups rw - cgroup2 cgroup2 rw\n").unwrap();
        let path = dir.path().join("my cgroups");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("cgroup.controllers"), "cpu memory\n").unwrap();
        let found = Hierarchy::find(&root).unwrap().unwrap();
        assert_eq!(found.path, path);
        assert!(found.controls("memory") && !found.controls("mem"));
        assert_eq!(found.dir(Path::new("/a/b")), path.join("a/b"));
    }
}
