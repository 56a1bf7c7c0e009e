//! Reclaim on order: compressed swap in memory, and a cgroup whose pages the kernel can be told
//! to take.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::{io, process};

use anyhow::{Context as _, Result, ensure};

use crate::ksm::PAGE;

const DEVICE: &str = "/dev/zram0";
const DISKSIZE: &str = "/sys/block/zram0/disksize";
const CGROUPS: &str = "/sys/fs/cgroup";

/// Swap space on zram, switched on. It stays so until the guest ends.
///
/// # Errors
/// When the kernel has no zram, or does not take it as swap.
pub fn on(bytes: u64) -> Result<()> {
    fs::write(DISKSIZE, bytes.to_string()).with_context(|| format!("{DISKSIZE} (CONFIG_ZRAM)"))?;
    let device = File::options().write(true).open(DEVICE).context(DEVICE)?;
    device.write_all_at(&header(bytes / PAGE as u64)?, 0).context(DEVICE)?;
    drop(device);
    // SAFETY: the path is a C string.
    let ret = unsafe { libc::swapon(c"/dev/zram0".as_ptr(), 0) };
    ensure!(ret == 0, "swapon {DEVICE}: {}", io::Error::last_os_error());
    Ok(())
}

/// The first page of swap space: a version, the number of the last page, no bad pages.
fn header(pages: u64) -> Result<Vec<u8>> {
    const SIGNATURE: &[u8] = b"SWAPSPACE2";
    let last = u32::try_from(pages.saturating_sub(1)).context("so much swap space has no number")?;
    let mut page = vec![0; PAGE];
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last.to_ne_bytes());
    page[PAGE - SIGNATURE.len()..].copy_from_slice(SIGNATURE);
    Ok(page)
}

/// A memory cgroup with this process in it, until dropped.
pub struct Cgroup {
    path: String,
}

impl Cgroup {
    /// # Errors
    /// When cgroup v2 or its memory controller is missing.
    pub fn join(name: &str) -> Result<Self> {
        let control = format!("{CGROUPS}/cgroup.subtree_control");
        fs::write(&control, "+memory").with_context(|| format!("{control} (CONFIG_MEMCG)"))?;
        let path = format!("{CGROUPS}/{name}");
        fs::create_dir(&path).with_context(|| path.clone())?;
        let group = Self { path };
        let procs = format!("{}/cgroup.procs", group.path);
        fs::write(&procs, process::id().to_string()).context(procs)?;
        Ok(group)
    }

    /// Has the kernel try to reclaim so many bytes of the group's memory.
    ///
    /// # Errors
    /// What memory.reclaim says, but for "not as much as that".
    pub fn reclaim(&self, bytes: usize) -> Result<()> {
        let path = format!("{}/memory.reclaim", self.path);
        match fs::write(&path, bytes.to_string()) {
            Err(e) if e.raw_os_error() != Some(libc::EAGAIN) => Err(e).context(path),
            _ => Ok(()),
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // An empty group that stays costs nothing.
        let _ = fs::write(format!("{CGROUPS}/cgroup.procs"), process::id().to_string());
        let _ = fs::remove_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_mkswap() {
        let page = header(64).unwrap();
        assert_eq!(page.len(), PAGE);
        assert_eq!(&page[4086..], b"SWAPSPACE2");
        assert_eq!((page[1024], page[1028]), (1, 63));
        assert!(header(1 << 40).is_err());
    }
}
