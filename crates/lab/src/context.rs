// SPDX-License-Identifier: GPL-2.0-only
//! The paths of the checkout, the cache and the output folder. All other modules take them from a
//! [`Context`], so tests can use temporary folders.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::WrongUsage;
use crate::arch::Arch;
use crate::kernel::series::{self, Series};
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
    /// The kernel series.
    pub series: Series,
    /// Its version, 6.12.N or that of a package; `None` for the newest that apt offers.
    pub kernel: Option<String>,
    /// The architecture of kernels and guests.
    pub arch: Arch,
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
            series: Series { name: series::DEFAULT.into(), package: "linux-source-6.12".into(), ..Series::default() },
            kernel: None,
            arch: Arch::of_host(),
            progress: Progress::quiet(),
        }
    }

    /// Finds the checkout: the current folder or one of its parents; elsewhere the one that this program was built in.
    ///
    /// # Errors
    /// When there is none of these folders, or no place for the cache.
    pub fn discover(progress: Progress) -> Result<Self> {
        let cwd = std::env::current_dir().context("cannot read the current folder")?;
        let is_checkout = |folder: &Path| folder.join("kernel/topics.toml").is_file();
        let cache = cache_dir()?;
        let (repo, out) = match cwd.ancestors().find(|folder| is_checkout(folder)) {
            Some(repo) => (repo.to_path_buf(), repo.join("target/lab")),
            None => {
                let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
                ensure!(
                    is_checkout(&repo),
                    "{}: not inside a memreap checkout (no kernel/topics.toml here or above), and {}, in which this \
                     program was built, is gone",
                    cwd.display(),
                    repo.display()
                );
                (repo, xdg_folder("XDG_STATE_HOME", ".local/state")?.join("memreap/lab"))
            }
        };
        let series = Series::load(&repo, series::DEFAULT)?;
        let ctx = Self { repo, cache, out, series, kernel: None, arch: Arch::of_host(), progress };
        // A folder or a tarball is imported by the program.
        let version = std::env::var("MEMREAP_KERNEL").ok().filter(|kernel| !kernel.is_empty() && !kernel.contains('/'));
        ctx.with_kernel(None, version)
    }

    /// Returns the same with another series, by name, or version of a kernel. A version alone says its series.
    ///
    /// # Errors
    /// When there is no such series, or the version is not of the one that is named.
    pub fn with_kernel(self, series: Option<&str>, kernel: Option<String>) -> Result<Self> {
        let of_kernel = kernel.as_deref().map(series::of_version);
        let name = series.map(str::to_owned).or(of_kernel.clone()).unwrap_or_else(|| self.series.name.clone());
        if of_kernel.is_some_and(|series| series != name) {
            let kernel = kernel.unwrap_or_default();
            return Err(WrongUsage(format!("--kernel {kernel} is not of --series {name}")).into());
        }
        // What is chosen for one series says nothing about another.
        let kernel = kernel.or(self.kernel.filter(|_| self.series.name == name));
        Ok(Self { series: Series::load(&self.repo, &name)?, kernel, ..self })
    }

    /// Returns a path inside the checkout.
    pub fn in_repo(&self, path: impl AsRef<Path>) -> PathBuf {
        self.repo.join(path)
    }
}

fn cache_dir() -> Result<PathBuf> {
    match folder_of("MEMREAP_CACHE")? {
        Some(folder) => Ok(folder),
        None => Ok(xdg_folder("XDG_CACHE_HOME", ".cache")?.join("memreap")),
    }
}

/// Returns the folder that a variable names, else `below` in the home folder.
fn xdg_folder(variable: &str, below: &str) -> Result<PathBuf> {
    if let Some(folder) = folder_of(variable)? {
        return Ok(folder);
    }
    Ok(folder_of("HOME")?.with_context(|| format!("neither {variable} nor HOME is set"))?.join(below))
}

/// Returns the absolute path that a variable has, unless it is empty: tools are run in other folders.
fn folder_of(variable: &str) -> Result<Option<PathBuf>> {
    let value = std::env::var_os(variable).filter(|value| !value.is_empty());
    value
        .map(|value| std::path::absolute(&value).with_context(|| format!("{variable}: {}", value.display())))
        .transpose()
}
