// SPDX-License-Identifier: GPL-2.0-only
//! The guest's disk as root file system, for jobs that need more than busybox.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use protocol::job::OVERLAY;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind_recursive};
use rustix::process::{chdir, chroot};

/// The only disk.
const DISK: &str = "/dev/vda";
/// Where it is mounted.
const ROOT: &str = "/root";
/// What the disk gets of the file systems that are mounted already.
const SHARED: [&str; 5] = ["/proc", "/sys", "/dev", "/tmp", "/run"];

/// Makes the disk the root of this process and of those that it starts, with the files of the job.
///
/// # Errors
/// When the kernel has no driver for the disk or its file system, or a file cannot be copied.
pub fn enter() -> Result<()> {
    ensure!(Path::new(DISK).exists(), "there is no {DISK}: the kernel was built without CONFIG_VIRTIO_BLK");
    match mount(DISK, ROOT, "ext4", MountFlags::NOATIME, c"") {
        Err(Errno::NODEV) => bail!("cannot mount {DISK}: the kernel was built without CONFIG_EXT4_FS"),
        mounted => mounted.with_context(|| format!("cannot mount {DISK}"))?,
    }
    if Path::new(OVERLAY).exists() {
        let copied = Command::new("/bin/busybox").args(["cp", "-a", &format!("{OVERLAY}/."), ROOT]).output();
        let copied = copied.context("cannot start /bin/busybox cp")?;
        ensure!(copied.status.success(), "cannot copy to {DISK}: {}", String::from_utf8_lossy(&copied.stderr));
    }
    for shared in SHARED {
        let at = format!("{ROOT}{shared}");
        std::fs::create_dir_all(&at)
            .map_err(anyhow::Error::from)
            .and_then(|()| Ok(mount_bind_recursive(shared, &at)?))
            .with_context(|| format!("cannot mount {shared} in {DISK}"))?;
    }
    chroot(ROOT).context("chroot")?;
    chdir("/").context("/")
}
