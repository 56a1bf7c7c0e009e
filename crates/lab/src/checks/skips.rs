// SPDX-License-Identifier: GPL-2.0-only
//! What our selftests may skip: `kernel/<topic>/skips.toml`. A program that skips for a reason that is not
//! listed fails, so that tests do not stop running unnoticed.
//!
//! ```toml
//! [[skip]]
//! program = "expedite"                                # one of this topic's selftests
//! reason = "no transparent huge pages in this kernel" # the reason as the program prints it
//! variants = ["slim", "kcsan"]                        # the kernels in which it is allowed
//! ```

use fs_err as fs;
use std::path::Path;

use anyhow::{Result, anyhow};
use serde::Deserialize;

use crate::checks::tap::Report;
use crate::format::line_of;
use crate::kernel::Variant;

/// The name of a list in the folder of a topic.
const FILE_NAME: &str = "skips.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    skip: Vec<Skip>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Skip {
    program: String,
    reason: String,
    variants: Vec<Variant>,
}

/// The lists of all topics.
pub struct Skips(Vec<Skip>);

impl Skips {
    /// Reads all lists of a checkout.
    ///
    /// # Errors
    /// When a list cannot be read or is invalid; names file and line.
    pub fn load(repo: &Path) -> Result<Self> {
        let mut all = Vec::new();
        let topics = repo.join("kernel");
        for entry in fs::read_dir(&topics)? {
            let path = entry?.path().join(FILE_NAME);
            if path.is_file() {
                let text = fs::read_to_string(&path)?;
                all.extend(parse(&text, &path)?);
            }
        }
        Ok(Self(all))
    }

    /// Returns a line for each case that the program skipped in this kernel although no list allows it.
    pub fn unlisted(&self, program: &str, variant: Variant, report: &Report) -> Vec<String> {
        let program = program.split(' ').next().unwrap_or(program);
        let listed = |reason: &str| {
            let allows = |s: &Skip| s.program == program && s.reason == reason && s.variants.contains(&variant);
            self.0.iter().any(allows)
        };
        let skips = report.skips.iter().filter(|(_, reason)| !listed(reason));
        skips
            .map(|(case, reason)| {
                let what = if case.is_empty() { "all of it" } else { case };
                format!("{what}: skipped, which no {FILE_NAME} allows: {reason}")
            })
            .collect()
    }
}

fn parse(text: &str, path: &Path) -> Result<Vec<Skip>> {
    toml::from_str(text).map(|list: List| list.skip).map_err(|e| {
        let line = line_of(text, &e.span().unwrap_or_default());
        anyhow!("{}:{line}: {}", path.display(), e.message())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::channel::Outcome;

    const LIST: &str = r#"
        [[skip]]
        program = "expedite"
        reason = "no huge pages"
        variants = ["slim"]
    "#;

    fn unlisted(program: &str, variant: Variant, text: &str) -> Vec<String> {
        let skips = Skips(parse(LIST, Path::new("x")).unwrap());
        skips.unlisted(program, variant, &Report::new(&Outcome::Exit(0), text, true, String::new))
    }

    #[test]
    fn only_what_is_listed_may_be_skipped() {
        let text = "TAP version 13\n1..2\nok 1 one\nok 2 two # SKIP no huge pages\n";
        let none: [&str; 0] = [];
        assert_eq!(unlisted("expedite", Variant::Slim, text), none);
        assert_eq!(unlisted("expedite -t two", Variant::Slim, text), none);
        let refused = ["two: skipped, which no skips.toml allows: no huge pages"];
        assert_eq!(unlisted("expedite", Variant::Debug, text), refused);
        assert_eq!(unlisted("reap_race", Variant::Slim, text), refused);
        let other = text.replace("huge", "small");
        let refused = ["two: skipped, which no skips.toml allows: no small pages"];
        assert_eq!(unlisted("expedite", Variant::Slim, &other), refused);
        let whole = unlisted("expedite", Variant::Slim, "1..0 # SKIP needs root\n");
        assert_eq!(whole, ["all of it: skipped, which no skips.toml allows: needs root"]);
    }

    #[test]
    fn bad_lists_are_named_by_line() {
        let error = |text| parse(text, Path::new("skips.toml")).err().unwrap().to_string();
        assert!(error("[[skip]]\nprogram = 1\n").starts_with("skips.toml:2: invalid type"));
        assert!(error("[[skip]]\nwhy = \"\"\n").starts_with("skips.toml:2: unknown field `why`"));
        let variant = LIST.replace("slim", "slow");
        assert!(error(&variant).starts_with("skips.toml:5: unknown variant `slow`"), "{}", error(&variant));
    }

    /// An entry with a reason that no program prints any more would hide a future skip.
    #[test]
    fn lists_name_existing_programs_and_reasons() {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut listed = 0;
        for topic in fs::read_dir(repo.join("kernel")).unwrap() {
            let topic = topic.unwrap().path();
            let list = topic.join(FILE_NAME);
            if !list.is_file() {
                continue;
            }
            let tests = topic.join("files/tools/testing/selftests/memreap");
            let base = repo.join("kernel/base/files/tools/testing/selftests/memreap");
            let sources: String = [&tests, &base]
                .iter()
                .flat_map(|folder| fs::read_dir(folder).unwrap())
                .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
                .collect();
            for skip in parse(&fs::read_to_string(&list).unwrap(), &list).unwrap() {
                listed += 1;
                let Skip { program, reason, .. } = &skip;
                assert!(tests.join(format!("{program}.c")).is_file(), "{}: {program}", list.display());
                assert!(sources.contains(&format!("\"{reason}\"")), "{}: {reason}", list.display());
            }
        }
        assert!(listed > 0 && Skips::load(&repo).unwrap().0.len() == listed);
    }
}
