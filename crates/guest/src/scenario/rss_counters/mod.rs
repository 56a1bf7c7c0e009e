// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `rss-counters`: what does it cost to count the pages of a process, and how large is the error of
//! the count that others read?
//!
//! The part `instructions`, on one CPU with instructions as time, measures page faults, forks, execs and
//! threads. `rates`, on two CPUs, measures the same by processes and threads in parallel. `errors`, on any
//! number of CPUs, compares the RSS of processes that have run on several CPUs, in /proc/PID/stat and as the
//! OOM killer reads it, with the pages that they really have.

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
