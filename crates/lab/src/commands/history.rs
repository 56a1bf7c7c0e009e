// SPDX-License-Identifier: GPL-2.0-only
//! `lab history`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::WrongUsage;
use crate::ab::history;
use crate::context::Context;

use super::exit;

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
pub struct HistoryArgs {
    /// Histories or results.json, oldest first [default: target/lab/history.jsonl]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Only this metric
    #[arg(long, value_name = "NAME")]
    pub metric: Option<String>,
    /// Print the series as JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints the series, and returns the exit code.
pub fn run(ctx: &Context, args: &HistoryArgs) -> Result<u8> {
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
    Ok(exit::finding_unless(!history::has_got_worse(&all)))
}
