// SPDX-License-Identifier: GPL-2.0-only
//! What a user can type, what each command does, and the exit codes.

mod ab;
mod arms;
mod boot;
mod clean_cache;
mod exit;
mod faceoff;
mod report;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::arch::Arch;
use crate::checks::kunit::{self, KunitOptions};
use crate::checks::selftests::{self, SelftestOptions};
use crate::checks::soak::{self, SoakOptions};
use crate::checks::stress::{self, StressOptions, Verdict};
use crate::checks::suite::{self, SuiteOptions};
use crate::context::Context;
use crate::kernel::deb::{self, DebOptions};
use crate::kernel::patches::{self, PatchesOptions};
use crate::kernel::{self, Tree, Variant, lint, source, topics};
use crate::progress::Progress;
use crate::{debian, doctor, host};

use exit::{error_code, finding_unless};

const EXIT_CODES_HELP: &str = "\
Exit codes: 0 ok; 1 a finding (a metric got worse, an expectation was missed, a test failed);
2 wrong usage; 3 a problem of the host (QEMU missing, apt impossible, a build that failed);
4 a guest that failed (panic, splat, hang, no result, garbage), also if the boot was repeated
successfully; 130 interrupted.

Caches are in $MEMREAP_CACHE, else $XDG_CACHE_HOME/memreap, else ~/.cache/memreap.";

/// Builds stock and changed Linux kernels, boots both in QEMU and determines which is better.
#[derive(Parser)]
#[command(name = "lab", version, after_help = EXIT_CODES_HELP, propagate_version = true)]
struct Cli {
    /// Which series of kernels: 6.12 or 7.3 [default: that of --kernel, else 6.12]
    #[arg(long, global = true, value_name = "SERIES")]
    series: Option<String>,
    /// Which kernel of the series, for example 6.12.107, or a folder or tarball with its source [default: the newest
    /// that apt offers]
    #[arg(long, global = true, value_name = "VERSION|PATH")]
    kernel: Option<String>,
    /// The architecture of kernels and guests; another than the host's is cross-compiled and emulated
    #[arg(long, global = true, value_enum, default_value_t = Arch::of_host())]
    arch: Arch,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Ab(ab::AbArgs),
    Faceoff(faceoff::FaceoffArgs),
    Report(report::ReportArgs),
    Boot(boot::BootArgs),
    /// Build kernels, unless the cache has them, and print the paths of the bzImages
    Build {
        /// A tree: stock, memreap or a control kernel; repeatable [default: all]
        #[arg(long, value_name = "TREE")]
        arm: Vec<Tree>,
        /// The configuration
        #[arg(long, value_enum, default_value_t = Variant::Slim)]
        variant: Variant,
    },
    KernelDeb(DebOptions),
    Kunit(KunitOptions),
    Selftests(SelftestOptions),
    Soak(SoakOptions),
    Stress(StressOptions),
    #[command(alias = "series")]
    Patches(PatchesOptions),
    /// Check the topics' code: checkpatch, sparse, W=1
    Static {
        /// Also compile it in rare configurations (SMP=n, MMU=n, SWAP=n, ...)
        #[arg(long)]
        configs: bool,
    },
    /// List the topics, in order
    Topics {
        /// Apply them to the oldest and the newest kernel of the series that apt offers
        #[arg(long)]
        check_all: bool,
    },
    Test(SuiteOptions),
    /// Check what the lab needs of this host and say how to get what is missing
    Doctor {
        /// Print the findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Install the Debian packages that the lab needs
    HostSetup,
    /// Remove all caches: sources, trees, builds, compiler cache
    CleanCache,
}

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    host::allow_many_files();
    let code = host::exit_cleanly_on_interrupt().and_then(|()| run(Cli::parse()));
    ExitCode::from(code.unwrap_or_else(|e| {
        eprintln!("lab: {e:#}");
        error_code(&e)
    }))
}

fn run(cli: Cli) -> Result<u8> {
    let mut ctx = Context::discover(Progress::on_stderr())?;
    let folder = || std::env::var("MEMREAP_KERNEL").ok().filter(|kernel| kernel.contains('/'));
    let kernel = match cli.kernel.or_else(folder) {
        Some(path) if Path::new(&path).exists() => Some(source::import(&ctx, &std::path::absolute(&path)?)?.full),
        version => version,
    };
    ctx = ctx.with_kernel(cli.series.as_deref(), kernel)?;
    ctx.arch = cli.arch;
    match cli.command {
        Command::Ab(args) => ab::run(&ctx, args),
        Command::Faceoff(args) => faceoff::run(&ctx, &args),
        Command::Report(args) => report::run(&ctx, &args),
        Command::Boot(args) => boot::run(&ctx, args),
        Command::Build { arm, variant } => {
            let trees = if arm.is_empty() { Tree::of_series(&ctx).collect() } else { arm };
            for tree in trees {
                println!("{}", kernel::build(&ctx, tree, variant)?.bzimage.display());
            }
            Ok(0)
        }
        Command::KernelDeb(options) => {
            deb::packages(&ctx, &options)?.iter().for_each(|package| println!("{}", package.display()));
            Ok(0)
        }
        Command::Kunit(options) => Ok(finding_unless(kunit::run(&ctx, &options)?)),
        Command::Selftests(options) => Ok(finding_unless(selftests::run(&ctx, &options)?)),
        Command::Soak(options) => Ok(finding_unless(soak::run(&ctx, &options)?)),
        Command::Stress(options) => Ok(match stress::run(&ctx, &options)? {
            Verdict::Ok => 0,
            Verdict::Finding => exit::FINDING,
            Verdict::Guest => exit::GUEST,
        }),
        Command::Patches(options) => patches::run(&ctx, &options).map(|()| 0),
        Command::Static { configs } => Ok(finding_unless(lint::run(&ctx, configs)?)),
        Command::Topics { check_all } => topics::run(&ctx, check_all).map(|()| 0),
        Command::Test(options) => Ok(finding_unless(suite::run(&ctx, &options)?)),
        Command::Doctor { json } => Ok(if doctor::run(&ctx, json)? { 0 } else { exit::HOST }),
        Command::HostSetup => {
            let needed = [
                host::KERNEL_BUILD_PACKAGES,
                host::SOURCE_PACKAGES,
                host::cross_packages(ctx.arch),
                host::guest_packages(ctx.arch),
                host::SERIES_PACKAGES,
                debian::PACKAGES,
            ];
            host::ensure_packages(&ctx, &needed.concat())?;
            Ok(0)
        }
        Command::CleanCache => clean_cache::run(&ctx),
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
}
