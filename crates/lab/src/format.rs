// SPDX-License-Identifier: GPL-2.0-only
//! Formats numbers for the terminal, reports and documents, and names for errors.

use std::fmt::Display;
use std::ops::Range;

use clap::ValueEnum;
use clap::builder::PossibleValue;

/// Formats a measured value: three significant digits, thousands separators; whole numbers completely.
pub fn number(value: f64) -> String {
    if value.is_finite() && value.fract() == 0.0 { thousands(value) } else { digits(value) }
}

/// Formats a round value, for example on an axis: like [`number`] but without trailing zeros.
pub fn round(value: f64) -> String {
    let text = digits(value);
    if text.contains('.') && !text.contains('e') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

/// Returns the name of a value as it is on the command line.
pub fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().as_ref().map(PossibleValue::get_name).unwrap_or_default().to_owned()
}

/// Says that nothing of this kind has that name, and which names there are.
pub fn no_such(kind: &str, name: &str, known: impl IntoIterator<Item: Display>) -> String {
    let known: Vec<String> = known.into_iter().map(|name| name.to_string()).collect();
    format!("no {kind} '{name}'; there are: {}", known.join(", "))
}

fn digits(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "-".to_owned(),
        0.0 => "0".to_owned(),
        // 99.95 rounds to 100.0, which would have four digits.
        99.95.. => thousands(value),
        9.995.. => format!("{value:.1}"),
        0.9995.. => format!("{value:.2}"),
        0.001.. => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// Formats a ratio with three significant digits: `1.32x`.
pub fn ratio(ratio: f64) -> String {
    match ratio {
        99.95.. => thousands(ratio) + "x",
        9.995.. => format!("{ratio:.1}x"),
        0.0995.. => format!("{ratio:.2}x"),
        _ => format!("{ratio:.4}x"),
    }
}

/// Formats an interval of ratios: `1.25 - 1.41`.
pub fn interval([lo, hi]: [f64; 2]) -> String {
    let plain = |r| ratio(r).trim_end_matches('x').to_owned();
    format!("{} - {}", plain(lo), plain(hi))
}

/// Formats a p-value with two or three decimals; never as 0.
pub fn p_value(p: f64) -> String {
    match p {
        0.995.. => "1".to_owned(),
        0.0995.. => format!("{p:.2}"),
        0.001.. => format!("{p:.3}"),
        _ => "<0.001".to_owned(),
    }
}

/// Formats a count with its noun: `1 pair`, `2 pairs`.
pub fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Formats a fraction in per cent: 0.03 as `3 %`.
pub fn percent(fraction: f64) -> String {
    format!("{} %", round(fraction * 100.0))
}

/// Returns the number of the line in which a span of a text begins, counted from 1.
pub fn line_of(text: &str, span: &Range<usize>) -> usize {
    text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::from(if value < 0.0 { "-" } else { "" });
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let shown = [0.0, 0.00012, 0.1234, 1.0, 1.234, 12.34, 99.96, 123.4, 1_234_567.8].map(number);
        assert_eq!(shown, ["0", "1.2e-4", "0.123", "1", "1.23", "12.3", "100", "123", "1,234,568"]);
        assert_eq!([0.6000000000000001, 20.0, 0.0, 1000.0].map(round), ["0.6", "20", "0", "1,000"]);
        assert_eq!([0.004, 0.5, 1.3217, 33.14, 1000.7].map(ratio), ["0.0040x", "0.50x", "1.32x", "33.1x", "1,001x"]);
        assert_eq!([1.0, 0.25, 0.03125, 0.0078125, 0.0001].map(p_value), ["1", "0.25", "0.031", "0.008", "<0.001"]);
        assert_eq!([0.03, 0.025].map(percent), ["3 %", "2.5 %"]);
    }
}
