// SPDX-License-Identifier: GPL-2.0-only
//! `memreap daemon`.

use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use linux::escape;
use rustix::fs::{Access, access};

use super::args::DaemonArgs;
use crate::config::{BUILT_IN_NAME, Config, Record};
use crate::daemon;
use crate::daemon::report::warn::finds_notifier;
use crate::exit::Exit;
use crate::say;

/// Runs the daemon until it is told to stop, or checks its configuration.
///
/// # Errors
/// When the daemon cannot start; the text says what is missing.
pub fn run(args: &DaemonArgs) -> Result<Exit> {
    let path = args.config.as_deref();
    if args.check_config {
        return check_config(path);
    }
    match Config::load(path) {
        Ok(config) => daemon::run::run(config, args.dry_run),
        Err(error) => {
            say(error);
            Ok(Exit::Usage)
        }
    }
}

/// Reads the configuration, and prints on stdout that it is right, or on stderr what is wrong.
fn check_config(path: Option<&Path>) -> Result<Exit> {
    match Config::load(path) {
        Ok(config) => {
            let name = config.path.as_ref().map_or(BUILT_IN_NAME.to_owned(), |path| escape(path).to_string());
            // The daemon starts all the same: a hook that is missing, or a user who was removed, must not leave a machine
            // without a killer.
            let mut runs = config.unmet.is_empty();
            for line in &config.unmet {
                say(line);
            }
            for (key, program) in config.commands() {
                let found = access(program, Access::EXEC_OK).map_err(std::io::Error::from);
                let found = found.and_then(|()| Ok(std::fs::metadata(program)?.is_file()));
                let problem = match found {
                    Ok(true) => continue,
                    Ok(false) => "it is no file".to_owned(),
                    Err(e) => e.to_string(),
                };
                runs = false;
                let program = escape(program.as_bytes());
                say(format_args!("{name}: {key}: {program} cannot be run: {problem}"));
            }
            if !runs {
                return Ok(Exit::Usage);
            }
            for warning in warnings(&config) {
                say(format_args!("{name}: warning: {warning}"));
            }
            Exit::Done.after(writeln!(std::io::stdout(), "{name}: ok").map_err(Into::into))
        }
        Err(error) => {
            say(error);
            Ok(Exit::Usage)
        }
    }
}

/// What the configuration asks for and this system lacks, though the daemon kills without.
fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.warn.desktop && !finds_notifier() {
        warnings.push("warn.desktop: notify-send cannot be found: install libnotify-bin".to_owned());
    }
    let history = config.record.history.as_deref();
    if let Some(folder) = history.filter(|history| history.is_dir()) {
        warnings.push(format!("record.history: {} is a folder: name a file in it", escape(folder)));
    }
    if let Some(folder) = history.and_then(Path::parent).filter(|folder| !folder.is_dir())
        // Its folder is made at the start.
        && config.record.history != Record::default().history
    {
        warnings.push(format!("record.history: there is no folder {}: make it", escape(folder)));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_wrong_configuration_is_wrong_usage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        fs::write(&path, "[act]\nlow = 12\n").unwrap();
        assert_eq!(check_config(Some(&path)).unwrap(), Exit::Done);
        fs::write(&path, "[act]\nlow = 120\n").unwrap();
        assert_eq!(check_config(Some(&path)).unwrap(), Exit::Usage);
        assert_eq!(check_config(Some(dir.path())).unwrap(), Exit::Usage);
        for key in ["warn.command", "kill.before"] {
            fs::write(&path, "[[rule]]\nuser = 'removed'\nnever = true\n").unwrap();
            assert_eq!((check_config(Some(&path)).unwrap(), Config::load(Some(&path)).is_ok()), (Exit::Usage, true));
            for (program, exit) in [("/bin/true", Exit::Done), ("/no/such/hook", Exit::Usage)] {
                fs::write(&path, format!("{key} = [\"{program}\"]\n")).unwrap();
                assert_eq!(check_config(Some(&path)).unwrap(), exit, "{key} {program}");
            }
        }
    }
}
