// SPDX-License-Identifier: GPL-2.0-only
//! Pressure stall information (PSI): the share of time in which tasks waited for memory; and triggers that report
//! when it rises.

use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::poll::poll;
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

/// Shares of time in percent, and the time itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// In the last 10 s.
    pub avg10: f64,
    /// In the last 60 s.
    pub avg60: f64,
    /// In the last 300 s.
    pub avg300: f64,
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
        let (mut avg10, mut avg60, mut avg300, mut total) = (None, None, None, None);
        for field in fields {
            let Some(equals) = field.iter().position(|&b| b == b'=') else {
                return Err(line.error("not a name and a value"));
            };
            let value = &field[equals + 1..];
            match &field[..equals] {
                b"avg10" => avg10 = Some(percent(line, value)?),
                b"avg60" => avg60 = Some(percent(line, value)?),
                b"avg300" => avg300 = Some(percent(line, value)?),
                b"total" => total = Some(Duration::from_micros(line.number(value)?)),
                _ => {}
            }
        }
        Ok(Self {
            avg10: avg10.ok_or_else(|| line.error("avg10= is missing"))?,
            avg60: avg60.ok_or_else(|| line.error("avg60= is missing"))?,
            avg300: avg300.ok_or_else(|| line.error("avg300= is missing"))?,
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
pub struct Trigger {
    fd: OwnedFd,
    path: PathBuf,
}

impl Trigger {
    /// The shortest window that all kernels take.
    pub const WINDOW_MIN: Duration = Duration::from_millis(500);
    /// The longest window.
    pub const WINDOW_MAX: Duration = Duration::from_secs(10);

    /// A trigger on the whole system. Without `CAP_SYS_RESOURCE` a window must be a multiple of
    /// 2 s (since Linux 6.5; before, that capability or root was needed).
    ///
    /// # Errors
    /// [`Error::Argument`] when the window is not within [`Trigger::WINDOW_MIN`] and
    /// [`Trigger::WINDOW_MAX`] or the threshold is not within 1 µs and the window; EACCES and EPERM
    /// ([`Error::is_denied`]); EINVAL for a window the caller may not have;
    /// [`Error::is_unsupported`] if the kernel does without PSI.
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
        let (request, len) = request(threshold, window)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = rustix::fs::openat(CWD, &path, flags, Mode::empty()).map_err(|e| Error::io(&path, e))?;
        let wrote = rustix::io::write(&fd, &request[..len]).map_err(|e| Error::io(&path, e))?;
        // The kernel takes all or nothing.
        if wrote == len { Ok(Self { fd, path }) } else { Err(Error::io(&path, Errno::IO)) }
    }

    /// Waits until it fires, and says whether it has. Signal handlers do not end the wait.
    ///
    /// # Errors
    /// ENODEV when the cgroup is gone; when the kernel is short of memory.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        let events = poll(&self.fd, PollFlags::PRI, timeout).map_err(|e| Error::io(&self.path, e))?;
        // With POLLPRI, too.
        if events.contains(PollFlags::ERR) {
            return Err(Error::io(&self.path, Errno::NODEV));
        }
        Ok(events.contains(PollFlags::PRI))
    }
}

impl AsFd for Trigger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What is written to the file. The kernel replaces the last byte by a NUL, so there is one more.
fn request(threshold: Duration, window: Duration) -> Result<([u8; 64], usize)> {
    if !(Trigger::WINDOW_MIN..=Trigger::WINDOW_MAX).contains(&window) {
        return Err(Error::Argument(
            format!(
                "a PSI trigger's window is {:?} to {:?}, not {window:?}",
                Trigger::WINDOW_MIN,
                Trigger::WINDOW_MAX
            )
            .into(),
        ));
    }
    if !(Duration::from_micros(1)..=window).contains(&threshold) {
        return Err(Error::Argument(
            format!("a PSI trigger's threshold is 1µs to its window of {window:?}, not {threshold:?}").into(),
        ));
    }
    let mut text = [0; 64];
    let mut room = &mut text[..];
    // Two numbers of at most 8 digits fit.
    writeln!(room, "some {} {}", threshold.as_micros(), window.as_micros())
        .map_err(|e| Error::Argument(e.to_string().into()))?;
    let left = room.len();
    Ok((text, text.len() - left))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Pressure> {
        Pressure::parse(Path::new("/proc/pressure/memory"), text.as_bytes())
    }

    #[test]
    fn some_without_full() {
        let pressure = parse("some avg10=1.50 avg60=0.00 avg300=100.00 total=1234567\n").unwrap();
        assert_eq!(pressure.full, None);
        assert_eq!(
            pressure.some,
            Line { avg10: 1.5, avg60: 0.0, avg300: 100.0, total: Duration::from_micros(1_234_567) }
        );
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
        let (text, len) = request(Duration::from_millis(150), Duration::from_secs(1)).unwrap();
        assert_eq!(&text[..len], b"some 150000 1000000\n");
        let (text, len) = request(Trigger::WINDOW_MAX, Trigger::WINDOW_MAX).unwrap();
        assert_eq!(&text[..len], b"some 10000000 10000000\n");
    }

    #[test]
    fn requests_the_kernel_would_refuse_are_not_made() {
        let us = Duration::from_micros;
        for (threshold, window) in
            [(1, 499_999), (1, 10_000_001), (0, 500_000), (500_001, 500_000), (u64::MAX, u64::MAX)]
        {
            let error = request(us(threshold), us(window)).unwrap_err();
            assert!(matches!(error, Error::Argument(_)), "{error:?}");
        }
        assert!(request(Duration::from_nanos(999), Duration::from_secs(1)).is_err());
    }

    #[test]
    fn triggers() {
        // Unlike memory, a CPU is easy to wait for.
        let trigger = |threshold, window| Trigger::on_file("/proc/pressure/cpu".into(), threshold, window);
        // Bit 24 is CAP_SYS_RESOURCE: without it, windows are multiples of 2 s.
        let own = crate::Process::open(&Root::system(), crate::Pid::own()).unwrap().status().unwrap();
        let shortest =
            if own.cap_effective & 1 << 24 != 0 { Trigger::WINDOW_MIN } else { Duration::from_secs(2) };
        // The kernel takes what is within the limits, at their ends, too.
        for (threshold, window) in [
            (Duration::from_micros(1), shortest),
            (shortest, shortest),
            (Trigger::WINDOW_MAX, Trigger::WINDOW_MAX),
        ] {
            match trigger(threshold, window) {
                Err(e) if e.is_unsupported() || e.is_denied() => {
                    println!("skipped: no PSI triggers here: {e:?}");
                    return;
                }
                trigger => drop(trigger.unwrap()),
            }
        }
        let never = trigger(Trigger::WINDOW_MAX, Trigger::WINDOW_MAX).unwrap();
        // What the kernel did not count while it had no trigger may be added to the first window, and is one event.
        never.wait(Duration::from_millis(20)).unwrap();
        let start = std::time::Instant::now();
        assert!(!never.wait(Duration::from_millis(20)).unwrap());
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
            let fired = busy.wait(Duration::from_secs(10));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            fired
        });
        assert!(fired.unwrap());
    }

    proptest! {
        #[test]
        fn any_pressure_in_any_order(avg in prop::array::uniform3(0u32..=10_000), total: u64, swapped: bool) {
            let [a, b, c] = avg.map(|a| format!("{}.{:02}", a / 100, a % 100));
            let some = format!("some avg10={a} avg60={b} avg300={c} total={total}\n");
            let full = "full avg10=1.00 avg60=2.00 avg300=3.00 total=4\n";
            let text = if swapped { format!("{full}{some}") } else { format!("{some}{full}") };
            let pressure = parse(&text).unwrap();
            prop_assert_eq!(pressure.some.total, Duration::from_micros(total));
            let got = [pressure.some.avg10, pressure.some.avg60, pressure.some.avg300];
            prop_assert_eq!(got, avg.map(|a| f64::from(a) / 100.0));
            prop_assert_eq!(pressure.full.unwrap().total, Duration::from_micros(4));
        }
    }
}
