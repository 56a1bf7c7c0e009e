// SPDX-License-Identifier: GPL-2.0-only
//! Debian's package `linux-source-6.12`: finds the versions that apt offers, downloads and unpacks them.
//!
//! A tree is unpacked once into `<cache>/source/<package version>`. It is read-only from then on, because
//! other trees are hard links to it.

use fs_err as fs;
use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::context::Context;
use crate::host;
use crate::progress::Step;

/// The kernel series that the topics are made for.
pub const SERIES: &str = "6.12";
const PACKAGE: &str = "linux-source-6.12";

/// One version of the source package, for example `6.12.117-1~deb12u1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageVersion {
    /// The version as apt writes it.
    pub full: String,
    /// The N of 6.12.N.
    pub patch_level: u32,
}

impl PackageVersion {
    /// Parses `6.12.N-<Debian revision>`; returns `None` for anything else.
    pub fn parse(full: &str) -> Option<Self> {
        let upstream = full.split('-').next()?;
        let patch_level = upstream.strip_prefix(SERIES)?.strip_prefix('.')?.parse().ok()?;
        Some(Self { full: full.to_owned(), patch_level })
    }

    /// Returns the kernel's release, `6.12.N`.
    pub fn release(&self) -> String {
        format!("{SERIES}.{}", self.patch_level)
    }

    /// Whether `wanted`, a release or a full package version, names this version.
    fn is(&self, wanted: &str) -> bool {
        self.full == wanted || self.release() == wanted
    }
}

/// A pristine kernel tree.
#[derive(Clone, Debug)]
pub struct Source {
    /// The package it came from.
    pub version: PackageVersion,
    /// The tree. Never write in it: other trees are hard links to it.
    pub dir: PathBuf,
}

/// Returns the source to use: the requested version, else the newest that apt offers, else the newest in
/// the cache (with a note). Downloads and unpacks it if necessary.
///
/// # Errors
/// When apt does not offer the version and it is not in the cache, or the download or the
/// unpacking fails.
pub fn get(ctx: &Context) -> Result<Source> {
    let version = match select(ctx, &offered(ctx)?) {
        Ok(version) => version,
        Err(e) => {
            let cached = cached(ctx);
            let Ok(version) = select(ctx, &cached) else { return Err(e) };
            ctx.progress.note(&format!("apt cannot provide it ({e:#}); using the cached {}", version.full));
            version
        }
    };
    match fetch(ctx, &version) {
        Err(e) if ctx.kernel.is_none() => {
            let Some(other) = cached(ctx).into_iter().next() else { return Err(e) };
            ctx.progress.warn(&format!("cannot get {}: {e:#}", version.full));
            ctx.progress.note(&format!("using the cached {}", other.full));
            fetch(ctx, &other)
        }
        result => result,
    }
}

fn select(ctx: &Context, versions: &[PackageVersion]) -> Result<PackageVersion> {
    let Some(wanted) = &ctx.kernel else {
        return versions.first().cloned().with_context(|| {
            format!(
                "apt offers no {PACKAGE}; add an archive that has it (Debian 12's security \
                 archive or Debian 13) and run: sudo apt-get update"
            )
        });
    };
    if let Some(version) = versions.iter().find(|v| v.is(wanted)) {
        return Ok(version.clone());
    }
    let offers: Vec<String> = versions.iter().map(PackageVersion::release).collect();
    let offers = if offers.is_empty() { "none".to_owned() } else { offers.join(" ") };
    bail!("kernel {wanted}: apt offers no such {PACKAGE}; it offers: {offers}")
}

/// Returns the versions in apt's lists, newest first. If the lists have none, they are refreshed from the
/// network, as far as that is permitted.
///
/// # Errors
/// When `apt-get update` fails and the cache has no tree either.
pub fn offered(ctx: &Context) -> Result<Vec<PackageVersion>> {
    let listed = listed();
    if !listed.is_empty() {
        return Ok(listed);
    }
    match host::refresh_apt_lists(ctx) {
        Err(e) if cached(ctx).is_empty() => Err(e),
        Ok(true) => Ok(self::listed()),
        _ => Ok(Vec::new()),
    }
}

/// Returns the versions in apt's current lists, newest first; none if there is no apt.
pub fn listed() -> Vec<PackageVersion> {
    let mut madison = Command::new("apt-cache");
    host::output(madison.args(["madison", PACKAGE])).map(|text| parse_madison(&text)).unwrap_or_default()
}

/// Parses the output of `apt-cache madison`: lines of `package | version | origin`.
fn parse_madison(text: &str) -> Vec<PackageVersion> {
    let mut versions: Vec<PackageVersion> = Vec::new();
    for line in text.lines() {
        let mut fields = line.split('|').map(str::trim);
        let (Some(PACKAGE), Some(version), Some(place)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if !place.ends_with("Packages") {
            continue;
        }
        let Some(version) = PackageVersion::parse(version) else { continue };
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    // The sort is stable: two packages of one release keep apt's order, newest first.
    versions.sort_by_key(|v| Reverse(v.patch_level));
    versions
}

fn folder(ctx: &Context, version: &PackageVersion) -> PathBuf {
    ctx.cache.join("source").join(&version.full)
}

/// Returns the versions whose trees are in the cache, newest first.
pub fn cached(ctx: &Context) -> Vec<PackageVersion> {
    let Ok(entries) = fs::read_dir(ctx.cache.join("source")) else { return Vec::new() };
    let mut versions: Vec<PackageVersion> = entries
        .flatten()
        .filter(|e| e.path().is_dir())
        .filter_map(|e| PackageVersion::parse(e.file_name().to_str()?))
        .filter(|v| !v.full.ends_with(".partial"))
        .collect();
    versions.sort_by_key(|v| Reverse((v.patch_level, v.full.clone())));
    versions
}

/// Returns the pristine tree of `version`; downloads and unpacks it if the cache does not have it.
///
/// # Errors
/// When the download (which apt verifies) or the unpacking fails.
pub fn fetch(ctx: &Context, version: &PackageVersion) -> Result<Source> {
    let dir = folder(ctx, version);
    let source = Source { version: version.clone(), dir: dir.clone() };
    if dir.is_dir() {
        return Ok(source);
    }
    // One lock for all versions: they share the download folder.
    let _lock = host::lock(ctx, &ctx.cache.join("source/download"))?;
    if dir.is_dir() {
        return Ok(source);
    }
    host::ensure_packages(ctx, host::SOURCE_PACKAGES)?;
    // Never published: it is removed when this function returns.
    let package = host::Staging::begin(&ctx.cache.join("source/download"))?;
    let tree = host::Staging::begin(&dir)?;
    for folder in [package.path(), tree.path()] {
        fs::create_dir_all(folder)?;
    }

    let step = ctx.progress.step(&format!("downloading {PACKAGE} {}", version.full));
    if let Err(e) = download(ctx, version, package.path(), &step) {
        // Mirrors remove old packages, so the download fails if apt's lists are old.
        if !host::refresh_apt_lists(ctx).unwrap_or(false) {
            return Err(e);
        }
        download(ctx, version, package.path(), &step)?;
    }
    step.done("downloaded");

    let step = ctx.progress.step(&format!("unpacking {PACKAGE} {}", version.full));
    unpack(ctx, package.path(), tree.path(), &step)?;
    check_release(tree.path(), version)?;
    tree.publish(&dir)?;
    step.done("unpacked");
    Ok(source)
}

fn download(ctx: &Context, version: &PackageVersion, into: &Path, step: &Step) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(["-q", "download", &format!("{PACKAGE}={}", version.full)]);
    command.current_dir(into).env("LC_ALL", "C");
    host::run_step(step, &mut command, &ctx.out.join("logs/download.log"))
        .with_context(|| format!("cannot download {PACKAGE} {}", version.full))
}

fn unpack(ctx: &Context, package: &Path, tree: &Path, step: &Step) -> Result<()> {
    let mut pipeline = Command::new("bash");
    pipeline.arg("-c").arg(
        "set -euo pipefail
         dpkg-deb --fsys-tarfile linux-source-*.deb |
         tar -xO ./usr/src/linux-source-6.12.tar.xz |
         tar -xJ --strip-components=1 --no-same-owner -C \"$1\" \
             --checkpoint=10000 --checkpoint-action='echo=%{read}T'",
    );
    pipeline.arg("unpack").arg(tree).current_dir(package).env("LC_ALL", "C");
    host::run_step(step, &mut pipeline, &ctx.out.join("logs/unpack.log"))
}

/// Checks that the tree is of the release that the package version names.
fn check_release(tree: &Path, version: &PackageVersion) -> Result<()> {
    let path = tree.join("Makefile");
    let text = fs::read_to_string(&path)?;
    let field = |name: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(name)?.trim_start().strip_prefix('='))
            .map(str::trim)
            .unwrap_or_default()
    };
    let found = format!("{}.{}.{}", field("VERSION"), field("PATCHLEVEL"), field("SUBLEVEL"));
    if found != version.release() {
        bail!("{PACKAGE} {} holds kernel {found}", version.full);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn madison_is_read_newest_first_without_doubles() {
        let text = "\
 linux-source-6.12 | 6.12.99-1 | http://deb.debian.org/debian bookworm/main amd64 Packages
 linux-source-6.12 | 6.12.117-2~deb12u1 | http://deb.debian.org/debian-security bookworm-security/main amd64 Packages
 linux-source-6.12 | 6.12.117-1~deb12u1 | http://deb.debian.org/debian-security bookworm-security/main amd64 Packages
 linux-source-6.12 | 6.12.99-1 | http://mirror.example/debian bookworm/main amd64 Packages
 linux-source-6.12 | 6.12.120-1 | http://deb.debian.org/debian bookworm/main Sources
 linux-source-6.1 | 6.1.150-1 | http://deb.debian.org/debian bookworm/main amd64 Packages
N: something apt says
";
        let versions: Vec<String> = parse_madison(text).into_iter().map(|v| v.full).collect();
        assert_eq!(versions, ["6.12.117-2~deb12u1", "6.12.117-1~deb12u1", "6.12.99-1"]);
        assert!(parse_madison("").is_empty());
    }

    #[test]
    fn versions_are_distinguished() {
        let v = PackageVersion::parse("6.12.117-1~deb12u1").unwrap();
        assert_eq!((v.patch_level, v.release().as_str()), (117, "6.12.117"));
        assert!(v.is("6.12.117") && v.is("6.12.117-1~deb12u1") && !v.is("6.12.11"));
        for other in ["6.1.117-1", "6.120.1-1", "6.12~rc3-1", "6.12.x-1"] {
            assert_eq!(PackageVersion::parse(other), None, "{other}");
        }
    }

    fn context(root: &Path, kernel: Option<&str>) -> Context {
        Context { kernel: kernel.map(str::to_owned), ..Context::below(root) }
    }

    #[test]
    fn an_unknown_version_is_refused_with_the_offer() {
        let dir = tempfile::tempdir().unwrap();
        let offer = parse_madison("linux-source-6.12 | 6.12.107-1 | x Packages");
        let error = select(&context(dir.path(), Some("6.12.5")), &offer).unwrap_err();
        assert!(error.to_string().ends_with("it offers: 6.12.107"), "{error}");
        let error = select(&context(dir.path(), None), &[]).unwrap_err();
        assert!(error.to_string().contains("apt offers no linux-source-6.12"), "{error}");
    }

    #[test]
    fn only_whole_trees_in_the_cache_count() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = context(dir.path(), None);
        for name in ["6.12.107-1", "6.12.117-1", "6.12.118-1.partial"] {
            fs::create_dir_all(ctx.cache.join("source").join(name)).unwrap();
        }
        fs::write(ctx.cache.join("source/6.12.117-1.lock"), "").unwrap();
        let cached: Vec<String> = cached(&ctx).into_iter().map(|v| v.full).collect();
        assert_eq!(cached, ["6.12.117-1", "6.12.107-1"]);
    }

    #[test]
    fn a_tree_must_be_what_its_package_says() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("Makefile"), "VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 116\n").unwrap();
        let version = PackageVersion::parse("6.12.117-1").unwrap();
        let error = check_release(dir.path(), &version).unwrap_err();
        assert_eq!(error.to_string(), "linux-source-6.12 6.12.117-1 holds kernel 6.12.116");
    }
}
