// SPDX-License-Identifier: GPL-2.0-only
//! apt with the host's lists, or with lists of the lab's own, for a package of an archive that the host does not use.
//! Those need no rights and change nothing on the host; Debian's archive keys verify them, too.

use fs_err as fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::context::Context;
use crate::debian::{KEYRING, KEYRING_PACKAGE};
use crate::host;
use crate::kernel::series::Series;
use crate::kernel::source::{self, PackageVersion};

/// Which lists apt goes by.
pub(super) struct Apt {
    /// The folder with the lab's own lists, and what they are lists of; `None` for the host's.
    own: Option<(PathBuf, String)>,
}

impl Apt {
    /// Returns apt with the host's lists if they have the package of the series, else with the lab's own if the series
    /// has an archive; and the versions that it offers, newest first.
    pub(super) fn having(ctx: &Context) -> (Self, Vec<PackageVersion>) {
        let host = Self { own: None };
        let versions = host.versions(&ctx.series);
        match &ctx.series.archive {
            Some(archive) if versions.is_empty() => {
                let own = Self { own: Some((ctx.cache.join("apt").join(&ctx.series.name), archive.clone())) };
                let versions = own.versions(&ctx.series);
                (own, versions)
            }
            _ => (host, versions),
        }
    }

    /// Returns the versions that its lists have, newest first; none if there is no apt.
    fn versions(&self, series: &Series) -> Vec<PackageVersion> {
        let madison = host::output(self.command("apt-cache").args(["madison", &series.package]));
        madison.map(|text| source::parse_madison(series, &text)).unwrap_or_default()
    }

    /// Returns a command of apt's.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LC_ALL", "C");
        if let Some((folder, _)) = &self.own {
            let in_folder = |option: &str, name: &str| format!("{option}={}", folder.join(name).display());
            for option in [
                in_folder("Dir::State", "state"),
                in_folder("Dir::Cache", "cache"),
                in_folder("Dir::Etc::sourcelist", "sources.list"),
                "Dir::Etc::sourceparts=-".to_owned(),
                "Dir::State::status=/dev/null".to_owned(),
                // Who could not read a folder in the user's home.
                "APT::Sandbox::User=".to_owned(),
            ] {
                command.args(["-o", &option]);
            }
        }
        command
    }

    /// Refreshes the lists. Returns `Ok(false)` if that is not permitted. Of an archive that is there no more they are
    /// empty.
    ///
    /// # Errors
    /// When the archive cannot be reached, or its signature is not of Debian's keys.
    pub(super) fn refresh(&self, ctx: &Context) -> Result<bool> {
        let Some((folder, archive)) = &self.own else { return host::refresh_apt_lists(ctx) };
        host::ensure_packages(ctx, &[KEYRING_PACKAGE])?;
        let _lock = host::lock(ctx, folder)?;
        for name in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(name))?;
        }
        fs::write(folder.join("sources.list"), format!("deb [signed-by={KEYRING}] {archive}\n"))?;
        let step = ctx.progress.step(&format!("apt-get update of {archive}"));
        let mut update = self.command("apt-get");
        update.args(["-q", "-o", "APT::Update::Error-Mode=any", "update"]);
        match host::run_step(&step, &mut update, &ctx.out.join("logs/apt-update.log")) {
            // Not a single file of a mirror that is being updated.
            Err(e) if !e.to_string().contains("Release file") => return Err(e),
            Err(_) => step.done("there is no such archive"),
            Ok(()) => step.done(""),
        }
        Ok(true)
    }
}
