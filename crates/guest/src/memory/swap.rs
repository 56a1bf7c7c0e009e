//! Swap space: compressed in memory, or on a block device that is a file in memory.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::PAGE_BYTES;

const ZRAM: &str = "zram0";
const LOOP: &str = "/dev/loop0";
/// Where the file of a loop device is, in a file system of its own that cannot be swapped out.
const BACKING: &str = "/run/swap";

/// LOOP_SET_FD and LOOP_CLR_FD.
const LOOP_SET_FD: libc::Ioctl = 0x4C00;
const LOOP_CLR_FD: libc::Ioctl = 0x4C01;

/// Swap space on zram, switched on. It stays so until the guest ends.
///
/// # Errors
/// When the kernel has no zram, or does not take it as swap.
pub fn on(bytes: u64) -> Result<()> {
    // Nobody takes it down.
    std::mem::forget(Area::zram(bytes, None)?);
    Ok(())
}

/// The compression algorithms that zram has.
///
/// # Errors
/// When the kernel has no zram.
pub fn algorithms() -> Result<Vec<String>> {
    let path = zram_file("comp_algorithm");
    let text = fs::read_to_string(&path).with_context(|| format!("{path} (CONFIG_ZRAM)"))?;
    // The one that is used is in brackets.
    Ok(text.split_whitespace().map(|name| name.trim_matches(['[', ']']).to_owned()).collect())
}

fn zram_file(name: &str) -> String {
    format!("/sys/block/{ZRAM}/{name}")
}

/// Swap space that is on until dropped. Nothing may be in it then.
pub struct Area {
    kind: Kind,
}

enum Kind {
    Zram,
    Loop(File),
}

impl Area {
    /// On zram, with this compression or the kernel's default.
    ///
    /// # Errors
    /// When the kernel has no zram or no such compression, or does not take it as swap.
    pub fn zram(bytes: u64, algorithm: Option<&str>) -> Result<Self> {
        let set = |name, value: &str| {
            let path = zram_file(name);
            fs::write(&path, value).with_context(|| format!("{path}: {value} (CONFIG_ZRAM)"))
        };
        if let Some(algorithm) = algorithm {
            set("comp_algorithm", algorithm)?;
        }
        set("disksize", &bytes.to_string())?;
        let area = Self { kind: Kind::Zram };
        area.switch_on(bytes)?;
        Ok(area)
    }

    /// On a loop device, which unlike zram is told nothing when a slot is freed, and writes while
    /// others go on.
    ///
    /// # Errors
    /// When the kernel has no loop device or no ramfs, or does not take it as swap.
    pub fn on_loop(bytes: u64) -> Result<Self> {
        fs::create_dir_all(BACKING).context(BACKING)?;
        mount("ramfs", BACKING, "ramfs", MountFlags::empty(), None).context("mount ramfs")?;
        let path = format!("{BACKING}/file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).context(path)?;
        file.set_len(bytes).context("size of the loop device's file")?;
        let device = File::options().read(true).write(true).open(LOOP).context(LOOP)?;
        // SAFETY: takes a descriptor as a number, no memory.
        let ret = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_FD, file.as_raw_fd()) };
        ensure!(ret == 0, "{LOOP}: LOOP_SET_FD: {}", io::Error::last_os_error());
        let area = Self { kind: Kind::Loop(device) };
        area.switch_on(bytes)?;
        Ok(area)
    }

    /// The zram device's name in sysfs, if it is one.
    pub fn zram_name(&self) -> Option<&'static str> {
        matches!(self.kind, Kind::Zram).then_some(ZRAM)
    }

    fn device(&self) -> String {
        match self.kind {
            Kind::Zram => format!("/dev/{ZRAM}"),
            Kind::Loop(_) => LOOP.to_owned(),
        }
    }

    fn switch_on(&self, bytes: u64) -> Result<()> {
        let path = self.device();
        let device = File::options().write(true).open(&path).with_context(|| path.clone())?;
        device.write_all_at(&header(bytes / PAGE_BYTES as u64)?, 0).with_context(|| path.clone())?;
        drop(device);
        let name = std::ffi::CString::new(path.as_str())?;
        // SAFETY: the path is a C string that outlives the call.
        let ret = unsafe { libc::swapon(name.as_ptr(), 0) };
        ensure!(ret == 0, "swapon {path}: {}", io::Error::last_os_error());
        Ok(())
    }

    fn take_down(&self) -> Result<()> {
        let path = self.device();
        let name = std::ffi::CString::new(path.as_str())?;
        // SAFETY: the path is a C string that outlives the call.
        let ret = unsafe { libc::swapoff(name.as_ptr()) };
        ensure!(ret == 0, "swapoff {path}: {}", io::Error::last_os_error());
        match &self.kind {
            Kind::Zram => fs::write(zram_file("reset"), "1").context("reset zram"),
            Kind::Loop(device) => {
                // SAFETY: takes no memory.
                let ret = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD, 0) };
                ensure!(ret == 0, "{path}: LOOP_CLR_FD: {}", io::Error::last_os_error());
                // The device lets go of the file when its last user does, so the memory comes back
                // at once but the file system need not.
                fs::remove_file(format!("{BACKING}/file")).context("remove the loop device's file")?;
                unmount(BACKING, UnmountFlags::DETACH).context("unmount ramfs")
            }
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if let Err(e) = self.take_down() {
            // The next one cannot be switched on, and says so.
            eprintln!("guest: {e:#}");
        }
    }
}

/// The first page of swap space: a version, the number of the last page, no bad pages.
fn header(pages: u64) -> Result<Vec<u8>> {
    const SIGNATURE: &[u8] = b"SWAPSPACE2";
    let last = u32::try_from(pages.saturating_sub(1)).context("so much swap space has no number")?;
    let mut page = vec![0; PAGE_BYTES];
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last.to_ne_bytes());
    page[PAGE_BYTES - SIGNATURE.len()..].copy_from_slice(SIGNATURE);
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_mkswap() {
        let page = header(64).unwrap();
        assert_eq!(page.len(), PAGE_BYTES);
        assert_eq!(&page[4086..], b"SWAPSPACE2");
        assert_eq!((page[1024], page[1028]), (1, 63));
        assert!(header(1 << 40).is_err());
    }
}
