// SPDX-License-Identifier: GPL-2.0-only
//! Reads the contestants. Each is a folder in `faceoff/contestants` with a `contestant.toml` and the files to
//! install in the guest.

use fs_err as fs;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::format;
use crate::kernel::Tree;

/// What follows a contestant's name when the kernel begins to reclaim early. The setting is a factor of the
/// experiment: everybody is run with and without it.
pub(super) const WATERMARK_SUFFIX: &str = "+watermark";
/// The setting, which the package of memreap brings.
const WATERMARK_SETUP: &str = "echo 100 >/proc/sys/vm/watermark_scale_factor";

/// The folder of the contestants in the checkout.
pub const CONTESTANTS_FOLDER: &str = "faceoff/contestants";

/// The origin of a file that a contestant installs: `built:PROGRAM`, `crate:NAME@VERSION` or a path in the checkout.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Origin {
    /// A program that the lab builds for the guest.
    Built(String),
    /// The program of that name of a crate on crates.io, and its version.
    Crate(String, String),
    /// A file on the host.
    File(PathBuf),
}

impl TryFrom<String> for Origin {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Ok(match text.split_once(':') {
            Some(("built", program)) => Self::Built(program.to_owned()),
            Some(("crate", program)) => {
                let program = program.split_once('@');
                let (name, version) = program.ok_or_else(|| format!("'{text}' is not crate:NAME@VERSION"))?;
                Self::Crate(name.to_owned(), version.to_owned())
            }
            _ => Self::File(text.into()),
        })
    }
}

/// A contestant: the content of a `contestant.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contestant {
    /// The name of its folder, also on the command line.
    #[serde(skip)]
    pub name: String,
    /// Its name in tables and plots.
    pub title: String,
    /// Its position among the others.
    pub order: u32,
    /// The kernel it runs on.
    #[serde(default)]
    pub kernel: Tree,
    /// Debian packages for the image. Their units are not started automatically.
    #[serde(default)]
    pub packages: Vec<String>,
    /// The systemd unit to start; `None` for the kernel alone.
    pub unit: Option<String>,
    /// Shell lines to run in the guest before the unit is started.
    #[serde(default)]
    pub setup: Vec<String>,
    /// Another contestant whose files this one uses, and whose setup runs before its own.
    pub like: Option<String>,
    /// Path in the guest and origin of files in addition to those in `files/`.
    #[serde(default)]
    pub install: BTreeMap<String, Origin>,
}

impl Contestant {
    /// Returns the name of the contestant whose folder has its files.
    pub fn files_of(&self) -> &str {
        self.like.as_deref().unwrap_or_else(|| self.plain_name())
    }

    /// Whether it is one of this project's daemons, which are compared with all others.
    pub fn is_ours(&self) -> bool {
        self.files_of() == "memreap" && self.unit.is_some()
    }

    /// Returns its name without that of the setting.
    pub fn plain_name(&self) -> &str {
        self.name.strip_suffix(WATERMARK_SUFFIX).unwrap_or(&self.name)
    }

    /// Whether the kernel begins to reclaim early for it.
    pub fn has_watermark(&self) -> bool {
        self.name.ends_with(WATERMARK_SUFFIX)
    }

    fn with_watermark(&self) -> Self {
        let mut other = self.clone();
        other.name += WATERMARK_SUFFIX;
        other.title += ", watermark 100";
        other.setup.push(WATERMARK_SETUP.to_owned());
        other
    }
}

/// Reads all contestants and returns them in their order, each without and with the early reclaim.
///
/// # Errors
/// When a file cannot be read or is invalid. Names the file and the key.
pub fn load(repo: &Path) -> Result<Vec<Contestant>> {
    let folder = repo.join(CONTESTANTS_FOLDER);
    let mut all = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        let file = entry.path().join("contestant.toml");
        if !entry.path().is_dir() {
            continue;
        }
        let text = fs::read_to_string(&file)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        all.push(parse(repo, &name, &text).with_context(|| file.display().to_string())?);
    }
    all.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
    let models: BTreeMap<String, Vec<String>> =
        all.iter().filter(|c| c.like.is_none()).map(|c| (c.name.clone(), c.setup.clone())).collect();
    for contestant in &mut all {
        let Some(like) = &contestant.like else { continue };
        let setup = models.get(like).with_context(|| {
            let file = folder.join(&contestant.name).join("contestant.toml");
            format!("{}: like: '{like}' is not a contestant with its own files", file.display())
        })?;
        contestant.setup.splice(..0, setup.iter().cloned());
    }
    Ok(all.iter().flat_map(|c| [c.clone(), c.with_watermark()]).collect())
}

fn parse(repo: &Path, name: &str, text: &str) -> Result<Contestant> {
    // The error names line and key.
    let mut contestant = Contestant { name: name.to_owned(), ..toml::from_str(text)? };
    if let Some(unit) = &contestant.unit {
        ensure!(unit.ends_with(".service"), "unit: '{unit}' is not the name of a service");
    }
    if contestant.like.is_some() {
        ensure!(contestant.install.is_empty(), "install: one that is like another installs the other's files");
    }
    for (to, from) in &mut contestant.install {
        ensure!(to.starts_with('/'), "install: '{to}' is no absolute path");
        if let Origin::File(file) = from {
            let there = repo.join(&*file);
            ensure!(there.is_file(), "install: {}: no such file in the checkout", file.display());
            *file = there;
        }
    }
    Ok(contestant)
}

/// Returns the contestants with these names, in the order of `all`; all of them if there is no name.
///
/// # Errors
/// When a name is unknown. The message lists the known names.
pub fn select(all: &[Contestant], names: &[String]) -> Result<Vec<Contestant>> {
    for name in names {
        if !all.iter().any(|c| c.name == *name) {
            bail!(format::no_such("contestant", name, all.iter().map(|c| &c.name)));
        }
    }
    let wanted = |c: &&Contestant| names.is_empty() || names.contains(&c.name);
    Ok(all.iter().filter(wanted).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        format!("{:#}", parse(Path::new("/no/repo"), "x", text).unwrap_err())
    }

    #[test]
    fn a_contestant_is_read_with_its_defaults() {
        let text = "title = \"X\"\norder = 3\nunit = \"x.service\"\n[install]\n\"/usr/sbin/x\" = \"built:x\"\n";
        let x = parse(Path::new("/no/repo"), "x", text).unwrap();
        assert_eq!((x.kernel, x.unit.as_deref(), x.files_of()), (Tree::Stock, Some("x.service"), "x"));
        assert_eq!(x.install, BTreeMap::from([("/usr/sbin/x".to_owned(), Origin::Built("x".into()))]));
        assert!(!x.is_ours());
        let ours = |unit| {
            let text = format!("title = \"X\"\norder = 3\nlike = \"memreap\"\n{unit}");
            parse(Path::new("/no/repo"), "x", &text).unwrap().is_ours()
        };
        assert!(ours("unit = \"x.service\"\n") && !ours(""));
    }

    #[test]
    fn errors_name_the_key() {
        for (text, needle) in [
            ("title = \"X\"\n", "order"),
            ("title = \"X\"\norder = 1\nunits = \"x\"\n", "units"),
            ("title = \"X\"\norder = 1\nkernel = \"mine\"\n", "no tree 'mine'; there are: stock, memreap"),
            ("title = \"X\"\norder = 1\nunit = \"x\"\n", "unit: 'x'"),
            ("title = \"X\"\norder = 1\n[install]\n\"x\" = \"built:x\"\n", "install: 'x'"),
            ("title = \"X\"\norder = 1\n[install]\n\"/x\" = \"nowhere\"\n", "nowhere: no such file"),
            ("title = \"X\"\norder = 1\n[install]\n\"/x\" = \"crate:x\"\n", "'crate:x' is not crate:NAME@VERSION"),
            ("title = \"X\"\norder = 1\nlike = \"y\"\n[install]\n\"/x\" = \"built:x\"\n", "install: one that"),
        ] {
            assert!(wrong(text).contains(needle), "{text}: {}", wrong(text));
        }
    }

    /// Checks the contestants of this checkout.
    #[test]
    fn all_contestants_are_sound() {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let all = load(repo).unwrap();
        let names: Vec<&str> = all.iter().map(|c| c.name.as_str()).collect();
        let plain: Vec<&str> = names.iter().copied().filter(|name| !name.contains('+')).collect();
        let expected = "none none-min-ttl earlyoom earlyoom-tuned nohang nohang-tuned oomd-fedora oomd-ubuntu bustd \
                        memreap memreap-topics memreap-pod memreap-polite";
        assert_eq!(plain.join(" "), expected);
        assert_eq!(names[..2], ["none", "none+watermark"]);
        let ours: Vec<&Contestant> = all.iter().filter(|c| c.is_ours()).collect();
        assert!(ours.len() == 4 && ours.iter().all(|c| c.name.starts_with("memreap")));
        // The setup of `memreap` is also that of all contestants that are like it.
        assert_eq!(ours[0].setup, ours[2].setup);
        assert_eq!((ours[2].kernel, ours[0].kernel), (Tree::Memreap, Tree::Stock));
        assert!(ours[1].has_watermark() && ours[1].setup.len() == ours[0].setup.len() + 1);
        assert_eq!(select(&all, &["nohang+watermark".into(), "none".into()]).unwrap().len(), 2);
        let unknown = select(&all, &["nothing".into()]).unwrap_err().to_string();
        assert!(
            unknown.contains("no contestant 'nothing'; there are: none, none+watermark, none-min-ttl"),
            "{unknown}"
        );
    }

    #[test]
    fn one_like_an_unknown_contestant_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(CONTESTANTS_FOLDER).join("x");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("contestant.toml"), "title = \"X\"\norder = 1\nlike = \"y\"\n").unwrap();
        let error = load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("x/contestant.toml: like: 'y'"), "{error}");
    }
}
