// SPDX-License-Identifier: GPL-2.0-only
//! What the control loop does in the simulated machine.

use std::collections::HashSet;

use fastrand::Rng;

use super::*;
use crate::config::Level;
use crate::kill::FirstSignal;

#[test]
fn a_hog_is_killed_once_and_soon() {
    // From what cannot be compressed to what can be well.
    for saves in [0.0, 0.3, 0.67] {
        for rate in [50, 200, 1000, 4000] {
            let mut run = Run::new(saves, &Config::default());
            run.sim.spawn(300 * MIB, 0, 0);
            let hog = run.sim.spawn(10 * MIB, rate * MIB, u64::MAX);
            run.pass(120 * S);
            assert_eq!(run.killed(), [hog], "{saves} {rate}");
            assert_eq!(run.sim.endings, [Ending::Back]);
            assert!(run.sim.stalled < 2 * S, "{saves} {rate}: stalled {:?}", run.sim.stalled);
        }
    }
}

#[test]
fn a_hog_is_killed_long_before_swap_that_frees_nothing_is_full() {
    let mut run = Run::new(0.0, &Config::default());
    run.sim.spawn(10 * MIB, 400 * MIB, u64::MAX);
    run.pass(60 * S);
    assert!(run.sim.kills[0].headroom > SWAP_BYTES / 4, "{:?}", run.sim.kills);
}

/// A process takes all but a fiftieth of what is available, keeps it and gives it back.
fn peak(run: &mut Run, seconds_to_take: f64) {
    let size = run.sim.available() / 50 * 49;
    let id = run.sim.spawn(MIB, (size as f64 / seconds_to_take) as u64, size);
    run.pass(Duration::from_secs_f64(2.0 * seconds_to_take) + 4 * S);
    assert_eq!(run.sim.get(id).map(|p| p.bytes), Some(size), "{size}: {:?}", run.sim.kills);
    run.sim.procs.retain(|p| p.id != id);
    run.pass(2 * S);
}

#[test]
fn a_peak_that_fits_costs_no_life() {
    for total in SIZES {
        for (psi, swap, saves) in
            [(true, 0, 0.0), (false, 0, 0.0), (true, total / 2, 0.0), (true, total / 2, 0.6), (true, total, 1.0)]
        {
            for seconds in [0.5, 9.0, 60.0] {
                let mut run = sized(total, psi, swap, saves);
                peak(&mut run, seconds);
                assert_eq!(run.killed(), [0; 0], "{total} {psi} {swap} {saves} {seconds}");
            }
        }
    }
}

/// Processes come, take memory at any rate up to what there is, and go: nobody has to die. More days by
/// `MEMREAP_SIMULATED_DAYS=200 cargo test --release -p memreap benign`.
#[test]
fn benign_days() {
    let days = std::env::var("MEMREAP_SIMULATED_DAYS").map_or(1, |text| text.parse().unwrap());
    for total in SIZES {
        let mut rng = Rng::with_seed(total);
        let psi = rng.u8(..4) != 0;
        let mut run = sized(total, psi, total / 2 * rng.u64(..2), 0.5);
        while run.sim.now < days * 24 * 3600 * S {
            run.step();
            let available = run.sim.available();
            for _ in 0..rng.u64(0..=3) {
                let cap = rng.u64(available / 100..=available / 5);
                run.sim.spawn(cap / 10, cap / rng.u64(1..=40), cap);
                run.pass(Duration::from_millis(rng.u64(0..=10_000)));
            }
            // The last one takes nearly all that the others leave.
            let taken: u64 = run.sim.procs.iter().map(|p| p.cap).sum();
            let cap = available - available / rng.u64(5..=50) - taken;
            run.sim.spawn(cap / 10, cap / rng.u64(1..=40), cap);
            run.pass(45 * S);
            if rng.u8(..4) == 0 && run.sim.available() > total / 20 {
                // A balloon driver takes part of what is left, and returns it.
                let taken = run.sim.available() / 3;
                run.sim.total -= taken;
                run.pass(10 * S);
                run.sim.total += taken;
            }
            run.sim.procs.clear();
            // Nothing happens, and time is not simulated.
            run.pass(5 * S);
            run.sim.now += Duration::from_secs(rng.u64(0..=3600));
            assert_eq!(run.killed(), [0; 0], "{total} at {:?}", run.sim.now);
        }
    }
}

/// A machine of 512 GiB, of which many innocents leave 35 GiB: less than 7 %.
fn large(config: &Config) -> Run {
    const INNOCENTS: u64 = 40;
    let mut run = Run::new(0.5, config);
    run.sim.total = 512 * GIB;
    run.sim.swap_bytes = 0;
    for _ in 0..INNOCENTS {
        run.sim.spawn((run.sim.total - run.sim.base - 35 * GIB) / INNOCENTS, 0, 0);
    }
    run
}

#[test]
fn much_that_wavers_is_no_shortage() {
    let shares = Config::parse("c", "act = { low = 10, critical = 1 }").unwrap();
    for config in [Config::default(), shares] {
        let mut run = large(&config);
        for wave in (0..100).flat_map(|_| [16, 32, 48, 32, 16, 0]) {
            let busy = run.sim.spawn(wave * MIB, 0, 0);
            run.step();
            run.pass(S / 10);
            run.sim.procs.retain(|p| p.id != busy);
        }
        assert_eq!((run.killed(), run.sim.stalled), (vec![], Duration::ZERO), "{:?}", run.sim.kills);
    }
}

#[test]
fn a_hog_is_killed_on_a_large_machine() {
    for rate in [100 * MIB, GIB, 8 * GIB] {
        let mut run = large(&Config::default());
        let hog = run.sim.spawn(10 * MIB, rate, u64::MAX);
        run.pass(600 * S);
        assert_eq!(run.killed(), [hog], "{rate}: {:?}", run.sim.kills);
    }
}

#[test]
fn what_fits_is_left_alone() {
    for saves in [0.0, 0.5] {
        for (rate, cap) in [(4000, 1100), (1000, 1200), (50, 1250)] {
            let mut run = Run::new(saves, &Config::default());
            run.sim.spawn(10 * MIB, rate * MIB, cap * MIB);
            run.pass(60 * S);
            assert_eq!(run.killed(), [0; 0], "{saves} {rate} {cap}: {:?}", run.sim.kills);
        }
    }
}

#[test]
fn a_victim_that_does_not_die_is_left_behind_at_the_deadline() {
    let config = Config::default();
    let mut run = Run::new(0.3, &config);
    let stuck = run.sim.spawn(400 * MIB, 600 * MIB, u64::MAX);
    run.sim.get(stuck).unwrap().exit = None;
    let second = run.sim.spawn(390 * MIB, 100 * MIB, u64::MAX);
    run.pass(30 * S);
    assert_eq!(run.killed(), [stuck, second]);
    assert_eq!(run.sim.endings, [Ending::Late, Ending::Back]);
    assert!(run.sim.kills[1].at - run.sim.kills[0].at >= config.kill.deadline);
}

#[test]
fn who_is_asked_first_has_the_time_that_there_is() {
    let first = |name: &str| SignalFirst { signal: name.parse().unwrap(), grace: 2 * S };
    let (all, of_rule) = (first("SIGTERM"), first("SIGHUP"));
    let mut config = Config::default();
    // Without PSI only the level of memory is a reason to kill.
    for psi in [true, false] {
        for (all, deaf, rule) in [
            (Some(all), false, None),
            (Some(all), true, None),
            (Some(all), true, Some(of_rule)),
            (None, true, Some(of_rule)),
        ] {
            config.kill.signal_first = all;
            let mut run = Run::new(0.5, &config);
            (run.sim.psi, run.sim.deaf, run.sim.signal_first) = (psi, deaf, rule);
            run.step();
            let hog = run.sim.spawn(10 * MIB, 60 * MIB, u64::MAX);
            run.pass(120 * S);
            assert_eq!(run.sim.asked, [(hog, rule.or(all).unwrap().signal.signal())], "{psi} {all:?}");
            assert_eq!(run.killed().len(), usize::from(deaf));
        }
    }
}

#[test]
fn who_is_asked_is_asked_once() {
    let mut config = Config::default();
    config.kill.signal_first = Some(SignalFirst { signal: "SIGTERM".parse().unwrap(), grace: 2 * S });
    let mut run = Run::new(0.5, &config);
    (run.sim.psi, run.sim.deaf, run.sim.swap_bytes) = (false, true, 0);
    run.step();
    // What it takes within two seconds is more than is left when memory is low.
    let hog = run.sim.spawn(10 * MIB, 400 * MIB, u64::MAX);
    run.pass(10 * S);
    assert_eq!((run.sim.asked.len(), run.killed()), (1, vec![hog]));
}

#[test]
fn who_is_not_short_is_not_asked() {
    let mut config = Config::default();
    config.kill.signal_first = Some(SignalFirst { signal: "SIGTERM".parse().unwrap(), grace: 10 * S });
    let mut run = Run::new(0.5, &config);
    (run.sim.psi, run.sim.swap_bytes) = (false, 0);
    run.step();
    // Fits: at its rate, all would be gone in two seconds.
    run.sim.spawn(MIB, 400 * MIB, 300 * MIB);
    run.pass(20 * S);
    assert_eq!((run.sim.asked.len(), run.killed()), (0, vec![]));
}

/// A machine, and a process that takes so much per second and was asked in vain, with the time `grace` left.
fn asked_in_vain(rate: u64, grace: Duration) -> (Run, u64) {
    let mut config = Config::default();
    config.kill.signal_first = Some(SignalFirst { signal: "SIGTERM".parse().unwrap(), grace });
    let mut run = Run::new(0.5, &config);
    run.sim.deaf = true;
    let hog = run.sim.spawn(10 * MIB, rate, u64::MAX);
    while run.sim.asked.is_empty() {
        run.pass(S / 10);
    }
    (run, hog)
}

#[test]
fn who_was_asked_is_spared_when_memory_is_back() {
    let (mut run, hog) = asked_in_vain(20 * MIB, 60 * S);
    let hog = run.sim.procs.iter_mut().find(|p| p.id == hog).unwrap();
    (hog.bytes, hog.rate) = (MIB, 0);
    run.pass(120 * S);
    assert_eq!((run.sim.asked.len(), run.killed()), (1, vec![]));
}

#[test]
fn who_gives_its_memory_back_bit_by_bit_and_exits_has_a_record() {
    let first = SignalFirst { signal: "SIGTERM".parse().unwrap(), grace: 2 * S };
    for (signal_first, polite) in [(Some(first), ""), (None, "act.polite = '8%'")] {
        let mut config = Config::parse("c", polite).unwrap();
        config.kill.signal_first = signal_first;
        let mut run = Run::new(0.5, &config);
        run.sim.swap_bytes = 0;
        let hog = run.sim.spawn(10 * MIB, 60 * MIB, u64::MAX);
        run.sim.get(hog).unwrap().exit = Some(S / 2);
        while run.sim.asked.is_empty() {
            run.pass(MOMENT);
        }
        while let Some(hog) = run.sim.get(hog) {
            (hog.rate, hog.bytes) = (0, hog.bytes - hog.bytes / 20);
            run.pass(MOMENT);
        }
        run.pass(S);
        assert_eq!((&run.sim.endings[..], run.killed().len()), (&[Ending::Exited][..], 0), "{polite}");
    }
}

#[test]
fn who_was_asked_is_spared_when_exempt_by_then() {
    let (mut run, hog) = asked_in_vain(60 * MIB, 2 * S);
    run.sim.procs.iter_mut().find(|p| p.id == hog).unwrap().rate = 0;
    run.sim.spared = Some(hog);
    run.pass(120 * S);
    assert_eq!((run.sim.asked.len(), run.killed()), (1, vec![]));
}

/// A machine with a database that needs a second to flush when it is asked to end, and a leak that is smaller.
fn flushing(polite: bool, rate: u64) -> (Run, u64) {
    let config = if polite { "act.polite = '8%'" } else { "" };
    let mut run = Run::new(0.5, &Config::parse("c", config).unwrap());
    run.sim.swap_bytes = 0;
    let database = run.sim.spawn(800 * MIB, 0, 0);
    run.sim.get(database).unwrap().exit = Some(S);
    run.sim.spawn(10 * MIB, rate, 790 * MIB);
    run.step();
    (run, database)
}

#[test]
fn who_is_asked_while_there_is_time_can_flush() {
    for rate in [2, 20, 100] {
        let (mut run, database) = flushing(true, rate * MIB);
        run.pass(600 * S);
        let term = "SIGTERM".parse::<FirstSignal>().unwrap().signal();
        assert_eq!((&run.sim.asked[..], run.killed()), (&[(database, term)][..], vec![]), "{rate}");
        assert!(run.sim.get(database).is_none());
        // Without the setting it dies all the same, with what it has not written.
        let (mut run, database) = flushing(false, rate * MIB);
        run.pass(600 * S);
        assert_eq!((run.sim.asked.len(), run.killed()), (0, vec![database]), "{rate}");
    }
}

#[test]
fn who_was_asked_while_there_was_time_is_killed_when_it_must_be() {
    for rate in [20, 100, 400, 4000] {
        for signal_first in ["", "kill.signal_first = 'SIGINT'"] {
            let mut config = Config::parse("c", &format!("act.polite = '8%'\n{signal_first}")).unwrap();
            let run = |config: &Config| {
                let mut run = Run::new(0.5, config);
                (run.sim.swap_bytes, run.sim.deaf) = (0, true);
                run.sim.spawn(300 * MIB, 0, 0);
                let hog = run.sim.spawn(10 * MIB, rate * MIB, u64::MAX);
                run.step();
                run.pass(200 * S);
                assert_eq!(run.killed(), [hog], "{rate}");
                run
            };
            let polite = run(&config);
            config.act.polite = None;
            config.kill.signal_first = None;
            let hard = run(&config);
            // Asked once at most, not at all if there is no time, and not killed any sooner or later for it.
            let asked = polite.sim.asked.len();
            assert!(asked == 1 || (asked == 0 && rate >= 400), "{rate} {signal_first}: {:?}", polite.sim.asked);
            let [polite, hard] = [polite, hard].map(|run| run.sim.kills[0].at);
            let apart = polite.max(hard) - polite.min(hard);
            assert!(apart <= S / 5, "{rate} {signal_first}: {polite:?}, {hard:?}");
        }
    }
}

#[test]
fn who_was_asked_while_there_was_time_is_not_asked_again_for_a_reason() {
    let config = "act = { polite = '8%', polite_interval = '60s' }\nkill.signal_first = 'SIGTERM'";
    let mut run = Run::new(0.5, &Config::parse("c", config).unwrap());
    (run.sim.swap_bytes, run.sim.deaf, run.sim.unfreeable) = (0, true, 100 * MIB);
    // It stops where tasks stall, but memory is not used up.
    let most = TOTAL_BYTES - run.sim.base - run.sim.unfreeable - 30 * MIB;
    let hog = run.sim.spawn(10 * MIB, 40 * MIB, most);
    run.step();
    run.pass(55 * S);
    assert_eq!(run.sim.asked.len(), 1);
    run.pass(60 * S);
    assert_eq!((run.sim.asked.len(), run.killed()), (1, vec![hog]));
}

#[test]
fn nobody_is_asked_without_need_and_one_at_a_time() {
    // Little is left, but that stays.
    let config = Config::parse("c", "act.polite = '8%'").unwrap();
    let mut run = Run::new(0.5, &config);
    run.sim.swap_bytes = 0;
    run.sim.spawn(TOTAL_BYTES - run.sim.base - TOTAL_BYTES / 20, 0, 0);
    run.step();
    for _ in 0..60 {
        run.control_loop.pressure_reported(run.sim.now);
        run.step();
        run.pass(S);
    }
    assert_eq!((run.sim.asked.len(), run.killed()), (0, vec![]));
    // Each that is asked gives way to the next one.
    let mut run = Run::new(0.5, &config);
    run.sim.swap_bytes = 0;
    for _ in 0..60 {
        run.sim.spawn(20 * MIB, 0, 0);
    }
    let leak = run.sim.spawn(10 * MIB, 4 * MIB, u64::MAX);
    run.sim.spared = Some(leak);
    run.step();
    while run.sim.asked.is_empty() {
        run.pass(MOMENT);
    }
    run.pass(60 * S);
    let most = 1 + 60 / config.act.polite_interval.as_secs();
    assert!((5..=most).contains(&(run.sim.asked.len() as u64)), "{:?}", run.sim.asked);
    let ids: HashSet<u64> = run.sim.asked.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids.len(), run.sim.asked.len());
}

/// A machine with a command before kills.
fn hooked(takes: Duration, says: Before, frees: u64, skip: bool) -> Run {
    let mut config = Config::default();
    config.kill.before = Some(vec!["/hook".to_owned()]);
    config.kill.before_when_critical = !skip;
    let mut run = Run::new(0.5, &config);
    run.sim.hook = Some(Hook { takes, says, frees });
    run
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_command_that_frees_a_cache_averts_a_kill() {
    let mut run = hooked(50 * MS, Before::Freed, 300 * MIB, false);
    // It would be killed, but what it wants at most fits without the cache.
    let peak = run.sim.spawn(10 * MIB, 400 * MIB, 2200 * MIB);
    run.pass(60 * S);
    assert_eq!((run.killed(), &run.sim.averted[..]), (vec![], &[Before::Freed][..]));
    assert_eq!(run.sim.get(peak).unwrap().bytes, 2200 * MIB);
    let mut without = Run::new(0.5, &Config::default());
    let peak = without.sim.spawn(10 * MIB, 400 * MIB, 2200 * MIB);
    without.pass(60 * S);
    assert_eq!(without.killed(), [peak]);
}

#[test]
fn a_kill_goes_on_whatever_the_command_does() {
    let never = 3600 * S;
    let limit = Config::default().kill.before_limit;
    for (takes, says, skip, expected) in [
        (50 * MS, Before::Passed, false, Before::Passed),
        (50 * MS, Before::Failed, false, Before::Failed),
        (50 * MS, Before::Freed, false, Before::Freed),
        (never, Before::Passed, false, Before::TimedOut),
        (never, Before::Passed, true, Before::Skipped),
    ] {
        for rate in [50, 400, 4000] {
            let run = |config: &Config, hook| {
                let mut run = Run::new(0.5, config);
                run.sim.hook = hook;
                run.sim.spawn(300 * MIB, 0, 0);
                let hog = run.sim.spawn(10 * MIB, rate * MIB, u64::MAX);
                run.pass(120 * S);
                assert_eq!(run.killed(), [hog], "{says:?} {rate}");
                run
            };
            let mut config = Config::default();
            let without = run(&config, None).sim.kills[0].at;
            config.kill.before = Some(vec!["/hook".to_owned()]);
            config.kill.before_when_critical = !skip;
            let with = run(&config, Some(Hook { takes, says, frees: 0 }));
            let (kill, sim) = (&with.sim.kills[0], &with.sim);
            assert_eq!((kill.before, sim.averted.len()), (expected, 0), "{rate}");
            // Its time, and that of a sample or two.
            let most = takes.min(limit) + 50 * MS;
            assert!(kill.at <= without + if skip { 50 * MS } else { most }, "{says:?} {rate}: {:?}", kill.at - without);
            assert!(sim.longest_pause <= 30 * MS, "{says:?} {rate}: {:?}", sim.longest_pause);
        }
    }
}

#[test]
fn a_command_averts_no_kill_for_ever() {
    // What it frees is taken at once, and so on.
    let mut run = hooked(20 * MS, Before::Freed, 40 * MIB, false);
    let hog = run.sim.spawn(10 * MIB, 800 * MIB, u64::MAX);
    run.pass(20 * S);
    assert_eq!(run.killed(), [hog]);
    assert_eq!(run.sim.averted, [Before::Freed; 3]);
}

#[test]
fn a_command_that_frees_enough_for_a_minute_averts_each_kill() {
    let mut run = hooked(20 * MS, Before::Freed, 160 * MIB, false);
    (run.sim.swap_bytes, run.sim.base) = (0, 1200 * MIB);
    run.sim.spawn(10 * MIB, 2 * MIB, u64::MAX);
    while run.sim.base >= 160 * MIB {
        run.pass(S);
        assert!(run.killed().is_empty(), "{:?}", run.sim.averted);
    }
    assert_eq!(run.sim.averted.len(), 7);
}

#[test]
fn the_command_runs_before_the_first_signal_and_once() {
    let mut config = Config::default();
    config.kill.before = Some(vec!["/hook".to_owned()]);
    config.kill.signal_first = Some(SignalFirst { signal: "SIGTERM".parse().unwrap(), grace: 2 * S });
    let mut run = Run::new(0.5, &config);
    run.sim.hook = Some(Hook { takes: 50 * MS, says: Before::Passed, frees: 0 });
    run.sim.deaf = true;
    let hog = run.sim.spawn(10 * MIB, 60 * MIB, u64::MAX);
    while run.sim.asked.is_empty() {
        run.pass(MOMENT);
        assert!(run.killed().is_empty());
    }
    assert_eq!(run.sim.hooked.len(), 1);
    run.pass(60 * S);
    assert_eq!((run.killed(), run.sim.hooked.len(), run.sim.kills[0].before), (vec![hog], 1, Before::Passed));
}

/// A machine whose memory no kill frees, but for 10 MiB, and this many processes of this size; where the
/// kernel reports pressure or not.
fn crowded(psi: bool, count: u64, bytes: u64) -> Run {
    let mut run = Run::new(0.0, &Config::default());
    run.sim.psi = psi;
    run.sim.swap_bytes = 0;
    run.sim.unfreeable = TOTAL_BYTES - run.sim.base - count * bytes - 10 * MIB;
    for _ in 0..count {
        run.sim.spawn(bytes, 0, 0);
    }
    run.step();
    run
}

/// How many were killed in each of so many minutes.
fn kills_per_minute(run: &mut Run, minutes: usize) -> Vec<usize> {
    let each = |_| {
        let before = run.sim.kills.len();
        run.pass(60 * S);
        run.sim.kills.len() - before
    };
    (0..minutes).map(each).collect()
}

#[test]
fn no_process_is_killed_for_next_to_nothing() {
    for psi in [true, false] {
        let mut run = crowded(psi, 200, MIB);
        assert_eq!(kills_per_minute(&mut run, 3), [0; 3], "PSI: {psi}");
        assert_eq!(run.sim.complaints, 1, "PSI: {psi}");
        // But a process that has memory is, and soon.
        let hog = run.sim.spawn(MIB, 400 * MIB, u64::MAX);
        run.pass(S);
        assert_eq!(run.killed(), [hog], "PSI: {psi}");
    }
}

#[test]
fn many_that_are_too_small_are_killed_together() {
    let mut run = crowded(true, 200, MIB);
    run.sim.together = true;
    run.pass(3 * S);
    assert!(!run.killed().is_empty());
    assert!(run.sim.available() > TOTAL_BYTES / 100, "{} MiB", run.sim.available() / MIB);
    assert_eq!(run.sim.complaints, 0);
}

#[test]
fn a_late_choice_is_asked_for_again_at_once() {
    let mut run = crowded(true, 20, MIB);
    let hog = run.sim.spawn(100 * MIB, 0, 0);
    run.sim.late = 5;
    run.pass(2 * S);
    assert_eq!((run.killed(), run.sim.late), (vec![hog], 0));
}

#[test]
fn a_choice_that_stays_late_is_told_once() {
    let mut run = crowded(true, 20, MIB);
    let hog = run.sim.spawn(100 * MIB, 0, 0);
    run.sim.late = u32::MAX;
    run.pass(S);
    assert_eq!(run.sim.complaints, 0);
    run.pass(20 * S);
    assert_eq!(run.sim.complaints, 1);
    run.sim.late = 0;
    run.pass(S);
    assert_eq!(run.killed(), [hog]);
}

#[test]
fn kills_that_do_not_help_become_rare() {
    // Each comes back as soon as it is dead, in a cgroup with the others or not, or does not have enough for
    // all who die to matter.
    let cases = [(true, 6), (false, 3)];
    for (psi, (restarts, bytes), together) in
        [true, false].into_iter().flat_map(|psi| cases.map(|case| (psi, case, case.0 && !psi)))
    {
        let mut run = crowded(psi, 40, bytes * MIB);
        run.sim.restarts = restarts;
        run.sim.together = together;
        let kills = kills_per_minute(&mut run, 5);
        // The first time some of many die together.
        let most = if together { 12 } else { 6 };
        assert!(kills[0] > 0 && kills[0] <= most, "{psi} {restarts}: {kills:?}");
        assert!(kills[2..].iter().all(|minute| *minute <= 1), "{psi} {restarts}: {kills:?}");
        assert_eq!(run.sim.complaints, u32::from(kills[0] > 1), "{psi} {restarts}");
        // A process that is much larger does not wait for that.
        let hog = run.sim.spawn(MIB, 400 * MIB, u64::MAX);
        let before = run.sim.kills.len();
        run.pass(2 * S);
        let made: Vec<u64> = run.killed().split_off(before);
        assert!(made.contains(&hog), "{psi} {restarts}: {made:?}");
    }
}

#[test]
fn all_that_share_a_memory_are_killed_one_soon_after_the_other() {
    for psi in [true, false] {
        let mut run = Run::new(0.0, &Config::default());
        (run.sim.psi, run.sim.sharers) = (psi, 10);
        let hog = run.sim.spawn(MIB, 400 * MIB, u64::MAX);
        run.step();
        run.pass(10 * S);
        assert_eq!((run.sim.sharers, run.sim.complaints), (0, 0), "PSI: {psi}");
        assert!(run.sim.get(hog).is_none(), "PSI: {psi}");
    }
}

#[test]
fn those_whose_memory_comes_back_are_killed_one_soon_after_the_other() {
    for psi in [true, false] {
        let mut run = Run::new(0.25, &Config::default());
        run.sim.psi = psi;
        run.sim.swap_bytes = 0;
        for _ in 0..15 {
            run.sim.spawn(70 * MIB, 0, 0);
        }
        run.step();
        let camera = run.sim.spawn(10 * MIB, 800 * MIB, 800 * MIB);
        run.sim.spared = Some(camera);
        run.pass(30 * S);
        assert_eq!(run.sim.get(camera).unwrap().bytes, 800 * MIB);
        let pauses: Vec<Duration> = run.sim.kills.windows(2).map(|k| k[1].at - k[0].at).collect();
        assert!(pauses.len() > 1 && pauses.iter().all(|pause| *pause < S / 3), "{psi}: {pauses:?}");
    }
}

#[test]
fn on_a_large_machine_too_kills_that_give_back_little_of_it_help() {
    let mut run = sized(512 * GIB, true, 0, 0.0);
    for _ in 0..600 {
        run.sim.spawn(600 * MIB, MIB / 2, 700 * MIB);
    }
    run.pass(600 * S);
    assert!(run.sim.kills.len() > 4, "{} kills", run.sim.kills.len());
    let pauses: Vec<Duration> = run.sim.kills.windows(2).map(|k| k[1].at - k[0].at).collect();
    assert_eq!(run.sim.complaints, 0, "{pauses:?}");
}

#[test]
fn of_many_that_hold_the_memory_together_as_many_die_as_are_missing() {
    // The others take what one gives back, until enough of them are dead.
    for rate in [30, 75, 300, 1200] {
        let mut run = Run::new(0.0, &Config::default());
        run.sim.together = true;
        for _ in 0..300 {
            run.sim.spawn(MIB, rate * MIB / 300, 12 * MIB);
        }
        run.pass(150 * S);
        let killed = run.sim.kills.len();
        assert!(run.sim.available() > TOTAL_BYTES / 100, "{rate}: {killed} killed");
        assert_eq!(run.sim.complaints, 0, "{rate}");
        // No more than necessary: a tenth of memory is to be free, and some of them are killed while others grow.
        let left = (300 - killed as u64) * 12 * MIB;
        assert!(left + run.sim.base > TOTAL_BYTES * 3 / 4, "{rate}: {killed} killed");
    }
}

#[test]
fn a_victim_is_chosen_in_advance_for_the_machine_only() {
    let danger = |grow: &dyn Fn(&mut Sim)| {
        let mut run = Run::new(0.5, &Config::default());
        grow(&mut run.sim);
        run.pass(30 * S);
        assert_eq!(run.sim.kills.len(), 1);
        run.sim.danger
    };
    assert_eq!(danger(&|sim| _ = sim.spawn_group(256 * MIB, 200 * MIB)), Danger::None);
    assert_eq!(danger(&|sim| _ = sim.spawn(10 * MIB, 400 * MIB, u64::MAX)), Danger::Imminent);
}

#[test]
fn one_shortage_of_two_memories_costs_one_victim() {
    for milliseconds in [20, 400, 1500] {
        let mut run = Run::new(0.5, &Config::default());
        // As a cgroup of one container in one of a pod with the same limit.
        let [_, hog] = run.sim.spawn_group(256 * MIB, 200 * MIB);
        run.sim.get(hog).unwrap().exit = Some(Duration::from_millis(milliseconds));
        let limit = Some(run.sim.groups[0].id);
        (0..2).for_each(|_| run.control_loop.watch(limit));
        run.pass(60 * S);
        assert_eq!(run.killed(), [hog], "its memory is back after {milliseconds} ms");
    }
}

#[test]
fn so_does_the_next_shortage_of_two_memories() {
    let mut run = Run::new(0.5, &Config::default());
    // What is back after the first kill ends the shortage, and is less than is called relief.
    let limit = 256 * MIB;
    let [steady, hog] = run.sim.spawn_group(limit, 200 * MIB);
    run.sim.spared = Some(steady);
    run.sim.get(steady).unwrap().bytes = limit / 20 * 16;
    let innocent = run.sim.spawn(limit / 40, 0, 0);
    let group = run.sim.get(hog).unwrap().group;
    run.sim.get(innocent).unwrap().group = group;
    (0..2).for_each(|_| run.control_loop.watch(group));
    let mut hogs = vec![hog];
    for exit in [50, 400] {
        run.sim.get(hogs[hogs.len() - 1]).unwrap().exit = Some(Duration::from_millis(exit));
        run.pass(60 * S);
        assert_eq!(run.killed(), hogs);
        let next = run.sim.spawn(MIB, 200 * MIB, u64::MAX);
        run.sim.get(next).unwrap().group = group;
        hogs.push(next);
    }
}

#[test]
fn the_command_before_a_kill_runs_once_for_a_victim_of_two_memories() {
    let mut config = Config::default();
    config.kill.before = Some(vec!["/hook".to_owned()]);
    let mut run = Run::new(0.5, &config);
    run.sim.hook = Some(Hook { takes: S / 10, says: Before::Passed, frees: 0 });
    let [_, hog] = run.sim.spawn_group(256 * MIB, 200 * MIB);
    let limit = Some(run.sim.groups[0].id);
    (0..2).for_each(|_| run.control_loop.watch(limit));
    run.pass(60 * S);
    assert_eq!((run.killed(), run.sim.hooked.len(), run.sim.averted), (vec![hog], 1, vec![]));
}

#[test]
fn nobody_is_asked_to_end_while_a_victim_of_another_memory_gives_back() {
    let mut run = Run::new(0.5, &Config::parse("c", "act.polite = '8%'").unwrap());
    run.sim.swap_bytes = 0;
    let [_, hog] = run.sim.spawn_group(1200 * MIB, 150 * MIB);
    run.sim.get(hog).unwrap().exit = Some(2 * S);
    run.sim.spawn(150 * MIB, 0, 0);
    run.control_loop.watch(Some(run.sim.groups[0].id));
    run.pass_until_a_kill();
    run.sim.spawn(MIB, 60 * MIB, 60 * MIB);
    run.pass(60 * S);
    assert_eq!((run.killed(), run.sim.asked), (vec![hog], vec![]));
}

#[test]
fn a_victim_of_two_memories_is_asked_once() {
    let mut config = Config::default();
    config.kill.signal_first = Some(SignalFirst { signal: "SIGTERM".parse().unwrap(), grace: S / 2 });
    let mut run = Run::new(0.5, &config);
    let [_, hog] = run.sim.spawn_group(256 * MIB, 4 * MIB);
    run.sim.get(hog).unwrap().exit = Some(S / 4);
    let limit = Some(run.sim.groups[0].id);
    (0..2).for_each(|_| run.control_loop.watch(limit));
    run.pass(120 * S);
    assert_eq!((run.sim.asked, run.sim.endings), (vec![(hog, Signal::TERM)], vec![Ending::Exited]));
}

#[test]
fn a_limit_that_kills_again_and_again_does_not_keep_a_hog_elsewhere_alive() {
    let mut run = Run::new(0.5, &Config::default());
    (run.sim.total, run.sim.swap_bytes) = (64 * GIB, 0);
    let [_, mut worker] = run.sim.spawn_group(64 * MIB, 400 * MIB);
    let group = run.sim.get(worker).unwrap().group;
    let hog = run.sim.spawn(run.sim.total - run.sim.base - GIB, 10 * MIB, u64::MAX);
    while !run.killed().contains(&hog) {
        run.pass(MOMENT);
        // Started again at once.
        if run.sim.get(worker).is_none() {
            worker = run.sim.spawn(MIB, 400 * MIB, u64::MAX);
            run.sim.get(worker).unwrap().group = group;
        }
    }
    assert!(run.killed().len() > 10, "{:?}", run.killed());
}

#[test]
fn kills_at_a_limit_do_not_keep_other_limits_from_being_found() {
    let mut run = Run::new(0.5, &Config::default());
    run.sim.total = 64 * GIB;
    let [_, mut worker] = run.sim.spawn_group(64 * MIB, 400 * MIB);
    let group = run.sim.get(worker).unwrap().group;
    while run.killed().len() < 10 {
        run.pass(MOMENT);
        assert!(run.control_loop.may_wait(run.sim.now), "{:?}", run.sim.now);
        if run.sim.get(worker).is_none() {
            worker = run.sim.spawn(MIB, 400 * MIB, u64::MAX);
            run.sim.get(worker).unwrap().group = group;
        }
    }
}

#[test]
fn nobody_dies_if_memory_is_back_when_a_slow_choice_is_made() {
    for (milliseconds, killed) in [(100, false), (0, true)] {
        let mut run = Run::new(0.5, &Config::default());
        let steady = run.sim.spawn(400 * MIB, 0, 0);
        let hog = run.sim.spawn(300 * MIB, 400 * MIB, u64::MAX);
        (run.sim.slow, run.sim.leaves) = (Duration::from_millis(milliseconds), Some(hog));
        while run.sim.leaves.is_some() {
            run.pass(MOMENT);
        }
        run.pass(20 * S);
        // A choice that takes no time is judged by the sample that it was made for.
        assert_eq!(run.killed(), if killed { vec![steady] } else { vec![] });
    }
}

#[test]
fn a_kill_whose_cgroup_is_removed_is_told() {
    let mut run = Run::new(0.5, &Config::default());
    let [_, hog] = run.sim.spawn_group(256 * MIB, 200 * MIB);
    run.pass_until_a_kill();
    assert!(run.sim.endings.is_empty());
    run.sim.remove_groups();
    run.pass(60 * S);
    assert_eq!((run.killed(), &run.sim.endings[..]), (vec![hog], &[Ending::Back][..]));
}

#[test]
fn a_kill_for_a_cgroup_that_is_no_longer_watched_is_told() {
    let mut run = Run::new(0.5, &Config::default());
    let [_, hog] = run.sim.spawn_group(256 * MIB, 200 * MIB);
    run.pass_until_a_kill();
    let mut config = Config::default();
    config.act.cgroups = false;
    run.control_loop.reconfigure(&config, &mut run.sim);
    assert_eq!((run.killed(), &run.sim.endings[..]), (vec![hog], &[Ending::Late][..]));
}

#[test]
fn a_kill_at_the_end_of_the_daemon_is_told() {
    let mut run = Run::new(0.5, &Config::default());
    let hog = run.sim.spawn(10 * MIB, 400 * MIB, u64::MAX);
    run.pass_until_a_kill();
    run.control_loop.stop(&mut run.sim);
    assert_eq!((run.killed(), &run.sim.endings[..]), (vec![hog], &[Ending::Late][..]));
}

#[test]
fn memory_that_comes_and_goes_disables_nothing() {
    // A balloon driver returns memory and takes it again all the time.
    for (rate, cap) in [(50, u64::MAX), (400, u64::MAX), (400, 1000 * MIB)] {
        let mut run = Run::new(0.3, &Config::default());
        run.sim.spawn(200 * MIB, 0, 0);
        let id = run.sim.spawn(10 * MIB, rate * MIB, cap);
        for moment in 0..12_000 {
            run.sim.total = TOTAL_BYTES - moment % 16 * MIB;
            run.pass(MOMENT);
        }
        let expected = if cap == u64::MAX { vec![id] } else { vec![] };
        assert_eq!(run.killed(), expected, "{rate}: {:?}", run.sim.kills);
        assert!(run.sim.stalled < 2 * S, "{rate}: stalled {:?}", run.sim.stalled);
    }
}

#[test]
fn memory_that_is_taken_away_at_once_is_no_hog() {
    let mut run = Run::new(0.3, &Config::default());
    run.sim.spawn(1150 * MIB, 0, 0);
    run.sim.spawn(10 * MIB, MIB, 20 * MIB);
    run.step();
    run.pass(2 * S);
    run.sim.total -= 340 * MIB;
    run.pass(5 * S);
    assert_eq!(run.killed(), [0; 0], "{:?}", run.sim.kills);
    // Below `low`, so that a forecast would have been acted on.
    let share = run.sim.available() * 100 / run.sim.total;
    assert!(share < 10, "{share}");
}

#[test]
fn memory_is_not_sampled_without_pressure() {
    let mut run = Run::new(0.5, &Config::default());
    run.sim.spawn(600 * MIB, 0, 0);
    run.step();
    run.pass(3600 * S);
    assert!(run.steps < 30, "{} steps", run.steps);
}

#[test]
fn little_memory_that_stays_is_not_sampled() {
    let mut run = Run::new(0.5, &Config::default());
    run.sim.spawn(TOTAL_BYTES - run.sim.base - TOTAL_BYTES / 16, 0, 0);
    run.step();
    run.pass(3600 * S);
    assert!(run.steps < 30 && run.killed().is_empty(), "{} steps, {:?}", run.steps, run.sim.kills);
}

#[test]
fn a_day_of_hostile_events() {
    let day = 24 * 3600 * S;
    for seed in 0..2 {
        let mut rng = Rng::with_seed(seed);
        let config = Config::default();
        let mut run = Run::new(0.4, &config);
        run.sim.spawn(300 * MIB, 0, 0);
        while run.sim.now < day {
            let before = run.sim.kills.len();
            // The watchdog causes a sample.
            run.step();
            run.sim.saves = rng.u64(0..=70) as f64 / 100.0;
            let rate = [20, 50, 150, 500, 2000][rng.usize(0..=4)] * MIB;
            let event = rng.u64(0..=10);
            let expected = match event {
                0 => {
                    run.sim.spawn(5 * MIB, rate, u64::MAX);
                    1
                }
                1 => {
                    // Comes, stays and goes by itself.
                    let id = run.sim.spawn(5 * MIB, rate, rng.u64(100..=900) * MIB);
                    run.pass(30 * S);
                    run.sim.procs.retain(|p| p.id != id);
                    0
                }
                2 => {
                    // Stuck for a time that is longer than the deadline.
                    let id = run.sim.spawn(5 * MIB, rate, u64::MAX);
                    run.sim.get(id).unwrap().exit = Some(2 * config.kill.deadline);
                    1
                }
                3 => {
                    // The daemon does not run for a while, and a hog starts meanwhile.
                    run.sleep(Duration::from_millis(rng.u64(10..=3000)));
                    run.sim.spawn(5 * MIB, rate, u64::MAX);
                    1
                }
                4 => {
                    // Other thresholds while it is on its way.
                    run.sim.spawn(5 * MIB, rate, u64::MAX);
                    run.pass(S / 2);
                    let low = Level { share: rng.u64(6..=15) as f64, most: u64::MAX };
                    let config = Config { act: Act { low, ..Act::default() }, ..Config::default() };
                    run.control_loop.reconfigure(&config, &mut run.sim);
                    1
                }
                5 => {
                    // Exits by itself just before or after it is chosen.
                    let id = run.sim.spawn(5 * MIB, rate, u64::MAX);
                    while run.sim.kills.len() == before && run.sim.available() > TOTAL_BYTES / 8 {
                        run.pass(MOMENT);
                    }
                    run.sim.procs.retain(|p| p.id != id);
                    0
                }
                6 => {
                    // Ends when it has been chosen and is not yet killed, and its PID is another's.
                    run.sim.spawn(5 * MIB, rate, u64::MAX);
                    run.sim.slips = true;
                    0
                }
                7 => {
                    // Every file that is read takes its time.
                    run.sim.slow = Duration::from_millis(rng.u64(5..=100));
                    run.sim.spawn(5 * MIB, rate.min(150 * MIB), u64::MAX);
                    run.pass(60 * S);
                    run.sim.slow = Duration::ZERO;
                    1
                }
                8 => {
                    // In a cgroup with a limit.
                    run.sim.spawn_group(rng.u64(64..=512) * MIB, rate);
                    1
                }
                9 => {
                    // The same, and it is removed while it is watched.
                    run.sim.spawn_group(rng.u64(64..=512) * MIB, rate);
                    while run.control_loop.limits().next().is_none() && run.sim.kills.len() == before {
                        run.pass(MOMENT);
                    }
                    run.sim.remove_groups();
                    0
                }
                _ => 0,
            };
            run.pass(Duration::from_secs(rng.u64(200..=600)));
            // A victim that is stuck does not block the next kill, which may be of an innocent process: that is
            // what the deadline means. None of the harmless ones is ever the greatest here.
            for kill in &run.sim.kills[before..] {
                assert!(kill.rate > 0, "an innocent died at {:?}: {:?}", kill.at, run.sim.kills);
            }
            let made = &run.sim.kills[before..];
            assert_eq!(made.len(), expected, "event {event} at {:?}: {made:?}", run.sim.now);
            run.sim.procs.retain(|p| p.id == 1);
            run.sim.remove_groups();
        }
    }
}
