// SPDX-License-Identifier: GPL-2.0-only
//! Where things are: the checkout, the cache, the output folder. Everything else takes a
//! [`Context`] instead of guessing paths, so tests can point it at temporary folders.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::progress::Progress;

/// The folders and the reporter that every step of the lab works with.
#[derive(Clone)]
pub struct Context {
    /// The checkout: the folder that holds `kernel/topics.toml`.
    pub repo: PathBuf,
    /// Content-keyed caches, outside the checkout: `$MEMREAP_CACHE`, else
    /// `$XDG_CACHE_HOME/memreap`, else `~/.cache/memreap`.
    pub cache: PathBuf,
    /// What one run leaves for its reader: `target/lab` in the checkout.
    pub out: PathBuf,
    /// Which 6.12.N to build: `--kernel`, else `$MEMREAP_KERNEL`, else the newest that apt
    /// offers (`None`).
    pub kernel: Option<String>,
    /// Steps, elapsed time and log lines go here.
    pub progress: Progress,
}

impl Context {
    /// Finds the checkout from the current folder upwards.
    ///
    /// # Errors
    /// When no folder above holds `kernel/topics.toml`, or no cache folder can be named.
    pub fn discover(progress: Progress) -> Result<Self> {
        let cwd = std::env::current_dir().context("cannot read the current folder")?;
        let Some(repo) = cwd.ancestors().find(|d| d.join("kernel/topics.toml").is_file()) else {
            bail!("{}: not inside a memreap checkout (no kernel/topics.toml here or above)", cwd.display());
        };
        Ok(Self {
            repo: repo.to_path_buf(),
            cache: cache_dir()?,
            out: repo.join("target/lab"),
            kernel: std::env::var("MEMREAP_KERNEL").ok(),
            progress,
        })
    }

    /// A path inside the checkout.
    pub fn in_repo(&self, path: impl AsRef<Path>) -> PathBuf {
        self.repo.join(path)
    }
}

fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("MEMREAP_CACHE") {
        return Ok(dir.into());
    }
    if let Some(dir) = std::env::var_os("XDG_CACHE_HOME") {
        return Ok(Path::new(&dir).join("memreap"));
    }
    match std::env::var_os("HOME") {
        Some(home) => Ok(Path::new(&home).join(".cache/memreap")),
        None => bail!("none of MEMREAP_CACHE, XDG_CACHE_HOME and HOME is set: no place for the cache"),
    }
}
