// SPDX-License-Identifier: GPL-2.0-only

use proptest::prelude::*;
use rustix::event::PollFlags;

use super::*;

fn parse(text: &str) -> Result<Pressure> {
    Pressure::parse(Path::new("/proc/pressure/memory"), text.as_bytes())
}

#[test]
fn some_without_full() {
    let pressure = parse("some avg10=1.50 avg60=0.00 avg300=100.00 total=1234567\n").unwrap();
    assert_eq!(pressure.full, None);
    assert_eq!(pressure.some, Line { avg10: 1.5, total: Duration::from_micros(1_234_567) });
}

#[test]
fn what_is_not_pressure_is_an_error() {
    for wrong in [
        "",
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        "some avg10=0.00 avg60=0.00 avg300=0.00\n",
        "some avg10=nan avg60=0.00 avg300=0.00 total=0\n",
        "some avg10=inf avg60=0.00 avg300=0.00 total=0\n",
        "some avg10=-1.00 avg60=0.00 avg300=0.00 total=0\n",
        "some avg10=1e9 avg60=0.00 avg300=0.00 total=0\n",
        "some avg10= avg60=0.00 avg300=0.00 total=0\n",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=18446744073709551616\n",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1",
        "some avg10 avg60=0.00 avg300=0.00 total=1\n",
    ] {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn requests_are_in_microseconds() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("memory.pressure");
    std::fs::write(&file, "").unwrap();
    Trigger::on_cgroup(dir.path(), Duration::from_millis(150), Duration::from_secs(1)).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "some 150000 1000000\n");
}

#[test]
fn triggers() {
    const WINDOW_MIN: Duration = Duration::from_millis(500);
    const WINDOW_MAX: Duration = Duration::from_secs(10);
    // Whether it fires in time.
    let fires = |trigger: &Trigger, timeout| {
        let events = crate::poll::poll(trigger, PollFlags::PRI, timeout).unwrap();
        assert!(!events.contains(PollFlags::ERR));
        events.contains(PollFlags::PRI)
    };
    // Unlike memory, a CPU is easy to wait for.
    let trigger = |threshold, window| Trigger::on_file("/proc/pressure/cpu".into(), threshold, window);
    // Without it, windows are multiples of 2 s.
    let own = rustix::thread::capabilities(None).unwrap().effective;
    let shortest =
        if own.contains(rustix::thread::CapabilitySet::SYS_RESOURCE) { WINDOW_MIN } else { Duration::from_secs(2) };
    // The kernel takes what is within the limits, at their ends, too.
    for (threshold, window) in [(Duration::from_micros(1), shortest), (shortest, shortest), (WINDOW_MAX, WINDOW_MAX)] {
        match trigger(threshold, window) {
            Err(e) if e.is_unsupported() || e.is_denied() => {
                testing::skipped(format_args!("no PSI triggers here: {e:?}"));
                return;
            }
            trigger => drop(trigger.unwrap()),
        }
    }
    let never = trigger(WINDOW_MAX, WINDOW_MAX).unwrap();
    // What the kernel did not count while it had no trigger may be added to the first window, and is one event.
    let is_quiet = || {
        let start = std::time::Instant::now();
        let fired = fires(&never, Duration::from_millis(20));
        assert!(fired || start.elapsed() >= Duration::from_millis(20));
        !fired
    };
    assert!(is_quiet() || is_quiet());

    // Two threads that want one CPU make somebody wait for it.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let fired = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut cpus = rustix::thread::sched_getaffinity(None).unwrap();
                let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| cpus.is_set(cpu)).unwrap();
                cpus.clear();
                cpus.set(first);
                rustix::thread::sched_setaffinity(None, &cpus).unwrap();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let busy = trigger(Duration::from_millis(5), shortest).unwrap();
        let fired = fires(&busy, Duration::from_secs(10));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        fired
    });
    assert!(fired);
}

proptest! {
    #[test]
    fn any_pressure_in_any_order(avg in 0u32..=10_000, total: u64, swapped: bool) {
        let some =
            format!("some avg10={}.{:02} avg60=1.00 avg300=2.00 total={total}\n", avg / 100, avg % 100);
        let full = "full avg10=1.00 avg60=2.00 avg300=3.00 total=4\n";
        let text = if swapped { format!("{full}{some}") } else { format!("{some}{full}") };
        let pressure = parse(&text).unwrap();
        prop_assert_eq!(pressure.some.total, Duration::from_micros(total));
        prop_assert_eq!(pressure.some.avg10, f64::from(avg) / 100.0);
        prop_assert_eq!(pressure.full.unwrap().total, Duration::from_micros(4));
    }
}
