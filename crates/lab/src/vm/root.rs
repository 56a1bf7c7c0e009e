// SPDX-License-Identifier: GPL-2.0-only
//! Disks with a root file system, for guests that need more than busybox.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Result, ensure};
use fs_err as fs;
use walkdir::WalkDir;

use crate::arch::Arch;
use crate::content::Content;
use crate::context::Context;
use crate::debian;
use crate::host;

/// The release of Debian.
const SUITE: &str = "bookworm";
/// Part of every key. Increment it when the way disks are made changes.
const RECIPE_VERSION: &str = "1";
/// The room in a file system for what the guest writes, and what ext4 needs for each 4 MiB of content.
const FREE_MIB: u64 = 1024;
const CONTENT_MIB_PER_OVERHEAD_MIB: u64 = 4;
/// The file in the cache.
const DISK_FILE: &str = "root.ext4";

/// What a root file system is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootSource {
    /// A small Debian, and these packages.
    Debian(Vec<String>),
    /// A folder with a system.
    Folder(PathBuf),
    /// A raw ext4 file system.
    Image(PathBuf),
}

impl RootSource {
    /// Its form in a command's help.
    pub const FORM: &str = "debian[:PACKAGE,...]|FOLDER|IMAGE";
}

impl FromStr for RootSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_package = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphanumeric())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        };
        let packages = match text.strip_prefix("debian") {
            Some("") => Some(""),
            Some(rest) => rest.strip_prefix(':'),
            None => None,
        };
        if let Some(packages) = packages {
            let mut packages: Vec<String> =
                packages.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            if let Some(bad) = packages.iter().find(|name| !is_package(name)) {
                return Err(format!("'{bad}' is no name of a Debian package"));
            }
            packages.sort();
            packages.dedup();
            return Ok(Self::Debian(packages));
        }
        let path = PathBuf::from(text);
        if path.is_dir() {
            Ok(Self::Folder(path))
        } else if path.is_file() {
            Ok(Self::Image(path))
        } else {
            Err(format!("{text}: no such file or folder; or debian[:PACKAGE,...]"))
        }
    }
}

impl fmt::Display for RootSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debian(packages) if packages.is_empty() => f.write_str("Debian"),
            Self::Debian(packages) => write!(f, "Debian with {}", packages.join(", ")),
            Self::Folder(path) | Self::Image(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A disk with a root file system. Guests do not change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootDisk {
    /// The raw ext4 file system.
    pub image: PathBuf,
    /// The key of its content, 64 hexadecimal digits.
    pub key: String,
}

/// Makes a disk, or takes it from the cache. Debian's packages are of the day when it was made.
///
/// # Errors
/// When the source cannot be read, the lab cannot become root, or a step fails.
pub fn make(ctx: &Context, source: &RootSource) -> Result<RootDisk> {
    let mut key = Content::default();
    key.add(RECIPE_VERSION);
    match source {
        RootSource::Debian(packages) => {
            ensure!(
                ctx.arch == Arch::of_host(),
                "--root debian is made for {}, not for {}: give --root a folder or an image",
                Arch::of_host(),
                ctx.arch
            );
            key.add(SUITE);
            packages.iter().for_each(|package| key.add(package));
        }
        RootSource::Folder(folder) => add_listing(&mut key, folder)?,
        RootSource::Image(image) => {
            key.add_file(image)?;
            let image = fs::canonicalize(image)?;
            return Ok(RootDisk { image, key: key.key() });
        }
    }
    let key = key.key();
    let home = ctx.cache.join("roots").join(&key[..16]);
    host::made_once(ctx, &home, |staging| {
        host::ensure_packages(ctx, debian::PACKAGES)?;
        let step = ctx.progress.step(&format!("making a root file system: {source}"));
        fs::create_dir(staging)?;
        let log = |name: &str| ctx.out.join(format!("logs/root-{name}.log"));
        let write = |folder: &Path| {
            let mut du = host::as_root("du")?;
            let listing = host::output(du.args(["-sm", "--"]).arg(folder))?;
            let used: u64 = listing.split_whitespace().next().and_then(|mib| mib.parse().ok()).unwrap_or_default();
            let size_mib = used + used / CONTENT_MIB_PER_OVERHEAD_MIB + FREE_MIB;
            debian::write_image(&step, folder, &staging.join(DISK_FILE), "root", size_mib, &log("mke2fs"))
        };
        match source {
            RootSource::Debian(packages) => {
                let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
                let tree = staging.join("tree");
                let tree = debian::Tree::bootstrap(&step, tree, SUITE, None, &packages, &log("debootstrap"))?;
                write(tree.path())?;
            }
            RootSource::Folder(path) | RootSource::Image(path) => write(path)?,
        }
        step.done("");
        Ok(())
    })?;
    Ok(RootDisk { image: home.join(DISK_FILE), key })
}

/// Adds what tells one state of a folder from another: names, sizes, modes and times of its files.
fn add_listing(key: &mut Content, folder: &Path) -> Result<()> {
    for entry in WalkDir::new(folder).min_depth(1).sort_by_file_name() {
        let entry = entry?;
        let metadata = entry.metadata()?;
        key.add(entry.path().as_os_str().as_encoded_bytes());
        key.add(u64::from(metadata.mode()).to_le_bytes());
        key.add(metadata.size().to_le_bytes());
        // A change within a second, or of a file that gets its old time again.
        let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
        times.iter().for_each(|part| key.add(part.to_le_bytes()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_debian_a_folder_or_an_image() {
        let parse = |text: &str| text.parse::<RootSource>();
        assert_eq!(parse("debian"), Ok(RootSource::Debian(vec![])));
        let packages = vec!["fio".to_owned(), "stress-ng".to_owned()];
        assert_eq!(parse("debian:stress-ng,fio,fio"), Ok(RootSource::Debian(packages)));
        assert_eq!(parse("/usr"), Ok(RootSource::Folder("/usr".into())));
        assert_eq!(parse("/etc/passwd"), Ok(RootSource::Image("/etc/passwd".into())));
        for bad in ["debian:--help", "debian:a b", "/no/such", "debianx"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_key_of_a_folder_changes_with_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let key = || {
            let mut key = Content::default();
            add_listing(&mut key, dir.path()).unwrap();
            key.key()
        };
        fs::create_dir(dir.path().join("etc")).unwrap();
        fs::write(dir.path().join("etc/a"), "1").unwrap();
        let first = key();
        assert_eq!(first, key());
        fs::write(dir.path().join("etc/a"), "12").unwrap();
        let longer = key();
        assert_ne!(first, longer);
        // More than the clock of file systems needs for a step.
        std::thread::sleep(std::time::Duration::from_millis(30));
        fs::write(dir.path().join("etc/a"), "34").unwrap();
        let edited = key();
        assert_ne!(longer, edited);
        fs::rename(dir.path().join("etc/a"), dir.path().join("etc/b")).unwrap();
        assert_ne!(edited, key());
    }
}
