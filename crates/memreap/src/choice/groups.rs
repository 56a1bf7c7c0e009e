//! Leaf cgroups: what each of them holds.
//!
//! **When a group counts.** A group counts for what comes back when all of it is killed, and only when
//! all of it may be: no member is protected. Else it counts for nothing, and its members for themselves.
//! A process counts for what its own death gives back. The greater of the best group and the best
//! process wins: so a service's hundred small processes stand behind one larger hog elsewhere, many
//! hogs of one job come before a large process that is not their doing, and memory that the members
//! of a group share is counted once.

use std::ffi::CStr;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use arrayvec::ArrayVec;
use linux::{Pid, scan};
use rustix::fs::{CWD, Mode, OFlags};

use super::table::{Entry, Reading};
use super::{CGROUP, Path};
use crate::policy::Verdict;

/// The most cgroups that are looked at.
pub(super) const CGROUPS: usize = 4000;
/// Which no cgroup has as its index.
const NONE: u16 = u16::MAX;

/// Stands for a path.
pub(super) fn hash(path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

/// Whether `path` is `above` or below it.
pub(super) fn is_below(path: &[u8], above: &[u8]) -> bool {
    let above = above.strip_suffix(b"/").unwrap_or(above);
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// The v2 hierarchy.
pub(super) struct Groups {
    root: OwnedFd,
    /// Whether memory is controlled in it.
    memory: bool,
    /// Those there are, each behind the one above it.
    dirs: Vec<Dir>,
    /// Their hashes, in order.
    index: Vec<(u64, u16)>,
}

struct Dir {
    path: Path,
    above: u16,
    /// It has figures of its own.
    memory: bool,
    /// One below has.
    memory_below: bool,
    tally: Tally,
}

/// What is known of the members of a cgroup.
#[derive(Clone, Copy)]
pub(super) struct Tally {
    /// Those that have memory.
    pub(super) processes: u32,
    /// One may not be killed, or is not known yet, or is rather not to be killed.
    pub(super) protected: bool,
    /// What the policy says about the member that it would rather kill than any other.
    pub(super) verdict: Verdict,
}

impl Tally {
    pub(super) const EMPTY: Self = Self {
        processes: 0,
        protected: false,
        verdict: Verdict { never: false, factor: 0.0, offset: 0, rule: None },
    };

    /// Counts a member in. What has no memory, or is on its way out, does not count.
    pub(super) fn count(&mut self, reading: &Reading) {
        if !reading.has_memory || reading.killed {
            return;
        }
        self.processes += 1;
        self.protected |= reading.verdict.never || reading.verdict.factor < 1.0;
        let rank = |verdict: &Verdict| (verdict.factor, verdict.offset);
        if rank(&reading.verdict) > rank(&self.verdict) {
            self.verdict = reading.verdict;
        }
    }

    /// All of them may be killed.
    pub(super) fn expendable(&self) -> bool {
        self.processes > 0 && !self.protected
    }
}

impl Groups {
    pub(super) fn open(path: &std::path::Path, memory: bool) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?;
        let (dirs, index) = (Vec::with_capacity(CGROUPS), Vec::with_capacity(CGROUPS));
        Some(Self { root, memory, dirs, index })
    }

    /// Whether groups have figures.
    pub(super) fn controlled(&self) -> bool {
        self.memory
    }

    /// Finds the cgroups at `start` and below anew. What vanishes meanwhile is left out.
    pub(super) fn walk(&mut self, start: &[u8], names: &mut [MaybeUninit<u8>]) {
        self.dirs.clear();
        self.index.clear();
        let mut path = Path::new();
        if path.try_extend_from_slice(start.strip_suffix(b"/").unwrap_or(start)).is_ok() {
            self.dirs.push(Dir::new(path, NONE));
        }
        let mut next = 0;
        while next < self.dirs.len() {
            let above = u16::try_from(next).unwrap_or(NONE);
            if let Some(dir) = self.dir(&self.dirs[next].path) {
                // What cannot be listed to its end has the rest of it left out.
                let _ = scan::entries(&dir, names, |name, directory| {
                    let name = name.to_bytes();
                    if !directory {
                        self.dirs[next].memory |= name == b"memory.current";
                    } else if name != b"." && name != b".." {
                        let mut path = self.dirs[next].path.clone();
                        let fits = path.try_push(b'/').is_ok() && path.try_extend_from_slice(name).is_ok();
                        if fits && self.dirs.len() < CGROUPS {
                            self.dirs.push(Dir::new(path, above));
                        } else {
                            // Not a leaf, though what is below is not known.
                            self.dirs[next].memory_below = true;
                        }
                    }
                    true
                });
            }
            let dir = &self.dirs[next];
            if dir.memory && dir.above != NONE {
                let above = usize::from(dir.above);
                self.dirs[above].memory_below = true;
            }
            next += 1;
        }
        for (i, dir) in self.dirs.iter().enumerate() {
            self.index.push((hash(dir.full()), u16::try_from(i).unwrap_or(NONE)));
        }
        self.index.sort_unstable();
    }

    /// The leaf that counts the memory of the processes in a cgroup.
    pub(super) fn leaf(&self, cgroup: u64) -> Option<usize> {
        let at = self.index.binary_search_by_key(&cgroup, |(hash, _)| *hash).ok()?;
        let mut index = self.index[at].1;
        loop {
            let dir = self.dirs.get(usize::from(index))?;
            if dir.memory {
                // Not the root: that is no group.
                let leaf = !dir.memory_below && !dir.path.is_empty();
                return leaf.then_some(usize::from(index));
            }
            index = dir.above;
        }
    }

    /// Counts all processes where they belong.
    pub(super) fn tally(&mut self, entries: &[Entry]) {
        for dir in &mut self.dirs {
            dir.tally = Tally::EMPTY;
        }
        for entry in entries.iter().filter(|entry| !entry.gone) {
            if let Some(reading) = &entry.reading
                && let Some(leaf) = self.leaf(reading.cgroup)
            {
                self.dirs[leaf].tally.count(reading);
            }
        }
    }

    /// The groups that may be killed, with an upper bound of what they hold in bytes, and what the policy
    /// says.
    pub(super) fn expendable(&self, mut each: impl FnMut(usize, u64, &Verdict)) {
        for (i, dir) in self.dirs.iter().enumerate() {
            if dir.tally.expendable()
                && let Some(bytes) = self.bound(i)
            {
                each(i, bytes, &dir.tally.verdict);
            }
        }
    }

    /// All it is charged for, and what it has in swap.
    fn bound(&self, index: usize) -> Option<u64> {
        let dir = self.dir(&self.dirs[index].path)?;
        let mut buffer = [0; 32];
        let charged = scan::size(scan::file(&dir, c"memory.current", &mut buffer).ok()?)?;
        Some(charged.saturating_add(swap(&dir)))
    }

    /// Anonymous memory and swap in bytes, and whether memory.oom.group is set.
    pub(super) fn bytes(&self, index: usize, buffer: &mut [u8]) -> Option<(u64, bool)> {
        let dir = self.dir(&self.dirs[index].path)?;
        let anon = scan::keyed(scan::file(&dir, c"memory.stat", buffer).ok()?, b"anon")?;
        let together = scan::file(&dir, c"memory.oom.group", buffer).ok() == Some(b"1\n");
        Some((anon.saturating_add(swap(&dir)), together))
    }

    /// Calls `each` with every process in the cgroup and those below; `None` for one that is outside of
    /// our PID namespace. False when not all of them could be told.
    pub(super) fn members(&self, index: usize, buffer: &mut [u8], mut each: impl FnMut(Option<Pid>)) -> bool {
        let path = &self.dirs[index].path;
        self.dirs.iter().filter(|dir| is_below(&dir.path, path)).all(|dir| {
            let Some(dir) = self.dir(&dir.path) else { return false };
            match scan::file(&dir, c"cgroup.procs", buffer) {
                Ok(text) => {
                    scan::ids(text).for_each(&mut each);
                    true
                }
                Err(_) => false,
            }
        })
    }

    /// Calls `each` with every process that is in one of the cgroups that were found; `None` for one that is
    /// outside of our PID namespace.
    pub(super) fn all_members(&self, buffer: &mut [u8], mut each: impl FnMut(Option<Pid>)) {
        for dir in &self.dirs {
            // What vanishes has nobody.
            if let Some(dir) = self.dir(&dir.path)
                && let Ok(text) = scan::file(&dir, c"cgroup.procs", buffer)
            {
                scan::ids(text).for_each(&mut each);
            }
        }
    }

    /// Opens a cgroup's directory.
    fn dir(&self, path: &[u8]) -> Option<OwnedFd> {
        let mut name = [0; CGROUP + 2];
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let path = if path.is_empty() { b"." } else { path };
        name.get_mut(..path.len())?.copy_from_slice(path);
        scan::open_dir(&self.root, CStr::from_bytes_until_nul(&name).ok()?).ok()
    }
}

impl Dir {
    fn new(path: Path, above: u16) -> Self {
        Self { path, above, memory: false, memory_below: false, tally: Tally::EMPTY }
    }

    /// The path as processes' files have it.
    fn full(&self) -> &[u8] {
        if self.path.is_empty() { b"/" } else { &self.path }
    }
}

/// What is in swap; nothing when swap is not counted.
fn swap(dir: &OwnedFd) -> u64 {
    let mut buffer = [0; 32];
    scan::file(dir, c"memory.swap.current", &mut buffer).ok().and_then(scan::size).unwrap_or(0)
}

/// As much of a path in parts as is remembered.
pub(super) fn shortened(parts: [&[u8]; 2]) -> ArrayVec<u8, CGROUP> {
    parts.iter().copied().flatten().copied().take(CGROUP).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path as FilePath;

    use super::super::table::Counters;
    use super::*;

    /// A cgroup in a tree of files: anonymous memory, all memory and swap, in bytes.
    fn cgroup(tree: &FilePath, path: &str, bytes: Option<(u64, u64, u64)>, procs: &str) {
        let dir = tree.join(path);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("cgroup.procs"), procs).unwrap();
        if let Some((anon, current, swap)) = bytes {
            fs::write(dir.join("memory.current"), format!("{current}\n")).unwrap();
            fs::write(dir.join("memory.stat"), format!("anon {anon}\nfile 7\nanon_thp 9\n")).unwrap();
            fs::write(dir.join("memory.swap.current"), format!("{swap}\n")).unwrap();
            fs::write(dir.join("memory.oom.group"), "1\n").unwrap();
        }
    }

    fn walked(tree: &FilePath) -> Groups {
        let mut groups = Groups::open(tree, true).unwrap();
        groups.walk(b"", &mut vec![MaybeUninit::uninit(); 8192]);
        groups
    }

    fn leaf(groups: &Groups, path: &str) -> Option<String> {
        let index = groups.leaf(hash(path.as_bytes()))?;
        Some(String::from_utf8_lossy(groups.dirs[index].full()).into_owned())
    }

    #[test]
    fn a_leaf_counts_for_what_is_below_it_without_figures() {
        let tree = tempfile::tempdir().unwrap();
        let tree = tree.path();
        cgroup(tree, "a.slice", Some((0, 9, 0)), "");
        cgroup(tree, "a.slice/b.scope", Some((5, 9, 2)), "1\n2\n");
        cgroup(tree, "a.slice/b.scope/inner", None, "3\n0\n");
        cgroup(tree, "c", None, "4\n");
        let groups = walked(tree);
        let b = Some("/a.slice/b.scope".to_owned());
        assert_eq!(leaf(&groups, "/a.slice/b.scope"), b);
        assert_eq!(leaf(&groups, "/a.slice/b.scope/inner"), b);
        for none in ["/", "/a.slice", "/c", "/a.slice/x", ""] {
            assert_eq!(leaf(&groups, none), None, "{none}");
        }
        let index = groups.leaf(hash(b"/a.slice/b.scope")).unwrap();
        assert_eq!(groups.bytes(index, &mut [0; 4096]), Some((7, true)));
        assert_eq!(groups.bound(index), Some(11));
        let mut members = Vec::new();
        assert!(groups.members(index, &mut [0; 4096], |pid| members.push(pid.map(Pid::get))));
        members.sort_unstable();
        assert_eq!(members, [None, Some(1), Some(2), Some(3)]);
        // It vanishes.
        fs::remove_dir_all(tree.join("a.slice")).unwrap();
        assert_eq!((groups.bytes(index, &mut [0; 4096]), groups.bound(index)), (None, None));
        assert!(!groups.members(index, &mut [0; 4096], |_| panic!("nobody is there")));
    }

    #[test]
    fn more_than_there_is_room_for_is_left_out() {
        let tree = tempfile::tempdir().unwrap();
        cgroup(tree.path(), "a", Some((1, 1, 1)), "");
        cgroup(tree.path(), &format!("a/{}", "x".repeat(255)), Some((1, 1, 1)), "");
        for i in 0..CGROUPS {
            fs::create_dir(tree.path().join(i.to_string())).unwrap();
        }
        let groups = walked(tree.path());
        assert_eq!((groups.dirs.len(), groups.dirs.capacity()), (CGROUPS, CGROUPS));
        // What is below has a path that is too long: so it is no leaf.
        assert_eq!(leaf(&groups, "/a"), None);
    }

    #[test]
    fn one_protected_member_protects_all() {
        let verdict = |factor| Verdict { never: false, factor, offset: 0, rule: None };
        let reading = |verdict| Reading { verdict, ..Reading::with(10, 0, Counters::UNKNOWN) };
        let tally = |readings: &[Reading]| {
            let mut tally = Tally::EMPTY;
            readings.iter().for_each(|reading| tally.count(reading));
            tally
        };
        let [plain, preferred, weak] = [1.0, 2.0, 0.5].map(|factor| reading(verdict(factor)));
        let never = reading(Verdict { never: true, ..verdict(1.0) });
        let both = tally(&[plain, preferred]);
        assert_eq!((both.processes, both.expendable(), both.verdict.factor), (2, true, 2.0));
        assert!(!tally(&[plain, never]).expendable() && !tally(&[plain, weak]).expendable());
        assert!(!tally(&[]).expendable());
        // A kernel thread or zombie, and one that is dying, need no protection.
        let dead = Reading { has_memory: false, ..never };
        let dying = Reading { killed: true, ..never };
        assert!(tally(&[dead, plain, dying]).expendable());
    }

    #[test]
    fn below_is_by_components() {
        assert!(is_below(b"/a/b", b"/a") && is_below(b"/a", b"/a") && is_below(b"/a/b", b"/a/"));
        assert!(is_below(b"/a", b"/") && is_below(b"/", b"/"));
        assert!(!is_below(b"/ab", b"/a") && !is_below(b"/", b"/a") && !is_below(b"", b"/a"));
    }
}
