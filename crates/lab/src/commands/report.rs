// SPDX-License-Identifier: GPL-2.0-only
//! `lab report`.

use fs_err as fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::ab::results::Results;
use crate::ab::{junit, report, table};
use crate::context::Context;
use crate::faceoff::{self, summary::Summary};
use crate::{WrongUsage, documents, host};

/// Show the results of earlier comparisons
///
/// Reads the results.json of `lab ab` or the faceoff.json of `lab faceoff`, for example from docs/results/.
#[derive(Args)]
#[command(after_help = "Examples:
  lab report docs/results/reap.json
  lab report docs/results/*.json --html /tmp/pages
  lab report target/lab/results.json --markdown
  lab report --documents                  fill the generated tables of the documents")]
pub struct ReportArgs {
    /// The files
    #[arg(value_name = "FILE", required_unless_present = "documents")]
    pub files: Vec<PathBuf>,
    /// Write an HTML page per file to this folder instead of tables to stdout
    #[arg(long, value_name = "FOLDER")]
    pub html: Option<PathBuf>,
    /// Print `lab ab`'s results in Markdown, as one pastes them under a patch
    #[arg(long, conflicts_with = "html")]
    pub markdown: bool,
    /// Print `lab ab`'s results as a JUnit report: a metric that got worse is a failure
    #[arg(long, conflicts_with_all = ["html", "markdown"])]
    pub junit: bool,
    /// Update the tables of the documents from docs/results/
    #[arg(long, conflicts_with_all = ["files", "html", "markdown", "junit"])]
    pub documents: bool,
}

/// Shows the files, or fills the documents, and returns the exit code.
pub fn run(ctx: &Context, args: &ReportArgs) -> Result<u8> {
    if args.documents {
        for document in documents::outdated(&ctx.repo)? {
            host::write_atomically(&document.path, &document.text)?;
            println!("{}", document.path.display());
        }
        return Ok(0);
    }
    for (i, file) in args.files.iter().enumerate() {
        let shown = shown(file, args)?;
        match &args.html {
            Some(folder) => {
                let name = Path::new(file.file_name().unwrap_or(file.as_os_str())).with_extension("html");
                let page = folder.join(name);
                host::write_atomically(&page, &shown)?;
                println!("{}", page.display());
            }
            None => {
                let gap = if i == 0 { "" } else { "\n" };
                let title = if args.files.len() > 1 { format!("{gap}{}:\n", file.display()) } else { String::new() };
                print!("{title}{shown}");
            }
        }
    }
    Ok(0)
}

/// Returns a file as the arguments want it shown.
fn shown(path: &Path, args: &ReportArgs) -> Result<String> {
    let text = fs::read_to_string(path)?;
    let value: Value = serde_json::from_str(&text).with_context(|| format!("{}: not JSON", path.display()))?;
    let (width, colour) = table::stdout_style();
    let form = (args.html.is_some(), args.markdown, args.junit);
    if value.get("entries").is_some() {
        let summary: Summary = serde_json::from_value(value).with_context(|| path.display().to_string())?;
        return Ok(match form {
            (true, ..) => faceoff::page::html(&summary, &[]),
            (_, true, _) => faceoff::tables::markdown(&summary),
            (.., true) => bail!(WrongUsage("--junit is for the results of lab ab".into())),
            _ => faceoff::terminal::render(&summary, colour),
        });
    }
    let results = Results::parse(path, &text)?;
    Ok(match form {
        (true, ..) => report::html(&results),
        (_, true, _) => table::markdown(&results),
        (.., true) => junit::render(&results),
        _ => table::render(&results, width, colour),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_and_face_offs_are_told_apart() {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let shown = |file: &str, markdown, junit| {
            let args = ReportArgs { files: Vec::new(), html: None, markdown, junit, documents: false };
            shown(&repo.join(file), &args)
        };
        assert!(shown("docs/results/reap.json", false, true).unwrap().starts_with("<?xml"));
        assert!(shown("docs/results/faceoff/faceoff.json", true, false).unwrap().starts_with("| load |"));
        let refused = shown("docs/results/faceoff/faceoff.json", false, true).unwrap_err();
        assert!(refused.is::<WrongUsage>(), "{refused}");
        assert!(shown("Cargo.toml", false, false).unwrap_err().to_string().ends_with("Cargo.toml: not JSON"));
    }
}
