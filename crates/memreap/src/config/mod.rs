// SPDX-License-Identifier: GPL-2.0-only
//! The configuration: TOML, with errors that name line and key.
//!
//! What a file does not say is as in the built-in configuration, which is a file itself:
//! packaging/memreap.toml.

mod file;
mod parse;
mod section;
mod settings;

use std::path::Path;

use linux::meminfo::MemInfo;
use linux::{Pid, Root, escape};

pub(crate) use settings::BUILT_IN_NAME;
pub use settings::{
    Act, BUILT_IN, Config, ConfigError, DEFAULT_PATH, EARLY_WATERMARK_SCALE_FACTOR, Kill, Level, Record, Warn,
    WholeCgroup,
};

impl Default for Config {
    /// The built-in configuration, without knowledge of the system.
    fn default() -> Self {
        Self::parse(BUILT_IN_NAME, BUILT_IN).unwrap_or_else(|e| panic!("{e}"))
    }
}

impl Config {
    /// Reads `path`, or [`DEFAULT_PATH`] if that exists, or else takes the built-in configuration. Adds what
    /// the policy needs of this system: its memory, and memreap itself, which is spared.
    ///
    /// # Errors
    /// All that is wrong, each with file, line, key and remedy.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let mut config = Self::read(path)?;
        let root = Root::system();
        // Not what it was started from: that may end, and another process get its ID.
        config.policy.spare(vec![Pid::own()]);
        // Without it oom_score_adj does not count; the daemon needs the file for more, and reports the error.
        if let Ok(info) = MemInfo::read(&root) {
            config.policy.set_total(info.total.saturating_add(info.swap_total));
        }
        Ok(config)
    }

    /// Parses the text of a configuration; `file` is how errors name it.
    ///
    /// # Errors
    /// All that is wrong, each with file, line, key and remedy.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        parse::config(file, text)
    }

    /// Returns the programs that are run, each with its key.
    pub fn commands(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [("warn.command", &self.warn.command), ("kill.before", &self.kill.before)];
        all.into_iter().filter_map(|(key, command)| Some((key, command.as_ref()?.first()?.as_str())))
    }

    fn read(path: Option<&Path>) -> Result<Self, ConfigError> {
        let wanted = path.unwrap_or(Path::new(DEFAULT_PATH));
        let name = escape(wanted).to_string();
        match file::read(wanted) {
            Ok(Some((text, others_can_write))) => {
                let config = Self { path: Some(wanted.to_owned()), ..Self::parse(&name, &text)? };
                if let Some((key, _)) = config.commands().next().filter(|_| others_can_write) {
                    return Err(ConfigError(vec![format!(
                        "{name}: {key} would run what other users write here: chmod go-w {name}, and let root own it"
                    )]));
                }
                Ok(config)
            }
            Ok(None) if wanted.is_symlink() => Err(ConfigError(vec![format!(
                "{name}: is a link to a file that is not there, or not for memreap to see"
            )])),
            Ok(None) if path.is_none() => Ok(Self::default()),
            Ok(None) => Err(ConfigError(vec![format!(
                "{name}: there is no such file; without --config, the {BUILT_IN_NAME} is used"
            )])),
            Err(problem) => Err(ConfigError(vec![format!("{name}: {problem}")])),
        }
    }
}

#[cfg(test)]
mod tests;
