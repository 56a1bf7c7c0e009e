// SPDX-License-Identifier: GPL-2.0-only
//! Points in time, in this machine's time zone.

use std::mem;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY_SECONDS: u64 = 24 * 3600;

/// A point in time from which on kills are shown, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since(pub u64);

impl Since {
    /// Parses what a user writes: a time ago, or a date with or without a time of day.
    ///
    /// # Errors
    /// Text for the user when it is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::parse_at(text, now)
    }

    fn parse_at(text: &str, now: Duration) -> Result<Self, String> {
        let unix = if text.contains('-') {
            date(text).ok_or("expected a date such as 2026-11-29 or '2026-11-29 08:00'")?
        } else {
            now.saturating_sub(ago(text)?)
        };
        Ok(Self(u64::try_from(unix.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// A duration, of which history knows days.
fn ago(text: &str) -> Result<Duration, String> {
    match text.strip_suffix('d').map(str::parse::<u32>) {
        None => crate::units::parse_duration(text).map_err(|e| format!("{e}, or days: 3d")),
        Some(Ok(days)) => Ok(Duration::from_secs(u64::from(days) * DAY_SECONDS)),
        Some(Err(_)) => Err("expected a number of days such as 3d".to_owned()),
    }
}

/// Since 1970; `None` when it is no date of this time zone's.
fn date(text: &str) -> Option<Duration> {
    let text = text.trim_start();
    let (date, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00"));
    let numbers = |text: &str, separator| -> Option<Vec<i32>> {
        let digits = |part: &str| part.len() <= 4 && part.bytes().all(|b| b.is_ascii_digit());
        text.split(separator).map(|part| part.parse().ok().filter(|_| digits(part))).collect()
    };
    let &[year, month @ 1..=12, day @ 1..=31] = &numbers(date, '-')?[..] else { return None };
    let (hour, minute, second) = match numbers(time, ':')?[..] {
        [hour @ 0..=23, minute @ 0..=59] => (hour, minute, 0),
        [hour @ 0..=23, minute @ 0..=59, second @ 0..=60] => (hour, minute, second),
        _ => return None,
    };
    // SAFETY: plain data.
    let mut parts: libc::tm = unsafe { mem::zeroed() };
    (parts.tm_year, parts.tm_mon, parts.tm_mday) = (year.checked_sub(1900)?, month - 1, day);
    (parts.tm_hour, parts.tm_min, parts.tm_sec, parts.tm_isdst) = (hour, minute, second, -1);
    // SAFETY: a live local, of which all fields are set.
    let seconds = unsafe { libc::mktime(&raw mut parts) };
    // 30 February is 1 or 2 March.
    (parts.tm_mday == day).then_some(Duration::from_secs(u64::try_from(seconds).ok()?))
}

/// Formats a time: "2026-11-29 14:17:11".
pub fn local(unix_ms: u64) -> String {
    let seconds = libc::time_t::try_from(unix_ms / 1000).unwrap_or(libc::time_t::MAX);
    // SAFETY: plain data.
    let mut parts: libc::tm = unsafe { mem::zeroed() };
    // SAFETY: both point to live locals.
    if unsafe { libc::localtime_r(&raw const seconds, &raw mut parts) }.is_null() {
        return format!("{unix_ms} ms");
    }
    let libc::tm { tm_year, tm_mon, tm_mday, tm_hour, tm_min, tm_sec, .. } = parts;
    let year = i64::from(tm_year) + 1900;
    format!("{year:04}-{:02}-{tm_mday:02} {tm_hour:02}:{tm_min:02}:{tm_sec:02}", tm_mon + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_that_of_this_time_zone() {
        let now = Duration::from_secs(1_800_000_000);
        let since = |text| Since::parse_at(text, now).map(|since| since.0);
        for date in ["2026-11-29 08:30:15", "2027-02-01 00:00:00", "2000-01-01 23:59:59"] {
            assert_eq!(since(date).map(local), Ok(date.to_owned()));
        }
        assert_eq!(since("2026-11-29"), since("2026-11-29T00:00"));
        assert_eq!(since("2h"), Ok((1_800_000_000 - 7200) * 1000));
        assert_eq!(since("3d"), Ok((1_800_000_000 - 3 * 86_400) * 1000));
        assert_eq!(since("4000000000d"), Ok(0));
        for wrong in ["", "d", "-1d", "2026-11", "2026-13-01", "2026-02-30", "2026-11-29 25:00", "1-2-3-4", "x-1-2"] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_that_no_clock_has_is_shown_as_a_number() {
        assert!(local(u64::MAX).len() > 10);
    }
}
