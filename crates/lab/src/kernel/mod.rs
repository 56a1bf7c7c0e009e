// SPDX-License-Identifier: GPL-2.0-only
//! Kernels: several source trees (stock, memreap with the topics applied, control kernels with one patch),
//! built from one configuration. A build's key covers everything that goes into it.
//!
//! In the cache, `trees/<key>` is a hard-linked copy of the pristine source with the patches of a tree
//! applied. A finished build is in `trees/<key>/<variant>-<key>`. Because the output is directly below the
//! source, all paths that the compiler sees are relative (`../mm/mmap.c`), so ccache hits across trees.
//!
//! [`source`] fetches Debian's source, [`topics`] applies our changes, [`build()`] builds, [`series`] exports
//! the topics as patches, [`lint`] checks their code. [`user`] builds kernels from sources of the user's.

mod build;
mod config;
pub mod lint;
mod make;
pub mod series;
pub mod source;
pub mod topics;
pub mod user;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Result;

use crate::format;
use crate::kernel::topics::Topic;

pub use build::build;
pub use make::install_headers;
pub(crate) use make::{hard_link_copy, refused_path};

/// The control kernels that need a build of their own. `kernel/controls` has a patch or a configuration
/// fragment of that name, or both; those whose names begin with `memreap-` are for the changed kernel.
pub const CONTROLS: &[&str] = &["stock-precise", "memreap-rss-counters", "memreap-plain-sums"];

/// A kernel configuration: what is compiled in besides the topics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Variant {
    /// No debug code. Everything that is measured runs on it.
    Slim,
    /// lockdep, KASAN, UBSAN, kmemleak, DEBUG_VM, DEBUG_ATOMIC_SLEEP, and the topics' KUnit tests.
    Debug,
    /// KCSAN, the data-race detector, and the topics' KUnit tests.
    Kcsan,
    /// Debug with PREEMPT_RT, where locks sleep.
    Rt,
    /// Slim plus what Debian's user space needs. For the face-off.
    Faceoff,
}

impl Variant {
    /// The names of the fragments in `kernel/configs`. A later one overrides an earlier one.
    fn fragments(self) -> &'static [&'static str] {
        match self {
            Self::Slim => &["slim"],
            Self::Debug => &["slim", "debug"],
            Self::Kcsan => &["slim", "kcsan"],
            Self::Rt => &["slim", "debug", "rt"],
            Self::Faceoff => &["slim", "faceoff"],
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Slim => "slim",
            Self::Debug => "debug",
            Self::Kcsan => "kcsan",
            Self::Rt => "rt",
            Self::Faceoff => "faceoff",
        })
    }
}

/// Which tree a kernel is built from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tree {
    /// Debian's source, unchanged.
    Stock,
    /// Debian's source with all topics applied and enabled.
    Memreap,
    /// The stock or the changed kernel as one of [`CONTROLS`] changes it.
    Control(&'static str),
}

impl Tree {
    /// Returns all trees, stock first.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Stock, Self::Memreap].into_iter().chain(CONTROLS.iter().copied().map(Self::Control))
    }

    /// Reads the patches that are applied to Debian's source, in order.
    fn changes(self, repo: &Path) -> Result<Vec<Topic>> {
        match self {
            Self::Stock => Ok(Vec::new()),
            Self::Memreap => topics::load(repo),
            Self::Control(name) => {
                let mut changes = if name.starts_with("memreap-") { topics::load(repo)? } else { Vec::new() };
                changes.extend(topics::control(repo, name)?);
                Ok(changes)
            }
        }
    }

    /// Returns the name of the fragment with what this tree configures differently, if there is one.
    fn fragment(self, repo: &Path) -> Option<String> {
        let Self::Control(name) = self else { return None };
        let file = format!("kernel/controls/{name}.config");
        repo.join(&file).is_file().then_some(file)
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Stock => "stock",
            Self::Memreap => "memreap",
            Self::Control(name) => name,
        })
    }
}

impl FromStr for Tree {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let tree = Self::all().find(|tree| tree.to_string() == text);
        tree.ok_or_else(|| format::no_such("tree", text, Self::all()))
    }
}

/// A finished kernel in the cache.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The bootable image.
    pub bzimage: PathBuf,
    /// The complete configuration.
    pub config: PathBuf,
    /// The folder with `vmlinux`, `System.map` and `usr/gen_init_cpio`.
    pub build_dir: PathBuf,
    /// The source tree that it was built from: `trees/<tree key>` in the cache.
    pub source_dir: PathBuf,
    /// The release as `uname -r` prints it.
    pub release: String,
    /// The content key, 64 hexadecimal digits.
    pub key: String,
}

#[cfg(test)]
mod tests {
    use fs_err as fs;

    use super::*;

    #[test]
    fn trees_are_read_by_their_names() {
        for tree in Tree::all() {
            assert_eq!(tree.to_string().parse(), Ok(tree));
        }
        assert_eq!(Tree::all().next(), Some(Tree::Stock));
        // A control that is the changed kernel with parameters has no tree.
        assert!("memreap-sync".parse::<Tree>().is_err());
        let unknown = "precise".parse::<Tree>().unwrap_err();
        assert!(unknown.starts_with("no tree 'precise'; there are: stock, memreap, "), "{unknown}");
    }

    #[test]
    fn every_control_has_a_file_and_every_file_is_of_a_control() {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut files: Vec<PathBuf> = fs::read_dir(repo.join("kernel/controls"))
            .unwrap()
            .map(|entry| PathBuf::from(entry.unwrap().file_name()).with_extension(""))
            .collect();
        files.sort();
        files.dedup();
        let mut named: Vec<PathBuf> = CONTROLS.iter().map(PathBuf::from).collect();
        named.sort();
        assert_eq!(files, named);
        for name in CONTROLS {
            let tree = Tree::Control(name);
            let topics = tree.changes(&repo).unwrap();
            assert_eq!(topics.iter().any(|t| t.name == "base"), name.starts_with("memreap-"));
            assert!(tree.fragment(&repo).is_some() || topics.iter().any(|t| t.name == *name));
        }
    }
}
