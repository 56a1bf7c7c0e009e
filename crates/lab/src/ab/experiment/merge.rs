// SPDX-License-Identifier: GPL-2.0-only
//! Puts the shards of one comparison together: `lab ab --shard K/N` on several machines, then `lab merge`.
//!
//! The test compares within pairs, and each pair was booted on one machine: so differences between machines are
//! in no ratio, and no machine is compared with another one.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};

use crate::ab::experiment::samples::{append, conclude};
use crate::ab::results::{ArmMeta, Meta, Results, Shard};
use crate::ab::stats::Rules;

/// Returns the results of the whole comparison.
///
/// # Errors
/// When a shard is missing or there twice, or they are not of the same comparison. Names the file.
pub fn merge(mut shards: Vec<(PathBuf, Results)>) -> Result<Results> {
    let place = |(path, results): &(PathBuf, Results)| {
        let shard = results.meta.shard.with_context(|| format!("{}: not a shard", path.display()))?;
        ensure!(!results.meta.partial, "{}: its run was interrupted", path.display());
        Ok(shard)
    };
    let places = shards.iter().map(place).collect::<Result<Vec<Shard>>>()?;
    let Some(Shard { of, .. }) = places.first().copied() else { bail!("no shards") };
    for number in 1..=of {
        let found: Vec<String> = (places.iter().zip(&shards))
            .filter(|(shard, _)| **shard == Shard { number, of })
            .map(|(_, (path, _))| path.display().to_string())
            .collect();
        ensure!(!found.is_empty(), "shard {number}/{of} is missing");
        ensure!(found.len() == 1, "shard {number}/{of} is there more than once: {}", found.join(", "));
    }
    ensure!(places.len() == of, "there are {} files for {of} shards", places.len());
    // With another number of pairs they would have some in common, and others would be missing.
    let all = shards.iter().map(|(_, results)| results.meta.pairs).sum();
    for (shard, (path, results)) in places.iter().zip(&shards) {
        ensure!(
            shard.pairs(all).len() == results.meta.pairs,
            "{}: of another comparison: it has {} of {all} pairs",
            path.display(),
            results.meta.pairs
        );
    }
    shards.sort_by_key(|(_, results)| results.meta.shard.map(|shard| shard.number));
    let [(_, first), others @ ..] = &shards[..] else { bail!("no shards") };
    // What repeats the whole comparison.
    let whole = |command: &String| {
        [' ', '='].iter().fold(command.clone(), |c, sep| c.replace(&format!(" --shard{sep}1/{of}"), ""))
    };
    let command = first.meta.command.as_ref().map(whole);
    let mut meta = Meta { shard: None, command, ..first.meta.clone() };
    let mut hosts: Vec<&str> = first.meta.host.as_deref().into_iter().collect();
    let mut runs = first.runs.clone();
    for (path, results) in others {
        let other = &results.meta;
        let of = |meta: &Meta| {
            // Where the lab puts what it builds is a content key, of users' trees the last part of it; other places are
            // the machine's.
            let built = |image: &String| match image.split_once("/images/") {
                Some((_, key)) if image.starts_with("user/") => Some(key.to_owned()),
                _ => image.starts_with("trees/").then(|| image.clone()),
            };
            let arm = |a: &ArmMeta| (a.name.clone(), a.cmdline.clone(), a.release.clone(), built(&a.bzimage));
            let arms: Vec<_> = meta.arms.iter().map(arm).collect();
            (arms, meta.workload.clone(), meta.accelerator.clone(), meta.min_effect, meta.alpha, meta.seed)
        };
        ensure!(
            of(other) == of(&meta) && results.version == first.version,
            "{}: of another comparison: other arms, kernels, workload, accelerator, lab, --alpha, --min-effect or --seed",
            path.display()
        );
        ensure!(results.runs.len() == runs.len(), "{}: of other scenarios or guests", path.display());
        for (run, more) in runs.iter_mut().zip(&results.runs) {
            append(run, more).map_err(|what| anyhow::anyhow!("{}: {what}", path.display()))?;
        }
        meta.pairs += other.pairs;
        meta.repeated.extend(other.repeated.clone());
        hosts.extend(other.host.as_deref());
    }
    let machines = hosts.len();
    hosts.dedup();
    meta.host = Some(format!("{machines} machines: {}", hosts.join("; ")));
    let rules = Rules { alpha: meta.alpha, min_effect: meta.min_effect };
    conclude(&meta, &runs, rules, false)
}
