// SPDX-License-Identifier: GPL-2.0-only
//! Content keys: a SHA-256 over several parts, each preceded by its length, so that parts cannot run
//! together.

use std::io;
use std::path::Path;

use anyhow::Result;
use fs_err::{self as fs, DirEntry, File};
use sha2::{Digest as _, Sha256};

/// Collects the parts of a content key.
#[derive(Clone, Default)]
pub struct Content(Sha256);

impl Content {
    /// Adds a part.
    pub fn add(&mut self, part: impl AsRef<[u8]>) {
        let part = part.as_ref();
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    /// Adds the content of a file, but not its path.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn add_file(&mut self, path: &Path) -> Result<()> {
        let mut file = File::open(path)?;
        self.0.update(file.metadata()?.len().to_le_bytes());
        io::copy(&mut file, &mut self.0)?;
        Ok(())
    }

    /// Adds the content of a file, or of a folder with its names below it, but not its path.
    ///
    /// # Errors
    /// When something cannot be read.
    pub fn add_tree(&mut self, path: &Path) -> Result<()> {
        if !path.is_dir() {
            return self.add_file(path);
        }
        let mut entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(DirEntry::file_name);
        self.add(entries.len().to_le_bytes());
        entries.iter().try_for_each(|entry| {
            self.add(entry.file_name().as_encoded_bytes());
            self.add_tree(&entry.path())
        })
    }

    /// Returns the key: 64 hexadecimal digits.
    pub fn key(self) -> String {
        hex(&self.0.finalize())
    }
}

/// Returns the bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(parts: &[&str]) -> String {
        let mut content = Content::default();
        parts.iter().for_each(|part| content.add(part));
        content.key()
    }

    #[test]
    fn keys_differ_with_every_part() {
        assert_eq!(key(&["a", "b"]).len(), 64);
        assert_eq!(key(&["a", "b"]), key(&["a", "b"]));
        assert_ne!(key(&["a", "b"]), key(&["a", "c"]));
        assert_ne!(key(&["a", "b"]), key(&["ab"]), "parts do not run together");
        assert_ne!(key(&["a", ""]), key(&["a"]));
    }

    #[test]
    fn the_key_of_a_folder_is_that_of_its_names_and_contents() {
        let key = |files: &[(&str, &str)]| {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("below")).unwrap();
            files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
            let mut content = Content::default();
            content.add_tree(folder.path()).unwrap();
            content.key()
        };
        assert_eq!(key(&[("b", "2"), ("below/a", "1")]), key(&[("below/a", "1"), ("b", "2")]));
        assert_ne!(key(&[("a", "1")]), key(&[("a", "2")]));
        assert_ne!(key(&[("a", "1")]), key(&[("b", "1")]));
        assert_ne!(key(&[("a", "1")]), key(&[("below/a", "1")]));
    }
}
