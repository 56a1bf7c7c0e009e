//! Kernels: one configuration, some trees (stock, with the topics applied, and with a control's
//! patch applied), builds keyed by everything that goes into them.
//!
//! In the cache, `trees/<key>` is a hard-linked copy of the pristine source with a tree's topics
//! applied, and `trees/<key>/<variant>-<key>` a finished build in it. Building right below the
//! source keeps every path that the compiler sees relative (`../mm/mmap.c`), so that ccache
//! knows a file again in any tree.

pub mod series;
pub mod source;
pub mod topics;

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::context::Context;
use crate::host::{self, Staging};
use crate::kernel::source::Source;
use crate::kernel::topics::Topic;
use crate::progress::Step;

/// Part of every key: raise it when the way kernels are built changes.
const RECIPE: &str = "2";
/// How many builds of a variant stay in the cache.
const KEPT_BUILDS: usize = 6;

/// After this time unfinished work counts as abandoned.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// What a build leaves, relative to its folder.
const BZIMAGE: &str = "arch/x86/boot/bzImage";
const RELEASE: &str = "include/config/kernel.release";
const PRODUCTS: [&str; 6] = [BZIMAGE, RELEASE, ".config", "System.map", "vmlinux", "usr/gen_init_cpio"];
/// Written last into a finished build.
const MARKER: &str = "memreap-build.json";

/// The kernels to compare with beside stock and the changed one: stock with `kernel/controls/<name>.patch`.
pub const CONTROLS: &[&str] = &["stock-precise"];

/// Which checks are compiled into a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Variant {
    /// What the lab measures: no debug code.
    Slim,
    /// lockdep, KASAN, UBSAN, kmemleak, DEBUG_VM, DEBUG_ATOMIC_SLEEP, and the topics' KUnit tests.
    Debug,
    /// KCSAN, the data-race detector, and the topics' KUnit tests.
    Kcsan,
    /// Slim, with what Debian's userland needs: for the face-off.
    Faceoff,
}

impl Variant {
    /// The fragments in `kernel/configs`; a later one overrides an earlier one.
    fn fragments(self) -> &'static [&'static str] {
        match self {
            Self::Slim => &["slim"],
            Self::Debug => &["slim", "debug"],
            Self::Kcsan => &["slim", "kcsan"],
            Self::Faceoff => &["slim", "faceoff"],
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Slim => "slim",
            Self::Debug => "debug",
            Self::Kcsan => "kcsan",
            Self::Faceoff => "faceoff",
        })
    }
}

/// Which tree a kernel is built from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tree {
    /// Debian's source as it is.
    Stock,
    /// The same with the topics applied and turned on.
    Memreap,
    /// Debian's source with one small patch, one of [`CONTROLS`].
    Control(&'static str),
}

impl Tree {
    /// All trees, stock first.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Stock, Self::Memreap].into_iter().chain(CONTROLS.iter().copied().map(Self::Control))
    }

    /// What is applied to Debian's source, in order.
    fn changes(self, repo: &Path) -> Result<Vec<Topic>> {
        match self {
            Self::Stock => Ok(Vec::new()),
            Self::Memreap => topics::load(repo),
            Self::Control(name) => Ok(vec![topics::control(repo, name)?]),
        }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Stock => "stock",
            Self::Memreap => "memreap",
            Self::Control(name) => name,
        })
    }
}

impl FromStr for Tree {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::all().find(|tree| tree.to_string() == text).ok_or_else(|| {
            let known: Vec<String> = Self::all().map(|tree| tree.to_string()).collect();
            format!("no tree '{text}'; there are: {}", known.join(", "))
        })
    }
}

/// A finished kernel in the cache.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// What to boot.
    pub bzimage: PathBuf,
    /// The complete configuration.
    pub config: PathBuf,
    /// Has `vmlinux`, `System.map` and `usr/gen_init_cpio`.
    pub build_dir: PathBuf,
    /// The tree that it was built from, `trees/<tree key>` in the cache.
    pub source_dir: PathBuf,
    /// As `uname -r` says it.
    pub release: String,
    /// The content key, 64 hexadecimal digits.
    pub key: String,
}

/// What the marker records about a finished build.
#[derive(Serialize, Deserialize)]
struct Marker {
    key: String,
    release: String,
    /// Of the bzImage: a file that lost its data in a power cut is not trusted.
    sha256: String,
}

/// Builds a kernel, or returns at once when the cache has it. A changed kernel is built on top
/// of the stock one's objects where there are any.
///
/// # Errors
/// When the source, a package or a topic is missing or does not fit, when a requested symbol
/// does not take effect, or when the build fails (compiler errors, the log's end and path).
pub fn build(ctx: &Context, tree: Tree, variant: Variant) -> Result<Kernel> {
    if let Some(why) = refused_path(&ctx.cache) {
        bail!("{}: {why}", ctx.cache.display());
    }
    host::ensure_packages(ctx, host::BUILD)?;
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

/// Why kernels cannot be built below `folder`, if so.
pub(crate) fn refused_path(folder: &Path) -> Option<&'static str> {
    let text = folder.to_string_lossy();
    let refused = text.contains(|c: char| c.is_whitespace() || c == ':');
    refused.then_some("the kernel's make takes no path with spaces or colons; set MEMREAP_CACHE to another")
}

/// One build: what goes in, and where the result goes.
struct Plan {
    source: Source,
    tree: Tree,
    variant: Variant,
    topics: Vec<Topic>,
    requests: Vec<Request>,
    key: String,
    tree_dir: PathBuf,
    dir: PathBuf,
}

impl Plan {
    fn new(ctx: &Context, source: &Source, tree: Tree, variant: Variant) -> Result<Self> {
        let topics = tree.changes(&ctx.repo)?;
        let mut requests = fragment_requests(ctx, variant)?;
        requests.extend(topic_requests(&topics, variant));
        let requests = merge(requests);
        let tree_key = tree_key(source, &topics)?;
        let compiler = compiler_version()?;
        let key = key(
            &["build", RECIPE, &source.version.full, &tree.to_string(), &fragment_text(&requests), &compiler],
            &topics,
        )?;
        let tree_dir = ctx.cache.join("trees").join(&tree_key[..16]);
        let dir = tree_dir.join(format!("{variant}-{}", &key[..16]));
        Ok(Self { source: source.clone(), tree, variant, topics, requests, key, tree_dir, dir })
    }

    /// The kernel, if its build is complete and sound.
    fn finished(&self) -> Option<Kernel> {
        let marker_path = self.dir.join(MARKER);
        let marker: Marker = serde_json::from_slice(&fs::read(&marker_path).ok()?).ok()?;
        let bzimage = self.dir.join(BZIMAGE);
        let sound = marker.key == self.key
            && marker.sha256 == sha256(&fs::read(&bzimage).ok()?)
            && PRODUCTS.iter().all(|p| self.dir.join(p).is_file());
        if !sound {
            return None;
        }
        // Its age counts from its last use. Without write access it merely gets pruned earlier.
        let _ =
            File::options().append(true).open(&marker_path).and_then(|f| f.set_modified(SystemTime::now()));
        Some(Kernel {
            bzimage,
            config: self.dir.join(".config"),
            build_dir: self.dir.clone(),
            source_dir: self.tree_dir.clone(),
            release: marker.release,
            key: marker.key,
        })
    }

    fn run(&self, ctx: &Context) -> Result<()> {
        // Its objects are a head start, but not worth a build of their own.
        let stock = match self.tree {
            Tree::Stock => None,
            Tree::Memreap | Tree::Control(_) => {
                Self::new(ctx, &self.source, Tree::Stock, self.variant)?.finished()
            }
        };
        self.ensure_tree(ctx)?;
        let what = format!("building {}/{} {}", self.tree, self.variant, self.source.version.release());
        let step = ctx.progress.step(&what);
        let log = ctx.out.join(format!("logs/build-{}-{}.log", self.tree, self.variant));
        let work = Staging::begin(&self.tree_dir.join(format!("work-{}", &self.key[..16])))?;
        fs::create_dir_all(work.path()).with_context(|| format!("cannot make {}", work.path().display()))?;
        if let Some(stock) = &stock {
            step.detail("copying the stock objects");
            copy_objects(stock, work.path())?;
            let now = SystemTime::now();
            for path in touched(&self.topics)? {
                set_time(&self.tree_dir.join(path), now)?;
            }
        }
        step.detail("configuring");
        configure(ctx, &self.tree_dir, work.path(), &self.requests, &log)?;
        if let Some(stock) = &stock {
            settle_tools(ctx, stock, &self.tree_dir, work.path(), &self.topics, &log)?;
        }
        let counter = ctx.cache.join(format!("steps-{}-{}", self.tree, self.variant));
        let mut command = make(ctx, &self.tree_dir, work.path());
        command.arg("bzImage");
        run_make(ctx, &step, &mut command, &log, Some(&counter))?;
        self.keep(work)?;
        step.done("built");
        Ok(())
    }

    /// Makes the tree: all of the pristine source as hard links, then the topics.
    fn ensure_tree(&self, ctx: &Context) -> Result<()> {
        if self.tree_dir.is_dir() {
            return Ok(());
        }
        let _lock = host::lock(ctx, &self.tree_dir)?;
        if self.tree_dir.is_dir() {
            return Ok(());
        }
        let step =
            ctx.progress.step(&format!("preparing the {} tree {}", self.tree, self.source.version.release()));
        let staging = Staging::begin(&self.tree_dir)?;
        hard_link_copy(&self.source.dir, staging.path())?;
        topics::apply_all(&self.topics, staging.path())
            .with_context(|| format!("on {}", self.source.version.full))?;
        if !self.tree_dir.ends_with(&tree_key(&self.source, &self.topics)?[..16]) {
            bail!("kernel/ was edited while its topics were applied; run this again");
        }
        // The copy has the source's time; from here on it tells whether the tree is in use.
        set_time(staging.path(), SystemTime::now())?;
        staging.publish(&self.tree_dir)?;
        step.done("");
        Ok(())
    }

    /// Publishes the build. Of a stock build all objects stay, as the seed of others; of a
    /// changed one only what is needed to run it.
    fn keep(&self, work: Staging) -> Result<()> {
        for product in PRODUCTS {
            if !work.path().join(product).is_file() {
                bail!("make succeeded but {product} is missing in {}", work.path().display());
            }
        }
        let release =
            fs::read_to_string(work.path().join(RELEASE)).context("reading the kernel's release")?;
        let bzimage = fs::read(work.path().join(BZIMAGE)).context("reading the bzImage")?;
        let marker =
            Marker { key: self.key.clone(), release: release.trim().to_owned(), sha256: sha256(&bzimage) };
        let result = match self.tree {
            Tree::Stock => work,
            Tree::Memreap | Tree::Control(_) => {
                let kept = Staging::begin(&self.dir)?;
                for product in PRODUCTS {
                    let to = kept.path().join(product);
                    to.parent()
                        .map_or(Ok(()), fs::create_dir_all)
                        .and_then(|()| fs::rename(work.path().join(product), &to))
                        .with_context(|| format!("cannot write {}", to.display()))?;
                }
                kept
            }
        };
        let path = result.path().join(MARKER);
        File::create(&path)
            .and_then(|mut f| f.write_all(&serde_json::to_vec_pretty(&marker)?).and_then(|()| f.sync_all()))
            .with_context(|| format!("cannot write {}", path.display()))?;
        result.publish(&self.dir)
    }
}

/// The topics' symbols, and their KUnit tests in the variants that look for faults.
fn topic_requests(topics: &[Topic], variant: Variant) -> Vec<Request> {
    let kunit: Vec<&String> = match variant {
        Variant::Debug | Variant::Kcsan => topics.iter().filter_map(|t| t.kunit.as_ref()).collect(),
        Variant::Slim | Variant::Faceoff => Vec::new(),
    };
    topics
        .iter()
        .filter_map(|t| t.kconfig.as_deref())
        .chain(kunit.into_iter().map(String::as_str))
        .map(|symbol| Request {
            symbol: symbol.to_owned(),
            value: "y".to_owned(),
            origin: "kernel/topics.toml".to_owned(),
        })
        .collect()
}

/// The requests of slim with these topics turned on: for building a series step by step.
pub(crate) fn slim_requests(ctx: &Context, topics: &[Topic]) -> Result<Vec<Request>> {
    let mut requests = fragment_requests(ctx, Variant::Slim)?;
    requests.extend(topic_requests(topics, Variant::Slim));
    Ok(merge(requests))
}

/// One line of a configuration fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Without `CONFIG_`.
    symbol: String,
    /// `y`, `n`, a number or a quoted string.
    value: String,
    /// Where it stands, `file:line`.
    origin: String,
}

fn fragment_requests(ctx: &Context, variant: Variant) -> Result<Vec<Request>> {
    let mut requests = Vec::new();
    for name in variant.fragments() {
        let file = format!("kernel/configs/{name}.config");
        let text = fs::read_to_string(ctx.in_repo(&file)).with_context(|| format!("cannot read {file}"))?;
        requests.extend(parse_fragment(&text, &file)?);
    }
    Ok(requests)
}

/// Reads lines of `CONFIG_X=value` or `# CONFIG_X is not set`, comments and blank lines.
fn parse_fragment(text: &str, file: &str) -> Result<Vec<Request>> {
    let mut requests: Vec<Request> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let origin = format!("{file}:{}", number + 1);
        let line = line.trim();
        let unset = line.strip_prefix("# CONFIG_").and_then(|l| l.strip_suffix(" is not set"));
        let (symbol, value) = match (unset, line.strip_prefix("CONFIG_")) {
            (Some(symbol), _) => (symbol, "n"),
            (None, Some(rest)) => {
                rest.split_once('=').with_context(|| format!("{origin}: expected CONFIG_X=value"))?
            }
            (None, None) if line.is_empty() || line.starts_with('#') => continue,
            (None, None) => bail!("{origin}: expected CONFIG_X=value or a comment, found \"{line}\""),
        };
        if let Some(earlier) = requests.iter().find(|r| r.symbol == symbol) {
            bail!("{origin}: CONFIG_{symbol} is already set at {}", earlier.origin);
        }
        requests.push(Request { symbol: symbol.to_owned(), value: value.to_owned(), origin });
    }
    Ok(requests)
}

/// One request per symbol: the last one counts.
fn merge(requests: Vec<Request>) -> Vec<Request> {
    let mut merged: Vec<Request> = Vec::new();
    for request in requests {
        match merged.iter_mut().find(|r| r.symbol == request.symbol) {
            Some(earlier) => *earlier = request,
            None => merged.push(request),
        }
    }
    merged
}

fn fragment_text(requests: &[Request]) -> String {
    requests.iter().map(|r| format!("CONFIG_{}={}\n", r.symbol, r.value)).collect()
}

/// The requests that a finished `.config` does not grant, one line each.
fn unmet(requests: &[Request], config: &str) -> Vec<String> {
    let granted: HashMap<&str, &str> =
        config.lines().filter_map(|l| l.strip_prefix("CONFIG_")?.split_once('=')).collect();
    requests
        .iter()
        .filter_map(|r| {
            let value = granted.get(r.symbol.as_str()).copied().unwrap_or("n");
            (value != r.value)
                .then(|| format!("{}: CONFIG_{}={} became {value}", r.origin, r.symbol, r.value))
        })
        .collect()
}

/// Writes `out/.config`: nothing but the requests and what they pull in.
pub(crate) fn configure(
    ctx: &Context,
    tree: &Path,
    out: &Path,
    requests: &[Request],
    log: &Path,
) -> Result<()> {
    let fragment = out.join("memreap.fragment");
    fs::write(&fragment, fragment_text(requests))
        .with_context(|| format!("cannot write {}", fragment.display()))?;
    let mut command = make(ctx, tree, out);
    command.arg("allnoconfig").env("KCONFIG_ALLCONFIG", &fragment);
    let status = host::run_logged(&mut command, log, |_| {})?;
    if !status.success() {
        bail!("configuring failed ({status}); the end of {}:\n{}", log.display(), host::tail(log, 30));
    }
    let path = out.join(".config");
    let config = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let unmet = unmet(requests, &config);
    if !unmet.is_empty() {
        bail!(
            "these symbols did not take effect; a dependency is missing or this kernel does not \
             have them:\n  {}",
            unmet.join("\n  ")
        );
    }
    Ok(())
}

/// A `make` for `tree` with its output in `out`, which must lie directly below `tree`: all that
/// could make two builds of one content differ is fixed.
pub(crate) fn make(ctx: &Context, tree: &Path, out: &Path) -> Command {
    let mut output = std::ffi::OsString::from("O=");
    output.push(out);
    let mut command = host::tool("make");
    command
        .arg("-C")
        .arg(tree)
        .arg(output)
        .arg(format!("-j{}", host::cpus()))
        .args(["ARCH=x86_64", "CC=ccache gcc", "HOSTCC=ccache gcc", "LOCALVERSION="])
        .env("KBUILD_BUILD_TIMESTAMP", "Thu Jan  1 00:00:00 UTC 1970")
        .env("KBUILD_BUILD_USER", "memreap")
        .env("KBUILD_BUILD_HOST", "lab")
        .env("KBUILD_BUILD_VERSION", "1")
        .env("CCACHE_DIR", ctx.cache.join("ccache"))
        .env("CCACHE_MAXSIZE", "5G")
        .env("CCACHE_NOHASHDIR", "1")
        // The few absolute paths, in the build of the kernel's own tools.
        .env("CCACHE_BASEDIR", tree);
    command
}

/// Runs a make with the object at hand as the step's detail. `counter` keeps how many steps the
/// last such run took, so that the next one can say how far it is.
pub(crate) fn run_make(
    ctx: &Context,
    step: &Step,
    command: &mut Command,
    log: &Path,
    counter: Option<&Path>,
) -> Result<()> {
    let last = counter
        .and_then(|path| fs::read_to_string(path).ok())
        .and_then(|text| text.trim().parse::<u32>().ok());
    let (mut steps, mut warnings, mut errors) = (0_u32, 0_u32, Vec::new());
    let status = host::run_logged(command, log, |line| {
        if let Some((tool, file)) = kbuild_step(line) {
            steps += 1;
            // A changed header that all include makes the last run's number meaningless.
            let expected = last.filter(|&n| steps <= n).map_or(String::new(), |n| format!(" of about {n}"));
            step.detail(&format!("{tool} {file} ({steps}{expected})"));
        } else if line.contains(" warning: ") {
            warnings += 1;
        } else if is_error(line) {
            errors.push(format!("  {line}"));
        }
    })?;
    if !status.success() {
        let errors = if errors.is_empty() { String::new() } else { format!("{}\n", errors.join("\n")) };
        bail!("make failed ({status})\n{errors}the end of {}:\n{}", log.display(), host::tail(log, 30));
    }
    if warnings > 0 {
        ctx.progress.warn(&format!("{warnings} compiler warnings, see {}", log.display()));
    }
    if let Some(path) = counter {
        // Only the display of the next run depends on it.
        let _ = fs::write(path, steps.to_string());
    }
    Ok(())
}

/// `  CC      mm/mmap.o` -> (`CC`, `mm/mmap.o`).
fn kbuild_step(line: &str) -> Option<(&str, &str)> {
    let (tool, file) = line.strip_prefix("  ")?.split_once(' ')?;
    let is_tool = !tool.is_empty() && tool.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    // The kernel's own tools are named by absolute paths; what matters is their end.
    let file = file.trim().rsplit_once(".partial/").map_or(file.trim(), |(_, short)| short);
    is_tool.then_some((tool, file))
}

fn is_error(line: &str) -> bool {
    [" error: ", "fatal error:", "undefined reference", "multiple definition", "objtool: error"]
        .iter()
        .any(|sign| line.contains(sign))
}

/// Starts a changed kernel's build in `work` from a finished stock build of the same source and
/// variant: make then compiles only what the topics and their symbols touch. That is the
/// ordinary incremental build. It is sound because the two trees differ in the topics' files
/// alone, and the caller gives these a time younger than any stock object.
pub(crate) fn copy_objects(stock: &Kernel, work: &Path) -> Result<()> {
    host::output(Command::new("cp").arg("-a").arg(stock.build_dir.join(".")).arg(work))?;
    host::remove_any(&work.join(MARKER)).context("cannot clear the copied marker")
}

/// Keeps the copied objects of [`copy_objects`] valid. The kernel's own tools record absolute
/// paths, so they are made anew in the new place, and every object depends on one of them,
/// objtool: give them the age that they have in the stock build.
pub(crate) fn settle_tools(
    ctx: &Context,
    stock: &Kernel,
    tree: &Path,
    work: &Path,
    topics: &[Topic],
    log: &Path,
) -> Result<()> {
    let changed = |p: &PathBuf| p.starts_with("tools") && !p.starts_with("tools/testing");
    if touched(topics)?.iter().any(changed) {
        return Ok(());
    }
    let status = host::run_logged(make(ctx, tree, work).arg("prepare"), log, |_| {})?;
    if !status.success() {
        bail!("make prepare failed ({status}); the end of {}:\n{}", log.display(), host::tail(log, 30));
    }
    let objtool = stock.build_dir.join("tools/objtool/objtool");
    let age = objtool.metadata().and_then(|m| m.modified());
    let age = age.with_context(|| format!("cannot read the time of {}", objtool.display()))?;
    topics::files_below(&work.join("tools"))?.iter().try_for_each(|file| set_time(file, age))
}

fn touched(topics: &[Topic]) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for topic in topics {
        paths.extend(topic.touched()?);
    }
    Ok(paths)
}

fn set_time(path: &Path, time: SystemTime) -> Result<()> {
    File::open(path)
        .and_then(|f| f.set_modified(time))
        .with_context(|| format!("cannot set the time of {}", path.display()))
}

/// Copies a tree by hard links: fast, and safe as long as nobody writes into a file in place.
pub(crate) fn hard_link_copy(from: &Path, to: &Path) -> Result<()> {
    host::output(Command::new("cp").arg("-al").arg(from).arg(to))
        .with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

/// The kernel's user-space headers, as `make headers_install` leaves them: the returned folder
/// has them under `include/`. Cached with the kernel's tree.
///
/// # Errors
/// When make fails.
pub fn install_headers(ctx: &Context, kernel: &Kernel) -> Result<PathBuf> {
    let name = kernel.source_dir.file_name().ok_or_else(|| anyhow!("the kernel has no source folder"))?;
    let target = ctx.cache.join("headers").join(name);
    if target.is_dir() {
        return Ok(target);
    }
    let _lock = host::lock(ctx, &target)?;
    if target.is_dir() {
        return Ok(target);
    }
    let step = ctx.progress.step("installing the kernel's headers");
    let work = Staging::begin(&kernel.source_dir.join("work-headers"))?;
    fs::create_dir_all(work.path()).with_context(|| format!("cannot make {}", work.path().display()))?;
    let log = ctx.out.join("logs/headers.log");
    // headers_install would need rsync for its last step, a copy.
    run_make(ctx, &step, make(ctx, &kernel.source_dir, work.path()).arg("headers"), &log, None)?;
    let staging = Staging::begin(&target)?;
    fs::create_dir_all(staging.path())
        .with_context(|| format!("cannot make {}", staging.path().display()))?;
    fs::rename(work.path().join("usr/include"), staging.path().join("include"))
        .context("moving the headers")?;
    staging.publish(&target)?;
    step.done("");
    Ok(target)
}

fn compiler_version() -> Result<String> {
    let first_line = |tool: &str| -> Result<String> {
        let text = host::output(host::tool(tool).arg("--version"))?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    };
    Ok(format!("{}\n{}", first_line("gcc")?, first_line("ld")?))
}

fn tree_key(source: &Source, topics: &[Topic]) -> Result<String> {
    key(&["tree", &source.version.full], topics)
}

fn key(parts: &[&str], topics: &[Topic]) -> Result<String> {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    topics::digest(topics, &mut hash)?;
    Ok(hex(&hash.finalize()))
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Removes the builds of `variant` that were not used for longest, and what runs that were
/// killed or interrupted left: unfinished work, and trees without a build. What cannot be
/// removed costs space and nothing else.
fn prune(ctx: &Context, variant: Variant) {
    let prefix = format!("{variant}-");
    let trees = folders(&ctx.cache.join("trees"));
    let builds_in = |tree: &Path| folders(tree).into_iter().filter(|f| f.join(MARKER).is_file());
    let mut builds: Vec<(SystemTime, PathBuf)> = trees
        .iter()
        .flat_map(|tree| builds_in(tree))
        .filter(|build| build.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix)))
        .filter_map(|build| Some((build.join(MARKER).metadata().ok()?.modified().ok()?, build)))
        .collect();
    builds.sort();
    for (_, build) in builds.iter().rev().skip(KEPT_BUILDS) {
        let _ = host::remove_any(build);
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

/// Whether nobody can be at work there any more.
fn is_old(folder: &Path) -> bool {
    let age = folder.metadata().ok().and_then(|m| m.modified().ok()?.elapsed().ok());
    age.is_some_and(|age| age > ABANDONED)
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(of) else { return Vec::new() };
    entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(text: &str) -> Vec<Request> {
        parse_fragment(text, "f").unwrap()
    }

    #[test]
    fn trees_are_read_by_their_names() {
        for tree in Tree::all() {
            assert_eq!(tree.to_string().parse(), Ok(tree));
        }
        assert_eq!(Tree::all().next(), Some(Tree::Stock));
        // A control that is the changed kernel needs none of its own.
        assert!("memreap-sync".parse::<Tree>().is_err());
        let unknown = "precise".parse::<Tree>().unwrap_err();
        assert!(unknown.starts_with("no tree 'precise'; there are: stock, memreap, "), "{unknown}");
    }

    #[test]
    fn every_control_has_a_patch_and_every_patch_a_scenario() {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut patches: Vec<String> = fs::read_dir(repo.join("kernel/controls"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        patches.sort();
        let named: Vec<String> = CONTROLS.iter().map(|name| format!("{name}.patch")).collect();
        assert_eq!(patches, named);
    }

    #[test]
    fn fragments_are_read_and_merged() {
        let slim =
            requests("# slim\n\nCONFIG_A=y\nCONFIG_S=\"a=b\"\n# CONFIG_B is not set\n# CONFIG_A explained\n");
        let debug = requests("CONFIG_A=n\nCONFIG_N=64\n");
        let merged = merge(slim.into_iter().chain(debug).collect());
        assert_eq!(fragment_text(&merged), "CONFIG_A=n\nCONFIG_S=\"a=b\"\nCONFIG_B=n\nCONFIG_N=64\n");
    }

    #[test]
    fn the_kernels_that_look_for_faults_have_the_topics_tests() {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let ctx = Context {
            repo: repo.clone(),
            cache: "/nowhere".into(),
            out: "/nowhere".into(),
            kernel: None,
            progress: crate::progress::Progress::quiet(),
        };
        let topics = topics::load(&repo).unwrap();
        for (variant, has_them) in [
            (Variant::Slim, false),
            (Variant::Debug, true),
            (Variant::Kcsan, true),
            (Variant::Faceoff, false),
        ] {
            let mut requests = fragment_requests(&ctx, variant).unwrap();
            requests.extend(topic_requests(&topics, variant));
            let wanted = |symbol: &str| requests.iter().any(|r| r.symbol == symbol && r.value == "y");
            assert_eq!(wanted("KUNIT"), has_them, "{variant}");
            for test in topics.iter().filter_map(|t| t.kunit.as_deref()) {
                assert_eq!(wanted(test), has_them, "{variant}: {test}");
            }
        }
    }

    #[test]
    fn bad_fragment_lines_are_named() {
        let error = |text| parse_fragment(text, "f.config").unwrap_err().to_string();
        assert_eq!(error("\nA=y"), "f.config:2: expected CONFIG_X=value or a comment, found \"A=y\"");
        assert_eq!(error("CONFIG_A"), "f.config:1: expected CONFIG_X=value");
        assert_eq!(error("CONFIG_A=y\nCONFIG_A=n"), "f.config:2: CONFIG_A is already set at f.config:1");
    }

    #[test]
    fn every_request_must_take_effect() {
        let wanted =
            requests("CONFIG_A=y\nCONFIG_B=y\nCONFIG_C=n\nCONFIG_D=64\nCONFIG_E=n\nCONFIG_F=\"x\"\n");
        let config =
            "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=y\nCONFIG_D=32\nCONFIG_F=\"x\"\nCONFIG_AB=y\n";
        assert_eq!(
            unmet(&wanted, config),
            ["f:2: CONFIG_B=y became n", "f:3: CONFIG_C=n became y", "f:4: CONFIG_D=64 became 32"]
        );
    }

    #[test]
    fn make_lines_are_told_apart() {
        assert_eq!(kbuild_step("  CC      mm/mmap.o"), Some(("CC", "mm/mmap.o")));
        assert_eq!(kbuild_step("  LD [M]  x.ko"), Some(("LD", "[M]  x.ko")));
        assert_eq!(kbuild_step("  CC      /c/work-1.partial/tools/x.o"), Some(("CC", "tools/x.o")));
        assert_eq!(kbuild_step("make[1]: Entering directory"), None);
        assert_eq!(kbuild_step("   12 | int x"), None);
        assert!(is_error("../mm/a.c:3:1: error: unknown type"));
        assert!(!is_error("  CC      lib/error.o"));
    }

    /// Set for the process in which a test finds an environment of its own.
    const INSIDE: &str = "LAB_TEST_ENVIRONMENT";

    #[test]
    fn the_users_settings_reach_no_build() {
        if std::env::var_os(INSIDE).is_some() {
            return what_a_build_sees();
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kernel::tests::the_users_settings_reach_no_build", "--nocapture"])
            .env(INSIDE, "1")
            .env("TMPDIR", "/tmp")
            .envs(["LLVM", "LLVM_IAS", "KCFLAGS", "KCPPFLAGS", "KAFLAGS", "KBUILD_CFLAGS_KERNEL"].map(dirty))
            .envs(["CC", "LD", "CFLAGS", "CPATH", "GCC_EXEC_PREFIX", "W", "C", "V", "O"].map(dirty))
            .envs(["CCACHE_DISABLE", "CCACHE_DIR", "INSTALL_MOD_PATH", "KCONFIG_CONFIG"].map(dirty))
            .envs(["MAKEFILES", "SOURCE_DATE_EPOCH", "LANG", "LC_MESSAGES"].map(dirty))
            .env("KBUILD_BUILD_USER", "dirty")
            .env("MAKEFLAGS", "-n")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let (_, seen) = text.split_once("<<").unwrap();
        let (seen, _) = seen.split_once(">>").unwrap();
        assert!(seen.contains("PATH=/") && seen.contains("TMPDIR=/tmp\n"), "{seen}");
        for ours in ["KBUILD_BUILD_USER=memreap\n", "CCACHE_DIR=/nowhere/ccache\n", "LC_ALL=C\n"] {
            assert!(seen.contains(ours), "no {ours} in {seen}");
        }
        assert!(!seen.contains("dirty") && !seen.contains(INSIDE), "{seen}");
    }

    fn dirty(name: &str) -> (&str, &str) {
        (name, "dirty")
    }

    /// Prints the environment of a command in a makefile that is run as the kernel's is.
    fn what_a_build_sees() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("Makefile"), "all:\n\t@env; echo '$(LLVM) $(KCFLAGS)'\n").unwrap();
        let ctx = Context {
            repo: dir.path().into(),
            cache: "/nowhere".into(),
            out: dir.path().into(),
            kernel: None,
            progress: crate::progress::Progress::quiet(),
        };
        println!("<<{}>>", host::output(&mut make(&ctx, dir.path(), Path::new("out"))).unwrap());
    }

    #[test]
    fn a_cache_path_that_make_refuses_is_refused() {
        assert!(refused_path(Path::new("/home/a b/.cache")).is_some());
        assert!(refused_path(Path::new("/home/a/.cache")).is_none());
    }

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
        let ctx = Context {
            repo: dir.path().into(),
            cache: dir.path().into(),
            out: dir.path().join("out"),
            kernel: None,
            progress: crate::progress::Progress::quiet(),
        };
        let hours_ago = |h| SystemTime::now() - Duration::from_secs(h * 3600);
        let folder = |path: &str, age: u64| {
            let path = dir.path().join("trees").join(path);
            fs::create_dir_all(&path).unwrap();
            set_time(&path, hours_ago(age)).unwrap();
            path
        };
        let build = |path: &str, age: u64| {
            let path = folder(path, age);
            fs::write(path.join(MARKER), "").unwrap();
            set_time(&path.join(MARKER), hours_ago(age)).unwrap();
            path
        };
        let slim: Vec<PathBuf> = (0..8).map(|i| build(&format!("a/slim-{i}"), 100 + i)).collect();
        let debug = build("b/debug-0", 500);
        let (at_work, left) = (folder("a/work-1.partial", 1), folder("a/work-2.partial", 48));
        let (young, old) = (folder("young", 1), folder("old", 48));
        prune(&ctx, Variant::Slim);
        let there: Vec<bool> = slim.iter().map(|b| b.exists()).collect();
        assert_eq!(there, [true, true, true, true, true, true, false, false]);
        assert!(debug.exists(), "another variant");
        assert!(at_work.exists() && !left.exists());
        assert!(young.exists() && !old.exists());
    }

    #[test]
    fn a_build_counts_only_with_its_marker_and_whole_bzimage() {
        let dir = tempfile::tempdir().unwrap();
        let version = source::PackageVersion::parse("6.12.117-1").unwrap();
        let plan = Plan {
            source: Source { version, dir: dir.path().join("pristine") },
            tree: Tree::Stock,
            variant: Variant::Slim,
            topics: Vec::new(),
            requests: Vec::new(),
            key: "k".repeat(64),
            tree_dir: dir.path().join("tree"),
            dir: dir.path().join("tree/slim-k"),
        };
        let work = || {
            let work = Staging::begin(&plan.tree_dir.join("work-k")).unwrap();
            for product in PRODUCTS {
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

        fs::write(&kernel.bzimage, "").unwrap();
        assert!(plan.finished().is_none(), "a damaged bzImage");
        plan.keep(work()).unwrap();
        assert!(plan.finished().is_some());
        fs::remove_file(plan.dir.join(MARKER)).unwrap();
        assert!(plan.finished().is_none(), "no marker");
        let incomplete = work();
        fs::remove_file(incomplete.path().join("vmlinux")).unwrap();
        assert!(plan.keep(incomplete).unwrap_err().to_string().contains("vmlinux is missing"));

        let changed = Plan { tree: Tree::Memreap, ..plan };
        fs::create_dir_all(changed.tree_dir.join("work-k.partial")).unwrap();
        let whole = Staging::begin(&changed.tree_dir.join("work-k")).unwrap();
        for product in PRODUCTS.into_iter().chain(["mm/mmap.o"]) {
            let path = whole.path().join(product);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        changed.keep(whole).unwrap();
        assert!(changed.finished().is_some());
        assert!(!changed.dir.join("mm").exists(), "objects are not kept");
    }
}
