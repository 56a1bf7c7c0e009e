// SPDX-License-Identifier: GPL-2.0-only
//! Kernels of the user's: a source folder as it is, or a commit of a git repository with patches on it.
//!
//! They are built with the lab's makefile arguments and configuration, but without topics, and by
//! incremental builds: make knows what is out of date. In the cache:
//!
//! ```text
//! user/<folder>/source                 a clone of the repository, at the commit that was last built
//! user/<folder>/source/build-<variant> its build: directly below the source, for ccache; see [`super`]
//! user/<folder>/build-<variant>        the build of a folder as it is
//! user/<folder>/images/<key>           the bzImage of each kernel, and `missing`, the symbols that did not take effect
//! ```

use fs_err as fs;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::WrongUsage;
use crate::context::Context;
use crate::host;
use crate::kernel::config::Request;
use crate::kernel::series::Series;
use crate::kernel::{Variant, build, config, make, source};

/// Where a kernel's source comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// A kernel tree; `None` for Debian's.
    pub folder: Option<PathBuf>,
    /// A commit in it, by whatever name git knows; `None` for the folder as it is, or with patches for HEAD.
    pub commit: Option<String>,
    /// Patches or mailboxes, which are applied in this order.
    pub patches: Vec<PathBuf>,
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.folder {
            Some(folder) => write!(f, "{}", folder.display())?,
            None => write!(f, "debian")?,
        }
        self.commit.iter().try_for_each(|commit| write!(f, "@{commit}"))?;
        self.patches.iter().try_for_each(|patch| write!(f, "+{}", patch.display()))
    }
}

/// A kernel of the user's.
pub struct UserKernel {
    /// The bootable image.
    pub bzimage: PathBuf,
    /// What it is from, for reports.
    pub source: String,
    /// The symbols of the user's fragment that its tree does not have.
    pub lacks: Vec<String>,
}

/// Builds a kernel, or takes it from the cache. `fragment` overrides the variant's configuration.
///
/// # Errors
/// When the folder is no kernel tree, git does not know the commit, a patch does not apply, a symbol of the
/// configuration does not take effect, or the build fails.
pub fn build_user(ctx: &Context, sources: &Sources, variant: Variant, fragment: Option<&Path>) -> Result<UserKernel> {
    make::prepare_host(ctx)?;
    host::ensure_packages(ctx, host::SERIES_PACKAGES)?;
    let fragment = fragment.map(|path| path.to_str().context("--config: not UTF-8")).transpose()?;
    let folder = match &sources.folder {
        Some(folder) => fs::canonicalize(folder)?,
        None => debian_repository(ctx)?,
    };
    let home = ctx.cache.join("user").join(&build::key(&[&folder.to_string_lossy()], &[])?[..16]);
    let _lock = host::lock(ctx, &home)?;
    let of_git = sources.commit.is_some() || !sources.patches.is_empty() || sources.folder.is_none();
    let commit = match of_git {
        true => Some(resolve(&folder, sources.commit.as_deref().unwrap_or("HEAD"))?),
        false => None,
    };
    let described = match &commit {
        Some(commit) => format!("{sources} ({}), {variant}", &commit[..12.min(commit.len())]),
        None => format!("{sources}, {variant}"),
    };
    let makefile = match &commit {
        Some(commit) => host::output(git(&folder).arg("show").arg(format!("{commit}:Makefile"))).unwrap_or_default(),
        None => fs::read_to_string(folder.join("Makefile")).unwrap_or_default(),
    };
    let mut ctx = ctx.clone();
    if let Ok(release) = source::release(&makefile)
        && let Some(series) = Series::closest(&ctx.repo, &release)?
    {
        ctx.series = series;
    }
    let ctx = &ctx;
    let requests = config::requests(ctx, &[], variant, fragment)?;
    let config = config::fragment_text(&requests);
    let image = |key: &str| home.join("images").join(&key[..16]).join("bzImage");
    let mut known = None;
    if let Some(commit) = &commit {
        let mut parts =
            vec![build::RECIPE_VERSION.to_owned(), commit.clone(), config, build::compiler_version(ctx.arch)?];
        for patch in &sources.patches {
            parts.push(fs::read_to_string(patch)?);
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let bzimage = image(&build::key(&parts, &[])?);
        if bzimage.is_file() {
            return Ok(finished(bzimage, described, &requests));
        }
        known = Some(bzimage);
    }
    let tree = match &commit {
        Some(commit) => check_out(ctx, &folder, &home.join("source"), commit, &sources.patches)?,
        None => folder,
    };
    let shown = tree.display();
    ensure!(
        commit.is_some() || !make::is_built(&tree),
        WrongUsage(format!("{shown}: a kernel was built in this folder: name a commit, {shown}@HEAD, or make a copy"))
    );
    let arch = ctx.arch.kernel_name();
    ensure!(
        tree.join("Kconfig").is_file() && tree.join("arch").join(arch).is_dir(),
        "{shown}: no kernel source (Kconfig or arch/{arch} is missing)"
    );
    let step = ctx.progress.step(&format!("building {described}"));
    let work = if commit.is_some() { &tree } else { &home }.join(format!("build-{variant}{}", ctx.arch.suffix()));
    fs::create_dir_all(&work)?;
    let log = ctx.out.join("logs/build-user.log");
    step.detail("configuring");
    let unknown = config::configure_any(ctx, &tree, &work, &requests, &log)?;
    if !unknown.is_empty() {
        ctx.progress.note(&format!("{described}: without {}, which this kernel does not have so", unknown.join(" ")));
    }
    make::run_make(ctx, &step, make::make(ctx, &tree, &work).arg(ctx.arch.image_target()), &log, None)?;
    let made = work.join(ctx.arch.image_file());
    let bytes = fs::read(&made).with_context(|| format!("make succeeded but made no {}", made.display()))?;
    // A folder as it is has no name for its state but what is built of it.
    let bzimage = known.unwrap_or_else(|| image(&build::sha256(&bytes)));
    let staging = host::Staging::begin(&bzimage)?;
    fs::write(staging.path(), &bytes)?;
    fs::write(missing_file(&bzimage), unknown.join(" "))?;
    staging.publish(&bzimage)?;
    step.done("built");
    Ok(finished(bzimage, described, &requests))
}

fn missing_file(bzimage: &Path) -> PathBuf {
    bzimage.with_file_name("missing")
}

/// Returns a kernel in the cache, with the symbols that did not take effect in what the reports call it.
fn finished(bzimage: PathBuf, described: String, requests: &[Request]) -> UserKernel {
    let missing = fs::read_to_string(missing_file(&bzimage)).unwrap_or_default();
    let without = if missing.is_empty() { String::new() } else { format!(", without {missing}") };
    UserKernel { bzimage, source: described + &without, lacks: config::users_among(requests, &missing) }
}

fn git(folder: &Path) -> Command {
    let mut command = host::tool("git");
    // Another user's repository is only read. To pack a kernel takes minutes, and gains nothing here.
    command.args(["-c", "safe.directory=*", "-c", "advice.detachedHead=false", "-c", "gc.auto=0", "-C"]).arg(folder);
    // The user's hooks, signatures and line ends are for the user's commits.
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    command
}

/// Returns the full name of a commit.
fn resolve(folder: &Path, commit: &str) -> Result<String> {
    let name = format!("{commit}^{{commit}}");
    let found = host::output(git(folder).args(["rev-parse", "--verify", "--quiet", "--end-of-options", &name]));
    let found = found.with_context(|| format!("{}: git knows no commit '{commit}'", folder.display()))?;
    Ok(found.trim().to_owned())
}

/// Checks a commit out in a repository of the lab's own, which shares the objects of the user's, and applies the
/// patches. Files that are the same in the last commit keep their times, so make does not compile them again.
fn check_out(ctx: &Context, repository: &Path, clone: &Path, commit: &str, patches: &[PathBuf]) -> Result<PathBuf> {
    let step = ctx.progress.step(&format!("checking out {commit}"));
    fs::create_dir_all(clone)?;
    host::output(git(clone).args(["init", "--quiet"]))?;
    let path = ["rev-parse", "--path-format=absolute", "--git-path", "objects"];
    let objects = host::output(git(repository).args(path))?;
    fs::write(clone.join(".git/objects/info/alternates"), objects)?;
    // Of a lab that was killed: the lock of this one is the folder's.
    host::remove_any(&clone.join(".git/index.lock"))?;
    host::output(git(clone).args(["checkout", "--quiet", "--force", "--detach", commit])).with_context(|| {
        format!("{} has not all of {commit}; if it is a partial clone, check that out there", repository.display())
    })?;
    // New files of patches that were applied before, but not the builds. Also those that git is to ignore: Debian's 7.3
    // has it ignore all.
    host::output(git(clone).args(["clean", "--quiet", "--force", "-dx", "--exclude=/build-*"]))?;
    for patch in patches {
        let patch = fs::canonicalize(patch)?;
        host::output(git(clone).arg("apply").arg(&patch))
            .with_context(|| format!("{} does not apply to {commit}", patch.display()))?;
    }
    step.done("");
    Ok(clone.to_owned())
}

/// Returns a git repository of Debian's source with one commit; makes it the first time.
fn debian_repository(ctx: &Context) -> Result<PathBuf> {
    let source = source::get(ctx)?;
    let repository = ctx.cache.join("user").join(format!("debian-{}", source.version.full.replace('~', "-")));
    host::made_once(ctx, &repository, |staging| {
        let step = ctx.progress.step("making a git repository of Debian's source");
        make::hard_link_copy(&source.dir, staging)?;
        host::output(git(staging).args(["init", "--quiet"]))?;
        commit_all(staging, &source.version.full)?;
        step.done("");
        Ok(())
    })?;
    Ok(repository)
}

/// Commits all files, also those that git is to ignore.
fn commit_all(repository: &Path, message: &str) -> Result<()> {
    host::output(git(repository).args(["add", "--force", "--all"]))?;
    let name = ["-c", "user.name=lab", "-c", "user.email=lab@localhost"];
    host::output(git(repository).args(name).args(["commit", "--quiet", "--message", message]))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with two commits, and a patch on the second.
    fn repository(dir: &Path) -> (PathBuf, [String; 2], PathBuf) {
        let folder = dir.join("linux");
        fs::create_dir(&folder).unwrap();
        let commit = |text: &str| {
            fs::write(folder.join("a.c"), text).unwrap();
            commit_all(&folder, text).unwrap();
            resolve(&folder, "HEAD").unwrap()
        };
        host::output(git(&folder).args(["init", "--quiet"])).unwrap();
        fs::write(folder.join(".gitignore"), "/*\n").unwrap();
        let commits = [commit("one\n"), commit("two\n")];
        let patch = dir.join("fix.patch");
        let text = "--- a/a.c\n+++ b/a.c\n@@ -1 +1 @@\n-two\n+three\n--- /dev/null\n+++ b/b.c\n@@ -0,0 +1 @@\n+new\n";
        fs::write(&patch, text).unwrap();
        (folder, commits, patch)
    }

    #[test]
    fn a_commit_is_checked_out_with_its_patches_and_without_earlier_ones() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = Context::below(dir.path());
        let (folder, [one, two], patch) = repository(dir.path());
        assert_eq!(resolve(&folder, "HEAD~1").unwrap(), one);
        let clone = dir.path().join("cache/clone");
        let patched = [patch.clone()];
        for (commit, patches, text, new) in
            [(&one, &[][..], "one\n", false), (&two, &patched[..], "three\n", true), (&two, &[], "two\n", false)]
        {
            let tree = check_out(&ctx, &folder, &clone, commit, patches).unwrap();
            assert_eq!(fs::read_to_string(tree.join("a.c")).unwrap(), text);
            assert_eq!(tree.join("b.c").exists(), new, "{text}");
        }
        // As a lab leaves it that was killed meanwhile.
        fs::write(clone.join(".git/index.lock"), "").unwrap();
        let refused = check_out(&ctx, &folder, &clone, &one, &patched).unwrap_err();
        assert!(format!("{refused:#}").contains("fix.patch does not apply to"), "{refused:#}");
        // The user's own folder is as it was.
        assert_eq!(fs::read_to_string(folder.join("a.c")).unwrap(), "two\n");
        let unknown = format!("{:#}", resolve(&folder, "--help").unwrap_err());
        assert!(unknown.contains("git knows no commit '--help'"), "{unknown}");
    }

    #[test]
    fn a_commit_of_a_shallow_clone_is_checked_out_and_then_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = Context::below(dir.path());
        let (folder, [_, two], _) = repository(dir.path());
        let (shallow, clone) = (dir.path().join("shallow"), dir.path().join("cache/clone"));
        let from = format!("file://{}", folder.display());
        host::output(git(dir.path()).args(["clone", "--quiet", "--depth", "1", &from]).arg(&shallow)).unwrap();
        check_out(&ctx, &shallow, &clone, &two, &[]).unwrap();
        fs::write(shallow.join("a.c"), "three\n").unwrap();
        commit_all(&shallow, "three").unwrap();
        let three = resolve(&shallow, "HEAD").unwrap();
        check_out(&ctx, &shallow, &clone, &three, &[]).unwrap();
        assert_eq!(fs::read_to_string(clone.join("a.c")).unwrap(), "three\n");
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let ctx = Context { repo, ..Context::below(dir.path()) };
        let (folder, ..) = repository(dir.path());
        let sources = Sources { folder: Some(folder), commit: None, patches: Vec::new() };
        let error = build_user(&ctx, &sources, Variant::Slim, None).err().unwrap().to_string();
        assert!(error.contains("no kernel source"), "{error}");
    }
}
