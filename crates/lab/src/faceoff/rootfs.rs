// SPDX-License-Identifier: GPL-2.0-only
//! Makes the Debian image that all contestants run in. It is cached under the key of its inputs.

use fs_err as fs;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::contestant::Contestant;
use crate::content::hex;
use crate::context::Context;
use crate::debian;
use crate::host;

/// Part of every key. Increment it when the way images are made changes.
const RECIPE_VERSION: &str = "1";
/// The file system image.
const DISK_FILE: &str = "root.ext4";
/// What is in it: an [`Image`].
const CONTENT_FILE: &str = "image.json";

/// The content of `faceoff/image.toml`. Its debug output is part of the key, so renaming the type or a field
/// causes a new image.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Toml {
    suite: String,
    mirror: String,
    /// The size of the file system in MiB.
    size: u64,
    packages: Vec<String>,
}

/// A complete image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Image {
    /// The raw ext4 file system. It is read-only: guests write to an overlay.
    #[serde(skip)]
    pub disk: PathBuf,
    /// The key of its inputs, 64 hexadecimal digits.
    pub key: String,
    /// The versions of all Debian packages in it.
    pub packages: BTreeMap<String, String>,
}

/// Returns the image with the packages of all `contestants`, from the cache or made now.
///
/// # Errors
/// When `image.toml` is invalid, the lab cannot become root, or a step fails.
pub fn get(ctx: &Context, contestants: &[Contestant]) -> Result<Image> {
    let file = ctx.in_repo("faceoff/image.toml");
    let text = fs::read_to_string(&file)?;
    let mut toml: Toml = toml::from_str(&text).with_context(|| file.display().to_string())?;
    let theirs: BTreeSet<String> = contestants.iter().flat_map(|c| c.packages.iter().cloned()).collect();
    toml.packages.retain(|own| !theirs.contains(own));
    let recipe = ctx.in_repo("faceoff/image");
    let key = key(&toml, &theirs, &recipe)?;
    let folder = ctx.cache.join("faceoff/images").join(&key[..16]);
    host::made_once(ctx, &folder, |staging| {
        host::ensure_packages(ctx, debian::PACKAGES)?;
        let packages = make(ctx, &toml, &theirs, &recipe, staging)?;
        let image = Image { disk: PathBuf::new(), key, packages };
        Ok(fs::write(staging.join(CONTENT_FILE), serde_json::to_vec_pretty(&image)?)?)
    })?;
    let content = folder.join(CONTENT_FILE);
    let damaged = || format!("{}: damaged; remove {}", content.display(), folder.display());
    let image: Image = serde_json::from_slice(&fs::read(&content)?).with_context(damaged)?;
    Ok(Image { disk: folder.join(DISK_FILE), ..image })
}

fn key(toml: &Toml, theirs: &BTreeSet<String>, recipe: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(format!("{RECIPE_VERSION} {toml:?} {theirs:?}"));
    for file in host::files_below(recipe)? {
        let content = fs::read(&file)?;
        hash.update(format!("{} {} ", file.strip_prefix(recipe)?.display(), content.len()));
        hash.update(content);
    }
    Ok(hex(&hash.finalize()))
}

/// Makes the file system in a folder, and returns the versions of its packages.
fn make(
    ctx: &Context,
    toml: &Toml,
    theirs: &BTreeSet<String>,
    recipe: &Path,
    folder: &Path,
) -> Result<BTreeMap<String, String>> {
    let step = ctx.progress.step(&format!("making the Debian image ({})", toml.suite));
    let log = |name: &str| ctx.out.join(format!("logs/faceoff-{name}.log"));
    fs::create_dir(folder)?;
    let packages: Vec<&str> = toml.packages.iter().chain(theirs).map(String::as_str).collect();
    let tree = folder.join("tree");
    let tree = debian::Tree::bootstrap(&step, tree, &toml.suite, Some(&toml.mirror), &packages, &log("debootstrap"))?;

    step.detail("setting it up");
    let mut copy = host::as_root("cp")?;
    copy.args(["-rT", "--no-preserve=ownership"]).arg(recipe.join("files")).arg(tree.path());
    host::output(&mut copy)?;
    let mut setup = tree.chroot()?;
    setup.args(["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-c"]);
    setup.arg(fs::read_to_string(recipe.join("setup.sh")).context("faceoff/image/setup.sh")?);
    setup.arg("setup.sh").args(theirs);
    host::run_step(&step, &mut setup, &log("setup"))?;
    let mut query = tree.chroot()?;
    query.args(["dpkg-query", "-W", "-f", "${Package} ${Version}\\n"]);
    let listing = host::output(&mut query)?;

    debian::write_image(&step, tree.path(), &folder.join(DISK_FILE), "faceoff", toml.size, &log("mke2fs"))?;
    let packages = versions(&listing)?;
    step.done("");
    Ok(packages)
}

/// Parses lines of `package version`.
fn versions(listing: &str) -> Result<BTreeMap<String, String>> {
    let pairs = listing.lines().map(|line| {
        let (name, version) = line.split_once(' ').with_context(|| format!("dpkg-query: unexpected \"{line}\""))?;
        Ok((name.to_owned(), version.to_owned()))
    });
    let all: BTreeMap<String, String> = pairs.collect::<Result<_>>()?;
    ensure!(!all.is_empty(), "dpkg-query lists no package");
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_depends_on_packages_and_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("files")).unwrap();
        fs::write(dir.path().join("files/a"), "1").unwrap();
        let toml = |packages: &[&str]| Toml {
            suite: "bookworm".into(),
            mirror: "m".into(),
            size: 1,
            packages: packages.iter().map(|&p| p.to_owned()).collect(),
        };
        let key = |packages: &[&str], theirs: &[&str]| {
            key(&toml(packages), &theirs.iter().map(|&p| p.to_owned()).collect(), dir.path()).unwrap()
        };
        let first = key(&["cron"], &[]);
        assert_eq!(first, key(&["cron"], &[]));
        assert_ne!(first, key(&["cron", "dbus"], &[]));
        assert_ne!(first, key(&["cron"], &["nohang"]));
        fs::write(dir.path().join("files/a"), "2").unwrap();
        let changed = key(&["cron"], &[]);
        assert_ne!(first, changed);
        fs::rename(dir.path().join("files/a"), dir.path().join("files/b")).unwrap();
        assert_ne!(changed, key(&["cron"], &[]));
    }

    #[test]
    fn versions_are_read_and_nonsense_is_refused() {
        assert_eq!(versions("cron 3.0\nnohang 0.2.0-1.1\n").unwrap()["nohang"], "0.2.0-1.1");
        assert!(versions("").is_err());
        assert!(versions("cron\n").unwrap_err().to_string().contains("\"cron\""));
    }

    /// Checks the files of this checkout.
    #[test]
    fn the_recipe_is_sound() {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let toml: Toml = toml::from_str(&fs::read_to_string(repo.join("faceoff/image.toml")).unwrap()).unwrap();
        assert_eq!(toml.suite, "bookworm");
        let recipe = repo.join("faceoff/image");
        assert!(host::files_below(&recipe).unwrap().contains(&recipe.join("files/etc/systemd/system/faceoff.service")));
    }
}
