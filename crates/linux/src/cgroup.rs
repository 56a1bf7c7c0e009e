//! The cgroup v2 hierarchy.

use std::path::{Path, PathBuf};

use crate::{Result, Root, mountinfo, read, text};

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

/// What memory.stat says of a cgroup and those below it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStat {
    /// Anonymous memory.
    pub anon: u64,
    /// Page cache on the lists of what can be reclaimed, so without shared memory.
    pub file: u64,
    /// Reclaimable memory of the kernel.
    pub slab_reclaimable: u64,
}

impl MemoryStat {
    /// Parses memory.stat. Allocates nothing.
    ///
    /// # Errors
    /// When a line of those is not a name and a number. What is missing is 0.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let mut stat = Self::default();
        for line in text::lines(path, bytes) {
            let line = line?;
            let mut fields = line.fields();
            let slot = match fields.next() {
                Some(b"anon") => &mut stat.anon,
                Some(b"inactive_file" | b"active_file") => &mut stat.file,
                Some(b"slab_reclaimable") => &mut stat.slab_reclaimable,
                _ => continue,
            };
            let value: u64 =
                line.number(fields.next().ok_or_else(|| line.error("the number is missing"))?)?;
            *slot = slot.saturating_add(value);
        }
        Ok(stat)
    }
}

/// Parses a limit such as memory.max: `None` is "max", no limit.
///
/// # Errors
/// When it is neither "max" nor a number.
pub fn limit(path: &Path, bytes: &[u8]) -> Result<Option<u64>> {
    let line = text::single(path, bytes)?;
    if line.bytes == b"max" { Ok(None) } else { line.number(line.bytes).map(Some) }
}

/// Parses an amount such as memory.current, in bytes.
///
/// # Errors
/// When it is not a number.
pub fn amount(path: &Path, bytes: &[u8]) -> Result<u64> {
    text::single_number(path, bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn figures_of_memory() {
        let path = Path::new("memory.stat");
        let text = b"anon 8\nfile 99\ninactive_file 3\nactive_file 4\nslab_reclaimable 5\nanon_thp x\n";
        let stat = MemoryStat::parse(path, text).unwrap();
        assert_eq!(stat, MemoryStat { anon: 8, file: 7, slab_reclaimable: 5 });
        for wrong in [&b"anon\n"[..], b"anon x\n", b"anon 1"] {
            assert!(MemoryStat::parse(path, wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(limit(path, b"max\n").unwrap(), None);
        assert_eq!(limit(path, b"4096\n").unwrap(), Some(4096));
        assert!(limit(path, b"maximum\n").is_err());
        assert_eq!(amount(path, b"1\n").unwrap(), 1);
    }

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
