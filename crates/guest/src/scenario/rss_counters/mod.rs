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

use anyhow::{Context as _, Result, ensure};

use super::arguments::Arguments;
use super::interface::Scenario;
use crate::system::sched;
use init::report::Reporter;

/// Returns the names of a part's metrics in a guest of so many CPUs.
type Metrics = fn(usize) -> Vec<String>;
/// Measures and reports.
type Part = fn(&mut Reporter) -> Result<()>;

/// The parts, in the order in which they are run.
const PARTS: [(&str, Metrics, Part); 3] = [
    ("instructions", instructions::metrics, instructions::measure),
    ("rates", rates::metrics, rates::measure),
    ("errors", errors::metrics, errors::measure),
];

/// `rss-counters [instructions] [rates] [errors]`
pub struct RssCounters;

impl Scenario for RssCounters {
    fn name(&self) -> &'static str {
        "rss-counters"
    }

    fn metrics(&self, args: &[String], cpus: usize) -> Result<Vec<String>> {
        Ok(parse(args)?.into_iter().flat_map(|(_, metrics, _)| metrics(cpus)).collect())
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let parts = parse(args)?;
        sched::pin(0)?;
        for (part, _, measure) in parts {
            measure(out).with_context(|| format!("part {part}"))?;
        }
        Ok(())
    }
}

/// Parses the arguments, among which must be a part.
fn parse(args: &[String]) -> Result<Vec<(&'static str, Metrics, Part)>> {
    let names = PARTS.map(|(part, ..)| part);
    let args = Arguments::new(args, &names, &[])?;
    let parts: Vec<_> = PARTS.into_iter().filter(|(part, ..)| args.has(part)).collect();
    ensure!(!parts.is_empty(), "nothing to do; name some of: {}", names.join(" "));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::super::arguments::{assert_refused, words};
    use super::*;

    #[test]
    fn arguments_are_parts() {
        let parts = parse(&words(&["errors", "instructions"])).unwrap();
        assert_eq!(parts.iter().map(|(part, ..)| *part).collect::<Vec<_>>(), ["instructions", "errors"]);
        assert_refused(parse, &["round=2", "error"], &["rates"]);
        assert!(parse(&[]).is_err());
    }
}
