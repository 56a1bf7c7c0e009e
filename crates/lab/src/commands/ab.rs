// SPDX-License-Identifier: GPL-2.0-only
//! `lab ab`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;

use crate::WrongUsage;
use crate::ab::expect::{self, Checked, RunKind};
use crate::ab::experiment::{self, Plan};
use crate::ab::results::Results;
use crate::ab::screen;
use crate::ab::stats::{MAX_PAIRS, MIN_PAIRS};
use crate::ab::table;
use crate::ab::workload::{self, Workload};
use crate::context::Context;
use crate::host;
use crate::kernel::{Tree, Variant, series};
use crate::vm::job::Mode;
use crate::vm::probe;
use crate::vm::root::{self, RootSource};
use scenarios::{ControlKernel, Guest};

use super::arms::{ArmSpec, CopySpec, arm, built, changed, variant_or_default};
use super::exit;

/// Compare two arms: boot them alternately, run the scenarios, print the verdicts
///
/// Writes target/lab/results.json and target/lab/report.html.
#[derive(Args)]
#[command(after_help = format!("Scenarios:\n{}\nExamples:
  lab ab                                  all scenarios, stock against memreap
  lab ab reap --pairs 12                  one scenario, more pairs
  lab ab reap --cmdline-memreap memreap.reap=0
  lab ab --continue                       the rest of an interrupted comparison
  lab ab --arm stock --arm mine=arch/x86/boot/bzImage,transparent_hugepage=always
  lab ab --workload ./bench.sh --arm base=~/linux@v6.12 --arm mine=~/linux@v6.12+fix.mbox
  git bisect run lab ab --bisect --workload ./bench.sh --arm good=.@v6.12 --arm now=.@HEAD
  lab ab --workload ./bench.sh --arm old=bzImage.old --arm new=bzImage.new", scenarios()))]
pub struct AbArgs {
    /// Scenarios [default: all]
    pub scenarios: Vec<String>,
    /// Pairs of boots, up to 20; verdicts need at least six
    #[arg(long, default_value_t = 8, value_parser = pairs)]
    pub pairs: usize,
    /// The seed by which the order of the boots is drawn from balanced ones
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print results.json on stdout instead of the table
    #[arg(long)]
    pub json: bool,
    /// Print the tables of all metrics and expectations instead of a sentence per scenario; always so with --workload,
    /// and with --case where it leaves out what the sentence says
    #[arg(long, conflicts_with = "json")]
    pub verbose: bool,
    /// Leave out the A/A control (a second boot of the base arm in each pair)
    #[arg(long)]
    pub no_aa: bool,
    /// The arms, base first; give none or two. KERNEL is a bzImage, a source folder, FOLDER@COMMIT of a git
    /// repository, either with +PATCH..., or debian+PATCH... [default: stock and memreap, and the control
    /// kernels of the scenarios]
    #[arg(long = "arm", value_name = ArmSpec::FORM)]
    pub arms: Vec<ArmSpec>,
    /// A fragment of a kernel configuration, over that of --variant, for arms built from your sources
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Kernel parameters for the stock arm
    #[arg(long, value_name = "PARAMETERS", default_value = "", allow_hyphen_values = true)]
    pub cmdline_stock: String,
    /// Kernel parameters for the memreap arm
    #[arg(long, value_name = "PARAMETERS", default_value = "", allow_hyphen_values = true)]
    pub cmdline_memreap: String,
    /// The kernels' configuration [default: slim, with --root faceoff]
    #[arg(long, value_enum)]
    pub variant: Option<Variant>,
    /// Check the expectations in kernel/<scenario>/expect.toml; with --smoke those that one pair can
    /// show
    #[arg(long)]
    pub expect: bool,
    /// Check the expectations in a file of your own; crates/lab/src/ab/expect/mod.rs says what it may have
    #[arg(long, value_name = "FILE", conflicts_with = "expect")]
    pub expectations: Option<PathBuf>,
    /// Run only this case of a scenario, for example 100-vmas
    #[arg(long, value_name = "NAME")]
    pub case: Option<String>,
    /// Boot only this guest of the scenarios, by its name in the table, for example icount or icount-64;
    /// with --expect, what others must show is left out
    #[arg(long, value_name = "NAME")]
    pub guest: Option<String>,
    /// A program of yours instead of the scenarios: it runs in the guest and prints its metrics, a line each,
    /// `NAME VALUE UNIT lower|higher`, or as JSON (metric, value, unit, better)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenarios", "case", "guest", "expect"])]
    pub workload: Option<PathBuf>,
    /// Exit with what `git bisect run` expects: 0 nothing got worse, 1 something did, 125 not tested, 128 wrong usage
    #[arg(long, requires = "workload", conflicts_with = "smoke")]
    pub bisect: bool,
    /// An argument for the workload (repeatable)
    #[arg(long = "arg", value_name = "ARGUMENT", requires = "workload", allow_hyphen_values = true)]
    pub arguments: Vec<String>,
    /// Copy a file or folder of the workload's to the guest (repeatable)
    #[arg(long, value_name = "HOST:GUEST", requires = "workload")]
    pub copy: Vec<CopySpec>,
    /// The root file system of the guest, where the workload finds its programs: a small Debian with these
    /// packages, a folder, or an ext4 image [default: busybox]
    #[arg(long, value_name = RootSource::FORM, requires = "workload")]
    pub root: Option<RootSource>,
    /// Number of CPUs for the workload
    #[arg(long, default_value_t = 2, requires = "workload")]
    pub cpus: u32,
    /// Memory for the workload in MiB
    #[arg(long, default_value_t = 1024, requires = "workload")]
    pub mem: u32,
    /// How guest time passes for the workload: multi or icount
    #[arg(long, default_value_t = Mode::Multi, requires = "workload")]
    pub mode: Mode,
    /// Time limit of the workload in seconds; a guest that takes longer counts as hung
    #[arg(long, default_value_t = 180, requires = "workload")]
    pub timeout: u64,
    /// How likely it may be that any "better" or "worse" is false, over all metrics, as a fraction
    #[arg(long, default_value_t = 0.05)]
    pub alpha: f64,
    /// The smallest effect that counts, as a fraction
    #[arg(long, default_value_t = 0.03)]
    pub min_effect: f64,
    /// Only check that everything runs: one pair, no A/A control, no verdicts
    #[arg(long)]
    pub smoke: bool,
    /// Continue an earlier comparison: reuse its boots that had the same kernel, guest and QEMU
    #[arg(long = "continue")]
    pub resume: bool,
}

/// Runs the comparison, and returns the exit code.
pub fn run(ctx: &Context, args: AbArgs) -> Result<u8> {
    if args.bisect { Ok(bisect_code(compare(ctx, args))) } else { compare(ctx, args) }
}

fn compare(ctx: &Context, args: AbArgs) -> Result<u8> {
    ensure!(
        !args.bisect || args.pairs >= MIN_PAIRS,
        WrongUsage(format!("--bisect needs at least {MIN_PAIRS} pairs: with fewer, nothing is ever found to be worse"))
    );
    let variant = variant_or_default(args.variant, args.root.as_ref());
    let workload = match &args.workload {
        None => None,
        Some(program) => {
            let copies = args.copy.into_iter().map(|CopySpec(host, guest)| (host, guest)).collect();
            let guest = Guest {
                name: args.mode.name(),
                mode: args.mode,
                cpus: args.cpus,
                mem_mib: args.mem,
                timeout: Duration::from_secs(args.timeout),
                cmdline: "",
            };
            let root = args.root.as_ref().map(|source| root::make(ctx, source)).transpose()?;
            let workload = Workload::new(program, args.arguments, copies, guest, root);
            Some(workload.map_err(|e| WrongUsage(format!("--workload: {e:#}")))?)
        }
    };
    let scenarios = workload::scenarios(workload.as_ref(), &args.scenarios);
    let mut scenarios = scenarios.map_err(|e| WrongUsage(e.to_string()))?;
    let default_arms = args.arms.is_empty();
    if default_arms {
        // What both kernels do alike is no comparison.
        for (topic, why) in ctx.series.without.iter().filter(|(topic, _)| !ctx.series.instead.contains_key(*topic)) {
            ensure!(
                !args.scenarios.contains(topic),
                WrongUsage(format!("{topic}: no topic of Linux {}: {why}; give --arm to run it", ctx.series.name))
            );
            scenarios.retain(|scenario| scenario.name != topic);
        }
    }
    let specs = match <[ArmSpec; 2]>::try_from(args.arms) {
        Ok(two) => two,
        Err(none) if none.is_empty() => [ArmSpec::Built(Tree::Stock, None), ArmSpec::Built(Tree::Memreap, None)],
        Err(_) => bail!(WrongUsage("give --arm twice, base first, or not at all".into())),
    };
    experiment::chosen_guests(&scenarios, args.guest.as_deref(), args.case.as_deref())?;
    for (option, given, tree) in [
        ("--cmdline-stock", &args.cmdline_stock, Tree::Stock),
        ("--cmdline-memreap", &args.cmdline_memreap, Tree::Memreap),
    ] {
        ensure!(
            given.is_empty() || specs.iter().any(|spec| matches!(spec, ArmSpec::Built(of_arm, _) if *of_arm == tree)),
            WrongUsage(format!("{option}: no arm is that kernel; write --arm NAME=KERNEL,PARAMETERS"))
        );
    }
    let of_sources = specs.iter().any(|spec| matches!(spec, ArmSpec::Sources(..)));
    ensure!(args.config.is_none() || of_sources, WrongUsage("--config: no arm is built from sources of yours".into()));
    if args.expect
        && let Some(missing) = scenarios.iter().map(|s| expect_file(ctx, s.name)).find(|path| !path.is_file())
    {
        bail!(WrongUsage(format!("--expect: {} does not exist", missing.display())));
    }
    if let Some(path) = &args.expectations {
        expect::validate(path).map_err(|e| WrongUsage(format!("--expectations: {e:#}")))?;
    }
    host::ensure_packages(ctx, host::guest_packages(ctx.arch))?;
    // Arms given by --arm are compared without control kernels.
    let mut controls = Vec::new();
    if default_arms {
        let wanted = |control: &ControlKernel| scenarios.iter().any(|s| s.controls.contains(control));
        for ControlKernel { name, parameters } in scenarios::controls().into_iter().filter(wanted) {
            let of_series = match parameters {
                None => Tree::Control(name).is_of_series(ctx),
                // Without the topic that it turns off, it is the changed kernel.
                Some(parameters) => !ctx.series.without.keys().any(|topic| {
                    let switch = format!("memreap.{}=0", topic.replace('-', "_"));
                    parameters.split(' ').all(|parameter| parameter == switch)
                }),
            };
            if !of_series {
                ctx.progress.note(&format!("no control kernel {name}: it is not for Linux {}", ctx.series.name));
                continue;
            }
            controls.push(match parameters {
                Some(parameters) => changed(ctx, name, variant, parameters)?.0,
                None => built(ctx, Tree::Control(name), variant, "")?.0,
            });
        }
    }
    // A relative path is of the current folder, not of the checkout.
    let fragment = args.config.map(std::path::absolute).transpose()?;
    let made = |spec: ArmSpec| {
        let cmdline = match spec {
            ArmSpec::Built(Tree::Stock, _) => args.cmdline_stock.as_str(),
            ArmSpec::Built(Tree::Memreap, _) => &args.cmdline_memreap,
            _ => "",
        };
        arm(ctx, spec, variant, cmdline, fragment.as_deref())
    };
    let [base, changed] = specs;
    let ((base, source, lacks), (changed, its_source, its_lacks)) = (made(base)?, made(changed)?);
    let typos = in_no_kernel([lacks, its_lacks]).join(" ");
    ensure!(typos.is_empty(), "--config: no kernel that is built with it has a symbol of that name: {typos}");
    let source = if source == its_source { source } else { format!("{source}; {its_source}") };
    let (accel, why) = probe::accelerator(ctx, &base.bzimage)?;
    ctx.progress.note(&format!("accelerator: {accel} ({why})"));
    let plan = Plan {
        scenarios,
        workload,
        case: args.case,
        guest: args.guest,
        pairs: args.pairs,
        seed: args.seed,
        arms: [base, changed],
        controls,
        aa: !args.no_aa,
        min_effect: args.min_effect,
        alpha: args.alpha,
        smoke: args.smoke,
        resume: args.resume,
        source: Some(source),
        accelerator_reason: Some(why),
        command: Some(command_line()),
    };
    let results = experiment::run(ctx, accel, &plan)?;
    let series = series::of_version(results.meta.other_kernel().unwrap_or(&results.meta.kernel));
    let kind = RunKind { series: &series, case: plan.case.as_deref(), smoke: args.smoke, aa: !args.no_aa };
    let files = match args.expectations {
        Some(path) => vec![path],
        None if args.expect => plan.scenarios.iter().map(|s| expect_file(ctx, s.name)).collect(),
        None => Vec::new(),
    };
    let checked = files.iter().map(|path| expect::check(&results, path, kind)).collect::<Result<Vec<_>>>()?;
    let checked = (!files.is_empty()).then_some(checked);
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
    Ok(exit_code(&results, good))
}

/// Returns the exit code for `git bisect run`. What is no finding says nothing about the commit.
fn bisect_code(outcome: Result<u8>) -> u8 {
    match outcome {
        Ok(code @ (0 | exit::FINDING)) => code,
        Ok(_) => exit::SKIP,
        Err(e) => {
            eprintln!("lab: {e:#}");
            if e.is::<WrongUsage>() { exit::ABORT } else { exit::SKIP }
        }
    }
}

/// Returns the exit code of a complete comparison. A failed boot takes precedence over a finding.
fn exit_code(results: &Results, good: bool) -> u8 {
    results.exit_code().unwrap_or(if good { 0 } else { exit::FINDING })
}

/// Returns the symbols that each of the kernels lacks that `--config` is for: others may be what a patch adds.
fn in_no_kernel(lacks: [Option<Vec<String>>; 2]) -> Vec<String> {
    let both = |some: Vec<String>, other: Vec<String>| some.into_iter().filter(|s| other.contains(s)).collect();
    lacks.into_iter().flatten().reduce(both).unwrap_or_default()
}

fn expect_file(ctx: &Context, scenario: &str) -> PathBuf {
    ctx.in_repo(format!("kernel/{scenario}/expect.toml"))
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

/// Prints the results as a table, or as the text of results.json.
fn show(results: &Results, json: bool) -> Result<()> {
    if json {
        print!("{}", results.to_json()?);
    } else {
        table::print(results);
    }
    Ok(())
}

/// Returns a line for each scenario.
fn scenarios() -> String {
    scenarios::all().iter().map(|s| format!("  {:<18} {}\n", s.name, s.about)).collect::<Vec<_>>().concat()
}

/// Reads the number of pairs.
fn pairs(text: &str) -> Result<usize, String> {
    let read = text.parse().ok().filter(|pairs| (1..=MAX_PAIRS).contains(pairs));
    read.ok_or_else(|| format!("between 1 and {MAX_PAIRS} can be compared"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::ab::results::RepeatedBoot;

    use super::*;

    #[test]
    fn failed_boots_decide_the_exit_code_of_ab() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/results.json");
        let mut results = Results::read(&path).unwrap();
        assert_eq!([true, false].map(|good| exit_code(&results, good)), [0, exit::FINDING]);
        let of = |exit_code| RepeatedBoot { boot: "b".into(), what: "w".into(), logs: "l".into(), exit_code };
        results.meta.repeated.push(of(exit::HOST));
        assert_eq!([true, false].map(|good| exit_code(&results, good)), [exit::HOST; 2]);
        results.meta.repeated.push(of(exit::GUEST));
        assert_eq!([true, false].map(|good| exit_code(&results, good)), [exit::GUEST; 2]);
    }

    #[test]
    fn a_symbol_that_only_the_base_lacks_is_of_a_patch() {
        let lacks = |symbols: &str| Some(symbols.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(in_no_kernel([lacks("PATCH TYPO"), lacks("TYPO")]), ["TYPO"]);
        assert_eq!(in_no_kernel([lacks("PATCH"), lacks("")]), [""; 0]);
        assert_eq!(in_no_kernel([None, lacks("TYPO")]), ["TYPO"]);
    }

    #[test]
    fn a_commit_that_cannot_be_tested_is_skipped_in_a_bisection() {
        assert_eq!([0, 1, 2, 3, 4].map(|code| bisect_code(Ok(code))), [0, 1, 125, 125, 125]);
        assert_eq!(bisect_code(Err(anyhow::anyhow!("it does not build"))), 125);
        // From 128 on, git stops.
        assert_eq!(bisect_code(Err(WrongUsage("so it is with every commit".into()).into())), 128);
    }
}
