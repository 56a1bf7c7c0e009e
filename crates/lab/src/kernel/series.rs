// SPDX-License-Identifier: GPL-2.0-only
//! Kernel series, for example 6.12: where Debian has the source, and what the lab does differently for it.
//! `kernel/series/<name>.toml` describes each.

use fs_err as fs;
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use serde::Deserialize;

use crate::WrongUsage;
use crate::format;

/// The series that all commands use if none is named.
pub const DEFAULT: &str = "6.12";

/// A kernel series.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// The first two numbers of its releases.
    #[serde(skip)]
    pub name: String,
    /// Debian's source package.
    pub package: String,
    /// The archive that has the package, as in a line of apt's sources, for hosts whose lists do not have it.
    pub archive: Option<String>,
    /// Symbols, without `CONFIG_`, that the fragments ask for and this series does not have.
    #[serde(default)]
    pub gone: Vec<String>,
    /// Symbols that only this series needs, and their values.
    #[serde(default)]
    pub config: BTreeMap<String, String>,
    /// The topics that are not for this series, and why.
    #[serde(default)]
    pub without: BTreeMap<String, String>,
    /// Of these, those in whose place this series has another topic, which the same scenario measures.
    #[serde(default)]
    pub instead: BTreeMap<String, String>,
}

impl Series {
    /// Reads the description of a series.
    ///
    /// # Errors
    /// When there is no such series (the message lists those that there are), or its file has a mistake.
    pub fn load(repo: &Path, name: &str) -> Result<Self> {
        let names = names(repo)?;
        if !names.iter().any(|known| known == name) {
            return Err(WrongUsage(format::no_such("series", name, names)).into());
        }
        let file = file(name);
        let text = fs::read_to_string(repo.join(&file))?;
        let series: Self = toml::from_str(&text).map_err(|e| anyhow!("{file}: {}", e.to_string().trim_end()))?;
        Ok(Self { name: name.to_owned(), ..series })
    }

    /// Returns the series that a kernel of this version belongs to, or else the newest one before it, if any: what is
    /// known of that is likely to hold.
    ///
    /// # Errors
    /// As [`Series::load`].
    pub fn closest(repo: &Path, version: &str) -> Result<Option<Self>> {
        let names = names(repo)?;
        let closest = names.iter().rfind(|name| numbers(name) <= numbers(&of_version(version)));
        closest.map(|name| Self::load(repo, name)).transpose()
    }
}

/// Returns the names of all series, oldest first.
///
/// # Errors
/// When `kernel/series` cannot be read.
pub fn names(repo: &Path) -> Result<Vec<String>> {
    let folder = repo.join("kernel/series");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "toml") {
            let name = path.file_stem().and_then(|name| name.to_str()).context("a series without a name")?;
            names.push(name.to_owned());
        }
    }
    names.sort_by_key(|name| numbers(name));
    Ok(names)
}

/// Returns the series of a version: "7.3" of "7.3.4-1~bpo13+1" and "7.3.4".
pub fn of_version(version: &str) -> String {
    let upstream = version.split(['-', '+', '~']).next().unwrap_or_default();
    upstream.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// Returns the path of the description in the checkout.
pub fn file(name: &str) -> String {
    format!("kernel/series/{name}.toml")
}

/// Returns what series are ordered by: 6.12 comes after 6.2.
fn numbers(name: &str) -> Vec<u32> {
    name.split('.').map(|number| number.parse().unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn all_series_are_read_oldest_first() {
        let names = names(&repo()).unwrap();
        assert_eq!(names, ["6.12", "7.3"]);
        for name in &names {
            let series = Series::load(&repo(), name).unwrap();
            assert_eq!((&series.name, series.package), (name, format!("linux-source-{name}")));
        }
        assert_eq!(names.first().map(String::as_str), Some(DEFAULT));
        let unknown = Series::load(&repo(), "5.10").unwrap_err().to_string();
        assert_eq!(unknown, "no series '5.10'; there are: 6.12, 7.3");
    }

    #[test]
    fn a_version_has_a_series() {
        for version in ["7.3", "7.3.4", "7.3.4-1~bpo13+1", "7.3+0123abcd"] {
            assert_eq!(of_version(version), "7.3");
        }
        let closest = |version| Series::closest(&repo(), version).unwrap().map(|series| series.name);
        for (version, series) in [("6.1.170", None), ("6.12.1", Some("6.12")), ("7.2.1", Some("6.12"))] {
            assert_eq!(closest(version).as_deref(), series, "{version}");
        }
        assert_eq!(closest("7.10.1").as_deref(), Some("7.3"));
    }
}
