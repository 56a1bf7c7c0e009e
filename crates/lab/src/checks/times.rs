// SPDX-License-Identifier: GPL-2.0-only
//! Remembers how long checks took, in `times.json` in the cache, to show what to expect.

use fs_err as fs;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use crate::context::Context;
use crate::host::write_atomically;

const FILE_NAME: &str = "times.json";

/// Returns how long `name` took last time; `None` if it is unknown.
pub fn last(ctx: &Context, name: &str) -> Option<Duration> {
    read(ctx).get(name).copied().map(Duration::from_secs)
}

/// Remembers how long `name` took. If two labs write at the same time, one of the times may be lost.
///
/// # Errors
/// When the cache cannot be written.
pub fn keep(ctx: &Context, name: &str, took: Duration) -> Result<()> {
    let mut times = read(ctx);
    times.insert(name.to_owned(), took.as_secs());
    write_atomically(&ctx.cache.join(FILE_NAME), &serde_json::to_string_pretty(&times)?)
}

/// Returns the remembered times in seconds; none if the file cannot be read.
fn read(ctx: &Context) -> BTreeMap<String, u64> {
    let text = fs::read(ctx.cache.join(FILE_NAME)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}
