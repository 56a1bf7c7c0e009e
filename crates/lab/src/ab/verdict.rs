// SPDX-License-Identifier: GPL-2.0-only
//! The verdict about a metric.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The verdict of a comparison; [`crate::ab::stats`] has the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// The changed arm improves the metric: significantly, and by more than the minimum effect.
    #[serde(rename = "better")]
    Better,
    /// The changed arm makes the metric worse: significantly, and by more than the minimum effect.
    #[serde(rename = "worse")]
    Worse,
    /// The whole interval is within the minimum effect: there is no relevant difference.
    #[serde(rename = "same")]
    Same,
    /// The boots support none of the three statements above.
    #[serde(rename = "no verdict")]
    None,
}

impl Verdict {
    /// Whether this verdict claims a difference between the arms.
    #[must_use]
    pub fn is_difference(self) -> bool {
        matches!(self, Self::Better | Self::Worse)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "same",
            Self::None => "no verdict",
        })
    }
}
