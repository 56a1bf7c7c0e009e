// SPDX-License-Identifier: GPL-2.0-only
//! How long dying processes hold a page table's lock, from trace events.
//!
//! The function that frees a table's pages is inlined, and so is the unlock. So the events are the return
//! from the function that takes the lock, and `kmem:rss_stat`, which always occurs at the end of the work
//! under the lock: all that was freed is counted at once. Interrupts in between count as well. That event
//! sums over all CPUs, which is cheap with one CPU.

use std::collections::HashMap;

use anyhow::{Context as _, Result};

use crate::trace::locks::Symbols;
use crate::trace::tracefs::{Clock, Probe, Trace, events};

/// What takes the lock; in Linux 7.3 the second one calls no other.
const LOCKS: [&str; 2] = ["__pte_offset_map_lock", "pte_offset_map_lock"];
const LOCKED: &str = "pte_locked";
const COUNTED: &str = "rss_stat";

/// Records while `work` runs. Returns the longest time for which one of these threads held a lock, in
/// microseconds.
///
/// # Errors
/// When `work` fails, an event was lost ([`crate::trace::tracefs::Lost`]), or no lock was held.
pub fn longest(tids: &[i32], work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let locked = Probe { name: LOCKED, kind: "r", what: Symbols::read()?.first_of(&LOCKS)?.to_owned() };
    let mut trace = Trace::new("pte_lock", Clock::Mono, &[locked])?;
    trace.add_event("kmem/rss_stat");
    let ((), text) = trace.record(work)?;
    longest_in(&text, tids)?.context("no page table's lock was held")
}

fn longest_in(trace: &str, tids: &[i32]) -> Result<Option<u64>> {
    let mut since: HashMap<i32, u64> = HashMap::new();
    let mut longest = None;
    for event in events(trace) {
        let (_, event) = event?;
        match event.name {
            LOCKED if tids.contains(&event.tid) => drop(since.insert(event.tid, event.at)),
            COUNTED => {
                if let Some(since) = since.get(&event.tid) {
                    longest = longest.max(Some(event.at.saturating_sub(*since)));
                }
            }
            _ => {}
        }
    }
    Ok(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_ends_when_all_is_counted() {
        let trace = "\
            exe-40 [000] d.... 4.000000: rss_stat: mm_id=1 curr=1 type=MM_ANONPAGES size=4096B\n\
            exe-40 [000] d.... 4.000010: pte_locked: (a+0x0/0x1 <- __pte_offset_map_lock)\n\
            exe-40 [000] d.... 4.000020: rss_stat: mm_id=1 curr=1 type=MM_ANONPAGES size=0B\n\
            exe-41 [000] d.... 4.000021: pte_locked: (a+0x0/0x1 <- __pte_offset_map_lock)\n\
            exe-42 [000] d.... 4.000022: pte_locked: (a+0x0/0x1 <- __pte_offset_map_lock)\n\
            exe-40 [000] d.... 4.000023: rss_stat: mm_id=1 curr=1 type=MM_SWAPENTS size=0B\n\
            exe-40 [000] d.... 4.000900: pte_locked: (a+0x0/0x1 <- __pte_offset_map_lock)\n\
            exe-40 [000] d.... 4.000905: rss_stat: mm_id=1 curr=1 type=MM_SWAPENTS size=0B\n\
            exe-41 [000] d.... 4.001000: rss_stat: mm_id=2 curr=1 type=MM_SWAPENTS size=0B\n\
            exe-42 [000] d.... 4.009000: rss_stat: mm_id=3 curr=1 type=MM_SWAPENTS size=0B\n";
        assert_eq!(longest_in(trace, &[40]).unwrap(), Some(13));
        assert_eq!(longest_in(trace, &[40, 41]).unwrap(), Some(979));
        assert_eq!(longest_in(trace, &[43]).unwrap(), None);
    }
}
