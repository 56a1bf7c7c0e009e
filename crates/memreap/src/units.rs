// SPDX-License-Identifier: GPL-2.0-only
//! Sizes, times and rates: parsed from what users write, and formatted for users.

use std::fmt;
use std::time::Duration;

/// The longest time that is accepted: long enough to stand for "for ever", short enough that no sum of times
/// overflows.
const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Parses a duration: a number with `ms`, `s`, `m` or `h`; seconds without.
///
/// # Errors
/// Text for the user when it is not one, or more than a week.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("'{unit}' is no unit of time; there are ms, s, m and h")),
    };
    let number: f64 = number.parse().map_err(|_| "expected a duration such as 500ms, 2s or 1m".to_owned())?;
    Duration::try_from_secs_f64(number * seconds)
        .ok()
        .filter(|d| *d <= MAX_DURATION)
        .ok_or_else(|| format!("longer than a week ({} h)", MAX_DURATION.as_secs() / 3600))
}

/// Parses a size in bytes: a number with `KiB`, `MiB`, `GiB` or `TiB`, or `K`, `M`, `G` or `T`.
///
/// # Errors
/// Text for the user when it is not one.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_start() {
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        other => return Err(format!("'{other}' is no unit of size; there are KiB, MiB, GiB and TiB")),
    };
    let number: f64 = number.parse().map_err(|_| "expected a size such as 512MiB or 4GiB".to_owned())?;
    let bytes = number * (1_u64 << shift) as f64;
    // What is more would be cut off.
    if bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err("has too many digits".to_owned()) }
}

/// Formats a size: `512 KiB`, `2.0 GiB`.
pub fn bytes(bytes: u64) -> String {
    Size(bytes).to_string()
}

/// Formats a rate: `4.9 GiB/s`.
pub fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", Scaled(bytes_per_second))
}

/// As [`bytes`], without allocating.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Scaled(self.0 as f64).fmt(f)
    }
}

struct Scaled(f64);

impl fmt::Display for Scaled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let Self(mut value) = *self;
        let mut unit = 0;
        // What would round to 1024 is one of the next unit.
        while value >= 1023.5 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        // Two significant digits at least, but no fractions of a byte.
        let digits = usize::from(unit > 0 && value < 9.95);
        write!(f, "{value:.digits$} {}", UNITS[unit])
    }
}

/// Formats a short time: `0.8 ms`, `41 ms`, `0.41 s`, `12.3 s`.
pub fn time(time: Duration) -> String {
    Time(time).to_string()
}

/// As [`time()`], without allocating.
#[derive(Clone, Copy, Debug)]
pub struct Time(pub Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        match seconds {
            0.0..0.00995 => write!(f, "{:.1} ms", seconds * 1e3),
            0.00995..0.0995 => write!(f, "{:.0} ms", seconds * 1e3),
            0.0995..9.95 => write!(f, "{seconds:.2} s"),
            _ => write!(f, "{seconds:.1} s"),
        }
    }
}

/// Formats a process's age: `8s`, `3m`, `5h`, `12d`.
pub fn age(age: Duration) -> String {
    match age.as_secs() {
        s @ 0..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m", s / 60),
        s @ 3600..86_400 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        let ms = |text| parse_duration(text).map(|d| d.as_millis());
        assert_eq!(ms("2s"), Ok(2000));
        assert_eq!(ms("2"), Ok(2000));
        assert_eq!(ms("1.5"), Ok(1500));
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("3m"), Ok(180_000));
        assert_eq!(ms("1h"), Ok(3_600_000));
        assert_eq!(ms("0"), Ok(0));
        for bad in ["", "s", "-1s", "2 s", "2d", "1.2.3", "inf", "NaN", "1e3", "169h", "1e999", "99999999999h"] {
            assert!(ms(bad).is_err(), "{bad}: {:?}", ms(bad));
        }
    }

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [("4GiB", 4 << 30), ("512 MiB", 512 << 20), ("1.5G", 3 << 29), ("0K", 0), ("2T", 2 << 40)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "G", "4", "-1G", "4GB", "4g", "1.2.3G", "infG", "1e3G", "99999999999T", "4 G "] {
            assert!(parse_size(bad).is_err(), "{bad}: {:?}", parse_size(bad));
        }
    }

    #[test]
    fn sizes_are_formatted() {
        let shown =
            [0, 1023, 1024, 10 << 10, 1023 << 10, (1 << 20) - 1, 3 << 29, 2 << 30, 20 << 30, u64::MAX].map(bytes);
        let expected = [
            "0 B",
            "1023 B",
            "1.0 KiB",
            "10 KiB",
            "1023 KiB",
            "1.0 MiB",
            "1.5 GiB",
            "2.0 GiB",
            "20 GiB",
            "16777216 TiB",
        ];
        assert_eq!(shown, expected);
        assert_eq!(rate(4.9 * 1024.0 * 1024.0 * 1024.0), "4.9 GiB/s");
    }

    #[test]
    fn times_are_formatted() {
        let shown =
            [80, 4_000, 41_300, 99_900, 412_000, 9_990_000, 61_000_000].map(|us| time(Duration::from_micros(us)));
        assert_eq!(shown, ["0.1 ms", "4.0 ms", "41 ms", "0.10 s", "0.41 s", "10.0 s", "61.0 s"]);
        let ages = [8, 185, 7200, 90_000].map(|s| age(Duration::from_secs(s)));
        assert_eq!(ages, ["8s", "3m", "2h", "1d"]);
    }
}
