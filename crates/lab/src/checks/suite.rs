// SPDX-License-Identifier: GPL-2.0-only
//! `lab test`: runs the project's checks one after the other and prints a summary.
//!
//! The checks are in three tiers. After a failed check the others still run. Checks that passed before with
//! the same content are skipped, and the summary says so.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::builder::PossibleValuesParser;
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;

use crate::WrongUsage;
use crate::arch::Arch;
use crate::checks::{passes, times};
use crate::content::Content;
use crate::context::Context;
use crate::debian;
use crate::host::{self, Pkg};
use crate::kernel::source::{self, NoPackage};
use crate::kernel::{patches, series};
use crate::progress::{Step, elapsed};

/// A set of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Tier {
    /// For every edit: takes six minutes with warm caches.
    Check,
    /// The default: what is needed to trust a version.
    Test,
    /// All checks; passes of earlier runs are not used.
    Full,
}

/// A check: a command that runs in the checkout.
#[derive(Clone, Copy)]
struct Check {
    name: &'static str,
    about: &'static str,
    tiers: &'static [Tier],
    /// Program and arguments, without quotes. `lab` is this program.
    command: &'static str,
    reuse: Reuse,
}

/// Which passes of earlier runs are used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reuse {
    None,
    /// The command decides for each guest, by its option `--remembered`.
    PerGuest,
    /// The pass of the whole check with the same `kernel/`, kernel source, versions of these programs and, where the
    /// lab is run, code about kernels.
    ByContent(&'static [&'static str]),
}

const ALL: &[Tier] = &[Tier::Check, Tier::Test, Tier::Full];
const TEST_FULL: &[Tier] = &[Tier::Test, Tier::Full];

/// In what a Rust test says of a part that it skips, between its place and the reason: see `testing::skipped`.
const SKIPPED: &str = ": skipped: ";

/// The newest Rust, 1.x, whose lints the code is known to pass. With a newer one lints fail nothing: a release of Rust
/// is no defect of what is tested.
const LINTED_WITH_MINOR: u32 = 95;

const fn check(name: &'static str, tiers: &'static [Tier], about: &'static str, command: &'static str) -> Check {
    Check { name, about, tiers, command, reuse: Reuse::None }
}

impl Check {
    const fn reuse(self, reuse: Reuse) -> Self {
        Self { reuse, ..self }
    }

    /// Returns the series whose kernels it is about.
    fn series(&self) -> &'static str {
        let after = self.command.split_once("--series ").map(|(_, after)| after);
        after.and_then(|after| after.split(' ').next()).unwrap_or(series::DEFAULT)
    }

    /// Returns the packages that it needs besides Rust.
    fn packages(&self, arch: Arch) -> Vec<Pkg> {
        const NONE: [&str; 3] = ["fmt", "clippy", "units"];
        let lints = if self.name.starts_with("static") { host::LINT_PACKAGES } else { &[] };
        match self.name {
            name if NONE.contains(&name) => Vec::new(),
            "hosted" => host::HOSTED_TEST_PACKAGES.to_vec(),
            "kernel-deb" => [host::guest_packages(arch), debian::PACKAGES].concat(),
            _ => [host::KERNEL_BUILD_PACKAGES, host::guest_packages(arch), host::SERIES_PACKAGES, lints].concat(),
        }
    }
}

/// All checks. Fast ones come first, so that simple mistakes are found early. The kernels are built before the tests
/// that boot them, which would not show the progress of a build.
#[rustfmt::skip]
const CHECKS: &[Check] = &[
    check("fmt", ALL, "formatting",
        "cargo fmt --all --check"),
    check("clippy", ALL, "Rust lints",
        "cargo clippy --workspace --all-targets -- -D warnings"),
    check("units", ALL, "Rust tests that need no guest",
        "cargo test --workspace --exclude lab"),
    check("lab-units", ALL, "Rust tests of the lab, all expect.toml and skips.toml among them",
        "cargo test --package lab --lib --bins"),
    check("topics", TEST_FULL, "the topics apply to the oldest and the newest kernel",
        "lab topics --check-all"),
    check("topics-7.3", TEST_FULL, "the topics apply to Linux 7.3",
        "lab --series 7.3 topics --check-all"),
    check("hosted", ALL, "kernel code on the host, with sanitizers",
        "make -C kernel/hosted test").reuse(Reuse::ByContent(&["clang-19"])),
    check("build", ALL, "the stock and the changed kernel build",
        "lab build --arm stock --arm memreap"),
    check("build-debug", ALL, "the changed debug kernel builds",
        "lab build --variant debug --arm memreap"),
    check("build-7.3", TEST_FULL, "the changed kernel of Linux 7.3 builds, with KUnit",
        "lab --series 7.3 build --variant kunit --arm memreap"),
    check("build-debug-7.3", &[Tier::Full], "the changed debug kernel of Linux 7.3 builds",
        "lab --series 7.3 build --variant debug --arm memreap"),
    check("guests", TEST_FULL, "guests that fail on purpose or run out of memory under the daemon",
        "cargo test --package lab --test *"),
    check("mutants", &[Tier::Full], "bugs put into hooks of the topics, one at a time, are found by selftests",
        "kernel/mutants.sh"),
    check("patches", &[Tier::Full], "the exported patches apply and build one by one",
        "lab patches --check --out target/lab/patches"),
    check("patches-7.3", &[Tier::Full], "the same for Linux 7.3",
        "lab --series 7.3 patches --check --out target/lab/patches-7.3"),
    check("upstream", &[Tier::Full], "the patches for upstream apply and build one by one",
        "lab --series 7.3 patches --upstream --check --out target/lab/upstream"),
    check("kernel-deb", &[Tier::Full], "the changed kernel as a package: installed beside Debian's, booted, removed",
        "packaging/kernel-deb-test.sh"),
    check("static", &[Tier::Test], "the topics' code: checkpatch, sparse, W=1",
        "lab static").reuse(Reuse::ByContent(&["gcc", "sparse"])),
    check("static-configs", &[Tier::Full], "the same, and in rare configurations",
        "lab static --configs").reuse(Reuse::ByContent(&["gcc", "sparse"])),
    check("static-7.3", &[Tier::Full], "the same on Linux 7.3",
        "lab --series 7.3 static --configs").reuse(Reuse::ByContent(&["gcc", "sparse"])),
    check("kunit", ALL, "KUnit in the changed debug kernel, with kmemleak",
        "lab kunit --variant debug").reuse(Reuse::PerGuest),
    check("kunit-7.3", TEST_FULL, "KUnit in the changed kernel of Linux 7.3",
        "lab --series 7.3 kunit --variant kunit").reuse(Reuse::PerGuest),
    check("kunit-debug-7.3", &[Tier::Full], "KUnit in the changed debug kernel of Linux 7.3, with kmemleak",
        "lab --series 7.3 kunit --variant debug").reuse(Reuse::PerGuest),
    check("kunit-arm64", &[Tier::Full], "KUnit in the changed arm64 kernel, cross-compiled and emulated",
        "lab --arch arm64 kunit --variant debug").reuse(Reuse::PerGuest),
    check("kunit-arm64-7.3", &[Tier::Full], "the same on Linux 7.3",
        "lab --arch arm64 --series 7.3 kunit --variant debug").reuse(Reuse::PerGuest),
    check("selftests-arm64", &[Tier::Full], "selftests in the changed arm64 kernel",
        "lab --arch arm64 selftests --variant slim --stress-seconds 4 ours").reuse(Reuse::PerGuest),
    check("selftests-slim", ALL, "our selftests in the kernel that is measured, the kernel's mrelease_test on both",
        "lab selftests --variant slim --stress-seconds 2 ours mm/mrelease_test").reuse(Reuse::PerGuest),
    check("selftests-7.3", TEST_FULL, "our selftests in the changed kernel of Linux 7.3",
        "lab --series 7.3 selftests --variant kunit --stress-seconds 2 ours").reuse(Reuse::PerGuest),
    check("selftests-debug-7.3", &[Tier::Full], "our selftests in the changed debug kernel of Linux 7.3",
        "lab --series 7.3 selftests --variant debug --stress-seconds 4 ours").reuse(Reuse::PerGuest),
    check("selftests-storms", &[Tier::Full], "our selftests in the changed debug kernel, with longer storms and races",
        "lab selftests --variant debug ours"),
    check("selftests-leaks", &[Tier::Full], "our selftests in the changed debug kernel, with kmemleak",
        "lab selftests --variant debug --leaks --stress-seconds 2 ours").reuse(Reuse::PerGuest),
    check("smoke", &[Tier::Test], "a comparison with one pair, and the expectations that one pair can show",
        "lab ab reap --smoke --expect"),
    check("scenarios-7.3", &[Tier::Full], "all comparisons with one pair, on Linux 7.3",
        "lab --series 7.3 ab --smoke --expect"),
    check("scenarios", &[Tier::Full], "all comparisons with one pair, and the expectations that one pair can show",
        "lab ab --smoke --expect"),
    check("stress", &[Tier::Full], "stress-ng in the stock and the changed debug kernel",
        "lab stress"),
    check("soak", &[Tier::Full], "kill storms in the changed debug kernel",
        "lab soak --minutes 10"),
    check("soak-7.3", &[Tier::Full], "the same on Linux 7.3",
        "lab --series 7.3 soak --minutes 10"),
    check("selftests-own-7.3", &[Tier::Full], "Linux 7.3's own selftests fail only where they do on stock",
        "lab --series 7.3 selftests --variant slim mm/mrelease_test cgroup pidfd"),
    check("kunit-kcsan", &[Tier::Full], "KUnit in the changed kernel with the data-race detector",
        "lab kunit --variant kcsan"),
    check("kunit-kcsan-7.3", &[Tier::Full], "the same on Linux 7.3",
        "lab --series 7.3 kunit --variant kcsan"),
    check("selftests-kcsan", &[Tier::Full], "our selftests in the changed kernel with the data-race detector",
        "lab selftests --variant kcsan ours"),
    check("selftests-kcsan-7.3", &[Tier::Full], "the same on Linux 7.3",
        "lab --series 7.3 selftests --variant kcsan ours"),
    check("selftests-rt", &[Tier::Full], "our selftests in the changed debug kernel with PREEMPT_RT",
        "lab selftests --variant rt ours"),
    check("selftests-rt-7.3", &[Tier::Full], "the same on Linux 7.3",
        "lab --series 7.3 selftests --variant rt ours"),
];

/// Returns a table of all checks: name, tiers, description.
fn list() -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_header(["check", "check", "test", "test-full", "what"]);
    for check in CHECKS {
        let [first, second, third] =
            [Tier::Check, Tier::Test, Tier::Full].map(|tier| if check.tiers.contains(&tier) { "x" } else { "" });
        table.add_row([check.name, first, second, third, check.about]);
    }
    table.to_string()
}

/// How many lines of the log of a failed check are shown.
const FAILURE_LOG_LINES: usize = 60;

/// Run the project's checks, by tier or by name
///
/// Checks that passed before with the same content are skipped, and the report says which. Passes are
/// remembered in the cache for 30 days.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lab test                                what `make test` runs
  lab test --tier check                   for every edit; six minutes with warm caches
  lab test kunit selftests-slim --fresh   two checks, even if they passed before")]
pub struct SuiteOptions {
    /// Checks by name [default: all of the tier]
    #[arg(value_parser = PossibleValuesParser::new(CHECKS.iter().map(|check| check.name)), hide_possible_values = true)]
    pub checks: Vec<String>,
    /// Which checks; `full` does not skip what passed before
    #[arg(long, value_enum, default_value_t = Tier::Test)]
    pub tier: Tier,
    /// Do not skip what passed before
    #[arg(long)]
    pub fresh: bool,
    /// Only list the checks
    #[arg(long)]
    pub list: bool,
}

/// The result of a check.
struct CheckResult {
    name: &'static str,
    about: &'static str,
    /// Why it failed: the end of its log, or why it could not be run. `None` if it passed.
    failure: Option<String>,
    /// Why it was not run: there is no source of its series here.
    not_run: Option<String>,
    /// Which part was skipped because it passed in an earlier run, for example `3 of 4`.
    remembered: Option<String>,
    /// What tests said that were skipped because the host lacks something.
    skipped: Vec<String>,
    took: Duration,
    /// How long it took last time, if known.
    last: Option<Duration>,
}

/// Lists the checks, or runs the selected ones, prints the summary and returns whether all passed.
///
/// # Errors
/// When a package is missing and cannot be installed; [`WrongUsage`] for another architecture or series.
pub fn run(ctx: &Context, options: &SuiteOptions) -> Result<bool> {
    if options.list {
        println!("{}", list());
        return Ok(true);
    }
    let of_host = ctx.arch == Arch::of_host();
    let what = "--arch is not for `lab test`: its checks are of the host's architecture, or name their own";
    ensure!(of_host, WrongUsage(what.into()));
    let of_default = ctx.series.name == series::DEFAULT || ctx.kernel.is_some();
    ensure!(of_default, WrongUsage("--series is not for `lab test`: its checks name their own".into()));
    let is_chosen = |check: &&Check| match &options.checks[..] {
        [] => check.tiers.contains(&options.tier),
        named => named.iter().any(|name| name == check.name),
    };
    let chosen: Vec<&Check> = CHECKS.iter().filter(is_chosen).collect();
    host::ensure_packages(ctx, &chosen.iter().flat_map(|c| c.packages(ctx.arch)).collect::<Vec<_>>())?;

    let fresh = options.fresh || options.tier == Tier::Full;
    let began = Instant::now();
    let mut done = Vec::new();
    for (i, check) in chosen.iter().enumerate() {
        done.push(run_one(ctx, check, fresh, i + 1, chosen.len())?);
    }
    let text = summary(&done, began.elapsed());
    host::write_atomically(&ctx.out.join("test-summary.txt"), &text)?;
    print!("{text}");
    // What was asked for by name and not run has not passed.
    let is_named = !options.checks.is_empty();
    Ok(done.iter().all(|d| d.failure.is_none() && !(is_named && d.not_run.is_some())))
}

fn run_one(ctx: &Context, check: &Check, fresh: bool, number: usize, of: usize) -> Result<CheckResult> {
    let name = format!("test {}", check.name);
    let last = times::last(ctx, &name);
    let began = Instant::now();
    let mut result = CheckResult {
        name: check.name,
        about: check.about,
        failure: None,
        not_run: None,
        remembered: None,
        skipped: Vec::new(),
        took: Duration::ZERO,
        last,
    };
    let before = last.map_or(String::new(), |last| format!(", {} last time", elapsed(last)));
    let step = ctx.progress.step(&format!("test {number}/{of} {}: {}{before}", check.name, check.about));
    match of_check(ctx, check) {
        Err(e) if e.is::<NoPackage>() => {
            step.done("not run");
            result.not_run = Some(format!("{e:#}"));
        }
        of_check => match of_check.and_then(|ctx| attempt(&ctx, check, fresh, &step, &mut result)) {
            Ok((done, key)) => {
                step.done(done);
                if let Some(key) = key {
                    passes::remember(ctx, &key, &())?;
                }
                // The time of a check that skipped something says nothing about a complete one.
                if result.remembered.is_none() {
                    times::keep(ctx, &name, began.elapsed())?;
                }
            }
            Err(e) => {
                let failure = format!("{}: {e:#}", check.name);
                ctx.progress.note(&failure);
                result.failure = Some(failure);
            }
        },
    }
    result.took = began.elapsed();
    Ok(result)
}

/// Runs a check unless it passed before, and returns a word for that, and the key by which this pass is to be
/// remembered.
///
/// # Errors
/// Why the check failed.
fn attempt(
    ctx: &Context,
    check: &Check,
    fresh: bool,
    step: &Step,
    result: &mut CheckResult,
) -> Result<(&'static str, Option<String>)> {
    let key_now = || match check.reuse {
        Reuse::ByContent(tools) => content(ctx, check, tools).map(Some),
        Reuse::None | Reuse::PerGuest => Ok(None),
    };
    let key = key_now()?;
    if !fresh && key.as_ref().is_some_and(|key| passes::recall::<()>(ctx, key).is_some()) {
        result.remembered = Some("all".into());
        return Ok(("passed earlier", None));
    }
    let log = ctx.out.join(format!("logs/test-{}.log", check.name));
    let mut command = command(ctx, check, fresh);
    if command.get_args().any(|arg| arg == "--cap-lints") {
        let log = log.display();
        result
            .skipped
            .push(format!("clippy{SKIPPED}Rust is newer than 1.{LINTED_WITH_MINOR}, so lints only warn, in {log}"));
    }
    let status = host::run_logged(&mut command, &log, |line| {
        if let Some(what) = line.strip_prefix(passes::SUMMARY_PREFIX) {
            result.remembered = Some(what.to_owned());
        }
        if line.contains(SKIPPED) {
            result.skipped.push(line.to_owned());
        }
        step.detail(line);
    })?;
    let tail = || host::tail(&log, FAILURE_LOG_LINES);
    ensure!(status.success(), "{status}; the end of {}:\n{}", log.display(), tail());
    // What was edited meanwhile may have been checked before or after that.
    Ok(("passed", key.filter(|key| key_now().is_ok_and(|now| now.as_ref() == Some(key)))))
}

/// Returns the context with the kernel that a check is about.
///
/// # Errors
/// When that is of another series than the default one, and there is no source of it, or it cannot be had.
fn of_check(ctx: &Context, check: &Check) -> Result<Context> {
    let series = check.series();
    if series == series::DEFAULT && ctx.series.name == series {
        return Ok(ctx.clone());
    }
    let ctx = ctx.clone().with_kernel(Some(series), None)?;
    if series != series::DEFAULT {
        source::get(&ctx)?;
    }
    Ok(ctx)
}

/// Whether a compiler, which prints `version`, is newer than [`LINTED_WITH_MINOR`].
fn is_newer(version: &str) -> bool {
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse().ok());
    minor.is_some_and(|minor: u32| minor > LINTED_WITH_MINOR)
}

fn command(ctx: &Context, check: &Check, fresh: bool) -> Command {
    let mut words = check.command.split(' ');
    let program = words.next().unwrap_or_default();
    let mut command = match program {
        // Not by its path, which a build may give to another program while the checks run.
        "lab" => Command::new("/proc/self/exe"),
        // The user's environment must not change the build.
        "make" => host::tool("make"),
        tool => Command::new(tool),
    };
    command.args(words).current_dir(&ctx.repo);
    // By the environment, as the lab's own tests get no options.
    command.env_remove("MEMREAP_KERNEL");
    command.envs(ctx.kernel.as_ref().map(|kernel| ("MEMREAP_KERNEL", kernel)));
    if program == "make" {
        command.arg(format!("-j{}", host::cpus()));
    }
    if check.reuse == Reuse::PerGuest && !fresh {
        command.arg("--remembered");
    }
    if check.name == "clippy" && host::output(Command::new("rustc").arg("--version")).is_ok_and(|v| is_newer(&v)) {
        command.args(["--cap-lints", "warn"]);
    }
    // An outer make's job server is not available here.
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
        command.env_remove(name);
    }
    // These patches are not sent to anyone, so a machine without a git identity can check them, too.
    if check.command.contains(" patches ") && !patches::author_known(&ctx.repo) {
        command.envs([
            ("GIT_CONFIG_COUNT", "2"),
            ("GIT_CONFIG_KEY_0", "user.name"),
            ("GIT_CONFIG_VALUE_0", "memreap test"),
            ("GIT_CONFIG_KEY_1", "user.email"),
            ("GIT_CONFIG_VALUE_1", "test@localhost"),
        ]);
    }
    command
}

/// Returns the content key of a check whose pass is reused by content: its command, and what [`Reuse::ByContent`]
/// names.
fn content(ctx: &Context, check: &Check, tools: &[&str]) -> Result<String> {
    let mut content = Content::default();
    content.add(check.command);
    content.add(source::get(ctx)?.version.full);
    let kernel = ctx.in_repo("kernel");
    for file in host::files_below(&kernel)? {
        let path = file.strip_prefix(&kernel).unwrap_or(&file);
        // None of these checks reads them.
        if !["expect.toml", "skips.toml", "README.md"].iter().any(|name| path.ends_with(name)) {
            content.add(path.as_os_str().as_encoded_bytes());
            content.add_file(&file)?;
        }
    }
    if check.command.starts_with("lab ") {
        content.add_tree(&ctx.in_repo("crates/lab/src/kernel"))?;
    }
    for tool in tools {
        content.add(host::output(Command::new(tool).arg("--version"))?);
    }
    Ok(content.key())
}

/// Returns the summary: the table, the failures (repeated here because they may be far up in the output), and
/// on the last line the counts.
fn summary(done: &[CheckResult], took: Duration) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_header(["check", "what", "result", "remembered", "took", "last time"]);
    for d in done {
        let result = match (&d.failure, &d.not_run, d.skipped.len()) {
            (Some(_), ..) => "FAILED".to_owned(),
            (None, Some(_), _) => "NOT RUN".to_owned(),
            (None, None, 0) => "passed".to_owned(),
            (None, None, n) => format!("passed, {n} skipped"),
        };
        let last = d.last.map(elapsed).unwrap_or_default();
        let remembered = d.remembered.as_deref().unwrap_or_default();
        table.add_row([d.name, d.about, &result, remembered, &elapsed(d.took), &last]);
    }
    table.add_row(["", "", "", "", &elapsed(took), ""]);
    let failures: Vec<&str> = done.iter().filter_map(|d| d.failure.as_deref()).collect();
    let mut text = format!("{table}\n");
    for line in done.iter().flat_map(|d| &d.skipped) {
        text += &format!("{line}\n");
    }
    for failure in &failures {
        text += &format!("\n{}\n\n", failure.trim_end());
    }
    let not_run: Vec<&CheckResult> = done.iter().filter(|d| d.not_run.is_some()).collect();
    for CheckResult { name, not_run, .. } in &not_run {
        text += &format!("not run: {name}: {}\n", not_run.as_deref().unwrap_or_default());
    }
    text + &format!("{} passed, {} failed\n", done.len() - failures.len() - not_run.len(), failures.len())
}

#[cfg(test)]
mod tests {
    use fs_err as fs;

    use super::*;

    #[test]
    fn lints_of_a_newer_rust_fail_nothing() {
        let newer = |minor: u32| is_newer(&format!("rustc 1.{minor}.0 (0123456 2026-04-14)"));
        assert!(!newer(88) && !newer(LINTED_WITH_MINOR) && newer(LINTED_WITH_MINOR + 1) && !is_newer(""));
    }

    #[test]
    fn the_last_line_counts() {
        let done = |failure: Option<&str>, remembered: Option<&str>| CheckResult {
            name: "n",
            about: "a",
            failure: failure.map(String::from),
            not_run: None,
            remembered: remembered.map(String::from),
            skipped: Vec::new(),
            took: Duration::from_secs(61),
            last: Some(Duration::from_secs(125)),
        };
        let skipped = vec!["psi.rs:7:9: skipped: no PSI here".to_owned()];
        let all = [
            CheckResult { skipped, ..done(None, None) },
            done(Some("n: it broke\n"), None),
            done(None, Some("3 of 4")),
            CheckResult { not_run: Some("no source".into()), ..done(None, None) },
        ];
        let text = summary(&all[..3], Duration::from_secs(200));
        assert_eq!(text.lines().last(), Some("2 passed, 1 failed"));
        for what in
            ["FAILED", "1m01s", "2m05s", "3m20s", "3 of 4", "passed, 1 skipped", "\npsi.rs:7:9: skipped: no PSI here\n"]
        {
            assert!(text.contains(what), "{text}");
        }
        assert!(text.ends_with("\nn: it broke\n\n2 passed, 1 failed\n"), "{text}");
        let text = summary(&all, Duration::from_secs(200));
        assert!(text.contains("NOT RUN"), "{text}");
        assert!(text.ends_with("\nnot run: n: no source\n2 passed, 1 failed\n"), "{text}");
    }

    #[test]
    fn a_failing_check_is_counted_and_does_not_stop_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = Context::below(dir.path());
        for (tool, passes) in [("true", true), ("false", false), ("no-such-tool-here", false)] {
            let check = check("n", ALL, "a", tool);
            assert_eq!(run_one(&ctx, &check, true, 1, 1).unwrap().failure.is_none(), passes, "{tool}");
        }
        let ctx = Context { kernel: Some("6.12.1".into()), ..ctx };
        let check = check("n", ALL, "a", "printenv MEMREAP_KERNEL");
        assert_eq!(run_one(&ctx, &check, true, 1, 1).unwrap().failure, None);
        assert_eq!(host::tail(&ctx.out.join("logs/test-n.log"), 1), "  6.12.1");
    }

    #[test]
    fn skipped_parts_and_the_last_time_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = Context::below(dir.path());
        let run = |command| run_one(&ctx, &check("n", ALL, "a", command), false, 1, 1).unwrap();
        let first = run("echo fine");
        assert_eq!((first.remembered, first.last), (None, None));
        let second = run("echo remembered: 3 of 4");
        assert_eq!(second.remembered.as_deref(), Some("3 of 4"));
        assert!(second.last.is_some_and(|last| last <= first.took), "{:?} and {:?}", second.last, first.took);
    }

    #[test]
    fn a_larger_tier_includes_the_smaller_one() {
        // The check that replaces another one in a larger tier; it does the same and more.
        let replaced = |name| match name {
            "static" => "static-configs",
            "smoke" => "scenarios",
            "selftests-slim-7.3" => "selftests-7.3",
            name => name,
        };
        let part_of = |name, tier| CHECKS.iter().any(|c| c.name == name && c.tiers.contains(&tier));
        for (tier, larger) in [(Tier::Check, Tier::Test), (Tier::Test, Tier::Full)] {
            for check in CHECKS.iter().filter(|c| c.tiers.contains(&tier)) {
                let there = part_of(check.name, larger) || part_of(replaced(check.name), larger);
                assert!(there, "{} of {tier:?} is not in {larger:?}", check.name);
            }
        }
        let mut names: Vec<&str> = CHECKS.iter().map(|c| c.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len());
    }

    #[test]
    fn every_source_file_says_its_licence() {
        const SOURCES: [&str; 8] = ["rs", "c", "h", "S", "sh", "css", "py", "Makefile"];
        let repo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut missing = Vec::new();
        let mut found = 0;
        for folder in ["crates", "kernel", "faceoff", "packaging"] {
            for file in host::files_below(&repo.join(folder)).unwrap() {
                let name = file.extension().or(file.file_name()).and_then(|name| name.to_str());
                // What is inserted are lines of a file.
                if !name.is_some_and(|name| SOURCES.contains(&name))
                    || file.components().any(|c| c.as_os_str() == "target" || c.as_os_str() == "insert")
                {
                    continue;
                }
                found += 1;
                let text = fs::read_to_string(&file).unwrap();
                if !text.lines().take(3).any(|line| line.contains("SPDX-License-Identifier: GPL-2.0")) {
                    missing.push(file);
                }
            }
        }
        assert!(found > 300, "{found}");
        assert!(missing.is_empty(), "{missing:?}");
    }
}
