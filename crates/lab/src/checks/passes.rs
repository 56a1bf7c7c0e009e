// SPDX-License-Identifier: GPL-2.0-only
//! Remembers which checks passed.
//!
//! Each check has a content key ([`crate::content`]). A check that passed with the same kernel, program,
//! guest, QEMU and arguments need not run again. Failures are not remembered.
//!
//! A pass expires after [`PASS_LIFETIME`], because a change outside of the key (the host and its kernel) may
//! matter too. Passes are in the cache, outside of the checkout.

use fs_err as fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::host::{remove_older, write_atomically};

/// How long a pass is valid.
const PASS_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// The beginning of the line in which a check reports that it used earlier passes.
pub const SUMMARY_PREFIX: &str = "remembered: ";

/// Returns what was stored with the pass of this key; `None` if there is no valid pass.
pub fn recall<T: DeserializeOwned>(ctx: &Context, key: &str) -> Option<T> {
    let path = path(ctx, key);
    let age = path.metadata().ok()?.modified().ok()?.elapsed().unwrap_or_default();
    if age > PASS_LIFETIME {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Stores a pass, and removes expired ones.
///
/// # Errors
/// When the cache cannot be written.
pub fn remember<T: Serialize>(ctx: &Context, key: &str, pass: &T) -> Result<()> {
    let path = path(ctx, key);
    write_atomically(&path, &serde_json::to_string(pass)?)?;
    remove_older(&ctx.cache.join("passes"), PASS_LIFETIME);
    Ok(())
}

/// Returns the line about the use of earlier passes in a check: `remembered` of `all`. `None` if there were
/// none.
pub fn summary(remembered: usize, all: usize) -> Option<String> {
    (remembered > 0).then(|| format!("{SUMMARY_PREFIX}{remembered} of {all}"))
}

fn path(ctx: &Context, key: &str) -> PathBuf {
    ctx.cache.join("passes").join(format!("{key}.json"))
}

#[cfg(test)]
mod tests {
    use fs_err::File;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_pass_counts_by_its_key_and_for_a_month() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = Context::below(dir.path());
        assert_eq!(recall::<u32>(&ctx, "a"), None);
        remember(&ctx, "a", &7).unwrap();
        assert_eq!(recall(&ctx, "a"), Some(7));
        assert_eq!(recall::<u32>(&ctx, "b"), None);
        assert_eq!(recall::<String>(&ctx, "a"), None, "of another form");

        let age = |days: u64| {
            let at = SystemTime::now() - Duration::from_secs(days * 24 * 3600);
            File::options().append(true).open(path(&ctx, "a")).unwrap().set_modified(at).unwrap();
        };
        age(29);
        assert_eq!(recall(&ctx, "a"), Some(7));
        age(31);
        assert_eq!(recall::<u32>(&ctx, "a"), None);
        remember(&ctx, "b", &8).unwrap();
        assert!(!path(&ctx, "a").exists());
    }
}
