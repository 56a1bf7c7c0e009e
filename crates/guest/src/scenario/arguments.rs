// SPDX-License-Identifier: GPL-2.0-only
//! A scenario's arguments on the guest's command line: words, and KEY=VALUE.

use std::error::Error;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};

/// A scenario's arguments, all of which are known.
pub struct Arguments<'a>(&'a [String]);

/// Which of a scenario's cases to run: all, or one.
#[derive(Debug, Default)]
pub struct Cases(Option<String>);

impl<'a> Arguments<'a> {
    /// Checks the arguments of a scenario that accepts these words and these keys.
    ///
    /// # Errors
    /// When there are others; the message lists those that are accepted.
    pub fn new(args: &'a [String], words: &[&str], keys: &[&str]) -> Result<Self> {
        let known =
            |a: &str| words.contains(&a) || a.split_once('=').is_some_and(|(key, _)| keys.contains(&key));
        if let Some(unknown) = args.iter().find(|a| !known(a)) {
            let words = words.iter().map(|&word| word.to_owned());
            let all: Vec<_> = words.chain(keys.iter().map(|key| format!("{key}=..."))).collect();
            bail!("unknown argument '{unknown}'; there are: {}", all.join(" "));
        }
        Ok(Self(args))
    }

    /// Whether this word was given.
    pub fn has(&self, word: &str) -> bool {
        self.0.iter().any(|a| a == word)
    }

    /// The value of `key`, or the default.
    ///
    /// # Errors
    /// When the value does not parse as `T`.
    pub fn get<T>(&self, key: &str, default: T) -> Result<T>
    where
        T: FromStr,
        T::Err: Error + Send + Sync + 'static,
    {
        Ok(self.find(key)?.unwrap_or(default))
    }

    /// The value of `key`, if it is given.
    ///
    /// # Errors
    /// When the value does not parse as `T`.
    pub fn find<T>(&self, key: &str) -> Result<Option<T>>
    where
        T: FromStr,
        T::Err: Error + Send + Sync + 'static,
    {
        let value = self.0.iter().find_map(|a| a.strip_prefix(key)?.strip_prefix('='));
        value.map(|v| v.parse().with_context(|| format!("argument {key}={v}"))).transpose()
    }

    /// `case=NAME`, which must be one of `names`; without it, all cases.
    ///
    /// # Errors
    /// When there is no such case; the message lists those that exist.
    pub fn case<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Result<Cases> {
        let case: Option<String> = self.find("case")?;
        if let Some(case) = &case {
            let names: Vec<_> = names.into_iter().collect();
            ensure!(names.contains(&case.as_str()), "no case '{case}'; there are: {}", names.join(", "));
        }
        Ok(Cases(case))
    }
}

impl Cases {
    /// Whether this case is to be run.
    pub fn has(&self, case: &str) -> bool {
        self.0.as_deref().is_none_or(|only| only == case)
    }

    /// Whether all cases are to be run.
    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }
}

/// Arguments as a scenario receives them.
#[cfg(test)]
pub fn words(args: &[&str]) -> Vec<String> {
    args.iter().map(|&a| a.to_owned()).collect()
}

/// Checks that a scenario accepts none of these arguments, with `others` beside them.
#[cfg(test)]
pub fn assert_refused<T>(parse: fn(&[String]) -> Result<T>, bad: &[&str], others: &[&str]) {
    for argument in bad {
        assert!(parse(&words(&[others, &[argument]].concat())).is_err(), "{argument}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_argument_is_named_with_those_that_exist() {
        let error = |args: &[&str]| {
            let args = words(args);
            Arguments::new(&args, &["icount"], &["case", "rounds"]).err().map(|e| e.to_string())
        };
        assert_eq!(error(&["icount", "rounds=3", "case=x"]), None);
        for bad in ["fast", "rounds", "icount=1", "round=2", ""] {
            let expected = format!("unknown argument '{bad}'; there are: icount case=... rounds=...");
            assert_eq!(error(&["icount", bad]), Some(expected));
        }
    }

    #[test]
    fn values_are_parsed_or_refused() {
        let given = words(&["icount", "rounds=12", "mib=many", "case=b"]);
        let args = Arguments::new(&given, &["icount"], &["rounds", "mib", "case"]).unwrap();
        assert!(args.has("icount") && !args.has("rounds"));
        assert_eq!((args.find("rounds").unwrap(), args.get("seed", 7).unwrap()), (Some(12), 7));
        assert_eq!(
            format!("{:#}", args.find::<u32>("mib").unwrap_err()),
            "argument mib=many: invalid digit found in string"
        );
        let only = args.case(["a", "b"]).unwrap();
        assert!(only.has("b") && !only.has("a") && !only.is_all());
        assert_eq!(args.case(["a", "c"]).unwrap_err().to_string(), "no case 'b'; there are: a, c");
        let all = Cases::default();
        assert!(all.has("a") && all.is_all());
    }
}
