// SPDX-License-Identifier: GPL-2.0-only
//! Where /proc and /sys are.

use std::path::{Path, PathBuf};

/// The file system whose `proc` and `sys` are read: the running system's, or a tree that a test
/// has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    base: PathBuf,
    proc: PathBuf,
    sys: PathBuf,
}

impl Root {
    /// The running system.
    pub fn system() -> Self {
        Self::at("/")
    }

    /// `path`/proc and `path`/sys.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let base = path.into();
        Self { proc: base.join("proc"), sys: base.join("sys"), base }
    }

    /// The directory that is /proc.
    pub fn proc(&self) -> &Path {
        &self.proc
    }

    /// The directory that is /sys.
    pub fn sys(&self) -> &Path {
        &self.sys
    }

    /// Where a path that the kernel gave, such as a mount point, is found.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        self.base.join(path.strip_prefix("/").unwrap_or(path))
    }
}
