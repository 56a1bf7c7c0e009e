// SPDX-License-Identifier: GPL-2.0-only
//! Pressure stall information (PSI): the share of time in which tasks waited for memory; and triggers that report
//! when it rises.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::text::{Line as TextLine, missing};
use crate::{Error, Result, Root, read, text};

/// The whole system's, below /proc.
const SYSTEM_FILE: &str = "pressure/memory";

/// The pressure on memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Line,
    /// All tasks that were not idle waited.
    pub full: Option<Line>,
}

/// The share of time in percent, and the time itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// In the last 10 s.
    pub avg10: f64,
    /// Since boot, or since the cgroup was made.
    pub total: Duration,
}

impl Pressure {
    /// The whole system's.
    ///
    /// # Errors
    /// When it cannot be read ([`Error::is_unsupported`] if the kernel does without PSI); and as
    /// [`Pressure::parse`].
    pub fn read(root: &Root) -> Result<Self> {
        let path = root.proc().join(SYSTEM_FILE);
        Self::parse(&path, &read::file(&path, read::SMALL_FILE_BYTES)?)
    }

    /// Parses a file of PSI.
    ///
    /// # Errors
    /// When the line "some" is missing, or a field is missing or not a number.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let (mut some, mut full) = (None, None);
        for line in text::lines(path, bytes) {
            let line = line?;
            let mut fields = line.fields();
            match fields.next() {
                Some(b"some") => some = Some(Line::parse(line, fields)?),
                Some(b"full") => full = Some(Line::parse(line, fields)?),
                _ => {}
            }
        }
        Ok(Self { some: some.ok_or_else(|| missing(path, bytes, "the line \"some\" is missing"))?, full })
    }
}

impl Line {
    fn parse<'a>(line: TextLine<'a>, fields: impl Iterator<Item = &'a [u8]>) -> Result<Self> {
        let (mut avg10, mut total) = (None, None);
        for field in fields {
            let Some(equals) = field.iter().position(|&b| b == b'=') else {
                return Err(line.error("not a name and a value"));
            };
            let value = &field[equals + 1..];
            match &field[..equals] {
                b"avg10" => avg10 = Some(percent(line, value)?),
                b"total" => total = Some(Duration::from_micros(line.number(value)?)),
                _ => {}
            }
        }
        Ok(Self {
            avg10: avg10.ok_or_else(|| line.error("avg10= is missing"))?,
            total: total.ok_or_else(|| line.error("total= is missing"))?,
        })
    }
}

fn percent(line: TextLine<'_>, value: &[u8]) -> Result<f64> {
    // Not "inf", "nan", "1e9" or "-1", which f64 takes.
    if value.iter().all(|b| b.is_ascii_digit() || *b == b'.') {
        // No more digits than a number in 64 bits has, so it cannot overflow to infinity.
        if value.len() <= 24 {
            return line.number(value);
        }
    }
    Err(line.error("not a percentage"))
}

/// A file that becomes ready (POLLPRI, EPOLLPRI) when for longer than a threshold within a window of time at least
/// one task waited; at most once per window.
#[derive(Debug)]
pub struct Trigger(OwnedFd);

impl Trigger {
    /// A trigger on the whole system. The window is 0.5 s to 10 s, and without `CAP_SYS_RESOURCE` a multiple
    /// of 2 s (since Linux 6.5; before, that capability or root was needed); the threshold is at most the
    /// window.
    ///
    /// # Errors
    /// EINVAL for a window or threshold that the caller may not have; EACCES and EPERM
    /// ([`Error::is_denied`]); [`Error::is_unsupported`] if the kernel does without PSI.
    pub fn new(root: &Root, threshold: Duration, window: Duration) -> Result<Self> {
        Self::on_file(root.proc().join(SYSTEM_FILE), threshold, window)
    }

    /// A trigger on a cgroup, by its directory.
    ///
    /// # Errors
    /// As [`Trigger::new`].
    pub fn on_cgroup(dir: &Path, threshold: Duration, window: Duration) -> Result<Self> {
        Self::on_file(dir.join("memory.pressure"), threshold, window)
    }

    fn on_file(path: PathBuf, threshold: Duration, window: Duration) -> Result<Self> {
        // The kernel replaces the last byte by a NUL, so there is one more.
        let request = format!("some {} {}\n", threshold.as_micros(), window.as_micros());
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = rustix::fs::openat(CWD, &path, flags, Mode::empty()).map_err(|e| Error::io(&path, e))?;
        let wrote = rustix::io::write(&fd, request.as_bytes()).map_err(|e| Error::io(&path, e))?;
        // The kernel takes all or nothing.
        if wrote == request.len() { Ok(Self(fd)) } else { Err(Error::io(&path, Errno::IO)) }
    }
}

impl AsFd for Trigger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
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
        let shortest = if own.contains(rustix::thread::CapabilitySet::SYS_RESOURCE) {
            WINDOW_MIN
        } else {
            Duration::from_secs(2)
        };
        // The kernel takes what is within the limits, at their ends, too.
        for (threshold, window) in
            [(Duration::from_micros(1), shortest), (shortest, shortest), (WINDOW_MAX, WINDOW_MAX)]
        {
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
        fires(&never, Duration::from_millis(20));
        let start = std::time::Instant::now();
        assert!(!fires(&never, Duration::from_millis(20)));
        assert!(start.elapsed() >= Duration::from_millis(20));

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
}
