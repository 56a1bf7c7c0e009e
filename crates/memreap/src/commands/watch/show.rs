// SPDX-License-Identifier: GPL-2.0-only
//! A view as text, as one line, and as JSON.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use linux::escape;
use linux::psi::Pressure;
use serde_json::{Value, json};

use super::trend::Forecast;
use crate::choice::{Choice, Precision};
use crate::daemon::decide::sample::Sample;
use crate::daemon::report::history::Entry;
use crate::units::{age, bytes, rate, time};
use crate::users;

/// The version of the JSON. Fields may be added without a new one; 2 renamed a kill's `means` to `method`, 3
/// replaced `swap` by `swap_free`.
const VERSION: u32 = 3;
/// Columns and rows of a terminal that does not say how large it is.
const DEFAULT_SIZE: [usize; 2] = [80, 24];

/// What is shown at one time.
pub(super) struct View {
    pub(super) at: SystemTime,
    pub(super) sample: Sample,
    pub(super) forecast: Forecast,
    /// `None` without PSI.
    pub(super) pressure: Option<Pressure>,
    pub(super) next: Option<Next>,
    /// Latest last; or why there are none to show.
    pub(super) kills: Result<Vec<Entry>, String>,
}

/// The next victim.
pub(super) struct Next {
    pub(super) choice: Choice,
    /// The rule that weighed it; empty for none.
    pub(super) rule: String,
}

/// Lines that are drawn over and over at the same place.
#[derive(Default)]
pub(super) struct Picture {
    drawn: usize,
}

impl Picture {
    /// Draws over what was drawn before. What does not fit the terminal is cut off: a line that
    /// wraps or scrolls would break the count of lines.
    pub(super) fn draw(
        &mut self,
        out: &mut impl Write,
        [columns, rows]: [usize; 2],
        lines: &[String],
    ) -> io::Result<()> {
        if self.drawn > 0 {
            write!(out, "\x1b[{}F", self.drawn)?;
        }
        self.drawn = lines.len().min(rows.saturating_sub(1));
        for line in &lines[..self.drawn] {
            let shown: String = line.chars().take(columns).collect();
            writeln!(out, "\x1b[K{shown}")?;
        }
        write!(out, "\x1b[J")
    }
}

/// Columns and rows of the terminal that is stdout.
pub(super) fn terminal_size() -> [usize; 2] {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => [size.ws_col.into(), size.ws_row.into()],
        _ => DEFAULT_SIZE,
    }
}

/// All lines of a view.
pub(super) fn lines(view: &View) -> Vec<String> {
    let mut lines = vec![
        format!("memory    {}", memory(view)),
        format!("swap      {}", swap(view)),
        format!("pressure  {}", pressure(view)),
        format!("forecast  {}", forecast(view)),
    ];
    match &view.next {
        Some(next) => {
            lines.push(format!("next      {}", victim(next)));
            lines.push(format!("          {}", cost(next)));
        }
        None => lines.push("next      none".to_owned()),
    }
    match &view.kills {
        Ok(kills) if kills.is_empty() => lines.push("kills     none so far".to_owned()),
        Ok(kills) => {
            let shown = kills.iter().rev().map(|entry| kill(entry, view.at));
            lines.extend(
                shown
                    .zip(["kills     "].into_iter().chain(std::iter::repeat("          ")))
                    .map(|(kill, margin)| format!("{margin}{kill}")),
            );
        }
        Err(why) => lines.push(format!("kills     {why}")),
    }
    lines
}

/// A view in one line, without the kills.
pub(super) fn line(view: &View) -> String {
    let next = view.next.as_ref().map_or("none".to_owned(), victim);
    format!(
        "memory {}; swap {}; pressure {}; {}; next {next}",
        memory(view),
        swap(view),
        pressure(view),
        forecast(view)
    )
}

fn memory(view: &View) -> String {
    let sample = &view.sample;
    let share = sample.available as f64 / sample.total.max(1) as f64 * 100.0;
    format!("{} of {} available ({share:.0} %)", bytes(sample.available), bytes(sample.total))
}

fn swap(view: &View) -> String {
    match view.sample.swap_free {
        0 => "none free".to_owned(),
        free => format!("{} free", bytes(free)),
    }
}

fn pressure(view: &View) -> String {
    let Some(pressure) = &view.pressure else { return "not known: this kernel does not have PSI".to_owned() };
    let full = pressure.full.map_or(0.0, |full| full.avg10);
    format!("some {:.1} %, full {full:.1} % of the last 10 s", pressure.some.avg10)
}

fn forecast(view: &View) -> String {
    match view.forecast.left {
        Some(left) => format!("gone in {} at {}", duration(left), rate(view.forecast.rate)),
        None => "does not run out".to_owned(),
    }
}

/// A time that may be long.
fn duration(left: Duration) -> String {
    if left < Duration::from_secs(100) { time(left) } else { age(left) }
}

fn victim(next: &Next) -> String {
    let choice = &next.choice;
    let about = match choice.precision {
        Precision::Exact => "",
        Precision::Sampled { .. } => "about ",
        Precision::Guess => "at most ",
    };
    let rule = &next.rule;
    let rule = if rule.is_empty() { String::new() } else { format!(" ({})", escape(rule)) };
    format!(
        "{} ({}), user {}: {about}{} would come back{rule}",
        choice.pid,
        escape(choice.comm.as_bytes()),
        users::name(choice.uid),
        bytes(choice.bytes)
    )
}

fn cost(next: &Next) -> String {
    let cost = &next.choice.cost;
    let (exact, sampled) = (cost.exact, cost.sampled);
    format!(
        "of {} processes, {exact} read exactly and {sampled} by a sample, in {}",
        cost.processes,
        time(cost.took)
    )
}

fn kill(entry: &Entry, now: SystemTime) -> String {
    let since = now
        .duration_since(UNIX_EPOCH + Duration::from_millis(entry.unix_ms.min(u64::from(u32::MAX) * 1000)))
        .unwrap_or_default();
    format!(
        "{} ago  {} ({}), user {}: {} {} after {} by {}; {}",
        age(since),
        entry.pid,
        printable(&entry.comm),
        users::name(entry.uid),
        bytes(entry.back()),
        printable(&entry.ending),
        time(Duration::from_micros(entry.took_us)),
        printable(&entry.method),
        printable(&entry.reason)
    )
}

/// Escapes text that should be escaped already: the file may have been written by another program.
fn printable(text: &str) -> String {
    escape(text).to_string().replace(r"\\", r"\")
}

/// One object; sizes in bytes, times in seconds, shares 0 to 1 except for pressure, which is in percent.
pub(super) fn json(view: &View) -> serde_json::Result<Value> {
    let (sample, forecast) = (&view.sample, &view.forecast);
    let pressure = view.pressure.map(|pressure| {
        json!({ "some_avg10": pressure.some.avg10, "full_avg10": pressure.full.map(|full| full.avg10) })
    });
    let next = view.next.as_ref().map(|Next { choice, rule }| {
        json!({
            "pid": choice.pid.get(),
            "comm": escape(choice.comm.as_bytes()).to_string(),
            "uid": choice.uid,
            "cgroup": escape(&choice.cgroup[..]).to_string(),
            "bytes": choice.bytes,
            "exact": choice.precision.is_exact(),
            "rule": (!rule.is_empty()).then_some(rule),
            "processes": choice.cost.processes,
            "cheap_reads": choice.cost.cheap,
            "exact_reads": choice.cost.exact,
            "samples": choice.cost.sampled,
            "seconds": choice.cost.took.as_secs_f64(),
        })
    });
    let unix_ms = view.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    Ok(json!({
        "version": VERSION,
        "command": "watch",
        "unix_ms": unix_ms,
        "total": sample.total,
        "available": sample.available,
        "swap_free": sample.swap_free,
        "pressure": pressure,
        "headroom": forecast.headroom,
        "bytes_per_second": forecast.rate,
        "seconds_left": forecast.left.map(|left| left.as_secs_f64()),
        "next": next,
        "kills": serde_json::to_value(view.kills.as_deref().ok())?,
    }))
}

#[cfg(test)]
mod tests {
    use linux::process::Comm;
    use linux::psi::{Line, Pressure};
    use linux::{Pid, PidFd};

    use super::super::trend::Forecast;
    use super::*;
    use crate::choice::{Choice, Cost, Pool};
    use crate::daemon::decide::sample::Sample;

    const MIB: u64 = 1 << 20;

    fn entry(unix_ms: u64) -> Entry {
        serde_json::from_value(json!({
            "unix_ms": unix_ms, "pid": 42, "comm": r"h\u{1b}og", "uid": 4_000_000_000u32, "cgroup": "/a",
            "processes": 1, "bytes": 300 * MIB, "exact": true, "reason": "stall", "because": "",
            "rule": "", "method": "mrelease", "ending": "back", "available": [1, 2], "took_us": 41_000,
            "choice_us": 900,
        }))
        .unwrap()
    }

    fn view() -> View {
        let line = |avg10| Line { avg10, total: Duration::ZERO };
        let pid = Pid::own();
        let choice = Choice {
            pidfd: PidFd::open(pid).unwrap(),
            oom_score_adj: None,
            pid,
            comm: Comm::new(b"a\x1bb").unwrap(),
            uid: 4_000_000_000,
            cgroup: b"/user.slice"[..].try_into().unwrap(),
            bytes: 700 * MIB,
            precision: Precision::Guess,
            pool: Pool::new(),
            vm_size: 0,
            group: None,
            leaf: None,
            parent: None,
            command_line: crate::choice::CommandLine::new(),
            rule: Some(3),
            cost: Cost {
                processes: 312,
                cheap: 20,
                exact: 3,
                sampled: 1,
                late: 0,
                took: Duration::from_millis(4),
            },
        };
        View {
            at: UNIX_EPOCH + Duration::from_secs(1000),
            sample: Sample {
                total: 2000 * MIB,
                available: 100 * MIB,
                swap_free: 530 * MIB,
                ..Sample::default()
            },
            forecast: Forecast {
                headroom: 630 * MIB,
                rate: 33.0 * MIB as f64,
                left: Some(Duration::from_secs(10)),
            },
            pressure: Some(Pressure { some: line(12.34), full: Some(line(5.0)) }),
            next: Some(Next { choice, rule: "shell".to_owned() }),
            kills: Ok(vec![entry(880_000), entry(995_000)]),
        }
    }

    #[test]
    fn the_picture() {
        let mut view = view();
        let pid = Pid::own();
        let victim = format!("{pid} (a\\u{{1b}}b), user 4000000000: at most 700 MiB would come back (shell)");
        let kill = r"42 (h\u{1b}og), user 4000000000: 300 MiB back after 41 ms by mrelease; stall";
        assert_eq!(
            lines(&view),
            [
                "memory    100 MiB of 2.0 GiB available (5 %)".to_owned(),
                "swap      530 MiB free".to_owned(),
                "pressure  some 12.3 %, full 5.0 % of the last 10 s".to_owned(),
                "forecast  gone in 10.0 s at 33 MiB/s".to_owned(),
                format!("next      {victim}"),
                "          of 312 processes, 3 read exactly and 1 by a sample, in 4.0 ms".to_owned(),
                format!("kills     5s ago  {kill}"),
                format!("          2m ago  {kill}"),
            ]
        );
        view.next = None;
        view.pressure = None;
        view.forecast.left = None;
        view.sample.swap_free = 0;
        view.kills = Err("/x cannot be read".to_owned());
        assert_eq!(
            lines(&view)[1..],
            [
                "swap      none free",
                "pressure  not known: this kernel does not have PSI",
                "forecast  does not run out",
                "next      none",
                "kills     /x cannot be read",
            ]
        );
        assert!(line(&view).ends_with("does not run out; next none"), "{}", line(&view));
    }

    #[test]
    fn json_says_it_all() {
        let mut view = view();
        let value = json(&view).unwrap();
        assert_eq!(value["next"]["bytes"], 700 * MIB);
        assert_eq!(value["next"]["comm"], r"a\u{1b}b");
        assert_eq!((&value["headroom"], &value["seconds_left"]), (&json!(630 * MIB), &json!(10.0)));
        assert_eq!((&value["pressure"]["full_avg10"], &value["kills"][1]["pid"]), (&json!(5.0), &json!(42)));
        view.next = None;
        view.pressure = None;
        view.kills = Err("/x cannot be read".to_owned());
        let value = json(&view).unwrap();
        assert!(["next", "pressure", "kills"].iter().all(|key| value[key].is_null()), "{value}");
    }

    #[test]
    fn a_picture_is_drawn_over_the_last_one() {
        let mut picture = Picture::default();
        let mut drawn = |size, lines: &[&str]| {
            let mut out = Vec::new();
            let lines: Vec<_> = lines.iter().map(|l| (*l).to_owned()).collect();
            picture.draw(&mut out, size, &lines).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(drawn([80, 24], &["abc", "d"]), "\x1b[Kabc\n\x1b[Kd\n\x1b[J");
        // Two lines up. A line that wraps, or scrolls the first one away, would break that.
        assert_eq!(drawn([2, 3], &["ää!", "b", "c"]), "\x1b[2F\x1b[Kää\n\x1b[Kb\n\x1b[J");
        assert_eq!(drawn([2, 1], &["a"]), "\x1b[2F\x1b[J");
        assert_eq!(drawn([2, 1], &["a"]), "\x1b[J");
    }

    #[test]
    fn a_history_from_the_future_does_no_harm() {
        assert!(kill(&entry(u64::MAX), UNIX_EPOCH).starts_with("0s ago"));
    }
}
