// SPDX-License-Identifier: GPL-2.0-only
//! The subcommands and their exit codes.

mod args;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser as _;

use lab::ab::catalog::{self, ControlKernel};
use lab::ab::expect::{self, Checked, RunKind};
use lab::ab::experiment::{self, Failure, Plan};
use lab::ab::history;
use lab::ab::results::Results;
use lab::ab::screen;
use lab::ab::stats::MIN_PAIRS;
use lab::ab::table;
use lab::ab::workload::{self, Guest, Workload};
use lab::arch::Arch;
use lab::checks::kunit::{self, KunitOptions};
use lab::checks::selftests::{self, SelftestOptions};
use lab::checks::soak::{self, SoakOptions};
use lab::checks::stress::{self, StressOptions};
use lab::checks::suite::{self, SuiteOptions};
use lab::context::Context;
use lab::documents;
use lab::faceoff::{self, summary::Summary};
use lab::kernel::user::{UserKernel, build_user};
use lab::kernel::{self, Kernel, Tree, Variant};
use lab::kernel::{series, topics};
use lab::progress::Progress;
use lab::vm::accel::Accel;
use lab::vm::boot;
use lab::vm::job::{Arm, GuestCommand, Job};
use lab::vm::probe;
use lab::vm::root::{self, RootSource};
use lab::{WrongUsage, debian, doctor, host};

use args::{
    AbArgs, ArmSpec, BootArgs, BuildArgs, Cli, CopySpec, FaceoffArgs, HistoryArgs, MergeArgs, ReportArgs,
    StaticArgs, StressArgs, Sub, TopicsArgs,
};

// The exit codes; see `EXIT_CODES_HELP`.
const EXIT_FINDING: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_HOST: u8 = 3;
const EXIT_GUEST: u8 = 4;
/// What `git bisect run` takes for a commit that cannot be tested.
const EXIT_SKIP: u8 = 125;
/// What ends `git bisect run`. It takes [`EXIT_USAGE`] for a bad commit.
const EXIT_ABORT: u8 = 128;
/// The time limit of a shell: it ends when its user ends it.
const SHELL_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    host::allow_many_files();
    match host::exit_cleanly_on_interrupt().and_then(|()| run(Cli::parse())) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("lab: {e:#}");
            ExitCode::from(error_code(&e))
        }
    }
}

fn error_code(error: &anyhow::Error) -> u8 {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        failure.exit_code()
    } else if error.is::<WrongUsage>() {
        EXIT_USAGE
    } else if error.is::<faceoff::snapshot::GuestFailure>() {
        EXIT_GUEST
    } else {
        EXIT_HOST
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let mut ctx = Context::discover(Progress::new())?;
    if cli.kernel.is_some() {
        ctx.kernel = cli.kernel;
    }
    ctx.arch = cli.arch;
    match cli.command {
        Sub::Ab(args) if args.bisect => Ok(ExitCode::from(bisect_code(ab(&ctx, args)))),
        Sub::Ab(args) => Ok(ExitCode::from(ab(&ctx, args)?)),
        Sub::Merge(args) => Ok(ExitCode::from(merge(&ctx, args)?)),
        Sub::History(args) => show_history(&ctx, &args),
        Sub::Faceoff(args) => face_off(&ctx, args),
        Sub::Report(args) => report(&ctx, &args),
        Sub::Boot(args) => boot_one(&ctx, args),
        Sub::Build(args) => build(&ctx, &args),
        Sub::Kunit(args) => {
            let options = KunitOptions {
                variant: args.variant,
                filter: args.filter,
                json: args.json,
                remembered: args.remembered,
            };
            Ok(finding_unless(kunit::run(&ctx, accelerator(&ctx)?, &options)?))
        }
        Sub::Selftests(args) => {
            let options = SelftestOptions {
                names: args.names,
                variant: args.variant,
                stress_seconds: args.stress_seconds,
                leaks: args.leaks,
                json: args.json,
                remembered: args.remembered,
            };
            Ok(finding_unless(selftests::run(&ctx, accelerator(&ctx)?, &options)?))
        }
        Sub::Soak(args) => {
            let options = SoakOptions { minutes: args.minutes, variant: args.variant, seed: args.seed };
            Ok(finding_unless(soak::run(&ctx, accelerator(&ctx)?, &options)?))
        }
        Sub::Stress(args) => stress_ng(&ctx, args),
        Sub::Series(args) => {
            // git runs in other folders, so the path must be absolute.
            let out = std::path::absolute(&args.out).with_context(|| args.out.display().to_string())?;
            let patches = series::export(&ctx, &out)?;
            for patch in &patches {
                println!("{}", patch.display());
            }
            if args.check {
                series::check(&ctx, &patches)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Sub::Static(args) => static_checks(&ctx, &args),
        Sub::Topics(args) => list_topics(&ctx, &args),
        Sub::Test(args) => {
            if args.list {
                println!("{}", suite::list());
                return Ok(ExitCode::SUCCESS);
            }
            if ctx.arch != Arch::of_host() {
                let what = "--arch is not for `lab test`: its checks are of the host's architecture, or name their own";
                return Err(WrongUsage(what.into()).into());
            }
            let options = SuiteOptions { only: args.checks, tier: args.tier, fresh: args.fresh };
            Ok(finding_unless(suite::run(&ctx, &options)?))
        }
        Sub::Doctor(args) => {
            let findings = doctor::examine(&ctx)?;
            if args.json {
                println!("{}", serde_json::to_string_pretty(&findings)?);
            } else {
                print!("{}", doctor::render(&findings));
            }
            Ok(ExitCode::from(if doctor::healthy(&findings) { 0 } else { EXIT_HOST }))
        }
        Sub::HostSetup => {
            let needed = [
                host::KERNEL_BUILD_PACKAGES,
                host::SOURCE_PACKAGES,
                ctx.arch.compiler_packages(),
                ctx.arch.guest_packages(),
                host::SERIES_PACKAGES,
                debian::PACKAGES,
            ];
            host::ensure_packages(&ctx, &needed.concat())?;
            Ok(ExitCode::SUCCESS)
        }
        Sub::CleanCache => clean_cache(&ctx),
    }
}

fn finding_unless(good: bool) -> ExitCode {
    ExitCode::from(if good { 0 } else { EXIT_FINDING })
}

fn accelerator(ctx: &Context) -> Result<Accel> {
    host::ensure_packages(ctx, ctx.arch.guest_packages())?;
    Ok(probe::probe(ctx)?.0)
}

/// Builds a kernel, or finds it in the cache, and returns it with its arm.
fn built(ctx: &Context, tree: Tree, variant: Variant, cmdline: &str) -> Result<(Arm, Kernel)> {
    let kernel = kernel::build(ctx, tree, variant)?;
    let arm = Arm { name: tree.to_string(), bzimage: kernel.bzimage.clone(), cmdline: cmdline.to_owned() };
    Ok((arm, kernel))
}

/// Like [`built`], for a control kernel that is the changed kernel with parameters.
fn changed(ctx: &Context, name: &str, variant: Variant, parameters: &str) -> Result<(Arm, Kernel)> {
    let (arm, kernel) = built(ctx, Tree::Memreap, variant, parameters)?;
    Ok((Arm { name: name.to_owned(), ..arm }, kernel))
}

/// Returns the configuration that the user asks for, else one that can read the guest's disk if there is one.
fn variant_or_default(given: Option<Variant>, root: Option<&RootSource>) -> Variant {
    given.unwrap_or(if root.is_some() { Variant::Faceoff } else { Variant::Slim })
}

/// Returns the arm that the user asks for, after building its kernel if need be, and what that is from: its sources, or
/// the path of an image. `cmdline` is for the lab's own trees, `fragment` for sources of the user's.
fn arm(
    ctx: &Context,
    spec: ArmSpec,
    variant: Variant,
    cmdline: &str,
    fragment: Option<&Path>,
) -> Result<(Arm, String)> {
    let (arm, kernel) = match spec {
        ArmSpec::File(arm) => {
            let source = arm.bzimage.display().to_string();
            return Ok((arm, source));
        }
        ArmSpec::Sources(name, sources, cmdline) => {
            let UserKernel { bzimage, source } = build_user(ctx, &sources, variant, fragment)?;
            return Ok((Arm { name, bzimage, cmdline }, source));
        }
        ArmSpec::WithParameters(name, parameters) => changed(ctx, name, variant, parameters)?,
        ArmSpec::Built(tree) => built(ctx, tree, variant, cmdline)?,
    };
    Ok((arm, format!("Debian linux-source-6.12, {}, {variant}{}", kernel.release, ctx.arch.suffix())))
}

fn ab(ctx: &Context, args: AbArgs) -> Result<u8> {
    if args.bisect && args.pairs < MIN_PAIRS {
        let what = format!(
            "--bisect needs at least {MIN_PAIRS} pairs: with fewer, nothing is ever found to be worse"
        );
        return Err(WrongUsage(what).into());
    }
    let variant = variant_or_default(args.variant, args.root.as_ref());
    let workload = match &args.workload {
        None => None,
        Some(program) => {
            let copies = args.copy.into_iter().map(|CopySpec(host, guest)| (host, guest)).collect();
            let guest = Guest {
                mode: args.mode,
                cpus: args.cpus,
                mem_mib: args.mem,
                timeout: Duration::from_secs(args.timeout),
                root: args.root.as_ref().map(|source| root::make(ctx, source)).transpose()?,
            };
            let workload = Workload::new(program, args.arguments, copies, guest);
            Some(workload.map_err(|e| WrongUsage(format!("--workload: {e:#}")))?)
        }
    };
    let scenarios = workload::scenarios(workload.as_ref(), &args.scenarios);
    let scenarios = scenarios.map_err(|e| WrongUsage(e.to_string()))?;
    let default_arms = args.arms.is_empty();
    let specs = match <[ArmSpec; 2]>::try_from(args.arms) {
        Ok(two) => two,
        Err(none) if none.is_empty() => [ArmSpec::Built(Tree::Stock), ArmSpec::Built(Tree::Memreap)],
        Err(_) => return Err(WrongUsage("give --arm twice, base first, or not at all".into()).into()),
    };
    experiment::chosen_runs(&scenarios, args.guest.as_deref())?;
    for (option, given, tree) in [
        ("--cmdline-stock", &args.cmdline_stock, Tree::Stock),
        ("--cmdline-memreap", &args.cmdline_memreap, Tree::Memreap),
    ] {
        if !given.is_empty() && !specs.contains(&ArmSpec::Built(tree)) {
            let what = format!("{option}: no arm is that kernel; write --arm NAME=KERNEL,PARAMETERS");
            return Err(WrongUsage(what).into());
        }
    }
    if args.config.is_some() && !specs.iter().any(|spec| matches!(spec, ArmSpec::Sources(..))) {
        return Err(WrongUsage("--config: no arm is built from sources of yours".into()).into());
    }
    if args.expect
        && let Some(missing) = scenarios.iter().map(|s| expect_file(ctx, s.name)).find(|path| !path.is_file())
    {
        return Err(WrongUsage(format!("--expect: {} does not exist", missing.display())).into());
    }
    host::ensure_packages(ctx, ctx.arch.guest_packages())?;
    // Arms given by --arm are compared without control kernels.
    let mut controls = Vec::new();
    if default_arms {
        let wanted = |control: &ControlKernel| scenarios.iter().any(|s| s.controls.contains(control));
        for ControlKernel { name, parameters } in catalog::controls().into_iter().filter(wanted) {
            controls.push(match parameters {
                Some(parameters) => changed(ctx, name, variant, parameters)?.0,
                None => built(ctx, Tree::Control(name), variant, "")?.0,
            });
        }
    }
    // A relative path is of the current folder, not of the checkout.
    let fragment = args.config.map(std::path::absolute).transpose()?;
    let mut sources: Vec<String> = Vec::new();
    let mut arms = Vec::new();
    for spec in specs {
        let cmdline = match spec {
            ArmSpec::Built(Tree::Stock) => args.cmdline_stock.as_str(),
            ArmSpec::Built(Tree::Memreap) => &args.cmdline_memreap,
            _ => "",
        };
        let (arm, source) = arm(ctx, spec, variant, cmdline, fragment.as_deref())?;
        sources.push(source);
        arms.push(arm);
    }
    sources.dedup();
    let arms: [Arm; 2] = arms.try_into().map_err(|_| WrongUsage("two arms are needed".into()))?;
    let (accel, why) = probe::probe_with(ctx, &arms[0])?;
    ctx.progress.note(&format!("accelerator: {accel} ({why})"));
    let plan = Plan {
        scenarios: scenarios.iter().map(|s| s.name.to_owned()).collect(),
        workload,
        args: args.case.iter().map(|case| format!("case={case}")).collect(),
        guest: args.guest,
        pairs: args.pairs,
        seed: args.seed,
        shard: args.shard,
        arms,
        controls,
        aa: !args.no_aa,
        min_effect: args.min_effect,
        alpha: args.alpha,
        smoke: args.smoke,
        resume: args.resume,
        source: Some(sources.join("; ")),
        accelerator_reason: Some(why),
        command: Some(command_line()),
    };
    let results = experiment::run(ctx, accel, &plan)?;
    let kind = RunKind { smoke: args.smoke, aa: !args.no_aa };
    let checked = if let Some(path) = &args.expectations {
        Some(vec![expect::check(&results, path, kind)?])
    } else if args.expect {
        Some(expectations(ctx, &results, &plan.scenarios, kind)?)
    } else {
        None
    };
    let report = ctx.out.join(if args.smoke { "smoke/report.html" } else { "report.html" });
    let screen = if args.verbose || args.json {
        None
    } else {
        let checked = checked.as_ref().map(|files| files.concat());
        screen::render(&results, checked.as_deref(), &report, table::stdout_style().0)
    };
    match screen {
        Some(text) => print!("{text}"),
        None => {
            show(&results, args.json)?;
            checked.iter().flatten().for_each(|checked| show_checked(checked, args.json));
            ctx.progress.note(&format!("report: {}", report.display()));
        }
    }
    let good = match &checked {
        Some(files) => files.iter().all(|checked| expect::passed(checked)),
        None => !results.anything_worse(),
    };
    for repeated in &results.meta.repeated {
        eprintln!("lab: failed: {repeated}");
    }
    Ok(ab_code(&results, good))
}

fn merge(ctx: &Context, args: MergeArgs) -> Result<u8> {
    let read = |path: PathBuf| Results::read(&path).map(|results| (path, results));
    let shards = args.files.into_iter().map(read).collect::<Result<_>>()?;
    let results = experiment::merge(shards).map_err(|e| WrongUsage(format!("{e:#}")))?;
    let turn = host::lock(ctx, &ctx.out)?;
    experiment::write(&results, &ctx.out)?;
    drop(turn);
    show(&results, args.json)?;
    Ok(ab_code(&results, !results.anything_worse()))
}

fn show_history(ctx: &Context, args: &HistoryArgs) -> Result<ExitCode> {
    let own = [ctx.out.join(history::HISTORY_FILE)];
    let files: &[PathBuf] = if args.files.is_empty() { &own } else { &args.files };
    let mut comparisons = Vec::new();
    for file in files {
        comparisons.extend(history::read(file)?);
    }
    let all = history::series(&comparisons, args.metric.as_deref());
    if all.is_empty() {
        let wanted = args.metric.as_deref().unwrap_or("comparison");
        return Err(WrongUsage(format!("no '{wanted}' in {} comparisons", comparisons.len())).into());
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        print!("{}", history::render(&all));
    }
    Ok(finding_unless(!history::has_got_worse(&all)))
}

/// Prints the results as a table, or as the text of results.json.
fn show(results: &Results, json: bool) -> Result<()> {
    if json {
        print!("{}", results.to_json()?);
    } else {
        table::print(results);
    }
    Ok(())
}

/// Returns the exit code for `git bisect run`. What is no finding says nothing about the commit.
fn bisect_code(outcome: Result<u8>) -> u8 {
    match outcome {
        Ok(code @ (0 | EXIT_FINDING)) => code,
        Ok(_) => EXIT_SKIP,
        Err(e) => {
            eprintln!("lab: {e:#}");
            if e.is::<WrongUsage>() { EXIT_ABORT } else { EXIT_SKIP }
        }
    }
}

/// Returns the exit code of a complete comparison. A failed boot takes precedence over a finding.
fn ab_code(results: &Results, good: bool) -> u8 {
    results.exit_code().unwrap_or(if good { 0 } else { EXIT_FINDING })
}

fn expect_file(ctx: &Context, scenario: &str) -> PathBuf {
    ctx.in_repo(format!("kernel/{scenario}/expect.toml"))
}

/// Checks `kernel/<scenario>/expect.toml` of all scenarios.
fn expectations(
    ctx: &Context,
    results: &Results,
    scenarios: &[String],
    kind: RunKind,
) -> Result<Vec<Vec<Checked>>> {
    let check = |scenario: &String| expect::check(results, &expect_file(ctx, scenario), kind);
    scenarios.iter().map(check).collect()
}

/// Shows the outcomes of the expectations in a file as a table.
fn show_checked(checked: &[Checked], quiet: bool) {
    let (width, colour) = table::stdout_style();
    let text = expect::render(checked, width, colour);
    // With --json, stdout is only for the results.
    if quiet { eprint!("{text}") } else { print!("\n{text}") }
}

/// Returns the command line that repeats this run.
fn command_line() -> String {
    let arguments = std::env::args().skip(1).map(|argument| host::shell_quoted(&argument));
    std::iter::once("lab".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

fn face_off(ctx: &Context, args: FaceoffArgs) -> Result<ExitCode> {
    if ctx.arch != Arch::X86_64 {
        return Err(WrongUsage(format!("the face-off's guest is x86-64, and cannot be {}", ctx.arch)).into());
    }
    let options = faceoff::Options {
        contestants: args.contestants,
        loads: args.loads,
        watermark: args.watermark,
        runs: args.runs,
        seed: args.seed,
        limit_s: args.limit,
        keep: args.keep,
        resume: args.resume,
    };
    faceoff::check(ctx, &options).map_err(|e| WrongUsage(format!("{e:#}")))?;
    let result = faceoff::run(ctx, &options)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&result.summary)?);
    } else {
        print!("{}", faceoff::terminal::render(&result.summary, table::stdout_style().1));
    }
    if let Some(folder) = args.svg {
        for file in faceoff::plots::write_svgs(&result.summary, &result.runs, &folder)? {
            ctx.progress.note(&format!("plot: {}", file.display()));
        }
    }
    ctx.progress.note(&format!("report: {}", ctx.out.join("faceoff.html").display()));
    let failed: usize = result.summary.entries.iter().map(|entry| entry.failures.len()).sum();
    if failed > 0 {
        eprintln!("lab: {failed} of the runs failed");
        return Ok(ExitCode::from(EXIT_GUEST));
    }
    let finding = result.summary.finding();
    if let Some(finding) = &finding {
        eprintln!("lab: {finding}");
    }
    Ok(finding_unless(finding.is_none()))
}

fn report(ctx: &Context, args: &ReportArgs) -> Result<ExitCode> {
    if args.documents {
        for document in documents::outdated(&ctx.repo)? {
            host::write_atomically(&document.path, &document.text)?;
            println!("{}", document.path.display());
        }
        return Ok(ExitCode::SUCCESS);
    }
    for (i, file) in args.files.iter().enumerate() {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let shown = ReportFile::read(file, &text)?;
        match &args.html {
            Some(folder) => {
                let name = Path::new(file.file_name().unwrap_or(file.as_os_str())).with_extension("html");
                let page = folder.join(name);
                host::write_atomically(&page, &shown.html())?;
                println!("{}", page.display());
            }
            None => {
                let gap = if i == 0 { "" } else { "\n" };
                let title =
                    if args.files.len() > 1 { format!("{gap}{}:\n", file.display()) } else { String::new() };
                let text = match (args.markdown, args.junit) {
                    (true, _) => shown.markdown(),
                    (_, true) => shown.junit()?,
                    _ => shown.text(),
                };
                print!("{title}{text}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A file that `lab report` can show.
enum ReportFile {
    Comparison(Box<Results>),
    FaceOff(Box<Summary>),
}

impl ReportFile {
    fn read(path: &Path, text: &str) -> Result<Self> {
        let value: serde_json::Value =
            serde_json::from_str(text).with_context(|| format!("{}: not JSON", path.display()))?;
        if value.get("entries").is_some() {
            let summary = serde_json::from_value(value);
            return Ok(Self::FaceOff(Box::new(summary.with_context(|| path.display().to_string())?)));
        }
        Ok(Self::Comparison(Box::new(Results::parse(path, text)?)))
    }

    fn html(&self) -> String {
        match self {
            Self::Comparison(results) => lab::ab::report::html(results),
            Self::FaceOff(summary) => faceoff::page::html(summary, &[]),
        }
    }

    fn markdown(&self) -> String {
        match self {
            Self::Comparison(results) => table::markdown(results),
            Self::FaceOff(summary) => faceoff::tables::markdown(summary),
        }
    }

    fn junit(&self) -> Result<String> {
        match self {
            Self::Comparison(results) => Ok(lab::ab::junit::render(results)),
            Self::FaceOff(_) => Err(WrongUsage("--junit is for the results of lab ab".into()).into()),
        }
    }

    fn text(&self) -> String {
        let (width, colour) = table::stdout_style();
        match self {
            Self::Comparison(results) => table::render(results, width, colour),
            Self::FaceOff(summary) => faceoff::terminal::render(summary, colour),
        }
    }
}

fn boot_one(ctx: &Context, args: BootArgs) -> Result<ExitCode> {
    host::ensure_packages(ctx, ctx.arch.guest_packages())?;
    let variant = variant_or_default(args.variant, args.root.as_ref());
    let (mut arm, _) = arm(ctx, args.arm, variant, "", None)?;
    arm.cmdline = format!("{} {}", arm.cmdline, args.cmdline).trim().to_owned();
    let (accel, _) = probe::probe_with(ctx, &arm)?;
    let interactive = args.command.is_empty();
    let job = Job {
        cpus: args.cpus,
        mem_mib: args.mem,
        mode: args.mode,
        timeout: if interactive { SHELL_TIMEOUT } else { Duration::from_secs(args.timeout) },
        overlay: args.copy.into_iter().map(|CopySpec(host, guest)| (host, guest)).collect(),
        root: args.root.as_ref().map(|source| root::make(ctx, source)).transpose()?,
        interactive,
        ..Job::new(if interactive { GuestCommand::Shell } else { GuestCommand::Exec(args.command) })
    };
    let boot = boot::boot(ctx, accel, &arm, &job, &ctx.out.join("logs/boot"))?;
    for note in &boot.notes {
        eprintln!("lab: the guest says: {note}");
    }
    if !boot.outcome.is_healthy() {
        eprintln!("lab: {}\n{}", boot.outcome, boot.tail(30));
    }
    Ok(ExitCode::from(boot.outcome.exit_code()))
}

fn build(ctx: &Context, args: &BuildArgs) -> Result<ExitCode> {
    for tree in Tree::all().filter(|&t| args.arm.is_none_or(|arm| arm == t)) {
        let kernel = kernel::build(ctx, tree, args.variant)?;
        println!("{}", kernel.bzimage.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn stress_ng(ctx: &Context, args: StressArgs) -> Result<ExitCode> {
    if args.list {
        for (name, about, stressors) in stress::classes() {
            println!("{name:<12} {about} ({stressors})");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let options =
        StressOptions { names: args.classes, variant: args.variant, seconds: args.seconds, json: args.json };
    stress::check(&options).map_err(|e| WrongUsage(format!("{e:#}")))?;
    Ok(ExitCode::from(stress_code(stress::run(ctx, accelerator(ctx)?, &options)?)))
}

fn stress_code(verdict: stress::Verdict) -> u8 {
    match verdict {
        stress::Verdict::Ok => 0,
        stress::Verdict::Finding => EXIT_FINDING,
        stress::Verdict::Guest => EXIT_GUEST,
    }
}

fn static_checks(ctx: &Context, args: &StaticArgs) -> Result<ExitCode> {
    host::ensure_packages(ctx, host::LINT_PACKAGES)?;
    let kernel = kernel::build(ctx, Tree::Memreap, Variant::Slim)?;
    let target = ctx.cache.join("static");
    let _lock = host::lock(ctx, &target)?;
    let step = ctx.progress.step("static checks");
    let log = ctx.out.join("logs/static.log");
    let mut script = Command::new(ctx.in_repo("kernel/checks/static.sh"));
    script.args((!args.configs).then_some("--quick")).arg(&kernel.source_dir).arg(&target);
    let status = host::run_logged(&mut script, &log, |line| {
        step.detail(line);
        ctx.progress.suspend(|| println!("{line}"));
    })?;
    step.done(&format!("{status}, log in {}", log.display()));
    Ok(finding_unless(status.success()))
}

fn list_topics(ctx: &Context, args: &TopicsArgs) -> Result<ExitCode> {
    if args.check_all {
        for release in topics::check_all(ctx)? {
            println!("{release}: all topics and control kernels apply");
        }
        return Ok(ExitCode::SUCCESS);
    }
    for topic in topics::load(&ctx.repo)? {
        let symbol = topic.kconfig.unwrap_or_default();
        println!("{:<15} CONFIG_{:<25} {}", topic.name, symbol, topic.subject);
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes only the entries that the lab makes: $MEMREAP_CACHE may be a folder with other files.
fn clean_cache(ctx: &Context) -> Result<ExitCode> {
    // The names of the caches are those of folders in many projects, this one among them.
    if ctx.cache.join("Cargo.toml").exists() || ctx.cache.join(".git").exists() {
        let what = format!("{} is a source tree, not a cache; see MEMREAP_CACHE", ctx.cache.display());
        return Err(WrongUsage(what).into());
    }
    let step = ctx.progress.step(&format!("removing the caches in {}", ctx.cache.display()));
    // Without the folder there is nothing to remove.
    for entry in fs::read_dir(&ctx.cache).into_iter().flatten() {
        let path = entry.with_context(|| ctx.cache.display().to_string())?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_of_cache(&name) {
            step.detail(&name);
            host::remove_any(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    step.done("");
    Ok(ExitCode::SUCCESS)
}

/// Whether an entry of the cache's folder, or what it is a lock or an unfinished state of, is made by the lab.
fn is_of_cache(name: &str) -> bool {
    const NAMES: [&str; 14] = [
        "accel.json",
        "ccache",
        "crates",
        "faceoff",
        "headers",
        "locks",
        "own-sources",
        "passes",
        "roots",
        "source",
        "static",
        "times.json",
        "trees",
        "user",
    ];
    let name = [".lock", ".partial"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    NAMES.contains(&name) || ["busybox-", "selftests-", "steps-"].iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use lab::ab::results::RepeatedBoot;

    use super::*;

    #[test]
    fn failed_boots_decide_the_exit_code_of_ab() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/results.json");
        let mut results = Results::read(&path).unwrap();
        assert_eq!([true, false].map(|good| ab_code(&results, good)), [0, EXIT_FINDING]);
        let of = |exit_code| RepeatedBoot { boot: "b".into(), what: "w".into(), logs: "l".into(), exit_code };
        results.meta.repeated.push(of(EXIT_HOST));
        assert_eq!([true, false].map(|good| ab_code(&results, good)), [EXIT_HOST; 2]);
        results.meta.repeated.push(of(EXIT_GUEST));
        assert_eq!([true, false].map(|good| ab_code(&results, good)), [EXIT_GUEST; 2]);
    }

    #[test]
    fn a_commit_that_cannot_be_tested_is_skipped_in_a_bisection() {
        assert_eq!([0, 1, 2, 3, 4].map(|code| bisect_code(Ok(code))), [0, 1, 125, 125, 125]);
        assert_eq!(bisect_code(Err(anyhow::anyhow!("it does not build"))), 125);
        // From 128 on, git stops.
        assert_eq!(bisect_code(Err(WrongUsage("so it is with every commit".into()).into())), 128);
    }

    #[test]
    fn verdicts_of_stress_map_to_exit_codes() {
        use stress::Verdict::{Finding, Guest, Ok};
        assert_eq!([Ok, Finding, Guest].map(stress_code), [0, 1, 4]);
    }

    #[test]
    fn only_what_the_lab_makes_is_removed_from_the_cache() {
        for own in ["trees", "roots", "busybox-arm64", "selftests-0.lock", "steps-a", "accel.json.lock"] {
            assert!(is_of_cache(own), "{own}");
        }
        for other in ["tree", "trees.old", "roots.txt", "busybox", "x.lock"] {
            assert!(!is_of_cache(other), "{other}");
        }
    }

    #[test]
    fn errors_map_to_exit_codes() {
        assert_eq!(error_code(&WrongUsage("x".into()).into()), 2);
        assert_eq!(error_code(&anyhow::anyhow!("apt")), 3);
        let cause = experiment::Cause::Outcome(lab::vm::channel::Outcome::NoResult);
        let failure = Failure { boot: "b".into(), cause, logs: "l".into(), tail: "t".into() };
        assert_eq!(error_code(&anyhow::Error::from(failure).context("more")), 4);
    }
}
