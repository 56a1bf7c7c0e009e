//! What a scenario is asked for on the guest's command line: words, and KEY=VALUE.

use std::error::Error;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};

/// A scenario's arguments, all of which it knows.
pub struct Arguments<'a>(&'a [String]);

/// Which of a scenario's cases to run: all, or one.
#[derive(Debug, Default)]
pub struct Only(Option<String>);

impl<'a> Arguments<'a> {
    /// Of a scenario that knows these words and these keys.
    ///
    /// # Errors
    /// When there are others; the message lists those that there are.
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

    /// Whether this word is among them.
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

    /// `rounds=N`, from 1 to 1000, if it is given.
    ///
    /// # Errors
    /// When it is another number, or none.
    pub fn rounds(&self) -> Result<Option<u32>> {
        let rounds = self.find("rounds")?;
        ensure!(
            rounds.is_none_or(|n| (1..=1000).contains(&n)),
            "rounds={} is not 1 to 1000",
            rounds.unwrap_or(0)
        );
        Ok(rounds)
    }

    /// `case=NAME`, one of these.
    ///
    /// # Errors
    /// When there is no such case; the message lists those that there are.
    pub fn case<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Result<Only> {
        let case: Option<String> = self.find("case")?;
        if let Some(case) = &case {
            let names: Vec<_> = names.into_iter().collect();
            ensure!(names.contains(&case.as_str()), "no case '{case}'; there are: {}", names.join(", "));
        }
        Ok(Only(case))
    }
}

impl Only {
    /// Whether this case is to be run.
    pub fn wants(&self, case: &str) -> bool {
        self.0.as_deref().is_none_or(|only| only == case)
    }

    /// Whether all cases are to be run.
    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }
}

/// Arguments as a scenario gets them.
#[cfg(test)]
pub fn words(args: &[&str]) -> Vec<String> {
    args.iter().map(|&a| a.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_named_with_what_is() {
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
    fn values_are_taken_or_refused() {
        let given = words(&["icount", "rounds=12", "mib=many", "case=b"]);
        let args = Arguments::new(&given, &["icount"], &["rounds", "mib", "case"]).unwrap();
        assert!(args.has("icount") && !args.has("rounds"));
        assert_eq!((args.rounds().unwrap(), args.get("seed", 7).unwrap()), (Some(12), 7));
        assert_eq!(
            format!("{:#}", args.find::<u32>("mib").unwrap_err()),
            "argument mib=many: invalid digit found in string"
        );
        for bad in ["rounds=0", "rounds=1001", "rounds=x", "rounds=-1"] {
            assert!(Arguments::new(&words(&[bad]), &[], &["rounds"]).unwrap().rounds().is_err(), "{bad}");
        }
        let only = args.case(["a", "b"]).unwrap();
        assert!(only.wants("b") && !only.wants("a") && !only.is_all());
        assert_eq!(args.case(["a", "c"]).unwrap_err().to_string(), "no case 'b'; there are: a, c");
        let all = Only::default();
        assert!(all.wants("a") && all.is_all());
    }
}
