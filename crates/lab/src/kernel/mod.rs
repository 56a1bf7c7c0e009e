// SPDX-License-Identifier: GPL-2.0-only
//! Kernels: several source trees (stock, memreap with the topics applied, control kernels with one patch),
//! built from one configuration. A build's key covers everything that goes into it.
//!
//! In the cache, `trees/<key>` is a hard-linked copy of the pristine source with the patches of a tree
//! applied. A finished build is in `trees/<key>/<variant>-<key>`. Because the output is directly below the
//! source, all paths that the compiler sees are relative (`../mm/mmap.c`), so ccache hits across trees.
//!
//! [`source`] fetches Debian's source, [`topics`] applies our changes, [`build()`] builds, [`patches`] exports
//! the topics, [`lint`] checks their code. [`user`] builds kernels from sources of the user's, [`deb`] packages.

mod apt;
mod build;
mod config;
pub(crate) mod deb;
mod kinds;
pub(crate) mod lint;
mod make;
pub(crate) mod patches;
pub(crate) mod series;
pub(crate) mod source;
pub(crate) mod topics;
pub(crate) mod user;

pub use build::build;
pub use kinds::{Kernel, Tree, Variant};
pub use make::install_headers;
pub(crate) use make::{hard_link_copy, refused_path};

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::kinds::controls;
    use super::series::Series;
    use super::*;
    use crate::host;

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
        let series = Series::load(&repo, series::DEFAULT).unwrap();
        let mut files: Vec<PathBuf> = host::files_below(&repo.join("kernel/controls"))
            .unwrap()
            .iter()
            .map(|file| PathBuf::from(file.file_name().unwrap()).with_extension(""))
            .collect();
        files.sort();
        files.dedup();
        assert_eq!(files, controls().map(PathBuf::from).collect::<Vec<_>>());
        for name in controls() {
            let tree = Tree::Control(name);
            let topics = topics::changes(tree, &repo, &series).unwrap();
            assert_eq!(topics.iter().any(|t| t.name == "base"), name.starts_with("memreap-"));
            assert!(tree.fragment(&repo).is_some() || topics.iter().any(|t| t.name == name));
        }
    }
}
