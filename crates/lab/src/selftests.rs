//! `lab selftests`: user-space tests of the kernel, run in guests.
//!
//! "ours" are the topics' own, in `tools/testing/selftests/memreap`; they run in the changed
//! kernel and must pass. Any other name is a folder of the kernel's own selftests, or one
//! program in it (`mm/mrelease_test`); the same binaries run in the stock and in the changed
//! kernel, and only what fails in the changed one alone is held against it. Each program gets a
//! guest of its own, so that one that brings its guest down is known by name and spoils no other.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde::Serialize;

use crate::accel::Accel;
use crate::boot::{Arm, Boot, GuestCommand, Job, boot_with};
use crate::channel::{Message, Outcome};
use crate::context::Context;
use crate::experiment::{Cause, Failure};
use crate::host::{self, Pkg, Probe, Staging};
use crate::kernel::{self, Kernel, Tree, Variant};

/// The folder of our own tests.
const OURS: &str = "memreap";
/// Where the tests are, in the kernel's source and in the guest.
const IN_TREE: &str = "tools/testing/selftests";
const IN_GUEST: &str = "/selftests";

/// One program's limit in the guest, in seconds: the kernel's usual 45 s, with room for TCG and
/// debug checks. The guest's own limit leaves room for its boot.
const PROGRAM_LIMIT: u64 = 1200;
const GUEST_LIMIT: Duration = Duration::from_secs(PROGRAM_LIMIT + 120);
/// mrelease_test takes up to 1 GiB.
const MEM_MIB: u32 = 2048;
/// Tests of migration need a second node; both get half of the memory.
const CMDLINE: &str = "numa=fake=2";
/// The kernel's own of them also need two CPUs beside their own.
const CPUS: u32 = 3;

/// The exit status by which a kernel selftest says that it cannot run here (KSFT_SKIP).
const SKIPPED: i32 = 4;
/// What busybox's `timeout -s KILL` leaves.
const TIMED_OUT: i32 = 128 + 9;

/// Libraries that tests under tools/testing/selftests/mm want.
const LIBRARIES: &[Pkg] = &[
    Pkg { name: "libnuma-dev", probe: Probe::File("/usr/include/numa.h") },
    Pkg { name: "libcap-dev", probe: Probe::File("/usr/include/sys/capability.h") },
];

/// What to run.
pub struct SelftestOptions {
    /// `ours`, or `FOLDER[/PROGRAM [ARGUMENT...]]` under tools/testing/selftests; none: ours.
    pub names: Vec<String>,
    /// The kernels' build.
    pub variant: Variant,
    /// Whether stdout gets the results as JSON instead of a table.
    pub json: bool,
}

/// Runs the tests in their kernels, prints the results and gives whether all is well: ours pass,
/// the kernel's own fail nowhere where they do not fail on stock.
///
/// # Errors
/// When a kernel or a test does not build, there is no such test, or QEMU fails. A guest that
/// panics, hangs or complains is a failure of the test that ran in it.
pub fn run(ctx: &Context, accel: Accel, options: &SelftestOptions) -> Result<bool> {
    let default = [String::from("ours")];
    let names = if options.names.is_empty() { &default[..] } else { &options.names };
    let mut rows = Vec::new();
    // What was found out before something went wrong is still worth showing.
    let done = run_all(ctx, accel, options.variant, names, &mut rows);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else if !rows.is_empty() {
        print_table(&rows);
    }
    done?;
    Ok(rows.iter().all(|row| row.new_failures.is_empty()))
}

fn run_all(
    ctx: &Context,
    accel: Accel,
    variant: Variant,
    names: &[String],
    rows: &mut Vec<Row>,
) -> Result<()> {
    let names = names.iter().map(|name| Name::parse(name)).collect::<Result<Vec<_>>>()?;
    let memreap = kernel::build(ctx, Tree::Memreap, variant)?;
    let stock = if names.iter().any(|name| name.folder != OURS) {
        Some(kernel::build(ctx, Tree::Stock, variant)?)
    } else {
        None
    };
    for name in names {
        let base = stock.as_ref().filter(|_| name.folder != OURS);
        let tests = build(ctx, base.unwrap_or(&memreap), &name)?;
        for program in &tests.programs {
            let base = base.map(|k| run_one(ctx, accel, Tree::Stock, k, &tests, program)).transpose()?;
            let changed = run_one(ctx, accel, Tree::Memreap, &memreap, &tests, program)?;
            rows.push(Row::new(format!("{}/{program}", tests.folder), base, changed));
        }
    }
    Ok(())
}

/// A test's name as the user gives it.
#[derive(Debug, PartialEq, Eq)]
struct Name {
    folder: String,
    /// The program with its arguments; `None` means all of the folder.
    program: Option<String>,
}

impl Name {
    fn parse(text: &str) -> Result<Self> {
        if text == "ours" {
            return Ok(Self { folder: OURS.into(), program: None });
        }
        let (path, args) = text.split_once(' ').unwrap_or((text, ""));
        let path = path.trim_matches('/');
        let fine = !path.is_empty() && path.split('/').all(|part| !part.is_empty() && part != "..");
        ensure!(fine, "'{text}' names no folder under {IN_TREE}");
        // Folders may be nested (filesystems/epoll), so what is a program shows in the tree.
        let (folder, program) = match path.rsplit_once('/') {
            Some((folder, program)) => (folder, Some(format!("{program} {args}").trim().to_owned())),
            None => (path, None),
        };
        Ok(Self { folder: folder.into(), program })
    }
}

/// Tests, built and ready for a guest.
struct Tests {
    /// Under tools/testing/selftests.
    folder: String,
    /// The folder with the binaries, on the host.
    built: PathBuf,
    /// What to run in it, with arguments.
    programs: Vec<String>,
    /// Keeps `built` until the tests are done with, and to ourselves.
    _scratch: (Staging, File),
}

/// Builds a folder's tests by the kernel's own makefiles, in a scratch copy of the tree.
fn build(ctx: &Context, kernel: &Kernel, name: &Name) -> Result<Tests> {
    let mut folder = name.folder.clone();
    let mut program = name.program.clone();
    if let Some(last) = &program
        && kernel.source_dir.join(IN_TREE).join(&folder).join(last).is_dir()
    {
        folder = format!("{folder}/{last}");
        program = None;
    }
    let source = kernel.source_dir.join(IN_TREE).join(&folder);
    ensure!(
        source.join("Makefile").is_file(),
        "no selftests '{folder}' in this kernel: {} has no Makefile",
        source.display()
    );
    if folder != OURS
        && let Err(e) = host::ensure_packages(ctx, LIBRARIES)
    {
        // Most tests need none of them.
        ctx.progress.warn(&format!("tests that need these will not build: {e:#}"));
    }
    let headers = kernel::install_headers(ctx, kernel)?.join("include");

    let step = ctx.progress.step(&format!("building selftests {folder}"));
    // Beside the tree: hard links do not reach across file systems.
    let target = ctx.cache.join("selftests");
    let lock = host::lock(ctx, &target)?;
    let scratch = Staging::begin(&target)?;
    fs::create_dir_all(scratch.path()).with_context(|| scratch.path().display().to_string())?;
    for part in ["tools", "include", "lib", "mm", "scripts"] {
        kernel::hard_link_copy(&kernel.source_dir.join(part), &scratch.path().join(part))?;
    }
    let built = scratch.path().join(IN_TREE).join(&folder);
    let make = || {
        let mut make = Command::new("make");
        make.arg("-C").arg(&built).arg(format!("KHDR_INCLUDES=-isystem {}", headers.display()));
        make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
        make
    };
    let log = ctx.out.join(format!("logs/selftests/{}/make.log", folder.replace('/', "-")));
    let programs = match &program {
        Some(command) => {
            let file = command.split(' ').next().unwrap_or(command);
            if !built.join(file).is_file() {
                host::run_step(&step, make().arg(built.join(file)), &log)?;
            }
            vec![command.clone()]
        }
        None => {
            // One that does not build (a library is missing) must not keep the others back; that
            // it is missing shows when it is to be run.
            let status = host::run_logged(make().arg("-k"), &log, |line| step.detail(line))?;
            if !status.success() {
                let what = format!("not all of selftests {folder} built: see {}", log.display());
                // Nothing of ours is missing for want of a library.
                ensure!(folder != OURS, what);
                ctx.progress.warn(&what);
            }
            // Lines of the form FOLDER:PROGRAM.
            host::output(make().args(["-s", "COLLECTION=x", "emit_tests"]))?
                .lines()
                .filter_map(|line| Some(line.strip_prefix("x:")?.trim().to_owned()))
                .collect()
        }
    };
    ensure!(!programs.is_empty(), "{folder}: its Makefile names no test to run");
    step.done(&format!("{} programs", programs.len()));
    Ok(Tests { folder, built, programs, _scratch: (scratch, lock) })
}

/// Runs one program in a guest of its own.
fn run_one(
    ctx: &Context,
    accel: Accel,
    tree: Tree,
    kernel: &Kernel,
    tests: &Tests,
    program: &str,
) -> Result<Report> {
    let file = program.split(' ').next().unwrap_or(program);
    let path = tests.built.join(file);
    if !path.is_file() {
        return Ok(Report { status: Status::Fail, why: Some("not built".into()), ..Report::default() });
    }
    let arm = Arm { name: tree.to_string(), bzimage: kernel.bzimage.clone(), cmdline: CMDLINE.into() };
    let home = format!("{IN_GUEST}/{}", tests.folder);
    let script = format!("cd {home} && exec timeout -s KILL {PROGRAM_LIMIT} ./{program}");
    let mut job = Job::new(GuestCommand::Exec(["sh", "-c", &script].map(String::from).into()));
    job.mem_mib = MEM_MIB;
    job.memreap = false;
    if tests.folder != OURS {
        job.cpus = CPUS;
    }
    job.timeout = GUEST_LIMIT;
    job.overlay = vec![(path, format!("{home}/{file}"))];
    let content = fs::read(tests.built.join(file)).with_context(|| file.to_owned())?;
    if content.starts_with(b"#!") {
        // A script may call anything beside it.
        job.overlay = vec![(tests.built.clone(), home)];
        let bash = PathBuf::from("/bin/bash");
        if bash.is_file() {
            job.overlay.push((bash, "/bin/bash".into()));
        }
    }
    let logs =
        ctx.out.join("logs/selftests").join(tests.folder.replace('/', "-")).join(format!("{file}-{tree}"));
    let mut text = String::new();
    let boot = boot_with(ctx, accel, &arm, &job, &logs, &mut |message| {
        if let Message::Out(piece) | Message::Err(piece) = message {
            text.push_str(piece);
        }
    })?;
    let logs = boot.logs().to_path_buf();
    fs::write(logs.join("output.log"), &text).with_context(|| logs.display().to_string())?;
    if let Outcome::Qemu { .. } = boot.outcome {
        let cause = Cause::Outcome(boot.outcome.clone());
        return Err(Failure { boot: program.into(), cause, tail: boot.tail(20), logs }.into());
    }
    // Ours speak TAP by the house's rules; of the kernel's own, not all do.
    Ok(Report::new(&boot, &text, tests.folder == OURS))
}

/// How a program or one of its cases ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    #[default]
    Pass,
    Skip,
    Fail,
}

/// One program in one kernel.
#[derive(Debug, Default, Serialize)]
struct Report {
    status: Status,
    /// Why it failed as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// Its cases by name.
    cases: BTreeMap<String, Status>,
    /// What it printed, if it did not pass.
    #[serde(skip_serializing_if = "String::is_empty")]
    output: String,
}

impl Report {
    fn new(boot: &Boot, text: &str, must_be_tap: bool) -> Self {
        let tap = Tap::parse(text);
        let spoken = tap.version || tap.plan.is_some();
        let complaint = match boot.outcome {
            Outcome::Exit(TIMED_OUT) => Some(format!("killed, or longer than {PROGRAM_LIMIT} s")),
            Outcome::Exit(0 | SKIPPED) if spoken || must_be_tap => tap.complaint(),
            Outcome::Exit(0 | SKIPPED) => None,
            // The cases that failed say more than the status.
            Outcome::Exit(1) if spoken && tap.cases.values().any(|&c| c == Status::Fail) => {
                tap.complaint().or(Some("cases failed".into()))
            }
            ref other => Some(other.to_string()),
        };
        let failed = complaint.is_some() || tap.cases.values().any(|&c| c == Status::Fail);
        let skipped = boot.outcome == Outcome::Exit(SKIPPED) || tap.skipped_all();
        let status = match (failed, skipped) {
            (true, _) => Status::Fail,
            (false, true) => Status::Skip,
            (false, false) => Status::Pass,
        };
        let mut output = String::new();
        if status != Status::Pass {
            text.clone_into(&mut output);
        }
        if !boot.outcome.is_healthy() {
            output.push_str(&boot.tail(30));
        }
        Self { status, why: complaint, cases: tap.cases, output }
    }

    /// `pass`, `FAIL: exit status 1 (3 ok, 1 not ok)`.
    fn summary(&self) -> String {
        let number = |status| self.cases.values().filter(|&&c| c == status).count();
        let mut text = match self.status {
            Status::Pass => "pass".to_owned(),
            Status::Skip => "skip".to_owned(),
            Status::Fail => format!("FAIL: {}", self.why.as_deref().unwrap_or("cases failed")),
        };
        let counts: Vec<_> = [(Status::Pass, "ok"), (Status::Fail, "not ok"), (Status::Skip, "skipped")]
            .into_iter()
            .filter(|&(status, _)| number(status) > 0)
            .map(|(status, word)| format!("{} {word}", number(status)))
            .collect();
        if !counts.is_empty() {
            text.push_str(&format!(" ({})", counts.join(", ")));
        }
        text
    }
}

/// The Test Anything Protocol as kernel selftests speak it (Documentation/dev-tools/ktap.rst):
/// a plan `1..N`, and `ok N name` or `not ok N name` for each, at the start of the line.
/// Nested results are summed up by the test that prints them.
#[derive(Debug, Default)]
struct Tap {
    version: bool,
    plan: Option<usize>,
    results: usize,
    cases: BTreeMap<String, Status>,
    bailed: Option<String>,
}

impl Tap {
    fn parse(text: &str) -> Self {
        let mut tap = Self::default();
        for line in text.lines() {
            if line.starts_with("TAP version") || line.starts_with("KTAP version") {
                tap.version = true;
            } else if let Some(plan) = line.strip_prefix("1..") {
                tap.plan = plan.split_whitespace().next().and_then(|n| n.parse().ok());
            } else if let Some(rest) = line.strip_prefix("not ok ") {
                tap.case(rest, Status::Fail);
            } else if let Some(rest) = line.strip_prefix("ok ") {
                tap.case(rest, Status::Pass);
            } else if let Some(why) = line.strip_prefix("Bail out!") {
                tap.bailed = Some(why.trim().to_owned());
            }
        }
        tap
    }

    fn case(&mut self, rest: &str, status: Status) {
        let (rest, directive) = rest.split_once(" # ").unwrap_or((rest, ""));
        let (number, name) = rest.split_once(' ').unwrap_or((rest, ""));
        if number.parse::<usize>().is_err() {
            return;
        }
        self.results += 1;
        let status = match directive.split_whitespace().next().map(str::to_ascii_uppercase).as_deref() {
            Some("SKIP") => Status::Skip,
            // Known not to work: no news.
            Some("TODO" | "XFAIL") => Status::Pass,
            _ => status,
        };
        let name = name.trim_start_matches("- ").trim();
        let name = if name.is_empty() { number } else { name };
        // Names repeat in some tests; a failure must not be hidden by a later pass.
        let kept = self.cases.entry(name.to_owned()).or_insert(status);
        if status == Status::Fail {
            *kept = status;
        }
    }

    /// What is wrong with the stream, or with what it says.
    fn complaint(&self) -> Option<String> {
        if let Some(why) = &self.bailed {
            return Some(format!("bailed out: {why}"));
        }
        match self.plan {
            None => Some("no TAP plan in its output".into()),
            Some(plan) if plan != self.results => {
                Some(format!("planned {plan} results, gave {}", self.results))
            }
            Some(_) if self.cases.values().any(|&c| c == Status::Fail) => Some("cases failed".into()),
            Some(_) => None,
        }
    }

    fn skipped_all(&self) -> bool {
        self.version && self.cases.values().all(|&c| c == Status::Skip)
    }
}

/// How a case of the one report ended in the other: the case of that name, or, since some tests put what they
/// measured into the name, one that differs from it in figures alone and has no namesake of its own.
fn counterpart(case: &str, its: &Report, other: &Report) -> Option<Status> {
    let without_figures = |name: &str| -> Vec<char> {
        let mut text: Vec<char> = name.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        text.dedup_by(|a, b| *a == '0' && *b == '0');
        text
    };
    let same = |name: &str| !its.cases.contains_key(name) && without_figures(name) == without_figures(case);
    other.cases.get(case).or_else(|| other.cases.iter().find(|(name, _)| same(name)).map(|(_, s)| s)).copied()
}

/// One program, compared.
#[derive(Debug, Serialize)]
struct Row {
    test: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stock: Option<Report>,
    memreap: Report,
    /// What fails in the changed kernel only: cases, or the program as a whole.
    new_failures: Vec<String>,
}

impl Row {
    fn new(test: String, stock: Option<Report>, memreap: Report) -> Self {
        let before = |case: &str| stock.as_ref().and_then(|stock| counterpart(case, &memreap, stock));
        let mut new_failures: Vec<String> = memreap
            .cases
            .iter()
            .filter(|&(case, &status)| status == Status::Fail && before(case) != Some(Status::Fail))
            .map(|(case, _)| case.clone())
            .collect();
        let failed_before = stock.as_ref().is_some_and(|s| s.status == Status::Fail);
        if memreap.status == Status::Fail && new_failures.is_empty() && !failed_before {
            new_failures.push(memreap.why.clone().unwrap_or_else(|| "failed".into()));
        }
        // A program that fails on stock too may fail in another way: a case that stock passes
        // and that is not reported any more.
        if let Some(stock) = &stock {
            for (case, &status) in &stock.cases {
                if status == Status::Pass && counterpart(case, stock, &memreap).is_none() {
                    new_failures.push(format!("{case} (not run)"));
                }
            }
        }
        Self { test, stock, memreap, new_failures }
    }

    fn verdict(&self) -> &'static str {
        match (self.new_failures.is_empty(), self.memreap.status) {
            (false, _) => "NEW FAILURE",
            (true, Status::Fail) => "fails as on stock",
            (true, Status::Skip) => "skipped",
            (true, Status::Pass) => "ok",
        }
    }
}

fn print_table(rows: &[Row]) {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_header(["test", "stock", "memreap", "verdict"]);
    for row in rows {
        let stock = row.stock.as_ref().map_or_else(|| "-".to_owned(), Report::summary);
        table.add_row([row.test.clone(), stock, row.memreap.summary(), row.verdict().to_owned()]);
    }
    println!("{table}");
    for row in rows.iter().filter(|r| !r.new_failures.is_empty()) {
        println!("\n{}: {}", row.test, row.new_failures.join("; "));
        // What went well is no help in finding out what did not.
        let fine =
            |line: &str| ["ok ", "#  RUN ", "#            OK "].iter().any(|begin| line.starts_with(begin));
        let lines: Vec<_> = row.memreap.output.lines().filter(|line| !fine(line)).collect();
        for line in &lines[lines.len().saturating_sub(40)..] {
            println!("  {line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: Outcome, text: &str, must_be_tap: bool) -> Report {
        let boot = Boot {
            outcome,
            samples: Vec::new(),
            notes: Vec::new(),
            release: None,
            console_log: PathBuf::from("/none"),
            channel_log: PathBuf::from("/none"),
            elapsed: Duration::ZERO,
        };
        Report::new(&boot, text, must_be_tap)
    }

    const GOOD: &str = "TAP version 13\n1..2\n# a remark\nok 1 one\nok 2 two # SKIP no swap\n";

    #[test]
    fn names_are_taken_apart() {
        let name = |text| Name::parse(text).map(|n| (n.folder, n.program)).unwrap();
        assert_eq!(name("ours"), ("memreap".into(), None));
        assert_eq!(name("pidfd"), ("pidfd".into(), None));
        assert_eq!(name("mm/mrelease_test"), ("mm".into(), Some("mrelease_test".into())));
        assert_eq!(name("mm/ksm_tests -M -p 10"), ("mm".into(), Some("ksm_tests -M -p 10".into())));
        for bad in ["", "../mm", "mm//x", "/"] {
            assert!(Name::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_stream_is_judged_as_a_whole() {
        let good = report(Outcome::Exit(0), GOOD, true);
        assert_eq!((good.status, good.summary().as_str()), (Status::Pass, "pass (1 ok, 1 skipped)"));
        for (text, why) in [
            ("", "no TAP plan"),
            ("TAP version 13\nok 1 one\n", "no TAP plan"),
            ("TAP version 13\n1..2\nok 1 one\n", "planned 2 results, gave 1"),
            ("TAP version 13\n1..1\nok 1 one\nok 2 two\n", "planned 1 results, gave 2"),
            ("TAP version 13\n1..1\nnot ok 1 one\n", "cases failed"),
            ("TAP version 13\n1..2\nok 1 one\nBail out! no memory\n", "bailed out: no memory"),
        ] {
            let bad = report(Outcome::Exit(0), text, true);
            assert_eq!(bad.status, Status::Fail, "{text}");
            assert!(bad.summary().contains(why), "{text}: {}", bad.summary());
        }
    }

    #[test]
    fn the_guest_s_end_counts_more_than_the_stream() {
        let splat = Outcome::Splat { kind: "WARN", line: "WARNING: x".into() };
        for outcome in [splat, Outcome::NoResult, Outcome::Exit(2), Outcome::Exit(TIMED_OUT)] {
            assert_eq!(report(outcome, GOOD, false).status, Status::Fail);
        }
        // Some of the kernel's tests speak no TAP: their status is all there is.
        assert_eq!(report(Outcome::Exit(0), "OK\n", false).status, Status::Pass);
        assert_eq!(report(Outcome::Exit(SKIPPED), "", false).status, Status::Skip);
        assert_eq!(report(Outcome::Exit(0), "1..0 # SKIP none\n", false).status, Status::Pass);
    }

    #[test]
    fn only_new_failures_count() {
        let fails = "TAP version 13\n1..2\nok 1 one\nnot ok 2 two\n";
        let new = |stock: Option<&str>, memreap: &str| {
            let report = |text| report(Outcome::Exit(0), text, true);
            Row::new("t".into(), stock.map(report), report(memreap)).new_failures
        };
        assert_eq!(new(Some(GOOD), GOOD), Vec::<String>::new());
        assert_eq!(new(Some(fails), fails), Vec::<String>::new());
        assert_eq!(new(Some(GOOD), fails), ["two"]);
        assert_eq!(new(None, fails), ["two"]);
        assert_eq!(new(None, ""), ["no TAP plan in its output"]);
        assert_eq!(new(Some(GOOD), "TAP version 13\n1..1\nnot ok 1 zero\n"), ["zero", "one (not run)"]);
    }

    #[test]
    fn a_figure_in_a_name_is_no_other_case() {
        let new = |stock: &str, memreap: &str| {
            let report = |cases: &str| {
                let plan = cases.lines().count();
                report(Outcome::Exit(0), &format!("TAP version 13\n1..{plan}\n{cases}"), true)
            };
            Row::new("t".into(), Some(report(stock)), report(memreap)).new_failures
        };
        let none: [&str; 0] = [];
        assert_eq!(new("ok 1 reaped 1MB\n", "ok 1 reaped 16MB\n"), none);
        assert_eq!(new("ok 1 reaped 1MB\n", "not ok 1 reaped 2MB\n"), ["reaped 2MB"]);
        assert_eq!(new("not ok 1 reaped 1MB\n", "not ok 1 reaped 2MB\n"), none);
        let two = "ok 1 page 1\nok 2 page 2\n";
        assert_eq!(new(two, "ok 1 page 1\nnot ok 2 page 2\n"), ["page 2"]);
        assert_eq!(new(two, "ok 1 page 1\n"), ["page 2 (not run)"]);
        assert_eq!(new(two, "ok 1 page 1\nok 2 sheet 2\n"), ["page 2 (not run)"]);
    }

    #[test]
    fn a_name_that_fails_once_has_failed() {
        let tap = Tap::parse("1..3\nnot ok 1 same\nok 2 same\nok 3\n");
        assert_eq!(tap.cases["same"], Status::Fail);
        assert_eq!(tap.cases["3"], Status::Pass);
        assert_eq!(tap.results, 3);
    }
}
