// SPDX-License-Identifier: GPL-2.0-only
//! Exports the topics as a patch series, one patch per topic, in order, for `git am`; and the patches for upstream.

use fs_err as fs;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::WrongUsage;
use crate::context::Context;
use crate::host::{self, Staging};
use crate::kernel::Variant;
use crate::kernel::config;
use crate::kernel::lint;
use crate::kernel::make;
use crate::kernel::series;
use crate::kernel::source::{self, Source};
use crate::kernel::topics::{self, Topic};

/// Export the topics as patches for git am
#[derive(clap::Args)]
pub struct PatchesOptions {
    /// Instead of the topics, the patches of kernel/upstream: what stands alone, small enough to be sent to Linux
    #[arg(long)]
    pub upstream: bool,
    /// The folder for the patches
    #[arg(long, value_name = "FOLDER", default_value = "patches")]
    pub out: PathBuf,
    /// Apply the patches with git am and build a kernel after each
    #[arg(long)]
    pub check: bool,
}

/// Exports the patches, prints their paths, and checks them if that is wanted.
///
/// # Errors
/// As [`export`] and [`check`]; [`WrongUsage`] for the patches of kernel/upstream in another series than the newest.
pub fn run(ctx: &Context, options: &PatchesOptions) -> Result<()> {
    // git runs in other folders, so the path must be absolute.
    let out = std::path::absolute(&options.out).with_context(|| options.out.display().to_string())?;
    let topics = if options.upstream { topics::upstream(&ctx.repo)? } else { topics::load(&ctx.repo, &ctx.series)? };
    let newest = series::names(&ctx.repo)?.pop().unwrap_or_default();
    ensure!(
        !options.upstream || ctx.series.name == newest,
        WrongUsage(format!("the patches of kernel/upstream are for {newest}: lab --series {newest} ..."))
    );
    let cover_letter = options.upstream.then(|| ctx.in_repo("kernel/upstream/cover-letter.txt"));
    let exported = export(ctx, &topics, cover_letter.as_deref(), &out)?;
    for patch in &exported {
        println!("{}", patch.display());
    }
    if options.check {
        check(ctx, &topics, &exported[usize::from(options.upstream)..])?;
    }
    Ok(())
}

/// Writes the topics as a series to the folder `out`, replaces the patches of an earlier export there, and returns the
/// paths of the patches in order. Equal topics yield equal patches. With a cover letter, its first line its subject, it
/// is the first file there, and all say who maintains what they change.
///
/// # Errors
/// When a topic does not apply, its README cannot be a commit message, or git has no user name and
/// address for the sign-off.
fn export(ctx: &Context, topics: &[Topic], cover_letter: Option<&Path>, out: &Path) -> Result<Vec<PathBuf>> {
    host::ensure_packages(ctx, host::SERIES_PACKAGES)?;
    let source = source::get(ctx)?;
    let step = ctx.progress.step("exporting the series");
    let author = Author::of(&ctx.repo)?;
    let work = tempfile::tempdir().context("cannot make a temporary folder")?;
    let tree = work.path().join("tree");
    let repo = Repo::with_touched_files(topics, &source, &tree, &author)?;
    for topic in topics {
        step.detail(&topic.name);
        topic.apply(&tree).with_context(|| format!("on {}", source.version.full))?;
        repo.commit(&message(topic, &author)?, &date(ctx, topic)?)?;
    }
    let made = work.path().join("patches");
    let mut format = repo.git();
    format.args(["format-patch", "--quiet", "--no-signature", "--zero-commit", "--abbrev=12"]);
    match cover_letter {
        Some(path) => {
            host::output(repo.git().args(["config", "branch.series.description"]).arg(fs::read_to_string(path)?))?;
            format.args(["--cover-letter", "--cover-from-description=subject"]);
        }
        None => drop(format.arg(format!("--subject-prefix=PATCH {}.y", ctx.series.name))),
    }
    if let Some(last) = topics.last() {
        // That of the cover letter, too.
        format.env("GIT_COMMITTER_DATE", date(ctx, last)?);
    }
    host::output(format.args(["pristine..HEAD", "-o"]).arg(&made))?;
    fs::create_dir_all(out)?;
    for old in patches_in(out)? {
        fs::remove_file(&old)?;
    }
    let made = patches_in(&made)?;
    let mut exported = Vec::new();
    for (i, patch) in made.iter().enumerate() {
        let name = patch.file_name().ok_or_else(|| anyhow!("a patch without a name"))?;
        let to = out.join(name);
        let mut text = fs::read_to_string(patch)?;
        if cover_letter.is_some() {
            // The cover letter has no files; it goes to all who get a patch.
            let about = if i == 0 { &made[1..] } else { slice::from_ref(patch) };
            text = with_recipients(&text, &maintainers(&source, about)?);
        }
        fs::write(&to, text)?;
        exported.push(to);
    }
    step.done(&format!("{} patches in {}", exported.len(), out.display()));
    Ok(exported)
}

/// Returns who maintains what the patches change, and their lists, as the kernel's own script says.
fn maintainers(source: &Source, patches: &[PathBuf]) -> Result<Vec<String>> {
    let mut perl = host::tool("perl");
    perl.args(["scripts/get_maintainer.pl", "--nogit", "--nogit-fallback", "--norolestats"]).args(patches);
    Ok(host::output(perl.current_dir(&source.dir))?.lines().map(str::to_owned).collect())
}

/// Adds the recipients to the header of a mail, as `git send-email` reads them.
fn with_recipients(mail: &str, recipients: &[String]) -> String {
    match mail.split_once("\nSubject: ") {
        Some((before, after)) if !recipients.is_empty() => {
            format!("{before}\nCc: {}\nSubject: {after}", recipients.join(",\n "))
        }
        _ => mail.to_owned(),
    }
}

/// Applies the patches one after the other with `git am` and builds a slim kernel after each, with the
/// topics applied so far enabled. Patches that stand alone may add no warning of W=1, and checkpatch must have no word
/// to say about them.
///
/// # Errors
/// Names the first patch that does not apply or build, or adds a warning.
fn check(ctx: &Context, topics: &[Topic], patches: &[PathBuf]) -> Result<()> {
    if patches.len() != topics.len() {
        bail!("{} patches for {} topics: an empty topic?", patches.len(), topics.len());
    }
    make::prepare_host(ctx)?;
    let source = source::get(ctx)?;
    let author = Author::of(&ctx.repo)?;
    let target = ctx.cache.join("trees/series");
    let _lock = host::lock(ctx, &target)?;
    // Never published: it is removed at the end.
    let tree = Staging::begin(&target)?;
    make::hard_link_copy(&source.dir, tree.path())?;
    let out = tree.path().join("work-series");
    fs::create_dir(&out)?;
    let work = tempfile::tempdir().context("cannot make a temporary folder")?;
    let git_tree = work.path().join("tree");
    let repo = Repo::with_touched_files(topics, &source, &git_tree, &author)?;
    let warnings = |topics: &[Topic]| -> Result<Vec<String>> {
        let mut objects = BTreeSet::new();
        for topic in topics.iter().filter(|topic| topic.stands_alone()) {
            objects.extend(topic.hooked_objects()?);
        }
        let mut lines = Vec::new();
        if !objects.is_empty() {
            let mut make = make::make(ctx, tree.path(), &out);
            make.args(["-s", "W=1"]).args(objects);
            host::run_logged(&mut make, &ctx.out.join("logs/series-warnings.log"), |line| lines.push(line.to_owned()))?;
        }
        Ok(lint::messages(&lines, tree.path()))
    };
    let configure = |topics: &[Topic], log: &Path| {
        config::configure(ctx, tree.path(), &out, &config::requests(ctx, topics, Variant::Slim, None)?, log)
    };
    let log = ctx.out.join("logs/series-00.log");
    configure(&[], &log)?;
    let of_stock = warnings(topics)?;
    for (i, patch) in patches.iter().enumerate() {
        let name = patch.file_name().unwrap_or_default().to_string_lossy();
        let step = ctx.progress.step(&format!("series: {name}"));
        host::output(repo.git().args(["am", "--quiet", "--keep-cr"]).arg(patch))
            .with_context(|| format!("git am refuses {}", patch.display()))?;
        if topics[i].stands_alone() {
            let found = lint::checkpatch(ctx, &source.dir, &[patch.as_path()])?;
            if !found.is_empty() {
                bail!("checkpatch finds in {name}:\n{}", found.join("\n"));
            }
        }
        for path in repo.changed_by_last_commit()? {
            replace(&git_tree.join(&path), &tree.path().join(&path))?;
        }
        let log = ctx.out.join(format!("logs/series-{:02}.log", i + 1));
        configure(&topics[..=i], &log)?;
        let added = lint::beyond(&of_stock, &warnings(&topics[i..=i])?);
        if !added.is_empty() {
            bail!("{name} adds warnings of make W=1:\n{}", added.join("\n"));
        }
        make::run_make(ctx, &step, make::make(ctx, tree.path(), &out).arg("vmlinux"), &log, None)
            .with_context(|| format!("the kernel does not build after {name}"))?;
        step.done("applies and builds");
    }
    same_as_applied(topics, &source, &git_tree)
}

/// Checks that the series leads to the same files as [`topics::apply_all`], which the lab's kernels use.
fn same_as_applied(topics: &[Topic], source: &Source, git_tree: &Path) -> Result<()> {
    let applied = tempfile::tempdir().context("cannot make a temporary folder")?;
    topics::copy_touched(topics, &source.dir, applied.path())?;
    topics::apply_all(topics, applied.path())?;
    let read = |path: PathBuf| fs::read(&path);
    for topic in topics {
        for path in topic.touched()? {
            if read(applied.path().join(&path))? != read(git_tree.join(&path))? {
                bail!("{} differs between the series and the tree that the lab builds", path.display());
            }
        }
    }
    Ok(())
}

/// Replaces `to` by a copy of `from`. Writing in place would change the pristine source, as `to` is a hard
/// link to it.
fn replace(from: &Path, to: &Path) -> Result<()> {
    host::remove_any(to)?;
    Ok(host::copy_file(from, to)?)
}

/// The person in whose name the patches are signed off.
struct Author {
    name: String,
    email: String,
}

/// Whether git in the checkout has a user name and address for the sign-off.
pub fn author_known(repo: &Path) -> bool {
    Author::of(repo).is_ok()
}

impl Author {
    /// Reads the author from git's configuration in the checkout.
    ///
    /// # Errors
    /// When the name or the address is not set.
    fn of(repo: &Path) -> Result<Self> {
        let get = |key: &str| {
            let mut git = Command::new("git");
            git.args(["config", "--get", key]).current_dir(repo);
            let value = host::output(&mut git).unwrap_or_default().trim().to_owned();
            if value.is_empty() {
                bail!("git's {key} is not set, and the patches need a sign-off; run: git config --global {key} ...");
            }
            Ok(value)
        };
        Ok(Self { name: get("user.name")?, email: get("user.email")? })
    }
}

/// The commit message: subject, README without its title, sign-off.
fn message(topic: &Topic, author: &Author) -> Result<String> {
    let (path, text) = topic.about()?;
    let body = body(&text).map_err(|(line, what)| anyhow!("{}:{line}: {what}", path.display()))?;
    Ok(format!("{}\n\n{body}\n\nSigned-off-by: {} <{}>\n", topic.subject, author.name, author.email))
}

/// Converts a README into the text of a commit message: without the title, headings as plain lines.
///
/// # Errors
/// Returns the number and the problem of a line that would end the message in `git am`.
fn body(readme: &str) -> Result<String, (usize, &'static str)> {
    let mut lines = Vec::new();
    let mut titled = false;
    for (i, line) in readme.lines().enumerate() {
        let line = line.trim_end();
        if !titled && line.starts_with("# ") {
            titled = true;
            continue;
        }
        if line == "---" || line.starts_with("diff -") || line.starts_with("Index: ") {
            return Err((i + 1, "git am would end the commit message here; word it differently"));
        }
        lines.push(match line.trim_start_matches('#') {
            heading if line.starts_with('#') && heading.starts_with(' ') => &heading[1..],
            _ => line,
        });
    }
    let text = lines.join("\n").trim().to_owned();
    if text.is_empty() { Err((1, "has no text below its title")) } else { Ok(text) }
}

/// Returns the commit date of a topic's patch: `SOURCE_DATE_EPOCH`, else the time of the last commit that
/// changed the topic, so that equal checkouts yield equal patches.
fn date(ctx: &Context, topic: &Topic) -> Result<String> {
    let seconds = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => seconds,
        Err(_) => {
            let mut log = Command::new("git");
            let of_topic = if topic.stands_alone() { &topic.patch } else { &topic.dir };
            log.args(["log", "-1", "--format=%ct", "--"]).arg(of_topic).current_dir(&ctx.repo);
            // An unpacked archive and a checkout without commits have no date.
            host::output(&mut log).unwrap_or_default()
        }
    };
    let seconds = seconds.trim();
    let seconds: u64 = if seconds.is_empty() {
        0
    } else {
        seconds.parse().with_context(|| format!("SOURCE_DATE_EPOCH: not a number of seconds: {seconds}"))?
    };
    Ok(format!("@{seconds} +0000"))
}

/// A temporary git repository with only the files that the topics add or edit.
struct Repo<'a> {
    tree: &'a Path,
    author: &'a Author,
}

impl<'a> Repo<'a> {
    /// Makes the repository with one commit, tagged `pristine`: the files as they are in the kernel.
    fn with_touched_files(topics: &[Topic], source: &Source, tree: &'a Path, author: &'a Author) -> Result<Self> {
        fs::create_dir_all(tree)?;
        topics::copy_touched(topics, &source.dir, tree)?;
        let repo = Self { tree, author };
        host::output(repo.git().args(["init", "--quiet", "--initial-branch=series"]))?;
        repo.commit(&format!("Linux {}", source.version.release()), "@0 +0000")?;
        host::output(repo.git().args(["tag", "pristine"]))?;
        Ok(repo)
    }

    /// Returns a git command that ignores the user's settings and any surrounding repository.
    fn git(&self) -> Command {
        let mut git = Command::new("git");
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"] {
            git.env_remove(name);
        }
        git.current_dir(self.tree)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .env("GIT_AUTHOR_NAME", &self.author.name)
            .env("GIT_AUTHOR_EMAIL", &self.author.email)
            .env("GIT_COMMITTER_NAME", &self.author.name)
            .env("GIT_COMMITTER_EMAIL", &self.author.email)
            .env("TZ", "UTC")
            .env("LC_ALL", "C");
        git
    }

    fn commit(&self, message: &str, date: &str) -> Result<()> {
        host::output(self.git().args(["add", "--all", "--force"]))?;
        let mut commit = self.git();
        commit.args(["commit", "--quiet", "--allow-empty", "--cleanup=whitespace", "-m", message]);
        commit.env("GIT_AUTHOR_DATE", date).env("GIT_COMMITTER_DATE", date);
        host::output(&mut commit)?;
        Ok(())
    }

    fn changed_by_last_commit(&self) -> Result<BTreeSet<PathBuf>> {
        let names = host::output(self.git().args(["diff", "--name-only", "-z", "HEAD~1", "HEAD"]))?;
        Ok(names.split('\0').filter(|n| !n.is_empty()).map(PathBuf::from).collect())
    }
}

fn patches_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut patches = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "patch") {
            patches.push(path);
        }
    }
    patches.sort();
    Ok(patches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::source::PackageVersion;

    #[test]
    fn a_readme_becomes_a_commit_message() {
        let readme = "# reap\n\nIt is slow.\n\n## Limits\n#define stays\n\n";
        assert_eq!(body(readme).unwrap(), "It is slow.\n\nLimits\n#define stays");
        assert_eq!(body("# reap\nx\n---\n").unwrap_err().0, 3);
        assert_eq!(body("# reap\n\n").unwrap_err().0, 1);
    }

    #[test]
    fn the_series_is_whole_signed_off_and_repeats() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("tree/mm/a.c", "one\ntwo\n");
        write("t/README.md", "# t\n\nWhy.\n");
        write("t/files/mm/new.c", "new\n");
        write("t/hook.patch", "--- a/mm/a.c\n+++ b/mm/a.c\n@@ -1,2 +1,3 @@\n one\n+more\n two\n");
        let topic = Topic {
            name: "t".into(),
            kconfig: Some("T".into()),
            kunit: None,
            subject: "mm: do t".into(),
            dir: dir.path().join("t"),
            patch: dir.path().join("t/hook.patch"),
            roots: vec![dir.path().join("t/files")],
        };
        let topics = [topic];
        let source =
            Source { version: PackageVersion::parse("6.12", "6.12.117-1").unwrap(), dir: dir.path().join("tree") };
        let author = Author { name: "A B".into(), email: "a@b.example".into() };
        let make = |at: &str| {
            let tree = dir.path().join(at);
            let repo = Repo::with_touched_files(&topics, &source, &tree, &author).unwrap();
            topics[0].apply(&tree).unwrap();
            repo.commit(&message(&topics[0], &author).unwrap(), "@86400 +0000").unwrap();
            let changed: Vec<PathBuf> = repo.changed_by_last_commit().unwrap().into_iter().collect();
            assert_eq!(changed, [Path::new("mm/a.c"), Path::new("mm/new.c")]);
            same_as_applied(&topics, &source, &tree).unwrap();
            host::output(repo.git().args(["format-patch", "--stdout", "--zero-commit", "--no-signature", "-1"]))
                .unwrap()
        };
        let patch = make("one");
        assert_eq!(patch, make("two"));
        for line in [
            "From: A B <a@b.example>",
            "Date: Fri, 2 Jan 1970 00:00:00 +0000",
            "Subject: [PATCH] mm: do t",
            "Why.",
            "Signed-off-by: A B <a@b.example>",
            "+more",
            "+new",
        ] {
            assert!(patch.lines().any(|l| l == line), "{line} is missing in:\n{patch}");
        }
    }

    #[test]
    fn recipients_are_in_the_header() {
        let mail = "From: A <a@b.example>\nSubject: [PATCH] mm: x\n\nSubject: none of it\n";
        let to = ["B <b@c.example>".to_owned(), "linux-mm@kvack.org".to_owned()];
        let expected = "From: A <a@b.example>\nCc: B <b@c.example>,\n linux-mm@kvack.org\n\
                        Subject: [PATCH] mm: x\n\nSubject: none of it\n";
        assert_eq!(with_recipients(mail, &to), expected);
        assert_eq!(with_recipients(mail, &[]), mail);
    }

    #[test]
    fn without_a_user_the_remedy_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let init = || Command::new("git").args(["init", "-q"]).current_dir(dir.path()).status();
        assert!(init().unwrap().success());
        fs::write(dir.path().join(".git/config"), "[user]\n\tname =\n\temail =\n").unwrap();
        let error = Author::of(dir.path()).err().unwrap().to_string();
        assert!(error.contains("git config --global user.name"), "{error}");
    }
}
