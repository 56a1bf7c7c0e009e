// SPDX-License-Identifier: GPL-2.0-only
//! Entry points for fuzzing, called by the targets in fuzz/ and by the tests below. Each takes any bytes and
//! panics when the result cannot be right. Returns whether the bytes were accepted.

use linux::Pid;
use linux::cgroup::OomPreference;

use crate::config::Config;
use crate::policy::{Exe, Pattern, Subject};

/// A configuration.
pub fn config(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else { return false };
    match Config::parse("fuzz", text) {
        Ok(config) => {
            sound(&config, bytes);
            true
        }
        Err(error) => {
            assert!(!error.0.is_empty());
            for line in &error.0 {
                assert!(line.starts_with("fuzz:"), "no file: {line}");
                assert!(!line.contains(char::is_control), "acts on a terminal: {line:?}");
            }
            false
        }
    }
}

/// Whatever was configured, the daemon can work with it.
fn sound(config: &Config, bytes: &[u8]) {
    let (act, kill) = (&config.act, &config.kill);
    assert!((0.0..act.low.share).contains(&act.critical.share) && act.low.share <= 100.0);
    assert!([0, 1 << 20, 1 << 40].iter().all(|total| act.critical.of(*total) <= act.low.of(*total)));
    assert!((1.0..=100.0).contains(&act.stall));
    assert!(!kill.deadline.is_zero() && !config.warn.time_limit.is_zero());
    assert!(kill.signal_first.is_none_or(|first| !first.grace.is_zero()));
    assert!(config.commands().all(|(_, program)| program.starts_with('/')) && !kill.before_limit.is_zero());
    // The file also serves as the name and command line of a process.
    let comm = &bytes[..bytes.len().min(15)];
    let subject = |oom_score_adj| Subject {
        pid: Pid::own(),
        comm,
        command_line: Some(bytes),
        exe: Exe::Path(bytes),
        uid: 0,
        cgroup: bytes,
        oom_score_adj,
        preference: OomPreference::None,
    };
    let verdict = config.policy.judge(&subject(0));
    assert!(verdict.never || (verdict.factor.is_finite() && verdict.factor > 0.0));
    assert!(verdict.never == (verdict.score(1 << 40) == 0));
    assert!(config.policy.judge(&subject(-1000)).never);
}

/// A pattern and what it is to fit, with a line end between.
pub fn pattern(bytes: &[u8]) -> bool {
    let (pattern, text) =
        bytes.iter().position(|b| *b == b'\n').map_or((bytes, &[][..]), |end| (&bytes[..end], &bytes[end + 1..]));
    let Ok(pattern) = str::from_utf8(pattern) else { return false };
    // No configuration has one.
    if pattern.contains('\0') {
        return false;
    }
    let mut taken = false;
    for make in [Pattern::name, Pattern::command_line, Pattern::cgroup, Pattern::exe] {
        let Ok(made) = make(pattern) else { continue };
        taken = true;
        made.fits(text);
        // The beginning of a name, and a path without slashes at its end.
        let kept = &pattern.as_bytes()[..pattern.len().min(15)];
        let path = pattern.trim_end_matches('/').as_bytes();
        // A star fits a star, and a question mark a question mark.
        assert!(
            [pattern.as_bytes(), kept, path].iter().any(|itself| made.fits(itself)),
            "{pattern:?} does not fit itself"
        );
    }
    taken
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONFIGS: [&str; 3] = [
        crate::config::BUILT_IN,
        include_str!("../fuzz/seeds/config/small"),
        include_str!("../fuzz/seeds/config/wrong"),
    ];

    #[test]
    fn seeds_are_what_they_are_meant_to_be() {
        assert_eq!(CONFIGS.map(|text| config(text.as_bytes())), [true, true, false]);
        assert!(pattern(include_bytes!("../fuzz/seeds/pattern/cgroup")));
        assert!(pattern(include_bytes!("../fuzz/seeds/pattern/command-line")));
    }

    /// Pieces on which parsers and patterns have failed before.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::sample::select(vec![
                "\n",
                "[[rule]]\n",
                "[",
                "]",
                "\"",
                "'''",
                "=",
                "*",
                "**",
                "/**/",
                "?",
                "1e999",
                "nan",
                "-1",
                "\"1e999s\"",
                "\\u0000",
                "18446744073709551616",
                "\u{1b}[2J",
                "{",
                ".",
                "0x",
                "\u{202e}",
            ])
            .prop_map(|piece| piece.as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..4),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn mutated_configurations_do_no_harm(
            which in 0..CONFIGS.len(),
            edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, piece()), 1..4),
        ) {
            let mut bytes = CONFIGS[which].as_bytes().to_vec();
            for (at, len, piece) in edits {
                let at = at.index(bytes.len() + 1);
                let end = (at + len).min(bytes.len());
                bytes.splice(at..end, piece);
            }
            config(&bytes);
        }

        #[test]
        fn any_pattern_does_no_harm(pieces in prop::collection::vec(piece(), 0..12)) {
            pattern(&pieces.concat());
            config(&pieces.concat());
        }
    }
}
