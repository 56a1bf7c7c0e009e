// SPDX-License-Identifier: GPL-2.0-only
//! What a user can type, what each command does, and the exit codes.

mod ab;
mod arms;
mod boot;
mod build;
mod clean_cache;
mod doctor;
mod exit;
mod faceoff;
mod history;
mod merge;
mod patches;
mod report;
mod static_checks;
mod stress;
mod test;
mod topics;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::arch::Arch;
use crate::checks::kunit::{self, KunitOptions};
use crate::checks::selftests::{self, SelftestOptions};
use crate::checks::soak::{self, SoakOptions};
use crate::context::Context;
use crate::kernel::deb::{self, DebOptions};
use crate::kernel::source;
use crate::progress::Progress;
use crate::{debian, host};

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
    Merge(merge::MergeArgs),
    History(history::HistoryArgs),
    Faceoff(faceoff::FaceoffArgs),
    Report(report::ReportArgs),
    Boot(boot::BootArgs),
    Build(build::BuildArgs),
    KernelDeb(DebOptions),
    Kunit(KunitOptions),
    Selftests(SelftestOptions),
    Soak(SoakOptions),
    Stress(stress::StressArgs),
    #[command(alias = "series")]
    Patches(patches::PatchesArgs),
    Static(static_checks::StaticArgs),
    Topics(topics::TopicsArgs),
    Test(test::TestArgs),
    Doctor(doctor::DoctorArgs),
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
    let mut ctx = Context::discover(Progress::new())?;
    let folder = || std::env::var("MEMREAP_KERNEL").ok().filter(|kernel| kernel.contains('/'));
    let kernel = match cli.kernel.or_else(folder) {
        Some(path) if Path::new(&path).exists() => Some(source::import(&ctx, &std::path::absolute(&path)?)?.full),
        version => version,
    };
    ctx = ctx.with_kernel(cli.series.as_deref(), kernel)?;
    ctx.arch = cli.arch;
    match cli.command {
        Command::Ab(args) => ab::run(&ctx, args),
        Command::Merge(args) => merge::run(&ctx, args),
        Command::History(args) => history::run(&ctx, &args),
        Command::Faceoff(args) => faceoff::run(&ctx, &args),
        Command::Report(args) => report::run(&ctx, &args),
        Command::Boot(args) => boot::run(&ctx, args),
        Command::Build(args) => build::run(&ctx, &args),
        Command::KernelDeb(options) => {
            deb::packages(&ctx, &options)?.iter().for_each(|package| println!("{}", package.display()));
            Ok(0)
        }
        Command::Kunit(options) => Ok(finding_unless(kunit::run(&ctx, &options)?)),
        Command::Selftests(options) => Ok(finding_unless(selftests::run(&ctx, &options)?)),
        Command::Soak(options) => Ok(finding_unless(soak::run(&ctx, &options)?)),
        Command::Stress(args) => stress::run(&ctx, &args),
        Command::Patches(args) => patches::run(&ctx, &args),
        Command::Static(args) => static_checks::run(&ctx, &args),
        Command::Topics(args) => topics::run(&ctx, &args),
        Command::Test(args) => test::run(&ctx, &args),
        Command::Doctor(args) => doctor::run(&ctx, &args),
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
