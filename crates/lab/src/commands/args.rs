// SPDX-License-Identifier: GPL-2.0-only
//! The command line: subcommands, options and their help.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};

use lab::ab::catalog::{self, ControlKernel};
use lab::ab::results::Shard;
use lab::ab::stats::MAX_PAIRS;
use lab::arch::Arch;
use lab::checks::suite::Tier;
use lab::kernel::user::Sources;
use lab::kernel::{Tree, Variant};
use lab::vm::job::{Arm, Mode};
use lab::vm::root::RootSource;

const EXIT_CODES_HELP: &str = "\
Exit codes: 0 ok; 1 a finding (a metric got worse, an expectation was missed, a test failed);
2 wrong usage; 3 a problem of the host (QEMU missing, apt impossible, a build that failed);
4 a guest that failed (panic, splat, hang, no result, garbage), also if the boot was repeated
successfully; 130 interrupted.

Caches are in $MEMREAP_CACHE, else $XDG_CACHE_HOME/memreap, else ~/.cache/memreap.";

/// Builds stock and changed Linux kernels, boots both in QEMU and determines which is better.
#[derive(Parser)]
#[command(name = "lab", version, after_help = EXIT_CODES_HELP, propagate_version = true)]
pub(super) struct Cli {
    /// Which 6.12.N to use, for example 6.12.107 [default: the newest that apt offers]
    #[arg(long, global = true, value_name = "6.12.N")]
    pub(super) kernel: Option<String>,
    /// The architecture of kernels and guests; another than the host's is cross-compiled and emulated
    #[arg(long, global = true, value_enum, default_value_t = Arch::of_host())]
    pub(super) arch: Arch,
    #[command(subcommand)]
    pub(super) command: Sub,
}

#[derive(Subcommand)]
pub(super) enum Sub {
    Ab(AbArgs),
    Merge(MergeArgs),
    History(HistoryArgs),
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
pub(super) struct AbArgs {
    /// Scenarios [default: all]
    pub(super) scenarios: Vec<String>,
    /// Pairs of boots, up to 20; verdicts need at least six
    #[arg(long, default_value_t = 8, value_parser = pairs)]
    pub(super) pairs: usize,
    /// The seed by which the order of the boots is drawn from balanced ones
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Boot only the K-th of N parts of the pairs, for several machines; `lab merge` puts them together
    #[arg(long, value_name = "K/N", conflicts_with_all = ["smoke", "expect", "bisect"])]
    pub(super) shard: Option<Shard>,
    /// Print results.json on stdout instead of the table
    #[arg(long)]
    pub(super) json: bool,
    /// Print the tables of all metrics and expectations instead of a sentence per scenario; always so with --workload,
    /// and with --case where it leaves out what the sentence says
    #[arg(long, conflicts_with = "json")]
    pub(super) verbose: bool,
    /// Leave out the A/A control (a second boot of the base arm in each pair)
    #[arg(long)]
    pub(super) no_aa: bool,
    /// The arms, base first; give none or two. KERNEL is a bzImage, a source folder, FOLDER@COMMIT of a git
    /// repository, either with +PATCH..., or debian+PATCH... [default: stock and memreap, and the control
    /// kernels of the scenarios]
    #[arg(long = "arm", value_name = ARM_VALUE_NAME)]
    pub(super) arms: Vec<ArmSpec>,
    /// A fragment of a kernel configuration, over that of --variant, for arms built from your sources
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Kernel parameters for the stock arm
    #[arg(long, value_name = "PARAMETERS", default_value = "", allow_hyphen_values = true)]
    pub(super) cmdline_stock: String,
    /// Kernel parameters for the memreap arm
    #[arg(long, value_name = "PARAMETERS", default_value = "", allow_hyphen_values = true)]
    pub(super) cmdline_memreap: String,
    /// The kernels' configuration [default: slim, with --root faceoff]
    #[arg(long, value_enum)]
    pub(super) variant: Option<Variant>,
    /// Check the expectations in kernel/<scenario>/expect.toml; with --smoke those that one pair can
    /// show
    #[arg(long)]
    pub(super) expect: bool,
    /// Check the expectations in a file of your own; crates/lab/src/ab/expect/mod.rs says what it may have
    #[arg(long, value_name = "FILE", conflicts_with_all = ["expect", "shard"])]
    pub(super) expectations: Option<PathBuf>,
    /// Run only this case of a scenario, for example 100-vmas
    #[arg(long, value_name = "NAME")]
    pub(super) case: Option<String>,
    /// Boot only this guest of the scenarios, by its name in the table, for example icount or icount-64;
    /// with --expect, what others must show is left out
    #[arg(long, value_name = "NAME")]
    pub(super) guest: Option<String>,
    /// A program of yours instead of the scenarios: it runs in the guest and prints its metrics, a line each,
    /// `NAME VALUE UNIT lower|higher`, or as JSON (metric, value, unit, better)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenarios", "case", "guest", "expect"])]
    pub(super) workload: Option<PathBuf>,
    /// Exit with what `git bisect run` expects: 0 nothing got worse, 1 something did, 125 not tested, 128 wrong usage
    #[arg(long, requires = "workload", conflicts_with = "smoke")]
    pub(super) bisect: bool,
    /// An argument for the workload (repeatable)
    #[arg(long = "arg", value_name = "ARGUMENT", requires = "workload", allow_hyphen_values = true)]
    pub(super) arguments: Vec<String>,
    /// Copy a file or folder of the workload's to the guest (repeatable)
    #[arg(long, value_name = "HOST:GUEST", requires = "workload")]
    pub(super) copy: Vec<CopySpec>,
    /// The root file system of the guest, where the workload finds its programs: a small Debian with these
    /// packages, a folder, or an ext4 image [default: busybox]
    #[arg(long, value_name = ROOT_VALUE_NAME, requires = "workload")]
    pub(super) root: Option<RootSource>,
    /// Number of CPUs for the workload
    #[arg(long, default_value_t = 2, requires = "workload")]
    pub(super) cpus: u32,
    /// Memory for the workload in MiB
    #[arg(long, default_value_t = 1024, requires = "workload")]
    pub(super) mem: u32,
    /// How guest time passes for the workload
    #[arg(long, value_enum, default_value_t = Mode::Multi, requires = "workload")]
    pub(super) mode: Mode,
    /// Time limit of the workload in seconds; a guest that takes longer counts as hung
    #[arg(long, default_value_t = 180, requires = "workload")]
    pub(super) timeout: u64,
    /// How likely it may be that any "better" or "worse" is false, over all metrics, as a fraction
    #[arg(long, default_value_t = 0.05)]
    pub(super) alpha: f64,
    /// The smallest effect that counts, as a fraction
    #[arg(long, default_value_t = 0.03)]
    pub(super) min_effect: f64,
    /// Only check that everything runs: one pair, no A/A control, no verdicts
    #[arg(long)]
    pub(super) smoke: bool,
    /// Continue an earlier comparison: reuse its boots that had the same kernel, guest and QEMU
    #[arg(long = "continue")]
    pub(super) resume: bool,
}

/// Put the shards of a comparison together
///
/// Writes results.json and report.html as `lab ab` does.
#[derive(Args)]
#[command(after_help = "Example, on two machines and then on one of them:
  lab ab reap --shard 1/2
  lab ab reap --shard 2/2
  lab merge one/results.json two/results.json")]
pub(super) struct MergeArgs {
    /// The results.json of each shard
    #[arg(value_name = "FILE", required = true)]
    pub(super) files: Vec<PathBuf>,
    /// Print results.json on stdout instead of the table
    #[arg(long)]
    pub(super) json: bool,
}

/// Show how metrics developed over several comparisons, and where they changed
///
/// `lab ab` appends each complete comparison to target/lab/history.jsonl. Those with the same base kernel are one
/// series, in which an entry is a change when its 95 % interval and that of the last change are apart. Finding (exit
/// code 1): the last entry of a series is a change for the worse.
#[derive(Args)]
#[command(after_help = "Examples:
  lab history                             all metrics
  lab history --metric fault              one
  lab history monday.json tuesday.json    results of other machines")]
pub(super) struct HistoryArgs {
    /// Histories or results.json, oldest first [default: target/lab/history.jsonl]
    #[arg(value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// Only this metric
    #[arg(long, value_name = "NAME")]
    pub(super) metric: Option<String>,
    /// Print the series as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Compare low-memory killers in a Debian guest, under the same loads
///
/// Writes target/lab/faceoff.jsonl after every run, faceoff.json and faceoff.html after every round.
/// Each contestant is a folder in faceoff/contestants, each load a file in faceoff/loads; the machines
/// are in faceoff/machines.toml. Finding (exit code 1): a wrong victim or a needless kill of memreap, or
/// that another contestant is better over all loads.
#[derive(Args)]
#[command(after_help = "Examples:
  lab faceoff                             all contestants and loads; takes many hours
  lab faceoff earlyoom memreap --load hog@desktop --load peak --runs 3
  lab faceoff --continue                  the rest of an interrupted face-off")]
pub(super) struct FaceoffArgs {
    /// Contestants [default: all]
    pub(super) contestants: Vec<String>,
    /// Only this load, on all its machines or on one; "@MACHINE" is all loads there (repeatable) [default:
    /// all]
    #[arg(long = "load", value_name = "LOAD[@MACHINE]")]
    pub(super) loads: Vec<String>,
    /// Run everybody once more with vm.watermark_scale_factor=100, which memreap's package sets
    #[arg(long)]
    pub(super) watermark: bool,
    /// Rounds; each runs every contestant once under every load
    #[arg(long, default_value_t = 5)]
    pub(super) runs: usize,
    /// The seed of the first round's loads; it is incremented in every round
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// The time limit of a load; a slow leak needs 40 s to fill the memory
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(super) limit: u64,
    /// Keep the logs of all runs, not only of those that failed
    #[arg(long)]
    pub(super) keep: bool,
    /// Continue an earlier face-off
    #[arg(long = "continue")]
    pub(super) resume: bool,
    /// Also write the plots as SVG files
    #[arg(long, value_name = "FOLDER")]
    pub(super) svg: Option<PathBuf>,
    /// Print faceoff.json on stdout instead of the tables
    #[arg(long)]
    pub(super) json: bool,
}

/// Show the results of earlier comparisons
///
/// Reads the results.json of `lab ab` or the faceoff.json of `lab faceoff`, for example from docs/results/.
#[derive(Args)]
#[command(after_help = "Examples:
  lab report docs/results/reap.json
  lab report docs/results/*.json --html /tmp/pages
  lab report target/lab/results.json --markdown
  lab report --documents                  fill the tables of README.md and docs/results.md")]
pub(super) struct ReportArgs {
    /// The files
    #[arg(value_name = "FILE", required_unless_present = "documents")]
    pub(super) files: Vec<PathBuf>,
    /// Write an HTML page per file to this folder instead of tables to stdout
    #[arg(long, value_name = "FOLDER")]
    pub(super) html: Option<PathBuf>,
    /// Print `lab ab`'s results in Markdown, as one pastes them under a patch
    #[arg(long, conflicts_with = "html")]
    pub(super) markdown: bool,
    /// Print `lab ab`'s results as a JUnit report: a metric that got worse is a failure
    #[arg(long, conflicts_with_all = ["html", "markdown"])]
    pub(super) junit: bool,
    /// Update the tables of README.md and docs/results.md from docs/results/
    #[arg(long, conflicts_with_all = ["files", "html", "markdown", "junit"])]
    pub(super) documents: bool,
}

/// Boot one guest with a shell or a command
///
/// Exit code: the command's own (128+n after signal n) when the guest was healthy; 3 when QEMU
/// failed; 120 panic, 121 splat, 122 hang, 123 no result, 124 garbage.
#[derive(Args)]
#[command(after_help = "Examples:
  lab boot                                     a shell in the changed kernel
  lab boot --arm stock -- uname -r
  lab boot --variant debug --copy ./prog:/prog -- /prog --flag
  lab boot --root debian:stress-ng -- stress-ng --vm 2 --timeout 10")]
pub(super) struct BootArgs {
    /// The kernel
    #[arg(long, value_name = ARM_VALUE_NAME, default_value = "memreap")]
    pub(super) arm: ArmSpec,
    /// The kernel's configuration [default: slim, with --root faceoff]
    #[arg(long, value_enum)]
    pub(super) variant: Option<Variant>,
    /// The root file system: a small Debian with these packages, a folder, or an ext4 image [default: busybox]
    #[arg(long, value_name = ROOT_VALUE_NAME)]
    pub(super) root: Option<RootSource>,
    /// Number of CPUs
    #[arg(long, default_value_t = 2)]
    pub(super) cpus: u32,
    /// Memory in MiB
    #[arg(long, default_value_t = 1024)]
    pub(super) mem: u32,
    /// How guest time passes
    #[arg(long, value_enum, default_value_t = Mode::Multi)]
    pub(super) mode: Mode,
    /// Time limit of a command in seconds; a guest that takes longer counts as hung
    #[arg(long, default_value_t = 180)]
    pub(super) timeout: u64,
    /// Additional kernel parameters
    #[arg(long, value_name = "PARAMETERS", default_value = "", allow_hyphen_values = true)]
    pub(super) cmdline: String,
    /// Copy a file or folder to the guest (repeatable)
    #[arg(long, value_name = "HOST:GUEST")]
    pub(super) copy: Vec<CopySpec>,
    /// The command and its arguments [default: a shell]
    #[arg(last = true, value_name = "CMD")]
    pub(super) command: Vec<String>,
}

/// Build kernels, unless the cache has them, and print the paths of the bzImages
#[derive(Args)]
pub(super) struct BuildArgs {
    /// The tree: stock, memreap or a control kernel [default: all]
    #[arg(long, value_name = "TREE")]
    pub(super) arm: Option<Tree>,
    /// The configuration
    #[arg(long, value_enum, default_value_t = Variant::Slim)]
    pub(super) variant: Variant,
}

/// Run the topics' KUnit tests in the changed kernel
#[derive(Args)]
pub(super) struct KunitArgs {
    /// Only suites (or suite.case) matching this glob
    pub(super) filter: Option<String>,
    /// The kernel's configuration
    #[arg(long, value_enum, default_value_t = Variant::Debug)]
    pub(super) variant: Variant,
    /// Print the results as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Skip the run if it passed before with the same kernel, guest and QEMU
    #[arg(long, conflicts_with = "json")]
    pub(super) remembered: bool,
}

/// Run selftests in the changed kernel: our own, and the kernel's compared with stock
#[derive(Args)]
#[command(after_help = "Examples:
  lab selftests                           our own
  lab selftests ours mm/mrelease_test     our own and one of the kernel's
  lab selftests cgroup                    all of tools/testing/selftests/cgroup")]
pub(super) struct SelftestArgs {
    /// "ours", or names under tools/testing/selftests [default: ours]
    pub(super) names: Vec<String>,
    /// The kernels' configuration
    #[arg(long, value_enum, default_value_t = Variant::Slim)]
    pub(super) variant: Variant,
    /// Duration of each of our stress tests in seconds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(..=120))]
    pub(super) stress_seconds: u64,
    /// Also look for memory leaks in the kernel (kmemleak), which takes longer; debug only
    #[arg(long)]
    pub(super) leaks: bool,
    /// Print the results as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Skip programs that passed before with the same content, kernel, guest and QEMU
    #[arg(long)]
    pub(super) remembered: bool,
}

/// Stress the changed kernel: kill storms, fork races, memory pressure
#[derive(Args)]
pub(super) struct SoakArgs {
    /// Duration in minutes
    #[arg(long, default_value_t = 10)]
    pub(super) minutes: u64,
    /// The kernel's configuration
    #[arg(long, value_enum, default_value_t = Variant::Debug)]
    pub(super) variant: Variant,
    /// Random seed, to repeat an earlier soak [default: from the clock]
    #[arg(long)]
    pub(super) seed: Option<u64>,
}

/// Run stress-ng in guests, with the stock and the changed kernel
///
/// Each class of stressors gets a guest per kernel. Finding (exit code 1): a failure that stock does not
/// have, or a class that did nothing.
#[derive(Args)]
#[command(after_help = "Examples:
  lab stress                              all classes in both debug kernels
  lab stress oom swap --seconds 300       two classes, longer
  lab stress --variant slim --seconds 10  a quick run")]
pub(super) struct StressArgs {
    /// Classes [default: all]
    pub(super) classes: Vec<String>,
    /// The kernels' configuration
    #[arg(long, value_enum, default_value_t = Variant::Debug)]
    pub(super) variant: Variant,
    /// Duration per class and kernel in seconds
    #[arg(long, default_value_t = 60)]
    pub(super) seconds: u64,
    /// Print the results as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Only list the classes
    #[arg(long)]
    pub(super) list: bool,
}

/// Export the topics as patches for git am
#[derive(Args)]
pub(super) struct SeriesArgs {
    /// The folder for the patches
    #[arg(long, value_name = "FOLDER", default_value = "series")]
    pub(super) out: PathBuf,
    /// Apply the patches with git am and build a kernel after each
    #[arg(long)]
    pub(super) check: bool,
}

/// Check the topics' code: checkpatch, sparse, W=1
#[derive(Args)]
pub(super) struct StaticArgs {
    /// Also compile it in rare configurations (SMP=n, MMU=n, SWAP=n, ...)
    #[arg(long)]
    pub(super) configs: bool,
}

/// List the topics, in order
#[derive(Args)]
pub(super) struct TopicsArgs {
    /// Apply them to the oldest and the newest kernel that apt offers
    #[arg(long)]
    pub(super) check_all: bool,
}

/// Run the project's checks, by tier or by name
///
/// Checks that passed before with the same content are skipped, and the report says which. Passes are
/// remembered in the cache for 30 days.
#[derive(Args)]
#[command(after_help = "Examples:
  lab test                                what `make test` runs
  lab test --tier check                   for every edit; six minutes with warm caches
  lab test kunit selftests --fresh        two checks, even if they passed before")]
pub(super) struct TestArgs {
    /// Checks by name [default: all of the tier]
    pub(super) checks: Vec<String>,
    /// Which checks; `full` does not skip what passed before
    #[arg(long, value_enum, default_value_t = Tier::Test)]
    pub(super) tier: Tier,
    /// Do not skip what passed before
    #[arg(long)]
    pub(super) fresh: bool,
    /// Only list the checks
    #[arg(long)]
    pub(super) list: bool,
}

/// Check what the lab needs of this host and say how to get what is missing
#[derive(Args)]
pub(super) struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The form of `--root` in the help.
const ROOT_VALUE_NAME: &str = "debian[:PACKAGE,...]|FOLDER|IMAGE";
/// The form of `--arm` in the help.
const ARM_VALUE_NAME: &str = "stock|memreap|CONTROL|NAME=KERNEL[,PARAMETERS]";

/// The value of `--arm`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ArmSpec {
    /// A kernel that the lab builds.
    Built(Tree),
    /// A control kernel that is the changed kernel with parameters: name and parameters.
    WithParameters(&'static str, &'static str),
    /// A bzImage file.
    File(Arm),
    /// A kernel of the user's sources: name, sources and parameters.
    Sources(String, Sources, String),
}

impl FromStr for ArmSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, rest)) = text.split_once('=') else {
            let control = catalog::controls().into_iter().find(|control| control.name == text);
            if let Some(ControlKernel { name, parameters: Some(parameters) }) = control {
                return Ok(Self::WithParameters(name, parameters));
            }
            return text.parse().map(Self::Built).map_err(|e| format!("{e}; or give NAME=BZIMAGE"));
        };
        let (file, cmdline) = rest.split_once(',').unwrap_or((rest, ""));
        if name.is_empty() || file.is_empty() {
            return Err("expected NAME=KERNEL[,PARAMETERS]".to_owned());
        }
        if let Some(sources) = sources(file)? {
            return Ok(Self::Sources(name.to_owned(), sources, cmdline.to_owned()));
        }
        let bzimage = std::path::absolute(file).map_err(|e| format!("{file}: {e}"))?;
        if !bzimage.is_file() {
            return Err(format!("{file}: no such file"));
        }
        Ok(Self::File(Arm { name: name.to_owned(), bzimage, cmdline: cmdline.to_owned() }))
    }
}

/// Returns a line for each scenario.
fn scenarios() -> String {
    catalog::all().iter().map(|s| format!("  {:<18} {}\n", s.name, s.about)).collect::<Vec<_>>().concat()
}

/// Reads the number of pairs.
fn pairs(text: &str) -> Result<usize, String> {
    let read = text.parse().ok().filter(|pairs| (1..=MAX_PAIRS).contains(pairs));
    read.ok_or_else(|| format!("between 1 and {MAX_PAIRS} can be compared"))
}

/// Reads FOLDER[@COMMIT][+PATCH]... or debian+PATCH...; `None` for a file.
fn sources(text: &str) -> Result<Option<Sources>, String> {
    if Path::new(text).is_file() {
        return Ok(None);
    }
    if Path::new(text).is_dir() {
        return Ok(Some(Sources { folder: Some(text.into()), commit: None, patches: Vec::new() }));
    }
    let mut parts = text.split('+');
    let tree = parts.next().unwrap_or_default();
    let (folder, commit) = match tree.rsplit_once('@') {
        Some((folder, commit)) if !Path::new(tree).is_dir() => (folder, Some(commit.to_owned())),
        // With patches; or a folder with that name.
        _ => (tree, None),
    };
    let patches: Vec<PathBuf> = parts.map(PathBuf::from).collect();
    if let Some(missing) = patches.iter().find(|patch| !patch.is_file()) {
        return Err(format!("{}: no such patch", missing.display()));
    }
    let folder = match folder {
        "debian" if !Path::new(folder).is_dir() => None,
        folder if Path::new(folder).is_dir() => Some(folder.into()),
        folder => return Err(format!("{folder}: no such file or folder")),
    };
    Ok(Some(Sources { folder, commit, patches }))
}

/// The value of `--copy`: the path on the host and that in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CopySpec(pub(super) PathBuf, pub(super) String);

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

#[cfg(test)]
mod tests {
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
        assert_eq!(
            "memreap-batch".parse(),
            Ok(ArmSpec::WithParameters("memreap-batch", "memreap.swap_defer=0"))
        );
        assert!("memreap-nothing".parse::<ArmSpec>().unwrap_err().contains("no tree 'memreap-nothing'"));
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_path_buf();
        let spec = format!("mine={},a=b c,d", path.display());
        let arm = Arm { name: "mine".into(), bzimage: path, cmdline: "a=b c,d".into() };
        assert_eq!(spec.parse(), Ok(ArmSpec::File(arm)));
        assert!("mine=/no/such/file".parse::<ArmSpec>().unwrap_err().contains("no such file"));
        let folder = tempfile::tempdir().unwrap();
        let (tree, patch) = (folder.path().display(), path_of_patch(folder.path()));
        let parsed = |text: String| match text.parse().unwrap() {
            ArmSpec::Sources(name, sources, parameters) => (name, sources.to_string(), parameters),
            other => panic!("{other:?}"),
        };
        for sources in [
            format!("{tree}"),
            format!("{tree}@v6.12~3"),
            format!("{tree}@HEAD+{patch}"),
            format!("{tree}+{patch}+{patch}"),
            format!("debian+{patch}"),
        ] {
            let parts = ("mine".to_owned(), sources.clone(), "a=b,c".to_owned());
            assert_eq!(parsed(format!("mine={sources},a=b,c")), parts);
        }
        let missing = format!("mine={tree}+/no/such.patch").parse::<ArmSpec>().unwrap_err();
        assert_eq!(missing, "/no/such.patch: no such patch");
        for bad in ["mine", "=x", "mine="] {
            assert!(bad.parse::<ArmSpec>().is_err(), "{bad}");
        }
    }

    fn path_of_patch(folder: &Path) -> String {
        let path = folder.join("fix.patch");
        std::fs::write(&path, "").unwrap();
        path.display().to_string()
    }

    #[test]
    fn copies_are_read() {
        assert_eq!("/etc:/x/y".parse(), Ok(CopySpec("/etc".into(), "/x/y".into())));
        for bad in ["/etc", "/etc:relative", "/no/such:/x"] {
            assert!(bad.parse::<CopySpec>().is_err(), "{bad}");
        }
    }
}
