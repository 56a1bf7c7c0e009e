// SPDX-License-Identifier: GPL-2.0-only
//! `lab static`: what a maintainer runs before reading a patch. checkpatch --strict on the topics' files and hooks,
//! sparse and W=1 on the objects that they change, and those objects in less common configurations. What stock has,
//! too, is no finding.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::Result;
use fs_err as fs;
use regex::Regex;

use crate::arch::Arch;
use crate::context::Context;
use crate::host;
use crate::kernel::topics::{self, Topic};
use crate::kernel::{Tree, Variant, build, config, make};
use crate::progress::Step;

/// Linux 7.3 asks for C23's `__typeof_unqual__`, which Debian's sparse 0.6.4 does not know.
const SPARSE: &str = "CHECK=sparse -D__typeof_unqual__=__typeof__";

/// What it says of MODULE_LICENSE() and its like in 7.3, in each file that has them. The compiler says the same if it is so.
const OF_SPARSE_ITSELF: &str = "error: bad constant expression";

/// Where sparse reports of a topic's file what it reports of stock's, for another function: the conditional locking of
/// folios_put_refs(), in mm/folio.c since 7.3, and of swap clusters, any use of folio_walk_start(), and the inline
/// function that reads the counter of dump_task().
const COUNTERPARTS: [(&str, &str); 5] = [
    ("mm/memreap/release.c:", "mm/swap.c:"),
    ("mm/memreap/release.c:", "mm/folio.c:"),
    ("mm/memreap/expedite_futex.c:", "mm/ksm.c:"),
    ("mm/memreap/swap_free_batch.c:", "mm/swapfile.c:"),
    ("include/linux/memreap_oom.h:", "include/linux/mm.h:"),
];

// Patterns of the tools' output.
static CHECKPATCH_TYPE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\S* [A-Z]*:([A-Z_]*): ").expect("a constant"));
static MESSAGE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r": (warning|error|note): |^make.*\*\*\*").expect("a constant"));
static PLACE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r":\d+(:\d+)?: ").expect("a constant"));
static QUOTED: LazyLock<Regex> = LazyLock::new(|| Regex::new("'[^']*'").expect("a constant"));

/// Runs the checks, prints each with its findings, and returns whether there are none. `configs` is whether to compile
/// in rare configurations, too.
///
/// # Errors
/// When a package is missing, a topic does not apply, or a tool cannot be run.
pub fn run(ctx: &Context, configs: bool) -> Result<bool> {
    host::ensure_packages(ctx, &[host::KERNEL_BUILD_PACKAGES, host::LINT_PACKAGES].concat())?;
    if configs {
        host::ensure_packages(ctx, host::cross_packages(Arch::Arm64))?;
    }
    let topics = topics::load(&ctx.repo, &ctx.series)?;
    let (stock, tree) = (build::tree(ctx, Tree::Stock)?, build::tree(ctx, Tree::Memreap)?);
    let home = ctx.cache.join("static");
    let _lock = host::lock(ctx, &home)?;
    fs::create_dir_all(&home)?;
    let step = ctx.progress.step("static checks");
    let mut lint = Lint { ctx, step: &step, topics: &topics, tree: &tree, home: &home, findings: 0 };
    lint.check_style()?;
    lint.check_warnings(&stock)?;
    if configs {
        lint.check_configs()?;
    }
    let findings = lint.findings;
    step.done(&if findings == 0 { "nothing added".to_owned() } else { format!("{findings} findings") });
    Ok(findings == 0)
}

/// Returns what `checkpatch.pl --strict` of a kernel's tree says about files of it or about mails: a line for each
/// finding.
///
/// # Errors
/// When it cannot be run.
pub(super) fn checkpatch(ctx: &Context, tree: &Path, args: &[&Path]) -> Result<Vec<String>> {
    let mut perl = host::tool("perl");
    // Commits are not looked up: the source has no history.
    perl.args(["scripts/checkpatch.pl", "--strict", "--terse", "--show-types", "--ignore", "UNKNOWN_COMMIT_ID"]);
    let mut lines = Vec::new();
    host::run_logged(perl.args(args).current_dir(tree), &ctx.out.join("logs/checkpatch.log"), |line| {
        lines.push(line.to_owned());
    })?;
    lines.retain(|line| !line.starts_with("total:"));
    Ok(lines)
}

struct Lint<'a> {
    ctx: &'a Context,
    step: &'a Step,
    topics: &'a [Topic],
    /// The kernel tree with all topics applied. It is only read.
    tree: &'a Path,
    /// The folder for mails and builds. It is kept, which makes the next run faster.
    home: &'a Path,
    findings: usize,
}

impl Lint<'_> {
    fn report(&mut self, title: &str, findings: &[String]) {
        self.findings += findings.len();
        self.ctx.progress.suspend(|| {
            println!("{} {title}", if findings.is_empty() { "ok" } else { "not ok" });
            findings.iter().for_each(|line| println!("    {line}"));
        });
    }

    /// Runs a command, whatever its status, and returns its output by lines.
    fn lines(&self, command: &mut Command) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        host::run_logged(command, &self.ctx.out.join("logs/static.log"), |line| {
            self.step.detail(line);
            lines.push(line.to_owned());
        })?;
        Ok(lines)
    }

    fn check_style(&mut self) -> Result<()> {
        // checkpatch knows neither the style of TRACE_EVENT() nor that of user space: what stock has is none of ours.
        let mut known = Vec::new();
        for (folder, alike) in [
            ("include/trace/events", "include/trace/events/oom.h"),
            ("tools/testing/selftests", "tools/testing/selftests/mm/mrelease_test.c"),
        ] {
            let lines = checkpatch(self.ctx, self.tree, &[Path::new("-f"), Path::new(alike)])?;
            let kinds = lines.iter().filter_map(|line| Some(checkpatch_type(line)?.to_owned()));
            known.push((folder, kinds.collect::<HashSet<String>>()));
        }
        for topic in self.topics {
            // As a mail, because checkpatch wants to see one.
            let text = format!(
                "From: Topic <topic@localhost>\nSubject: [PATCH] mm: the hook of {}\n\nThe edits to existing files.\n\n\
                 Signed-off-by: Topic <topic@localhost>\n---\n{}",
                topic.name,
                fs::read_to_string(&topic.patch)?
            );
            let mail = self.home.join("hook.mail");
            fs::write(&mail, &text)?;
            let mut found = checkpatch(self.ctx, self.tree, &[&mail])?;
            found.retain(|line| !is_sourced_name(line, &text));
            self.report(&format!("checkpatch {}/hook.patch", topic.name), &found);
            for (path, file) in topic.new_files()?.iter().filter(|(path, _)| !path.ends_with(".gitignore")) {
                let mut found = checkpatch(self.ctx, self.tree, &[Path::new("-f"), file])?;
                let alike = known.iter().find(|(folder, _)| path.starts_with(folder));
                found.retain(|line| {
                    let kind = checkpatch_type(line).unwrap_or_default();
                    alike.is_none_or(|(_, known)| !known.contains(kind))
                });
                self.report(&format!("checkpatch {}", path.display()), &found);
            }
        }
        Ok(())
    }

    /// Returns what the topics change and what they add, as make targets: objects, and the one folder that is all theirs.
    fn objects(&self) -> Result<[BTreeSet<PathBuf>; 2]> {
        let (mut hooked, mut added) = (BTreeSet::new(), BTreeSet::new());
        for topic in self.topics {
            let edited = topic.hooked_objects()?.into_iter();
            hooked.extend(edited.filter(|path| !path.starts_with("mm/memreap")));
            let new = topics::objects(topic.new_files()?.into_keys()).filter(|path| !path.starts_with("tools"));
            added.extend(new.map(|path| if path.starts_with("mm/memreap") { "mm/memreap/".into() } else { path }));
        }
        Ok([hooked, added])
    }

    fn target<'a>(&self, tree: &'a Path, name: &str, arch: &'a str, prefix: &'a str) -> Target<'a> {
        Target { tree, out: tree.join(format!("work-static-{name}")), arch, prefix }
    }

    /// Writes the configuration: the topics' symbols and `overrides`, on x86 over what is measured. Returns the
    /// overrides that did not take effect, by line.
    fn configure(&self, target: &Target<'_>, overrides: &[String]) -> Result<Vec<String>> {
        let slim = match target.arch {
            "x86" => config::fragment_requests(self.ctx, Variant::Slim)?,
            _ => Vec::new(),
        };
        let fixed = ["MEMREAP".to_owned(), "KUNIT".to_owned()];
        let of_topics = self.topics.iter().flat_map(|topic| topic.kconfig.iter().chain(&topic.kunit).cloned());
        let symbols: BTreeSet<String> = fixed.into_iter().chain(of_topics).collect();
        let symbols: String = symbols.iter().map(|symbol| format!("CONFIG_{symbol}=y\n")).collect();
        let overrides: String = overrides.iter().map(|set| format!("CONFIG_{set}\n")).collect();
        let overrides = config::parse_fragment(&overrides, "lab static")?;
        let symbols = config::parse_fragment(&symbols, "topics.toml")?;
        let requests = config::merge([slim, symbols, overrides.clone()].concat());
        fs::create_dir_all(&target.out)?;
        let log = self.ctx.out.join("logs/static-config.log");
        let text = config::write(self.make(target), &target.out, &requests, &log)?;
        Ok(config::unmet(&overrides, &text))
    }

    fn make(&self, target: &Target<'_>) -> Command {
        make::make_for(self.ctx, target.arch, target.prefix, target.tree, &target.out)
    }

    /// Compiles the objects, even if they exist from the last run, and returns make's output.
    fn compile(&self, target: &Target<'_>, objects: &BTreeSet<PathBuf>, args: &[&str]) -> Result<Vec<String>> {
        for object in objects {
            host::remove_any(&target.out.join(object))?;
        }
        self.lines(self.make(target).args(["-s", "-k"]).args(args).args(objects))
    }

    fn check_warnings(&mut self, stock: &Path) -> Result<()> {
        let [mut of_stock, added] = self.objects()?;
        let all: BTreeSet<PathBuf> = of_stock.union(&added).cloned().collect();
        let counterparts = COUNTERPARTS.iter().filter_map(|(_, theirs)| theirs.strip_suffix(".c:"));
        let there = counterparts.filter(|name| stock.join(format!("{name}.c")).is_file());
        of_stock.extend(there.map(|name| PathBuf::from(format!("{name}.o"))));
        let mut found = Vec::new();
        for (tree, objects) in [(stock, &of_stock), (self.tree, &all)] {
            let target = self.target(tree, "slim", "x86", "");
            // mm/memcontrol-v1.c does not compile without it.
            let unmet = self.configure(&target, &["MEMCG_V1=y".to_owned()])?;
            self.report("the configuration with MEMCG_V1", &unmet);
            let output = self.compile(&target, objects, &["W=1", "C=1", SPARSE])?;
            // Else make only warns, and checks nothing.
            let refused: Vec<String> =
                output.iter().filter(|line| line.contains("C=1 specified, but")).cloned().collect();
            self.report("sparse is one that the kernel takes", &refused);
            found.push(messages(&output, tree));
        }
        let [before, now] = [&found[0], &found[1]];
        let title = format!("sparse and W=1, beyond {} on stock", before.len());
        self.report(&title, &beyond(before, now));
        let out = self.target(self.tree, "slim", "x86", "").out;
        let missing = all.iter().filter(|object| !out.join(object).exists());
        let missing: Vec<String> = missing.map(|object| format!("{} was not built", object.display())).collect();
        self.report("all objects built", &missing);
        Ok(())
    }

    fn check_configs(&mut self) -> Result<()> {
        let of_topics = self.topics.iter().filter_map(|topic| topic.kconfig.as_ref());
        let off = of_topics.filter(|symbol| *symbol != "MEMREAP").map(|symbol| format!("{symbol}=n")).collect();
        let one = |set: &str| vec![set.to_owned()];
        let rare = ["SMP", "SWAP", "MEMCG", "LRU_GEN", "NUMA", "TRANSPARENT_HUGEPAGE", "KSM", "MEMORY_FAILURE"];
        for symbol in rare {
            self.build_config(&format!("x86, {symbol}=n"), "slim", "x86", "", one(&format!("{symbol}=n")))?;
        }
        self.build_config("x86, 32 bit", "32", "x86", "", one("64BIT=n"))?;
        self.build_config("x86, MEMREAP=n", "slim", "x86", "", one("MEMREAP=n"))?;
        self.build_config("x86, every topic off", "slim", "x86", "", off)?;
        // Kconfig alone decides: without an MMU there is no menu.
        let no_mmu = ["NONPORTABLE=y", "MMU=n", "MEMREAP=n"].map(str::to_owned);
        let unmet = self.configure(&self.target(self.tree, "nommu", "riscv", ""), &no_mmu)?;
        self.report("riscv, MMU=n: the menu is gone", &unmet);
        let set = ["SMP", "SWAP", "MEMCG", "CGROUPS", "LRU_GEN", "TRANSPARENT_HUGEPAGE"];
        let set = set.map(|symbol| format!("{symbol}=y")).to_vec();
        self.build_config("arm64", "arm64", "arm64", "aarch64-linux-gnu-", set)
    }

    fn build_config(&mut self, title: &str, name: &str, arch: &str, prefix: &str, set: Vec<String>) -> Result<()> {
        let target = self.target(self.tree, name, arch, prefix);
        let mut found = self.configure(&target, &set)?;
        if found.is_empty() {
            let config = fs::read_to_string(target.out.join(".config"))?;
            let on: HashSet<&str> = config.lines().filter_map(|line| line.strip_suffix("=y")).collect();
            let [hooked, added] = self.objects()?;
            // Asked for by name, make compiles the others as well.
            let is_built = |object: &&PathBuf| is_configured(self.tree, &on, object);
            let objects = hooked.union(&added).filter(is_built).cloned().collect();
            found = self.compile(&target, &objects, &[])?;
            found.retain(|line| [": warning: ", ": error: ", "***"].iter().any(|sign| line.contains(sign)));
        }
        self.report(title, &found);
        Ok(())
    }
}

/// A tree and what it is built for.
struct Target<'a> {
    tree: &'a Path,
    /// The folder of the build, directly below the tree.
    out: PathBuf,
    /// The kernel's name of the architecture.
    arch: &'a str,
    /// The prefix of the names of compilers and binutils.
    prefix: &'a str,
}

/// Returns TYPE of `FILE:LINE: LEVEL:TYPE: text`.
fn checkpatch_type(line: &str) -> Option<&str> {
    Some(CHECKPATCH_TYPE.captures(line)?.get(1)?.as_str())
}

/// Whether a finding in the mail is that checkpatch takes Kconfig.TOPIC, sourced from Kconfig, for Kconfig's own name.
fn is_sourced_name(line: &str, mail: &str) -> bool {
    let number = line.split(':').nth(1).and_then(|number| number.parse::<usize>().ok()).unwrap_or_default();
    let quoted = mail.lines().nth(number.saturating_sub(1)).unwrap_or_default();
    checkpatch_type(line) == Some("EMBEDDED_FILENAME") && quoted.starts_with("+source \"")
}

/// Returns the warnings in make's output, sorted, without the tree's path and line numbers. How a header was included is
/// no finding: a warning in it has a line of its own.
pub(super) fn messages(output: &[String], tree: &Path) -> Vec<String> {
    let tree = format!("{}/", tree.display());
    let is_message = |line: &&String| {
        MESSAGE.is_match(line) && !line.contains(": note: in included file") && !line.ends_with(OF_SPARSE_ITSELF)
    };
    let plain = |line: &String| {
        let line = line.replace(&tree, "");
        PLACE.replacen(line.trim_start_matches("../"), 1, ": ").into_owned()
    };
    let mut messages: Vec<String> = output.iter().filter(is_message).map(plain).collect();
    messages.sort();
    messages
}

/// Returns the messages that stock does not have, whatever their names, and of which it has no counterpart.
pub(super) fn beyond(stock: &[String], now: &[String]) -> Vec<String> {
    let nameless = |line: &str| QUOTED.replace_all(line, "''").into_owned();
    let known: HashSet<String> = stock.iter().map(|line| nameless(line)).collect();
    let is_new = |line: &&String| {
        let counterparts = COUNTERPARTS.iter().filter(|(ours, _)| line.starts_with(ours));
        let mut lines = counterparts.map(|(ours, theirs)| line.replacen(ours, theirs, 1)).chain([line.to_string()]);
        !lines.any(|line| known.contains(&nameless(&line)))
    };
    now.iter().filter(is_new).cloned().collect()
}

/// Whether a configuration in which the symbols `on` are `y` builds an object or a folder: the object in its folder's
/// Makefile, that folder in the one above, and so on.
fn is_configured(tree: &Path, on: &HashSet<&str>, object: &Path) -> bool {
    let is_folder = |path: &Path| path != object || object.as_os_str().as_encoded_bytes().ends_with(b"/");
    object.ancestors().take_while(|path| path.parent().is_some_and(|above| above != Path::new(""))).all(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = if is_folder(path) { format!("{name}/") } else { name.into_owned() };
        let makefile = path.parent().map(|above| tree.join(above).join("Makefile"));
        let makefile = makefile.and_then(|path| fs::read_to_string(path).ok());
        makefile.is_none_or(|makefile| is_in_makefile(&makefile, on, &name))
    })
}

/// Whether the symbols are on that a Makefile requires for an object or a folder: those of its line and of the
/// conditionals around that. What no line names depends on none.
fn is_in_makefile(makefile: &str, on: &HashSet<&str>, name: &str) -> bool {
    let (mut around, mut built) = (Vec::new(), true);
    for line in makefile.replace("\\\n", " ").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["ifdef", symbol] if symbol.starts_with("CONFIG_") => around.push(on.contains(symbol)),
            ["ifdef" | "ifndef" | "ifeq" | "ifneq", ..] => around.push(true),
            ["endif", ..] => drop(around.pop()),
            [list, ref objects @ ..] if objects.contains(&name) => {
                let symbol = list.split_once("-$(").and_then(|(_, rest)| rest.split_once(')'));
                if let Some((symbol, _)) = symbol.filter(|(symbol, _)| symbol.starts_with("CONFIG_")) {
                    built = on.contains(symbol) && around.iter().all(|on| *on);
                }
            }
            _ => {}
        }
    }
    built
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stock_does_not_have_is_a_finding() {
        let of =
            |lines: &[&str]| messages(&lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>(), Path::new("/t"));
        let stock = of(&["../mm/swap.c:9:1: warning: context imbalance in 'put'", "../mm/a.c:3:4: error: x"]);
        assert_eq!(stock, ["mm/a.c: error: x", "mm/swap.c: warning: context imbalance in 'put'"]);
        let now = of(&[
            "  CC      mm/a.o",
            "../mm/a.c:7:4: error: x",
            "/t/mm/a.c:8:4: error: x",
            "../include/b.h:1:1: note: in included file (through c.h):",
            "../mm/memreap/release.c:9:1: warning: context imbalance in 'flush'",
            "../mm/memreap/reap.c:9:1: warning: context imbalance in 'claim'",
            "make[3]: *** [scripts/Makefile.build:229: mm/d.o] Error 1",
        ]);
        let expected = [
            "make[3]: *** [scripts/Makefile.build: mm/d.o] Error 1",
            "mm/memreap/reap.c: warning: context imbalance in 'claim'",
        ];
        assert_eq!(beyond(&stock, &now), expected);
        assert_eq!(beyond(&stock[1..], &now).len(), 4);
    }

    #[test]
    fn checkpatch_lines_have_a_type_and_sourced_names_are_no_finding() {
        let line = "hook.mail:3: WARNING:EMBEDDED_FILENAME: It's generally not useful to have the filename in the file";
        assert_eq!(checkpatch_type(line), Some("EMBEDDED_FILENAME"));
        assert!(is_sourced_name(line, "a\nb\n+source \"mm/memreap/Kconfig.reap\"\n"));
        assert!(!is_sourced_name(line, "a\nb\n+/* mm/Kconfig */\n"));
        assert!(!is_sourced_name(&line.replace("EMBEDDED_FILENAME", "LONG_LINE"), "a\nb\n+source \"x\"\n"));
    }

    #[test]
    fn an_object_needs_the_symbols_of_its_line_and_those_around() {
        let makefile = "obj-y := a.o \\\n  b.o\nobj-$(CONFIG_KSM) += ksm.o\nifdef CONFIG_MMU\n\
                        obj-$(CONFIG_SWAP) += swap.o \\\n  memreap/\nendif\nlib-$(CONFIG_T) += t.o\n";
        let built = |on: &[&str]| {
            let on: HashSet<&str> = on.iter().copied().collect();
            let is_built = |name: &&str| is_in_makefile(makefile, &on, name);
            ["b.o", "ksm.o", "swap.o", "memreap/", "t.o", "other.o"].into_iter().filter(is_built).collect::<Vec<_>>()
        };
        assert_eq!(built(&[]), ["b.o", "other.o"]);
        assert_eq!(built(&["CONFIG_KSM", "CONFIG_SWAP", "CONFIG_T"]), ["b.o", "ksm.o", "t.o", "other.o"]);
        assert_eq!(built(&["CONFIG_SWAP", "CONFIG_MMU"]), ["b.o", "swap.o", "memreap/", "other.o"]);
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("mm/memreap")).unwrap();
        fs::write(dir.path().join("mm/Makefile"), makefile).unwrap();
        fs::write(dir.path().join("mm/memreap/Makefile"), "obj-$(CONFIG_R) += r.o\n").unwrap();
        let configured =
            |on: &[&str], object: &str| is_configured(dir.path(), &on.iter().copied().collect(), Path::new(object));
        let swap = ["CONFIG_SWAP", "CONFIG_MMU"];
        assert!(configured(&swap, "mm/memreap/") && !configured(&swap[..1], "mm/memreap/"));
        assert!(!configured(&swap, "mm/memreap/r.o") && configured(&[swap[0], swap[1], "CONFIG_R"], "mm/memreap/r.o"));
        assert!(configured(&[], "lib/x.o"), "without a Makefile");
    }
}
