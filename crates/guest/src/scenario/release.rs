// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `release`: what it costs a process to free its pages when it exits, in instructions.
//!
//! It depends on where the pages are. Those of a fresh machine are contiguous. On a fragmented one the free
//! lists hold single pages, or short runs of them.
//!
//! A process that comes and goes finds the pages of the one before it in the CPU's own free list, unless
//! they have gone back to the buddy lists: so what such a process costs, from fork to exit, is counted, too. Those
//! lists have one lock for all CPUs, so the waits for it are counted on all CPUs at once.

use anyhow::{Context as _, Result};

use super::arguments::Arguments;
use super::metrics::{each_case, metric_name, typical};
use crate::measure::free_memory;
use crate::memory::PAGE_BYTES;
use crate::memory::region::Region;
use crate::process::child::{Board, Child};
use crate::process::victim::{Layout, Victim};
use crate::system::{clock, sched};
use crate::trace::locks::{Kind, LockTrace, Recording};
use crate::trace::tracefs;
use init::report::Reporter;

/// Victims, and how many contiguous pages the free lists hold for them: `None` for as many as there are.
const VICTIMS: [(&str, Option<usize>); 5] = [
    ("contiguous", None),
    ("single", Some(1)),
    ("pieces-of-4", Some(4)),
    ("pieces-of-8", Some(8)),
    ("pieces-of-16", Some(16)),
];
/// Processes that come and go, and the memory that each of them touches, in KiB.
const SHORT_LIVED: [(&str, usize); 3] = [("fork-256-kib", 256), ("fork-1-mib", 1 << 10), ("fork-8-mib", 8 << 10)];
/// How many of these come before those that are counted: until then the length of the CPU's free list
/// adapts.
const WARM_UP: usize = 20;
/// How many are counted.
const COUNTED: usize = 100;
/// Memory that each CPU takes and gives back, again and again, by munmap(2) and by exit.
const LOOPS: [(&str, End); 2] = [("munmap-8-mib", End::Munmap), ("exit-8-mib", End::Exit)];
const LOOP_PAGES: usize = (8 << 20) / PAGE_BYTES;
/// How often before the locks are watched, and while they are.
const LOOPS_BEFORE: u64 = 100;
const LOOPS_WATCHED: u64 = 200;
/// How often that is tried; it is repeated when an event was lost.
const TRIES: u32 = 10;
/// A victim's memory.
const LAYOUT: Layout = Layout { pages: (64 << 20) / PAGE_BYTES, vmas: 1 };

/// How a process gives its memory back.
#[derive(Clone, Copy)]
enum End {
    Munmap,
    Exit,
}

pub fn run(args: &Arguments, out: &mut Reporter) -> Result<()> {
    if args.icount() {
        sched::pin(0)?;
    }
    each_case(VICTIMS, out, |case, pieces, out| {
        out.sample(&metric_name(case, "exit-instructions"), exit(LAYOUT, pieces)?);
        Ok(())
    })?;
    each_case(SHORT_LIVED, out, |case, kib, out| {
        out.sample(&metric_name(case, "life-instructions"), life((kib << 10) / PAGE_BYTES)?);
        Ok(())
    })?;
    each_case(LOOPS, out, loops)
}

/// Returns the instructions in which a victim exits whose memory comes from such pieces.
fn exit(layout: Layout, pieces: Option<usize>) -> Result<f64> {
    let holes = pieces.map(|pieces| holes(layout.pages, pieces)).transpose()?;
    let victim = Victim::spawn(layout, 0..1)?;
    // Until nobody but the victim holds its memory: else another task may be the one to free it.
    free_memory::settled()?;
    let cpu_before = victim.cpu_time()?;
    victim.kill().context("pidfd_send_signal(SIGKILL)")?;
    victim.wait_until_dead().context("wait for the victim")?;
    let cpu = victim.cpu_time()? - cpu_before;
    victim.reap().context("reap the victim")?;
    drop(holes);
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
    (0..WARM_UP).try_for_each(|_| touch_and_exit(pages))?;
    let counted = || {
        let start = clock::now();
        touch_and_exit(pages)?;
        Ok((clock::now() - start) as f64)
    };
    Ok(typical((0..COUNTED).map(|_| counted()).collect::<Result<_>>()?))
}

/// Starts a process that touches so many pages and exits, and waits for it.
fn touch_and_exit(pages: usize) -> Result<()> {
    Child::fork(|| {
        let region = Region::new(pages)?;
        region.touch(0..pages);
        // It is the exit that frees them.
        std::mem::forget(region);
        Ok(())
    })?
    .join()
}

/// Has each CPU take and give back memory, and reports how often they waited for the zone's lock, and how long
/// all of it took.
fn loops(case: &str, end: End, out: &mut Reporter) -> Result<()> {
    out.progress(case);
    let trace = LockTrace::new()?;
    let (took, locks) = tracefs::until_complete(case, TRIES, out, |_| loop_on_all_cpus(end, &trace))?;
    let (contended, _) = locks.contended(Kind::Zone);
    out.sample(&metric_name(case, "zone-lock-contended"), contended as f64);
    out.sample(&metric_name(case, "loops-ms"), clock::ms(took));
    Ok(())
}

/// Returns the nanoseconds that all CPUs take for [`LOOPS_WATCHED`] rounds at once, and what was recorded meanwhile.
fn loop_on_all_cpus(end: End, trace: &LockTrace) -> Result<(u64, Recording)> {
    let cpus = sched::online_cpus()?;
    let done = Board::new(cpus)?;
    let round = || match end {
        End::Munmap => {
            Region::new(LOOP_PAGES)?.touch(0..LOOP_PAGES);
            Ok(())
        }
        End::Exit => touch_and_exit(LOOP_PAGES),
    };
    let life = |cpu| {
        sched::pin(cpu)?;
        loop {
            round()?;
            done.add(cpu, 1);
        }
    };
    let children = (0..cpus).map(|cpu| Child::fork(|| life(cpu))).collect::<Result<Vec<_>>>()?;
    let wait_for = |rounds| {
        let all = || done.all().all(|done| done >= rounds);
        children.iter().try_for_each(|child| child.wait_until(all))
    };
    wait_for(LOOPS_BEFORE)?;
    trace.record(|| {
        let start = clock::now();
        wait_for(LOOPS_BEFORE + LOOPS_WATCHED)?;
        Ok(clock::now() - start)
    })
}
