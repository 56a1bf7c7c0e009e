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
mod options;
mod program;
mod rates;

use anyhow::{Context as _, Result};

use super::interface::Scenario;
use crate::system::sched;
use init::report::Reporter;
use options::Options;

/// Returns the names of a part's metrics in a guest of so many CPUs.
type Metrics = fn(usize) -> Vec<String>;
/// Measures and reports.
type Part = fn(&Options, &mut Reporter) -> Result<()>;

/// The parts, in the order in which they are run.
const PARTS: [(&str, Metrics, Part); 3] = [
    ("instructions", instructions::metrics, instructions::measure),
    ("rates", rates::metrics, rates::measure),
    ("errors", errors::metrics, errors::measure),
];

/// `rss-counters [instructions] [rates] [errors] [mib=MIB] [rounds=N]`
pub struct RssCounters;

impl Scenario for RssCounters {
    fn name(&self) -> &'static str {
        "rss-counters"
    }

    fn metrics(&self, args: &[String], cpus: usize) -> Result<Vec<String>> {
        parse(args)?;
        let parts = PARTS.iter().filter(|(part, ..)| args.iter().any(|a| a == part));
        Ok(parts.flat_map(|(_, metrics, _)| metrics(cpus)).collect())
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let options = parse(args)?;
        sched::pin(0)?;
        for (part, _, measure) in PARTS.iter().filter(|(part, ..)| args.iter().any(|a| a == part)) {
            measure(&options, out).with_context(|| format!("part {part}"))?;
        }
        Ok(())
    }
}

/// Parses the arguments.
fn parse(args: &[String]) -> Result<Options> {
    Options::parse(args, &PARTS.map(|(part, ..)| part))
}

#[cfg(test)]
mod tests {
    use super::super::arguments::{assert_refused, words};
    use super::*;

    #[test]
    fn arguments_have_defaults_and_bounds() {
        let options = parse(&words(&["instructions", "errors"])).unwrap();
        assert_eq!((options.pages(), options.rounds, options.many()), (8192, 5, 400));
        assert_eq!(parse(&words(&["rates", "mib=2", "rounds=1"])).unwrap().pages(), 512);
        let bad = ["mib=1", "mib=x", "rounds=0", "rounds=1001", "round=2", "error"];
        assert_refused(parse, &bad, &["rates"]);
        assert_refused(parse, &["mib=2"], &[]);
        assert!(parse(&[]).is_err());
    }
}
