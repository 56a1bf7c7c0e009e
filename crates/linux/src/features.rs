// SPDX-License-Identifier: GPL-2.0-only
//! Whether the running kernel has those of this project's topics that `doctor` and the kill need, what it tells of
//! memory, and sysctls for that.

use rustix::thread::CapabilitySet;

use crate::{Result, Root, read, text};

/// A change to the kernel that this project brings. There are more, which nothing here asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Reapers share an address space, so that several threads in process_mrelease(2) help each
    /// other.
    Reap,
    /// The kernel frees the memory of killed processes itself, at once:
    /// [`PidFd::kill_expedited`](crate::PidFd::kill_expedited).
    Expedite,
}

impl Topic {
    /// Those that `doctor` and the kill need.
    pub const ALL: [Self; 2] = [Self::Reap, Self::Expedite];

    /// Its parameter, as in `memreap.reap=0` on the kernel's command line.
    fn parameter(self) -> &'static str {
        match self {
            Self::Reap => "reap",
            Self::Expedite => "expedite",
        }
    }

    /// Whether it is switched on, or `None` when the kernel does not have it.
    ///
    /// # Errors
    /// When /sys/module/memreap/parameters/ has it but it cannot be read.
    pub fn is_on(self, root: &Root) -> Result<Option<bool>> {
        let path = root.sys().join("module/memreap/parameters").join(self.parameter());
        let Some(bytes) = read::file_if_there(&path, read::SMALL_FILE_BYTES)? else {
            return Ok(None);
        };
        let line = text::single(&path, &bytes)?;
        match line.bytes {
            b"Y" => Ok(Some(true)),
            b"N" => Ok(Some(false)),
            _ => Err(line.error("neither Y nor N")),
        }
    }
}

/// Whether the kernel tells which of its memory a process shares: smaps_rollup and pagemap (CONFIG_PROC_PAGE_MONITOR).
pub fn tells_shared(root: &Root) -> bool {
    root.proc().join("self/smaps_rollup").exists()
}

/// Reads the sysctl `vm.expedite_min_kbytes`: processes with at least so many KiB of anonymous memory
/// and swap are expedited by every SIGKILL, whichever process sends it; 0 for none. `None` when the
/// kernel does not have it.
///
/// # Errors
/// When it cannot be read or is not a number.
pub fn expedite_min_kbytes(root: &Root) -> Result<Option<u64>> {
    sysctl(root, "vm/expedite_min_kbytes")
}

/// The sysctl `vm.expedite_cpu_percent`: how much of a CPU that others want goes into the memory of an
/// expedited victim. `None` when the kernel does not have it.
///
/// # Errors
/// When it cannot be read or is not a number.
pub fn expedite_cpu_percent(root: &Root) -> Result<Option<u64>> {
    sysctl(root, "vm/expedite_cpu_percent")
}

/// The sysctl `vm.watermark_scale_factor`: how much memory there is between the point where the kernel begins
/// to reclaim in the background and the one where everybody has to who allocates, in 1/10,000 of all. `None`
/// when the kernel does not have it.
///
/// # Errors
/// When it cannot be read or is not a number.
pub fn watermark_scale_factor(root: &Root) -> Result<Option<u64>> {
    sysctl(root, "vm/watermark_scale_factor")
}

/// Returns the effective capabilities of the calling thread, without those that have no effect in its user namespace:
/// for CAP_SYS_NICE and CAP_IPC_LOCK the kernel asks whether the first one has given them. None if that cannot be read.
pub fn capabilities(root: &Root) -> CapabilitySet {
    let all = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    // The first user namespace maps all users to themselves.
    let map = read::file(&root.proc().join("self/uid_map"), read::SMALL_FILE_BYTES).unwrap_or_default();
    let is_first =
        map.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).eq([&b"0"[..], b"0", b"4294967295"]);
    if is_first { all } else { all - (CapabilitySet::SYS_NICE | CapabilitySet::IPC_LOCK) }
}

fn sysctl(root: &Root, name: &str) -> Result<Option<u64>> {
    let path = root.proc().join("sys").join(name);
    read::file_if_there(&path, read::SMALL_FILE_BYTES)?.map(|bytes| text::single_number(&path, &bytes)).transpose()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn topics_are_on_off_or_missing() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        assert_eq!(Topic::Reap.is_on(&root).unwrap(), None);
        let parameters = root.sys().join("module/memreap/parameters");
        fs::create_dir_all(&parameters).unwrap();
        for (text, is_on) in [("Y\n", Some(true)), ("N\n", Some(false)), ("maybe\n", None)] {
            fs::write(parameters.join("expedite"), text).unwrap();
            assert_eq!(Topic::Expedite.is_on(&root).ok().flatten(), is_on);
        }
        assert!(Topic::Expedite.is_on(&root).is_err());
    }

    #[test]
    fn what_has_no_effect_in_a_user_namespace_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        fs::create_dir_all(root.proc().join("self")).unwrap();
        let file = root.proc().join("self/uid_map");
        let effective = rustix::thread::capabilities(None).unwrap().effective;
        let without = CapabilitySet::SYS_NICE | CapabilitySet::IPC_LOCK;
        for (map, expected) in [
            ("         0          0 4294967295\n", effective),
            ("         0       1000          1\n", effective - without),
            ("         0       1000          1\n         1     100000      65536\n", effective - without),
        ] {
            fs::write(&file, map).unwrap();
            assert_eq!(capabilities(&root), expected, "{map}");
        }
    }

    #[test]
    fn the_sysctl_is_a_number_or_missing() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        assert_eq!(expedite_min_kbytes(&root).unwrap(), None);
        fs::create_dir_all(root.proc().join("sys/vm")).unwrap();
        let file = root.proc().join("sys/vm/expedite_min_kbytes");
        fs::write(&file, "65536\n").unwrap();
        assert_eq!(expedite_min_kbytes(&root).unwrap(), Some(65536));
        fs::write(&file, "-1\n").unwrap();
        assert!(expedite_min_kbytes(&root).is_err());
    }
}
