// SPDX-License-Identifier: GPL-2.0-only
//! Watches the guest's serial console for messages of the kernel about problems ("splats").
//!
//! Only lines with the kernel's time stamp count (every kernel boots with `printk.time=1`), so a program that
//! prints `WARNING:` on the console is not mistaken for the kernel. A job that expects such a message allows
//! it by a regular expression in [`crate::vm::job::Job::allow`]. By default nothing is allowed, and a panic
//! never is.

use std::sync::LazyLock;

use anyhow::{Context as _, Result};
use protocol::line::Lines;
use regex::Regex;

/// What a kernel under test must not print: the kind, for reports, and a regular expression. The first match
/// decides the kind, so specific patterns come before general ones.
pub(crate) const DENYLIST: &[(&str, &str)] = &[
    ("KASAN", r"KASAN:"),
    ("KCSAN", r"KCSAN: (data-race|assert)"),
    ("UBSAN", r"UBSAN:"),
    ("memory leak", r"kmemleak: (\d+ new suspected memory leaks|unreferenced object )"),
    // After these messages kmemleak misses leaks. The message that it is disabled is not in the list because
    // most jobs do not need it; PID 1 fails the jobs that do.
    ("kmemleak", r"kmemleak: (Memory pool empty|Cannot (allocate a kmemleak_object|insert)|.* unknown object at )"),
    (
        "lockdep",
        r"possible (circular|recursive|irq lock inversion|irq nesting)|inconsistent lock state|bad unlock balance|held lock freed|lock held when returning|nested lock was not taken|possible unsafe locking|trying to register non-static key|Invalid wait context|DEBUG_LOCKS_WARN_ON",
    ),
    ("RCU", r"suspicious RCU usage"),
    ("sleep in atomic", r"sleeping function called from invalid context|scheduling while atomic"),
    ("rss counter", r"Bad rss-counter state|non-zero pgtables_bytes"),
    ("page state", r"Bad page (state|map|cache)|pagealloc: (single bit error|memory corruption)"),
    ("page table", r": bad p(gd|4d|ud|md|te) "),
    ("swap entry", r"(Bad|Unused) swap (file|offset) entry|unrecognized swap entry"),
    ("slab", r"BUG .* \((Not tainted|Tainted: .*)\): "),
    ("zsmalloc", r"fullness group \d+ is not empty"),
    ("preempt count", r"huh, entered softirq"),
    ("hung task", r"INFO: task .* blocked"),
    ("RCU stall", r"rcu: INFO: rcu_.* (detected (expedited )?stalls|self-detected stall)"),
    ("lockup", r"soft lockup|hard LOCKUP"),
    ("list corruption", r"list_(del|add)[a-z_]* corruption"),
    ("GP fault", r"general protection fault"),
    ("MSR", r"unchecked MSR access"),
    ("BUG", r"kernel BUG at|BUG:"),
    ("Oops", r"Oops:"),
    ("WARN", r"WARNING:"),
];

/// Data races of the stock kernel that KCSAN reports, and which therefore are no complaint about a change: the
/// functions as a pattern, and a function that must be in one of the stacks. Only kernels of the variant
/// `kcsan` print such a report. Each entry has its reason; a race between the same functions by another way,
/// as from a topic's code, is a complaint.
///
/// `lock_vma_under_rcu()` looks for the VMA of a page fault in the maple tree while the holder of the
/// mmap_lock stores into it: it moves the end of a VMA in place, or replaces nodes, marks the old ones as dead
/// and frees them by RCU, whose list head lies over what was read. The reader reads words that are written at
/// once, takes the VMA's lock and then checks that the address is in the VMA; if not, or if it comes to a dead
/// node, the fault is repeated under the mmap_lock. None of the accesses is marked (lib/maple_tree.c). Stock
/// 6.12.117 prints these reports within seconds if a thread touches pages while another maps more next to them.
///
/// `isolate_folios()`, of the multi-gen LRU, asks `folio_evictable()` about folios that are being truncated.
/// The mapping is read once, and an inode is freed by RCU; a folio without one stays where it is or is freed.
/// Neither access is marked (mm/util.c, mm/filemap.c).
///
/// `evict_folios()` asks the same about folios that are being removed from the swap cache. The entry is read
/// once; after the removal it is 0, and so the address space that of the first swap area, which is as evictable,
/// or NULL (mm/util.c, mm/swap_state.c).
///
/// `zs_map_object()` and `zs_free()` read the size class of a zspage, a bit field that never changes, while another
/// CPU writes the fullness beside it under the lock of the class, which is found by reading that (mm/zsmalloc.c;
/// `free_object()` is the part of `zs_free()` that `swap-batch` calls for several handles).
pub(crate) const KNOWN_RACES: &[(&str, &str)] = &[
    (r"mas_walk / mas_\w+|(mas_\w+|__call_rcu_common) / mas_walk", "lock_vma_under_rcu+"),
    ("__filemap_remove_folio / folio_mapping", "isolate_folios+"),
    ("__delete_from_swap_cache / folio_mapping", "evict_folios+"),
    ("fix_fullness_group / zs_map_object", "zs_malloc+"),
    ("fix_fullness_group / free_object", "zs_free_bulk+"),
];

/// [`KNOWN_RACES`] as the first lines of reports. GCC may have made a variant of a function.
static KNOWN_RACE_TITLES: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    let title = |functions: &str| {
        let functions = functions.replace(' ', r"(?:\.constprop\.\d+)? ");
        Regex::new(&format!(r"^BUG: KCSAN: data-race in (?:{functions})(?:\.constprop\.\d+)?$")).expect("a constant")
    };
    KNOWN_RACES.iter().map(|(functions, needed)| (title(functions), *needed)).collect()
});

/// The bits of /proc/sys/kernel/tainted that a message of the denylist sets.
const TAINTS: &[(u32, &str)] = &[(5, "bad page"), (7, "oops"), (9, "warning"), (14, "soft lockup")];

/// What follows the stacks of a report of KCSAN.
const RACE_STACKS_END: &str = "Reported by Kernel Concurrency Sanitizer";

/// The beginning of the message of a panic. It is reported even if other lines of the denylist came before.
const PANIC_MESSAGE: &str = "Kernel panic";

static DENYLIST_REGEXES: LazyLock<Vec<(&'static str, Regex)>> = LazyLock::new(|| {
    DENYLIST.iter().map(|(kind, pattern)| (*kind, Regex::new(pattern).expect("a constant"))).collect()
});

/// `[    1.234567]`, the caller if CONFIG_PRINTK_CALLER is set, then the message.
static TIME_STAMPED_LINE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\[ *\d+\.\d{6}\](?:\[ *[TC]\d+\])? ?(.*)").expect("a constant"));

/// What was found on the console so far.
#[derive(Debug, Default)]
pub struct ConsoleWatch {
    allow: Vec<Regex>,
    lines: Lines,
    /// The line of a panic.
    pub(crate) panic: Option<String>,
    /// The first denylisted line that is not allowed, with its kind.
    pub(crate) splat: Option<(&'static str, String)>,
    /// A report of KCSAN that began as a known race, and the function that has to follow.
    race: Option<(String, &'static str)>,
    /// The last line that was not empty. It shows the progress of a guest that reports none.
    pub(crate) last: String,
}

impl ConsoleWatch {
    /// Starts a watch. `allow` are regular expressions of denylisted lines that the job expects.
    ///
    /// # Errors
    /// When an expression is invalid.
    pub fn new(allow: &[String]) -> Result<Self> {
        let allow = allow
            .iter()
            .map(|a| Regex::new(a).with_context(|| format!("allowed console line '{a}'")))
            .collect::<Result<_>>()?;
        Ok(Self { allow, ..Self::default() })
    }

    /// Takes the next bytes of the console.
    pub fn feed(&mut self, bytes: &[u8]) {
        for line in self.lines.feed(bytes) {
            self.line(&String::from_utf8_lossy(&line));
        }
    }

    /// Ends the console: a last line without a line end counts as well.
    pub fn finish(&mut self) {
        if let Some(rest) = self.lines.finish() {
            self.line(&String::from_utf8_lossy(&rest));
        }
        self.race_is_unknown();
    }

    /// Returns what the kernel says about itself by `tainted`, as in /proc/sys/kernel/tainted, and has not been seen
    /// on the console: parameters and programs can keep messages from it. Not when the job expects messages.
    pub fn unseen(&self, tainted: u64) -> Option<String> {
        let (bit, what) = TAINTS.iter().find(|(bit, _)| tainted >> bit & 1 != 0)?;
        self.allow.is_empty().then(|| format!("tainted by a {what} (bit {bit}) that is not on the console"))
    }

    fn line(&mut self, line: &str) {
        let line = line.trim_end();
        if line.is_empty() {
            return;
        }
        line.clone_into(&mut self.last);
        let Some(text) = TIME_STAMPED_LINE.captures(line).and_then(|found| found.get(1)) else { return };
        let text = text.as_str();
        if self.race.as_ref().is_some_and(|(_, function)| text.contains(function)) {
            self.race = None;
        } else if text.contains(RACE_STACKS_END) {
            self.race_is_unknown();
        }
        if let Some((_, function)) = KNOWN_RACE_TITLES.iter().find(|(title, _)| title.is_match(text)) {
            self.race_is_unknown();
            self.race = Some((line.to_owned(), function));
            return;
        }
        if self.panic.is_none() && text.contains(PANIC_MESSAGE) {
            self.panic = Some(line.to_owned());
        } else if self.splat.is_none()
            && let Some((kind, _)) = DENYLIST_REGEXES.iter().find(|(_, pattern)| pattern.is_match(text))
            && !self.allow.iter().any(|a| a.is_match(text))
        {
            self.splat = Some((kind, line.to_owned()));
        }
    }

    /// A report that began as a known race had not the function that makes it one.
    fn race_is_unknown(&mut self) {
        if let Some((line, _)) = self.race.take()
            && self.splat.is_none()
        {
            self.splat = Some(("KCSAN", line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn splat(text: &str, allow: &[&str]) -> Option<&'static str> {
        let allow: Vec<_> = allow.iter().map(|a| (*a).to_owned()).collect();
        let mut watch = ConsoleWatch::new(&allow).unwrap();
        watch.feed(text.as_bytes());
        watch.finish();
        watch.splat.map(|(kind, _)| kind)
    }

    /// Lines that Linux 6.12 prints.
    #[test]
    fn messages_have_the_right_kind() {
        for (line, kind) in [
            ("WARNING: CPU: 1 PID: 67 at drivers/misc/lkdtm/bugs.c:112 lkdtm_WARNING+0x1a/0x20", "WARN"),
            ("WARNING: possible circular locking dependency detected", "lockdep"),
            ("WARNING: possible recursive locking detected", "lockdep"),
            ("WARNING: inconsistent lock state", "lockdep"),
            ("WARNING: bad unlock balance detected!", "lockdep"),
            ("WARNING: suspicious RCU usage", "RCU"),
            ("BUG: KASAN: slab-use-after-free in reap_chunk+0x12/0x90", "KASAN"),
            ("Oops: general protection fault, KASAN: null-ptr-deref in range", "KASAN"),
            ("BUG: KCSAN: data-race in reap_chunk / exit_mmap", "KCSAN"),
            ("UBSAN: shift-out-of-bounds in mm/reap.c:12:3", "UBSAN"),
            ("kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)", "memory leak"),
            ("kmemleak: unreferenced object 0xffff888003d2a1c0 (size 64):", "memory leak"),
            ("kmemleak: Memory pool empty, consider increasing CONFIG_DEBUG_KMEMLEAK_MEM_POOL_SIZE", "kmemleak"),
            ("kmemleak: Cannot allocate a kmemleak_object structure", "kmemleak"),
            ("kmemleak: Cannot insert 0xffff8880 into the object search tree (overlaps existing)", "kmemleak"),
            ("kmemleak: Freeing unknown object at 0xffff8880", "kmemleak"),
            ("BUG: sleeping function called from invalid context at mm/reap.c:1", "sleep in atomic"),
            ("BUG: Bad rss-counter state mm:00000000 type:MM_ANONPAGES val:1", "rss counter"),
            ("BUG: Bad page state in process x  pfn:12345", "page state"),
            ("BUG: Bad page map in process x  pte:8000", "page state"),
            ("pagealloc: memory corruption", "page state"),
            ("_swap_info_get: Unused swap offset entry 0001a2b3", "swap entry"),
            ("_swap_info_get: Unused swap file entry 0001a2b3", "swap entry"),
            ("get_swap_device: Bad swap offset entry 3fffffffffffe", "swap entry"),
            ("get_swap_device: Bad swap file entry 3fffffffffffe", "swap entry"),
            ("Bad swap file entry 3fffffffffffe", "swap entry"),
            ("unrecognized swap entry 0x7c00000000000000", "swap entry"),
            ("mm/pgtable-generic.c:54: bad pmd 00000000c2a5b5f6(80000000358000e7)", "page table"),
            ("mm/pgtable-generic.c:43: bad pud 00000000c2a5b5f6(80000000358000e7)", "page table"),
            ("mm/pgtable-generic.c:35: bad p4d 00000000c2a5b5f6(0000000000000020)", "page table"),
            ("mm/pgtable-generic.c:28: bad pgd 00000000c2a5b5f6(0000000000000020)", "page table"),
            ("BUG swap_release_run (Not tainted): Objects remaining on __kmem_cache_shutdown()", "slab"),
            ("BUG kmalloc-64 (Tainted: G    B   W         ): Poison overwritten", "slab"),
            ("zsmalloc: Class-64 fullness group 3 is not empty", "zsmalloc"),
            (
                "softirq: huh, entered softirq 9 RCU 00000000c2a5b5f6 with preempt_count 00000100, \
                 exited with 00000101?",
                "preempt count",
            ),
            ("INFO: task victim:42 blocked for more than 60 seconds.", "hung task"),
            ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", "RCU stall"),
            ("rcu: INFO: rcu_sched self-detected stall on CPU", "RCU stall"),
            ("watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [x:1]", "lockup"),
            ("list_del corruption. prev->next should be ffff, but was 0", "list corruption"),
            ("unchecked MSR access error: RDMSR from 0x1", "MSR"),
            ("BUG: kernel NULL pointer dereference, address: 0000000000000000", "BUG"),
            ("kernel BUG at mm/memory.c:1!", "BUG"),
            ("Oops: 0002 [#1] PREEMPT SMP", "Oops"),
        ] {
            let stamped = format!("[    1.234567] {line}\r\n");
            assert_eq!(splat(&stamped, &[]), Some(kind), "{line}");
            let caller = format!("[   12.234567][   T67] {line}\r\n");
            assert_eq!(splat(&caller, &[]), Some(kind), "{line}");
            let mixed = format!("a program's prompt> [    1.234567] {line}");
            assert_eq!(splat(&mixed, &[]), Some(kind), "{line}");
        }
    }

    #[test]
    fn harmless_lines_are_ignored() {
        for line in [
            "[    0.000000] Lock dependency validator: Copyright (c) 2006 Red Hat, Inc.",
            "[    0.000000] kasan: KernelAddressSanitizer initialized",
            "[    0.000000] kcsan: enabled early",
            "[    0.000000] kmemleak: Kernel memory leak detector disabled",
            "[    1.000000] kmemleak: Kernel memory leak detector initialized (mem pool available: 31415)",
            "[    2.000000] lkdtm: Performing direct entry WARNING",
            "[    2.000000] Out of memory: Killed process 12 (victim)",
            "WARNING: printed by a program, not the kernel",
            "BUG: likewise",
        ] {
            assert_eq!(splat(&format!("{line}\n"), &[]), None, "{line}");
        }
    }

    #[test]
    fn an_allowed_line_passes_and_the_next_does_not() {
        let text = "[    1.000000] WARNING: expected at a\n[    1.000001] WARNING: other\n";
        assert_eq!(splat(text, &["expected"]), Some("WARN"));
        assert_eq!(splat(text, &["expected", "other"]), None);
        assert!(ConsoleWatch::new(&["(".to_owned()]).is_err());
    }

    /// As Linux 6.12 printed it, shortened.
    #[test]
    fn a_known_race_passes_and_others_of_its_functions_do_not() {
        let report = |begin: &str, reader: &str| {
            format!(
                "[    8.756120] ==================================================================\n\
                 [    8.756337] BUG: KCSAN: {begin}\n\
                 [    8.756764] \n\
                 [    8.756975] write to 0xffff888003865450 of 8 bytes by task 314 on cpu 0:\n\
                 [    8.757289]  mas_wr_store_entry+0xb21/0x1150\n\
                 [    8.758087]  vma_expand+0x14d/0x2d0\n\
                 [    8.761742] read to 0xffff888003865450 of 8 bytes by task 315 on cpu 1:\n\
                 [    8.761954]  mas_walk+0x42b/0x6c0\n\
                 [    8.762109]  {reader}+0x119/0x1c0\n\
                 [    8.763138] Reported by Kernel Concurrency Sanitizer on:\n"
            )
        };
        let known = report("data-race in mas_walk / mas_wr_store_entry", "lock_vma_under_rcu");
        assert_eq!(splat(&known, &[]), None);
        assert_eq!(splat(&known.repeat(2), &[]), None);
        let freed = report("data-race in __call_rcu_common.constprop.0 / mas_walk", "lock_vma_under_rcu");
        assert_eq!(splat(&freed, &[]), None);
        let removed = report("data-race in __delete_from_swap_cache / folio_mapping", "evict_folios");
        assert_eq!(splat(&removed, &[]), None);
        let freed = report("data-race in fix_fullness_group / free_object", "zs_free_bulk");
        assert_eq!(splat(&freed, &[]), None);
        let other = report("data-race in fix_fullness_group / free_object", "zs_compact");
        assert_eq!(splat(&other, &[]), Some("KCSAN"));
        let warning = "[    9.000000] WARNING: other\n";
        assert_eq!(splat(&format!("{known}{warning}"), &[]), Some("WARN"));

        let ours = report("data-race in mas_walk / mas_wr_store_entry", "memreap_reap");
        assert_eq!(splat(&ours, &[]), Some("KCSAN"));
        assert_eq!(splat(&format!("{known}{ours}{warning}"), &[]), Some("KCSAN"));
        assert_eq!(splat(&format!("{ours}{known}"), &[]), Some("KCSAN"));
        // The log ends, or the next report begins, before the function is seen.
        let (half, _) = known.split_once("[    8.762109]").unwrap();
        assert_eq!(splat(half, &[]), Some("KCSAN"));
        assert_eq!(splat(&format!("{half}{known}"), &[]), Some("KCSAN"));
        for begin in [
            "data-race in mas_wr_store_entry / memreap_reap",
            "data-race in mas_walk / memreap_reap",
            "assert: race in mas_walk / mas_wr_store_entry",
        ] {
            assert_eq!(splat(&report(begin, "lock_vma_under_rcu"), &[]), Some("KCSAN"), "{begin}");
        }
    }

    #[test]
    fn a_panic_is_kept_as_well_as_the_splat_before_it() {
        let mut watch = ConsoleWatch::new(&[]).unwrap();
        watch.feed(b"[    1.000000] BUG: kernel NULL pointer dereference\n[    1.0000");
        watch.feed(b"01] Kernel panic - not syncing: Fatal exception");
        assert_eq!(watch.panic, None);
        watch.finish();
        assert_eq!(watch.panic.as_deref(), Some("[    1.000001] Kernel panic - not syncing: Fatal exception"));
        assert!(watch.splat.is_some());
        assert!(watch.last.contains("Kernel panic"));
    }
}
