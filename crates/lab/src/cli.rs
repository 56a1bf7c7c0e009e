//! Arguments and exit codes.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};

use lab::ab::catalog::{self, Control};
use lab::ab::expect::{self, Terms};
use lab::ab::experiment::{self, Failure, Plan};
use lab::ab::results::{Metric, Results};
use lab::ab::table;
use lab::ab::verdict::Verdict;
use lab::checks::kunit::{self, KunitOptions};
use lab::checks::selftests::{self, SelftestOptions};
use lab::checks::soak::{self, SoakOptions};
use lab::checks::stress::{self, StressOptions};
use lab::checks::suite::{self, SuiteOptions, Tier};
use lab::context::Context;
use lab::documents;
use lab::faceoff::{self, summary::Summary};
use lab::kernel::{self, Kernel, Tree, Variant};
use lab::kernel::{series, topics};
use lab::progress::Progress;
use lab::vm::accel::Accel;
use lab::vm::boot;
use lab::vm::job::{Arm, GuestCommand, Job, Mode};
use lab::vm::probe;
use lab::{doctor, host};

const EXIT_CODES: &str = "\
Exit codes: 0 ok; 1 a finding (a metric got worse, an expectation was missed, a test failed);
2 wrong usage; 3 trouble of the host (QEMU missing, apt impossible, a build that failed);
4 a guest that failed (panic, splat, hang, no result, garbage), also if the boot was made again
and then ended well; 130 interrupted.

Caches are in $MEMREAP_CACHE, else $XDG_CACHE_HOME/memreap, else ~/.cache/memreap.";

/// A finding: not an error, but not a clean result either.
const FINDING: u8 = 1;
const USAGE: u8 = 2;
const HOST: u8 = 3;
const GUEST: u8 = 4;
/// A shell in a guest ends when its user wants.
const SHELL_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Builds stock and changed Linux kernels, boots both in QEMU and says which is better.
#[derive(Parser)]
#[command(name = "lab", version, after_help = EXIT_CODES, propagate_version = true)]
struct Cli {
    /// Which 6.12.N to use, for example 6.12.107 [default: the newest that apt offers]
    #[arg(long, global = true, value_name = "6.12.N")]
    kernel: Option<String>,
    #[command(subcommand)]
    command: Sub,
}

#[derive(Subcommand)]
enum Sub {
    Ab(AbArgs),
    Faceoff(FaceoffArgs),
    Report(ReportArgs),
    Boot(BootArgs),
    Build(BuildArgs),
    Kunit(KunitArgs),
    Selftests(SelftestArgs),
    Soak(SoakArgs),
    Stress(StressArgs),
    Series(SeriesArgs),
    Static(StaticArgs),
    Topics(TopicsArgs),
    Test(TestArgs),
    Doctor(DoctorArgs),
    /// Install the Debian packages that the lab needs
    HostSetup,
    /// Remove all caches: sources, trees, builds, compiler cache
    CleanCache,
}

/// Compare two arms: boot both in turns, run the scenarios, print the verdicts
///
/// Writes target/lab/results.json and target/lab/report.html.
#[derive(Args)]
#[command(after_help = "Examples:
  lab ab                                  all scenarios, stock against memreap
  lab ab reap --pairs 12                  one scenario, more pairs
  lab ab reap --cmdline-memreap memreap.reap=0
  lab ab --continue                       what a comparison that was broken off has left to do
  lab ab --arm stock --arm mine=arch/x86/boot/bzImage,transparent_hugepage=always")]
struct AbArgs {
    /// Scenarios [default: all]
    scenarios: Vec<String>,
    /// Pairs of boots; below six there is no verdict
    #[arg(long, default_value_t = 8)]
    pairs: usize,
    /// Print results.json on stdout instead of the table
    #[arg(long)]
    json: bool,
    /// Leave out the A/A control (a second boot of the base arm in each pair)
    #[arg(long)]
    no_aa: bool,
    /// The arms, base first; give none or two [default: stock and memreap, and what kernels a
    /// scenario needs beside them]
    #[arg(long = "arm", value_name = ARM)]
    arms: Vec<ArmSpec>,
    /// Kernel parameters for the stock arm
    #[arg(long, value_name = "PARAMETERS", default_value = "", allow_hyphen_values = true)]
    cmdline_stock: String,
    /// Kernel parameters for the memreap arm
    #[arg(long, value_name = "PARAMETERS", default_value = "", allow_hyphen_values = true)]
    cmdline_memreap: String,
    #[arg(long, value_enum, default_value_t = Variant::Slim)]
    variant: Variant,
    /// Judge by kernel/<scenario>/expect.toml: what must be shown, and what may get worse; with
    /// --smoke by what one pair can show
    #[arg(long)]
    expect: bool,
    /// Run only this case of a scenario, for example 100-vmas
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// The smallest effect that counts, as a fraction
    #[arg(long, default_value_t = 0.03)]
    min_effect: f64,
    /// One quick pair that shows that everything runs: no control, no verdicts
    #[arg(long)]
    smoke: bool,
    /// Go on where an earlier one ended or was broken off: boots that it made of the same kernel,
    /// guest and QEMU are taken, not made again
    #[arg(long = "continue")]
    resume: bool,
}

/// Compare low-memory killers in one Debian guest, each on the same loads
///
/// Writes target/lab/faceoff.jsonl as it goes, faceoff.json and faceoff.html after every round.
/// A contestant is a folder in faceoff/contestants. Finding (exit code 1): a wrong victim of
/// memreap, or a variant in which another is better.
#[derive(Args)]
#[command(after_help = "Examples:
  lab faceoff                             everybody, every variant: some hours
  lab faceoff earlyoom memreap --variant hog --runs 3
  lab faceoff --continue                  what an interrupted one has left to do")]
struct FaceoffArgs {
    /// Contestants [default: all]
    contestants: Vec<String>,
    /// Only this load, or \"idle\" (repeatable) [default: all]
    #[arg(long = "variant", value_name = "VARIANT")]
    variants: Vec<String>,
    /// Rounds; each runs every contestant once in every variant
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Of the load in the first round; the others count on from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// When a load that has not ended is given up; a slow leak needs 40 to fill the memory
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    limit: u64,
    /// Keep the logs of all runs, not only of those that failed
    #[arg(long)]
    keep: bool,
    /// Go on where an earlier one ended
    #[arg(long = "continue")]
    resume: bool,
    /// Write the plots as SVG files too
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
    /// Print faceoff.json on stdout instead of the tables
    #[arg(long)]
    json: bool,
}

/// Show the results of earlier comparisons
///
/// Takes a results.json of `lab ab` or a faceoff.json of `lab faceoff`, for example one of docs/results/.
#[derive(Args)]
#[command(after_help = "Examples:
  lab report docs/results/reap.json
  lab report docs/results/*.json --html /tmp/pages
  lab report --documents                  fill the tables of README.md and docs/results.md")]
struct ReportArgs {
    /// The files
    #[arg(value_name = "FILE", required_unless_present = "documents")]
    files: Vec<PathBuf>,
    /// Write a page per file into this folder instead of tables to stdout
    #[arg(long, value_name = "FOLDER")]
    html: Option<PathBuf>,
    /// Write the tables of README.md and docs/results.md anew from docs/results/
    #[arg(long, conflicts_with_all = ["files", "html"])]
    documents: bool,
}

/// Boot one guest: a shell, or one command with its own exit code
///
/// Exit code: the command's own (128+n after signal n) when the guest was healthy; 3 when QEMU
/// failed; 120 panic, 121 splat, 122 hang, 123 no result, 124 garbage.
#[derive(Args)]
#[command(after_help = "Examples:
  lab boot                                     a shell in the changed kernel
  lab boot --arm stock -- uname -r
  lab boot --variant debug --copy ./prog:/prog -- /prog --flag")]
struct BootArgs {
    /// The kernel
    #[arg(long, value_name = ARM, default_value = "memreap")]
    arm: ArmSpec,
    #[arg(long, value_enum, default_value_t = Variant::Slim)]
    variant: Variant,
    /// Number of CPUs
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Memory in MiB
    #[arg(long, default_value_t = 1024)]
    mem: u32,
    /// How guest time passes
    #[arg(long, value_enum, default_value_t = TimeMode::Multi)]
    mode: TimeMode,
    /// Seconds until a command's guest counts as hung
    #[arg(long, default_value_t = 180)]
    timeout: u64,
    /// More kernel parameters
    #[arg(long, value_name = "PARAMETERS", default_value = "", allow_hyphen_values = true)]
    cmdline: String,
    /// Put a file or folder into the guest (repeatable)
    #[arg(long, value_name = "HOST:GUEST")]
    copy: Vec<CopySpec>,
    /// The command and its arguments [default: a shell]
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Build kernels, or find them in the cache, and print the paths of their bzImages
#[derive(Args)]
struct BuildArgs {
    /// Which tree: stock, memreap or a scenario's control [default: all]
    #[arg(long, value_name = "TREE")]
    arm: Option<Tree>,
    #[arg(long, value_enum, default_value_t = Variant::Slim)]
    variant: Variant,
}

/// Run the topics' KUnit tests in the changed kernel
#[derive(Args)]
struct KunitArgs {
    /// Only suites (or suite.case) matching this glob
    filter: Option<String>,
    #[arg(long, value_enum, default_value_t = Variant::Debug)]
    variant: Variant,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Take it as passed if it passed before with the same kernel, guest and QEMU
    #[arg(long)]
    remembered: bool,
}

/// Run selftests in the changed kernel: ours, and the kernel's own compared with stock
#[derive(Args)]
#[command(after_help = "Examples:
  lab selftests                           ours
  lab selftests ours mm/mrelease_test     ours and one of the kernel's own
  lab selftests cgroup                    all of tools/testing/selftests/cgroup")]
struct SelftestArgs {
    /// \"ours\", or names under tools/testing/selftests [default: ours]
    names: Vec<String>,
    #[arg(long, value_enum, default_value_t = Variant::Slim)]
    variant: Variant,
    /// How long each storm and race of ours goes on, in seconds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(..=120))]
    stress_seconds: u64,
    /// Look for leaks of the kernel's memory too (kmemleak), which takes longer; debug only
    #[arg(long)]
    leaks: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Take programs as passed that passed before with the same content, kernel, guest and QEMU
    #[arg(long)]
    remembered: bool,
}

/// Stress the changed kernel for a while: kill storms, fork races, memory pressure
#[derive(Args)]
struct SoakArgs {
    /// For how long
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    #[arg(long, value_enum, default_value_t = Variant::Debug)]
    variant: Variant,
    /// Repeat the storm of an earlier soak [default: any]
    #[arg(long)]
    seed: Option<u64>,
}

/// Run stress-ng in guests, stock beside the changed kernel
///
/// A guest for each class of stressors and kernel. Finding (exit code 1): a failure that stock does
/// not have, or a class in which nothing was done.
#[derive(Args)]
#[command(after_help = "Examples:
  lab stress                              all classes in both debug kernels
  lab stress oom swap --seconds 300       two of them, longer
  lab stress --variant slim --seconds 10  a quick look")]
struct StressArgs {
    /// Classes [default: all]
    classes: Vec<String>,
    #[arg(long, value_enum, default_value_t = Variant::Debug)]
    variant: Variant,
    /// For how long, per class and kernel
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Only list the classes
    #[arg(long)]
    list: bool,
}

/// Export the topics as patches for git am
#[derive(Args)]
struct SeriesArgs {
    /// Where to
    #[arg(long, value_name = "FOLDER", default_value = "series")]
    out: PathBuf,
    /// Apply the patches with git am and build a kernel after each
    #[arg(long)]
    check: bool,
}

/// Check the topics' code as a maintainer would: checkpatch, sparse, W=1
#[derive(Args)]
struct StaticArgs {
    /// Also compile it in configurations that people forget (SMP=n, MMU=n, SWAP=n, ...)
    #[arg(long)]
    configs: bool,
}

/// List the topics, in order
#[derive(Args)]
struct TopicsArgs {
    /// Apply them to the oldest and the newest kernel that apt offers
    #[arg(long)]
    check_all: bool,
}

/// Run the checks of the project, a tier of them or some by name
///
/// What passed before with the same content is not run again, and the report says what that was. Passes
/// are kept in the cache for 30 days.
#[derive(Args)]
#[command(after_help = "Examples:
  lab test                                what `make test` runs
  lab test --tier check                   for every edit: ten minutes with warm caches
  lab test kunit selftests --fresh        two checks, whatever passed before")]
struct TestArgs {
    /// Checks by name [default: all of the tier]
    checks: Vec<String>,
    /// How much; `full` takes nothing from memory
    #[arg(long, value_enum, default_value_t = Tier::Test)]
    tier: Tier,
    /// Run everything, whatever passed before
    #[arg(long)]
    fresh: bool,
    /// Only list them
    #[arg(long)]
    list: bool,
}

/// Say what the lab needs of this host, what is missing and how to get it
#[derive(Args)]
struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

const ARM: &str = "stock|memreap|CONTROL|NAME=BZIMAGE[,PARAMETERS]";

/// One `--arm`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ArmSpec {
    Built(Tree),
    /// The changed kernel with parameters that make it a control.
    With(&'static str, &'static str),
    File(Arm),
}

impl FromStr for ArmSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, rest)) = text.split_once('=') else {
            let control = catalog::controls().into_iter().find(|control| control.name == text);
            if let Some(Control { name, parameters: Some(parameters) }) = control {
                return Ok(Self::With(name, parameters));
            }
            return text.parse().map(Self::Built).map_err(|e| format!("{e}; or give NAME=BZIMAGE"));
        };
        let (file, cmdline) = rest.split_once(',').unwrap_or((rest, ""));
        if name.is_empty() || file.is_empty() {
            return Err("expected NAME=BZIMAGE[,PARAMETERS]".to_owned());
        }
        let bzimage = std::path::absolute(file).map_err(|e| format!("{file}: {e}"))?;
        if !bzimage.is_file() {
            return Err(format!("{file}: no such file"));
        }
        Ok(Self::File(Arm { name: name.to_owned(), bzimage, cmdline: cmdline.to_owned() }))
    }
}

/// One `--copy`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CopySpec(PathBuf, String);

impl FromStr for CopySpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, guest) = text.rsplit_once(':').ok_or("expected HOST:GUEST")?;
        if !guest.starts_with('/') {
            return Err(format!("{guest}: the path in the guest must be absolute"));
        }
        if !Path::new(host).exists() {
            return Err(format!("{host}: no such file or folder"));
        }
        Ok(Self(host.into(), guest.to_owned()))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TimeMode {
    /// Real concurrency, real noise
    Multi,
    /// Instructions as time: repeats closely; one CPU's worth of speed
    Icount,
}

impl From<TimeMode> for Mode {
    fn from(mode: TimeMode) -> Self {
        match mode {
            TimeMode::Multi => Self::Multi,
            TimeMode::Icount => Self::Icount,
        }
    }
}

/// An error in what the user asked for; everything else counts as the host's trouble.
#[derive(Debug)]
struct WrongUsage(String);

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUsage {}

/// The program.
pub fn main() -> ExitCode {
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
        USAGE
    } else if error.is::<faceoff::snapshot::GuestFailure>() {
        GUEST
    } else {
        HOST
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let mut ctx = Context::discover(Progress::new())?;
    if cli.kernel.is_some() {
        ctx.kernel = cli.kernel;
    }
    match cli.command {
        Sub::Ab(args) => ab(&ctx, args),
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
            // git runs in folders of its own.
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
            Ok(ExitCode::from(if doctor::healthy(&findings) { 0 } else { HOST }))
        }
        Sub::HostSetup => {
            let needed = [host::BUILD, host::UNPACK, host::LAB, host::GIT, faceoff::rootfs::PACKAGES];
            host::ensure_packages(&ctx, &needed.concat())?;
            Ok(ExitCode::SUCCESS)
        }
        Sub::CleanCache => clean_cache(&ctx),
    }
}

fn finding_unless(good: bool) -> ExitCode {
    ExitCode::from(if good { 0 } else { FINDING })
}

fn accelerator(ctx: &Context) -> Result<Accel> {
    host::ensure_packages(ctx, host::LAB)?;
    Ok(probe::probe(ctx)?.0)
}

/// The arm of a kernel that the lab builds.
fn built(ctx: &Context, tree: Tree, variant: Variant, cmdline: &str) -> Result<(Arm, Kernel)> {
    let kernel = kernel::build(ctx, tree, variant)?;
    let arm = Arm { name: tree.to_string(), bzimage: kernel.bzimage.clone(), cmdline: cmdline.to_owned() };
    Ok((arm, kernel))
}

/// The arm of the changed kernel that parameters make a control.
fn changed(ctx: &Context, name: &str, variant: Variant, parameters: &str) -> Result<(Arm, Kernel)> {
    let (arm, kernel) = built(ctx, Tree::Memreap, variant, parameters)?;
    Ok((Arm { name: name.to_owned(), ..arm }, kernel))
}

fn ab(ctx: &Context, args: AbArgs) -> Result<ExitCode> {
    let scenarios = catalog::select(&args.scenarios).map_err(|e| WrongUsage(e.to_string()))?;
    let default_arms = args.arms.is_empty();
    let specs = match <[ArmSpec; 2]>::try_from(args.arms) {
        Ok(two) => two,
        Err(none) if none.is_empty() => [ArmSpec::Built(Tree::Stock), ArmSpec::Built(Tree::Memreap)],
        Err(_) => return Err(WrongUsage("give --arm twice, base first, or not at all".into()).into()),
    };
    host::ensure_packages(ctx, host::LAB)?;
    // Arms of one's own are compared with each other and nothing else.
    let mut controls = Vec::new();
    if default_arms {
        let wanted = |control: &Control| scenarios.iter().any(|s| s.controls.contains(control));
        for Control { name, parameters } in catalog::controls().into_iter().filter(wanted) {
            controls.push(match parameters {
                Some(parameters) => changed(ctx, name, args.variant, parameters)?.0,
                None => built(ctx, Tree::Control(name), args.variant, "")?.0,
            });
        }
    }
    let mut source = None;
    let mut arms = Vec::new();
    for spec in specs {
        let (arm, kernel) = match spec {
            ArmSpec::File(arm) => {
                arms.push(arm);
                continue;
            }
            ArmSpec::With(name, parameters) => changed(ctx, name, args.variant, parameters)?,
            ArmSpec::Built(tree) => {
                let cmdline = match tree {
                    Tree::Stock => args.cmdline_stock.as_str(),
                    Tree::Memreap => &args.cmdline_memreap,
                    Tree::Control(_) => "",
                };
                built(ctx, tree, args.variant, cmdline)?
            }
        };
        source = Some(format!("Debian linux-source-6.12, {}, {}", kernel.release, args.variant));
        arms.push(arm);
    }
    let arms: [Arm; 2] = arms.try_into().map_err(|_| WrongUsage("two arms are needed".into()))?;
    let (accel, why) = probe::probe_with(ctx, &arms[0])?;
    ctx.progress.note(&format!("accelerator: {accel} ({why})"));
    let plan = Plan {
        scenarios: scenarios.iter().map(|s| s.name.to_owned()).collect(),
        args: args.case.iter().map(|case| format!("case={case}")).collect(),
        pairs: args.pairs,
        arms,
        controls,
        aa: !args.no_aa,
        min_effect: args.min_effect,
        alpha: 0.05,
        smoke: args.smoke,
        resume: args.resume,
        source,
        accelerator_reason: Some(why),
        command: Some(command_line()),
    };
    let results = experiment::run(ctx, accel, &plan)?;
    if args.json {
        print!("{}", results.to_json()?);
    } else {
        table::print(&results);
    }
    let good = if args.expect {
        let terms = Terms { smoke: args.smoke, aa: !args.no_aa };
        expectations(ctx, &results, &plan.scenarios, terms, args.json)?
    } else {
        !results.metrics.iter().any(|m| m.verdict == Verdict::Worse)
    };
    if !args.smoke {
        ctx.progress.note(&format!("report: {}", ctx.out.join("report.html").display()));
    }
    for repeated in &results.meta.repeated {
        eprintln!("lab: failed: {repeated}");
    }
    Ok(ExitCode::from(ab_code(&results, good)))
}

/// The exit code of a comparison that is complete: a boot that failed counts more than a finding.
fn ab_code(results: &Results, good: bool) -> u8 {
    results.exit_code().unwrap_or(if good { 0 } else { FINDING })
}

/// Checks `kernel/<scenario>/expect.toml` of every scenario that has one.
fn expectations(
    ctx: &Context,
    results: &Results,
    scenarios: &[String],
    terms: Terms,
    quiet: bool,
) -> Result<bool> {
    let mut all_passed = true;
    for scenario in scenarios {
        let path = ctx.in_repo(format!("kernel/{scenario}/expect.toml"));
        if !path.is_file() {
            ctx.progress.note(&format!("{scenario}: nothing is expected ({} is not there)", path.display()));
            let worse = |m: &&Metric| m.scenario == *scenario && m.verdict == Verdict::Worse;
            all_passed &= results.metrics.iter().find(worse).is_none();
            continue;
        }
        let checked = expect::check(results, &path, terms)?;
        let (width, colour) = table::stdout_style();
        let text = expect::render(&checked, width, colour);
        // With --json stdout is for the results alone.
        if quiet {
            eprint!("{text}")
        } else {
            print!("\n{text}")
        }
        all_passed &= expect::passed(&checked);
    }
    Ok(all_passed)
}

/// How this run can be repeated.
fn command_line() -> String {
    let arguments = std::env::args().skip(1).map(|a| {
        let plain = a.chars().all(|c| c.is_ascii_alphanumeric() || "-_=.,/:+".contains(c));
        if plain && !a.is_empty() { a } else { format!("'{}'", a.replace('\'', r"'\''")) }
    });
    std::iter::once("lab".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

fn face_off(ctx: &Context, args: FaceoffArgs) -> Result<ExitCode> {
    let options = faceoff::Options {
        contestants: args.contestants,
        variants: args.variants,
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
        for file in faceoff::page::write_svgs(&result.summary, &result.runs, &folder)? {
            ctx.progress.note(&format!("plot: {}", file.display()));
        }
    }
    ctx.progress.note(&format!("report: {}", ctx.out.join("faceoff.html").display()));
    let failed: usize = result.summary.entries.iter().map(|entry| entry.failures.len()).sum();
    if failed > 0 {
        eprintln!("lab: {failed} of the runs failed");
        return Ok(ExitCode::from(GUEST));
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
        let shown = Shown::read(file, &text)?;
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
                print!("{title}{}", shown.text());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What `lab report` can show.
enum Shown {
    Comparison(Box<Results>),
    FaceOff(Box<Summary>),
}

impl Shown {
    fn read(path: &Path, text: &str) -> Result<Self> {
        let value: serde_json::Value =
            serde_json::from_str(text).with_context(|| format!("{}: not JSON", path.display()))?;
        if value.get("entries").is_some() {
            let summary = serde_json::from_value(value);
            return Ok(Self::FaceOff(Box::new(summary.with_context(|| path.display().to_string())?)));
        }
        Ok(Self::Comparison(Box::new(Results::read(path)?)))
    }

    fn html(&self) -> String {
        match self {
            Self::Comparison(results) => lab::ab::report::html(results),
            Self::FaceOff(summary) => faceoff::page::html(summary, &[]),
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
    host::ensure_packages(ctx, host::LAB)?;
    let mut arm = match args.arm {
        ArmSpec::File(arm) => arm,
        ArmSpec::Built(tree) => built(ctx, tree, args.variant, "")?.0,
        ArmSpec::With(name, parameters) => changed(ctx, name, args.variant, parameters)?.0,
    };
    arm.cmdline = format!("{} {}", arm.cmdline, args.cmdline).trim().to_owned();
    let (accel, _) = probe::probe_with(ctx, &arm)?;
    let interactive = args.command.is_empty();
    let job = Job {
        cpus: args.cpus,
        mem_mib: args.mem,
        mode: args.mode.into(),
        timeout: if interactive { SHELL_LIMIT } else { Duration::from_secs(args.timeout) },
        overlay: args.copy.into_iter().map(|CopySpec(host, guest)| (host, guest)).collect(),
        interactive,
        ..Job::new(if interactive { GuestCommand::Shell } else { GuestCommand::Exec(args.command) })
    };
    let boot = boot::boot(ctx, accel, &arm, &job, &ctx.out.join("logs/boot"))?;
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
        stress::Verdict::Finding => FINDING,
        stress::Verdict::Guest => GUEST,
    }
}

fn static_checks(ctx: &Context, args: &StaticArgs) -> Result<ExitCode> {
    host::ensure_packages(ctx, host::LINT)?;
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
            println!("{release}: all topics and controls apply");
        }
        return Ok(ExitCode::SUCCESS);
    }
    for topic in topics::load(&ctx.repo)? {
        let symbol = topic.kconfig.unwrap_or_default();
        println!("{:<15} CONFIG_{:<25} {}", topic.name, symbol, topic.subject);
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes only what the lab makes: the variable could name any folder.
fn clean_cache(ctx: &Context) -> Result<ExitCode> {
    let step = ctx.progress.step(&format!("removing the caches in {}", ctx.cache.display()));
    for name in [
        "trees",
        "source",
        "headers",
        "static",
        "faceoff",
        "locks",
        "passes",
        "times.json",
        "ccache",
        "accel.json",
        "accel.json.lock",
    ] {
        let path = ctx.cache.join(name);
        step.detail(name);
        host::remove_any(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    step.done("");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use lab::ab::results::Repeated;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn arms_are_read() {
        assert_eq!("stock".parse(), Ok(ArmSpec::Built(Tree::Stock)));
        assert_eq!("memreap".parse(), Ok(ArmSpec::Built(Tree::Memreap)));
        assert_eq!("stock-precise".parse(), Ok(ArmSpec::Built(Tree::Control("stock-precise"))));
        assert_eq!("memreap-sync".parse(), Ok(ArmSpec::With("memreap-sync", "memreap.swap_release=sync")));
        assert!("memreap-none".parse::<ArmSpec>().unwrap_err().contains("no tree 'memreap-none'"));
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_path_buf();
        let spec = format!("mine={},a=b c,d", path.display());
        let arm = Arm { name: "mine".into(), bzimage: path, cmdline: "a=b c,d".into() };
        assert_eq!(spec.parse(), Ok(ArmSpec::File(arm)));
        assert!("mine=/no/such/file".parse::<ArmSpec>().unwrap_err().contains("no such file"));
        for bad in ["mine", "=x", "mine="] {
            assert!(bad.parse::<ArmSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn copies_are_read() {
        assert_eq!("/etc:/x/y".parse(), Ok(CopySpec("/etc".into(), "/x/y".into())));
        for bad in ["/etc", "/etc:relative", "/no/such:/x"] {
            assert!(bad.parse::<CopySpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn boots_that_failed_decide_the_exit_code_of_ab() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/results.json");
        let mut results = Results::read(&path).unwrap();
        assert_eq!([true, false].map(|good| ab_code(&results, good)), [0, FINDING]);
        let of = |exit_code| Repeated { boot: "b".into(), what: "w".into(), logs: "l".into(), exit_code };
        results.meta.repeated.push(of(HOST));
        assert_eq!([true, false].map(|good| ab_code(&results, good)), [HOST; 2]);
        results.meta.repeated.push(of(GUEST));
        assert_eq!([true, false].map(|good| ab_code(&results, good)), [GUEST; 2]);
    }

    #[test]
    fn verdicts_of_stress_map_to_exit_codes() {
        use stress::Verdict::{Finding, Guest, Ok};
        assert_eq!([Ok, Finding, Guest].map(stress_code), [0, 1, 4]);
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
