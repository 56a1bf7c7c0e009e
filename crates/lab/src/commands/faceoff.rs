// SPDX-License-Identifier: GPL-2.0-only
//! `lab faceoff`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use crate::WrongUsage;
use crate::ab::table;
use crate::arch::Arch;
use crate::context::Context;
use crate::faceoff::{self, Options, plots, replay, terminal};

use super::exit;

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
  lab faceoff --continue                  the rest of an interrupted face-off
  lab faceoff --replay FILE               what memreap's governor decides in recorded runs")]
pub struct FaceoffArgs {
    #[command(flatten)]
    pub options: Options,
    /// Also write the plots as SVG files
    #[arg(long, value_name = "FOLDER")]
    pub svg: Option<PathBuf>,
    /// Print faceoff.json, or what --replay finds, as JSON on stdout instead of the tables
    #[arg(long)]
    pub json: bool,
    /// Run nothing: say of the runs in these faceoff.jsonl, or faceoff.jsonl.gz, when memreap's governor would have
    /// killed. Finding: where nobody had to die
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "contestants")]
    pub replay: Vec<PathBuf>,
    /// Try other values of each number of the governor in these runs and in simulated machines; takes minutes
    #[arg(long, requires = "replay")]
    pub ablate: bool,
}

/// Runs the face-off, and returns the exit code.
pub fn run(ctx: &Context, args: &FaceoffArgs) -> Result<u8> {
    if !args.replay.is_empty() {
        return replay(ctx, args);
    }
    let wrong = || WrongUsage(format!("the face-off's guest is x86-64, and cannot be {}", ctx.arch));
    ensure!(ctx.arch == Arch::X86_64, wrong());
    let result = faceoff::run(ctx, &args.options)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&result.summary)?);
    } else {
        print!("{}", terminal::render(&result.summary, table::stdout_style().1));
    }
    if let Some(folder) = &args.svg {
        for file in plots::write_svgs(&result.summary, &result.runs, folder)? {
            ctx.progress.note(&format!("plot: {}", file.display()));
        }
    }
    ctx.progress.note(&format!("report: {}", ctx.out.join("faceoff.html").display()));
    let failed: usize = result.summary.entries.iter().map(|entry| entry.failures.len()).sum();
    if failed > 0 {
        eprintln!("lab: {failed} of the runs failed");
        return Ok(exit::GUEST);
    }
    let finding = result.summary.finding();
    if let Some(finding) = &finding {
        eprintln!("lab: {finding}");
    }
    Ok(exit::finding_unless(finding.is_none()))
}

fn replay(ctx: &Context, args: &FaceoffArgs) -> Result<u8> {
    let runs = replay::read(&args.replay)?;
    let colour = table::stdout_style().1;
    if args.ablate {
        let step = ctx.progress.step("trying other numbers");
        let rows = replay::ablate(&runs, |name| step.detail(name));
        step.done(&format!("{} values, {} runs", rows.len(), runs.len()));
        match args.json {
            true => println!("{}", serde_json::to_string_pretty(&rows)?),
            false => print!("{}", replay::ablation(&rows, colour)),
        }
        return Ok(0);
    }
    let replays = replay::all(&runs);
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&replays)?),
        false => print!("{}", replay::table(&replays, colour)),
    }
    Ok(exit::finding_unless(!replays.iter().any(|replay| replay.fits && replay.kill.is_some())))
}
