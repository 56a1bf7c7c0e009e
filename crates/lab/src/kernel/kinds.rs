// SPDX-License-Identifier: GPL-2.0-only
//! Which kernels there are: trees, configurations, and what is built of them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::context::Context;
use crate::format;

/// Returns the control kernels of the scenarios that need a build of their own. `kernel/controls` has a patch or a
/// configuration fragment of that name, or both; those whose names begin with `memreap-` are for the changed kernel.
pub(crate) fn controls() -> impl Iterator<Item = &'static str> {
    scenarios::controls().into_iter().filter(|control| control.parameters.is_none()).map(|control| control.name)
}

/// A kernel configuration: what is compiled in besides the topics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// No debug code. Everything that is measured runs on it.
    Slim,
    /// lockdep, KASAN, UBSAN, kmemleak, DEBUG_VM, DEBUG_ATOMIC_SLEEP, and the topics' KUnit tests.
    Debug,
    /// Slim with the topics' KUnit tests, to build them soon.
    Kunit,
    /// KCSAN, the data-race detector, and the topics' KUnit tests.
    Kcsan,
    /// Debug with PREEMPT_RT, where locks sleep.
    Rt,
    /// Slim plus what Debian's user space needs. For the face-off.
    Faceoff,
}

impl Variant {
    /// The names of the fragments in `kernel/configs`. A later one overrides an earlier one.
    pub(super) fn fragments(self) -> &'static [&'static str] {
        match self {
            Self::Slim => &["slim"],
            Self::Debug => &["slim", "debug"],
            Self::Kunit => &["slim", "kunit"],
            Self::Kcsan => &["slim", "kcsan"],
            Self::Rt => &["slim", "debug", "rt"],
            Self::Faceoff => &["slim", "faceoff"],
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format::name_of(self))
    }
}

/// Which tree a kernel is built from.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Tree {
    /// Debian's source, unchanged.
    #[default]
    Stock,
    /// Debian's source with all topics applied and enabled.
    Memreap,
    /// The stock or the changed kernel as a control kernel.
    Control(&'static str),
}

impl Tree {
    /// Returns all trees, stock first.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Stock, Self::Memreap].into_iter().chain(controls().map(Self::Control))
    }

    /// Returns the trees of the series, stock first.
    pub fn of_series(ctx: &Context) -> impl Iterator<Item = Self> {
        Self::all().filter(|tree| tree.is_of_series(ctx))
    }

    /// Whether it is for the series: not every control kernel is made for each.
    pub fn is_of_series(self, ctx: &Context) -> bool {
        let Self::Control(name) = self else { return true };
        let folder = ctx.in_repo("kernel/controls");
        folder.join(&ctx.series.name).join(format!("{name}.patch")).is_file()
            || folder.join(format!("{name}.config")).is_file()
    }

    /// Returns the name of the fragment with what this tree configures differently, if there is one.
    pub(super) fn fragment(self, repo: &Path) -> Option<String> {
        let Self::Control(name) = self else { return None };
        let file = format!("kernel/controls/{name}.config");
        repo.join(&file).is_file().then_some(file)
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Stock => "stock",
            Self::Memreap => "memreap",
            Self::Control(name) => name,
        })
    }
}

impl FromStr for Tree {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let tree = Self::all().find(|tree| tree.to_string() == text);
        tree.ok_or_else(|| format::no_such("tree", text, Self::all()))
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A finished kernel in the cache.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The bootable image.
    pub bzimage: PathBuf,
    /// The source tree that it was built from: `trees/<tree key>` in the cache.
    pub source_dir: PathBuf,
    /// The release as `uname -r` prints it.
    pub release: String,
    /// The content key, 64 hexadecimal digits.
    pub key: String,
}
