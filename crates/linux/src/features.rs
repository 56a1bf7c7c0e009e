// SPDX-License-Identifier: GPL-2.0-only
//! Whether the running kernel has those of this project's topics that `doctor` and the kill need, what it tells of
//! memory, and sysctls for that.

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
