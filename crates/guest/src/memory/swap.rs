// SPDX-License-Identifier: GPL-2.0-only
//! Swap space: on zram, on a disk, or on a loop device whose file is in memory, also below zswap.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::PAGE_BYTES;
use crate::system::counters::{number_in, value, vmstat};

const ZRAM: &str = "zram0";
const LOOP: &str = "/dev/loop0";
/// Where the loop device's file is: in a file system of its own that cannot be swapped out.
const BACKING: &str = "/run/swap";

/// Whether pages are compressed in memory instead of being written to the swap device.
const ZSWAP: &str = "/sys/module/zswap/parameters/enabled";

/// The ioctls that attach a file to a loop device, and detach it.
const LOOP_SET_FD: libc::Ioctl = 0x4C00;
const LOOP_CLR_FD: libc::Ioctl = 0x4C01;

/// Switches swap on zram on, until the guest ends.
///
/// # Errors
/// When the kernel has no zram, or swapon(2) fails.
pub fn on(bytes: u64) -> Result<()> {
    // It is never switched off.
    std::mem::forget(Area::zram(bytes, None)?);
    Ok(())
}

fn zram_file(name: &str) -> String {
    format!("/sys/block/{ZRAM}/{name}")
}

/// Swap space that is on until this is dropped. It has to be empty then.
pub struct Area {
    kind: Kind,
    /// With zswap, how many pages it had compressed before.
    zswap: Option<u64>,
}

enum Kind {
    Zram,
    Loop(File),
    /// The device's name.
    Disk(&'static str),
}

impl Area {
    /// Switches swap on zram on, with this compression or the kernel's default.
    ///
    /// # Errors
    /// When the kernel has no zram or no such compression, or swapon(2) fails.
    pub fn zram(bytes: u64, algorithm: Option<&str>) -> Result<Self> {
        let set = |name, value: &str| {
            let path = zram_file(name);
            fs::write(&path, value).with_context(|| format!("{path}: {value} (CONFIG_ZRAM)"))
        };
        if let Some(algorithm) = algorithm {
            set("comp_algorithm", algorithm)?;
        }
        set("disksize", &bytes.to_string())?;
        let area = Self { kind: Kind::Zram, zswap: None };
        area.switch_on(bytes)?;
        Ok(area)
    }

    /// Switches swap on a loop device on. Unlike zram, such a device is not notified when a slot is freed,
    /// and writes asynchronously.
    ///
    /// # Errors
    /// When the kernel has no loop device or no ramfs, or swapon(2) fails.
    pub fn on_loop(bytes: u64) -> Result<Self> {
        fs::create_dir_all(BACKING).context(BACKING)?;
        mount("ramfs", BACKING, "ramfs", MountFlags::empty(), None).context("mount ramfs")?;
        let path = format!("{BACKING}/file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).context(path)?;
        file.set_len(bytes).context("size of the loop device's file")?;
        let device = File::options().read(true).write(true).open(LOOP).context(LOOP)?;
        // SAFETY: the call takes a descriptor as a number, and no memory.
        let ret = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_FD, file.as_raw_fd()) };
        ensure!(ret == 0, "{LOOP}: LOOP_SET_FD: {}", io::Error::last_os_error());
        let area = Self { kind: Kind::Loop(device), zswap: None };
        area.switch_on(bytes)?;
        Ok(area)
    }

    /// Switches zswap on, above a loop device that it need not write to as long as there is memory.
    ///
    /// # Errors
    /// When the kernel has no zswap, and those of [`Area::on_loop`].
    pub fn on_zswap(bytes: u64) -> Result<Self> {
        set_zswap(true)?;
        let mut area = Self::on_loop(bytes)?;
        area.zswap = Some(compressed_pages()?);
        Ok(area)
    }

    /// Fails if pages should be in zswap, and none has got there.
    ///
    /// # Errors
    /// Also when /proc/vmstat cannot be read.
    pub fn check_zswap(&self) -> Result<()> {
        match self.zswap {
            Some(before) => {
                ensure!(compressed_pages()? > before, "zswap is on, and has compressed nothing");
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Switches swap on a whole disk on, such as `vdc`.
    ///
    /// # Errors
    /// When there is no such disk, or swapon(2) fails.
    pub fn on_disk(name: &'static str) -> Result<Self> {
        const SECTOR_BYTES: u64 = 512;
        let sectors = number_in(&format!("/sys/block/{name}/size"))?;
        let area = Self { kind: Kind::Disk(name), zswap: None };
        area.switch_on(sectors * SECTOR_BYTES)?;
        Ok(area)
    }

    /// The zram device's name in sysfs; `None` for another device.
    pub fn zram_name(&self) -> Option<&'static str> {
        matches!(self.kind, Kind::Zram).then_some(ZRAM)
    }

    fn device(&self) -> String {
        match self.kind {
            Kind::Zram => format!("/dev/{ZRAM}"),
            Kind::Loop(_) => LOOP.to_owned(),
            Kind::Disk(name) => format!("/dev/{name}"),
        }
    }

    fn switch_on(&self, bytes: u64) -> Result<()> {
        let path = self.device();
        let device = File::options().write(true).open(&path).with_context(|| path.clone())?;
        device.write_all_at(&header(bytes / PAGE_BYTES as u64)?, 0).with_context(|| path.clone())?;
        drop(device);
        swapon(&path, 0).with_context(|| format!("swapon {path}"))
    }

    fn switch_off(&self) -> Result<()> {
        let path = self.device();
        swapoff(&path).with_context(|| format!("swapoff {path}"))?;
        if self.zswap.is_some() {
            set_zswap(false)?;
        }
        match &self.kind {
            Kind::Zram => fs::write(zram_file("reset"), "1").context("reset zram"),
            Kind::Disk(_) => Ok(()),
            Kind::Loop(device) => {
                // SAFETY: the call takes no memory.
                let ret = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD, 0) };
                ensure!(ret == 0, "{path}: LOOP_CLR_FD: {}", io::Error::last_os_error());
                // The device closes the file when its own last user is gone. Removing the file frees the
                // memory at once, while the file system may still be busy.
                fs::remove_file(format!("{BACKING}/file")).context("remove the loop device's file")?;
                unmount(BACKING, UnmountFlags::DETACH).context("unmount ramfs")
            }
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if let Err(e) = self.switch_off() {
            // Switching the next one on will fail and report it.
            eprintln!("guest: {e:#}");
        }
    }
}

/// Switches a swap device on, with these flags of swapon(2).
///
/// # Errors
/// Those of swapon(2).
pub fn swapon(path: &str, flags: libc::c_int) -> io::Result<()> {
    let path = CString::new(path)?;
    // SAFETY: the path is a C string that outlives the call.
    if unsafe { libc::swapon(path.as_ptr(), flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Switches a swap device off.
///
/// # Errors
/// Those of swapoff(2).
pub fn swapoff(path: &str) -> io::Result<()> {
    let path = CString::new(path)?;
    // SAFETY: the path is a C string that outlives the call.
    if unsafe { libc::swapoff(path.as_ptr()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn set_zswap(on: bool) -> Result<()> {
    fs::write(ZSWAP, if on { "Y" } else { "N" }).with_context(|| format!("{ZSWAP} (CONFIG_ZSWAP)"))
}

fn compressed_pages() -> Result<u64> {
    value(&vmstat()?, "zswpout ").context("no zswpout in /proc/vmstat")
}

/// Returns the first page of swap space, as mkswap(8) writes it: the version, the number of the last page, no
/// bad pages.
fn header(pages: u64) -> Result<Vec<u8>> {
    const SIGNATURE: &[u8] = b"SWAPSPACE2";
    let last = u32::try_from(pages.saturating_sub(1)).context("too much swap space")?;
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
