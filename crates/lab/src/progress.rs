// SPDX-License-Identifier: GPL-2.0-only
//! Shows what the lab is doing: on a terminal a spinner per running step, elsewhere plain lines. All of it
//! goes to stderr; stdout is only for results.

use std::io::{IsTerminal, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// The shortest time between two details of a step without a terminal, so that logs stay short.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// Shows steps, notes and warnings. Clones share one display and one start time.
#[derive(Clone)]
pub struct Progress {
    inner: Arc<Inner>,
}

struct Inner {
    began: Instant,
    display: Display,
}

enum Display {
    Terminal(MultiProgress),
    Plain,
    Quiet,
}

impl Progress {
    /// Makes a display on stderr: spinners if that is a terminal, else plain lines.
    pub fn on_stderr() -> Self {
        Self::with(if std::io::stderr().is_terminal() {
            Display::Terminal(MultiProgress::new())
        } else {
            Display::Plain
        })
    }

    /// Makes a display that prints nothing, for tests.
    pub fn quiet() -> Self {
        Self::with(Display::Quiet)
    }

    fn with(display: Display) -> Self {
        Self { inner: Arc::new(Inner { began: Instant::now(), display }) }
    }

    /// Begins a step. It ends by [`Step::done`]; a step that is dropped earlier has failed.
    pub fn step(&self, what: &str) -> Step {
        let bar = match &self.inner.display {
            Display::Terminal(multi) => {
                let bar = multi.add(ProgressBar::new_spinner());
                let style = ProgressStyle::with_template("{spinner} {elapsed:>4} {prefix}: {wide_msg}");
                if let Ok(style) = style {
                    bar.set_style(style);
                }
                bar.set_prefix(what.to_owned());
                bar.enable_steady_tick(Duration::from_millis(200));
                Some(bar)
            }
            Display::Plain | Display::Quiet => None,
        };
        if bar.is_none() {
            self.note(&format!("{what} ..."));
        }
        Step {
            progress: self.clone(),
            what: what.to_owned(),
            began: Instant::now(),
            bar,
            printed: Mutex::new(Instant::now()),
            ended: false,
        }
    }

    /// Prints a line of information, such as a choice or a path.
    pub fn note(&self, line: &str) {
        let stamped = format!("[{:>4}] {line}", elapsed(self.inner.began.elapsed()));
        match &self.inner.display {
            // Work must not fail because a line cannot be shown.
            Display::Terminal(multi) => drop(multi.println(stamped)),
            Display::Plain => drop(writeln!(std::io::stderr(), "{stamped}")),
            Display::Quiet => {}
        }
    }

    /// Prints a warning about a problem that does not stop the run.
    pub fn warn(&self, line: &str) {
        self.note(&format!("warning: {line}"));
    }

    /// Hides the spinners while `f` prints to the terminal.
    pub fn suspend<R>(&self, f: impl FnOnce() -> R) -> R {
        match &self.inner.display {
            Display::Terminal(multi) => multi.suspend(f),
            Display::Plain | Display::Quiet => f(),
        }
    }
}

/// A running step.
pub struct Step {
    progress: Progress,
    what: String,
    began: Instant,
    bar: Option<ProgressBar>,
    printed: Mutex<Instant>,
    ended: bool,
}

impl Step {
    /// Shows the current state of the step, for example the file being compiled.
    pub fn detail(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
            return;
        }
        let mut printed = unpoisoned(&self.printed);
        if printed.elapsed() >= PLAIN_INTERVAL {
            *printed = Instant::now();
            self.progress.note(&format!("{}: {text}", self.what));
        }
    }

    /// Ends the step successfully. `msg` is the result; if it is empty, "done" is shown.
    pub fn done(mut self, msg: &str) {
        let msg = if msg.is_empty() { "done" } else { msg };
        self.end(msg);
    }

    fn end(&mut self, msg: &str) {
        self.ended = true;
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let took = elapsed(self.began.elapsed());
        self.progress.note(&format!("{}: {msg} ({took})", self.what));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.ended {
            self.end("failed");
        }
    }
}

/// Formats a duration: `8s`, `3m05s`, `1h02m`.
pub fn elapsed(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        _ => format!("{}h{:02}m", s / 3600, s / 60 % 60),
    }
}

/// Says how long the rest takes if it goes on as before, for example `, 3m05s left`; nothing before the first is done.
pub(crate) fn time_left(began: Instant, done: usize, rest: usize) -> String {
    match done {
        0 => String::new(),
        _ => format!(", {} left", elapsed(began.elapsed().mul_f64(rest as f64 / done as f64))),
    }
}

/// Locks `mutex`, even if a thread panicked while holding it: no data of the lab becomes invalid by that.
pub(crate) fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        let shown = [8, 65, 185, 3720].map(|s| elapsed(Duration::from_secs(s)));
        assert_eq!(shown, ["8s", "1m05s", "3m05s", "1h02m"]);
    }

    #[test]
    fn a_progress_can_be_shared_between_threads() {
        fn sendable<T: Send + Sync>() {}
        sendable::<Progress>();
        sendable::<Step>();
    }
}
