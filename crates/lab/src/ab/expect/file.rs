// SPDX-License-Identifier: GPL-2.0-only
//! The types of an `expect.toml`. The parent module describes the tables.

use serde::Deserialize;
use toml::Spanned;

use crate::ab::results::Verdict;

/// The series of a kernel: the first two numbers of its version.
#[derive(Deserialize)]
#[serde(try_from = "String")]
pub(super) struct SeriesName(pub(super) String);

impl TryFrom<String> for SeriesName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let is_number = |part: &str| part.parse::<u32>().is_ok();
        match name.split_once('.') {
            Some((major, minor)) if is_number(major) && is_number(minor) => Ok(Self(name)),
            _ => Err(format!("{name:?} is no series of kernels, as \"7.3\"")),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub(super) scenario: Option<String>,
    pub(super) series: Option<SeriesName>,
    pub(super) aa_clean: bool,
    pub(super) known_worse: Vec<KnownWorse>,
    pub(super) expect: Vec<Expect>,
    pub(super) compare: Vec<Compare>,
    pub(super) bound: Vec<Bound>,
}

impl File {
    /// Drops the tables that are not for a series of kernels.
    pub(super) fn keep_series(&mut self, name: &str) {
        let Self { scenario: _, series: of_file, aa_clean: _, known_worse, expect, compare, bound } = self;
        let is_for = |of_table: &Option<SeriesName>| {
            of_table.as_ref().or(of_file.as_ref()).is_none_or(|series| series.0 == name)
        };
        known_worse.retain(|table| is_for(&table.series));
        expect.retain(|table| is_for(&table.series));
        compare.retain(|table| is_for(&table.series));
        bound.retain(|table| is_for(&table.series));
    }
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table for each metric that may get worse: [[known_worse]] with metric = \"...\" and \
                 at_least = the ratio below which it must not fall"
)]
pub(super) struct KnownWorse {
    pub(super) metric: String,
    pub(super) at_least: f64,
    pub(super) guest: Option<String>,
    pub(super) series: Option<SeriesName>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expect {
    pub(super) metric: Spanned<String>,
    pub(super) guest: Option<String>,
    pub(super) series: Option<SeriesName>,
    pub(super) at_least: Option<f64>,
    pub(super) share_at_most: Option<f64>,
    pub(super) verdict: Option<Verdict>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Compare {
    pub(super) arm: Spanned<String>,
    pub(super) metric: String,
    pub(super) not_worse_than: String,
    pub(super) than_arm: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) tolerance: f64,
    #[serde(default = "one")]
    pub(super) times: f64,
    pub(super) guest: Option<String>,
    pub(super) series: Option<SeriesName>,
}

fn one() -> f64 {
    1.0
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bound {
    pub(super) arm: Spanned<String>,
    pub(super) metric: String,
    pub(super) at_most: Option<f64>,
    pub(super) at_least: Option<f64>,
    #[serde(default)]
    pub(super) each_boot: bool,
    pub(super) guest: Option<String>,
    pub(super) series: Option<SeriesName>,
}
