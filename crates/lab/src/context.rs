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

    /// Finds the checkout: the current folder or one of its parents; elsewhere a copy in the cache of what this
    /// program was built from, with the feature `standalone`, or else the one that it was built in.
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
                let repo = own_sources(&cache)?;
                ensure!(
                    is_checkout(&repo),
                    "{}: not inside a memreap checkout (no kernel/topics.toml here or above), and {}, in which this \
                     program was built, is gone; install it with --features standalone to do without",
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

/// Returns the checkout that this program was built in.
#[cfg(not(feature = "standalone"))]
fn own_sources(_cache: &Path) -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
}

/// Writes the sources that this program was built from to the cache, and returns their folder.
#[cfg(feature = "standalone")]
fn own_sources(cache: &Path) -> Result<PathBuf> {
    use fs_err as fs;
    use include_dir::{Dir, include_dir};

    use crate::content::Content;

    static FOLDERS: [(&str, Dir<'_>); 4] = [
        ("crates", include_dir!("$CARGO_MANIFEST_DIR/../../crates")),
        ("kernel", include_dir!("$CARGO_MANIFEST_DIR/../../kernel")),
        ("faceoff", include_dir!("$CARGO_MANIFEST_DIR/../../faceoff")),
        ("packaging", include_dir!("$CARGO_MANIFEST_DIR/../../packaging")),
    ];
    static FILES: [(&str, &str); 2] =
        [("Cargo.toml", include_str!("../../../Cargo.toml")), ("Cargo.lock", include_str!("../../../Cargo.lock"))];
    fn add(content: &mut Content, folder: &Dir<'_>) {
        for file in folder.files() {
            content.add(file.path().as_os_str().as_encoded_bytes());
            content.add(file.contents());
        }
        folder.dirs().for_each(|folder| add(content, folder));
    }
    let mut content = Content::default();
    FILES.iter().for_each(|(_, text)| content.add(text));
    FOLDERS.iter().for_each(|(_, folder)| add(&mut content, folder));
    let all = cache.join("own-sources");
    let target = all.join(&content.key()[..16]);
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(&all)?;
        let staging = tempfile::tempdir_in(&all)?;
        for (name, folder) in &FOLDERS {
            fs::create_dir(staging.path().join(name))?;
            folder.extract(staging.path().join(name))?;
        }
        FILES.iter().try_for_each(|(name, text)| fs::write(staging.path().join(name), text))?;
        match fs::rename(staging.path(), &target) {
            // By another lab, at the same time.
            Err(_) if target.is_dir() => Ok(()),
            renamed => renamed,
        }
    };
    if !target.is_dir() {
        write()?;
    }
    Ok(target)
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
