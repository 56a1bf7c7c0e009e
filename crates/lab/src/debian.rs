// SPDX-License-Identifier: GPL-2.0-only
//! Root file systems with Debian: debootstrap fills a folder, mke2fs makes an image of it, so neither loop
//! devices nor mounts are needed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::host::{self, Pkg, Probe};
use crate::progress::Step;

/// The keys of Debian's archives, of all releases that are supported.
pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The package that has them.
pub const KEYRING_PACKAGE: Pkg = Pkg { name: "debian-archive-keyring", probe: Probe::File(KEYRING) };
/// The packages for making an image.
pub const PACKAGES: &[Pkg] = &[
    Pkg::tool("debootstrap", "debootstrap"),
    KEYRING_PACKAGE,
    Pkg::tool("gpgv", "gpgv"),
    Pkg::tool("e2fsprogs", "mke2fs"),
    Pkg::tool("tar", "tar"),
    Pkg::tool("qemu-utils", "qemu-img"),
];

/// A folder with a Debian system. It is removed on drop, with root's rights because its files belong to root.
pub struct Tree {
    path: PathBuf,
}

impl Tree {
    /// Fills the folder with the smallest system of a release that has these packages. `mirror` is debootstrap's
    /// own choice if it is `None`.
    ///
    /// # Errors
    /// When the lab cannot become root, or debootstrap fails.
    pub fn bootstrap(
        step: &Step,
        path: PathBuf,
        suite: &str,
        mirror: Option<&str>,
        packages: &[&str],
        log: &Path,
    ) -> Result<Self> {
        let tree = Self { path };
        let mut debootstrap = host::as_root("debootstrap")?;
        // Without Debian's keys it would only warn.
        debootstrap.args(["--variant=minbase", "--force-check-gpg"]);
        if !packages.is_empty() {
            debootstrap.arg(format!("--include={}", packages.join(",")));
        }
        debootstrap.arg(suite).arg(&tree.path).args(mirror);
        host::run_step(step, &mut debootstrap, log)?;
        Ok(tree)
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that runs inside.
    ///
    /// # Errors
    /// When the lab cannot become root.
    pub fn chroot(&self) -> Result<Command> {
        let mut chroot = host::as_root("chroot")?;
        chroot.arg(&self.path);
        Ok(chroot)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // If debootstrap was interrupted, these may still be mounted, and rm must not descend into them.
        for inside in ["proc", "sys"] {
            if let Ok(mut umount) = host::as_root("umount") {
                // Usually they are not mounted.
                let _ = host::output(umount.args(["-q", "-l"]).arg(self.path.join(inside)));
            }
        }
        if let Ok(mut rm) = host::as_root("rm") {
            // A leftover only takes space. The next attempt removes it, or says how.
            let _ = host::output(rm.args([OsStr::new("-rf"), OsStr::new("--one-file-system")]).arg(&self.path));
        }
    }
}

/// Makes an ext4 file system of `size_mib` with the content of `folder`, whose files may belong to root; the image
/// belongs to the user.
///
/// # Errors
/// When the lab cannot become root, or the content does not fit.
pub fn write_image(step: &Step, folder: &Path, disk: &Path, label: &str, size_mib: u64, log: &Path) -> Result<()> {
    step.detail("writing the file system");
    let mut mke2fs = host::as_root("mke2fs")?;
    mke2fs.args(["-q", "-F", "-t", "ext4", "-L", label, "-d"]).arg(folder).arg(disk);
    mke2fs.arg(format!("{size_mib}M"));
    host::run_step(step, &mut mke2fs, log)?;
    let mut own = host::as_root("chown")?;
    own.arg(rustix::process::geteuid().as_raw().to_string()).arg(disk);
    host::output(&mut own)?;
    Ok(())
}
