// SPDX-License-Identifier: GPL-2.0-only
//! The cost of the reverse map's walks over KSM pages, from kprobes on functions that every 6.12 kernel has:
//! how long a walk takes, how long it holds the anon_vma's lock, how many VMAs it visits. Each is measured
//! with probes of its own, so that the cost of probes for one does not add to another.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::system::clock;
use crate::trace::tracefs::{Clock, Event, Lost, Probe, Trace, events, field, text_field};

/// The names of the events.
const ENTER: &str = "walk_enter";
const LEAVE: &str = "walk_leave";
const TRIED: &str = "lock_tried";
const LOCKED: &str = "lock_taken";
const FREED: &str = "lock_freed";
const DONE: &str = "walk_done";
const FIRST: &str = "tree_first";
const NEXT: &str = "tree_next";
const FOUND: &str = "anon_vma_found";

/// The purpose of a walk, by the function that it calls for each mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Migration removes the page from the page tables.
    Migrate,
    /// Migration inserts the copy.
    Restore,
    /// Reclaim checks whether the page was accessed.
    Referenced,
    /// Reclaim removes the page from the page tables.
    Unmap,
}

impl Kind {
    fn of(function: &str) -> Option<Self> {
        match function.split(['.', '+']).next()? {
            "try_to_migrate_one" => Some(Self::Migrate),
            "remove_migration_pte" => Some(Self::Restore),
            "folio_referenced_one" => Some(Self::Referenced),
            "try_to_unmap_one" => Some(Self::Unmap),
            _ => None,
        }
    }
}

/// One walk over a KSM page's mappings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Walk {
    /// Its purpose.
    pub kind: Kind,
    /// Nanoseconds from its entry to its return.
    pub took: f64,
    /// The longest time for which it held the lock without a break, in nanoseconds; 0 when locks were not
    /// recorded.
    pub hold: f64,
}

/// The number of VMAs that walks visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visits {
    /// Number of walks.
    pub walks: u64,
    /// VMAs that all of them visited.
    pub vmas: u64,
}

/// Records walks and how long they take.
pub struct WalkTrace {
    trace: Trace,
    /// Nanoseconds per tick of the clock.
    tick: f64,
}

impl WalkTrace {
    /// Creates the probes of entry and return, for times.
    ///
    /// # Errors
    /// When the kernel lacks what the probes need.
    pub fn of_times() -> Result<Self> {
        Self::new(&[])
    }

    /// Creates these and the probes of the reader-writer semaphores that the calling thread takes, for lock
    /// holds.
    ///
    /// # Errors
    /// When the kernel lacks what the probes need.
    pub fn of_locks() -> Result<Self> {
        let this = Self::new(&[
            probe(FREED, "p", "up_read sem=$arg1:x64"),
            // Other threads may sleep for a semaphore meanwhile, each of which needs a return probe.
            probe(LOCKED, "r64", "down_read sem=$arg1:x64"),
            probe(TRIED, "r64", "down_read_trylock sem=$arg1:x64 ok=$retval:x32"),
        ])?;
        this.trace.filter_thread(rustix::thread::gettid().as_raw_pid())?;
        Ok(this)
    }

    fn new(more: &[Probe]) -> Result<Self> {
        Ok(Self { trace: Trace::new("memreap", Clock::Finest, &[more, &walk_probes()].concat())?, tick: tick()? })
    }

    /// Runs `work`, and returns also the walks meanwhile.
    ///
    /// # Errors
    /// When `work` fails, an event was lost ([`crate::trace::tracefs::Lost`]), or the trace is inconsistent.
    pub fn record<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Vec<Walk>)> {
        let (done, trace) = self.trace.record(work)?;
        let walks =
            parse(&trace, self.tick).with_context(|| format!("{}: inconsistent trace", self.trace.file().display()))?;
        Ok((done, walks))
    }
}

/// Counts the VMAs that walks visit while `work` runs.
///
/// A walk asks the interval tree for the first VMA and then for the next one until there is none, unless the
/// page is done earlier. Each request for a next VMA follows a visit, so only the last VMA of a search that
/// ends early has to be added. That saves a return probe in the innermost loop, which makes millions of
/// steps.
///
/// # Errors
/// When `work` fails, an event was lost, or another thread used such a tree meanwhile
/// ([`crate::trace::tracefs::Lost`]).
pub fn count_visits<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Visits)> {
    let counter = Trace::new("memreap-count", Clock::Finest, &[probe(NEXT, "p", "anon_vma_interval_tree_iter_next")])?;
    let mut probes = vec![probe(DONE, "r", "folio_not_mapped done=$retval:x32")];
    probes.extend(walk_probes());
    probes.push(probe(FIRST, "p", "anon_vma_interval_tree_iter_first"));
    let trace = Trace::new("memreap", Clock::Finest, &probes)?;
    let ((done, text), hits) = counter.count(|| trace.record(work))?;
    let steps = hits.get(NEXT).copied().unwrap_or(0);
    let visits =
        parse_visits(&text, steps).with_context(|| format!("{}: inconsistent trace", trace.file().display()))?;
    Ok((done, visits))
}

/// Runs `work`, and returns also the addresses of the anon_vmas that its first touches of VMAs joined; 0
/// where there was none to join.
///
/// # Errors
/// When `work` fails, or an event was lost ([`crate::trace::tracefs::Lost`]).
pub fn joined<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Vec<u64>)> {
    let found = probe(FOUND, "r", "find_mergeable_anon_vma found=$retval:x64");
    let trace = Trace::new("memreap", Clock::Finest, &[found])?;
    trace.filter_thread(rustix::thread::gettid().as_raw_pid())?;
    let (done, text) = trace.record(work)?;
    let found = events(&text).map(|e| field(e?.1.fields, "found").context("no value"));
    let found = found.collect::<Result<_>>().with_context(|| trace.file().display().to_string())?;
    Ok((done, found))
}

fn probe(name: &'static str, kind: &'static str, what: &str) -> Probe {
    Probe { name, kind, what: what.to_owned() }
}

fn walk_probes() -> [Probe; 2] {
    // In struct rmap_walk_control, the function to call for each mapping follows a pointer and two bools.
    [probe(LEAVE, "r", "rmap_walk_ksm"), probe(ENTER, "p", "rmap_walk_ksm one=+16($arg2):symbol")]
}

/// Measures the nanoseconds per tick of [`Clock::Finest`].
fn tick() -> Result<f64> {
    let (began, first) = (clock::now(), ticks());
    thread::sleep(Duration::from_millis(50));
    let (ended, last) = (clock::now(), ticks());
    ensure!(last > first, "the time stamp counter does not advance");
    Ok((ended - began) as f64 / (last - first) as f64)
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 CPU and has no side effects; Linux allows it to user
    // programs.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The trace shows microseconds.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    clock::now() / 1000
}

/// A walk that has not returned.
struct OpenWalk {
    kind: Kind,
    since: u64,
    /// The semaphore that it holds, and since when.
    held: Option<(u64, u64)>,
    longest: u64,
}

/// The walks that have not returned, by thread.
#[derive(Default)]
struct OpenWalks(HashMap<i32, OpenWalk>);

impl OpenWalks {
    fn enter(&mut self, event: &Event<'_>) -> Result<()> {
        let function = text_field(event.fields, "one").context("no function")?;
        let kind = Kind::of(function).with_context(|| format!("a walk that calls {function}"))?;
        let open = OpenWalk { kind, since: event.at, held: None, longest: 0 };
        ensure!(self.0.insert(event.tid, open).is_none(), "a walk within a walk");
        Ok(())
    }

    fn leave(&mut self, event: &Event<'_>) -> Result<OpenWalk> {
        self.0.remove(&event.tid).context("a return without an entry")
    }

    /// Notes a semaphore that a thread has taken, if it is in a walk.
    fn lock(&mut self, event: &Event<'_>) -> Result<()> {
        let Some(open) = self.0.get_mut(&event.tid) else { return Ok(()) };
        let semaphore = field(event.fields, "sem").context("no semaphore")?;
        ensure!(open.held.replace((semaphore, event.at)).is_none(), "two semaphores held at a time");
        Ok(())
    }

    /// Notes a semaphore that a thread has released, if it is in a walk.
    fn unlock(&mut self, event: &Event<'_>) -> Result<()> {
        let Some(open) = self.0.get_mut(&event.tid) else { return Ok(()) };
        let semaphore = field(event.fields, "sem").context("no semaphore")?;
        match open.held.take() {
            Some((held, since)) if held == semaphore => open.longest = open.longest.max(event.at - since),
            _ => bail!("semaphore {semaphore:#x} was released but not taken"),
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        ensure!(self.0.is_empty(), "a walk without a return");
        Ok(())
    }
}

fn parse(trace: &str, tick: f64) -> Result<Vec<Walk>> {
    let (mut open_walks, mut walks) = (OpenWalks::default(), Vec::new());
    for event in events(trace) {
        let (line, event) = event?;
        let done = match event.name {
            ENTER => open_walks.enter(&event),
            LEAVE => open_walks.leave(&event).map(|open| {
                let took = (event.at - open.since) as f64 * tick;
                walks.push(Walk { kind: open.kind, took, hold: open.longest as f64 * tick });
            }),
            // Zero: another thread holds it, and the walk will wait for it.
            TRIED if field(event.fields, "ok") == Some(0) => Ok(()),
            TRIED | LOCKED => open_walks.lock(&event),
            FREED => open_walks.unlock(&event),
            _ => Err(anyhow!("unknown event")),
        };
        done.with_context(|| format!("line {line}: {event:?}"))?;
    }
    open_walks.finish()?;
    Ok(walks)
}

/// Returns how many walks there were, and how many VMAs they visited in `steps` steps.
fn parse_visits(trace: &str, steps: u64) -> Result<Visits> {
    let mut open_walks = OpenWalks::default();
    let mut visits = Visits { walks: 0, vmas: steps };
    for event in events(trace) {
        let (line, event) = event?;
        let done = match event.name {
            ENTER => open_walks.enter(&event),
            LEAVE => open_walks.leave(&event).map(|_| visits.walks += 1),
            // The steps of all threads are counted, so no other thread may make any.
            FIRST if !open_walks.0.contains_key(&event.tid) => {
                return Err(Lost(format!("thread {} used an anon_vma as well", event.tid)).into());
            }
            FIRST => Ok(()),
            DONE => field(event.fields, "done").context("no value").map(|done| {
                let early = open_walks.0.contains_key(&event.tid) && done != 0;
                visits.vmas += u64::from(early);
            }),
            _ => Err(anyhow!("unknown event")),
        };
        done.with_context(|| format!("line {line}: {event:?}"))?;
    }
    open_walks.finish()?;
    Ok(visits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(tid: i32, at: u64, name: &str, fields: &str) -> String {
        format!(" exe-{tid} [000] ..... {at}: {name}: (f+0x0/0x1) {fields}\n")
    }

    fn enter(at: u64, function: &str) -> String {
        line(7, at, ENTER, &format!("one={function}+0x0/0x1450"))
    }

    #[test]
    fn walks_and_their_lock_holds_are_timed() {
        let trace = [
            line(7, 50, TRIED, "sem=0xaa ok=0x1"),
            enter(100, "try_to_migrate_one"),
            line(7, 110, TRIED, "sem=0xff ok=0x1"),
            line(7, 150, FREED, "sem=0xff"),
            line(8, 155, FREED, "sem=0xff"),
            line(7, 160, TRIED, "sem=0xff ok=0x0"),
            line(7, 170, LOCKED, "sem=0xff"),
            line(7, 180, FREED, "sem=0xff"),
            line(7, 200, LEAVE, ""),
            line(7, 250, FREED, "sem=0xaa"),
            enter(300, "remove_migration_pte.isra.0"),
            line(7, 400, LEAVE, ""),
        ];
        let walks = parse(&trace.concat(), 2.0).unwrap();
        assert_eq!(
            walks,
            [
                Walk { kind: Kind::Migrate, took: 200.0, hold: 80.0 },
                Walk { kind: Kind::Restore, took: 200.0, hold: 0.0 }
            ]
        );
    }

    #[test]
    fn an_inconsistent_trace_is_an_error() {
        for (trace, expected) in [
            (vec![line(7, 1, LEAVE, "")], "without an entry"),
            (vec![enter(1, "try_to_unmap_one")], "without a return"),
            (vec![enter(1, "try_to_unmap_one"), enter(2, "try_to_unmap_one")], "within"),
            (vec![enter(1, "page_mkclean_one")], "page_mkclean_one"),
            (vec![enter(1, "try_to_unmap_one"), line(7, 2, FREED, "sem=0x1")], "not taken"),
            (vec![line(7, 2, "unmap", "")], "unknown event"),
        ] {
            let error = format!("{:#}", parse(&trace.concat(), 1.0).unwrap_err());
            assert!(error.contains(expected), "{expected:?} is not in: {error}");
        }
    }

    #[test]
    fn a_search_that_ends_early_visits_one_more() {
        let trace = [
            enter(1, "try_to_migrate_one"),
            line(7, 2, FIRST, ""),
            line(7, 3, DONE, "done=0x0"),
            line(7, 4, FIRST, ""),
            line(7, 5, DONE, "done=0x1"),
            line(7, 6, LEAVE, ""),
        ]
        .concat();
        assert_eq!(parse_visits(&trace, 20_000).unwrap(), Visits { walks: 1, vmas: 20_001 });
        let other = trace + &line(8, 9, FIRST, "");
        assert!(parse_visits(&other, 1).unwrap_err().is::<Lost>());
    }

    #[test]
    fn the_counter_ticks() {
        assert!(tick().unwrap() > 0.0);
    }
}
