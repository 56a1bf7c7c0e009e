// SPDX-License-Identifier: GPL-2.0-only
//! `lab selftests`: runs user-space tests of the kernel in guests.
//!
//! "ours" are the topics' tests, in `tools/testing/selftests/memreap`. They run in the changed kernel and
//! must pass. Any other name is a folder of the kernel's selftests or a program in it (`mm/mrelease_test`).
//! Its binaries run in the stock and in the changed kernel, and only failures that stock does not have count. One that
//! does not build is a failure, as it says nothing about either kernel.
//! Each program runs in its own guest, so that one that crashes the guest is identified and does not affect
//! others.

use fs_err::{self as fs, File};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde::Serialize;

use crate::WrongUsage;
use crate::checks::boot_and_collect;
use crate::checks::passes;
use crate::checks::skips::Skips;
use crate::checks::tap::{Report, Status};
use crate::content::Content;
use crate::context::Context;
use crate::host::{self, Pkg, Probe, Staging};
use crate::kernel::{self, Kernel, Tree, Variant};
use crate::progress::elapsed;
use crate::vm::boot;
use crate::vm::channel::Outcome;
use crate::vm::job::{Arm, GuestCommand, Job};
use crate::vm::parallel;
use crate::vm::probe::{self, Accel};

/// The folder of our tests.
const OUR_FOLDER: &str = "memreap";
/// The folder of the tests in the kernel's source.
const SOURCE_FOLDER: &str = "tools/testing/selftests";
/// The folder of the tests in the guest.
const GUEST_FOLDER: &str = "/selftests";

/// Returns the time limit of a program in seconds. The kernel's default is 45 s; TCG and debug checks take
/// longer, kmemleak most of all.
fn program_limit_s(leaks: bool) -> u64 {
    if leaks { 4800 } else { 1200 }
}
/// The time for the guest's boot and shutdown.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(240);
/// The guest's memory. mrelease_test uses up to 1 GiB.
const GUEST_MEM_MIB: u32 = 2048;
/// Tests of migration need a second node. Each node has half of the memory.
const KERNEL_PARAMETERS: &str = "numa=fake=2";
/// The CPUs for the kernel's tests: some need two CPUs in addition to their own.
const KERNEL_TEST_CPUS: u32 = 3;
/// The CPUs for those of our tests that need more than two: `expedite` has a victim, its killer and reapers,
/// each on its own CPU.
const CPUS_OF_OUR_PROGRAMS: &[(&str, u32)] = &[("expedite", 4), ("expedite_storm", 8)];
/// Our tests that take longest in the debug kernel, from five minutes to one. They are started first, in this
/// order, so that none of them runs alone at the end.
const LONGEST_RUNNING: &[&str] = &[
    "swap_defer",
    "swap_defer_race",
    "expedite_storm",
    "swap_defer_oom",
    "swap_defer_memsw",
    "expedite_sysctl",
    "expedite",
    "expedite_cgroup",
    "oom_select",
    "rss_counters_race",
    "rss_counters",
    "reap_race",
];

/// Why a program that did not build has failed.
const NOT_BUILT: &str = "not built";
/// The exit status of busybox's `timeout -s KILL` after it killed the program.
const STATUS_KILLED: i32 = 128 + 9;

/// Libraries that tests in tools/testing/selftests/mm use.
const TEST_LIBRARIES: &[Pkg] = &[
    Pkg { name: "libnuma-dev", probe: Probe::File("/usr/include/numa.h") },
    Pkg { name: "libcap-dev", probe: Probe::File("/usr/include/sys/capability.h") },
];

/// Run selftests in the changed kernel: our own, and the kernel's compared with stock
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lab selftests                           our own
  lab selftests ours mm/mrelease_test     our own and one of the kernel's
  lab selftests cgroup                    all of tools/testing/selftests/cgroup")]
pub struct SelftestOptions {
    /// "ours", or FOLDER[/PROGRAM [ARGUMENT...]] below tools/testing/selftests
    #[arg(default_value = "ours")]
    pub names: Vec<String>,
    /// The kernels' configuration
    #[arg(long, value_enum, default_value_t = Variant::Slim)]
    pub variant: Variant,
    /// Duration of each of our stress tests in seconds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(..=120))]
    pub stress_seconds: u64,
    /// Also look for memory leaks in the kernel (kmemleak), which takes longer; debug only
    #[arg(long)]
    pub leaks: bool,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
    /// Skip programs that passed before with the same content, kernel, guest and QEMU
    #[arg(long)]
    pub remembered: bool,
}

/// Runs the tests, prints the results and returns whether there is no new failure: our tests pass and skip
/// only what [`Skips`] lists, and the kernel's tests fail only where they also fail on stock.
///
/// # Errors
/// When a kernel or a test does not build, a test does not exist, or QEMU fails. If a guest panics, hangs or
/// reports a problem, the test in it has failed.
pub fn run(ctx: &Context, options: &SelftestOptions) -> Result<bool> {
    host::ensure_packages(ctx, host::guest_packages(ctx.arch))?;
    let mut rows = Vec::new();
    // Results are printed even if there was an error.
    let done = run_all(ctx, options, &mut rows);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else if !rows.is_empty() {
        print_table(&rows);
    }
    done?;
    Ok(rows.iter().all(|row| row.new_failures.is_empty()))
}

fn run_all(ctx: &Context, options: &SelftestOptions, rows: &mut Vec<Row>) -> Result<()> {
    let names = options.names.iter().map(|name| Name::parse(name)).collect::<Result<Vec<_>>>()?;
    let can_leak = !options.leaks || options.variant == Variant::Debug;
    ensure!(can_leak, WrongUsage("only the debug kernels look for leaks".into()));
    let skips = Skips::load(&ctx.repo)?;
    let memreap = kernel::build(ctx, Tree::Memreap, options.variant)?;
    let (accel, _) = probe::accelerator(ctx, &memreap.bzimage)?;
    let stock = if names.iter().any(|name| !name.is_ours()) {
        Some(kernel::build(ctx, Tree::Stock, options.variant)?)
    } else {
        None
    };
    let (mut built, mut named) = (Vec::new(), BTreeSet::new());
    for (i, name) in names.iter().enumerate() {
        let base = stock.as_ref().filter(|_| !name.is_ours());
        let mut tests = build(ctx, base.unwrap_or(&memreap), name, i)?;
        // Named twice, a program would write to the same logs twice at once.
        let folder = tests.folder.clone();
        tests.programs.retain(|program| named.insert((folder.clone(), program.clone())));
        built.push((base, tests));
    }
    let mut runs = Vec::new();
    for (base, tests) in &built {
        for program in &tests.programs {
            let of = |tree, kernel| Run { tree, kernel, tests, program };
            runs.extend(base.map(|kernel| of(Tree::Stock, kernel)));
            runs.push(of(Tree::Memreap, &memreap));
        }
    }
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by_key(|&i| runs[i].rank());
    let done =
        parallel::map(parallel::unmeasured_guests(GUEST_MEM_MIB), &order, |&i| runs[i].report(ctx, accel, options));

    let mut reports: Vec<Option<Report>> = vec![None; runs.len()];
    let (mut error, mut remembered) = (None, 0);
    for (&i, result) in order.iter().zip(done) {
        match result {
            Ok((report, from_earlier)) => {
                remembered += usize::from(from_earlier);
                reports[i] = Some(report);
            }
            Err(e) => error = error.or(Some(e)),
        }
    }
    let mut reports = runs.iter().zip(reports);
    for (name, (base, tests)) in names.iter().zip(&built) {
        for program in &tests.programs {
            let mut next = || reports.next().and_then(|(_, report)| report);
            let base = base.map(|_| next());
            // Programs that did not run because of an error have no row.
            let (Some(changed), false) = (next(), matches!(base, Some(None))) else { continue };
            let unlisted = match name.is_ours() {
                true => skips.unlisted(program, options.variant, &changed),
                false => Vec::new(),
            };
            let test = format!("{}/{program}", tests.folder);
            rows.push(Row::new(test, base.flatten(), changed, unlisted));
        }
    }
    if let Some(remembered) = passes::summary(remembered, runs.len()) {
        eprintln!("{remembered}");
    }
    error.map_or(Ok(()), Err)
}

/// A test's name on the command line.
#[derive(Debug, PartialEq, Eq)]
struct Name {
    folder: String,
    /// The program with its arguments; `None` for all programs of the folder.
    program: Option<String>,
}

impl Name {
    fn is_ours(&self) -> bool {
        self.folder == OUR_FOLDER
    }

    fn parse(text: &str) -> Result<Self> {
        if text == "ours" {
            return Ok(Self { folder: OUR_FOLDER.into(), program: None });
        }
        let (path, args) = text.split_once(' ').unwrap_or((text, ""));
        let path = path.trim_matches('/');
        let fine = !path.is_empty() && path.split('/').all(|part| !part.is_empty() && part != "..");
        ensure!(fine, WrongUsage(format!("'{text}' names no folder under {SOURCE_FOLDER}")));
        // Folders may be nested (filesystems/epoll). build() checks whether the last part is a program.
        let (folder, program) = match path.rsplit_once('/') {
            Some((folder, program)) => (folder, Some(format!("{program} {args}").trim().to_owned())),
            None => (path, None),
        };
        Ok(Self { folder: folder.into(), program })
    }
}

/// The tests of a folder, built.
struct Tests {
    /// The folder below tools/testing/selftests.
    folder: String,
    /// The folder with the binaries on the host.
    built: PathBuf,
    /// The programs, with arguments.
    programs: Vec<String>,
    /// Keeps `built` until the tests have run, and locks it.
    _scratch: (Staging, File),
}

/// Builds the tests of a folder with the kernel's makefiles, in a temporary copy of the tree. `place` is the
/// number of that copy.
fn build(ctx: &Context, kernel: &Kernel, name: &Name, place: usize) -> Result<Tests> {
    let mut folder = name.folder.clone();
    let mut program = name.program.clone();
    if let Some(last) = &program
        && kernel.source_dir.join(SOURCE_FOLDER).join(&folder).join(last).is_dir()
    {
        folder = format!("{folder}/{last}");
        program = None;
    }
    let source = kernel.source_dir.join(SOURCE_FOLDER).join(&folder);
    let none = || format!("no selftests '{folder}' in this kernel: {} has no Makefile", source.display());
    ensure!(source.join("Makefile").is_file(), WrongUsage(none()));
    if folder != OUR_FOLDER
        && let Err(e) = host::ensure_packages(ctx, TEST_LIBRARIES)
    {
        // Most tests do not need them.
        ctx.progress.warn(&format!("tests that need these will not build, and so fail: {e:#}"));
    }
    let headers = kernel::install_headers(ctx, kernel)?.join("include");

    let step = ctx.progress.step(&format!("building selftests {folder}"));
    // In the cache, where the tree is: hard links do not work across file systems.
    let target = ctx.cache.join(format!("selftests-{place}"));
    let lock = host::lock(ctx, &target)?;
    let scratch = Staging::folder(&target)?;
    for part in ["tools", "include", "lib", "mm", "scripts"] {
        kernel::hard_link_copy(&kernel.source_dir.join(part), &scratch.path().join(part))?;
    }
    let built = scratch.path().join(SOURCE_FOLDER).join(&folder);
    let make = || {
        let mut make = host::tool("make");
        make.arg("-C")
            .arg(&built)
            .arg(format!("CROSS_COMPILE={}", ctx.arch.tool_prefix()))
            // The libraries of another architecture are not those of this host.
            .args((!ctx.arch.is_native()).then_some("USERLDFLAGS=-static"))
            .arg(format!("KHDR_INCLUDES=-isystem {}", headers.display()));
        make
    };
    let log = ctx.out.join(format!("logs/selftests/{}/make.log", folder.replace('/', "-")));
    let programs = match &program {
        Some(command) => {
            let file = file_of(command);
            if !built.join(file).is_file() {
                host::run_step(&step, make().arg(built.join(file)), &log)?;
            }
            vec![command.clone()]
        }
        None => {
            // A test that does not build (for lack of a library) must not prevent the others. It fails as "not
            // built" later.
            let status = host::run_logged(make().arg("-k"), &log, |line| step.detail(line))?;
            if !status.success() {
                let what = format!("not all of selftests {folder} built: see {}", log.display());
                // Our tests need no libraries, so all of them must build.
                ensure!(folder != OUR_FOLDER, what);
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
    let is_built = |program: &String| built.join(file_of(program)).is_file();
    ensure!(programs.iter().any(is_built), "{folder}: none of its tests built: see {}", log.display());
    step.done(&format!("{} programs", programs.len()));
    Ok(Tests { folder, built, programs, _scratch: (scratch, lock) })
}

/// Returns a program without its arguments.
fn file_of(program: &str) -> &str {
    program.split(' ').next().unwrap_or(program)
}

/// Returns the number of CPUs for one of our programs.
fn cpus_of_ours(program: &str) -> u32 {
    CPUS_OF_OUR_PROGRAMS.iter().find(|(name, _)| *name == program).map_or(2, |&(_, cpus)| cpus)
}

/// A program to run in a kernel.
struct Run<'a> {
    tree: Tree,
    kernel: &'a Kernel,
    tests: &'a Tests,
    /// The program with its arguments.
    program: &'a str,
}

impl Run<'_> {
    fn file(&self) -> &str {
        file_of(self.program)
    }

    /// Returns the sort key of the start order: the longest first.
    fn rank(&self) -> usize {
        LONGEST_RUNNING.iter().position(|&long| long == self.file()).unwrap_or(LONGEST_RUNNING.len())
    }

    /// Returns the report, and whether it is from an earlier run.
    fn report(&self, ctx: &Context, accel: Accel, options: &SelftestOptions) -> Result<(Report, bool)> {
        if !self.tests.built.join(self.file()).is_file() {
            return Ok((Report::not_run(NOT_BUILT), false));
        }
        let (arm, job) = (self.arm(), self.job(options)?);
        let mut content = Content::default();
        content.add(boot::content_key(ctx, accel, &arm, &job)?);
        // A pass also depends on what judges the program's output.
        content.add(include_str!("tap.rs"));
        content.add(include_str!("selftests.rs"));
        let key = content.key();
        if options.remembered
            && let Some(report) = passes::recall(ctx, &key)
        {
            return Ok((report, true));
        }
        let report = self.boot(ctx, accel, &arm, &job)?;
        if report.status == Status::Pass {
            passes::remember(ctx, &key, &report)?;
        }
        Ok((report, false))
    }

    fn arm(&self) -> Arm {
        let bzimage = self.kernel.bzimage.clone();
        Arm { name: self.tree.to_string(), bzimage, cmdline: KERNEL_PARAMETERS.into() }
    }

    fn job(&self, options: &SelftestOptions) -> Result<Job> {
        let (seconds, limit) = (options.stress_seconds, program_limit_s(options.leaks));
        let (file, program) = (self.file(), self.program);
        let home = format!("{GUEST_FOLDER}/{}", self.tests.folder);
        let script = format!(
            "export MEMREAP_STRESS_SECONDS={seconds}; \
             cd {home} && exec timeout -s KILL {limit} ./{program}"
        );
        let mut job = Job::new(GuestCommand::Exec(["sh", "-c", &script].map(String::from).into()));
        job.name = Some(format!("{}/{program}", self.tests.folder));
        job.mem_mib = GUEST_MEM_MIB;
        job.memreap = false;
        job.cpus = if self.tests.folder != OUR_FOLDER { KERNEL_TEST_CPUS } else { cpus_of_ours(file) };
        job.timeout = Duration::from_secs(limit) + TIMEOUT_MARGIN;
        if options.leaks {
            job.cmdline = "kmemleak=on".into();
        }
        let path = self.tests.built.join(file);
        let content = fs::read(&path)?;
        job.overlay = vec![(path, format!("{home}/{file}"))];
        if content.starts_with(b"#!") {
            // A script may call other files of its folder.
            job.overlay = vec![(self.tests.built.clone(), home)];
            let bash = PathBuf::from("/bin/bash");
            if bash.is_file() {
                job.overlay.push((bash, "/bin/bash".into()));
            }
        }
        Ok(job)
    }

    fn boot(&self, ctx: &Context, accel: Accel, arm: &Arm, job: &Job) -> Result<Report> {
        let folder = self.tests.folder.replace('/', "-");
        let logs = ctx.out.join("logs/selftests").join(folder).join(format!("{}-{}", self.file(), self.tree));
        let begun = Instant::now();
        let (boot, text) = boot_and_collect(ctx, accel, arm, job, &logs, self.program)?;
        // All our tests print TAP; some of the kernel's do not.
        let must_be_tap = self.tests.folder == OUR_FOLDER;
        let mut report = judge(&boot.outcome, &text, must_be_tap, || boot.tail(30));
        report.seconds = begun.elapsed().as_secs();
        if boot.outcome == Outcome::Exit(STATUS_KILLED) {
            report.why = Some("killed, or over its time limit".into());
        }
        Ok(report)
    }
}

/// Makes the report of a program as [`Report::new`] does. A guest that failed is a case of its own, because the
/// program may fail on stock as well, and then only new failures of cases count.
fn judge(outcome: &Outcome, text: &str, must_be_tap: bool, evidence: impl Fn() -> String) -> Report {
    let mut report = Report::new(outcome, text, must_be_tap, evidence);
    if !outcome.is_healthy() {
        let what = outcome.to_string();
        // Without the details, which differ from boot to boot.
        report.cases.insert(what.split(':').next().unwrap_or(&what).to_owned(), Status::Fail);
    }
    report
}

/// Returns the status in `other` of a case of the report `its`. Some tests have measured values in the names
/// of cases; so if there is no case of that name, one is used whose name differs only in numbers and does not
/// occur in `its`.
fn counterpart(case: &str, its: &Report, other: &Report) -> Option<Status> {
    let without_numbers = |name: &str| -> Vec<char> {
        let mut text: Vec<char> = name.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        text.dedup_by(|a, b| *a == '0' && *b == '0');
        text
    };
    let same = |name: &str| !its.cases.contains_key(name) && without_numbers(name) == without_numbers(case);
    other.cases.get(case).or_else(|| other.cases.iter().find(|(name, _)| same(name)).map(|(_, s)| s)).copied()
}

/// The comparison of a program.
#[derive(Debug, Serialize)]
struct Row {
    test: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stock: Option<Report>,
    memreap: Report,
    /// What fails only in the changed kernel: cases, or the program as a whole.
    new_failures: Vec<String>,
}

impl Row {
    /// Compares two reports. `unlisted` are skips of our tests that are not allowed.
    fn new(test: String, stock: Option<Report>, memreap: Report, unlisted: Vec<String>) -> Self {
        let before = |case: &str| stock.as_ref().and_then(|stock| counterpart(case, &memreap, stock));
        let mut new_failures: Vec<String> = memreap
            .cases
            .iter()
            .filter(|&(case, &status)| status == Status::Fail && before(case) != Some(Status::Fail))
            .map(|(case, _)| case.clone())
            .collect();
        // Without cases, it must fail for the same reason, which is none in the kernel if it was run on neither.
        let failed_before = memreap.why.as_deref() != Some(NOT_BUILT)
            && stock.as_ref().is_some_and(|s| {
                s.status == Status::Fail && (!s.cases.is_empty() || !memreap.cases.is_empty() || s.why == memreap.why)
            });
        if memreap.status == Status::Fail && new_failures.is_empty() && !failed_before {
            new_failures.push(memreap.why.clone().unwrap_or_else(|| "failed".into()));
        }
        // A program that also fails on stock may have new failures: cases that pass on stock and are now
        // skipped or missing.
        if let Some(stock) = &stock {
            for (case, _) in stock.cases.iter().filter(|&(_, &status)| status == Status::Pass) {
                match counterpart(case, stock, &memreap) {
                    None => new_failures.push(format!("{case} (not run)")),
                    Some(Status::Skip) => new_failures.push(format!("{case} (skipped)")),
                    Some(Status::Pass | Status::Fail) => {}
                }
            }
            if memreap.status == Status::Skip && stock.status != Status::Skip {
                new_failures.push("skipped as a whole".into());
            }
        }
        new_failures.extend(unlisted);
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
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_header(["test", "stock", "memreap", "took", "verdict"]);
    for row in rows {
        let stock = row.stock.as_ref().map_or_else(|| "-".to_owned(), Report::summary);
        let took = elapsed(Duration::from_secs(row.memreap.seconds));
        table.add_row([row.test.clone(), stock, row.memreap.summary(), took, row.verdict().to_owned()]);
    }
    println!("{table}");
    let failed: Vec<&Row> = rows.iter().filter(|r| !r.new_failures.is_empty()).collect();
    for row in &failed {
        println!("\n{}:", row.test);
        // Lines of passed cases are left out.
        let fine = |line: &str| ["ok ", "#  RUN ", "#            OK "].iter().any(|begin| line.starts_with(begin));
        let lines: Vec<_> = row.memreap.output.lines().filter(|line| !fine(line)).collect();
        for line in &lines[lines.len().saturating_sub(40)..] {
            println!("  {line}");
        }
    }
    // Last, for those who see only the end.
    for row in &failed {
        println!("\nFAILED {}: {}", row.test, row.new_failures.join("; "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> Report {
        Report::new(&Outcome::Exit(0), text, true, String::new)
    }

    const GOOD: &str = "TAP version 13\n1..2\n# a remark\nok 1 one\nok 2 two # SKIP no swap\n";

    #[test]
    fn names_are_parsed() {
        let name = |text| Name::parse(text).map(|n| (n.folder, n.program)).unwrap();
        assert_eq!(name("ours"), ("memreap".into(), None));
        assert_eq!(name("pidfd"), ("pidfd".into(), None));
        assert_eq!(name("mm/mrelease_test"), ("mm".into(), Some("mrelease_test".into())));
        assert_eq!(name("mm/ksm_tests -M -p 10"), ("mm".into(), Some("ksm_tests -M -p 10".into())));
        for bad in ["", "../mm", "mm//x", "/"] {
            assert!(Name::parse(bad).unwrap_err().is::<WrongUsage>(), "{bad}");
        }
    }

    #[test]
    fn only_new_failures_count() {
        let fails = "TAP version 13\n1..2\nok 1 one\nnot ok 2 two\n";
        let new = |stock: Option<&str>, memreap: &str| {
            Row::new("t".into(), stock.map(report), report(memreap), Vec::new()).new_failures
        };
        assert_eq!(new(Some(GOOD), GOOD), Vec::<String>::new());
        assert_eq!(new(Some(fails), fails), Vec::<String>::new());
        assert_eq!(new(Some(GOOD), fails), ["two"]);
        assert_eq!(new(None, fails), ["two"]);
        assert_eq!(new(None, ""), ["no TAP plan in its output"]);
        assert_eq!(new(Some(GOOD), "TAP version 13\n1..1\nnot ok 1 zero\n"), ["zero", "one (not run)"]);
    }

    #[test]
    fn what_does_not_build_has_not_passed() {
        let not_built = || Report::not_run(NOT_BUILT);
        let row = Row::new("t".into(), Some(not_built()), not_built(), Vec::new());
        assert_eq!((row.verdict(), row.new_failures), ("NEW FAILURE", vec![NOT_BUILT.to_owned()]));
    }

    #[test]
    fn a_guest_that_fails_is_a_new_failure_of_a_program_that_fails_on_stock() {
        let fails = "TAP version 13\n1..2\nok 1 one\nnot ok 2 two\n";
        let exit = |text| judge(&Outcome::Exit(1), text, false, String::new);
        let splat =
            |kind, text| judge(&Outcome::Splat { kind, line: "[    1.5] BUG: x".into() }, text, false, String::new);
        let new = |stock: Report, memreap: Report| Row::new("t".into(), Some(stock), memreap, Vec::new()).new_failures;
        let none: [&str; 0] = [];
        for text in [fails, "no TAP\n"] {
            assert_eq!(new(exit(text), exit(text)), none);
            assert_eq!(new(exit(text), splat("KASAN", text)), ["the kernel complained (KASAN)"]);
            assert_eq!(new(splat("WARN", text), splat("KASAN", text)), ["the kernel complained (KASAN)"]);
            assert_eq!(new(splat("KASAN", text), splat("KASAN", text)), none);
        }
    }

    #[test]
    fn cases_whose_names_differ_in_numbers_are_the_same() {
        let new = |stock: &str, memreap: &str| {
            let report = |cases: &str| {
                let plan = cases.lines().count();
                super::tests::report(&format!("TAP version 13\n1..{plan}\n{cases}"))
            };
            Row::new("t".into(), Some(report(stock)), report(memreap), Vec::new()).new_failures
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

    /// A renamed program would lose its CPUs and its place in the order without an error.
    #[test]
    fn programs_that_are_named_here_exist() {
        let kernel = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel");
        let topics: Vec<_> = fs::read_dir(kernel).unwrap().map(|entry| entry.unwrap().path()).collect();
        for name in LONGEST_RUNNING.iter().chain(CPUS_OF_OUR_PROGRAMS.iter().map(|(name, _)| name)) {
            let source = format!("files/{SOURCE_FOLDER}/{OUR_FOLDER}/{name}.c");
            assert!(topics.iter().any(|topic| topic.join(&source).is_file()), "{name}");
        }
    }
}
