// SPDX-License-Identifier: GPL-2.0-only
//! Which spin locks were contended, by which functions and for how long, and in which order addresses were
//! unmapped; from kprobe events in a trace instance of their own.
//!
//! There are three probes: entry of and return from `queued_spin_lock_slowpath`, which only a contended
//! acquisition enters, and entry of [`UNMAPS`]. `lock:contention_begin` is no substitute: it misses a
//! single waiter. Neither is the `stacktrace` trigger: unwinding under a contended lock adds to the
//! contention. Instead the return address identifies the function that acquires the lock. Where that is one
//! of the lock's own wrappers, which arm64 has inlined, it is the next return address on the stack, of which
//! the return probe records a few words.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead as _, BufReader};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::trace::tracefs::{Clock, Probe, Trace, events, field};

/// What unmaps a range; its third argument is the first address. The second name is that of Linux 7.3.
const UNMAPS: [&str; 2] = ["unmap_page_range", "__zap_vma_range"];
const SLOW_PATH: &str = "queued_spin_lock_slowpath";
/// Words recorded from the stack of a contended acquisition: more than any lock wrapper pushes.
const STACK_WORDS: usize = 8;

/// The names of the events.
const LEAVE: &str = "lock_leave";
const ENTER: &str = "lock_enter";
const UNMAP: &str = "unmap";

/// What a lock protects, by the function that acquires it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A page table: PTE or PMD lock.
    Pte,
    /// A node's or memcg's LRU lists (`lruvec->lru_lock`).
    Lru,
    /// A zone's free lists (`zone->lock`).
    Zone,
    /// Anything else.
    Other,
}

/// One contended acquisition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquisition {
    /// The lock's address.
    pub lock: u64,
    /// Microseconds from the entry of the slow path to its return.
    pub wait: u64,
    /// The function that acquired the lock; for an inlined function, the one that it is inlined in.
    pub caller: String,
    /// What the lock protects.
    pub kind: Kind,
}

/// One call of [`UNMAPS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmap {
    /// The thread.
    pub tid: i32,
    /// The range's first address.
    pub start: u64,
}

/// What was recorded, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// All contended acquisitions on all CPUs.
    pub acquisitions: Vec<Acquisition>,
    /// All calls that unmap.
    pub unmaps: Vec<Unmap>,
}

impl Recording {
    /// Returns the number of contended acquisitions of one kind, and the microseconds that they waited.
    pub fn contended(&self, kind: Kind) -> (usize, u64) {
        let of_kind = self.acquisitions.iter().filter(|a| a.kind == kind);
        of_kind.fold((0, 0), |(n, us), a| (n + 1, us + a.wait))
    }

    /// Returns the percentage of a thread's unmapped ranges, except for the first, whose address is below
    /// that of the range before; 0 if there is only one, and NaN if there is none.
    pub fn descending(&self, tid: i32) -> f64 {
        let starts: Vec<u64> = self.unmaps.iter().filter(|u| u.tid == tid).map(|u| u.start).collect();
        let down = starts.windows(2).filter(|w| w[1] < w[0]).count();
        match starts.len() {
            0 => f64::NAN,
            1 => 0.0,
            n => 100.0 * down as f64 / (n - 1) as f64,
        }
    }

    /// Returns the functions that acquired locks of one kind and how often, most frequent first.
    pub fn callers(&self, kind: Kind) -> Vec<(&str, usize)> {
        let mut count = BTreeMap::<&str, usize>::new();
        for a in self.acquisitions.iter().filter(|a| a.kind == kind) {
            *count.entry(&a.caller).or_default() += 1;
        }
        let mut count: Vec<_> = count.into_iter().collect();
        count.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
        count
    }
}

/// The probes and their trace instance; both are removed when this is dropped.
pub struct LockTrace {
    trace: Trace,
    symbols: Symbols,
}

impl LockTrace {
    /// Creates the probes and the instance, all disabled.
    ///
    /// # Errors
    /// When tracefs is not mounted, or the kernel lacks what the probes need; the message says which.
    pub fn new() -> Result<Self> {
        let symbols = Symbols::read()?;
        let words: Vec<_> = (0..STACK_WORDS).map(|i| format!("w{i}=$stack{i}:x64")).collect();
        let probes = [
            Probe { name: LEAVE, kind: "r", what: format!("{SLOW_PATH} {}", words.join(" ")) },
            Probe { name: ENTER, kind: "p", what: format!("{SLOW_PATH} lock=$arg1:x64") },
            Probe { name: UNMAP, kind: "p", what: format!("{} start=$arg3:x64", symbols.first_of(&UNMAPS)?) },
        ];
        Ok(Self { trace: Trace::new("memreap", Clock::Mono, &probes)?, symbols })
    }

    /// Records while `work` runs.
    ///
    /// # Errors
    /// When `work` fails, an event was lost ([`crate::trace::tracefs::Lost`]), or the trace is inconsistent.
    pub fn record<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Recording)> {
        let (done, trace) = self.trace.record(work)?;
        let recording = parse(&trace, &self.symbols)
            .with_context(|| format!("{}: inconsistent trace", self.trace.file().display()))?;
        Ok((done, recording))
    }
}

/// Where the kernel lists its symbols.
const SYMBOLS: &str = "/proc/kallsyms";

/// The kernel's functions by address.
pub(super) struct Symbols {
    /// Start and name, by ascending start. The last one is the end of the text.
    functions: Vec<(u64, Box<str>)>,
}

impl Symbols {
    /// Reads [`SYMBOLS`] up to the end of the kernel's text, which comes early in it.
    pub(super) fn read() -> Result<Self> {
        let file = BufReader::new(File::open(SYMBOLS).context(SYMBOLS)?);
        Self::from_lines(file.lines()).with_context(|| format!("{SYMBOLS}: needs CONFIG_KALLSYMS and root"))
    }

    /// Returns the first of these functions that the kernel has, for what has another name, or has been inlined, in
    /// some versions.
    pub(super) fn first_of<'a>(&self, names: &[&'a str]) -> Result<&'a str> {
        let has = |name: &str| self.functions.iter().any(|(_, function)| &**function == name);
        let first = names.iter().copied().find(|name| has(name));
        first.with_context(|| format!("{SYMBOLS}: none of {}", names.join(", ")))
    }

    fn from_lines(lines: impl Iterator<Item = std::io::Result<String>>) -> Result<Self> {
        let mut functions = Vec::new();
        for line in lines {
            let line = line?;
            let mut parts = line.split(' ');
            let (Some(address), Some(kind), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
                bail!("'{line}' is no symbol");
            };
            // Its kind is that of data on arm64.
            let is_end = name == "_etext";
            if !is_end && !matches!(kind, "t" | "T" | "w" | "W") {
                continue;
            }
            let address = u64::from_str_radix(address, 16).with_context(|| line.clone())?;
            functions.push((address, name.into()));
            if is_end {
                ensure!(address != 0, "addresses are hidden (kptr_restrict)");
                functions.sort_by_key(|&(start, _)| start);
                return Ok(Self { functions });
            }
        }
        bail!("no _etext")
    }

    /// Returns the function that contains a return address. `None` for an address outside the text, and for a
    /// function's first byte: nothing returns there, so such a word is a function pointer.
    fn returns_to(&self, address: u64) -> Option<&str> {
        let next = self.functions.partition_point(|&(start, _)| start <= address);
        let (start, name) = self.functions.get(next.checked_sub(1)?)?;
        (next < self.functions.len() && *start != address).then_some(name)
    }
}

fn parse(trace: &str, symbols: &Symbols) -> Result<Recording> {
    let mut recording = Recording::default();
    // The current acquisitions of each CPU. There may be more than one, when an interrupt comes in between; a
    // waiter does not leave its CPU.
    let mut waiting: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
    for event in events(trace) {
        let (line, event) = event?;
        let bad = || anyhow!("line {line}: {event:?}");
        match event.name {
            ENTER => {
                let lock = field(event.fields, "lock").ok_or_else(bad)?;
                waiting.entry(event.cpu).or_default().push((event.at, lock));
            }
            LEAVE => match waiting.get_mut(&event.cpu) {
                // The entry was before the recording began.
                None => {
                    waiting.insert(event.cpu, Vec::new());
                }
                Some(entered) => {
                    let (since, lock) =
                        entered.pop().with_context(|| format!("line {line}: a return without an entry"))?;
                    let caller = caller(event.fields, symbols).ok_or_else(bad)?;
                    recording.acquisitions.push(Acquisition {
                        lock,
                        wait: event.at.saturating_sub(since),
                        kind: kind(&caller),
                        caller,
                    });
                }
            },
            UNMAP => {
                recording.unmaps.push(Unmap { tid: event.tid, start: field(event.fields, "start").ok_or_else(bad)? })
            }
            _ => return Err(bad()),
        }
    }
    // One per CPU may still be waiting when the recording ends.
    ensure!(waiting.values().all(|w| w.len() <= 1), "entries without a return");
    unify_kinds(&mut recording.acquisitions)?;
    Ok(recording)
}

/// Unifies the kinds of each lock's acquisitions, since a lock protects one thing: a caller of unknown kind
/// gets the kind of the lock's other callers.
///
/// # Errors
/// When callers contradict each other, which means that [`kind`] is wrong.
fn unify_kinds(acquisitions: &mut [Acquisition]) -> Result<()> {
    let mut known = HashMap::<u64, (Kind, String)>::new();
    for a in acquisitions.iter().filter(|a| a.kind != Kind::Other) {
        match known.get(&a.lock) {
            None => {
                known.insert(a.lock, (a.kind, a.caller.clone()));
            }
            Some((kind, other)) => ensure!(
                *kind == a.kind,
                "lock {:#x} is {kind:?} for {other}() but {:?} for {}()",
                a.lock,
                a.kind,
                a.caller
            ),
        }
    }
    for a in acquisitions.iter_mut().filter(|a| a.kind == Kind::Other) {
        if let Some((kind, _)) = known.get(&a.lock) {
            a.kind = *kind;
        }
    }
    Ok(())
}

/// Returns the function that acquired a lock, from `(caller+0x1/0x2 <- slow path) w0=0x... w1=0x...`. If the
/// caller is a wrapper of the lock, it is that of the first return address on the stack that is in no
/// wrapper.
fn caller(fields: &str, symbols: &Symbols) -> Option<String> {
    let returned_to = fields.strip_prefix('(')?.split(['+', ' ']).next()?;
    if !is_wrapper(returned_to) {
        return Some(plain(returned_to).to_owned());
    }
    let found = (0..STACK_WORDS)
        .filter_map(|i| symbols.returns_to(field(fields, &format!("w{i}"))?))
        .find(|name| !is_wrapper(name));
    Some(found.map_or_else(|| returned_to.to_owned(), |name| plain(name).to_owned()))
}

fn is_wrapper(function: &str) -> bool {
    ["_raw_spin_", "__raw_spin_", "do_raw_spin_", "native_queued_spin_", "__pv_queued_spin_"]
        .iter()
        .any(|p| function.starts_with(p))
}

/// Removes what the compiler adds to the name of a function that it splits or specialises.
fn plain(function: &str) -> &str {
    function.split('.').next().unwrap_or(function)
}

/// Returns what the lock protects that a function acquires. The functions are those of `mm/` that take such a
/// lock themselves, or have a function inlined that does.
fn kind(caller: &str) -> Kind {
    const PTE: &str =
        "__pte_offset_map_lock pte_offset_map_ unmap_page_range unmap_single_vma zap_ __pmd_trans_huge_lock";
    // The last two are functions of the topics. Not all of their locks are LRU locks; counting too many is better than
    // too few.
    const LRU: &str = "folio_lruvec_ folios_put_refs folio_batch_move_lru __page_cache_release release_pages lru_ \
                       lruvec_ memreap_ reap_lru_";
    // `free_runs` is of the topic `release`.
    const ZONE: &str = "free_pcppages_bulk free_one_page free_runs rmqueue __rmqueue free_unref_ drain_ \
                        get_page_from_freelist decay_pcp_high";
    let rules = [(Kind::Pte, PTE), (Kind::Lru, LRU), (Kind::Zone, ZONE)];
    let rule = rules.into_iter().find(|(_, names)| names.split(' ').any(|name| caller.starts_with(name)));
    rule.map_or(Kind::Other, |(kind, _)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Linux 6.12.117 on two CPUs: a victim (49) exits while a thread (40) releases its
    /// memory; a page-table lock, the LRU lock and a zone's lock are contended.
    const TRACE: &str = "\
# tracer: nop
#
# entries-in-buffer/entries-written: 3195/3195   #P:2
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
             exe-40      [000] .....     4.555821: unmap: (unmap_page_range+0x0/0x12a0) start=0x555562e5b000
             exe-49      [001] .....     4.555824: unmap: (unmap_page_range+0x0/0x12a0) start=0x555562e5b000
             exe-40      [000] .....     4.557089: unmap: (unmap_page_range+0x0/0x12a0) start=0x7f832bfff000
             exe-40      [000] .....     4.557102: lock_enter: (queued_spin_lock_slowpath+0x0/0x280) lock=0xffffea00008e9768
             exe-40      [000] .....     4.557137: lock_leave: (__pte_offset_map_lock+0x5f/0xd0 <- queued_spin_lock_slowpath) w0=0x7f832c800000 w1=0x23a5d067 w2=0xffff888023a57b20 w3=0xffff8880027f3e58 w4=0x7f832ca00000 w5=0xffff8880027f3dc8
             exe-49      [001] .....     4.557161: lock_enter: (queued_spin_lock_slowpath+0x0/0x280) lock=0xffffea00008e9768
             exe-49      [001] .....     4.557297: lock_leave: (__pte_offset_map_lock+0x5f/0xd0 <- queued_spin_lock_slowpath) w0=0x7f832c8fc000 w1=0x23a5d067 w2=0xffff888023a57b20 w3=0xffff888003093cf8 w4=0x7f832ca00000 w5=0xffff888002451df8
             exe-49      [001] d....     4.561493: lock_enter: (queued_spin_lock_slowpath+0x0/0x280) lock=0xffff8880025d3890
             exe-49      [001] d....     4.561513: lock_leave: (_raw_spin_lock_irqsave+0x22/0x30 <- queued_spin_lock_slowpath) w0=0xffff8880025d3840 w1=0xffffffff8123159e w2=0xffffea00000f1480 w3=0x0 w4=0xffffffff81182f18 w5=0x3c51
             exe-40      [000] d....     4.561566: lock_enter: (queued_spin_lock_slowpath+0x0/0x280) lock=0xffff88805fdef8d0
             exe-40      [000] d....     4.561573: lock_leave: (_raw_spin_lock_irqsave+0x22/0x30 <- queued_spin_lock_slowpath) w0=0xffff88805fdef8d0 w1=0xffffffff811e5749 w2=0x0 w3=0xf0 w4=0x1 w5=0xffff88805fdef440
";

    const KALLSYMS: &str = "\
0000000000000000 A __per_cpu_start
ffffffff81183410 T folios_put_refs
ffffffff811e5710 t free_pcppages_bulk
ffffffff811e5910 t drain_pages_zone
ffffffff81231530 T folio_lruvec_lock_irqsave
ffffffff812315c0 T mem_cgroup_update_lru_size
ffffffff81800000 D _etext
ffffffff81900000 D never_read
";

    fn symbols() -> Symbols {
        Symbols::from_lines(KALLSYMS.lines().map(|l| Ok(l.to_owned()))).unwrap()
    }

    fn enter(cpu: u32, at: u32, lock: u64) -> String {
        format!(" a b-[1]-7 [{cpu:03}] d.... 1.{at:06}: lock_enter: (f+0x0/0x1) lock={lock:#x}\n")
    }

    fn leave(cpu: u32, at: u32, caller: &str) -> String {
        format!(" x-7 [{cpu:03}] d.... 1.{at:06}: lock_leave: ({caller}+0x1/0x9 <- f) w0=0x0\n")
    }

    #[test]
    fn a_real_trace_is_parsed() {
        let recording = parse(TRACE, &symbols()).unwrap();
        let seen: Vec<_> = recording.acquisitions.iter().map(|a| (a.kind, a.wait, a.caller.as_str())).collect();
        assert_eq!(
            seen,
            [
                (Kind::Pte, 35, "__pte_offset_map_lock"),
                (Kind::Pte, 136, "__pte_offset_map_lock"),
                (Kind::Lru, 20, "folio_lruvec_lock_irqsave"),
                (Kind::Zone, 7, "free_pcppages_bulk"),
            ]
        );
        assert_eq!(recording.contended(Kind::Pte), (2, 171));
        assert_eq!(recording.contended(Kind::Other), (0, 0));
        assert_eq!(recording.unmaps.len(), 3);
        assert_eq!(recording.unmaps[2], Unmap { tid: 40, start: 0x7f83_2bff_f000 });
    }

    #[test]
    fn descending_addresses_are_counted_per_thread() {
        let unmap = |tid, start| Unmap { tid, start };
        let unmaps = vec![unmap(1, 50), unmap(2, 10), unmap(1, 40), unmap(1, 45), unmap(1, 5)];
        let recording = Recording { unmaps, ..Recording::default() };
        assert!((recording.descending(1) - 200.0 / 3.0).abs() < 1e-9);
        assert_eq!(recording.descending(2), 0.0);
        assert!(recording.descending(3).is_nan());
    }

    #[test]
    fn an_interrupt_may_wait_while_its_cpu_waits() {
        let trace = [
            enter(0, 100, 0x10),
            enter(0, 110, 0x20),
            enter(1, 111, 0x30),
            leave(0, 120, "rmqueue_bulk"),
            leave(0, 150, "folio_lruvec_lock"),
            leave(1, 151, "anything"),
        ]
        .concat();
        let recording = parse(&trace, &symbols()).unwrap();
        assert_eq!(recording.contended(Kind::Zone), (1, 10));
        assert_eq!(recording.contended(Kind::Lru), (1, 50));
        assert_eq!(recording.callers(Kind::Other), [("anything", 1)]);
    }

    #[test]
    fn an_acquisition_may_be_cut_at_both_ends_of_a_recording() {
        let trace = [leave(0, 1, "f"), enter(0, 2, 0x10), leave(0, 3, "f"), enter(1, 4, 0x10)];
        let recording = parse(&trace.concat(), &symbols()).unwrap();
        assert_eq!(recording.acquisitions.len(), 1);
    }

    #[test]
    fn an_inconsistent_trace_is_an_error() {
        let s = symbols();
        let twice = [enter(0, 1, 0x10), leave(0, 2, "f"), leave(0, 3, "f")].concat();
        assert!(parse(&twice, &s).is_err());
        assert!(parse(&[enter(0, 1, 1), enter(0, 2, 2)].concat(), &s).is_err());
        assert!(parse("CPU:0 [LOST 12 EVENTS]\n", &s).is_err());
        let torn = TRACE.replace("4.561493", "4.561");
        let error = format!("{:#}", parse(&torn, &s).unwrap_err());
        assert!(error.starts_with("line 14: "), "{error}");
    }

    #[test]
    fn a_lock_has_one_kind() {
        let trace = [enter(0, 1, 0x10), leave(0, 2, "folio_lruvec_lock")].concat()
            + &[enter(0, 3, 0x10), leave(0, 4, "someone")].concat();
        assert_eq!(parse(&trace, &symbols()).unwrap().contended(Kind::Lru), (2, 2));
        let trace = trace.replace("someone", "rmqueue_bulk");
        assert!(parse(&trace, &symbols()).is_err());
    }

    #[test]
    fn only_return_addresses_into_functions_identify_a_caller() {
        let s = symbols();
        assert_eq!(s.returns_to(0xffff_ffff_811e_5749), Some("free_pcppages_bulk"));
        // A function's first byte, before and after the text.
        assert_eq!(s.returns_to(0xffff_ffff_811e_5710), None);
        assert_eq!(s.returns_to(0xffff_ffff_8000_0000), None);
        assert_eq!(s.returns_to(0xffff_ffff_8190_0010), None);
        assert_eq!(s.returns_to(0), None);
    }

    #[test]
    fn the_first_function_that_exists_is_found() {
        let s = symbols();
        assert_eq!(s.first_of(&["gone", "drain_pages_zone", "folios_put_refs"]).unwrap(), "drain_pages_zone");
        // Data, and what comes after the text.
        let error = s.first_of(&["__per_cpu_start", "never_read"]).unwrap_err();
        assert_eq!(error.to_string(), "/proc/kallsyms: none of __per_cpu_start, never_read");
    }

    #[test]
    fn hidden_symbols_are_an_error() {
        let zeroes = ["0000000000000000 T _text", "0000000000000000 T _etext"];
        assert!(Symbols::from_lines(zeroes.iter().map(|l| Ok((*l).to_owned()))).is_err());
        assert!(Symbols::from_lines(std::iter::empty()).is_err());
    }

    #[test]
    fn compiler_made_parts_belong_to_their_function() {
        assert_eq!(kind(plain("folio_batch_move_lru.part.0")), Kind::Lru);
        assert_eq!(kind(plain("free_unref_page_commit.isra.0")), Kind::Zone);
        assert_eq!(kind("memreap_release_folios"), Kind::Lru);
        assert_eq!(kind("rwsem_down_write_slowpath"), Kind::Other);
    }
}
