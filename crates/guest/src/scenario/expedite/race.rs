// SPDX-License-Identifier: GPL-2.0-only
//! How often does a kill come too late to have another process free the memory, although it is still there?

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::memory::PAGE_BYTES;
use crate::process::victim::{Layout, Victim};
use crate::system::clock;
use crate::system::counters::value;
use init::report::Reporter;

/// The memory of a victim that races: four times as much as the kernel frees early at least.
const RACER: Layout = Layout { pages: (4 << 20) / PAGE_BYTES, vmas: 1 };
/// With so many pages still mapped the memory was still there: a MiB, and the error of the counter.
const STILL_THERE_PAGES: u64 = (1 << 20) / PAGE_BYTES as u64 + 128;
/// How long after the victim's end a worker may take to count what it has freed.
const COUNT_TIMEOUT: Duration = Duration::from_millis(20);
/// Kills that race with exits.
const KILLS: u32 = 250;
/// A racing victim begins to exit by itself at most so long before the kill...
const EARLIEST_EXIT: Duration = Duration::from_millis(2);
/// ...and at most so long after it.
const LATEST_EXIT: Duration = Duration::from_micros(500);

/// What became of the memory of one victim that raced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Raced {
    /// Another process freed it.
    Freed,
    /// It was back already, or nearly.
    Over,
    /// It was still there, but the victim itself freed it.
    Lost,
}

/// Kills victims, every other of which begins to exit by itself at about that time, and returns for how many
/// it was too late.
pub(super) fn lost(cpus: usize, expedites: bool, out: &mut Reporter) -> Result<u32> {
    let mut counts = [[0u32; 3]; 2];
    for i in 0..KILLS {
        if i % 50 == 0 {
            out.progress(&format!("race: {i} of {KILLS}"));
        }
        let exits = i % 2 == 1;
        let raced = race_once(exits.then(|| exit_lead(i / 2)), cpus, expedites)?;
        counts[usize::from(exits)][raced as usize] += 1;
    }
    for (kind, [freed, over, lost]) in ["just killed", "exiting by themselves"].into_iter().zip(counts) {
        out.note(&format!(
            "race: victims {kind}: {freed} freed by others, {over} already gone, {lost} not freed although their \
             memory was there"
        ));
    }
    Ok(counts.iter().map(|c| c[Raced::Lost as usize]).sum())
}

/// Returns how long before the kill the `i`th racing victim begins to exit, in nanoseconds; negative is after
/// the kill. All are spread evenly, in no order.
fn exit_lead(i: u32) -> i64 {
    const STEPS: u32 = 1000;
    let (early, late) = (EARLIEST_EXIT.as_nanos() as i64, LATEST_EXIT.as_nanos() as i64);
    // 617 is prime to the number of steps, and about its golden section.
    let share = i64::from(i % STEPS * 617 % STEPS);
    early - (early + late) * share / i64::from(STEPS)
}

/// Kills one victim, which begins to exit `lead` nanoseconds before the kill, or not at all.
fn race_once(lead: Option<i64>, cpus: usize, expedites: bool) -> Result<Raced> {
    // Time enough to prepare the kill.
    const PREPARATION: Duration = Duration::from_millis(3);
    let (reader, writer) = rustix::pipe::pipe().context("pipe")?;
    let mut exit_time = File::from(writer);
    let victim = Victim::spawn_to(RACER, 0..cpus, || {
        let mut at = [0; 8];
        // A victim that cannot read or sleep exits at once, which counts as over.
        if File::from(reader).read_exact(&mut at).is_ok() {
            let _ = clock::sleep_until(u64::from_ne_bytes(at));
        }
    })?;
    victim.set_free(cpus)?;
    ensure!(victim.mrelease()?.is_none(), "a victim was dying before the kill");
    let mut vmstat = Vmstat::open()?;
    let before = vmstat.read()?;
    let at = clock::now() + PREPARATION.as_nanos() as u64;
    if let Some(lead) = lead {
        exit_time.write_all(&at.saturating_add_signed(-lead).to_ne_bytes()).context("pipe to a victim")?;
    }
    clock::sleep_until(at)?;
    let mut freed = false;
    if expedites {
        victim.pidfd().kill_expedited()?;
    } else {
        victim.kill().context("kill")?;
        freed = victim.mrelease()?.is_some_and(|released| !released.too_late);
    }
    let after = vmstat.read()?;
    victim.wait_until_dead().context("wait for a victim")?;
    victim.reap().context("reap a victim")?;
    let left = (after.anon + RACER.pages as u64).saturating_sub(before.anon);
    let until = clock::now() + COUNT_TIMEOUT.as_nanos() as u64;
    while expedites && !freed && clock::now() < until {
        freed = vmstat.read()?.freed > before.freed;
    }
    Ok(classify(freed, left))
}

/// `freed` is whether another process or the kernel freed the memory, `left_pages` how many of the victim's pages were
/// still mapped right after the kill.
fn classify(freed: bool, left_pages: u64) -> Raced {
    if freed {
        Raced::Freed
    } else if left_pages < STILL_THERE_PAGES {
        Raced::Over
    } else {
        Raced::Lost
    }
}

/// Counters of /proc/vmstat, read as fast as possible: what they count does not wait.
struct Vmstat {
    file: File,
    text: Vec<u8>,
}

/// The counters that are needed.
struct Counts {
    /// Anonymous pages that are mapped in all processes.
    anon: u64,
    /// Pages that the kernel has freed for killed processes; `None` if it never does that.
    freed: Option<u64>,
}

impl Vmstat {
    const PATH: &str = "/proc/vmstat";

    fn open() -> Result<Self> {
        let file = File::open(Self::PATH).context(Self::PATH)?;
        Ok(Self { file, text: Vec::with_capacity(1 << 16) })
    }

    fn read(&mut self) -> Result<Counts> {
        self.text.clear();
        self.file.rewind().and_then(|()| self.file.read_to_end(&mut self.text)).context(Self::PATH)?;
        Counts::parse(&String::from_utf8_lossy(&self.text)).with_context(|| format!("no counters in {}", Self::PATH))
    }
}

impl Counts {
    fn parse(text: &str) -> Option<Self> {
        Some(Self { anon: value(text, "nr_anon_pages ")?, freed: value(text, "expedite_pages ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_are_spread_over_all_the_time_around_the_kill() {
        let (early, late) = (EARLIEST_EXIT.as_nanos() as i64, LATEST_EXIT.as_nanos() as i64);
        let mut leads: Vec<i64> = (0..1000).map(exit_lead).collect();
        assert!(leads.iter().all(|&l| l <= early && l > -late));
        // The first of them as well: one boot makes fewer.
        let before = leads[..125].iter().filter(|&&l| l > 0).count();
        assert!((90..=110).contains(&before), "{before}");
        leads.sort_unstable();
        let step = (early + late) / 1000;
        assert!(leads.windows(2).all(|w| w[1] - w[0] == step));
    }

    #[test]
    fn memory_that_is_still_there_and_not_freed_is_lost() {
        assert_eq!(classify(true, 1024), Raced::Freed);
        assert_eq!(classify(true, 0), Raced::Freed);
        assert_eq!(classify(false, 1024), Raced::Lost);
        assert_eq!(classify(false, 500), Raced::Lost);
        // So little is left to the victim.
        assert_eq!(classify(false, 256), Raced::Over);
    }

    #[test]
    fn counters_are_found_by_their_whole_names() {
        let text = "nr_free_pages 12\nnr_anon_pages 900\nexpedite_kill 34\nexpedite_pages_x 1\nexpedite_pages 56\n";
        let counts = Counts::parse(text).unwrap();
        assert_eq!((counts.anon, counts.freed), (900, Some(56)));
        assert_eq!(Counts::parse("nr_anon_pages 900\nexpedite_kill 1\n").unwrap().freed, None);
        assert!(Counts::parse("").is_none());
        assert!(Vmstat::open().unwrap().read().unwrap().anon > 0);
    }
}
