// SPDX-License-Identifier: GPL-2.0-only
//! A user whose processes are limited to a twentieth of a CPU kills all the time: how much work do others get
//! done beside that?

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{PERIOD, RETURN_POLL_INTERVAL, RETURN_TIMEOUT, WARM_UP};
use crate::memory::PAGE_BYTES;
use crate::process::child::{Board, Child};
use crate::process::hogs::Hogs;
use crate::process::victim::{Layout, Victim};
use crate::system::cgroup::TemporaryCgroup;
use crate::system::clock;
use init::report::Reporter;

/// The limited user's processes, and a victim.
const ATTACKERS: usize = 4;
const DECOY: Layout = Layout { pages: (2 << 20) / PAGE_BYTES, vmas: 1 };
/// What this user has of a CPU, per [`PERIOD`].
const QUOTA: Duration = Duration::from_millis(5);
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// For how long others' work is counted beside that.
const WINDOW: Duration = Duration::from_secs(2);

/// Returns the work per millisecond of hogs, one per CPU, beside a limited user who starts victims and kills
/// each so many times.
pub(super) fn rate(cpus: usize, expedites: bool, kills_of_one: usize, out: &mut Reporter) -> Result<f64> {
    out.progress(if kills_of_one == 1 { "hostile: new victims" } else { "hostile: the same victims" });
    let group = TemporaryCgroup::new("hostile", "cpu")?;
    group.set("cpu.max", &format!("{} {}", QUOTA.as_micros(), PERIOD.as_micros()))?;
    let hogs = Hogs::start(cpus)?;
    let board = Board::new(ATTACKERS)?;
    let attacker = |i| {
        Child::fork(|| {
            loop {
                attack(cpus, expedites, kills_of_one, || board.add(i, 1))?;
            }
        })
    };
    // So that their victims are limited from the first one on.
    let attackers = group.within(|| (0..ATTACKERS).map(attacker).collect::<Result<Vec<_>>>())?;
    // With a twentieth of a CPU it takes a while until each has a victim.
    let due = clock::now() + START_TIMEOUT.as_nanos() as u64;
    while board.all().any(|kills| kills == 0) {
        ensure!(clock::now() < due, "the user's processes did not get to kill anything");
        thread::sleep(RETURN_POLL_INTERVAL);
    }
    hogs.work(true);
    thread::sleep(WARM_UP);
    let (work, start, kills) = (hogs.done(), clock::now(), board.all().sum::<u64>());
    let rate = super::foreground(&hogs, start, work, WINDOW)?;
    let kills = board.all().sum::<u64>() - kills;
    drop(attackers);
    // Their last victims are orphans, and still limited.
    group.set("cpu.max", "max")?;
    group.set("cgroup.kill", "1")?;
    let due = clock::now() + RETURN_TIMEOUT.as_nanos() as u64;
    while group.get("cgroup.events")?.contains("populated 1") {
        ensure!(clock::now() < due, "the user's processes do not die");
        thread::sleep(RETURN_POLL_INTERVAL);
    }
    out.note(&format!("hostile: {kills} kills"));
    Ok(rate)
}

/// Starts a victim, and kills it so many times.
fn attack(cpus: usize, expedites: bool, kills_of_one: usize, killed: impl Fn()) -> Result<()> {
    let victim = Victim::spawn(DECOY, 0..cpus)?;
    for _ in 0..kills_of_one {
        if expedites { victim.kill_expedited() } else { victim.kill() }.context("kill")?;
        killed();
    }
    victim.wait_until_dead().context("wait for a victim")?;
    victim.reap().context("reap a victim")
}
