// SPDX-License-Identifier: GPL-2.0-only
//! The cgroup v2 hierarchy.

mod dir;
mod preference;

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use crate::process;
use crate::scan::{self, File, Scan};
use crate::{Pid, Process, Result, Root, mountinfo, read, text};

pub use dir::Cgroup;
pub use preference::{OomPreference, oom_preference};

/// Where the v2 hierarchy is mounted, and what it controls there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// The directory, as found under the [`Root`].
    pub path: PathBuf,
    /// Whether it can control memory; not if a v1 hierarchy does.
    pub controls_memory: bool,
    /// Where the paths of processes' cgroups begin.
    pub namespace: Namespace,
}

/// Where the paths of processes' cgroups begin, which the kernel reports relative to the root of the
/// reader's cgroup namespace: that root's own path in the hierarchy, "" for the hierarchy's root. `None` if
/// it is not known, or not in what is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace(Option<Vec<u8>>);

impl Hierarchy {
    /// `None` when it is not mounted.
    ///
    /// # Errors
    /// When the mounts or the controllers cannot be read.
    pub fn find(root: &Root) -> Result<Option<Self>> {
        // A container may have the host's beside its own.
        let mounts = mountinfo::own(root)?.into_iter().filter(|m| m.fs_type == "cgroup2");
        let Some(mount) = mounts.min_by_key(|m| Reverse(levels_above(&m.root))) else {
            return Ok(None);
        };
        let path = root.resolve(&mount.mount_point);
        let bytes = read::file(&path.join("cgroup.controllers"), read::SMALL_FILE_BYTES)?;
        let controls_memory = bytes.split(u8::is_ascii_whitespace).any(|controller| controller == b"memory");
        let namespace = Namespace::find(root, &mount.root, &path);
        Ok(Some(Self { path, controls_memory, namespace }))
    }

    /// The directory of a cgroup, by its path in the hierarchy.
    pub fn dir(&self, cgroup: &Path) -> PathBuf {
        self.path.join(cgroup.strip_prefix("/").unwrap_or(cgroup))
    }

    /// The path in the hierarchy of a process's cgroup; as the kernel reports it, if that is not known.
    ///
    /// # Errors
    /// As [`Process::cgroup`].
    pub fn cgroup_of(&self, process: &Process) -> Result<Option<PathBuf>> {
        let told = process.cgroup()?;
        Ok(told.map(|path| match self.namespace.resolve(path.as_os_str().as_bytes()) {
            Some(parts) => OsStr::from_bytes(&parts.concat()).into(),
            None => path,
        }))
    }

    /// How many processes there are in cgroups that are not in this hierarchy as far as it is seen.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn processes_outside(&self, root: &Root) -> Result<usize> {
        let scan = Scan::open(root)?;
        let mut buffer = vec![0; read::SMALL_FILE_BYTES];
        Ok(crate::process::pids(root)?
            .filter(|pid| {
                let file = scan.process(*pid, File::Cgroup, &mut buffer);
                file.is_ok_and(|file| self.namespace.resolve(process::cgroup(file)).is_none())
            })
            .count())
    }
}

impl Namespace {
    /// `mounted` is what is mounted at `path`, from the namespace's root: "/../.." if that is two levels
    /// above.
    fn find(root: &Root, mounted: &Path, path: &Path) -> Self {
        if mounted == Path::new("/") {
            return Self(Some(Vec::new()));
        }
        Self(Self::search(root, mounted, path))
    }

    /// Searches for the names of the levels above: no file has them, but this process is somewhere below,
    /// at a known depth.
    fn search(root: &Root, mounted: &Path, path: &Path) -> Option<Vec<u8>> {
        let above = levels_above(mounted)?;
        let file = read::file(&root.proc().join("self/cgroup"), read::LARGE_FILE_BYTES).ok()?;
        let told = process::cgroup(&file);
        let below = Path::new(OsStr::from_bytes(told)).strip_prefix("/").ok()?;
        let named = |c: Component<'_>| matches!(c, Component::Normal(_));
        if !below.components().all(named) {
            return None;
        }
        let own = with_own(path, above + below.components().count())?;
        let own = own.strip_prefix(path).ok()?.as_os_str().as_bytes();
        let own = [b"/", own].concat();
        own.strip_suffix(told.strip_suffix(b"/").unwrap_or(told)).map(<[u8]>::to_vec)
    }

    /// The path in the hierarchy, in two parts, of one that the kernel has told; `None` if it is not known.
    pub fn resolve<'p>(&'p self, told: &'p [u8]) -> Option<[&'p [u8]; 2]> {
        if told.is_empty() {
            return Some([told; 2]);
        }
        let (mut above, mut rest) = (self.0.as_deref()?, told);
        while let Some(up) = rest.strip_prefix(b"/..").filter(|up| up.is_empty() || up[0] == b'/') {
            let end = above.iter().rposition(|b| *b == b'/')?;
            (above, rest) = (&above[..end], up);
        }
        match (above, rest) {
            (b"", b"") => Some([b"", b"/"]),
            (above @ [_, ..], b"/") => Some([above, b""]),
            both => Some(both.into()),
        }
    }
}

/// How many levels it is above the root of our cgroup namespace; `None` if it is not above.
fn levels_above(path: &Path) -> Option<usize> {
    let up = path.strip_prefix("/").ok()?;
    up.components().all(|c| c == Component::ParentDir).then(|| up.components().count())
}

/// The cgroup so many levels below a directory that we are in.
fn with_own(dir: &Path, levels: usize) -> Option<PathBuf> {
    let Some(levels) = levels.checked_sub(1) else {
        let members = read::file(&dir.join("cgroup.procs"), read::LARGE_FILE_BYTES).ok()?;
        return scan::ids(&members).any(|pid| pid == Some(Pid::own())).then(|| dir.to_owned());
    };
    let mut below = std::fs::read_dir(dir).ok()?.flatten();
    below.find_map(|entry| entry.file_type().ok()?.is_dir().then(|| with_own(&entry.path(), levels))?)
}

/// What memory.stat says of a cgroup and those below it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStat {
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
                Some(b"inactive_file" | b"active_file") => &mut stat.file,
                Some(b"slab_reclaimable") => &mut stat.slab_reclaimable,
                _ => continue,
            };
            let value: u64 = line.number(fields.next().ok_or_else(|| line.error("the number is missing"))?)?;
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
mod tests;
