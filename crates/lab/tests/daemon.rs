// SPDX-License-Identifier: GPL-2.0-only
//! `memreap daemon` in guests whose memory runs out, on both kernels: it kills the right process, and only
//! that one, before the kernel's OOM killer does, and frees its memory by the best method that the kernel
//! has. A victim that hardly gets CPU time exits soon nevertheless.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::time::Duration;

use lab::context::Context;
use lab::kernel::{self, Tree, Variant};
use lab::progress::Progress;
use lab::vm::boot;
use lab::vm::channel::Outcome;
use lab::vm::job::{Arm, GuestCommand, Job, Mode};
use lab::vm::probe::Accel;

/// Boots a kernel, and has the daemon defend the guest against a hog of one or many processes. Only the guest's own work
/// takes time in it, so that a busy host cannot let the kernel's OOM killer be faster.
fn defend(tree: Tree, hog: &str, method: &str) {
    run(tree, &[hog, method]);
}

/// The same against a process that hardly gets CPU time.
fn boost(tree: Tree, case: &str) {
    run(tree, &[case]);
}

fn run(tree: Tree, args: &[&str]) {
    let case = args[0];
    let args = args.iter().map(|&arg| arg.to_owned()).collect();
    let command = GuestCommand::Scenario { name: "daemon".into(), args };
    let ctx = Context::discover(Progress::quiet()).unwrap();
    let bzimage = kernel::build(&ctx, tree, Variant::Slim).unwrap().bzimage;
    let arm = Arm { name: tree.to_string(), bzimage, cmdline: String::new() };
    let timeout = Duration::from_secs(600);
    let job = Job { mem_mib: 512, timeout, cpus: 1, mode: Mode::Icount, ..Job::new(command) };
    let logs = ctx.out.join("logs/daemon").join(format!("{}-{case}", arm.name));
    let boot = boot::boot(&ctx, Accel::Tcg, &arm, &job, &logs).unwrap();
    println!("{}-{case}: {:?}", arm.name, boot.notes);
    assert_eq!(boot.outcome, Outcome::Exit(0), "{}\n{:?}", boot.tail(40), boot.notes);
}

#[test]
fn the_hog_dies_on_the_stock_kernel() {
    defend(Tree::Stock, "one", "mrelease");
}

#[test]
fn the_hog_dies_on_our_kernel() {
    defend(Tree::Memreap, "one", "expedite");
}

#[test]
fn a_hog_of_many_processes_dies_as_one_on_the_stock_kernel() {
    defend(Tree::Stock, "many", "mrelease");
}

#[test]
fn a_hog_of_many_processes_dies_as_one_on_our_kernel() {
    defend(Tree::Memreap, "many", "expedite");
}

#[test]
fn who_swaps_at_the_limit_of_a_cgroup_lives() {
    run(Tree::Stock, &["fits"]);
}

#[test]
fn shared_memory_is_back_soon_where_the_victim_has_1_percent_of_a_cpu() {
    boost(Tree::Stock, "cpu-1");
}

#[test]
fn shared_memory_is_not_said_to_be_back_before_the_victim_has_exited() {
    boost(Tree::Stock, "cpu-10-alone");
}

#[test]
fn shared_memory_is_back_soon_where_the_victim_is_nice() {
    boost(Tree::Stock, "nice-19");
}
