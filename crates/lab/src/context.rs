// SPDX-License-Identifier: GPL-2.0-only
//! The paths of the checkout, the cache and the output folder. All other modules take them from a
//! [`Context`], so tests can use temporary folders.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::progress::Progress;

/// The folders and the progress display that all parts of the lab use.
#[derive(Clone)]
pub struct Context {
    /// The checkout: the folder with `kernel/topics.toml`.
    pub repo: PathBuf,
    /// The cache, outside of the checkout, with entries named by content keys: `$MEMREAP_CACHE`, else
    /// `$XDG_CACHE_HOME/memreap`, else `~/.cache/memreap`.
    pub cache: PathBuf,
    /// The output folder for results, reports and logs: `target/lab` in the checkout; elsewhere
    /// `$XDG_STATE_HOME/memreap/lab`, else `~/.local/state/memreap/lab`.
    pub out: PathBuf,
    /// The kernel version, 6.12.N: `--kernel`, else `$MEMREAP_KERNEL`; `None` for the newest that apt offers.
    pub kernel: Option<String>,
    /// The progress display.
    pub progress: Progress,
}

impl Context {
    /// A checkout, cache and output folder below `root`, for tests.
    #[cfg(test)]
    pub(crate) fn below(root: &Path) -> Self {
        Self {
            repo: root.to_path_buf(),
            cache: root.join("cache"),
            out: root.join("out"),
            kernel: None,
            progress: Progress::quiet(),
        }
    }

    /// Finds the checkout: the current folder or one of its parents, elsewhere the one that this program was
    /// built in, from which the guest's programs and the configurations are.
    ///
    /// # Errors
    /// When none of these folders has `kernel/topics.toml`, or there is no place for the cache.
    pub fn discover(progress: Progress) -> Result<Self> {
        let cwd = std::env::current_dir().context("cannot read the current folder")?;
        let is_checkout = |folder: &Path| folder.join("kernel/topics.toml").is_file();
        let origin = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
        let (repo, out) = match (cwd.ancestors().find(|folder| is_checkout(folder)), origin) {
            (Some(repo), _) => (repo, repo.join("target/lab")),
            (None, Some(origin)) if is_checkout(origin) => {
                (origin, xdg_folder("XDG_STATE_HOME", ".local/state")?.join("memreap/lab"))
            }
            _ => bail!(
                "{}: not inside a memreap checkout (no kernel/topics.toml here or above), and the one that this \
                 program was built in is gone",
                cwd.display()
            ),
        };
        Ok(Self {
            repo: repo.to_path_buf(),
            cache: cache_dir()?,
            out,
            kernel: std::env::var("MEMREAP_KERNEL").ok(),
            progress,
        })
    }

    /// Returns a path inside the checkout.
    pub fn in_repo(&self, path: impl AsRef<Path>) -> PathBuf {
        self.repo.join(path)
    }
}

fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("MEMREAP_CACHE") {
        return Ok(dir.into());
    }
    Ok(xdg_folder("XDG_CACHE_HOME", ".cache")?.join("memreap"))
}

/// Returns the folder that a variable names, else `below` in the home folder.
fn xdg_folder(variable: &str, below: &str) -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os(variable) {
        return Ok(dir.into());
    }
    let home = std::env::var_os("HOME").with_context(|| format!("neither {variable} nor HOME is set"))?;
    Ok(Path::new(&home).join(below))
}
