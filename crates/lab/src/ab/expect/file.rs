// SPDX-License-Identifier: GPL-2.0-only
//! The types of an `expect.toml`. The parent module describes the tables.

use serde::Deserialize;
use toml::Spanned;

use crate::ab::verdict::Verdict;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) scenario: Option<String>,
    #[serde(default)]
    pub(super) aa_clean: bool,
    #[serde(default)]
    pub(super) known_worse: Vec<KnownWorse>,
    #[serde(default)]
    pub(super) expect: Vec<Expect>,
    #[serde(default)]
    pub(super) compare: Vec<Compare>,
    #[serde(default)]
    pub(super) bound: Vec<Bound>,
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
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expect {
    pub(super) metric: Spanned<String>,
    pub(super) guest: Option<String>,
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
}
