// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `release`: what it costs a process to free its pages when it exits, in instructions.
//!
//! It depends on where the pages are. Those of a fresh machine are contiguous. On a fragmented one the free
//! lists hold single pages, or short runs of them: that is made by allocating memory and freeing every
//! other part of it. Both kinds of victim exit after a SIGKILL.
//!
//! A process that comes and goes finds the pages of the one before it in the CPU's own free list, unless
//! they have gone back to the buddy lists: so what such a process costs, from fork to exit, is counted, too.

use std::num::NonZeroUsize;

use anyhow::{Context as _, Result, ensure};

use super::arguments::{Arguments, Cases};
use super::interface::Scenario;
use super::metrics::metric_name;
use crate::measure::free_memory::{self, ShortFreeLists};
use crate::memory::PAGE_BYTES;
use crate::memory::region::Region;
use crate::process::child::Child;
use crate::process::victim::{Layout, Victim};
use crate::system::{clock, sched};
use init::report::{Better, Reporter};

/// Victims, and how many contiguous pages the free lists hold for them: `None` for as many as there are.
const VICTIMS: [(&str, Option<NonZeroUsize>); 5] = [
    ("contiguous", None),
    ("single", NonZeroUsize::new(1)),
    ("pieces-of-4", NonZeroUsize::new(4)),
    ("pieces-of-8", NonZeroUsize::new(8)),
    ("pieces-of-16", NonZeroUsize::new(16)),
];
/// Processes that come and go, and the memory that each of them touches, in KiB.
const SHORT_LIVED: [(&str, usize); 3] =
    [("fork-256-kib", 256), ("fork-1-mib", 1 << 10), ("fork-8-mib", 8 << 10)];
/// How many of these come before those that are counted: until then the length of the CPU's free list
/// adapts.
const WARM_UP: usize = 20;
/// How many are counted.
const COUNTED: usize = 20;
/// The metrics of the two.
const EXIT: &str = "exit-instructions";
const LIFE: &str = "life-instructions";
/// If a smaller share of the victim's memory comes back, something else was measured.
const MIN_SHARE: f64 = 0.95;

/// A victim's memory.
const LAYOUT: Layout = Layout { pages: (64 << 20) / PAGE_BYTES, vmas: 1 };

/// `release [case=NAME]`
pub struct Release;

impl Scenario for Release {
    fn name(&self) -> &'static str {
        "release"
    }

    fn metrics(&self, args: &[String], _cpus: usize) -> Result<Vec<String>> {
        let options = Options::parse(args)?;
        let victims = VICTIMS.iter().map(|&(case, _)| (case, EXIT));
        let all = victims.chain(SHORT_LIVED.iter().map(|&(case, _)| (case, LIFE)));
        Ok(all
            .filter(|(case, _)| options.cases.has(case))
            .map(|(case, what)| metric_name(case, what))
            .collect())
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let options = Options::parse(args)?;
        sched::pin(0)?;
        for (case, pieces) in VICTIMS.into_iter().filter(|(case, _)| options.cases.has(case)) {
            report(out, case, EXIT, exit(LAYOUT, pieces).with_context(|| format!("case {case}"))?);
        }
        for (case, kib) in SHORT_LIVED.into_iter().filter(|(case, _)| options.cases.has(case)) {
            let life = life((kib << 10) / PAGE_BYTES).with_context(|| format!("case {case}"))?;
            report(out, case, LIFE, life);
        }
        Ok(())
    }
}

fn report(out: &mut Reporter, case: &str, what: &str, instructions: f64) {
    out.sample(&metric_name(case, what), "instructions", Better::Lower, instructions);
}

/// Returns the instructions in which a victim exits whose memory comes from such pieces.
fn exit(layout: Layout, pieces: Option<NonZeroUsize>) -> Result<f64> {
    let _short = ShortFreeLists::set()?;
    let holes = pieces.map(|pieces| holes(layout.pages, pieces.get())).transpose()?;
    let victim = Victim::spawn(layout, 0..1)?;
    let before = free_memory::settled()?;
    let cpu_before = victim.cpu_time()?;
    victim.kill().context("pidfd_send_signal(SIGKILL)")?;
    victim.wait_until_dead().context("wait for the victim")?;
    let cpu = victim.cpu_time()? - cpu_before;
    let freed = free_memory::settled()?.saturating_sub(before);
    victim.reap().context("reap the victim")?;
    drop(holes);
    ensure!(
        freed as f64 >= layout.bytes() as f64 * MIN_SHARE,
        "only {} MiB of {} MiB came back",
        freed >> 20,
        layout.bytes() >> 20
    );
    // With -icount a nanosecond is an instruction.
    Ok(cpu as f64)
}

/// Makes more than `pages` free pages, in aligned pieces of `piece` pages between others that stay allocated
/// until the region is dropped. The buddy lists prefer small pieces, so these are what is allocated next.
fn holes(pages: usize, piece: usize) -> Result<Region> {
    let all = (pages + pages / 4) * 2;
    let region = Region::new(all)?;
    region.touch(0..all);
    for (page, frame) in region.frames()?.into_iter().enumerate() {
        if frame & piece as u64 != 0 {
            region.free(page..page + 1)?;
        }
    }
    Ok(region)
}

/// Returns the instructions that a process costs which touches so many pages, with all that its parent
/// does for it.
fn life(pages: usize) -> Result<f64> {
    let one = || {
        Child::fork(|| {
            let region = Region::new(pages)?;
            region.touch(0..pages);
            // It is the exit that frees them.
            std::mem::forget(region);
            Ok(())
        })?
        .join()
    };
    (0..WARM_UP).try_for_each(|_| one())?;
    let start = clock::now();
    (0..COUNTED).try_for_each(|_| one())?;
    Ok((clock::now() - start) as f64 / COUNTED as f64)
}

struct Options {
    cases: Cases,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let args = Arguments::new(args, &[], &["case"])?;
        let victims = VICTIMS.iter().map(|&(case, _)| case);
        Ok(Self { cases: args.case(victims.chain(SHORT_LIVED.iter().map(|&(case, _)| case)))? })
    }
}

#[cfg(test)]
mod tests {
    use super::super::arguments::{assert_refused, words};
    use super::*;

    #[test]
    fn arguments_have_defaults_and_bounds() {
        assert!(Options::parse(&[]).unwrap().cases.is_all());
        assert!(Options::parse(&words(&["case=fork-1-mib"])).unwrap().cases.has("fork-1-mib"));
        assert_refused(Options::parse, &["case=x", "mib=64", "icount"], &[]);
    }
}
