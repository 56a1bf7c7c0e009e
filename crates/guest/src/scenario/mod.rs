// SPDX-License-Identifier: GPL-2.0-only
//! The workloads that the lab runs in a guest, one file per scenario. A scenario does its rounds inside one
//! boot and reports **one value per metric**, the median of the rounds: rounds of one boot are correlated, so
//! the host compares boots, not rounds.

mod arguments;
mod daemon;
mod expedite;
mod fault;
mod interface;
mod ksm_rmap;
mod memcg_exit;
mod metrics;
mod oom_select;
mod reap;
mod release;
mod rss_counters;
mod soak;
mod storm_phone;
mod swap_defer;

use anyhow::{Result, bail};

pub use interface::Scenario;

/// Every scenario that this binary knows.
pub fn all() -> &'static [&'static dyn Scenario] {
    &[
        &daemon::DaemonKills,
        &expedite::Expedite,
        &fault::Fault,
        &ksm_rmap::KsmRmap,
        &memcg_exit::MemcgExit,
        &oom_select::OomSelect,
        &reap::Reap,
        &release::Release,
        &rss_counters::RssCounters,
        &soak::Soak,
        &storm_phone::STORM_PHONE,
        &storm_phone::STORM_PHONE_CASES,
        &swap_defer::SWAP_BATCH,
        &swap_defer::SWAP_DEFER,
    ]
}

/// The scenario called `name`.
///
/// # Errors
/// When there is none; the message lists those that exist.
pub fn find(name: &str) -> Result<&'static dyn Scenario> {
    let Some(found) = all().iter().find(|s| s.name() == name) else {
        let known: Vec<_> = all().iter().map(|s| s.name()).collect();
        bail!("no scenario '{name}' in this guest; there are: {}", known.join(", "));
    };
    Ok(*found)
}
