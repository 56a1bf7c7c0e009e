// SPDX-License-Identifier: GPL-2.0-only
//! The arguments of a scenario: `guest scenario NAME [GUEST] [WORD]... [KEY=VALUE]...`.

use anyhow::{Context as _, Result, bail, ensure};
use scenarios::{Guest, Mode, Reported, Scenario};

/// What a scenario is asked to do.
#[derive(Debug)]
pub struct Arguments<'a> {
    /// The guest that it runs in, if there are metrics to report.
    guest: Option<&'static Guest>,
    /// The metrics that the scenario has to report in it.
    pub metrics: Vec<Reported>,
    /// Those that are no `KEY=VALUE`; without the guest.
    pub words: Vec<&'a str>,
    values: Vec<(&'a str, &'a str)>,
}

/// The key that chooses one case of a scenario.
const CASE: &str = "case";

impl<'a> Arguments<'a> {
    /// Parses the arguments of a scenario that takes these keys, and `case` if it has metrics.
    ///
    /// # Errors
    /// When there are others, or no guest of that name, or no such case; the message lists those that exist.
    pub fn parse(scenario: Option<&Scenario>, args: &'a [String], keys: &[&str]) -> Result<Self> {
        let (mut words, mut values) = (Vec::new(), Vec::new());
        for arg in args {
            match arg.split_once('=') {
                Some((key, value)) if keys.contains(&key) || scenario.is_some() && key == CASE => {
                    values.push((key, value));
                }
                Some(_) => {
                    let known = keys.iter().copied().chain(scenario.map(|_| CASE));
                    let known: Vec<_> = known.map(|key| format!("{key}=...")).collect();
                    bail!("unknown argument '{arg}'; there are: {}", known.join(" "));
                }
                None => words.push(arg.as_str()),
            }
        }
        let mut args = Self { guest: None, metrics: Vec::new(), words, values };
        if let Some(scenario) = scenario {
            let guest = if let [name] = args.words[..] { scenario.guest(name) } else { None };
            let names: Vec<_> = scenario.guests.iter().map(|guest| guest.name).collect();
            let guest = guest.with_context(|| format!("give one guest, of: {}", names.join(", ")))?;
            let case = args.find(CASE);
            args.metrics = scenario.reported(guest.name, case);
            let known = || scenario.cases(guest.name).join(", ");
            ensure!(!args.metrics.is_empty(), "no case '{}'; there are: {}", case.unwrap_or_default(), known());
            args.guest = Some(guest);
            args.words.clear();
        }
        Ok(args)
    }

    /// Whether time is the number of instructions.
    pub fn icount(&self) -> bool {
        self.guest.is_some_and(|guest| guest.mode == Mode::Icount)
    }

    fn find(&self, key: &str) -> Option<&'a str> {
        self.values.iter().find(|(known, _)| *known == key).map(|&(_, value)| value)
    }

    /// The number that is the value of `key`, if it is given.
    ///
    /// # Errors
    /// When it is no number.
    pub fn number(&self, key: &str) -> Result<Option<u64>> {
        let value = self.find(key);
        value.map(|value| value.parse().with_context(|| format!("argument {key}={value}"))).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(args: &[&str]) -> Vec<String> {
        args.iter().map(|&a| a.to_owned()).collect()
    }

    #[test]
    fn an_unknown_argument_is_named_with_those_that_exist() {
        let scenario = scenarios::find("memcg-exit");
        let error = |args: &[&str]| Arguments::parse(scenario, &words(args), &["rounds"]).err().map(|e| e.to_string());
        assert_eq!(error(&["icount", "rounds=3", "case=oom"]), None);
        let unknown = "unknown argument 'round=2'; there are: rounds=... case=...".to_owned();
        assert_eq!(error(&["icount", "round=2"]), Some(unknown));
        for bad in [&["fast"] as &[&str], &[], &["icount", "multi"], &["rounds"]] {
            assert_eq!(error(bad), Some("give one guest, of: icount, multi".to_owned()), "{bad:?}");
        }
        let no_case = "no case 'oom-shared'; there are: killed, oom, oom-zswap, oom-small".to_owned();
        assert_eq!(error(&["icount", "case=oom-shared"]), Some(no_case));
        assert!(error(&["multi", "case=oom-shared"]).is_none());
        let without = Arguments::parse(None, &words(&["case=x"]), &["seed"]).unwrap_err().to_string();
        assert_eq!(without, "unknown argument 'case=x'; there are: seed=...");
    }

    #[test]
    fn values_are_parsed_or_refused() {
        let given = words(&["one", "mrelease", "rounds=12", "mib=many"]);
        let args = Arguments::parse(None, &given, &["rounds", "mib"]).unwrap();
        assert!(args.words == ["one", "mrelease"] && !args.icount());
        assert_eq!((args.number("rounds").unwrap(), args.number("seed").unwrap()), (Some(12), None));
        let error = format!("{:#}", args.number("mib").unwrap_err());
        assert_eq!(error, "argument mib=many: invalid digit found in string");
    }

    #[test]
    fn the_guest_says_what_is_to_be_reported() {
        let scenario = scenarios::find("reap");
        let of = |args: &[&str]| {
            let given = words(args);
            let args = Arguments::parse(scenario, &given, &[]).unwrap();
            (args.icount(), args.metrics.len())
        };
        assert_eq!(of(&["icount", "case=1-vma"]), (true, 2));
        assert_eq!(of(&["multi", "case=throttled"]), (false, 2));
        assert_eq!(of(&["multi"]), (false, 3 * 12 + 2));
    }
}
