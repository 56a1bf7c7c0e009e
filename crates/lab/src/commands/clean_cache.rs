// SPDX-License-Identifier: GPL-2.0-only
//! `lab clean-cache`.

use fs_err as fs;

use anyhow::{Result, ensure};

use crate::context::Context;
use crate::{WrongUsage, host};

/// Removes only the entries that the lab makes: $MEMREAP_CACHE may be a folder with other files.
pub fn run(ctx: &Context) -> Result<u8> {
    // The names of the caches are those of folders in many projects, this one among them.
    ensure!(
        !ctx.cache.join("Cargo.toml").exists() && !ctx.cache.join(".git").exists(),
        WrongUsage(format!("{} is a source tree, not a cache; see MEMREAP_CACHE", ctx.cache.display()))
    );
    let step = ctx.progress.step(&format!("removing the caches in {}", ctx.cache.display()));
    // Without the folder there is nothing to remove.
    for entry in fs::read_dir(&ctx.cache).into_iter().flatten() {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_of_cache(&name) {
            step.detail(&name);
            host::remove_any(&path)?;
        }
    }
    step.done("");
    Ok(0)
}

/// Whether an entry of the cache's folder, or what it is a lock or an unfinished state of, is made by the lab.
fn is_of_cache(name: &str) -> bool {
    const NAMES: [&str; 14] = [
        "accel.json",
        "apt",
        "ccache",
        "crates",
        "faceoff",
        "headers",
        "locks",
        "passes",
        "roots",
        "source",
        "static",
        "times.json",
        "trees",
        "user",
    ];
    let name = [".lock", ".partial"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    NAMES.contains(&name) || ["busybox-", "selftests-", "steps-"].iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_lab_makes_is_removed_from_the_cache() {
        for own in ["trees", "apt", "roots", "busybox-arm64", "selftests-0.lock", "steps-a", "accel.json.lock"] {
            assert!(is_of_cache(own), "{own}");
        }
        for other in ["tree", "trees.old", "roots.txt", "busybox", "x.lock"] {
            assert!(!is_of_cache(other), "{other}");
        }
    }
}
