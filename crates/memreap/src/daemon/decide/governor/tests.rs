// SPDX-License-Identifier: GPL-2.0-only

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const S: Duration = Duration::from_secs(1);

/// What the governor says to samples that come every 0.1 s: the headroom in MiB, and in percent the time
/// stalled. Returns when it advises a kill first.
fn first_kill(total: u64, seconds: u64, at: impl Fn(u64) -> (u64, u64)) -> Option<(Duration, Reason)> {
    let mut sample = Sample { total, stalled: Some([Duration::ZERO; 2]), ..Sample::default() };
    let samples = (0..seconds * 10).map(|tick| {
        let (available, stalled_percent) = at(tick);
        sample.at += S / 10;
        sample.available = available * MIB;
        sample.stalled = sample.stalled.map(|sums| sums.map(|sum| sum + Duration::from_millis(stalled_percent)));
        sample
    });
    first_kill_in(samples, &Act::default())
}

/// Returns when the governor advises a kill first.
fn first_kill_in(samples: impl Iterator<Item = Sample>, act: &Act) -> Option<(Duration, Reason)> {
    first_kill_by(Governor::new(act.clone()), samples)
}

fn first_kill_by(mut governor: Governor, mut samples: impl Iterator<Item = Sample>) -> Option<(Duration, Reason)> {
    samples.find_map(|sample| match governor.observe(sample) {
        Advice::Kill(reason) => Some((sample.at, reason)),
        _ => None,
    })
}

#[test]
fn a_loss_counts_by_what_is_left() {
    let acts = |total: u64, left: u64, per_second: u64| {
        first_kill(total * GIB, 1, |tick| (left + (9 - tick.min(9)) * per_second / 10, 0)).is_some()
    };
    assert!(acts(2, 19, 20) && !acts(2, 19, 0) && !acts(2, 40, 100));
    for total in [64, 512] {
        assert!(acts(total, 250, 20) && !acts(total, 250, 0) && !acts(total, 300, 1000));
    }
}

#[test]
fn what_fluctuates_does_not_run_out() {
    // 0.3 MiB more or less of 19 MiB that are left of 2 GiB: what no task stalls for is nobody's death.
    let kills = |thresholds, available: &dyn Fn(u64) -> u64| {
        let mut governor = Governor::new(Act::default()).with(thresholds);
        (0..100).any(|tick| {
            let (at, total, available) = (S / 10 * tick as u32, 2 * GIB, available(tick));
            governor.pressure_reported(at);
            let stalled = Some([Duration::ZERO; 2]);
            let sample = Sample { at, total, available, free: 30 * MIB, stalled, ..Sample::default() };
            matches!(governor.observe(sample), Advice::Kill(_))
        })
    };
    let wavering = |tick: u64| 19 * MIB + tick / 4 % 2 * 300 * 1024;
    assert!(!kills(Thresholds::USUAL, &wavering));
    assert!(kills(Thresholds { steady_bytes_per_s: 0.0, ..Thresholds::USUAL }, &wavering));
    assert!(kills(Thresholds::USUAL, &|tick| 20 * MIB - tick * 150 * 1024));
    // Requests for metrics have memory sampled at any time: what is taken within milliseconds is no rate, and no reason
    // to warn.
    let danger = |thresholds, after_ms| {
        let mut governor = Governor::new(Act::default()).with(thresholds);
        governor.pressure_reported(Duration::ZERO);
        for (at, available) in [(0, 150), (after_ms, 148)] {
            let (total, available, at) = (2 * GIB, available * MIB, Duration::from_millis(at));
            let sample = Sample { at, total, available, stalled: Some([Duration::ZERO; 2]), ..Sample::default() };
            governor.observe(sample);
        }
        governor.danger()
    };
    assert_eq!(danger(Thresholds::USUAL, 5), Danger::Possible);
    assert_eq!(danger(Thresholds { min_rate_span_s: 0.0, ..Thresholds::USUAL }, 5), Danger::Imminent);
    assert_eq!(danger(Thresholds::USUAL, 50), Danger::Imminent);
}

#[test]
fn what_stalls_without_a_break_while_no_memory_is_available_does_not_fit() {
    // So many MiB of 2 GiB are available and free, and half of the swap; in percent the time that some tasks stalled,
    // and that all did.
    let first_with = |act: &Act, available: u64, free: u64, some: f64, all: f64| {
        let samples = (0..120).map(|tick| {
            let at = S / 10 * tick;
            Sample {
                at,
                total: 2 * GIB,
                available: available * MIB,
                free: free * MIB,
                swap_total: GIB,
                swap_free: GIB / 2,
                stalled: Some([at.mul_f64(some / 100.0), at.mul_f64(all / 100.0)]),
                ..Sample::default()
            }
        });
        first_kill_in(samples, act)
    };
    let (usual, early) = (Act::default(), Act { early_reclaim: true, ..Act::default() });
    let first = |available, free, some, all| first_with(&usual, available, free, some, all);
    let (at, reason) = first(8, 24, 100.0, 80.0).unwrap();
    assert!(reason == Reason::Stall && at >= S / 2 && at <= S * 6 / 10, "{at:?}");
    // In the face-off's peak-zram some task stalled for 81 % of 0.3 s while as much was available.
    assert_eq!(first(8, 24, 90.0, 80.0), None);
    // And in its peak for three seconds without a break, but 40 MiB were available.
    assert_eq!(first(40, 60, 100.0, 80.0), None);
    // Where the kernel reclaims early, that is a hog; what fits stalls for 90 % of half a second at most.
    assert!(first_with(&early, 41, 58, 100.0, 80.0).is_some());
    assert_eq!(first_with(&early, 41, 58, 90.0, 80.0), None);
    // Beside a process that computes on one of two CPUs, not all tasks can stall for more than half of the time.
    assert!(first(8, 24, 100.0, 40.0).is_some() && first(8, 24, 100.0, 20.0).is_none());
    // Without any memory swap is of no use. What is below high watermarks is not available, but there.
    assert!(matches!(first(10, 8, 50.0, 12.0), Some((at, Reason::Critical)) if at < S));
    assert_eq!((first(10, 8, 50.0, 8.0), first(10, 30, 50.0, 12.0)), (None, None));
    // In the face-off's peak-zram as much was free when the kernel began to reclaim.
    assert_eq!(first(7, 18, 90.0, 45.0), None);
    // Samples are far apart when nothing happens: a stall just before the last of them is no long one.
    let mut governor = Governor::new(Act::default());
    for (at, stalled) in [(0, 0), (10_000, 0), (10_100, 100)] {
        let (at, stalled) = (Duration::from_millis(at), Some([Duration::from_millis(stalled); 2]));
        let (total, available, free, swap) = (2 * GIB, 8 * MIB, 24 * MIB, GIB);
        let sample =
            Sample { at, total, available, free, swap_total: swap, swap_free: swap, stalled, ..Sample::default() };
        assert!(!matches!(governor.observe(sample), Advice::Kill(_)), "at {at:?}");
    }
    // Thrashing that lets tasks run for a third of the time, but without end.
    let thrashing = |available| first_kill(2 * GIB, 60, |tick| (available, [90, 20][tick as usize / 8 % 2]));
    let (at, reason) = thrashing(60).unwrap();
    assert!(reason == Reason::Stall && at > 15 * S, "{at:?}");
    assert_eq!(thrashing(300), None);
    // Most of a second without a break, seen from its beginning on.
    assert_eq!(first_kill(2 * GIB, 12, |tick| (60, if tick < 10 { 100 } else { 50 })), None);
    // What a process that fits causes, again and again.
    assert_eq!(first_kill(2 * GIB, 60, |tick| (60, if tick % 40 < 8 { 100 } else { 25 })), None);
}

#[test]
fn who_is_throttled_by_a_cgroup_makes_no_shortage() {
    // A user's memory.high stalls all tasks that run, while 8 % of memory are available; the kernel scans so many pages
    // every so many samples.
    let first = |pages: u64, every: u64| {
        let samples = (0..600).map(|tick| {
            let at = S / 10 * tick;
            let (total, available, stalled) = (2 * GIB, 160 * MIB, Some([at; 2]));
            let scanned = Some(7 + u64::from(tick) / every * pages);
            Sample { at, total, available, free: 50 * MIB, stalled, scanned, ..Sample::default() }
        });
        first_kill_in(samples, &Act::default())
    };
    assert_eq!(first(0, 1), None);
    // It needs a page now and then anyway.
    assert_eq!(first(32, 250), None);
    // Where the machine thrashes, it scans all the time; on a slow disk with breaks.
    for every in [1, 50] {
        let kill = first(1, every);
        assert!(matches!(kill, Some((at, Reason::Stall)) if at < 20 * S), "{every}: {kill:?}");
    }
}

/// 2 GiB of which 8 MiB and swap are left, all tasks stalling, sampled every so often.
fn stalling(every: Duration, available: u64) -> impl Iterator<Item = Sample> {
    (0..5 * S.as_millis() as u32 / every.as_millis() as u32).map(move |tick| {
        let at = every * tick;
        let (available, free, stalled) = (available * MIB, 24 * MIB, Some([at; 2]));
        let (total, swap_total, swap_free) = (2 * GIB, GIB, GIB / 2);
        Sample { at, total, available, free, swap_total, swap_free, stalled, ..Sample::default() }
    })
}

#[test]
fn the_kernel_does_not_reclaim_early_at_the_limit_of_a_cgroup() {
    let governor = Governor::new(Act { early_reclaim: true, ..Act::default() });
    assert!(first_kill_by(governor.clone(), stalling(S / 10, 41)).is_some());
    let at_limit = |available| stalling(S / 10, available).map(|sample| Sample { is_limit: true, ..sample });
    assert_eq!(first_kill_by(governor.clone(), at_limit(41)), None);
    assert!(first_kill_by(governor, at_limit(8)).is_some());
}

#[test]
fn at_a_limit_that_swaps_there_is_never_memory_left() {
    // All tasks stall for a fifth of the time, and half of swap is free.
    let swaps = |is_limit| {
        stalling(S / 10, 0).map(move |sample| {
            let stalled = Some([sample.at / 5; 2]);
            Sample { is_limit, free: 0, swap_total: GIB, swap_free: GIB / 2, stalled, ..sample }
        })
    };
    assert!(matches!(first_kill_by(Governor::new(Act::default()), swaps(false)), Some((_, Reason::Critical))));
    assert_eq!(first_kill_by(Governor::new(Act::default()), swaps(true)), None);
    let full = |sample| Sample { swap_free: 0, ..sample };
    assert!(first_kill_by(Governor::new(Act::default()), swaps(true).map(full)).is_some());
}

#[test]
fn one_task_that_stalls_is_reported_among_many_cpus() {
    let ms = |cpus| reported_stall(cpus).as_secs_f64() * 1e3;
    assert_eq!([1, 8, 16, 64, 512].map(ms), [5.0, 5.0, 2.5, 0.625, 0.078125]);
}

#[test]
fn stalls_are_not_seen_where_only_the_reading_was_late() {
    // Tasks stall for 90 % of the time. After one sample in ten, the hypervisor took the CPU away for 60 ms before PSI
    // was read: that is from later than it seems, and the next sample from sooner after it.
    let first = |percent: f64| {
        let mut governor = Governor::new(Act::default());
        governor.pressure_reported(Duration::ZERO);
        let late = |tick| Duration::from_millis(if tick % 10 == 5 { 60 } else { 0 });
        let samples = stalling(S / 10, 8).zip(0..).map(|(sample, tick)| {
            let stalled = Some([(sample.at + late(tick)).mul_f64(percent / 100.0); 2]);
            Sample { stalled, stalled_within: late(tick), ..sample }
        });
        first_kill_by(governor, samples)
    };
    assert_eq!(first(90.0), None);
    assert!(first(100.0).is_some());
}

#[test]
fn stalls_are_seen_however_often_memory_is_sampled() {
    // Each request for metrics is a reason to sample.
    for every in [100, 10, 2, 1].map(Duration::from_millis) {
        let mut governor = Governor::new(Act::default());
        governor.pressure_reported(Duration::ZERO);
        let first = first_kill_by(governor, stalling(every, 8));
        assert!(matches!(first, Some((at, Reason::Stall)) if at <= S * 6 / 10), "{every:?}: {first:?}");
    }
}

#[test]
fn the_last_of_swap_is_not_waited_for() {
    // MiB of 512 that are available, and of 512 of swap that are free.
    let first = |available: u64, swap: u64, act: &Act| {
        let samples = (0..20).map(|tick| {
            let (at, swap) = (S / 10 * tick, (swap + u64::from(19 - tick)) * MIB);
            let (total, available) = (512 * MIB, available * MIB);
            Sample {
                at,
                total,
                available,
                free: available,
                swap_total: total,
                swap_free: swap,
                stalled: Some([at; 2]),
                ..Sample::default()
            }
        });
        first_kill_in(samples, act)
    };
    let act = Act { stall: 101.0, ..Act::default() };
    // 1 % of memory and 5 % of swap are 30 MiB together.
    assert!(matches!(first(10, 15, &act), Some((_, Reason::Critical))));
    assert_eq!(first(10, 25, &act), None);
    // What the face-off's peak-zram left of memory and swap, 9 % of both together.
    assert_eq!(first(10, 84, &act), None);
}

#[test]
fn memory_that_comes_back_by_itself_is_no_reason_to_kill() {
    // MiB of 2 GiB that were available every 50 ms in a run of the face-off's peak-zram, which fits: the daemon killed
    // after the last of them. For half a second some task had stalled without a break, and all for 95 % of it.
    let recovering = [5, 6, 11, 15, 17, 21, 26, 31, 36, 40, 45, 50, 55, 59, 63];
    let kills = |available: &dyn Fn(usize) -> u64| {
        let samples = (0..recovering.len()).map(|tick| {
            let at = S / 20 * tick as u32;
            Sample {
                at,
                total: 2 * GIB,
                available: available(tick) * MIB,
                free: (available(tick) + 17) * MIB,
                swap_total: GIB,
                swap_free: GIB * 2 / 3,
                stalled: Some([at, at.mul_f64(0.95)]),
                ..Sample::default()
            }
        });
        first_kill_in(samples, &Act { early_reclaim: true, ..Act::default() }).is_some()
    };
    assert!(!kills(&|tick| recovering[tick]));
    // Where a kill was right, it grew by 11 MiB at most.
    assert!(kills(&|tick| 36 + tick as u64) && kills(&|_| 15));
}
