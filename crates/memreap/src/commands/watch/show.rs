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
use crate::daemon::report::history::{Entry, printable};
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
    format!("of {} processes, {exact} read exactly and {sampled} by a sample, in {}", cost.processes, time(cost.took))
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

/// One object; sizes in bytes, times in seconds, shares 0 to 1 except for pressure, which is in percent.
pub(super) fn json(view: &View) -> serde_json::Result<Value> {
    let (sample, forecast) = (&view.sample, &view.forecast);
    let pressure = view.pressure.map(
        |pressure| json!({ "some_avg10": pressure.some.avg10, "full_avg10": pressure.full.map(|full| full.avg10) }),
    );
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
mod tests;
