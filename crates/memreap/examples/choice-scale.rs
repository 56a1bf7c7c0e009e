// SPDX-License-Identifier: GPL-2.0-only
//! Chooses among thousands of processes, again and again, and compares with reading all of them exactly.
//!
//! In a PID namespace of its own, so that no other process is among them (as root, some 8 GiB of memory):
//!
//! ```text
//! cargo build --release --example choice-scale
//! unshare -pf --mount-proc target/release/examples/choice-scale [PROCESSES [POPULATIONS [SEED [DECOY_MIB]]]]
//! ```
//!
//! Most processes are small. Some are of any size up to 64 MiB, a few are hogs of up to 1 GiB, and some of those change
//! in each population: their size, whether they have huge pages, whether a child shares their memory from before its
//! fork, of which it has then written to a part, and, if there is swap, which part of it they have there. Others look
//! large and are not: they share memory from before a fork, or map one memfd; of 120 MiB each, or as much as is said.
//!
//! A victim is right if it gives back as much as the best, to 5 %: one process, or one and those that share its memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use linux::pidfd::Signal;
use linux::{Pid, PidFd, Process, Root, process};
use memreap::choice::{Choice, Chooser, Cost, Precision, Scope};
use memreap::kill::raise_priority;
use memreap::policy::Policy;

/// Processes that change; the first few of them are hogs.
const CHANGING: usize = 50;
const HOGS: usize = 4;
/// How many of the others change in each population, beside one hog.
const CHANGES: usize = 8;
/// Processes that share memory from before a fork, and as many that map one memfd.
const DECOYS: usize = 6;

/// Bytes of a process that changes.
fn size(random: &mut Rng, index: usize) -> usize {
    if index < HOGS {
        return random.usize(200..1000) << 20;
    }
    // As often small as large.
    let scale = random.u8(..7);
    (1 << 20 << scale) + (random.usize(..1024) << 10)
}

/// What a process is told, and what it answers.
struct Order {
    kib: AtomicU32,
    huge_pages: AtomicU32,
    /// The part that a child shares, in percent; 0 for no child.
    shared: AtomicU32,
    /// The part that is paged out, in percent.
    swapped: AtomicU32,
    done: AtomicU32,
}

fn main() {
    let number = |n: usize, default| std::env::args().nth(n).map_or(default, |a| a.parse().expect("a number"));
    let (processes, populations) = (number(1, 5000), number(2, 100));
    let least = CHANGING + 2 * DECOYS + 2;
    assert!(processes >= least, "{processes} processes: there are {least} at least");
    let mut random = Rng::with_seed(number(3, 1) as u64);
    let orders = shared_orders(CHANGING);
    start(processes, orders, &mut random, number(4, 120) << 20);
    let root = Root::system();
    let policy = Policy::default();
    let scope = Scope::All;
    // They have all of their memory when their number is right and the last one waits.
    let all = || process::pids(&root).expect("/proc").count();
    while all() < processes {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(2));

    // As the daemon does.
    let _ = raise_priority();
    let mut chooser = Chooser::new(&root, processes + 1000).expect("a chooser");
    let (mut wrong, mut pools, mut cold, mut warm) = (0, 0, Vec::new(), Vec::new());
    let mut alone = Vec::new();
    let mut pids: BTreeMap<usize, Pid> = BTreeMap::new();
    for pid in process::pids(&root).expect("/proc") {
        if let Some(index) = name(&root, pid).and_then(|name| name.strip_prefix("changing").map(str::to_owned)) {
            pids.insert(index.parse().expect("an index"), pid);
        }
    }
    assert_eq!(pids.len(), CHANGING);
    for population in 1..=populations {
        for i in 0..=CHANGES {
            let which = if i == 0 { random.usize(..HOGS) } else { random.usize(HOGS..CHANGING) };
            let order = &orders[which];
            let kib = u32::try_from(size(&mut random, which) >> 10).expect("some MiB");
            let before = order.done.load(Ordering::Acquire);
            order.kib.store(kib, Ordering::Release);
            order.huge_pages.store(random.u32(..2), Ordering::Release);
            let shared = if random.bool() { 0 } else { random.usize(1..=100) };
            order.shared.store(shared as u32, Ordering::Release);
            let swapped = if random.usize(..3) == 0 { random.usize(..100) } else { 0 };
            order.swapped.store(swapped as u32, Ordering::Release);
            let pidfd = PidFd::open(pids[&which]).expect("it lives");
            pidfd.send_signal(Signal::USR1).expect("it lives");
            while order.done.load(Ordering::Acquire) == before {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        let best = brute_force(&root);
        let mut judge = |choice: &Choice, how: &str| {
            let mut pids = vec![choice.pid];
            pids.extend(choice.pool.iter().map(|member| member.pidfd.opened_as()));
            let given = given(&root, &pids);
            // On a busy machine a reading may be late; the victim must be right all the same.
            let is_too_much = choice.precision != Precision::Guess && choice.bytes as f64 > 1.05 * given.all as f64;
            if (given.counts as f64) < 0.95 * best.0.counts as f64 || is_too_much {
                wrong += 1;
                println!("population {population}, {how}: {choice:?}, {given:?} instead of {best:?}");
            }
        };
        if population % 10 == 1 {
            let mut fresh = Chooser::new(&root, processes + 1000).expect("a chooser");
            let choice = fresh.choose(&policy, scope).expect("a victim");
            judge(&choice, "cold");
            cold.push(choice.cost);
        }
        chooser.refresh(&policy, Duration::from_secs(10));
        let choice = chooser.choose(&policy, scope).expect("a victim");
        judge(&choice, "warm");
        pools += usize::from(!choice.pool.is_empty());
        warm.push(choice.cost);
        let began = Instant::now();
        let victim = Process::open(&root, choice.pid).expect("it lives");
        victim.smaps_rollup().expect("it has memory");
        alone.push(began.elapsed());
    }
    println!("{populations} populations of {processes} processes, {wrong} wrong victims, {pools} of several processes");
    tell("cold", &mut cold);
    tell("warm", &mut warm);
    alone.sort_unstable();
    println!("an exact reading of the victim alone: {:?} median", alone[alone.len() / 2]);
    std::process::exit(i32::from(wrong > 0));
}

fn tell(what: &str, costs: &mut [Cost]) {
    let most = |count: fn(&Cost) -> u32| costs.iter().map(count).max().unwrap_or(0);
    let exact: u32 = costs.iter().map(|cost| cost.exact).sum();
    let share = 100.0 * f64::from(exact) / f64::from(costs.iter().map(|cost| cost.processes).sum::<u32>());
    let counts = [most(|c| c.processes), most(|c| c.cheap), most(|c| c.exact), most(|c| c.sampled), most(|c| c.late)];
    costs.sort_by_key(|cost| cost.took);
    let at = |share: usize| costs[(costs.len() - 1) * share / 100].took;
    println!(
        "{what}: {:?} median, {:?} in 95 %, {:?} at most; at most {} processes, {} cheap, {} exact, {} samples, {} late; \
         {share:.2} % read exactly on average",
        at(50),
        at(95),
        at(100),
        counts[0],
        counts[1],
        counts[2],
        counts[3],
        counts[4]
    );
}

/// What processes give back by smaps_rollup, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Given {
    /// When all of them die.
    all: u64,
    /// What counts: of one all of it, of several a quarter of what only the death of all of them gives back.
    counts: u64,
}

/// The best there is if all are read, and its first process.
fn brute_force(root: &Root) -> (Given, Pid) {
    let own = [Pid::own(), Pid::new(1).expect("1")];
    let (mut best, mut pairs) = ((Given::default(), own[0]), BTreeMap::<_, Vec<Pid>>::new());
    let mut consider = |pids: &[Pid]| {
        let given = given(root, pids);
        if given.counts > best.0.counts {
            best = (given, pids[0]);
        }
    };
    for pid in process::pids(root).expect("/proc").filter(|pid| !own.contains(pid)) {
        let Some((process, name)) = Process::open(root, pid).ok().zip(name(root, pid)) else { continue };
        // Children of ours are not chosen.
        if process.stat().is_ok_and(|stat| stat.ppid == Some(Pid::own())) {
            continue;
        }
        consider(&[pid]);
        if let Some(index) = name.strip_prefix("changing").or_else(|| name.strip_prefix("sharing")) {
            pairs.entry(index.to_owned()).or_default().push(pid);
        }
    }
    pairs.values().filter(|pids| pids.len() > 1).for_each(|pids| consider(pids));
    best
}

fn given(root: &Root, pids: &[Pid]) -> Given {
    let rollups = pids.iter().filter_map(|pid| Process::open(root, *pid).ok()?.smaps_rollup().ok());
    let (alone, shares) =
        rollups.fold((0, 0), |(alone, shares), rollup| (alone + rollup.comes_back(), shares + rollup.pss_anon));
    match pids.len() {
        1 => Given { all: alone, counts: alone },
        _ => Given { all: shares.max(alone), counts: shares.saturating_sub(alone) / 4 },
    }
}

fn name(root: &Root, pid: Pid) -> Option<String> {
    Some(Process::open(root, pid).ok()?.comm().ok()?.to_string())
}

fn shared_orders(count: usize) -> &'static [Order] {
    let size = count * size_of::<Order>();
    let orders = map(size, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1).cast::<Order>();
    // SAFETY: just mapped, never unmapped; zeros are valid.
    unsafe { std::slice::from_raw_parts(orders, count) }
}

fn map(size: usize, flags: i32, fd: i32) -> *mut libc::c_void {
    // SAFETY: a new mapping at a place of the kernel's choice.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_POPULATE, fd, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    at
}

fn private(size: usize) -> *mut libc::c_void {
    map(size, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
}

/// Runs `life` in a child, which dies with us.
fn fork(life: impl FnOnce()) {
    // SAFETY: there is one thread only.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: takes numbers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            life();
            // SAFETY: takes a number.
            unsafe { libc::_exit(0) };
        }
        pid => assert!(pid > 0, "fork: {}", std::io::Error::last_os_error()),
    }
}

fn call_me(name: &str) {
    let name = std::ffi::CString::new(name).expect("no NUL");
    // SAFETY: a string that ends with NUL.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

fn sleep_for_ever() {
    loop {
        // SAFETY: takes nothing.
        unsafe { libc::pause() };
    }
}

/// Starts all processes from one that is ours.
fn start(processes: usize, orders: &'static [Order], random: &mut Rng, decoy: usize) {
    let sizes: Vec<usize> = (0..processes).map(|_| random.usize(16..216) << 10).collect();
    let first: Vec<usize> = (0..orders.len()).map(|i| size(random, i)).collect();
    fork(|| {
        for (i, order) in orders.iter().enumerate() {
            let size = first[i];
            fork(|| change(i, order, size));
        }
        // SAFETY: a name that ends with NUL.
        let memfd = unsafe { libc::memfd_create(c"shared".as_ptr(), 0) };
        // SAFETY: takes numbers.
        assert_eq!(unsafe { libc::ftruncate(memfd, decoy as i64) }, 0);
        for _ in 0..DECOYS {
            fork(|| {
                map(decoy, libc::MAP_SHARED, memfd);
                sleep_for_ever();
            });
        }
        for size in &sizes[2 * DECOYS + CHANGING + 2..] {
            fork(|| {
                private(*size);
                sleep_for_ever();
            });
        }
        fork(|| {
            private(decoy);
            for _ in 1..DECOYS {
                fork(sleep_for_ever);
            }
            sleep_for_ever();
        });
        sleep_for_ever();
    });
}

/// A process that changes when it is told to.
fn change(index: usize, order: &Order, mut size: usize) {
    call_me(&format!("changing{index}"));
    // SAFETY: a set of signals on the stack, filled in by the calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGUSR1);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        let mut memory = private(size);
        let mut sharer = None;
        loop {
            let mut signal = 0;
            libc::sigwait(&set, &mut signal);
            if let Some(sharer) = sharer.take() {
                libc::kill(sharer, libc::SIGKILL);
                libc::waitpid(sharer, std::ptr::null_mut(), 0);
            }
            libc::munmap(memory, size);
            size = (order.kib.load(Ordering::Acquire) as usize) << 10;
            memory = reserve(size);
            if order.huge_pages.load(Ordering::Acquire) != 0 {
                libc::madvise(memory, size, libc::MADV_HUGEPAGE);
            }
            memory.cast::<u8>().write_bytes(1, size);
            let shared = order.shared.load(Ordering::Acquire) as usize;
            // Before a fork: what is mapped twice is not paged out.
            let paged_out = size / 100 * order.swapped.load(Ordering::Acquire) as usize;
            let first = (size - paged_out) / 4096 * 4096;
            libc::madvise(memory.byte_add(first), size - first, libc::MADV_PAGEOUT);
            if shared > 0 {
                let written = size / 100 * (100 - shared);
                sharer = Some(share(index, order, memory, written));
            } else {
                order.done.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

/// Starts a child that has a copy of the first `written` bytes, and shares the rest.
unsafe fn share(index: usize, order: &Order, memory: *mut libc::c_void, written: usize) -> i32 {
    // SAFETY: there is one thread only, and the memory is the child's own.
    unsafe {
        match libc::fork() {
            0 => {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                call_me(&format!("sharing{index}"));
                memory.cast::<u8>().write_bytes(2, written);
                order.done.fetch_add(1, Ordering::AcqRel);
                sleep_for_ever();
                0
            }
            pid => pid,
        }
    }
}

fn reserve(size: usize) -> *mut libc::c_void {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at a place of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at
}
