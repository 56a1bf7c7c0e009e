// SPDX-License-Identifier: GPL-2.0-only
//! Files and folders that are complete or not there, and locks.

use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use fs_err::{self as fs, File};
use rustix::fs::FlockOperation::{LockExclusive, NonBlockingLockExclusive};
use walkdir::WalkDir;

use super::interrupt::cleanup;
use crate::context::Context;

/// Removes a file, or a folder with its content. A path that does not exist is no error.
///
/// # Errors
/// When something remains that cannot be removed.
pub fn remove_any(path: &Path) -> io::Result<()> {
    let result = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match result {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A file or folder that is being built under a temporary name. Unless it is published
/// ([`Staging::publish`]), it is removed on drop and on an interrupt. A staging that a killed run left is
/// removed by the next one with the same target.
pub struct Staging {
    path: PathBuf,
}

impl Staging {
    /// Reserves the path `<target>.partial`, which does not exist afterwards. The caller must hold a lock on
    /// `target`.
    ///
    /// # Errors
    /// When a leftover cannot be removed or the parent folder cannot be made.
    pub fn begin(target: &Path) -> Result<Self> {
        let path = with_suffix(target, ".partial");
        remove_any(&path).map_err(|e| {
            let shown = path.display();
            let remedy = match e.kind() {
                // As of a debootstrap that was interrupted.
                ErrorKind::PermissionDenied => format!("; run: sudo rm -rf --one-file-system {shown}"),
                _ => String::new(),
            };
            anyhow!(e).context(format!("cannot remove the leftover {shown}{remedy}"))
        })?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        cleanup().stagings.push(path.clone());
        Ok(Self { path })
    }

    /// Like [`Self::begin`], for a folder, which exists and is empty afterwards.
    ///
    /// # Errors
    /// As [`Self::begin`], and when the folder cannot be made.
    pub fn folder(target: &Path) -> Result<Self> {
        let staging = Self::begin(target)?;
        fs::create_dir(&staging.path)?;
        Ok(staging)
    }

    /// Returns the temporary path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the staging to `target` atomically and replaces a file or folder there.
    ///
    /// # Errors
    /// When the rename fails.
    pub fn publish(self, target: &Path) -> Result<()> {
        if target.is_dir() {
            remove_any(target)?;
        }
        let mut cleanup = cleanup();
        fs::rename(&self.path, target)?;
        cleanup.stagings.retain(|p| *p != self.path);
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After publish() the path does not exist. Errors are ignored: leftovers are never used, only
        // published names are.
        let _ = remove_any(&self.path);
        cleanup().stagings.retain(|p| *p != self.path);
    }
}

/// Has `make` make the folder `target`, as a [`Staging`] whose path it gets, unless it exists.
///
/// # Errors
/// Those of `make`, of [`lock`] and of a [`Staging`].
pub fn made_once(ctx: &Context, target: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if target.is_dir() {
        return Ok(());
    }
    let _lock = lock(ctx, target)?;
    if target.is_dir() {
        return Ok(());
    }
    let staging = Staging::begin(target)?;
    make(staging.path())?;
    staging.publish(target)
}

/// Replaces the content of `path` by `text` atomically, so that no reader sees an incomplete file. Creates
/// the folder if necessary.
///
/// # Errors
/// When the folder cannot be created or written.
pub fn write_atomically(path: &Path, text: &str) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let failed = || format!("{}: cannot write", path.display());
    fs::create_dir_all(dir)?;
    let mut file = tempfile::Builder::new()
        .prefix(".writing-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(dir)
        .with_context(failed)?;
    file.write_all(text.as_bytes()).with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(())
}

/// Copies a file, and makes the folder that it goes to if necessary.
///
/// # Errors
/// When the folder cannot be made, or the file not be read or written.
pub fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    to.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::copy(from, to).map(drop)
}

/// Removes the files of a folder that were not modified for so long. Errors are ignored: what remains only takes space.
pub fn remove_older(folder: &Path, lifetime: Duration) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|meta| meta.modified());
        if modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > lifetime)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Takes the exclusive lock `<target>.lock` and returns the file that holds it; dropping it releases the
/// lock. Waits while another lab holds the lock.
///
/// # Errors
/// When the lock file cannot be created or locked.
pub fn lock(ctx: &Context, target: &Path) -> Result<File> {
    let path = with_suffix(target, ".lock");
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let file = File::create(&path)?;
    if rustix::fs::flock(&file, NonBlockingLockExclusive).is_err() {
        ctx.progress.note(&format!("waiting for another lab that works on {}", target.display()));
        rustix::fs::flock(&file, LockExclusive).with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns all regular files below `folder`, sorted.
///
/// # Errors
/// When a folder cannot be read or contains something else.
pub fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in WalkDir::new(folder).min_depth(1).sort_by_file_name() {
        let entry = entry?;
        let kind = entry.file_type();
        ensure!(kind.is_file() || kind.is_dir(), "{}: neither a file nor a folder", entry.path().display());
        if kind.is_file() {
            found.push(entry.into_path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staging_is_published_whole_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("thing");
        let staging = Staging::begin(&target).unwrap();
        fs::create_dir(staging.path()).unwrap();
        fs::write(staging.path().join("a"), "half").unwrap();
        drop(staging);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        // A leftover of a killed run is removed.
        fs::create_dir(dir.path().join("thing.partial")).unwrap();
        fs::write(dir.path().join("thing.partial/old"), "").unwrap();
        let staging = Staging::begin(&target).unwrap();
        assert!(!staging.path().exists());
        fs::create_dir(staging.path()).unwrap();
        fs::write(staging.path().join("a"), "whole").unwrap();
        staging.publish(&target).unwrap();
        assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "whole");
        assert!(!target.join("old").exists());
    }

    #[test]
    fn a_lock_keeps_the_second_out() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = Context::below(dir.path());
        let target = dir.path().join("k");
        let first = lock(&ctx, &target).unwrap();
        let other = File::create(dir.path().join("k.lock")).unwrap();
        let try_lock = || rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        assert!(try_lock().is_err());
        drop(first);
        assert!(try_lock().is_ok());
    }
}
