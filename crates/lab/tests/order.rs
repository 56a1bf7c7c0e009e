// SPDX-License-Identifier: GPL-2.0-only
//! Switches the main part of the topic `reap` off and checks that the scenario measures that: the reaper then
//! frees ascending addresses again, which misses the topic's expectations.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::time::Duration;

use lab::context::Context;
use lab::kernel::{self, Tree, Variant};
use lab::progress::Progress;
use lab::vm::boot;
use lab::vm::channel::Outcome;
use lab::vm::job::{Arm, GuestCommand, Job};
use lab::vm::probe::Accel;

/// Measures `100-vmas/freed-descending` with these kernel parameters, in percent.
fn descending(cmdline: &str) -> f64 {
    let ctx = Context::discover(Progress::quiet()).unwrap();
    let bzimage = kernel::build(&ctx, Tree::Memreap, Variant::Slim).unwrap().bzimage;
    let arm = Arm { name: "memreap".into(), bzimage, cmdline: cmdline.into() };
    let args = ["multi", "case=100-vmas"].map(str::to_owned).to_vec();
    let job = Job {
        mem_mib: 1536,
        timeout: Duration::from_secs(180),
        ..Job::new(GuestCommand::Scenario { name: "reap".into(), args })
    };
    let logs = ctx.out.join("logs/order").join(if cmdline.is_empty() { "on" } else { "off" });
    let boot = boot::boot(&ctx, Accel::Tcg, &arm, &job, &logs).unwrap();
    assert_eq!(boot.outcome, Outcome::Exit(0), "{}\n{:?}", boot.tail(40), boot.notes);
    boot.samples.iter().find(|s| s.metric == "100-vmas/freed-descending").unwrap().value
}

#[test]
fn the_reaper_descends_and_ascends_when_the_topic_is_off() {
    assert_eq!(descending(""), 100.0);
    assert_eq!(descending("memreap.reap=0"), 0.0);
}
