// SPDX-License-Identifier: GPL-2.0-only
//! Renders the outcomes of expectations as text.

use comfy_table::{Attribute, Cell, Color};

use crate::ab::expect::{Checked, State};
use crate::ab::table;

/// Renders the outcomes as a table for the terminal; those of guests that were not booted are only counted.
/// `width` is in columns, `None` for no limit; `colour` allows colours.
#[must_use]
pub fn render(checked: &[Checked], width: Option<u16>, colour: bool) -> String {
    let mut table = table::new_table(width, colour);
    table.set_header(["expected", "measured", ""]);
    for check in checked.iter().filter(|c| c.state != State::NotRun) {
        let (word, shade) = match check.state {
            State::Met => ("ok", Color::Green),
            State::Missed => ("MISSED", Color::Red),
            State::LeftOut | State::NotRun => ("-", Color::Grey),
        };
        table.add_row([
            Cell::new(&check.expected),
            Cell::new(&check.measured),
            Cell::new(word).fg(shade).add_attribute(Attribute::Bold),
        ]);
    }
    let count = |state| checked.iter().filter(|c| c.state == state).count();
    let [met, missed] = [State::Met, State::Missed].map(count);
    let mut text = format!("\n{} expectations: {met} met, {missed} missed", checked.len());
    for (state, what) in [(State::LeftOut, "left out"), (State::NotRun, "of guests that were not booted")] {
        match count(state) {
            0 => {}
            some => text += &format!(", {some} {what}"),
        }
    }
    table::lines(&table) + &text + "\n"
}
