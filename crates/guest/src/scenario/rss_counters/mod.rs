// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `rss-counters`: what does it cost to count the pages of a process, and how large is the error of
//! the count that others read?

mod errors;
mod instructions;
mod program;
mod rates;

use anyhow::{Context as _, Result};

use super::arguments::Arguments;
use crate::system::sched;
use init::report::Reporter;

pub fn run(_: &Arguments, out: &mut Reporter) -> Result<()> {
    sched::pin(0)?;
    instructions::measure(out).context("instructions")?;
    rates::measure(out).context("rates")?;
    errors::measure(out).context("errors")
}
