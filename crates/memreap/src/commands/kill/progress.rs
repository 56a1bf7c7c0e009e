// SPDX-License-Identifier: GPL-2.0-only
//! The progress line on a terminal, while a kill takes long.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// What takes less time than this shows no progress.
const SHOW_AFTER: Duration = Duration::from_millis(300);

/// A line on stderr that comes when something takes longer, and goes away with the value.
pub struct Progress {
    began: Instant,
    bar: Option<ProgressBar>,
    wanted: bool,
}

impl Progress {
    /// Begins to count the time. Shows nothing if stderr is not a terminal, or not `wanted`.
    pub fn new(wanted: bool) -> Self {
        Self { began: Instant::now(), bar: None, wanted: wanted && std::io::stderr().is_terminal() }
    }

    /// Shows where things stand; `text` is given the time since the beginning.
    pub fn show(&mut self, text: impl FnOnce(Duration) -> String) {
        let elapsed = self.began.elapsed();
        if !self.wanted || elapsed < SHOW_AFTER {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        bar.set_message(text(elapsed));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
