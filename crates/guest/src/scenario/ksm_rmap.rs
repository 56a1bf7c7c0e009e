// SPDX-License-Identifier: GPL-2.0-only
//! Scenario `ksm-rmap`: pages that KSM merged, in an address space of many VMAs, are migrated and reclaimed.
//! What does it cost to find all places where such a page is mapped, and how long do other threads wait
//! meanwhile?
//!
//! Another thread takes page faults while pages are migrated, on the other CPU if there is one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::arguments::Arguments;
use super::metrics::{Metric, median, metric_name};
use crate::memory::PAGE_BYTES;
use crate::memory::ksm::{self, Area, Ksm, MergeCost, MergedPages, Shape};
use crate::memory::swap;
use crate::system::cgroup::{Cgroup, TemporaryCgroup};
use crate::system::{clock, sched};
use crate::trace::rmap::{self, Kind, Walk, WalkTrace};
use crate::trace::tracefs;
use init::report::Reporter;

/// The layout of memory in a case, and how much is measured with it.
struct Case {
    name: &'static str,
    vmas: usize,
    /// How often a page is mapped.
    maps: usize,
    /// Merged pages. There are few where one walk of the stock kernel takes a good part of a second.
    pages: usize,
    /// Page faults by reads of a page that is being migrated, with two CPUs. If 0, no page faults are timed
    /// at all.
    reads: usize,
}

const CASES: [Case; 4] = [
    Case { name: "2000-vmas-2-maps", vmas: 2000, maps: 2, pages: 8, reads: 0 },
    Case { name: "2000-vmas-200-maps", vmas: 2000, maps: 200, pages: 2, reads: 0 },
    Case { name: "20000-vmas-2-maps", vmas: 20_000, maps: 2, pages: 8, reads: 200 },
    Case { name: "20000-vmas-200-maps", vmas: 20_000, maps: 200, pages: 1, reads: 6 },
];
/// The page faults that are timed, and their metrics.
const TOUCHES: [Metric<[f64]>; 2] = [("fault-anon-p50", middle), ("fault-anon-max", longest)];
const READS: [Metric<[f64]>; 2] = [("fault-ksm-p50", middle), ("fault-ksm-max", longest)];
/// Without a case.
const MERGE: &str = "merge-instructions";
/// A migrated page is walked twice, and a reclaimed one at least twice.
const MIGRATION: [Kind; 2] = [Kind::Migrate, Kind::Restore];
const RECLAIM: [Kind; 2] = [Kind::Referenced, Kind::Unmap];
/// What ksmd merges when its own cost is measured: so many pages with so many different contents.
const MERGE_PAGES: usize = 4000;
const MERGE_CONTENTS: usize = 1000;
/// How often all of that is changed and merged again.
const REMERGES: u64 = 8;
/// First touches of fresh VMAs.
const FIRST_TOUCHES: usize = 300;
/// The time between them on average; it varies by up to a half.
const MEAN_PAUSE: Duration = Duration::from_micros(1500);
/// How long the thread only reads the clock before each of them, to notice when it does not run.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// A longer gap does not come from the guest itself.
const INTERRUPTED_GAP: Duration = Duration::from_millis(4);
/// The most moves per read that has to meet one.
const MOVES_PER_READ: usize = 20;
/// How often a round is tried; it is repeated when an event was lost.
const TRIES: u32 = 10;
/// How often the kernel is asked to reclaim the pages, which it need not do at first.
const RECLAIM_TRIES: u32 = 100;
/// More swap space than is ever needed.
const SWAP_BYTES: u64 = 64 << 20;

pub fn run(args: &Arguments, out: &mut Reporter) -> Result<()> {
    let icount = args.icount();
    ensure!(
        std::fs::exists("/sys/devices/system/node/node1").unwrap_or(false),
        "needs two NUMA nodes; boot with the kernel parameter numa=fake=2"
    );
    let last = thread::available_parallelism().context("number of CPUs")?.get() - 1;
    ensure!(icount || last > 0, "needs two CPUs");
    sched::pin(0)?;
    rustix::thread::disable_transparent_huge_pages(true).context("prctl THP")?;
    let ksm = Ksm::set_up()?;
    if out.expects(MERGE) {
        out.progress("merging");
        merge_cost(&ksm, out)?;
    }
    let group = TemporaryCgroup::new("ksm-rmap", "memory")?;
    group.join()?;
    if icount {
        swap::on(SWAP_BYTES)?;
    }
    let mut walks: Vec<(&Case, f64)> = Vec::new();
    for (i, case) in CASES.iter().enumerate() {
        if !out.expects_case(case.name) {
            continue;
        }
        let run = Run { case, ksm: &ksm, group: &group, faulter: last, icount };
        // Contents of which no earlier case had any.
        let walk = run.all((i as u64 + 1) << 16, out).with_context(|| format!("case {}", case.name))?;
        let growth = metric_name(case.name, "growth");
        if out.expects(&growth) {
            let fewer = walks.iter().find(|(other, _)| other.maps == case.maps);
            let (_, before) = fewer.context("no case with fewer VMAs")?;
            out.sample(&growth, walk / before);
        }
        walks.push((case, walk));
    }
    Ok(())
}

/// Measures what ksmd spends on a page, from its first scan until it is merged, and when that is repeated.
fn merge_cost(ksm: &Ksm, out: &mut Reporter) -> Result<()> {
    let area = Area::new(MERGE_PAGES)?;
    area.mergeable(0, MERGE_PAGES)?;
    ensure!(ksm::shared()? == (0, 0), "other pages are merged already");
    let merge = |round: u64| {
        // Another number in each round: a page counts as merged until ksmd has seen that it has changed.
        let contents = MERGE_CONTENTS as u64 - round;
        (0..MERGE_PAGES).for_each(|page| area.fill(page, (round << 32) + page as u64 % contents));
        ksm.merge(|| Ok(ksm::shared()? == (contents, MERGE_PAGES as u64 - contents)))
            .with_context(|| format!("{MERGE_PAGES} pages of {contents} contents"))
    };
    let per_page = |cpu: u64| cpu as f64 / MERGE_PAGES as f64;
    out.sample(MERGE, per_page(merge(0)?.cpu));
    ksm.smart_scan(true)?;
    let again: Vec<MergeCost> = (1..=REMERGES).map(merge).collect::<Result<_>>()?;
    ksm.smart_scan(false)?;
    let (cpu, scans) = again.iter().fold((0, 0), |(cpu, scans), m| (cpu + m.cpu, scans + m.scans));
    out.sample("remerge-instructions", per_page(cpu) / REMERGES as f64);
    out.sample("remerge-scans", scans as f64 / REMERGES as f64);
    Ok(())
}

/// One case.
struct Run<'a> {
    case: &'static Case,
    ksm: &'a Ksm,
    group: &'a Cgroup,
    /// The CPU that takes page faults.
    faulter: usize,
    icount: bool,
}

impl Run<'_> {
    /// Measures everything, and returns the time of a walk.
    fn all(&self, content: u64, out: &mut Reporter) -> Result<f64> {
        out.progress(&format!("{}: layout", self.case.name));
        let &Case { vmas, pages, maps, .. } = self.case;
        let merged = MergedPages::new(Shape { vmas, pages, maps }, self.ksm, content)?;
        let mut mover = Mover::new(&merged)?;

        let walks = self.walks("walk", &WalkTrace::of_times()?, &mut mover, out)?;
        let walk = mean_of(&walks, MIGRATION, |w| w.took)?;
        self.time(out, "walk", walk);
        let walks = self.walks("lock", &WalkTrace::of_locks()?, &mut mover, out)?;
        ensure!(walks.iter().all(|w| w.hold > 0.0), "a walk was recorded without taking the lock");
        self.time(out, "lock-hold", mean_of(&walks, MIGRATION, |w| w.hold)?);
        if self.icount {
            let visits = self.visits(&mut mover, out)?;
            out.sample(&metric_name(self.case.name, "vmas-per-mapping"), visits);
        } else {
            let holds: Vec<f64> = walks.iter().map(|w| w.hold).collect();
            self.time(out, "lock-hold-max", longest(&holds));
        }
        if self.case.reads > 0 {
            self.first_touches(&merged, &mut mover, out)?;
            if !self.icount {
                self.reads(&merged, &mut mover, out)?;
            }
        }
        if self.icount {
            let walks = self.reclaim(&merged, out)?;
            self.time(out, "walk-reclaim", mean_of(&walks, RECLAIM, |w| w.took)?);
        }
        merged.check_contents()?;
        Ok(walk)
    }

    /// Returns walks of migrations.
    fn walks(&self, what: &str, trace: &WalkTrace, mover: &mut Mover, out: &mut Reporter) -> Result<Vec<Walk>> {
        let mut walks = Vec::new();
        // With icount the rounds hardly differ.
        for _ in 0..if self.icount { 1 } else { 2 } {
            walks.extend(self.retry(what, out, || Ok(trace.record(|| mover.each())?.1))?);
        }
        Ok(walks)
    }

    /// Returns the VMAs that a walk visits, per mapping of the page.
    fn visits(&self, mover: &mut Mover, out: &mut Reporter) -> Result<f64> {
        let visits = self.retry("visits", out, || Ok(rmap::count_visits(|| mover.each())?.1))?;
        ensure!(visits.walks > 0, "no walk was recorded");
        Ok(visits.vmas as f64 / visits.walks as f64 / self.case.maps as f64)
    }

    /// Has the pages reclaimed, and returns the walks until all are swapped out.
    fn reclaim(&self, merged: &MergedPages, out: &mut Reporter) -> Result<Vec<Walk>> {
        out.progress(&format!("{}: reclaim", self.case.name));
        let trace = WalkTrace::of_times()?;
        let ((), walks) = trace.record(|| {
            for _ in 0..RECLAIM_TRIES {
                self.group.reclaim(merged.shape.pages * PAGE_BYTES)?;
                if merged.swapped()? {
                    return Ok(());
                }
            }
            bail!("the pages were not swapped out after {RECLAIM_TRIES} writes to memory.reclaim")
        })?;
        Ok(walks)
    }

    /// Times page faults that add a VMA to the anon_vma whose lock the walks hold.
    fn first_touches(&self, merged: &MergedPages, mover: &mut Mover, out: &mut Reporter) -> Result<()> {
        out.progress(&format!("{}: first touches", self.case.name));
        let samples = merged.replace_empty(2)?;
        let ((), joined) = rmap::joined(|| {
            samples.iter().for_each(|&vma| merged.write(vma));
            Ok(())
        })?;
        ensure!(
            joined.len() == 2 && joined[0] != 0 && joined[0] == joined[1],
            "fresh VMAs do not join the anon_vma of their neighbours, but {joined:x?}"
        );
        let fresh = merged.replace_empty(FIRST_TOUCHES)?;
        let running = AtomicBool::new(false);
        let (waits, gap) = thread::scope(|scope| {
            let faulter = scope.spawn(|| {
                sched::pin(self.faulter)?;
                if self.icount {
                    // On the CPU of the walks it runs wherever a walk can be preempted, and then waits for
                    // the lock. On another CPU it has the policy of most tasks: a real-time task is handed
                    // the lock, while other tasks find it taken by the walk again and again.
                    sched::set_policy(libc::SCHED_FIFO, 1).context("SCHED_FIFO for page faults")?;
                }
                while !running.load(Ordering::Acquire) {
                    thread::sleep(SPIN_TIME);
                }
                let (mut waits, mut longest) = (Vec::with_capacity(fresh.len()), 0);
                for (i, &vma) in fresh.iter().enumerate() {
                    thread::sleep(pause(i));
                    longest = longest.max(longest_gap(SPIN_TIME));
                    let began = clock::now();
                    merged.write(vma);
                    waits.push(clock::now() - began);
                }
                anyhow::Ok((waits, longest))
            });
            let mut moved = Ok(());
            while moved.is_ok() && !faulter.is_finished() {
                running.store(true, Ordering::Release);
                moved = mover.all();
            }
            // Otherwise it would wait for walks for ever.
            running.store(true, Ordering::Release);
            let waits = faulter.join().map_err(|_| anyhow!("the thread that takes page faults died"))?;
            moved.and(waits)
        })?;
        self.waits(out, TOUCHES, waits, gap);
        Ok(())
    }

    /// Times page faults on pages that are being migrated. The reader needs a CPU of its own.
    fn reads(&self, merged: &MergedPages, mover: &mut Mover, out: &mut Reporter) -> Result<()> {
        out.progress(&format!("{}: reads", self.case.name));
        // The number of the current move, from 1; 0 is none.
        let (moving, met, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let pages = merged.shape.pages;
        let (waits, gap) = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                sched::pin(self.faulter)?;
                let (mut waits, mut longest) = (Vec::new(), 0);
                while !over.load(Ordering::Acquire) {
                    let Some(last) = moving.load(Ordering::Acquire).checked_sub(1) else { continue };
                    let faults = faults()?;
                    let began = clock::now();
                    // Another mapping each time: they are not migrated at the same time.
                    merged.read(last % pages, last * 7 % merged.shape.maps);
                    let took = clock::now() - began;
                    if self::faults()? > faults {
                        waits.push(took);
                        met.store(waits.len(), Ordering::Release);
                    } else {
                        longest = longest.max(took);
                    }
                }
                anyhow::Ok((waits, longest))
            });
            let mut moved = Ok(());
            // Not every move is met by a read, above all if the host runs one CPU at a time.
            for n in 0..self.case.reads * MOVES_PER_READ {
                if moved.is_err() || reader.is_finished() || met.load(Ordering::Acquire) >= self.case.reads {
                    break;
                }
                moving.store(n + 1, Ordering::Release);
                moved = mover.one(n % pages);
                moving.store(0, Ordering::Release);
            }
            over.store(true, Ordering::Release);
            let waits = reader.join().map_err(|_| anyhow!("the thread that reads died"))?;
            moved.and(waits)
        })?;
        ensure!(
            waits.len() >= self.case.reads,
            "only {} reads met a move, in {} moves",
            waits.len(),
            self.case.reads * MOVES_PER_READ
        );
        self.waits(out, READS, waits, gap);
        Ok(())
    }

    /// Reports page faults, in nanoseconds. `gap` is the longest time for which the thread that took them did
    /// not run for another reason.
    fn waits(&self, out: &mut Reporter, metrics: [Metric<[f64]>; 2], waits: Vec<u64>, gap: u64) {
        let times: Vec<f64> = waits.into_iter().map(|ns| ns as f64).collect();
        for (name, value) in metrics {
            self.time(out, name, value(&times));
        }
        let busy = match u128::from(gap) > INTERRUPTED_GAP.as_nanos() {
            true => "; the host is busy and took that CPU away meanwhile, so the longest wait is not reliable",
            false => "",
        };
        out.note(&format!(
            "{}/{}: of {} page faults; without one the thread did not run for at most {:.2} ms{busy}",
            self.case.name,
            metrics[1].0,
            times.len(),
            gap as f64 / 1e6
        ));
    }

    /// Reports a time given in nanoseconds, in the unit of this guest.
    fn time(&self, out: &mut Reporter, name: &str, ns: f64) {
        out.sample(&metric_name(self.case.name, name), if self.icount { ns } else { ns / 1e6 });
    }

    /// Repeats a round until no event was lost.
    fn retry<T>(&self, what: &str, out: &mut Reporter, mut round: impl FnMut() -> Result<T>) -> Result<T> {
        out.progress(&format!("{}: {what}", self.case.name));
        let place = format!("{}/{what}", self.case.name);
        tracefs::until_complete(&place, TRIES, out, |_| round()).with_context(|| what.to_owned())
    }
}

/// Moves pages back and forth between the nodes.
struct Mover {
    /// An address of each page, and the node that it is on.
    pages: Vec<(usize, i32)>,
}

impl Mover {
    /// Moves all pages to the first node.
    fn new(merged: &MergedPages) -> Result<Self> {
        let addresses: Vec<usize> = (0..merged.shape.pages).map(|page| merged.address(page, 0)).collect();
        ksm::move_to(0, &addresses)?;
        Ok(Self { pages: addresses.into_iter().map(|address| (address, 0)).collect() })
    }

    /// Moves one page to the other node.
    fn one(&mut self, page: usize) -> Result<()> {
        let (address, node) = &mut self.pages[page];
        ksm::move_to(1 - *node, &[*address]).with_context(|| format!("page {page}"))?;
        *node = 1 - *node;
        Ok(())
    }

    /// Moves every page to the other node, one by one.
    fn each(&mut self) -> Result<()> {
        (0..self.pages.len()).try_for_each(|page| self.one(page))
    }

    /// Moves all pages to the node on which the first page is not.
    fn all(&mut self) -> Result<()> {
        let addresses: Vec<usize> = self.pages.iter().map(|&(address, _)| address).collect();
        let node = 1 - self.pages[0].1;
        ksm::move_to(node, &addresses)?;
        self.pages.iter_mut().for_each(|page| page.1 = node);
        Ok(())
    }
}

/// Returns the mean of two kinds of walks, each by the median of its `value`: the number of walks of each
/// kind does not count.
fn mean_of(walks: &[Walk], kinds: [Kind; 2], value: fn(&Walk) -> f64) -> Result<f64> {
    if let Some(other) = walks.iter().find(|w| !kinds.contains(&w.kind)) {
        bail!("a walk of kind {:?} where only {kinds:?} are expected", other.kind);
    }
    let mut sum = 0.0;
    for kind in kinds {
        let values = walks.iter().filter(|w| w.kind == kind).map(value);
        ensure!(values.clone().count() > 0, "no walk of kind {kind:?} was recorded");
        sum += median(values);
    }
    Ok(sum / kinds.len() as f64)
}

fn middle(times: &[f64]) -> f64 {
    median(times.iter().copied())
}

/// Splits the values into parts, and returns the median of the parts' maxima: where the host took a CPU away,
/// that spoils one part and not the result.
fn longest(values: &[f64]) -> f64 {
    const PARTS: usize = 5;
    let parts = values.chunks(values.len().div_ceil(PARTS).max(1));
    median(parts.map(|part| part.iter().copied().fold(0.0, f64::max)))
}

/// Returns how many page faults without I/O the calling thread has had.
fn faults() -> Result<i64> {
    // SAFETY: rusage is plain data, for which all zeroes is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid rusage for the kernel to write to.
    match unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) } {
        0 => Ok(usage.ru_minflt),
        _ => Err(std::io::Error::last_os_error()).context("getrusage"),
    }
}

/// Returns how long to wait before the `i`th page fault: in step with nothing else.
fn pause(i: usize) -> Duration {
    const STEPS: u32 = 17;
    MEAN_PAUSE / 2 + MEAN_PAUSE * (i as u32 * 7 % STEPS) / STEPS
}

/// Spins for `time`, and returns the longest time in nanoseconds for which the thread did not run.
fn longest_gap(time: Duration) -> u64 {
    let began = clock::now();
    let (mut last, mut longest) = (began, 0);
    while u128::from(last - began) < time.as_nanos() {
        let now = clock::now();
        longest = longest.max(now - last);
        last = now;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_fits() {
        for case in &CASES {
            assert!(case.pages * case.maps <= case.vmas, "{}", case.name);
            assert_eq!(case.name, format!("{}-vmas-{}-maps", case.vmas, case.maps));
        }
        // The case with fewer VMAs comes first, because growth is measured from there.
        assert!(CASES.windows(3).all(|w| w[0].maps == w[2].maps && w[0].vmas * 10 == w[2].vmas));
    }

    #[test]
    fn each_kind_of_walk_counts_once() {
        let walk = |kind, took| Walk { kind, took, hold: 0.0 };
        let walks = [
            walk(Kind::Migrate, 10.0),
            walk(Kind::Migrate, 12.0),
            walk(Kind::Migrate, 90.0),
            walk(Kind::Restore, 30.0),
        ];
        assert_eq!(mean_of(&walks, MIGRATION, |w| w.took).unwrap(), 21.0);
        assert!(mean_of(&walks[..3], MIGRATION, |w| w.took).is_err());
        assert!(mean_of(&walks, [Kind::Migrate, Kind::Unmap], |w| w.took).is_err());
    }

    #[test]
    fn one_interruption_does_not_count() {
        let mut values: Vec<f64> = (0..50).map(|i| f64::from(i % 10)).collect();
        assert_eq!(longest(&values), 9.0);
        values[20] = 1000.0;
        assert_eq!(longest(&values), 9.0);
        values[40] = 20.0;
        values[30] = 30.0;
        assert_eq!(longest(&values), 20.0);
        assert_eq!(longest(&[3.0, 2.0]), 2.5);
        assert!(longest(&[]).is_nan());
    }

    #[test]
    fn pauses_have_their_mean() {
        let all: Vec<Duration> = (0..170).map(pause).collect();
        let mean = all.iter().sum::<Duration>() / 170;
        assert!(mean > MEAN_PAUSE * 9 / 10 && mean < MEAN_PAUSE * 11 / 10, "{mean:?}");
        assert!(all.iter().all(|p| *p >= MEAN_PAUSE / 2 && *p <= MEAN_PAUSE * 3 / 2));
        let began = clock::now();
        assert!(longest_gap(Duration::from_millis(2)) > 0);
        assert!(clock::now() - began >= 2_000_000);
    }

    #[test]
    fn page_faults_are_counted() {
        let area = Area::new(4).unwrap();
        let before = faults().unwrap();
        (0..4).for_each(|page| area.write(page));
        assert!(faults().unwrap() >= before + 4);
    }
}
