// SPDX-License-Identifier: GPL-2.0-only
//! Topics: our changes to the kernel, kept outside its source tree.
//!
//! `kernel/topics.toml` lists them in order. The folder of a topic has, in this order of application:
//!
//! ```text
//! <series>/hook.patch     its edits to files of that series of the kernel
//! files/                  its new files, the same for all series
//! <series>/files/         its new files that only this series has
//! insert/<path>           lines for a list that several topics add to: see [`Place`]
//! README.md               its commit message
//! ```
//!
//! A hook may apply with offsets but not with fuzz: fuzz means that the code around the edit has changed, and
//! that needs a review.

use fs_err as fs;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;
use toml::Spanned;

use crate::content::Content;
use crate::context::Context;
use crate::format::line_of;
use crate::host;
use crate::kernel::kinds::Tree;
use crate::kernel::series::{self, Series};
use crate::kernel::source;

/// One kernel change, as `kernel/topics.toml` and its folder describe it.
#[derive(Clone, Debug)]
pub struct Topic {
    /// Its name, which is also the name of its folder.
    pub name: String,
    /// Its Kconfig symbol, without `CONFIG_`; a control has none.
    pub kconfig: Option<String>,
    /// The Kconfig symbol of its KUnit test, if it has one.
    pub kunit: Option<String>,
    /// The subject line of its commit.
    pub subject: String,
    /// `kernel/<name>` in the checkout.
    pub dir: PathBuf,
    /// The patch with its edits to existing files.
    pub patch: PathBuf,
    /// The folders with its new files.
    pub(super) roots: Vec<PathBuf>,
}

/// Where the lines of an `insert/<path>` go.
#[derive(Clone, Copy)]
enum Place {
    /// At the end.
    End,
    /// Before the last line that is this one, and the empty line above it.
    Before(&'static str),
    /// Before the first `name=` at the same indentation that comes later in the alphabet, and with an empty line.
    Sorted,
}

/// The lists that topics add lines to without a hunk of a hook, as a hunk's context is other topics' lines.
const LISTS: [(&str, Place); 3] = [
    ("mm/memreap/Kconfig", Place::Before("endif # MEMREAP")),
    ("mm/memreap/Makefile", Place::End),
    ("Documentation/admin-guide/kernel-parameters.txt", Place::Sorted),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    #[serde(default)]
    topic: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Spanned<String>,
    kconfig: Spanned<String>,
    kunit: Option<Spanned<String>>,
    subject: Spanned<String>,
    needs: Vec<Spanned<String>>,
}

/// Reads `kernel/topics.toml`, checks it against the topics' folders, and returns the topics of a series.
///
/// # Errors
/// Names the file, the line and the key of the first problem.
pub fn load(repo: &Path, series: &Series) -> Result<Vec<Topic>> {
    let path = repo.join("kernel/topics.toml");
    let text = fs::read_to_string(&path)?;
    let manifest: Manifest =
        toml::from_str(&text).map_err(|e| anyhow!("kernel/topics.toml: {}", e.to_string().trim_end()))?;
    let mut topics: Vec<Topic> = Vec::new();
    for entry in manifest.topic {
        let wrong = |span: Range<usize>, key: &str, what: String| {
            anyhow!("kernel/topics.toml:{}: {key}: {what}", line_of(&text, &span))
        };
        let name = entry.name.get_ref().clone();
        let at_name = || entry.name.span();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') {
            return Err(wrong(at_name(), "name", format!("\"{name}\": use lower-case letters, digits and '-'")));
        }
        if topics.iter().any(|t| t.name == name) {
            return Err(wrong(at_name(), "name", format!("\"{name}\" appears twice")));
        }
        let subject = entry.subject.get_ref().clone();
        if subject.trim().is_empty() || subject.contains('\n') {
            return Err(wrong(entry.subject.span(), "subject", "must be one line".to_owned()));
        }
        for need in &entry.needs {
            if !topics.iter().any(|t| t.name == *need.get_ref()) {
                let what = format!("\"{}\" is not an earlier topic", need.get_ref());
                return Err(wrong(need.span(), "needs", what));
            }
        }
        let dir = repo.join("kernel").join(&name);
        let topic = Topic {
            patch: repo.join("kernel").join(&name).join(&series.name).join("hook.patch"),
            roots: vec![dir.join("files"), dir.join(&series.name).join("files")],
            dir,
            kconfig: Some(entry.kconfig.get_ref().clone()),
            kunit: entry.kunit.as_ref().map(|k| k.get_ref().clone()),
            name,
            subject,
        };
        if !topic.dir.join("README.md").is_file() {
            let what = format!("kernel/{}/README.md, the commit message, is missing", topic.name);
            return Err(wrong(entry.name.span(), "name", what));
        }
        let kunit = entry.kunit.as_ref().map(|k| ("kunit", k));
        let is_part = !series.without.contains_key(&topic.name);
        for (key, symbol) in [("kconfig", &entry.kconfig)].into_iter().chain(kunit) {
            if is_part && !topic.defines(symbol.get_ref())? {
                let what = format!(
                    "no Kconfig file under kernel/{0}/files and no line of its hook.patch has \"config {1}\"",
                    topic.name,
                    symbol.get_ref()
                );
                return Err(wrong(symbol.span(), key, what));
            }
        }
        topics.push(topic);
    }
    let mut named = series.without.keys().chain(series.instead.iter().flat_map(|(topic, other)| [topic, other]));
    if let Some(unknown) = named.find(|name| !topics.iter().any(|topic| topic.name == **name)) {
        bail!("{}: \"{unknown}\" is no topic", series::file(&series.name));
    }
    topics.retain(|topic| !series.without.contains_key(&topic.name));
    Ok(topics)
}

/// Reads the patches that are applied to Debian's source for a tree, in order.
///
/// # Errors
/// As [`load`] and [`control`].
pub fn changes(tree: Tree, repo: &Path, series: &Series) -> Result<Vec<Topic>> {
    match tree {
        Tree::Stock => Ok(Vec::new()),
        Tree::Memreap => load(repo, series),
        Tree::Control(name) => {
            let mut changes = if name.starts_with("memreap-") { load(repo, series)? } else { Vec::new() };
            changes.extend(control(repo, series, name)?);
            Ok(changes)
        }
    }
}

/// Returns the patch of the control kernel `name`, if it has one, as a topic that has nothing else.
///
/// # Errors
/// When there is neither a patch of that name for the series nor a `.config` in `kernel/controls`.
pub fn control(repo: &Path, series: &Series, name: &str) -> Result<Option<Topic>> {
    let folder = repo.join("kernel/controls");
    let patch = folder.join(&series.name).join(format!("{name}.patch"));
    if !patch.is_file() {
        if !folder.join(format!("{name}.config")).is_file() {
            bail!("{}: missing, and there is no .config of the control kernel '{name}'", patch.display());
        }
        return Ok(None);
    }
    Ok(Some(Topic::of_patch(name.to_owned(), String::new(), folder.join(name), patch)))
}

/// Returns the patches of `kernel/upstream`, which stand alone, as topics that have nothing else.
///
/// # Errors
/// When the folder cannot be read.
pub fn upstream(repo: &Path) -> Result<Vec<Topic>> {
    let dir = repo.join("kernel/upstream");
    let mut patches = host::files_below(&dir)?;
    patches.retain(|file| file.extension().is_some_and(|end| end == "patch"));
    patches.sort();
    let topic = |patch: PathBuf| {
        let text = fs::read_to_string(&patch)?;
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Topic::of_patch(name, text.lines().next().unwrap_or_default().to_owned(), dir.clone(), patch))
    };
    patches.into_iter().map(topic).collect()
}

/// Returns the objects, as make targets, of the C files among these.
pub(super) fn objects(files: impl IntoIterator<Item = PathBuf>) -> impl Iterator<Item = PathBuf> {
    let is_code = |path: &PathBuf| path.extension().is_some_and(|end| end == "c");
    files.into_iter().filter(is_code).map(|path| path.with_extension("o"))
}

impl Topic {
    /// A patch that stands alone.
    fn of_patch(name: String, subject: String, dir: PathBuf, patch: PathBuf) -> Self {
        Self { name, kconfig: None, kunit: None, subject, dir, patch, roots: Vec::new() }
    }

    /// Whether it is a patch and nothing else: no symbol, no new files, no README.
    pub fn stands_alone(&self) -> bool {
        self.kconfig.is_none()
    }

    /// Returns its commit message below the subject, and the file that has it: the text before the edits of a patch that
    /// stands alone, or its README.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn about(&self) -> Result<(PathBuf, String)> {
        if !self.stands_alone() {
            let path = self.dir.join("README.md");
            let text = fs::read_to_string(&path)?;
            return Ok((path, text));
        }
        let text = fs::read_to_string(&self.patch)?;
        let message = text.split("\n--- a/").next().unwrap_or_default();
        Ok((self.patch.clone(), message.split_once('\n').map_or(String::new(), |(_, below)| below.to_owned())))
    }

    /// Returns the new files: their paths in the kernel tree, and where they are in the checkout.
    ///
    /// # Errors
    /// When a folder cannot be read or contains something other than folders and regular files.
    pub fn new_files(&self) -> Result<BTreeMap<PathBuf, PathBuf>> {
        let mut files = BTreeMap::new();
        for root in self.roots.iter().filter(|root| root.is_dir()) {
            for file in host::files_below(root)? {
                files.insert(file.strip_prefix(root)?.to_path_buf(), file);
            }
        }
        Ok(files)
    }

    /// Returns the lines that it adds to lists of the kernel: path in the kernel tree, place and lines. Kconfig needs
    /// no file: its line follows from the new `Kconfig.<topic>`.
    ///
    /// # Errors
    /// When a file cannot be read, or is not for one of [`LISTS`].
    fn insertions(&self) -> Result<Vec<(&'static str, Place, String)>> {
        let folder = self.dir.join("insert");
        let mut insertions = Vec::new();
        let mut files = if folder.is_dir() { host::files_below(&folder)? } else { Vec::new() };
        let kconfig = format!("mm/memreap/Kconfig.{}", self.name);
        let sourced = self.new_files()?.contains_key(Path::new(&kconfig));
        for (path, place) in LISTS {
            let file = folder.join(path);
            if let Some(at) = files.iter().position(|known| *known == file) {
                files.remove(at);
                insertions.push((path, place, fs::read_to_string(&file)?));
            } else if path == "mm/memreap/Kconfig" && sourced {
                insertions.push((path, place, format!("source \"{kconfig}\"\n")));
            }
        }
        if let Some(other) = files.first() {
            let lists: Vec<&str> = LISTS.iter().map(|(path, _)| *path).collect();
            bail!("{}: lines are inserted only in {}", other.display(), lists.join(", "));
        }
        Ok(insertions)
    }

    /// Returns the paths of the existing files that `hook.patch` edits.
    ///
    /// # Errors
    /// When the patch cannot be read, creates or removes a file, or has a path outside of the tree.
    pub fn hooked_files(&self) -> Result<Vec<PathBuf>> {
        let Some(text) = self.hook()? else { return Ok(Vec::new()) };
        let wrong = |line: usize, what: &str| anyhow!("{}: {}:{line}: {what}", self.name, self.patch.display());
        let mut paths = Vec::new();
        // "--- " may also be a removed line that starts with "-- "; a header is followed by "+++ ".
        let lines: Vec<&str> = text.lines().collect();
        for (i, pair) in lines.windows(2).enumerate() {
            let (Some(old), Some(new)) = (pair[0].strip_prefix("--- "), pair[1].strip_prefix("+++ ")) else {
                continue;
            };
            let path_of = |s: &str| s.split('\t').next().unwrap_or_default().trim().to_owned();
            if path_of(old) == "/dev/null" {
                return Err(wrong(i + 1, "a hook only edits; put the new file under files/"));
            }
            if path_of(new) == "/dev/null" {
                return Err(wrong(i + 2, "a hook must not remove a file"));
            }
            let path: PathBuf = Path::new(&path_of(new)).components().skip(1).collect();
            if path.as_os_str().is_empty() || !path.components().all(|c| matches!(c, Component::Normal(_))) {
                return Err(wrong(i + 2, "no path below the kernel tree (a/... b/...)"));
            }
            paths.push(path);
        }
        if paths.is_empty() {
            bail!("{}: {} holds no patch", self.name, self.patch.display());
        }
        Ok(paths)
    }

    /// Returns the objects, as make targets, of the code that its patch edits.
    ///
    /// # Errors
    /// As [`Topic::hooked_files`].
    pub fn hooked_objects(&self) -> Result<Vec<PathBuf>> {
        Ok(objects(self.hooked_files()?).collect())
    }

    /// Returns all paths in the kernel tree that the topic adds or edits.
    ///
    /// # Errors
    /// As [`Topic::new_files`] and [`Topic::hooked_files`].
    pub fn touched(&self) -> Result<BTreeSet<PathBuf>> {
        let inserted = self.insertions()?.into_iter().map(|(path, ..)| PathBuf::from(path));
        Ok(self.new_files()?.into_keys().chain(self.hooked_files()?).chain(inserted).collect())
    }

    fn hook(&self) -> Result<Option<String>> {
        if !self.patch.exists() {
            return Ok(None);
        }
        Ok(Some(fs::read_to_string(&self.patch)?))
    }

    /// Whether the topic defines the Kconfig symbol.
    fn defines(&self, symbol: &str) -> Result<bool> {
        let is_definition = |line: &str| {
            let mut words = line.split_whitespace();
            matches!(words.next(), Some("config" | "menuconfig")) && words.next() == Some(symbol)
        };
        for (path, file) in self.new_files()? {
            let is_kconfig = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("Kconfig"));
            if is_kconfig && fs::read_to_string(&file)?.lines().any(is_definition) {
                return Ok(true);
            }
        }
        let hook = self.hook()?.unwrap_or_default();
        Ok(hook.lines().filter_map(|l| l.strip_prefix('+')).any(is_definition))
    }

    /// Applies the topic to `tree`. If the patch does not apply, the tree is unchanged.
    ///
    /// # Errors
    /// Names the topic, and the file and hunk that do not apply or the new file that already exists.
    pub fn apply(&self, tree: &Path) -> Result<()> {
        let new_files = self.new_files()?;
        for path in new_files.keys() {
            if tree.join(path).symlink_metadata().is_ok() {
                bail!(
                    "{}: files/{} would replace a file of the kernel; edit that one by hook.patch",
                    self.name,
                    path.display()
                );
            }
        }
        if !self.hooked_files()?.is_empty() {
            self.patch(tree, true)?;
            self.patch(tree, false)?;
        }
        for (path, from) in &new_files {
            let to = tree.join(path);
            host::copy_file(from, &to)
                .with_context(|| format!("{}: cannot copy {} to {}", self.name, from.display(), to.display()))?;
        }
        for (path, place, lines) in self.insertions()? {
            let to = tree.join(path);
            let text = fs::read_to_string(&to)?;
            let text = insert(&text, place, &lines)
                .with_context(|| format!("{}: insert/{path}: no place for it in this kernel", self.name))?;
            // A new file: the old one may be a hard link to the pristine source.
            host::write_atomically(&to, &text)?;
        }
        Ok(())
    }

    /// Runs GNU patch. It writes a new file and renames it over the old one, so that hard links to the old
    /// file keep its content.
    fn patch(&self, tree: &Path, dry_run: bool) -> Result<()> {
        let mut command = host::tool("patch");
        command.args(["-p1", "--fuzz=0", "--forward", "--no-backup-if-mismatch", "--reject-file=-"]);
        if dry_run {
            command.arg("--dry-run");
        }
        command.arg("-d").arg(tree).arg("-i").arg(&self.patch);
        let file = self.patch.file_name().unwrap_or_default().to_string_lossy();
        host::output(&mut command).with_context(|| format!("{}: {file} does not apply", self.name))?;
        Ok(())
    }
}

/// Returns `text` with `lines` in their place; `None` if there is none.
fn insert(text: &str, place: Place, lines: &str) -> Option<String> {
    let start = match place {
        Place::End => text.len(),
        Place::Before(line) => text.rfind(&format!("\n{line}\n"))?,
        Place::Sorted => {
            let (name, _) = lines.split_once('=')?;
            let indentation = &name[..name.len() - name.trim_start().len()];
            let is_later = |line: &str| {
                let other = line.split_once('=').map(|(other, _)| other);
                other.is_some_and(|other| {
                    let in_list = other.strip_prefix(indentation).is_some_and(|other| !other.starts_with(['\t', ' ']));
                    in_list && !other.trim().contains(' ') && other > name
                })
            };
            let mut start = 0;
            let later = text.split_inclusive('\n').find(|line| {
                start += line.len();
                is_later(line)
            })?;
            let start = start - later.len();
            return Some(format!("{}{}\n\n{}", &text[..start], lines.trim_end(), &text[start..]));
        }
    };
    Some(format!("{}{lines}{}", &text[..start], &text[start..]))
}

/// Applies all topics to `tree`, in order.
///
/// # Errors
/// As [`Topic::apply`]; the topics before the failing one stay applied.
pub fn apply_all(topics: &[Topic], tree: &Path) -> Result<()> {
    topics.iter().try_for_each(|topic| topic.apply(tree))
}

/// Copies from `pristine` to `dest` only the files that the topics edit, which is enough to apply them.
///
/// # Errors
/// When a copy fails.
pub fn copy_touched(topics: &[Topic], pristine: &Path, dest: &Path) -> Result<()> {
    for topic in topics {
        for path in topic.touched()? {
            let (from, to) = (pristine.join(&path), dest.join(&path));
            if from.is_file() {
                host::copy_file(&from, &to)?;
            }
        }
    }
    Ok(())
}

/// Adds to `content` everything about the topics that affects a build. Commit messages do not.
///
/// # Errors
/// When one of their files cannot be read.
pub fn digest(topics: &[Topic], content: &mut Content) -> Result<()> {
    for topic in topics {
        let symbols = [&topic.kconfig, &topic.kunit].map(|symbol| symbol.as_deref().unwrap_or_default());
        for text in [topic.name.as_str()].into_iter().chain(symbols) {
            content.add(text);
        }
        content.add(topic.hook()?.unwrap_or_default());
        for (path, file) in topic.new_files()? {
            content.add(path.as_os_str().as_encoded_bytes());
            content.add_file(&file)?;
        }
        for (path, _, lines) in topic.insertions()? {
            content.add(path);
            content.add(lines);
        }
    }
    Ok(())
}

/// Lists the topics, or checks that they apply.
///
/// # Errors
/// As [`load`] and [`check_all`].
pub fn run(ctx: &Context, check: bool) -> Result<()> {
    if check {
        for release in check_all(ctx)? {
            println!("{release}: all topics and control kernels apply");
        }
        return Ok(());
    }
    for topic in load(&ctx.repo, &ctx.series)? {
        let symbol = topic.kconfig.unwrap_or_default();
        println!("{:<15} CONFIG_{:<25} {}", topic.name, symbol, topic.subject);
    }
    for (name, why) in &ctx.series.without {
        println!("{name:<15} not for {}: {why}", ctx.series.name);
    }
    Ok(())
}

/// Applies the topics, and the patch of each control kernel, to the kernel that was chosen, or else to the oldest and the
/// newest release of the series that apt offers (without apt: that the cache has), and returns those releases.
///
/// # Errors
/// As [`Topic::apply`], naming the kernel; or when no source is available.
fn check_all(ctx: &Context) -> Result<Vec<String>> {
    host::ensure_packages(ctx, host::SERIES_PACKAGES)?;
    let changed = changes(Tree::Memreap, &ctx.repo, &ctx.series)?;
    let mut trees = vec![changed];
    for tree in Tree::of_series(ctx).filter(|tree| matches!(tree, Tree::Control(_))) {
        trees.push(changes(tree, &ctx.repo, &ctx.series)?);
    }
    // The newest first: to get it, apt's lists are refreshed where they are too old.
    let mut sources = vec![source::get(ctx)?];
    if ctx.kernel.is_none() {
        let mut versions = source::listed(ctx);
        if versions.is_empty() {
            versions = source::cached(ctx);
            ctx.progress.note("apt offers no kernel source: checking what is in the cache");
        }
        let oldest = versions.pop().filter(|oldest| *oldest != sources[0].version);
        sources.extend(oldest.map(|oldest| source::fetch(ctx, &oldest)).transpose()?);
    }
    let mut checked = Vec::new();
    for source::Source { version, dir } in &sources {
        let step = ctx.progress.step(&format!("applying the topics to {}", version.release()));
        for changes in &trees {
            let tree = tempfile::tempdir().context("cannot make a temporary folder")?;
            copy_touched(changes, dir, tree.path())?;
            apply_all(changes, tree.path()).with_context(|| format!("on {}", version.full))?;
        }
        step.done(&format!("{} topics and {} control kernels apply", trees[0].len(), trees.len() - 1));
        checked.push(version.release());
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const STOCK: &str = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n";
    const HOOK: &str = "\
--- a/mm/a.c
+++ b/mm/a.c
@@ -1,6 +1,7 @@
 one
 two
 three
+three and a half
 four
 five
 six
@@ -7,4 +8,5 @@
 seven
 eight
 nine
+nine and a half
 ten
";

    /// A checkout with one topic `t`, and a kernel tree.
    struct Fixture {
        dir: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            let fixture = Self { dir: tempfile::tempdir().unwrap() };
            fixture.write("repo/kernel/topics.toml", &entry("t", "[]"));
            fixture.topic("t", HOOK);
            fixture.write("tree/mm/a.c", STOCK);
            fixture
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn topic(&self, name: &str, hook: &str) {
            let dir = format!("repo/kernel/{name}");
            self.write(&format!("{dir}/README.md"), "# a\n\nWhy.\n");
            self.write(&format!("{dir}/6.12/hook.patch"), hook);
            self.write(&format!("{dir}/files/mm/Kconfig.{name}"), &format!("config M_{}\n", name.to_uppercase()));
        }

        fn load(&self) -> Result<Vec<Topic>> {
            load(&self.dir.path().join("repo"), &Context::below(self.dir.path()).series)
        }

        fn tree(&self) -> PathBuf {
            self.dir.path().join("tree")
        }

        fn read(&self, path: &str) -> String {
            fs::read_to_string(self.dir.path().join(path)).unwrap()
        }

        fn apply(&self) -> Result<()> {
            apply_all(&self.load().unwrap(), &self.tree())
        }
    }

    fn entry(name: &str, needs: &str) -> String {
        let symbol = name.to_uppercase();
        format!("[[topic]]\nname = \"{name}\"\nkconfig = \"M_{symbol}\"\nsubject = \"mm: x\"\nneeds = {needs}\n")
    }

    #[test]
    fn a_topic_applies_with_offsets_and_leaves_hard_links_alone() {
        let f = Fixture::new();
        f.write("tree/mm/a.c", &format!("zero\nzero\n{STOCK}"));
        fs::hard_link(f.tree().join("mm/a.c"), f.dir.path().join("pristine")).unwrap();
        f.apply().unwrap();
        assert!(f.read("tree/mm/a.c").contains("nine and a half"));
        assert_eq!(f.read("pristine"), format!("zero\nzero\n{STOCK}"));
        assert_eq!(fs::metadata(f.tree().join("mm/a.c")).unwrap().nlink(), 1);
        assert!(f.tree().join("mm/Kconfig.t").exists());
        let mut names: Vec<_> = fs::read_dir(f.tree().join("mm")).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["Kconfig.t", "a.c"], "no .orig, no .rej");
    }

    #[test]
    fn fuzz_is_refused_and_the_hunk_is_named() {
        let f = Fixture::new();
        // Fuzz 1 would ignore the first and last line of context.
        let changed = STOCK.replace("seven", "SEVEN");
        f.write("tree/mm/a.c", &changed);
        let error = f.apply().unwrap_err();
        let text = format!("{error:#}");
        assert!(text.starts_with("t: hook.patch does not apply: "), "{text}");
        assert!(text.contains(" mm/a.c\nHunk #2 FAILED at 8"), "{text}");
        assert_eq!(f.read("tree/mm/a.c"), changed, "nothing half-applied");
        assert!(!f.tree().join("mm/Kconfig.t").exists());
    }

    #[test]
    fn a_stock_file_is_not_replaced() {
        let f = Fixture::new();
        f.write("repo/kernel/t/files/mm/a.c", "mine\n");
        let error = f.apply().unwrap_err();
        assert!(error.to_string().starts_with("t: files/mm/a.c would replace a file of the kernel"), "{error}");
        assert_eq!(f.read("tree/mm/a.c"), STOCK);
    }

    #[test]
    fn a_hook_only_edits() {
        let f = Fixture::new();
        f.topic("t", "--- /dev/null\n+++ b/mm/new.c\n@@ -0,0 +1 @@\n+x\n");
        let error = f.apply().unwrap_err();
        assert!(error.to_string().contains("put the new file under files/"), "{error}");
        f.topic("t", "--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-x\n+y\n");
        let error = f.apply().unwrap_err();
        assert!(error.to_string().contains("hook.patch:2: no path below the kernel tree"), "{error}");
    }

    #[test]
    fn the_manifest_is_checked_with_line_and_key() {
        let f = Fixture::new();
        let says = |toml: &str, expected: &str| {
            f.write("repo/kernel/topics.toml", toml);
            let error = f.load().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        let good = entry("t", "[]");
        says(&good.replace("needs", "neads"), "line 5");
        says(&good.replace("needs", "neads"), "unknown field `neads`");
        says(&good.replace("M_T", "M_X"), "kernel/topics.toml:3: kconfig: no Kconfig file");
        says(&format!("{good}kunit = \"M_T_KUNIT_TEST\"\n"), "kernel/topics.toml:6: kunit: no Kconfig file");
        says(&entry("t", "[\"u\"]"), "kernel/topics.toml:5: needs: \"u\" is not an earlier topic");
        says(&format!("{good}\n{good}"), "kernel/topics.toml:8: name: \"t\" appears twice");
        says(&entry("v", "[]"), "kernel/topics.toml:2: name: kernel/v/README.md, the commit message, is missing");
        says(&good.replace("mm: x", ""), "kernel/topics.toml:4: subject: must be one line");
    }

    #[test]
    fn topics_keep_their_order_and_may_build_on_each_other() {
        let f = Fixture::new();
        f.topic("b", "--- a/mm/Kconfig.t\n+++ b/mm/Kconfig.t\n@@ -1 +1,2 @@\n config M_T\n+source x\n");
        f.write("repo/kernel/topics.toml", &format!("{}\n{}", entry("t", "[]"), entry("b", "[\"t\"]")));
        let names: Vec<String> = f.load().unwrap().into_iter().map(|t| t.name).collect();
        assert_eq!(names, ["t", "b"]);
        let sparse = tempfile::tempdir().unwrap();
        f.write("tree/mm/other.c", "");
        copy_touched(&f.load().unwrap(), &f.tree(), sparse.path()).unwrap();
        assert!(!sparse.path().join("mm/other.c").exists());
        apply_all(&f.load().unwrap(), sparse.path()).unwrap();
        assert_eq!(fs::read_to_string(sparse.path().join("mm/Kconfig.t")).unwrap(), "config M_T\nsource x\n");

        f.write("repo/kernel/topics.toml", &format!("{}\n{}", entry("b", "[\"t\"]"), entry("t", "[]")));
        assert!(f.load().unwrap_err().to_string().contains("not an earlier topic"));
    }

    #[test]
    fn lines_go_where_they_belong() {
        let text = "choice\nendif # MEMREAP\n\nconfig A\n\nendif # MEMREAP\n";
        let inserted = insert(text, Place::Before("endif # MEMREAP"), "source\n").unwrap();
        assert_eq!(inserted, "choice\nendif # MEMREAP\n\nconfig A\nsource\n\nendif # MEMREAP\n");
        assert!(insert("", Place::Before("endif"), "source\n").is_none());
        assert_eq!(insert("a\n", Place::End, "b\n").unwrap(), "a\nb\n");
        let text = "Kernel\n\n\ta.x=\tMatters\n\t\tz=1 is more\n\n\tc=\tLater\n";
        let inserted = insert(text, Place::Sorted, "\tb.y=\tOurs\n").unwrap();
        assert_eq!(inserted, text.replace("\tc=", "\tb.y=\tOurs\n\n\tc="));
        assert!(insert(text, Place::Sorted, "\td=\tLast\n").is_none());
    }

    #[test]
    fn a_series_may_be_without_a_topic_and_has_files_of_its_own() {
        let f = Fixture::new();
        f.write("repo/kernel/t/7.3/files/mm/b.c", "new\n");
        f.write("repo/kernel/t/insert/mm/other", "line\n");
        let repo = f.dir.path().join("repo");
        let mut series = Series { name: "7.3".into(), ..Series::default() };
        let topics = load(&repo, &series).unwrap();
        let files: Vec<PathBuf> = topics[0].new_files().unwrap().into_keys().collect();
        assert_eq!(files, [Path::new("mm/Kconfig.t"), Path::new("mm/b.c")]);
        assert!(!f.load().unwrap()[0].new_files().unwrap().contains_key(Path::new("mm/b.c")));
        let misplaced = topics[0].apply(&f.tree()).unwrap_err().to_string();
        assert!(misplaced.contains("insert/mm/other: lines are inserted only in mm/memreap/Kconfig"), "{misplaced}");
        series.without.insert("t".into(), "it has that".into());
        assert!(load(&repo, &series).unwrap().is_empty());
        series.without.insert("u".into(), "unknown".into());
        let unknown = load(&repo, &series).unwrap_err().to_string();
        assert_eq!(unknown, "kernel/series/7.3.toml: \"u\" is no topic");
    }

    #[test]
    fn a_control_is_its_patch_if_it_has_one() {
        let f = Fixture::new();
        let repo = f.dir.path().join("repo");
        let series = Context::below(f.dir.path()).series;
        let missing = control(&repo, &series, "c").unwrap_err().to_string();
        assert!(missing.ends_with("c.patch: missing, and there is no .config of the control kernel 'c'"), "{missing}");
        f.write("repo/kernel/controls/c.config", "");
        assert!(control(&repo, &series, "c").unwrap().is_none());
        f.write("repo/kernel/controls/6.12/c.patch", &format!("Why.\n\n{HOOK}"));
        let control = control(&repo, &series, "c").unwrap().unwrap();
        assert_eq!(control.touched().unwrap(), BTreeSet::from([PathBuf::from("mm/a.c")]));
        control.apply(&f.tree()).unwrap();
        assert!(f.read("tree/mm/a.c").contains("nine and a half"));
        let error = format!("{:#}", control.apply(&f.tree()).unwrap_err());
        assert!(error.starts_with("c: c.patch does not apply: "), "{error}");
        assert!(error.contains("mm/a.c\nReversed (or previously applied) patch detected!"), "{error}");
    }

    #[test]
    fn the_digest_follows_what_gets_built() {
        let f = Fixture::new();
        let digest_now = || {
            let mut content = Content::default();
            digest(&f.load().unwrap(), &mut content).unwrap();
            content.key()
        };
        let first = digest_now();
        f.write("repo/kernel/t/README.md", "# other words\n");
        assert_eq!(first, digest_now());
        f.write("repo/kernel/t/files/mm/b.c", "");
        let with_file = digest_now();
        assert_ne!(first, with_file);
        f.write("repo/kernel/t/files/mm/b.c", "x");
        assert_ne!(with_file, digest_now());
        fs::remove_file(f.dir.path().join("repo/kernel/t/files/mm/b.c")).unwrap();
        assert_eq!(first, digest_now());
        f.topic("t", &HOOK.replace("half", "third"));
        assert_ne!(first, digest_now());
    }

    /// A kernel in which it is the only one that is on would not link otherwise.
    #[test]
    fn a_topic_with_a_switch_selects_its_code() {
        let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("kernel");
        // Of each topic its code and its Kconfig.
        let text = |topic: PathBuf| -> String {
            let files = fs::read_dir(topic.join("files/mm/memreap")).into_iter().flatten();
            files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect()
        };
        let all: Vec<String> = fs::read_dir(kernel).unwrap().map(|topic| text(topic.unwrap().path())).collect();
        let selects = |text: &str| text.contains("select MEMREAP_SWITCH\n");
        let symbol = |text: &str| text.lines().find_map(|line| Some(line.strip_prefix("config ")?.to_owned()));
        let selecting: Vec<String> = all.iter().filter(|text| selects(text)).filter_map(|text| symbol(text)).collect();
        let mut count = 0;
        for text in all.iter().filter(|text| text.contains("\nmemreap_switch_param(")) {
            let inherits = selecting.iter().any(|symbol| text.contains(&format!("depends on {symbol}\n")));
            assert!(selects(text) || inherits, "no \"select MEMREAP_SWITCH\" for {:?}", symbol(text));
            count += 1;
        }
        assert_eq!(count, 8);
    }
}
