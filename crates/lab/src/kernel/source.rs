// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's source: Debian's package of the series, in the versions that apt offers, or what the user has.
//!
//! A tree is unpacked once into `<cache>/source/<package version>`. It is read-only from then on, because
//! other trees are hard links to it.

use fs_err as fs;
use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Error, Result, bail, ensure};
use walkdir::WalkDir;

use crate::WrongUsage;
use crate::content::Content;
use crate::context::Context;
use crate::host;
use crate::kernel::apt::Apt;
use crate::kernel::make;
use crate::kernel::series::{self, Series};
use crate::progress::Step;

/// One version of a kernel's source: of a Debian package, for example `6.12.117-1~deb12u1`, or of what the user has,
/// `6.12.117+` and the beginning of its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageVersion {
    /// The version as apt writes it.
    pub full: String,
    /// The N of 6.12.N.
    pub patch_level: u32,
}

impl PackageVersion {
    /// Parses `6.12.N-<Debian revision>` or `6.12.N+<checksum>` of this series; returns `None` for anything else.
    pub fn parse(series: &str, full: &str) -> Option<Self> {
        let upstream = full.split(['-', '+']).next()?;
        let patch_level = upstream.strip_prefix(series)?.strip_prefix('.')?.parse().ok()?;
        Some(Self { full: full.to_owned(), patch_level })
    }

    /// Returns the kernel's release, `6.12.N`.
    pub fn release(&self) -> String {
        self.full.split(['-', '+']).next().unwrap_or_default().to_owned()
    }

    /// Whether it is what the user has.
    pub fn is_imported(&self) -> bool {
        self.full.strip_prefix(&self.release()).is_some_and(|rest| rest.starts_with('+'))
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

/// No archive that can be reached has a package of the series, and none was kept.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoPackage(String);

/// The archive does not have a package that apt's lists have, or cannot be reached.
#[derive(Debug, thiserror::Error)]
#[error("cannot download {0}")]
struct NotDownloaded(String);

/// Returns the source to use: the requested version, else the newest that apt offers, else the newest in
/// the cache (with a note). Downloads and unpacks it if necessary.
///
/// # Errors
/// [`NoPackage`]; or when apt does not offer the version, or the download or the unpacking fails, and the cache does
/// not have it.
pub fn get(ctx: &Context) -> Result<Source> {
    let version = offered(ctx).and_then(|offered| select(ctx, &offered));
    let source = version.and_then(|version| match fetch(ctx, &version) {
        // Mirrors remove old packages.
        Err(e) if e.is::<NotDownloaded>() => {
            refresh(ctx, e)?;
            fetch(ctx, &select(ctx, &listed(ctx))?)
        }
        source => source,
    });
    source.or_else(|e| {
        let cached = cached(ctx);
        let Ok(version) = select(ctx, &cached) else { return Err(e) };
        ctx.progress.note(&format!("apt cannot provide it ({e:#}); using the cached {}", version.full));
        fetch(ctx, &version)
    })
}

/// Refreshes apt's lists, which may be old, after `error`.
///
/// # Errors
/// `error` with the remedy, where that is not permitted or fails.
pub(super) fn refresh(ctx: &Context, error: Error) -> Result<()> {
    match Apt::having(ctx).0.refresh(ctx) {
        Ok(true) => Ok(()),
        Ok(false) => Err(error.context("apt's lists may be old; run: sudo apt-get update")),
        Err(failed) => Err(error.context(format!("{failed:#}"))),
    }
}

fn select(ctx: &Context, versions: &[PackageVersion]) -> Result<PackageVersion> {
    let Some(wanted) = &ctx.kernel else {
        return versions.first().cloned().ok_or_else(|| NoPackage(without_package(&ctx.series)).into());
    };
    if let Some(version) = versions.iter().find(|v| v.is(wanted)) {
        return Ok(version.clone());
    }
    let offers: Vec<String> = versions.iter().map(PackageVersion::release).collect();
    let offers = if offers.is_empty() { "none".to_owned() } else { offers.join(" ") };
    bail!("kernel {wanted}: apt offers no such {}; it offers: {offers}", ctx.series.package)
}

/// Says that there is no package, and what to do without one.
fn without_package(series: &Series) -> String {
    let Series { name, package, .. } = series;
    let major = name.split('.').next().unwrap_or_default();
    format!(
        "apt offers no {package}; add an archive that has it and run: sudo apt-get update; or get linux-{name}.N.tar.xz \
         from https://cdn.kernel.org/pub/linux/kernel/v{major}.x/ and have it copied to the cache, once: \
         lab --kernel linux-{name}.N.tar.xz build"
    )
}

/// Returns the versions in apt's lists, newest first. If the lists have none, the lab's own lists of the series'
/// archive are looked through, or else apt's are refreshed, as far as that is permitted.
///
/// # Errors
/// When the lists cannot be had and the cache has no tree either.
fn offered(ctx: &Context) -> Result<Vec<PackageVersion>> {
    let (apt, listed) = Apt::having(ctx);
    if !listed.is_empty() {
        return Ok(listed);
    }
    match apt.refresh(ctx) {
        Err(e) if cached(ctx).is_empty() => Err(e.context(without_package(&ctx.series))),
        Ok(true) => Ok(self::listed(ctx)),
        _ => Ok(Vec::new()),
    }
}

/// Returns the versions in the lists that are on this machine, newest first; none if there is no apt.
pub fn listed(ctx: &Context) -> Vec<PackageVersion> {
    Apt::having(ctx).1
}

/// Parses the output of `apt-cache madison`: lines of `package | version | origin`.
pub(super) fn parse_madison(series: &Series, text: &str) -> Vec<PackageVersion> {
    let mut versions: Vec<PackageVersion> = Vec::new();
    for line in text.lines() {
        let mut fields = line.split('|').map(str::trim);
        let (Some(package), Some(version), Some(place)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if package != series.package || !place.ends_with("Packages") {
            continue;
        }
        let Some(version) = PackageVersion::parse(&series.name, version) else { continue };
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
        .filter_map(|e| PackageVersion::parse(&ctx.series.name, e.file_name().to_str()?))
        .filter(|v| !v.full.ends_with(".partial"))
        .collect();
    // Those that were imported come last.
    versions.sort_by_key(|v| (v.is_imported(), Reverse((v.patch_level, v.full.clone()))));
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
    let package = host::Staging::folder(&ctx.cache.join("source/download"))?;
    let tree = host::Staging::folder(&dir)?;

    let what = format!("{} {}", ctx.series.package, version.full);
    let step = ctx.progress.step(&format!("downloading {what}"));
    download(ctx, &format!("{}={}", ctx.series.package, version.full), package.path(), &step)?;
    step.done("downloaded");

    let step = ctx.progress.step(&format!("unpacking {what}"));
    unpack(ctx, package.path(), tree.path(), &step)?;
    let found = release(&fs::read_to_string(tree.path().join("Makefile"))?)?;
    ensure!(found == version.release(), "{what} holds kernel {found}");
    tree.publish(&dir)?;
    step.done("unpacked");
    Ok(source)
}

/// Downloads a package, `NAME` or `NAME=VERSION`, to a folder, from where the series' source is.
///
/// # Errors
/// When apt does not offer it, or cannot get it.
pub(super) fn download(ctx: &Context, what: &str, into: &Path, step: &Step) -> Result<()> {
    let mut command = Apt::having(ctx).0.command("apt-get");
    command.args(["-q", "download", what]).current_dir(into);
    host::run_step(step, &mut command, &ctx.out.join("logs/download.log"))
        .with_context(|| NotDownloaded(what.to_owned()))
}

/// How tar unpacks to the folder `$1`. It shows how far it is.
const TO_FOLDER: &str = "--strip-components=1 --no-same-owner -C \"$1\" \
                         --checkpoint=10000 --checkpoint-action='echo=%{read}T'";

fn unpack(ctx: &Context, package: &Path, tree: &Path, step: &Step) -> Result<()> {
    let from = format!("dpkg-deb --fsys-tarfile linux-source-*.deb | tar -xO ./usr/src/{}.tar.xz", ctx.series.package);
    run_script(ctx, &format!("{from} | tar -xJ {TO_FOLDER}"), tree, package, step)
}

/// Runs a script in a folder; `$1` is the tree that it is to make.
fn run_script(ctx: &Context, script: &str, tree: &Path, folder: &Path, step: &Step) -> Result<()> {
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", script, "unpack"]).arg(tree).current_dir(folder).env("LC_ALL", "C");
    host::run_step(step, &mut bash, &ctx.out.join("logs/unpack.log"))
}

/// Copies a kernel's source that the user has, a folder or a tarball, to the cache, and returns its version there. A
/// copy, because other trees will be hard links to it.
///
/// # Errors
/// When it is no kernel's source, or no series knows it, or the host has no room for it.
pub fn import(ctx: &Context, from: &Path) -> Result<PackageVersion> {
    host::ensure_packages(ctx, host::SOURCE_PACKAGES)?;
    let wrong = |what: &str| WrongUsage(format!("--kernel: {}: {what}", from.display()));
    if make::is_built(from) {
        return Err(wrong("a kernel was built in this folder; run make mrproper there").into());
    }
    let step = ctx.progress.step(&format!("reading {}", from.display()));
    let checksum = checksum(from)?;
    let sources = ctx.cache.join("source");
    fs::create_dir_all(&sources)?;
    let mut names = fs::read_dir(&sources)?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let full = match names.find(|name| name.ends_with(&format!("+{checksum}"))) {
        Some(known) => known,
        None => {
            step.detail("copying it to the cache");
            let tree = host::Staging::folder(&sources.join(&checksum))?;
            if from.is_dir() {
                let script = format!("tar -c --exclude-vcs . | tar -x {TO_FOLDER}");
                run_script(ctx, &script, tree.path(), from, &step)?;
            } else {
                let file = host::shell_quoted(&from.to_string_lossy());
                run_script(ctx, &format!("tar -xf {file} {TO_FOLDER}"), tree.path(), Path::new("/"), &step)
                    .map_err(|e| e.context(wrong("no tarball")))?;
            }
            let makefile = fs::read_to_string(tree.path().join("Makefile")).unwrap_or_default();
            let full = format!("{}+{checksum}", release(&makefile).map_err(|_| wrong("no kernel's source"))?);
            tree.publish(&sources.join(&full))?;
            full
        }
    };
    step.done(&full);
    PackageVersion::parse(&series::of_version(&full), &full)
        .ok_or_else(|| wrong(&format!("{full} is not a release of a series")).into())
}

/// Returns the beginning of a checksum of a file, or of the names, sizes and times of a folder's files, which another
/// state of it does not have.
fn checksum(of: &Path) -> Result<String> {
    let mut content = Content::default();
    if of.is_file() {
        content.add_file(of)?;
    } else {
        let files = WalkDir::new(of).sort_by_file_name().into_iter();
        for entry in files.filter_entry(|entry| entry.file_name() != ".git") {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                continue;
            }
            let modified = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
            content.add(entry.path().as_os_str().as_encoded_bytes());
            content.add(metadata.len().to_le_bytes());
            content.add(modified.as_nanos().to_le_bytes());
        }
    }
    Ok(content.key()[..12].to_owned())
}

/// Returns the release that a kernel's makefile says.
///
/// # Errors
/// When it says none.
pub(super) fn release(makefile: &str) -> Result<String> {
    let field = |name: &str| {
        let mut lines = makefile.lines();
        let field = lines.find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix('=')).map(str::trim);
        field.filter(|value| !value.is_empty()).with_context(|| format!("the kernel's Makefile has no {name}"))
    };
    Ok(format!("{}.{}.{}", field("VERSION")?, field("PATCHLEVEL")?, field("SUBLEVEL")?))
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
        let versions: Vec<String> = parse_madison(&series(), text).into_iter().map(|v| v.full).collect();
        assert_eq!(versions, ["6.12.117-2~deb12u1", "6.12.117-1~deb12u1", "6.12.99-1"]);
        assert!(parse_madison(&series(), "").is_empty());
    }

    #[test]
    fn versions_are_distinguished() {
        let v = PackageVersion::parse("6.12", "6.12.117-1~deb12u1").unwrap();
        assert!(!PackageVersion::parse("7.3", "7.3.4-1~bpo13+1").unwrap().is_imported());
        assert!(PackageVersion::parse("6.12", "6.12.120+0123abcd").unwrap().is_imported());
        assert_eq!((v.patch_level, v.release().as_str()), (117, "6.12.117"));
        assert!(v.is("6.12.117") && v.is("6.12.117-1~deb12u1") && !v.is("6.12.11"));
        for other in ["6.1.117-1", "6.120.1-1", "6.12~rc3-1", "6.12.x-1"] {
            assert_eq!(PackageVersion::parse("6.12", other), None, "{other}");
        }
    }

    fn series() -> Series {
        Context::below(Path::new("/nowhere")).series
    }

    fn context(root: &Path, kernel: Option<&str>) -> Context {
        Context { kernel: kernel.map(str::to_owned), ..Context::below(root) }
    }

    #[test]
    fn an_unknown_version_is_refused_with_the_offer() {
        let dir = tempfile::tempdir().unwrap();
        let offer = parse_madison(&series(), "linux-source-6.12 | 6.12.107-1 | x Packages");
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
    fn a_source_of_the_users_is_copied_once() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = context(dir.path(), None);
        let folder = dir.path().join("linux-6.12.9");
        fs::create_dir_all(folder.join("mm")).unwrap();
        fs::write(folder.join("mm/a.c"), "one").unwrap();
        let refused = import(&ctx, &folder).unwrap_err();
        assert!(refused.is::<WrongUsage>() && refused.to_string().ends_with("no kernel's source"), "{refused}");
        fs::write(folder.join("Makefile"), "VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 9\n").unwrap();
        let first = import(&ctx, &folder).unwrap();
        assert_eq!((first.release().as_str(), first.patch_level), ("6.12.9", 9));
        assert_eq!(import(&ctx, &folder).unwrap(), first);
        assert_eq!(fs::read_to_string(fetch(&ctx, &first).unwrap().dir.join("mm/a.c")).unwrap(), "one");
        assert_eq!(cached(&ctx), std::slice::from_ref(&first));
        // The user's own folder may change.
        fs::write(folder.join("mm/a.c"), "two words").unwrap();
        assert_ne!(import(&ctx, &folder).unwrap(), first);

        let tarball = dir.path().join("linux-6.12.9.tar.xz");
        let mut tar = Command::new("tar");
        host::output(tar.arg("-cJf").arg(&tarball).arg("-C").arg(dir.path()).arg("linux-6.12.9")).unwrap();
        let version = import(&ctx, &tarball).unwrap();
        assert_eq!(version.release(), "6.12.9");
        assert_eq!(fs::read_to_string(fetch(&ctx, &version).unwrap().dir.join("mm/a.c")).unwrap(), "two words");

        fs::write(folder.join(".config"), "").unwrap();
        assert!(import(&ctx, &folder).unwrap_err().to_string().contains("mrproper"));
    }

    #[test]
    fn a_tree_says_its_release() {
        assert_eq!(release("VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 116\n").unwrap(), "6.12.116");
        assert!(release("all:\n").unwrap_err().to_string().ends_with("Makefile has no VERSION"));
    }
}
