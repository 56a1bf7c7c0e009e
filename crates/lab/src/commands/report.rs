// SPDX-License-Identifier: GPL-2.0-only
//! `lab report`.

use fs_err as fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::ab::results::Results;
use crate::ab::table;
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
        let text = fs::read_to_string(file)?;
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
                let title = if args.files.len() > 1 { format!("{gap}{}:\n", file.display()) } else { String::new() };
                let text = match (args.markdown, args.junit) {
                    (true, _) => shown.markdown(),
                    (_, true) => shown.junit()?,
                    _ => shown.text(),
                };
                print!("{title}{text}");
            }
        }
    }
    Ok(0)
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
            Self::Comparison(results) => crate::ab::report::html(results),
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
            Self::Comparison(results) => Ok(crate::ab::junit::render(results)),
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
