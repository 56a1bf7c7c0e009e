// SPDX-License-Identifier: GPL-2.0-only
//! A user whose processes are limited to a twentieth of a CPU kills all the time: how much work do others get
//! done beside that?

use std::time::Duration;
use std::{hint, thread};

use anyhow::{Context as _, Result, ensure};
use linux::PidFd;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::{PERIOD, RETURN_POLL_INTERVAL, RETURN_TIMEOUT, WARM_UP};
use crate::memory::PAGE_BYTES;
use crate::process::child::{self, Board, Child};
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

/// What a child inherits.
const INHERITED_BYTES: usize = 64 << 20;

/// Processes that do nothing, among which the kernel might search for those that share memory.
const IDLERS: usize = 1_000;

/// What the limited user does.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Attack {
    /// Kills the same victim again and again.
    Repeats,
    /// Starts a victim for each kill.
    Forks,
    /// Kills children that have only inherited their memory, which costs little to start with.
    Heirs,
    /// Kills children that share the memory of their parent, who lives on.
    Sharers,
}

impl Attack {
    /// All, with their metrics.
    pub(super) const ALL: [(Self, &str); 4] = [
        (Self::Repeats, "repeats-foreground"),
        (Self::Forks, "forks-foreground"),
        (Self::Heirs, "heirs-foreground"),
        (Self::Sharers, "sharers-foreground"),
    ];

    /// Kills until this process is killed.
    fn run(self, cpus: usize, expedites: bool, killed: impl Fn()) -> Result<()> {
        match self {
            Self::Repeats => {
                let victim = Victim::spawn(DECOY, 0..cpus)?;
                loop {
                    kill(victim.pidfd(), expedites)?;
                    killed();
                }
            }
            Self::Forks => loop {
                let victim = Victim::spawn(DECOY, 0..cpus)?;
                kill(victim.pidfd(), expedites)?;
                killed();
                victim.wait_until_dead().context("wait for a victim")?;
                victim.reap().context("reap a victim")?;
            },
            Self::Heirs => {
                let memory = vec![1_u8; INHERITED_BYTES];
                loop {
                    let heir = Child::fork(|| child::sleep_for_ever())?;
                    kill_child(heir.pid(), expedites)?;
                    killed();
                    heir.wait().context("wait for an heir")?;
                    hint::black_box(&memory);
                }
            }
            Self::Sharers => {
                let memory = vec![1_u8; DECOY.bytes()];
                loop {
                    kill_sharer(expedites)?;
                    killed();
                    hint::black_box(&memory);
                }
            }
        }
    }
}

/// Returns the work per millisecond of hogs, one per CPU, beside that user.
pub(super) fn rate(cpus: usize, expedites: bool, attack: Attack, metric: &str, out: &mut Reporter) -> Result<f64> {
    out.progress(&format!("hostile: {metric}"));
    let idlers = if attack == Attack::Sharers { IDLERS } else { 0 };
    let _idlers = (0..idlers).map(|_| Child::fork(|| child::sleep_for_ever())).collect::<Result<Vec<_>>>()?;
    let group = TemporaryCgroup::new("hostile", "cpu")?;
    let hogs = Hogs::start(cpus)?;
    let board = Board::new(ATTACKERS)?;
    let attacker = |i| Child::fork(|| attack.run(cpus, expedites, || board.add(i, 1)));
    // So that their victims are limited, too.
    let attackers = group.within(|| (0..ATTACKERS).map(attacker).collect::<Result<Vec<_>>>())?;
    let killing = clock::within(START_TIMEOUT, RETURN_POLL_INTERVAL, || Ok(board.all().all(|kills| kills > 0)))?;
    ensure!(killing, "the user's processes did not get to kill anything");
    // With a twentieth of a CPU their memory alone would take minutes on a slow machine.
    group.set("cpu.max", &format!("{} {}", QUOTA.as_micros(), PERIOD.as_micros()))?;
    hogs.work(true);
    thread::sleep(WARM_UP);
    let (work, start, kills) = (hogs.done(), clock::now(), board.all().sum::<u64>());
    let rate = super::foreground(&hogs, start, work, WINDOW)?;
    let kills = board.all().sum::<u64>() - kills;
    drop(attackers);
    // Their last victims are orphans, and still limited.
    group.set("cpu.max", "max")?;
    group.set("cgroup.kill", "1")?;
    let is_empty = || Ok(!group.get("cgroup.events")?.contains("populated 1"));
    let died = clock::within(RETURN_TIMEOUT, RETURN_POLL_INTERVAL, is_empty)?;
    ensure!(died, "the user's processes do not die");
    out.note(&format!("hostile: {kills} kills"));
    Ok(rate)
}

fn kill(pidfd: &PidFd, expedites: bool) -> Result<()> {
    Ok(if expedites { pidfd.kill_expedited() } else { pidfd.send_signal(Signal::KILL) }?)
}

fn kill_child(pid: Pid, expedites: bool) -> Result<()> {
    kill(&PidFd::open(pid.into())?, expedites)
}

/// Starts a child that uses this process's memory, and kills it.
fn kill_sharer(expedites: bool) -> Result<()> {
    let mut stack = [0_u128; 1024];
    // SAFETY: nobody else uses the stack until the child has been waited for.
    let pid = unsafe { child::share_memory(&raw mut stack) }.context("clone")?;
    let killed = kill_child(pid, expedites);
    if killed.is_err() {
        // It still uses the stack.
        let _ = kill_process(pid, Signal::KILL);
    }
    waitpid(Some(pid), WaitOptions::empty()).context("wait for a sharer")?;
    killed
}
