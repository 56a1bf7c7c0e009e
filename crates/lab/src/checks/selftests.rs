// SPDX-License-Identifier: GPL-2.0-only
//! `lab selftests`: user-space tests of the kernel, run in guests.
//!
//! "ours" are the topics' own, in `tools/testing/selftests/memreap`; they run in the changed
//! kernel and must pass. Any other name is a folder of the kernel's own selftests, or one
//! program in it (`mm/mrelease_test`); the same binaries run in the stock and in the changed
//! kernel, and only what fails in the changed one alone is held against it. Each program gets a
//! guest of its own, so that one that brings its guest down is known by name and spoils no other.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde::Serialize;

use crate::ab::experiment::{Cause, Failure};
use crate::checks::passes;
use crate::checks::skips::Skips;
use crate::checks::tap::{Report, Status};
use crate::content::Content;
use crate::context::Context;
use crate::host::{self, Pkg, Probe, Staging};
use crate::kernel::{self, Kernel, Tree, Variant};
use crate::progress::elapsed;
use crate::vm::accel::Accel;
use crate::vm::boot::{self, boot_with};
use crate::vm::channel::Outcome;
use crate::vm::job::{Arm, GuestCommand, Job};
use crate::vm::parallel;
use protocol::results::Message;

/// The folder of our own tests.
const OUR_FOLDER: &str = "memreap";
/// Where the tests are, in the kernel's source and in the guest.
const SOURCE_FOLDER: &str = "tools/testing/selftests";
const GUEST_FOLDER: &str = "/selftests";

/// One program's limit in the guest, in seconds: the kernel's usual 45 s, with room for TCG and
/// debug checks, among which kmemleak takes most.
fn program_limit(leaks: bool) -> u64 {
    if leaks { 4800 } else { 1200 }
}
/// What the guest has for its boot and its end.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(240);
/// mrelease_test takes up to 1 GiB.
const GUEST_MEM_MIB: u32 = 2048;
/// Tests of migration need a second node; both get half of the memory.
const KERNEL_PARAMETERS: &str = "numa=fake=2";
/// The kernel's own of them also need two CPUs beside their own.
const KERNEL_TEST_CPUS: u32 = 3;
/// A victim, what kills it and its reapers each on a CPU of their own.
const CPUS_OF_OUR_PROGRAMS: &[(&str, u32)] = &[("expedite", 4)];
/// Those that take longest in the debug kernel, from five minutes to one: begun first, in this order,
/// so that none of them is alone at the end.
const LONGEST_RUNNING: &[&str] = &[
    "swap_release",
    "swap_release_race",
    "expedite_storm",
    "swap_release_oom",
    "swap_release_memsw",
    "expedite_sysctl",
    "expedite",
    "expedite_cgroup",
    "oom_select",
    "rss_counters_race",
    "rss_counters",
    "reap_race",
];

/// What busybox's `timeout -s KILL` leaves.
const STATUS_KILLED: i32 = 128 + 9;

/// Libraries that tests under tools/testing/selftests/mm want.
const TEST_LIBRARIES: &[Pkg] = &[
    Pkg { name: "libnuma-dev", probe: Probe::File("/usr/include/numa.h") },
    Pkg { name: "libcap-dev", probe: Probe::File("/usr/include/sys/capability.h") },
];

/// What to run.
pub struct SelftestOptions {
    /// `ours`, or `FOLDER[/PROGRAM [ARGUMENT...]]` under tools/testing/selftests; none: ours.
    pub names: Vec<String>,
    /// The kernels' build.
    pub variant: Variant,
    /// How long each storm and race of ours goes on, in seconds.
    pub stress_seconds: u64,
    /// Whether guests look for what their programs leaked of the kernel's memory; debug only.
    pub leaks: bool,
    /// Whether stdout gets the results as JSON instead of a table.
    pub json: bool,
    /// Whether passes of earlier runs count: see [`passes`].
    pub remembered: bool,
}

/// Runs the tests in their kernels, prints the results and gives whether all is well: ours pass and
/// skip nothing but what [`Skips`] lists, the kernel's own fail nowhere where they do not fail on stock.
///
/// # Errors
/// When a kernel or a test does not build, there is no such test, or QEMU fails. A guest that
/// panics, hangs or complains is a failure of the test that ran in it.
pub fn run(ctx: &Context, accel: Accel, options: &SelftestOptions) -> Result<bool> {
    let default = [String::from("ours")];
    let names = if options.names.is_empty() { &default[..] } else { &options.names };
    let mut rows = Vec::new();
    // What was found out before something went wrong is still worth showing.
    let done = run_all(ctx, accel, options, names, &mut rows);
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
    options: &SelftestOptions,
    names: &[String],
    rows: &mut Vec<Row>,
) -> Result<()> {
    let names = names.iter().map(|name| Name::parse(name)).collect::<Result<Vec<_>>>()?;
    ensure!(!options.leaks || options.variant == Variant::Debug, "only the debug kernels look for leaks");
    let skips = Skips::load(&ctx.repo)?;
    let memreap = kernel::build(ctx, Tree::Memreap, options.variant)?;
    let stock = if names.iter().any(|name| !name.is_ours()) {
        Some(kernel::build(ctx, Tree::Stock, options.variant)?)
    } else {
        None
    };
    let mut built = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let base = stock.as_ref().filter(|_| !name.is_ours());
        built.push((base, build(ctx, base.unwrap_or(&memreap), name, i)?));
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
    let done = parallel::map(parallel::unmeasured_guests(GUEST_MEM_MIB), &order, |&i| {
        runs[i].report(ctx, accel, options)
    });

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
            // Those that were not reached any more because of the error have no row.
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

/// A test's name as the user gives it.
#[derive(Debug, PartialEq, Eq)]
struct Name {
    folder: String,
    /// The program with its arguments; `None` means all of the folder.
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
        ensure!(fine, "'{text}' names no folder under {SOURCE_FOLDER}");
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

/// Builds a folder's tests by the kernel's own makefiles, in a scratch copy of the tree, the one
/// of this number.
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
    ensure!(
        source.join("Makefile").is_file(),
        "no selftests '{folder}' in this kernel: {} has no Makefile",
        source.display()
    );
    if folder != OUR_FOLDER
        && let Err(e) = host::ensure_packages(ctx, TEST_LIBRARIES)
    {
        // Most tests need none of them.
        ctx.progress.warn(&format!("tests that need these will not build: {e:#}"));
    }
    let headers = kernel::install_headers(ctx, kernel)?.join("include");

    let step = ctx.progress.step(&format!("building selftests {folder}"));
    // Beside the tree: hard links do not reach across file systems.
    let target = ctx.cache.join(format!("selftests-{place}"));
    let lock = host::lock(ctx, &target)?;
    let scratch = Staging::begin(&target)?;
    fs::create_dir_all(scratch.path()).with_context(|| scratch.path().display().to_string())?;
    for part in ["tools", "include", "lib", "mm", "scripts"] {
        kernel::hard_link_copy(&kernel.source_dir.join(part), &scratch.path().join(part))?;
    }
    let built = scratch.path().join(SOURCE_FOLDER).join(&folder);
    let make = || {
        let mut make = host::tool("make");
        make.arg("-C").arg(&built).arg(format!("KHDR_INCLUDES=-isystem {}", headers.display()));
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
    step.done(&format!("{} programs", programs.len()));
    Ok(Tests { folder, built, programs, _scratch: (scratch, lock) })
}

/// How many CPUs a guest of this program of ours has.
fn cpus_of_ours(program: &str) -> u32 {
    CPUS_OF_OUR_PROGRAMS.iter().find(|(name, _)| *name == program).map_or(2, |&(_, cpus)| cpus)
}

/// One program in one kernel, in a guest of its own.
struct Run<'a> {
    tree: Tree,
    kernel: &'a Kernel,
    tests: &'a Tests,
    /// With its arguments.
    program: &'a str,
}

impl Run<'_> {
    fn file(&self) -> &str {
        self.program.split(' ').next().unwrap_or(self.program)
    }

    /// What the longest come first by.
    fn rank(&self) -> usize {
        LONGEST_RUNNING.iter().position(|&long| long == self.file()).unwrap_or(LONGEST_RUNNING.len())
    }

    /// Its report, and whether it is of an earlier run.
    fn report(&self, ctx: &Context, accel: Accel, options: &SelftestOptions) -> Result<(Report, bool)> {
        if !self.tests.built.join(self.file()).is_file() {
            return Ok((Report::not_run("not built"), false));
        }
        let (arm, job) = (self.arm(), self.job(options)?);
        let mut content = Content::default();
        content.add(boot::content_key(ctx, accel, &arm, &job)?);
        // What reads the program's output is as much part of a pass as the program.
        content.add(include_str!("tap.rs"));
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
        let (seconds, limit) = (options.stress_seconds, program_limit(options.leaks));
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
        let content = fs::read(&path).with_context(|| path.display().to_string())?;
        job.overlay = vec![(path, format!("{home}/{file}"))];
        if content.starts_with(b"#!") {
            // A script may call anything beside it.
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
        let mut text = String::new();
        let begun = Instant::now();
        let boot = boot_with(ctx, accel, arm, job, &logs, &mut |message| {
            if let Message::Out(piece) | Message::Err(piece) = message {
                text.push_str(piece);
            }
        })?;
        let logs = boot.logs().to_path_buf();
        fs::write(logs.join("output.log"), &text).with_context(|| logs.display().to_string())?;
        if let Outcome::Qemu { .. } = boot.outcome {
            let cause = Cause::Outcome(boot.outcome.clone());
            return Err(Failure { boot: self.program.into(), cause, tail: boot.tail(20), logs }.into());
        }
        // Ours speak TAP by the house's rules; of the kernel's own, not all do.
        let must_be_tap = self.tests.folder == OUR_FOLDER;
        let mut report = Report::new(&boot.outcome, &text, must_be_tap, || boot.tail(30));
        report.seconds = begun.elapsed().as_secs();
        if boot.outcome == Outcome::Exit(STATUS_KILLED) {
            report.why = Some("killed, or longer than its limit".into());
        }
        Ok(report)
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
    /// `unlisted` is what ours skip although they may not.
    fn new(test: String, stock: Option<Report>, memreap: Report, unlisted: Vec<String>) -> Self {
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
        // and that is skipped, or not reported any more.
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

    fn report(text: &str) -> Report {
        Report::new(&Outcome::Exit(0), text, true, String::new)
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
    fn a_figure_in_a_name_is_no_other_case() {
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

    /// A program that was renamed would lose its CPUs and its place without a word.
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
