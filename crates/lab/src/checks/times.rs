// SPDX-License-Identifier: GPL-2.0-only
//! How long things took last time: `times.json` in the cache, so that whoever waits knows for how
//! long.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::Result;

use crate::context::Context;
use crate::host::write_atomically;

const FILE_NAME: &str = "times.json";

/// How long `name` took last time.
pub fn last(ctx: &Context, name: &str) -> Option<Duration> {
    read(ctx).get(name).copied().map(Duration::from_secs)
}

/// Keeps how long `name` took. Of two labs at a time, one may lose its figure.
///
/// # Errors
/// When the cache cannot be written.
pub fn keep(ctx: &Context, name: &str, took: Duration) -> Result<()> {
    let mut times = read(ctx);
    times.insert(name.to_owned(), took.as_secs());
    write_atomically(&ctx.cache.join(FILE_NAME), &serde_json::to_string_pretty(&times)?)
}

/// What cannot be read is as good as not there.
fn read(ctx: &Context) -> BTreeMap<String, u64> {
    let text = fs::read(ctx.cache.join(FILE_NAME)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}
