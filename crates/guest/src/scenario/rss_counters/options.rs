// SPDX-License-Identifier: GPL-2.0-only
//! The arguments of the scenario `rss-counters`.

use anyhow::{Result, ensure};

use crate::memory::PAGE_BYTES;
use crate::scenario::arguments::Arguments;

/// The arguments of all parts.
pub struct Options {
    /// MiB that a round of page faults touches.
    pub mib: usize,
    /// Rounds of page faults; of shorter work there are [`Options::many`].
    pub rounds: usize,
}

impl Options {
    /// Parses the arguments, among which must be one of `parts`.
    ///
    /// # Errors
    /// When an argument is unknown or out of bounds, or there is no part.
    pub fn parse(args: &[String], parts: &[&str]) -> Result<Self> {
        let args = Arguments::new(args, parts, &["mib", "rounds"])?;
        ensure!(parts.iter().any(|part| args.has(part)), "nothing to do; name some of: {}", parts.join(" "));
        let options = Self { mib: args.get("mib", 32)?, rounds: args.get("rounds", 5)? };
        ensure!((2..=4096).contains(&options.mib), "mib={} is not 2 to 4096", options.mib);
        ensure!((1..=1000).contains(&options.rounds), "rounds={} is not 1 to 1000", options.rounds);
        Ok(options)
    }

    /// Pages that a round touches.
    pub fn pages(&self) -> usize {
        (self.mib << 20) / PAGE_BYTES
    }

    /// Rounds of forks, execs and threads.
    pub fn many(&self) -> usize {
        80 * self.rounds
    }
}
