// SPDX-License-Identifier: GPL-2.0-only
//! Builds a kernel or finds it in the cache, and removes old builds from the cache.

use fs_err::{self as fs, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::WrongUsage;
use crate::arch::Arch;
use crate::content::{Content, hex};
use crate::context::Context;
use crate::host::{self, Staging};
use crate::kernel::config::{self, Request};
use crate::kernel::kinds::{Kernel, Tree, Variant};
use crate::kernel::make::{self, set_time};
use crate::kernel::source::{self, Source};
use crate::kernel::topics::{self, Topic};

/// Part of the key of every kernel. Increment it when the way kernels are built changes.
pub(super) const RECIPE_VERSION: &str = "2";
/// Written last, so a folder that has it is a complete build.
const MARKER_FILE: &str = "memreap-build.json";
/// How many builds of each variant stay in the cache, and all that were used within [`ABANDONED_AFTER`].
const MAX_CACHED_BUILDS: usize = 6;
/// Unfinished work of this age belongs to a run that was killed: no build takes a day.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);

// Files of a build, relative to its folder.
const RELEASE_FILE: &str = "include/config/kernel.release";
/// What is kept of a build besides the bootable image. It is valid only if all of them exist.
const PRODUCTS: [&str; 4] = [RELEASE_FILE, ".config", "System.map", "vmlinux"];

/// The content of [`MARKER_FILE`].
#[derive(Serialize, Deserialize)]
struct Marker {
    key: String,
    release: String,
    /// Checksum of the bootable image, which detects a file that lost its data in a power failure.
    sha256: String,
}

/// Builds a kernel, or takes it from the cache.
///
/// # Errors
/// When the tree is not for the series, the source or a package is missing, a patch does not apply, a requested symbol
/// does not take effect, or the build fails. The message of a failed build has the compiler's errors, the end of the
/// log and its path.
pub fn build(ctx: &Context, tree: Tree, variant: Variant) -> Result<Kernel> {
    let wrong = || WrongUsage(format!("{tree}: there is no such control kernel of Linux {}", ctx.series.name));
    ensure!(tree.is_of_series(ctx), wrong());
    make::prepare_host(ctx)?;
    let source = source::get(ctx)?;
    let plan = Plan::new(ctx, &source, tree, variant)?;
    if let Some(kernel) = plan.finished() {
        return Ok(kernel);
    }
    let _lock = host::lock(ctx, &ctx.cache.join("locks").join(&plan.key))?;
    if let Some(kernel) = plan.finished() {
        return Ok(kernel);
    }
    plan.run(ctx)?;
    prune(ctx, variant);
    plan.finished().with_context(|| format!("{}: the build just finished is not valid", plan.dir.display()))
}

/// Returns the source tree with the patches of `tree`, without a build.
///
/// # Errors
/// When the source is missing, or a patch does not apply.
pub(super) fn tree(ctx: &Context, tree: Tree) -> Result<PathBuf> {
    let plan = Plan::new(ctx, &source::get(ctx)?, tree, Variant::Slim)?;
    plan.ensure_tree(ctx)?;
    Ok(plan.tree_dir)
}

/// The inputs and the output folder of one build.
struct Plan {
    source: Source,
    tree: Tree,
    variant: Variant,
    topics: Vec<Topic>,
    requests: Vec<Request>,
    key: String,
    tree_dir: PathBuf,
    dir: PathBuf,
    /// The bootable image, relative to that folder.
    image: PathBuf,
}

impl Plan {
    fn new(ctx: &Context, source: &Source, tree: Tree, variant: Variant) -> Result<Self> {
        let topics = topics::changes(tree, &ctx.repo, &ctx.series)?;
        let requests = config::requests(ctx, &topics, variant, tree.fragment(&ctx.repo).as_deref())?;
        let tree_key = tree_key(source, &topics)?;
        let compiler = compiler_version(ctx.arch)?;
        let key = key(
            &[
                "build",
                RECIPE_VERSION,
                &source.version.full,
                &tree.to_string(),
                &config::fragment_text(&requests),
                &compiler,
            ],
            &topics,
        )?;
        let tree_dir = ctx.cache.join("trees").join(&tree_key[..16]);
        let dir = tree_dir.join(format!("{variant}{}-{}", ctx.arch.suffix(), &key[..16]));
        let image = ctx.arch.image_file();
        Ok(Self { source: source.clone(), tree, variant, topics, requests, key, tree_dir, dir, image })
    }

    /// Returns the files that are kept.
    fn products(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.image.as_path()).chain(PRODUCTS.iter().map(Path::new))
    }

    /// Returns the kernel if the cache has a complete and undamaged build.
    fn finished(&self) -> Option<Kernel> {
        let marker_path = self.dir.join(MARKER_FILE);
        let marker: Marker = serde_json::from_slice(&fs::read(&marker_path).ok()?).ok()?;
        let bzimage = self.dir.join(&self.image);
        let sound = marker.key == self.key
            && marker.sha256 == sha256(&fs::read(&bzimage).ok()?)
            && self.products().all(|p| self.dir.join(p).is_file());
        if !sound {
            return None;
        }
        // The modification time is the time of last use. Without write access the build is pruned earlier.
        let _ = File::options().append(true).open(&marker_path).and_then(|f| f.set_modified(SystemTime::now()));
        Some(Kernel { bzimage, source_dir: self.tree_dir.clone(), release: marker.release, key: marker.key })
    }

    fn run(&self, ctx: &Context) -> Result<()> {
        self.ensure_tree(ctx)?;
        let what =
            format!("building {}/{}{} {}", self.tree, self.variant, ctx.arch.suffix(), self.source.version.release());
        let step = ctx.progress.step(&what);
        let log = ctx.out.join(format!("logs/build-{}-{}-{}.log", ctx.series.name, self.tree, self.variant));
        let work = Staging::folder(&self.tree_dir.join(format!("work-{}", &self.key[..16])))?;
        step.detail("configuring");
        config::configure(ctx, &self.tree_dir, work.path(), &self.requests, &log)?;
        let counter =
            ctx.cache.join(format!("steps-{}-{}-{}{}", ctx.series.name, self.tree, self.variant, ctx.arch.suffix()));
        let mut command = make::make(ctx, &self.tree_dir, work.path());
        command.arg(ctx.arch.image_target());
        make::run_make(ctx, &step, &mut command, &log, Some(&counter))?;
        self.keep(work)?;
        step.done("built");
        Ok(())
    }

    /// Makes the source tree if it does not exist: hard links to the pristine source, then the patches.
    fn ensure_tree(&self, ctx: &Context) -> Result<()> {
        host::made_once(ctx, &self.tree_dir, |staging| {
            let what = format!("preparing the {} tree {}", self.tree, self.source.version.release());
            let step = ctx.progress.step(&what);
            make::hard_link_copy(&self.source.dir, staging)?;
            topics::apply_all(&self.topics, staging).with_context(|| format!("on {}", self.source.version.full))?;
            if !self.tree_dir.ends_with(&tree_key(&self.source, &self.topics)?[..16]) {
                bail!("kernel/ was edited while its topics were applied; run this again");
            }
            // The copy has the source's modification time. From now on it is the time of last use.
            set_time(staging, SystemTime::now())?;
            step.done("");
            Ok(())
        })
    }

    /// Moves what is kept of a build into the cache.
    fn keep(&self, work: Staging) -> Result<()> {
        for product in self.products() {
            if !work.path().join(product).is_file() {
                bail!("make succeeded but {} is missing in {}", product.display(), work.path().display());
            }
        }
        let release = fs::read_to_string(work.path().join(RELEASE_FILE)).context("reading the kernel's release")?;
        let bzimage = fs::read(work.path().join(&self.image)).context("reading the bootable image")?;
        let marker = Marker { key: self.key.clone(), release: release.trim().to_owned(), sha256: sha256(&bzimage) };
        let kept = Staging::begin(&self.dir)?;
        for product in self.products() {
            let to = kept.path().join(product);
            to.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::rename(work.path().join(product), &to))?;
        }
        let path = kept.path().join(MARKER_FILE);
        File::create(&path)
            .and_then(|mut f| f.write_all(&serde_json::to_vec_pretty(&marker)?).and_then(|()| f.sync_all()))?;
        kept.publish(&self.dir)
    }
}
pub(super) fn compiler_version(arch: Arch) -> Result<String> {
    let first_line = |tool: &str| -> Result<String> {
        let text = host::output(host::tool(format!("{}{tool}", arch.tool_prefix())).arg("--version"))?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    };
    Ok(format!("{}\n{}", first_line("gcc")?, first_line("ld")?))
}

fn tree_key(source: &Source, topics: &[Topic]) -> Result<String> {
    key(&["tree", &source.version.full], topics)
}

pub(super) fn key(parts: &[&str], topics: &[Topic]) -> Result<String> {
    let mut content = Content::default();
    parts.iter().for_each(|part| content.add(part));
    topics::digest(topics, &mut content)?;
    Ok(content.key())
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Removes all but the most recently used builds of `variant`, and what killed runs left behind:
/// unfinished work and trees without a build. Errors are ignored: what remains only takes space.
fn prune(ctx: &Context, variant: Variant) {
    let prefix = format!("{variant}{}-", ctx.arch.suffix());
    // Followed by a key, and not by the name of an architecture.
    let is_of_variant = |name: &str| name.strip_prefix(&prefix).is_some_and(|key| !key.contains('-'));
    let trees = folders(&ctx.cache.join("trees"));
    let builds_in = |tree: &Path| folders(tree).into_iter().filter(|f| f.join(MARKER_FILE).is_file());
    let mut builds: Vec<(SystemTime, PathBuf)> = trees
        .iter()
        .flat_map(|tree| builds_in(tree))
        .filter(|build| build.file_name().is_some_and(|n| is_of_variant(&n.to_string_lossy())))
        .filter_map(|build| Some((build.join(MARKER_FILE).metadata().ok()?.modified().ok()?, build)))
        .collect();
    builds.sort();
    for (_, build) in builds.iter().rev().skip(MAX_CACHED_BUILDS) {
        // A comparison may still boot one that was used lately.
        if is_old(&build.join(MARKER_FILE)) {
            let _ = host::remove_any(build);
        }
    }
    for tree in trees {
        let is_work = |f: &PathBuf| f.file_name().is_some_and(|n| n.to_string_lossy().starts_with("work-"));
        for work in folders(&tree).iter().filter(|f| is_work(f) && is_old(f)) {
            let _ = host::remove_any(work);
        }
        if builds_in(&tree).next().is_none() && is_old(&tree) {
            let name = tree.file_name().unwrap_or_default();
            let _ = host::remove_any(&ctx.cache.join("headers").join(name));
            let _ = host::remove_any(&tree);
        }
    }
}

/// Whether no running lab can be using what is at the path.
fn is_old(path: &Path) -> bool {
    let age = path.metadata().ok().and_then(|m| m.modified().ok()?.elapsed().ok());
    age.is_some_and(|age| age > ABANDONED_AFTER)
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(of) else { return Vec::new() };
    entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_with_every_part() {
        let base = key(&["build", "1", "6.12.117-1"], &[]).unwrap();
        assert_eq!(base.len(), 64);
        assert_eq!(base, key(&["build", "1", "6.12.117-1"], &[]).unwrap());
        assert_ne!(base, key(&["build", "1", "6.12.117-2"], &[]).unwrap());
        assert_ne!(base, key(&["build", "16", ".12.117-1"], &[]).unwrap(), "parts do not run together");
    }

    #[test]
    fn old_builds_and_abandoned_work_go() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = Context { cache: dir.path().into(), ..Context::below(dir.path()) };
        let hours_ago = |h| SystemTime::now() - Duration::from_secs(h * 3600);
        let folder = |path: &str, age: u64| {
            let path = dir.path().join("trees").join(path);
            fs::create_dir_all(&path).unwrap();
            set_time(&path, hours_ago(age)).unwrap();
            path
        };
        let build = |path: &str, age: u64| {
            let path = folder(path, age);
            fs::write(path.join(MARKER_FILE), "").unwrap();
            set_time(&path.join(MARKER_FILE), hours_ago(age)).unwrap();
            path
        };
        let slim: Vec<PathBuf> = (0..8).map(|i| build(&format!("a/slim-{i}"), 100 + i)).collect();
        let (debug, arm64) = (build("b/debug-0", 500), build("a/slim-arm64-0", 500));
        let (at_work, left) = (folder("a/work-1.partial", 1), folder("a/work-2.partial", 48));
        let (young, old) = (folder("young", 1), folder("old", 48));
        prune(&ctx, Variant::Slim);
        let there: Vec<bool> = slim.iter().map(|b| b.exists()).collect();
        assert_eq!(there, [true, true, true, true, true, true, false, false]);
        assert!(debug.exists() && arm64.exists(), "another variant, another architecture");
        assert!(at_work.exists() && !left.exists());
        assert!(young.exists() && !old.exists());
    }

    #[test]
    fn a_build_counts_only_with_its_marker_and_whole_bzimage() {
        let dir = tempfile::tempdir().unwrap();
        let version = source::PackageVersion::parse("6.12", "6.12.117-1").unwrap();
        let plan = Plan {
            source: Source { version, dir: dir.path().join("pristine") },
            tree: Tree::Stock,
            variant: Variant::Slim,
            topics: Vec::new(),
            requests: Vec::new(),
            key: "k".repeat(64),
            tree_dir: dir.path().join("tree"),
            dir: dir.path().join("tree/slim-k"),
            image: "arch/x86/boot/bzImage".into(),
        };
        let work = || {
            let work = Staging::begin(&plan.tree_dir.join("work-k")).unwrap();
            for product in plan.products().chain([Path::new("mm/mmap.o")]) {
                let path = work.path().join(product);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "6.12.117\n").unwrap();
            }
            work
        };
        assert!(plan.finished().is_none());
        plan.keep(work()).unwrap();
        let kernel = plan.finished().unwrap();
        assert_eq!((kernel.release.as_str(), kernel.key.len()), ("6.12.117", 64));
        assert!(!plan.dir.join("mm").exists(), "objects are not kept");

        fs::write(&kernel.bzimage, "").unwrap();
        assert!(plan.finished().is_none(), "a damaged bzImage");
        plan.keep(work()).unwrap();
        assert!(plan.finished().is_some());
        fs::remove_file(plan.dir.join(MARKER_FILE)).unwrap();
        assert!(plan.finished().is_none(), "no marker");
        let incomplete = work();
        fs::remove_file(incomplete.path().join("vmlinux")).unwrap();
        assert!(plan.keep(incomplete).unwrap_err().to_string().contains("vmlinux is missing"));
    }
}
