// SPDX-License-Identifier: GPL-2.0-only
//! Nothing is allocated between the start and the choice.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod strict;

use std::time::Duration;

use linux::Root;
use memreap::choice::{Chooser, Grouping, Scope};
use memreap::policy::Policy;
use strict::without_allocating;

#[test]
fn choosing_allocates_nothing() {
    let policy = Policy::default();
    let mut chooser = Chooser::new(&Root::system(), 20_000).unwrap();
    chooser.set_grouping(Grouping { by_cgroup: true, whole: true });
    // Cold, with new processes, warm, and in a cgroup.
    let (cold, warm, inside, nowhere, again, refreshed, cost) = without_allocating(|| {
        let cold = chooser.choose(&policy, Scope::All).is_some();
        let mut refreshed = 0;
        for _ in 0..20 {
            chooser.refresh(&policy, Duration::from_millis(5));
            refreshed += chooser.explain().count();
            std::thread::sleep(Duration::from_millis(10));
        }
        let warm = chooser.choose(&policy, Scope::All).is_some();
        let inside = chooser.choose(&policy, Scope::Below(b"/")).is_some();
        let nowhere = chooser.choose(&policy, Scope::Below(b"/there/is/none")).is_some();
        chooser.forget();
        chooser.set_grouping(Grouping { by_cgroup: false, whole: true });
        let again = chooser.choose(&policy, Scope::All).is_some();
        (cold, warm, inside, nowhere, again, refreshed, chooser.cost())
    });
    assert!(!nowhere);
    // Where no other process runs, there is none to choose.
    println!("{cold} {warm} {inside} {again} {refreshed} {cost:?}");
    assert!(cost.processes > 0 && cost.cheap >= cost.processes);
}
